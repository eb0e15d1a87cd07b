"""What a worker's death is said to be, and what of it a person can do about."""

from __future__ import annotations

import pytest

from app.worker.supervisor import Death, explain


@pytest.mark.parametrize(
    ("death", "words", "absent"),
    [
        (Death("SIGKILL", -9), ["Something ended the worker (SIGKILL)", "most likely", "fewer frames"], "--accel"),
        (Death("SIGKILL", -9, memory_killer=True), ["The system ended the worker", "memory ran out"], "most likely"),
        (Death("SIGABRT", -6), ["died (SIGABRT)", "a native library gave up", "--accel attention=sdpa"], "memory"),
        (
            Death("SIGABRT", -6, "terminate called after throwing an instance of 'std::bad_alloc'"),
            ["memory ran out", "smaller size"],
            "--accel",
        ),
        (Death("SIGSEGV", -11), ["a native library crashed", "plain PyTorch"], "memory"),
        (Death("SIGILL", -4), ["an instruction that this processor does not have"], "memory"),
        (Death("SIGTERM", -15), ["Something outside Kinetile", "try the clip again"], "library"),
        (Death("", 1, "a line\nImportError: no torch"), ["exit code 1", "ImportError: no torch"], "a line"),
        (Death("", 0), ["exit code 0", "it printed nothing"], "memory"),
    ],
)  # fmt: skip
def test_a_death_is_explained(death: Death, words: list[str], absent: str) -> None:
    text = explain(death, "denoising, step 3 of 20", "")
    assert "denoising, step 3 of 20" in text
    for word in words:
        assert word in text
    assert absent not in text
    assert "\n" not in text


def test_what_it_held_stands_in_the_sentence() -> None:
    text = explain(Death("SIGKILL", -9), "decoding", " (it held 7.5 GiB, 1.0 GiB are free now)")
    assert "memory ran out (it held 7.5 GiB, 1.0 GiB are free now): try" in text
