"""Step caches: what consecutive denoising steps have in common is computed once and used again.

diffusers brings the methods, as hooks on a transformer's blocks; caching.py puts them in and counts. Here stands what a
plan says about them: their names, how far each may go, what they need, and why one can't be had. All of them change the
clip, so `auto` takes none. A wish reads `first_block` or, with a strength of its own, `first_block:0.1`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from accel.errors import Unknown
from accel.readouts.results import Quality
from accel.types import NO_CACHE, Choice, Preferences, StageTraits

NONE = "none"
PASSES = 2
"""Passes a step with guidance: what a cache keeps, it keeps for each."""


@dataclass(frozen=True)
class StepCache:
    """One method. strength: how far it goes by itself, and from where to where it may; meaning: what that number is.

    attention: it skips every block's self-attention and keeps its output, else whole blocks and tensors of one block's
    size.
    """

    name: str
    title: str
    meaning: str
    strength: float
    least: float
    most: float
    whole: bool = False
    attention: bool = False

    @property
    def limits(self) -> str:
        return f"{self.least:g} to {self.most:g}"


CACHES = (
    StepCache(
        "first_block",
        "First block cache",
        "relative change of the first block's work up to which the other blocks' is used again",
        0.05,
        0.001,
        1.0,
    ),
    StepCache(
        "mag",
        "MagCache",
        "error that may gather before blocks are computed again; measured once for each model, in its first clip",
        0.06,
        0.001,
        1.0,
    ),
    StepCache("taylorseer", "TaylorSeer lite", "steps from one that is computed to the next", 3, 2, 10, whole=True),
    StepCache(
        "pyramid",
        "Pyramid attention broadcast",
        "steps for which the self-attention of one is used, between 20 and 90 % of the clip",
        2,
        2,
        10,
        whole=True,
        attention=True,
    ),
)
NAMES = tuple(cache.name for cache in CACHES)
REHEARSED = ("mag",)
"""Those whose first clip of a model only measures it."""


def known(name: str) -> StepCache | None:
    """The method that a wish or an engaged choice names, with or without a strength; None for another name."""
    return next((cache for cache in CACHES if cache.name == name.partition(":")[0]), None)


def strength_of(wish: str) -> float:
    """The strength in a wish, the method's own without one. Raises ValueError with the limits as a clause."""
    cache = known(wish)
    if cache is None:
        raise ValueError(f"{wish} is not known, allowed are auto, {NONE}, {', '.join(NAMES)}")
    _, colon, text = wish.partition(":")
    if not colon:
        return cache.strength
    kind = "a whole number" if cache.whole else "a number"
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not cache.least <= value <= cache.most or (cache.whole and value != int(value)):
        raise ValueError(f"its strength is {kind} from {cache.limits}, not {text or 'nothing'} ({cache.meaning})")
    return value


def choose(
    wishes: Preferences, traits: StageTraits, blocks: str, qualities: Mapping[Any, Quality]
) -> tuple[Choice, str]:
    """The decision for a stage, and why a wish can't be kept as one sentence, empty when it can.

    blocks: how the stage's blocks will run, the engaged choice of `compile`; qualities: of `Readouts`.
    """
    wish = wishes.cache
    if traits.stage != "transformer":
        return NO_CACHE, ""
    if wish == "auto":
        return Choice("transformer", "cache", wish, NONE, ("step caches change the clip, so they are only chosen",)), ""
    if wish == NONE:
        return Choice("transformer", "cache", wish, NONE, ("asked for",)), ""
    cache = known(wish)
    try:
        strength = strength_of(wish)
    except ValueError as error:
        return NO_CACHE, Unknown(f"cache={wish} can't be used: {error}" if cache is not None else f"cache={error}")
    assert cache is not None
    reason = why_not(cache, traits, blocks)
    if reason:
        return NO_CACHE, f"cache={wish} can't be used here: {reason}"
    engaged = cache.name if strength == cache.strength else f"{cache.name}:{strength:g}"
    told = ["asked for; approximate: the clip will differ", f"{strength:g}: {cache.meaning}"]
    quality = qualities.get(("transformer", "cache", cache.name))
    if quality is not None and engaged == cache.name:
        told.append(f"measured here, its clips reach {quality.psnr:.1f} dB against the reference plan's")
    return Choice("transformer", "cache", wish, engaged, tuple(told)), ""


def why_not(cache: StepCache, traits: StageTraits, blocks: str = "no") -> str:
    """Why a model can't be run with a cache, as a clause; empty when it can."""
    reason = traits.caches.get(cache.name, f"nothing is known of {traits.class_name} that would allow it")
    if reason:
        return reason
    if blocks != "no" and cache.attention:
        return f"it skips attention inside the blocks, which compile={blocks} makes into one piece; choose compile=no"
    return ""


def memory(engaged: str, traits: StageTraits, width: int) -> int:
    """Bytes that a cache keeps between steps. width: bytes of one number of the transformer's dtype."""
    cache = known(engaged)
    if cache is None:
        return 0
    tensor = traits.tokens * traits.heads * traits.head_dim * width * PASSES
    return tensor * (traits.self_attention if cache.attention else 3)
