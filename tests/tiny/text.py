"""Tokenizers and text encoders of the classes that real models use, small enough to be made in a moment.

The vocabulary is whole words, letters and what byte-level tokenizers need; nothing is trained, so every build is the
same. Sequences may be as long as the real models': the encoders hold no table of positions except CLIP's.
"""

from __future__ import annotations

import io
import json
import string
from pathlib import Path
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


def sentencepiece_only(folder: Path) -> None:
    """Leave in a tokenizer's folder what CogVideoX's repositories hold: spiece.model, and no tokenizer.json."""
    from sentencepiece import SentencePieceTrainer

    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(_SENTENCES.split(".") * 3),
        model_writer=model,
        model_type="unigram",
        vocab_size=60,
        hard_vocab_limit=False,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        num_threads=1,
        minloglevel=2,
    )
    (folder / "spiece.model").write_bytes(model.getvalue())
    (folder / "tokenizer.json").unlink()
    config = folder / "tokenizer_config.json"
    entries = json.loads(config.read_text(encoding="utf-8"))
    config.write_text(json.dumps({**entries, "extra_ids": 100, "additional_special_tokens": None}), encoding="utf-8")


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


def image_encoder(projected: bool = False) -> Any:
    """The picture encoder of Wan 2.1's image-to-video models; `projected`: as SkyReels V2's indexes name it."""
    from transformers import CLIPVisionConfig, CLIPVisionModel, CLIPVisionModelWithProjection

    return (CLIPVisionModelWithProjection if projected else CLIPVisionModel)(
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


def image_processor(with_words: bool = False) -> Any:
    """What prepares pictures for `image_encoder`; `with_words`: as SkyReels V2's pipeline names it, with CLIP's
    tokenizer, which nothing there uses.
    """
    from transformers import CLIPImageProcessor, CLIPProcessor

    crop = {"height": IMAGE_SIZE, "width": IMAGE_SIZE}
    pictures = CLIPImageProcessor(size={"shortest_edge": IMAGE_SIZE}, crop_size=crop)
    return CLIPProcessor(pictures, clip_tokenizer()) if with_words else pictures


def llama_tokenizer() -> Any:
    """HunyuanVideo's: byte-level as in Llama 3, pads after the text."""
    return _byte_level(
        {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>", "pad_token": "<|end_of_text|>"}, length=256
    )


def llama_encoder() -> Any:
    """HunyuanVideo's first text encoder; the pipeline takes what comes out two layers before its end."""
    from transformers import LlamaConfig, LlamaModel

    return LlamaModel(LlamaConfig(**_DECODER, num_hidden_layers=3)).eval()


def clip_tokenizer() -> Any:
    """HunyuanVideo's second tokenizer, 77 tokens at most."""
    from transformers import CLIPTokenizer

    letters = _bytes()
    words = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    return CLIPTokenizer(vocab={word: i for i, word in enumerate(words)}, merges=[], model_max_length=77)


def clip_encoder() -> Any:
    """HunyuanVideo's second text encoder, of which one vector is used."""
    from transformers import CLIPTextConfig, CLIPTextModel

    words = 2 * len(_bytes()) + 2
    return CLIPTextModel(
        CLIPTextConfig(
            vocab_size=words,
            hidden_size=WIDTH,
            intermediate_size=64,
            projection_dim=WIDTH,
            num_hidden_layers=2,
            num_attention_heads=2,
            bos_token_id=words - 2,
            eos_token_id=words - 1,
            pad_token_id=words - 1,
        )
    ).eval()


def qwen_tokenizer() -> Any:
    """HunyuanVideo 1.5's, with the chat template through which its pipeline reads the prompt."""
    from transformers import Qwen2Tokenizer

    words = [*_bytes(), "<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    made = Qwen2Tokenizer(
        vocab={word: i for i, word in enumerate(words)},
        merges=[],
        additional_special_tokens=["<|im_start|>", "<|im_end|>"],
        model_max_length=2048,
    )
    made.chat_template = (
        "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
        "{{ message['content'] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    return made


def qwen_encoder() -> Any:
    """HunyuanVideo 1.5's first text encoder."""
    from transformers import Qwen2_5_VLTextConfig, Qwen2_5_VLTextModel

    rope = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 1e6}
    return Qwen2_5_VLTextModel(Qwen2_5_VLTextConfig(**_DECODER, num_hidden_layers=3, rope_parameters=rope)).eval()


def byt5_tokenizer() -> Any:
    """HunyuanVideo 1.5's second tokenizer: bytes."""
    from transformers import ByT5Tokenizer

    return ByT5Tokenizer()


def byt5_encoder() -> Any:
    """HunyuanVideo 1.5's second text encoder, for words in quotation marks."""
    from transformers import T5Config, T5EncoderModel

    return T5EncoderModel(T5Config(**{**_T5, "vocab_size": 384}, feed_forward_proj="gated-gelu")).eval()


def gemma_tokenizer() -> Any:
    """SANA-Video's."""
    from transformers import GemmaTokenizer

    words = ["<pad>", "<eos>", "<bos>", "<unk>", "▁", "\n"]
    words += [f"<0x{byte:02X}>" for byte in range(256)]
    words += string.ascii_letters + string.digits + string.punctuation
    return GemmaTokenizer(vocab={word: i for i, word in enumerate(words)}, merges=[], model_max_length=300)


def gemma_encoder() -> Any:
    """SANA-Video's text encoder."""
    from transformers import Gemma2Config, Gemma2Model

    return Gemma2Model(
        Gemma2Config(**{**_DECODER, "vocab_size": 512}, num_hidden_layers=2, head_dim=16, query_pre_attn_scalar=16)
    ).eval()


_DECODER: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": WIDTH,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
}


def _bytes() -> list[str]:
    """The 256 letters that byte-level tokenizers write bytes with."""
    from tokenizers.pre_tokenizers import ByteLevel

    return sorted(ByteLevel.alphabet())


def _byte_level(specials: dict[str, str], length: int) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = [*specials.values(), *_bytes()]
    tokenizer = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    begin = specials["bos_token"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A", special_tokens=[(begin, words.index(begin))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, **specials, padding_side="right", model_max_length=length
    )
