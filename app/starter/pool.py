"""Training data for the transformer: clips rendered, encoded and captioned while it trains."""

from __future__ import annotations

import random
from collections import deque
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from app.starter import captions, world
from app.starter.codec import ClipCodec
from app.starter.layout import Layout, empty_layout, layout_of, object_cells
from app.starter.mix import EVEN, Emphasis, Kind, loss_weights, training_group
from app.starter.model import END, PADDING, TEXT_TOKENS
from app.starter.naming import NOBODY, named
from app.starter.training import Ranks
from app.starter.world import Scene

CAPTIONS_PER_CLIP = 4
NO_PROMPT = 0.1  # share of clips trained without their caption, for guidance
_ENCODED = 32  # clips encoded together

Group = tuple[list[Scene], NDArray[np.int16]]
"""Scenes that are rendered together, and token ids int16 ``(scenes, CAPTIONS_PER_CLIP, 64)``."""


class _Words:
    """What a captioning process holds."""

    tokenizer: PreTrainedTokenizerFast
    forbidden: frozenset[str]
    emphasis: Emphasis


def _prepare(tokenizer: Path, forbidden: frozenset[str], emphasis: Emphasis) -> None:
    _Words.tokenizer, _Words.forbidden = PreTrainedTokenizerFast.from_pretrained(tokenizer), forbidden
    _Words.emphasis = emphasis
    torch.set_num_threads(1)


def _draw(seed: str, size: int) -> Group:
    rng = random.Random(seed)
    scenes = training_group(rng, size, _Words.emphasis)
    texts = [
        captions.caption(scene, rng, typos=True, forbidden=_Words.forbidden)
        for scene in scenes
        for _ in range(CAPTIONS_PER_CLIP)
    ]
    ids = _Words.tokenizer(
        texts, padding="max_length", max_length=TEXT_TOKENS, truncation=True, return_tensors="np"
    ).input_ids
    return scenes, ids.reshape(size, CAPTIONS_PER_CLIP, TEXT_TOKENS).astype(np.int16)


class Captioner:
    """Draws scenes and captions ahead of need in ``workers`` other processes (0: in this one, when asked).

    Captioning one group takes longer than a training step, and the processor has the GPU to feed.
    """

    def __init__(
        self,
        tokenizer: Path,
        forbidden: frozenset[str],
        size: int,
        seed: str = "0",
        workers: int = 0,
        emphasis: Emphasis = EVEN,
    ) -> None:
        self.size, self.seed, self.drawn = size, seed, 0
        self.pool: ProcessPoolExecutor | None = None
        self.waiting: deque[Future[Group]] = deque()
        if workers:
            self.pool = ProcessPoolExecutor(
                workers,
                mp_context=get_context("spawn"),
                initializer=_prepare,
                initargs=(tokenizer, forbidden, emphasis),
            )
            for _ in range(8 * workers):
                self._order()
        else:
            _prepare(tokenizer, forbidden, emphasis)

    def _next_seed(self) -> str:
        self.drawn += 1
        return f"{self.seed} {self.drawn}"

    def _order(self) -> None:
        assert self.pool is not None
        self.waiting.append(self.pool.submit(_draw, self._next_seed(), self.size))

    def next(self) -> Group:
        """The next group; the same ones in the same order whatever the number of workers."""
        if self.pool is None:
            return _draw(self._next_seed(), self.size)
        self._order()
        return self.waiting.popleft().result()

    def close(self) -> None:
        """End the other processes."""
        if self.pool is not None:
            self.pool.shutdown(wait=False, cancel_futures=True)


class Batch(NamedTuple):
    """Latents ``(size, channels, t, h, w)`` and loss weights ``(size, t, h, w)`` in bf16, token ids ``(size, 64)``,
    what lies where, and of which objects the caption speaks: int8 ``(size, 2, 3)``, see `named`."""

    latents: Tensor
    weights: Tensor
    ids: Tensor
    layout: Layout
    objects: Tensor


class LatentPool:
    """Standardised latents in bf16, loss weights, layouts and captions of clips of one canvas, the oldest replaced.

    Where the first frame is given objects may be anywhere, as in a picture of the user's; see `Dice`.
    """

    def __init__(self, kind: Kind, clips: int, group: int, codec: ClipCodec, ranks: Ranks, dice: torch.Generator):
        self.canvas, self.group, self.codec, self.ranks, self.dice = kind.canvas, group, codec, ranks, dice
        self.loose = kind.image
        self.encode = codec.encode
        size = max(1, clips // group) * group
        cells = kind.canvas.cells
        self.latents = torch.zeros(size, codec.vae.config.z_dim, *cells, dtype=torch.bfloat16, device=ranks.device)
        self.weights = torch.zeros(size, *cells, dtype=torch.bfloat16, device=ranks.device)
        self.layout = empty_layout(size, cells, ranks.device)
        self.objects = torch.full((size, 2, 3), NOBODY, dtype=torch.int8, device=ranks.device)
        self.tokens = torch.zeros(size, CAPTIONS_PER_CLIP, TEXT_TOKENS, dtype=torch.int16, device=ranks.device)
        self.next = self.filled = self.rendered = 0

    @torch.no_grad()
    def add(self, drawn: Group) -> None:
        """Render and encode one group."""
        scenes, tokens = drawn
        clips, poses = world.render_with_poses(scenes, self.ranks.device, self.dice, self.canvas, self.loose)
        with self.ranks.autocast():
            means = torch.cat([self.encode(part.float() / 127.5 - 1).float() for part in clips.split(_ENCODED)])
        place = slice(self.next, self.next + len(scenes))
        self.latents[place] = self.codec.standardise(means).to(torch.bfloat16)
        touched = [object_cells(pose, self.canvas) for pose in poses]
        self.weights[place] = loss_weights(torch.stack(touched).amax(0)).to(torch.bfloat16)
        for kept, new in zip(self.layout, layout_of(scenes, poses, touched, self.canvas), strict=True):
            kept[place] = new
        self.objects[place] = self.ranks.upload(named(scenes))
        self.tokens[place] = self.ranks.upload(torch.from_numpy(tokens))
        self.next = (self.next + len(scenes)) % len(self.latents)
        self.filled = min(len(self.latents), self.filled + len(scenes))
        self.rendered += len(scenes)

    def batch(self, size: int, newest: int | None = None) -> Batch:
        """Clips at random. A tenth of the ids are the empty prompt. newest: from so many clips added last only."""
        device = self.latents.device
        among = self.filled if newest is None else min(newest, self.filled)
        age = torch.randint(1, among + 1, (size,), device=device, generator=self.dice)
        clip = (self.next - age) % self.filled
        text = torch.randint(0, CAPTIONS_PER_CLIP, (size,), device=device, generator=self.dice)
        dropped = torch.rand(size, 1, device=device, generator=self.dice) < NO_PROMPT
        ids = torch.where(dropped, empty_prompt(size, device), self.tokens[clip, text].long())
        layout = Layout(*(kept[clip] for kept in self.layout))
        return Batch(self.latents[clip], self.weights[clip], ids, layout, self.objects[clip])


def empty_prompt(size: int, device: torch.device) -> Tensor:
    """Token ids of the empty prompt, int64 (size, 64): the end, then padding."""
    end = torch.full((size, 1), END, dtype=torch.long, device=device)
    return F.pad(end, (0, TEXT_TOKENS - 1), value=PADDING)
