"""What a model gets wrong is shown oftener, and nothing of the frozen list takes part in that."""

from __future__ import annotations

import json
import random
from dataclasses import asdict
from pathlib import Path

import pytest

from app.starter import mix, weak
from app.starter.judge import Verdict
from app.starter.prompts import frozen_prompts
from app.starter.world import MOTIONS, SHAPES, Scene


def scene(shape: str, motion: str, shape2: str | None = None) -> Scene:
    return Scene("meadow", "cream", "still", shape, "red", motion, "medium", shape2, None if shape2 is None else "blue")


def test_what_is_wrong_oftener_weighs_more() -> None:
    scenes = [scene("rocket", "up"), scene("rocket", "left"), scene("ball", "up"), scene("ball", "spin")]
    verdicts = [
        Verdict(object=False, motion=True),
        Verdict(object=True, motion=True),
        Verdict(object=True, motion=True),
        Verdict(object=True, motion=False),
    ]
    scenes.append(scene("house", "still", "tree"))  # two objects: judged otherwise
    verdicts.append(Verdict(object=False))
    found = weak.emphasis(verdicts, scenes)
    by_shape, by_motion = dict(zip(SHAPES, found.shapes, strict=True)), dict(zip(MOTIONS, found.motions, strict=True))
    assert by_shape["rocket"] == min(weak.MOST, 1 + weak.GAIN * 0.5)
    assert by_shape["ball"] == by_shape["house"] == by_shape["star"] == 1.0
    assert by_motion["up"] == min(weak.MOST, 1 + weak.GAIN * 0.5) - 1
    assert by_motion["spin"] == weak.MOST - 1
    assert by_motion["left"] == by_motion["circle"] == 0.0


def test_a_model_without_faults_changes_nothing() -> None:
    assert weak.emphasis([Verdict(object=True, motion=True)], [scene("ball", "up")]) == mix.EVEN


def test_training_shows_emphasised_shapes_oftener() -> None:
    heavy = mix.Emphasis(tuple(3.0 if shape == "rocket" else 1.0 for shape in SHAPES), mix.EVEN.motions)

    def share(emphasis: mix.Emphasis) -> float:
        rng = random.Random(1)
        groups = [mix.training_group(rng, 1, emphasis) for _ in range(3000)]
        return sum(group[0].shape == "rocket" for group in groups) / len(groups)

    even, weighed = share(mix.EVEN), share(heavy)
    print(f"rockets: {even:.3f} even, {weighed:.3f} weighed")
    assert even == pytest.approx(1 / 12, abs=0.02)
    assert weighed == pytest.approx(3 / 14, abs=0.03)


def test_it_is_read_back_and_absent_means_the_usual(tmp_path: Path) -> None:
    assert weak.read(tmp_path) == mix.USUAL
    assert dict(zip(SHAPES, mix.USUAL.shapes, strict=True))["rocket"] == max(mix.USUAL.shapes)
    assert dict(zip(MOTIONS, mix.USUAL.motions, strict=True))["spin"] == max(mix.USUAL.motions)
    found = mix.Emphasis(tuple(float(i) for i in range(len(SHAPES))), tuple(0.5 for _ in MOTIONS))
    (tmp_path / weak.EMPHASIS).write_text(json.dumps(asdict(found)), encoding="utf-8")
    assert weak.read(tmp_path) == found


def test_the_draw_holds_no_prompt_of_the_frozen_list() -> None:
    frozen = {prompt.prompt for prompt in frozen_prompts()}
    found = weak.drawn(weak.COUNT)
    assert not frozen & {prompt.prompt for prompt in found}
    assert len(found) > 0.9 * weak.COUNT
    assert {prompt.scene.shape for prompt in found} == set(SHAPES)
