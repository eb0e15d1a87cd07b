"""Threads and how they wait: environment variables that must be set before torch is imported.

OpenMP's workers spin while they wait for the next parallel loop. Next to one busy process that made a small model 10 to
20 times slower on 2 cores; sleeping instead brought it to 2 times. `WAITING` is the one place where that choice stands.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping

from accel.probing.overrides import APPLIED
from accel.types import Machine

WAITING = "passive"
"""How idle workers wait: "passive" (sleep at once), "brief" (spin a moment, then sleep) or "active" (spin, torch's own
way)."""

WAITING_ENVIRONMENT = {
    # GOMP is Linux's OpenMP, KMP the one of macOS, Windows and MKL
    "passive": {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"},
    # some ten microseconds, the pause between two operators, are spun away
    "brief": {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "0"},
    "active": {},
}
WAITING_REASON = (
    "idle threads sleep, so that a clip made beside another busy program takes twice as long, not ten times"
)


def environment(machine: Machine, threads: int | None = None, waiting: str = WAITING) -> dict[str, str]:
    """The variables for this machine. threads: the count to use, None for the machine's own limit.

    When the bf16 test was killed although the CPU advertises AMX, oneDNN is kept below AMX, so that the real run does
    not die of it.
    """
    wanted = {"OMP_NUM_THREADS": str(threads or machine.cores.usable), **WAITING_ENVIRONMENT[waiting]}
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
