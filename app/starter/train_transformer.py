"""Second stage: text encoder and transformer together, rectified flow, on latents of freshly rendered clips."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from diffusers import AutoencoderKLWan, WanTransformer3DModel
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast, UMT5EncoderModel

from app.starter import captions
from app.starter.codec import ClipCodec
from app.starter.flow import FlowStep, Lead, look_up_by_index
from app.starter.layout import LayoutHead, Watched
from app.starter.mix import EVEN, KINDS, Emphasis, Kind
from app.starter.model import HEAD_DIM, HEADS, LAYERS, TEXT_WIDTH, build_text_encoder, build_transformer
from app.starter.naming import NamingHead
from app.starter.pool import Captioner, LatentPool
from app.starter.replay import Memory, Replayed
from app.starter.saving import save_pipeline, vae_for
from app.starter.training import Average, Clock, Flat, Muon, Ranks, learning_rate_factor


@dataclass(frozen=True)
class Recipe:
    """Numbers of one run; rates for Muon (matrices in blocks), AdamW (the rest) and the text encoder.

    seconds: of the whole stage, compiling included. graphs: replay steps as CUDA graphs where that works. part, parts:
    of a run in several calls, each of ``seconds``; see `Kept`. words_alone: of a text encoder to go on from take only
    what each piece means.
    """

    seconds: float
    batch: int = 128  # clips of 256x160x25 per rank and step; other canvases get as many tokens
    group: int = 64  # clips rendered together
    pool: int = 100_000  # latent clips of 256x160x25 kept per rank, 266 kB each
    prefill: int = 8192
    refresh_every: int = 12  # steps between two fresh groups, 70 ms each on an H200; at 8 nothing overfits
    captioners: int = 4  # processes a rank
    muon_rate: float = 2e-3
    adam_rate: float = 1.5e-3
    text_rate: float = 5e-4  # with 1e-3 the encoder stayed a bag of words for longer
    decay: float = 0.999
    lead: float = 0.3  # of layout and naming at the start; the layout's on a small model: best of 0, 0.1, 0.3 and 1
    lead_until: float = 0.7  # share of the time until it is nothing
    flat_until: float = 0.4  # share of the time at the full rate
    save_every: float = 300.0  # seconds between two checkpoints
    graphs: bool = True
    words_alone: bool = False
    seed: int = 0
    part: int = 1
    parts: int = 1


UNSEEN_EVERY = 200
"""Steps between two batches of clips that no step has seen: their loss against the others' tells of overfitting."""

ASIDE = 0.12
"""Clips that a pool of another kind than the first holds, against the first's."""

LED = LAYERS // 2
"""Number of the block that must know what lies where: the blocks after it draw."""

KEPT = "training.pt"
"""File in a run's output from which its next part goes on."""


class Model:
    """The parts in training, their tokenizer, and the memory that their parameters share."""

    def __init__(self, ranks: Ranks, tokenizer: PreTrainedTokenizerFast, start: Path | None, words_alone: bool) -> None:
        self.tokenizer = tokenizer
        self.transformer = build_transformer()
        self.text_encoder = build_text_encoder(len(tokenizer))
        if start is not None:
            self.transformer.load_state_dict(WanTransformer3DModel.from_pretrained(start / "transformer").state_dict())
            take_text_encoder(self.text_encoder, tokenizer, start, words_alone)
        self.transformer.to(ranks.device)
        self.text_encoder.to(ranks.device)
        self.layout = LayoutHead(HEADS * HEAD_DIM).to(ranks.device)
        self.naming = NamingHead(TEXT_WIDTH).to(ranks.device)
        look_up_by_index(self.text_encoder)
        self.matrices = block_matrices(self.transformer)
        taken = {id(p) for p in self.matrices.values()}
        heads = (*self.layout.parameters(), *self.naming.parameters())
        rest = [p for p in (*self.transformer.parameters(), *heads) if id(p) not in taken]
        self.flat = Flat([list(self.matrices.values()), rest, list(self.text_encoder.parameters())])
        ranks.share([self.flat.data])

    def lead(self, amount: float) -> Lead:
        """What leads the text encoder, and block `LED` of the transformer, which is compiled by now if it ever is."""
        watched = Watched(self.transformer.blocks[LED])
        return Lead(self.layout, watched, self.naming, torch.tensor(amount, device=self.flat.data.device))


def block_matrices(transformer: nn.Module) -> dict[str, nn.Parameter]:
    """The weights of all linear layers in the blocks, by name."""
    return {
        name: p
        for name, p in transformer.named_parameters()
        if p.ndim == 2 and name.startswith("blocks") and "weight" in name
    }


def take_text_encoder(
    text_encoder: UMT5EncoderModel, tokenizer: PreTrainedTokenizerFast, start: Path, words_alone: bool = False
) -> None:
    """Copy a trained text encoder whose vocabulary may differ: pieces are matched by what they spell, not by number.

    words_alone: only what each piece means; the layers stay as they are, for an encoder that went wrong.
    """
    old_tokenizer = PreTrainedTokenizerFast.from_pretrained(start / "tokenizer")
    state = UMT5EncoderModel.from_pretrained(start / "text_encoder").float().state_dict()
    old, vocabulary = state.pop("shared.weight"), old_tokenizer.get_vocab()
    state.pop("encoder.embed_tokens.weight", None)
    if not words_alone:
        text_encoder.load_state_dict(state, strict=False)
    with torch.no_grad():
        rows = text_encoder.shared.weight
        rows.normal_(std=float(old.std()))
        for piece, index in tokenizer.get_vocab().items():
            if piece in vocabulary:
                rows[index] = old[vocabulary[piece]]


def train_transformer(
    ranks: Ranks,
    recipe: Recipe,
    vae_folder: Path,
    out: Path,
    forbidden: frozenset[str],
    start: Path | None = None,
    kinds: tuple[Kind, ...] = KINDS,
    emphasis: Emphasis = EVEN,
) -> None:
    """Train for ``recipe.seconds`` and write the whole pipeline to ``out`` in fp16, now and then on the way, too.

    vae_folder: the VAE whose encoder makes the latents; pipelines are written with ``out/vae`` if that exists (the same
    encoder with a better decoder). forbidden: prompts that no training caption may equal (the frozen ones). start: a
    pipeline to go on from; None: from nothing.
    """
    began = time.monotonic()
    torch.manual_seed(recipe.seed)
    vae = AutoencoderKLWan.from_pretrained(vae_folder, torch_dtype=torch.float32).to(ranks.device).requires_grad_(False)
    tokenizer = captions.build_tokenizer(out / "tokenizer") if ranks.first else None
    ranks.largest(0.0)  # the others wait for the tokenizer's folder
    tokenizer = tokenizer or PreTrainedTokenizerFast.from_pretrained(out / "tokenizer")
    model = Model(ranks, tokenizer, start, recipe.words_alone)
    seed = f"{recipe.seed} {ranks.rank}" + (f" {recipe.part}" if recipe.part > 1 else "")
    captioner = Captioner(out / "tokenizer", forbidden, recipe.group, seed, recipe.captioners, emphasis)
    try:
        training = _Training(ranks, recipe, model, ClipCodec(vae), captioner, kinds, vae_folder, out)
        training.prepare()
        training.optimise(recipe.seconds - (time.monotonic() - began))
    finally:
        captioner.close()


class _Training:
    """One run: pools and steps for every kind of batch, and the loop over them."""

    def __init__(
        self,
        ranks: Ranks,
        recipe: Recipe,
        model: Model,
        codec: ClipCodec,
        captioner: Captioner,
        kinds: tuple[Kind, ...],
        vae_folder: Path,
        out: Path,
    ) -> None:
        self.ranks, self.recipe, self.model, self.captioner = ranks, recipe, model, captioner
        self.kinds, self.vae_folder, self.out = kinds, vae_folder, out
        self.dice = ranks.dice(recipe.seed + 100 * recipe.part)
        self.codec = codec
        self.shares = [1.0, *[ASIDE] * (len(kinds) - 1)]
        self.pools = [
            LatentPool(kind, int(recipe.pool * share), recipe.group, codec, ranks, self.dice)
            for kind, share in zip(kinds, self.shares, strict=True)
        ]
        if ranks.cuda:
            prepare_compiler()
            model.transformer.compile_repeated_blocks(dynamic=False)
        self.lead = lead = model.lead(recipe.lead)
        self.steps = [
            FlowStep(ranks, kind, kind.batch(recipe.batch), model.transformer, model.text_encoder, model.flat, lead)
            for kind in kinds
        ]
        self.replays = [Replayed(ranks, str(step.kind), step.run, [step.loss, model.flat.grad]) for step in self.steps]

    def prepare(self) -> None:
        """Compile (each rank a part of it first, so that the others find it done), fill the pools, capture graphs."""
        ranks, began = self.ranks, time.monotonic()
        base = self.pools[0]
        if ranks.cuda:
            base.encode = torch.compile(self.codec.encode, dynamic=False)
        tasks = [step.run for step in self.steps] + [lambda: base.add(self.captioner.next())]
        for task in tasks[ranks.rank :: ranks.size]:
            task()
        ranks.wait()
        ranks.largest(0.0)
        ranks.say(f"own share compiled after {time.monotonic() - began:.0f}s")
        for task in tasks:
            task()
        ranks.wait()
        ranks.say(f"compiled after {time.monotonic() - began:.0f}s")
        filling = time.monotonic()
        for pool, share in zip(self.pools, self.shares, strict=True):
            while pool.filled < self.recipe.prefill * share:
                pool.add(self.captioner.next())
        ranks.wait()
        count, deviation = sum(pool.filled for pool in self.pools), float(base.latents[:512].float().std())
        ranks.say(
            f"{count} clips a rank at {count / (time.monotonic() - filling):.0f} clips/s; "
            f"latent deviation {deviation:.3f}"
        )
        memory: Memory | None = None
        for pool, step, replay in zip(self.pools, self.steps, self.replays, strict=True):
            step.load(pool, self.dice)
            if self.recipe.graphs:
                memory = replay.capture(memory)
        for replay in self.replays:
            replay.check()
        ranks.largest(0.0)
        ranks.say(f"ready after {time.monotonic() - began:.0f}s")

    def optimise(self, seconds: float) -> None:
        """The loop; at its end the averaged weights are in place and saved."""
        ranks, recipe, flat = self.ranks, self.recipe, self.model.flat
        muon = Muon(list(self.model.matrices.values()))
        rates = [
            {"params": [flat.groups[1]], "rate": recipe.adam_rate},
            {"params": [flat.groups[2]], "rate": recipe.text_rate},
        ]
        adam = torch.optim.AdamW(rates, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.01, fused=ranks.cuda)
        average = Average([flat.data], recipe.decay)
        kept = Kept(self.out / KEPT, ranks, flat, muon, adam, average)
        first = kept.take() if recipe.part > 1 else 0
        order = random.Random(recipe.seed + recipe.part)  # the same on every rank
        clock, step, losses, saved = Clock(ranks, seconds), 0, _Losses(), 0.0
        while (passed := clock.tick(step)) < 1:
            unseen = step % UNSEEN_EVERY == 0
            number = 0 if unseen else order.choices(range(len(self.kinds)), [kind.share for kind in self.kinds])[0]
            self._load(number, step, unseen)
            self.replays[number]()
            ranks.average(flat.grad)
            flat.clip(1.0)
            whole = (recipe.part - 1 + passed) / recipe.parts
            self.lead.amount.fill_(recipe.lead * max(0.0, 1 - whole / recipe.lead_until))
            factor = learning_rate_factor(first + step, whole, warmup=300, flat_until=recipe.flat_until)
            for group in adam.param_groups:
                group["lr"] = group["rate"] * factor
            adam.step()
            muon.step(recipe.muon_rate * factor)
            average.update()
            step += 1
            losses.add(self.steps[number], number, unseen)
            if step % 500 == 0:
                ranks.share([flat.data])
            if step % 200 == 0 or step in (5, 50):
                self._report(clock, step, losses)
                losses = _Losses()
            if passed * clock.seconds - saved > recipe.save_every:
                saved = passed * clock.seconds
                with average.applied():
                    self.save()
                if recipe.part < recipe.parts:
                    kept.put(first + step)
        if recipe.part < recipe.parts:
            kept.put(first + step)
        average.apply()
        self.save()
        rendered = sum(pool.rendered for pool in self.pools)
        ranks.say(
            f"transformer done: {step} steps of {ranks.size} ranks, {rendered * ranks.size} clips rendered, "
            f"{clock.elapsed():.0f}s"
        )

    def _load(self, number: int, step: int, unseen: bool) -> None:
        """Draw the step's batch, from clips rendered just now if it is to be unseen; render a group now and then."""
        pool, batch = self.pools[number], self.steps[number]
        groups = -(-batch.size // self.recipe.group) if unseen else step % self.recipe.refresh_every == 0
        for _ in range(groups):
            pool.add(self.captioner.next())
        batch.load(pool, self.dice, groups * self.recipe.group if unseen else None)

    def _report(self, clock: Clock, step: int, losses: _Losses) -> None:
        filled = sum(pool.filled for pool in self.pools)
        skipped = int(self.model.flat.skipped)
        if skipped:
            self.ranks.say(f"WARNING: {skipped} steps had gradients that were not finite and were left out")
        self.ranks.say(
            f"transformer step {step} {clock.elapsed():.0f}s {losses} "
            f"steps/s {step / clock.elapsed():.2f} pool {filled}"
        )

    def save(self) -> None:
        """The pipeline as it is now, from the first rank; the others wait at the next message."""
        if self.ranks.first:
            vae = vae_for(self.out, self.vae_folder)
            save_pipeline(self.model.tokenizer, self.model.text_encoder, self.model.transformer, vae, self.out)
            self.ranks.say("saved")


class _Losses:
    """Losses since the last report: of all steps (layout's and naming's, too), of the first kind of batch, and of its
    batches of unseen clips."""

    def __init__(self) -> None:
        self.all: list[Tensor] = []
        self.untold: list[Tensor] = []
        self.unnamed: list[Tensor] = []
        self.seen: list[Tensor] = []
        self.unseen: list[Tensor] = []

    def add(self, step: FlowStep, number: int, unseen: bool) -> None:
        self.all.append(step.loss.clone())
        self.untold.append(step.untold.clone())
        self.unnamed.append(step.unnamed.clone())
        if number == 0:
            (self.unseen if unseen else self.seen).append(self.all[-1])

    def __str__(self) -> str:
        whole, untold, unnamed = (float(torch.stack(losses).mean()) for losses in (self.all, self.untold, self.unnamed))
        told = f"loss {whole:.4f}, layout {untold:.3f}, naming {unnamed:.3f}"
        if self.seen and self.unseen:
            seen, unseen = (float(torch.stack(losses).mean()) for losses in (self.seen, self.unseen))
            told += f" (text alone {seen:.4f}, clips never seen {unseen:.4f})"
        return told


class Kept:
    """What a run hands over to its next part, on the same machine: weights, averages, both optimisers, steps made.

    Without it every part would warm up again and forget what the averages and the optimisers knew.
    """

    def __init__(
        self, file: Path, ranks: Ranks, flat: Flat, muon: Muon, adam: torch.optim.Optimizer, average: Average
    ) -> None:
        self.file, self.ranks, self.muon, self.adam, self.average = file, ranks, muon, adam, average
        self.tensors = [flat.data, *average.values, *muon.buffers.values()]

    def put(self, steps: int) -> None:
        """Write it whole or not at all, from the first rank; ranks differ by rounding only."""
        if self.ranks.first:
            new = self.file.with_name(self.file.name + ".new")
            torch.save(
                {
                    "steps": steps,
                    "averaged": self.average.steps,
                    "tensors": self.tensors,
                    "adam": self.adam.state_dict(),
                },
                new,
            )
            new.replace(self.file)

    def take(self) -> int:
        """Go on from it; returns the steps made before. Raises FileNotFoundError where no part came before."""
        found = torch.load(self.file, map_location=self.ranks.device, weights_only=True)
        torch._foreach_copy_(self.tensors, found["tensors"])
        self.adam.load_state_dict(found["adam"])
        self.average.steps = found["averaged"]
        return int(found["steps"])


def prepare_compiler() -> None:
    """Let every kind of batch have its own kernels (torch gives up after eight shapes); plain calls where it fails.

    torch logs a warning with the whole reason when it falls back.
    """
    torch._dynamo.config.recompile_limit = 64
    torch._dynamo.config.suppress_errors = True
