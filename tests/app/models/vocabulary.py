"""A word-level tokenizer like the starter's, with a handful of words, built in place."""

from __future__ import annotations

import json
from pathlib import Path

WORDS = ("a", "and", "ball", "blue", "flies", "fly", "in", "left", "red", "right", "rocket", "space", "the", "up")


def write_tokenizer(folder: Path, words: tuple[str, ...] = WORDS) -> Path:
    """Write tokenizer/tokenizer.json under ``folder``; returns ``folder``."""
    specials = ["<pad>", "</s>", "<unk>"]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    end = {"id": "</s>", "ids": [1], "tokens": ["</s>"]}
    data = {
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0},
        "padding": None,
        "added_tokens": [
            {"id": i, "content": name, **flags, "special": True} for i, name in enumerate(specials)
        ],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "NFKD"},
                {"type": "StripAccents"},
                {"type": "Lowercase"},
                {"type": "Replace", "pattern": {"Regex": "[^a-z0-9 ]+"}, "content": " "},
            ],
        },
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {"</s>": end},
        },
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {word: i for i, word in enumerate([*specials, *words])},
            "unk_token": "<unk>",
        },
    }  # fmt: skip
    (folder / "tokenizer").mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer" / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    return folder
