"""What is done so that a clip fits into memory: offload, tiles, and whether the text encoder stays.

`auto` takes the first of LADDER that fits, those first that change no pixel and cost little time. Where nothing fits,
the plan says so and takes what needs least; whoever makes the clip asks before it begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from accel.errors import Unknown
from accel.figures import gib
from accel.fit.needs import FEWEST_BLOCKS, PROGRAM, Needs, needs
from accel.types import KEPT, NO_OFFLOAD, NO_TILING, Choice, Gpu, ModelTraits, Preferences, Room, StagePlan

AUTO, NONE, MODEL, GROUP, SEQUENTIAL = "auto", "none", "model", "group", "sequential"
OFFLOADS = (NONE, MODEL, GROUP, SEQUENTIAL)
TILINGS = ("on", "off")
KEEPS = ("keep", "free")

DEVICE_RESERVE = 768 * 2**20
"""Bytes of a GPU that a driver's context, libraries' workspaces and memory that lies in pieces take (not measured)."""

TILES = "frames are decoded in overlapping tiles: slower, and seams may show"
FREED = "the text encoder is read again for each new prompt"

MEANING = {
    NONE: "all weights stay where they are used",
    MODEL: "each component is on the GPU only while it works, else in the machine's memory",
    GROUP: "the transformer's blocks come to the GPU one after the other, while the one before works",
    SEQUENTIAL: "each layer comes to the GPU when it works: slowest, and needs least",
}


@dataclass(frozen=True)
class Way:
    """One way to fit. Ordered as tried: see LADDER."""

    offload: str
    tiling: bool
    freed: bool

    @property
    def words(self) -> str:
        parts = [f"offload={self.offload}"] if self.offload != NONE else []
        parts += ["tiles"] if self.tiling else []
        parts += ["the text encoder freed once the prompt is read"] if self.freed else []
        return ", ".join(parts) or "everything kept in memory"


LADDER: tuple[tuple[str, bool], ...] = (
    (NONE, False),
    (MODEL, False),
    (NONE, True),
    (MODEL, True),
    (GROUP, False),
    (GROUP, True),
    (SEQUENTIAL, False),
    (SEQUENTIAL, True),
)
"""Offload and tiling, in the order of `auto`: tiles change pixels a little where they meet, so whole components are
moved first; moving blocks costs time in each step, so tiles come before that."""


def on_device(found: Needs, way: Way, gpu: bool) -> int:
    """Most bytes on the device that computes."""
    text, transformer, vae = (
        (found.of(stage), found.largest(stage), found.working(stage, way.tiling))
        for stage in ("text_encoder", "transformer", "vae")
    )
    ends = vae[2] + (0 if gpu else found.frames)
    less = found.of("transformer", packed=True) + max(transformer[2], ends)
    if way.offload == NONE and way.freed:
        # the VAE is there from the beginning: pictures are encoded with it
        return vae[0] + max(text[0] + text[2], transformer[0], less)
    if way.offload == NONE:
        read = found.of("text_encoder", packed=True)
        working = max(less, found.of("transformer", packed=True) + text[2])
        return vae[0] + max(text[0] + transformer[0], read + working)
    whole = {"text": text[1] + text[2], "vae": vae[1] + vae[2]}
    if way.offload == MODEL:
        return max(*whole.values(), transformer[1] + transformer[2])
    blocks = max(1, found.blocks.get("transformer", 0))
    part = transformer[1] * FEWEST_BLOCKS // blocks if way.offload == GROUP else transformer[1] // blocks
    return max(text[2] + text[1] // 16, whole["vae"], min(transformer[1], part) + transformer[2])


def weights_together(found: Needs, way: Way) -> int:
    """Bytes of the weights that are there at the same time, all on one device."""
    text, rest = found.of("text_encoder"), found.of("transformer")
    return found.of("vae") + (max(text, rest) if way.freed else text + rest)


def on_host(found: Needs, way: Way, gpu: bool) -> int:
    """Most bytes of the machine's own memory, the program included."""
    if not gpu:
        return PROGRAM + on_device(found, way, gpu)
    weights = weights_together(found, way)
    return PROGRAM + max(weights, (0 if way.offload == NONE else weights) + found.frames)


@dataclass(frozen=True)
class Fit:
    """What was chosen, and why wishes can't be kept."""

    offload: Choice
    tiling: Choice
    text_encoder: Choice
    refusals: tuple[str, ...] = ()


def choose(traits: ModelTraits, stages: tuple[StagePlan, ...], wishes: Preferences, room: Room, gpu: Gpu | None) -> Fit:
    """The decisions for a model whose stages are planned otherwise. room: bytes that may be held."""
    refusals = tuple(_refusals(traits, stages, wishes, gpu))
    engaged = {stage.stage: stage for stage in stages}
    transformer = engaged.get("transformer")
    found = needs(
        traits,
        {stage.stage: stage.dtype.engaged for stage in stages},
        engaged["vae"].vae.engaged if "vae" in engaged else "stock",
        gpu is None,
        transformer.cache.engaged if transformer is not None else "none",
        {stage.stage: stage.linear.engaged for stage in stages},
    )
    ways = list(_ways(traits, stages, wishes, gpu))
    fitting = [way for way in ways if _fits(found, way, room, gpu)]
    way = fitting[0] if fitting else min(ways, key=lambda way: _least(found, way, room, gpu))
    why = _why(found, ways, way, bool(fitting), room, gpu)
    vae = traits.stage("vae")
    untiled = vae.untiled if vae else ""
    return Fit(
        _choice(NO_OFFLOAD, wishes.offload, way.offload, why, MEANING[way.offload]),
        _choice(NO_TILING, wishes.tiling, "on" if way.tiling else "off", why, TILES if way.tiling else untiled),
        _choice(KEPT, wishes.text_encoder, "free" if way.freed else "keep", why, FREED if way.freed else ""),
        refusals,
    )


def _ways(traits: ModelTraits, stages: tuple[StagePlan, ...], wishes: Preferences, gpu: Gpu | None) -> Iterator[Way]:
    """What wishes and model leave, in the order of `auto`."""
    offloads = {NONE} if gpu is None or gpu.vendor == "apple" else _possible(stages)
    asked = {AUTO: offloads}.get(wishes.offload, {wishes.offload})
    offloads = (offloads & asked) or {NONE}
    vae = traits.stage("vae")
    tilings = {"on": (True,), "off": (False,)}.get(wishes.tiling, (False, True) if vae and vae.tiles else (False,))
    freeing = {"free": (True,), "keep": (False,)}.get(
        wishes.text_encoder, (False, True) if traits.stage("text_encoder") else (False,)
    )
    ladder = [(offload, tiling) for offload, tiling in LADDER if offload in offloads and tiling in tilings]
    if gpu is None:
        yield from (Way(*step, freed) for step in ladder for freed in freeing)
    else:  # what a GPU can't hold lies in the machine's memory, from where it comes sooner than from the disk
        yield from (Way(*step, freed) for freed in freeing for step in ladder)


def _possible(stages: tuple[StagePlan, ...]) -> set[str]:
    """Ways of offloading that go together with what else is planned."""
    return {offload for offload in OFFLOADS if not _against(offload, stages)}


def _against(offload: str, stages: tuple[StagePlan, ...]) -> str:
    """Why the plan's other choices don't go with a way of offloading, as a clause; empty when they do."""
    for stage in stages:
        if offload != NONE and stage.stage != "vae" and stage.linear.engaged not in ("stock", ""):
            setting = "text_encoder_linear" if stage.stage == "text_encoder" else "linear"
            return f"weights packed by {setting}={stage.linear.engaged} stay where they are; choose {setting}=stock"
        if offload in (GROUP, SEQUENTIAL) and stage.compile.engaged != "no":
            return f"blocks that compile={stage.compile.engaged} makes into one piece can't be moved; choose compile=no"
    return ""


def _refusals(
    traits: ModelTraits, stages: tuple[StagePlan, ...], wishes: Preferences, gpu: Gpu | None
) -> Iterator[str]:
    for setting, allowed in (("offload", OFFLOADS), ("tiling", TILINGS), ("text_encoder", KEEPS)):
        wish = getattr(wishes, setting)
        if wish not in (AUTO, *allowed):
            yield Unknown(f"{setting}={wish} is not known, allowed are auto, {', '.join(allowed)}")
    if wishes.offload in OFFLOADS[1:]:
        where = "the CPU" if gpu is None else gpu.name
        reason = "" if gpu is not None and gpu.vendor != "apple" else f"{where} computes in the machine's own memory"
        if reason := reason or _against(wishes.offload, stages):
            yield f"offload={wishes.offload} can't be used here: {reason}"
    vae = traits.stage("vae")
    if wishes.tiling == "on" and (vae is None or not vae.tiles):
        untiled = vae.untiled if vae else "a model without a VAE has no tiles"
        yield f"tiling=on can't be used here: {untiled}"
    if wishes.text_encoder == "free" and traits.stage("text_encoder") is None:
        yield "text_encoder=free can't be used here: the model has none"


def _fits(found: Needs, way: Way, room: Room, gpu: Gpu | None) -> bool:
    return _least(found, way, room, gpu) <= 0


def _least(found: Needs, way: Way, room: Room, gpu: Gpu | None) -> int:
    """Bytes that are missing, 0 or less when none are. Unknown memory holds everything."""
    missing = [on_host(found, way, gpu is not None) - room.host] if room.host else [0]
    if gpu is not None and room.device:
        missing.append(on_device(found, way, True) + DEVICE_RESERVE - room.device)
    return max(missing)


def _why(found: Needs, ways: list[Way], way: Way, fits: bool, room: Room, gpu: Gpu | None) -> str:
    """The figures behind the way that was taken."""
    here = _figures(found, way, room, gpu)
    if not fits:
        return f"nothing makes it fit: with {way.words} it needs {here}"
    if way == ways[0]:  # without what is free, which is never twice the same
        return f"it fits: {_figures(found, way, Room(), gpu)}"
    return f"{ways[0].words} would need {_figures(found, ways[0], room, gpu)}; with {way.words} {here}"


def _figures(found: Needs, way: Way, room: Room, gpu: Gpu | None) -> str:
    parts = []
    if gpu is not None:
        of = f" of {gib(room.device)}" if room.device else ""
        parts.append(f"{gib(on_device(found, way, True) + DEVICE_RESERVE)}{of} on {gpu.name}")
    of = f" of {gib(room.host)}" if room.host else ""
    parts.append(f"{gib(on_host(found, way, gpu is not None))}{of} of the machine's memory")
    return " and ".join(parts)


def _choice(default: Choice, wish: str, engaged: str, why: str, meaning: str) -> Choice:
    told = (meaning, why) if wish == AUTO else ("asked for", meaning, why)
    return Choice(default.stage, default.setting, wish, engaged, tuple(one for one in told if one))


def by_stage(offload: str, stage: str) -> str:
    """How the components of a stage are moved under a way of offloading: a VAE is small and moved as a whole, a text
    encoder keeps its blocks where diffusers does not look for groups."""
    if offload == NONE:
        return NONE
    if stage == "vae":
        return MODEL
    return SEQUENTIAL if (stage, offload) == ("text_encoder", GROUP) else offload
