"""The LoRA for few steps: its gradients, its file, and the ways that clips take in training."""

from __future__ import annotations

from pathlib import Path

import torch
from diffusers import UniPCMultistepScheduler, WanPipeline
from safetensors.torch import load_file

from app.starter import fast
from app.starter.canvas import Canvas
from app.starter.mix import Kind
from app.starter.model import build_scheduler
from app.starter.train_transformer import block_matrices
from app.starter.training import Flat
from tests.app.starter.test_flow import small_transformer

CPU = torch.device("cpu")


def test_gradients_are_those_of_a_low_rank_sum() -> None:
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(6, 4))
    Flat([[weight]])
    low = fast.LowRank({"w": weight}, 2, torch.Generator().manual_seed(1))
    low.flat.data.normal_(generator=torch.Generator().manual_seed(2))
    base, down, up = (group[(6, 4)][0].detach() for group in (low.base, low.down, low.up))
    a, b = down.clone().requires_grad_(), up.clone().requires_grad_()
    data = torch.randn(3, 4)
    (data @ (base + b @ a).T).pow(3).sum().backward()
    low.write()
    (data @ weight.T).pow(3).sum().backward()
    low.take_gradients()
    assert a.grad is not None
    assert b.grad is not None
    mine = low.down[(6, 4)].grad, low.up[(6, 4)].grad
    for ours, theirs in zip(mine, (a.grad, b.grad), strict=True):
        assert ours is not None
        print(f"largest difference {float((ours[0] - theirs).abs().max()):.1e}")
        torch.testing.assert_close(ours[0], theirs, rtol=1e-4, atol=1e-3)


@torch.no_grad()
def test_diffusers_loads_the_lora_that_was_trained(tmp_path: Path) -> None:
    summed, plain = small_transformer(), small_transformer()
    low = fast.LowRank(block_matrices(summed), 3, torch.Generator().manual_seed(1))
    low.flat.data.normal_(std=0.2, generator=torch.Generator().manual_seed(2))
    WanPipeline.save_lora_weights(tmp_path, transformer_lora_layers=low.state_dict())
    low.write()
    names = load_file(tmp_path / "pytorch_lora_weights.safetensors").keys()
    assert len(names) == 2 * len(block_matrices(plain))
    pipeline = WanPipeline(None, None, None, build_scheduler(), plain)
    inputs = {
        "hidden_states": torch.randn(1, 4, 2, 4, 4),
        "timestep": torch.tensor([500.0]),
        "encoder_hidden_states": torch.randn(1, 5, 8),
    }
    before = plain(**inputs).sample
    pipeline.load_lora_weights(tmp_path)
    expected, loaded = summed(**inputs).sample, plain(**inputs).sample
    print(
        f"LoRA changes {float((before - expected).abs().max()):.2f}; error {float((loaded - expected).abs().max()):.1e}"
    )
    assert float((before - expected).abs().max()) > 0.1
    torch.testing.assert_close(loaded, expected, atol=5e-3, rtol=5e-3)


def test_ways_are_those_of_the_scheduler() -> None:
    for row, steps in enumerate(fast.STEPS):
        scheduler: UniPCMultistepScheduler = build_scheduler()
        scheduler.set_timesteps(steps)
        torch.testing.assert_close(fast.schedules()[row, : steps + 1], scheduler.sigmas, atol=1e-5, rtol=1e-5)


def test_a_perfect_student_walks_to_the_clean_clip_and_starts_again() -> None:
    kind = Kind(Canvas(64, 64, 5), False, 1.0)
    walkers = fast.Walkers(16, kind, CPU, torch.Generator().manual_seed(0))
    clean = torch.randn(walkers.noisy.shape, generator=torch.Generator().manual_seed(1))
    prompts, arrived, seen = torch.full((16, 64), 5), 0, set()
    for _ in range(40):
        seen |= {round(s, 3) for s in walkers.sigmas.tolist()}
        last = walkers.table[walkers.row, (walkers.step + 1).clamp(min=0)] == 0
        rest = walkers.noisy - (walkers.noisy - clean) / walkers.sigmas.view(-1, 1, 1, 1, 1)
        torch.testing.assert_close(clean + 0 * rest, clean)
        arrived += int(last.sum())
        walkers.advance(clean, prompts)
        assert walkers.noisy.isfinite().all()
        close = (walkers.noisy - clean).flatten(1).norm(dim=1) / clean.flatten(1).norm(dim=1)
        low = walkers.sigmas < 0.5
        assert bool((close[low] < 1.0).all())
    assert arrived > 40
    assert seen >= {round(s, 3) for row in fast.schedules().tolist() for s in row if s > 0}
    assert bool((walkers.ids == 5).all())


def test_some_that_arrive_set_out_again_with_their_own_first_frame_and_prompt() -> None:
    kind, dice = Kind(Canvas(64, 64, 5), False, 1.0), torch.Generator().manual_seed(0)
    walkers, ways, given_ways = fast.Walkers(64, kind, CPU, dice), 0, 0
    for turn in range(100):
        clean = torch.randn(walkers.noisy.shape, generator=dice)
        ids, given, waiting = walkers.ids.clone(), walkers.given.clone(), walkers.step < 0
        last = walkers.table[walkers.row, (walkers.step + 1).clamp(min=0)] == 0
        walkers.advance(clean, torch.full((64, 64), turn))
        onward = last & walkers.given
        assert not bool((onward & given).any()), "once, then a new prompt"
        assert walkers.ids[onward].equal(ids[onward])
        assert walkers.noisy[onward, :, :1].equal(clean[onward, :, :1])
        assert not bool((waiting & walkers.given).any())
        assert bool((walkers.ids[last & ~onward] == turn).all())
        kept = walkers.given & given & ~last
        assert walkers.noisy[kept, :, :1].equal(walkers.picture[kept])
        assert walkers.given[~last].equal(given[~last])
        ways, given_ways = ways + int((last & ~given).sum()), given_ways + int(onward.sum())
    print(f"{given_ways} of {ways} went on")
    assert abs(given_ways / ways - fast.GIVEN) < 0.06


def test_places_that_the_prompt_changes_weigh_more_in_every_clip_alike() -> None:
    difference = 0.01 * torch.randn(2, 4, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    difference[0, :, :, 2, 2] = 1.0
    difference[1, :, :, 4, 1] = 1e-3
    difference[1] *= 1e-3
    weights = fast.asked_for(difference)
    torch.testing.assert_close(weights.mean((1, 2, 3)), torch.ones(2))
    assert float(weights[0, :, 2, 2].min()) > 4 * float(weights[0, :, 5, 5].max())
    assert float(weights[1].max()) < 4, "no single place of a clip that asks for nothing"
    assert fast.asked_for(torch.zeros(1, 4, 3, 6, 6)).equal(torch.ones(1, 3, 6, 6))
