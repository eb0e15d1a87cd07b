"""What lies where, against the drawn clip, and the head that reads it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from app.starter import layout, world
from app.starter.canvas import Canvas
from app.starter.layout import LayoutHead, Watched, object_cells
from app.starter.world import COLORS, SHAPES

CANVAS = Canvas(128, 192, 5)
CAR = world.Scene("studio", "cream", "still", "car", "red", "left", "medium")


def laid_out(scenes: list[world.Scene]) -> tuple[torch.Tensor, layout.Layout]:
    clip, poses = world.render_with_poses(scenes, "cpu", torch.Generator().manual_seed(3), CANVAS)
    touched = [object_cells(pose, CANVAS) for pose in poses]
    return clip, layout.layout_of(scenes, poses, touched, CANVAS)


@pytest.mark.parametrize("canvas", [Canvas(160, 256, 25), Canvas(256, 160, 13)])
def test_object_cells_are_where_the_object_is(canvas: Canvas) -> None:
    """Two clips that differ in the object's colour alone differ in no pixel outside the cells (shadows are alike)."""
    cells, clips = [], []
    for color in ("red", "blue"):
        scene = world.Scene("studio", "cream", "still", "star", color, "right", "small")
        clip, poses = world.render_with_poses([scene], "cpu", torch.Generator().manual_seed(3), canvas)
        clips.append(clip.float())
        cells.append(object_cells(poses[0], canvas))
    assert torch.equal(*cells)
    frames, rows, columns = canvas.frames // 2 + 1, canvas.height // 16, canvas.width // 16
    assert cells[0].shape == (1, frames, rows, columns)
    outside = 1 - cells[0].repeat_interleave(16, 2).repeat_interleave(16, 3)
    outside = torch.cat([outside[:, :1], outside[:, 1:].repeat_interleave(2, 1)], 1)
    changed = (clips[0] - clips[1]).abs().amax(1)
    seen = float((changed * outside).max())
    print(f"cells {float(cells[0].mean()):.3f} of the clip; largest change outside {seen:.0f} of 255")
    assert seen <= 12
    assert float((changed * (1 - outside)).max()) > 100
    assert float(cells[0].mean()) < 0.2


def test_cells_tell_each_object_and_its_colour_where_it_is_drawn() -> None:
    pair = replace(CAR, motion="still", shape2="balloon", color2="blue")
    clip, found = laid_out([pair, replace(pair, left_first=False)])
    for number in range(2):
        first = clip[number, :, 0].float()
        for name, index, other, shape in (("red", 0, 2, "car"), ("blue", 2, 0, "balloon")):
            drawn = (first[index] - first[other] > 100).view(8, 16, 12, 16).sum((1, 3))
            cell = int(drawn.argmax())
            told = int(found.shape[number, 0].flatten()[cell]), int(found.color[number, 0].flatten()[cell])
            assert told == (SHAPES.index(shape) + 1, COLORS.index(name) + 1)
    assert int(found.shape[:, :, 0, 5].max()) == 0, "nothing between the two at the top"


def test_poses_point_from_the_centre_and_follow_the_way() -> None:
    _, found = laid_out([CAR, replace(CAR, motion="spin", shape="car")])
    there = found.shape[0] > 0
    ways = found.pose[0, 0].float()
    assert float(ways[there].min()) < -0.5
    assert float(ways[there].max()) > 0.5
    columns = torch.arange(12.0).expand(8, 12)
    middles = [float(columns[t == 1].mean()) for t in there.int()]
    print(f"the car that moves left stands at columns {middles}")
    assert middles == sorted(middles, reverse=True)
    assert set(found.pose[0, 5][there].tolist()) == {-1.0}
    assert set(found.pose[1, 5][found.shape[1] > 0].tolist()) == {1.0}
    turn = found.pose[1, 3:5].float()
    angles = [torch.atan2(turn[1, t], turn[0, t])[found.shape[1, t] > 0].mean() for t in range(3)]
    expected = [0.0, 2 * torch.pi * 1.5 / 4, 2 * torch.pi * 3.5 / 4 - 2 * torch.pi]
    for angle, want in zip(angles, expected, strict=True):
        assert float(angle) == pytest.approx(want, abs=0.02)
    assert float(found.pose[:, :, found.shape[0] == 0][0].abs().max()) == 0


def test_a_head_that_says_the_layout_is_not_wrong() -> None:
    """Tokens of 2 x 2 cells: what the head must say is written into its own output."""
    _, found = laid_out([CAR])
    said = torch.cat(
        [
            30.0 * nn.functional.one_hot(found.shape.long(), len(SHAPES) + 1).permute(0, 4, 1, 2, 3),
            30.0 * nn.functional.one_hot(found.color.long(), len(COLORS) + 1).permute(0, 4, 1, 2, 3),
            found.pose.float(),
        ],
        1,
    )
    tokens = said.unflatten(3, (-1, 2)).unflatten(5, (-1, 2)).permute(0, 2, 3, 5, 4, 6, 1).flatten(4).flatten(1, 3)
    head = LayoutHead(tokens.shape[2])
    head.norm, head.read = nn.Identity(), nn.Identity()  # type: ignore[assignment]
    weights = torch.ones(found.shape.shape)
    assert float(head.loss(tokens, found, weights)) < 1e-3
    assert float(head.loss(tokens.flip(1), found, weights)) > 0.5


def test_the_head_learns() -> None:
    torch.manual_seed(0)
    _, found = laid_out([CAR, replace(CAR, motion="grow")])
    tokens, head = torch.randn(2, 3 * 4 * 6, 32), LayoutHead(32)
    optimiser = torch.optim.Adam(head.parameters(), lr=0.03)
    losses = []
    for _ in range(40):
        loss = head.loss(tokens, found, torch.ones(found.shape.shape))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss))
    print(f"{losses[0]:.2f} -> {losses[-1]:.2f}")
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("compiled", [False, True])
def test_a_watched_block_keeps_its_output_once_and_its_weights_their_names(compiled: bool) -> None:
    last = nn.Linear(3, 3)
    blocks = nn.ModuleList([nn.Linear(3, 3), last])
    if compiled:
        for block in blocks:
            block.compile(backend="eager")
    names, watched = list(blocks.state_dict()), Watched(blocks[1])
    with pytest.raises(ValueError, match="has not run"):
        watched.take()
    middle = blocks[0](torch.ones(1, 3))
    out = blocks[1](middle)
    assert watched.take() is out
    torch.testing.assert_close(out, nn.functional.linear(middle, last.weight, last.bias))
    with pytest.raises(ValueError, match="has not run"):
        watched.take()
    assert list(blocks.state_dict()) == names
