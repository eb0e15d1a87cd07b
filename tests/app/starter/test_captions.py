"""Captions say what the scene shows, in known words, and the tokenizer reads them."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from app.starter import captions, phrases, world

SEEDS = st.integers(0, 2**32)
KNOWN = frozenset(captions.vocabulary())


def scene_of(seed: int) -> world.Scene:
    return world.random_group(random.Random(seed), 1, 0.3)[0]


def mentions(text: str, choices: tuple[str, ...]) -> bool:
    plain = f" {captions.normalise(text)} "
    return any(f" {captions.normalise(choice)} " in plain for choice in choices)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("tokenizer")
    captions.build_tokenizer(target)
    return target


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(folder)


@settings(max_examples=300, deadline=None)
@given(seed=SEEDS)
def test_full_captions_name_everything_in_known_words(seed: int) -> None:
    scene = scene_of(seed)
    text = captions.caption(scene, random.Random(seed), full=True)
    assert set(captions.normalise(text).split()) <= KNOWN
    for color, shape in scene.objects():
        assert mentions(text, phrases.COLOR_WORDS[color])
        assert mentions(text, phrases.SHAPE_WORDS[shape])
    places = phrases.BACKGROUND_PHRASES[scene.background] + phrases.BACKGROUND_LABELS[scene.background]
    assert mentions(text, tuple(place.format(tone=scene.studio_tone) for place in places))
    if scene.camera != "still":
        assert mentions(text, phrases.CAMERA_PHRASES[scene.camera])
    if scene.size in phrases.SIZE_WORDS and scene.shape2 is None and scene.motion not in ("grow", "shrink"):
        assert mentions(text, phrases.SIZE_WORDS[scene.size])


@settings(max_examples=200, deadline=None)
@given(seed=SEEDS)
def test_same_seed_gives_the_same_caption(seed: int) -> None:
    scene = scene_of(seed)
    first, again = (captions.caption(scene, random.Random(seed), typos=True) for _ in range(2))
    assert first == again


@pytest.mark.parametrize("left_first", [True, False, None])
def test_sides_in_words_are_the_scenes(left_first: bool | None) -> None:
    scene = world.Scene("space", "cream", "still", "car", "red", "up", "medium", "box", "blue", left_first)
    car, box = (tuple(set(phrases.SHAPE_WORDS[shape])) for shape in ("car", "box"))
    named = 0
    for seed in range(200):
        text = captions.caption(scene, random.Random(seed), full=True)
        sides = re.findall(r"\b(left|right)\b", text)
        named += bool(sides)
        if "to the right of" in text or not sides:
            continue
        left, right = (box, car) if left_first is False else (car, box)
        before = text[: text.index(sides[0])]
        assert mentions(before, left if sides[0] == "left" else right), text
    assert (named > 50) if left_first is not None else named == 0


@pytest.mark.parametrize("left_first", [True, False])
def test_what_is_named_first_stands_left_where_no_sides_are_named(left_first: bool) -> None:
    scene = world.Scene("space", "cream", "still", "car", "red", "up", "medium", "box", "blue", left_first)
    car, box = (tuple(set(phrases.SHAPE_WORDS[shape])) for shape in ("car", "box"))
    left, right = (car, box) if left_first else (box, car)
    texts = [captions.caption(scene, random.Random(seed), full=True) for seed in range(100)]
    silent = [text for text in texts if not re.search(r"\b(left|right)\b", text)]
    assert len(silent) > 20
    for text in silent:
        words = text.split()
        ends = [next(n for n in range(len(words) + 1) if mentions(" ".join(words[:n]), one)) for one in (left, right)]
        assert ends[0] < ends[1], text


@pytest.mark.parametrize("place", world.PLACES)
def test_captions_say_where_an_object_stands_and_never_the_wrong_side(place: str) -> None:
    scene = world.Scene("space", "cream", "still", "car", "red", "spin", "medium", place=place)
    texts = [captions.caption(scene, random.Random(seed)) for seed in range(200)]
    sides = [re.findall(r"\b(left|right)\b", text.lower()) for text in texts]
    assert all(side == place for found in sides for side in found)
    named = sum(bool(found) for found in sides)
    print(f"{place}: named in {named} of 200")
    assert named == 0 if place == "middle" else named > 150


def test_captions_vary() -> None:
    scene = scene_of(1)
    rng = random.Random(0)
    assert len({captions.caption(scene, rng) for _ in range(200)}) > 150


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS)
def test_forbidden_prompts_never_come_out(seed: int) -> None:
    """Few words and few choices: without the list, most of these captions would contain a forbidden text."""
    scene = scene_of(seed)
    tints = tuple(set(phrases.COLOR_WORDS[scene.color]))
    forbidden = frozenset(
        f"{tint.title()},  {noun}!" for tint in tints[:3] for noun in phrases.SHAPE_WORDS[scene.shape]
    )
    rng = random.Random(seed)
    for _ in range(10):
        plain = f" {captions.normalise(captions.caption(scene, rng, forbidden=forbidden))} "
        assert not any(f" {captions.normalise(prompt)} " in plain for prompt in forbidden)


@settings(max_examples=300, deadline=None)
@given(seed=SEEDS, word=st.sampled_from(sorted(word for word in KNOWN if len(word) >= 3)))
def test_typos_are_plain(seed: int, word: str) -> None:
    typo = captions.misspell(word, random.Random(seed))
    assert abs(len(typo) - len(word)) <= 1
    assert typo[0] == word[0]
    changed = sum(a != b for a, b in zip(typo, word, strict=False))
    assert len(typo) != len(word) or changed <= 2


def test_about_four_words_in_a_hundred_are_misspelt() -> None:
    rng, text = random.Random(0), "rocket balloon house sunset " * 5000
    wrong = sum(word not in KNOWN for word in captions._with_typos(text, rng).split()) / 20000
    print(f"misspelt: {100 * wrong:.2f} %")
    assert 0.03 < wrong < 0.05


def test_vocabulary_holds_every_word_of_plain_captions() -> None:
    rng = random.Random(3)
    for seed in range(3000):
        text = captions._sentence(scene_of(seed), rng, full=False)
        assert set(captions.normalise(text).split()) <= KNOWN, text
    assert captions.vocabulary() == sorted(KNOWN)


def test_tokenizer_reads_words_whole_and_the_rest_in_letters(tokenizer: PreTrainedTokenizerFast) -> None:
    def tokens(text: str) -> list[str]:
        return tokenizer.convert_ids_to_tokens(tokenizer(text).input_ids)

    assert tokens("A RED Ball, bounces!") == ["a", "red", "ball", "bounces", "</s>"]
    assert tokens("rckt") == ["r", "##c", "##k", "##t", "</s>"]
    assert tokens("Béach") == ["beach", "</s>"]
    assert tokens("") == ["</s>"]
    assert tokens("犬 🚀") == ["</s>"]
    ids = (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id)
    assert (ids, tokenizer.model_max_length) == ((0, 1, 2), 64)
    padded = tokenizer(["a ball", "word " * 100], padding="max_length", max_length=64, truncation=True).input_ids
    assert [len(row) for row in padded] == [64, 64]
    assert padded[0][3:] == [0] * 61
    assert padded[1][-1] == 1


@settings(max_examples=200, deadline=None)
@given(text=st.text(alphabet=st.characters(codec="ascii"), max_size=60))
def test_no_ascii_text_is_unknown(text: str) -> None:
    tokenizer = _tokenizer()
    assert tokenizer.unk_token_id not in tokenizer(re.sub(r"</?\w+>", "", text)).input_ids


_cached: list[PreTrainedTokenizerFast] = []


def _tokenizer() -> PreTrainedTokenizerFast:
    return _cached[0]


@pytest.fixture(autouse=True, scope="module")
def _share(tokenizer: PreTrainedTokenizerFast) -> None:
    _cached.append(tokenizer)


def test_tokenizer_files_are_deterministic(folder: Path, tmp_path: Path) -> None:
    captions.build_tokenizer(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json", "vocabulary.txt"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()
    assert (folder / "vocabulary.txt").read_text().split() == captions.vocabulary()


def test_captions_fit_the_token_limit(tokenizer: PreTrainedTokenizerFast) -> None:
    rng = random.Random(9)
    texts = [captions.caption(scene_of(seed), rng, typos=True) for seed in range(2000)]
    longest = max(len(ids) for ids in tokenizer(texts).input_ids)
    print(f"longest caption: {longest} tokens")
    assert longest <= captions.MAX_TOKENS
