"""NaN and flat clips are named by step and backend, and nothing finite is ever refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from accel.errors import AccelError
from accel.finite import NonFiniteError, check_frames, check_latents, engaged_backends


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_one_wrong_latent_is_found(value: float, dtype: torch.dtype) -> None:
    latents = torch.randn(1, 4, 2, 3, 5).to(dtype)
    latents[0, 1, 1, 2, 4] = value
    with pytest.raises(NonFiniteError) as caught:
        check_latents(latents, 3, "attention sgl_amx")
    error = caught.value
    assert str(error).startswith("1 of 120 latent values are not finite at step 3 with attention sgl_amx; run it again")
    assert (error.step, error.backend, "\n" in str(error)) == (3, "attention sgl_amx", False)
    assert isinstance(error, AccelError)
    assert "--accel attention=sdpa" in str(error)


@given(st.floats(allow_nan=False, allow_infinity=False, width=32), st.integers(1, 5))
def test_finite_latents_pass_whatever_their_size(value: float, count: int) -> None:
    check_latents(torch.full((count, 7), value), 1)


def frames(value: Any = None) -> np.ndarray[Any, Any]:
    clip = np.random.default_rng(0).integers(0, 255, (3, 4, 6, 3), dtype=np.uint8)
    return clip if value is None else np.full_like(clip, value)


def test_good_frames_pass() -> None:
    check_frames(frames())
    check_frames(frames().astype(np.float32) / 255)
    one_pixel = frames(7)
    one_pixel[2, 1, 1, 0] = 8
    check_frames(one_pixel)


@pytest.mark.parametrize("value", [0, 7, 255])
def test_a_flat_clip_is_refused(value: int) -> None:
    with pytest.raises(NonFiniteError, match=f"every pixel of every frame has the value {value} after decoding"):
        check_frames(frames(value), "vae x")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_frames_that_are_not_finite_are_refused(value: float) -> None:
    clip = frames().astype(np.float32)
    clip[1, 1, 1, 1] = value
    with pytest.raises(NonFiniteError, match="not finite"):
        check_frames(clip)


def test_no_frames_are_refused() -> None:
    with pytest.raises(NonFiniteError, match="there are no frames"):
        check_frames(frames()[:0])


def test_backends_of_a_report_are_named_once() -> None:
    report = {
        "attention": {"transformer": {"backend": "sgl_amx"}, "transformer_2": {"backend": "sgl_amx"}},
        "linear": {"text_encoder": {"backend": "onednn_bf16"}, "transformer": {"modules": 3}},
    }
    assert engaged_backends(report) == "attention sgl_amx, linear onednn_bf16"
    assert engaged_backends({}) == ""
