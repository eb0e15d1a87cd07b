"""A step that can't become a CUDA graph goes on in plain calls, and the log says so."""

from __future__ import annotations

import pytest
import torch

from app.starter.replay import Replayed
from app.starter.training import Ranks


def test_a_failed_capture_is_told_and_plain_calls_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> None:
        raise RuntimeError("no capture here")

    def run() -> None:
        result.add_(1)

    result, ranks = torch.zeros(()), Ranks()
    monkeypatch.setattr(ranks, "cuda", True)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", refuse)
    replay = Replayed(ranks, "step", run, [result])
    assert replay.capture() is None
    replay.check()
    replay()
    assert float(result) == 1.0
    told = capsys.readouterr().out
    assert "WARNING (rank 0): step: no CUDA graph, going on with plain calls" in told
    assert "no capture here" in told


@pytest.mark.skipif(not torch.cuda.is_available(), reason="a CUDA graph needs a GPU")
def test_a_graph_computes_what_plain_calls_compute() -> None:
    weight = torch.randn(64, 64, device="cuda", requires_grad=True)
    weight.grad = torch.zeros_like(weight)
    data, result = torch.randn(32, 64, device="cuda"), torch.zeros((), device="cuda")

    def run() -> None:
        assert weight.grad is not None
        weight.grad.zero_()
        loss = (data @ weight).square().mean()
        loss.backward()
        result.copy_(loss.detach())

    replay = Replayed(Ranks(), "step", run, [result, weight.grad])
    replay.capture()
    assert replay.graph is not None
    data.normal_()
    replay()
    replayed, gradient = result.clone(), weight.grad.clone()
    run()
    torch.testing.assert_close(replayed, result)
    torch.testing.assert_close(gradient, weight.grad)
