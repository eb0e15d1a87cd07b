"""The training path of the VAE computes what diffusers' chunked path computes."""

from __future__ import annotations

import pytest
import torch
from diffusers.models.autoencoders.autoencoder_kl_wan import WanCausalConv3d

from app.starter.codec import ClipCodec
from app.starter.model import LATENT_CHANNELS, build_vae


@pytest.fixture(scope="module")
def codec() -> ClipCodec:
    torch.manual_seed(0)
    return ClipCodec(build_vae().eval())


@pytest.mark.parametrize("frames", [1, 5, 9])
@torch.no_grad()
def test_encode_equals_diffusers(codec: ClipCodec, frames: int) -> None:
    clips = torch.rand(2, 3, frames, 64, 96) * 2 - 1
    ours, theirs = codec.encode(clips), codec.vae.encode(clips).latent_dist.mean
    error = float((ours - theirs).abs().max())
    print(f"encode, {frames} frames: largest difference {error:.1e}")
    assert ours.shape == (2, LATENT_CHANNELS, (frames + 1) // 2, 4, 6)
    assert error < 1e-4


@pytest.mark.parametrize("latent_frames", [1, 2, 5])
@torch.no_grad()
def test_decode_equals_diffusers(codec: ClipCodec, latent_frames: int) -> None:
    latents = torch.randn(2, LATENT_CHANNELS, latent_frames, 4, 6)
    ours, theirs = codec.decode(latents), codec.vae.decode(latents).sample
    error = float((ours.clamp(-1, 1) - theirs).abs().max())
    print(f"decode, {latent_frames} latent frames: largest difference {error:.1e}")
    assert ours.shape == (2, 3, 2 * latent_frames - 1, 64, 96)
    assert error < 1e-4


def test_the_large_levels_look_at_one_frame_and_stay_so(codec: ClipCodec) -> None:
    per_frame = [m for m in codec.modules() if isinstance(m, WanCausalConv3d) and m.kernel_size[0] == 3 and m.taps == 1]
    assert len(per_frame) >= 10
    loss = codec.decode(codec.encode(torch.rand(1, 3, 3, 32, 32))).square().mean()
    loss.backward()
    for conv in per_frame:
        assert not conv.weight[:, :, :-1].any()
        assert conv.weight.grad is None or not conv.weight.grad[:, :, :-1].any()
    codec.zero_grad(set_to_none=True)


def test_standardise_and_restore_are_inverse(codec: ClipCodec) -> None:
    means = torch.randn(1, LATENT_CHANNELS, 2, 3, 3)
    codec.vae.register_to_config(
        latents_mean=torch.randn(LATENT_CHANNELS).tolist(), latents_std=(torch.rand(LATENT_CHANNELS) + 0.5).tolist()
    )
    error = float((codec.restore(codec.standardise(means)) - means).abs().max())
    print(f"largest difference {error:.1e}")
    assert error < 1e-5


def test_even_frame_counts_are_refused(codec: ClipCodec) -> None:
    with pytest.raises(ValueError, match="4 frames"):
        codec.encode(torch.zeros(1, 3, 4, 32, 32))
