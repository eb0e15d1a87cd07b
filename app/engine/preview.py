"""Cheap pictures of a clip that is still noise.

Two pieces, neither of which runs the VAE's decoder:

- `CleanEstimate`: the scheduler's guess of the finished latents after each step. UniPC and DPM-Solver++ keep it
  (`model_outputs[-1]` is x0 when they predict x0), CogVideoX's DPM gives it back; for flow matching it follows from two
  neighbouring latents: v = (x[i+1] - x[i]) / (s[i+1] - s[i]), x0 = x[i+1] + (s[end] - s[i+1]) v, where s[end] is 0, for
  Mochi 1; for DDIM from x[i+1] = a x[i] + b x0.
- `LatentColours`: a linear map from one latent to a small patch of RGB, fitted by least squares on a few drawn
  pictures that go once through the VAE's encoder. One product of (latents, channels + 1) by (channels + 1, patch *
  patch * 3): under a millisecond.

Nothing here touches a random generator or the latents, so a clip with previews is bit-equal to one without.
"""

import contextlib
import functools
import hashlib
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from app.engine.latents import normalised
from app.models.geometry import factors_of

Picture = npt.NDArray[np.uint8]

# The pictures the map is fitted on: height and width in latents, but no smaller than so many pixels; frames after the
# first, in latent frames of the VAE or more; clips, or as many as give each of a latent's channels enough rows.
_FIT_LATENTS = (8, 12)
_LEAST_SIZE = (128, 192)
_LEAST_FRAMES = 4
_FIT_CLIPS = 4
_ROWS_PER_CHANNEL = 8
_SHAPES_PER_CLIP = 24
_PIXELS_PER_DOT = 4  # a preview's pixel covers this many pixels of the clip, whatever the VAE's spatial factor


class CleanEstimate:
    """The scheduler's estimate of the clean latents, asked for once after every step.

    The scheduler must be one clip's own: CogVideoX's DPM is listened to from here on.
    """

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._previous: Any = None
        self._told: Any = None
        if type(scheduler).__name__ == "CogVideoXDPMScheduler":
            self._listen()

    def after_step(self, index: int, latents: Any) -> Any:
        """Clean latents like `latents`, or None where they can't be told yet."""
        previous, self._previous = self._previous, latents
        if self._told is not None:
            return self._told
        kept = self._kept(latents)
        if kept is not None:
            return kept
        if previous is None or getattr(self._config, "stochastic_sampling", False):
            return None
        if type(self._scheduler).__name__ == "CogVideoXDDIMScheduler":
            return self._by_ddim(index, previous, latents)
        return self._by_flow(index, previous, latents)

    @property
    def _config(self) -> Any:
        return getattr(self._scheduler, "config", None)

    def _listen(self) -> None:
        step = self._scheduler.step

        @functools.wraps(step)  # pipelines look at its signature for what to hand over
        def heard(*values: Any, **named: Any) -> Any:
            found = step(*values, **named)
            self._told = found[1]
            return found

        self._scheduler.step = heard

    def _kept(self, latents: Any) -> Any:
        """What a multistep scheduler kept of its last step, with the frames before it that were never denoised."""
        import torch

        outputs = getattr(self._scheduler, "model_outputs", None)
        algorithm = str(getattr(self._config, "algorithm_type", ""))
        clean = getattr(self._scheduler, "predict_x0", False) or algorithm.endswith("dpmsolver++")
        if not outputs or outputs[-1] is None or not clean:
            return None
        kept = outputs[-1]
        if kept.ndim == latents.ndim == 5 and kept.shape[2] < latents.shape[2]:
            return torch.cat([latents[:, :, : latents.shape[2] - kept.shape[2]], kept.to(latents)], dim=2)
        return kept

    def _by_flow(self, index: int, previous: Any, latents: Any) -> Any:
        sigmas = getattr(self._scheduler, "sigmas", None)
        if sigmas is None or index + 1 >= len(sigmas):
            return None
        sigma, next_sigma, end = float(sigmas[index]), float(sigmas[index + 1]), float(sigmas[-1])
        if sigma == next_sigma:
            return None
        return latents + (latents - previous) * ((end - next_sigma) / (next_sigma - sigma))

    def _by_ddim(self, index: int, previous: Any, latents: Any) -> Any:
        scheduler = self._scheduler
        steps = scheduler.timesteps
        now = float(scheduler.alphas_cumprod[int(steps[index])])
        later = int(steps[index]) - self._config.num_train_timesteps // len(steps)
        then = float(scheduler.alphas_cumprod[later] if later >= 0 else scheduler.final_alpha_cumprod)
        kept = ((1 - then) / (1 - now)) ** 0.5
        share = then**0.5 - now**0.5 * kept
        return None if share < 1e-6 else (latents - kept * previous) / share


class LatentColours:
    """The linear map from latents to colours of one VAE.

    `factors` is (channels + 1, patch * patch * 3); its last row is the offset. RGB is in 0..1.
    """

    def __init__(self, factors: npt.NDArray[np.floating[Any]], patch: int) -> None:
        if factors.shape[1] != patch * patch * 3:
            raise ValueError(f"factors have {factors.shape[1]} columns, a patch of {patch} needs {patch * patch * 3}")
        self._factors = np.asarray(factors, dtype=np.float32)
        self._patch = patch

    @classmethod
    def fit(cls, vae: Any) -> "LatentColours":
        """Fit the map on pictures sent through `vae.encode`; always the same pictures, so always the same map.

        Raises ValueError for a VAE whose latents are not (batch, channels, latent frames, height, width).
        """
        rng = np.random.default_rng(0)
        space, time = factors_of(type(vae).__name__, vae.config) or (16, 4)
        size = (max(_LEAST_SIZE[0], _FIT_LATENTS[0] * space), max(_LEAST_SIZE[1], _FIT_LATENTS[1] * space))
        frames = 1 + time * -(-_LEAST_FRAMES // time)
        rows: list[npt.NDArray[np.float32]] = []
        targets: list[npt.NDArray[np.float32]] = []
        patch, clips = 1, _FIT_CLIPS
        while len(rows) < clips:
            clip = _drawn_clip(rng, frames, size)
            latents = _encoded(vae, clip)
            patch = max(1, clip.shape[1] // latents.shape[3] // _PIXELS_PER_DOT)
            rows.append(_as_rows(latents[0].float().cpu().numpy()))
            targets.append(_as_patches(clip, latents.shape[2:], patch))
            clips = max(_FIT_CLIPS, -(-_ROWS_PER_CHANNEL * rows[0].shape[1] // len(rows[0])))
        factors = np.linalg.lstsq(np.concatenate(rows), np.concatenate(targets), rcond=None)[0]
        return cls(factors, patch)

    @classmethod
    def of(cls, vae: Any, folder: Path, cache: Path | None) -> "LatentColours":
        """The map of the VAE whose files lie in `folder`; fitted once and then kept in `cache`, as fitting takes a
        second.

        Raises ValueError as `fit` does. A cache that can't be read or written only costs the second again.
        """
        kept = None if cache is None else cache / f"preview-{_stamp(folder)}.npz"
        if kept is not None:
            unreadable = contextlib.suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile)
            with unreadable, np.load(kept, allow_pickle=False) as stored:
                return cls(stored["factors"], int(stored["patch"]))
        made = cls.fit(vae)
        if kept is not None:
            with contextlib.suppress(OSError):
                partial = kept.with_name(f"{kept.name}.{os.getpid()}.partial")
                with partial.open("wb") as file:
                    np.savez(file, factors=made._factors, patch=np.int64(made._patch))
                os.replace(partial, kept)
        return made

    def picture(self, latents: Any) -> Picture:
        """uint8 (latent frames, height * patch, width * patch, 3) from normalised latents (1, channels, latent
        frames, height, width).
        """
        values = latents[0].detach().float().cpu().numpy()
        frames, height, width = values.shape[1:]
        rgb = (_as_rows(values) @ self._factors).reshape(frames, height, width, self._patch, self._patch, 3)
        rgb = rgb.transpose(0, 1, 3, 2, 4, 5).reshape(frames, height * self._patch, width * self._patch, 3)
        return np.round(np.clip(np.nan_to_num(rgb), 0, 1) * 255).astype(np.uint8)


def _stamp(folder: Path) -> str:
    """Another text for other weights: from the names, sizes and times of the files in `folder`."""
    files = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(folder.iterdir())]
    return hashlib.sha256(
        repr((files, _FIT_LATENTS, _LEAST_SIZE, _LEAST_FRAMES, _FIT_CLIPS, _ROWS_PER_CHANNEL)).encode()
    ).hexdigest()[:16]


def _encoded(vae: Any, clip: npt.NDArray[np.float32]) -> Any:
    """The clip's latents as the denoiser sees them, (1, channels, latent frames, height, width)."""
    import torch

    weight = next(vae.parameters())
    # where it is moved to when it works, which may not be where it lies
    device = getattr(getattr(vae, "_hf_hook", None), "execution_device", None) or weight.device
    pixels = torch.from_numpy(clip * 2 - 1).permute(3, 0, 1, 2)[None].to(device, weight.dtype)
    with torch.no_grad():
        latents = vae.encode(pixels, return_dict=False)[0].mode()
    if latents.ndim != 5:
        raise ValueError(f"latents have {latents.ndim} dimensions, a preview needs 5")
    return normalised(vae, latents)


def _as_rows(latents: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """(channels, frames, height, width) -> (frames * height * width, channels + 1), the last column being 1 for the
    offset.
    """
    rows = np.moveaxis(latents, 0, -1).reshape(-1, latents.shape[0])
    return np.concatenate([rows, np.ones((len(rows), 1), rows.dtype)], axis=1)


def _as_patches(clip: npt.NDArray[np.float32], grid: tuple[int, int, int], patch: int) -> npt.NDArray[np.float32]:
    """What each latent of `grid` (frames, height, width) should look like: its pixels, averaged to patch x patch
    dots.
    """
    frames, height, width = grid
    spans = [clip[:1], *np.array_split(clip[1:], frames - 1)] if frames > 1 else [clip]
    still = np.stack([span.mean(axis=0) for span in spans])
    dot_height, dot_width = clip.shape[1] // (height * patch), clip.shape[2] // (width * patch)
    dots = still.reshape(frames, height, patch, dot_height, width, patch, dot_width, 3).mean(axis=(3, 6))
    return dots.transpose(0, 1, 3, 2, 4, 5).reshape(frames * height * width, -1)


def _drawn_clip(
    rng: np.random.Generator, frames: int = _LEAST_FRAMES + 1, size: tuple[int, int] = _LEAST_SIZE
) -> npt.NDArray[np.float32]:
    """float32 (frames, height, width, 3) in 0..1: a shaded ground with discs and boxes that drift, in every colour."""
    height, width = size
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    ground = rng.random((2, 3), dtype=np.float32)
    slope = (y / height)[..., None]
    clip = np.repeat(((1 - slope) * ground[0] + slope * ground[1])[None], frames, axis=0)
    for _ in range(_SHAPES_PER_CLIP):
        colour, radius = rng.random(3, dtype=np.float32), rng.uniform(6, 28) * height / _LEAST_SIZE[0]
        centre, drift = rng.uniform((0, 0), size), rng.uniform(-4, 4, 2)
        round_ = rng.random() < 0.5
        for t in range(frames):
            dy, dx = y - centre[0] - drift[0] * t, x - centre[1] - drift[1] * t
            inside = dy**2 + dx**2 < radius**2 if round_ else (abs(dy) < radius) & (abs(dx) < radius)
            clip[t][inside] = colour
    return clip
