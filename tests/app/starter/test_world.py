"""The procedural world: what can be asked of it and what comes out."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch._subclasses.fake_tensor import FakeTensorMode

from app.starter import sheets, world
from app.starter.canvas import WIDEST_PAN, Canvas, constant

SMALL = Canvas(64, 96, 5)
CPU = torch.device("cpu")


def scenes() -> st.SearchStrategy[world.Scene]:
    """Valid scenes with one or two objects, as training draws them."""
    seeds = st.integers(0, 2**32)
    return seeds.map(lambda seed: world.random_group(random.Random(seed), 1, 0.3)[0])


def draw(scene: world.Scene, seed: int = 0, canvas: Canvas = SMALL) -> torch.Tensor:
    return world.render([scene], CPU, torch.Generator().manual_seed(seed), canvas)


@settings(max_examples=30, deadline=None)
@given(
    scene=scenes(), height=st.sampled_from((32, 64, 96)), width=st.sampled_from((32, 96, 128)), frames=st.integers(2, 9)
)
def test_any_scene_is_drawn_on_any_canvas(scene: world.Scene, height: int, width: int, frames: int) -> None:
    clip = draw(scene, canvas=Canvas(height, width, frames))
    assert clip.shape == (1, 3, frames, height, width)
    assert clip.dtype == torch.uint8
    assert int(clip.max()) - int(clip.min()) > 40, "a clip shows something"


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32), n=st.integers(1, 8), two=st.floats(0, 1))
def test_groups_are_valid_alike_and_free_of_held_out_pairs(seed: int, n: int, two: float) -> None:
    group = world.random_group(random.Random(seed), n, two)
    assert len(group) == n
    assert len({(scene.background, scene.shape, scene.shape2) for scene in group}) == 1
    for scene in group:
        assert world.is_valid(scene)
        for color, shape in scene.objects():
            assert (color, shape) not in world.HELD_OUT_COLOR_SHAPE
            assert (shape, scene.motion) not in world.HELD_OUT_SHAPE_MOTION


BALL = world.Scene("meadow", "cream", "still", "ball", "red", "still", "medium")


@pytest.mark.parametrize(
    ("changes", "valid", "valid_held_out"),
    [
        ({}, True, True),
        ({"motion": "shrink"}, False, True),
        ({"shape": "boat"}, False, True),
        ({"color": "white", "background": "snow"}, False, False),
        ({"background": "studio", "camera": "left"}, False, False),
        ({"color": "mauve"}, False, False),
        ({"shape2": "box"}, False, False),
        ({"shape2": "box", "color2": "red"}, False, False),
        ({"shape2": "ball", "color2": "blue"}, False, False),
        ({"shape2": "box", "color2": "blue"}, True, True),
        ({"shape2": "heart", "color2": "blue"}, False, True),
    ],
)
def test_validity(changes: dict[str, str], valid: bool, valid_held_out: bool) -> None:
    scene = replace(BALL, **changes)  # type: ignore[arg-type]
    assert world.is_valid(scene) is valid
    assert world.is_valid(scene, held_out=True) is valid_held_out


def test_held_out_pairs_are_words_of_the_world() -> None:
    assert all(color in world.COLORS and shape in world.SHAPES for color, shape in world.HELD_OUT_COLOR_SHAPE)
    assert all(shape in world.SHAPES and motion in world.MOTIONS for shape, motion in world.HELD_OUT_SHAPE_MOTION)


def test_same_generator_state_gives_the_same_clip() -> None:
    first, again, other = draw(BALL, 3), draw(BALL, 3), draw(BALL, 4)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_scene_decides_which_object_is_left() -> None:
    pair = replace(BALL, background="studio", shape2="box", color2="blue")
    for left_first in (True, False, None):
        clip = draw(replace(pair, left_first=left_first), canvas=Canvas(80, 128, 2))[0, :, 0].float()
        red, _, blue = clip
        columns = torch.arange(128.0)
        red_x = (columns * ((red - blue) > 100).sum(0)).sum() / ((red - blue) > 100).sum()
        blue_x = (columns * ((blue - red) > 100).sum(0)).sum() / ((blue - red) > 100).sum()
        assert (red_x < blue_x) == (left_first is not False)


@pytest.mark.parametrize("size", [(160, 256), (256, 160), (192, 192), (64, 320)])
def test_no_pan_reaches_the_end_of_the_scenery(size: tuple[int, int]) -> None:
    """The stills' outermost columns are marked; the widest pan must not show them."""
    canvas = Canvas(*size, frames=2)
    still = torch.zeros(1, 3, canvas.height, canvas.width + 2 * canvas.margin)
    still[..., 0] = still[..., -1] = 1
    for direction in (-1, 1):
        pan = torch.full((1, 2), direction * WIDEST_PAN / 2 * canvas.spread)
        seen = world._view(still, world._Camera(pan, torch.ones(1, 2)), canvas)
        assert float(seen.max()) == 0


def test_drawing_never_reads_a_value_back() -> None:
    """Reading one (.item(), boolean indexing) would stall a GPU; tensors without values can't be read at all."""
    constant.cache_clear()
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            for background in world.BACKGROUNDS:
                for camera in ("still", "zoom"):
                    scene = replace(BALL, background=background, camera=camera, shape2="tree", color2="blue")
                    assert world.render([scene, scene], CPU, canvas=SMALL).shape == (2, 3, 5, 64, 96)
            for shape in world.SHAPES:
                assert world.render([replace(BALL, shape=shape)], CPU, canvas=SMALL).shape[0] == 1
    finally:
        constant.cache_clear()


def test_mixed_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="share background"):
        world.render([BALL, replace(BALL, shape="box")], CPU, canvas=SMALL)
    with pytest.raises(ValueError, match="0 kinds"):
        world.render([], CPU, canvas=SMALL)


@pytest.mark.parametrize("size", [(16, 256, 25), (160, 31, 25), (160, 256, 1)])
def test_too_small_canvases_are_refused(size: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="too small"):
        Canvas(*size)


def test_contact_sheet_shows_first_and_last_frame(tmp_path: pytest.TempPathFactory) -> None:
    clip = torch.zeros(3, 5, 32, 48, dtype=torch.uint8)
    clip[0, 0], clip[2, -1] = 255, 255
    path = sheets.contact_sheet([("one", clip), ("two", clip)], f"{tmp_path}/sheet.png", columns=3)
    with Image.open(path) as sheet:
        assert sheet.size == (190 + 3 * 50, 2 * 34)
        assert sheet.getpixel((190 + 5, 5)) == (255, 0, 0)
        assert sheet.getpixel((190 + 2 * 50 + 5, 34 + 5)) == (0, 0, 255)
    with pytest.raises(ValueError, match="at least one"):
        sheets.contact_sheet([], path)


@pytest.mark.parametrize(("place", "least", "most"), [("left", 0.0, 0.3), ("middle", 0.4, 0.6), ("right", 0.7, 1.0)])
def test_an_object_stands_where_its_scene_says(place: str, least: float, most: float) -> None:
    """Beside others that stand elsewhere, and on canvases of other shapes."""
    scenes = [replace(BALL, place=place, motion=motion) for motion in ("still", "grow", "spin")]
    for canvas in (world.CANVAS, Canvas(128, 64, 5)):
        _, poses = world.render_with_poses([*scenes, BALL], CPU, torch.Generator().manual_seed(1), canvas)
        x = poses[0].x.mean(1) / canvas.aspect
        print(f"{place} on {canvas.width}x{canvas.height}: {x.tolist()}")
        assert ((x[:3] > least) & (x[:3] < most)).all()
        assert 0.4 < float(x[3]) < 0.6


@pytest.mark.parametrize("size", [(80, 128, 5), (128, 96, 5), (96, 96, 9)])
def test_things_start_on_latent_cells_and_each_word_means_one_size_and_speed(size: tuple[int, int, int]) -> None:
    canvas = Canvas(*size)
    scenes = [replace(BALL, background="space", motion=motion, size="small") for motion in ("spin", "up", "left") * 20]
    tight, loose = (
        world.render_with_poses(scenes, CPU, torch.Generator().manual_seed(2), canvas, loose=loose)[1][0]
        for loose in (False, True)
    )
    columns = (tight.x[0::3, 0] * canvas.height / 16, tight.y[0::3, 0] * canvas.height / 16)
    for cells in columns:
        torch.testing.assert_close(cells, cells.round(), atol=1e-4, rtol=0)
    print(f"spins start at {sorted(set(columns[0].round().tolist()))} x {sorted(set(columns[1].round().tolist()))}")
    assert 2 <= len({(round(x), round(y)) for x, y in zip(*(c.tolist() for c in columns), strict=True)}) <= 20
    for values in (tight.radius[:, 0], tight.x[2::3].diff(dim=1)[:, 0], tight.y[1::3, 0]):
        assert float(values.max() - values.min()) < 1e-5
    for values in (loose.radius[:, 0], loose.x[2::3].diff(dim=1)[:, 0], loose.y[1::3, 0]):
        assert float(values.max() - values.min()) > 1e-4
    assert len(set(loose.x[0::3, 0].tolist())) == 20


def test_a_spin_is_one_whole_turn_and_things_face_right_unless_they_move_left() -> None:
    canvas = Canvas(64, 96, 25)
    motions = ("spin", "still", "left", "right", "bounce")
    scenes = [replace(BALL, shape="fish", background="space", motion=motion) for motion in motions] * 4
    pose = world.render_with_poses(scenes, CPU, torch.Generator().manual_seed(5), canvas)[1][0]
    turn = torch.arange(25) * torch.pi / 12
    torch.testing.assert_close(pose.angle[0::5], turn.expand(4, -1))
    assert float(pose.angle[1::5].abs().max()) == 0
    assert pose.facing.flatten().tolist() == [1.0, 1.0, -1.0, 1.0, 1.0] * 4


@pytest.mark.parametrize(
    "change", [{"motion": "left"}, {"camera": "zoom"}, {"shape2": "box", "color2": "blue"}, {"place": "top"}]
)
def test_places_that_the_world_does_not_show(change: dict[str, Any]) -> None:
    placed = replace(BALL, place="left")
    assert world.is_valid(placed)
    assert not world.is_valid(replace(placed, **change))
