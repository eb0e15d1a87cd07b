"""Compiled blocks with FP8 attention and linears inside: one graph, no break, each quantised input made once.

Emulated: see tests/emulators/sgl_kernel_cuda.py.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from accel import compiling
from accel.backends import fa3_fp8
from accel.checking.line import relative
from accel.install import install, is_uncompiled
from accel.originals import same_bits
from tests import builders
from tests.emulators import sgl_kernel_cuda as emulator
from tests.emulators.sgl_kernel_cpu import real_build

no_emulator = pytest.mark.skipif(real_build(), reason="a real sgl_kernel is loaded: nothing to emulate")
PLAN = {"attention": "fa3_fp8", "linear": "fp8", "dtype": "bfloat16", "threads": "1"}


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv(compiling.CACHE, str(tmp_path))
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def transformer() -> Any:
    return builders.wan_transformer(heads=4, head_dim=64, layers=3, ffn=512)


def run(model: Any, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    with torch.inference_mode():
        return model(**builders.wan_inputs(dtype=dtype))[0]


@no_emulator
def test_blocks_compile_to_one_graph_and_are_right_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fa3_fp8, "FEWEST_KEYS", 16)
    graphs: list[torch.fx.Graph] = []
    monkeypatch.setattr(compiling.Tidy, "uuid", lambda self: None)
    tidy = compiling.Tidy.__call__

    def seen(self: Any, graph: torch.fx.Graph) -> None:
        tidy(self, graph)
        graphs.append(graph)

    monkeypatch.setattr(compiling.Tidy, "__call__", seen)
    model = transformer()
    want = run(model, torch.float32)
    with emulator.installed() as calls:
        installation = install(builders.Holder(transformer=model), builders.plan(**PLAN, compile="yes"))
        assert is_uncompiled(model)
        got = run(model)
        assert not is_uncompiled(model)
        report = installation.report()
        installation.remove()
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    assert report["compile"]["transformer"]["first_call_seconds"] > 1
    error = relative(got, want)
    print(f"relative error {error:.1e}")
    assert error < 5e-2
    assert len(graphs) == 1
    ours = Counter(str(node.target) for node in graphs[0].nodes if "accel" in str(node.target))
    assert ours == {"accel.quantised_linear.default": 10, "accel.attention.default": 2}
    linears = [node for node in graphs[0].nodes if "quantised_linear" in str(node.target)]
    # q, k and v share one quantised input, and so do k and v of the cross attention: 7 inputs for 10 linears
    assert len({node.args[0] for node in linears}) == 7
    assert len({node.args[1] for node in linears}) == 7
    attention, linear = report["attention"]["transformer"], report["linear"]["transformer"]
    assert (attention["served"], attention["reasons"]) == (3, {"fewer than 16 keys are faster in bf16": 3})
    assert (linear["served"], linear["fallen_back"], linear["packed"]) == (30, 0, 30)
    assert [one["q"].dtype for one in calls] == [torch.float8_e4m3fn, torch.bfloat16] * 3


@no_emulator
def test_removing_gives_back_weights_and_calls_bit_for_bit_emulated() -> None:
    model = transformer()
    install(builders.Holder(transformer=model), builders.plan(dtype="bfloat16")).remove()
    before, stock = {n: t.clone() for n, t in model.state_dict().items()}, run(model, torch.float32)
    with emulator.installed():
        installation = install(builders.Holder(transformer=model), builders.plan(**PLAN))
        packed = installation.report()["linear"]["transformer"]
        assert packed["packed_bytes"] < 0.52 * 2 * sum(
            m.weight.numel() for m in model.blocks.modules() if isinstance(m, torch.nn.Linear)
        )
        assert not torch.equal(run(model).float(), stock)
        assert installation.remove() == []
    assert all(same_bits(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(run(model, torch.float32), stock)


def test_equal_computations_are_done_once_and_random_ones_are_not() -> None:
    def twice(x: torch.Tensor) -> torch.Tensor:
        one, other = (x * float("nan")).amax(-1), (x * float("nan")).amax(-1)
        return one + other + torch.rand_like(x).amax(-1) + torch.rand_like(x).amax(-1) + x.sum(-1) * 1 + x.sum(-1) * 1.0

    graph = torch.fx.experimental.proxy_tensor.make_fx(twice)(torch.randn(3, 4)).graph
    compiling.Tidy()(graph)
    graph.lint()
    left = Counter(str(node.target) for node in graph.nodes if node.op == "call_function")
    assert left["aten.amax.default"] == 3
    assert left["aten.sum.dim_IntList"] == 1
    assert left["aten.rand_like.default"] == 2


def test_sums_that_are_used_again_are_written_out() -> None:
    def block(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        stream = (x.float() + y * 2.0).to(torch.bfloat16)
        return stream.float().sum(-1, keepdim=True) + stream + 1

    x = torch.randn(3, 4).bfloat16()
    graph = torch.fx.experimental.proxy_tensor.make_fx(block, tracing_mode="fake", decomposition_table={
        torch.ops.aten._to_copy.default: lambda x, dtype=None: torch.ops.prims.convert_element_type(x, dtype),
    })(x, x).graph  # fmt: skip
    compiling.Tidy()(graph)
    marked = [node for node in graph.nodes if node.meta.get("inductor_realize_to_strides")]
    assert [node.meta["val"].dtype for node in marked] == [torch.bfloat16]


def test_compiled_code_is_kept_where_accel_keeps_its_records(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(compiling.CACHE)
    monkeypatch.setenv("ACCEL_CACHE", str(tmp_path / "proofs"))
    compiling.keep_compiled()
    assert os.environ[compiling.CACHE] == str(tmp_path / "compiled")
    monkeypatch.setenv(compiling.CACHE, "chosen")
    compiling.keep_compiled()
    assert os.environ[compiling.CACHE] == "chosen"
