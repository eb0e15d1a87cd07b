"""Rectified flow on a transformer that predicts the clean latents, with and without a given first frame."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from app.starter.layout import LayoutHead, Watched, empty_layout
from app.starter.mix import Kind
from app.starter.model import FLOW_SHIFT, LATENT_CHANNELS, PADDING, TEXT_TOKENS
from app.starter.naming import NOBODY, NamingHead
from app.starter.pool import LatentPool
from app.starter.training import Flat, Ranks

SMALLEST_SIGMA = 0.1
"""Smallest divisor of the clean error: below it rounding would rule the gradient."""


def sample_sigmas(size: int, device: torch.device, dice: torch.Generator | None = None) -> Tensor:
    """Noise levels 0...1: logit-normal, shifted as sampling will be, and a fifth uniform.

    The last guess of a clip is made at little noise and is what is seen: without the fifth one clip in twenty is
    trained there, and the model smooths away wheels and corners that are plainly there (noise 0.15, looked at).
    """
    normal = torch.randn(size, device=device, generator=dice)
    coin, level = torch.rand(2, size, device=device, generator=dice)
    u = torch.sigmoid(normal * 1.1)
    return torch.where(coin < 0.2, level, FLOW_SHIFT * u / (1 + (FLOW_SHIFT - 1) * u))


def look_up_by_index(text_encoder: nn.Module) -> None:
    """Let embeddings add up their gradients by index: torch's own way sorts, which a CUDA graph may not hold."""
    for module in text_encoder.modules():
        if isinstance(module, nn.Embedding):
            module.forward = functools.partial(_look_up, module)  # type: ignore[method-assign]


def _look_up(embedding: nn.Embedding, ids: Tensor) -> Tensor:
    return embedding.weight.index_select(0, ids.flatten()).view(*ids.shape, -1)


def encode_text(text_encoder: nn.Module, ids: Tensor) -> Tensor:
    """As WanPipeline does it: padding is masked in the encoder and zero afterwards.

    The mask is handed over ready made: given a plain one, transformers asks the device whether anything is masked at
    all, and the processor waits for the whole queue in every step.
    """
    mask = ids != PADDING
    added = torch.zeros(mask.shape, device=ids.device).masked_fill(~mask, -3e4)  # finite in bf16, too
    return text_encoder(ids, added[:, None, None, :]).last_hidden_state * mask[..., None]


def predict_clean(
    transformer: nn.Module,
    text: Tensor,
    noisy: Tensor,
    sigmas: Tensor,
    dtype: torch.dtype,
    given: Tensor | None = None,
) -> Tensor:
    """The transformer's guess of the clean latents, in fp32.

    noisy: (n, channels, t, h, w); sigmas: (n,). given: bool (n,), or none: where the first latent frame is clean and
    its tokens have time 0, as WanImageToVideoPipeline asks with ``expand_timesteps``.
    """
    times = sigmas * 1000
    if given is not None:
        frames, rows, columns = noisy.shape[2:]
        clean = given[:, None] & (torch.arange(frames, device=noisy.device) == 0)
        times = (times[:, None] * ~clean).repeat_interleave((rows // 2) * (columns // 2), 1)
    answer = transformer(
        hidden_states=noisy.to(dtype), timestep=times, encoder_hidden_states=text.to(dtype), return_dict=False
    )[0]
    return answer.float()


def wide(one_each: Tensor) -> Tensor:
    """(n,) as (n, 1, 1, 1, 1), to go with latents."""
    return one_each.view(-1, 1, 1, 1, 1)


def velocity_error(clean: Tensor, target: Tensor, sigmas: Tensor, weights: Tensor | None = None) -> Tensor:
    """Mean squared error in velocity of a guess of the clean latents.

    With ``x = (1 - s) * clean + s * noise`` it is the clean error over ``s``; see `SMALLEST_SIGMA`.
    weights: (n, t, h, w), or none.
    """
    error = ((clean - target) / wide(sigmas).clamp(min=SMALLEST_SIGMA)).square()
    return (error if weights is None else error * weights[:, None]).mean()


def flow_loss(
    transformer: nn.Module,
    text: Tensor,
    latents: Tensor,
    noise: Tensor,
    sigmas: Tensor,
    weights: Tensor,
    dtype: torch.dtype,
    image: bool = False,
) -> Tensor:
    """The training loss of one batch: noise added, clean latents guessed, errors weighed by place.

    image: the first latent frame gets no noise and its error does not count.
    """
    s = wide(sigmas)
    noisy = (1 - s) * latents + s * noise
    given = torch.ones_like(sigmas, dtype=torch.bool) if image else None
    if image:
        noisy = torch.cat([latents[:, :, :1], noisy[:, :, 1:]], 2)
        weights = torch.cat([torch.zeros_like(weights[:, :1]), weights[:, 1:]], 1)
    clean = predict_clean(transformer, text, noisy, sigmas, dtype, given)
    return velocity_error(clean, latents, sigmas, weights)


@dataclass(frozen=True)
class Lead:
    """What leads the transformer's middle and the text encoder besides the flow, see layout.py and naming.py.

    amount: weight of both, on the device.
    """

    layout: LayoutHead
    watched: Watched
    naming: NamingHead
    amount: Tensor


class FlowStep:
    """Loss and gradients of batches of one kind, in tensors that never move (so that a CUDA graph can hold them)."""

    def __init__(
        self,
        ranks: Ranks,
        kind: Kind,
        size: int,
        transformer: nn.Module,
        text_encoder: nn.Module,
        flat: Flat,
        lead: Lead,
    ) -> None:
        self.ranks, self.kind, self.size, self.flat, self.lead = ranks, kind, size, flat, lead
        self.transformer, self.text_encoder = transformer, text_encoder
        device, cells = ranks.device, kind.canvas.cells
        self.latents = torch.zeros(size, LATENT_CHANNELS, *cells, dtype=torch.bfloat16, device=device)
        self.noise = torch.zeros(self.latents.shape, device=device)
        self.weights = torch.ones(size, *cells, dtype=torch.bfloat16, device=device)
        self.layout = empty_layout(size, cells, device)
        self.ids = torch.ones(size, TEXT_TOKENS, dtype=torch.long, device=device)
        self.objects = torch.full((size, 2, 3), NOBODY, dtype=torch.int8, device=device)
        self.sigmas = torch.full((size,), 0.5, device=device)
        self.loss, self.untold, self.unnamed = (torch.zeros((), device=device) for _ in range(3))

    def load(self, pool: LatentPool, dice: torch.Generator, newest: int | None = None) -> None:
        """Draw a new batch; newest: from so many clips added last."""
        batch = pool.batch(self.size, newest)
        places = (self.latents, self.weights, self.ids, self.objects, *self.layout)
        drawn = (batch.latents, batch.weights, batch.ids, batch.objects, *batch.layout)
        for place, new in zip(places, drawn, strict=True):
            place.copy_(new)
        self.noise.normal_(generator=dice)
        self.sigmas.copy_(sample_sigmas(self.size, self.ranks.device, dice))

    def run(self) -> None:
        """Forward and backward: gradients to ``flat``, the flow's loss to ``loss``, the layout's to ``untold``, the
        naming's to ``unnamed``."""
        self.flat.grad.zero_()
        dtype = torch.bfloat16 if self.ranks.cuda else torch.float32
        with self.ranks.autocast():
            text = encode_text(self.text_encoder, self.ids)
            loss = flow_loss(
                self.transformer,
                text,
                self.latents.float(),
                self.noise,
                self.sigmas,
                self.weights.float(),
                dtype,
                self.kind.image,
            )
            untold = self.lead.layout.loss(self.lead.watched.take(), self.layout, self.weights.float())
            unnamed = self.lead.naming.loss(text, self.ids, self.objects)
        (loss + self.lead.amount * (untold + unnamed)).backward()
        for place, found in ((self.loss, loss), (self.untold, untold), (self.unnamed, unnamed)):
            place.copy_(found.detach())
