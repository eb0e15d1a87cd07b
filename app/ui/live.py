"""What moves on the page: the running clip, its preview, the newest clips. One listener for all open browser tabs.

Each tab asks `poll` a few times a second with what it has seen; it gets data, never markup, and pictures only when
there are new ones. Nothing here depends on a tab: closing one changes nothing.
"""

from __future__ import annotations

import base64
import io
import secrets
import threading
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from accel.types import Machine
from app.console import describe
from app.engine import several
from app.errors import KinetileError, on_page
from app.progress import Progress
from app.queue.jobs import Job
from app.queue.service import JobProgress, OwnerGoneError, Preview, Subscription
from app.request import GenerationRequest
from app.ui.context import Context, file_url, plural, seconds_text
from app.ui.queue_view import is_shown, name_of
from app.ui.rows import shortened

RECENT = 12
"""Newest clips in the strip."""
LOOKED_THROUGH = 5 * RECENT
"""Newest clips among which those are found that a browser may have."""
_PATIENCE = 0.5
_STAGES = tuple((key, key) for key in ("load", "text", "compile", "denoise", "decode", "save"))


class Live:
    """The news of one service, for any number of browser tabs. `start` once the page is up, `stop` at its end."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._mark = secrets.token_hex(4)  # another server's counts mean nothing to a tab that stayed open
        self._count = 0
        self._cached: tuple[int, dict[str, Any]] | None = None
        self._over = threading.Event()
        self._lock = threading.Lock()
        self.machine = ""
        self.gpus = 0
        """How many GPUs there are to make a clip together; 0 until that is known, too."""

    def start(self) -> None:
        """Begin to listen, and find out about the machine, in threads that end with the process."""
        for target in (self._listen, self._describe):
            threading.Thread(target=target, name=f"live-{target.__name__}", daemon=True).start()

    def stop(self) -> None:
        """Listen no more."""
        self._over.set()

    @property
    def revision(self) -> str:
        """Another one after each change of the queue or the history; progress does not count."""
        return f"{self._mark}-{self._count}"

    def poll(self, seen: dict[str, Any]) -> dict[str, Any]:
        """How things stand. `seen`: the revision and the preview [job, number] that the tab has already."""
        try:
            revision = self.revision
            snapshot = self._context.service.snapshot()
            answer: dict[str, Any] = {
                "revision": revision,
                "waiting": sum(not job.held for job in snapshot.waiting),
                "held": sum(job.held for job in snapshot.waiting),
                "machine": self.machine,
                "gpus": self.gpus,
                "running": None if snapshot.running is None else _running(snapshot.running, snapshot.progress),
            }
            if snapshot.running is not None:
                answer["preview"] = self._preview(snapshot.running, snapshot.progress, seen.get("preview"))
            if seen.get("revision") != revision:
                answer |= self._recent()
            return answer
        except OwnerGoneError:
            return {"revision": "", "error": "The process that makes the clips is being replaced; one moment."}
        except KinetileError as error:
            return {"revision": "", "error": on_page(error)}

    def _recent(self) -> dict[str, Any]:
        with self._lock:
            count = self._count
            if self._cached is None or self._cached[0] != count:
                found = self._context.service.history(limit=LOOKED_THROUGH, states=("done",))
                shown = [job for job in found.jobs if is_shown(job, self._context)]
                newest = self._context.service.history(limit=1).jobs
                data = {
                    "recent": [clip_data(job) for job in shown[:RECENT]],
                    "total": found.total,
                    "ended": ended_data(newest[0]) if newest else None,
                }
                self._cached = (count, data)
            return self._cached[1]

    def _preview(self, job: Job, progress: JobProgress | None, seen: Any) -> dict[str, Any] | None:
        if progress is None or not progress.preview or seen == [job.id, progress.preview]:
            return None
        preview = self._context.service.preview(job.id)
        return None if preview is None or seen == [job.id, preview.number] else preview_data(preview)

    def _listen(self) -> None:
        news: Subscription | None = None
        while not self._over.is_set():
            try:
                news = news or self._context.service.subscribe()
                event = news.get(timeout=_PATIENCE)
            except KinetileError as error:
                news = None
                self._over.wait(_PATIENCE)
                lost = isinstance(error, OwnerGoneError)
                if not self._over.is_set() and (not lost or self._context.reopen()):
                    with self._lock:
                        self._count += 1  # whatever was missed meanwhile
                continue
            if event is not None and event.kind in ("job", "queue"):
                with self._lock:
                    self._count += 1

    def _describe(self) -> None:
        from accel.errors import AccelError

        try:
            told = self._context.service.doctor()
        except (KinetileError, AccelError):
            return  # the Accelerate tab says why
        found = Machine.from_dict(told["machine"])
        self.machine, self.gpus = machine_line(found), len(several.alike(found))


def machine_line(machine: Machine) -> str:
    """The machine in a few words: "Xeon Gold 6530, AMX · 24 GiB"."""
    cpu, gpus, memory = machine.cpu, machine.usable_gpus(), machine.memory.usable
    name = gpus[0].name if gpus else cpu.model or cpu.vendor
    name = name.replace("(R)", "").replace("(TM)", "").split(" CPU")[0].split(" @")[0].strip()
    best = next((title for flag, title in _BEST if cpu.usable(flag)), "")
    parts = [", ".join(filter(None, [name, "" if gpus else best]))]
    if memory:
        parts.append(f"{memory / 2**30:.0f} GiB")
    return " · ".join(filter(None, parts))


_BEST = (("amx_bf16", "AMX"), ("avx512f", "AVX-512"), ("avx2", "AVX2"), ("neon", "NEON"))


def _running(job: Job, progress: JobProgress | None) -> dict[str, Any]:
    request = job.spec.request
    told: dict[str, Any] = {
        "job": job.id,
        "title": name_of(job),
        "settings": _settings(request),
        "width": request.width,
        "height": request.height,
        "fraction": 0.0,
        "text": "starting",
        "stopping": False,
    }
    if progress is not None:
        words = describe(
            Progress(progress.stage, progress.step, progress.steps, progress.fraction, None, progress.eta_seconds)
        )
        told |= {
            "text": "stopping after this step" if progress.stopping else words,
            "fraction": round(progress.fraction, 4),
            "stopping": progress.stopping,
            "stage": progress.stage,
        }
    return told


def clip_data(job: Job) -> dict[str, Any]:
    """A finished clip as the stage shows it. The seed is text: a browser's numbers are not for seeds."""
    from app.engine import acceleration

    request, result = job.spec.request, job.result
    if result is None:
        raise ValueError(f"job {job.id} has no clip")
    good = [note for note in result.warnings if note == result.report.get("resumed")]
    return {
        "job": job.id,
        "title": name_of(job),
        "width": request.width,
        "height": request.height,
        "fps": request.fps,
        "seed": str(request.seed),
        "video": file_url(result.output),
        "poster": file_url(result.poster),
        "name": result.output.name,
        "facts": timing_line(result.timings),
        "accelerators": " · ".join(filter(None, [result.ran_on, acceleration.summary(result.plan, result.report)])),
        "settings": _settings(request),
        "notes": [on_page(note) for note in (*job.spec.told, *result.warnings) if note not in good],
        "news": good,
    }


def _settings(request: GenerationRequest) -> str:
    """A resolved request in one line."""
    frames, steps = plural(int(request.frames or 0), "frame"), plural(int(request.steps or 0), "step")
    return (
        f"{request.width}×{request.height} · {frames} at {request.fps:g} fps · {steps} · "
        f"guidance {request.guidance_text} · seed {request.seed}"
    )


def ended_data(job: Job) -> dict[str, Any]:
    """How the newest job ended."""
    why = on_page(job.error.message) if job.error else ""
    return {"job": job.id, "state": job.state, "title": shortened(name_of(job), 60), "why": why}


def timing_line(timings: dict[str, float]) -> str:
    """ "text 0.1 s · denoise 3.9 s · decode 0.8 s · 5.1 s in all"."""
    parts = [f"{word} {seconds_text(timings[key])}" for key, word in _STAGES if timings.get(key, 0.0) >= 0.05]
    if "total" in timings:
        parts.append(f"{seconds_text(timings['total'])} in all")
    return " · ".join(parts)


def preview_data(preview: Preview) -> dict[str, Any]:
    """The preview as one picture with its latent frames side by side, which the page plays."""
    count, height, width, _ = preview.frames.shape
    return {
        "job": preview.job,
        "number": preview.number,
        "frames": count,
        "width": width,
        "height": height,
        "picture": data_uri(side_by_side(preview.frames)),
    }


def side_by_side(frames: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """(frames, height, width, 3) -> (height, frames * width, 3)."""
    count, height, width, channels = frames.shape
    return frames.transpose(1, 0, 2, 3).reshape(height, count * width, channels)


def data_uri(picture: npt.NDArray[np.uint8]) -> str:
    """A small picture for the page itself; nothing is stored."""
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "PNG", compress_level=1)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
