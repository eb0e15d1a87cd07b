"""Tiny pipelines and models with random weights, offline, each in well under a second: one per way of doing attention.

Wan asks diffusers' dispatcher without a mask, LTX asks it with an additive mask, CogVideoX and Mochi never ask it.
"""

from __future__ import annotations

from typing import Any

from accel.types import Choice, Cores, CpuFacts, Flag, Machine, Memory, Package, Plan, Proof, StagePlan


def wan(seed: int = 0) -> Any:
    """A whole text-to-video WanPipeline: heads 2 x 32, linears 32 to 384 wide, a VAE of 2x in time."""
    import torch

    from tests.app.tiny import build_tiny_pipeline

    torch.manual_seed(seed)
    return build_tiny_pipeline()


def run_wan(pipeline: Any, seed: int = 1, steps: int = 2, **more: Any) -> Any:
    """Frames of a 5-frame clip of 64x32 as float32 (frames, height, width, 3)."""
    import torch

    pipeline.set_progress_bar_config(disable=True)
    arguments: dict[str, Any] = {
        "prompt": "a red ball rolls over the green grass",
        "negative_prompt": "",
        "height": 32,
        "width": 64,
        "num_frames": 5,
        "num_inference_steps": steps,
        "guidance_scale": 4.0,
        "max_sequence_length": 64,
        "output_type": "np",
        "generator": torch.Generator().manual_seed(seed),
    }
    with torch.inference_mode():
        return pipeline(**(arguments | more)).frames[0]


def wan_transformer(heads: int = 2, head_dim: int = 32, layers: int = 2, ffn: int = 64) -> Any:
    import torch
    from diffusers import WanTransformer3DModel

    torch.manual_seed(0)
    return WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=heads,
        attention_head_dim=head_dim,
        in_channels=8,
        out_channels=8,
        text_dim=32,
        freq_dim=32,
        ffn_dim=ffn,
        num_layers=layers,
    ).eval()


def wan_inputs(batch: int = 1, dtype: Any = None) -> dict[str, Any]:
    import torch

    generator = torch.Generator().manual_seed(3)
    dtype = dtype or torch.float32
    return {
        "hidden_states": torch.randn(batch, 8, 2, 8, 8, generator=generator).to(dtype),
        "timestep": torch.full((batch,), 500),
        "encoder_hidden_states": torch.randn(batch, 12, 32, generator=generator).to(dtype),
        "return_dict": False,
    }


def ltx_transformer() -> Any:
    """Cross attention with an additive mask per key."""
    import torch
    from diffusers import LTXVideoTransformer3DModel

    torch.manual_seed(0)
    return LTXVideoTransformer3DModel(
        in_channels=8,
        out_channels=8,
        num_attention_heads=2,
        attention_head_dim=32,
        cross_attention_dim=64,
        num_layers=2,
        caption_channels=32,
    ).eval()


def ltx_inputs(batch: int = 2) -> dict[str, Any]:
    import torch

    generator = torch.Generator().manual_seed(4)
    mask = torch.ones(batch, 12, dtype=torch.int64)
    mask[0, 7:] = 0
    return {
        "hidden_states": torch.randn(batch, 2 * 4 * 4, 8, generator=generator),
        "encoder_hidden_states": torch.randn(batch, 12, 32, generator=generator),
        "timestep": torch.full((batch,), 500),
        "encoder_attention_mask": mask,
        "num_frames": 2,
        "height": 4,
        "width": 4,
        "return_dict": False,
    }


def cogvideox_transformer() -> Any:
    import torch
    from diffusers import CogVideoXTransformer3DModel

    torch.manual_seed(0)
    return CogVideoXTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=32,
        in_channels=4,
        out_channels=4,
        time_embed_dim=8,
        text_embed_dim=32,
        num_layers=2,
        sample_width=8,
        sample_height=8,
        sample_frames=5,
        patch_size=2,
        temporal_compression_ratio=4,
        max_text_seq_length=12,
    ).eval()


def cogvideox_inputs() -> dict[str, Any]:
    import torch

    generator = torch.Generator().manual_seed(5)
    return {
        "hidden_states": torch.randn(1, 2, 4, 8, 8, generator=generator),
        "encoder_hidden_states": torch.randn(1, 12, 32, generator=generator),
        "timestep": torch.full((1,), 500),
        "return_dict": False,
    }


def mochi_transformer() -> Any:
    import torch
    from diffusers import MochiTransformer3DModel

    torch.manual_seed(0)
    return MochiTransformer3DModel(
        patch_size=2,
        num_attention_heads=2,
        attention_head_dim=32,
        num_layers=2,
        pooled_projection_dim=16,
        in_channels=4,
        text_embed_dim=32,
        time_embed_dim=16,
        max_sequence_length=12,
    ).eval()


def mochi_inputs() -> dict[str, Any]:
    import torch

    generator = torch.Generator().manual_seed(6)
    return {
        "hidden_states": torch.randn(1, 4, 2, 8, 8, generator=generator),
        "encoder_hidden_states": torch.randn(1, 12, 32, generator=generator),
        "timestep": torch.full((1,), 500),
        "encoder_attention_mask": torch.ones(1, 12, dtype=torch.bool),
        "return_dict": False,
    }


class Holder:
    """A pipeline reduced to the attributes that installing looks at."""

    def __init__(self, **components: Any) -> None:
        vars(self).update(components)


def plan(
    attention: str = "stock",
    linear: str = "stock",
    text_encoder_linear: str = "stock",
    vae: str = "stock",
    dtype: str = "float32",
    text_encoder_dtype: str = "float32",
    vae_dtype: str = "float32",
    compile: str = "no",
    threads: str = "2",
    cache: str = "none",
    offload: str = "none",
    tiling: str = "off",
) -> Plan:
    """A plan written by hand: what installing is told, without what a machine would choose."""

    def stage(name: Any, dtype: str, attention: str, linear: str, vae: str, compiled: str) -> StagePlan:
        def choice(setting: str, value: str) -> Choice:
            return Choice(name, setting, value, value, ("a test asked for it",))

        return StagePlan(
            stage=name,
            device=choice("device", "cpu"),
            dtype=choice("dtype", dtype),
            attention=choice("attention", attention),
            linear=choice("linear", linear),
            vae=choice("vae", vae),
            memory_format=choice("memory_format", "stock"),
            compile=choice("compile", compiled),
            threads=choice("threads", threads),
            cache=Choice("transformer", "cache", cache, cache, ("a test asked for it",)),
        )

    return Plan(
        family="test",
        stages=(
            stage("text_encoder", text_encoder_dtype, "stock", text_encoder_linear, "stock", "no"),
            stage("transformer", dtype, attention, linear, "stock", compile),
            stage("vae", vae_dtype, "stock", "stock", vae, "no"),
        ),
        threads=Choice("", "threads", "auto", "2", ("a test asked for it",)),
        waiting=Choice("", "waiting", "auto", "active", ("a test asked for it",)),
        offload=Choice("process", "offload", offload, offload, ("a test asked for it",)),
        tiling=Choice("vae", "tiling", tiling, tiling, ("a test asked for it",)),
    )


def machine(*proofs: str, flags: tuple[str, ...] = (), operators: tuple[str, ...] = ()) -> Machine:
    """A two-core x86 machine on which `proofs` ran and were right, that has the CPU `flags` and, if `operators` are
    named, an sgl_kernel that registers them."""
    package = Package("sgl_kernel", "sglang-kernel-cpu", "0.1", "cpu", True, "imports", operators)
    return Machine(
        system="Linux",
        arch="x86_64",
        python="3.11",
        cpu=CpuFacts("Intel", "a Xeon", {flag: Flag(True, True, "a test says so", "test") for flag in flags}),
        cores=Cores(2, 2, 2, "two"),
        memory=Memory(2**34, 2**34, "16 GiB"),
        numa=(),
        gpus=(),
        packages={"sgl_kernel": package} if operators else {},
        overrides=(),
        proofs={name: Proof(True, "ran and was right") for name in proofs},
    )
