"""How much of a prompt a model reads: tokens used, tokens needed, words it has never seen.

Counted with the model's own tokenizer.json (or, where there is none, its spiece.model) and the ``tokenizers`` package
(no torch, no transformers). The text is
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
    """Count ``text`` with the tokenizer.json ``file`` or a spiece.model beside it; None if neither is there.

    Raises CannotRunError if the file can't be read as a tokenizer.
    """
    found = next(filter(None, map(_stamped, (file, file.with_name("spiece.model")))), None)
    if found is None:
        return None
    tokenizer, words = _load(*found)
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


def _stamped(file: Path) -> tuple[str, int] | None:
    """A file's name and time, None if it is not there."""
    try:
        return str(file), file.stat().st_mtime_ns
    except (OSError, ValueError):
        return None


@functools.lru_cache(maxsize=8)
def _load(file: str, stamp: int) -> tuple[Tokenizer, frozenset[str]]:
    """The tokenizer, and the whole words it was trained with where a vocabulary.txt beside it lists them (one a line).

    Such a tokenizer spells other words letter by letter: the model reads them, but has never learnt what they mean.
    """
    from tokenizers import Tokenizer

    listed = Path(file).with_name("vocabulary.txt")
    try:
        tokenizer = _from_sentencepiece(file) if file.endswith(".model") else Tokenizer.from_file(file)
        words = frozenset(listed.read_text(encoding="utf-8").split()) if listed.is_file() else frozenset()
    except Exception as error:  # the package raises plain Exception
        raise CannotRunError(f"The tokenizer {file} can't be read ({error}); fetch the model again.") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer, words


def _from_sentencepiece(file: str) -> Tokenizer:
    """T5's way of reading a SentencePiece model of the unigram kind: whole pieces after a mark for the space before
    them, and </s> at the end.
    """
    from sentencepiece import sentencepiece_model_pb2 as proto
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    model = proto.ModelProto()
    model.ParseFromString(Path(file).read_bytes())
    tokenizer = Tokenizer(models.Unigram([(it.piece, it.score) for it in model.pieces], model.trainer_spec.unk_id))
    if charsmap := model.normalizer_spec.precompiled_charsmap:
        tokenizer.normalizer = normalizers.Precompiled(charsmap)
    splits = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits)
    end = model.pieces[model.trainer_spec.eos_id].piece
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {end}", special_tokens=[(end, model.trainer_spec.eos_id)]
    )
    return tokenizer


def _unread(text: str, seen: list[tuple[int, int]], end: int) -> tuple[str, ...]:
    """The words that begin before ``end``, whole, with a letter, digit or picture character before it that no known
    token covers.
    """
    covered = bytearray(len(text))
    for start, stop in seen:
        covered[start:stop] = b"\1" * (stop - start)
    found: dict[str, str] = {}
    for match in re.finditer(r"\S+", text):
        if match.start() >= end:
            break
        word = match.group()
        missed = [c for i, c in enumerate(word, match.start()) if i < end and not covered[i]]
        if any(unicodedata.category(c)[0] in "LN" or unicodedata.category(c) == "So" for c in missed):
            found.setdefault(_bare(word).casefold(), _bare(word))
            if len(found) == MAX_UNKNOWN:
                break
    return tuple(found.values())


def _near(words: frozenset[str], unknown: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Spelling help where the model's words are listed; none for a word so short that many are near."""
    known = sorted(words)
    found = []
    for word in (one for one in unknown[:8] if len(one) > 3):
        alike = [one for one in known if _may_be_meant(one, word.lower())]
        found += [(word, near) for near in difflib.get_close_matches(word.lower(), alike, n=1, cutoff=0.8)]
    return tuple(found)


def _may_be_meant(known: str, word: str) -> bool:
    """Whether the lengths are alike and the first letters the same, or one slip at the start is all that differs."""
    if abs(len(known) - len(word)) > 1:
        return False
    swapped = word[1] + word[0] + word[2:]
    return known[0] == word[0] or known in (word[1:], swapped) or known[1:] in (word, word[1:])


def _bare(word: str) -> str:
    """The word without punctuation around it and invisible characters in it, cut to 40 characters."""
    seen = "".join(c for c in word if c.isprintable())
    inner = seen.strip("".join({c for c in seen if unicodedata.category(c)[0] == "P"})) or seen
    return inner if len(inner) <= 40 else inner[:39] + "…"
