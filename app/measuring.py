"""What can be measured on this machine, and how far that is, as plain data that page, command line and worker share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from accel.figures import duration
from app.models import family_for
from app.request import AccelPreferences, GenerationRequest

PROMPT = "a red ball bounces up and down"
"""For clips that are measured where a request has none: an empty one runs without guidance, half as long."""

SEED = 7
"""For clips that are compared, where the request has no seed of its own."""

RECKONED_FROM = 0.15
"""Part of a measurement after which the time left is told: before, starting up would count for too much."""

State = Literal["none", "waiting", "running", "done", "failed", "stopped"]


@dataclass(frozen=True)
class MeasureAsk:
    """What to measure. request: as its family normalised it.

    bench: every backend at the model's calls, then clips; quality: compare clips of many prompts, None for "when there
    is time". compare: the request's clip under each of `plans`, with one seed; the first is the reference. verify: the
    same under the reference plan and the automatic one.
    """

    kind: Literal["bench", "compare", "verify"]
    request: GenerationRequest
    quick: bool = False
    quality: bool | None = None
    plans: tuple[AccelPreferences, ...] = ()
    names: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The clip that is measured, in words: "Starter, 256x160, 25 frames, 20 steps"."""
        one = self.request
        return f"{family_for(one.model).title}, {one.width}x{one.height}, {one.frames} frames, {one.steps} steps"


def subject_of(request: GenerationRequest) -> GenerationRequest:
    """The one clip that is measured for a request, as its family takes it. Raises UsageError."""
    one = request.model_copy(update={"count": 1, "prompt": request.prompt or PROMPT})
    return family_for(one.model).normalise(one).request


def measuring_mark(number: int) -> str:
    """What a "cancel" names in the place of a job's number to stop the measurement of that number."""
    return f"measuring {number}"


@dataclass(frozen=True)
class Measuring:
    """How a measurement stands. number: counts them; 0 before the first. fraction and text: how far it is,
    `elapsed` seconds after it began.

    result, once done. Of a bench: {"results", "measurement"}, as `accel.readouts.results` reads them. Of a comparison:
    {"title", "clips": one per plan, "frames": files of uint8 (frames, height, width, 3)}. error: why there is none.
    """

    number: int = 0
    kind: str = ""
    state: State = "none"
    fraction: float = 0.0
    text: str = ""
    elapsed: float = 0.0
    result: dict[str, Any] | None = None
    error: str = ""
    left: float | None = None
    """Seconds that it will still take, counted from when that was told, `waited` seconds ago; None: by the fraction."""
    waited: float = 0.0

    @property
    def words(self) -> str:
        """What is being done, and how long it will go on once that can be reckoned: "fp8 ..., about 40 s left"."""
        if self.state != "running" or self.fraction < RECKONED_FROM:
            return self.text
        left = self.elapsed * (1 - self.fraction) / self.fraction if self.left is None else self.left
        left -= self.waited
        return f"{self.text}, about {duration(left)} left" if left >= 1 else self.text

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come of it."""
        return self.state not in ("waiting", "running")
