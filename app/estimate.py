"""What a clip will take: seconds, memory and disk, and the sentences a person needs when it will not fit.

Seconds are reckoned from clips that were made on this machine before, never guessed. Memory is reckoned from the
model's own files and shapes until a clip of the same kind was made here; from then on its measured peak counts.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import shutil
import statistics
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from accel.types import ModelTraits
from app import video
from app.errors import CannotRunError, KinetileError
from app.request import GenerationRequest
from app.video import outputs
from app.video.outputs import size_text

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

PROGRAM = 450 * 2**20
"""Bytes of a worker that has imported torch, diffusers and transformers and loaded nothing (measured on Linux)."""

# The next three were fitted to the peaks of new workers with the starter, 64x64 to 512x320 pixels, 5 to 49 frames, in
# bf16 and fp32: reckoned from 3 percent below to 15 percent above what was measured.
DECODER_MAPS = 30
"""Live feature maps of full size in a decoder that goes frame by frame, the cache of its convolutions included."""

STOCK_DECODER_MAPS = 72
"""The same for PyTorch's own 3-D convolution on a CPU, which unfolds its input."""

OUTPUT_COPIES = 3
"""Copies of the finished frames as float32 at the end: being joined, as pictures, checked."""

TRANSFORMER_WIDTHS = 14
"""Live tensors of tokens x width in a transformer block, feed-forward included, in the dtype of its weights (counted,
not measured: in the starter the decoder needs more)."""

MARGIN = 1.1
"""On measured peaks: the next run of the same clip may take a little more."""


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes that a clip will need. weights: of all components in the dtypes of the plan; activations: most that text
    encoder, transformer or VAE need beside them; program: libraries and interpreter. device: "cpu", or the GPU that
    holds weights and activations, which has device_memory bytes.
    """

    weights: int
    activations: int
    program: int = PROGRAM
    device: str = "cpu"
    device_memory: int = 0

    @property
    def host(self) -> int:
        """Bytes of the machine's own memory: beside a GPU only the weights on their way."""
        return self.program + self.weights + (self.activations if self.device == "cpu" else 0)


@dataclass(frozen=True)
class Measured:
    """One clip that was made here. engaged: `engaged_key` of its plan. forwards: of the transformer. memory: the
    worker's peak in bytes, 0 if unknown.
    """

    model: str
    engaged: str
    width: int
    height: int
    frames: int
    steps: int
    forwards: int
    timings: dict[str, float]
    memory: int = 0

    @property
    def volume(self) -> int:
        """Pixels of all frames."""
        return self.width * self.height * self.frames


@dataclass(frozen=True)
class Estimate:
    """What one clip will take.

    seconds: of the whole clip, None before anything like it was made here; `stages` has its parts (keys load, text,
    denoise, decode, save), `basis` says in a sentence what it is reckoned from. memory and disk: bytes needed;
    memory_free and disk_free: bytes there are now. blocked: why it can't be made as things are, one sentence each with
    what to do, empty when nothing stands in the way.
    """

    seconds: float | None
    stages: dict[str, float]
    basis: str
    memory: int
    memory_free: int
    disk: int
    disk_free: int
    blocked: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether it can be made as things are."""
        return not self.blocked


# -- memory --


def memory_need(
    folder: Path, traits: ModelTraits, plan: Mapping[str, Any], request: GenerationRequest, gpu_memory: int = 0
) -> MemoryNeed:
    """Reckoned from the sizes of the weights in `folder` and the shapes in `traits`. Reads no weights."""
    stages = {stage["stage"]: stage for stage in plan.get("stages", ())}

    def width_of(name: str) -> int:
        stage = stages.get(name.removesuffix("_2").removesuffix("_3"))
        return BYTES.get(stage["dtype"]["engaged"], 4) if stage else 4

    weights = sum(
        count * width_of(part.name)
        for part in sorted(folder.iterdir())
        if part.is_dir() and (count := parameters_in(part))
    )
    text, transformer = traits.stage("text_encoder"), traits.stage("transformer")
    vae = stages.get("vae", {}).get("vae", {}).get("engaged", "stock")
    unfolds = vae == "stock" and stages.get("vae", {}).get("device", {}).get("engaged", "cpu") == "cpu"
    maps = STOCK_DECODER_MAPS if unfolds else DECODER_MAPS
    activations = [_decoding(folder, traits, request, maps * width_of("vae"))]
    for stage, name in ((text, "text_encoder"), (transformer, "transformer")):
        if stage is not None:
            inner = stage.heads * stage.head_dim
            activations.append(stage.tokens * inner * TRANSFORMER_WIDTHS * width_of(name))
    device = stages.get("transformer", {}).get("device", {}).get("engaged", "cpu")
    return MemoryNeed(weights, max(activations), device=device, device_memory=gpu_memory)


def _decoding(folder: Path, traits: ModelTraits, request: GenerationRequest, maps: int) -> int:
    """Bytes of the VAE's decoder beside its weights (`maps`: bytes per number of a feature map, for all maps), and of
    the frames it makes.
    """
    volume = int(request.width or 0) * int(request.height or 0)
    vae = traits.stage("vae")
    config = _config(folder / "vae")
    patch = int(config.get("patch_size") or 1)
    at_once = int(config.get("scale_factor_temporal") or config.get("temporal_compression_ratio") or 4)
    numbers = volume // patch**2 * at_once * (vae.channels if vae and vae.channels else 128)
    return numbers * maps + volume * int(request.frames or 0) * 3 * 4 * OUTPUT_COPIES


def parameters_in(folder: Path) -> int:
    """Numbers in the safetensors files of a component, by their headers alone; unreadable files count nothing."""
    return sum(_parameters(path) for path in folder.glob("*.safetensors"))


def _parameters(path: Path) -> int:
    try:
        with path.open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(min(size, 100_000_000)))
        return sum(math.prod(map(int, entry["shape"])) for name, entry in header.items() if name != "__metadata__")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error):
        return 0


def _config(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def why_memory(need: MemoryNeed, peak: int, free: int, whose: str, request: GenerationRequest) -> list[str]:
    """Why the clip does not fit into memory, with what to try; empty when it fits. peak: what is needed in all."""
    size = f"{request.width}x{request.height}, {request.frames} frames"
    knobs = "try a smaller size or fewer frames"
    if need.weights > need.activations:
        knobs = "close other programs, use a smaller model, or try --accel dtype=bfloat16"
    found = []
    if peak > free:
        found.append(
            f"Not enough memory for this clip ({size}): it needs about {size_text(peak)}, and {whose} has "
            f"{size_text(free)} free: {knobs}."
        )
    on_device = need.weights + need.activations
    if need.device != "cpu" and need.device_memory and on_device > need.device_memory:
        found.append(
            f"Not enough memory on {need.device} for this clip ({size}): it needs about {size_text(on_device)} of "
            f"{size_text(need.device_memory)}: {knobs}."
        )
    return found


# -- disk --


def disk_need(request: GenerationRequest) -> int:
    """Bytes to keep free for the clip's files."""
    return video.space_needed(int(request.width or 0), int(request.height or 0), int(request.frames or 0))


def why_disk(folder: Path, needed: int) -> list[str]:
    """Why the clip can't be saved in `folder`, empty when it can."""
    try:
        outputs.check_space(folder, needed)
    except KinetileError as error:
        return [str(error)]
    return []


# -- time --


def engaged_key(plan: Mapping[str, Any]) -> str:
    """Equal for plans that engage the same, whatever their reasons."""
    choices = sorted(
        (stage["stage"], name, value["engaged"])
        for stage in plan.get("stages", ())
        for name, value in stage.items()
        if isinstance(value, Mapping)
    )
    return hashlib.sha256(repr((choices, plan.get("threads", {}).get("engaged"))).encode()).hexdigest()[:16]


def forwards_of(request: GenerationRequest) -> int:
    """How often the transformer runs: twice a step with guidance."""
    guided = bool(request.prompt.strip()) and (request.guidance or 0) > 1
    return int(request.steps or 0) * (2 if guided else 1)


@dataclass(frozen=True)
class Times:
    """Seconds per stage, and what they are reckoned from."""

    stages: dict[str, float] = field(default_factory=dict)
    basis: str = "nothing like it was made on this machine yet, so its time is not known"
    memory: int = 0
    """The measured peak, where a clip of the same kind was made."""

    @property
    def seconds(self) -> float | None:
        """Of the whole clip, None when unknown."""
        return sum(self.stages.values()) if self.stages else None


def times(earlier: Sequence[Measured], request: GenerationRequest, engaged: str) -> Times:
    """Seconds per stage from the clips in `earlier` (newest first, all of the request's model): those of the same
    accelerators and size if there are any, else scaled from the nearest size.
    """
    forwards = forwards_of(request)
    wanted = Measured(
        request.model,
        engaged,
        int(request.width or 0),
        int(request.height or 0),
        int(request.frames or 0),
        int(request.steps or 0),
        forwards,
        {},
    )
    usable = [one for one in earlier if one.timings.get("denoise") and one.forwards and one.volume]
    alike = [one for one in usable if one.engaged == engaged] or usable
    if not alike or not forwards or not wanted.volume:
        return Times()
    nearest = min(alike, key=lambda one: abs(math.log(one.volume / wanted.volume)))
    chosen = [one for one in alike if one.volume == nearest.volume][:5]
    stages = _median([_scaled(one, wanted) for one in chosen])
    same = chosen[0].volume == wanted.volume and chosen[0].engaged == engaged
    clips = "1 clip" if len(chosen) == 1 else f"{len(chosen)} clips"
    how = "like it" if same else "of another size" if chosen[0].engaged == engaged else "with other accelerators"
    memory = max(one.memory for one in chosen) if same else 0
    return Times(stages, f"reckoned from {clips} {how} made on this machine", memory)


def _scaled(one: Measured, wanted: Measured) -> dict[str, float]:
    more = wanted.volume / one.volume
    factors = {"denoise": more * wanted.forwards / one.forwards, "decode": more, "save": more}
    return {
        name: seconds * factors.get(name, 1.0)
        for name, seconds in one.timings.items()
        if name in ("load", "text", "denoise", "decode", "save")
    }


def _median(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The middle of each stage; of loading the longest, since a model that stays in memory takes none."""
    names = [name for name in ("load", "text", "denoise", "decode", "save") if any(name in one for one in found)]
    middle = {name: statistics.median([one[name] for one in found if name in one]) for name in names}
    if "load" in middle:
        middle["load"] = max(one.get("load", 0.0) for one in found)
    return middle


# -- all of it --


def estimate(
    request: GenerationRequest,
    folder: Path,
    need: MemoryNeed,
    reckoned: Times,
    free: tuple[int, str],
    *,
    loaded: bool = False,
) -> Estimate:
    """Everything together. free: bytes that a worker may hold, and whose limit that is; loaded: the model is in memory
    already.
    """
    peak = max(need.program, round(reckoned.memory * MARGIN)) if reckoned.memory else need.host
    if loaded:
        reckoned = replace(reckoned, stages={**reckoned.stages, **({"load": 0.0} if reckoned.stages else {})})
    disk = disk_need(request)
    blocked = (*why_memory(need, peak, free[0], free[1], request), *why_disk(folder, disk))
    return Estimate(reckoned.seconds, reckoned.stages, reckoned.basis, peak, free[0], disk, _disk_free(folder), blocked)


def _disk_free(folder: Path) -> int:
    """Bytes free on the disk that holds the folder or will; 0 where that can't be told."""
    for place in (folder, *folder.parents):
        if place.exists():
            with contextlib.suppress(OSError):
                return shutil.disk_usage(place).free
    return 0


def refuse_blocked(found: Estimate) -> None:
    """Raise CannotRunError with what stands in the way, if anything does."""
    if found.blocked:
        raise CannotRunError(" ".join(found.blocked))
