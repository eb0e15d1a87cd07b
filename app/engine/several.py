"""One clip on several GPUs: which of them, whether the model can be shared among them, and what each plans with.

Decided before anything loads and without torch. On CPUs it is of no use, processes would only share the same cores; so
it is refused there, unless the environment's KINETILE_RANKS_ON_CPU says that it is tried out.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from accel.parallel import sharing
from accel.types import Gpu, Machine, ModelTraits, Plan, Preferences, Room, StagePlan
from app.engine.room import held_by_children
from app.errors import CannotRunError, PlanRefusedError
from app.machine_memory import free_memory, resident
from app.request import GenerationRequest

ON_CPU = "KINETILE_RANKS_ON_CPU"

Make = Callable[[ModelTraits, Preferences], Plan]


@dataclass(frozen=True)
class Sharing:
    """One clip on the devices of these torch names ("cuda:0"), one rank each. names: as a person knows them. memory:
    bytes of the smallest, 0 for CPUs. guided: whether the clip has two forwards a step. seen: the model as the ranks
    see it, see `as_seen_by_ranks`.
    """

    devices: tuple[str, ...]
    names: tuple[str, ...]
    memory: int
    guided: bool
    seen: tuple[ModelTraits, ...]

    @property
    def count(self) -> int:
        return len(self.devices)

    @property
    def how(self) -> str:
        """How the work is dealt out, in a few words."""
        share = sharing.token_ranks(self.count, self.guided)
        branches = "guidance's two branches apart" if sharing.branches_split(self.count, self.guided) else ""
        tokens = f"each forward's tokens dealt to {share}" if share > 1 else ""
        return ", ".join(filter(None, [branches, tokens]))

    def to_data(self) -> dict[str, Any]:
        """What the clip's plan tells of it."""
        return {"count": self.count, "devices": list(self.devices), "names": list(self.names), "how": self.how}

    def room(self) -> Room:
        """What each rank may hold; ranks that hold the model already give it back for another plan."""
        host = free_memory()[0] + resident() + held_by_children()
        return Room(host // self.count, self.memory)

    def plan(self, make: Make, wishes: Preferences) -> Plan:
        """One plan for all ranks, on the first one's device. Raises PlanError, PlanRefusedError."""
        if reason := self._why_not_cache(wishes):
            raise PlanRefusedError(f"gpus={self.count}: {reason}.")
        wishes = replace(wishes, device=self.devices[0])
        plans = [make(seen, wishes) for seen in self.seen]
        chosen = [_attention(plan) for plan in plans]
        if len(set(chosen)) == 1:
            return plans[0]
        # ranks with one head more than others must not compute it by another kernel
        why = f"it would be {' here and '.join(chosen)} there, since not all GPUs have as many heads; all take this"
        return _with_attention(make(self.seen[0], replace(wishes, attention="sdpa")), wishes.attention, why)

    def possible(self, wishes: Preferences) -> Preferences:
        """`wishes` less what can't be shared: of a recorded plan as much is kept as can be."""
        return replace(wishes, cache="auto") if self._why_not_cache(wishes) else wishes

    def _why_not_cache(self, wishes: Preferences) -> str:
        """`auto` never chooses a step cache."""
        share = sharing.token_ranks(self.count, self.guided)
        return "" if wishes.cache == "auto" else sharing.why_not_cache(wishes.cache, share)

    def on(self, plan: Plan, rank: int) -> Plan:
        """The same plan on that rank's own device."""

        def moved(stage: StagePlan) -> StagePlan:
            if stage.device.engaged != self.devices[0]:
                return stage
            return replace(stage, device=replace(stage.device, engaged=self.devices[rank]))

        return replace(plan, stages=tuple(moved(stage) for stage in plan.stages))


def sharing_for(machine: Machine, traits: ModelTraits, request: GenerationRequest) -> Sharing | None:
    """How `request` (normalised) is shared, None for one device.

    Raises CannotRunError when there are too few GPUs, PlanRefusedError when the model can't be shared among so many.
    """
    count = request.accel.gpus
    if count == 1:
        return None
    guided = is_guided(request)
    if reason := sharing.why_not_shared(traits.stage("transformer"), count, guided):
        raise PlanRefusedError(f"gpus={count}: {reason}.")
    seen = sharing.as_seen_by_ranks(traits, count, guided)
    taken = gpus_for(machine, count)
    if not taken:
        return Sharing(("cpu",) * count, (cpu_name(machine),) * count, 0, guided, seen)
    devices = tuple(f"cuda:{gpu.index}" for gpu in taken)
    return Sharing(devices, tuple(gpu.name for gpu in taken), min(gpu.memory for gpu in taken), guided, seen)


def gpus_for(machine: Machine, count: int) -> list[Gpu]:
    """The GPUs that share a clip, of one architecture: one plan is made for all of them, and the slowest is waited for.
    None where ON_CPU says that the CPU stands in. Raises CannotRunError when there are too few.
    """
    usable, found = _usable(machine), alike(machine)
    if len(found) < count and (usable or os.environ.get(ON_CPU) != "1"):
        raise CannotRunError(_too_few(count, usable, found, machine.unused_gpus()))
    return found[:count]


def alike(machine: Machine) -> list[Gpu]:
    """Every GPU that can share a clip: those of the architecture of which there are most."""
    usable = _usable(machine)
    kinds = Counter(gpu.arch for gpu in usable)
    return [gpu for gpu in usable if gpu.arch == kinds.most_common(1)[0][0]]


def _usable(machine: Machine) -> list[Gpu]:
    """Apple's are left out: no two share a clip."""
    return sorted((gpu for gpu in machine.usable_gpus() if gpu.vendor != "apple"), key=lambda gpu: gpu.index)


def is_guided(request: GenerationRequest) -> bool:
    """Whether a step has two forwards; see `arguments_for`, which gives a clip without a prompt no guidance."""
    return bool(request.prompt.strip()) and (request.guidance or 0) > 1


def ran_on(machine: Machine, device: str, shared: Sharing | None) -> str:
    """Where a clip is made, as a person knows it: "NVIDIA H200", "2 x NVIDIA H200"."""
    if shared is not None:
        kinds = list(dict.fromkeys(shared.names))
        return " + ".join(f"{shared.names.count(kind)} x {kind}" for kind in kinds)
    gpus = [gpu for gpu in machine.gpus if device == ("mps" if gpu.vendor == "apple" else f"cuda:{gpu.index}")]
    return gpus[0].name if gpus else cpu_name(machine)


def cpu_name(machine: Machine) -> str:
    """The processor without marks and clock."""
    name = (machine.cpu.model or machine.cpu.vendor).replace("(R)", "").replace("(TM)", "")
    return " ".join(name.split(" CPU")[0].split(" @")[0].split()) or "CPU"


def _attention(plan: Plan) -> str:
    stage = plan.stage("transformer")
    return "" if stage is None else stage.attention.engaged


def _with_attention(plan: Plan, requested: str, why: str) -> Plan:
    def told(stage: StagePlan) -> StagePlan:
        if stage.stage != "transformer":
            return stage
        return replace(stage, attention=replace(stage.attention, requested=requested, reasons=(why,)))

    return replace(plan, stages=tuple(told(stage) for stage in plan.stages))


def _too_few(count: int, usable: list[Gpu], alike: list[Gpu], unused: tuple[str, ...]) -> str:
    if not usable:
        why = f" ({'; '.join(unused)})" if unused else ""
        return (
            f"gpus={count}: this machine has no GPU that can be used here{why}; leave it at 1, which runs on the CPU."
        )
    if len(alike) < len(usable):
        names = ", ".join(dict.fromkeys(gpu.name for gpu in usable))
        return (
            f"gpus={count}: GPUs that share a clip must be of one architecture, and this machine has {names}; take at "
            f"most {len(alike)}."
        )
    found = "one GPU" if len(usable) == 1 else f"{len(usable)} GPUs"
    return f"gpus={count}: this machine has {found} that can be used; take at most {len(usable)}."
