"""PSNR and SSIM against their definitions, computed in another way."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from accel.measuring.quality import BRIGHTNESS, EQUAL, Likeness, compare, psnr_of, together


def frames(seed: int, count: int = 2, height: int = 48, width: int = 40) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, height, width, 3), dtype=np.uint8)


def test_equal_frames() -> None:
    found = compare(frames(1), frames(1))
    assert found.psnr == EQUAL
    assert found.ssim == pytest.approx(1.0)


@pytest.mark.parametrize("off", [1, 5, 20])
def test_psnr_of_a_constant_difference(off: int) -> None:
    dark = np.full((1, 32, 32, 3), 100, np.uint8)
    found = compare(dark + np.uint8(off), dark)
    assert found.psnr == pytest.approx(20 * math.log10(255 / off), abs=1e-3)
    assert found.ssim > 0.9


def ssim_in_torch(one: np.ndarray, other: np.ndarray) -> float:
    """Wang et al. (2004), with a convolution in float64."""
    places = torch.arange(11, dtype=torch.float64) - 5
    line = torch.exp(-(places**2) / (2 * 1.5**2))
    window = torch.outer(line, line) / line.sum() ** 2
    x, y = (torch.from_numpy(item.astype(np.float64) @ np.array(BRIGHTNESS))[:, None] for item in (one, other))

    def mean(values: torch.Tensor) -> torch.Tensor:
        return F.conv2d(values, window[None, None])

    mx, my = mean(x), mean(y)
    vx, vy, both = mean(x * x) - mx**2, mean(y * y) - my**2, mean(x * y) - mx * my
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    return float(((2 * mx * my + c1) * (2 * both + c2) / ((mx**2 + my**2 + c1) * (vx + vy + c2))).mean())


@pytest.mark.parametrize("noise", [2, 30, 120])
def test_ssim_agrees_with_its_definition(noise: int) -> None:
    smooth = np.linspace(0, 255, 48 * 40 * 3).reshape(1, 48, 40, 3)
    shaken = smooth + np.random.default_rng(0).normal(0, noise, smooth.shape)
    one, other = (np.clip(item, 0, 255).astype(np.uint8) for item in (smooth, shaken))
    found, want = compare(one, other).ssim, ssim_in_torch(one, other)
    print(f"noise {noise}: {found:.5f}, by convolution {want:.5f}")
    assert found == pytest.approx(want, abs=2e-4)


def test_pictures_smaller_than_the_window() -> None:
    assert compare(frames(1, 1, 5, 7), frames(1, 1, 5, 7)).ssim == pytest.approx(1.0)


def test_one_clip_that_went_astray_weighs() -> None:
    fine, astray = Likeness(10.0, 0.99), Likeness(4000.0, 0.5)
    found = together([fine] * 19 + [astray])
    assert found.psnr == pytest.approx(psnr_of((19 * 10 + 4000) / 20))
    assert found.psnr < 0.5 * (19 * fine.psnr + astray.psnr) / 10
    assert found.ssim == pytest.approx((19 * 0.99 + 0.5) / 20)


def test_clips_of_different_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="can't be compared"):
        compare(frames(1, 2), frames(1, 3))
