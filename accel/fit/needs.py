"""Bytes that a model needs for one clip, from its shapes alone: nothing is loaded.

Weights are counted in the dtype that their stage loads in: all of them are there before they are packed into int8 or
FP8, and only then does anything work beside them. Activations come from two formulas, fitted to measured peaks; what
they leave out is said beside each figure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from accel import caches
from accel.backends import backends
from accel.types import ModelTraits, StageName, StageTraits

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

PROGRAM = 450 * 2**20
"""Bytes of a process that has imported torch, diffusers and transformers and loaded nothing (measured on Linux)."""

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

TILE = 256
"""Side in pixels of the tiles in which diffusers' video VAEs decode (256 in Wan and HunyuanVideo, up to 480 in
CogVideoX, 512 in LTX): those with larger ones need more than is reckoned here."""

TILE_FRAMES = 16
"""Frames of a tile where a VAE tiles time too."""

FEWEST_BLOCKS = 2
"""Blocks on the device while blocks are moved: one works while the next arrives."""

STAGE_OF: dict[str, StageName] = {"transformer": "transformer", "vae": "vae"}
"""Components by stage; all others (text and image encoders) work before the transformer, as the text encoder does."""


def stage_of(component: str) -> StageName:
    return STAGE_OF.get(component.removesuffix("_2"), "text_encoder")


@dataclass(frozen=True)
class Needs:
    """Bytes of one clip. weights: by component, in the dtypes of the plan; activations: by stage, beside the weights;
    tiled: the VAE's when it decodes in tiles; frames: the finished clip, in the machine's own memory; blocks: repeated
    blocks by stage; packed: by stage, the part of its weights that is left once they are packed."""

    weights: Mapping[str, int]
    activations: Mapping[str, int]
    tiled: int
    frames: int
    blocks: Mapping[str, int]
    packed: Mapping[str, float] = field(default_factory=dict)

    def of(self, stage: StageName, packed: bool = False) -> int:
        """Bytes of the weights of a stage's components."""
        share = self.packed.get(stage, 1.0) if packed else 1.0
        return int(sum(size for name, size in self.weights.items() if stage_of(name) == stage) * share)

    def largest(self, stage: StageName) -> int:
        """The same of its largest component."""
        return max((size for name, size in self.weights.items() if stage_of(name) == stage), default=0)

    def working(self, stage: StageName, tiling: bool) -> int:
        """Bytes that a stage needs beside its weights."""
        return self.tiled if stage == "vae" and tiling else self.activations.get(stage, 0)


def needs(
    traits: ModelTraits,
    dtypes: Mapping[str, str],
    vae: str = "stock",
    on_cpu: bool = True,
    cache: str = "none",
    linears: Mapping[str, str] | None = None,
) -> Needs:
    """dtypes, linears: the engaged ones by stage. vae: the VAE's engaged backend; on_cpu: where it decodes; cache: the
    engaged step cache."""
    widths = {name: BYTES.get(dtypes.get(name, ""), 4) for name in ("text_encoder", "transformer", "vae")}
    counts = dict(traits.components) or {stage.stage: stage.parameters for stage in traits.stages}
    weights = {name: count * widths[stage_of(name)] for name, count in counts.items()}
    activations: dict[str, int] = {
        stage.stage: stage.tokens * stage.heads * stage.head_dim * TRANSFORMER_WIDTHS * widths[stage.stage]
        for stage in traits.stages
    }
    transformer, decoder = traits.stage("transformer"), traits.stage("vae")
    if transformer is not None:
        activations["transformer"] += caches.memory(cache, transformer, widths["transformer"])
    maps = (STOCK_DECODER_MAPS if vae == "stock" and on_cpu else DECODER_MAPS) * widths["vae"]
    frames = traits.width * traits.height * traits.frames * 3 * 4 * OUTPUT_COPIES
    activations["vae"] = _decoding(traits, decoder, maps)
    one_byte = {item.name for item in backends("linear") if getattr(item, "one_byte", False)}
    blocks: dict[str, int] = {stage.stage: stage.blocks for stage in traits.stages}
    packed: dict[str, float] = {
        stage.stage: _packed(stage, widths[stage.stage])
        for stage in traits.stages
        if (linears or {}).get(stage.stage) in one_byte
    }
    return Needs(weights, activations, _decoding(traits, decoder, maps, tiled=True), frames, blocks, packed)


def _packed(stage: StageTraits, width: int) -> float:
    """The part of a stage's weights that is left when its linears take a byte a number."""
    inside = sum(item.out_features * item.in_features * item.count for item in stage.linears)
    return 1 - inside * (width - 1) / (stage.parameters * width) if stage.parameters >= inside > 0 else 1.0


def _decoding(traits: ModelTraits, vae: StageTraits | None, maps: int, tiled: bool = False) -> int:
    """Bytes of the decoder's feature maps. maps: bytes per number of one, for all of them."""
    area, patch = traits.width * traits.height, max(1, vae.patch if vae else 1)
    at_once = (vae.frames_at_once if vae else 4) or traits.frames
    if tiled:
        area, at_once = min(area, TILE**2), min(at_once, TILE_FRAMES)
    return area // patch**2 * at_once * (vae.channels if vae and vae.channels else 128) * maps
