"""Reading machines, from recorded ones that nobody here owns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from app.environment.machine import (
    NVIDIA_QUERY,
    Gpu,
    gpu_in_sight,
    parse_kfd_properties,
    parse_nvidia_smi,
    read_host,
    run_tool,
)

Which = Callable[[str], str | None]

DRIVER_LINE = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder)\n"
KFD = """cpu_cores_count {cpus}
simd_count {simds}
mem_banks_count 1
gfx_target_version {gfx}
vendor_id 4098
"""


def no_tool(_name: str) -> str | None:
    return None


def smi(_name: str) -> str | None:
    return "/usr/bin/nvidia-smi"


def never(command: list[str]) -> tuple[int, str]:
    raise AssertionError(f"{command} must not run")


def write(root: Path, name: str, text: str = "") -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "gpus", "driver"),
    [
        ("NVIDIA H200, 9.0, 580.95.05\n", (Gpu("nvidia", "NVIDIA H200", "9.0"),), (580, 95, 5)),
        (
            "NVIDIA GeForce RTX 5090, 12.0, 581.15\nNVIDIA GeForce RTX 3050, 8.6, 581.15\n",
            (Gpu("nvidia", "NVIDIA GeForce RTX 5090", "12.0"), Gpu("nvidia", "NVIDIA GeForce RTX 3050", "8.6")),
            (581, 15),
        ),
        ("Tesla K80, [N/A], 470.256.02\n", (Gpu("nvidia", "Tesla K80", ""),), (470, 256, 2)),
        ("Quadro, the first, 7.5, 550.54\n", (Gpu("nvidia", "Quadro, the first", "7.5"),), (550, 54)),
        ("No devices were found\n", (), None),
        ("", (), None),
    ],
)
def test_nvidia_smis_table(text: str, gpus: tuple[Gpu, ...], driver: tuple[int, ...] | None) -> None:
    reading = parse_nvidia_smi(text)
    assert (reading.gpus, reading.driver) == (gpus, driver)


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (90402, "gfx942"),
        (90500, "gfx950"),
        (90010, "gfx90a"),
        (90012, "gfx90c"),
        (100300, "gfx1030"),
        (110000, "gfx1100"),
        (110501, "gfx1151"),
        (120001, "gfx1201"),
        (0, ""),
    ],
)
def test_kfd_names_the_gfx_target(number: int, name: str) -> None:
    assert parse_kfd_properties(KFD.format(cpus=0, simds=1216, gfx=number)) == name


def test_a_machine_without_gpus(tmp_path: Path) -> None:
    host = read_host(tmp_path, never, no_tool, "Linux", "x86_64")
    assert (host.gpus, host.driver, host.notes) == ((), None, ())
    assert host.describe() == "Linux x86_64, no GPU that torch could use"


def test_nvidia_smi_is_asked_once_and_believed(tmp_path: Path) -> None:
    asked = []

    def run(command: list[str]) -> tuple[int, str]:
        asked.append(command)
        return 0, "NVIDIA H200, 9.0, 580.95.05\n"

    host = read_host(tmp_path, run, smi, "Linux", "x86_64")
    assert asked == [["/usr/bin/nvidia-smi", *NVIDIA_QUERY]]
    assert host.gpus == (Gpu("nvidia", "NVIDIA H200", "9.0"),)
    assert host.driver == (580, 95, 5)


def test_a_failing_nvidia_smi_is_told_in_its_own_words(tmp_path: Path) -> None:
    host = read_host(tmp_path, lambda _: (9, "couldn't communicate\nwith the driver"), smi, "Windows", "AMD64")
    assert host.gpus == ()
    assert host.processor == "x86_64"
    assert "couldn't communicate with the driver" in host.notes[0]


def test_a_container_without_nvidias_tool(tmp_path: Path) -> None:
    write(tmp_path, "proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: \t NVIDIA L4\nIRQ: 43\n")
    write(tmp_path, "proc/driver/nvidia/version", DRIVER_LINE)
    host = read_host(tmp_path, never, no_tool, "Linux", "x86_64")
    assert host.gpus == ()
    assert "NVIDIA L4" in host.notes[0]
    assert gpu_in_sight(tmp_path) == ""

    write(tmp_path, "dev/nvidiactl")
    host = read_host(tmp_path, never, no_tool, "Linux", "x86_64")
    assert host.gpus == (Gpu("nvidia", "NVIDIA L4", ""),)
    assert host.driver == (580, 95, 5)
    assert gpu_in_sight(tmp_path) == "nvidia"


def test_an_amd_machine(tmp_path: Path) -> None:
    nodes = "sys/class/kfd/kfd/topology/nodes"
    write(tmp_path, f"{nodes}/0/properties", KFD.format(cpus=96, simds=0, gfx=0))
    write(tmp_path, f"{nodes}/1/properties", KFD.format(cpus=0, simds=1024, gfx=90500))
    host = read_host(tmp_path, never, no_tool, "Linux", "x86_64")
    assert host.gpus == ()
    assert "/dev/kfd" in host.notes[0]
    assert gpu_in_sight(tmp_path) == ""

    write(tmp_path, "dev/kfd")
    assert read_host(tmp_path, never, no_tool, "Linux", "x86_64").gpus == (Gpu("amd", "AMD GPU gfx950", "gfx950"),)
    assert gpu_in_sight(tmp_path) == "amd"


def test_macos_is_not_asked_for_nvidia(tmp_path: Path) -> None:
    host = read_host(tmp_path, never, smi, "Darwin", "arm64")
    assert (host.system, host.processor, host.gpus) == ("Darwin", "aarch64", ())


def test_a_missing_tool_is_no_crash() -> None:
    code, reason = run_tool(["/nowhere/nvidia-smi"])
    assert code == -1
    assert "nvidia-smi" in reason


def test_this_machine_can_be_read() -> None:
    host = read_host()
    assert host.system
    assert host.processor
