"""Quantising to FP8: the rounding of the format, what is not finite, and the Triton kernels beside plain torch."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from accel import fp8
from accel.checking.line import relative

FORMS = (torch.float8_e4m3fn, torch.float8_e4m3fnuz)
ROUNDING = 4e-2
"""Three bits of mantissa round by at most 2**-4 of a number, by 2.6 % over normal numbers."""


@settings(deadline=None, max_examples=40)
@given(
    rows=st.integers(1, 9),
    columns=st.integers(1, 300),
    power=st.integers(-20, 30),
    form=st.sampled_from(FORMS),
    seed=st.integers(0, 99),
)
def test_rows_come_back_within_the_rounding(rows: int, columns: int, power: int, form: torch.dtype, seed: int) -> None:
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * 2.0**power
    quantised, scales = fp8.quantise_rows(x, form)
    assert (quantised.dtype, scales.dtype, scales.shape) == (form, torch.float32, (rows, 1))
    error = relative(quantised.float() * scales, x)
    print(f"relative error {error:.1e}")
    assert error < ROUNDING
    assert torch.equal(quantised.float().abs().amax(1), torch.full((rows,), torch.finfo(form).max))


@pytest.mark.parametrize("form", FORMS)
def test_heads_share_a_scale_per_item_and_key_head(form: torch.dtype) -> None:
    x = torch.randn(2, 33, 6, 16, generator=torch.Generator().manual_seed(0)) * torch.arange(1, 7).view(1, 1, 6, 1)
    quantised, scales = fp8.quantise_heads(x, 3, form)
    assert scales.shape == (2, 3)
    assert relative(quantised.float() * scales.repeat_interleave(2, 1)[:, None, :, None], x) < ROUNDING
    want = x.abs().view(2, 33, 3, 2, 16).amax((1, 3, 4)) / torch.finfo(form).max
    torch.testing.assert_close(scales, want)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_becomes_nan_and_stays_where_it_was(form: torch.dtype, odd: float) -> None:
    x = torch.randn(3, 40, generator=torch.Generator().manual_seed(0)).bfloat16()
    dirty = x.clone()
    dirty[1, 7] = odd
    got, scales = fp8.quantise_rows(dirty, form)
    want, _ = fp8.quantise_rows(x, form)
    assert scales.isfinite().all()
    assert got.float().isnan().sum() == 1
    assert got[1, 7].float().isnan()
    assert torch.equal(got[[0, 2]].float(), want[[0, 2]].float())
    assert torch.equal(fp8.quantise_rows(torch.zeros(2, 16), form)[0].float(), torch.zeros(2, 16))


SCRIPT = """
import torch
from accel import fp8, triton_fp8
form = torch.float8_e4m3fn
torch.manual_seed(0)
def same(got, want, what):
    (a, s), (b, t) = got, want
    a, b = a.float(), b.float()
    # the interpreter's own cast drops the carry when it rounds up to a power of two, and has no ties and no NaN
    apart = (a != b) & b.isfinite()
    carried = b[apart].abs() == 2 * a[apart].abs()
    print(f"{what}: {apart.float().mean():.1e} differ, {carried.float().mean():.0%} of them by the lost carry")
    assert torch.allclose(s, t, rtol=1e-6), what
    assert torch.allclose(a[apart][~carried], b[apart][~carried], rtol=0.13, atol=2**-8), what
    assert apart.float().mean() < 0.1, what
for rows, columns in ((1, 16), (3, 48), (5, 5120), (2, 13824)):
    x = torch.randn(rows, columns + 16).bfloat16()[:, :columns]
    x[0, 3], x[-1, 5] = float("nan"), float("inf")
    same(triton_fp8.quantise_rows(x, form), fp8.quantise_rows(x, form), f"{rows} x {columns}")
for shape, kv_heads, size in (((1, 1, 2), 2, 64), ((2, 70, 4), 2, 128), ((1, 200, 3), 3, 96)):
    x = torch.randn(*shape, 3, size).bfloat16()[:, :, :, 1] * torch.arange(1, shape[2] + 1).view(1, 1, -1, 1)
    x = x.bfloat16()
    x[0, 0, 1, 5] = float("inf")
    for width in (None, 192):
        got, want = (where.quantise_heads(x, kv_heads, form, width) for where in (triton_fp8, fp8))
        assert got[0].shape == want[0].shape and not got[0][..., size:].float().any()
        same(got, want, f"{shape} of {size}, {width or size} wide")
"""


def test_triton_quantises_as_plain_torch_does() -> None:
    """In Triton's interpreter, which needs no GPU."""
    pytest.importorskip("triton", reason="triton is not installed: its kernels are compared where it is")
    environ = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environ, capture_output=True, text=True, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stderr[-2000:]
