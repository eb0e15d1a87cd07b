"""launch.py: the door opens on every Python, refuses old ones in one sentence, and needs nothing installed."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOOR = ["launch.py", "app/__init__.py", "app/bootstrap.py"]
BEFORE_INSTALLING = [
    *DOOR,
    "app/errors.py",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "app/environment").glob("*.py")),
]
OLD_PYTHONS = ["python2.7", "python2", "python3.4", "python3.6", "python3.8", "python3.10"]


def tree(name: str) -> ast.Module:
    return ast.parse((ROOT / name).read_text(encoding="utf-8"), name, feature_version=(3, 4))


def newer_than_python_2(module: ast.Module) -> Iterator[str]:
    """What Python 2.7 cannot parse, as far as anyone might write it here."""
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef):
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            if node.returns or any(a.annotation for a in arguments) or node.args.kwonlyargs or node.args.posonlyargs:
                yield f"line {node.lineno}: annotations or keyword-only arguments"
        elif isinstance(node, (ast.AnnAssign, ast.JoinedStr, ast.NamedExpr, ast.Nonlocal, ast.AsyncFunctionDef)):
            yield f"line {node.lineno}: {type(node).__name__}"
        elif isinstance(node, (ast.List, ast.Tuple, ast.Set)) and any(isinstance(e, ast.Starred) for e in node.elts):
            yield f"line {node.lineno}: unpacking in a literal"
        elif isinstance(node, ast.Raise) and node.cause:
            yield f"line {node.lineno}: raise from"
        elif isinstance(node, ast.ClassDef) and node.keywords:
            yield f"line {node.lineno}: class keywords"


@pytest.mark.parametrize("name", DOOR)
def test_the_door_parses_on_old_pythons(name: str) -> None:
    assert list(newer_than_python_2(tree(name))) == []
    assert (ROOT / name).read_bytes().isascii(), "Python 2 wants a coding line for anything else"


@pytest.mark.parametrize(
    "text",
    ["x: int = 1", "f'{x}'", "def f(a: int): pass", "def f(*, a): pass", "raise A from b", "[*a, 1]", "(a := 1)"],
)
def test_the_check_above_can_fail(text: str) -> None:
    assert list(newer_than_python_2(ast.parse(text)))


@pytest.mark.parametrize("name", BEFORE_INSTALLING)
def test_nothing_is_imported_that_would_have_to_be_installed_first(name: str) -> None:
    foreign = set()
    for node in ast.walk(ast.parse((ROOT / name).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            foreign |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            foreign.add((node.module or "").partition(".")[0])
    assert foreign - {"app"} <= set(sys.stdlib_module_names)


def door_in(folder: Path) -> Path:
    """A copy of what a start needs before anything is installed."""
    for name in [*BEFORE_INSTALLING, "app/environment/builds.json", "pyproject.toml", "app/cli.py"]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder / "launch.py"


def test_an_old_python_is_refused_in_one_sentence(tmp_path: Path) -> None:
    found = [python for python in map(shutil.which, OLD_PYTHONS) if python and runs(python)]
    if not found:
        pytest.skip(f"none of {', '.join(OLD_PYTHONS)} is here")
    launch = door_in(tmp_path)
    for python in found:
        done = subprocess.run([python, launch, "--headless"], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (3, ""), python
        assert "Kinetile needs 3.11 or newer" in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / ".venv").exists()


def runs(python: str) -> bool:
    return subprocess.run([python, "-c", "pass"], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["--headless", "--help"]])
def test_help_needs_nothing_installed(words: list[str], tmp_path: Path) -> None:
    """``-S`` hides every installed package, as on a bare machine."""
    launch = door_in(tmp_path / "ein Ordner")
    done = subprocess.run([sys.executable, "-S", launch, *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--headless" in done.stdout
    assert "--torch-build NAME" in done.stdout
    assert not (launch.parent / ".venv").exists()


def test_help_loads_nothing_heavy() -> None:
    script = (
        "import sys\n"
        "from app import bootstrap\n"
        "code = bootstrap.main(['--headless', '--help'])\n"
        "heavy = {'torch', 'diffusers', 'transformers', 'gradio', 'numpy', 'pydantic'} & set(sys.modules)\n"
        "sys.exit(code or sorted(heavy) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_nothing_runs_when_a_worker_imports_the_door() -> None:
    """On Windows and macOS a child process imports its parent's main file again."""
    script = "import runpy; runpy.run_path('launch.py', run_name='__mp_main__')"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_link_to_the_door_opens_it_too(tmp_path: Path) -> None:
    launch = door_in(tmp_path / "clone")
    link = tmp_path / "kinetile"
    try:
        link.symlink_to(launch)
    except OSError as error:
        pytest.skip(f"no links here: {error}")
    done = subprocess.run([sys.executable, "-S", link, "--help"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(os.name == "nt", reason="no bash")
def test_ci_is_a_program_that_bash_can_read() -> None:
    script = ROOT / ".ci/run"
    assert os.access(script, os.X_OK)
    if bash := shutil.which("bash"):
        assert subprocess.run([bash, "-n", script], check=False).returncode == 0
    text = script.read_text(encoding="utf-8")
    for word in ("launch.py --test", "ruff check", "ruff format --check", "mypy"):
        assert word in text
