"""Every backend, one line each. Importing this imports no torch: kernels are loaded when a plan engages them."""

from __future__ import annotations

from accel.backends.aiter_bf16 import AiterBf16
from accel.backends.aiter_fmha import AiterFmha
from accel.backends.aiter_mla import AiterMla
from accel.backends.amx_attention import AmxAttention
from accel.backends.amx_bf16 import AmxBf16
from accel.backends.amx_int8 import AmxInt8
from accel.backends.bf16_channels_last import Bf16ChannelsLast
from accel.backends.diffusers_own import CUDNN, FLASH, SAGE
from accel.backends.direct_conv3d import DirectConv3d
from accel.backends.dynamic_int8 import DynamicInt8
from accel.backends.fa3 import Fa3
from accel.backends.fa3_fp8 import Fa3Fp8
from accel.backends.fp8_linear import Fp8Linear
from accel.backends.onednn_bf16 import OneDnnBf16
from accel.backends.sdpa import Sdpa
from accel.backends.stock import StockLinear, StockVae
from accel.backends.torchao_weights import FP8_WEIGHTS, INT8_WEIGHTS
from accel.contract import Backend
from accel.types import Kind

REGISTRY: tuple[Backend, ...] = (
    Sdpa(),
    AmxAttention(),
    Fa3(),
    Fa3Fp8(),
    AiterBf16(),
    AiterFmha(),
    AiterMla(),
    CUDNN,
    FLASH,
    SAGE,
    StockLinear(),
    OneDnnBf16(),
    AmxBf16(),
    AmxInt8(),
    DynamicInt8(),
    Fp8Linear(),
    INT8_WEIGHTS,
    FP8_WEIGHTS,
    StockVae(),
    DirectConv3d(),
    Bf16ChannelsLast(),
)


def backends(kind: Kind) -> tuple[Backend, ...]:
    """All backends of one kind, the reference first."""
    return tuple(sorted((b for b in REGISTRY if b.kind == kind), key=lambda b: not b.reference))


def backend(kind: Kind, name: str) -> Backend:
    """The backend called `name`. Raises KeyError listing the names there are."""
    for item in REGISTRY:
        if item.kind == kind and item.name == name:
            return item
    raise KeyError(f"there is no {kind} backend {name!r}; there are {', '.join(b.name for b in backends(kind))}")


def reference(kind: Kind) -> Backend:
    return backends(kind)[0]
