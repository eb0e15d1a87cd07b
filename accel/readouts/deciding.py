"""What readouts decide of a plan: a stage's dtype, and its backends. A clause for each that was passed over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from accel import policy, precision
from accel.contract import Backend
from accel.figures import milliseconds
from accel.readouts.ranking import Rank, Readouts, shape_class
from accel.types import Choice, Kind, StageTraits


def dtype(
    readouts: Readouts,
    registry: Iterable[Backend],
    traits: StageTraits,
    kinds: Iterable[Kind],
    place: str,
    allowed: Iterable[str],
) -> tuple[str, tuple[str, ...]] | None:
    """float32, or the other dtype that was measured if it is worth its rounding, and why. None when only one was
    measured, or the machine was busy meanwhile. Exact backends count alone: an approximate one in float32 rounds more
    than bf16."""
    if traits.stage in readouts.noisy:
        return None
    known = {(item.kind, item.name) for item in registry}
    totals: dict[str, float] = {}
    for name in allowed:
        best = [_best(readouts, traits, kind, name, place, known) for kind in kinds]
        if best and all(best):
            totals[name] = sum(rank.seconds for rank in best if rank is not None)
    low = min((name for name in totals if name != "float32"), key=lambda name: totals[name], default="")
    if not low or "float32" not in totals:
        return None
    narrow, wide = milliseconds(totals[low] * 1e3), milliseconds(totals["float32"] * 1e3)
    told = f"measured on this machine: its calls take {narrow} in {low} and {wide} in float32"
    if totals["float32"] < totals[low] * policy.WORTH:
        return "float32", (told,)
    return low, (told, precision.ROUNDING)


def backend(
    readouts: Readouts,
    traits: StageTraits,
    kind: Kind,
    dtype: str,
    place: str,
    known: Mapping[str, Backend],
    why_not: Callable[[Backend], list[str]],
) -> Choice:
    """What won on this machine for this shape, as far as it may be taken; else the reference. There must be readouts.

    why_not: every reason against a backend here, empty when it can run.
    """
    ranks = readouts.of(traits.stage, kind, dtype, place)
    passed: list[str] = []
    chosen = ranks[0]
    for rank in ranks[1:]:
        if rank.backend not in known:
            continue
        refused = _against(readouts, traits, kind, rank)
        reasons = [refused] if refused else why_not(known[rank.backend])
        if not reasons:
            chosen = rank
            break
        passed.append(f"not {rank.backend}: {'; '.join(reasons)}")
    listed = ", ".join(f"{rank.backend} {milliseconds(rank.seconds * 1e3)}" for rank in sorted(ranks, key=_seconds))
    fastest, none = "the fastest measured", "nothing faster that may be chosen automatically was measured"
    why = fastest if chosen is not ranks[0] else none
    told = [f"{why} on this machine for this shape ({shape_class(traits)})", *passed, f"measured here: {listed}"]
    quality = readouts.qualities.get((traits.stage, kind, chosen.backend))
    if quality is not None and not chosen.exact:
        told.insert(1, f"approximate: its clips reach {quality.psnr:.1f} dB against the reference plan's")
    return Choice(traits.stage, kind, "auto", chosen.backend, tuple(told))


def _best(
    readouts: Readouts, traits: StageTraits, kind: Kind, dtype: str, place: str, known: set[tuple[Kind, str]]
) -> Rank | None:
    """The fastest exact one that may be taken of the backends measured, None without a measurement."""
    ranks = (rank for rank in readouts.of(traits.stage, kind, dtype, place) if rank.exact)
    free = (rank for rank in ranks if (kind, rank.backend) in known and not _against(readouts, traits, kind, rank))
    return min(free, key=_seconds, default=None)


def _against(readouts: Readouts, traits: StageTraits, kind: Kind, rank: Rank) -> str:
    """Why a backend that was measured may not be taken, empty when it may."""
    return "" if rank.verdict == "reference" else readouts.why_not(traits.stage, kind, rank)


def _seconds(rank: Rank) -> float:
    return rank.seconds
