"""aiter's attention in whole clips of a pipeline with two transformers, and in compiled blocks. Emulated.

The pipeline is Wan 2.2 A14B's form at a small size: one transformer for the noisy steps, one for the others, heads of
128. See tests/emulators/aiter.py.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from accel import compiling
from accel.backends import aiter_ops
from accel.checking.line import relative
from accel.install import install
from accel.types import Choice
from tests import builders
from tests.emulators import aiter as emulator

STEPS, LAYERS, BOUNDARY = 5, 2, 0.9
CALLS = 2 * 2 * LAYERS
"""Attention calls of one step: with the prompt and without, self and cross attention, each block."""


@pytest.fixture(scope="module")
def pipeline() -> Any:
    from diffusers import WanPipeline

    small = builders.wan()
    first, second = (builders.wan_transformer(heads=8, head_dim=128, layers=LAYERS) for _ in range(2))
    for weight in second.parameters():
        weight.data.mul_(1.01)  # another model
    parts = (small.tokenizer, small.text_encoder, small.vae, small.scheduler)
    return WanPipeline(*parts, transformer=first, transformer_2=second, boundary_ratio=BOUNDARY)


def clip(pipeline: Any) -> np.ndarray[Any, Any]:
    return builders.run_wan(pipeline, steps=STEPS, height=128, width=128, num_frames=9)


def psnr(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> float:
    """Of frames in 0...1, in dB."""
    return float(-10 * np.log10(np.mean((one - other) ** 2)))


def made_with(pipeline: Any, attention: str, exact_steps: str = "0") -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
    plan = builders.plan(attention=attention, dtype="bfloat16", threads="1")
    kept = Choice("transformer", "exact_steps", exact_steps, exact_steps, ("a test asked for it",))
    plan = replace(plan, stages=tuple(replace(stage, exact_steps=kept) for stage in plan.stages))
    installation = install(pipeline, plan)
    try:
        return clip(pipeline), installation.report()["attention"]
    finally:
        installation.remove()


def steps_of_first(pipeline: Any) -> int:
    pipeline.scheduler.set_timesteps(STEPS)
    return int((pipeline.scheduler.timesteps >= BOUNDARY * pipeline.scheduler.config.num_train_timesteps).sum())


@pytest.mark.parametrize(
    ("attention", "kernel"),
    [("aiter_mla_fp8", "mla_prefill_ps_asm_fwd"), ("aiter_fmha_fp8", "flash_attn_fp8_pertensor_func")],
)
def test_a_clip_of_two_transformers_is_served_whole_emulated(
    attention: str, kernel: str, pipeline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aiter_ops, "FEWEST_KEYS", 1)
    first = steps_of_first(pipeline)
    assert 0 < first < STEPS, "the boundary is crossed"
    with emulator.installed() as gpu:
        want, served = made_with(pipeline, "aiter_bf16")
        assert {name for name, _ in gpu.calls} == {"flash_attn_func"}
        gpu.calls.clear()
        got, counts = made_with(pipeline, attention)
        names = [name for name, _ in gpu.calls]
        partly, kept = made_with(pipeline, attention, exact_steps="1")
    for report in (served, counts):
        assert (report["transformer"]["served"], report["transformer"]["fallen_back"]) == (first * CALLS, 0)
        assert (report["transformer_2"]["served"], report["transformer_2"]["fallen_back"]) == (
            (STEPS - first) * CALLS,
            0,
        )
    assert names.count(kernel) == STEPS * CALLS
    assert "flash_attn_func" not in names
    sums = {what: sum(kept[name][what] for name in ("transformer", "transformer_2")) for what in ("served", "calls")}
    assert sums == {"served": (STEPS - 2) * CALLS, "calls": STEPS * CALLS}
    print(f"{attention}: {psnr(got, want):.1f} dB, with exact first and last steps {psnr(partly, want):.1f} dB")
    assert np.isfinite(got).all()
    assert psnr(got, want) > 35
    assert psnr(partly, want) > 35


def test_few_keys_are_told_and_run_in_bf16_emulated(pipeline: Any) -> None:
    with emulator.installed() as gpu:
        _, counts = made_with(pipeline, "aiter_mla_fp8")
    assert {name for name, _ in gpu.calls} == {"flash_attn_func"}
    for report in counts.values():
        assert report["served"] == 0
        assert set(report["reasons"]) == {"fewer than 1024 keys are faster in bf16"}


@pytest.fixture
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[None]:
    monkeypatch.setenv(compiling.CACHE, str(tmp_path))
    monkeypatch.setattr(aiter_ops, "FEWEST_KEYS", 16)
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.usefixtures("_fresh")
@pytest.mark.parametrize("attention", ["aiter_bf16", "aiter_fmha_fp8", "aiter_mla_fp8"])
def test_nothing_keeps_blocks_from_being_one_graph_emulated(attention: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Upstream took its whole attention out of compiled code, the bf16 route too."""
    model = builders.wan_transformer(heads=8, head_dim=128, layers=3)
    inputs = builders.wan_inputs(dtype=torch.bfloat16)
    with torch.inference_mode():
        want = copy.deepcopy(model)(**builders.wan_inputs())[0]
    graphs: list[torch.fx.GraphModule] = []

    def seen(graph: torch.fx.GraphModule, inputs: Any, **more: Any) -> Any:
        graphs.append(graph)
        return graph

    compiled = torch.nn.Module.compile
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, **_: compiled(self, fullgraph=True, backend=seen))
    with emulator.installed() as gpu, torch.inference_mode():
        installation = install(
            builders.Holder(transformer=model),
            builders.plan(attention=attention, dtype="bfloat16", compile="yes", threads="1"),
        )
        got = model(**inputs)[0]
        report = installation.report()["attention"]["transformer"]
        installation.remove()
    error = relative(got, want)
    print(f"relative error {error:.1e}")
    assert error < 5e-2
    assert len(graphs) == 1, "one graph serves all blocks"
    ours = [node for node in graphs[0].graph.nodes if "accel.attention" in str(node.target)]
    assert len(ours) == 2
    # 32 tokens of the clip, 12 of the prompt
    few = 3 if attention != "aiter_bf16" else 0
    assert (report["served"], report["fallen_back"]) == (6 - few, few)
    assert len([name for name, _ in gpu.calls if name != "mla_reduce_v1"]) == 6
