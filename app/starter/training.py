"""What the training stages share: ranks, the clock that drives the learning rate, flat parameters, averages, Muon."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn


class Ranks:
    """This process among its peers (one per GPU under torchrun, alone otherwise).

    Where each process is shown its own GPU alone (torchrun --virtual-local-rank), all call theirs cuda:0. Compiled
    kernels name their device, so only then can the ranks share them.
    """

    def __init__(self) -> None:
        self.size = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank = int(os.environ.get("RANK", "0"))
        self.cuda = torch.cuda.is_available()
        local = int(os.environ.get("LOCAL_RANK", "0")) % max(1, torch.cuda.device_count())
        self.device = torch.device("cuda", local) if self.cuda else torch.device("cpu")
        if self.cuda:
            torch.cuda.set_device(self.device)
            torch.backends.cuda.matmul.allow_tf32 = True
            torch.backends.cudnn.allow_tf32 = True
        if self.size > 1 and not dist.is_initialized():
            dist.init_process_group("nccl" if self.cuda else "gloo")

    @property
    def first(self) -> bool:
        return self.rank == 0

    def say(self, *words: object) -> None:
        """Print once, from the first rank."""
        if self.first:
            print(*words, flush=True)

    def warn(self, *words: object) -> None:
        """Print from any rank, so that nobody misses it in the log."""
        print(f"WARNING (rank {self.rank}):", *words, flush=True)

    def dice(self, seed: int) -> torch.Generator:
        """Random numbers of this rank's own. Apart from torch's own generator, which a CUDA graph may hold."""
        return torch.Generator(self.device).manual_seed(1000 * seed + self.rank)

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.cuda)

    def wait(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def upload(self, tensor: Tensor) -> Tensor:
        """A tensor of the processor's on this rank's device, without waiting for the device."""
        return tensor.pin_memory().to(self.device, non_blocking=True) if self.cuda else tensor

    def average(self, tensor: Tensor) -> None:
        """Replace ``tensor`` by its mean over the ranks."""
        if self.size > 1:
            dist.all_reduce(tensor)
            tensor /= self.size

    def average_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Mean of every gradient over the ranks, in one message."""
        if self.size == 1:
            return
        gradients = [p.grad for p in parameters if p.grad is not None]
        flat = torch.cat([g.flatten() for g in gradients])
        dist.all_reduce(flat)
        flat /= self.size
        torch._foreach_copy_(gradients, [f.view_as(g) for f, g in zip(_split(flat, gradients), gradients, strict=True)])

    def share(self, tensors: Iterable[Tensor]) -> None:
        """Give every rank the first rank's values."""
        if self.size > 1:
            for tensor in tensors:
                dist.broadcast(tensor, 0)

    def largest(self, value: float) -> float:
        """The same number on every rank: the largest of theirs."""
        if self.size == 1:
            return value
        tensor = torch.tensor(value, device=self.device, dtype=torch.float64)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return float(tensor)

    def close(self) -> None:
        if self.size > 1:
            dist.destroy_process_group()


def _split(flat: Tensor, like: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return flat.split([t.numel() for t in like])


class Clock:
    """Share of the training time that has passed (0...1), the same on every rank, looked up every ten steps.

    seconds: what this rank has left; the longest of all ranks holds, since a rank that stopped before the others would
    leave them waiting for its gradients for ever.
    """

    def __init__(self, ranks: Ranks, seconds: float) -> None:
        self.ranks, self.start = ranks, time.monotonic()
        self.seconds = ranks.largest(max(seconds, 1.0))  # preparing may have taken it all
        self.passed = 0.0

    def elapsed(self) -> float:
        return time.monotonic() - self.start

    def tick(self, step: int) -> float:
        if step % 10 == 0:
            self.passed = self.ranks.largest(self.elapsed()) / self.seconds
        return self.passed


def learning_rate_factor(step: int, passed: float, warmup: int, flat_until: float) -> float:
    """Linear warm-up over ``warmup`` steps, flat, then linearly to 1 % at the end of the time."""
    up = min(1.0, (step + 1) / warmup)
    down = 1.0 if passed < flat_until else max(0.01, (1 - passed) / (1 - flat_until))
    return up * down


class Flat:
    """Groups of parameters laid side by side in one buffer: one message, norm or update instead of hundreds.

    The parameters stay what they were and only move their memory, gradients included. ``groups`` holds one long
    parameter per group for an optimiser. Gradients add up in place: zero ``grad`` before each backward pass.
    """

    _ALIGNED = 64  # elements; compiled kernels load 16 bytes at a time

    def __init__(self, groups: Sequence[Sequence[nn.Parameter]]) -> None:
        def room(parameter: nn.Parameter) -> int:
            return -(-parameter.numel() // self._ALIGNED) * self._ALIGNED

        sizes = [sum(room(p) for p in group) for group in groups]
        device = groups[0][0].device
        self.data, self.grad = torch.zeros(sum(sizes), device=device), torch.zeros(sum(sizes), device=device)
        self.skipped = torch.zeros((), device=device)
        self.groups = []
        start = 0
        for group, size in zip(groups, sizes, strict=True):
            whole = nn.Parameter(self.data[start : start + size])
            whole.grad = self.grad[start : start + size]
            self.groups.append(whole)
            for parameter in group:
                end = start + parameter.numel()
                place = self.data[start:end].view_as(parameter)
                place.copy_(parameter.data)
                parameter.data = place
                parameter.grad = self.grad[start:end].view_as(parameter)
                start += room(parameter)

    def clip(self, largest: float) -> None:
        """Scale the gradients so that their norm is at most ``largest``, without waiting for the device.

        Gradients that are not finite become zero, and ``skipped`` counts such steps.
        """
        norm = torch.linalg.vector_norm(self.grad)
        finite = norm.isfinite()
        self.skipped += ~finite
        self.grad.nan_to_num_(0.0, 0.0, 0.0).mul_(torch.where(finite, (largest / (norm + 1e-6)).clamp(max=1.0), 0.0))


class Average:
    """Exponential moving average of parameters, with a short memory at the start."""

    def __init__(self, parameters: Sequence[Tensor], decay: float) -> None:
        self.parameters, self.decay, self.steps = list(parameters), decay, 0
        self.values = [p.detach().clone() for p in parameters]

    @torch.no_grad()
    def update(self) -> None:
        self.steps += 1
        decay = min(self.decay, self.steps / (10 + self.steps))
        torch._foreach_lerp_(self.values, [p.detach() for p in self.parameters], 1 - decay)

    @torch.no_grad()
    def apply(self) -> None:
        """Write the averages into the parameters."""
        torch._foreach_copy_([p.data for p in self.parameters], self.values)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The averages in the parameters' place for a while."""
        kept = [p.detach().clone() for p in self.parameters]
        self.apply()
        try:
            yield
        finally:
            torch._foreach_copy_([p.data for p in self.parameters], kept)


class Muon:
    """Momentum with orthogonalised updates for matrices (Jordan et al. 2024), batched over equal shapes.

    The five Newton-Schulz steps use the published coefficients that converge fastest in bf16; updates are scaled to
    the size that AdamW's would have (0.2 * sqrt(longer side), Moonlight 2025).
    """

    STEPS = (
        (4.0848, -6.8946, 2.9270),
        (3.9505, -6.3029, 2.6377),
        (3.7418, -5.5913, 2.3037),
        (2.8769, -3.1427, 1.2046),
        (2.8366, -3.0525, 1.2012),
    )

    def __init__(self, parameters: Sequence[nn.Parameter], momentum: float = 0.95, weight_decay: float = 0.02) -> None:
        self.momentum, self.weight_decay = momentum, weight_decay
        self.groups: dict[tuple[int, ...], list[nn.Parameter]] = {}
        for parameter in parameters:
            self.groups.setdefault(tuple(parameter.shape), []).append(parameter)
        self.buffers = {
            shape: torch.zeros(len(members), *shape, device=members[0].device) for shape, members in self.groups.items()
        }

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        for shape, members in self.groups.items():
            gradient = torch.stack([p.grad for p in members if p.grad is not None])
            buffer = self.buffers[shape]
            buffer.lerp_(gradient, 1 - self.momentum)
            update = orthogonalise(gradient.lerp(buffer, self.momentum)).float() * (0.2 * max(shape) ** 0.5)
            tensors: list[Tensor] = [*members]
            torch._foreach_mul_(tensors, 1 - learning_rate * self.weight_decay)
            torch._foreach_add_(tensors, list(update.unbind(0)), alpha=-learning_rate)


def orthogonalise(matrices: Tensor) -> Tensor:
    """Nearest semi-orthogonal matrices, roughly (singular values 0.7...1.2), of ``(n, rows, columns)``."""
    x = matrices.to(torch.bfloat16 if matrices.is_cuda else torch.float32)
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for a, b, c in Muon.STEPS:
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x
