"""Building what is measured: modules of a known shape with random weights, and pipelines from a folder.

Drawing five billion random numbers takes a minute, copying them seconds: every weight is cut from one pool of normal
numbers, scaled to keep activations of order one. Values repeat, which no kernel here can exploit.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from accel.benching.work import TEXT_TOKENS, Scale, Work
from accel.casting import to_cast

POOL = 4_194_301  # a prime: rows of a weight start at different places of the pool


def blank(work: Work, cut: Any, scale: Scale) -> Any:
    """A pipeline-like object that holds the one module, with shapes and without weights."""
    with torch.device("meta"):
        module = _made(work, work.settings(scale), cut).eval().requires_grad_(False)
    # latents are given as they are: one latent pixel is one pixel here
    factors = {"vae_scale_factor_spatial": 1, "vae_scale_factor_temporal": 1}
    return SimpleNamespace(**{work.stage: module}, **factors)


def fill(pipeline: Any, work: Work, dtype: torch.dtype, device: str) -> None:
    """Give the module of `blank` its random weights on `device`, in `dtype` as diffusers would load it."""
    module: nn.Module = getattr(pipeline, work.stage)
    for _, tensor, wanted in to_cast(module, dtype):
        tensor.data = tensor.data.to(wanted)
    module.to_empty(device=device)
    pool = torch.randn(POOL, generator=torch.Generator().manual_seed(0)).to(device)
    for number, (name, tensor) in enumerate([*module.named_parameters(), *module.named_buffers()]):
        if tensor.is_floating_point():
            _fill(name, tensor.data, pool, number * 7919 % POOL)


def _fill(name: str, tensor: torch.Tensor, pool: torch.Tensor, start: int) -> None:
    if tensor.dim() < 2 or name.endswith(("cos", "sin", "gamma")):
        tensor.fill_(0.0 if name.endswith(("bias", "sin")) else 1.0)  # norms that scale by one, a rotation by zero
        return
    flat, scale = tensor.view(-1), tensor[0].numel() ** -0.5
    for at in range(0, flat.numel(), POOL):
        part = flat[at : at + POOL]
        first = min(len(part), POOL - start)
        torch.mul(pool[start : start + first], scale, out=part[:first])
        torch.mul(pool[: len(part) - first], scale, out=part[first:])


def _made(work: Work, settings: dict[str, Any], cut: Any) -> Any:
    import diffusers
    import transformers

    if work.stage == "text_encoder":
        config = transformers.UMT5Config(**settings, num_layers=cut)
        return getattr(transformers, work.class_name)(config)
    if work.stage == "transformer":
        settings = {**settings, "num_layers": cut}
    return getattr(diffusers, work.class_name)(**settings)


def pipeline_around(transformer: Any) -> Any:
    """A Wan pipeline that denoises with `transformer` from embeddings, and neither reads prompts nor decodes."""
    from diffusers import AutoencoderKLWan, UniPCMultistepScheduler, WanPipeline

    channels = transformer.config.in_channels
    vae = AutoencoderKLWan(base_dim=8, z_dim=channels, num_res_blocks=1, latents_mean=[0.0] * channels,
                           latents_std=[1.0] * channels)  # fmt: skip
    flow: dict[str, Any] = {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 3.0}
    return WanPipeline(
        tokenizer=None, text_encoder=None, vae=vae, scheduler=UniPCMultistepScheduler(**flow), transformer=transformer
    )


def inputs(work: Work, cut: Any, scale: Scale) -> dict[str, Any]:
    """Arguments of one call, float32: the same for every contender."""
    draw = torch.Generator().manual_seed(1)
    if work.stage == "vae":
        width, height, frames = cut
        if scale == "tiny":
            width, height = 64, 32
        return {"z": torch.randn(1, work.config["z_dim"], frames, height // 8, width // 8, generator=draw)}
    settings = work.settings(scale)
    if work.stage == "text_encoder":
        ids = torch.randint(2, settings["vocab_size"], (1, TEXT_TOKENS), generator=draw)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    channels, frames, rows, columns = work.latents
    if scale == "tiny":
        rows, columns = 8, 8
    tokens = frames * (rows // 2) * (columns // 2)
    return {
        "hidden_states": torch.randn(1, channels, frames, rows, columns, generator=draw),
        "timestep": torch.full((1, tokens) if work.per_token_time else (1,), 500.0),
        "encoder_hidden_states": torch.randn(1, TEXT_TOKENS, settings["text_dim"], generator=draw),
    }


def call(work: Work, pipeline: Any, arguments: dict[str, Any], dtype: torch.dtype) -> torch.Tensor:
    """One call; arguments in the dtype a pipeline would hand over, on the module's device."""
    device = next(getattr(pipeline, work.stage).parameters()).device
    given = {
        name: value.to(device, dtype) if value.is_floating_point() and name != "timestep" else value.to(device)
        for name, value in arguments.items()
    }
    if work.stage == "vae":
        return pipeline.vae.decode(given["z"], return_dict=False)[0]
    if work.stage == "text_encoder":
        return pipeline.text_encoder(**given).last_hidden_state
    return pipeline.transformer(**given, return_dict=False)[0]
