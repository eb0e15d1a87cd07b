"""How a transformer's repeated blocks run: as the model's own code, compiled by torch, or in fused passes of ours.

A plan's `compile` choice: "no", "yes" (compiling.py) or "fused" (fused/).
"""

from __future__ import annotations

from accel import policy
from accel.errors import Unknown
from accel.types import Choice, Gpu, Machine, Preferences, StageTraits

AUTO, NO, YES, FUSED = "auto", "no", "yes", "fused"
ALLOWED = (AUTO, YES, NO, FUSED)

FUSABLE = ("WanTransformer3DModel",)
"""Models whose block has a fused form."""
NEEDS = "fp8"
"""Linears that take what the fused passes hand over."""


def choose(
    wishes: Preferences, machine: Machine, traits: StageTraits, gpu: Gpu | None, linear: str
) -> tuple[Choice, str]:
    """The choice, and why a wish can't be kept, empty when it can. linear: what is engaged for the stage's linears."""
    wish = wishes.compile
    if wish not in ALLOWED:
        return _choice(AUTO, NO), Unknown(f"compile={wish} is not known, allowed are {', '.join(ALLOWED)}")
    if traits.stage != "transformer":
        return Choice(traits.stage, "compile", AUTO, NO, ("only the transformer's repeated blocks are compiled",)), ""
    if wish == NO:
        return _choice(wish, NO, "asked for"), ""
    if wish == YES:
        missing = machine.why_unproved("triton.kernel") if gpu else _no_compiler(machine)
        return _choice(wish, YES, "asked for"), f"compile=yes can't be used here: {missing}" if missing else ""
    reasons = why_not_fused(machine, traits, gpu, linear)
    if wish == FUSED:
        return _choice(wish, FUSED, "asked for"), f"compile=fused can't be used here: {reasons}" if reasons else ""
    if not reasons:
        return _choice(wish, FUSED, policy.FUSED), ""
    return _choice(wish, NO, policy.COMPILE), ""


def why_not_fused(machine: Machine, traits: StageTraits, gpu: Gpu | None, linear: str) -> str:
    """Why the blocks have no fused form here, as one sentence; empty when they have."""
    if traits.class_name not in FUSABLE:
        return f"{traits.class_name} has no fused form, {' and '.join(FUSABLE)} has"
    if linear != NEEDS:
        return f"the fused passes go with linear={NEEDS}, the linears are {linear}"
    return machine.why_unproved("triton.kernel") if gpu else "the fused passes run on a GPU"


def _choice(wish: str, engaged: str, *reasons: str) -> Choice:
    return Choice("transformer", "compile", wish, engaged, reasons)


def _no_compiler(machine: Machine) -> str:
    if machine.compiler:
        return ""
    return "no C++ compiler was found, which torch.compile needs on a CPU; install g++ or clang++"
