"""A stand-in for what diffusers' own names stand for: cuDNN's attention, FlashAttention-2 and SageAttention.

`installed()` puts what these packages compute where diffusers looks for them, and any way of PyTorch's own in cuDNN's
place, and lets the backends take CPU tensors; everything tested on it is called emulated.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F

from accel.backends import flash_ops


def packaged(q: Any, k: Any, v: Any, **more: Any) -> Any:
    """As flash_attn_func and sageattn compute, under either's names of arguments."""
    scale = more.get("softmax_scale", more.get("sm_scale"))
    causal = more.get("causal", more.get("is_causal"))
    assert more.get("tensor_layout", "NHD") == "NHD"
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, scale=scale, is_causal=bool(causal)).transpose(1, 2)


@contextmanager
def installed() -> Iterator[None]:
    """A card of 8.9 and both packages, for the time of a `with`."""
    from diffusers.models import attention_dispatch

    def only(kernel: Any) -> Any:
        assert kernel == torch.nn.attention.SDPBackend.CUDNN_ATTENTION
        return nullcontext()

    with (
        mock.patch.object(flash_ops, "capability", return_value=(8, 9)),
        mock.patch("accel.backends.diffusers_own.capability", return_value=(8, 9)),
        mock.patch.object(attention_dispatch, "flash_attn_func", packaged),
        mock.patch.object(attention_dispatch, "sageattn", packaged),
        mock.patch.object(torch.nn.attention, "sdpa_kernel", only),
    ):
        yield
