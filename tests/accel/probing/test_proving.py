"""Child runs: their answers read, their deaths told, their environment and their time."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel.probe import probe
from accel.probing import proving, verdict
from accel.probing.host import DONE, START, Outcome, Recorded
from tests.accel.recorded import record


def test_finished_tasks_and_the_one_that_killed_the_child_are_read_from_its_output() -> None:
    text = "\n".join(
        [
            START + "fp32",
            DONE + 'fp32 {"ok": true, "reason": "fine"}',
            "noise",
            START + "bf16",
            "onednn_verbose,v1,primitive,exec,cpu,matmul,brg_matmul:avx512_core_amx,undef",
            DONE + 'bf16 {"ok": true, "reason": "fine"}',
            START + "int8",
            DONE + "int8 {cut short",
        ]
    )
    results, at = proving.read(text)
    assert results == {
        "fp32": {"ok": True, "reason": "fine"},
        "bf16": {"ok": True, "reason": "fine", "isa": "brg_matmul:avx512_core_amx"},
    }
    assert at == "int8"


@given(st.text(max_size=300))
def test_any_output_can_be_read(text: str) -> None:
    results, at = proving.read(text)
    assert isinstance(results, dict)
    proving.read(START + "bf16\n" + text)
    verdict.instructions(text.splitlines())
    assert at is None or isinstance(at, str)


@pytest.mark.parametrize(
    ("outcome", "reason", "again"),
    [
        (Outcome("", "", -signal.SIGILL), "killed by SIGILL", False),
        (Outcome("", "", -signal.SIGSEGV), "killed by SIGSEGV", False),
        (Outcome("", "", -9), "want of memory", True),
        (Outcome("", "", 0xC000001D), "an illegal instruction", False),
        (Outcome("", "", None), "did not answer within 8 s", True),
        (Outcome("", "Timeout (0:00:08)!\nThread", 1), "did not answer within 8 s", True),
        (Outcome("", "Traceback\nOSError: gone\n", 1), "status 1: OSError: gone", False),
        (Outcome("", "", -250), "signal 250", False),
    ],
)
def test_how_a_child_ended_is_told_in_a_sentence(outcome: Outcome, reason: str, again: bool) -> None:
    death = proving.died(outcome, 8.0)
    assert reason in death["reason"]
    assert death["ok"] is False
    assert death.get("again", False) is again


class Scripted(Recorded):
    """A recorded machine whose child tasks are real processes running a given shell command."""

    def __init__(self, data: dict[str, Any], command: str) -> None:
        super().__init__(data)
        self.command, self.calls = command, 0

    def child(self, tasks: Any, environ: Any, timeout: float) -> Outcome:
        self.calls += 1
        script = f"echo '{START}{tasks[0]}'; {self.command}"
        done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=30, check=False)
        return Outcome(done.stdout, done.stderr, done.returncode)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")
def test_a_self_test_that_dies_of_sigill_leaves_a_whole_report(tmp_path: Path) -> None:
    """Case 1: `kill -ILL $$` in the place of every test."""
    host = Scripted(record("zen5"), "kill -ILL $$")
    found = probe(host=host, cache_folder=tmp_path)
    assert found.why_unproved("fp32") == "its test process was killed by SIGILL"
    assert not any(flag.usable for flag in found.cpu.flags.values())
    assert host.calls < 12


def test_a_child_that_can_not_even_start_is_told_and_ends(tmp_path: Path) -> None:
    host = Recorded(record("zen5"))
    host.child = lambda tasks, environ, timeout: Outcome("", "No module named 'encodings'", 1)  # type: ignore[method-assign]
    found = probe(host=host, cache_folder=tmp_path)
    assert "No module named 'encodings'" in found.why_unproved("fp32")


def test_children_get_a_clean_environment_and_our_thread_count() -> None:
    host = Recorded(
        record("zen5", environ={"ONEDNN_VERBOSE": "1", "HSA_OVERRIDE_GFX_VERSION": "9.4.2", "PATH": "/bin"})
    )
    environ = proving.environment(host, 3)
    assert "ONEDNN_VERBOSE" not in environ
    assert environ["HSA_OVERRIDE_GFX_VERSION"] == "9.4.2", "the real run sees it too"
    assert environ["OMP_NUM_THREADS"] == "3"
    assert environ["HF_HUB_OFFLINE"] == "1"


def test_no_time_means_not_tried_and_not_remembered(tmp_path: Path) -> None:
    found = probe(host=Recorded(record("zen5")), cache_folder=tmp_path, patience=0.0)
    assert "the time for testing was used up" in found.why_unproved("fp32")
    assert found.proofs["fp32"].untried == "time"
    assert probe(host=Recorded(record("zen5")), cache_folder=tmp_path).proofs["fp32"].ok


def test_what_compiles_for_minutes_waits_for_patience(tmp_path: Path) -> None:
    host = Recorded(record("mi355x"))
    impatient = probe(host=host, cache_folder=tmp_path, patience=10.0)
    assert "may compile for 5 minutes" in impatient.why_unproved("aiter.flash_attn_func")
    assert impatient.proofs["aiter.flash_attn_func"].untried == "compiling"
    patient = probe(host=host, cache_folder=tmp_path, patience=600.0)
    assert patient.why_unproved("aiter.flash_attn_func") == ""
    assert host.tried[-3:] == [(task,) for task in proving.AITER], "what was remembered is not run again"
