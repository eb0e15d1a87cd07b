"""The error tree is a contract: the exit codes that scripts rely on."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from app import errors
from app.console import complain
from app.video import outputs


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.KinetileError, 1),
        (errors.UsageError, 2),
        (errors.CannotRunError, 3),
        (errors.PlanRefusedError, 3),
        (errors.JobFailedError, 1),
        (errors.Cancelled, 130),
    ],
)
def test_exit_codes(kind: type[errors.KinetileError], code: int) -> None:
    error = kind("one sentence")
    assert isinstance(error, errors.KinetileError)
    assert error.exit_code == code
    assert str(error) == "one sentence"


# -- what the page says --

ROOT = Path(__file__).resolve().parents[2]
OPTION = re.compile(r"(?<![\w-])--(?!kt-)[a-z][a-z-]+")  # --kt-... are colours
ELSEWHERE = (
    "app/arguments.py", "app/bootstrap.py", "app/cli.py", "app/bench.py", "app/catalogue.py", "app/headless/",
    "app/environment/", "app/remote/", "app/starter/", "app/ui/server.py",  # said in a terminal only
    "app/queue/opening.py", "app/queue/handing_over.py", "app/queue/migrate.py",  # said when Kinetile starts
    "app/models/__main__.py", "app/worker/process.py", "app/worker/rank.py", "app/worker/team.py",
)  # fmt: skip
TYPED = (
    "Refused because of --strict", " Change what was asked, or leave --strict out.",  # answers to an option
    "KEY=VALUE was expected", "--set {}", "--home is empty", "The data folder", "--plot",
    "run it with `python launch.py --headless", "run the file with --headless",  # there is no other way
    "add `--accel [^`]+`",  # what the page looks for, to say it otherwise
)  # fmt: skip


def sentences(path: Path) -> Iterator[str]:
    """The texts in a module that hold more than one word, without docstrings; {} stands for what is put in."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    inner |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if id(node) in inner:
            continue
        text = ""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        elif isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        if " " in text:
            yield text


def test_no_sentence_of_the_page_names_an_option() -> None:
    """Outside "(on the command line: ...)", which the page leaves out."""
    found = []
    for path in sorted((ROOT / "app").rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(ELSEWHERE):
            found += [
                (name, text)
                for text in sentences(path)
                if OPTION.search(errors.on_page(text)) and not any(one in text for one in TYPED)
            ]
    assert found == []


def test_the_page_leaves_out_what_only_a_command_line_offers() -> None:
    full = outputs.disk_full(Path("/clips"))
    assert "--out DIR names another folder" in str(full)
    assert errors.on_page(full) == "The disk that holds /clips is full: free some space."
    assert errors.on_page("As it is (so).") == "As it is (so)."


def test_several_mistakes_are_one_sentence_and_all_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    errors.refuse_all([])
    with pytest.raises(errors.UsageError, match=r"^a$") as alone:
        errors.refuse_all([errors.UsageError("a")])
    assert not isinstance(alone.value, errors.SourceError)
    with pytest.raises(errors.SourceError, match=r"^a \(1 more mistake\.\)$") as two:
        errors.refuse_all([alone.value, errors.UsageError("b")])
    with pytest.raises(errors.SourceError, match=r"^a \(2 more mistakes\.\)$") as three:
        errors.refuse_all([two.value, errors.UsageError("c")])
    complain(three.value, sys.stderr)
    assert capsys.readouterr().err.split() == ["a", "b", "c"]
