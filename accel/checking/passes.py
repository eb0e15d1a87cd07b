"""The fused passes of `accel.fused` on a GPU beside the same in plain torch, on the shapes of Wan's models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from accel import fp8
from accel.checking.line import relative
from accel.fused import plain
from accel.fused.plain import Modulation, Norm

SHAPES = ((1536, 12), (5120, 40))
"""Channels and heads."""
BATCH, TOKENS = 2, 1560

Outputs = tuple[torch.Tensor | None, ...]


def cases(kernels: Any, device: torch.device) -> Iterator[tuple[str, float, bool]]:
    """(name, error, finite) of each pass: the relative error of each output, the largest where there are several. Both
    sides round to bf16 or FP8 at the same places, but take sums in another order."""
    for channels, heads in SHAPES:
        ours, theirs = (_passes(one, channels, heads, device) for one in (kernels, plain))
        for name, call in ours.items():
            pairs = [(a, b) for a, b in zip(call(), theirs[name](), strict=True) if a is not None and b is not None]
            error = max(relative(a.float(), b.float()) for a, b in pairs)
            finite = all(bool(a.float().isfinite().all()) for a, _ in pairs)
            yield f"{name}, {BATCH} x {TOKENS} tokens of {channels}", error, finite
    yield ("rows that are not finite", *_odd_rows(kernels, device))


def _odd_rows(kernels: Any, device: torch.device) -> tuple[float, bool]:
    """An infinity and a NaN must each stay in its row, and show there; the rows between them count for the error."""
    x = torch.randn(1, 5, SHAPES[0][0], generator=torch.Generator(device).manual_seed(0), device=device).bfloat16()
    x[0, 1, 7], x[0, 3, 9] = float("inf"), float("nan")
    form, even = fp8.format_for(device), slice(0, None, 2)
    got, want = (one.rows(x, form).values.float()[0] for one in (kernels, plain))
    shown = got.isnan().any(1).tolist() == [False, True, False, True, False]
    return relative(got[even], want[even]), shown


def _passes(k: Any, channels: int, heads: int, device: torch.device) -> dict[str, Callable[[], Outputs]]:
    """Every pass by name, on normal numbers. k: who computes them."""
    draw = torch.Generator(device).manual_seed(channels)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw, device=device).bfloat16()

    form = fp8.format_for(device)
    x, y, weight = normal(BATCH, TOKENS, channels), normal(BATCH, TOKENS, channels), normal(channels)
    cosine, sine = normal(2, 1, TOKENS, 1, channels // heads).float().unbind()
    timed = {
        "": Modulation(normal(BATCH, 6, channels).float()),
        " by token": Modulation(normal(BATCH, TOKENS, 6, channels), normal(6, channels).float()),
    }
    norms = {"modulated": Norm(1e-6, None, None, 0, 1), "affine": Norm(1e-6, weight.float(), weight.float())}
    passes: dict[str, Callable[[], Outputs]] = {
        "gelu": partial(k.gelu_rows, x, form),
        "rows": partial(k.rows, x, form),
    }
    for where, modulation in timed.items():
        passes[f"sum{where}"] = partial(_one, k.add, x, y, modulation, 5)
        for kind, norm in norms.items():
            passes[f"{kind} norm{where}"] = partial(_one, k.normed, x, norm, modulation)
            passes[f"{kind} norm{where}, quantised"] = partial(k.normed_rows, x, norm, modulation, form)
            passes[f"sum and {kind} norm{where}"] = partial(_both, k.add_normed_rows, x, y, 2, norm, modulation, form)
    for turned, rotation in (("", None), (", turned", (cosine, sine))):
        for kept, form_ in (("", None), (", quantised", form)):
            passes[f"heads{turned}{kept}"] = partial(k.heads, x, weight, 1e-6, rotation, heads, form_)
    return passes


def _one(run: Callable[..., torch.Tensor], *arguments: Any) -> Outputs:
    return (run(*arguments),)


def _both(run: Callable[..., Any], *arguments: Any) -> Outputs:
    total, rows = run(*arguments)
    return (total, *rows)
