"""What is installed, what is lacking, and what a killed install leaves behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.environment.packages import (
    installed,
    lacking,
    read_lists,
    remove_unfinished,
    running_lacks,
    torch_facts,
    unfinished,
)
from app.environment.versions import Requirement
from app.errors import CannotRunError
from tests.app.environment.stand_ins import unpack, wheel_files

ROOT = Path(__file__).parents[3]


def test_the_projects_own_lists_can_be_read() -> None:
    lists = read_lists(ROOT / "pyproject.toml")
    assert {"torch", "diffusers", "gradio", "pydantic"} <= {r.name for r in lists.main}
    assert {"hopper", "rocm", "scale", "test"} <= set(lists.extras)
    assert {r.name for r in lists.needed(["test"])} > {r.name for r in lists.needed()}


@pytest.mark.parametrize("text", [None, "[project", "[project]\nname = 'x'\n", "[project]\ndependencies = ['a @ x']\n"])
def test_a_damaged_pyproject_is_told_in_one_sentence(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "pyproject.toml"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    with pytest.raises(CannotRunError, match=r"pyproject.toml cannot be read \(.+\); restore it with"):
        read_lists(file)


def test_installed_and_lacking(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    unpack(first, "huggingface_hub", "2.4.0")
    unpack(second, "huggingface_hub", "1.0.0")
    unpack(second, "torch", "2.13.0+cpu")
    have = installed([str(first), str(second)])
    assert have == {"huggingface-hub": "2.4.0", "torch": "2.13.0+cpu"}
    needed = [Requirement.parse(t) for t in ("torch>=2.9,<3", "huggingface-hub<2", "gradio>=6,<7")]
    assert lacking(needed, have) == ["huggingface-hub<2 (has 2.4.0)", "gradio>=6,<7"]
    assert lacking(needed[:1], have) == []


def test_a_package_without_a_readable_version_does_not_count(tmp_path: Path) -> None:
    unpack(tmp_path, "torch", "2.13.0")
    (tmp_path / "torch-2.13.0.dist-info/METADATA").write_text("Name: torch\nVersion: what\n", encoding="utf-8")
    assert lacking([Requirement.parse("torch>=2")], installed([str(tmp_path)])) == ["torch>=2 (has what)"]


def test_the_running_interpreter_is_asked_name_by_name() -> None:
    assert running_lacks([Requirement.parse("pytest>=1")]) == []
    assert running_lacks([Requirement.parse("pytest>=1"), Requirement.parse("no-such-package>=1")]) == [
        "no-such-package>=1"
    ]
    assert running_lacks([Requirement.parse("pytest<1")])[0].startswith("pytest<1 (has ")


def test_a_whole_package_is_not_unfinished(tmp_path: Path) -> None:
    unpack(tmp_path, "whole", "1.0")
    assert unfinished(tmp_path) == []
    assert remove_unfinished(tmp_path) == []
    assert installed([str(tmp_path)]) == {"whole": "1.0"}


@pytest.mark.parametrize("gone", ["INSTALLER", "METADATA", "RECORD", "../module.py"])
def test_a_package_cut_short_is_found_and_its_record_dropped(tmp_path: Path, gone: str) -> None:
    unpack(tmp_path, "cut", "1.0", files={"module.py": "x = 1\n"})
    unpack(tmp_path, "whole", "2.0")
    (tmp_path / "cut-1.0.dist-info" / gone).unlink()
    assert remove_unfinished(tmp_path) == ["cut-1.0"]
    assert installed([str(tmp_path)]) == {"whole": "2.0"}


def test_every_point_at_which_an_install_may_die_is_seen(tmp_path: Path) -> None:
    files = list(wheel_files("pkg", "1.0", files={"pkg/__init__.py": "", "pkg/data.txt": "x"}).items())
    for count in range(1, len(files) + 1):
        site = tmp_path / str(count)
        for name, text in files[:count]:
            (site / name).parent.mkdir(parents=True, exist_ok=True)
            (site / name).write_text(text, encoding="utf-8")
        remove_unfinished(site)
        assert installed([str(site)]) == {}, f"taken for installed after {count} of {len(files)} files"


def test_compiled_files_may_be_deleted_by_hand(tmp_path: Path) -> None:
    unpack(tmp_path, "pkg", "1.0")
    record = tmp_path / "pkg-1.0.dist-info/RECORD"
    record.write_text(record.read_text(encoding="utf-8") + "__pycache__/pkg.cpython-311.pyc,,\n", encoding="utf-8")
    assert unfinished(tmp_path) == []


def test_pips_own_leftovers_go(tmp_path: Path) -> None:
    (tmp_path / "~orch").mkdir()
    assert remove_unfinished(tmp_path) == ["orch"]
    assert not (tmp_path / "~orch").exists()


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        (
            "__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\nhip: Optional[str] = None\n",
            {"version": "2.13.0+cpu", "cuda": None, "hip": None},
        ),
        (
            "__version__ = '2.14.1+cu130'\ncuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n",
            {"version": "2.14.1+cu130", "cuda": "13.0", "hip": None},
        ),
        (
            '__version__ = "2.9.1+rocm6.4"\ncuda = None\nhip = "6.4.43482"\n',
            {"version": "2.9.1+rocm6.4", "cuda": None, "hip": "6.4.43482"},
        ),
    ],
)
def test_torch_tells_its_build_without_being_imported(tmp_path: Path, text: str, facts: dict[str, str | None]) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/version.py").write_text("from typing import Optional\n" + text, encoding="utf-8")
    assert torch_facts(tmp_path) == facts


def test_no_torch_is_told_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(CannotRunError, match=r"torch is not in .*delete .venv and start again"):
        torch_facts(tmp_path)


def test_the_torch_of_this_environment_says_the_same_as_torch_itself() -> None:
    torch = pytest.importorskip("torch")
    facts = torch_facts(Path(torch.__file__).parents[1])
    assert facts == {"version": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip}
