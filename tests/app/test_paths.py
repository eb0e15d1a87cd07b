"""Data folders and names from elsewhere (cases 28 and 29)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import CannotRunError, UsageError
from app.paths import Home, find_lora, home, inside, is_mine_alone, relative_name, without_home


def test_home_prefers_argument_then_variable_then_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETILE_HOME", str(tmp_path / "variable"))
    assert home(tmp_path / "argument").root == tmp_path / "argument"
    assert home().root == tmp_path / "variable"
    monkeypatch.setenv("KINETILE_HOME", "  ")
    assert home().root.name == "kinetile"
    assert home().root.is_absolute()


def test_home_is_lazy_and_makes_folders_on_demand(tmp_path: Path) -> None:
    place = home(tmp_path / "a folder with é")
    assert not place.root.exists()
    for folder in (place.outputs, place.presets, place.loras, place.cache):
        assert folder.is_dir()
        assert folder.parent == place.root
    assert place.database.parent == place.root
    assert not place.database.exists()


@pytest.mark.skipif(os.name == "nt", reason="there it can't be told who may change a folder")
def test_a_path_is_mine_alone_where_nobody_else_can_exchange_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    clip = folder / "clip.mp4"
    assert is_mine_alone(clip), "what is not there yet becomes mine"
    clip.write_bytes(b"clip")
    link = tmp_path / "link"
    link.symlink_to(folder)
    assert is_mine_alone(link / "clip.mp4")
    (tmp_path / "a").chmod(0o777)
    assert not is_mine_alone(clip)
    assert not is_mine_alone(link / "clip.mp4"), "a link is judged by what it leads to"
    (tmp_path / "a").chmod(0o1777)
    assert is_mine_alone(clip), "with the sticky bit nobody moves what is another's"
    clip.chmod(0o666)
    assert not is_mine_alone(clip)
    clip.chmod(0o664)
    monkeypatch.setattr("app.paths._is_own_group", lambda number: False)
    assert not is_mine_alone(clip)
    clip.chmod(0o644)
    assert is_mine_alone(clip)
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "link").symlink_to(folder)
    assert is_mine_alone(tmp_path / "open" / "link")
    (tmp_path / "open").chmod(0o777)
    assert not is_mine_alone(tmp_path / "open" / "link"), "others may let the link lead elsewhere"
    if os.getuid() == 0:
        os.chown(clip, 4242, -1)
    else:
        monkeypatch.setattr(os, "getuid", lambda: 4242)
    assert not is_mine_alone(clip), "another's file"


def test_home_under_a_file_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotRunError, match=r"can't write to .*outputs.*--home"):
        _ = home(tmp_path / "file").outputs


def test_home_without_write_permission_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(CannotRunError, match="permission denied"):
        _ = Home(tmp_path).outputs


@pytest.mark.parametrize("path", ["", "  ", "a\0b", "a\udcff"])
def test_impossible_home_is_refused(path: str) -> None:
    with pytest.raises(UsageError, match="--home"):
        home(path)


@pytest.mark.parametrize(
    ("name", "clean"),
    [("a.png", "a.png"), ("x/a.png", "x/a.png"), ("x\\a.png", "x/a.png"), ("./x//a.png", "x/a.png"), ("é 日.png",) * 2],
)
def test_relative_names(name: str, clean: str) -> None:
    assert relative_name(name) == clean


@pytest.mark.parametrize(
    "name",
    ["../../evil", "/tmp/evil", "C:\\evil", "c:evil", "a/../../b", "..", "CON", "a/nul.txt", "COM1.png", "a\0b", "a\nb",
     "", " ", ".", "./", "\\\\server\\share", "~/x", "~root", "a:stream", "..\\x", "x" * 1001,
     ".. /x", "a/...", "./~/x", "a\udcff.png", "lpt².png"],
)  # fmt: skip
def test_names_that_could_leave_the_folder_are_refused(name: str, tmp_path: Path) -> None:
    """Case 28."""
    with pytest.raises(ValueError):
        relative_name(name)
    with pytest.raises(UsageError):
        inside(tmp_path, name)


@given(st.text(alphabet=st.sampled_from("./\\:~ aC\0é"), max_size=12))
def test_whatever_name_is_accepted_stays_inside(name: str) -> None:
    try:
        clean = relative_name(name)
    except ValueError:
        return
    root = Path("/root-of-the-test")
    assert Path(os.path.normpath(root / clean)).is_relative_to(root)
    assert ".." not in clean.split("/")
    assert relative_name(clean) == clean


def test_only_paths_below_ones_own_folder_lose_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Case 29."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    inside_home = tmp_path / "models" / "a model"
    assert without_home(str(inside_home)) == "~/models/a model"
    assert Path(without_home(str(inside_home))).expanduser() == inside_home
    for name in ("starter", "hf:owner/name", "./models", f"{tmp_path}-other/models", "/models/x", "nul\0"):
        assert without_home(name) == name


def test_inside_follows_links_only_within(tmp_path: Path) -> None:
    folder = tmp_path / "presets"
    folder.mkdir()
    (folder / "a.png").write_bytes(b"x")
    (tmp_path / "secret.png").write_bytes(b"x")
    (folder / "good.png").symlink_to(folder / "a.png")
    (folder / "bad.png").symlink_to(tmp_path / "secret.png")
    (folder / "up").symlink_to(tmp_path)
    (folder / "loop").symlink_to(folder / "loop")
    assert inside(folder, "a.png") == (folder / "a.png").resolve()
    assert inside(folder, "good.png") == (folder / "a.png").resolve()
    for name, why in [
        ("bad.png", "leads out"),
        ("up/secret.png", "leads out"),
        ("loop", "is not in"),
        ("no", "is not in"),
    ]:
        with pytest.raises(UsageError, match=why):
            inside(folder, name)
    (folder / "sub").mkdir()
    with pytest.raises(UsageError, match="is not a file"):
        inside(folder, "sub")


def test_loras_are_found_by_name_or_base_name(tmp_path: Path) -> None:
    """Case 29: or reported missing."""
    (tmp_path / "styles").mkdir()
    file = tmp_path / "styles" / "soft.safetensors"
    file.write_bytes(b"x")
    assert find_lora(tmp_path, "styles/soft.safetensors") == file.resolve()
    assert find_lora(tmp_path, "soft.safetensors") == file.resolve()
    with pytest.raises(UsageError, match=r"'hard.safetensors' is missing; put the file into"):
        find_lora(tmp_path, "hard.safetensors")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "soft.safetensors").write_bytes(b"y")
    with pytest.raises(UsageError, match=r"2 files of that name"):
        find_lora(tmp_path, "soft.safetensors")
