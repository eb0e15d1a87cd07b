"""How much of a prompt a model reads: tokens used, tokens needed, words it has never seen.

Counted with the model's own tokenizer.json and the ``tokenizers`` package (no torch, no transformers). The text is
first cleaned as diffusers' Wan pipeline cleans it: broken encodings mended by ftfy, HTML escapes undone twice, white
space joined.
"""

from __future__ import annotations

import difflib
import functools
import html
import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from app.errors import CannotRunError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MAX_UNKNOWN = 50
"""Unknown words kept per text; a prompt in another language can consist of them."""


@dataclass(frozen=True)
class TokenUse:
    """Tokens of one text. ``total`` and ``used`` count the end token; ``used`` <= ``limit``."""

    total: int
    used: int
    limit: int
    unknown: tuple[str, ...] = ()
    """Words that the model never learnt or does not see at all, once each, among those inside the limit."""
    near: tuple[tuple[str, str], ...] = ()
    """For some of them a known word that is spelled much alike."""

    def sentence(self) -> str:
        """ "64 of 4,001 tokens used" when the text is cut, else "12 of 64 tokens used"."""
        return f"{self.used:,} of {self.total if self.total > self.used else self.limit:,} tokens used"


def count_tokens(file: Path, text: str, limit: int) -> TokenUse | None:
    """Count ``text``; None if the tokenizer's file is not there.

    Raises CannotRunError if the file can't be read as a tokenizer.
    """
    try:
        stamp = file.stat().st_mtime_ns
    except (OSError, ValueError):
        return None
    tokenizer, words = _load(str(file), stamp)
    import ftfy

    clean = re.sub(r"\s+", " ", html.unescape(html.unescape(ftfy.fix_text(text)))).strip()
    encoding = tokenizer.encode(clean)
    total = len(encoding.ids)
    used = min(total, limit)
    specials = sum(encoding.special_tokens_mask)
    kept = encoding.offsets[: max(used - specials, 0)] if total > limit else encoding.offsets
    seen = [
        span
        for span, token in zip(kept, encoding.tokens, strict=False)
        if (token in words if words else token != "<unk>")
    ]
    end = max((span[1] for span in kept), default=0) if total > limit else len(clean)
    unknown = _unread(clean, seen, end)
    return TokenUse(total, used, limit, unknown, _near(words, unknown))


@functools.lru_cache(maxsize=8)
def _load(file: str, stamp: int) -> tuple[Tokenizer, frozenset[str]]:
    """The tokenizer, and the whole words it was trained with where a vocabulary.txt beside it lists them (one a line).

    Such a tokenizer spells other words letter by letter: the model reads them, but has never learnt what they mean.
    """
    from tokenizers import Tokenizer

    listed = Path(file).with_name("vocabulary.txt")
    try:
        tokenizer = Tokenizer.from_file(file)
        words = frozenset(listed.read_text(encoding="utf-8").split()) if listed.is_file() else frozenset()
    except Exception as error:  # the package raises plain Exception
        raise CannotRunError(f"The tokenizer {file} can't be read ({error}); fetch the model again.") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer, words


def _unread(text: str, seen: list[tuple[int, int]], end: int) -> tuple[str, ...]:
    """The words before ``end`` with a letter, digit or picture character in them that no known token covers."""
    covered = bytearray(len(text))
    for start, stop in seen:
        covered[start:stop] = b"\1" * (stop - start)
    found: dict[str, str] = {}
    for match in re.finditer(r"\S+", text[:end]):
        word = match.group()
        missed = [c for i, c in enumerate(word, match.start()) if not covered[i]]
        if any(unicodedata.category(c)[0] in "LN" or unicodedata.category(c) == "So" for c in missed):
            found.setdefault(_bare(word).casefold(), _bare(word))
            if len(found) == MAX_UNKNOWN:
                break
    return tuple(found.values())


def _near(words: frozenset[str], unknown: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Spelling help where the model's words are listed."""
    known = sorted(words)
    close = ((word, difflib.get_close_matches(word.lower(), known, n=1, cutoff=0.8)) for word in unknown[:8])
    return tuple((word, match[0]) for word, match in close if match)


def _bare(word: str) -> str:
    """The word without punctuation around it and invisible characters in it, cut to 40 characters."""
    seen = "".join(c for c in word if c.isprintable())
    inner = seen.strip("".join({c for c in seen if unicodedata.category(c)[0] == "P"})) or seen
    return inner if len(inner) <= 40 else inner[:39] + "…"
