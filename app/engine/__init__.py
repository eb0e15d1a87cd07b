"""Engine: from a request to frames.

Load the model (once for as long as model and plan stay the same), put the accelerators in, run the pipeline under a
Watcher, check that what came out are numbers, hand over uint8 frames. torch and diffusers are imported inside
functions: the plan's environment (threads and how they wait) must be set before torch loads, and a process that only
imports this module stays small.

The same request gives bit-equal frames: noise comes from a CPU generator with the request's seed, and the scheduler
is made anew for every clip. A clip that was cancelled or failed leaves nothing behind that the next one could feel.
"""

import gc
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from accel.finite import NonFiniteError, check_frames
from app.engine import acceleration, loading, several, single_file
from app.engine.alone import Alone
from app.engine.calling import arguments_for, scheduler_for, to_frames
from app.engine.kept import Kept, key_of
from app.engine.loras import Adapters
from app.engine.pictures import given
from app.engine.preview import LatentColours
from app.engine.run import OnProgress, Run, ShouldStop
from app.engine.watcher import Stop, Watcher
from app.errors import Cancelled, CannotRunError, JobFailedError, KinetileError
from app.loras import files_for
from app.models import family_for
from app.models.base import Family
from app.models.sources.wholeness import signature
from app.paths import Home
from app.progress import StageClock
from app.request import Adjustment, GenerationRequest

Frames = npt.NDArray[np.uint8]
REFERENCE = "the reference backends"


@dataclass(frozen=True)
class Clip:
    """One finished clip.

    frames: uint8 (frames, height, width, 3) RGB. plan and report: what accel engaged and what it served, as JSON-able
    data. timings: seconds of load, text, denoise, decode and total. tokens: {"used", "total", "limit"} of the prompt,
    empty when unknown. pictures: PNG files of the pictures that the model was given, by the request's field. memory:
    peak bytes of other processes that made it. latents: the file that keeps its latents until it is saved.
    """

    frames: Frames
    fps: float
    request: GenerationRequest
    adjustments: tuple[Adjustment, ...]
    plan: dict[str, Any]
    report: dict[str, Any]
    timings: dict[str, float]
    tokens: dict[str, int] = field(default_factory=dict)
    pictures: dict[str, bytes] = field(default_factory=dict)
    memory: int = 0
    latents: Path | None = None


@dataclass
class _Loaded:
    """A pipeline in memory with its accelerators, and the key under which it may be used again."""

    key: tuple[Any, ...]
    pipeline: Any
    scheduler_config: dict[str, Any]
    engaged: acceleration.Engaged
    adapters: Adapters
    colours: LatentColours | None = None


class Engine:
    """Makes clips one at a time. Call `close` (or leave the `with` block) to free the model.

    `home` is where small things that can be made again are kept; without it nothing is. `ranks`: who else makes its
    clips, for an engine that is one of several.
    """

    def __init__(self, home: Home | None = None, ranks: Alone | None = None) -> None:
        self._home = home
        self._ranks = ranks or Alone()
        self._loaded: _Loaded | None = None
        self._earlier: dict[tuple[Any, ...], dict[str, float]] = {}
        self._busy = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the model. The engine can be used again; the next clip loads anew."""
        loaded, self._loaded = self._loaded, None
        if loaded is None:
            return
        loaded.pipeline.maybe_free_model_hooks()
        del loaded
        _collect()

    def held(self) -> int:
        """Bytes that other processes hold for this engine."""
        return 0

    def generate(
        self,
        request: GenerationRequest,
        on_progress: OnProgress | None = None,
        should_stop: ShouldStop | None = None,
        *,
        previews: bool = False,
        recorded_plan: Mapping[str, Any] | None = None,
        expected: Mapping[str, float] | None = None,
        keeps: bool = False,
    ) -> Clip:
        """Make one clip.

        `on_progress` is called at every step, in this thread; `should_stop` often: between components while loading,
        between blocks of the text encoder and transformer, between decoded latent frames. `previews` adds pictures to
        some messages. `recorded_plan` is the plan in an earlier clip's metadata: what of it can run here is used
        again. `expected` are the timings to reckon with until this engine has made such a clip itself. `keeps`: whether
        its final latents stay in the data folder, until who asked for it removes `Clip.latents`, and whether those that
        an earlier try left are used.

        Raises Cancelled when `should_stop` said so, UsageError for a request that no adjustment can save,
        CannotRunError when this machine can't (model not whole, forced accelerator), JobFailedError when the clip
        could not be finished.
        """
        if not self._busy.acquire(blocking=False):
            raise JobFailedError("The engine is already making a clip: wait for it, or use a second engine.")
        try:
            return self._generate(request, on_progress, should_stop, previews, recorded_plan, expected or {}, keeps)
        finally:
            self._busy.release()

    def _generate(
        self,
        request: GenerationRequest,
        on_progress: OnProgress | None,
        should_stop: ShouldStop | None,
        previews: bool,
        recorded_plan: Mapping[str, Any] | None,
        expected: Mapping[str, float],
        keeps: bool,
    ) -> Clip:
        family = family_for(request.model)
        normalised, pictures = given(family.normalise(request), self._home)
        files = files_for(request, family, self._home)
        request = normalised.request.expand()[0]  # a null seed becomes a random one, stored in the clip
        run = Run(request, family, StageClock(), on_progress, should_stop, previews, pictures, files)
        run.clock.expect(expected)
        run.clock.enter("loading")
        run.tell()
        # The first time this imports torch, which takes seconds: part of loading.
        decision = self._ranks.decide(family, request, recorded_plan, self._cache)
        key = (family.name, _on_disk(family), decision.identity, decision.serves(request))
        kind = (*key, request.width, request.height, request.frames)
        if keeps and (folder := self._folder_of_latents()) is not None:
            run.kept = Kept(folder, key_of(request, key[:2], decision, files, pictures))
        self._expect(run.clock, key, kind, expected)
        run.tell()
        failure: KinetileError | None = None
        try:
            frames, report = self._loaded_and_made(key, decision, run)
        except Stop:
            failure = Cancelled(f"Stopped while {run.place()}.")
        except KinetileError:
            raise
        except Exception as error:
            failure = run.explain(error)
        if failure is not None:
            # Raised here, outside the handler, so that it carries no traceback whose frames hold tensors.
            self._tidy(failure)
            raise failure
        run.clock.leave()
        timings = run.clock.timings()
        if "denoise" in timings:
            self._earlier[kind] = timings
        tokens = normalised.prompt_tokens
        counts = {} if tokens is None else {"used": tokens.used, "total": tokens.total, "limit": tokens.limit}
        fps = float(request.fps or family.defaults.fps)
        report |= {"loras": run.acting} if run.acting else {}
        report |= {"ran_on": decision.ran_on} if decision.ran_on else {}
        adjustments, carried = (*normalised.adjustments, *run.left_out), pictures.as_files()
        latents = None if run.kept is None else run.kept.path
        return Clip(frames, fps, request, adjustments, decision.data, report, timings, counts, carried, latents=latents)

    def _loaded_and_made(
        self, key: tuple[Any, ...], decision: acceleration.Decision, run: Run
    ) -> tuple[Frames, dict[str, Any]]:
        with self._ranks.section():
            loaded = self._ready(key, decision, run)
        return self._frames(loaded, run)

    def _expect(
        self, clock: StageClock, key: tuple[Any, ...], kind: tuple[Any, ...], expected: Mapping[str, float]
    ) -> None:
        """Reckon with the times of the last clip of this kind; a model that is loaded already takes none to load."""
        earlier = {**expected, **self._earlier.get(kind, {})}
        if earlier and self._loaded is not None and self._loaded.key == key:
            earlier["load"] = 0.0
        clock.expect(earlier)

    def _ready(self, key: tuple[Any, ...], decision: acceleration.Decision, run: Run) -> _Loaded:
        """The pipeline for `key`, accelerated, with the clip's LoRAs; another one in memory is freed first."""
        if self._loaded is None or self._loaded.key != key:
            self.close()
            self._loaded = self._load(key, decision, run)
        run.left_out = self._loaded.adapters.use(run.loras, run.check_stop)
        run.acting = self._loaded.adapters.report()
        return self._loaded

    def _load(self, key: tuple[Any, ...], decision: acceleration.Decision, run: Run) -> _Loaded:
        assert run.family.folder is not None, "decide refuses a model that is not on this machine"
        folder, dtypes = run.family.folder, decision.dtypes
        brought = partial(single_file.components, run.family, dtypes)
        if decision.frees_text:
            from app.engine import reading  # imports torch, which must not happen before a plan is made

            device = "cpu" if decision.plan.offload.engaged != "none" else decision.device
            prepare = partial(acceleration.engage_encoders, decision=decision)
            read = partial(self._read, run)
            pipeline = reading.load_after_reading(folder, dtypes, device, read, prepare, run.on_component, brought)
        else:
            pipeline = loading.load_pipeline(folder, dtypes, run.on_component, given=brought())
        engaged = acceleration.engage(pipeline, decision)
        adapters = Adapters(pipeline, run.family.title)
        return _Loaded(key, pipeline, dict(pipeline.scheduler.config), engaged, adapters)

    def _read(self, run: Run, pipeline: Any) -> None:
        """Run a pipeline whose transformers are missing for what its encoders say."""
        pipeline = run.as_asked(pipeline)
        pipeline.scheduler = scheduler_for(run.request, dict(pipeline.scheduler.config))
        stop, told = run.should_stop, run.on_progress
        watcher = Watcher(pipeline, run.clock, run.steps, self._ranks, should_stop=stop, on_progress=told)
        run.clock.enter("text")
        run.tell()
        with watcher:
            pipeline(**arguments_for(pipeline, run.family, run.request, watcher.step_end, run.pictures.by_field))

    def _frames(self, loaded: _Loaded, run: Run) -> tuple[Frames, dict[str, Any]]:
        """Frames and report; numbers that are none get one more try on the reference backends."""
        backends = loaded.engaged.backends
        try:
            frames = self._attempt(loaded, run, backends)
            report = self._ranks.signs(loaded.engaged.report())
            return frames, report if run.kept is None else run.kept.completed(report)
        except NonFiniteError as error:
            first = _found(error, run.steps)  # the text alone: the error's frames hold the latents
            run.drop_kept()
        if not loaded.engaged.accelerated:
            raise JobFailedError(f"{first}, with {backends}, so no clip was saved: try another seed or less guidance.")
        with loaded.engaged.reference():
            try:
                frames = self._attempt(loaded, run, REFERENCE)
            except NonFiniteError as error:
                again = _found(error, run.steps)
            else:
                note = f"{first}, with {backends}; the clip was made again with {REFERENCE}."
                return frames, {**self._ranks.signs(loaded.engaged.report()), "retried": note}
        raise JobFailedError(
            f"{first}, with {backends}, and with {REFERENCE} again ({again}), so no clip was saved: "
            "try another seed, less guidance, or fp32 as the precision under Accelerate (on the command line: --accel "
            "dtype=float32)."
        )

    def _attempt(self, loaded: _Loaded, run: Run, backends: str) -> Frames:
        """One run of the pipeline. Whatever happens, hooks and per-run state of the pipeline are gone afterwards. Only
        the first of several ranks decodes; the others return no frames.
        """
        request, clock = run.request, run.clock
        pipeline = run.as_asked(loaded.pipeline)
        # The accelerators ask the loaded one for its step, whichever of the two runs.
        pipeline.scheduler = loaded.pipeline.scheduler = scheduler_for(request, loaded.scheduler_config)
        if run.previews and self._ranks.first:
            self._colours(loaded, run.family)  # made with the VAE, whose calls for it are none of the clip's
        loaded.engaged.begin_clip()
        clock.enter("text")
        run.tell()
        try:
            with self._ranks.section():
                if run.kept is not None and self._ranks.resumes(run.kept.is_found()):
                    run.goes_on()
                watcher = self._watcher(loaded, run, pipeline, backends)
                shared = self._ranks.shared(pipeline, several.is_guided(request))
                with shared, watcher, run.keeping(pipeline, watcher, loaded.engaged.report):
                    arguments = arguments_for(pipeline, run.family, request, watcher.step_end, run.pictures.by_field)
                    if not self._ranks.first:
                        pipeline(**{**arguments, "output_type": "latent"})
                        return np.empty((0, 0, 0, 3), np.uint8)
                    video = pipeline(**arguments).frames
                    if clock.stage != "decoding":
                        clock.enter("decoding")
                check_frames(video[0].float().cpu().numpy(), backends)  # as float, where NaN still shows
                frames = to_frames(video)
                check_frames(frames, backends)  # as bytes, where nearly one colour is one colour
        finally:
            pipeline.maybe_free_model_hooks()
        clock.advance(clock.position[1])
        run.tell()
        return frames

    def _watcher(self, loaded: _Loaded, run: Run, pipeline: Any, backends: str) -> Watcher:
        return Watcher(
            pipeline,
            run.clock,
            run.steps,
            self._ranks,
            should_stop=run.should_stop,
            on_progress=run.on_progress,
            colours=(lambda: self._colours(loaded, run.family)) if run.previews else None,
            backends=backends,
            called_back=run.family.callback,
            first=run.pictures.first,
            layout=run.layout(pipeline.vae) if run.previews else None,
            denoises=run.kept is None or not run.kept.is_used,
        )

    def _colours(self, loaded: _Loaded, family: Family) -> LatentColours | None:
        """The preview's colours of the loaded VAE, made when first wanted; None for a VAE that has no such latents."""
        if loaded.colours is None and family.folder is not None:
            try:
                loaded.colours = LatentColours.of(loaded.pipeline.vae, family.folder / "vae", self._cache)
            except ValueError:
                return None
        return loaded.colours

    @property
    def _cache(self) -> Path | None:
        """The folder for what can be made again, None where there is none to write in."""
        try:
            return None if self._home is None else self._home.cache
        except CannotRunError:
            return None

    def _folder_of_latents(self) -> Path | None:
        try:
            return None if self._home is None else self._home.latents
        except CannotRunError:
            return None

    def _tidy(self, failure: KinetileError) -> None:
        """After a clip that was not finished: memory back; after running out of it, the model goes too."""
        if getattr(failure, "out_of_memory", False):
            self.close()
        _collect()


def _on_disk(family: Family) -> tuple[Any, ...]:
    """Another value once a file of the model was replaced: what is in memory then is another model."""
    return tuple((str(place), signature(place)) for place in (family.folder, family.file) if place is not None)


def _found(error: NonFiniteError, steps: int) -> str:
    """What was found where, as the beginning of a sentence."""
    return f"{error.what[:1].upper()}{error.what[1:]} " + (
        f"at step {error.step} of {steps}" if error.step else "after decoding"
    )


def _collect() -> None:
    """Give memory back to the system as far as Python and torch allow."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
