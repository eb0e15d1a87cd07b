"""The documented command trains a pipeline that stock diffusers loads and runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from diffusers import DiffusionPipeline

from app.starter import captions, phrases
from app.starter.flow import encode_text
from app.starter.model import build_text_encoder
from app.starter.train_transformer import Kept, take_text_encoder
from app.starter.training import Average, Flat, Muon, Ranks

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_whole_chain_on_a_cpu(tmp_path: Path) -> None:
    """A few steps only: this shows that the chain holds together, not that it learns."""
    command = (
        "-m app.starter.train --stages vae transformer fast score --vae-seconds 5 --vae-batch 1 --vae-pool 2 --group 1 "
        "--transformer-seconds 5 --fast-seconds 5 --batch 2 --pool 4 --prefill 2 --captioners 0 --try-out "
        f"--prompts 2 --score-steps 4 --out {tmp_path}"
    )
    subprocess.run([sys.executable, *command.split()], cwd=ROOT, check=True, timeout=1700)
    pipeline = DiffusionPipeline.from_pretrained(tmp_path / "pipeline", dtype=torch.float32)
    pipeline.load_lora_weights(tmp_path / "fast")
    clip = pipeline("a red ball", width=256, height=160, num_frames=25, num_inference_steps=1, max_sequence_length=64)
    assert clip.frames[0].shape == (25, 160, 256, 3)
    words = (tmp_path / "pipeline" / "tokenizer" / "vocabulary.txt").read_text().split()
    assert "rocket" in words
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert len(scores["verdicts"]) == 2
    assert scores["tables"]["all"]["background"][1] == 2


def test_a_trained_text_encoder_is_taken_over_by_what_its_pieces_spell(tmp_path: Path) -> None:
    """A longer vocabulary numbers its words otherwise; every known word keeps its meaning."""
    old_tokenizer = captions.build_tokenizer(tmp_path / "tokenizer")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(phrases, "OPENINGS", (*phrases.OPENINGS, "behold aardvarks"))
        tokenizer = captions.build_tokenizer(tmp_path / "longer")
    torch.manual_seed(0)
    trained = build_text_encoder(len(old_tokenizer))
    trained.save_pretrained(tmp_path / "text_encoder")
    taken = build_text_encoder(len(tokenizer))
    take_text_encoder(taken, tokenizer, tmp_path)
    text = "a big red ball spins in the snow"
    old_ids, ids = (t(text, return_tensors="pt").input_ids for t in (old_tokenizer, tokenizer))
    assert not torch.equal(old_ids, ids)
    with torch.no_grad():
        ours, theirs = encode_text(taken, ids), encode_text(trained, old_ids)
    print(f"largest difference {float((ours - theirs).abs().max()):.1e}")
    torch.testing.assert_close(ours, theirs)
    assert taken.shared.weight is taken.encoder.embed_tokens.weight


def test_of_a_text_encoder_the_words_alone_can_be_taken(tmp_path: Path) -> None:
    tokenizer = captions.build_tokenizer(tmp_path / "tokenizer")
    trained, fresh = build_text_encoder(len(tokenizer)), build_text_encoder(len(tokenizer))
    trained.save_pretrained(tmp_path / "text_encoder")
    layers = {name: p.clone() for name, p in fresh.named_parameters() if "block" in name}
    take_text_encoder(fresh, tokenizer, tmp_path, words_alone=True)
    known = list(tokenizer.get_vocab().values())
    torch.testing.assert_close(fresh.shared.weight[known], trained.shared.weight[known])
    assert all(torch.equal(p, layers[name]) for name, p in fresh.named_parameters() if "block" in name)


class Run:
    """Two matrices and a vector in training."""

    def __init__(self, file: Path) -> None:
        torch.manual_seed(1)
        matrices = [torch.nn.Parameter(torch.randn(6, 4)) for _ in range(2)]
        self.flat = Flat([matrices, [torch.nn.Parameter(torch.randn(5))]])
        self.muon = Muon(matrices)
        self.adam = torch.optim.AdamW([{"params": [self.flat.groups[1]], "rate": 0.1}], lr=0.1)
        self.average = Average([self.flat.data], 0.9)
        self.kept = Kept(file, Ranks(), self.flat, self.muon, self.adam, self.average)

    def steps(self, numbers: range) -> None:
        for number in numbers:
            self.flat.grad.copy_(torch.randn(self.flat.grad.shape, generator=torch.Generator().manual_seed(number)))
            self.adam.step()
            self.muon.step(0.05)
            self.average.update()


def test_a_run_in_two_parts_ends_as_in_one(tmp_path: Path) -> None:
    whole, first, second = (Run(tmp_path / name) for name in ("whole.pt", "parts.pt", "parts.pt"))
    whole.steps(range(9))
    first.steps(range(4))
    first.kept.put(4)
    assert second.kept.take() == 4
    second.steps(range(4, 9))
    torch.testing.assert_close(second.flat.data, whole.flat.data, rtol=0, atol=0)
    torch.testing.assert_close(second.average.values, whole.average.values, rtol=0, atol=0)
    with pytest.raises(FileNotFoundError):
        Run(tmp_path / "none.pt").kept.take()
