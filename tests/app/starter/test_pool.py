"""Training data: captions by other processes are the same ones, and a pool gives back what went in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from app.starter import captions, world
from app.starter.canvas import Canvas
from app.starter.codec import ClipCodec
from app.starter.mix import Kind
from app.starter.model import LATENT_CHANNELS, build_vae
from app.starter.naming import named
from app.starter.pool import Captioner, LatentPool, empty_prompt
from app.starter.training import Ranks


def pool_of_four(folder: Path, canvas: Canvas) -> tuple[LatentPool, Captioner]:
    """A pool of four clips, in groups of two, and what draws its groups."""
    captions.build_tokenizer(folder)
    torch.manual_seed(0)
    ranks, kind = Ranks(), Kind(canvas, False, 1.0)
    pool = LatentPool(kind, 4, 2, ClipCodec(build_vae()), ranks, ranks.dice(3))
    return pool, Captioner(folder, frozenset(), 2, "6 0")


def test_groups_do_not_depend_on_the_number_of_processes(tmp_path: Path) -> None:
    captions.build_tokenizer(tmp_path)
    here, there = (Captioner(tmp_path, frozenset(), 3, "5 0", workers) for workers in (0, 2))
    try:
        for _ in range(4):
            (scenes, ids), (other_scenes, other_ids) = here.next(), there.next()
            assert scenes == other_scenes
            assert np.array_equal(ids, other_ids)
            assert ids.shape == (3, 4, 64)
    finally:
        there.close()


def test_a_pool_keeps_the_newest_clips_and_leaves_out_some_prompts(tmp_path: Path) -> None:
    pool, captioner = pool_of_four(tmp_path, Canvas(64, 96, 5))
    drawn = [captioner.next() for _ in range(3)]
    for group in drawn:
        pool.add(group)
    assert (pool.filled, pool.rendered) == (4, 6)
    known = {
        (row.astype(np.int64).tobytes(), objects.numpy().tobytes())
        for scenes, ids in drawn[1:]
        for rows, objects in zip(ids, named(scenes), strict=True)
        for row in rows
    }
    latents, weights, ids, layout, objects = pool.batch(400)
    assert layout.pose.shape == (400, 6, 3, 4, 6)
    assert latents.shape == (400, LATENT_CHANNELS, 3, 4, 6)
    assert weights.shape == (400, 3, 4, 6)
    torch.testing.assert_close(weights.float().mean(), torch.tensor(1.0), atol=0.02, rtol=0)
    empty = empty_prompt(1, torch.device("cpu"))[0]
    without = (ids == empty).all(1)
    print(f"without a prompt: {float(without.float().mean()):.3f}")
    assert 0.05 < float(without.float().mean()) < 0.16
    told = zip(ids[~without], objects[~without], strict=True)
    assert {(row.numpy().tobytes(), who.numpy().tobytes()) for row, who in told} <= known


def test_the_newest_clips_can_be_drawn_alone(tmp_path: Path) -> None:
    pool, captioner = pool_of_four(tmp_path, Canvas(64, 64, 5))
    groups = []
    for _ in range(3):  # the third takes the first one's place
        groups.append(captioner.next())
        pool.add(groups[-1])
        newest = pool.batch(50, newest=2).latents
        place = (pool.next - 2) % 4
        rows = pool.latents[place : place + 2]
        assert all(any(torch.equal(clip, row) for row in rows) for clip in newest)
    everything = pool.batch(200).latents
    assert len({clip.float().sum().item() for clip in everything}) == 4


def test_only_where_the_first_frame_is_given_may_things_be_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, draw = [], world.render_with_poses

    def spy(*given: Any) -> Any:
        asked.append(given[-1])
        return draw(*given)

    monkeypatch.setattr(world, "render_with_poses", spy)
    captions.build_tokenizer(tmp_path)
    ranks, captioner = Ranks(), Captioner(tmp_path, frozenset(), 2, "6 0")
    for image in (False, True):
        kind = Kind(Canvas(64, 64, 5), image, 1.0)
        LatentPool(kind, 4, 2, ClipCodec(build_vae()), ranks, ranks.dice(3)).add(captioner.next())
    assert asked == [False, True]
