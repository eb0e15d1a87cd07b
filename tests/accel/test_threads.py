"""How many threads, and the environment they are given before torch loads."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from accel import threads
from accel.plan import make_plan
from accel.probing.overrides import APPLIED
from accel.types import LinearShape, Preferences
from accel.waiting import WAITING, WAITING_ENVIRONMENT, WAITING_REASON
from tests.accel.recorded import engaged, machine, model, refusals

TORCH = importlib.util.find_spec("torch")
LIBGOMP = sorted(Path(TORCH.origin or "").parent.glob("lib/libgomp*")) if TORCH else []
"""The OpenMP that torch brings on Linux, which can be loaded without it."""


@pytest.mark.parametrize(
    ("changes", "wish", "count", "reason"),
    [
        ({}, "auto", "4", "4 physical cores"),
        ({"numbers": {"affinity": 3}}, "auto", "3", "CPU affinity"),
        ({"environ": {"OMP_NUM_THREADS": "2"}}, "auto", "2", "OMP_NUM_THREADS=2 is set"),
        ({"environ": {"OMP_NUM_THREADS": "4,2"}}, "auto", "4", "4 physical cores"),
        ({}, "2", "2", "asked for"),
        ({}, "8", "8", "slower is likely"),
    ],
)
def test_thread_count_and_its_source(
    changes: dict[str, Any], wish: str, count: str, reason: str, tmp_path: Path
) -> None:
    plan = make_plan(machine("skylake-avx2", tmp_path, **changes), model(), Preferences(threads=wish))
    assert plan.threads.engaged == count
    assert reason in " ".join(plan.threads.reasons)
    assert plan.environment["OMP_NUM_THREADS"] == count


def crowd(**times: float) -> dict[str, Any]:
    figures = {f"bfloat16_{count.removeprefix('n')}_ms": ms for count, ms in times.items()}
    return {"threads": {"result": {"ok": True, "reason": "ran", "figures": figures}}}


@pytest.mark.parametrize(
    ("shape", "times", "wanted"),
    [
        ((320, 520), {"n4": 1.0, "n8": 0.9, "n112": 1.8}, "8"),
        ((320, 520), {"n4": 1.0, "n8": 0.9, "n112": 1.0}, "112"),
        ((1536, 7800), {"n4": 1.0, "n8": 0.9, "n112": 1.8}, "112"),
        ((320, 520), {"n4": 1.0, "n8": 0.9}, "112"),
        ((320, 520), {}, "112"),
    ],
    ids=["fewer are faster", "within the spread", "a large model", "not all were tried", "nothing was tried"],
)
def test_a_small_stage_takes_as_many_threads_as_measured_best(
    shape: tuple[int, int], times: dict[str, float], wanted: str, tmp_path: Path
) -> None:
    width, tokens = shape
    traits = model(tokens, linears=(LinearShape(width, width, 8),))
    found = machine("sapphire-rapids", tmp_path, runs=crowd(**times))
    plan = make_plan(found, traits)
    assert [engaged(plan, f"{stage}.threads") for stage in ("tr", "vae")] == [wanted, "112"]
    assert plan.threads.engaged == "112"
    forced = make_plan(found, traits, Preferences(threads="6"))
    assert [engaged(forced, f"{stage}.threads") for stage in ("te", "tr", "vae")] == ["6", "6", "6"]


@pytest.mark.parametrize("wish", ["0", "9", "-1", "two", "1.5", "²"])
def test_a_thread_count_that_is_none_is_refused(wish: str, tmp_path: Path) -> None:
    (reason,) = refusals(machine("skylake-avx2", tmp_path), threads=wish)
    assert reason == f"threads={wish} can't be used, allowed are auto and 1 to 8"


def test_environment_for_a_cpu_that_lies_keeps_onednn_below_amx(tmp_path: Path) -> None:
    assert threads.environment(machine("lying-amx", tmp_path))["ONEDNN_MAX_CPU_ISA"] == "AVX512_CORE_BF16"
    assert "ONEDNN_MAX_CPU_ISA" not in threads.environment(machine("sapphire-rapids", tmp_path))


def test_apply_sets_what_the_person_did_not(tmp_path: Path) -> None:
    found = machine("skylake-avx2", tmp_path)
    environ = {"OMP_NUM_THREADS": "1"}
    assert threads.apply(found, environ) == []
    assert environ["OMP_NUM_THREADS"] == "1"
    assert WAITING_ENVIRONMENT[WAITING].items() <= environ.items()
    assert "OMP_NUM_THREADS" not in environ[APPLIED].split(",")
    before = dict(environ)
    threads.apply(found, environ)
    assert environ == before


@pytest.mark.parametrize("count", [1, 4, 16, 112])
def test_idle_threads_soon_sleep_however_many_there_are(count: int, tmp_path: Path) -> None:
    """On 16 cores torch's own way made a clip beside one busy process take a hundred times as long."""
    found = machine("sapphire-rapids", tmp_path)
    assert 0 < int(threads.environment(found, count)["GOMP_SPINCOUNT"]) <= 1000
    plan = make_plan(found, model(), Preferences(threads=str(count)))
    (waiting,) = [choice for choice in plan.choices() if choice.setting == "waiting"]
    assert (waiting.engaged, waiting.reasons) == (WAITING, (WAITING_REASON,))


def test_what_apply_set_is_not_taken_for_a_wish(tmp_path: Path) -> None:
    environ: dict[str, str] = {}
    threads.apply(machine("skylake-avx2", tmp_path), environ)
    plan = make_plan(machine("skylake-avx2", tmp_path, environ=environ), model())
    assert plan.threads.reasons == ("4 physical cores",)


@pytest.mark.skipif(not LIBGOMP, reason="this torch brings no libgomp, which tells what it took")
@pytest.mark.parametrize("waiting", WAITING_ENVIRONMENT)
def test_libgomp_takes_the_waiting_that_was_chosen(waiting: str, tmp_path: Path) -> None:
    wanted = threads.environment(machine("skylake-avx2", tmp_path), 2, waiting)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    environ |= {**wanted, "OMP_DISPLAY_ENV": "VERBOSE"}
    code = f"import ctypes; ctypes.CDLL({str(LIBGOMP[0])!r})"
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    told = dict(re.findall(r"(\w+) *= *'(.*)'", done.stderr))
    assert told["OMP_NUM_THREADS"] == "2"
    assert told["GOMP_SPINCOUNT"] == wanted.get("GOMP_SPINCOUNT", "300000")


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system pins no processes")
@pytest.mark.parametrize("wish", ["", "2"])
def test_torch_works_with_as_many_threads_as_the_process_may_use(wish: str) -> None:
    """Case 5: pinned to one CPU, read from torch and its environment as they are then; what a person set stays."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "MKL_", "ACCEL_"))}
    code = (
        f"import os; os.sched_setaffinity(0, {{{min(os.sched_getaffinity(0))}}}); from accel import threads; "
        "threads.apply(); import torch; print(torch.get_num_threads(), os.environ['OMP_NUM_THREADS'])"
    )
    environ |= {"OMP_NUM_THREADS": wish} if wish else {}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [wish or "1"] * 2


def test_apply_after_torch_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    assert threads.apply() == ["torch is loaded already, so the thread settings of this process stay as they are"]
