"""Third stage: a LoRA with which the transformer needs few steps and no guidance.

The student learns what the guided teacher guesses, in one pass instead of two, at the states that it meets itself:
each clip of the batch is on its own way from noise to picture in four to eight steps, guided by the student. A guided
guess is a plain function of the state, so this is regression and can't run away. Some that arrive set out once more
with their own first frame as the given one.
"""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from diffusers import DiffusionPipeline, WanPipeline, WanTransformer3DModel
from torch import Tensor, nn

from app.starter.flow import encode_text, look_up_by_index, predict_clean, velocity_error, wide
from app.starter.mix import EVEN, KINDS, MOST_WEIGHT, Emphasis, Kind
from app.starter.model import FLOW_SHIFT, LATENT_CHANNELS, TEXT_TOKENS
from app.starter.pool import Captioner, empty_prompt
from app.starter.replay import Replayed
from app.starter.saving import PIPELINE, replace_folder
from app.starter.train_transformer import block_matrices, prepare_compiler
from app.starter.training import Average, Clock, Flat, Ranks, learning_rate_factor

STEPS = (4, 6, 8, 8)
"""Numbers of steps that ways are made of; a repeated one is likelier."""

GIVEN = 0.25
"""Share of the clips that arrive after which the same prompt goes on from their first frame."""

LORA = "fast"
"""Folder in a run's output for the LoRA."""


@dataclass(frozen=True)
class FastRecipe:
    """seconds: of the whole stage, compiling included. rank: of the LoRA. guidance: of the teacher."""

    seconds: float
    batch: int = 128
    group: int = 64
    captioners: int = 4
    rank: int = 12  # 1.3 MB: with it the repository stays below 40 MB
    rate: float = 5e-4
    guidance: float = 4.0
    graphs: bool = True
    seed: int = 7


class LowRank:
    """Matrices W + B A of rank ``rank``, written into the parameters that hold W.

    The model runs with the sum, so that it stays the plain model that compiled kernels know; the gradients of A and B
    follow from the sum's.
    """

    def __init__(self, matrices: dict[str, nn.Parameter], rank: int, dice: torch.Generator) -> None:
        self.shapes: dict[tuple[int, int], list[str]] = {}
        for name, matrix in matrices.items():
            rows, columns = matrix.shape
            self.shapes.setdefault((rows, columns), []).append(name)
        self.matrices = matrices
        self.base: dict[tuple[int, int], Tensor] = {}
        self.down: dict[tuple[int, int], nn.Parameter] = {}
        self.up: dict[tuple[int, int], nn.Parameter] = {}
        for (rows, columns), names in self.shapes.items():
            shape, device = (rows, columns), matrices[names[0]].device
            self.base[shape] = torch.stack([matrices[name].detach() for name in names])
            down = torch.randn(len(names), rank, columns, device=device, generator=dice) / columns**0.5
            self.down[shape] = nn.Parameter(down)
            self.up[shape] = nn.Parameter(torch.zeros(len(names), rows, rank, device=device))
        self.flat = Flat([[*self.down.values(), *self.up.values()]])

    @torch.no_grad()
    def write(self) -> None:
        """W + B A into the model."""
        for shape, names in self.shapes.items():
            summed = torch.baddbmm(self.base[shape], self.up[shape], self.down[shape])
            torch._foreach_copy_([self.matrices[name].data for name in names], list(summed.unbind(0)))

    @torch.no_grad()
    def take_gradients(self) -> None:
        """Gradients of A and B from those of the sums."""
        for shape, names in self.shapes.items():
            gradient = torch.stack([p.grad for name in names if (p := self.matrices[name]).grad is not None])
            down, up = self.down[shape], self.up[shape]
            assert down.grad is not None
            assert up.grad is not None
            torch.bmm(up.mT, gradient, out=down.grad)
            torch.bmm(gradient, down.mT, out=up.grad)

    def state_dict(self) -> dict[str, Tensor]:
        """In the names of PEFT, fp16, on the CPU; the scale is 1."""
        state = {}
        for shape, names in self.shapes.items():
            for index, name in enumerate(names):
                layer = name.removesuffix(".weight")
                state[f"{layer}.lora_A.weight"] = self.down[shape][index].detach().half().cpu()
                state[f"{layer}.lora_B.weight"] = self.up[shape][index].detach().half().cpu()
        return state


def schedules() -> Tensor:
    """Noise levels of ways of `STEPS` steps, as UniPC walks them: (len(STEPS), most steps + 1), zero at the end."""
    table = torch.zeros(len(STEPS), max(STEPS) + 1)
    for row, steps in enumerate(STEPS):
        even = torch.linspace(1, 1e-3, steps + 1)[:-1]
        table[row, :steps] = FLOW_SHIFT * even / (1 + (FLOW_SHIFT - 1) * even)
    return table.clamp(max=1 - 1e-6)


class Walkers:
    """Clips on their way from noise to picture, each at its own step; those that arrive start again as noise, all of
    them or all but the first latent frame."""

    def __init__(self, size: int, kind: Kind, device: torch.device, dice: torch.Generator) -> None:
        self.dice, self.table = dice, schedules().to(device)
        self.noisy = torch.randn(size, LATENT_CHANNELS, *kind.canvas.cells, device=device, generator=dice)
        self.ids = empty_prompt(size, device)
        self.given = torch.zeros(size, dtype=torch.bool, device=device)
        self.picture = torch.zeros_like(self.noisy[:, :, :1])
        self.row = torch.randint(0, len(STEPS), (size,), device=device, generator=dice)
        # Below zero: waits as noise, so that the clips of a batch are at different steps.
        self.step = -torch.randint(0, max(STEPS), (size,), device=device, generator=dice)
        self.sigmas = torch.ones(size, device=device)
        self._look()

    def _look(self) -> None:
        self.sigmas.copy_(self.table[self.row, self.step.clamp(min=0)])

    @torch.no_grad()
    def advance(self, clean: Tensor, prompts: Tensor) -> None:
        """One step towards ``clean`` for all; prompts: int64 (size, 64), for those that start again."""
        following = self.table[self.row, (self.step + 1).clamp(min=0)]
        rest = wide(following / self.sigmas)
        arrived, waiting = following == 0, self.step < 0
        coin = torch.rand(len(arrived), device=self.noisy.device, generator=self.dice)
        onward = arrived & ~self.given & (coin < GIVEN)
        again = arrived | waiting
        self.given.copy_(torch.where(again, onward, self.given))
        self.picture.copy_(torch.where(wide(onward), clean[:, :, :1], self.picture))
        fresh = torch.randn(self.noisy.shape, device=self.noisy.device, generator=self.dice)
        moved = clean + rest * (self.noisy - clean)
        self.noisy.copy_(torch.where(wide(again), fresh, moved))
        self.noisy[:, :, :1] = torch.where(wide(self.given), self.picture, self.noisy[:, :, :1])
        self.ids.copy_(torch.where((again & ~onward)[:, None], prompts, self.ids))
        self.step.copy_(torch.where(following == 0, 0, self.step + 1))
        self._look()


def asked_for(difference: Tensor) -> Tensor:
    """Weights (n, t, h, w), mean 1 in each clip, by how much the prompt matters at each place.

    difference: guesses with the prompt less those without, (n, channels, t, h, w). Scenery fills most of a clip, and a
    student that gets it right has a small error even where two objects have each other's colours.
    """
    share = difference.square().mean(1)
    weights = 1 + (share / share.mean((1, 2, 3), keepdim=True).clamp(min=1e-12)).clamp(max=MOST_WEIGHT)
    return weights / weights.mean((1, 2, 3), keepdim=True)


class FastStep:
    """The guided teacher's guess, the student's, and the gradients of their difference."""

    def __init__(
        self,
        ranks: Ranks,
        recipe: FastRecipe,
        student: WanTransformer3DModel,
        text_encoder: nn.Module,
        walkers: Walkers,
    ) -> None:
        self.ranks, self.guidance, self.student, self.text_encoder = ranks, recipe.guidance, student, text_encoder
        self.teacher = copy.deepcopy(student).requires_grad_(False)
        self.flat = Flat([list(student.parameters())])
        self.walkers = walkers
        self.empty = empty_prompt(1, ranks.device)
        self.clean, self.loss = torch.zeros_like(walkers.noisy), torch.zeros((), device=ranks.device)

    def run(self) -> None:
        """Gradients of all the student's parameters, ``loss`` and the student's ``clean`` guess."""
        self.flat.grad.zero_()
        dtype = torch.bfloat16 if self.ranks.cuda else torch.float32
        noisy, sigmas, given = self.walkers.noisy, self.walkers.sigmas, self.walkers.given
        with self.ranks.autocast():
            with torch.no_grad():
                text = encode_text(self.text_encoder, self.walkers.ids)
                nothing = encode_text(self.text_encoder, self.empty).expand_as(text)
                asked = predict_clean(self.teacher, text, noisy, sigmas, dtype, given)
                unasked = predict_clean(self.teacher, nothing, noisy, sigmas, dtype, given)
                guided = unasked + self.guidance * (asked - unasked)
                weights = asked_for(asked - unasked)
                weights[:, 0] *= ~given[:, None, None]
            clean = predict_clean(self.student, text, noisy, sigmas, dtype, given)
            loss = velocity_error(clean, guided, sigmas, weights)
        loss.backward()
        self.clean.copy_(clean.detach())
        self.loss.copy_(loss.detach())


def train_fast(
    ranks: Ranks,
    recipe: FastRecipe,
    out: Path,
    forbidden: frozenset[str],
    kind: Kind = KINDS[0],
    emphasis: Emphasis = EVEN,
) -> None:
    """Train the LoRA for the pipeline in ``out/pipeline`` and write it to ``out/fast``, as diffusers loads it."""
    began = time.monotonic()
    pipeline = DiffusionPipeline.from_pretrained(out / PIPELINE, torch_dtype=torch.float32)
    student = pipeline.transformer.to(ranks.device).train()
    text_encoder = pipeline.text_encoder.to(ranks.device).requires_grad_(False)
    look_up_by_index(text_encoder)
    dice = ranks.dice(recipe.seed)
    seed, tokenizer = f"fast {recipe.seed} {ranks.rank}", out / PIPELINE / "tokenizer"
    captioner = Captioner(tokenizer, forbidden, recipe.group, seed, recipe.captioners, emphasis)
    try:
        walkers = Walkers(recipe.batch, kind, ranks.device, dice)
        step = FastStep(ranks, recipe, student, text_encoder, walkers)
        # The same start of A on every rank.
        low = LowRank(block_matrices(student), recipe.rank, torch.Generator(ranks.device).manual_seed(recipe.seed))
        if ranks.cuda:
            prepare_compiler()
            student.compile_repeated_blocks(dynamic=False)
            step.teacher.compile_repeated_blocks(dynamic=False)
        replay = Replayed(ranks, "few steps", step.run, [step.loss, step.flat.grad])
        replay()
        if recipe.graphs:
            replay.capture()
        ranks.largest(0.0)
        ranks.say(f"few steps: ready after {time.monotonic() - began:.0f}s")
        average = _optimise(ranks, recipe, recipe.seconds - (time.monotonic() - began), replay, step, low, captioner)
    finally:
        captioner.close()
    average.apply()
    if ranks.first:
        new = out / f"{LORA}.new"
        WanPipeline.save_lora_weights(new, transformer_lora_layers=low.state_dict(), safe_serialization=True)
        replace_folder(new, out / LORA)
    ranks.largest(0.0)


def _optimise(
    ranks: Ranks,
    recipe: FastRecipe,
    seconds: float,
    replay: Replayed,
    step: FastStep,
    low: LowRank,
    captioner: Captioner,
) -> Average:
    walkers, flat = step.walkers, low.flat
    prompts = _Prompts(captioner, ranks, walkers.dice)
    adam = torch.optim.AdamW(flat.groups, lr=recipe.rate, betas=(0.9, 0.95), weight_decay=0.0, fused=ranks.cuda)
    average = Average([flat.data], 0.995)
    clock, count, losses = Clock(ranks, seconds), 0, []
    while (passed := clock.tick(count)) < 1:
        low.write()
        replay()
        low.take_gradients()
        ranks.average(flat.grad)
        flat.clip(1.0)
        adam.param_groups[0]["lr"] = recipe.rate * learning_rate_factor(count, passed, warmup=100, flat_until=0.3)
        adam.step()
        average.update()
        losses.append(step.loss.clone())
        walkers.advance(step.clean, prompts.draw(len(walkers.row), count))
        count += 1
        if count % 200 == 0 or count in (5, 50):
            mean = float(torch.stack(losses).mean())
            ranks.say(f"few steps: step {count} {clock.elapsed():.0f}s loss {mean:.4f}")
            losses = []
    ranks.say(f"few steps: done, {count} steps, {clock.elapsed():.0f}s")
    return average


class _Prompts:
    """Token ids of training captions, a new group now and then."""

    EVERY = 4

    def __init__(self, captioner: Captioner, ranks: Ranks, dice: torch.Generator) -> None:
        self.captioner, self.ranks, self.dice = captioner, ranks, dice
        self.ids = torch.ones(0, TEXT_TOKENS, dtype=torch.long, device=ranks.device)

    def draw(self, size: int, count: int) -> Tensor:
        if count % self.EVERY == 0:
            drawn = self.ranks.upload(torch.from_numpy(self.captioner.next()[1])).flatten(0, 1).long()
            self.ids = torch.cat([drawn, self.ids])[:16384]
        return self.ids[torch.randint(0, len(self.ids), (size,), device=self.ids.device, generator=self.dice)]
