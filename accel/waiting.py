"""How idle threads wait: the ways there are, and which one is taken.

OpenMP's idle workers spin, by torch's own default for milliseconds. Alone on a machine that is fastest; next to one
busy process a worker that spins keeps the core from the worker that everybody waits for. Waking one that sleeps costs
tens of microseconds, and a small model has hundreds of parallel loops in one forward. Measured on 2 cores of Zen 4, one
forward of the starter, medians in milliseconds, alone and beside one busy process:

    spins of libgomp (GOMP_SPINCOUNT)    0    300   1000   2000   4000   8000   default (300000)
    alone                              118    110     98     96     83     86     84
    beside one busy process            142    158    187    208    261    348    341

A spin is one `pause`, some 50 cycles on Zen 4 and 140 on Intel since Skylake.

On 16 cores of a Xeon with AMX, three steps and a decode of the starter at 9 frames, in seconds, alone and beside one
busy process (plain diffusers, which waits in torch's own way: 0.71 and 27.7):

    spins                                0   1000   default (300000)
    alone                             0.37   0.30   0.30
    beside one busy process           0.43   0.48   31.5

There are costs: on another day 1000 spins took 1.43 times as long as the default for the starter's steps alone on
those 16 cores, and 1.07 times for a step shaped like Wan 2.1 1.3B in bf16. But no machine is alone for long: a page, an
encoder or a browser is enough. `WAITING` is the one place where the choice stands.
"""

from __future__ import annotations

WAITING_ENVIRONMENT = {
    # How idle workers wait: passive: sleep at once; brief: spin for a moment, then sleep; active: torch's own way.
    # GOMP is Linux's OpenMP, KMP the one of macOS, Windows and MKL, which can't spin for less than a millisecond
    "passive": {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"},
    "brief": {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "0"},
    "active": {},
}
WAITING = "brief"
WAITING_REASON = (
    "idle threads soon sleep, so that beside one busy program a clip takes up to twice as long, not four times or, "
    "on many cores, a hundred times"
)
