"""The calls that a model makes: attention, linears and the parts of its VAE, with their real sizes, recorded on tensors
that have shapes and no values.

A transformer whose inputs are known here is called with such tensors, at no cost and without its weights. For any other
the loaded pipeline is begun and stopped at the transformer's first call, whose arguments then tell the shapes. Text
encoders are recorded for their linears, VAEs for the parts of their decoder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from accel.errors import AccelError
from accel.linears import in_blocks
from accel.measuring.blocks import LATENTS, Block, parts_of
from accel.readouts.results import Call
from accel.traits import text_tokens
from accel.types import StageName

META = torch.device("meta")
Size = tuple[int, int, int]
"""Width and height in pixels, frames."""

Arguments = Mapping[str, Any]


@dataclass(frozen=True)
class Recorded:
    """calls by stage, and the part of the VAE behind the call of that title, without weights. notes: what could not be
    recorded, a sentence each."""

    calls: tuple[Call, ...]
    blocks: dict[str, Block]
    notes: tuple[str, ...] = ()


def record(pipeline: Any, size: Size, arguments: Arguments | None = None) -> Recorded:
    """All calls of a clip of `size`. arguments: for the pipeline's own call, should that be needed.

    Raises AccelError when the transformer can't be recorded; a text encoder or VAE that can't is noted.
    """
    calls: list[Call] = []
    blocks: dict[str, Block] = {}
    notes: list[str] = []
    steps: dict[StageName, Callable[[], list[Call]]] = {
        "text_encoder": lambda: text_encoder(pipeline),
        "transformer": lambda: transformer(pipeline, size, arguments or {}),
        "vae": lambda: vae_parts(pipeline, size, blocks),
    }
    for stage, step in steps.items():
        if getattr(pipeline, stage, None) is None:
            continue
        try:
            with torch.inference_mode():
                calls += step()
        except Exception as error:
            if stage == "transformer":
                raise
            notes.append(f"the {stage.replace('_', ' ')}'s calls could not be recorded: {_short(error)}")
    return Recorded(tuple(calls), blocks, tuple(notes))


# -- transformer and text encoder --


def text_encoder(pipeline: Any) -> list[Call]:
    ids = torch.ones(1, text_tokens(pipeline), dtype=torch.int64, device=META)
    module = twin(pipeline.text_encoder)
    return listened("text_encoder", module, lambda: module(input_ids=ids))


def transformer(pipeline: Any, size: Size, arguments: Arguments) -> list[Call]:
    module = pipeline.transformer
    known = DRIVES.get(type(module).__name__)
    given = known(pipeline, size) if known else _captured(pipeline, size, arguments)
    copy = twin(module)
    return listened("transformer", copy, lambda: copy(**{**given, "return_dict": False}))


def _wan(pipeline: Any, size: Size) -> dict[str, Any]:
    config, (width, height, frames) = pipeline.transformer.config, size
    space, time = pipeline.vae_scale_factor_spatial, pipeline.vae_scale_factor_temporal
    latents = ((frames - 1) // time + 1, height // space, width // space)
    depth, rows, columns = config.patch_size
    per_token = getattr(getattr(pipeline, "config", None), "expand_timesteps", False)
    tokens = (latents[0] // depth) * (latents[1] // rows) * (latents[2] // columns)
    return {
        "hidden_states": torch.empty(1, config.in_channels, *latents, device=META),
        "timestep": torch.empty((1, tokens) if per_token else (1,), device=META),
        "encoder_hidden_states": torch.empty(1, text_tokens(pipeline), config.text_dim, device=META),
    }


DRIVES: dict[str, Callable[[Any, Size], dict[str, Any]]] = {"WanTransformer3DModel": _wan}
"""Transformers whose arguments follow from their config, by class name."""


class _Enough(Exception):  # noqa: N818 - ends a pipeline's call once it told what was wanted
    pass


def _captured(pipeline: Any, size: Size, arguments: Arguments) -> dict[str, Any]:
    """What the pipeline gives to its transformer at the first step."""
    name = type(pipeline.transformer).__name__
    if any(parameter.is_meta for parameter in pipeline.transformer.parameters()):
        raise AccelError(f"the calls of {name} are recorded from a pass of the loaded model; load it first")
    found: dict[str, Any] = {}

    def listen(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if args:
            raise AccelError(f"{type(pipeline).__name__} calls its {name} with arguments that have no names")
        found.update(tree_map_only(torch.Tensor, lambda tensor: tensor.to(META), kwargs))
        raise _Enough

    width, height, frames = size
    usual = {"prompt": "a red ball", "width": width, "height": height, "num_frames": frames, "num_inference_steps": 2}
    hook = pipeline.transformer.register_forward_pre_hook(listen, with_kwargs=True)
    try:
        pipeline(**{**usual, **arguments})
    except _Enough:
        return found
    finally:
        hook.remove()
    raise AccelError(f"{type(pipeline).__name__} made a clip without its {name}, so there is nothing to record")


def twin(module: nn.Module) -> Any:
    """`module` without its weights and on no device; itself where it has none."""
    if all(parameter.is_meta for parameter in module.parameters()):
        return module
    kind: Any = type(module)
    config: Any = module.config
    with META:
        made = kind.from_config(config) if hasattr(kind, "from_config") else kind(config)
    return made.eval()


def listened(stage: StageName, module: nn.Module, run: Callable[[], Any]) -> list[Call]:
    """The calls that `run` makes through `module`, the costly ones first. An accelerated pipeline's are its own."""
    with _Listening(stage, module) as heard:
        run()
    return sorted(heard.found.values(), key=lambda call: -call.flops * call.count)


class _Listening(TorchFunctionMode):
    """Notes attention and linears while entered, each with its sizes once."""

    def __init__(self, stage: StageName, module: nn.Module) -> None:
        super().__init__()
        self.found: dict[tuple[Any, ...], Call] = {}
        self._stage, self._module = stage, module
        self._names = {id(parameter): name for name, parameter in module.named_parameters()}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention and self._stage == "transformer":
            self._attention(*args, **kwargs)
        elif func is F.linear:
            self._linear(*args, **kwargs)
        return func(*args, **kwargs)

    def _attention(self, query: Any, key: Any, value: Any, attn_mask: Any = None, *_: Any, **__: Any) -> None:
        batch, heads, tokens, size = query.shape
        sizes = {
            "batch": batch,
            "tokens": tokens,
            "kv_tokens": key.shape[2],
            "heads": heads,
            "kv_heads": key.shape[1],
            "head_dim": size,
        }
        mask = ""
        if attn_mask is not None:
            per_query = attn_mask.dim() > 1 and attn_mask.shape[-2] > 1 and attn_mask.stride(-2) != 0
            mask = "queries" if per_query else "keys"
        how = "self" if key.shape[2] == tokens else "cross"
        title = f"{how} attention, {tokens} x {key.shape[2]} tokens, {heads} x {size}"
        flops = 4.0 * batch * heads * tokens * key.shape[2] * size
        self._note(Call(self._stage, "attention", title, sizes, flops, mask=mask))

    def _linear(self, inputs: Any, weight: Any, bias: Any = None) -> None:
        name = self._names.get(id(weight))
        if name is None:  # no weight of this module: computed on the way
            return
        outs, ins = weight.shape
        rows = inputs.numel() // ins
        path = name.removesuffix(".weight")
        blocks = in_blocks(self._module, path)
        sizes = {"rows": rows, "in_features": ins, "out_features": outs, "bias": int(bias is not None)}
        title = f"{_place(path)}, {rows} x {ins} to {outs}"
        self._note(Call(self._stage, "linear", title, sizes, 2.0 * rows * ins * outs, blocks=blocks))

    def _note(self, call: Call) -> None:
        key = (call.kind, *call.sizes.items(), call.mask, call.blocks)
        before = self.found.get(key)
        self.found[key] = call if before is None else replace(before, count=before.count + 1)


def _place(path: str) -> str:
    """A module's path inside its block: "blocks.3.attn1.to_q" is "attn1.to_q"."""
    parts = path.split(".")
    first = next((at for at, part in enumerate(parts[:-1]) if part.isdecimal()), -1)
    return ".".join(parts[first + 1 :])


# -- VAE --


def vae_parts(pipeline: Any, size: Size, blocks: dict[str, Block]) -> list[Call]:
    """The parts of the decoder, each as it runs once for every latent frame."""
    vae = twin(pipeline.vae)
    width, height, frames = size
    space = getattr(pipeline, "vae_scale_factor_spatial", 0) or getattr(pipeline, "vae_spatial_compression_ratio", 8)
    time = getattr(pipeline, "vae_scale_factor_temporal", 0) or getattr(pipeline, "vae_temporal_compression_ratio", 4)
    latents = (frames - 1) // time + 1
    seen = torch.empty(1, _channels(vae), min(LATENTS, latents), height // space, width // space, device=META)
    calls = []
    for path, block in parts_of(vae, seen).items():
        _, channels, depth, rows, columns = block.shape
        title = f"{path} ({type(block.module).__name__}), {channels} channels, {depth} x {rows} x {columns}"
        blocks[title] = block
        sizes = {"channels": channels, "frames": depth, "height": rows, "width": columns}
        calls.append(Call("vae", "vae", title, sizes, block.flops(), count=latents))
    return calls


def _channels(vae: Any) -> int:
    return next(int(value) for name in ("z_dim", "latent_channels") if (value := getattr(vae.config, name, None)))


# -- less of a call --


def within(call: Call, flops: float) -> Call:
    """`call`, or a part of it that costs at most about `flops`: fewer heads, rows, or lines of the picture."""
    part = flops / call.flops if call.flops else 1.0
    if part >= 1:
        return call
    name = {"attention": "heads", "linear": "rows", "vae": "height"}[call.kind]
    least = {"attention": 1, "linear": 512, "vae": 16}[call.kind]
    whole = call.sizes[name]
    kept = max(min(least, whole), int(whole * part))
    sizes = {**call.sizes, name: kept}
    if name == "heads" and call.sizes["kv_heads"] == whole:
        sizes["kv_heads"] = kept
    elif name == "heads" and kept % call.sizes["kv_heads"]:
        return call  # heads that share keys can't be taken apart
    return replace(call, sizes=sizes, flops=call.flops * kept / whole, share=call.share * kept / whole)


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
