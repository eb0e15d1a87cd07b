"""From a request to the call of a diffusers pipeline, and from what it returns to frames."""

import functools
import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from app.models.base import Family
from app.request import GenerationRequest

_NO_PICTURES: Mapping[str, Any] = MappingProxyType({})

# Classes of diffusers behind the scheduler names that families offer, and what each calls the shift ("": it has none).
SCHEDULERS = {
    "unipc": ("UniPCMultistepScheduler", "flow_shift"),
    "euler": ("FlowMatchEulerDiscreteScheduler", "shift"),
    "dpm++": ("DPMSolverMultistepScheduler", "flow_shift"),
    "ddim": ("CogVideoXDDIMScheduler", ""),
    "dpm": ("CogVideoXDPMScheduler", ""),
}
# What these must be told on a checkpoint that was saved with another scheduler, which knows nothing but flows.
_TOLD = ("unipc", "dpm++")
_FLOW = {"prediction_type": "flow_prediction", "use_flow_sigmas": True}


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
    pipeline: Any,
    family: Family,
    request: GenerationRequest,
    callback: Callable[..., Any],
    pictures: Mapping[str, Any] = _NO_PICTURES,
) -> dict[str, Any]:
    """The arguments of `pipeline`, which is of the class that `family.pipeline_for(request)` names.

    `pictures` holds the request's image and last_image under these names, as PIL pictures of the clip's size. An empty
    prompt runs unconditionally: guidance 1 means no second, guided forward. Where guidance is the guider's affair, the
    pipeline gets a fresh guider instead of an argument.
    """
    import torch

    known = inspect.signature(type(pipeline).__call__).parameters
    arguments: dict[str, Any] = {
        "prompt": request.prompt,
        "generator": torch.Generator("cpu").manual_seed(int(request.seed or 0)),
        "num_inference_steps": request.steps,
        family.frames_keyword: request.frames,
        "output_type": "pt",
        **({"timesteps": list(family.timesteps)} if family.timesteps else {}),
        **family.arguments,
        **_pictured(known, request, pictures),
    }
    optional = {
        "negative_prompt": request.negative_prompt or None,
        "height": request.height,
        "width": request.width,
        "frame_rate": request.fps,
        "fps": request.fps,
        "max_sequence_length": family.token_limit,
        "callback_on_step_end": callback,
    }
    unguided = family.guidance_kind != "embedded" and not request.prompt.strip()
    guidance = 1.0 if unguided else request.guidance
    if family.guidance_kind == "guider":
        pipeline.guider = pipeline.guider.new(guidance_scale=guidance)
    else:
        arguments["guidance_scale"] = guidance
    if request.guidance_2 is not None:
        arguments["guidance_scale_2"] = 1.0 if unguided else request.guidance_2
    return arguments | {name: value for name, value in optional.items() if name in known}


def _pictured(known: Mapping[str, Any], request: GenerationRequest, pictures: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that carry the pictures: by name, or as conditions for pipelines that take them for any frame.

    (LTX's own `image` and `frame_index` lists lose all but the first picture, in diffusers 0.42.1.)
    """
    if "conditions" not in known or not pictures:
        return dict(pictures)
    from diffusers.pipelines.ltx.pipeline_ltx_condition import LTXVideoCondition

    places = {"image": 0, "last_image": int(request.frames or 1) - 1}
    return {"conditions": [LTXVideoCondition(one, frame_index=places[name]) for name, one in pictures.items()]}


def scheduler_for(request: GenerationRequest, config: dict[str, Any]) -> Any:
    """A fresh scheduler as the request wants it, on the model's own settings."""
    import diffusers

    kind, shift_name = SCHEDULERS[str(request.scheduler)]
    more: dict[str, Any] = {} if request.shift is None else {shift_name: request.shift}
    if request.scheduler in _TOLD and "prediction_type" not in config:
        more |= _FLOW
    return _from_the_first(getattr(diffusers, kind)).from_config(config, **more)


@functools.cache
def _from_the_first(kind: Any) -> Any:
    """The scheduler's class, made to begin at the first of its steps. By itself it looks the timestep up, which a dense
    schedule (many steps, or a large shift) holds several times: it takes the second and fails at the end of the run.
    """
    if not hasattr(kind, "set_begin_index"):
        return kind

    @functools.wraps(kind.set_timesteps)
    def set_timesteps(self: Any, *arguments: Any, **named: Any) -> None:
        kind.set_timesteps(self, *arguments, **named)
        self.set_begin_index(0)

    return type(kind.__name__, (kind,), {"set_timesteps": set_timesteps})
