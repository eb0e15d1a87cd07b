"""Loss and prediction of the flow, with and without a given first frame, against the stock pipelines' own way."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest
import torch
from diffusers import WanTransformer3DModel
from torch import Tensor, nn

from app.starter import flow
from app.starter.model import FLOW_SHIFT, TEXT_TOKENS, build_text_encoder


def small_transformer() -> WanTransformer3DModel:
    torch.manual_seed(0)
    return WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=4,
        out_channels=4,
        text_dim=8,
        freq_dim=16,
        ffn_dim=32,
        num_layers=2,
        cross_attn_norm=True,
        rope_max_seq_len=32,
    ).eval()


class Oracle(nn.Module):
    def __init__(self, answer: Tensor) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, **_: object) -> tuple[Tensor]:
        return (self.answer,)


def loss_of(answer: Tensor, latents: Tensor, image: bool) -> float:
    torch.manual_seed(1)
    sigmas = flow.sample_sigmas(len(latents), latents.device)
    text, noise, weights = torch.zeros(4, 1, 1), torch.randn_like(latents), torch.ones(4, *latents.shape[2:])
    return float(flow.flow_loss(Oracle(answer), text, latents, noise, sigmas, weights, torch.float32, image))


@pytest.mark.parametrize("image", [False, True])
def test_a_perfect_prediction_has_no_loss_and_a_blank_one_has(image: bool) -> None:
    latents = torch.randn(4, 2, 3, 4, 4)
    assert loss_of(latents, latents, image) == 0.0
    assert loss_of(torch.zeros_like(latents), latents, image) > 0.3


def test_the_given_frame_does_not_count() -> None:
    latents = torch.randn(4, 2, 3, 4, 4)
    wrong_first = latents.clone()
    wrong_first[:, :, 0] += 5
    assert loss_of(wrong_first, latents, image=True) == 0.0
    assert loss_of(wrong_first, latents, image=False) > 1.0


def test_sigmas_follow_the_shift_and_a_fifth_is_uniform() -> None:
    """Shares below 0.3, 0.75 and 0.95, against the normal distribution's; 20,000 draws are good to half a percent."""
    torch.manual_seed(0)
    sigmas = flow.sample_sigmas(20_000, torch.device("cpu"))
    assert sigmas.min() >= 0
    assert sigmas.max() <= 1
    for bound in (0.3, 0.75, 0.95):
        u = bound / (FLOW_SHIFT - (FLOW_SHIFT - 1) * bound)
        expected = 0.2 * bound + 0.8 * NormalDist(0, 1.1).cdf(math.log(u / (1 - u)))
        found = float((sigmas < bound).float().mean())
        print(f"below {bound}: {found:.3f}, expected {expected:.3f}")
        assert abs(found - expected) < 0.015


@torch.no_grad()
def test_token_times_are_those_of_the_image_pipeline() -> None:
    """As in WanImageToVideoPipeline with expand_timesteps: the mask's every second row and column times the time."""
    transformer, noisy, text = small_transformer(), torch.randn(2, 4, 3, 4, 6), torch.randn(2, 5, 8)
    sigmas = torch.tensor([0.7, 0.7])
    mask = torch.ones(1, 1, 3, 4, 6)
    mask[:, :, 0] = 0
    times = (mask[0][0][:, ::2, ::2] * 700.0).flatten().unsqueeze(0).expand(2, -1)
    theirs = transformer(hidden_states=noisy, timestep=times, encoder_hidden_states=text).sample
    given = torch.tensor([True, True])
    ours = flow.predict_clean(transformer, text, noisy, sigmas, torch.float32, given)
    plain = flow.predict_clean(transformer, text, noisy, sigmas, torch.float32)
    one = flow.predict_clean(transformer, text, noisy, sigmas, torch.float32, torch.tensor([True, False]))
    print(
        f"difference {float((ours - theirs).abs().max()):.1e}; to plain times {float((plain - theirs).abs().max()):.1e}"
    )
    assert torch.allclose(ours, theirs, atol=1e-5)
    assert not torch.allclose(plain, theirs, atol=1e-3)
    torch.testing.assert_close(one, torch.stack([ours[0], plain[1]]), atol=1e-5, rtol=1e-4)


def test_text_is_encoded_as_the_pipeline_does_it_and_gradients_are_torchs_own() -> None:
    torch.manual_seed(0)
    text_encoder = build_text_encoder(50)
    ids = torch.zeros(3, TEXT_TOKENS, dtype=torch.long)
    ids[0, :5], ids[1, :2], ids[2, :] = torch.tensor([7, 8, 9, 9, 1]), torch.tensor([4, 1]), 11
    mask = ids != 0
    theirs = text_encoder(ids, mask.long()).last_hidden_state * mask[..., None]
    theirs.square().sum().backward()
    expected = {name: p.grad.clone() for name, p in text_encoder.named_parameters() if p.grad is not None}
    text_encoder.zero_grad()
    flow.look_up_by_index(text_encoder)
    ours = flow.encode_text(text_encoder, ids)
    ours.square().sum().backward()
    print(f"text: largest difference {float((ours - theirs).abs().max()):.1e}")
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
    for name, parameter in text_encoder.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, expected[name], atol=1e-3, rtol=1e-3)
