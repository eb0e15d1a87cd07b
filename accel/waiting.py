"""How idle threads wait: the ways there are, and which one suits how many threads.

OpenMP's idle workers spin, by torch's own default for milliseconds. Alone on a machine that is fastest; next to one
busy process a worker that spins keeps the core from the worker that everybody waits for. Waking one that sleeps costs
tens of microseconds, and a small model has hundreds of parallel loops in one forward. Measured on 2 cores of Zen 4, one
forward of the starter, medians in milliseconds, alone and beside one busy process:

    spins of libgomp (GOMP_SPINCOUNT)    0    300   1000   2000   4000   8000   default (300000)
    alone                              118    110     98     96     83     86     84
    beside one busy process            142    158    187    208    261    348    341

A spin is one `pause`, some 50 cycles on Zen 4 and 140 on Intel since Skylake.

With more threads, waking them takes longer and a sleeping one is missed more. On 16 cores of a Xeon with AMX, against
torch's own way: 1000 spins took 1.43 times as long for the starter's steps and 1.07 times for a step shaped like Wan
2.1 1.3B in bf16; 20000 spins 1.06 and 1.14 times. So more than `FEW` threads wait in torch's own way, as plain
diffusers' do. `waiting_for` is the one place where the choice stands.
"""

from __future__ import annotations

FEW = 4
"""Threads up to which a moment's spinning is enough."""

WAITING_ENVIRONMENT = {
    # How idle workers wait: passive: sleep at once; brief: spin for a moment, then sleep; active: torch's own way.
    # GOMP is Linux's OpenMP, KMP the one of macOS, Windows and MKL, which can't spin for less than a millisecond
    "passive": {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"},
    "brief": {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "0"},
    "active": {},
}
WAITING_REASONS = {
    "brief": "idle threads soon sleep, so that beside one busy program a clip takes twice as long, not four times",
    "active": "many threads are slow to wake: idle ones spin on, as torch has them do by itself",
}


def waiting_for(threads: int) -> str:
    """The way of waiting, a key of `WAITING_ENVIRONMENT`, for so many threads."""
    return "brief" if threads <= FEW else "active"
