"""What to use of a machine for a model: Machine + ModelTraits + Preferences -> Plan. Policy lives here and in
`policy.py` alone.

`auto` never fails and says what it chose and why. A forced choice that can't run raises PlanError with the reasons,
before anything loads. Nothing here runs a kernel or imports torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from accel import blocks, caches, policy, precision, threads
from accel.advice import PYTHON, nearest
from accel.backends import REGISTRY
from accel.contract import Backend
from accel.errors import PlanError, Unknown
from accel.figures import milliseconds
from accel.fit import choosing
from accel.readouts import deciding
from accel.readouts.ranking import Readouts
from accel.types import (
    STAGES,
    Choice,
    Gpu,
    Kind,
    Machine,
    ModelTraits,
    Plan,
    Preferences,
    Room,
    StageName,
    StagePlan,
    StageTraits,
)
from accel.waiting import WAITING, WAITING_REASON

__all__ = ["Plan", "PlanError", "Preferences", "Readouts", "make_plan"]

AUTO = "auto"
STOCK = "stock"
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
"""Short spellings that are understood beside the full ones."""

PLACES = {"cuda": "a GPU", "cpu": "the CPU", "mps": "Apple's GPU"}

KINDS: dict[StageName, tuple[Kind, ...]] = {
    "text_encoder": ("linear",),
    "transformer": ("attention", "linear"),
    "vae": ("vae",),
}
NOT_HERE: dict[tuple[str, str], str] = {
    (
        "text_encoder",
        "attention",
    ): "only the transformer's attention is exchanged: other modules have head sizes kernels can't take",
    ("text_encoder", "vae"): "the text encoder decodes no frames",
    ("transformer", "vae"): "the transformer decodes no frames",
    (
        "vae",
        "attention",
    ): "only the transformer's attention is exchanged: other modules have head sizes kernels can't take",
    ("vae", "linear"): "a VAE's time goes into convolutions",
}

ANY_MODEL = ModelTraits(
    "any model",
    "any pipeline",
    tuple(
        StageTraits(stage, "any model", tuple(DTYPES.values()), reachable=True, conv3d=1, tiles=True)
        for stage in STAGES
    ),
)
"""A model that takes all that any model takes: a backend or device that it is refused, no model gets on that machine.
Compiled blocks and step caches go by the model's own class, so it can't be asked about those."""


def make_plan(
    machine: Machine,
    traits: ModelTraits,
    preferences: Preferences | None = None,
    *,
    readouts: Readouts | None = None,
    registry: Iterable[Backend] = REGISTRY,
    room: Room | None = None,
) -> Plan:
    """The plan for running `traits` on `machine`. readouts: what was measured here (`accel.readouts`), which decides
    where there is any. room: bytes that may be held now; without it, all that machine and GPU have.

    Raises PlanError, all reasons at once, when a forced preference can't be kept. Approximate backends are engaged when
    forced, or when they won and this model's own clips were compared and stayed alike.
    """
    wishes = preferences or Preferences()
    planner = _Planner(machine, wishes, readouts or Readouts(), tuple(registry))
    gpu, device = planner.device()
    workers = planner.threads()
    stages = tuple(planner.stage(stage, gpu, device, workers) for stage in traits.stages)
    space = room or Room(machine.memory.usable, gpu.memory if gpu else 0)
    fit = choosing.choose(traits, stages, planner.wishes, space, gpu)
    planner.refusals += fit.refusals
    if planner.refusals:
        raise PlanError(list(dict.fromkeys(planner.refusals)))
    count = int(workers.engaged)
    waiting = Choice("process", "waiting", AUTO, WAITING, (WAITING_REASON,))
    environment = threads.environment(machine, count)
    return Plan(traits.family, stages, workers, waiting, environment, fit.offload, fit.tiling, fit.text_encoder)


@dataclass
class _Planner:
    """One planning; collects the forced choices that can't be kept."""

    machine: Machine
    wishes: Preferences
    readouts: Readouts
    registry: tuple[Backend, ...]
    refusals: list[str] = field(default_factory=list)

    def stage(self, traits: StageTraits, gpu: Gpu | None, device: Choice, workers: Choice) -> StagePlan:
        name = traits.stage
        place = gpu_place(gpu)
        dtype = self.dtype(traits, gpu)
        chosen: dict[str, Choice] = {}
        for kind in ("attention", "linear", "vae"):
            if kind in KINDS[name]:
                chosen[kind] = self.backend(traits, kind, gpu, place, dtype.engaged)
            else:
                chosen[kind] = Choice(name, kind, AUTO, STOCK, (NOT_HERE[name, kind],))
        compiled = self.compile(traits, gpu, chosen["linear"].engaged)
        return StagePlan(
            stage=name,
            device=Choice(name, "device", device.requested, device.engaged, device.reasons),
            dtype=dtype,
            attention=chosen["attention"],
            linear=chosen["linear"],
            vae=chosen["vae"],
            memory_format=self.memory_format(traits, chosen["vae"].engaged),
            compile=compiled,
            threads=self.stage_threads(traits, gpu, dtype.engaged, workers),
            exact_steps=self.exact_steps(name, chosen["attention"].engaged),
            cache=self.cache(traits, compiled.engaged),
        )

    # -- device --

    def device(self) -> tuple[Gpu | None, Choice]:
        wish = self.wishes.device
        usable = self.machine.usable_gpus()
        unusable = self.machine.unused_gpus()
        if wish == AUTO:
            for gpu in sorted(usable, key=lambda gpu: -gpu.memory):
                if gpu.vendor != "apple" or _mps_pays(self.machine):
                    return gpu, _device_choice(wish, gpu, (f"{gpu.name} ({gpu.arch}): {gpu.usable.reason}", *unusable))
            why = (
                unusable or ("the GPU is slower than the CPU in the machine's own test",)
                if usable
                else ("no GPU was found",)
            )
            return None, Choice("process", "device", wish, "cpu", unusable or why)
        if wish == "cpu":
            return None, Choice("process", "device", wish, "cpu", ("asked for",))
        for gpu in usable:
            if wish in (gpu_place(gpu), _device_name(gpu)):
                return gpu, _device_choice(wish, gpu, ("asked for",))
        known = ", ".join(["auto", "cpu", *(_device_name(gpu) for gpu in usable)])
        self.refusals.append(f"device={wish} can't be used here, allowed are {known}" + _because(unusable))
        return None, Choice("process", "device", wish, "cpu", ())

    # -- dtype --

    def dtype(self, traits: StageTraits, gpu: Gpu | None) -> Choice:
        wish = DTYPES.get(self.wishes.dtype, self.wishes.dtype)
        needed = self.forced_dtypes(traits)
        if wish != AUTO:
            return self.forced_dtype(traits, gpu, wish, needed)
        allowed = [name for name in traits.dtypes if needed is None or name in needed[1]]
        if not allowed and needed is not None:
            only = " or ".join(needed[1])
            self.refusals.append(f"{needed[0]} runs in {only} only, the {traits.stage} ({traits.class_name}) can't")
            allowed = list(traits.dtypes)
        measured = deciding.dtype(self.readouts, self.registry, traits, KINDS[traits.stage], gpu_place(gpu), allowed)
        name, reasons = measured or precision.best_dtype(self.machine, traits, gpu, allowed)
        if needed is not None and len(allowed) < len(traits.dtypes):
            reasons = (f"{needed[0]} was asked for and runs in {' or '.join(needed[1])}", *reasons)
        return Choice(traits.stage, "dtype", AUTO, name, reasons)

    def forced_dtype(
        self, traits: StageTraits, gpu: Gpu | None, wish: str, needed: tuple[str, tuple[str, ...]] | None
    ) -> Choice:
        where = f"dtype={wish} for the {traits.stage}"
        if wish not in DTYPES.values():
            allowed = ", ".join(DTYPES.values())
            self.refusals.append(Unknown(f"dtype={wish} is not known, allowed are auto, {allowed}"))
        elif wish not in traits.dtypes:
            self.refusals.append(f"{where}: {traits.class_name} runs in {' or '.join(traits.dtypes)} only")
        elif needed is not None and wish not in needed[1]:
            self.refusals.append(f"{where}: {needed[0]} runs in {' or '.join(needed[1])} only")
        elif gpu is None and wish == "bfloat16" and (dead := self.machine.proofs.get("bf16")) and not dead.ok:
            self.refusals.append(f"{where}: bf16 can't be used on this CPU, {dead.reason}; choose dtype=float32")
        speed = precision.speed(self.machine, traits) if gpu is None and wish == "bfloat16" else ()
        return Choice(traits.stage, "dtype", self.wishes.dtype, wish, ("asked for", *speed))

    def forced_dtypes(self, traits: StageTraits) -> tuple[str, tuple[str, ...]] | None:
        """The backend forced for this stage that restricts its dtype most, and the dtypes it runs in."""
        forced = [
            (f"{_setting(traits.stage, kind)}={item.name}", item.dtypes)
            for kind in KINDS[traits.stage]
            for item in self.registry
            if item.kind == kind and item.name == self.named(traits, kind, self.wish(traits.stage, kind))
        ]
        return min(forced, key=lambda entry: len(entry[1]), default=None)

    # -- backends --

    def wish(self, stage: StageName, kind: Kind) -> str:
        return str(getattr(self.wishes, _setting(stage, kind)))

    def named(self, traits: StageTraits, kind: Kind, wish: str) -> str:
        """The backend that a wish means: itself, but for `attention=fp8`, the first that this machine can run."""
        if (kind, wish) != ("attention", policy.FP8):
            return wish
        known = [item for name in policy.FP8_ATTENTION for item in self.registry if item.name == name]
        return next((item.name for item in known if not item.why_not(self.machine, traits)), wish)

    def backend(self, traits: StageTraits, kind: Kind, gpu: Gpu | None, place: str, dtype: str) -> Choice:
        setting, asked = _setting(traits.stage, kind), self.wish(traits.stage, kind)
        wish = self.named(traits, kind, asked)
        known = {item.name: item for item in self.registry if item.kind == kind}
        if wish == AUTO:
            return self.automatic(traits, kind, gpu, place, dtype, known)
        if (kind, wish) == ("attention", policy.FP8):
            told = [
                f"{name}: {'; '.join(self.why_not(known[name], traits, place, dtype))}"
                for name in policy.FP8_ATTENTION
                if name in known
            ]
            self.refusals.append(f"attention=fp8 can't be used here: {'; '.join(told)}")
        elif wish not in known and wish != STOCK:
            able = [name for name, one in known.items() if not self.why_not(one, traits, place, one.dtypes[0])]
            which = nearest(wish, [AUTO, *sorted(known)], f"`{PYTHON} -m accel.backends` lists", [AUTO, *able])
            self.refusals.append(Unknown(f"{setting}={wish} is not known: {which}"))
        elif wish in known:
            reasons = self.why_not(known[wish], traits, place, dtype)
            if reasons and known[wish].reference and kind == "attention" and not traits.reachable:
                # Such models call PyTorch's attention by themselves: what was asked for is what runs.
                return Choice(traits.stage, kind, asked, STOCK, ("asked for", reasons[0]))
            if reasons:
                self.refusals.append(f"{setting}={asked} can't be used here: {'; '.join(reasons)}")
        approximate = wish in known and not known[wish].exact
        slow = wish in known and known[wish].dtypes == ("bfloat16",) and precision.is_slow(self.machine, traits, gpu)
        note = (
            "asked for",
            *(["approximate: the clip will differ slightly"] if approximate else []),
            *(precision.speed(self.machine, traits)[:1] if slow else []),
        )
        return Choice(traits.stage, kind, asked, wish, note)

    def why_not(self, item: Backend, traits: StageTraits, place: str, dtype: str) -> list[str]:
        """Every reason against one backend for one stage."""
        reasons = []
        if place not in item.devices:
            where = " or ".join(PLACES.get(device, device) for device in item.devices)
            stage, here = traits.stage.replace("_", " "), PLACES.get(place, place)
            reasons.append(f"it needs {where}, and the {stage} is planned for {here}")
        if item.kind == "attention" and not traits.reachable:
            reasons.append(traits.reach or f"{traits.class_name} does not ask diffusers' dispatcher for its attention")
        if dtype not in item.dtypes:
            reasons.append(f"{item.name} runs in {' or '.join(item.dtypes)}, the {traits.stage} in {dtype}")
        return reasons or item.why_not(self.machine, traits)

    def automatic(
        self, traits: StageTraits, kind: Kind, gpu: Gpu | None, place: str, dtype: str, known: Mapping[str, Backend]
    ) -> Choice:
        """The first of the preferred order that can run; what stood before it is named with its reason."""
        if kind == "attention" and not traits.reachable:
            reason = traits.reach or f"{traits.class_name} does not ask diffusers' dispatcher for its attention"
            return Choice(traits.stage, kind, AUTO, STOCK, (reason,))
        if self.readouts.of(traits.stage, kind, dtype, place):
            why_not = partial(self.why_not, traits=traits, place=place, dtype=dtype)
            return deciding.backend(self.readouts, traits, kind, dtype, place, known, why_not)
        rule = policy.rule_for(policy.hardware(self.machine, gpu), kind, traits)
        first = next((name for name in rule.order if name in known and dtype in known[name].dtypes), "")
        passed: list[str] = []
        for name in rule.order:
            item = known.get(name)
            if item is None or not item.exact:
                continue
            reasons = self.why_not(item, traits, place, dtype) or _no_gain(self.machine, item)
            if not reasons:
                why = rule.why if name == first else f"the first exact one that can run here is {name}"
                told = (why, *passed, rule.figures, *_gain_shown(self.machine, item))
                return Choice(traits.stage, kind, AUTO, name, told)
            passed.append(f"not {name}: {'; '.join(reasons)}")
        return Choice(traits.stage, kind, AUTO, STOCK, (*passed, "so the model's own code runs"))

    # -- the rest --

    def memory_format(self, traits: StageTraits, vae: str) -> Choice:
        if vae in (STOCK, ""):
            return Choice(traits.stage, "memory_format", AUTO, "contiguous", ("as the model's own code expects",))
        reason = f"{vae} wants the weights of 3-D convolutions with channels last"
        return Choice(traits.stage, "memory_format", AUTO, "channels_last_3d", (reason,))

    def compile(self, traits: StageTraits, gpu: Gpu | None, linear: str) -> Choice:
        choice, refusal = blocks.choose(self.wishes, self.machine, traits, gpu, linear)
        self.refusals += [refusal] if refusal else []
        return choice

    def exact_steps(self, stage: StageName, attention: str) -> Choice:
        item = next((item for item in self.registry if item.kind == "attention" and item.name == attention), None)
        choice, refusal = precision.exact_steps(self.wishes, stage, item)
        self.refusals += [refusal] if refusal else []
        return choice

    def cache(self, traits: StageTraits, blocks: str) -> Choice:
        choice, refusal = caches.choose(self.wishes, traits, blocks, self.readouts.qualities)
        self.refusals += [refusal] if refusal else []
        return choice

    def threads(self) -> Choice:
        wish, cores = self.wishes.threads, self.machine.cores
        ours = next((item.value for item in self.machine.overrides if item.name == "OMP_NUM_THREADS"), None)
        if wish == AUTO and ours and ours.isdigit() and int(ours) > 0:
            return Choice("process", "threads", wish, ours, (f"OMP_NUM_THREADS={ours} is set",))
        if wish == AUTO:
            return Choice("process", "threads", wish, str(cores.usable), (cores.reason,))
        if not (wish.isdecimal() and 1 <= int(wish) <= cores.logical):
            self.refusals.append(f"threads={wish} can't be used, allowed are auto and 1 to {cores.logical}")
            return Choice("process", "threads", wish, str(cores.usable), ())
        more = [f"more than {cores.reason} carries; slower is likely"] if int(wish) > cores.usable else []
        return Choice("process", "threads", wish, str(int(wish)), ("asked for", *more))

    def stage_threads(self, traits: StageTraits, gpu: Gpu | None, dtype: str, workers: Choice) -> Choice:
        most = int(workers.engaged)
        if workers.requested != AUTO or gpu is not None:
            reason = "asked for" if workers.requested != AUTO else "it runs on the GPU"
            return Choice(traits.stage, "threads", workers.requested, workers.engaged, (reason,))
        count, reason = policy.best_threads(self.machine, traits, dtype, most)
        return Choice(traits.stage, "threads", AUTO, str(count), (reason,))


# -- helpers: facts to sentences --


def gpu_place(gpu: Gpu | None) -> str:
    """torch's device type for a stage: "cpu", "cuda" (NVIDIA and AMD alike) or "mps"."""
    if gpu is None:
        return "cpu"
    return "mps" if gpu.vendor == "apple" else "cuda"


def _device_name(gpu: Gpu) -> str:
    return "mps" if gpu.vendor == "apple" else f"cuda:{gpu.index}"


def _device_choice(wish: str, gpu: Gpu, reasons: tuple[str, ...]) -> Choice:
    return Choice("process", "device", wish, _device_name(gpu), reasons)


def _setting(stage: StageName, kind: Kind) -> str:
    """The preference's name for one kind of one stage."""
    return "text_encoder_linear" if (stage, kind) == ("text_encoder", "linear") else kind


def _because(reasons: tuple[str, ...]) -> str:
    return f" ({'; '.join(reasons)})" if reasons else ""


def _mps_pays(machine: Machine) -> bool:
    """Whether an Apple GPU's product is faster than all cores together, by the machine's own tests (1024^3 against
    512^3)."""
    on_gpu, on_core = machine.figure("gpu:mps", "linear_float32_ms"), machine.figure("fp32", "linear_float32_ms")
    return bool(on_gpu and on_core and on_gpu * machine.cores.usable < on_core * 8)


def _own_test(machine: Machine, item: Backend) -> tuple[float, float] | None:
    """Milliseconds of the packed and of the plain linear in the machine's own test."""
    task = getattr(item, "own_test", "")
    packed, plain = machine.figure(task, "linear_packed_ms"), machine.figure(task, "linear_plain_ms")
    return (packed, plain) if packed and plain else None


def _no_gain(machine: Machine, item: Backend) -> list[str]:
    """Against a packed linear: clearly slower than the plain one in the machine's own test (sglang issue 11044)."""
    times = _own_test(machine, item)
    if times and times[0] > times[1] * policy.SLOWER:
        return [f"slower in the machine's own test: {milliseconds(times[0])}, {milliseconds(times[1])} without"]
    return []


def _gain_shown(machine: Machine, item: Backend) -> list[str]:
    times = _own_test(machine, item)
    return [f"in the machine's own test {milliseconds(times[0])}, {milliseconds(times[1])} without"] if times else []
