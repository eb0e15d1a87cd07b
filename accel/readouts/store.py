"""Readouts kept from one start to the next: one JSON file per machine and set of package versions.

A file is for the place it was measured at: another processor, GPU, driver, core limit, torch or version of the backends
makes it stale, and stale figures are shown, never used. `ACCEL_CACHE` names another folder, as for the probe's records.
Files of other people can be put there to be looked at; they are stale here by their fingerprint.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from accel import cache as records
from accel.codec import shown
from accel.reading import read_json
from accel.readouts.results import SCHEMA, Place, Results
from accel.types import Machine

PACKAGES = ("torch", "diffusers", "sgl_kernel", "aiter", "triton", "torchao", "sageattention", "flash_attn")
"""Those whose version changes a figure."""

CODE = (
    *("backends/*.py", "contract.py", "ops.py", "packed.py", "linears.py", "convolutions.py", "norms.py"),
    *("upsampling.py", "swapping.py", "fp8.py", "triton_*.py", "compiling.py", "threads.py", "waiting.py"),
    *(f"measuring/{name}.py" for name in ("calls", "blocks", "trials", "timing", "micro")),
)
"""What runs when a backend does, and what measures it: they count as a package of its own."""


MAX_WHY = 400
"""Characters of a reason; it quotes the file."""


@dataclass(frozen=True)
class Stale:
    """Figures that don't count here, and why, as a clause."""

    path: Path
    results: Results
    why: str


@dataclass(frozen=True)
class Shelf:
    """What is kept: the results of this place, None without any; others with the reason why they don't count; files
    that can't be read, one sentence each."""

    current: Results | None = None
    stale: tuple[Stale, ...] = ()
    problems: tuple[str, ...] = ()


def folder() -> Path:
    """Where results lie for who names no other place. Raises OSError when there is no such place."""
    return records.folder() / "readouts"


def place(machine: Machine) -> Place:
    """This machine and its packages."""
    gpus = [f"{gpu.name} {gpu.arch} {gpu.memory} {gpu.driver}" for gpu in machine.usable_gpus()]
    usable = sorted(name for name, flag in machine.cpu.flags.items() if flag.usable)
    cpu = machine.cpu
    parts = [machine.system, machine.arch, cpu.vendor, cpu.model, cpu.identity, str(machine.cores.usable), *usable]
    changed = [f"{item.name}={item.value}" for item in machine.overrides]
    versions = {
        name: " ".join(filter(None, (package.version, package.build)))
        for name in PACKAGES
        if (package := machine.packages.get(name)) is not None and package.installed
    }
    name = f"{cpu.model or cpu.vendor}, {machine.cores.usable} cores"
    cards = sorted({gpu.name for gpu in machine.usable_gpus()})
    fingerprint = records.key([*parts, *gpus, *changed])
    return Place(fingerprint, ", ".join([name, *cards]), {**versions, "accel": code()})


@cache
def code() -> str:
    """A short digest of what runs when a backend does."""
    root = Path(__file__).parents[1]
    files = sorted(path for pattern in CODE for path in root.glob(pattern))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:8]


def file_name(here: Place) -> str:
    return f"{records.key([here.fingerprint, *sorted(map(str, here.versions.items()))])}.json"


def load(machine: Machine, where: Path | None = None) -> Shelf:
    """What is kept in `where`, judged by this machine. Never raises: what can't be read is a problem."""
    here = place(machine)
    current: Results | None = None
    stale, problems = [], []
    try:
        paths = sorted((where or folder()).glob("*.json"))
    except OSError as error:
        return Shelf(problems=(f"readouts can't be looked for: {error}",))
    for path in paths:
        try:
            found = read(path)
        except (OSError, ValueError) as error:
            problems.append(f"{path.name} holds no readouts that can be used: {error}")
            continue
        why = why_stale(found, here)
        if not why:
            current = found
        else:
            stale.append(Stale(path, found, why))
    return Shelf(current, tuple(stale), tuple(problems))


def read(path: Path) -> Results:
    """The results in a file. Raises OSError, or ValueError for what is no such file or of another schema."""
    data = read_json(path, finite=False)
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != SCHEMA:
        raise ValueError(f"its schema is {shown(schema)}, this version reads {SCHEMA}")
    return Results.from_dict(data)


def why_stale(found: Results, here: Place) -> str:
    """Why figures of another place don't count here, as a clause; empty when they do."""
    then = found.place
    if then.fingerprint != here.fingerprint:
        if then.name != here.name:
            return _plain(f"measured on another machine ({then.name})")
        return "this machine, its driver, its limits or its environment has changed since"
    changed = [
        f"{name} {then.versions.get(name, 'none')} then, {here.versions.get(name, 'none')} now"
        for name in sorted({*then.versions, *here.versions})
        if then.versions.get(name) != here.versions.get(name)
    ]
    return _plain(f"measured with other versions: {', '.join(changed)}") if changed else ""


def _plain(text: str) -> str:
    """What other people's files say, as a terminal may get it: of bounded length, nothing that moves its cursor."""
    return "".join(c if c.isprintable() else "?" for c in text[:MAX_WHY])


def save(results: Results, where: Path | None = None) -> str:
    """Keeps `results` in the place of what was kept for the same machine and versions. Returns why it could not, as a
    sentence, else ""."""
    try:
        records.write(where or folder(), file_name(results.place), results.to_dict())
    except OSError as error:
        return f"The readouts could not be kept ({error})."
    return ""
