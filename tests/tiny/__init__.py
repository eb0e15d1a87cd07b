"""One tiny pipeline per model family, with random weights, in the layout that diffusers saves and the hub serves.

`save(name, folder)` writes one; the fixture `tiny_models` writes each once per test session. Classes, file names,
latent channels and the VAE's factors are the real ones; widths and depths are not. Each takes seconds and 3 MB at most.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.tiny import ltx, wan

BUILDERS: Mapping[str, Callable[[], Any]] = {
    "wan-t2v": wan.t2v,
    "wan-t2v-two": wan.t2v_two,
    "wan-ti2v": wan.ti2v,
    "wan-i2v": wan.i2v,
    "wan-flf2v": wan.flf2v,
    "wan-i2v-two": wan.i2v_two,
    "ltx": ltx.t2v,
}
# The hub's indexes still name tokenizers by these, which transformers 5 reads but does not write.
_HUB_NAMES = {"T5Tokenizer": "T5TokenizerFast"}


def build(name: str, seed: int = 0) -> Any:
    """The pipeline in memory; leaves torch's global generator as it was."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return BUILDERS[name]()


def save(name: str, folder: Path, seed: int = 0) -> Path:
    """Write the pipeline in diffusers layout into `folder` and return it."""
    build(name, seed).save_pretrained(folder)
    index = folder / "model_index.json"
    entries = json.loads(index.read_text(encoding="utf-8"))
    for entry in entries.values():
        if isinstance(entry, list) and entry[1] in _HUB_NAMES:
            entry[1] = _HUB_NAMES[entry[1]]
    index.write_text(json.dumps(entries, indent=2), encoding="utf-8")
    return folder
