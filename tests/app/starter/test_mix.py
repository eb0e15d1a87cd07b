"""The mix of training scenes and canvases, and the weights of the loss."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from app.starter import mix, world


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_training_never_shows_what_is_held_out(seed: int) -> None:
    group = mix.training_group(random.Random(seed), 8)
    assert len({(scene.background, scene.shape, scene.shape2) for scene in group}) == 1
    assert all(world.is_valid(scene, held_out=False) for scene in group)


def test_hard_scenes_come_more_often_than_chance() -> None:
    rng = random.Random(0)
    scenes = [scene for _ in range(400) for scene in mix.training_group(rng, 4)]
    plain = [scene for _ in range(400) for scene in world.random_group(rng, 4)]

    def share(group: list[world.Scene], **wanted: str) -> float:
        return sum(all(getattr(s, k) == v for k, v in wanted.items()) for s in group) / len(group)

    two = sum(scene.shape2 is not None for scene in scenes) / len(scenes)
    print(
        f"two objects {two:.2f}, spinning {share(scenes, motion='spin'):.2f}, small {share(scenes, size='small'):.2f}"
    )
    assert abs(two - mix.TWO_OBJECTS) < 0.1
    assert share(scenes, motion="spin") > share(plain, motion="spin") + 0.03
    placed = [scene for scene in scenes if scene.place != "middle"]
    left = share(placed, place="left")
    print(f"put aside {len(placed) / len(scenes):.2f}, of them left {left:.2f}")
    assert len(placed) > 0.04 * len(scenes)
    assert 0.35 < left < 0.65


def test_kinds_fill_the_time_and_take_equal_tokens() -> None:
    assert sum(kind.share for kind in mix.KINDS) == pytest.approx(1.0)
    for kind in mix.KINDS:
        assert kind.canvas.width % 32 == kind.canvas.height % 32 == 0
        used = kind.batch(128) * kind.tokens() / (128 * 520)
        print(f"{kind}: {kind.batch(128)} clips of {kind.tokens()} tokens, {used:.2f} of the tokens of the first kind")
        assert 0.85 < used < 1.1
        assert kind.batch(2) >= 1


def test_weights_have_mean_one_and_favour_objects() -> None:
    cells = torch.zeros(2, 3, 4, 4)
    cells[0, :, 1:3, 1:3] = 1
    weights = mix.loss_weights(cells)
    torch.testing.assert_close(weights.mean((1, 2, 3)), torch.ones(2))
    assert float(weights[0, 0, 1, 1]) > 2 * float(weights[0, 0, 0, 0])
    torch.testing.assert_close(weights[1], torch.ones(3, 4, 4))
