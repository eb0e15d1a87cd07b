"""How alike two clips are: PSNR in decibels, and SSIM as Wang et al. (2004) define it.

Frames are uint8 (frames, height, width, 3). SSIM is that of the brightness (BT.601), with a Gaussian window of 11
pixels and sigma 1.5, over every place where the window lies inside the picture; smaller pictures get a smaller window.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Frames = npt.NDArray[np.uint8]
    Plane = npt.NDArray[np.float32]

EQUAL = 100.0
"""PSNR of equal frames, which would be infinite."""

BRIGHTNESS = (0.299, 0.587, 0.114)
WINDOW, SIGMA = 11, 1.5
C1, C2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2


@dataclass(frozen=True)
class Likeness:
    """Of one clip to another. error: mean squared difference of their bytes."""

    error: float
    ssim: float

    @property
    def psnr(self) -> float:
        return psnr_of(self.error)


def compare(frames: Frames, reference: Frames) -> Likeness:
    """Raises ValueError for clips of different shapes."""
    import numpy as np

    if frames.shape != reference.shape:
        raise ValueError(f"clips of {frames.shape} and {reference.shape} can't be compared")
    total, alike = 0.0, 0.0
    for one, other in zip(frames, reference, strict=True):  # one frame at a time: a long clip's maps are large
        total += float(np.mean((one.astype(np.float32) - other.astype(np.float32)) ** 2))
        alike += _ssim(_brightness(one), _brightness(other))
    return Likeness(total / len(frames), alike / len(frames))


def psnr_of(error: float) -> float:
    """Decibels for a mean squared difference of bytes."""
    import math

    return EQUAL if error <= 0 else min(EQUAL, 10 * math.log10(255**2 / error))


def together(found: Iterable[Likeness]) -> Likeness:
    """Of all clips: the mean squared difference, so that one clip that went astray weighs, and the mean SSIM."""
    clips = list(found)
    return Likeness(sum(clip.error for clip in clips) / len(clips), sum(clip.ssim for clip in clips) / len(clips))


def _brightness(frame: Frames) -> Plane:
    import numpy as np

    plane: Plane = frame.astype(np.float32) @ np.array(BRIGHTNESS, np.float32)
    return plane


def _ssim(x: Plane, y: Plane) -> float:
    mean_x, mean_y = _blurred(x), _blurred(y)
    spread_x, spread_y = _blurred(x * x) - mean_x**2, _blurred(y * y) - mean_y**2
    shared = _blurred(x * y) - mean_x * mean_y
    alike = (2 * mean_x * mean_y + C1) * (2 * shared + C2)
    return float((alike / ((mean_x**2 + mean_y**2 + C1) * (spread_x + spread_y + C2))).mean())


def _blurred(plane: Plane) -> Plane:
    """Under the Gaussian window, where it lies inside the picture."""
    import numpy as np

    size = min(WINDOW, *plane.shape)
    places = np.arange(size, dtype=np.float32) - (size - 1) / 2
    weights = np.exp(-(places**2) / (2 * SIGMA**2))
    weights /= weights.sum()
    height, width = plane.shape[0] - size + 1, plane.shape[1] - size + 1
    rows: Plane = sum(weight * plane[at : at + height] for at, weight in enumerate(weights))
    blurred: Plane = sum(weight * rows[:, at : at + width] for at, weight in enumerate(weights))
    return blurred
