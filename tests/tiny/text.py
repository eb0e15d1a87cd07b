"""Tokenizers and text encoders of the classes that real models use, small enough to be made in a moment.

The vocabulary is whole words, letters and what byte-level tokenizers need; nothing is trained, so every build is the
same. Sequences may be as long as the real models': the encoders hold no table of positions except CLIP's.
"""

from __future__ import annotations

import string
from typing import Any

_SENTENCES = (
    "a red ball rolls over the green grass. a yellow rocket flies up into the dark blue sky. two stars at night."
)
WORDS = tuple(dict.fromkeys(_SENTENCES.replace(".", "").split()))
WIDTH = 32
"""Features of every text encoder here."""
IMAGE_SIZE = 32
"""Pixels a side that the picture encoder looks at: 4 patches and a class token."""


def t5_tokenizer(length: int = 512) -> Any:
    """T5's tokenizer, as T5, umT5 and their users have it: pads with 0, ends with </s>, reads `length` tokens."""
    from transformers import T5Tokenizer

    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -4.0)]
    pieces += [(f"▁{word}", -2.0) for word in WORDS if len(word) > 1]
    pieces += [(letter, -6.0) for letter in string.ascii_letters + string.digits + string.punctuation]
    return T5Tokenizer(vocab=pieces, extra_ids=0, model_max_length=length)


def umt5_encoder() -> Any:
    """Wan's text encoder."""
    from transformers import UMT5Config, UMT5EncoderModel

    return UMT5EncoderModel(UMT5Config(**_T5)).eval()


def t5_encoder() -> Any:
    """The text encoder of LTX-Video, CogVideoX and Mochi."""
    from transformers import T5Config, T5EncoderModel

    return T5EncoderModel(T5Config(**_T5, feed_forward_proj="gated-gelu")).eval()


_T5: dict[str, Any] = {
    "vocab_size": 256,
    "d_model": WIDTH,
    "d_kv": 16,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 2,
    "dropout_rate": 0.0,
}


def image_encoder() -> Any:
    """The picture encoder of Wan 2.1's image-to-video models."""
    from transformers import CLIPVisionConfig, CLIPVisionModel

    return CLIPVisionModel(
        CLIPVisionConfig(
            hidden_size=WIDTH,
            intermediate_size=64,
            projection_dim=WIDTH,
            num_hidden_layers=2,
            num_attention_heads=2,
            image_size=IMAGE_SIZE,
            patch_size=16,
        )
    ).eval()


def image_processor() -> Any:
    """What prepares pictures for `image_encoder`."""
    from transformers import CLIPImageProcessor

    return CLIPImageProcessor(size={"shortest_edge": IMAGE_SIZE}, crop_size={"height": IMAGE_SIZE, "width": IMAGE_SIZE})
