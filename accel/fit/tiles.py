"""Whether a VAE can decode in tiles, found out by its shapes alone: nothing is computed and no weights are read."""

from __future__ import annotations

import json
from typing import Any

OVER = 2
"""Rows and columns of latents beyond one tile."""

_TRIED: dict[tuple[Any, str], str] = {}
"""Answers by class and settings."""


def why_not(vae: Any) -> str:
    """Why `vae` (one of diffusers', on any device) can't decode in tiles; "" when it can.

    A clip a little larger than a tile must come out of the tiles in the shape that it has without them.
    """
    if not hasattr(vae, "enable_tiling"):
        return f"{type(vae).__name__} has no tiles"
    settings = getattr(vae, "config", {})
    key = (type(vae), json.dumps(dict(settings), default=str, sort_keys=True))
    if key not in _TRIED:
        _TRIED[key] = _try(type(vae), settings)
    return _TRIED[key]


def _try(kind: Any, settings: Any) -> str:
    import torch

    try:
        with torch.device("meta"), torch.inference_mode():
            twin = kind.from_config(settings).eval()
            channels = next(twin.config[name] for name in ("z_dim", "latent_channels") if name in twin.config)
            times = (torch.zeros(1),) if twin.config.get("timestep_conditioning") else ()
            factor = twin.decode(torch.zeros(1, channels, 1, 2, 2), *times).sample.shape[-1] // 2
            rows, columns = (getattr(twin, f"tile_sample_min_{side}") // factor + OVER for side in ("height", "width"))
            latents = torch.zeros(1, channels, 2, rows, columns)
            whole = twin.decode(latents, *times).sample.shape
            twin.enable_tiling()
            tiled = twin.decode(latents, *times).sample.shape
    except Exception as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[0][:160]
        return f"{kind.__name__} failed when its tiles were tried: {said}"
    if tiled != whole:
        return f"{kind.__name__} makes {tuple(tiled)} of {tuple(whole)} in tiles"
    return ""
