"""Accelerators for diffusers video pipelines: they look at the machine, choose, say why, count what they did, and come
out again.

    import accel
    installation = accel.install(pipeline)      # probes, plans and installs
    ...                                         # use the pipeline as always
    print(installation.report())                # calls served and fallen back, with the reasons
    installation.remove()                       # the pipeline is as it was, bit for bit

Importing this imports no torch; probing and planning never do.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from accel.errors import AccelError, NonFiniteError, PlanError
from accel.plan import make_plan
from accel.probe import probe
from accel.traits import traits_of
from accel.types import Choice, Machine, ModelTraits, Plan, Preferences, StagePlan, StageTraits

if TYPE_CHECKING:
    from accel.install import Installation

__all__ = [
    "AccelError",
    "Choice",
    "Installation",
    "Machine",
    "ModelTraits",
    "NonFiniteError",
    "Plan",
    "PlanError",
    "Preferences",
    "StagePlan",
    "StageTraits",
    "install",
    "make_plan",
    "probe",
    "traits_of",
]


def install(pipeline: Any, plan: Plan | None = None) -> Installation:
    """Puts `plan` into a loaded diffusers pipeline; without one, probes this machine and takes what `auto` chooses.

    Raises AccelError when the pipeline can't take the plan; the pipeline is then unchanged.
    """
    from accel.install import install as put_in

    return put_in(pipeline, plan or _automatic(pipeline))


def _automatic(pipeline: Any) -> Plan:
    """The plan for this machine, what was measured on it included."""
    from accel.readouts import ranking, store

    machine, traits = probe(), traits_of(pipeline)
    name = str(getattr(getattr(pipeline, "config", None), "_name_or_path", ""))
    return make_plan(machine, traits, readouts=ranking.for_model(store.load(machine).current, traits, name))


def __getattr__(name: str) -> Any:
    # `Installation` lives beside torch, which must not be imported for the sake of a name
    if name == "Installation":
        from accel.install import Installation

        return Installation
    raise AttributeError(f"module 'accel' has no attribute {name!r}")


class _Package(ModuleType):
    """Keeps `accel.install` the function: importing the module of that name would put itself in its place."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name == "install" and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
