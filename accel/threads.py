"""Threads and how they wait: environment variables that must be set before torch is imported.

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

import os
import sys
from collections.abc import MutableMapping

from accel.probing.overrides import APPLIED
from accel.types import Machine

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


def environment(machine: Machine, threads: int | None = None, waiting: str | None = None) -> dict[str, str]:
    """The variables for this machine. threads: the count to use, None for the machine's own limit. waiting: None for
    the way that suits the count.

    When the bf16 test was killed although the CPU advertises AMX, oneDNN is kept below AMX, so that the real run does
    not die of it.
    """
    count = threads or machine.cores.usable
    wanted = {"OMP_NUM_THREADS": str(count), **WAITING_ENVIRONMENT[waiting or waiting_for(count)]}
    death = machine.proofs.get("bf16")
    if death is not None and "signal" in death.detail and machine.cpu.advertises("amx_tile"):
        wanted["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_BF16" if machine.cpu.advertises("avx512_bf16") else "AVX512_CORE"
    return wanted


def apply(machine: Machine | None = None, environ: MutableMapping[str, str] | None = None) -> list[str]:
    """Sets the variables that are not set already; what the person set stays. Call it before torch is imported.

    machine: probed here, without running tests, when None. Returns sentences on what could not be set, empty when all
    is well.
    """
    target = os.environ if environ is None else environ
    if environ is None and "torch" in sys.modules:
        return ["torch is loaded already, so the thread settings of this process stay as they are"]
    if machine is None:
        from accel.probe import probe

        machine = probe(prove=False)
    ours = {name: value for name, value in environment(machine).items() if name not in target}
    target.update(ours)
    already = target.get(APPLIED, "").split(",")
    target[APPLIED] = ",".join(sorted({*already, *ours} - {""}))
    return []
