"""Follow one run of a pipeline from inside: its stage, whether it must stop, whether its numbers are still numbers.

A pipeline offers one callback, after each step. Cancelling must also act while the text is encoded, within a step,
and between decoded latent frames; so for the length of one run, forward-pre-hooks sit on the text encoder, on the
transformer and its blocks, and on the VAE's decoder. They only look (at a flag and a clock): a watched run is
bit-equal to an unwatched one. Compiled modules are left alone, a hook would be traced and break their graph; the
outer module is watched then.
"""

import itertools
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from accel.finite import check_latents
from app.engine.latents import Layout
from app.engine.preview import CleanEstimate, LatentColours
from app.progress import Progress, StageClock

if TYPE_CHECKING:
    from app.engine.alone import Alone

# Pictures a second at most, so that previews stay below a percent of a clip's time.
_PREVIEW_SECONDS = 0.4


class Stop(BaseException):
    """A person asked to stop. Raised through the pipeline, caught by the engine, never seen outside.

    Not an Exception, so that no library's `except Exception` on the way swallows it.
    """


class Watcher:
    """Hooks and callback for one run. Use it as a context manager around the pipeline's call."""

    def __init__(
        self,
        pipeline: Any,
        clock: StageClock,
        steps: int,
        ranks: "Alone",
        *,
        should_stop: Callable[[], bool] | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        colours: Callable[[], LatentColours | None] | None = None,
        backends: str = "",
        called_back: bool = True,
        first: Any = None,
        layout: Layout | None = None,
        denoises: bool = True,
    ) -> None:
        """`ranks`: who else makes this clip. `called_back`: whether the pipeline calls `step_end`; if not, its
        scheduler's steps are counted. `first`: the picture (PIL) that the clip begins with. `layout`: how previews read
        the latents; None: no previews. `denoises`: not where the clip goes on from kept latents; what its steps give is
        nothing then.
        """
        self._pipeline, self._clock, self._steps, self._ranks = pipeline, clock, steps, ranks
        self._should_stop, self._on_progress, self._colours = should_stop, on_progress, colours
        self._hooks: list[Any] = []
        self._estimate = CleanEstimate(pipeline.scheduler) if colours is not None else None
        self._last_preview = float("-inf")
        self._backends = backends
        self._frames_begun = 0
        self._called_back = called_back
        self._layout = layout
        self._denoises = denoises
        # Such pipelines put the first picture's latents in by themselves, and never denoise those of the callback.
        self._first = first if getattr(pipeline.config, "expand_timesteps", False) else None

    def __enter__(self) -> Self:
        if (encoder := getattr(self._pipeline, "text_encoder", None)) is not None:
            for module in (encoder, *_blocks(encoder)):
                self._hook(module, self._check_stop)
        for name in ("transformer", "transformer_2"):
            if (transformer := getattr(self._pipeline, name, None)) is not None:
                self._hook(transformer, self._before_denoising)
                self._hooks.append(transformer.register_forward_hook(self._after_compiling))
                for block in _blocks(transformer):
                    self._hook(block, self._check_together)
        encoder = getattr(getattr(self._pipeline, "vae", None), "encoder", None)
        if encoder is not None:  # of the pictures
            self._hook(encoder, self._check_stop)
        decoder = getattr(getattr(self._pipeline, "vae", None), "decoder", None)
        if decoder is not None:
            self._hook(decoder, self._before_latent_frame)
        if not self._called_back:
            self._watch_scheduler()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        if not self._called_back:
            del self._pipeline.scheduler.step  # the class's own is seen again

    def step_end(self, pipeline: Any, index: int, timestep: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        """diffusers' `callback_on_step_end`. Raises Stop, or NonFiniteError naming the step and `backends`."""
        if not self._denoises:
            self._ranks.meet(self._asked())
            return tensors
        latents = tensors["latents"]
        check_latents(latents, index + 1, self._backends)
        if self._clock.stage != "denoising":
            self._clock.enter("denoising", self._steps)
        self._clock.advance(index + 1)
        self._tell(self._preview(index, latents))
        if index + 1 >= self._steps:
            self.begin_decoding(latents)
        self._ranks.meet(self._asked())
        return tensors

    def begin_decoding(self, latents: Any) -> None:
        """What comes is decoding, of these latents."""
        if self._clock.stage != "decoding":
            self._clock.enter("decoding", latents.shape[2] if latents.ndim == 5 and self._decodes_by_frame() else 1)
            self._tell()

    def _watch_scheduler(self) -> None:
        """For pipelines without a callback: what their scheduler makes of a step is the step's end."""
        scheduler = self._pipeline.scheduler
        step, taken = scheduler.step, itertools.count()

        def watched(noise: Any, timestep: Any, *others: Any, **named: Any) -> Any:
            found = step(noise, timestep, *others, **named)
            self.step_end(self._pipeline, next(taken), timestep, {"latents": found[0]})
            return found

        scheduler.step = watched  # on the object, which is made anew for every clip

    def _hook(self, module: Any, look: Callable[..., None]) -> None:
        if getattr(module, "_compiled_call_impl", None) is None:
            self._hooks.append(module.register_forward_pre_hook(look))

    def _asked(self) -> bool:
        return self._should_stop is not None and self._should_stop()

    def _check_stop(self, *_: Any) -> None:
        if self._asked():
            raise Stop

    def _check_together(self, *_: Any) -> None:
        if self._ranks.agreed(self._asked()):
            raise Stop

    def _before_denoising(self, module: Any, *_: Any) -> None:
        from accel.install import is_uncompiled  # imports torch, which must not happen before a plan is made

        if self._clock.stage == "text":
            if is_uncompiled(module):
                self._clock.enter("compiling")
            else:
                self._clock.enter("denoising", self._steps)
            self._tell()
            self._ranks.meet(self._asked())
        self._check_together()

    def _after_compiling(self, *_: Any) -> None:
        if self._clock.stage == "compiling":
            self._clock.enter("denoising", self._steps)
            self._tell()

    def _before_latent_frame(self, *_: Any) -> None:
        if self._clock.stage == "decoding":
            # Called before a frame, so the one before it is done. A tiled decoder calls more often: the count then
            # rests at its end.
            self._clock.advance(self._frames_begun)
            if self._frames_begun:
                self._tell()
            self._frames_begun += 1
        self._check_stop()

    def _decodes_by_frame(self) -> bool:
        """Causal VAEs of the Wan kind keep a feature cache and decode frame by latent frame; others all at once."""
        return hasattr(self._pipeline.vae, "clear_cache")

    def _preview(self, index: int, latents: Any) -> Any:
        if self._estimate is None or self._colours is None:
            return None
        clean = self._estimate.after_step(index, latents)
        moment = time.monotonic()
        if clean is None or self._layout is None or moment - self._last_preview < _PREVIEW_SECONDS:
            return None
        self._last_preview = moment
        colours = self._colours()
        return None if colours is None else self._begun_with_first(colours.picture(self._layout.as_clip(clean)))

    def _begun_with_first(self, preview: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        if self._first is not None:
            height, width = preview.shape[1:3]
            preview[0] = np.asarray(self._first.resize((width, height)))
        return preview

    def _tell(self, preview: Any = None) -> None:
        if self._on_progress is not None:
            self._on_progress(self._clock.progress(preview))


def _blocks(module: Any) -> Iterator[Any]:
    """The items of the outermost module lists below `module`: its transformer blocks, whatever they are called."""
    from torch.nn import ModuleList

    for child in module.children():
        if isinstance(child, ModuleList):
            yield from child
        else:
            yield from _blocks(child)
