"""What this machine has: the door to `accel/probing/`. Facts only; what to use of them is `plan.py`'s business.

`probe()` never raises and imports no torch into the calling process: versions come from package metadata, everything
that could crash runs in a child process. With remembered results it takes a few hundredths of a second, the first time
some seconds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from accel import cache
from accel.probing import cpu, gpus, limits, overrides, packages, proving, verdict
from accel.probing.host import Distribution, Host, LocalHost
from accel.types import Cores, CpuFacts, Flag, Gpu, Machine, Memory, NumaNode, Override, Package, Proof, Scalar

T = TypeVar("T")
Runs = dict[str, dict[str, Any]]
Found = dict[str, Distribution | None]

PATIENCE = 10.0
"""Seconds that a first probe may take. Kernels that compile on their first run want more: see `proving.SLOW`."""

COMPILERS = ("g++", "clang++", "c++", "cl")
"""What torch.compile looks for on a CPU."""

RUNS = Path(__file__).with_name("probing") / "runs"

NOBODY = cpu.Claim("unknown", "unknown", frozenset(), "", "nowhere")


def probe(
    *, prove: bool = True, patience: float = PATIENCE, host: Host | None = None, cache_folder: Path | None = None
) -> Machine:
    """The machine this process runs on.

    prove: run the small tests that are not remembered yet, for about `patience` seconds. Without it only remembered
    results count, which is quick enough for any process. Anything that goes wrong becomes a sentence in
    `Machine.problems`.
    """
    return _Probe(host or LocalHost(), cache_folder).machine(prove, patience)


class _Probe:
    """One probing of one host; collects what could not be read."""

    def __init__(self, host: Host, cache_folder: Path | None) -> None:
        self.host, self.cache_folder = host, cache_folder
        self.problems: list[str] = []

    def careful(self, what: str, call: Callable[[], T], otherwise: T) -> T:
        """`call()`, or `otherwise` and a noted problem: a reader's mistake must not cost the person the start."""
        try:
            return call()
        except Exception as error:
            self.problems.append(f"{what} could not be read ({type(error).__name__}: {error})")
            return otherwise

    def machine(self, prove: bool, patience: float) -> Machine:
        host = self.host
        claim = self.careful("the CPU", lambda: cpu.read(host), NOBODY)
        cores = self.careful("the core limits", lambda: limits.cores(host), Cores(1, 1, 1, "not known, so 1"))
        memory = self.careful("the memory limits", lambda: limits.memory(host), Memory(0, 0, "not known"))
        no_nodes: tuple[NumaNode, ...] = ()
        nodes = self.careful("the NUMA nodes", lambda: limits.numa(host), no_nodes)
        no_overrides: tuple[Override, ...] = ()
        changed = self.careful("the overrides", lambda: overrides.read(host), no_overrides)
        found: Found = self.careful("the packages", lambda: packages.installed(host), {})
        name = self.careful("the fingerprint", lambda: cache.key(self.fingerprint(claim, cores.usable, found)), "")
        runs: Runs = cache.load(name, self.cache_folder)
        if prove and found.get("torch") is not None:
            runs = self.careful("the tests", lambda: self.prove(name, runs, found, cores.usable, patience), runs)
        return Machine(
            system=host.system,
            arch=host.arch,
            python=host.python,
            cpu=self.read_cpu(claim, runs),
            cores=cores,
            memory=memory,
            numa=nodes,
            gpus=self.read_gpus(found.get("torch"), runs),
            packages=self.read_packages(found, runs),
            overrides=changed,
            proofs=self.careful("the test results", lambda: _proofs(runs), {}),
            compiler=next((name for name in COMPILERS if host.has(name)), ""),
            problems=tuple(self.problems),
        )

    def prove(self, name: str, known: Runs, found: Found, threads: int, patience: float) -> Runs:
        """`known` and the results of whatever is not among them, which are then remembered."""
        fresh: Runs = {}
        if "nvidia-smi" not in known:
            text = self.host.run(*gpus.SMI)
            fresh["nvidia-smi"] = {"ok": text is not None, "reason": "asked for its list of GPUs", "text": text or ""}
        fresh |= proving.prove(self.host, _tasks(found), threads, patience, known)
        if name and any(not result.get("again") for result in fresh.values()):
            problem = cache.save(name, {**known, **fresh}, self.cache_folder)
            self.problems += [problem] if problem else []
        return {**known, **fresh}

    def read_cpu(self, claim: cpu.Claim, runs: Runs) -> CpuFacts:
        capped = self.host.environ.get("ONEDNN_MAX_CPU_ISA") or self.host.environ.get("DNNL_MAX_CPU_ISA") or ""
        nothing: dict[str, Flag] = {}
        flags = self.careful("the CPU's flags", lambda: verdict.flags(self.host.arch, claim, runs, capped), nothing)
        return CpuFacts(claim.vendor, claim.model, flags, claim.identity)

    def read_gpus(self, torch: Distribution | None, runs: Runs) -> tuple[Gpu, ...]:
        def read() -> tuple[Gpu, ...]:
            cards = [*gpus.nvidia(runs.get("nvidia-smi", {}).get("text")), *gpus.amd(self.host)]
            build = packages.torch_build(self.host, torch)
            return gpus.assemble(self.host, build, torch.version if torch else "", cards, runs)

        nothing: tuple[Gpu, ...] = ()
        return self.careful("the GPUs", read, nothing)

    def read_packages(self, found: Found, runs: Runs) -> dict[str, Package]:
        return self.careful("the packages", lambda: packages.describe(self.host, found, runs), {})

    def fingerprint(self, claim: cpu.Claim, threads: int, found: Found) -> list[str]:
        """Everything that could change a test's answer, and the code that asks."""
        host = self.host
        who = f"{host.system} {host.arch} {host.python} {claim.vendor} {claim.model} {claim.identity} {threads}"
        flags = " ".join(sorted(claim.flags))
        kernel = host.read("/proc/sys/kernel/osrelease") or ""
        versions = [f"{item.name} {item.version} {item.folder}" for item in found.values() if item is not None]
        # the thread count stands in `who` already, whoever set it
        changed = [f"{item.name}={item.value}" for item in overrides.read(host) if "NUM_THREADS" not in item.name]
        code = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(RUNS.glob("*.py")))).hexdigest()
        return [who, flags, kernel, gpus.fingerprint(host), *versions, *changed, code]


def _tasks(found: Found) -> list[str]:
    """What to try here: the processor always, a package's operators where it is installed."""
    tasks = [*proving.PROCESSOR, "gpus"]
    for package, distribution in found.items():
        if distribution is not None and package != "torch":
            tasks += [package, *proving.OF_PACKAGE.get(package, ())]
    return tasks


def _proofs(runs: Runs) -> dict[str, Proof]:
    return {task: _proof(result) for task, result in runs.items() if task != "nvidia-smi"}


def _proof(result: dict[str, Any]) -> Proof:
    figures = {name: float(value) for name, value in result.get("figures", {}).items()}
    detail: dict[str, Scalar] = {
        name: value
        for name, value in result.items()
        if name not in ("ok", "reason", "figures", "untried") and isinstance(value, (str, int, float, bool))
    }
    return Proof(bool(result["ok"]), str(result["reason"]), figures, detail, result.get("untried", ""))
