"""The twelve objects as layered signed-distance drawings.

Local coordinates: u to the right, v down, an object facing right, in the unit circle. Distances are negative inside.
Every function takes tensors of one shape (n, frames, height, width) and works on all clips at once.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from app.starter.canvas import Canvas, constant

COLORS: dict[str, tuple[float, float, float]] = {
    "red": (0.90, 0.12, 0.15),
    "orange": (0.98, 0.50, 0.05),
    "yellow": (0.98, 0.85, 0.10),
    "green": (0.08, 0.72, 0.18),
    "cyan": (0.05, 0.78, 0.80),
    "blue": (0.12, 0.30, 0.92),
    "purple": (0.56, 0.16, 0.82),
    "pink": (0.98, 0.35, 0.68),
    "white": (0.97, 0.97, 0.97),
    "black": (0.07, 0.07, 0.09),
}
WHITE_INDEX = 8
"""Index of white in COLORS; white and black follow the eight hues."""

FEET: dict[str, float] = {"ball": 0.92, "box": 0.87, "car": 0.73, "house": 0.90, "tree": 0.98, "boat": 0.80}
"""Objects that stand on the ground, and how far below their centre they touch it, in radii."""

MAIN, ACCENT, DARK = "main", "accent", "dark"
_DETAILS: dict[str, tuple[float, float, float]] = {
    "ink": (0.22, 0.22, 0.27),
    "grey": (0.62, 0.64, 0.68),
    "white": (0.89, 0.89, 0.89),
    "glass": (0.68, 0.83, 0.89),
    "lamp": (0.89, 0.84, 0.62),
    "flame": (0.90, 0.62, 0.38),
    "beak": (0.86, 0.62, 0.38),
    "wood": (0.44, 0.33, 0.26),
    "roof": (0.46, 0.34, 0.34),
}
_OUTLINE = 0.055
"""Width of the dark outline in radii."""

Layers = list[tuple[Tensor, str]]
Point = tuple[float, float]


def _circle(u: Tensor, v: Tensor, x: float, y: float, radius: float) -> Tensor:
    return torch.sqrt((u - x) ** 2 + (v - y) ** 2 + 1e-9) - radius


def _ellipse(u: Tensor, v: Tensor, x: float, y: float, a: float, b: float) -> Tensor:
    return (torch.sqrt(((u - x) / a) ** 2 + ((v - y) / b) ** 2 + 1e-9) - 1) * min(a, b)


def _tilted(u: Tensor, v: Tensor, cos: float, sin: float, x: float, y: float, a: float, b: float) -> Tensor:
    return _ellipse(u * cos + v * sin, v * cos - u * sin, x, y, a, b)


def _box(u: Tensor, v: Tensor, x: float, y: float, a: float, b: float, corner: float) -> Tensor:
    qx, qy = (u - x).abs() - a + corner, (v - y).abs() - b + corner
    outside = torch.sqrt(qx.clamp(min=0) ** 2 + qy.clamp(min=0) ** 2 + 1e-9)
    return outside + torch.maximum(qx, qy).clamp(max=0) - corner


def _polygon(u: Tensor, v: Tensor, *points: Point) -> Tensor:
    """Convex polygon as the intersection of half planes."""
    cx, cy = (sum(point[axis] for point in points) / len(points) for axis in (0, 1))
    planes = []
    for (x0, y0), (x1, y1) in zip(points, points[1:] + points[:1], strict=True):
        nx, ny = y1 - y0, x0 - x1
        length = math.hypot(nx, ny)
        if (cx - x0) * nx + (cy - y0) * ny > 0:
            length = -length
        planes.append(((u - x0) * nx + (v - y0) * ny) / length)
    return functools.reduce(torch.maximum, planes)


def _union(*parts: Tensor) -> Tensor:
    return functools.reduce(torch.minimum, parts)


def _five_points(u: Tensor, v: Tensor, radius: float, inner: float) -> Tensor:
    """Five-pointed star: fold the plane into one half spike, then the distance to its edge."""
    cos, sin = math.cos(math.pi / 5), math.sin(math.pi / 5)
    x, y = u.abs(), -v
    for kx, ky in ((cos, -sin), (-cos, -sin)):
        over = 2 * (kx * x + ky * y).clamp(min=0)
        x, y = x - over * kx, y - over * ky
    x, y = x.abs(), y - radius
    ex, ey = inner * sin, inner * cos - 1
    along = ((x * ex + y * ey) / (ex**2 + ey**2)).clamp(0, radius)
    away = torch.sqrt((x - ex * along) ** 2 + (y - ey * along) ** 2 + 1e-9)
    return away * torch.sign(y * ex - x * ey)


def _ball(u: Tensor, v: Tensor) -> Layers:
    body = _circle(u, v, 0, 0, 0.92)
    return [(body, MAIN), (torch.maximum(body, v.abs() - 0.15), ACCENT), (_circle(u, v, 0, 0, 0.24), DARK)]


def _gift(u: Tensor, v: Tensor) -> Layers:
    body = _box(u, v, 0, 0.05, 0.82, 0.82, 0.08)
    across, down = torch.maximum(body, (v - 0.05).abs() - 0.13), torch.maximum(body, u.abs() - 0.13)
    return [(body, MAIN), (down, ACCENT), (across, ACCENT)]


def _star(u: Tensor, v: Tensor) -> Layers:
    body = _five_points(u, v + 0.02, 1.05, 0.5) - 0.06
    left, right = _ellipse(u, v, -0.17, -0.08, 0.085, 0.13), _ellipse(u, v, 0.17, -0.08, 0.085, 0.13)
    return [(body, MAIN), (left, "ink"), (right, "ink"), (_box(u, v, 0, 0.2, 0.15, 0.04, 0.04), "ink")]


def _heart(u: Tensor, v: Tensor) -> Layers:
    x, y = (u / 1.55).abs(), (-v + 0.88) / 1.62
    lobe = torch.sqrt((x - 0.25) ** 2 + (y - 0.75) ** 2 + 1e-9) - math.sqrt(2) / 4
    middle = 0.5 * (x + y).clamp(min=0)
    nearest = torch.minimum(x**2 + (y - 1) ** 2, (x - middle) ** 2 + (y - middle) ** 2)
    point = torch.sqrt(nearest + 1e-9) * torch.sign(x - y)
    body = torch.where(x + y > 1, lobe, point) * 1.55
    return [(body, MAIN), (_tilted(u, v, 0.8, 0.6, -0.66, -0.02, 0.22, 0.11), ACCENT)]


def _fish(u: Tensor, v: Tensor) -> Layers:
    belly = _ellipse(u, v, 0.15, 0, 0.80, 0.52)
    upper = _polygon(u, v, (-0.45, 0), (-1.05, -0.5), (-0.85, 0))
    lower = _polygon(u, v, (-0.45, 0), (-1.05, 0.5), (-0.85, 0))
    fin = _polygon(u, v, (-0.2, -0.4), (0.35, -0.42), (-0.15, -0.78))
    stripes = [torch.maximum(belly, (u - 0.12).abs() - 0.075), torch.maximum(belly, (u + 0.2).abs() - 0.06)]
    eye = [(_circle(u, v, 0.58, -0.12, 0.15), "white"), (_circle(u, v, 0.62, -0.12, 0.075), "ink")]
    return [(_union(belly, upper, lower, fin), MAIN), *((stripe, ACCENT) for stripe in stripes), *eye]


def _car(u: Tensor, v: Tensor) -> Layers:
    cabin = _polygon(u, v, (-0.68, 0), (-0.42, -0.50), (0.28, -0.50), (0.66, 0)) - 0.05
    rear = _polygon(u, v, (-0.50, -0.06), (-0.33, -0.40), (-0.09, -0.40), (-0.09, -0.06))
    front = _polygon(u, v, (0.03, -0.06), (0.03, -0.40), (0.22, -0.40), (0.46, -0.06))
    wheels = [(_circle(u, v, x, 0.46, r), paint) for r, paint in ((0.27, "ink"), (0.11, "grey")) for x in (-0.52, 0.54)]
    body = _union(_box(u, v, 0, 0.16, 1.0, 0.29, 0.14), cabin)
    return [(body, MAIN), (rear, "glass"), (front, "glass"), *wheels, (_ellipse(u, v, 0.92, 0.08, 0.08, 0.09), "lamp")]


def _boat(u: Tensor, v: Tensor) -> Layers:
    return [
        (_box(u, v, -0.05, -0.15, 0.04, 0.78, 0.02), "wood"),
        (_polygon(u, v, (0.04, -0.92), (0.04, 0.18), (0.80, 0.18)), ACCENT),
        (_polygon(u, v, (-0.14, -0.62), (-0.14, 0.18), (-0.68, 0.18)), MAIN),
        (_polygon(u, v, (-1.02, 0.30), (1.02, 0.30), (0.68, 0.84), (-0.68, 0.84)) - 0.03, MAIN),
        (_box(u, v, 0, 0.40, 0.9, 0.045, 0.02), ACCENT),
    ]


def _rocket(u: Tensor, v: Tensor) -> Layers:
    hull = _ellipse(u, v, 0, -0.10, 0.40, 0.86)
    left = _polygon(u, v, (-0.30, 0.12), (-0.70, 0.72), (-0.25, 0.56))
    right = _polygon(u, v, (0.30, 0.12), (0.70, 0.72), (0.25, 0.56))
    return [
        (_ellipse(u, v, 0, 0.70, 0.20, 0.30), "flame"),
        (_ellipse(u, v, 0, 0.66, 0.10, 0.18), "lamp"),
        (_union(left, right), DARK),
        (torch.maximum(hull, v - 0.55), MAIN),
        (torch.maximum(hull, v + 0.55), ACCENT),
        (_circle(u, v, 0, -0.12, 0.20), "grey"),
        (_circle(u, v, 0, -0.12, 0.145), "glass"),
    ]


def _balloon(u: Tensor, v: Tensor) -> Layers:
    string = _box(u + 0.05 * torch.sin(v * 9), v, 0, 0.80, 0.025, 0.24, 0.02)
    body = _union(_ellipse(u, v, 0, -0.22, 0.66, 0.76), _polygon(u, v, (0, 0.46), (-0.13, 0.66), (0.13, 0.66)))
    return [(string, "wood"), (body, MAIN), (_tilted(u, v, 0.85, 0.5, -0.46, -0.30, 0.09, 0.20), ACCENT)]


def _bird(u: Tensor, v: Tensor) -> Layers:
    tail = _polygon(u, v, (-0.50, 0.02), (-1.08, -0.30), (-1.0, 0.22))
    body = _union(_ellipse(u, v, -0.05, 0.12, 0.66, 0.44), _circle(u, v, 0.48, -0.26, 0.32), tail)
    return [
        (_polygon(u, v, (0.72, -0.36), (1.08, -0.20), (0.72, -0.10)), "beak"),
        (_box(u, v, -0.08, 0.62, 0.04, 0.16, 0.02), "wood"),
        (_box(u, v, 0.14, 0.62, 0.04, 0.16, 0.02), "wood"),
        (body, MAIN),
        (_tilted(u, v, 0.92, 0.38, -0.12, 0.12, 0.40, 0.20), ACCENT),
        (_circle(u, v, 0.56, -0.34, 0.10), "white"),
        (_circle(u, v, 0.59, -0.34, 0.055), "ink"),
    ]


def _tree(u: Tensor, v: Tensor) -> Layers:
    trunk = _polygon(u, v, (-0.12, 0.2), (0.12, 0.2), (0.19, 0.98), (-0.19, 0.98))
    crown = [
        _circle(u, v, x, y, r)
        for x, y, r in ((0, -0.48, 0.47), (-0.42, -0.02, 0.42), (0.42, -0.02, 0.42), (0, 0.06, 0.42))
    ]
    fruit = [_circle(u, v, x, y, 0.09) for x, y in ((-0.4, -0.02), (0.12, -0.48), (0.42, 0.08), (0.02, 0.0))]
    return [(trunk, "wood"), (_union(*crown), MAIN), (_union(*fruit), ACCENT)]


def _house(u: Tensor, v: Tensor) -> Layers:
    return [
        (_box(u, v, 0.48, -0.62, 0.10, 0.26, 0.02), "wood"),
        (_box(u, v, 0, 0.38, 0.70, 0.52, 0.03), MAIN),
        (_polygon(u, v, (-0.98, -0.10), (0, -0.92), (0.98, -0.10)), "roof"),
        (_box(u, v, -0.26, 0.58, 0.17, 0.32, 0.03), "wood"),
        (_box(u, v, 0.30, 0.30, 0.20, 0.19, 0.03), "glass"),
        (_box(u, v, 0.30, 0.30, 0.02, 0.19, 0.01), "grey"),
    ]


_DRAWINGS: dict[str, Callable[[Tensor, Tensor], Layers]] = {
    "ball": _ball,
    "box": _gift,
    "star": _star,
    "heart": _heart,
    "fish": _fish,
    "car": _car,
    "boat": _boat,
    "rocket": _rocket,
    "balloon": _balloon,
    "bird": _bird,
    "tree": _tree,
    "house": _house,
}
SHAPES = tuple(_DRAWINGS)


@dataclass(frozen=True)
class Pose:
    """Where an object is on screen; float32 (n, frames) each, but ``facing`` (n, 1): 1 right, -1 left.

    x, y, radius in canvas heights; angle in radians; stretches are factors; ground is the shadow's y, None without one.
    """

    x: Tensor
    y: Tensor
    radius: Tensor
    angle: Tensor
    stretch_x: Tensor
    stretch_y: Tensor
    facing: Tensor
    ground: Tensor | None


def draw_object(video: Tensor, shape: str, rgb: Tensor, color_index: Tensor, pose: Pose, canvas: Canvas) -> Tensor:
    """Draws one object per clip over ``video`` float32 (n, 3, frames, height, width) and returns the new video.

    rgb: float32 (n, 3); color_index: int64 (n,), index in COLORS (white gets grey accents, both plain ones less shade).
    """
    device, height = video.device, canvas.height
    screen_x = ((torch.arange(canvas.width, device=device) + 0.5) / height).view(1, 1, 1, -1)
    screen_y = ((torch.arange(height, device=device) + 0.5) / height).view(1, 1, -1, 1)
    x, y, radius = pose.x[..., None, None], pose.y[..., None, None], pose.radius[..., None, None]
    dx, dy = (screen_x - x) / radius, (screen_y - y) / radius
    if pose.ground is not None:
        floating = (pose.ground - (pose.y + pose.radius)).clamp(min=0)
        strength = (1 - 1.6 * floating).clamp(0.12, 1)[..., None, None]
        below = (screen_y - pose.ground[..., None, None]) / (radius * 0.16)
        video = video * (1 - (0.30 * strength * torch.exp(-1.3 * ((dx / 0.95) ** 2 + below**2)))[:, None])
    cos, sin = torch.cos(pose.angle)[..., None, None], torch.sin(pose.angle)[..., None, None]
    u = (cos * dx + sin * dy) / pose.stretch_x[..., None, None] * pose.facing[..., None, None]
    v = (cos * dy - sin * dx) / pose.stretch_y[..., None, None]
    layers = _DRAWINGS[shape](u, v)

    plain = (color_index >= WHITE_INDEX).view(-1, 1, 1, 1)
    light = 1.02 - 0.13 * dy - 0.05 * dx + 0.07 * torch.exp(-((dx + 0.35) ** 2 + (dy + 0.4) ** 2) * 5)
    light = (1 + (light.clamp(0.80, 1.12) - 1) * torch.where(plain, 0.25, 1.0))[:, None]
    main = rgb.view(-1, 3, 1, 1, 1)
    grey, bright = constant((0.60, 0.62, 0.68), device), constant((0.95, 0.95, 0.95), device)
    accent = torch.where((color_index == WHITE_INDEX).view(-1, 1), grey, bright).view(-1, 3, 1, 1, 1)
    paints = {MAIN: main, ACCENT: accent, DARK: main * 0.62}

    pixels = radius * height
    outline = ((_OUTLINE - _union(*(distance for distance, _ in layers))) * pixels + 0.5).clamp(0, 1)
    video = video + outline[:, None] * (main * 0.40 + 0.02 - video)
    for distance, name in layers:
        paint = paints[name] if name in paints else constant(_DETAILS[name], device).view(1, 3, 1, 1, 1)
        cover = (0.5 - distance * pixels).clamp(0, 1)[:, None]
        video = video + cover * ((paint * light).clamp(0, 1) - video)
    return video


def main_mask(shape: str, facing: float, angle: float, radius: float, size: int, device: torch.device) -> Tensor:
    """Coverage float32 (size, size), 0..1, of the part of an object that has its main colour; radius in pixels."""
    grid = (torch.arange(size, device=device) + 0.5 - size / 2) / radius
    dy, dx = torch.meshgrid(grid, grid, indexing="ij")
    cos, sin = math.cos(angle), math.sin(angle)
    mask = torch.zeros(size, size, device=device)
    for distance, name in _DRAWINGS[shape]((cos * dx + sin * dy) * facing, cos * dy - sin * dx):
        cover = (0.5 - distance * radius).clamp(0, 1)
        mask = mask + cover * (float(name == MAIN) - mask)
    return mask
