"""A small tokenizer like the starter's, built in place."""

from __future__ import annotations

import string
from pathlib import Path

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

WORDS = ("a", "and", "ball", "blue", "flies", "fly", "in", "left", "red", "right", "rocket", "space", "the", "up")
SPECIALS = ("<pad>", "</s>", "<unk>")


def write_tokenizer(folder: Path, spelled: bool = True) -> Path:
    """Write tokenizer/tokenizer.json under ``folder``, which is returned.

    ``spelled``: words outside WORDS fall into letters and WORDS are listed in vocabulary.txt; else they become <unk>.
    """
    letters = string.ascii_lowercase + string.digits
    pieces = dict.fromkeys([*SPECIALS, *WORDS, *letters, *(f"##{letter}" for letter in letters)])
    ids = {piece: index for index, piece in enumerate(pieces)}
    words = {word: index for index, word in enumerate([*SPECIALS, *WORDS])}
    model = models.WordPiece(ids, unk_token="<unk>") if spelled else models.WordLevel(words, unk_token="<unk>")
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.NFKD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex("[^a-z0-9]+"), " "),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    tokenizer.add_special_tokens(list(SPECIALS))
    tokenizer.enable_truncation(8)  # a file may say so; counting must not be fooled by it
    target = folder / "tokenizer"
    target.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(target / "tokenizer.json"))
    if spelled:
        (target / "vocabulary.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    return folder
