"""What every model family is held to, on its tiny pipeline: facts that agree with the files and with diffusers, and
clips that are made, repeated and accelerated.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import app.models
from app import pictures, video
from app.engine import Clip, Engine
from app.engine.calling import SCHEDULERS, scheduler_for
from app.job_types import JobSpec
from app.models.base import Family
from app.models.geometry import multiples_in
from app.paths import Home
from app.progress import Progress
from app.request import AccelPreferences, GenerationRequest
from app.worker.questions import accelerators
from app.worker.render import render
from tests.app.drawn import drawn, saved
from tests.app.engines import PLAIN

STEPS = 2
KERNELS = ("attention", "linear", "text_encoder_linear", "vae")
"""Settings whose report counts calls. Step caches have tests of their own: two steps leave nothing to use again."""


@contextmanager
def as_folder(family: Family, folder: Path) -> Iterator[Family]:
    """While entered, the family's weights lie in `folder`, for everybody who asks the catalogue."""
    (file,) = (one for one in app.models._FILES if family in one.FAMILIES)
    here = family.with_folder(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file, "FAMILIES", tuple(here if one is family else one for one in file.FAMILIES))
        yield here


def request_for(family: Family, home: Home, **more: Any) -> GenerationRequest:
    """The family's smallest clip, with the pictures that it can't do without."""
    rules = family.rules
    asked: dict[str, Any] = {
        "model": family.name,
        "prompt": "a red ball",
        "width": rules.width.least,
        "height": rules.height.least,
        "frames": rules.frames.least,
        "steps": len(family.timesteps) or STEPS,
        "seed": 7,
    }
    for field in family.needs:
        asked[field] = picture(family, home, field)
    return GenerationRequest(**asked | more)


def picture(family: Family, home: Home, field: str = "image") -> str:
    """The name of a kept picture, another one for each field."""
    image = drawn(family.rules.width.least, family.rules.height.least)
    turned = image.rotate(90) if field == "last_image" else image
    return pictures.keep(home, saved(turned), f"{field}.png", "a test")


# -- facts ------------------------------------------------------------------------------------------------------------


def check_facts(family: Family, folder: Path, coarser: int = 1) -> None:
    """What the family says against its files and against diffusers' own classes. `coarser`: by how much its sides go
    in coarser steps than its tokens, because its pipeline wants it so.
    """
    import diffusers

    found = multiples_in(folder)
    assert found is not None
    rules = family.rules
    steps = (rules.width.step, rules.height.step, rules.frames.step)
    assert steps == (found.width * coarser, found.height * coarser, found.frames)
    if found.only is None:
        assert rules.fitting(folder) == rules
    else:
        assert (rules.width.least, rules.height.least) == (rules.width.most, rules.height.most)
    assert json.loads((folder / "vae" / "config.json").read_text())["_class_name"] == family.vae_class
    family.normalise(_bare(family), strict=True)  # its own defaults are possible
    for name in {family.pipeline, family.image_pipeline or family.pipeline}:
        known = inspect.signature(getattr(diffusers, name).__call__).parameters
        assert family.frames_keyword in known
        assert ("callback_on_step_end" in known) == family.callback
        assert set(family.arguments) | ({"timesteps"} if family.timesteps else set()) <= set(known)
        assert ("guidance_scale" in known) == (family.guidance_kind != "guider")
    assert family.needs <= family.takes
    assert set(family.schedulers) <= set(SCHEDULERS)
    assert family.defaults.scheduler in family.schedulers
    assert (family.defaults.shift is None) == ("shift" not in family.takes)


def _bare(family: Family) -> GenerationRequest:
    pictures: dict[str, Any] = dict.fromkeys(family.needs, "a.png")
    return GenerationRequest(model=family.name, **pictures)


def check_schedulers(family: Family, folder: Path) -> None:
    """Each scheduler that the family offers keeps to what the checkpoint predicts and to the request's shift."""
    import diffusers

    index = json.loads((folder / "model_index.json").read_text())
    own = getattr(diffusers, index["scheduler"][1]).from_pretrained(str(folder / "scheduler"))
    predicts = own.config.get("prediction_type", "flow_prediction")
    for name in family.schedulers:
        request = family.normalise(_bare(family).model_copy(update={"scheduler": name})).request
        made = scheduler_for(request, dict(own.config))
        assert made.config.get("prediction_type", "flow_prediction") == predicts, name
        if request.shift is not None:
            assert made.config[SCHEDULERS[name][1]] == request.shift
            assert made.config.get("use_flow_sigmas", True)
        for steps in {*map(family._possible_steps, (1, 2, 1000))}:
            _check_walk(name, request.shift, json.dumps(dict(own.config), default=str, sort_keys=True), steps[0])


@functools.cache  # families share their schedulers
def _check_walk(name: str, shift: float | None, config: str, steps: int) -> None:
    """A transformer that is always right leads to the picture, from the first step to the last. Case 22."""
    import torch

    made = scheduler_for(GenerationRequest(scheduler=name, shift=shift), json.loads(config))
    made.set_timesteps(steps, **({"mu": 1.0} if made.config.get("use_dynamic_shifting") else {}))
    assert len(made.timesteps) == steps, "no schedule is empty"
    generator = torch.Generator().manual_seed(0)
    picture = torch.linspace(-1, 1, 16).reshape(1, 1, 1, 4, 4)
    latents, older = torch.randn(picture.shape, generator=generator), None
    for index, moment in enumerate(made.timesteps):
        if hasattr(made, "sigmas") and made.config.get("prediction_type", "flow_prediction") == "flow_prediction":
            left = made.sigmas[index] - made.sigmas[-1]
            told = (latents - picture) / left if left else torch.zeros_like(latents)
        else:  # v-prediction
            kept = made.alphas_cumprod[int(moment)]
            noise = (latents - kept.sqrt() * picture) / (1 - kept).sqrt()
            told = kept.sqrt() * noise - (1 - kept).sqrt() * picture
        if type(made).__name__ == "CogVideoXDPMScheduler":
            before = made.timesteps[index - 1] if index else None
            latents, older = made.step(told, older, moment, before, latents, generator=generator, return_dict=False)
        else:
            latents = made.step(told, moment, latents, return_dict=False)[0]
    assert torch.allclose(latents, picture, atol=1e-5), (name, steps)


# -- clips ------------------------------------------------------------------------------------------------------------


def check_clips(family: Family, folder: Path, tmp_path: Path, **more: Any) -> None:
    """With the automatic plan: all stages told, the same bytes again, also from the clip's own file; then with each
    backend that can be chosen here.
    """
    home = Home(tmp_path / "home")
    with as_folder(family, folder) as here, Engine(home) as engine:
        asked = request_for(here, home, **more)
        request = here.normalise(asked, strict=True).request
        seen: list[Progress] = []
        spec = JobSpec(family.name, asked, request, tmp_path)
        done = render(engine, spec, seen.append)
        clip = done.clip
        assert clip.frames.shape == (request.frames, request.height, request.width, 3)
        assert clip.adjustments == ()
        steps = int(request.steps or 0)
        assert [one.step for one in seen if one.stage == "denoising" and one.step] == list(range(1, steps + 1))
        read = video.read_request(done.path)
        assert read == clip.request
        assert np.array_equal(clip.frames, engine.generate(read).frames)
        check_accelerators(engine, here, request, home)


def check_accelerators(engine: Engine, family: Family, request: GenerationRequest, home: Home) -> None:
    """Each backend that can be chosen here serves its calls and stays near plain PyTorch's clip."""
    wishes = request.model_copy(update={"accel": AccelPreferences(dtype="float32")})
    rows = accelerators(family.normalise(wishes).request, home)
    possible = [row for row in rows if row.state != "unavailable" and not row.reference and row.setting in KERNELS]
    assert {row.setting for row in rows} >= set(KERNELS)
    plain = engine.generate(request.model_copy(update={"accel": PLAIN})).frames.astype(int)
    for row in possible:
        clip = engine.generate(request.model_copy(update={"accel": PLAIN.model_copy(update={row.setting: row.name})}))
        error = np.abs(clip.frames.astype(int) - plain).mean()
        print(family.name, row.setting, row.name, "mean difference in 8-bit steps:", round(float(error), 3))
        assert error < (1 if row.exact else 20), (row.setting, row.name)
        for entry in entries(clip, row.stage, row.setting):
            assert entry["served"] == entry["calls"], (row.setting, row.name, entry["reasons"])
            assert entry["served"] or entry["skipped"], "neither used, nor told why the layers here are too small"


def entries(clip: Clip, stage: str, setting: str) -> list[dict[str, Any]]:
    """What the clip's report says of a setting, for each component of the stage."""
    kind = "linear" if setting.endswith("linear") else setting
    found = [entry for name, entry in clip.report[kind].items() if name.startswith(stage)]
    assert found, (setting, clip.report)
    return found
