"""Is the picture still a picture? Latents are checked every step, frames at the end.

A NaN in the latents becomes one flat colour in every frame, saved as if all were well; naming the step and the
backend is what lets a person (and the engine's one retry on the reference backends) do something about it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accel.errors import NonFiniteError

if TYPE_CHECKING:
    import numpy as np
    import torch


__all__ = ["NonFiniteError", "check_frames", "check_latents", "engaged_backends"]


def check_latents(latents: torch.Tensor, step: int, backend: str = "") -> None:
    """Raises NonFiniteError when any of `latents`, of any shape and dtype, is NaN or infinite. `step` counts from 1."""
    import torch

    # one pass: NaN and infinity both survive a sum of absolute values in float32, finite latents stay far from overflow
    if bool(torch.isfinite(latents.detach().float().abs().sum())):
        return
    wrong = int((~torch.isfinite(latents)).sum())
    if wrong:
        raise NonFiniteError(f"{wrong} of {latents.numel()} latent values are not finite", step, backend)


def check_frames(frames: np.ndarray[Any, Any], backend: str = "") -> None:
    """Raises NonFiniteError when `frames`, (frames, height, width, 3), uint8 or float, hold NaN or are one value."""
    import numpy as np

    if frames.size == 0:
        raise NonFiniteError("there are no frames", 0, backend)
    low, high = frames.min(), frames.max()  # NaN comes through both
    if not (np.isfinite(low) and np.isfinite(high)):
        raise NonFiniteError("the frames hold values that are not finite", 0, backend)
    if low == high:
        raise NonFiniteError(f"every pixel of every frame has the value {low}", 0, backend)


def engaged_backends(report: dict[str, Any]) -> str:
    """The backends of a report as one short text, for the error: "attention sgl_amx, linear onednn_bf16"."""
    found = {
        f"{kind} {entry['backend']}"
        for kind in ("attention", "linear", "vae")
        for entry in report.get(kind, {}).values()
        if "backend" in entry
    }
    return ", ".join(sorted(found))
