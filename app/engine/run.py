"""One clip on its way through the engine: what was asked, how far it is, and how to say that it went wrong."""

import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from app.engine import loading
from app.engine.kept import Kept
from app.engine.latents import Layout
from app.engine.pictures import Given
from app.engine.watcher import Stop, Watcher
from app.errors import JobFailedError
from app.loras import LoraFile
from app.models.base import Family
from app.progress import Progress, StageClock
from app.request import Adjustment, GenerationRequest

OnProgress = Callable[[Progress], None]
ShouldStop = Callable[[], bool]


@dataclass
class Run:
    """What belongs to one call of `Engine.generate`."""

    request: GenerationRequest
    family: Family
    clock: StageClock
    on_progress: OnProgress | None
    should_stop: ShouldStop | None
    previews: bool
    pictures: Given
    loras: tuple[LoraFile, ...] = ()
    acting: list[dict[str, Any]] = field(default_factory=list)
    """What of the LoRAs acts, for the report."""
    left_out: tuple[Adjustment, ...] = ()
    kept: Kept | None = None
    """Where its final latents are kept; None: nowhere."""

    @property
    def steps(self) -> int:
        return int(self.request.steps or self.family.defaults.steps)

    def layout(self, vae: Any) -> Layout | None:
        """How this clip's latents are to be read."""
        return Layout.of(
            vae, int(self.request.width or 0), int(self.request.height or 0), int(self.request.frames or 0)
        )

    def as_asked(self, pipeline: Any) -> Any:
        """A loaded pipeline as the one that makes this clip."""
        settings = self.family.image_settings if self.request.image else {}
        return loading.as_kind(pipeline, self.family.pipeline_for(self.request), settings)

    def keeping(self, pipeline: Any, watcher: Watcher, report: Callable[[], Any]) -> AbstractContextManager[None]:
        """While entered, what is decoded is kept, where anything is."""
        return nullcontext() if self.kept is None else self.kept.around(pipeline, watcher.begin_decoding, report)

    def goes_on(self) -> None:
        """From the latents that an earlier try kept."""
        assert self.kept is not None
        self.kept.is_used = True
        self.clock.skip("denoising")

    def drop_kept(self) -> None:
        """Its latents are no good, and what is made instead is not kept."""
        if self.kept is not None:
            self.kept.forget()
        self.kept = None

    def tell(self) -> None:
        if self.on_progress is not None:
            self.on_progress(self.clock.progress())

    def on_component(self, done: int, of: int) -> None:
        if done == 0:
            self.clock.enter("loading", of)
        self.clock.advance(done)
        self.tell()
        self.check_stop()

    def check_stop(self) -> None:
        if self.should_stop is not None and self.should_stop():
            raise Stop

    def place(self) -> str:
        """Where the clip is, to complete "stopped while ..."."""
        step, steps = self.clock.position
        words = {"loading": "loading the model", "text": "reading the prompt"}
        doing = words.get(str(self.clock.stage), str(self.clock.stage))
        return f"{doing}, step {step} of {steps}" if self.clock.stage == "denoising" else doing

    def explain(self, error: Exception) -> JobFailedError:
        """The sentence for an error that nobody foresaw; its traceback is kept as text in `detail`."""
        reason = str(error).strip().splitlines()[0][:300] if str(error).strip() else type(error).__name__
        size = f"{self.request.width}x{self.request.height}, {self.request.frames} frames"
        if out_of_memory := loading.memory_ran_out(error) is not None:
            advice = "try a smaller size or fewer frames, or close other programs."
            if self.clock.stage == "loading":
                advice = (
                    "close other programs, or try a smaller model or bf16 as the precision under Accelerate (on the "
                    "command line: --accel dtype=bfloat16)."
                )
            text = f"Out of memory while {self.place()} ({size}): {advice}"
        else:
            text = f"The clip failed while {self.place()} ({size}): {reason}"
        if self.kept is not None and self.kept.told:
            text += ("" if text.endswith(".") else ".") + f" {self.kept.told}"
        failure = JobFailedError(text)
        failure.detail = "".join(traceback.format_exception(error))  # type: ignore[attr-defined]
        failure.out_of_memory = out_of_memory  # type: ignore[attr-defined]
        return failure
