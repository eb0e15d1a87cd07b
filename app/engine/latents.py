"""What the latents of each kind of model look like, so that the rest need know one look alone: (batch, channels, latent
frames, height, width), scaled as the denoiser sees them.

LTX's pipelines keep one row per token, and put the tokens of pictures for later frames before the clip's own;
CogVideoX's put frames before channels, and 1.5's one frame more in front where the clip's are odd in number (read in
diffusers 0.42.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from app.models.geometry import factors_of


@dataclass(frozen=True)
class Layout:
    """How to read the latents of one clip: the VAE's class, and the clip's latent frames, height and width."""

    vae_class: str
    frames: int
    height: int
    width: int

    @classmethod
    def of(cls, vae: Any, width: int, height: int, frames: int) -> Layout | None:
        """The layout for a clip of this size in pixels and frames; None for a VAE whose factors are not known."""
        kind = type(vae).__name__
        factors = factors_of(kind, vae.config)
        if factors is None:
            return None
        space, time = factors
        if kind == "AutoencoderKLCogVideoX":
            time = int(vae.config.temporal_compression_ratio)  # its factor counts the pairs that it decodes
        return cls(kind, (frames - 1) // time + 1, height // space, width // space)

    def as_clip(self, latents: Any) -> Any:
        """`latents` as (batch, channels, latent frames, height, width)."""
        if latents.ndim == 3:
            own = latents[:, -self.frames * self.height * self.width :]
            return own.unflatten(1, (self.frames, self.height, self.width)).permute(0, 4, 1, 2, 3)
        if self.vae_class == "AutoencoderKLCogVideoX":
            return latents[:, -self.frames :].transpose(1, 2)
        return latents


def normalised(vae: Any, latents: Any) -> Any:
    """What a VAE encoded as the denoiser sees it: by mean and deviation per channel where the VAE has them, and by its
    factor.
    """
    import torch

    def values(name: str) -> Any:
        found = getattr(vae.config, name, None)
        if found is None and name not in vae.config:
            found = getattr(vae, name, None)  # LTX's are tensors of the VAE itself
        return None if found is None else torch.as_tensor(found).view(1, -1, 1, 1, 1).to(latents)

    mean, deviation = values("latents_mean"), values("latents_std")
    if mean is not None and deviation is not None:
        latents = (latents - mean) / deviation
    return latents * float(getattr(vae.config, "scaling_factor", 1.0) or 1.0)
