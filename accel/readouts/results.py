"""What a readout says, as plain data, and the rules by which a winner is called.

The JSON form is `Results.to_dict()`: versioned (`schema`), so that people can share files. Times are in seconds, memory
in bytes, speeds in TFLOP/s (10**12 operations of the products alone per second), errors relative (L2 norm of the
difference over that of the exact result). None means "not measured".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from accel.types import AsData, Kind, StageName

SCHEMA = 1
"""Raised when a field changes its meaning or goes. New ones leave it as it is: readers ignore what they don't know."""

GAIN = 1.05
"""Speed-ups below this read "no gain"."""

LIMITS = {"float32": 1e-4, "bfloat16": 2e-2, "float16": 4e-3}
"""Relative error from which an exact backend is wrong: some times what the format's rounding gives."""

APPROXIMATE_LIMIT = 0.1
"""The same for approximate backends. int8 linears give 0.8 to 2.5 %, FP8 attention of pure noise 5.4 %."""

AUTOMATIC = "automatic"
"""The plan that `auto` chooses; with what else is tried out in it, "automatic with sdpa"."""

QUIET = 0.15
"""Part of all cores that other programs may use before figures count as noisy."""

PSNR, SSIM = 30.0, 0.95
"""What an approximate backend's clips must reach against the reference plan's before `auto` may take it."""

PROMPTS = 20
"""Prompts that must have been compared for that."""

Verdict = Literal["reference", "faster", "no gain", "unclear", "slower", "wrong", "not served", "failed"]
"""faster: at least GAIN, and outside the spread; unclear: as fast, inside the spread; wrong: its error is beyond its
limit; not served: the call fell back to the reference."""


@dataclass(frozen=True)
class Spread(AsData):
    """Median and quartiles of `repeats` samples, taken in turns with the competitors': seconds, or a ratio of them."""

    median: float
    low: float
    high: float
    repeats: int

    @property
    def width(self) -> float:
        """Distance of the quartiles, as a part of the median."""
        return (self.high - self.low) / self.median if self.median else 0.0


def limit(exact: bool, dtype: str) -> float:
    """The relative error from which a backend that runs in `dtype` counts as wrong."""
    return LIMITS[dtype] if exact else APPROXIMATE_LIMIT


def judged(gain: Spread) -> Verdict:
    """The verdict on a gain over the reference: no winner is called while its quartiles lie around 1."""
    if gain.median >= GAIN:
        return "faster" if gain.low > 1 else "unclear"
    if gain.median > 1 / GAIN:
        return "no gain"
    return "slower" if gain.high < 1 else "unclear"


@dataclass(frozen=True)
class Call(AsData):
    """One kind of call that a model makes, as it was recorded.

    sizes: attention has batch, tokens, kv_tokens, heads, kv_heads, head_dim; a linear rows, in_features, out_features,
    bias (0 or 1); a VAE block channels, frames, height, width. mask: "" without one, "keys" where it hides keys alone,
    "queries" where it differs per query. count: how often one pass of the stage makes it. blocks: inside the repeated
    blocks. flops: floating point operations of one call, of its products. share: 1, or the part that is measured in
    its place where the whole would take too long (fewer heads, rows or lines of the picture).
    """

    stage: StageName
    kind: Kind
    title: str
    sizes: dict[str, int]
    flops: float
    count: int = 1
    mask: str = ""
    blocks: bool = True
    share: float = 1.0

    @property
    def weight(self) -> float:
        """How many of the measured calls make up the stage's."""
        return self.count / self.share


@dataclass(frozen=True)
class Row(AsData):
    """One backend in one dtype at one call.

    gain: how many times as fast as torch in the same dtype, which the verdict is about; speedup: the same against torch
    in the plan's dtype, over_fp32: in float32, medians. teraflops: of the products, and
    share_of_peak what part of this machine's measured peak for the numbers it computes with that is. memory: most bytes
    the call took beside its inputs. executed: the kernels that ran, by the profiler's word. served: of `calls`, as the
    op counted them; fallback: why not.
    """

    call: Call
    backend: str
    title: str
    dtype: str
    device: str
    exact: bool
    verdict: Verdict
    time: Spread | None = None
    gain: Spread | None = None
    speedup: float | None = None
    over_fp32: float | None = None
    teraflops: float | None = None
    share_of_peak: float | None = None
    error: float | None = None
    memory: int | None = None
    executed: str = ""
    served: int = 0
    calls: int = 0
    fallback: str = ""
    note: str = ""


@dataclass(frozen=True)
class Peak(AsData):
    """The fastest product seen on this machine. how: which product, such as "2048 x 2048 x 2048 by torch.mm"."""

    device: str
    dtype: str
    teraflops: float
    how: str


@dataclass(frozen=True)
class Clip(AsData):
    """A whole clip with one plan. seconds: load, text, denoise, decode, total; per_step: denoise over steps.

    psnr (decibels; 100 for equal frames) and ssim: of its frames against the reference plan's, None for itself.
    predicted: seconds for the person's own preset with this plan. engaged: the plan in a few words.
    """

    plan: str
    engaged: str
    dtype: str
    seconds: dict[str, float]
    per_step: float
    steps: int
    predicted: float
    psnr: float | None = None
    ssim: float | None = None
    served: int = 0
    calls: int = 0
    rounds: int = 1
    failed: str = ""


@dataclass(frozen=True)
class Quality(AsData):
    """Clips of one model with an approximate backend against the reference plan's, over `prompts` prompts.

    psnr: of the mean squared error over all frames of all clips; ssim: the mean; worst_*: of a single clip.
    """

    model: str
    stage: StageName
    kind: Kind
    backend: str
    prompts: int
    psnr: float
    ssim: float
    worst_psnr: float
    worst_ssim: float
    size: str = ""

    @property
    def why_not(self) -> str:
        """Why these clips don't allow `auto` to take the backend, as a clause; empty when they do."""
        if self.prompts < PROMPTS:
            return f"its clips were compared for {self.prompts} prompts only, not {PROMPTS}"
        if self.psnr < PSNR or self.ssim < SSIM:
            found = f"{self.psnr:.1f} dB and {self.ssim:.3f} SSIM"
            return f"its clips reach {found} against the reference plan, {PSNR:.0f} dB and {SSIM} are wanted"
        return ""


@dataclass(frozen=True)
class Measurement(AsData):
    """One benchmark of one model at one size.

    classes and dtypes: per stage, the shape class (`ranking.shape_class`) and the plan's dtype. busy: the part of all
    cores that other programs used meanwhile, None where that can't be told. notes: what was left out, and why.
    """

    model: str
    title: str
    when: str
    quick: bool
    classes: dict[str, str]
    dtypes: dict[str, str]
    rows: tuple[Row, ...] = ()
    clips: tuple[Clip, ...] = ()
    notes: tuple[str, ...] = ()
    busy: float | None = None
    took: float = 0.0

    @property
    def quiet(self) -> bool:
        """Whether nothing else kept the machine busy, as far as that can be told."""
        return self.busy is None or self.busy <= QUIET

    @property
    def key(self) -> tuple[str, bool, tuple[tuple[str, str], ...]]:
        """A later measurement with the same key takes this one's place."""
        return self.model, self.quick, tuple(sorted(self.classes.items()))


@dataclass(frozen=True)
class Place(AsData):
    """The machine and packages that figures belong to; figures of another place count for nothing here."""

    fingerprint: str
    name: str
    versions: dict[str, str]


@dataclass(frozen=True)
class Results(AsData):
    """All readouts of one machine with one set of package versions: the file that is kept and shared."""

    place: Place
    schema: int = SCHEMA
    peaks: tuple[Peak, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    qualities: tuple[Quality, ...] = ()

    def peak(self, device: str, dtype: str) -> float | None:
        """TFLOP/s, None when it was not measured."""
        return next((item.teraflops for item in self.peaks if (item.device, item.dtype) == (device, dtype)), None)

    def with_measurement(self, made: Measurement) -> Results:
        """With `made` in the place of an earlier one of the same model and shapes."""
        others = tuple(one for one in self.measurements if one.key != made.key)
        return replace(self, measurements=(*others, made))

    def with_qualities(self, found: tuple[Quality, ...]) -> Results:
        new = {(one.model, one.stage, one.kind, one.backend) for one in found}
        kept = (one for one in self.qualities if (one.model, one.stage, one.kind, one.backend) not in new)
        return replace(self, qualities=(*kept, *found))

    def with_peaks(self, found: tuple[Peak, ...]) -> Results:
        """With whatever is faster than what was seen before."""
        best = {(one.device, one.dtype): one for one in self.peaks}
        for one in found:
            known = best.get((one.device, one.dtype))
            if known is None or one.teraflops > known.teraflops:
                best[one.device, one.dtype] = one
        return replace(self, peaks=tuple(best.values()))
