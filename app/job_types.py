"""Jobs as values: what is asked for, what became of it. Frozen, and plain data on every wire."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from app.request import Adjustment, GenerationRequest

JobState = Literal["queued", "running", "done", "failed", "cancelled", "crashed"]
NAME_BYTES = 100
"""Of a clip's name, in UTF-8: with the longest seed it stays below what `app.video.outputs` gives a file's name."""
ENDED: tuple[JobState, ...] = ("done", "failed", "cancelled", "crashed")


def name_of_clip(stem: str, seed: int | None) -> str:
    """What a clip of this seed was called before its file got the seed's ending, and a number where that was taken."""
    shorter = stem.removesuffix(f"-{seed}")
    return re.sub(f"-{seed}-[0-9]+$", "", stem) if shorter == stem else shorter


@dataclass(frozen=True)
class JobSpec:
    """What is to be made: one clip. `asked` is the request as it came, `request` as the model takes it (seed known),
    `adjustments` what lies between, `notes` what else to know of it; `recorded_plan` is the plan that an earlier clip
    of the same request was made with (from a stranger's file: anything). `folder` (absolute) is where the clip goes,
    `origin` how a person knows its source. `key` tells that a batch has been here before: equal for the same source
    content, index and count. If it fails and says `fail_fast`, what is still queued of its `batch` is held.
    """

    name: str
    asked: GenerationRequest
    request: GenerationRequest
    folder: Path
    adjustments: tuple[Adjustment, ...] = ()
    notes: tuple[str, ...] = ()
    recorded_plan: Any = None
    origin: str = ""
    key: str = ""
    batch: str = ""
    fail_fast: bool = False

    @property
    def again(self) -> GenerationRequest:
        """The request as it was asked for, with the seed that this clip got."""
        return self.asked.model_copy(update={"seed": self.request.seed, "count": 1})

    @property
    def told(self) -> tuple[str, ...]:
        """The sentences that belong to it before it is made."""
        return (*(one.reason for one in self.adjustments), *self.notes)

    @property
    def stem(self) -> str:
        """The file's name without suffix: what the clip is of, and its seed, so that neighbours tell themselves
        apart, also where a long name is cut.
        """
        return self.name.encode(errors="ignore")[:NAME_BYTES].decode(errors="ignore") + f"-{self.request.seed}"


@dataclass(frozen=True)
class JobResult:
    """A finished clip: its files, the engaged plan, the installation report, seconds per stage (keys load, text,
    denoise, decode, save, total), and the sentences that belong to it.
    """

    output: Path
    poster: Path
    plan: dict[str, Any]
    report: dict[str, Any]
    timings: dict[str, float]
    warnings: tuple[str, ...] = ()

    @property
    def ran_on(self) -> str:
        """Where it was made, as a person knows it: "2 x NVIDIA H200"; empty for clips of earlier releases."""
        return str(self.report.get("ran_on", ""))


@dataclass(frozen=True)
class JobError:
    """Why a job ended without a clip. `message` is the sentence for a person, `kind` the class in `app.errors`,
    `detail` the traceback where there is one.
    """

    message: str
    kind: str = "JobFailedError"
    detail: str = ""


@dataclass(frozen=True)
class Job:
    """One job as it stands. Times are seconds since 1970; `uid` is embedded in the clip's file. A removed one is still
    found by its id, until it can't be brought back.
    """

    id: int
    uid: str
    spec: JobSpec
    state: JobState
    submitted: float
    held: bool = False
    removed: bool = False
    started: float | None = None
    ended: float | None = None
    result: JobResult | None = None
    error: JobError | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.state in ENDED

    @property
    def seconds(self) -> float | None:
        """Wall time from start to end; None also where the clock was set back meanwhile."""
        if self.started is None or self.ended is None or self.ended < self.started:
            return None
        return self.ended - self.started


@dataclass(frozen=True)
class History:
    """A stretch of what has ended, newest first, and how much there is in all: by state, those with any."""

    jobs: tuple[Job, ...]
    counts: Mapping[JobState, int]

    @property
    def total(self) -> int:
        """Of all states."""
        return sum(self.counts.values())


@dataclass(frozen=True)
class Removal:
    """What `undo` needs to bring jobs back."""

    token: str
    ids: tuple[int, ...]
