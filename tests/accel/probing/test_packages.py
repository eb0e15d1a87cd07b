"""Libraries by their metadata and operators: builds told apart, wrong ones named."""

from __future__ import annotations

from pathlib import Path

import pytest

from accel.probing import packages
from accel.probing.host import Recorded
from tests.accel.recorded import machine, record


def test_the_two_builds_of_sgl_kernel_are_told_apart_by_their_operators(tmp_path: Path) -> None:
    assert machine("sapphire-rapids", tmp_path).packages["sgl_kernel"].build == "cpu"
    assert machine("h100", tmp_path).packages["sgl_kernel"].build == "cuda"


def test_the_iterator_library_is_not_amds(tmp_path: Path) -> None:
    run = {"result": {"ok": False, "reason": "this is the iterator library named aiter, not AMD's kernels", "ops": []}}
    wrong = {"amd-aiter": None, "aiter": {"version": "0.13.20191203", "torch": ""}}
    found = machine("mi300x", tmp_path, distributions=wrong, runs={"aiter": run})
    package = found.packages["aiter"]
    assert (package.distribution, package.importable) == ("aiter", False)
    assert "iterator library" in package.reason


def test_a_package_for_another_torch_says_which(tmp_path: Path) -> None:
    run = {"result": {"ok": False, "reason": "ImportError: sgl_kernel.so: undefined symbol: _ZN3c10"}}
    package = machine("sapphire-rapids", tmp_path, runs={"sgl_kernel": run}).packages["sgl_kernel"]
    assert "was built for another torch (==2.11.0, found 2.11.0+cpu)" in package.reason
    assert package.unsettled == "", "it is known that it does not import"


def test_a_package_that_was_not_found_out_about_is_not_called_broken(tmp_path: Path) -> None:
    package = machine("h100", tmp_path, runs={"sgl_kernel": {"timeout": True}}).packages["sgl_kernel"]
    assert package.reason.startswith(
        "sglang-kernel 0.4.2.post2 is installed; whether it imports is not known yet, since"
    )
    assert package.unsettled == "undecided"
    reason = "not tried yet: the time for testing was used up"
    late = {"result": {"ok": False, "reason": reason, "again": True, "untried": "time"}}
    package = machine("zen5", tmp_path, runs={"diffusers": late}).packages["diffusers"]
    assert package.reason == "diffusers 0.42.1 is installed; whether it imports has not been tried yet"
    assert package.unsettled == "untried"


@pytest.mark.parametrize(
    ("text", "build"),
    [
        ("cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n", "cuda 13.0"),
        ("cuda: Optional[str] = None\nhip: Optional[str] = '7.2.26015'\n", "rocm 7.2.26015"),
        ("cuda: Optional[str] = None\nhip: Optional[str] = None\n", "cpu"),
        ("cuda = '12.4'\nhip = None\n", "cuda 12.4"),
    ],
)
def test_torchs_build_is_read_without_importing_it(text: str, build: str) -> None:
    host = Recorded(record("zen5", files={"/site/torch/version.py": text}))
    assert packages.torch_build(host, host.distribution("torch")) == build
