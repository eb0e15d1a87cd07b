"""A clip's final latents, on disk while it is decoded and saved: where that fails, the next try need not denoise again.

What a VAE is given to decode is all that the rest of a clip depends on. It is written when decoding begins, so that it
is there whatever ends the worker then, and removed once the clip is saved. The next try of the very same clip (request,
model's files, LoRAs, pictures, plan, versions) runs the same pipeline with its denoisers idle and hands its VAE what
was kept: no family is treated apart, and the frames are those of an undisturbed run.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from app.engine.acceleration import Decision
from app.engine.pictures import Given
from app.errors import JobFailedError
from app.loras import LoraFile
from app.models.sources.wholeness import signature
from app.request import GenerationRequest
from app.versions import versions

FILES = 8
BYTES = 2**30
"""What may lie there in all; the oldest go."""
TOLD = "Its latents are kept: try the same clip again (on the command line: --resume), and it goes on from decoding."
MAY_GO_ON = " A retry goes on from decoding where its latents could be kept."
WENT_ON = "The clip went on from decoding, with the latents that an earlier try of it had kept."


def key_of(
    request: GenerationRequest, model: Any, decision: Decision, loras: tuple[LoraFile, ...], pictures: Given
) -> str:
    """All that the latents depend on, as text. model: another value for other weights."""
    # Tiles change what a VAE makes of latents; these themselves only where it encodes a picture first.
    plan = [one for one in decision.identity if one[1] != "tiling" or pictures.by_field]
    made_of = {
        "request": request.model_dump(mode="json"),
        "model": model,
        "plan": plan,
        "ran_on": decision.ran_on,
        "loras": [(one.lora.name, str(one.path), signature(one.path)) for one in loras],
        "pictures": {name: hashlib.sha256(data).hexdigest() for name, data in pictures.as_files().items()},
        "versions": dict(versions()),
    }
    return json.dumps(made_of, sort_keys=True, default=str)


def may_go_on(doing: str) -> str:
    """What to add to the sentence on a worker that died while `doing` that: nobody knows then what it could write."""
    return MAY_GO_ON if doing.startswith(("decoding", "saving")) else ""


class Kept:
    """The final latents of the clip that `key` describes, as a file in `folder`."""

    def __init__(self, folder: Path, key: str) -> None:
        self._key = key
        self.path = folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.safetensors"
        self.is_used = False
        """Whether this try goes on from those of an earlier one."""
        self._latents: Any = None
        self._report: dict[str, Any] = {}

    def is_found(self) -> bool:
        """Whether an earlier try left them, whole; they are in memory then."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self.path, "pt") as file:
                facts = file.metadata() or {}
                if facts.get("key") != self._key:
                    return False
                self._latents, self._report = file.get_tensor("latents").clone(), json.loads(facts["report"])
        except FileNotFoundError:
            return False
        except (OSError, SafetensorError, LookupError, ValueError):
            self.forget()
            return False
        return True

    def forget(self) -> None:
        """The clip is saved, or they are no good."""
        with contextlib.suppress(OSError):
            self.path.unlink()

    @property
    def told(self) -> str:
        """What to say to a person whose clip failed; empty when nothing is kept."""
        return TOLD if self.path.is_file() else ""

    @contextlib.contextmanager
    def around(
        self, pipeline: Any, begin: Callable[[Any], None], report: Callable[[], Mapping[str, Any]]
    ) -> Iterator[None]:
        """While entered, what `pipeline` decodes is kept with the `report` so far; or, where an earlier try's are used,
        it is handed those, and denoises nothing. `begin` is called with the latents before they are decoded.
        """
        decode = pipeline.vae.decode

        def decoded(latents: Any, *others: Any, **named: Any) -> Any:
            if self.is_used:
                latents = self._instead_of(latents)
            else:
                self._write(latents, report())
            begin(latents)
            return decode(latents, *others, **named)

        with idle(pipeline) if self.is_used else contextlib.nullcontext():
            pipeline.vae.decode = decoded
            try:
                yield
            finally:
                del pipeline.vae.decode  # the class's own is seen again

    def completed(self, report: dict[str, Any]) -> dict[str, Any]:
        """The report of a clip: where it went on from an earlier try's latents, that one's denoisers are counted."""
        if not self.is_used:
            return report
        found: dict[str, Any] = {**report, "resumed": WENT_ON}
        for kind, before in self._report.items():
            if isinstance(before, dict) and isinstance(report.get(kind), dict):
                denoisers = {name: entry for name, entry in before.items() if name.startswith("transformer")}
                found[kind] = report[kind] | denoisers
        return found

    def _instead_of(self, latents: Any) -> Any:
        kept, self._latents = self._latents, None
        if kept is None or (kept.shape, kept.dtype) != (latents.shape, latents.dtype):
            self.forget()
            raise JobFailedError("The latents that were kept of this clip are not its own: make it anew.")
        return kept.to(latents.device)

    def _write(self, latents: Any, report: Mapping[str, Any]) -> None:
        """Whole or not at all. A clip can do without, so whatever fails here is nothing to it."""
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        if latents.nbytes > BYTES:
            return
        draft = self.path.with_name(f"{self.path.name}.{os.getpid()}.partial")
        facts = {"key": self._key, "report": json.dumps(report, default=str)}
        try:
            save_file({"latents": latents.detach().cpu().contiguous()}, draft, facts)
            os.replace(draft, self.path)
        except (OSError, RuntimeError, MemoryError, SafetensorError):
            with contextlib.suppress(OSError):
                draft.unlink()
        _make_room(self.path)


def _make_room(new: Path) -> None:
    """The newest stay, as many as may; drafts of processes that were killed count, too."""
    with contextlib.suppress(OSError):  # another process tidies up as well
        there = {path: path.stat() for path in new.parent.iterdir()}
        left = BYTES
        for number, path in enumerate(sorted(there, key=lambda one: (one != new, -there[one].st_mtime_ns))):
            left -= there[path].st_size
            if number >= FILES or left < 0:
                path.unlink()


@contextlib.contextmanager
def idle(pipeline: Any) -> Iterator[None]:
    """While entered, a run of `pipeline` leaves its latents as they begin, whatever it does with them."""
    parts = pipeline.components
    models = {name: parts[name] for name in ("transformer", "transformer_2") if parts.get(name) is not None}
    scheduler = pipeline.scheduler
    steps = inspect.signature(type(scheduler).step)

    def step(*arguments: Any, **named: Any) -> tuple[Any, Any]:
        sample = steps.bind(scheduler, *arguments, **named).arguments["sample"]
        return sample, sample

    scheduler.step = step  # on the object, which is made anew for every clip
    vars(pipeline).update({name: Idle(model) for name, model in models.items()})
    try:
        yield
    finally:
        vars(pipeline).update(models)


class Idle:
    """In the place of a denoiser: it answers at once, with what it was given."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, hidden_states: Any, *_: Any, **__: Any) -> tuple[Any]:
        return (hidden_states,)
