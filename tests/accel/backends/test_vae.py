"""Convolutions sent to oneDNN directly: right against float64, zero taps left out, every module restored."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from accel.backends import backend
from accel.checking.line import HEADER, relative
from accel.convolutions import DirectMixin, swap_convolutions
from accel.norms import swap_norms
from accel.ops import CONVS
from accel.report import Tally
from accel.selfcheck import lines_for
from accel.upsampling import swap_upsampling

needs_bf16 = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="bf16 convolutions need AVX512_BF16 or AMX"
)


@pytest.mark.parametrize("name", ["direct_conv3d", pytest.param("bf16_channels_last", marks=needs_bf16)])
def test_right_against_float64(name: str) -> None:
    print(HEADER)
    faults: list[str] = []
    with torch.inference_mode():
        for line in lines_for(backend("vae", name), quick=True):
            print(line.text())
            assert line.cases == line.served > 0
            faults += line.faults
    assert not faults, faults[:10]


def apply(vae: Any, name: str = "direct_conv3d") -> tuple[Any, Tally]:
    tally = Tally("vae", "vae", name)
    chosen: Any = backend("vae", name)
    return chosen.apply(vae, tally), tally


def wan_vae() -> Any:
    from diffusers import AutoencoderKLWan

    torch.manual_seed(0)
    return AutoencoderKLWan(
        base_dim=8,
        z_dim=4,
        dim_mult=[1, 1, 2],
        num_res_blocks=1,
        temperal_downsample=[False, True],
        latents_mean=[0.0] * 4,
        latents_std=[1.0] * 4,
    ).eval()


def ltx_vae() -> Any:
    from diffusers import AutoencoderKLLTXVideo

    torch.manual_seed(0)
    return AutoencoderKLLTXVideo(
        latent_channels=4,
        block_out_channels=(8, 8, 8, 8),
        decoder_block_out_channels=(8, 8, 8, 8),
        layers_per_block=(1, 1, 1, 1, 1),
        decoder_layers_per_block=(1, 1, 1, 1, 1),
    ).eval()


def hunyuan_vae() -> Any:
    from diffusers import AutoencoderKLHunyuanVideo

    torch.manual_seed(0)
    return AutoencoderKLHunyuanVideo(
        latent_channels=4, block_out_channels=(8, 8, 8, 8), layers_per_block=1, norm_num_groups=4
    ).eval()


def cogvideox_vae() -> Any:
    from diffusers import AutoencoderKLCogVideoX

    torch.manual_seed(0)
    return AutoencoderKLCogVideoX(
        latent_channels=4, block_out_channels=(8, 8, 8, 8), layers_per_block=1, norm_num_groups=4
    ).eval()


def mochi_vae() -> Any:
    from diffusers import AutoencoderKLMochi

    torch.manual_seed(0)
    return AutoencoderKLMochi(
        latent_channels=4,
        encoder_block_out_channels=(32, 32, 32, 32),
        decoder_block_out_channels=(32, 32, 32, 32),
        layers_per_block=(1, 1, 1, 1, 1),
    ).eval()


@pytest.mark.parametrize("build", [wan_vae, ltx_vae, hunyuan_vae, cogvideox_vae, mochi_vae])
def test_every_family_decodes_alike_and_is_restored(build: Any) -> None:
    vae = build()
    latents = torch.randn(1, 4, 2, 4, 4, generator=torch.Generator().manual_seed(1))
    before = {name: tensor.clone() for name, tensor in vae.state_dict().items()}
    strides = {name: tensor.stride() for name, tensor in vae.state_dict().items()}
    classes = [type(module) for module in vae.modules()]
    with torch.inference_mode():
        want = vae.decode(latents).sample
        undo, tally = apply(vae)
        got = vae.decode(latents).sample
        swapped = sum(isinstance(module, DirectMixin) for module in vae.modules())
        saved = vae.state_dict()
        undo()
        again = vae.decode(latents).sample
    error = relative(got, want)
    print(f"{type(vae).__name__}: {tally.summary()}, {swapped} modules, relative error {error:.1e}")
    assert swapped
    assert tally.served_calls
    assert not tally.fallen_back
    assert error < 1e-5
    assert torch.equal(want, again)
    assert [type(module) for module in vae.modules()] == classes
    for name, tensor in before.items():
        assert torch.equal(saved[name], tensor)
        assert torch.equal(vae.state_dict()[name], tensor)
        assert vae.state_dict()[name].stride() == strides[name]
    assert not any(name.startswith("accel_") for module in vae.modules() for name in vars(module))


def test_slot_is_freed() -> None:
    before = len(CONVS)
    vae = wan_vae()
    undo, _ = apply(vae)
    assert len(CONVS) == before + 1
    undo()
    assert len(CONVS) == before


def test_slot_is_freed_with_the_last_module_that_uses_it() -> None:
    before = len(CONVS)
    vae = wan_vae()
    undo, _ = apply(vae)
    decoder = vae.decoder
    del vae, undo
    gc.collect()
    with torch.inference_mode():
        decoder(torch.randn(1, 4, 1, 4, 4))
    assert len(CONVS) == before + 1
    del decoder
    gc.collect()
    assert len(CONVS) == before


@settings(deadline=None, max_examples=60)
@given(
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 2), st.integers(1, 2), st.integers(1, 2)),
    padding=st.tuples(st.integers(0, 1), st.integers(0, 1), st.integers(0, 1)),
    frames=st.integers(3, 6),
    zero=st.sets(st.integers(0, 2)),
    last=st.booleans(),
)
def test_zero_taps_left_out_change_nothing(
    kernel: tuple[int, int, int],
    stride: tuple[int, int, int],
    padding: tuple[int, int, int],
    frames: int,
    zero: set[int],
    last: bool,
) -> None:
    conv = nn.Conv3d(4, 8, kernel, stride, padding).requires_grad_(False)
    for tap in zero:
        if tap < kernel[0]:
            conv.weight[:, :, tap] = 0
    inputs = torch.randn(2, 4, frames, 5, 6)
    want = F.conv3d(inputs.double(), conv.weight.double(), conv.bias.double(), stride, padding)  # type: ignore[union-attr]
    undo = swap_convolutions(conv, Tally("vae", "vae", "direct_conv3d"), ("float32",), last)
    got = conv(inputs)
    undo()
    error = relative(got, want)
    print(f"relative error {error:.1e}")
    assert got.shape == want.shape
    assert error < 1e-5


def test_zero_taps_shrink_the_product() -> None:
    """Only the last of three temporal taps trained: the kernel that runs has one."""
    vae = wan_vae()
    for module in vae.modules():
        if isinstance(module, nn.Conv3d) and module.kernel_size[0] == 3:
            module.weight.data[:, :, :2] = 0
    latents = torch.randn(1, 4, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        want = vae.decode(latents).sample
        undo, _ = apply(vae)
        kernels = [
            module.accel_weight.shape[2]
            for module in vae.modules()
            if getattr(module, "accel_weight", None) is not None
        ]
        got = vae.decode(latents).sample
        undo()
    error = relative(got, want)
    print(f"relative error {error:.1e}")
    assert kernels
    assert set(kernels) == {1}
    assert error < 1e-5


@settings(deadline=None, max_examples=30)
@given(
    ins=st.integers(1, 5),
    outs=st.integers(1, 5),
    height=st.integers(1, 6),
    width=st.integers(1, 6),
    last=st.booleans(),
    bias=st.booleans(),
)
def test_folded_upsampling_is_upsampling(ins: int, outs: int, height: int, width: int, last: bool, bias: bool) -> None:
    conv = nn.Conv2d(ins, outs, 3, padding=1, bias=bias).requires_grad_(False)
    pair = nn.Sequential(nn.Upsample(scale_factor=(2.0, 2.0), mode="nearest-exact"), conv)
    form = torch.channels_last if last else torch.contiguous_format
    inputs = torch.randn(2, ins, height, width).contiguous(memory_format=form)
    want = pair.double()(inputs.double())
    pair.float()
    undo = swap_upsampling(pair)
    got = pair(inputs)
    conv.weight.mul_(2)
    again = pair(inputs)
    undo()
    error = relative(got, want)
    print(f"relative error {error:.1e}")
    assert got.shape == want.shape
    if ins > 1 and height * width > 1:  # else one picture lies in both formats at once
        assert got.is_contiguous(memory_format=form)
    assert error < 1e-6
    assert relative(again, pair(inputs)) < 1e-6  # a weight written while installed is used
    assert type(pair) is nn.Sequential


@pytest.mark.parametrize(
    ("upsample", "conv"),
    [
        (nn.Upsample(scale_factor=3.0), nn.Conv2d(4, 4, 3, padding=1)),
        (nn.Upsample(scale_factor=2.0, mode="bilinear"), nn.Conv2d(4, 4, 3, padding=1)),
        (nn.Upsample(scale_factor=2.0), nn.Conv2d(4, 4, 3)),
        (nn.Upsample(scale_factor=2.0), nn.Conv2d(4, 4, 3, padding=1, stride=2)),
        (nn.Upsample(scale_factor=2.0), nn.Conv2d(4, 4, 3, padding=1, groups=2)),
        (nn.Upsample(scale_factor=2.0), nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect")),
    ],
)
def test_other_upsampling_is_left_alone(upsample: nn.Module, conv: nn.Module) -> None:
    pair = nn.Sequential(upsample, conv)
    swap_upsampling(pair)
    assert type(pair) is nn.Sequential


@settings(deadline=None, max_examples=30)
@given(shape=st.sampled_from([(1, 8, 3, 4, 5), (2, 8, 4, 5)]), zero=st.booleans(), seed=st.integers(0, 99))
def test_norms_are_wans(shape: tuple[int, ...], zero: bool, seed: int) -> None:
    from diffusers.models.autoencoders.autoencoder_kl_wan import WanRMS_norm

    torch.manual_seed(seed)
    norm = WanRMS_norm(shape[1], images=len(shape) == 4).requires_grad_(False)
    norm.gamma.normal_()
    inputs = torch.randn(shape)
    if zero:
        inputs[:, :, 1] = 0  # F.normalize divides by 1e-12 there
    want = norm.double()(inputs.double())
    undo = swap_norms(norm.float())
    got = norm(inputs)
    undo()
    error = relative(got, want)
    print(f"relative error {error:.1e}")
    assert error < 1e-6
    assert type(norm) is WanRMS_norm


def test_training_through_a_swapped_vae_still_differentiates() -> None:
    """Activations overwrite only when nobody asks for gradients."""
    vae = wan_vae()
    undo = swap_norms(vae)
    vae.decoder.norm_out(
        torch.randn(1, vae.decoder.norm_out.gamma.shape[0], 1, 4, 4, requires_grad=True)
    ).sum().backward()
    block = vae.decoder.mid_block.resnets[0]
    channels = block.norm1.gamma.shape[0]
    block(torch.randn(1, channels, 1, 4, 4)).sum().backward()
    undo()
    assert block.norm1.gamma.grad is not None


def test_weights_loaded_while_installed_are_used() -> None:
    vae, other = wan_vae(), wan_vae()
    for parameter in other.parameters():
        parameter.data.add_(0.01)
    latents = torch.randn(1, 4, 2, 4, 4)
    with torch.inference_mode():
        undo, _ = apply(vae)
        vae.load_state_dict(other.state_dict())
        error = relative(vae.decode(latents).sample, other.decode(latents).sample)
        undo()
    print(f"relative error {error:.1e}")
    assert error < 1e-5
