"""One clip on several GPUs: which of them, whether the model can be shared among them, and what each plans with.

Decided before anything loads and without torch. On CPUs it is of no use, processes would only share the same cores; so
it is refused there, unless the environment's KINETILE_RANKS_ON_CPU says that it is tried out.
"""

from __future__ import annotations

import os
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
        wishes = replace(wishes, device=self.devices[0])
        plans = [make(seen, wishes) for seen in self.seen]
        if len({_attention(plan) for plan in plans}) > 1:
            # ranks with one head more than others must not compute it by another kernel
            plans = [make(seen, replace(wishes, attention="sdpa")) for seen in self.seen]
        plan = plans[0]
        stage, share = plan.stage("transformer"), sharing.token_ranks(self.count, self.guided)
        cache = "none" if stage is None else stage.cache.engaged
        if reason := sharing.why_not_cache(cache, share):
            if wishes.cache != "auto":
                raise PlanRefusedError(f"gpus={self.count}: {reason}.")
            return self.plan(make, replace(wishes, cache="none"))
        return plan

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
    """The GPUs that share a clip; none where ON_CPU says that the CPU stands in. Raises CannotRunError when there are
    too few.
    """
    usable = sorted((gpu for gpu in machine.usable_gpus() if gpu.vendor != "apple"), key=lambda gpu: gpu.index)
    if len(usable) < count and (usable or os.environ.get(ON_CPU) != "1"):
        raise CannotRunError(_too_few(count, usable, machine.unused_gpus()))
    return usable[:count]


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


def _too_few(count: int, usable: list[Gpu], unused: tuple[str, ...]) -> str:
    if not usable:
        why = f" ({'; '.join(unused)})" if unused else ""
        return (
            f"gpus={count}: this machine has no GPU that can be used here{why}; leave it at 1, which runs on the CPU."
        )
    found = "one GPU" if len(usable) == 1 else f"{len(usable)} GPUs"
    return f"gpus={count}: this machine has {found} that can be used; take at most {len(usable)}."
