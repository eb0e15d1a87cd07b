"""How much of a prompt is read, and which words are not (CASES 23)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import CannotRunError
from app.models.tokens import TokenUse, _near, count_tokens
from tests.app.models.vocabulary import write_tokenizer


@pytest.fixture(scope="module", params=["spelled", "unknown"])
def file(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """Two kinds of tokenizer: one that spells strange words by letters, one that calls them <unk>."""
    folder = write_tokenizer(tmp_path_factory.mktemp("model"), spelled=request.param == "spelled")
    return folder / "tokenizer" / "tokenizer.json"


def use(file: Path, text: str, limit: int = 64) -> TokenUse:
    found = count_tokens(file, text, limit)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("text", "total"),
    [("", 1), ("  \n ", 1), ("a red ball", 4), ("A RED, ball!", 4), ("a red\n\nball", 4), ("red &amp;amp; blue", 3)],
)
def test_words_and_the_end_token_are_counted(file: Path, text: str, total: int) -> None:
    assert use(file, text) == TokenUse(total, total, 64)


def test_the_tokenizer_files_own_truncation_does_not_hide_length(file: Path) -> None:
    assert use(file, "red " * 63) == TokenUse(64, 64, 64)
    assert use(file, "red " * 64) == TokenUse(65, 64, 64)
    assert use(file, "red " * 4000).sentence() == "64 of 4,001 tokens used"
    assert use(file, "a red ball").sentence() == "4 of 64 tokens used"


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("a red unicorn", ("unicorn",)),
        ("a (Unicorn), and a unicorn: red", ("Unicorn",)),
        ("a red ball 🚀 - up & … !", ("🚀",)),
        ("红色的球 flies", ("红色的球",)),
        ("réd bäll", ()),
        ("red-haired ball", ("red-haired",)),
        ("redder balls", ("redder", "balls")),
    ],
)
def test_unread_words_are_named_once(file: Path, text: str, unknown: tuple[str, ...]) -> None:
    assert use(file, text).unknown == unknown


def test_invisible_characters_are_not_quoted(file: Path) -> None:
    assert use(file, "\u202ezork\u200bmid").unknown == ("zorkmid",)


def test_words_past_the_limit_are_not_called_unknown(file: Path) -> None:
    found = use(file, "red ox " + "ball " * 100 + "kite", limit=8)
    assert (found.used, found.unknown) == (8, ("ox",))
    assert found.total > 100


def test_a_word_at_the_limit_is_named_whole_or_not_at_all(file: Path) -> None:
    assert use(file, "unicorn " * 100, limit=20).unknown == ("unicorn",), "and not its first letters beside it"
    assert use(file, "red " * 18 + "unicorn", limit=20).unknown == ("unicorn",)


def test_a_misspelled_word_gets_its_neighbour_where_words_are_listed(tmp_path: Path) -> None:
    file = write_tokenizer(tmp_path, spelled=True) / "tokenizer" / "tokenizer.json"
    assert use(file, "a red rokcet in spacce beside zzz").near == (("rokcet", "rocket"), ("spacce", "space"))
    file.with_name("vocabulary.txt").unlink()
    file.touch()
    assert use(file, "a red rokcet in spacce beside zzz").near == ()


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("eats", ()),
        ("cat", ()),
        ("rokcet", ("rocket",)),
        ("ocket", ("rocket",)),
        ("orcket", ("rocket",)),
        ("xhearts", ("hearts",)),
        ("pearts", ("hearts",)),
        ("parts", ()),
        ("rocketss", ()),
    ],
)
def test_only_a_spelling_that_is_truly_near_is_offered(word: str, near: tuple[str, ...]) -> None:
    words = frozenset({"at", "hearts", "rocket"})
    assert _near(words, (word,)) == tuple((word, one) for one in near)


@given(st.text(max_size=80), st.integers(1, 20))
def test_any_text_is_counted(file: Path, text: str, limit: int) -> None:
    found = use(file, text.encode("utf-8", "replace").decode(), limit)
    assert 1 <= found.used <= min(found.total, limit)
    assert len(found.unknown) <= 50
    assert all(0 < len(word) <= 40 for word in found.unknown)


def test_no_file_counts_nothing_and_a_broken_one_is_said(tmp_path: Path) -> None:
    assert count_tokens(tmp_path / "tokenizer.json", "x", 64) is None
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CannotRunError, match=r"tokenizer\.json can't be read"):
        count_tokens(tmp_path / "tokenizer.json", "x", 64)


@pytest.mark.parametrize(
    "text", ["", "a red ball", "a  red\nball, twice & more", "two stars at night " * 200, "ﬁne ½ 🚀 红"]
)
def test_a_sentencepiece_model_alone_counts_as_its_pipeline_reads(
    tiny_models: Callable[[str], Path], text: str
) -> None:
    """CogVideoX's repositories hold no tokenizer.json."""
    from transformers import T5Tokenizer

    folder = tiny_models("cogvideox-2b") / "tokenizer"
    assert not (folder / "tokenizer.json").exists()
    found = use(folder / "tokenizer.json", text, limit=226)
    read = len(T5Tokenizer.from_pretrained(folder)(" ".join(text.split())).input_ids)
    assert (found.total, found.used) == (read, min(read, 226))


def test_a_spoilt_sentencepiece_model_is_said(tmp_path: Path) -> None:
    (tmp_path / "spiece.model").write_bytes(b"no such thing")
    with pytest.raises(CannotRunError, match="can't be read"):
        count_tokens(tmp_path / "tokenizer.json", "a red ball", 64)
