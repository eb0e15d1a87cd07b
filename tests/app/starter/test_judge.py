"""The judge accepts true clips, catches planted errors, and its prompt list stays what it is."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace

import pytest
import torch

from app.starter import judge, prompts, world
from app.starter.canvas import Canvas

CANVAS = Canvas(96, 160, 17)
"""Smaller than the starter's own, so that this file stays quick; the judge's lengths scale with it."""


@pytest.fixture(scope="module")
def the_judge() -> judge.Judge:
    return judge.Judge("cpu")


def draw(scene: world.Scene, seed: int = 0, canvas: Canvas = CANVAS) -> torch.Tensor:
    return world.render([scene], "cpu", torch.Generator().manual_seed(seed), canvas)


def test_true_clips_score_95_percent(the_judge: judge.Judge) -> None:
    scenes = [prompt.scene for prompt in prompts.draw_prompts(5, 45)]
    videos = torch.cat([draw(scene, seed) for seed, scene in enumerate(scenes)])
    table = judge.score_table(the_judge(videos, scenes), scenes)
    print(table)
    assert set(table) >= {"color", "object", "motion", "size", "background", "camera", "camera_still"}
    assert set(table) >= {"two_colors", "two_binding", "two_sides"}
    right, judged = (sum(row[index] for row in table.values()) for index in (0, 1))
    assert right / judged >= 0.95
    assert all(percent >= 80 for _, _, percent in table.values())


@pytest.mark.parametrize("size", [(160, 96, 17), (96, 96, 33), (96, 160, 13)])
def test_other_canvases(the_judge: judge.Judge, size: tuple[int, int, int]) -> None:
    scenes = [
        world.Scene("meadow", "cream", "left", "car", "red", "still", "big"),
        world.Scene("desert", "cream", "zoom", "box", "blue", "bounce", "medium"),
        world.Scene("sunset", "cream", "still", "star", "purple", "spin", "small"),
        world.Scene("snow", "cream", "still", "rocket", "orange", "right", "small"),
    ]
    videos = torch.cat([draw(scene, 1, Canvas(*size)) for scene in scenes])
    wrong = [
        (name, scene, verdict.saw)
        for verdict, scene in zip(the_judge(videos, scenes), scenes, strict=True)
        for name, value in asdict(verdict).items()
        if value is False
    ]
    assert not wrong


TRUE = world.Scene("meadow", "cream", "still", "car", "red", "left", "big")


@pytest.mark.parametrize(
    ("changes", "caught"),
    [
        ({}, set()),
        ({"color": "blue"}, {"color"}),
        ({"shape": "house"}, {"object"}),
        ({"motion": "right"}, {"motion"}),
        ({"motion": "still"}, {"motion"}),
        ({"size": "small"}, {"size"}),
        ({"background": "desert"}, {"background"}),
    ],
)
def test_planted_errors_are_caught(the_judge: judge.Judge, changes: dict[str, str], caught: set[str]) -> None:
    verdict = the_judge(draw(replace(TRUE, **changes)), [TRUE])[0]  # type: ignore[arg-type]
    assert {name for name, value in asdict(verdict).items() if value is False} == caught


@pytest.mark.parametrize("camera", ["still", "right", "zoom"])
def test_wrong_camera_is_caught(the_judge: judge.Judge, camera: str) -> None:
    asked = replace(TRUE, motion="still", camera="left")
    assert the_judge(draw(asked), [asked])[0].camera is True
    assert the_judge(draw(replace(asked, camera=camera)), [asked])[0].camera is False


PAIR = world.Scene("space", "cream", "still", "star", "yellow", "still", "medium", "box", "purple", True)


@pytest.mark.parametrize(
    ("drawn", "caught"),
    [
        (PAIR, set()),
        (replace(PAIR, left_first=False), {"two_sides"}),
        (replace(PAIR, shape="box", shape2="star", left_first=True), {"two_binding"}),
        (replace(PAIR, color2="green"), {"two_colors", "two_binding", "two_sides"}),
        (replace(PAIR, shape2=None, color2=None), {"two_colors", "two_binding", "two_sides"}),
    ],
)
def test_planted_errors_of_pairs_are_caught(the_judge: judge.Judge, drawn: world.Scene, caught: set[str]) -> None:
    verdict = the_judge(draw(drawn), [PAIR])[0]
    assert {name for name, value in asdict(verdict).items() if value is False} == caught


@pytest.mark.parametrize("content", ["noise", "grey", "red"])
def test_noise_and_emptiness_satisfy_nobody(the_judge: judge.Judge, content: str) -> None:
    video = torch.full((1, 3, 17, 96, 160), 128, dtype=torch.uint8)
    if content == "noise":
        video = torch.randint(0, 256, video.shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    if content == "red":
        video[:, 1:] = 0
    verdict = asdict(the_judge(video, [TRUE])[0])
    # Grey has no camera move, and all of it is red when all is red.
    expected = {"noise": [], "grey": ["camera"], "red": ["color"]}[content]
    assert [name for name, value in verdict.items() if value is True and name != "size"] == expected


def test_counts_must_agree(the_judge: judge.Judge) -> None:
    with pytest.raises(ValueError, match="one scene for each clip"):
        the_judge(draw(TRUE), [TRUE, TRUE])


def test_table_parts_still_and_moving_cameras() -> None:
    scenes = [TRUE, replace(TRUE, camera="left"), replace(TRUE, camera="zoom")]
    verdicts = [
        judge.Verdict(camera=True, color=True),
        judge.Verdict(camera=False, color=True),
        judge.Verdict(camera=True),
    ]
    table = judge.score_table(verdicts, scenes)
    assert table == {"color": (2, 2, 100.0), "camera": (1, 2, 50.0), "camera_still": (1, 1, 100.0)}


FROZEN_SHA256 = "0f0a5b2874b6644cf5a4b63b5402367df6b2c9eceb8cab96d2f48500f999be45"


def test_frozen_list_is_unchanged() -> None:
    rows = json.loads(prompts.FROZEN.read_text(encoding="utf-8"))
    assert hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest() == FROZEN_SHA256


def test_frozen_list_has_what_the_scores_need() -> None:
    frozen = judge.frozen_prompts()
    assert len({prompt.prompt for prompt in frozen}) == 300
    kinds = [prompt.kind for prompt in frozen]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == prompts.COUNTS
    for prompt in frozen:
        assert world.is_valid(prompt.scene, held_out=True)
        assert world.is_valid(prompt.scene) is not prompt.kind.startswith("held")
        assert (prompt.scene.camera != "still") == (prompt.kind == "seen_camera")
        assert (prompt.scene.shape2 is not None) == (prompt.kind == "two")


def test_freezing_again_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    before = prompts.FROZEN.read_bytes()
    assert judge.main(["freeze"]) == 1
    assert "stays as it is" in capsys.readouterr().err
    assert prompts.FROZEN.read_bytes() == before
    assert judge.main(["thaw"]) == 2


def test_drawn_lists_differ_from_the_frozen_one() -> None:
    frozen = {prompt.prompt for prompt in judge.frozen_prompts()}
    drawn = judge.draw_prompts(31, 96)
    assert len(drawn) == 96
    assert sum(prompt.prompt in frozen for prompt in drawn) <= 2
    assert judge.draw_prompts(31, 96) == drawn
