"""Second stage: text encoder and transformer together, rectified flow, on latents of freshly rendered clips."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLWan
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from app.starter import captions, world
from app.starter.codec import ClipCodec
from app.starter.model import FLOW_SHIFT, TEXT_TOKENS, assemble, build_text_encoder, build_transformer
from app.starter.training import Average, Clock, Muon, Ranks, learning_rate_factor

CAPTIONS_PER_CLIP = 4
NO_PROMPT = 0.1  # share of clips trained without their caption, for guidance


@dataclass(frozen=True)
class Recipe:
    """Numbers of one run; rates for Muon (matrices in blocks), AdamW (the rest) and the text encoder."""

    seconds: float
    batch: int = 128  # clips per rank and step
    group: int = 64  # clips rendered together
    pool: int = 100_000  # latent clips kept per rank, 266 kB each
    prefill: int = 8192
    refresh_every: int = 8  # steps between two fresh groups
    muon_rate: float = 2e-3
    adam_rate: float = 1.5e-3
    text_rate: float = 1e-3
    decay: float = 0.999
    seed: int = 0


class LatentPool:
    """Standardised latents in bf16 and their captions as token ids, on the device, the oldest replaced."""

    def __init__(
        self,
        recipe: Recipe,
        codec: ClipCodec,
        tokenizer: PreTrainedTokenizerFast,
        ranks: Ranks,
        forbidden: frozenset[str],
    ):
        self.recipe, self.codec, self.tokenizer, self.ranks, self.forbidden = recipe, codec, tokenizer, ranks, forbidden
        self.rng = random.Random(1000 * recipe.seed + ranks.rank)
        self.encode = torch.compile(codec.encode, dynamic=False) if ranks.cuda else codec.encode
        device, size = ranks.device, recipe.pool // recipe.group * recipe.group
        channels = codec.vae.config.z_dim
        shape = (size, channels, (world.FRAMES + 1) // 2, world.HEIGHT // 16, world.WIDTH // 16)
        self.latents = torch.zeros(shape, dtype=torch.bfloat16, device=device)
        self.tokens = torch.zeros(size, CAPTIONS_PER_CLIP, TEXT_TOKENS, dtype=torch.int16, device=device)
        self.next = self.filled = self.rendered = 0

    @torch.no_grad()
    def add(self) -> None:
        """Render one group, encode it, caption it."""
        scenes = world.random_group(self.rng, self.recipe.group)
        clips = world.render(scenes, self.ranks.device)
        with self.ranks.autocast():
            means = torch.cat([self.encode(part.float() / 127.5 - 1).float() for part in clips.split(32)])
        texts = [
            captions.caption(scene, self.rng, typos=True, forbidden=self.forbidden)
            for scene in scenes
            for _ in range(CAPTIONS_PER_CLIP)
        ]
        ids = self.tokenizer(
            texts, padding="max_length", max_length=TEXT_TOKENS, truncation=True, return_tensors="pt"
        ).input_ids
        place = slice(self.next, self.next + len(scenes))
        self.latents[place] = self.codec.standardise(means).to(torch.bfloat16)
        self.tokens[place] = ids.view(len(scenes), CAPTIONS_PER_CLIP, -1).to(torch.int16).to(self.ranks.device)
        self.next = (self.next + len(scenes)) % len(self.latents)
        self.filled = min(len(self.latents), self.filled + len(scenes))
        self.rendered += len(scenes)

    def batch(self, size: int) -> tuple[Tensor, Tensor]:
        """Latents ``(size, channels, t, h, w)`` fp32 and token ids ``(size, 64)``, a tenth of them the empty prompt."""
        device = self.latents.device
        clip = torch.randint(0, self.filled, (size,), device=device)
        text = torch.randint(0, CAPTIONS_PER_CLIP, (size,), device=device)
        ids = self.tokens[clip, text].long()
        empty = F.pad(torch.ones(size, 1, dtype=torch.long, device=device), (0, TEXT_TOKENS - 1))
        dropped = torch.rand(size, 1, device=device) < NO_PROMPT
        return self.latents[clip].float(), torch.where(dropped, empty, ids)


def sample_sigmas(size: int, device: torch.device) -> Tensor:
    """Noise levels 0...1: logit-normal with a tenth uniform, shifted as sampling will be."""
    u = torch.sigmoid(torch.randn(size, device=device) * 1.1)
    u = torch.where(torch.rand(size, device=device) < 0.1, torch.rand(size, device=device), u)
    return FLOW_SHIFT * u / (1 + (FLOW_SHIFT - 1) * u)


def encode_text(text_encoder: nn.Module, ids: Tensor) -> Tensor:
    """As WanPipeline does it: padding is masked in the encoder and zero afterwards."""
    mask = ids != 0
    return text_encoder(ids, mask.long()).last_hidden_state * mask[..., None]


def flow_loss(transformer: nn.Module, text: Tensor, latents: Tensor, dtype: torch.dtype) -> Tensor:
    """Mean squared error in velocity of a transformer that predicts the clean latents.

    With ``x = (1 - s) * clean + s * noise`` the velocity error is the clean error over ``s``; small ``s`` is capped at
    0.1 so that rounding there does not rule the gradient.
    """
    sigmas = sample_sigmas(len(latents), latents.device)
    s = sigmas.view(-1, 1, 1, 1, 1)
    noisy = (1 - s) * latents + s * torch.randn_like(latents)
    clean = transformer(
        hidden_states=noisy.to(dtype), timestep=sigmas * 1000, encoder_hidden_states=text.to(dtype), return_dict=False
    )[0]
    return ((clean.float() - latents) / s.clamp(min=0.1)).square().mean()


def train_transformer(ranks: Ranks, recipe: Recipe, vae_folder: Path, out: Path, forbidden: frozenset[str]) -> None:
    """Train for ``recipe.seconds`` and write the whole pipeline to ``out`` in fp16.

    ``forbidden`` are prompts that no training caption may equal (the frozen ones).
    """
    torch.manual_seed(recipe.seed)
    vae = AutoencoderKLWan.from_pretrained(vae_folder, torch_dtype=torch.float32).to(ranks.device).requires_grad_(False)
    tokenizer = captions.build_tokenizer(out / "tokenizer") if ranks.first else None
    ranks.largest(0.0)  # the others wait for the tokenizer's folder
    tokenizer = tokenizer or PreTrainedTokenizerFast.from_pretrained(out / "tokenizer")
    transformer = build_transformer().to(ranks.device)
    text_encoder = build_text_encoder(len(tokenizer)).to(ranks.device)
    parameters = [*transformer.parameters(), *text_encoder.parameters()]
    ranks.share(p.data for p in parameters)
    torch.manual_seed(1000 * recipe.seed + ranks.rank + 1)
    pool = LatentPool(recipe, ClipCodec(vae), tokenizer, ranks, forbidden)
    filling = Clock(ranks, 1.0)
    while pool.filled < recipe.prefill:
        pool.add()
    ranks.wait()
    ranks.say(
        f"{pool.filled} clips a rank at {pool.filled / filling.elapsed():.0f} clips/s; latent deviation "
        f"{float(pool.latents[:512].float().std()):.3f}"
    )
    if ranks.cuda:
        transformer.compile_repeated_blocks(dynamic=False)
    _optimise(ranks, recipe, pool, transformer, text_encoder, parameters)
    if ranks.first:
        _save(transformer, text_encoder, vae, tokenizer, out)
    ranks.largest(0.0)


def _optimise(
    ranks: Ranks,
    recipe: Recipe,
    pool: LatentPool,
    transformer: nn.Module,
    text_encoder: nn.Module,
    parameters: list[nn.Parameter],
) -> None:
    matrices = [
        p for n, p in transformer.named_parameters() if p.ndim == 2 and n.startswith("blocks") and "weight" in n
    ]
    taken = {id(p) for p in matrices}
    muon = Muon(matrices)
    groups = [
        {"params": [p for p in transformer.parameters() if id(p) not in taken], "rate": recipe.adam_rate},
        {"params": list(text_encoder.parameters()), "rate": recipe.text_rate},
    ]
    adam = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.01, fused=ranks.cuda)
    average = Average(parameters, recipe.decay)
    dtype = torch.bfloat16 if ranks.cuda else torch.float32
    clock, step, losses = Clock(ranks, recipe.seconds), 0, []
    while (passed := clock.tick(step)) < 1:
        factor = learning_rate_factor(step, passed, warmup=300, flat_until=0.5)
        for group in adam.param_groups:
            group["lr"] = group["rate"] * factor
        if step % recipe.refresh_every == 0:
            pool.add()
        latents, ids = pool.batch(recipe.batch)
        with ranks.autocast():
            loss = flow_loss(transformer, encode_text(text_encoder, ids), latents, dtype)
        loss.backward()
        ranks.average_gradients(parameters)
        nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        adam.step()
        muon.step(recipe.muon_rate * factor)
        for parameter in parameters:
            parameter.grad = None
        average.update()
        step += 1
        losses.append(loss.detach())
        if step % 500 == 0:
            ranks.share(p.data for p in parameters)
        if step % 200 == 0 or step in (5, 50):
            _report(ranks, clock, step, recipe.batch, pool, losses)
            losses = []
    average.apply()
    ranks.say(
        f"transformer done: {step} steps, {step * recipe.batch * ranks.size} clips seen, "
        f"{pool.rendered * ranks.size} rendered, {clock.elapsed():.0f}s"
    )


def _report(ranks: Ranks, clock: Clock, step: int, batch: int, pool: LatentPool, losses: list[Tensor]) -> None:
    rate = step * batch * ranks.size / clock.elapsed()
    ranks.say(
        f"transformer step {step} {clock.elapsed():.0f}s loss {float(torch.stack(losses).mean()):.4f} "
        f"clips/s {rate:.0f} pool {pool.filled}"
    )


def _save(
    transformer: nn.Module,
    text_encoder: nn.Module,
    vae: AutoencoderKLWan,
    tokenizer: PreTrainedTokenizerFast,
    out: Path,
) -> None:
    """Plain (uncompiled) copies, fp16, in diffusers layout."""
    plain_transformer, plain_text = build_transformer(), build_text_encoder(len(tokenizer))
    plain_transformer.load_state_dict({k: v.cpu() for k, v in transformer.state_dict().items()})
    plain_text.load_state_dict({k: v.cpu() for k, v in text_encoder.state_dict().items()})
    half = torch.float16  # three more bits than bf16, and no weight here comes near its range
    pipeline = assemble(tokenizer, plain_text.to(half), plain_transformer.to(half), vae.to("cpu", half))
    pipeline.save_pretrained(out, safe_serialization=True)
