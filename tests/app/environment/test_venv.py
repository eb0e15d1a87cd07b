"""The folder .venv: stamp, lock, repair."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest

from app.environment import venv as module
from app.environment.venv import Stamp, Venv, fingerprint, locked, try_lock
from app.errors import CannotRunError


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with a pyproject.toml and a ``.venv`` whose Python is a file only."""
    root = tmp_path / "ein Klon für Kinetile"
    (root / ".venv/bin").mkdir(parents=True)
    (root / "pyproject.toml").write_text("[project]\ndependencies = []\n", encoding="utf-8")
    (root / ".venv/bin/python").write_text("", encoding="utf-8")
    return root


def stamp_for(venv: Venv, *extras: str) -> Stamp:
    return Stamp(fingerprint(venv.root), venv.seal(), extras, "cpu", "auto", "2.13.0+cpu")


def test_a_stamp_holds_until_something_changes(clone: Path) -> None:
    venv = Venv(clone, windows=False)
    assert venv.stamp(()) is None
    venv.write_stamp(stamp_for(venv, "test"))
    assert venv.stamp(()) == venv.stamp(["test"]) == stamp_for(venv, "test")
    assert venv.stamp(["test", "hopper"]) is None
    assert not list(venv.folder.glob("*.partial"))


@pytest.mark.parametrize("change", ["pyproject", "python gone", "python replaced", "no json", "other json", "no stamp"])
def test_a_stamp_does_not_hold_after(clone: Path, change: str) -> None:
    venv = Venv(clone, windows=False)
    venv.write_stamp(stamp_for(venv))
    assert venv.stamp(())
    match change:
        case "pyproject":
            (clone / "pyproject.toml").write_text("[project]\ndependencies = ['x']\n", encoding="utf-8")
        case "python gone":
            venv.python.unlink()
        case "python replaced":
            venv.python.write_text("#!", encoding="utf-8")
        case "no json":
            venv.stamp_file.write_text('{"fingerprint": ', encoding="utf-8")
        case "other json":
            venv.stamp_file.write_text('{"extras": 3}', encoding="utf-8")
        case "no stamp":
            venv.stamp_file.unlink()
    assert venv.stamp(()) is None


def test_a_changed_table_needs_a_new_check(clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    venv = Venv(clone, windows=False)
    venv.write_stamp(stamp_for(venv))
    other = tmp_path / "builds.json"
    other.write_text("{}", encoding="utf-8")
    monkeypatch.setattr(module, "TABLE", other)
    assert venv.stamp(()) is None


def test_the_extras_of_a_stale_stamp_are_remembered(clone: Path) -> None:
    venv = Venv(clone, windows=False)
    assert venv.former_extras() == ()
    venv.write_stamp(replace(stamp_for(venv, "test"), fingerprint="old"))
    assert venv.stamp(()) is None
    assert venv.former_extras() == ("test",)


def test_a_missing_pyproject_is_told(clone: Path) -> None:
    (clone / "pyproject.toml").unlink()
    with pytest.raises(CannotRunError, match=r"pyproject.toml cannot be read .*git checkout"):
        fingerprint(clone)


@pytest.mark.parametrize(("windows", "python"), [(True, "Scripts/python.exe"), (False, "bin/python")])
def test_where_the_python_lies(tmp_path: Path, windows: bool, python: str) -> None:
    assert Venv(tmp_path, windows=windows).python == tmp_path / ".venv" / python


def test_whether_this_process_runs_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    venv = Venv(tmp_path)
    assert not venv.is_running()
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "x/../.venv"))
    assert venv.is_running()


def test_a_python_that_does_not_run_is_seen(clone: Path) -> None:
    assert Venv(clone, windows=False).look() is None


def fake_run(monkeypatch: pytest.MonkeyPatch, answers: dict[str, tuple[int, str]]) -> list[list[str]]:
    """Commands are answered by the first key that is among their words."""
    ran: list[list[str]] = []

    def run(command: list[str]) -> subprocess.CompletedProcess[str]:
        ran.append(command)
        code, output = next((a for key, a in answers.items() if any(key in word for word in command)), (0, ""))
        return subprocess.CompletedProcess(command, code, output, "")

    monkeypatch.setattr(module, "_run", run)
    return ran


LOOKS_FINE = (0, json.dumps([[3, 12, 1], "/site"]))


def test_a_working_environment_is_left_as_it_is(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = fake_run(monkeypatch, {"sysconfig": LOOKS_FINE})
    said: list[str] = []
    facts = Venv(clone, windows=False).make(said.append)
    assert facts.version == (3, 12, 1)
    assert facts.site == Path("/site")
    assert not [command for command in ran if "venv" in command]
    assert said == []


def test_an_environment_of_an_old_python_is_not_filled(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_run(monkeypatch, {"sysconfig": (0, json.dumps([[3, 9, 1], "/site"]))})
    with pytest.raises(CannotRunError, match=r"has Python 3.9.1, 3.11 or newer is needed; delete it"):
        Venv(clone, windows=False).make(lambda _: None)


def test_a_broken_one_is_made_anew(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"sysconfig": (1, "")}
    ran = fake_run(monkeypatch, answers)
    run = module._run

    def heal(command: list[str]) -> subprocess.CompletedProcess[str]:
        if "venv" in command:
            answers["sysconfig"] = LOOKS_FINE
        return run(command)

    monkeypatch.setattr(module, "_run", heal)
    Venv(clone, windows=False).make(lambda _: None)
    assert [sys.executable, "-m", "venv", "--clear", str(clone / ".venv")] in ran


def test_an_environment_without_pip_gets_it(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = fake_run(monkeypatch, {"sysconfig": LOOKS_FINE, "pip": (1, "No module named pip")})
    venv = Venv(clone, windows=False)
    with pytest.raises(CannotRunError):  # the stand-in answers for `--default-pip` too
        venv.make(lambda _: None)
    assert [str(venv.python), "-m", "ensurepip", "--upgrade", "--default-pip"] in ran


def test_a_python_without_ensurepip_is_told_what_to_install(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = "The virtual environment was not created successfully because ensurepip is not\navailable."
    fake_run(monkeypatch, {"sysconfig": (1, ""), "venv": (1, output)})
    with pytest.raises(CannotRunError, match=r"no ensurepip.*apt install python3-venv"):
        Venv(clone, windows=False).make(lambda _: None)


def test_a_folder_that_cannot_be_made_is_told_with_the_reason(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_run(monkeypatch, {"sysconfig": (1, ""), "venv": (1, "Error: [Errno 28] No space left on device")})
    with pytest.raises(CannotRunError, match=r"could not be made \(Error: .*No space left"):
        Venv(clone, windows=False).make(lambda _: None)


def test_something_else_called_venv_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / ".venv").write_text("my notes", encoding="utf-8")
    with pytest.raises(CannotRunError, match="is no folder; move it away"):
        Venv(tmp_path).make(lambda _: None)
    assert (tmp_path / ".venv").read_text(encoding="utf-8") == "my notes"


HOLD = """
import sys; sys.path.insert(0, {root!r})
from pathlib import Path
from app.environment.venv import locked
with locked(Path({clone!r}), lambda text: None):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_start_waits_and_says_so(clone: Path) -> None:
    script = HOLD.format(root=str(Path(__file__).parents[3]), clone=str(clone))
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"

        def say(text: str) -> None:
            said.append(text)
            assert holder.stdin is not None
            holder.stdin.close()  # the first start is done

        said: list[str] = []
        with locked(clone, say):
            assert said == ["another start is preparing .venv; waiting for it"]


def test_the_lock_ends_with_a_killed_holder(clone: Path) -> None:
    script = HOLD.format(root=str(Path(__file__).parents[3]), clone=str(clone))
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        holder.kill()
        holder.wait()
    with locked(clone, lambda text: pytest.fail(text)):
        pass


def test_the_lock_as_windows_has_it(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, int, int]] = []
    taken = [False]

    def locking(descriptor: int, mode: int, size: int) -> None:
        calls.append((descriptor, mode, size))
        if taken[0]:
            raise PermissionError

    monkeypatch.setitem(sys.modules, "msvcrt", types.SimpleNamespace(locking=locking, LK_NBLCK=2))
    with (clone / "lock").open("a+b") as file:
        assert try_lock(file, windows=True)
        taken[0] = True
        assert not try_lock(file, windows=True)
        assert calls == [(file.fileno(), 2, 1)] * 2


def test_a_folder_that_cannot_be_written_is_told(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(CannotRunError, match=r"cannot be written \(Permission denied\).*run it from an environment"):
        locked(clone, lambda _: None).__enter__()
