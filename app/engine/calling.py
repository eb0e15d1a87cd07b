"""From a request to the call of a diffusers pipeline, and from what it returns to frames."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from app.models.base import Family
from app.request import GenerationRequest

# Classes of diffusers behind the scheduler names that families offer, and what each calls the shift.
SCHEDULERS = {
    "unipc": ("UniPCMultistepScheduler", "flow_shift"),
    "euler": ("FlowMatchEulerDiscreteScheduler", "shift"),
}


def to_frames(video: Any) -> npt.NDArray[np.uint8]:
    """uint8 (frames, height, width, 3) from the pipeline's tensor (1, frames, 3, height, width) in 0..1, frame by
    frame.

    Rounds as diffusers does for pictures, so that both give the same bytes.
    """
    import torch

    count, _, height, width = video[0].shape
    frames = np.empty((count, height, width, 3), dtype=np.uint8)
    for i in range(count):
        frames[i] = (video[0, i].float() * 255).round_().to(torch.uint8).permute(1, 2, 0).cpu().numpy()
    return frames


def arguments_for(
    pipeline: Any, family: Family, request: GenerationRequest, callback: Callable[..., Any]
) -> dict[str, Any]:
    """The pipeline's arguments. An empty prompt runs unconditionally: guidance 1 means no second, guided forward."""
    import torch

    known = inspect.signature(type(pipeline).__call__).parameters
    arguments: dict[str, Any] = {
        "prompt": request.prompt,
        "negative_prompt": request.negative_prompt or None,
        "height": request.height,
        "width": request.width,
        "num_frames": request.frames,
        "num_inference_steps": request.steps,
        "guidance_scale": request.guidance if request.prompt.strip() else 1.0,
        "generator": torch.Generator("cpu").manual_seed(int(request.seed or 0)),
        "output_type": "pt",
    }
    optional = {"max_sequence_length": family.token_limit, "callback_on_step_end": callback}
    return arguments | {name: value for name, value in optional.items() if name in known}


def scheduler_for(request: GenerationRequest, config: dict[str, Any]) -> Any:
    """A fresh scheduler as the request wants it, on the model's own settings."""
    import diffusers

    kind, shift_name = SCHEDULERS[str(request.scheduler)]
    shift = {} if request.shift is None else {shift_name: request.shift}
    return getattr(diffusers, kind).from_config(config, **shift)
