"""Joining a job of several ranks, and dealing them out: guidance's two branches first, then each branch's tokens.

Splitting branches exchanges one output a step, splitting tokens four tensors in every layer: so branches come first,
where a clip is guided and the ranks are even in number. Whoever starts the ranks (torchrun, or launching.py) says by
the environment who is who and where they meet.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from accel.errors import AccelError
from accel.parallel.branches import SplitBranches
from accel.parallel.exchange import told
from accel.parallel.launching import MEETING
from accel.parallel.sharing import branches_split, token_ranks
from accel.parallel.tokens import SplitTokens, why_not_tokens

NAMES = ("RANK", "WORLD_SIZE")
PLACES = ("MASTER_ADDR", "MASTER_PORT")
PATIENCE = 600.0
"""Seconds that a rank waits for the others: longer than loading a model takes on the slowest of them."""

LOCAL = ("127.0.0.1", "localhost", "::1")
LOOPBACK = "lo" if sys.platform == "linux" else ""


@dataclass
class Ranks:
    """This process among the `count` of its job. device: the one it computes on; patience: see `joined`."""

    rank: int
    count: int
    device: torch.device
    patience: timedelta = timedelta(seconds=PATIENCE)
    _groups: dict[bool, tuple[Any, Any]] = field(default_factory=dict)

    def groups(self, branches: bool) -> tuple[Any, Any]:
        """The group that shares this rank's tokens, and with `branches` the pair that shares a place in both halves,
        else None. Every rank must ask, in the same order; asked again, the groups are the same."""
        if branches not in self._groups:
            half = self.count // 2 if branches else self.count
            pairs = [[place, place + half] for place in range(half)] if branches else []
            with told():
                shared = self._mine([list(range(first, first + half)) for first in range(0, self.count, half)])
                self._groups[branches] = shared, self._mine(pairs)
        return self._groups[branches]

    def _mine(self, groups: list[list[int]]) -> Any:
        """Makes all groups, as every rank must, and returns the one that this rank is in."""
        found = None
        for members in groups:
            group = dist.new_group(members, timeout=self.patience)  # the job's own would not be inherited
            found = group if self.rank in members else found
        return found


@contextmanager
def joined(patience: float = PATIENCE) -> Iterator[Ranks]:
    """This process as one of its job's ranks: over NCCL with a GPU each, over gloo on CPUs.

    patience: seconds after which a rank that waits for another gives up; over NCCL that ends the process. Raises
    AccelError when the environment does not say who is who, or the machine has fewer GPUs than ranks.
    """
    meeting = os.environ.get(MEETING)
    missing = [name for name in (*NAMES, *(() if meeting else PLACES)) if name not in os.environ]
    if missing:
        raise AccelError(f"{', '.join(missing)} not set: start this with python -m torch.distributed.run")
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    here = int(os.environ.get("LOCAL_RANK", rank))
    device = torch.device("cpu")
    if torch.cuda.is_available():
        if here >= torch.cuda.device_count():
            raise AccelError(f"rank {here} of this machine has no GPU: there are {torch.cuda.device_count()}")
        device = torch.device("cuda", here)
        torch.cuda.set_device(device)
        # multicast over NVLink asks the driver for memory that containers and shared hosts often don't give
        os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    if LOOPBACK and (meeting or os.environ["MASTER_ADDR"] in LOCAL):
        # no other machine has to reach them, and a host's own name need not lead to itself
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(name, LOOPBACK)
    limit = timedelta(seconds=patience)
    with told():
        transport, store = "nccl" if device.type == "cuda" else "gloo", _store(meeting, count, limit)
        dist.init_process_group(transport, timeout=limit, store=store, rank=rank, world_size=count)
    yield Ranks(rank, count, device, limit)
    dist.destroy_process_group()  # after an error it would wait for the others


def _store(meeting: str | None, count: int, limit: timedelta) -> Any:
    """Where the ranks find each other; None for torch's own, at an address."""
    if meeting is None:
        return None
    known: Any = dist  # which does not say in its types that it has them
    store = known.FileStore(meeting, count)
    store.set_timeout(limit)
    return store


def why_not(model: nn.Module, count: int, guided: bool) -> str:
    """Why `count` ranks can't share a clip of this transformer, as one sentence; empty when they can."""
    return why_not_tokens(model, token_ranks(count, guided))


class Shared:
    """`model` shared by all ranks until `undo`, for one clip. guided: whether a step has two calls, see SplitBranches;
    asked before each call. planned: whether the clip to come is guided, which decides how the ranks are dealt out.
    meet: called before the two branches exchange their outputs, to see whether the other ranks still come.

    Accelerators are installed before and removed after. Raises AccelError.
    """

    def __init__(
        self,
        model: nn.Module,
        ranks: Ranks,
        planned: bool,
        guided: Callable[[], bool] = lambda: True,
        meet: Callable[[], None] = lambda: None,
    ) -> None:
        halved = branches_split(ranks.count, planned)
        if reason := why_not(model, ranks.count, planned):
            raise AccelError(reason)
        tokens, pair = ranks.groups(halved)
        with ExitStack() as stack:
            if dist.get_world_size(tokens) > 1:
                stack.callback(SplitTokens(model, tokens).undo)
            if pair is not None:
                stack.callback(SplitBranches(model, pair, guided, meet).undo)
            self._stack = stack.pop_all()

    def undo(self) -> None:
        """The model computes everything itself again. A second call does nothing."""
        self._stack.close()

    def __enter__(self) -> Shared:
        return self

    def __exit__(self, *error: object) -> None:
        self.undo()
