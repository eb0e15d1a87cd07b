"""Weights in int8 and FP8 by torchao: near the exact product, in less memory, with an exact way back."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from accel.advice import pip
from accel.backends import backend
from accel.checking.line import relative
from accel.install import install
from accel.types import Package
from tests import builders
from tests.accel.installed import assert_bits, bits

NAMES = ("torchao_int8", "torchao_fp8")
LIMITS = {"torchao_int8": 0.01, "torchao_fp8": 0.05}


@pytest.mark.parametrize("name", NAMES)
def test_reasons(name: str) -> None:
    bare = builders.machine()
    traits = None
    item = backend("linear", name)
    assert item.why_not(bare, traits) == [f"torchao is not installed: `{pip('install', 'torchao>=0.18,<0.19')}`"]  # type: ignore[arg-type]
    broken = Package("torchao", "torchao", "0.18.0", "", False, "torchao 0.18.0 does not import: no symbol")
    on = dataclasses.replace(bare, packages={"torchao": broken})
    assert item.why_not(on, traits) == [broken.reason]  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_products_are_near_and_take_less(name: str, dtype: torch.dtype) -> None:
    pytest.importorskip("torchao", reason="torchao is an optional package")
    torch.manual_seed(0)
    weight, bias, rows = torch.randn(512, 256).to(dtype), torch.randn(512).to(dtype), torch.randn(40, 256).to(dtype)
    with torch.inference_mode():
        matrix = backend("linear", name).pack(weight)  # type: ignore[attr-defined]
        got = matrix.run(rows, bias)
    error = relative(got, F.linear(rows.double(), weight.double(), bias.double()))
    print(f"{name} {dtype} relative error {error:.1e}")
    assert got.dtype == dtype
    assert 1e-4 < error < LIMITS[name]
    assert matrix.nbytes <= weight.numel() * 1.05
    assert matrix.unpack() is None


@pytest.mark.parametrize("name", NAMES)
def test_a_clip_differs_a_little_and_the_weights_come_back(name: str) -> None:
    pytest.importorskip("torchao", reason="torchao is an optional package")
    pipeline = builders.wan()
    before, stock = bits(pipeline), builders.run_wan(pipeline)
    installation = install(pipeline, builders.plan(linear=name))
    clip = builders.run_wan(pipeline)
    told = installation.report()["linear"]["transformer"]
    assert told["served"] == told["calls"] > 0
    assert 0 < np.abs(clip - stock).max() < 0.1
    assert installation.remove() == []
    assert_bits(pipeline, before)
    assert np.array_equal(builders.run_wan(pipeline), stock)
