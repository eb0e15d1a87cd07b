"""From readouts to what `make_plan` reads: for each stage and kind the backends in order, and who may not be taken.

Figures count for stages of the same shape class: the same module and width, and a number of tokens of the same power of
two. Quality counts for the very model it was measured with.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from accel.figures import milliseconds
from accel.readouts.results import AUTOMATIC, Measurement, Quality, Results, Row, Spread, Verdict, judged
from accel.types import Kind, ModelTraits, StageName, StageTraits

Key = tuple[StageName, Kind, str, str]
"""Stage, kind of work, the dtype that the stage runs in, and the device type."""


@dataclass(frozen=True)
class Rank:
    """One backend for all calls of one stage and kind. seconds: of one pass, calls it does not serve included."""

    backend: str
    exact: bool
    seconds: float
    verdict: Verdict
    why: str = ""


@dataclass(frozen=True)
class Readouts:
    """What was measured on this machine and counts for one model: empty where nothing was.

    noisy: stages measured beside other programs. There gains, which are taken in turns, still tell who is faster; sums
    of times don't, so that these decide no dtype.
    """

    ranks: dict[Key, tuple[Rank, ...]] = field(default_factory=dict)
    qualities: dict[tuple[StageName, Kind, str], Quality] = field(default_factory=dict)
    noisy: frozenset[str] = frozenset()

    def of(self, stage: StageName, kind: Kind, dtype: str, device: str) -> tuple[Rank, ...]:
        """The backends measured on that type of device, the reference first, then by time; empty without a figure."""
        return self.ranks.get((stage, kind, dtype, device), ())

    def why_not(self, stage: StageName, kind: Kind, rank: Rank) -> str:
        """Why `auto` must not prefer this backend to the reference, as a clause; empty when it may."""
        if rank.verdict != "faster":
            return rank.why
        if rank.exact:
            return ""
        quality = self.qualities.get((stage, kind, rank.backend))
        return "approximate, and its clips of this model were never compared" if quality is None else quality.why_not


def shape_class(traits: StageTraits) -> str:
    """What must be alike for figures of one model to count for another, in words: "WanTransformer3DModel, 12 x 128,
    4096 to 8191 tokens"."""
    width = f"{traits.channels} channels" if traits.stage == "vae" else f"{traits.heads} x {traits.head_dim}"
    if traits.tokens < 1:
        return f"{traits.class_name}, {width}"
    floor = 2 ** (traits.tokens.bit_length() - 1)
    return f"{traits.class_name}, {width}, {floor} to {2 * floor - 1} tokens"


def classes(traits: ModelTraits) -> dict[str, str]:
    """Shape class by stage."""
    return {stage.stage: shape_class(stage) for stage in traits.stages}


def for_model(results: Results | None, traits: ModelTraits, model: str = "") -> Readouts:
    """What of `results` counts for `traits`; quality for the model of that name alone. A full measurement counts more
    than a quick one, then the newer one."""
    if results is None:
        return Readouts()
    ranks: dict[Key, tuple[Rank, ...]] = {}
    noisy: set[str] = set()
    for name in classes(traits):
        made = newest(results, traits, name)
        if made is not None:
            ranks |= _ranked(row for row in made.rows if row.call.stage == name)
            noisy |= set() if made.quiet else {name}
    qualities = {(one.stage, one.kind, one.backend): one for one in results.qualities if model and one.model == model}
    return Readouts(ranks, qualities, frozenset(noisy))


@dataclass(frozen=True)
class Figures:
    """One backend over all calls of a stage and kind. speedup: against plain torch in the plan's dtype; error: the
    largest; share_of_peak: over its own calls."""

    speedup: float
    error: float
    share_of_peak: float | None


def newest(results: Results, traits: ModelTraits, stage: str) -> Measurement | None:
    """What counts for a stage: the newest full measurement of its shape class, else the newest quick one."""
    wanted = shape_class(found) if (found := traits.stage(stage)) is not None else ""
    alike = (one for one in results.measurements if one.classes.get(stage) == wanted)
    return max(alike, key=lambda one: (not one.quick, one.when), default=None)


def figures(results: Results | None, traits: ModelTraits) -> dict[tuple[StageName, Kind, str], Figures]:
    """For every backend that was measured here with this model's shapes, by stage, kind and name."""
    found: dict[tuple[StageName, Kind, str], Figures] = {}
    for stage in traits.stages if results is not None else ():
        assert results is not None
        made = newest(results, traits, stage.stage)
        if made is None:
            continue
        rows = [row for row in made.rows if row.call.stage == stage.stage and row.time is not None]
        planned = made.dtypes.get(stage.stage, "")
        for kind, backend in dict.fromkeys((row.call.kind, row.backend) for row in rows):
            own = [row for row in rows if (row.call.kind, row.backend) == (kind, backend)]
            dtype = planned if any(row.dtype == planned for row in own) else own[0].dtype
            plain = [row for row in rows if row.call.kind == kind and row.dtype == planned]
            one = _figures([row for row in own if row.dtype == dtype], plain)
            if one is not None:
                found[stage.stage, kind, backend] = one
    return found


def cache_speedups(results: Results | None, traits: ModelTraits) -> dict[str, float]:
    """By step cache, how many times as fast a step was with it as without, in clips of this model's shapes."""
    made = None if results is None else newest(results, traits, "transformer")
    steps = {clip.plan: clip.per_step for clip in made.clips if not clip.failed} if made is not None else {}
    plain = steps.get(AUTOMATIC)
    stage = traits.stage("transformer")
    with_cache = {name: steps.get(f"{AUTOMATIC} with {name}") for name in (stage.caches if stage is not None else ())}
    return {name: plain / seconds for name, seconds in with_cache.items() if plain and seconds}


def _figures(own: list[Row], planned: list[Row]) -> Figures | None:
    """Calls that the backend does not serve take as long as without it."""
    plain = {
        row.call.title: row.time.median * row.call.weight
        for row in planned
        if row.verdict == "reference" and row.time is not None
    }
    if not plain or not own:
        return None
    gains = {row.call.title: row.speedup for row in own if row.speedup and row.verdict != "not served"}
    total = sum(seconds / gains.get(title, 1.0) for title, seconds in plain.items())
    shares = [(row.share_of_peak, row.time.median * row.call.weight) for row in own if row.time is not None]
    known = [(share, seconds) for share, seconds in shares if share is not None]
    whole = sum(seconds for _, seconds in known)
    share = sum(share * seconds for share, seconds in known) / whole if whole else None
    return Figures(sum(plain.values()) / total, max(row.error or 0.0 for row in own), share)


def _ranked(rows: Iterable[Row]) -> dict[Key, tuple[Rank, ...]]:
    together: dict[Key, list[Row]] = {}
    for row in rows:
        device = row.device.partition(":")[0]
        together.setdefault((row.call.stage, row.call.kind, row.dtype, device), []).append(row)
    return {key: found for key, all_rows in together.items() if (found := _of_one_kind(all_rows))}


def _of_one_kind(rows: list[Row]) -> tuple[Rank, ...]:
    """All backends over all calls; empty where the reference lacks a figure, since nothing can be compared then."""
    reference = {row.call.title: row for row in rows if row.verdict == "reference"}
    plain = {title: row.time.median * row.call.weight for title, row in reference.items() if row.time is not None}
    if not plain or any(row.call.title not in plain for row in rows):
        return ()
    first = Rank(next(iter(reference.values())).backend, True, sum(plain.values()), "reference")
    others = [
        _one(backend, {row.call.title: row for row in rows if row.backend == backend}, plain)
        for backend in dict.fromkeys(row.backend for row in rows if row.verdict != "reference")
    ]
    return (first, *sorted(others, key=lambda one: one.seconds))


def _one(backend: str, own: dict[str, Row], plain: dict[str, float]) -> Rank:
    """A call that a backend does not serve costs what it costs the reference. The quartiles of all calls are taken to
    fall together, which is the careful thing to do."""
    median = low = high = 0.0
    for title, seconds in plain.items():
        row = own.get(title)
        gain = row.gain if row is not None and row.verdict != "not served" else None
        median += seconds / (gain.median if gain else 1.0)
        low += seconds / (gain.low if gain else 1.0)
        high += seconds / (gain.high if gain else 1.0)
    exact, whole = all(row.exact for row in own.values()), sum(plain.values())
    spoiled = next((row for row in own.values() if row.verdict in ("wrong", "failed")), None)
    if spoiled is not None:
        why = spoiled.note or f"{spoiled.verdict} in {spoiled.call.title}"
        return Rank(backend, exact, median, spoiled.verdict, why)
    repeats = min((row.gain.repeats for row in own.values() if row.gain is not None), default=0)
    verdict = judged(Spread(whole / median, whole / low, whole / high, repeats))
    return Rank(backend, exact, median, verdict, "" if verdict == "faster" else _told(verdict, median, whole))


def _told(verdict: Verdict, own: float, plain: float) -> str:
    words = {"no gain": "no gain", "slower": "slower", "unclear": "no winner inside the spread"}
    return f"{words[verdict]} measured here: {milliseconds(own * 1e3)}, {milliseconds(plain * 1e3)} without"
