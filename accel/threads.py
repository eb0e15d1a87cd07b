"""Threads and how they wait: environment variables that must be set before torch is imported."""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping

from accel.probing.overrides import APPLIED
from accel.types import Machine
from accel.waiting import WAITING, WAITING_ENVIRONMENT


def environment(machine: Machine, threads: int | None = None, waiting: str | None = None) -> dict[str, str]:
    """The variables for this machine. threads: the count to use, None for the machine's own limit. waiting: None for
    `WAITING`.

    When the bf16 test was killed although the CPU advertises AMX, oneDNN is kept below AMX, so that the real run does
    not die of it.
    """
    count = threads or machine.cores.usable
    wanted = {"OMP_NUM_THREADS": str(count), **WAITING_ENVIRONMENT[waiting or WAITING]}
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
