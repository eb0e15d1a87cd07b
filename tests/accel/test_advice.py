"""Commands that a person can paste, for the environment that Kinetile runs in."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath

import pytest

from accel import advice
from accel.backends import REGISTRY

KINETILE = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("executable", "folder", "command"),
    [
        (PurePosixPath("/k/.venv/bin/python"), PurePosixPath("/k"), ".venv/bin/python"),
        (PurePosixPath("/k/.venv/bin/python"), PurePosixPath("/home/ada"), "/k/.venv/bin/python"),
        (PurePosixPath("/my k/.venv/bin/python"), PurePosixPath("/"), "'my k/.venv/bin/python'"),
        (PureWindowsPath(r"C:\k\.venv\Scripts\python.exe"), PureWindowsPath(r"C:\k"), r".venv\Scripts\python"),
        (PureWindowsPath(r"C:\k\.venv\Scripts\python.exe"), PureWindowsPath(r"D:\x"), r"C:\k\.venv\Scripts\python"),
        (PureWindowsPath(r"C:\my k\python.exe"), PureWindowsPath(r"D:\x"), r'"C:\my k\python"'),
    ],
)
def test_this_python_is_named_as_a_shell_starts_it(executable: PurePath, folder: PurePath, command: str) -> None:
    assert advice.python(executable, folder) == command


MANY = [f"model-{number}" for number in range(30)]


@pytest.mark.parametrize(
    ("word", "names", "told"),
    [
        ("stepz", ["steps", "seed"], 'did you mean "steps"'),
        ("nothing", ["steps", "seed"], "possible are steps, seed"),
        ("int8", ["auto", "dynamic_int8", "torchao_int8"], 'did you mean "dynamic_int8"'),
        ("oc", ["auto", "stock"], "possible are auto, stock"),
        ("x" * 100_000, ["steps"], "possible is steps"),
        ("nothing", MANY, "possible are model-0, model-1, model-2; the page lists all 30"),
        ("MODEL-17", MANY, 'did you mean "model-17" or "model-7" or "model-1"; the page lists all 30'),
    ],
)
def test_of_many_names_the_nearest_are_told(word: str, names: list[str], told: str) -> None:
    assert advice.nearest(word, names, "the page lists") == told


def test_where_none_of_many_is_near_the_first_are_told() -> None:
    told = advice.nearest("nothing", MANY, "the page lists", ["auto", "model-9"])
    assert told == "possible are auto, model-9; the page lists all 30"
    assert advice.nearest("nothing", ["steps", "seed"], "the page lists", ["seed"]) == "possible are steps, seed"


def test_a_requirement_is_one_word_of_a_shell() -> None:
    assert advice.quoted("torchao>=0.18,<0.19", windows=False) == "'torchao>=0.18,<0.19'"
    assert advice.quoted("torchao>=0.18,<0.19", windows=True) == '"torchao>=0.18,<0.19"'
    assert advice.quoted("gguf", windows=True) == "gguf"


def test_pip_is_that_of_the_environment_that_runs() -> None:
    command = shlex.split(advice.pip("--version"))
    assert command[1:] == ["-m", "pip", "--version"]
    assert Path(command[0]).absolute() == Path(sys.executable)


def test_a_worker_that_runs_elsewhere_names_it_as_the_shell_of_the_person_would(tmp_path: Path) -> None:
    show = [sys.executable, "-c", "from accel import advice; print(advice.PYTHON)"]
    variables = {"PWD": str(tmp_path), "PYTHONPATH": str(KINETILE)}
    done = subprocess.run(show, env=variables, cwd=KINETILE, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == advice.quoted(sys.executable)


def test_every_backend_s_command_names_it() -> None:
    commands = [item.comes_with for item in REGISTRY if "pip install" in item.comes_with]
    assert len(commands) > 3
    assert all(f"`{advice.PYTHON} -m pip install " in command for command in commands)
