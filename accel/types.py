"""The words accel speaks: what a machine has (Machine), what a model needs (ModelTraits), what was asked (Preferences),
what will be done (Plan).

Everything here is a frozen value without behaviour beyond look-ups, holds plain data, imports no torch, and turns into
JSON and back (`to_dict`, `from_dict`). Memory is in bytes, times in milliseconds where a figure's name ends in `_ms`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self

from accel.codec import decode, encode

Scalar = str | int | float | bool | None
Kind = Literal["attention", "linear", "vae", "cache"]
StageName = Literal["text_encoder", "transformer", "vae"]
GpuVendor = Literal["nvidia", "amd", "apple"]
Unsettled = Literal["", "untried", "undecided"]
Untried = Literal["", "time", "compiling"]

STAGES: tuple[StageName, ...] = ("text_encoder", "transformer", "vae")


class AsData:
    """JSON in and out for a frozen dataclass."""

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists and scalars, ready for `json.dumps`."""
        return encode(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """The value that `to_dict` described. Raises ValueError naming the field that does not fit; unknown keys are
        ignored."""
        return decode(cls, data)


@dataclass(frozen=True)
class Fact(AsData):
    """One answer with its grounds: the value, why it is so (one sentence), where it was read."""

    value: Scalar
    reason: str
    source: str


@dataclass(frozen=True)
class Flag(AsData):
    """A CPU feature. `advertised` is what the machine claims; `usable` only once a real run used it and was right."""

    advertised: bool
    usable: bool
    reason: str
    source: str


@dataclass(frozen=True)
class CpuFacts(AsData):
    """Flags are keyed by one spelling on every system: see `accel.probing.cpu.FLAGS`."""

    vendor: str
    model: str
    flags: dict[str, Flag]
    identity: str = ""

    def advertises(self, flag: str) -> bool:
        return flag in self.flags and self.flags[flag].advertised

    def usable(self, flag: str) -> bool:
        return flag in self.flags and self.flags[flag].usable

    def why_not(self, flag: str) -> str:
        """Why `flag` can't be used, as one sentence; empty when it can."""
        if self.usable(flag):
            return ""
        return self.flags[flag].reason if flag in self.flags else f"this CPU has no {flag}"


@dataclass(frozen=True)
class Cores(AsData):
    """`usable` = floor(min(quota, affinity, physical)), at least 1: what the thread count is taken from."""

    physical: int
    logical: int
    usable: int
    reason: str
    limits: tuple[Fact, ...] = ()


@dataclass(frozen=True)
class Memory(AsData):
    """`usable` is the least of the host's memory and every cgroup limit on the way, in bytes."""

    total: int
    usable: int
    reason: str
    limits: tuple[Fact, ...] = ()


@dataclass(frozen=True)
class NumaNode(AsData):
    index: int
    cpus: int
    memory: int


@dataclass(frozen=True)
class Gpu(AsData):
    """`arch` is the chip's own name (`sm_90`, `gfx950`, `mps`), never derived from the marketing name.

    `index` is torch's number for it, -1 when torch does not show it. `usable` says whether a small product ran on it
    and was right.
    """

    index: int
    vendor: GpuVendor
    name: str
    memory: int
    arch: str
    driver: str
    runtime: str
    has_code: Fact
    usable: Fact


@dataclass(frozen=True)
class Package(AsData):
    """A library as found: `importable` only once a child process imported it. `ops` are the operators it registered.

    unsettled: why it is not known whether it imports: untried, or undecided by a test that ended without an answer;
    empty once it is known.
    """

    name: str
    distribution: str
    version: str
    build: str
    importable: bool
    reason: str
    ops: tuple[str, ...] = ()
    unsettled: Unsettled = ""

    @property
    def installed(self) -> bool:
        return bool(self.version)


@dataclass(frozen=True)
class Override(AsData):
    """An environment variable that can make this machine look like another one."""

    name: str
    value: str
    effect: str


@dataclass(frozen=True)
class Proof(AsData):
    """One small real run in a child process. `ok` = it survived and was right; `figures` are its measurements.

    untried: why it was left for another time: too little of it, or a first run that may compile for minutes.
    """

    ok: bool
    reason: str
    figures: dict[str, float] = field(default_factory=dict)
    detail: dict[str, Scalar] = field(default_factory=dict)
    untried: Untried = ""


@dataclass(frozen=True)
class Machine(AsData):
    """What this machine has and what of it was proved.

    proofs: by the names in `accel.probing.runs.TASKS`, and `gpu:0`, `gpu:mps`.
    compiler: the C++ compiler found, empty without one.
    """

    system: str
    arch: str
    python: str
    cpu: CpuFacts
    cores: Cores
    memory: Memory
    numa: tuple[NumaNode, ...]
    gpus: tuple[Gpu, ...]
    packages: dict[str, Package]
    overrides: tuple[Override, ...]
    proofs: dict[str, Proof]
    compiler: str = ""
    problems: tuple[str, ...] = ()

    def why_unproved(self, task: str) -> str:
        """Why the run `task` doesn't count, as one sentence; empty when it survived and was right."""
        proof = self.proofs.get(task)
        if proof is None:
            return f"{task} has not been tried on this machine yet"
        return "" if proof.ok else proof.reason

    def figure(self, task: str, name: str) -> float | None:
        """A measurement of the run `task`, None when there is none."""
        proof = self.proofs.get(task)
        return proof.figures.get(name) if proof is not None and proof.ok else None

    def usable_gpus(self) -> tuple[Gpu, ...]:
        return tuple(gpu for gpu in self.gpus if gpu.usable.value is True)

    def unused_gpus(self) -> tuple[str, ...]:
        """Why each of the other GPUs is not used, as sentences; four of a kind are told once."""
        unused = [gpu for gpu in self.gpus if gpu.usable.value is not True]
        return tuple(dict.fromkeys(f"{gpu.name} is not used: {gpu.usable.reason}" for gpu in unused))


@dataclass(frozen=True)
class LinearShape(AsData):
    """`count` linears of weight shape (out_features, in_features)."""

    out_features: int
    in_features: int
    count: int = 1
    bias: bool = True


@dataclass(frozen=True)
class StageTraits(AsData):
    """What one stage of a model asks of a backend. 0 means "unknown" or "has none".

    tokens: rows of the widest linear, and query length of its self-attention, for one call.
    dtypes: the dtypes the stage's weights may be run in, best known first.
    attention_calls: attention modules, of which self_attention look at the video's own tokens.
    reachable: its attention goes through diffusers' dispatcher, so a backend can be put in; `reach` says why not.
    channels: for a VAE, the decoder's output-side base width.
    caches: step caches by name (`accel.caches`), each with why it can't be had, empty when it can.
    blocks: repeated blocks of the transformer. For a VAE: tiles: it can decode in tiles; untiled: why it can't; patch:
    side in pixels of what its decoder's last feature map holds in one place; frames_at_once: frames it decodes
    together, 0 for all.
    """

    stage: StageName
    class_name: str
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    parameters: int = 0
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    tokens: int = 0
    kv_tokens: int = 0
    attention_calls: int = 0
    self_attention: int = 0
    reachable: bool = False
    reach: str = ""
    linears: tuple[LinearShape, ...] = ()
    conv3d: int = 0
    channels: int = 0
    caches: dict[str, str] = field(default_factory=dict)
    blocks: int = 0
    tiles: bool = False
    untiled: str = ""
    patch: int = 1
    frames_at_once: int = 0


@dataclass(frozen=True)
class ModelTraits(AsData):
    """A pipeline, described for planning. Stages it lacks are left out.

    components: parameters of each of its modules, by name. width, height and frames: of the clip, in pixels.
    """

    family: str
    class_name: str
    stages: tuple[StageTraits, ...]
    components: dict[str, int] = field(default_factory=dict)
    width: int = 0
    height: int = 0
    frames: int = 0

    def stage(self, name: str) -> StageTraits | None:
        return next((stage for stage in self.stages if stage.stage == name), None)


@dataclass(frozen=True)
class Preferences(AsData):
    """What the person asked for. "auto" lets the plan choose; anything else is a forced choice that must hold or be
    refused. exact_steps: how many of the first and of the last steps approximate attention leaves to an exact one.
    cache: a step cache, with its strength behind a colon (`accel.caches`). offload, tiling, text_encoder: what is done
    to fit into memory (`accel.fit`)."""

    attention: str = "auto"
    linear: str = "auto"
    text_encoder_linear: str = "auto"
    vae: str = "auto"
    dtype: str = "auto"
    compile: str = "auto"
    threads: str = "auto"
    device: str = "auto"
    exact_steps: str = "auto"
    cache: str = "auto"
    offload: str = "auto"
    tiling: str = "auto"
    text_encoder: str = "auto"

    def __post_init__(self) -> None:
        for item in fields(self):
            if not isinstance(getattr(self, item.name), str):
                raise TypeError(f"Preferences.{item.name} must be text, got {getattr(self, item.name)!r}")


@dataclass(frozen=True)
class Choice(AsData):
    """One decision: what was requested, what is engaged, and why (one or more sentences, the deciding one first)."""

    stage: str
    setting: str
    requested: str
    engaged: str
    reasons: tuple[str, ...]


NO_STEPS = Choice("transformer", "exact_steps", "auto", "0", ("nothing was asked for",))
NO_CACHE = Choice("transformer", "cache", "auto", "none", ("nothing was asked for",))
NO_OFFLOAD = Choice("process", "offload", "auto", "none", ("nothing was asked for",))
NO_TILING = Choice("vae", "tiling", "auto", "off", ("nothing was asked for",))
KEPT = Choice("text_encoder", "text_encoder", "auto", "keep", ("nothing was asked for",))


@dataclass(frozen=True)
class Room(AsData):
    """Bytes that this process may hold: of the machine's own memory, and of the plan's GPU. 0 where that is unknown."""

    host: int = 0
    device: int = 0


@dataclass(frozen=True)
class StagePlan(AsData):
    """The decisions for one stage. A setting that the stage has no use for is engaged as "stock" with the reason."""

    stage: StageName
    device: Choice
    dtype: Choice
    attention: Choice
    linear: Choice
    vae: Choice
    memory_format: Choice
    compile: Choice
    threads: Choice
    exact_steps: Choice = NO_STEPS
    cache: Choice = NO_CACHE

    def choices(self) -> tuple[Choice, ...]:
        """All of them; `exact_steps` only where it was asked for, `cache` only where there is one."""
        backends = (self.attention, self.linear, self.vae)
        steps = (self.exact_steps,) if self.exact_steps.requested != NO_STEPS.requested else ()
        cache = (self.cache,) if self.cache.engaged != NO_CACHE.engaged else ()
        return (self.device, self.dtype, *backends, self.memory_format, self.compile, self.threads, *steps, *cache)


@dataclass(frozen=True)
class Plan(AsData):
    """Everything that will be done for one model on one machine. `environment` must be set before torch is imported.

    threads: the process's own count, the most that any stage uses.
    """

    family: str
    stages: tuple[StagePlan, ...]
    threads: Choice
    waiting: Choice
    environment: dict[str, str] = field(default_factory=dict)
    offload: Choice = NO_OFFLOAD
    tiling: Choice = NO_TILING
    text_encoder: Choice = KEPT

    def stage(self, name: str) -> StagePlan | None:
        return next((stage for stage in self.stages if stage.stage == name), None)

    def choices(self) -> tuple[Choice, ...]:
        """Every decision, stage by stage, those for the whole process last: the table that page, log and clip metadata
        show."""
        stages = (choice for stage in self.stages for choice in stage.choices())
        return (*stages, self.offload, self.tiling, self.text_encoder, self.threads, self.waiting)
