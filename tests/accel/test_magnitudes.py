"""What MagCache's ratios are kept under."""

from __future__ import annotations

from typing import Any

import pytest

from accel import magnitudes

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")


def with_lora(seed: int, strength: float) -> Any:
    """The same layers each time, with a LoRA that follows from the seed."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    torch.manual_seed(seed)
    peft.inject_adapter_in_model(peft.LoraConfig(r=2, lora_alpha=2 * strength, target_modules=["0", "1"]), model)
    return model


def test_other_loras_and_strengths_have_ratios_of_their_own() -> None:
    assert magnitudes.loras(torch.nn.Linear(8, 8)) == ""
    assert magnitudes.loras(with_lora(1, 1.0)) == magnitudes.loras(with_lora(1, 1.0)) != ""
    assert len({magnitudes.loras(with_lora(seed, strength)) for seed in (1, 2) for strength in (1.0, 0.5)}) == 4
