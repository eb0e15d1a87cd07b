"""Children: exit codes, signals and environment, with real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from app.environment.handover import Relay, child_environment, exit_code, run_child, stop_signals, stopping

WAIT_FOR_SIGNAL = """
import signal, sys, time
def leave(number, frame):
    sys.exit(40 + number)
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, leave)
print("ready", flush=True)
time.sleep(60)
"""
ROOT = Path(__file__).parents[3]
posix = pytest.mark.skipif(os.name == "nt", reason="signals as POSIX has them")


@pytest.mark.parametrize("code", [0, 1, 2, 3, 130, 255])
def test_exit_codes_come_back(code: int) -> None:
    assert run_child([sys.executable, "-c", f"raise SystemExit({code})"]) == (code, False)


@pytest.mark.parametrize(
    ("returncode", "code"),
    [(0, 0), (3, 3), (-2, 130), (-15, 143), (-9, 137), (0xC000013A, 130), (0xC000013A - (1 << 32), 130)],
)
def test_a_return_code_is_stated_as_a_shell_would(returncode: int, code: int) -> None:
    """The last two are how Windows reports Ctrl-C, read as unsigned and as signed."""
    assert exit_code(returncode) == code


@posix
def test_a_child_ended_by_a_signal() -> None:
    code, interrupted = run_child([sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"])
    assert (code, interrupted) == (137, False)


def test_words_with_spaces_and_umlauts_arrive_whole(tmp_path: Path) -> None:
    folder = tmp_path / "zwei Wörter"
    folder.mkdir()
    words = ["ein Wort", "größer", "", '"', "--set=x y"]
    script = "import json, os, sys; json.dump([sys.argv[1:], os.getcwd()], open('out.json', 'w'))"
    code, _ = run_child([sys.executable, "-c", script, *words], cwd=folder)
    assert code == 0
    assert json.loads((folder / "out.json").read_text(encoding="utf-8")) == [words, str(folder)]


def test_what_ties_python_to_its_interpreter_is_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHOME", "/elsewhere")
    monkeypatch.setenv("__PYVENV_LAUNCHER__", "/elsewhere")
    monkeypatch.setenv("PIP_USER", "1")
    monkeypatch.setenv("KEEP", "me")
    environment = child_environment({"EXTRA": "1"}, without=["PIP_USER"])
    assert not {"PYTHONHOME", "__PYVENV_LAUNCHER__", "PIP_USER"} & set(environment)
    assert (environment["KEEP"], environment["EXTRA"]) == ("me", "1")


def _relay(numbers: Sequence[int], foreground: bool) -> tuple[int, bool]:
    """Send signals to this process while a child waits; returns the child's return code and what the relay saw."""
    with subprocess.Popen([sys.executable, "-c", WAIT_FOR_SIGNAL], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        with Relay(child, foreground=lambda: foreground) as relay:
            for number in numbers:
                os.kill(os.getpid(), number)
            if foreground and signal.SIGTERM not in numbers:
                child.terminate()  # nothing else ends it
            return child.wait(timeout=30), relay.interrupted


@posix
def test_control_c_sent_to_us_alone_is_passed_on() -> None:
    assert _relay([signal.SIGINT], foreground=False) == (40 + signal.SIGINT, True)


@posix
def test_control_c_of_a_terminal_is_not_sent_twice() -> None:
    """The terminal gives it to the child itself; here no terminal does, so only our own SIGTERM ends the child."""
    assert _relay([signal.SIGINT], foreground=True) == (40 + signal.SIGTERM, True)


@posix
@pytest.mark.parametrize("foreground", [True, False])
def test_a_polite_end_is_always_passed_on(foreground: bool) -> None:
    assert _relay([signal.SIGTERM], foreground) == (40 + signal.SIGTERM, False)


@posix
def test_the_former_handlers_return() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    _relay([signal.SIGTERM], foreground=False)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


@posix
def test_a_hang_up_that_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with subprocess.Popen([sys.executable, "-c", "pass"]) as child, Relay(child):
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


STOPS = ["SIGINT", "SIGTERM", "SIGHUP"]


@posix
@pytest.mark.parametrize("name", STOPS)
def test_whatever_asks_a_program_to_end_is_as_ctrl_c(name: str) -> None:
    number = getattr(signal, name)
    before = [signal.getsignal(getattr(signal, other)) for other in STOPS]
    try:
        with stopping(), pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
        if name == "SIGHUP":
            assert signal.getsignal(number) is signal.SIG_IGN, "the shell says it as well; it means nothing new"
            signal.signal(number, before[-1])
        assert [signal.getsignal(getattr(signal, other)) for other in STOPS] == before
    finally:
        signal.signal(signal.SIGHUP, before[-1])


def test_windows_has_a_stop_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SIGTERM", "SIGHUP"):
        monkeypatch.delattr(signal, name, raising=False)
    monkeypatch.setattr(signal, "SIGBREAK", 21, raising=False)
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.SIG_DFL)
    assert stop_signals() == [signal.SIGINT, 21]


@posix
def test_what_whoever_started_us_wants_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stopping():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_another_thread_is_left_in_peace() -> None:
    def enter() -> None:
        with stopping():
            done.append(signal.getsignal(signal.SIGTERM))

    done: list[object] = []
    helper = threading.Thread(target=enter)
    helper.start()
    helper.join()
    assert done == [signal.getsignal(signal.SIGTERM)]


@posix
def test_a_shared_descriptor_reaches_the_child(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as file:
        script = f"import os; os.write({file.fileno()}, b'here')"
        assert run_child([sys.executable, "-c", script], keep_open=[file.fileno()]) == (0, False)
    assert (tmp_path / "lock").read_text() == "here"


def test_a_command_that_is_not_there_raises() -> None:
    with pytest.raises(OSError, match="no-such"):
        run_child(["/nowhere/no-such-python"])


@posix
def test_a_terminals_control_c_reaches_the_child_once() -> None:
    """The real thing: a pseudo-terminal, the launcher's way of running a child, and the ^C character."""
    import pty

    script = (
        "import sys; sys.path.insert(0, '.')\n"
        "from app.environment.handover import run_child, in_foreground\n"
        "assert in_foreground()\n"
        f"child = {COUNT_INTERRUPTS!r}\n"
        "print(run_child([sys.executable, '-c', child]))\n"
    )
    pid, master = pty.fork()
    if pid == 0:  # pragma: no cover (the child)
        os.chdir(Path(__file__).parents[3])
        os.execv(sys.executable, [sys.executable, "-c", script])
    guard = threading.Timer(60, os.kill, (pid, signal.SIGKILL))
    guard.start()
    try:
        seen = b""
        while b"ready" not in seen:
            seen += os.read(master, 1024)
        os.write(master, b"\x03")
        while b")" not in seen.partition(b"interrupts")[2]:
            seen += os.read(master, 1024)
    finally:
        guard.cancel()
        os.waitpid(pid, 0)
        os.close(master)
    assert b"interrupts 1" in seen, seen
    assert b"(7, True)" in seen, seen


COUNT_INTERRUPTS = """
import signal, sys, time
seen = []
signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
print("ready", flush=True)
until = time.monotonic() + 30
while not seen and time.monotonic() < until:
    time.sleep(0.01)
time.sleep(0.5)  # a second one would come now
print("interrupts", len(seen), flush=True)
sys.exit(7)
"""


@posix
def test_without_a_terminal_we_are_not_in_its_foreground() -> None:
    script = "from app.environment.handover import in_foreground; print(in_foreground())"
    done = subprocess.run(
        [sys.executable, "-c", script],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=ROOT,
        start_new_session=True,
        check=True,
    )
    assert done.stdout == "False\n"


@posix
def test_a_child_ends_when_its_parent_is_killed() -> None:
    child = """if True:
        import time
        from app.environment.handover import end_with_parent
        end_with_parent(0.05)
        print("here", flush=True)
        time.sleep(60)
    """
    parent = f"""if True:
        import subprocess, sys
        child = subprocess.Popen([sys.executable, "-c", {child!r}], stdout=subprocess.PIPE)
        child.stdout.readline()
        print(child.pid, flush=True)
        sys.stdin.read()
    """
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as launcher:
        assert launcher.stdout is not None
        handed = psutil.Process(int(launcher.stdout.readline()))
        assert handed.is_running()
        launcher.kill()
        launcher.wait()
    _, alive = psutil.wait_procs([handed], timeout=10)
    assert not alive
