"""The procedural world the starter model is trained on: scenes of one or two objects, drawn on CPU or GPU.

A `Scene` says what is to be seen; `render` draws many scenes of the same background and objects as one batch.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from app.starter import motion, scenery, shapes
from app.starter.canvas import WIDEST_PAN, Canvas, Dice, constant
from app.starter.shapes import Pose

HEIGHT, WIDTH, FRAMES = 160, 256, 25
CANVAS = Canvas(HEIGHT, WIDTH, FRAMES)
BACKGROUNDS = scenery.BACKGROUNDS
MOTIONS = motion.MOTIONS
SIZES = motion.SIZES
SHAPES = shapes.SHAPES
COLORS = tuple(shapes.COLORS)
STUDIO_TONES = tuple(scenery.STUDIO_TONES)
CAMERAS = ("still", "left", "right", "zoom")
PLACES = ("middle", "left", "right")

HELD_OUT_COLOR_SHAPE = frozenset(
    {
        ("purple", "fish"),
        ("green", "rocket"),
        ("yellow", "car"),
        ("blue", "heart"),
        ("red", "boat"),
        ("orange", "tree"),
        ("pink", "house"),
        ("cyan", "star"),
        ("white", "bird"),
        ("black", "balloon"),
    }
)
"""Never drawn for training: a model that gets these right composes colour and shape."""

HELD_OUT_SHAPE_MOTION = frozenset(
    {
        ("star", "circle"),
        ("fish", "bounce"),
        ("house", "spin"),
        ("car", "grow"),
        ("heart", "left"),
        ("balloon", "down"),
        ("tree", "right"),
        ("ball", "shrink"),
    }
)
"""Never drawn for training either: the same for shape and motion."""

_INVISIBLE = frozenset({("white", "snow"), ("black", "city"), ("black", "space")})
_MOTIONS_UNDER_MOVING_CAMERA = ("still", "bounce", "spin")
_MOTIONS_OF_TWO = ("still", "bounce", "spin", "up", "down")
_MOTIONS_ACROSS = ("left", "right", "circle")


@dataclass(frozen=True)
class Scene:
    """What a clip shows. All fields are words of this module's vocabularies.

    studio_tone matters in the studio only. shape2 and color2 are both set or both None. left_first says whether the
    first of two objects is the left one; None means that nobody asked (drawn like True, not judged, not put in words).
    place is where an object stands that is alone and stays in its column, seen by a camera that stands.
    """

    background: str
    studio_tone: str
    camera: str
    shape: str
    color: str
    motion: str
    size: str
    shape2: str | None = None
    color2: str | None = None
    left_first: bool | None = True
    place: str = "middle"

    def objects(self) -> tuple[tuple[str, str], ...]:
        """(colour, shape) of each object, one or two."""
        first = (self.color, self.shape)
        return (first,) if self.shape2 is None or self.color2 is None else (first, (self.color2, self.shape2))


def is_valid(scene: Scene, held_out: bool = False) -> bool:
    """Whether the world can show ``scene``: known words, visible colours, a camera move with something to see it by.

    Combinations held out from training count as valid only with ``held_out``.
    """
    known = (
        scene.background in BACKGROUNDS
        and scene.studio_tone in STUDIO_TONES
        and scene.camera in CAMERAS
        and scene.motion in MOTIONS
        and scene.size in SIZES
        and all(color in COLORS and shape in SHAPES for color, shape in scene.objects())
        and (scene.shape2 is None) == (scene.color2 is None)
    )
    known = known and (scene.place == "middle" or (scene.place in PLACES and _can_be_placed(scene)))
    if not known or (scene.background == "studio" and scene.camera != "still"):
        return False
    if scene.shape2 is not None and (scene.shape2 == scene.shape or scene.color2 == scene.color):
        return False
    for color, shape in scene.objects():
        if (color, scene.background) in _INVISIBLE:
            return False
        unseen = (color, shape) in HELD_OUT_COLOR_SHAPE or (shape, scene.motion) in HELD_OUT_SHAPE_MOTION
        if unseen and not held_out:
            return False
    return True


def _can_be_placed(scene: Scene) -> bool:
    return scene.shape2 is None and scene.camera == "still" and scene.motion not in _MOTIONS_ACROSS


def random_scene(rng: random.Random, background: str, shape: str, shape2: str | None = None) -> Scene:
    """A scene of the given background and objects, drawn until it is valid; held-out combinations never come out."""
    while True:
        camera = "still" if background == "studio" or rng.random() < 0.72 else rng.choice(CAMERAS[1:])
        choices: Sequence[str] = MOTIONS if camera == "still" else _MOTIONS_UNDER_MOVING_CAMERA
        if shape2 is not None:
            choices = _MOTIONS_OF_TWO if camera == "still" else ("still",)
        scene = Scene(
            background=background,
            studio_tone=rng.choice(STUDIO_TONES),
            camera=camera,
            shape=shape,
            color=rng.choice(COLORS),
            motion=rng.choice(choices),
            size="medium" if shape2 is not None else rng.choice(SIZES),
            shape2=shape2,
            color2=None if shape2 is None else rng.choice(COLORS),
            left_first=rng.random() < 0.5,
        )
        if is_valid(scene):
            return scene


def random_group(rng: random.Random, n: int, two_probability: float = 0.16) -> list[Scene]:
    """``n`` valid scenes that share background and shapes, so that `render` takes them as one batch.

    With ``two_probability`` they show two different objects. Held-out combinations never come out.
    """
    background, shape = rng.choice(BACKGROUNDS), rng.choice(SHAPES)
    two = rng.random() < two_probability
    shape2 = rng.choice([other for other in SHAPES if other != shape]) if two else None
    return [random_scene(rng, background, shape, shape2) for _ in range(n)]


@dataclass(frozen=True)
class _Camera:
    """Pan (canvas heights) and zoom factor of each clip and frame, float32 (n, frames)."""

    pan: Tensor
    zoom: Tensor


def _camera(kind: Tensor, canvas: Canvas, dice: Dice) -> _Camera:
    time = torch.linspace(0, 1, canvas.frames, device=dice.device).view(1, -1)
    way = dice.between(0.28, WIDEST_PAN) * canvas.spread * (time - 0.5)
    direction = (kind == CAMERAS.index("right")).float() - (kind == CAMERAS.index("left")).float()
    zoom = 1 + dice.between(0.38, 0.50) * time * (kind == CAMERAS.index("zoom"))
    return _Camera(way * direction, zoom)


def _view(still: Tensor, camera: _Camera, canvas: Canvas) -> Tensor:
    """The wide stills (n, 3, height, width + margins) seen by the moving camera: (n, 3, frames, height, width)."""
    n, height, width, frames = len(still), canvas.height, canvas.width, canvas.frames
    x = (torch.arange(width, device=still.device) + 0.5) / width * 2 - 1
    y = (torch.arange(height, device=still.device) + 0.5) / height * 2 - 1
    zoom, pan = camera.zoom[..., None], camera.pan[..., None]
    across = (x / zoom * canvas.aspect / 2 + pan) * (2 * height / still.shape[3])
    down = y / zoom
    size = (n, frames, height, width)
    grid = torch.stack([across[:, :, None, :].expand(size), down[:, :, :, None].expand(size)], -1)
    flat = F.grid_sample(still, grid.view(n, frames * height, width, 2), padding_mode="border", align_corners=False)
    return flat.view(n, 3, frames, height, width)


def _table(scenes: Sequence[Scene], device: torch.device) -> dict[str, Tensor]:
    """The scenes' words as indices, int64 (n, 1) each, moved to the device in one copy."""
    rows = [
        (
            CAMERAS.index(scene.camera),
            MOTIONS.index(scene.motion),
            SIZES.index(scene.size),
            STUDIO_TONES.index(scene.studio_tone),
            int(scene.left_first is not False),
            int(scene.place == "right") - int(scene.place == "left"),
            COLORS.index(scene.color),
            COLORS.index(scene.color2 or scene.color),
        )
        for scene in scenes
    ]
    columns = torch.tensor(rows).to(device, non_blocking=True).split(1, dim=1)
    names = ("camera", "motion", "size", "tone", "left_first", "place", "color", "color2")
    return dict(zip(names, columns, strict=True))


def render(
    scenes: Sequence[Scene],
    device: torch.device | str,
    generator: torch.Generator | None = None,
    canvas: Canvas = CANVAS,
    loose: bool = True,
) -> Tensor:
    """Draws ``scenes`` (same background and shapes) as one batch, without waiting for the device.

    generator: on ``device``; places, speeds and scenery differ from draw to draw. loose: see `Dice`. Returns uint8
    (n, 3, frames, height, width). Raises ValueError for no scenes or for scenes that don't share background and shapes.
    """
    return render_with_poses(scenes, device, generator, canvas, loose)[0]


@torch.no_grad()
def render_with_poses(
    scenes: Sequence[Scene],
    device: torch.device | str,
    generator: torch.Generator | None = None,
    canvas: Canvas = CANVAS,
    loose: bool = True,
) -> tuple[Tensor, list[Pose]]:
    """As `render`, and where each object is on screen."""
    device = torch.device(device)
    kinds = {(scene.background, scene.shape, scene.shape2) for scene in scenes}
    if len(kinds) != 1:
        raise ValueError(
            f"Scenes drawn together must share background and shapes, but these have {len(kinds)} kinds: "
            "draw each kind by itself, as random_group gives them."
        )
    background, shape, shape2 = kinds.pop()
    dice, table = Dice(len(scenes), device, generator, loose), _table(scenes, device)
    palette, tones = (
        constant(tuple(shapes.COLORS.values()), device),
        constant(tuple(scenery.STUDIO_TONES.values()), device),
    )
    still = scenery.background(background, tones[table["tone"].flatten()], canvas, dice)
    camera = _camera(table["camera"], canvas, dice)
    video = _view(still, camera, canvas)
    stage = motion.Stage(canvas, dice, scenery.GROUND[background], background not in ("space", "underwater"))
    together = motion.Together.draw(dice)
    side = table["left_first"].float() * -2 + 1
    placed = table["place"].float() if any(scene.place != "middle" for scene in scenes) else None
    cast = [(shape, "color", placed)] if shape2 is None else [(shape, "color", side), (shape2, "color2", -side)]
    poses = []
    for name, column, offset in cast:
        index = table[column].flatten()
        wobble = torch.where(table[column] >= shapes.WHITE_INDEX, 0.02, 0.06) * dice.uniform(-0.5, 0.5, 3)
        rgb = (palette[index] + wobble).clamp(0.04, 1)
        path = motion.choreograph(name, table["motion"], table["size"], offset, together, stage)
        poses.append(path.on_screen(camera.pan, camera.zoom, stage))
        video = shapes.draw_object(video, name, rgb, index, poses[-1], canvas)
    return (video.clamp(0, 1) * 255 + 0.5).to(torch.uint8), poses
