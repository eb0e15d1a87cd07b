"""Whose colour a caption names: labels, the head's loss, and that an encoder learns from it what a bag can't hold."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from app.starter import captions, flow
from app.starter.model import END, PADDING, TEXT_WIDTH, build_text_encoder
from app.starter.naming import NOBODY, NamingHead, named
from app.starter.world import COLORS, PLACES, SHAPES, Scene

PAIR = Scene("meadow", "cream", "still", "ball", "red", "still", "medium", "box", "blue", left_first=True)
BALL = replace(PAIR, shape2=None, color2=None, left_first=None)


def test_names_are_those_of_the_scene() -> None:
    scenes = [PAIR, replace(PAIR, left_first=False), replace(PAIR, left_first=None), replace(BALL, place="right")]
    words = [[(COLORS[c], SHAPES[s], PLACES[p]) for c, s, p in rows if c != NOBODY] for rows in named(scenes).tolist()]
    left_first = [("red", "ball", "left"), ("blue", "box", "right")]
    right_first = [("red", "ball", "right"), ("blue", "box", "left")]
    assert words == [left_first, right_first, left_first, [("red", "ball", "right")]]


def test_end_and_padding_are_the_tokenizers(tmp_path: Path) -> None:
    tokenizer = captions.build_tokenizer(tmp_path)
    assert tokenizer("", padding="max_length", max_length=3).input_ids == [END, PADDING, PADDING]


class Answering(NamingHead):
    """Answers what it is told to, for whatever words."""

    def __init__(self, objects: Tensor) -> None:
        super().__init__(4)
        self.objects = objects

    def forward(self, text: Tensor, ids: Tensor) -> tuple[Tensor, ...]:
        colors, shapes, places = (torch.zeros(len(ids), 22, count) for count in self.ANSWERS)
        for row, objects in enumerate(self.objects.tolist()):
            for color, shape, place in objects:
                if color != NOBODY:
                    shapes[row, color, shape] = colors[row, len(COLORS) + shape, color] = 30.0
                    places[row, color, place] = places[row, len(COLORS) + shape, place] = 30.0
        return colors, shapes, places


def test_right_answers_are_not_wrong_and_exchanged_ones_are() -> None:
    objects, ids = named([PAIR, BALL]), torch.full((2, 5), 7)
    assert float(Answering(objects).loss(torch.zeros(2, 5, 4), ids, objects)) < 1e-6
    exchanged = named([replace(PAIR, color="blue", color2="red"), BALL])
    assert float(Answering(exchanged).loss(torch.zeros(2, 5, 4), ids, objects)) > 10


def test_empty_captions_and_absent_objects_do_not_count() -> None:
    torch.manual_seed(0)
    head, objects = NamingHead(8), named([BALL, PAIR])
    nn.init.normal_(head.read.weight)
    text = torch.randn(2, 4, 8, requires_grad=True)
    ids = torch.tensor([[7, 8, END, PADDING], [END, PADDING, PADDING, PADDING]])
    loss = head.loss(text, ids, objects)
    loss.backward()
    assert text.grad is not None
    assert float(text.grad[1].abs().max()) == 0
    assert float(text.grad[0, 3].abs().max()) == 0
    assert float(text.grad[0, :3].abs().min()) > 0
    alone = head.loss(text[:1], ids[:1], objects[:1])
    torch.testing.assert_close(loss, alone)
    nothing = head.loss(text[1:], ids[1:], objects[1:])
    assert float(nothing.detach()) == 0


BAG = 4 * math.log(2)
"""The least loss of a bag of words on `exchanged` pairs: colour, shape and both places are even guesses."""


def exchanged(folder: Path) -> tuple[Tensor, Tensor, int]:
    """Captions of pairs, each beside those of the same words in another order: ids, names, the vocabulary's size."""
    tokenizer = captions.build_tokenizer(folder)
    scenes = [
        replace(PAIR, color=color, color2=color2, shape=shape, shape2=shape2)
        for color, color2 in itertools.permutations(COLORS[:3], 2)
        for shape, shape2 in itertools.permutations(SHAPES[:3], 2)
    ]
    texts = [f"{s.color} {s.shape} {s.color2} {s.shape2}" for s in scenes]
    ids = tokenizer(texts, padding="max_length", max_length=5, return_tensors="pt").input_ids
    return ids, named(scenes), len(tokenizer)


@pytest.mark.parametrize("context", [False, True])
def test_an_encoder_learns_whose_colour_is_whose_and_a_bag_of_words_cannot(context: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    ids, objects, size = exchanged(tmp_path)
    encoder, head = build_text_encoder(size), NamingHead(TEXT_WIDTH)
    parameters = [*head.parameters(), *(encoder.parameters() if context else encoder.shared.parameters())]
    optimiser = torch.optim.Adam(parameters, lr=5e-4)
    for step in range(280 if context else 80):
        text = flow.encode_text(encoder, ids) if context else encoder.shared(ids) * (ids != PADDING)[..., None]
        loss = head.loss(text, ids, objects)
        optimiser.zero_grad()
        loss.backward()
        optimiser.param_groups[0]["lr"] = 5e-4 * min(1.0, (step + 1) / 100)
        optimiser.step()
    left = float(loss.detach())
    print(f"{'encoder' if context else 'bag of words'}: loss {left:.3f}, the least of a bag is {BAG:.3f}")
    assert left < 0.1 * BAG if context else left > 0.999 * BAG
