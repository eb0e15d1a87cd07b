"""What a diffusers pipeline asks of a backend, read from its modules: no table of model names, no run.

Sizes are those of the clip to come where they are given, else the pipeline's own defaults; only the order of preference
depends on them.
"""

from __future__ import annotations

import inspect
from collections import Counter
from typing import Any

from accel.fit import tiles
from accel.types import LinearShape, ModelTraits, StageName, StageTraits

COMPONENTS: tuple[tuple[StageName, str], ...] = (
    ("text_encoder", "text_encoder"),
    ("transformer", "transformer"),
    ("vae", "vae"),
)

DTYPES: dict[StageName, tuple[str, ...]] = {
    # text encoders of the T5 family overflow in fp16
    "text_encoder": ("float32", "bfloat16"),
    "transformer": ("float32", "bfloat16", "float16"),
    "vae": ("float32", "bfloat16", "float16"),
}

TEXT_TOKENS = 512
"""Length that video pipelines pad prompts to unless their tokenizer has a smaller limit (Wan, LTX: 512 and 128 by
default)."""


def traits_of(
    pipeline: Any, *, width: int | None = None, height: int | None = None, frames: int | None = None
) -> ModelTraits:
    """The stages of `pipeline` (a diffusers pipeline, already loaded). width and height in pixels.

    Loads nothing and changes nothing; components it lacks are left out. Works before and after an installation.
    """
    size = _size(pipeline, width, height, frames)
    text = text_tokens(pipeline)
    stages = []
    for stage, name in COMPONENTS:
        module = getattr(pipeline, name, None)
        if module is not None:
            stages.append(_stage(stage, module, _video_tokens(pipeline, module, size), text))
    kind = type(pipeline).__name__
    return ModelTraits(kind.removesuffix("Pipeline"), kind, tuple(stages), _components(pipeline), *size)


def _components(pipeline: Any) -> dict[str, int]:
    """Parameters of each module, each tied one once."""
    from torch import nn

    parts = getattr(pipeline, "components", None) or vars(pipeline)
    return {
        name: sum(item.numel() for item in module.parameters())
        for name, module in parts.items()
        if isinstance(module, nn.Module)
    }


def _stage(stage: StageName, module: Any, video: int, text: int) -> StageTraits:
    from torch import nn

    modules = list(module.modules())
    shapes = Counter(
        (item.out_features, item.in_features, item.bias is not None) for item in modules if isinstance(item, nn.Linear)
    )
    linears = tuple(LinearShape(out, into, count, bias) for (out, into, bias), count in sorted(shapes.items()))
    heads, size = _heads(module)
    denoises = stage == "transformer"
    calls, reach = _attention(module) if denoises else (0, "")
    untiled = tiles.why_not(module) if stage == "vae" else "it is no VAE"
    return StageTraits(
        stage=stage,
        class_name=type(module).__name__,
        dtypes=DTYPES[stage],
        parameters=sum(item.numel() for item in module.parameters()),
        heads=heads,
        kv_heads=heads,
        head_dim=size,
        tokens=text if stage == "text_encoder" else video,
        kv_tokens=text if stage == "text_encoder" else video,
        attention_calls=calls,
        self_attention=_self_attention(module) if denoises else 0,
        reachable=denoises and not reach,
        reach=reach,
        linears=linears,
        conv3d=sum(isinstance(item, nn.Conv3d) for item in modules),
        channels=_number(module, "decoder_base_dim", "base_dim"),
        caches=_caches(module) if denoises else {},
        blocks=_blocks(module) if denoises else 0,
        tiles=not untiled,
        untiled=untiled if stage == "vae" else "",
        patch=_patch(module) if stage == "vae" else 1,
        frames_at_once=_frames_at_once(module) if stage == "vae" else 0,
    )


def _blocks(transformer: Any) -> int:
    """Items of its largest list of blocks: groups are as large as one of them."""
    from torch import nn

    return max((len(part) for part in transformer.children() if isinstance(part, nn.ModuleList)), default=0)


def _patch(vae: Any) -> int:
    size = getattr(getattr(vae, "config", None), "patch_size", None)
    return size if isinstance(size, int) and size > 0 else 1


def _frames_at_once(vae: Any) -> int:
    """Frames that the decoder works on together: those of one latent frame in a VAE that keeps the last ones' features,
    of some in CogVideoX's, else all (0)."""
    factor = _number(vae, "scale_factor_temporal", "temporal_compression_ratio") or 4
    if hasattr(vae, "clear_cache"):
        return factor
    return factor * int(getattr(vae, "num_latent_frames_batch_size", 0) or 0)


def _caches(transformer: Any) -> dict[str, str]:
    """Step caches by name, with why each can't be had."""
    from accel import caches, caching

    return {name: caching.why_not(name, transformer) for name in caches.NAMES}


def _self_attention(transformer: Any) -> int:
    from accel import bridge, caching

    return 0 if bridge.why_not() else len(caching.attentions(transformer))


def _attention(transformer: Any) -> tuple[int, str]:
    """Number of attention modules, and why none of them can be reached (empty when some can)."""
    from accel import bridge

    missing = bridge.why_not()
    if missing:
        return 0, missing
    found = bridge.attention_modules(transformer)
    reached = [module for _, module in found if hasattr(module.processor, bridge.FIELD)]
    if reached:
        return len(found), ""
    who = type(transformer).__name__
    return len(
        found
    ), f"{who} does not ask diffusers' dispatcher for its attention: 0 of {len(found)} modules can be reached"


def _heads(module: Any) -> tuple[int, int]:
    heads = _number(module, "num_attention_heads", "num_heads", "n_heads")
    size = _number(module, "attention_head_dim", "d_kv", "head_dim")
    width = _number(module, "hidden_size", "d_model")
    return heads, size or (width // heads if heads else 0)


def _number(module: Any, *names: str) -> int:
    """The first of these settings in the module's config that is a number, 0 without one."""
    config = getattr(module, "config", None)
    for name in names:
        value = getattr(config, name, None)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return 0


def _size(pipeline: Any, width: int | None, height: int | None, frames: int | None) -> tuple[int, int, int]:
    """(width, height, frames): as given, else the defaults of the pipeline's call, else those of Wan."""
    known = inspect.signature(type(pipeline).__call__).parameters

    def default(name: str, otherwise: int) -> int:
        value = known[name].default if name in known else None
        return value if isinstance(value, int) else otherwise

    return width or default("width", 832), height or default("height", 480), frames or default("num_frames", 81)


def _video_tokens(pipeline: Any, module: Any, size: tuple[int, int, int]) -> int:
    """Tokens of one clip: latent frames x rows x columns over the transformer's patch."""
    width, height, frames = size
    space = _attribute(pipeline, "vae_scale_factor_spatial", "vae_spatial_compression_ratio") or 8
    time = _attribute(pipeline, "vae_scale_factor_temporal", "vae_temporal_compression_ratio") or 4
    patch = getattr(getattr(module, "config", None), "patch_size", None)
    parts = (
        tuple(patch) if isinstance(patch, (list, tuple)) else (1, patch, patch) if isinstance(patch, int) else (1, 1, 1)
    )
    depth, rows, columns = parts if len(parts) == 3 else (1, *parts[-2:])
    latents = (frames - 1) // time + 1
    return max(1, latents // depth) * max(1, height // (space * rows)) * max(1, width // (space * columns))


def _attribute(pipeline: Any, *names: str) -> int:
    return next((value for name in names if isinstance(value := getattr(pipeline, name, None), int)), 0)


def text_tokens(pipeline: Any) -> int:
    limit = getattr(getattr(pipeline, "tokenizer", None), "model_max_length", None)
    return min(limit, TEXT_TOKENS) if isinstance(limit, int) and limit > 0 else TEXT_TOKENS
