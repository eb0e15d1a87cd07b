"""Previews: the estimate of the clean latents is the true one, and the linear colours are close to what the VAE
means.
"""

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from app.engine.latents import normalised
from app.engine.preview import CleanEstimate, LatentColours
from tests import tiny
from tests.app.tiny import build_tiny_pipeline


class TrueDenoiser:
    """Flow matching whose model knows the answer: x_t = (1 - s) x0 + s noise, so the velocity is noise - x0."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(3)
        self.clean = torch.randn(1, 8, 3, 4, 6, generator=generator)
        self.noise = torch.randn(1, 8, 3, 4, 6, generator=generator)

    def estimates(self, scheduler: Any, output: Any, steps: int) -> list[Any]:
        scheduler.set_timesteps(steps)
        scheduler.set_begin_index(0)
        estimate = CleanEstimate(scheduler)
        latents, found = self.noise.clone(), []
        for index, timestep in enumerate(scheduler.timesteps):
            latents = scheduler.step(output, timestep, latents, return_dict=False)[0]
            found.append(estimate.after_step(index, latents))
        return found


def test_unipc_keeps_the_clean_estimate() -> None:
    from diffusers import UniPCMultistepScheduler

    truth = TrueDenoiser()
    scheduler = UniPCMultistepScheduler(prediction_type="sample", use_flow_sigmas=True, flow_shift=3.0)
    for found in truth.estimates(scheduler, truth.clean, steps=4):
        assert torch.equal(found, truth.clean)


def test_flow_matching_estimate_follows_from_two_latents() -> None:
    from diffusers import FlowMatchEulerDiscreteScheduler

    truth = TrueDenoiser()
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    first, *others = truth.estimates(scheduler, truth.noise - truth.clean, steps=5)
    assert first is None, "one latent alone says nothing"
    for found in others:
        error = float((found - truth.clean).abs().max())
        print("max error", error)
        assert error < 1e-5


def test_a_schedule_from_0_to_1_ends_at_1() -> None:
    """Mochi's: x = s x0 + (1 - s) noise, so the velocity is x0 - noise."""
    from diffusers import FlowMatchEulerDiscreteScheduler

    truth = TrueDenoiser()
    scheduler = FlowMatchEulerDiscreteScheduler(invert_sigmas=True)
    _, *others = truth.estimates(scheduler, truth.clean - truth.noise, steps=5)
    for found in others:
        assert float((found - truth.clean).abs().max()) < 1e-5


def test_dpm_solver_keeps_the_clean_estimate() -> None:
    from diffusers import DPMSolverMultistepScheduler

    truth = TrueDenoiser()
    scheduler = DPMSolverMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=8.0)
    for found in truth.estimates(scheduler, truth.noise - truth.clean, steps=4):
        assert float((found - truth.clean).abs().max()) < 1e-2, "its first sigma is not quite 1"


def test_frames_that_are_never_denoised_stay_in_the_estimate() -> None:
    """SANA-Video's picture: its scheduler steps all latent frames but the first."""
    from diffusers import DPMSolverMultistepScheduler

    truth = TrueDenoiser()
    scheduler = DPMSolverMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True)
    scheduler.set_timesteps(2)
    estimate = CleanEstimate(scheduler)
    later = scheduler.step((truth.noise - truth.clean)[:, :, 1:], scheduler.timesteps[0], truth.noise[:, :, 1:])[0]
    found = estimate.after_step(0, torch.cat([truth.clean[:, :, :1], later], dim=2))
    assert float((found - truth.clean).abs().max()) < 1e-2, "its first sigma is not quite 1"


@pytest.mark.parametrize("kind", ["CogVideoXDDIMScheduler", "CogVideoXDPMScheduler"])
def test_cogvideox_schedulers_tell_the_clean_estimate(kind: str) -> None:
    import diffusers

    truth = TrueDenoiser()
    scheduler = getattr(diffusers, kind)(
        prediction_type="v_prediction",
        rescale_betas_zero_snr=True,
        snr_shift_scale=1.0,
        timestep_spacing="trailing",
        clip_sample=False,
    )
    scheduler.set_timesteps(6)
    estimate, latents, old, before = CleanEstimate(scheduler), truth.noise.clone(), None, None
    found = []
    for index, timestep in enumerate(scheduler.timesteps):
        share = scheduler.alphas_cumprod[timestep]
        # the velocity that a model would give which knows the answer
        noise = (latents - share**0.5 * truth.clean) / (1 - share) ** 0.5
        velocity = share**0.5 * noise - (1 - share) ** 0.5 * truth.clean
        if "DPM" in kind:
            latents, old = scheduler.step(velocity, old, timestep, before, latents, return_dict=False)
        else:
            latents = scheduler.step(velocity, timestep, latents, return_dict=False)[0]
        before = timestep
        found.append(estimate.after_step(index, latents))
    told = [one for one in found if one is not None]
    assert len(told) >= 5
    for one in told:
        assert float((one - truth.clean).abs().max()) < 1e-3
    assert {"eta", "generator"} <= set(inspect.signature(scheduler.step).parameters), "pipelines ask for these"


def test_random_steps_tell_nothing() -> None:
    from diffusers import FlowMatchEulerDiscreteScheduler

    truth = TrueDenoiser()
    scheduler = FlowMatchEulerDiscreteScheduler(stochastic_sampling=True)
    assert truth.estimates(scheduler, truth.noise - truth.clean, steps=4) == [None] * 4


def test_a_scheduler_that_tells_nothing_gives_no_picture() -> None:
    assert CleanEstimate(object()).after_step(1, torch.zeros(1)) is None


class AveragingVae:
    """A VAE whose latents are known: the mean colour of each 16x16 block (frame 0 alone, then two frames together)."""

    class Config:
        latents_mean = (0.2, -0.1, 0.0)
        latents_std = (0.5, 2.0, 1.0)

    config = Config()

    def parameters(self) -> Any:
        yield torch.zeros(1)

    def encode(self, pixels: Any, return_dict: bool = True) -> tuple[Any]:
        later = (pixels[:, :, 1::2] + pixels[:, :, 2::2]) / 2
        frames = torch.cat([pixels[:, :, :1], later], dim=2)
        latents = torch.nn.functional.avg_pool3d(frames, (1, 16, 16))
        return (type("Distribution", (), {"mode": lambda self: latents})(),)


def test_colours_are_exact_where_latents_are_colours() -> None:
    """A latent that is the mean colour: the average over each fitted patch must come out as that colour."""
    colours = LatentColours.fit(AveragingVae())
    shown = torch.tensor([0.25, 0.5, 0.75])
    config = AveragingVae.config
    latents = ((shown * 2 - 1) - torch.tensor(config.latents_mean)) / torch.tensor(config.latents_std)
    picture = colours.picture(latents.view(1, 3, 1, 1, 1).expand(1, 3, 2, 3, 4))
    assert picture.dtype == np.uint8
    assert picture.shape == (2, 3 * 4, 4 * 4, 3)
    mean = picture.reshape(-1, 3).mean(axis=0) / 255
    print("mean colour", mean)
    assert np.abs(mean - shown.numpy()).max() < 0.01


def test_colours_are_fitted_where_a_vae_is_moved_to_when_it_works() -> None:
    """Its hook moves the VAE alone, so the pictures must be there already."""
    asked: list[torch.device] = []

    class Moved(AveragingVae):
        _hf_hook = type("Turn", (), {"execution_device": torch.device("meta")})()

        def encode(self, pixels: Any, return_dict: bool = True) -> tuple[Any]:
            asked.append(pixels.device)
            return super().encode(torch.zeros(pixels.shape), return_dict)

    LatentColours.fit(Moved())
    assert set(asked) == {torch.device("meta")}


def test_fit_on_a_real_vae_is_repeatable_and_leaves_random_numbers_alone() -> None:
    torch.manual_seed(0)
    vae = build_tiny_pipeline().vae
    before = torch.get_rng_state()
    first, second = LatentColours.fit(vae), LatentColours.fit(vae)
    assert torch.equal(before, torch.get_rng_state())
    latents = torch.randn(1, 8, 3, 2, 4, generator=torch.Generator().manual_seed(1))
    assert first.picture(latents).shape == (3, 8, 16, 3)
    assert np.array_equal(first.picture(latents), second.picture(latents))


@pytest.mark.parametrize(
    ("name", "dots"),
    [("wan-t2v", 2), ("wan-ti2v", 4), ("ltx", 8), ("hunyuan", 2), ("hunyuan-15", 4), ("cogvideox-2b", 2), ("mochi", 2)],
)
def test_every_kind_of_vae_gets_colours(name: str, dots: int) -> None:
    """One dot for 4 x 4 pixels of the clip."""
    vae = tiny.build(name).vae
    channels = vae.config.get("z_dim") or vae.config.latent_channels
    latents = torch.randn(1, channels, 2, 3, 4, generator=torch.Generator().manual_seed(1))
    picture = LatentColours.fit(vae).picture(latents)
    assert picture.shape == (2, 3 * dots, 4 * dots, 3)
    assert picture.std() > 1


def test_fitted_once_then_kept_until_the_weights_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, cache = tmp_path / "vae", tmp_path / "cache"
    folder.mkdir()
    cache.mkdir()
    weights = folder / "weights"
    weights.write_bytes(b"1")
    fits: list[Any] = []
    fit = LatentColours.fit

    def counted(vae: Any) -> LatentColours:
        fits.append(vae)
        return fit(vae)

    monkeypatch.setattr(LatentColours, "fit", counted)
    latents = torch.ones(1, 3, 1, 2, 2)
    first = LatentColours.of(AveragingVae(), folder, cache).picture(latents)
    assert np.array_equal(first, LatentColours.of(AveragingVae(), folder, cache).picture(latents))
    assert len(fits) == 1
    (kept,) = cache.iterdir()
    kept.write_bytes(b"not what was kept")
    assert np.array_equal(first, LatentColours.of(AveragingVae(), folder, cache).picture(latents))
    assert len(fits) == 2, "a spoilt cache is made again"
    weights.write_bytes(b"22")
    LatentColours.of(AveragingVae(), folder, cache)
    assert len(fits) == 3
    LatentColours.of(AveragingVae(), folder, tmp_path / "not-there")
    assert len(fits) == 4, "a cache that can't be written costs time, no more"


def test_numbers_that_are_none_make_a_picture_still() -> None:
    colours = LatentColours(np.ones((3, 3)), patch=1)
    latents = torch.full((1, 2, 1, 1, 2), float("nan"))
    assert colours.picture(latents).shape == (1, 1, 2, 3)


def test_factors_must_fit_the_patch() -> None:
    with pytest.raises(ValueError, match="12"):
        LatentColours(np.ones((3, 3)), patch=2)


@pytest.mark.skipif(
    not (Path(__file__).parents[3] / "app" / "starter" / "weights" / "vae").is_dir(), reason="needs the starter"
)
def test_starter_colours_explain_its_pictures() -> None:
    """On pictures that were not fitted, the map must tell colours better than the mean colour does."""
    from diffusers import AutoencoderKLWan

    from app.engine import preview

    vae = AutoencoderKLWan.from_pretrained(
        Path(__file__).parents[3] / "app" / "starter" / "weights", subfolder="vae", torch_dtype=torch.float32
    )
    colours = LatentColours.fit(vae)
    clip = preview._drawn_clip(np.random.default_rng(99))
    with torch.no_grad():
        pixels = torch.from_numpy(clip * 2 - 1).permute(3, 0, 1, 2)[None]
        latents = normalised(vae, vae.encode(pixels, return_dict=False)[0].mode())
    shown = colours.picture(latents)[0] / 255
    wanted = clip[0].reshape(shown.shape[0], 4, shown.shape[1], 4, 3).mean(axis=(1, 3))
    explained = 1 - ((shown - wanted) ** 2).mean() / ((wanted - wanted.mean(axis=(0, 1))) ** 2).mean()
    print("share of the variance explained", explained)
    assert explained > 0.05
