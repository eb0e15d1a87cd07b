"""What the small runs share: timing on one core, judging against float64, seeing which instructions ran.

Limits of the relative error (Frobenius norm), from the formats' rounding: float32 1e-5, bfloat16 1e-2, float16 2e-3,
int8 linears with one scale per tensor 3e-2; FP8 on normal numbers gives 2.7 % for linears, 5.4 % for attention.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from typing import Any

TOLERANCE = {"float32": 1e-5, "bfloat16": 1e-2, "float16": 2e-3, "int8": 3e-2}
TOLERANCE |= {"fp8_linear": 5e-2, "fp8_attention": 8e-2}
Result = dict[str, Any]

# Windows counts a thread's time in steps of 15 ms
CPU_CLOCK = time.perf_counter if sys.platform == "win32" else time.thread_time


def best_ms(call: Callable[[], Any], clock: Callable[[], float] = CPU_CLOCK, budget: float = 0.06) -> float:
    """Least milliseconds of `call` on one core after one warm-up, repeated for about `budget` seconds, at most 20
    times.

    One core and its own clock, since on a busy machine the threads of a parallel loop wait for each other and for their
    turn.
    """
    import torch

    torch.set_num_threads(1)
    call()
    best, end = float("inf"), time.perf_counter() + budget
    for _ in range(20):
        start = clock()
        call()
        best = min(best, clock() - start)
        if time.perf_counter() > end:
            break
    return round(best * 1e3, 4)


def judged(got: Any, want: Any, dtype: str, **more: Any) -> Result:
    """Compares a result with its float64 reference."""
    got, want = got.detach().cpu().double(), want.detach().cpu().double()
    error = float((got - want).norm() / want.norm())
    ok = error <= TOLERANCE[dtype]  # False for NaN as well
    reason = (
        f"ran and was right (relative error {error:.1e})" if ok else f"ran and was wrong: relative error {error:.1e}"
    )
    return {"ok": ok, "reason": reason, "figures": {"error": error, **more.pop("figures", {})}, **more}


def seeded(*shape: int) -> Any:
    """Normal numbers, the same in every run, float32 on the CPU."""
    import torch

    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


def shown(call: Callable[[], Any]) -> Any:
    """`call()` with oneDNN saying on standard output which instruction set it used."""
    import torch

    with torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON):
        return call()


def flush() -> None:
    """Empties C's own buffer: oneDNN writes through it, past Python's."""
    sys.stdout.flush()
    with contextlib.suppress(OSError, TypeError, AttributeError):
        import ctypes

        ctypes.CDLL(None).fflush(None)
