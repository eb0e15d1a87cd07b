"""The table of torch builds, tested as data, and the choice made from it."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from app.environment.builds import TABLE, choose_build, choose_kernels, kind_of_torch, load_table
from app.environment.machine import Gpu, Host
from app.environment.packages import read_lists
from app.environment.versions import Requirement, Version
from app.errors import UsageError

ROOT = Path(__file__).parents[3]
TORCHES = load_table()


def nvidia(arch: str, driver: tuple[int, ...] | None = (580, 95), system: str = "Linux", cpu: str = "x86_64") -> Host:
    return Host(system, cpu, (Gpu("nvidia", f"GPU of {arch}", arch),), driver)


def amd(gfx: str, system: str = "Linux") -> Host:
    return Host(system, "x86_64", (Gpu("amd", f"AMD GPU {gfx}", gfx),))


@pytest.mark.parametrize(
    ("host", "name"),
    [
        (Host("Linux", "x86_64"), "cpu"),
        (Host("Linux", "aarch64"), "cpu"),
        (Host("Windows", "x86_64"), "cpu"),
        (Host("Darwin", "aarch64"), "mac"),
        (nvidia("9.0"), "hopper"),
        (nvidia("9.0", cpu="aarch64"), "cuda"),
        (nvidia("9.0", driver=(570, 12)), "cuda12"),
        (nvidia("9.0", system="Windows"), "cuda"),
        (nvidia("10.0"), "cuda"),
        (nvidia("12.0"), "cuda"),
        (nvidia("12.0", driver=(575, 1)), "cpu"),
        (nvidia("8.9"), "cuda"),
        (nvidia("7.5", driver=(580,)), "cuda"),
        (nvidia("7.0"), "cuda12"),
        (nvidia("6.1", driver=(535, 5)), "cuda12"),
        (nvidia("3.7", driver=(470, 2)), "cpu"),
        (nvidia("8.6", driver=(470, 2)), "cpu"),
        (nvidia("8.6", driver=None), "cpu"),
        (nvidia("", driver=(580, 1)), "cuda"),
        (Host("Linux", "x86_64", (Gpu("nvidia", "old", "5.2"), Gpu("nvidia", "H100", "9.0")), (580, 1)), "hopper"),
        (amd("gfx942"), "rocm"),
        (amd("gfx950"), "rocm"),
        (amd("gfx1201"), "rocm"),
        (amd("gfx1036"), "cpu"),  # the small GPU inside a desktop processor
        (amd("gfx942", "Windows"), "cpu"),
        # a laptop with both
        (Host("Linux", "x86_64", (Gpu("amd", "Radeon", "gfx1103"), Gpu("nvidia", "RTX", "8.9")), (580, 1)), "cuda"),
    ],
)
def test_every_kind_of_machine_gets_its_row(host: Host, name: str) -> None:
    choice = choose_build(host, TORCHES)
    assert choice.build.name == name, choice.passed_over
    assert choice.build.why_not(host) == []
    assert all(choice.passed_over.values())


def test_no_machine_without_a_gpu_is_given_a_gpu_build() -> None:
    for system, processor in itertools.product(
        ["Linux", "Windows", "Darwin", "FreeBSD"], ["x86_64", "aarch64", "ppc64le"]
    ):
        assert choose_build(Host(system, processor), TORCHES).build.kind == "cpu"


def test_the_reasons_say_what_is_and_what_is_needed() -> None:
    passed = choose_build(nvidia("8.6", driver=(470, 2)), TORCHES).passed_over
    assert passed["cuda"] == ("the NVIDIA driver is 470.2, 580 or newer is needed",)
    assert "GPU of 8.6 has compute capability 8.6, below 9.0" in passed["hopper"]
    assert passed["rocm"] == ("no AMD GPU",)
    assert "this torch build has no code for gfx1036" in choose_build(amd("gfx1036"), TORCHES).passed_over["rocm"]


def test_a_build_may_be_asked_for_by_name() -> None:
    assert choose_build(Host("Linux", "x86_64"), TORCHES, "cuda").build.name == "cuda"
    with pytest.raises(UsageError, match=r"'cudda' is not known; choose one of auto, mac, hopper"):
        choose_build(Host("Linux", "x86_64"), TORCHES, "cudda")


def test_the_rows_are_whole() -> None:
    names = [build.name for build in TORCHES.builds]
    assert len(set(names)) == len(names)
    assert TORCHES.builds[-1].when == {}, "the last row must fit every machine"
    for build in TORCHES.builds:
        assert build.kind in {"cpu", "cuda", "rocm"}
        assert build.attempts
        assert build.disk_gib > 1
        assert set(build.when) <= {"system", "processor", "vendor", "capability", "driver_at_least", "gfx"}
        assert set(build.kernels) <= set(TORCHES.kernels)


def test_every_pinned_torch_is_one_that_the_project_takes() -> None:
    wanted = next(r for r in read_lists(ROOT / "pyproject.toml").main if r.name == "torch")
    for build in TORCHES.builds:
        for attempt in build.attempts:
            requirement = Requirement.parse(attempt.requirement)
            assert [op for op, _ in requirement.clauses] == ["=="]
            assert wanted.allows(requirement.clauses[0][1])
            local = Version.parse(requirement.clauses[0][1]).local
            if local:
                assert kind_of_torch(requirement.clauses[0][1], (), "Linux") == build.kind
            assert attempt.index is None or local, "an index is only asked for a labelled build"


def test_the_cpu_build_is_looked_for_at_pytorchs_index_first() -> None:
    cpu = choose_build(Host("Linux", "x86_64"), TORCHES).build
    assert [(a.requirement, (a.index or "").rpartition("/")[2]) for a in cpu.attempts] == [
        ("torch==2.13.0+cpu", "cpu"),
        ("torch==2.13.0+cpu", ""),
        ("torch==2.13.0", ""),
    ]
    assert 0 < TORCHES.index_seconds <= 15


@pytest.mark.parametrize(
    ("torch", "kernel"),
    [("2.14.1", "sglang-kernel==0.4.10"), ("2.14.1+cu130", "sglang-kernel==0.4.10"),
     ("2.11.0", "sglang-kernel==0.4.2.post2"), ("2.13.0+cu130", None)],
)  # fmt: skip
def test_the_hopper_kernels_are_those_built_for_the_installed_torch(torch: str, kernel: str | None) -> None:
    choice = choose_build(nvidia("9.0"), TORCHES)
    assert choose_kernels(choice.build, TORCHES, nvidia("9.0"), torch) == {"sglang-kernel": kernel}


def test_hoppers_own_torch_has_a_kernel_release() -> None:
    build = choose_build(nvidia("9.0"), TORCHES).build
    for attempt in build.attempts:
        version = Requirement.parse(attempt.requirement).clauses[0][1]
        assert None not in choose_kernels(build, TORCHES, nvidia("9.0"), version).values()


@pytest.mark.parametrize(("gfx", "kernels"), [("gfx942", {"amd-aiter": "amd-aiter"}), ("gfx1100", {})])
def test_aiter_is_for_instinct_only(gfx: str, kernels: dict[str, str]) -> None:
    choice = choose_build(amd(gfx), TORCHES)
    assert choose_kernels(choice.build, TORCHES, amd(gfx), "2.13.0+rocm7.2") == kernels


def test_a_machine_without_a_gpu_gets_no_kernel_package() -> None:
    host = Host("Linux", "x86_64")
    assert choose_kernels(choose_build(host, TORCHES).build, TORCHES, host, "2.13.0+cpu") == {}


def test_the_kernels_pins_lie_within_their_extras() -> None:
    lists = read_lists(ROOT / "pyproject.toml")
    for name, row in TORCHES.kernels.items():
        bound = next(r for r in lists.extras[row["extra"]] if r.name == name)
        assert all(bound.allows(release) for release in row["by_torch"].values())


# Requires-Dist of torch 2.14.1 on the public index, shortened.
CUDA_LINES = ("filelock", 'nvidia-cudnn-cu13==9.24.0.43; platform_system == "Linux"', "triton~=3.8.0")
PLAIN_LINES = ("filelock", "sympy>=1.13.3", 'optree>=0.13.0; extra == "optree"')


@pytest.mark.parametrize(
    ("version", "requires", "system", "kind"),
    [
        ("2.13.0+cpu", PLAIN_LINES, "Linux", "cpu"),
        ("2.13.0+cu130", PLAIN_LINES, "Linux", "cuda"),
        ("2.13.0+rocm7.2", PLAIN_LINES, "Linux", "rocm"),
        ("2.13.0+xpu", PLAIN_LINES, "Linux", "xpu"),
        ("2.14.1", CUDA_LINES, "Linux", "cuda"),
        ("2.14.1", ('cuda-toolkit[cublas,cudart]==13.0.3; platform_system == "Linux"',), "Linux", "cuda"),
        ("2.14.1", CUDA_LINES, "Darwin", "cpu"),
        ("2.14.1", CUDA_LINES, "Windows", "cpu"),
        ("2.9.1", PLAIN_LINES, "Linux", "cpu"),
        ("2.9.1", ("triton-rocm==3.5",), "Linux", "rocm"),
    ],
)
def test_a_wheels_kind_is_known_before_it_is_downloaded(
    version: str, requires: tuple[str, ...], system: str, kind: str
) -> None:
    assert kind_of_torch(version, requires, system) == kind


WRONG_NAMES = {"aiter", "sgl-kernel"}


def test_the_wrong_packages_are_in_no_dependency_list() -> None:
    """On the public index ``aiter`` is an iterator library and ``sgl-kernel`` the old name of sglang-kernel."""
    lists = read_lists(ROOT / "pyproject.toml")
    named = {r.name for r in lists.main} | {r.name for extra in lists.extras.values() for r in extra}
    data = json.loads(TABLE.read_text(encoding="utf-8"))
    named |= {Requirement.parse(a["requirement"]).name for row in data["builds"] for a in row["attempts"]}
    named |= set(data["kernels"])
    for file in [*ROOT.glob("*requirements*.txt"), *ROOT.glob("*constraints*.txt")]:
        lines = (line.partition("#")[0].strip() for line in file.read_text(encoding="utf-8").splitlines())
        named |= {Requirement.parse(line).name for line in lines if line and not line.startswith("-")}
    assert {"torch", "sglang-kernel", "amd-aiter", "ray", "pytest"} <= named
    assert not named & WRONG_NAMES
