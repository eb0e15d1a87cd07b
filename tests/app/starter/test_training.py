"""Pieces of the training loop against their definitions."""

from __future__ import annotations

import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch
from torch import nn

from app.starter.training import Average, Clock, Flat, Muon, Ranks, learning_rate_factor, orthogonalise


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


class OneOfTwo(Ranks):
    """A rank that runs as a thread beside another; whoever waits for a rank that has left fails after a second."""

    def __init__(self, rank: int, meeting: Barrier, values: list[float]) -> None:
        self.size, self.rank, self.cuda = 2, rank, False
        self.meeting, self.values = meeting, values

    def largest(self, value: float) -> float:
        self.values[self.rank] = value
        self.meeting.wait(1.0)
        found = max(self.values)
        self.meeting.wait(1.0)
        return found


def test_ranks_with_unequal_time_left_stop_at_the_same_step() -> None:
    meeting, values = Barrier(2), [0.0, 0.0]

    def steps_made(rank: int) -> int:
        clock, step = Clock(OneOfTwo(rank, meeting, values), (1.1, 1.4)[rank]), 0
        while clock.tick(step) < 1:
            step += 1
            time.sleep(0.002)
        return step

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(steps_made, (0, 1))
    print(f"{first} and {second} steps")
    assert first == second > 0


def test_learning_rate_rises_holds_and_falls() -> None:
    factors = [learning_rate_factor(step, step / 1000, warmup=100, flat_until=0.5) for step in range(1001)]
    assert factors[0] == pytest.approx(0.01)
    assert factors[100] == factors[499] == 1.0
    assert factors[-1] == pytest.approx(0.01)
    assert all(a >= b for a, b in itertools.pairwise(factors[500:]))


def test_averages_stand_in_for_a_while() -> None:
    parameter = nn.Parameter(torch.zeros(4))
    average = Average([parameter], 0.5)
    with torch.no_grad():
        parameter.fill_(1.0)
    average.update()
    with average.applied():
        assert 0 < float(parameter[0]) < 1
    assert float(parameter[0]) == 1.0


def test_flat_parameters_train_as_single_ones() -> None:
    """Two steps of AdamW on the long parameters change the model as two steps on its own parameters do."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 7))
    model = nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 7))
    model.load_state_dict(plain.state_dict())
    flat = Flat([list(model[0].parameters()), list(model[1].parameters())])
    data = torch.randn(4, 5)
    ours, theirs = torch.optim.AdamW(flat.groups, lr=0.1), torch.optim.AdamW(plain.parameters(), lr=0.1)
    for _ in range(2):
        flat.grad.zero_()
        model(data).square().sum().backward()
        flat.clip(1.0)
        ours.step()
        theirs.zero_grad()
        plain(data).square().sum().backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        theirs.step()
    for mine, other in zip(model.parameters(), plain.parameters(), strict=True):
        print(f"largest difference {float((mine - other).abs().max()):.1e}")
        torch.testing.assert_close(mine, other, atol=1e-5, rtol=1e-4)


def test_gradients_that_are_not_finite_are_left_out_and_counted() -> None:
    parameter = nn.Parameter(torch.ones(3))
    flat = Flat([[parameter]])
    flat.grad[:3] = torch.tensor([1.0, float("nan"), float("inf")])
    flat.clip(1.0)
    assert bool((flat.grad == 0).all())
    assert int(flat.skipped) == 1
    flat.grad[:3] = torch.tensor([3.0, 0.0, 4.0])
    flat.clip(1.0)
    torch.testing.assert_close(flat.grad[:3], torch.tensor([0.6, 0.0, 0.8]))
    assert int(flat.skipped) == 1
