"""The fused passes in Triton against plain torch, in Triton's interpreter, which needs no GPU."""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import accel

SCRIPT = """
import torch
from accel.fused import passes as kernels
from accel.fused import plain
from accel.fused.plain import Modulation, Norm
FORM = torch.float8_e4m3fn
torch.manual_seed(0)
def same(got, want, what):
    for a, b in zip(got, want):
        assert (a is None) == (b is None), what
        if a is None:
            continue
        assert a.shape == b.shape and a.dtype == b.dtype, what
        eight_bit = a.dtype == FORM
        a, b = a.float(), b.float()
        # the interpreter's own cast to FP8 drops the carry when it rounds up to a power of two, and has no ties, no NaN
        good = b.isfinite() & ~((b.abs() == 2 * a.abs()) & eight_bit)
        error = ((a - b)[good].norm() / b[good].norm().clamp_min(1e-12)).item()
        print(f"{what} {tuple(a.shape)}: {error:.1e}, {1 - good.float().mean():.1%} left out")
        assert error < (2e-2 if eight_bit else 1e-6), what
        assert good.float().mean() > 0.6, what
        assert eight_bit or torch.equal(a.isnan(), b.isnan()), what
for batch, tokens, channels, heads in ((1, 5, 256, 2), (2, 4, 384, 3), (2, 3, 1280, 10)):
    x, y = torch.randn(2, batch, tokens, channels)
    x[0, 1, 3] = float("nan")
    weight, bias = torch.randn(2, channels)
    for embedding in (torch.randn(batch, 6, channels).bfloat16(), torch.randn(batch, tokens, 6, channels)):
        modulation = Modulation(embedding, torch.randn(6, channels) if embedding.dim() == 4 else None)
        for norm in (Norm(1e-6, None, None, 0, 1), Norm(1e-6, weight, bias)):
            same(*([one.normed(x, norm, modulation)] for one in (kernels, plain)), "normed")
            same(*(one.normed_rows(x, norm, modulation, FORM) for one in (kernels, plain)), "normed rows")
            for gate in (None, 2):
                (total, rows), (sum_, wanted) = (
                    one.add_normed_rows(x, y, gate, norm, modulation, FORM) for one in (kernels, plain)
                )
                same([total, *rows], [sum_, *wanted], "sum and norm")
        same(*([one.add(x, y, modulation, 5)] for one in (kernels, plain)), "sum")
    same(*(one.gelu_rows(3 * x, FORM) for one in (kernels, plain)), "gelu")
    same(*(one.rows(3 * x, FORM) for one in (kernels, plain)), "rows")
    turn = torch.randn(2, 1, tokens, 1, channels // heads).unbind()
    for rotation in (None, turn):
        for form in (None, FORM):
            same(*(one.heads(x, weight, 1e-6, rotation, heads, form) for one in (kernels, plain)), f"heads, {form}")
"""


def test_the_kernels_compute_what_plain_torch_does() -> None:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed: its kernels are compared where it is")
    environ = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environ, capture_output=True, text=True, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stderr[-2000:]


def test_kernels_are_annotated_with_names_that_triton_compiles() -> None:
    """On an H200 (Triton 3.6) `typing.Any` on a kernel's parameter ended the compilation; the interpreter takes it."""
    texts = [path.read_text(encoding="utf-8") for path in Path(accel.__file__).parent.rglob("*.py")]
    trees = [ast.parse(text) for text in texts if "@triton.jit" in text]
    nodes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    kernels = [node for node in nodes if any("triton" in ast.unparse(one) for one in node.decorator_list)]
    assert len(kernels) >= 16
    for kernel in kernels:
        for argument in kernel.args.args:
            assert argument.annotation is None or ast.unparse(argument.annotation).startswith("tl."), kernel.name
