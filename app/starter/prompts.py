"""The frozen list of prompts by which the starter is scored, and how such lists are drawn.

Training and the choice of a checkpoint never see the frozen list. Other lists, drawn from another seed, serve to choose
steps and guidance.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path

from app.starter import phrases
from app.starter.captions import caption
from app.starter.world import (
    BACKGROUNDS,
    CAMERAS,
    COLORS,
    HELD_OUT_COLOR_SHAPE,
    HELD_OUT_SHAPE_MOTION,
    MOTIONS,
    SHAPES,
    SIZES,
    STUDIO_TONES,
    Scene,
    is_valid,
    random_scene,
)

FROZEN = Path(__file__).with_name("prompts.json")
FROZEN_SEED = 2026
COUNTS = {"seen": 135, "seen_camera": 55, "held_color_shape": 30, "held_shape_motion": 30, "two": 50}
_PLAIN_MOTION = {
    "left": "moves to the left",
    "right": "moves to the right",
    "up": "flies up",
    "down": "falls down",
    "bounce": "bounces up and down",
    "spin": "spins around",
    "circle": "moves in a circle",
    "grow": "grows bigger",
    "shrink": "gets smaller",
    "still": "stays still",
}
_PLAIN_MOTION_OF_TWO = {"bounce": "bounce", "spin": "spin", "up": "move up", "down": "fall down"}


@dataclass(frozen=True)
class JudgedPrompt:
    """A prompt, the scene it asks for, and its kind (a key of `COUNTS`)."""

    prompt: str
    scene: Scene
    kind: str


def _seen(rng: random.Random) -> Iterator[Scene]:
    """Still camera, combinations that training shows: backgrounds, objects and motions take turns."""
    turn = 0
    while True:
        scene = random_scene(rng, BACKGROUNDS[turn % 8], SHAPES[(turn * 5 + turn // 12) % 12])
        scene = replace(scene, camera="still", motion=MOTIONS[(turn * 3 + turn // 10) % 10])
        turn += 1
        if is_valid(scene):
            yield scene


def _seen_camera(rng: random.Random) -> Iterator[Scene]:
    places = [background for background in BACKGROUNDS if background != "studio"]
    turn = 0
    while True:
        scene = random_scene(rng, places[turn % 7], SHAPES[(turn * 5 + turn // 12) % 12])
        motion = rng.choice(("still", "still", "bounce", "spin"))
        scene = replace(scene, camera=CAMERAS[1 + turn % 3], motion=motion)
        turn += 1
        if is_valid(scene):
            yield scene


def _held_out(rng: random.Random, by_color: bool) -> Iterator[Scene]:
    """Each scene holds one pair that training never shows, and only one."""
    pairs = sorted(HELD_OUT_COLOR_SHAPE if by_color else HELD_OUT_SHAPE_MOTION)
    turn = 0
    while True:
        one, other = pairs[turn % len(pairs)]
        color, shape, motion = (one, other, rng.choice(MOTIONS)) if by_color else (rng.choice(COLORS), one, other)
        both = (color, shape) in HELD_OUT_COLOR_SHAPE and (shape, motion) in HELD_OUT_SHAPE_MOTION
        background, tone, size = rng.choice(BACKGROUNDS), rng.choice(STUDIO_TONES), rng.choice(SIZES)
        scene = Scene(background, tone, "still", shape, color, motion, size)
        if is_valid(scene, held_out=True) and not both:
            turn += 1
            yield scene


def _two(rng: random.Random) -> Iterator[Scene]:
    """Two objects, neither white nor black (eyes and tyres are that, too); sides are asked half the time."""
    turn = 0
    while True:
        first, second = rng.sample(SHAPES, 2)
        scene = random_scene(rng, BACKGROUNDS[turn % 8], first, second)
        scene = replace(scene, camera="still", motion=rng.choice(("still", "bounce", "spin", "up", "down")))
        if {"white", "black"} & {scene.color, scene.color2} or not is_valid(scene):
            continue
        turn += 1
        yield scene if turn % 2 else replace(scene, left_first=None)


def _plain(scene: Scene, rng: random.Random) -> str:
    """The plain wording of somebody's first try."""
    named = [f"a {color} {shape}".replace("a orange", "an orange") for color, shape in scene.objects()]
    if len(named) == 2:
        first, second = named
        text = f"{first} and {second}"
        if scene.left_first is not None:
            text = f"{first} to the {'left' if scene.left_first else 'right'} of {second}"
        words = [text, _PLAIN_MOTION_OF_TWO.get(scene.motion, "")]
    else:
        sized = scene.size in phrases.SIZE_WORDS and scene.motion not in ("grow", "shrink")
        text = f"a {scene.size} {scene.color} {scene.shape}" if sized else named[0]
        unsaid = scene.motion == "still" and scene.camera != "still"
        words = [text, "" if unsaid else _PLAIN_MOTION[scene.motion]]
    words.append(phrases.BACKGROUND_PHRASES[scene.background][rng.randrange(2)].format(tone=scene.studio_tone))
    text = " ".join(word for word in words if word)
    return text if scene.camera == "still" else f"{text}, {phrases.CAMERA_PHRASES[scene.camera][rng.randrange(2)]}"


def _wording(scene: Scene, rng: random.Random) -> str:
    """Half plain, half in the free words of captions, everything named."""
    if rng.random() < 0.5:
        return _plain(scene, rng)
    while True:
        text = caption(scene, rng, full=True)
        # A free caption of two objects may leave their sides open; a prompt that is judged for them must not.
        if scene.shape2 is None or scene.left_first is None or {"left", "right"} & set(text.split()):
            return text


def draw_prompts(seed: int, count: int = sum(COUNTS.values())) -> list[JudgedPrompt]:
    """``count`` different prompts from ``seed``, the kinds in the proportions of `COUNTS` and well mixed."""
    rng = random.Random(seed)
    sources = {
        "seen": _seen(rng),
        "seen_camera": _seen_camera(rng),
        "held_color_shape": _held_out(rng, by_color=True),
        "held_shape_motion": _held_out(rng, by_color=False),
        "two": _two(rng),
    }
    total = sum(COUNTS.values())
    prompts: dict[str, JudgedPrompt] = {}
    for kind, share in COUNTS.items():
        for scene in islice(sources[kind], max(1, round(share * count / total))):
            text = _wording(scene, rng)
            while text in prompts:
                text = _wording(scene, rng)
            prompts[text] = JudgedPrompt(text, scene, kind)
    drawn = list(prompts.values())
    rng.shuffle(drawn)
    return drawn[:count]


def frozen_prompts() -> list[JudgedPrompt]:
    """The 300 committed prompts, always in the same order. Raises FileNotFoundError when they are missing."""
    rows = json.loads(FROZEN.read_text(encoding="utf-8"))
    return [JudgedPrompt(row["prompt"], Scene(**row["scene"]), row["kind"]) for row in rows]


def freeze() -> None:
    """Writes the frozen list, once: FileExistsError when it is there, since scores on another list don't compare."""
    if FROZEN.exists():
        raise FileExistsError(f"{FROZEN.name} exists and stays as it is: scores on another list would not compare.")
    rows = [asdict(prompt) for prompt in draw_prompts(FROZEN_SEED)]
    FROZEN.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n", encoding="utf-8")
