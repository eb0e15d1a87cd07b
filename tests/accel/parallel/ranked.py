"""What a rank of a test's job does, and writes: `python -m tests.accel.parallel.ranked FOLDER PATIENCE CASE ...`

Each case computes the same model alone and shared, so that tests compare tensors of one process.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import psutil
import torch
from diffusers import WanTransformer3DModel
from peft import LoraConfig

from accel.backends import fa3_fp8
from accel.install import install
from accel.parallel.ranks import Ranks, Shared, joined
from tests import builders
from tests.emulators import sgl_kernel_cuda as emulator

Found = dict[str, Any]


def inputs(frames: int = 2, rows: int = 8, columns: int = 8, each: bool = False, batch: int = 1) -> dict[str, Any]:
    """Arguments of one call, with frames * rows * columns / 4 tokens. each: a time for every token."""
    draw = torch.Generator().manual_seed(5)
    found = builders.wan_inputs(batch)
    found["hidden_states"] = torch.randn(batch, 8, frames, rows, columns, generator=draw)
    if each:
        found["timestep"] = torch.rand(batch, frames * rows * columns // 4, generator=draw) * 900
    return found


def compare(model: Any, ranks: Ranks, given: dict[str, Any]) -> Found:
    """One call alone and one shared."""
    with torch.inference_mode():
        alone = model(**given)[0]
        with Shared(model, ranks, planned=False):
            shared = model(**given)[0]
        after = model(**given)[0]
    assert torch.equal(after, alone)
    return {"alone": alone, "shared": shared}


def plain(ranks: Ranks) -> Found:
    """float32 and stock attention, with heads that no number of ranks here divides."""
    model = builders.wan_transformer(heads=5, head_dim=32)
    cases = {
        "even": inputs(),
        "odd": inputs(3, 6, 10),
        "odd, a time each": inputs(3, 6, 10, each=True),
        "even, a time each, two items": inputs(each=True, batch=2),
    }
    found = {name: compare(model, ranks, given) for name, given in cases.items()}
    assert vars(model.blocks[0].attn1.processor) == {}
    return found


def installed(ranks: Ranks) -> Found:
    """With our attention installed."""
    model = builders.wan_transformer(heads=4)
    holder = builders.Holder(transformer=model)
    put = install(holder, builders.plan(attention="sdpa"))
    found = compare(model, ranks, inputs(3, 6, 10))
    report = put.report()["attention"]["transformer"]
    put.remove()
    return {"sdpa": {**found, "calls": (report["served"], report["fallen_back"])}}


def adapted(ranks: Ranks) -> Found:
    """A LoRA takes the place of the layer whose output is put together, and leaves it again."""
    model = builders.wan_transformer(heads=4)
    model.add_adapter(LoraConfig(r=2, target_modules=["proj_out", "to_q"], init_lora_weights=False))
    found = {"with a LoRA": compare(model, ranks, inputs(3, 6, 10))}
    model.unload_lora()
    return found | {"without it again": compare(model, ranks, inputs(3, 6, 10))}


def pictured(ranks: Ranks) -> Found:
    """A model that begins with a picture: more channels go in than come out, and a second attention to the picture."""
    torch.manual_seed(0)
    size = {"in_channels": 20, "out_channels": 8, "text_dim": 32, "freq_dim": 32, "ffn_dim": 64, "num_layers": 2}
    heads = {"num_attention_heads": 5, "attention_head_dim": 32, "image_dim": 48, "added_kv_proj_dim": 160}
    model = WanTransformer3DModel(patch_size=(1, 2, 2), **size, **heads).eval()
    draw = torch.Generator().manual_seed(3)
    given = inputs(3, 6, 10) | {"hidden_states": torch.randn(1, 20, 3, 6, 10, generator=draw)}
    given["encoder_hidden_states_image"] = torch.randn(1, 257, 48, generator=draw)
    with torch.inference_mode():
        alone = [model(**given)[0] for _ in range(2)]
        with Shared(model, ranks, planned=True):
            shared = [model(**given)[0] for _ in range(2)]
    branches = {"alone": torch.stack(alone), "shared": torch.stack(shared)}
    return {"tokens": compare(model, ranks, given), "branches": branches}


def compiled(ranks: Ranks) -> Found:
    """Blocks that were compiled alone, then shared in one way after the other: nothing is left of the way before."""
    model = builders.wan_transformer(heads=4)
    given = inputs(3, 6, 10)
    put = install(builders.Holder(transformer=model), builders.plan(attention="sdpa", compile="yes"))
    with torch.inference_mode():
        alone = torch.stack([model(**given)[0] for _ in range(2)])
        found: Found = {}
        for name, planned in (("tokens", False), ("branches", True), ("tokens again", False)):
            with Shared(model, ranks, planned=planned, guided=lambda planned=planned: planned):  # type: ignore[misc]
                shared = torch.stack([model(**given)[0] for _ in range(2)])
            found[name] = {"alone": alone, "shared": shared}
    put.remove()
    return found


def fused(ranks: Ranks) -> Found:
    """bf16 with FP8 linears, fused passes and each attention, their kernels emulated."""
    found: Found = {}
    fa3_fp8.FEWEST_KEYS = 16
    given = inputs(3, 6, 10, each=True)
    given |= {name: given[name].bfloat16() for name in ("hidden_states", "encoder_hidden_states")}
    for attention in ("sdpa", "fa3_fp8"):
        for compile_ in ("no", "fused"):
            model = builders.wan_transformer(heads=4, head_dim=64, layers=2, ffn=512)
            plan = builders.plan(attention=attention, linear="fp8", dtype="bfloat16", compile=compile_)
            with emulator.installed() as calls:
                put = install(builders.Holder(transformer=model), plan)
                found[f"{attention}, {compile_}"] = compare(model, ranks, given)
                blocks = put.report()["blocks"].get("transformer", {"served": 0, "reasons": {}})
                found[f"{attention}, {compile_}"] |= {
                    "served": blocks["served"],
                    "reasons": blocks["reasons"],
                    # queries in FP8, by heads: all alone before and after, and this rank's own
                    "eight_bit": [one["q"].shape[2] for one in calls if one["q"].dtype == torch.float8_e4m3fn],
                }
                put.remove()
    return found


def guided(ranks: Ranks) -> Found:
    """Two calls a step, each computed by one half of the ranks."""
    model = builders.wan_transformer(heads=4)
    first, second = inputs(3, 6, 10), inputs(3, 6, 10)
    second["encoder_hidden_states"] = -first["encoder_hidden_states"]
    calls: list[int] = []
    model.blocks[0].register_forward_pre_hook(lambda module, args: calls.append(args[0].shape[1]))
    paired = True
    with torch.inference_mode():
        alone = [model(**given)[0] for given in (first, second)]
        calls.clear()
        with Shared(model, ranks, planned=True, guided=lambda: paired):
            got = [[model(**given)[0] for given in (first, second)] for _ in range(2)]
            assert len(calls) == 2, "half of the four calls are another's"
            model(**first)  # a clip that is stopped between the two
        with Shared(model, ranks, planned=True, guided=lambda: paired):
            got.append([model(**{**given, "return_dict": True}).sample for given in (first, second)])
            paired = False
            single = model(**first)[0]
        assert torch.equal(model(**first)[0], alone[0])
    return {
        "first": {"alone": torch.stack(3 * [alone[0]]), "shared": torch.stack([pair[0] for pair in got])},
        "second": {"alone": torch.stack(3 * [alone[1]]), "shared": torch.stack([pair[1] for pair in got])},
        "single": {"alone": alone[0], "shared": single},
    }


def cached(ranks: Ranks) -> Found:
    """Guided clips with step caches, each rank its own branch; what the caches count."""
    found: Found = {}
    for cache in ("first_block:1", "pyramid:2", "taylorseer:3"):
        pipeline = builders.wan()
        put = install(pipeline, builders.plan(cache=cache))
        counts, clips = [], []
        for shared in (False, True):
            with Shared(pipeline.transformer, ranks, planned=True) if shared else nullcontext():
                clips.append(torch.from_numpy(builders.run_wan(pipeline, steps=6)))
            counts.append(put.report()["cache"]["transformer"])
            put.reset()
        put.remove()
        found[cache] = {"alone": clips[0], "shared": clips[1], "counts": counts}
    return found


def clip(ranks: Ranks) -> Found:
    """A whole guided clip of a pipeline."""
    pipeline = builders.wan()
    alone = builders.run_wan(pipeline)
    with Shared(pipeline.transformer, ranks, planned=True, guided=lambda: bool(pipeline.do_classifier_free_guidance)):
        shared = builders.run_wan(pipeline)
    return {"clip": {"alone": torch.from_numpy(alone), "shared": torch.from_numpy(shared)}}


def meets(ranks: Ranks) -> Found:
    """What of this process other machines could reach."""
    Shared(builders.wan_transformer(heads=4), ranks, planned=False).undo()
    return {"reachable": {"shared": torch.tensor([len(reachable())])}}


def reachable() -> list[str]:
    """The addresses beyond this machine's own on which this process listens."""
    listening = [one.laddr.ip for one in psutil.Process().net_connections() if one.status == psutil.CONN_LISTEN]
    return [address for address in listening if address not in ("127.0.0.1", "::1")]


def dies(ranks: Ranks) -> Found:
    """The last rank ends in the middle of a forward."""
    model = builders.wan_transformer(heads=4)
    if ranks.rank == ranks.count - 1:
        model.blocks[1].register_forward_pre_hook(lambda module, args: os._exit(7))
    return compare_shared(model, ranks)


def compare_shared(model: Any, ranks: Ranks) -> Found:
    with torch.inference_mode(), Shared(model, ranks, planned=False):
        model(**inputs())
    return {}


def waits(ranks: Ranks) -> Found:
    """The last rank never comes."""
    model = builders.wan_transformer(heads=4)
    if ranks.rank == ranks.count - 1:
        time.sleep(600)
    return compare_shared(model, ranks)


ALL = (plain, installed, adapted, pictured, compiled, fused, guided, cached, clip, meets, dies, waits)
CASES: dict[str, Callable[[Ranks], Found]] = {one.__name__: one for one in ALL}


def main(folder: str, patience: str, *cases: str) -> None:
    torch.set_num_threads(1)
    with joined(float(patience)) as ranks:
        found = {case: CASES[case](ranks) for case in cases}
        torch.save(found, Path(folder) / f"{ranks.rank}.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])
