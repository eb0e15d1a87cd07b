"""Jobs of several processes on this CPU, over gloo: what they compute together equals what one computes alone, and a
rank that fails ends its job in one sentence.

Emulated: FP8 products and attention, see tests/emulators/sgl_kernel_cuda.py.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from accel.errors import AccelError
from accel.parallel.launching import BROKEN, run_ranks
from tests.emulators.sgl_kernel_cpu import real_build

ROOT = Path(__file__).parents[3]
ROUNDING = 2e-6
EMULATED = [] if real_build() else ["fused"]

Found = dict[str, dict[str, Any]]


def job(folder: Path, count: int, *cases: str, patience: float = 120.0, timeout: float = 400.0) -> dict[str, Found]:
    """The results of cases of ranked.py, which all ranks have alike."""
    command = [sys.executable, "-m", "tests.accel.parallel.ranked", str(folder), str(patience), *cases]
    run_ranks(command, count, timeout, cwd=ROOT)
    first, *others = (torch.load(folder / f"{rank}.pt") for rank in range(count))
    for other in others:
        for case, found in first.items():
            for name, one in found.items():
                assert torch.equal(other[case][name]["shared"], one["shared"]), f"{case}, {name}"
    return dict(first)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Found]:
    return job(
        tmp_path_factory.mktemp("two"),
        2,
        "plain",
        "installed",
        "adapted",
        "pictured",
        "guided",
        "cached",
        "clip",
        "meets",
        *EMULATED,
    )


def assert_alike(found: dict[str, Any], least: float = 0.1) -> None:
    alone, shared = found["alone"].float(), found["shared"].float()
    assert float(alone.std()) > least
    furthest, largest = float((shared - alone).abs().max()), float(alone.abs().max())
    print(f"largest difference {furthest:.1e} of {largest:.1f}")
    assert furthest <= ROUNDING * largest


@pytest.mark.parametrize("name", ["even", "odd", "odd, a time each", "even, a time each, two items"])
def test_two_ranks_compute_what_one_does(two: dict[str, Found], name: str) -> None:
    assert_alike(two["plain"][name])


def test_installed_attention_serves_inside(two: dict[str, Found]) -> None:
    found = two["installed"]["sdpa"]
    assert_alike(found)
    assert found["calls"] == (12, 0), "three forwards of two layers, self and cross"


@pytest.mark.parametrize("name", ["with a LoRA", "without it again"])
def test_loras_act_inside(two: dict[str, Found], name: str) -> None:
    assert_alike(two["adapted"][name])


@pytest.mark.parametrize("name", ["tokens", "branches"])
def test_a_model_that_begins_with_a_picture_is_shared(two: dict[str, Found], name: str) -> None:
    assert_alike(two["pictured"][name])


@pytest.mark.long
@pytest.mark.timeout(1300)
def test_compiled_blocks_are_shared_in_one_way_after_the_other(tmp_path: Path) -> None:
    for found in job(tmp_path, 2, "compiled", patience=600, timeout=1200)["compiled"].values():
        assert_alike(found)


@pytest.mark.skipif(not EMULATED, reason="a real sgl_kernel is loaded: nothing to emulate")
@pytest.mark.parametrize("compile_", ["no", "fused"])
@pytest.mark.parametrize("attention", ["sdpa", "fa3_fp8"])
def test_fp8_linears_and_fused_blocks_serve_inside_emulated(
    two: dict[str, Found], attention: str, compile_: str
) -> None:
    found = two["fused"][f"{attention}, {compile_}"]
    assert_alike(found)
    assert found["reasons"] == {}
    assert found["served"] == (6 if compile_ == "fused" else 0)
    # Two layers alone, shared, alone: self attention deals its heads out; cross attention, in FP8 where the fused pass
    # before it makes its queries so, keeps all heads for a rank's own tokens.
    heads = [4, 4, 2, 2, 4, 4] if compile_ == "no" else [4, 4, 4, 4, 2, 4, 2, 4, 4, 4, 4, 4]
    assert found["eight_bit"] == (heads if attention == "fa3_fp8" else [])


@pytest.mark.parametrize("name", ["first", "second", "single"])
def test_the_branches_of_guidance_are_computed_apart(two: dict[str, Found], name: str) -> None:
    assert_alike(two["guided"][name])


@pytest.mark.parametrize("cache", ["first_block:1", "pyramid:2", "taylorseer:3"])
def test_step_caches_count_what_this_rank_saved_and_not_what_another_one_computed(
    two: dict[str, Found], cache: str
) -> None:
    found = two["cached"][cache]
    assert_alike(found, least=1e-3)
    alone, shared = found["counts"]
    assert 0 < alone["served"] < alone["calls"]
    assert [2 * shared[name] for name in ("calls", "served", "computed")] == [
        alone[name] for name in ("calls", "served", "computed")
    ]
    assert (shared["steps"], shared["steps_reused"]) == (alone["steps"], alone["steps_reused"])


def test_no_other_machine_can_reach_the_ranks(two: dict[str, Found]) -> None:
    assert two["meets"]["reachable"]["shared"].item() == 0


def test_a_whole_clip(two: dict[str, Found]) -> None:
    assert_alike(two["clip"]["clip"], least=1e-3)


@pytest.mark.long
def test_four_ranks_share_tokens_or_branches_and_tokens(tmp_path: Path) -> None:
    found = job(tmp_path, 4, "plain", "guided")
    for case in found.values():
        for one in case.values():
            assert_alike(one)


@pytest.mark.parametrize(
    ("case", "patience", "said"),
    [
        ("dies", 120, "rank 1 of 2 ended with status 7, and with it the others"),
        pytest.param(
            "waits",
            30,
            f"rank 0 of 2 ended with status 1, and with it the others: {BROKEN}",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_rank_that_fails_ends_the_job_in_one_sentence(tmp_path: Path, case: str, patience: float, said: str) -> None:
    with pytest.raises(AccelError) as ended:
        job(tmp_path, 2, case, patience=patience, timeout=200)
    assert said in str(ended.value)
    assert "\n" not in str(ended.value)
