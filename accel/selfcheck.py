"""Correctness of every backend usable on this machine, against float64: `python -m accel.selfcheck`.

A sweep over head sizes, token counts, batches, cross attention, strided inputs and inner dimensions that are no
multiple of 32, with one NaN row that must not leak. Errors are relative (Frobenius norm of the difference over that
of the float64 result, both from the same rounded inputs), worst case per line. Every call goes through the custom
ops, so the counters are checked as well: a supported call must be served, an unsupported one must fall back, counted,
and be right.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.nn.functional as F

from accel.backends import REGISTRY
from accel.backends.amx_attention import HEAD_SIZES
from accel.backends.runtime import AttentionCall
from accel.backends.sdpa import attend
from accel.convolutions import swap_convolutions
from accel.linears import pack_linears
from accel.ops import ATTENTION, AttentionSlot, attention
from accel.report import Tally
from accel.types import Machine, StageTraits

TOKENS = (1, 15, 17, 127, 255, 257, 1560)
HEADS = (*HEAD_SIZES, 16, 40, 80, 272)  # the last four are sizes that kernels refuse
BATCHES = (1, 3)
CROSS_TOKENS = 77
INNER = (31, 32, 33, 64, 80, 144, 1536)
OUTER = (8, 16, 17, 64, 96, 1536)

# Worst relative error that passes. bf16 rounds to 2**-9 = 2e-3, fp16 to 5e-4, per operand and result; int8 dynamic
# quantisation of normal numbers gives about 1.3 % (per token 0.8 %), 2.5 % without VNNI.
LIMITS = {"float32": 1e-5, "bfloat16": 1e-2, "float16": 2e-3, "int8": 4e-2}


class Writer(Protocol):
    def write(self, text: str, /) -> object: ...


@dataclass
class Line:
    """One line of the table: all cases of one group with one backend and dtype."""

    backend: str
    dtype: str
    group: str
    limit: float
    cases: int = 0
    served: int = 0
    worst: float = 0.0
    faults: list[str] = field(default_factory=list)

    def add(self, case: str, error: float, served: bool) -> None:
        self.cases += 1
        self.served += served
        if not error <= self.limit:  # NaN fails as well
            self.faults.append(f"{case}: relative error {error:.2e}, limit {self.limit:.0e}")
        self.worst = max(self.worst, error) if error == error else float("nan")

    def expect(self, condition: bool, fault: str) -> None:
        if not condition:
            self.faults.append(fault)

    def text(self) -> str:
        verdict = f"{len(self.faults)} FAULTS" if self.faults else "right"
        return (
            f"{self.backend:<20}{self.dtype:<10}{self.group:<30}{self.cases:>6}{self.served:>8}"
            f"{self.worst:>11.1e}{self.limit:>9.0e}  {verdict}"
        )


HEADER = f"{'backend':<20}{'dtype':<10}{'cases of':<30}{'cases':>6}{'served':>8}{'worst':>11}{'limit':>9}  verdict"


def relative(got: torch.Tensor, want: torch.Tensor) -> float:
    """Relative error in float64; infinite when `got` is NaN somewhere that `want` is not."""
    got, want = got.double(), want.double()
    return float((got - want).norm() / want.norm().clamp_min(1e-30))


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


# -- attention -------------------------------------------------------------------------------------------------------


def attention_lines(backend: Any, tokens: Sequence[int], heads: Sequence[int]) -> Iterator[Line]:
    for name in backend.dtypes:
        dtype = getattr(torch, name)
        supported = [size for size in heads if backend.reference or size in HEAD_SIZES]
        unsupported = [size for size in heads if size not in supported]
        yield _attend_line(backend, dtype, "self attention", supported, tokens, None)
        yield _attend_line(backend, dtype, "cross attention", supported, tokens, CROSS_TOKENS)
        if unsupported:
            yield _attend_line(backend, dtype, "unsupported head sizes", unsupported, tokens, CROSS_TOKENS)
        yield _strided_line(backend, dtype)
        yield _masked_line(backend, dtype)
        yield _nan_attention_line(backend, dtype)


def _run(
    backend: Any, line: Line, case: str, call: AttentionCall, want: torch.Tensor, serve: bool | None = True
) -> torch.Tensor:
    """The call through the op, compared and counted. `serve`: whether it must be served, None when either is right."""
    tally = Tally("check", "attention", backend.name)
    slot = ATTENTION.add(AttentionSlot(backend, tally))
    try:
        got = attention(call.query, call.key, call.value, call.mask, call.scale, call.causal, slot)
    finally:
        ATTENTION.remove(slot)
    line.add(case, relative(got, want), bool(tally.served_calls))
    line.expect(tally.calls == 1, f"{case}: counted {tally.calls} calls")
    if serve is not None:
        line.expect(
            bool(tally.served_calls) == serve, f"{case}: {'not served' if serve else 'served'}: {tally.summary()}"
        )
    return got


def _exact(call: AttentionCall) -> torch.Tensor:
    mask = call.mask if call.mask is None or call.mask.dtype == torch.bool else call.mask.double()
    query, key, value = call.query.double(), call.key.double(), call.value.double()
    return attend(AttentionCall(query, key, value, mask, call.scale, call.causal))


def _line(backend: Any, dtype: torch.dtype, group: str) -> Line:
    name = str(dtype).removeprefix("torch.")
    return Line(backend.name, name, group, LIMITS[name if backend.exact else "int8"])


def _attend_line(
    backend: Any, dtype: torch.dtype, group: str, sizes: Sequence[int], tokens: Sequence[int], kv: int | None
) -> Line:
    line, serve = _line(backend, dtype, group), "unsupported" not in group
    for size in sizes:
        for count in tokens:
            for batch in BATCHES:
                q = random(batch, count, 2, size, dtype=dtype, seed=1)
                k, v = (random(batch, kv or count, 2, size, dtype=dtype, seed=seed) for seed in (2, 3))
                call = AttentionCall(q, k, v, scale=0.2 if count == 17 else None)
                _run(
                    backend,
                    line,
                    f"{batch} x {count} tokens, {kv or count} keys, 2 x {size}",
                    call,
                    _exact(call),
                    serve,
                )
    return line


def _strided_line(backend: Any, dtype: torch.dtype) -> Line:
    """Inputs as models may hand them over: transposed, sliced out of a fused projection, expanded, with a stride
    inside.
    """
    line, (b, s, h, d) = _line(backend, dtype, "strided inputs"), (3, 33, 2, 64)
    fused = random(b, s, 3 * h * d, dtype=dtype).unflatten(-1, (3, h, d))
    turned = random(b, h, s, d, dtype=dtype, seed=1).transpose(1, 2)
    inner = random(b, s, h, 2 * d, dtype=dtype, seed=2)[..., ::2]
    one = random(1, s, h, d, dtype=dtype, seed=3).expand(b, s, h, d)
    forms = {"fused": fused[:, :, 0], "transposed": turned, "inner stride": inner, "expanded": one}
    for name, form in forms.items():
        for other in (form, fused[:, :, 1]):
            call = AttentionCall(form, other, fused[:, :, 2])
            _run(backend, line, name, call, _exact(call))
    return line


def _masked_line(backend: Any, dtype: torch.dtype) -> Line:
    """A mask must be obeyed or refused, never dropped."""
    line, (b, s, h, d) = _line(backend, dtype, "masks"), (3, 17, 2, 64)
    q, k, v = (random(b, s, h, d, dtype=dtype, seed=seed) for seed in (1, 2, 3))
    row = torch.ones(b, s, dtype=torch.bool)
    row[0, 13:], row[1, ::2] = False, False
    hiding = torch.where(row, 0.0, -10000.0).to(dtype)
    triangle = torch.ones(s, s, dtype=torch.bool).tril().expand(b, 1, s, s)
    masks = {
        "a row per item": (row, None),
        "keys hidden": (row[:, None, None], None),
        "keys at -10000": (hiding[:, None, None].expand(b, h, 1, s), None),
        "a mask per query": (triangle, False),
        "weights": (random(b, 1, 1, s, dtype=dtype, seed=4), False),
    }
    for name, (mask, serve) in masks.items():
        call = AttentionCall(q, k, v, mask)
        _run(backend, line, name, call, _exact(call), True if backend.reference else serve)
    causal = AttentionCall(q, k, v, causal=True)
    _run(backend, line, "causal", causal, _exact(causal))
    return line


def _nan_attention_line(backend: Any, dtype: torch.dtype) -> Line:
    """One NaN query must spoil its own row alone, one NaN key its own item of the batch alone."""
    line, (b, h, d) = _line(backend, dtype, "one NaN row"), (3, 2, 64)
    for tokens, keys in ((17, 17), (33, 801), (257, 800)):
        q = random(b, tokens, h, d, dtype=dtype, seed=1)
        k, v = (random(b, keys, h, d, dtype=dtype, seed=seed) for seed in (2, 3))
        want = _exact(AttentionCall(q, k, v))
        q_nan, k_nan = q.clone(), k.clone()
        q_nan[0, 5], k_nan[0, 5] = float("nan"), float("nan")
        for name, call in (("query", AttentionCall(q_nan, k, v)), ("key", AttentionCall(q, k_nan, v))):
            tally = Tally("check", "attention", backend.name)
            slot = ATTENTION.add(AttentionSlot(backend, tally))
            got = attention(call.query, call.key, call.value, None, None, False, slot)
            ATTENTION.remove(slot)
            clean = torch.ones(b, tokens, dtype=torch.bool)
            clean[0, 5 if name == "query" else slice(None)] = False
            line.add(f"a NaN {name}, {keys} keys", relative(got[clean], want[clean]), bool(tally.served_calls))
    return line


# -- linears ---------------------------------------------------------------------------------------------------------


def linear_lines(backend: Any, tokens: Sequence[int], inner: Sequence[int], outer: Sequence[int]) -> Iterator[Line]:
    for name in backend.dtypes:
        dtype = getattr(torch, name)
        yield _linear_line(backend, dtype, [k for k in inner if k % 32 == 0], outer, tokens, "linears")
        yield _linear_line(backend, dtype, [k for k in inner if k % 32], outer, tokens, "linears, inner % 32 != 0")


def _linear_line(
    backend: Any, dtype: torch.dtype, inner: Sequence[int], outer: Sequence[int], tokens: Sequence[int], group: str
) -> Line:
    """Each weight with and without bias, batches, a strided input, a NaN row; then unpacked, bit for bit."""
    line = _line(backend, dtype, group)
    for ins in inner:
        for outs in outer:
            torch.manual_seed(ins * outs)
            linear: Any = torch.nn.Linear(ins, outs, bias=outs % 16 == 0).to(dtype).requires_grad_(False)
            model = torch.nn.ModuleDict({"blocks": torch.nn.ModuleList([linear])})
            before = linear.weight.clone()
            tally = Tally("check", "linear", backend.name)
            packed = pack_linears(model, backend, tally, None)
            if not packed.packed:
                continue
            for count in tokens:
                for batch in BATCHES:
                    _one_linear(line, linear, before, batch, count, tally)
            packed.undo()
            line.expect(torch.equal(linear.weight, before), f"{ins} -> {outs}: not restored bit for bit")
    return line


def _one_linear(line: Line, linear: Any, weight: torch.Tensor, batch: int, count: int, tally: Tally) -> None:
    dtype, ins = weight.dtype, weight.shape[1]
    bias = None if linear.bias is None else linear.bias.double()
    inputs = (
        random(batch, ins, count, dtype=dtype).transpose(1, 2)
        if count == 17
        else random(batch, count, ins, dtype=dtype)
    )
    case = f"{batch} x {count}: {ins} -> {weight.shape[0]}"
    want = F.linear(inputs.double(), weight.double(), bias)
    served = tally.served_calls
    line.add(case, relative(linear(inputs), want), tally.served_calls > served)
    line.expect(tally.served_calls == served + 1, f"{case}: not served: {tally.summary()}")
    if count > 1:
        dirty = inputs.clone()
        dirty[0, count // 2] = float("nan")
        got, clean = linear(dirty), torch.ones(batch, count, dtype=torch.bool)
        clean[0, count // 2] = False
        line.add(case + ", one NaN row", relative(got[clean], want[clean]), tally.served_calls > served + 1)


# -- convolutions ----------------------------------------------------------------------------------------------------


def convolution_lines(backend: Any) -> Iterator[Line]:
    for name in backend.dtypes:
        yield _convolution_line(backend, getattr(torch, name))
        yield _decode_line(backend, getattr(torch, name))


def _convolution_line(backend: Any, dtype: torch.dtype) -> Line:
    line = _line(backend, dtype, "conv3d")
    shapes = [
        (8, 16, 3, 1, 1),
        (16, 8, 1, 0, 1),
        (12, 12, 3, 0, 2),
        (16, 16, (3, 1, 1), 0, 1),
        (4, 20, (1, 3, 3), (0, 1, 1), 1),
    ]
    for ins, outs, kernel, padding, stride in shapes:
        for zero in (None, slice(0, 1), slice(0, 2), slice(2, 3)):
            torch.manual_seed(ins)
            conv: Any = torch.nn.Conv3d(ins, outs, kernel, stride, padding).to(dtype).requires_grad_(False)  # type: ignore[arg-type]
            if zero is not None:
                conv.weight[:, :, zero] = 0
            for batch, frames in ((1, 4), (3, 5)):
                inputs = random(batch, ins, frames, 9, 11, dtype=dtype)
                wide = inputs.double(), conv.weight.double(), conv.bias.double()
                want = F.conv3d(*wide, conv.stride, conv.padding)
                for last in (False, True):
                    undo = swap_convolutions(conv, Tally("check", "vae", backend.name), backend.dtypes, last)
                    line.add(
                        f"{batch} x {ins} -> {outs}, kernel {kernel}, taps {zero}", relative(conv(inputs), want), True
                    )
                    undo()
    return line


def _decode_line(backend: Any, dtype: torch.dtype) -> Line:
    """A whole small Wan VAE, encoded and decoded, cached frames and all."""
    from diffusers import AutoencoderKLWan

    torch.manual_seed(0)
    widths = {"base_dim": 8, "z_dim": 4, "dim_mult": [1, 2, 2], "num_res_blocks": 1}
    statistics = {"latents_mean": [0.0] * 4, "latents_std": [1.0] * 4}
    vae: Any = AutoencoderKLWan(temperal_downsample=[False, True], **widths, **statistics).eval()
    line = _line(backend, dtype, "Wan VAE, both ways")
    # errors of a whole network: each of some twenty layers rounds
    line.limit *= 5
    clip, latents = random(1, 3, 5, 32, 32, dtype=dtype, seed=1), random(1, 4, 3, 8, 8, dtype=dtype, seed=2)
    with torch.inference_mode():
        torch.nn.Module.to(vae, dtype).double()  # the reference starts from the same rounded weights
        exact = vae.decode(latents.double()).sample, vae.encode(clip.double()).latent_dist.mean
        torch.nn.Module.to(vae, dtype)
        tally = Tally("check", "vae", backend.name)
        undo = backend.apply(vae, tally)
        got = vae.decode(latents).sample, vae.encode(clip).latent_dist.mean
        undo()
    for name, ours, theirs in zip(("decode", "encode"), got, exact, strict=True):
        line.add(name, relative(ours, theirs), bool(tally.served_calls))
    return line


# -- all of it -------------------------------------------------------------------------------------------------------

Lines = Callable[[Any, bool], Iterator[Line]]


def lines_for(backend: Any, quick: bool) -> Iterator[Line]:
    """The table's lines for one backend, as they are computed. `quick` leaves out the large shapes."""
    tokens = tuple(count for count in TOKENS if count < 256) if quick else TOKENS
    if backend.kind == "attention":
        yield from attention_lines(backend, tokens, (32, 128, 40) if quick else HEADS)
    elif backend.kind == "linear" and not backend.reference:
        small = [k for k in INNER if k < 256], [n for n in OUTER if n < 256]
        yield from linear_lines(backend, tokens, *(small if quick else (INNER, OUTER)))
    elif backend.kind == "vae" and not backend.reference:
        yield from convolution_lines(backend)


def run_sweep(out: Writer, machine: Machine | None = None, quick: bool = False) -> int:
    """Write the table to `out`; 0 when every case of every usable CPU backend was right, 1 otherwise."""
    if machine is None:
        from accel.probe import probe

        machine = probe()
    faults = 0
    out.write(f"{machine.cpu.model}, {machine.cores.usable} cores, torch {torch.__version__}\n{HEADER}\n")
    for backend in REGISTRY:
        if "cpu" not in backend.devices:
            continue
        reasons = backend.why_not(
            machine, StageTraits("vae" if backend.kind == "vae" else "transformer", "check", conv3d=1)
        )
        if reasons:
            out.write(f"{backend.name:<20}can't run here: {'; '.join(reasons)}\n")
            continue
        with torch.inference_mode():
            for line in lines_for(backend, quick):
                out.write(line.text() + "\n")
                faults += len(line.faults)
                for fault in line.faults[:5]:
                    out.write(f"    {fault}\n")
    out.write(f"{faults} faults\n" if faults else "every case was right\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(run_sweep(sys.stdout, quick="--quick" in sys.argv))
