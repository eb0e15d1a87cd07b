"""A rank among those that make one clip together: where they meet, and how they stop and fail together.

Ranks exchange tensors within a forward, so none may leave where another one waits for it. Each of them is told to stop
by itself, at another moment; where it then leaves is agreed: those that share a forward's tokens before each block, all
of them at the ends of loading, of a step and of the clip, and before guidance's branches are put together. A rank that
leaves says so at the place where the others come next. This goes over the CPU (gloo), so no GPU is waited for.

What can't be agreed on, a rank that ends or fails in the middle of an exchange, is the part of whoever started the
ranks: see `app.worker.team`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from accel.errors import AccelError
from accel.finite import NonFiniteError
from accel.parallel.exchange import told
from accel.parallel.ranks import Ranks, Shared
from accel.parallel.sharing import branches_split
from app.engine.acceleration import Decision
from app.engine.alone import Alone
from app.engine.watcher import Stop
from app.errors import JobFailedError
from app.models.base import Family
from app.request import GenerationRequest

BYTES = 512
PATIENCE = timedelta(hours=6)
"""While the first rank decodes, the others wait at the clip's end. Who started them looks after ranks that hang."""

_ORDER = ("going on", "stopped", "no numbers", "failed")

Word = dict[str, Any]


class HeardError(JobFailedError):
    """Another rank's failure, as this one heard of it."""


class Together(Alone):
    """`trouble` is called before this rank tells the others that it failed, which may never come to them."""

    def __init__(self, ranks: Ranks, trouble: Callable[[BaseException], None]) -> None:
        self.first = ranks.rank == 0
        self.decision: Decision | None = None
        """The plan for the next clip, made for all ranks by who started them."""
        self._ranks, self._trouble = ranks, trouble
        self._all = self._group(list(range(ranks.count)))
        self._near: dict[bool, Any] = {}
        self._now: Any = None
        self._left = False

    def decide(
        self, family: Family, request: GenerationRequest, recorded: Mapping[str, Any] | None, cache: Path | None
    ) -> Decision:
        assert self.decision is not None, "whoever started the ranks gives the plan with the clip"
        return self.decision

    @contextlib.contextmanager
    def section(self) -> Iterator[None]:
        self._left = False
        try:
            yield
        except BaseException as error:
            if not self._left:
                word = _word_of(error)
                if word["is"] == "failed":
                    self._trouble(error)
                with contextlib.suppress(AccelError):  # the others may be gone; this error tells more
                    self._exchange(word)
            raise
        self.meet(False)

    def meet(self, stop: bool) -> None:
        self._meet({"is": "stopped" if stop else "going on"})

    def resumes(self, found: bool) -> bool:
        return bool(self._meet({"is": "going on", "found": found})[0].get("found"))

    def _meet(self, word: Word) -> list[Word]:
        """What every rank said, all of them going on. Raises what one that is not tells of."""
        found = self._exchange(word)
        worst = max(found, key=lambda word: _ORDER.index(word["is"]))
        if worst["is"] == "going on":
            return found
        self._left = True
        if worst["is"] == "stopped":
            raise Stop
        if worst["is"] == "no numbers":
            raise NonFiniteError(worst["what"], worst["step"], worst["backend"])
        raise HeardError(worst["text"])

    def agreed(self, stop: bool) -> bool:
        if self._now is None:
            return stop
        flag = torch.tensor([int(stop)], dtype=torch.int32)
        with told():
            dist.all_reduce(flag, dist.ReduceOp.MAX, self._now)
        return bool(flag.item())

    @contextlib.contextmanager
    def shared(self, pipeline: Any, guided: bool) -> Iterator[None]:
        def paired() -> bool:
            return bool(getattr(pipeline, "do_classifier_free_guidance", False))

        self._now = self._near_group(branches_split(self._ranks.count, guided))
        with contextlib.ExitStack() as stack:
            for name in ("transformer", "transformer_2"):
                if (model := getattr(pipeline, name, None)) is not None:
                    stack.enter_context(Shared(model, self._ranks, guided, paired, lambda: self.meet(False)))
            yield

    def signs(self, report: dict[str, Any]) -> dict[str, Any]:
        return {**report, "counted_by": f"the first of {self._ranks.count} ranks, its own calls alone"}

    # -- inside --

    def _near_group(self, halved: bool) -> Any:
        """Those that share a forward's tokens with this rank, None where it computes a whole one. Every rank asks."""
        if halved not in self._near:
            count = self._ranks.count
            share, found = count // 2 if halved else count, None
            for begin in range(0, count, share) if share > 1 else ():
                members = list(range(begin, begin + share))
                group = self._group(members)
                found = group if self._ranks.rank in members else found
            self._near[halved] = found
        return self._near[halved]

    def _group(self, members: list[int]) -> Any:
        with told():
            return dist.new_group(members, backend="gloo", timeout=PATIENCE)

    def _exchange(self, word: Word) -> list[Word]:
        """Every rank's word. All of them are read by this rank's own program: text, never code."""
        data = json.dumps(word).encode()
        mine = torch.zeros(BYTES, dtype=torch.uint8)
        mine[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        found = [torch.empty_like(mine) for _ in range(self._ranks.count)]
        with told():
            dist.all_gather(found, mine, self._all)
        return [json.loads(bytes(one.tolist()).rstrip(b"\0")) for one in found]


def _word_of(error: BaseException) -> Word:
    """What a rank that leaves says to the others. Cut so that it fits, escapes and all."""
    if isinstance(error, Stop):
        return {"is": "stopped"}
    if isinstance(error, NonFiniteError):
        return {"is": "no numbers", "what": _cut(error.what), "step": error.step, "backend": _cut(error.backend)}
    return {"is": "failed", "text": _cut(str(error) or type(error).__name__, 300)}


def _cut(text: str, most: int = 140) -> str:
    plain = " ".join(text.split()).encode("ascii", "replace").decode().replace("\\", "/").replace('"', "'")
    return plain[:most]
