"""One tiny pipeline per model family, with random weights, in the layout that diffusers saves and the hub serves.

`save(name, folder)` writes one; the fixture `tiny_models` writes each once per test session. Classes, file names,
latent channels and the VAE's factors are the real ones; widths and depths are not. Each takes seconds to make
and about 3 MB at most.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.tiny import cogvideox, hunyuan, ltx, mochi, sana, skyreels, text, wan

BUILDERS: Mapping[str, Callable[[], Any]] = {
    "wan-t2v": wan.t2v,
    "wan-t2v-two": wan.t2v_two,
    "wan-ti2v": wan.ti2v,
    "wan-i2v": wan.i2v,
    "wan-flf2v": wan.flf2v,
    "wan-i2v-two": wan.i2v_two,
    "ltx": ltx.t2v,
    "ltx-condition": ltx.conditioned,
    "hunyuan": hunyuan.t2v,
    "hunyuan-15": hunyuan.t2v_15,
    "cogvideox-2b": cogvideox.t2v,
    "cogvideox-5b": cogvideox.t2v_5b,
    "cogvideox-i2v": cogvideox.i2v,
    "cogvideox-15": cogvideox.t2v_15,
    "cogvideox-15-i2v": cogvideox.i2v_15,
    "mochi": mochi.t2v,
    "skyreels": skyreels.t2v,
    "skyreels-forcing": skyreels.forcing,
    "skyreels-i2v": skyreels.i2v,
    "sana": sana.t2v,
}
# The hub's indexes still name these so, which transformers 5 reads but does not write.
_HUB_NAMES = {
    "T5Tokenizer": "T5TokenizerFast",
    "TokenizersBackend": "LlamaTokenizerFast",
    "GemmaTokenizer": "GemmaTokenizerFast",
    "CLIPImageProcessorPil": "CLIPImageProcessor",  # which it is where torchvision is missing
}


def build(name: str, seed: int = 0) -> Any:
    """The pipeline in memory; leaves torch's global generator as it was."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return BUILDERS[name]()


def save(name: str, folder: Path, seed: int = 0) -> Path:
    """Write the pipeline in diffusers layout into `folder` and return it."""
    build(name, seed).save_pretrained(folder)
    if name.startswith("cogvideox"):
        text.sentencepiece_only(folder / "tokenizer")
    index = folder / "model_index.json"
    entries = json.loads(index.read_text(encoding="utf-8"))
    for entry in entries.values():
        if isinstance(entry, list) and entry[1] in _HUB_NAMES:
            entry[1] = _HUB_NAMES[entry[1]]
    index.write_text(json.dumps(entries, indent=2), encoding="utf-8")
    return folder
