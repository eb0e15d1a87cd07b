"""Requests at the edge of what is possible, from the preset to the file: refused by the name of their field before
anything loads, or adjusted, said and stored; never rounded, cut or dropped in silence.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.engine import Clip, Engine
from app.engine.calling import SCHEDULERS
from app.models import cogvideox, sana, wan
from app.models.base import Family
from app.progress import Progress
from app.request import MAX_SEED, GenerationRequest
from app.video import decode_frames, read_metadata
from tests.app.drawn import drawn, saved
from tests.app.headless.batches import SMALL, Batch
from tests.app.models.families import as_folder
from tests.app.standin import StandIn

Tiny = Callable[[str], Path]
OFFERED = {
    "unipc": (wan.I2V_480P, "wan-i2v"),
    "euler": (wan.T2V_1_3B, "wan-t2v"),
    "dpm++": (sana.SANA_480P, "sana"),
    "ddim": (cogvideox.T2V_2B, "cogvideox-2b"),
    "dpm": (cogvideox.I2V_5B, "cogvideox-i2v"),
}
"""A model for each scheduler that is offered."""


def smallest(family: Family, batch: Batch) -> dict[str, Any]:
    """The settings of the family's smallest clip; its picture lies beside the presets."""
    rules = family.rules
    (batch.folder / "a.png").write_bytes(saved(drawn(rules.width.least, rules.height.least)))
    size = {"width": rules.width.least, "height": rules.height.least, "frames": rules.frames.least}
    return {"model": family.name, **size, **dict.fromkeys(family.needs, "a.png")}


# -- frames -----------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["text", "picture"])
def model(request: pytest.FixtureRequest, batch: Batch, tiny_models: Tiny) -> Iterator[dict[str, Any]]:
    """Settings of a model that makes clips from text, and of one that does from a picture."""
    family, name = (wan.T2V_1_3B, "wan-t2v") if request.param == "text" else (wan.I2V_480P, "wan-i2v")
    with as_folder(family, tiny_models(name)) as here:
        yield smallest(here, batch)


def test_other_frame_counts_go_down_to_one_that_the_model_makes(batch: Batch, model: dict[str, Any]) -> None:
    """Case 19: 4k+1 frames, by one rule for text and pictures, said before the run and stored."""
    used = {15: 13, 16: 13, 17: 17, 1: 5}
    sources = [batch.preset(f"of-{frames}", **model | {"frames": frames, "steps": 1}) for frames in used]
    assert batch.run(*sources) == 0, batch.stderr
    told = batch.stdout.split("Looking at the machine")[0]
    for frames, made in used.items():
        (clip,) = batch.out.glob(f"of-{frames}-*.mp4")
        metadata = read_metadata(clip)
        assert len(decode_frames(clip)) == metadata["request"]["frames"] == made
        assert metadata["asked"]["frames"] == frames
        changes = [(one["field"], one["asked"], one["used"]) for one in metadata["adjustments"]]
        assert changes == ([] if made == frames else [("frames", frames, made)])
        assert (f"becomes {made}." in told or f"{frames} frames become {made}." in told) == (made != frames)


@pytest.mark.parametrize("frames", [0, -3])
def test_no_frames_are_refused_by_the_field_s_name(
    batch: Batch, model: dict[str, Any], no_loading: None, frames: int
) -> None:
    """Case 19: nothing is loaded for them."""
    assert batch.run(batch.preset("none", **model | {"frames": frames})) == 2
    assert f"request.frames: {frames} is not possible; it must be a whole number from 1" in batch.stderr
    assert not batch.files


# -- seeds ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1798406481619217043, 2**53 + 1, 2**53, 2.5, "7"])
def test_a_seed_that_would_be_rounded_somewhere_is_refused(batch: Batch, no_loading: None, seed: Any) -> None:
    """Case 21: by its own digits; the page's test types the same."""
    assert batch.run(batch.preset("big", seed=seed)) == 2
    assert f"request.seed: {json.dumps(seed)} is not possible; it must be a whole number from 0 to" in batch.stderr
    assert not batch.files


@pytest.mark.parametrize("seed", [MAX_SEED, 2**32, 0])
def test_a_seed_is_the_same_in_the_preset_the_file_and_its_name(batch: Batch, seed: int) -> None:
    """Case 21: the largest, one that needs more than 32 bits, and zero, which is no "random"."""
    assert batch.run(batch.preset("seed", seed=seed), as_json=True) == 0, batch.stderr
    (clip,) = batch.clips
    assert clip.name == f"seed-{seed}.mp4"
    assert read_metadata(clip)["request"]["seed"] == read_metadata(clip)["asked"]["seed"] == seed
    assert json.loads(batch.stdout)["clips"][0]["request"]["seed"] == seed


def test_a_clip_made_again_is_called_as_before_and_a_line_by_its_own_number(batch: Batch) -> None:
    path = batch.folder / "good.jsonl"
    path.write_text(json.dumps(SMALL | {"seed": 1}), encoding="utf-8")
    assert batch.run(str(path), make_engine=StandIn) == 0, batch.stderr
    assert [clip.name for clip in batch.clips] == ["good-1-1.mp4"]
    assert batch.run(str(batch.clips[0]), count=2, out=batch.folder / "again", make_engine=StandIn) == 0, batch.stderr
    assert sorted(one.name for one in batch.folder.glob("again/*.mp4")) == ["good-1-1.mp4", "good-1-2.mp4"]


def test_a_clip_is_made_again_from_its_own_large_seed(batch: Batch) -> None:
    """Row 53, seen too (stable-diffusion-webui issue 12419): the last of a series that ends at the largest seed."""
    assert batch.run(batch.preset("big", seed=MAX_SEED - 2), count=3) == 0, batch.stderr
    last = batch.clips[-1]
    assert read_metadata(last)["request"]["seed"] == MAX_SEED
    assert batch.run(str(last)) == 0, batch.stderr
    again = batch.clips[-1]
    assert again != last
    assert read_metadata(again)["request"]["seed"] == MAX_SEED
    assert np.array_equal(decode_frames(again), decode_frames(last))
    assert not np.array_equal(decode_frames(again), decode_frames(batch.clips[0])), "the seeds before it"


# -- steps ------------------------------------------------------------------------------------------------------------


def test_every_scheduler_is_tried() -> None:
    assert OFFERED.keys() == SCHEDULERS.keys()
    assert all(name in family.schedulers for name, (family, _) in OFFERED.items())


@pytest.mark.parametrize("scheduler", OFFERED)
def test_few_steps_make_a_clip_with_every_scheduler(batch: Batch, tiny_models: Tiny, scheduler: str) -> None:
    """Case 22: one step, without guidance and with little, is a step taken and no untouched noise; `check_schedulers`
    proves that it leads all the way.
    """
    taken: list[int] = []

    class Counting(Engine):
        def generate(self, request: GenerationRequest, on_progress: Any = None, *others: Any, **options: Any) -> Clip:
            steps = {0}

            def count(progress: Progress) -> None:
                steps.add(progress.step if progress.stage == "denoising" else 0)
                on_progress(progress)

            clip = super().generate(request, count, *others, **options)
            taken.append(max(steps))
            return clip

    family, folder = OFFERED[scheduler]
    with as_folder(family, tiny_models(folder)) as here:
        asked = smallest(here, batch) | {"scheduler": scheduler}
        values = [{"steps": 1, "guidance": 0}, {"steps": 1, "guidance": 1}, {"steps": 2}]
        sources = [batch.preset(f"few-{number}", **asked | few) for number, few in enumerate(values)]
        assert batch.run(*sources, make_engine=Counting) == 0, batch.stderr
    assert taken == [read_metadata(clip)["request"]["steps"] for clip in batch.clips] == [1, 1, 2]
    assert not batch.stderr


@pytest.mark.parametrize("scheduler", OFFERED)
def test_no_steps_are_refused_by_the_field_s_name(
    batch: Batch, tiny_models: Tiny, no_loading: None, scheduler: str
) -> None:
    """Case 22: nothing is loaded for them."""
    family, folder = OFFERED[scheduler]
    with as_folder(family, tiny_models(folder)) as here:
        asked = smallest(here, batch) | {"scheduler": scheduler}
        sources = [batch.preset(f"none-{-steps}", **asked | {"steps": steps}) for steps in (0, -1)]
        assert batch.run(*sources) == 2
    assert [line.partition("request.")[2].partition(";")[0] for line in batch.stderr.splitlines()] == [
        "steps: 0 is not possible",
        "steps: -1 is not possible",
    ]
    assert not batch.files


def test_a_dense_schedule_is_walked_to_its_end(batch: Batch, tiny_models: Tiny) -> None:
    """Case 22: a large shift puts many steps at the same whole timestep, as a thousand steps do."""
    with as_folder(wan.I2V_480P, tiny_models("wan-i2v")) as here:
        asked = smallest(here, batch) | {"shift": 100, "steps": 12, "guidance": 1}
        assert batch.run(batch.preset("dense", **asked)) == 0, batch.stderr


# -- prompts ----------------------------------------------------------------------------------------------------------

LONG = "a blue ball rolls over the wide green hill " * 44 + "and above all flies a red kite"
PROMPTS = {
    "long": LONG,
    "empty": "",
    "spaces": "   ",
    "emoji": "a red ball 🚀👩\u200d🚀",
    "lines": "a red ball\nrolls\r\n\nover a hill",
}


def test_every_prompt_is_one_clip_kept_whole(batch: Batch) -> None:
    """Case 23: what is read of it is said, and an empty one runs unconditionally."""
    assert len(LONG.split()) > 400
    lines = batch.folder / "many.jsonl"
    small = {"width": 64, "height": 64, "frames": 5, "steps": 1, "seed": 99}
    lines.write_text("\n".join(json.dumps({**small, "prompt": prompt}) for prompt in PROMPTS.values()))
    assert batch.run(str(lines)) == 0, batch.stderr
    found = {clip.name.split("-")[1]: read_metadata(clip) for clip in batch.clips}
    assert [found[str(number)]["asked"]["prompt"] for number in range(1, len(PROMPTS) + 1)] == list(PROMPTS.values())
    assert all(one["request"]["prompt"] == one["asked"]["prompt"] for one in found.values())
    told = batch.stdout.split("Looking at the machine")[0].split("many-")[1:]
    for said, metadata in zip(told, found.values(), strict=True):
        counts = metadata["report"]["tokens"]
        whole = counts["total"] if counts["total"] > counts["used"] else counts["limit"]
        assert f"{counts['used']} of {whole:,} tokens used" in said.splitlines()[0]
    assert [("no further" in said, "unconditionally" in said) for said in told] == [
        (True, False), (False, True), (False, True), (False, False), (False, False),
    ]  # fmt: skip
