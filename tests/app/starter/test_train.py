"""The documented command trains a pipeline that stock diffusers loads and runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from diffusers import DiffusionPipeline

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_whole_chain_on_a_cpu(tmp_path: Path) -> None:
    """A few steps only: this shows that the chain holds together, not that it learns."""
    command = (
        "-m app.starter.train --stages vae transformer score --vae-seconds 5 --vae-batch 1 --vae-pool 2 --group 1 "
        f"--transformer-seconds 5 --batch 2 --pool 4 --prefill 2 --prompts 2 --out {tmp_path}"
    )
    subprocess.run([sys.executable, *command.split()], cwd=ROOT, check=True, timeout=1700)
    pipeline = DiffusionPipeline.from_pretrained(tmp_path, dtype=torch.float32)
    clip = pipeline("a red ball", width=256, height=160, num_frames=25, num_inference_steps=1, max_sequence_length=64)
    assert clip.frames[0].shape == (25, 160, 256, 3)
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert len(scores["verdicts"]) == 2
    assert scores["tables"]["all"]["background"][1] == 2
