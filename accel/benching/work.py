"""What can be measured, and who competes: plain data, no torch.

A `Work` is a module with the shape of a known one and random weights, cut down to as many layers as the time allows; a
layer costs the same wherever it stands, so ratios hold for the whole. Sizes are those of the public
configurations of Wan 2.1 1.3B and 14B, Wan 2.2 TI2V 5B, umT5-XXL and the Wan 2.1 VAE.
A `Contender` is one way to run it: as plain diffusers does, or through a plan of ours with its environment.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from accel.types import StageName

TEXT_TOKENS = 512
Scale = Literal["full", "tiny"]


@dataclass(frozen=True)
class Work:
    """One stage of one model, for one call.

    config: constructor arguments of the diffusers or transformers class `class_name`; `tiny` replaces some of them.
    cuts: how far it may be cut down, largest first: numbers of layers, for the VAE (width, height, latent frames).
    width, height in pixels; latents: (channels, frames, rows, columns) of the transformer's input.
    """

    name: str
    title: str
    stage: StageName
    class_name: str
    config: dict[str, Any]
    cuts: tuple[Any, ...]
    tiny: dict[str, Any] = field(default_factory=dict)
    latents: tuple[int, int, int, int] = (0, 0, 0, 0)
    per_token_time: bool = False

    def settings(self, scale: Scale) -> dict[str, Any]:
        return {**self.config, **(self.tiny if scale == "tiny" else {})}

    def flops(self, cut: Any) -> float:
        """Floating point operations of one call, of the products alone."""
        c = self.config
        if self.stage == "vae":
            width, height, frames = cut
            # counted by torch.utils.flop_counter at 832x480: the first latent frame gives one frame, each other four
            return (4.352e12 + 13.55e12 * (frames - 1)) * width * height / (832 * 480)
        if self.stage == "text_encoder":
            wide = c["num_heads"] * c["d_kv"]
            layer = 4 * c["d_model"] * wide + 3 * c["d_model"] * c["d_ff"]
            return float(cut * (2 * TEXT_TOKENS * layer + 4 * TEXT_TOKENS**2 * wide))
        dim, tokens = c["num_attention_heads"] * c["attention_head_dim"], self.tokens
        products = 2 * tokens * (6 * dim**2 + 2 * dim * c["ffn_dim"]) + 2 * TEXT_TOKENS * 2 * dim**2
        # with a time per token, its embedding is a product of its own, outside the layers
        time = 2 * tokens * (7 * dim**2 + c["freq_dim"] * dim) if self.per_token_time else 0
        return float(cut * (products + 4 * tokens * dim * (tokens + TEXT_TOKENS)) + time)

    def parameters(self, cut: Any) -> float:
        """Weights of the part that is built, roughly: what decides how much memory it takes."""
        c = self.config
        if self.stage == "vae":
            return 0.13e9
        if self.stage == "text_encoder":
            return float(cut * (4 * c["d_model"] * c["num_heads"] * c["d_kv"] + 3 * c["d_model"] * c["d_ff"]))
        dim = c["num_attention_heads"] * c["attention_head_dim"]
        return float(cut * (8 * dim**2 + 2 * dim * c["ffn_dim"]))

    @property
    def tokens(self) -> int:
        _, frames, rows, columns = self.latents
        return frames * (rows // 2) * (columns // 2)


WAN = {"patch_size": (1, 2, 2), "attention_head_dim": 128, "text_dim": 4096, "freq_dim": 256, "cross_attn_norm": True}
SMALL_WAN = {"num_attention_heads": 2, "attention_head_dim": 64, "ffn_dim": 256, "text_dim": 64}
TRANSFORMER = "WanTransformer3DModel"

WORKS = {
    work.name: work
    for work in (
        Work(
            "step-1.3b",
            "one forward shaped like Wan 2.1 1.3B, 832x480, 17 frames",
            "transformer",
            TRANSFORMER,
            {**WAN, "num_attention_heads": 12, "ffn_dim": 8960, "in_channels": 16, "out_channels": 16},
            (30, 15, 8, 4, 2),
            {**SMALL_WAN, "num_attention_heads": 3},
            latents=(16, 5, 60, 104),
        ),
        Work(
            "step-5b",
            "one forward shaped like Wan 2.2 TI2V 5B, 832x480, 17 frames",
            "transformer",
            TRANSFORMER,
            {**WAN, "num_attention_heads": 24, "ffn_dim": 14336, "in_channels": 48, "out_channels": 48},
            (30, 15, 8, 4, 2),
            SMALL_WAN,
            latents=(48, 5, 30, 52),
            per_token_time=True,
        ),
        Work(
            "step-14b",
            "one forward shaped like Wan 2.1 14B, 832x480, 81 frames",
            "transformer",
            TRANSFORMER,
            {**WAN, "num_attention_heads": 40, "ffn_dim": 13824, "in_channels": 16, "out_channels": 16},
            (40, 20, 8, 2),
            SMALL_WAN,
            latents=(16, 21, 60, 104),
        ),
        Work(
            "encode",
            "a prompt of 512 tokens through umT5-XXL's shape",
            "text_encoder",
            "UMT5EncoderModel",
            {
                "vocab_size": 4096,  # the real 256384 rows are looked up, not multiplied
                "d_model": 4096,
                "d_kv": 64,
                "d_ff": 10240,
                "num_heads": 64,
                "feed_forward_proj": "gated-gelu",
            },
            (24, 16, 12, 8, 4, 2),
            {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_heads": 4, "vocab_size": 64},
        ),
        Work(
            "decode",
            "a decode shaped like the Wan 2.1 VAE's",
            "vae",
            "AutoencoderKLWan",
            {"base_dim": 96, "z_dim": 16, "dim_mult": [1, 2, 4, 4], "num_res_blocks": 2, "attn_scales": []},
            ((832, 480, 5), (832, 480, 2), (416, 240, 3), (416, 240, 2), (208, 128, 2)),
            {"base_dim": 8, "num_res_blocks": 1, "dim_mult": [1, 2, 2, 2]},
        ),
    )
}


@dataclass(frozen=True)
class Contender:
    """One way to run a work. plain: the dtype plain diffusers is loaded in, empty for a plan of ours.

    preferences: what the plan is asked for, as fields of `accel.Preferences`.
    """

    name: str
    plain: str = ""
    preferences: dict[str, str] = field(default_factory=dict)


SGL_INT8 = {"attention": "sgl_amx", "linear": "sgl_amx_int8", "text_encoder_linear": "sgl_amx_int8"}
FP8 = {"attention": "fa3_fp8", "linear": "fp8"}

CACHES = ("first_block", "mag", "taylorseer", "pyramid")

CONTENDERS = {
    item.name: item
    for item in (
        Contender("plain-fp32", "float32"),
        Contender("plain-bf16", "bfloat16"),
        Contender("auto"),
        Contender("fp32", preferences={"dtype": "float32"}),
        Contender("int8", preferences={"linear": "dynamic_int8"}),
        Contender("compiled", preferences={"compile": "yes"}),
        Contender("onednn", preferences={"linear": "onednn_bf16", "text_encoder_linear": "onednn_bf16"}),
        Contender(
            "sgl",
            preferences={"attention": "sgl_amx", "linear": "sgl_amx_bf16", "text_encoder_linear": "sgl_amx_bf16"},
        ),
        Contender("fa3", preferences={"attention": "fa3", "linear": "stock", "compile": "no"}),
        Contender("fa3-fp8", preferences={"attention": "fa3_fp8"}),
        Contender("fp8", preferences={**FP8, "compile": "no"}),
        Contender("fp8-fused", preferences={**FP8, "compile": "fused"}),
        Contender("fp8-compiled", preferences={**FP8, "compile": "yes"}),
        Contender("sgl-int8", preferences=SGL_INT8),
        Contender("sgl-int8-compiled", preferences={**SGL_INT8, "compile": "yes"}),
        *(Contender(f"cache-{name}", preferences={"cache": name}) for name in CACHES),
    )
}
