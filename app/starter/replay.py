"""One training step as a CUDA graph: the kernels of thousands of small calls, launched as one.

At this model's size the processor needs longer to launch a step's kernels than the GPU needs to run them. A graph
that can't be captured, or computes something else than the plain calls, is not used, and the log says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from app.starter.training import Ranks

TOLERANCE = 0.05
"""Relative difference of losses and gradients allowed between a graph and plain calls: bf16 sums in another order."""


Memory = Any
"""Torch's handle of the memory that a graph uses."""


class Replayed:
    """``run`` reads and writes fixed tensors only and draws no random numbers; calling this object runs it.

    results: tensors that ``run`` writes; compared after capture.
    """

    def __init__(self, ranks: Ranks, name: str, run: Callable[[], None], results: Sequence[Tensor]) -> None:
        self.ranks, self.name, self.run, self.results = ranks, name, run, list(results)
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        if self.graph is None:
            self.run()
        else:
            self.graph.replay()

    def capture(self, memory: Memory | None = None) -> Memory | None:
        """Try to turn ``run`` into a graph (its input tensors must hold a real batch). Returns the memory it uses.

        memory: of another graph that never runs at the same time, to be shared. Without CUDA nothing happens.
        """
        if not self.ranks.cuda:
            return None
        try:
            graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self.run()
            torch.cuda.current_stream().wait_stream(side)
            plain = self._seconds(self.run)
            expected = [result.clone() for result in self.results]
            # NCCL's watchdog thread looks at events all the time, which the default mode forbids to every thread.
            with torch.cuda.graph(graph, pool=memory, stream=side, capture_error_mode="thread_local"):
                self.run()
            replayed = self._seconds(graph.replay)
            errors = [self._error(new, old) for new, old in zip(self.results, expected, strict=True)]
        except Exception as error:  # whatever goes wrong here must not end a training run
            self.ranks.warn(f"{self.name}: no CUDA graph, going on with plain calls: {error!r}")
            return memory
        if not all(error < TOLERANCE for error in errors):
            self.ranks.warn(f"{self.name}: the CUDA graph computes something else (errors {errors}); plain calls")
            return memory
        self.ranks.say(
            f"{self.name}: {1000 * plain:.1f} ms in plain calls, {1000 * replayed:.1f} ms as a CUDA graph, "
            f"largest relative difference {max(errors):.1e}"
        )
        self.graph = graph
        return graph.pool()

    def check(self) -> None:
        """Compare graph and plain calls once more: graphs captured later may share this one's memory."""
        if self.graph is None:
            return
        self.graph.replay()
        replayed = [result.clone() for result in self.results]
        self.run()
        errors = [self._error(new, old) for new, old in zip(replayed, self.results, strict=True)]
        if not all(error < TOLERANCE for error in errors):
            self.ranks.warn(f"{self.name}: the CUDA graph went wrong after others (errors {errors}); plain calls")
            self.graph = None

    def _seconds(self, run: Callable[[], object], count: int = 4) -> float:
        torch.cuda.synchronize()
        start = time.monotonic()
        for _ in range(count):
            run()
        torch.cuda.synchronize()
        return (time.monotonic() - start) / count

    @staticmethod
    def _error(new: Tensor, old: Tensor) -> float:
        return float((new.float() - old.float()).norm() / (old.float().norm() + 1e-12))
