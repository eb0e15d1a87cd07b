"""How the parts start before any training."""

from __future__ import annotations

import torch

from app.starter.model import build_text_encoder


@torch.no_grad()
def test_each_head_of_a_fresh_text_encoder_looks_at_a_neighbour() -> None:
    torch.manual_seed(0)
    encoder, ids = build_text_encoder(60), torch.randint(2, 60, (16, 15))
    encoder.set_attn_implementation("eager")  # the only one that tells its attention
    layers = encoder(ids, output_attentions=True).attentions
    assert len(layers) == 2
    for layer in layers:
        seen = [
            float(layer[:, head].diagonal(offset, 1, 2)[:, 2:-2].mean()) for head, offset in enumerate((-1, 1, -2, 2))
        ]
        print("share of the neighbour, a head each:", " ".join(f"{share:.2f}" for share in seen))
        assert len(seen) == layer.shape[1]
        assert all(0.4 < share < 0.8 for share in seen)
