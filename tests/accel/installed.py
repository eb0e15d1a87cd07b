"""What the tests of an installation share: the plans they put in, and a pipeline's weights bit for bit."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

from accel import ops
from accel.originals import same_bits

BF16_HERE = torch.ops.mkldnn._is_mkldnn_bf16_supported()
needs_bf16 = pytest.mark.skipif(not BF16_HERE, reason="oneDNN packs bf16 only with AVX512_BF16 or AMX")

INT8 = {"linear": "dynamic_int8", "text_encoder_linear": "dynamic_int8", "attention": "sdpa", "vae": "direct_conv3d"}
BF16 = {
    "linear": "onednn_bf16",
    "text_encoder_linear": "onednn_bf16",
    "attention": "sdpa",
    "vae": "bf16_channels_last",
    "dtype": "bfloat16",
    "text_encoder_dtype": "bfloat16",
    "vae_dtype": "bfloat16",
}
SGL = {"linear": "sgl_amx_bf16", "attention": "sgl_amx", "dtype": "bfloat16"}
SGL_INT8 = {"linear": "sgl_amx_int8", "attention": "sgl_amx", "dtype": "bfloat16"}

plans = pytest.mark.parametrize(
    "settings", [pytest.param(INT8, id="int8"), pytest.param(BF16, id="bf16", marks=needs_bf16)]
)
sgl_plans = pytest.mark.parametrize("settings", [pytest.param(SGL, id="sgl"), pytest.param(SGL_INT8, id="sgl_int8")])
COMPONENTS = ("text_encoder", "transformer", "vae")


def bits(pipeline: Any) -> dict[str, torch.Tensor]:
    return {
        f"{component}.{name}": tensor.clone()
        for component in COMPONENTS
        for name, tensor in getattr(pipeline, component).state_dict().items()
    }


def assert_bits(pipeline: Any, before: dict[str, torch.Tensor]) -> None:
    now = bits(pipeline)
    assert now.keys() == before.keys()
    assert [name for name in before if not same_bits(now[name], before[name])] == []


def slots() -> tuple[int, int, int]:
    """Places in use, those of an earlier test's pipelines too; what nobody holds any more is collected first."""
    gc.collect()
    return len(ops.ATTENTION), len(ops.LINEARS), len(ops.CONVS)
