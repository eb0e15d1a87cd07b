"""Names that every system takes, one free name among many writers, and nothing left behind."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
import unicodedata
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.errors import CannotRunError
from app.video import outputs

DEVICES = {"CON", "PRN", "AUX", "NUL", "COM1", "LPT9", "COM¹", "CONIN$"}
ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("text", "stem"),
    [
        ("A red rocket rises", "A-red-rocket-rises"),
        ("../../evil", "evil"),
        ("/tmp/evil", "tmp-evil"),
        ("C:\\evil", "C-evil"),
        ("a/../../b", "a-..-..-b"),
        ("CON", "_CON"),
        ("nul.txt", "_nul.txt"),
        ("com¹", "_com¹"),
        ("CON" + "\u200d" * 200 + "x", "_CON"),
        ("console", "console"),
        ("a\0b", "ab"),
        ('say "hi": what? *|<>', "say-hi-what"),
        ("  ...  ", "clip"),
        ("", "clip"),
        ("-rf", "rf"),
        ("line\nbreak\u2028too", "line-break-too"),
        ("exe.\u202e4pm", "exe.4pm"),
        ("e\u0301te\u0301", "été"),
        ("\ud83d half", "half"),
        ("v1.5 final.", "v1.5-final"),
        ("👩\u200d🚀 lands", "👩\u200d🚀-lands"),
    ],
)
def test_stem_of(text: str, stem: str) -> None:
    assert outputs.safe_stem(text) == stem


@pytest.mark.parametrize("text", ["红" * 120, "🚀" * 90, "x" * 5000, "é" * 100])
def test_long_stems_are_cut_by_bytes_between_characters(text: str) -> None:
    """Case 31."""
    stem = outputs.safe_stem(text)
    assert 117 <= len(stem.encode()) <= outputs.MAX_STEM_BYTES
    assert text.startswith(stem)


@given(
    st.text(alphabet=st.characters(), max_size=300)
    | st.text(alphabet='.-/\\: CONULPTcom1¹\u200d"e\u0301', max_size=200)
)
@example("\u200d" * 119 + "ab")
@example("aux\t.tar")
def test_any_text_gives_a_legal_stem(text: str) -> None:
    stem = outputs.safe_stem(text)
    assert 0 < len(stem.encode()) <= outputs.MAX_STEM_BYTES
    assert unicodedata.is_normalized("NFC", stem)
    assert not set('/\\:*?"<>| \0') & set(stem)
    assert stem == stem.strip(". ")
    assert all(unicodedata.category(c)[0] != "C" or c in "\u200c\u200d" for c in stem)
    assert stem.split(".")[0].upper() not in DEVICES
    assert outputs.safe_stem(stem) == stem, "a safe stem stays as it is"


def test_check_space_passes_and_leaves_nothing(tmp_path: Path) -> None:
    outputs.check_space(tmp_path / "not" / "yet", 1)
    assert not list(tmp_path.iterdir())


def test_check_space_says_how_much_is_missing(tmp_path: Path) -> None:
    """Case 34."""
    with pytest.raises(CannotRunError, match=r"free, but this run may need 4096\.0 GiB.*--out") as caught:
        outputs.check_space(tmp_path, 2**42)
    assert caught.value.exit_code == 3


def test_check_space_refuses_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(CannotRunError, match="not a folder"):
        outputs.check_space(tmp_path / "file" / "outputs", 1)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc takes no files even from root")
def test_check_space_refuses_an_unwritable_place() -> None:
    with pytest.raises(CannotRunError, match=r"Cannot write in the output folder /proc/clips \(.*--out"):
        outputs.check_space(Path("/proc/clips"), 1)


def _publish(folder: Path, stem: str, content: str, suffixes: tuple[str, ...] = (".png", ".mp4")) -> dict[str, Path]:
    with outputs.drafting(folder, stem) as draft:
        for suffix in suffixes:
            draft.file(suffix).write_text(content + suffix)
        return draft.publish(suffixes)


def test_a_taken_name_is_numbered_for_the_whole_set(tmp_path: Path) -> None:
    (tmp_path / "rocket.json").write_text("not ours")
    (tmp_path / "rocket-2.png").symlink_to(tmp_path / "nowhere")
    final = _publish(tmp_path, "rocket", "one")
    assert {path.name for path in final.values()} == {"rocket-3.mp4", "rocket-3.png"}
    assert (tmp_path / "rocket.json").read_text() == "not ours"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "rocket-2.png",
        "rocket-3.mp4",
        "rocket-3.png",
        "rocket.json",
    ]


def test_processes_never_share_a_name(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from app.video import outputs\n"
        "for n in range(12):\n"
        "    with outputs.drafting(Path(sys.argv[1]), 'same') as draft:\n"
        "        for s in ('.png', '.mp4'): draft.file(s).write_text(f'{sys.argv[2]}/{n}')\n"
        "        draft.publish(['.png', '.mp4'])\n"
    )
    children = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path), str(n)], cwd=ROOT) for n in range(4)]
    assert [child.wait(timeout=60) for child in children] == [0] * 4
    videos = sorted(tmp_path.glob("*.mp4"))
    assert len(videos) == 48
    assert len({video.read_text() for video in videos}) == 48
    assert all(video.read_text() == video.with_suffix(".png").read_text() for video in videos), "a set stays together"
    assert len(list(tmp_path.iterdir())) == 96


def test_drafts_of_a_killed_job_are_found_by_its_uid(tmp_path: Path) -> None:
    killed, living = "0123456789abcdef", "fedcba9876543210"
    code = (
        "import os, sys; from pathlib import Path; from app.video import outputs\n"
        "with outputs.drafting(Path(sys.argv[1]), 'rocket', sys.argv[2]) as draft:\n"
        "    draft.file('.png'); os._exit(9)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path), killed], cwd=ROOT).returncode == 9
    assert len(list(tmp_path.iterdir())) == 2
    with outputs.drafting(tmp_path, "rocket", living) as draft:
        outputs.remove_drafts(tmp_path, killed)
        assert list(tmp_path.iterdir()) == [draft.file(".mp4")]


def test_without_hard_links_names_stay_exclusive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "no links on this file system")

    monkeypatch.setattr(os, "link", refuse)
    work = [threading.Thread(target=_publish, args=(tmp_path, "same", str(n))) for n in range(12)]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    assert len({path.read_text() for path in tmp_path.glob("*.mp4")}) == 12
    assert len(list(tmp_path.iterdir())) == 24


@pytest.mark.parametrize("links", [True, False])
def test_a_set_that_cannot_be_completed_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    real_link = os.link

    def link(source: Path, target: Path) -> None:
        if str(target).endswith(".mp4") or not links:
            raise OSError(errno.EPERM, "no")
        real_link(source, target)

    real_replace = os.replace

    def replace(source: Path, target: Path) -> None:
        if str(target).endswith(".mp4"):
            raise OSError(errno.ENOSPC, "full")
        real_replace(source, target)

    monkeypatch.setattr(os, "link", link)
    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(OSError, match="full"):
        _publish(tmp_path, "rocket", "x")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_drafts_go_away_with_any_error(tmp_path: Path, error: type[BaseException]) -> None:
    def interrupted() -> None:
        with outputs.drafting(tmp_path, "rocket") as draft:
            draft.file(".mp4").write_text("half")
            assert len(list(tmp_path.iterdir())) == 1
            assert not (tmp_path / "rocket.mp4").exists()
            raise error

    with pytest.raises(error):
        interrupted()
    assert not list(tmp_path.iterdir())


def test_only_old_drafts_are_swept(tmp_path: Path) -> None:
    old, young = tmp_path / ".a-0123abcd.mp4.partial", tmp_path / ".b-0123abcd.mp4.partial"
    foreign = tmp_path / ".notes.partial"
    for path in (old, young, foreign):
        path.write_text("x")
    for path in (old, foreign):
        os.utime(path, (time.time() - 2 * outputs.STALE_SECONDS,) * 2)
    _publish(tmp_path, "rocket", "x")
    assert sorted(p.name for p in tmp_path.glob(".*")) == [young.name, foreign.name]


@pytest.mark.skipif(sys.platform == "win32", reason="makes a path near Linux's and macOS's own limit")
def test_a_name_too_long_for_the_place_becomes_clip(tmp_path: Path) -> None:
    """Case 31: the clip itself is kept."""
    deep = tmp_path
    room = os.pathconf(tmp_path, "PC_PATH_MAX") - 60  # "clip" with its token still fits, 120 bytes do not
    while len(str(deep)) + 201 < room:
        deep /= "d" * 200
    if room - len(str(deep)) > 2:
        deep /= "d" * (room - len(str(deep)) - 1)
    deep.mkdir(parents=True)
    final = _publish(deep, "long " * 40, "kept")
    assert final[".mp4"].name == "clip.mp4"
    assert final[".mp4"].read_text() == "kept.mp4"


def test_a_name_too_long_for_windows_becomes_clip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There a path of more than 260 characters is said to be missing, although its folder is there."""
    real = os.open

    def windows(path: Path, *others: int) -> int:
        if len(Path(path).name) > 100:
            raise FileNotFoundError(errno.ENOENT, "The system cannot find the path specified")
        return real(path, *others)

    monkeypatch.setattr(os, "open", windows)
    assert _publish(tmp_path, "long " * 40, "kept")[".mp4"].name == "clip.mp4"


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "2 KiB"), (5 * 2**20, "5 MiB"), (3 * 2**29, "1.5 GiB")],
)
def test_sizes_for_people(size: int, text: str) -> None:
    assert outputs.size_text(size) == text


def test_a_folder_of_twenty_thousand_clips_takes_one_more(tmp_path: Path) -> None:
    """Row 42, seen too (stable-diffusion-webui issue 2650): under the first free number, the others untouched."""
    for number in range(1, 20_001):
        (tmp_path / f"clip{f'-{number}' if number > 1 else ''}.mp4").touch()
    with outputs.drafting(tmp_path, "clip") as draft:
        draft.file(".png").write_bytes(b"new")
        draft.file(".mp4").write_bytes(b"new")
        final = draft.publish([".png", ".mp4"])
    assert final[".mp4"] == tmp_path / "clip-20001.mp4"
    assert final[".mp4"].read_bytes() == final[".png"].read_bytes() == b"new"
    assert len(list(tmp_path.iterdir())) == 20_002
