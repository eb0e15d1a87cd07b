"""What a clip will take: seconds, memory and disk, and the sentences a person needs when it will not fit.

Seconds are reckoned from clips that were made on this machine before, never guessed. Memory is reckoned from the
model's own files and shapes until a clip of the same kind was made here; from then on its measured peak counts.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import shutil
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from accel.fit.choosing import DEVICE_RESERVE, Way, on_device, on_host, weights_together
from accel.fit.needs import PROGRAM, needs
from accel.types import ModelTraits
from app import video
from app.errors import CannotRunError, KinetileError
from app.models.sources.wholeness import numbers_in, tensors_in
from app.request import GenerationRequest
from app.video import outputs
from app.video.outputs import size_text

LOADS = 5
"""Most earlier clips that loading is reckoned from."""

UNKNOWN = "the time is not known"
"""Of one clip or of several."""

MARGIN = 1.1
"""On measured peaks: the next run of the same clip may take a little more."""


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes that a clip will need at most. weights: of the components that are there together, in the dtypes of the
    plan; activations: what text encoder, transformer or VAE need beside them; program: libraries and interpreter.
    device: "cpu", or the GPU that holds on_device bytes of its device_memory. processes: of several that make the clip
    together, each needs all of it.
    """

    weights: int
    activations: int
    program: int = PROGRAM
    device: str = "cpu"
    device_memory: int = 0
    on_device: int = 0
    processes: int = 1

    @property
    def host(self) -> int:
        """Bytes of the machine's own memory: beside a GPU only the weights on their way, or moved there."""
        return self.processes * (self.program + self.weights + (self.activations if self.device == "cpu" else 0))


@dataclass(frozen=True)
class Measured:
    """One clip that was made here. engaged: `engaged_key` of its plan. forwards: of the transformer. timings: seconds
    of text, denoise, decode and save; of load where the model was not in memory, without the "import" of libraries,
    which is what the worker's process took for it. memory: the worker's peak in bytes, 0 if unknown.
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
    counts = {part.name: count for part in sorted(folder.iterdir()) if part.is_dir() and (count := parameters_in(part))}
    size = (int(request.width or 0), int(request.height or 0), int(request.frames or 0))
    described = replace(traits, components=counts, width=size[0], height=size[1], frames=size[2])
    device = _engaged(stages, "transformer", "device", "cpu")
    found = needs(
        described,
        {name: stage["dtype"]["engaged"] for name, stage in stages.items()},
        _engaged(stages, "vae", "vae", "stock"),
        _engaged(stages, "vae", "device", "cpu") == "cpu",
        _engaged(stages, "transformer", "cache", "none"),
        {name: _engaged(stages, name, "linear", "stock") for name in stages},
    )
    way = Way(
        plan.get("offload", {}).get("engaged", "none"),
        plan.get("tiling", {}).get("engaged") == "on",
        plan.get("text_encoder", {}).get("engaged") == "free",
    )
    gpu = device != "cpu"
    total, held = on_device(found, way, gpu), on_host(found, way, gpu) - PROGRAM
    if gpu:
        return MemoryNeed(held, 0, PROGRAM, device, gpu_memory, total + DEVICE_RESERVE)
    weights = min(total, weights_together(found, way))
    return MemoryNeed(weights, total - weights)


def _engaged(stages: Mapping[str, Any], stage: str, setting: str, otherwise: str) -> str:
    return str(stages.get(stage, {}).get(setting, {}).get("engaged", otherwise))


def parameters_in(folder: Path) -> int:
    """Numbers in the safetensors files of a component, by their headers alone; unreadable files count nothing."""
    return sum(_parameters(path) for path in folder.glob("*.safetensors"))


def _parameters(path: Path) -> int:
    try:
        return numbers_in(tensors_in(path))
    except (OSError, ValueError):
        return 0


def why_memory(need: MemoryNeed, peak: int, free: int, whose: str, request: GenerationRequest) -> list[str]:
    """Why the clip does not fit into memory, with what to try; empty when it fits. peak: what is needed in all."""
    size = f"{request.width}x{request.height}, {request.frames} frames"
    knobs = "try a smaller size or fewer frames"
    if need.weights > need.activations:
        knobs = (
            "close other programs, use a smaller model, or try bf16 as the precision under Accelerate (on the command "
            "line: --accel dtype=bfloat16)"
        )
    found = []
    if peak > free:
        found.append(
            f"Not enough memory for this clip ({size}): it needs about {size_text(peak)}, and {whose} has "
            f"{size_text(free)} free: {knobs}."
        )
    if need.device != "cpu" and need.device_memory and need.on_device > need.device_memory:
        found.append(
            f"Not enough memory on {need.device} for this clip ({size}): it needs about {size_text(need.on_device)} of "
            f"{size_text(need.device_memory)}: try a smaller size or fewer frames, or leave where weights wait "
            "and decoding in tiles to automatic (on the command line: --accel offload=auto,tiling=auto)."
        )
    return found


# -- disk --


def disk_need(request: GenerationRequest) -> int:
    """Bytes to keep free for the clip's files."""
    return video.space_needed(int(request.width or 0), int(request.height or 0), int(request.frames or 0))


def why_unsaved(folder: Path, needed: int) -> list[str]:
    """Why the clip could not be saved in `folder`, empty when it can: without an encoder, or room on the disk."""
    try:
        video.check_encoder()
        outputs.check_space(folder, needed)
    except KinetileError as error:
        return [str(error)]
    return []


# -- time --


_TELLING = ("device", "dtype", "linear", "cache", "attention")
"""What the transformer's speed depends on, the most first: by this the nearest of other plans is found."""


def engaged_key(plan: Mapping[str, Any]) -> str:
    """Equal for plans that engage the same, whatever their reasons; what the speed depends on stands behind it."""
    choices = sorted(
        (stage["stage"], name, value["engaged"])
        for stage in plan.get("stages", ())
        for name, value in stage.items()
        if isinstance(value, Mapping)
    )
    fit = [plan.get(name, {}).get("engaged") for name in ("offload", "tiling", "text_encoder")]
    fit += [str(plan["ranks"]["count"])] if "ranks" in plan else []
    digest = hashlib.sha256(repr((choices, plan.get("threads", {}).get("engaged"), fit)).encode()).hexdigest()[:16]
    stages = {stage["stage"]: stage for stage in plan.get("stages", ())}
    return " ".join([digest, *(_engaged(stages, "transformer", name, "-") for name in _TELLING)])


def _is_same(one: str, other: str) -> bool:
    """Whether two keys are of the same plan; those of earlier versions end with the digest."""
    return one.partition(" ")[0] == other.partition(" ")[0]


def _likeness(one: str, other: str) -> tuple[bool, ...]:
    """Larger the more two plans' speeds will be alike."""
    told, wanted = one.split()[1:], other.split()[1:]
    same = [left == right for left, right in zip(told, wanted, strict=False)]
    return tuple(all(same[: place + 1]) for place in range(len(same)))


def loaded_key(model: str, plan: Mapping[str, Any]) -> str:
    """What the worker holds in memory after a clip of this model with this plan."""
    return f"{model} {engaged_key(plan)}"


def forwards_of(request: GenerationRequest) -> int:
    """How often the transformer runs: twice a step with guidance."""
    guided = bool(request.prompt.strip()) and (request.guidance or 0) > 1
    return int(request.steps or 0) * (2 if guided else 1)


@dataclass(frozen=True)
class Times:
    """Seconds per stage, and what they are reckoned from."""

    stages: dict[str, float] = field(default_factory=dict)
    basis: str = f"{UNKNOWN}, as no such clip was made here yet"
    memory: int = 0
    """The measured peak, where a clip of the same kind was made."""

    @property
    def seconds(self) -> float | None:
        """Of the whole clip, None when unknown."""
        return sum(self.stages.values()) if self.stages else None


def times(
    earlier: Sequence[Measured],
    request: GenerationRequest,
    engaged: str,
    *,
    frame_step: int = 1,
    imported: bool = True,
) -> Times:
    """Seconds per stage from the clips in `earlier` (newest first, all of the request's model): those of the same
    accelerators and size if there are any, else of the nearest plan, scaled from the nearest size. frame_step: frames
    that the model makes of one picture of its latents, all but the first. imported: the worker has imported what models
    are made of.
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
    alike = [one for one in usable if _is_same(one.engaged, engaged)] or _nearest_plan(usable, engaged)
    if not alike or not forwards or not wanted.volume:
        return Times()
    nearest = min(alike, key=lambda one: abs(math.log(one.volume / wanted.volume)))
    chosen = [one for one in alike if one.volume == nearest.volume][:5]
    loading = _loading(alike, imported)
    stages = loading | _median([_scaled(one, wanted, frame_step) for one in chosen])
    known = _is_same(chosen[0].engaged, engaged)
    same = chosen[0].volume == wanted.volume and known
    clips = "1 clip" if len(chosen) == 1 else f"{len(chosen)} clips"
    how = "" if same else " of another size" if known else " with other accelerators"
    memory = max(one.memory for one in chosen) if same else 0
    return Times(stages, f"from {clips}{how} made here", memory)


def _nearest_plan(clips: Sequence[Measured], engaged: str) -> list[Measured]:
    """Those of the clips, made with other plans, whose speed will be most like that of `engaged`."""
    likeness = [_likeness(one.engaged, engaged) for one in clips]
    return [one for one, found in zip(clips, likeness, strict=True) if found == max(likeness)]


def _scaled(one: Measured, wanted: Measured, frame_step: int) -> dict[str, float]:
    """What denoising takes goes by the latents, which hold few pictures of many frames; the rest by pixels."""

    def latents(clip: Measured) -> float:
        return clip.width * clip.height * ((clip.frames - 1) / frame_step + 1)

    more = wanted.volume / one.volume
    denoise = latents(wanted) / latents(one) * wanted.forwards / one.forwards
    factors = {"text": 1.0, "denoise": denoise, "decode": more, "save": more}
    return {name: seconds * factors[name] for name, seconds in one.timings.items() if name in factors}


def _loading(clips: Sequence[Measured], imported: bool) -> dict[str, float]:
    """What loading takes, whatever the clip's size: the middle of the first few that tell it, and the longest import
    of them where there is one to come.
    """
    loads = [one.timings["load"] for one in clips if "load" in one.timings][:LOADS]
    if not loads:
        return {}
    imports = [0.0, *(one.timings.get("import", 0.0) for one in clips[:LOADS])]
    return {"load": statistics.median(loads) + (0.0 if imported else max(imports))}


def _median(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The middle of each stage."""
    names = [name for name in ("text", "denoise", "decode", "save") if any(name in one for one in found)]
    return {name: statistics.median([one[name] for one in found if name in one]) for name in names}


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
    blocked = (*why_memory(need, peak, free[0], free[1], request), *why_unsaved(folder, disk))
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
