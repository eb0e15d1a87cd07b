"""The three steps of filling an environment, with a pip whose index is a dict."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.environment.builds import choose_build, load_table
from app.environment.install import GIB, Installer
from app.environment.machine import Gpu, Host
from app.environment.packages import Lists, installed
from app.environment.versions import Requirement
from app.errors import Cancelled, CannotRunError
from tests.app.environment.stand_ins import CPU_TORCH, CUDA_TORCH, FakePip, unpack

TABLE = load_table()
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
CUDA_REQUIRES = ('nvidia-cudnn-cu13==9.24.0.43; platform_system == "Linux"',)
PLAIN = Host("Linux", "x86_64")
HOPPER = Host("Linux", "x86_64", (Gpu("nvidia", "NVIDIA H200", "9.0"),), (580, 95))
Offers = dict[tuple[str, str], dict[str, tuple[str, ...]]]


def lists() -> Lists:
    main = ("torch>=2.9,<3", "diffusers>=0.42,<0.43", "gradio>=6,<7")
    extras = {"test": ("pytest>=9",), "hopper": ("sglang-kernel>=0.4",), "rocm": ("amd-aiter>=0.1.7.post2.dev18",)}
    parsed = {name: tuple(Requirement.parse(line) for line in lines) for name, lines in extras.items()}
    return Lists(tuple(Requirement.parse(line) for line in main), parsed)


def offers() -> Offers:
    """The public index on Linux: its unlabelled torch is a CUDA build."""
    return {
        ("", "torch"): {"2.11.0": CUDA_REQUIRES, "2.13.0": CUDA_REQUIRES, "2.14.1": CUDA_REQUIRES},
        ("", "diffusers"): {"0.42.1": ()},
        ("", "gradio"): {"6.31.0": ()},
        ("", "pytest"): {"9.2.0": ()},
        ("", "sglang-kernel"): {"0.4.2.post2": (), "0.4.10": ()},
    }


class Bench:
    """One environment to fill, and what was said meanwhile."""

    def __init__(self, site: Path, world: Offers, host: Host = PLAIN, free_gib: float = 100.0) -> None:
        self.pip = FakePip(site, world)
        self.said: list[str] = []
        self.host = host
        self.site = site
        self.installer = Installer(
            site, lists(), TABLE, host, self.pip, self.said.append, free_bytes=lambda _: int(free_gib * GIB)
        )

    def fill(self, extras: tuple[str, ...] = (), wanted: str = "auto") -> tuple[str, ...]:
        return self.installer.fill(choose_build(self.host, TABLE, wanted), extras).notes

    @property
    def have(self) -> dict[str, str]:
        return installed([str(self.site)])


def test_a_cpu_machine_gets_the_labelled_build_from_pytorchs_index(tmp_path: Path) -> None:
    world = offers()
    world[(CPU_INDEX, "torch")] = {"2.12.0+cpu": (), "2.13.0+cpu": ()}
    bench = Bench(tmp_path, world)
    assert bench.fill() == ()
    assert bench.have == {"torch": "2.13.0+cpu", "diffusers": "0.42.1", "gradio": "6.31.0"}
    assert bench.pip.calls[0] == ("look", "torch==2.13.0+cpu", CPU_INDEX, "8")
    assert [line[:5] for line in bench.said] == ["[1/3]", "[2/3]", "[3/3]"]


def test_then_wherever_pip_finds_a_cpu_wheel(tmp_path: Path) -> None:
    world = offers()
    world[("", "torch")]["2.13.0+cpu"] = ()
    bench = Bench(tmp_path, world)
    bench.fill()
    assert bench.have["torch"] == "2.13.0+cpu"


def test_an_unlabelled_cpu_wheel_will_do(tmp_path: Path) -> None:
    world = offers()
    world[("", "torch")] = {"2.13.0": ("filelock",)}
    bench = Bench(tmp_path, world)
    bench.fill()
    assert bench.have["torch"] == "2.13.0"


def test_a_kernel_that_would_bring_another_torch_is_left_out(tmp_path: Path) -> None:
    """Case 48: what is installed is the same before and after."""
    unpack(tmp_path, "torch", "2.14.1", {"torch/version.py": CUDA_TORCH.format(version="2.14.1")})
    world = offers()
    world[("", "sglang-kernel")] = {"0.4.10": ("torch==2.15.0",)}
    world[("", "torch")]["2.15.0"] = CUDA_REQUIRES
    bench = Bench(tmp_path, world, HOPPER)
    notes = bench.fill()
    assert bench.have == {"torch": "2.14.1", "diffusers": "0.42.1", "gradio": "6.31.0"}
    assert notes == ("sglang-kernel==0.4.10 could not be installed; Kinetile runs without it",)


def test_no_cuda_build_slips_onto_a_cpu_machine(tmp_path: Path) -> None:
    bench = Bench(tmp_path, offers())
    with pytest.raises(
        CannotRunError, match=r"only a build for CUDA.*--torch-build hopper or cuda or cuda12"
    ) as caught:
        bench.fill()
    assert "\n" not in str(caught.value)
    assert bench.have == {}
    assert not [call for call in bench.pip.calls if call[0] == "install"]
    assert any("torch 2.13.0, a build for CUDA" in line for line in bench.said)


def test_a_cuda_build_comes_when_it_is_asked_for(tmp_path: Path) -> None:
    bench = Bench(tmp_path, offers())
    bench.fill(wanted="cuda")
    assert bench.have["torch"] == "2.13.0"


def test_no_cpu_build_slips_onto_a_cuda_machine(tmp_path: Path) -> None:
    world = offers()
    world[("", "torch")] = {"2.13.0": (), "2.14.1": ()}
    with pytest.raises(CannotRunError, match=r"only a build for CPU.*--torch-build mac or cpu"):
        Bench(tmp_path, world, Host("Linux", "x86_64", (Gpu("nvidia", "L4", "8.9"),), (580, 1))).fill()


def test_nothing_found_is_told_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(
        CannotRunError, match=r"pip finds no torch for the CPU .*3.11 to 3.14.*PIP_FIND_LINKS"
    ) as caught:
        Bench(tmp_path, {}).fill()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("template", [CPU_TORCH, CUDA_TORCH])
def test_an_installed_torch_stays_whatever_the_table_says(tmp_path: Path, template: str) -> None:
    """Case 48: every later step is told to keep it."""
    unpack(tmp_path, "torch", "2.10.0", {"torch/version.py": template.format(version="2.10.0")})
    bench = Bench(tmp_path, offers())
    notes = bench.fill(("test",))
    assert bench.have["torch"] == "2.10.0"
    assert all("constraint torch==2.10.0" in call for call in bench.pip.calls if call[0] == "install")
    assert not [call for call in bench.pip.calls if call[0] == "look"]
    assert bool(notes) == (template is CUDA_TORCH)


def test_a_cpu_torch_on_a_gpu_machine_is_said(tmp_path: Path) -> None:
    """Case 48: while installing, too."""
    unpack(tmp_path, "torch", "2.13.0", {"torch/version.py": CPU_TORCH.format(version="2.13.0")})
    notes = Bench(tmp_path, offers(), Host("Linux", "x86_64", (Gpu("nvidia", "L4", "8.9"),), (580, 1))).fill()
    assert "torch 2.13.0 is a CPU build, and this machine would take torch for CUDA 13.0" in notes[0]


def test_a_torch_that_is_too_old_is_refused_not_replaced(tmp_path: Path) -> None:
    unpack(tmp_path, "torch", "2.5.1", {"torch/version.py": CPU_TORCH.format(version="2.5.1")})
    bench = Bench(tmp_path, offers())
    with pytest.raises(CannotRunError, match=r"torch 2.5.1, Kinetile needs torch>=2.9,<3, and .* never replaced"):
        bench.fill()
    assert bench.have == {"torch": "2.5.1"}


def test_hopper_gets_the_pair_that_belongs_together(tmp_path: Path) -> None:
    bench = Bench(tmp_path, offers(), HOPPER)
    assert bench.fill() == ()
    assert (bench.have["torch"], bench.have["sglang-kernel"]) == ("2.14.1", "0.4.10")


def test_hopper_with_another_torch_gets_the_kernel_that_fits_it(tmp_path: Path) -> None:
    """Case 50: releases are chosen by the exact version of torch."""
    unpack(tmp_path, "torch", "2.11.0", {"torch/version.py": CUDA_TORCH.format(version="2.11.0")})
    bench = Bench(tmp_path, offers(), HOPPER)
    assert bench.fill() == ()
    assert (bench.have["torch"], bench.have["sglang-kernel"]) == ("2.11.0", "0.4.2.post2")


def test_no_kernel_is_forced_onto_a_torch_that_none_fits(tmp_path: Path) -> None:
    unpack(tmp_path, "torch", "2.13.0", {"torch/version.py": CUDA_TORCH.format(version="2.13.0")})
    bench = Bench(tmp_path, offers(), HOPPER)
    assert bench.fill() == ("no release of sglang-kernel is known to fit torch 2.13.0; Kinetile runs without it",)
    assert "sglang-kernel" not in bench.have


def test_a_kernel_that_cannot_be_had_does_not_stop_the_rest(tmp_path: Path) -> None:
    bench = Bench(tmp_path, offers(), HOPPER)
    bench.pip.broken = frozenset({"sglang-kernel"})
    assert bench.fill() == ("sglang-kernel==0.4.10 could not be installed; Kinetile runs without it",)
    assert bench.have["gradio"] == "6.31.0"


def test_aiter_is_asked_for_by_its_extra(tmp_path: Path) -> None:
    world = offers()
    world[("https://download.pytorch.org/whl/rocm7.2", "torch")] = {"2.13.0+rocm7.2": ()}
    bench = Bench(tmp_path, world, Host("Linux", "x86_64", (Gpu("amd", "AMD GPU gfx942", "gfx942"),)))
    notes = bench.fill()
    assert bench.pip.calls[-1] == ("install", "amd-aiter>=0.1.7.post2.dev18", "constraint torch==2.13.0+rocm7.2")
    assert "amd-aiter>=0.1.7.post2.dev18 could not be installed; Kinetile runs without it" in notes


ROCM_INDEX = "https://download.pytorch.org/whl/rocm7.2"
RADEON = Host("Linux", "x86_64", (Gpu("amd", "AMD Radeon RX 9070", "gfx1201"),))


def test_what_a_rocm_torch_needs_comes_from_its_own_index(tmp_path: Path) -> None:
    """Row 52, seen too (sdnext issue 4859): wheels that lie there alone are found there."""
    world = offers()
    world[(ROCM_INDEX, "torch")] = {"2.13.0+rocm7.2": ("triton-rocm==3.7.0",)}
    world[(ROCM_INDEX, "triton-rocm")] = {"3.7.0": ()}
    bench = Bench(tmp_path, world, RADEON)
    bench.fill()
    assert bench.have == {
        "torch": "2.13.0+rocm7.2", "triton-rocm": "3.7.0", "diffusers": "0.42.1", "gradio": "6.31.0"
    }  # fmt: skip


def test_a_set_of_wheels_without_a_solution_is_told_in_one_sentence(tmp_path: Path) -> None:
    """Row 52, seen too (sdnext issue 4859): the index lacks what its torch needs, or the torch itself; no other build
    takes its place.
    """
    world = offers()
    world[(ROCM_INDEX, "torch")] = {"2.12.0+rocm7.2": ()}
    with pytest.raises(CannotRunError, match=r"^pip finds no torch for ROCm 7\.2 for Python") as older:
        Bench(tmp_path / "a", world, RADEON).fill()
    world[(ROCM_INDEX, "torch")] = {"2.13.0+rocm7.2": ("triton-rocm==3.7.0",)}
    bench = Bench(tmp_path / "b", world, RADEON)
    with pytest.raises(CannotRunError, match=r"could not install .*(its own words are above).*connect to") as unmet:
        bench.fill()
    assert all("\n" not in str(caught.value) for caught in (older, unmet))
    assert bench.have["torch"] == "2.13.0+rocm7.2", "what is there stays"


def test_what_pip_cannot_install_is_named_and_what_it_could_stays(tmp_path: Path) -> None:
    world = offers()
    world[("", "torch")]["2.13.0+cpu"] = ()
    bench = Bench(tmp_path, world)
    bench.pip.broken = frozenset({"gradio"})
    with pytest.raises(CannotRunError, match=r"pip could not install gradio>=6,<7 \(.*what is installed so far stays"):
        bench.fill()
    assert set(bench.have) == {"torch", "diffusers"}
    bench.pip.broken = frozenset()
    bench.fill()
    assert set(bench.have) == {"torch", "diffusers", "gradio"}


@pytest.mark.parametrize("name", ["torch", "diffusers", "gradio"])
def test_control_c_ends_at_once_and_the_next_start_goes_on(tmp_path: Path, name: str) -> None:
    world = offers()
    world[("", "torch")]["2.13.0+cpu"] = ()
    bench = Bench(tmp_path, world)
    bench.pip.interrupt_at = name
    with pytest.raises(Cancelled, match="the next start goes on from there"):
        bench.fill()
    assert name not in bench.have
    bench.pip.interrupt_at = ""
    bench.fill()
    assert len(bench.have) == 3


def test_a_full_disk_is_told_before_anything_is_downloaded(tmp_path: Path) -> None:
    bench = Bench(tmp_path, offers(), free_gib=0.5)
    with pytest.raises(CannotRunError, match=r"only 0.5 GiB are free .* needs about 2.5 GiB"):
        bench.fill()
    assert bench.pip.calls == []


def test_cuda_packages_in_a_cpu_environment_are_said(tmp_path: Path) -> None:
    world = offers()
    world[("", "torch")]["2.13.0+cpu"] = ()
    unpack(tmp_path, "nvidia-cublas", "13.1")
    assert "also holds CUDA packages, which it does not use: nvidia-cublas" in Bench(tmp_path, world).fill()[0]


def test_the_test_tools_come_with_their_extra(tmp_path: Path) -> None:
    world = offers()
    world[("", "torch")]["2.13.0+cpu"] = ()
    bench = Bench(tmp_path, world)
    bench.fill()
    assert "pytest" not in bench.have
    bench.fill(("test",))
    assert bench.have["pytest"] == "9.2.0"
