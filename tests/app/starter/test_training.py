"""Pieces of the training loop against their definitions."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from app.starter.model import FLOW_SHIFT
from app.starter.train_transformer import flow_loss, sample_sigmas
from app.starter.training import Average, Muon, learning_rate_factor, orthogonalise


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 16, 5), (2, 5, 16)])
def test_orthogonalise_flattens_the_singular_values(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalise(torch.randn(shape)))
    print(f"singular values {values.min():.2f}...{values.max():.2f}")
    assert values.min() > 0.5
    assert values.max() < 1.5


def test_muon_lowers_a_quadratic() -> None:
    torch.manual_seed(0)
    weight, target = nn.Parameter(torch.randn(12, 12)), torch.randn(12, 12)
    muon = Muon([weight], weight_decay=0.0)
    before = float((weight.detach() - target).square().mean())
    for step in range(100):
        weight.grad = 2 * (weight.detach() - target)
        muon.step(0.3 * (1 - step / 100))
    after = float((weight.detach() - target).square().mean())
    print(f"loss {before:.3f} -> {after:.3f}")
    assert after < 0.02 * before


def test_average_follows_the_parameters() -> None:
    parameter = nn.Parameter(torch.zeros(4))
    average = Average([parameter], 0.9)
    with torch.no_grad():
        parameter.fill_(1.0)
    for _ in range(200):
        average.update()
    average.apply()
    torch.testing.assert_close(parameter.detach(), torch.ones(4), rtol=0, atol=1e-6)


def test_learning_rate_rises_holds_and_falls() -> None:
    factors = [learning_rate_factor(step, step / 1000, warmup=100, flat_until=0.5) for step in range(1001)]
    assert factors[0] == pytest.approx(0.01)
    assert factors[100] == factors[499] == 1.0
    assert factors[-1] == pytest.approx(0.01)
    assert all(a >= b for a, b in itertools.pairwise(factors[500:]))


def test_sigmas_follow_the_shift() -> None:
    torch.manual_seed(0)
    sigmas = sample_sigmas(20_000, torch.device("cpu"))
    unshifted = sigmas / (FLOW_SHIFT - (FLOW_SHIFT - 1) * sigmas)
    print(f"median after undoing the shift {unshifted.median():.3f}")
    assert sigmas.min() >= 0
    assert sigmas.max() <= 1
    assert abs(float(unshifted.median()) - 0.5) < 0.02


def test_a_perfect_prediction_has_no_loss_and_a_blank_one_has() -> None:
    latents = torch.randn(4, 2, 3, 4, 4)

    class Oracle(nn.Module):
        def __init__(self, answer: torch.Tensor) -> None:
            super().__init__()
            self.answer = answer

        def forward(self, **_: object) -> tuple[torch.Tensor]:
            return (self.answer,)

    text = torch.zeros(4, 1, 1)
    assert float(flow_loss(Oracle(latents), text, latents, torch.float32)) == 0.0
    assert float(flow_loss(Oracle(torch.zeros_like(latents)), text, latents, torch.float32)) > 0.5
