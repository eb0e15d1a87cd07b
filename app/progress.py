"""What a person is told while a clip is made: the stage, the step, how much is done and about how long it takes still.

`Progress` is plain data, so that it can cross a pipe between processes. `StageClock` measures the stages of one clip
and turns the time that the steps took, together with the stage times of an earlier clip of the same kind, into an
estimate. The estimate is arithmetic on measured times only: before anything was measured there is none, rather than a
guess.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Stage = Literal["loading", "text", "compiling", "denoising", "decoding", "saving"]
STAGES: tuple[Stage, ...] = ("loading", "text", "compiling", "denoising", "decoding", "saving")

# The key under which a stage's seconds are stored in a clip's timings.
TIMING_KEYS: dict[Stage, str] = {
    "loading": "load",
    "text": "text",
    "compiling": "compile",
    "denoising": "denoise",
    "decoding": "decode",
    "saving": "save",
}

# Shares of the bar while nothing has been measured yet: they move a bar, they are never shown as time.
# Compiling happens once for many clips, so no clip is taken to need it before it begins.
_SHARES: dict[Stage, float] = {
    "loading": 0.10,
    "text": 0.02,
    "compiling": 0.0,
    "denoising": 0.68,
    "decoding": 0.18,
    "saving": 0.02,
}


@dataclass(frozen=True)
class Progress:
    """One message about the clip that is being made.

    `step` of `steps` counts within the stage: components while loading, denoising steps, latent frames while
    decoding. `fraction` (0..1) is of the whole clip and never falls. `preview` is uint8 (latent frames, height,
    width, 3) or None. `eta_seconds` is for the whole clip, None while there is nothing to reckon with.
    """

    stage: Stage
    step: int
    steps: int
    fraction: float
    preview: npt.NDArray[np.uint8] | None = None
    eta_seconds: float | None = None

    def without_preview(self) -> dict[str, Any]:
        """The message as JSON-able data."""
        return {
            "stage": self.stage,
            "step": self.step,
            "steps": self.steps,
            "fraction": round(self.fraction, 4),
            "eta_seconds": None if self.eta_seconds is None else round(self.eta_seconds, 2),
        }


class StageClock:
    """Seconds per stage of one clip, and what follows from them.

    `earlier` holds the timings of an earlier clip of the same kind (keys as in `TIMING_KEYS`), if there was one.
    """

    def __init__(
        self, earlier: Mapping[str, float] | None = None, now: Callable[[], float] = time.perf_counter
    ) -> None:
        self._earlier = dict(earlier or {})
        self._now = now
        self._stage: Stage | None = None
        self._entered = now()
        self._spent: dict[Stage, float] = {}
        self._done: set[Stage] = set()
        self._skipped: set[Stage] = set()
        self._step = 0
        self._steps = 1
        self._fraction = 0.0

    def expect(self, earlier: Mapping[str, float]) -> None:
        """From now on reckon with the timings of `earlier`."""
        self._earlier = dict(earlier)

    @property
    def stage(self) -> Stage | None:
        """The stage that is running."""
        return self._stage

    @property
    def position(self) -> tuple[int, int]:
        """(step, steps) within the running stage."""
        return self._step, self._steps

    def enter(self, stage: Stage, steps: int = 1) -> None:
        """End the running stage and begin another; entering a stage again goes on adding to it."""
        self.leave()
        self._stage, self._step, self._steps = stage, 0, max(1, steps)
        self._done.discard(stage)

    def leave(self) -> None:
        """End the running stage."""
        moment = self._now()
        if self._stage is not None:
            self._spent[self._stage] = self._spent.get(self._stage, 0.0) + moment - self._entered
            self._done.add(self._stage)
        self._stage = None
        self._entered = moment

    def skip(self, stage: Stage) -> None:
        """This clip does without that stage."""
        self._skipped.add(stage)

    def advance(self, step: int) -> None:
        """`step` steps of the running stage are done."""
        self._step = min(step, self._steps)

    def timings(self) -> dict[str, float]:
        """Seconds of each finished stage, and of them together as `total`."""
        seconds = {TIMING_KEYS[stage]: self._spent[stage] for stage in STAGES if stage in self._done}
        return {**seconds, "total": sum(seconds.values())}

    def progress(self, preview: npt.NDArray[np.uint8] | None = None) -> Progress:
        """The message that describes this moment."""
        stage = self._stage or "loading"
        self._fraction = max(self._fraction, self._reckon_fraction())
        return Progress(stage, self._step, self._steps, self._fraction, preview, self._reckon_eta())

    def _reckon_fraction(self) -> float:
        weights = self._weights()
        whole = sum(weights.values()) or 1.0
        done = sum(weights[stage] for stage in self._done)
        if self._stage is not None and self._stage not in self._done:
            done += weights[self._stage] * self._step / self._steps
        return min(1.0, done / whole)

    def _weights(self) -> dict[Stage, float]:
        """Seconds of an earlier clip where it tells all of them, else the fixed shares."""
        return {**self._usual_weights(), **dict.fromkeys(self._skipped, 0.0)}

    def _usual_weights(self) -> dict[Stage, float]:
        if all(TIMING_KEYS[stage] in self._earlier for stage in ("text", "denoising", "decoding")):
            seconds = {stage: self._earlier.get(TIMING_KEYS[stage], 0.0) for stage in STAGES}
            return {**seconds, "compiling": 0.0}
        return dict(_SHARES)

    def _reckon_eta(self) -> float | None:
        """Seconds left of the whole clip, None while one of the stages to come can't be reckoned."""
        if self._stage is None:
            return None
        spent = self._now() - self._entered
        if self._step > 0:
            left: float | None = spent / self._step * (self._steps - self._step)
        else:
            known = self._expected(self._stage)
            left = None if known is None else max(0.0, known - spent)
        for stage in STAGES[STAGES.index(self._stage) + 1 :]:
            known = self._expected(stage)
            if left is None or known is None:
                return None
            left += known
        return left

    def _expected(self, stage: Stage) -> float | None:
        """Seconds of a whole stage: as an earlier clip took, else its usual share of what denoising takes."""
        if stage in self._skipped:
            return 0.0
        known = self._earlier.get(TIMING_KEYS[stage])
        if stage == "compiling":
            return known if self._stage == stage else 0.0
        if known is not None:
            return known
        if "denoising" in self._done:
            denoising = self._spent["denoising"]
        elif self._stage == "denoising" and self._step > 0:
            denoising = (self._now() - self._entered) / self._step * self._steps
        elif "denoise" in self._earlier:
            denoising = self._earlier["denoise"]
        else:
            return None
        return denoising * _SHARES[stage] / _SHARES["denoising"]
