"""Which system, processor and GPUs are here, read before torch is installed.

Only facts: what to make of them is builds.py's matter. Each reader looks at one source, returns what it saw and never
raises; a source that exists but cannot be used leaves a note in words. accel/probe.py asks again, with torch, once it
is there.

Sources: ``nvidia-smi`` (name, compute capability, driver); ``/proc/driver/nvidia`` where the tool is missing, as in
many containers; ``/sys/class/kfd`` for AMD (``gfx_target_version`` is major*10000 + minor*100 + stepping: 90402 is
gfx942). In a container the host's /proc and /sys show through, so a GPU counts only with its device node.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

NVIDIA_QUERY = ("--query-gpu=name,compute_cap,driver_version", "--format=csv,noheader")
_PROCESSORS = {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64"}
_NVIDIA_SMI_SECONDS = 30.0  # a cold driver can take ten seconds to wake its GPUs


@dataclass(frozen=True)
class Gpu:
    """One GPU. ``arch``: NVIDIA's compute capability ("9.0"), AMD's gfx name ("gfx942"), "" when unknown."""

    vendor: str
    name: str
    arch: str


@dataclass(frozen=True)
class Host:
    """This machine, as far as the choice of a torch build needs it. ``driver`` is NVIDIA's, as numbers, or None."""

    system: str
    processor: str
    gpus: tuple[Gpu, ...] = ()
    driver: tuple[int, ...] | None = None
    notes: tuple[str, ...] = ()

    def describe(self) -> str:
        """One line for a person: system, processor and GPUs."""
        gpus = ", ".join(f"{gpu.name} ({gpu.arch or 'architecture unknown'})" for gpu in self.gpus)
        return f"{self.system} {self.processor}, {gpus or 'no GPU that torch could use'}"


@dataclass(frozen=True)
class Reading:
    """What one reader saw."""

    gpus: tuple[Gpu, ...] = ()
    driver: tuple[int, ...] | None = None
    notes: tuple[str, ...] = ()


Runner = Callable[[list[str]], tuple[int, str]]


def run_tool(command: list[str]) -> tuple[int, str]:
    """Run a vendor's tool; its exit code and output, or -1 and the reason when it does not run or hangs."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_NVIDIA_SMI_SECONDS, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        return -1, str(error)
    return done.returncode, done.stdout if done.returncode == 0 else done.stdout + done.stderr


def numbers(text: str) -> tuple[int, ...]:
    """The numbers of a dotted version: "580.95.05" gives (580, 95, 5)."""
    return tuple(int(part) for part in re.findall(r"\d+", text))


def parse_nvidia_smi(text: str) -> Reading:
    """Read ``name, capability, driver`` lines; a capability of ``[N/A]`` (very old drivers) stays unknown."""
    gpus, driver = [], None
    for line in text.splitlines():
        fields = [field.strip() for field in line.rsplit(",", 2)]
        if len(fields) != 3 or not re.match(r"\d+\.\d+", fields[2]):
            continue
        arch = fields[1] if re.fullmatch(r"\d+\.\d+", fields[1]) else ""
        gpus.append(Gpu("nvidia", fields[0], arch))
        driver = numbers(fields[2])
    return Reading(tuple(gpus), driver)


def parse_kfd_properties(text: str) -> str:
    """The gfx name in one topology node's ``properties``; "" for a node that is a CPU."""
    found = re.search(r"^gfx_target_version\s+(\d+)\s*$", text, re.MULTILINE)
    version = int(found[1]) if found else 0
    if version == 0:
        return ""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def read_nvidia_smi(run: Runner, which: Callable[[str], str | None]) -> Reading:
    """Ask NVIDIA's own tool, where it is installed."""
    tool = which("nvidia-smi")
    if tool is None:
        return Reading()
    code, output = run([tool, *NVIDIA_QUERY])
    reading = parse_nvidia_smi(output) if code == 0 else Reading()
    if reading.gpus:
        return reading
    said = " ".join(output.split())[:200] or "nothing"
    return Reading(notes=(f"nvidia-smi is installed but names no usable GPU; it said: {said}",))


def read_nvidia_proc(root: Path) -> Reading:
    """Read the Linux driver's own folder: names and driver version, but no compute capability."""
    folder = root / "proc/driver/nvidia"
    names = []
    for information in sorted(folder.glob("gpus/*/information")):
        model = re.search(r"^Model:\s*(.+?)\s*$", _text(information), re.MULTILINE)
        names.append(model[1] if model else "NVIDIA GPU")
    if not names:
        return Reading()
    if not (root / "dev/nvidiactl").exists():
        return Reading(notes=(f"{names[0]} is in this machine, but /dev/nvidiactl is not given to this container",))
    version = re.search(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b", _text(folder / "version"))
    return Reading(tuple(Gpu("nvidia", name, "") for name in names), numbers(version[1]) if version else None)


def read_kfd(root: Path) -> Reading:
    """Read AMD's compute driver's topology."""
    names = [parse_kfd_properties(_text(p)) for p in sorted(root.glob("sys/class/kfd/kfd/topology/nodes/*/properties"))]
    gpus = tuple(Gpu("amd", f"AMD GPU {name}", name) for name in names if name)
    if gpus and not (root / "dev/kfd").exists():
        return Reading(notes=(f"{gpus[0].name} is in this machine, but /dev/kfd is not given to this container",))
    return Reading(gpus)


def read_host(
    root: Path = Path("/"),
    run: Runner = run_tool,
    which: Callable[[str], str | None] = shutil.which,
    system: str | None = None,
    processor: str | None = None,
) -> Host:
    """Read this machine. The arguments exist so that tests can hand in machines that nobody here owns."""
    system = system or platform.system()
    processor = (processor or platform.machine()).lower()
    readings = [] if system == "Darwin" else [read_nvidia_smi(run, which)]
    if system == "Linux":
        if not readings[0].gpus:
            readings.append(read_nvidia_proc(root))
        readings.append(read_kfd(root))
    return Host(
        system=system,
        processor=_PROCESSORS.get(processor, processor),
        gpus=tuple(gpu for reading in readings for gpu in reading.gpus),
        driver=next((reading.driver for reading in readings if reading.driver), None),
        notes=tuple(note for reading in readings for note in reading.notes),
    )


def gpu_in_sight(root: Path = Path("/")) -> str:
    """A GPU's vendor from two Linux device nodes, in microseconds; "" elsewhere. For starts that must not wait."""
    if (root / "dev/nvidiactl").exists():
        return "nvidia"
    return "amd" if (root / "dev/kfd").exists() and read_kfd(root).gpus else ""


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
