"""A decoder's block, run alone with the caches of a decode, gives what it gives inside the decode."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from accel.errors import AccelError
from accel.measuring.blocks import LATENTS, Block, parts_of
from tests import builders


@pytest.fixture(scope="module")
def vae() -> Any:
    return builders.wan().vae


def meta_of(vae: Any) -> Any:
    with torch.device("meta"):
        return type(vae).from_config(vae.config).eval()


def test_every_part_is_found_with_the_caches_that_it_used(vae: Any) -> None:
    found = parts_of(meta_of(vae), torch.empty(1, 8, LATENTS, 4, 4, device="meta"))
    assert list(found) == [
        "conv_in",
        "mid_block",
        "up_blocks.0",
        "up_blocks.1",
        "up_blocks.2",
        "up_blocks.3",
        "conv_out",
    ]
    assert all(one.flops() > 0 for one in found.values())
    block = found["up_blocks.1"]
    args, kwargs = block.arguments
    used = [item for item in kwargs["feat_cache"] if isinstance(item, torch.Tensor)]
    assert 0 < len(used) < len(kwargs["feat_cache"]), "the caches of other blocks are left out"
    assert args[0].is_meta
    assert not block.module._forward_hooks, "a copy without what listened"
    halved = block.lower(block.shape[-2] // 2)
    assert halved.shape[-2] * 2 == block.shape[-2]
    assert halved.flops() == pytest.approx(block.flops() / 2, rel=0.01)


def test_run_alone_it_gives_what_it_gives_in_a_decode(vae: Any) -> None:
    wanted: list[torch.Tensor] = []
    latents = torch.randn(1, 8, LATENTS, 4, 4, generator=torch.Generator().manual_seed(0))
    real = copy.deepcopy(vae)
    with torch.inference_mode():
        block = parts_of(meta_of(vae), latents.to("meta"))["up_blocks.1"]
        inside = real.decoder.get_submodule("up_blocks.1")
        seen: list[Any] = []
        inside.register_forward_pre_hook(
            lambda _, args, kwargs: seen.append(torch.utils._pytree.tree_map(lambda leaf: leaf, (args, kwargs))),
            with_kwargs=True,
        )
        inside.register_forward_hook(lambda _, args, result: wanted.append(result))
        real.decode(latents)
        inside._forward_pre_hooks.clear()
        inside._forward_hooks.clear()
        for _ in range(2):  # lists that the block writes into are as before
            assert torch.equal(Block.call(inside, seen[-1]), wanted[-1])
    filled_args, filled = block.with_values(torch.ones)
    assert filled_args[0].shape == seen[-1][0][0].shape
    assert [type(item) for item in filled["feat_idx"]] == [int]
    shapes = [item.shape for item in filled["feat_cache"] if item is not None]
    start = block.arguments[1]["feat_idx"][0]
    assert shapes == [item.shape for item in seen[-1][1]["feat_cache"][start : start + len(shapes)]]


def test_a_decoder_without_blocks_is_refused(vae: Any) -> None:
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.decoder = nn.Linear(2, 2)

        def decode(self, latents: torch.Tensor) -> torch.Tensor:
            return latents

    with pytest.raises(AccelError, match="Flat's decoder has no blocks"):
        parts_of(Flat(), torch.empty(1, 8, 1, 4, 4, device="meta"))
