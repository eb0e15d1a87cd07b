"""From a scene to what a person may type for it, and the tokenizer for such text."""

from __future__ import annotations

import functools
import json
import random
import re
import string
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from app.starter import phrases
from app.starter.world import STUDIO_TONES, Scene

PAD, END, UNKNOWN = "<pad>", "</s>", "<unk>"
MAX_TOKENS = 64
TYPO_SHARE = 0.04
"""Share of content words that get a typo when typos are asked for."""

SIDES_SHARE, PLACE_SHARE = 0.6, 0.9
"""Share of the training captions of two objects that say which one is left, and of one object that is not in the middle
that say where it is: without the latter, runs of 11,050 and 19,000 steps learnt whose colour is whose, but no sides."""

_TONES = {word for tone in STUDIO_TONES for word in tone.split()}
_VOWELS = "aeiou"


def normalise(text: str) -> str:
    """``text`` in the form in which prompts are compared: lower-case words, single blanks, no punctuation."""
    return " ".join(re.sub(r"[^a-z0-9]+", " ", text.lower()).split())


@functools.lru_cache(maxsize=8)
def _normalised(prompts: frozenset[str]) -> tuple[str, ...]:
    return tuple(f" {normalise(prompt)} " for prompt in prompts)


def caption(
    scene: Scene,
    rng: random.Random,
    full: bool = False,
    typos: bool = False,
    forbidden: frozenset[str] = frozenset(),
) -> str:
    """A caption for ``scene``.

    full: every attribute is named and nothing is added (as the judge's prompts need). typos: some words are misspelt,
    as in training. forbidden: prompts none of which the caption may contain, misspelt or not.
    """
    barred = _normalised(forbidden)
    while True:
        text = _sentence(scene, rng, full)
        if barred:
            plain = f" {normalise(text)} "
            if any(prompt in plain for prompt in barred):
                continue
        if full:
            return text
        if rng.random() < 0.10:
            text = _with_strange_words(text, rng)
        if typos:
            text = _with_typos(text, rng)
        return _with_capitals(text, rng)


def _sentence(scene: Scene, rng: random.Random, full: bool) -> str:
    """Object, background and camera in one of many orders."""
    said = _two_objects(scene, rng, full) if scene.shape2 is not None else _one_object(scene, rng, full)
    background, background_first, comma = "", False, False
    if full or rng.random() >= 0.14:
        label = rng.random() < 0.28
        table = phrases.BACKGROUND_LABELS if label else phrases.BACKGROUND_PHRASES
        background = rng.choice(table[scene.background]).format(tone=scene.studio_tone)
        background_first, comma = rng.random() < (0.5 if label else 0.22), label or rng.random() < 0.15
    camera = ""
    if (scene.camera != "still" and (full or rng.random() >= 0.06)) or (not full and rng.random() < 0.05):
        camera = rng.choice(phrases.CAMERA_PHRASES[scene.camera])
    if not full and scene.shape2 is None and rng.random() < 0.06:
        return _keywords([said, background, camera], rng)
    text = said
    if background:
        parts = (background, said) if background_first else (said, background)
        text = (", " if comma else " ").join(parts)
    if camera:
        link = " while " if camera.startswith("the camera") and rng.random() < 0.15 else ", "
        text = f"{text}{link}{camera}" if rng.random() < 0.8 else f"{camera}, {text}"
    if not full and rng.random() < 0.10:
        text = f"{rng.choice(phrases.OPENINGS)} {text}"
    return text


def _keywords(parts: list[str], rng: random.Random) -> str:
    """The telegram style of search boxes: parts in any order, without small words."""
    kept = [" ".join(word for word in part.split() if word not in phrases.SMALL_WORDS) for part in parts if part]
    rng.shuffle(kept)
    return rng.choice((", ", " ")).join(kept)


def _motion_phrase(motion: str, shape: str, rng: random.Random) -> list[str]:
    go = rng.choice(phrases.GO).format(own=phrases.OWN_VERB.get(shape, "moves"))
    return rng.choice(phrases.MOTION_PHRASES[motion]).format(go=go).split()


def _says_motion(scene: Scene, rng: random.Random, full: bool) -> bool:
    if scene.motion == "still" and scene.camera != "still":
        return rng.random() >= 0.8
    if full:
        return True
    return rng.random() >= (0.28 if scene.motion == "still" else 0.05)


def _noun_phrase(color: str, shape: str, size: str, rng: random.Random, full: bool, several: bool = False) -> str:
    noun, tint = rng.choice(phrases.SHAPE_WORDS[shape]), rng.choice(phrases.COLOR_WORDS[color])
    if several:
        noun = phrases.plural(noun)
    before = []
    if size in phrases.SIZE_WORDS and (full or rng.random() < 0.8):
        before.append(rng.choice(phrases.SIZE_WORDS[size]))
    if not full and rng.random() < 0.06:
        before.append(rng.choice(phrases.ADJECTIVES))
    place = rng.random()
    if place < 0.05:
        words = [*before, noun, rng.choice(phrases.COLOR_AFTER_NOUN).format(color=tint)]
    elif place < 0.10:
        words = [tint, *before, noun]
    elif full or place < 0.96:
        words = [*before, tint, noun]
    else:
        words = [*before, noun]
    return _with_article(" ".join(words), rng, several)


def _with_article(words: str, rng: random.Random, several: bool) -> str:
    kind = rng.random()
    if several:
        return words if kind < 0.7 else f"{'the' if kind < 0.85 else 'some'} {words}"
    if kind < 0.74:
        return f"{'an' if words[0] in _VOWELS else 'a'} {words}"
    return f"the {words}" if kind < 0.84 else f"one {words}" if kind < 0.87 else words


def _one_object(scene: Scene, rng: random.Random, full: bool) -> str:
    several = not full and rng.random() < 0.03
    size = "medium" if scene.motion in ("grow", "shrink") else scene.size
    noun = _noun_phrase(scene.color, scene.shape, size, rng, full, several)
    if scene.place in phrases.PLACES and rng.random() < PLACE_SHARE:
        place = rng.choice(phrases.PLACES[scene.place])
        noun = f"{place} {noun}" if rng.random() < 0.25 else f"{noun} {place}"
    if not _says_motion(scene, rng, full):
        return noun
    if not full and not several and rng.random() < 0.03:
        noun = "it"  # what people write when the picture shows the object already
    words = _motion_phrase(scene.motion, scene.shape, rng)
    ing, base = phrases.VERB_FORMS[words[0]]
    if ing and rng.random() < 0.4:
        words[0] = rng.choice(("", "", "are " if several else "is ")) + ing
    elif several:
        words[0] = base
    if not full and rng.random() < 0.08:
        words.insert(rng.choice((0, len(words))), rng.choice(phrases.ADVERBS))
    action = " ".join(words)
    order = rng.random()
    if full or order < 0.88:
        return f"{noun} {action}"
    return f"{action} {noun}" if order < 0.95 else f"{noun}, {action}"


def _two_objects(scene: Scene, rng: random.Random, full: bool) -> str:
    first, second = (_noun_phrase(color, shape, "medium", rng, full) for color, shape in scene.objects())
    if scene.left_first is not None and rng.random() < (0.5 if full else SIDES_SHARE):
        left, right = (first, second) if scene.left_first else (second, first)
        text = rng.choice(phrases.SIDES).format(left=left, right=right)
    else:
        # Where the words give no sides, the object named first is the left one: one thing less to guess from noise.
        second_first = rng.random() < 0.5 if scene.left_first is None else not scene.left_first
        if second_first:
            first, second = second, first
        text = rng.choice(phrases.PAIRS).format(first=first, second=second)
    if not _says_motion(scene, rng, full):
        return text
    words = _motion_phrase(scene.motion, scene.shape, rng)
    ing, base = phrases.VERB_FORMS[words[0]]
    words[0] = ing if ing and rng.random() < 0.5 else base
    return f"{text}{' both' if rng.random() < 0.3 else ''} {' '.join(words)}"


def _with_strange_words(text: str, rng: random.Random) -> str:
    """Adds one to three words that nobody knows, mostly between the others: the model learns to pass over them."""
    words = text.split()
    for _ in range(rng.choice((1, 1, 2, 3))):
        strange = "".join(rng.choice(_VOWELS if i % 2 else string.ascii_lowercase) for i in range(rng.randint(3, 8)))
        place = rng.randrange(len(words) + 1)
        if place == len(words) or rng.random() < 0.8:
            words.insert(place, strange)
        else:
            words[place] = strange
    return " ".join(words)


def misspell(word: str, rng: random.Random) -> str:
    """``word`` (three letters or more) with one plain typo: two letters swapped, one dropped, doubled or replaced."""
    place = rng.randrange(1, len(word) - 1)
    kind = rng.randrange(4)
    if kind == 0:
        return word[:place] + word[place + 1] + word[place] + word[place + 2 :]
    if kind == 1:
        return word[:place] + word[place + 1 :]
    if kind == 2:
        return word[:place] + word[place] + word[place:]
    return word[:place] + rng.choice(string.ascii_lowercase) + word[place + 1 :]


def _with_typos(text: str, rng: random.Random) -> str:
    """Misspells `TYPO_SHARE` of the words of four letters or more."""

    def perhaps(match: re.Match[str]) -> str:
        return misspell(match[0], rng) if rng.random() < TYPO_SHARE else match[0]

    return re.sub(r"[a-z]{4,}", perhaps, text)


def _with_capitals(text: str, rng: random.Random) -> str:
    style = rng.random()
    if style < 0.12:
        return text[:1].upper() + text[1:] + ("." if style < 0.06 else "")
    if style < 0.14:
        return text.upper()
    return text.title() if style < 0.16 else text


def _words(texts: Iterable[str]) -> set[str]:
    return {word for text in texts for word in normalise(re.sub(r"\{\w+\}", " ", text)).split()}


def vocabulary() -> list[str]:
    """Every whole word the starter knows, sorted; the union of the phrase tables."""
    tables: tuple[dict[str, tuple[str, ...]], ...] = (
        phrases.COLOR_WORDS,
        phrases.SHAPE_WORDS,
        phrases.SIZE_WORDS,
        phrases.MOTION_PHRASES,
        phrases.BACKGROUND_PHRASES,
        phrases.BACKGROUND_LABELS,
        phrases.CAMERA_PHRASES,
    )
    words = _words(text for table in tables for choices in table.values() for text in choices)
    words |= _words(phrases.plural(noun) for nouns in phrases.SHAPE_WORDS.values() for noun in nouns)
    words |= _words(form for verb, forms in phrases.VERB_FORMS.items() for form in (verb, *forms))
    for table in (
        phrases.GO,
        phrases.OPENINGS,
        phrases.ADJECTIVES,
        phrases.ADVERBS,
        phrases.COLOR_AFTER_NOUN,
        phrases.SIDES,
        tuple(place for places in phrases.PLACES.values() for place in places),
        phrases.PAIRS,
        phrases.SMALL_WORDS,
    ):
        words |= _words(table)
    return sorted(words | _TONES)


def build_tokenizer(folder: str | Path) -> PreTrainedTokenizerFast:
    """Writes tokenizer.json, tokenizer_config.json and vocabulary.txt into ``folder`` and loads the tokenizer from it.

    Whole words first; whatever is not among them falls into letters, so that a typo is no blank. Lower-case, no
    accents, punctuation as blanks; one </s> at the end; at most `MAX_TOKENS` tokens. Loads as PreTrainedTokenizerFast.
    """
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    words, letters = vocabulary(), string.ascii_lowercase + string.digits
    pieces = dict.fromkeys([PAD, END, UNKNOWN, *words, *letters, *(f"##{letter}" for letter in letters)])
    model = models.WordPiece({piece: index for index, piece in enumerate(pieces)}, unk_token=UNKNOWN)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.NFKD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"[^a-z0-9]+"), " "),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {END}", special_tokens=[(END, 1)])
    tokenizer.add_special_tokens([PAD, END, UNKNOWN])
    tokenizer.save(str(target / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": PAD,
        "eos_token": END,
        "unk_token": UNKNOWN,
        "model_max_length": MAX_TOKENS,
        "clean_up_tokenization_spaces": False,
    }
    (target / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (target / "vocabulary.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    return PreTrainedTokenizerFast.from_pretrained(target)
