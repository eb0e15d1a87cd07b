"""Calls timed in turns: what else the machine does meanwhile hits all of them alike."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from accel.readouts.results import Spread

Samples = list[float]

SAMPLE = 2e-3
"""Seconds that one sample lasts at least: a shorter call is repeated in it, so that the clock's own cost vanishes."""

LEAST, MOST = 7, 101
"""Samples of each call: this many at least, and never more than the other."""

LONG, LEAST_OF_LONG = 2.0, 3
"""Where all calls together take longer than so many seconds, so few samples may have to do."""

CALM, ENOUGH = 0.02, 11
"""Quartiles this close together, relative to the median, after so many samples need no more of them."""


class Stopped(Exception):  # noqa: N818 - what a person asked for is no error
    """The measurement was told to stop."""


ShouldStop = Callable[[], bool]


def interleave(
    calls: Mapping[str, Callable[[], Any]],
    seconds: float,
    *,
    wait: Callable[[], Any] = lambda: None,
    should_stop: ShouldStop = lambda: False,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Samples]:
    """Seconds of one call each, as samples taken in turns for about `seconds` seconds in all.

    Every round begins with another one. `wait` returns when the device has done all that was asked of it. A first run
    of each, which also tells how often it is repeated in one sample, is not counted. Raises Stopped.
    """

    def sample(call: Callable[[], Any], repeats: int) -> float:
        if should_stop():
            raise Stopped
        wait()
        start = clock()
        for _ in range(repeats):
            call()
        wait()
        return (clock() - start) / repeats

    begun = clock()
    end = begun + seconds
    repeats = {name: max(1, math.ceil(SAMPLE / max(sample(call, 1), 1e-7))) for name, call in calls.items()}
    names, found = list(calls), {name: Samples() for name in calls}
    least = LEAST if clock() - begun <= LONG else LEAST_OF_LONG
    for round_number in range(MOST):
        if round_number >= least and (clock() >= end or _calm(found, round_number)):
            break
        first = round_number % len(names)
        for name in names[first:] + names[:first]:
            found[name].append(sample(calls[name], repeats[name]))
    return found


def _calm(found: Mapping[str, Sequence[float]], rounds: int) -> bool:
    return rounds >= ENOUGH and all(spread(samples).width < CALM for samples in found.values())


def gain(own: Sequence[float], reference: Sequence[float]) -> Spread:
    """How many times as fast, from samples of the same rounds: what slowed a round down slowed both."""
    return spread([theirs / ours for ours, theirs in zip(own, reference, strict=True)])


def spread(samples: Sequence[float]) -> Spread:
    """Median and quartiles."""
    if len(samples) == 1:
        return Spread(samples[0], samples[0], samples[0], 1)
    low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
    return Spread(median, low, high, len(samples))
