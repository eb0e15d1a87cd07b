"""AMD's aiter: finding its functions, quantising for them, saying why they can't serve.

Facts are from aiter's source, releases 0.1.7 to 0.1.19. Its functions reach the GPU through torch's dispatcher or
through ctypes, most of them compiled at their first call (minutes), and its checks end the process where Python would
raise: hence whatever it might reject is refused here. Some ask for the current GPU and not for their tensors', so every
call is made with the tensors' GPU current. Releases add arguments: `arguments` names what the installed one takes.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from typing import TYPE_CHECKING, Any

from accel import advice
from accel.backends.flash_ops import dense, why_not_form
from accel.contract import AttentionCall, Refused
from accel.types import Machine

if TYPE_CHECKING:
    import torch

PACKAGE = "aiter"
CHIPS = {"gfx942": "MI300X, MI325X", "gfx950": "MI350X, MI355X"}
COMES_WITH = advice.AITER
HEAD_SIZE = 128
FEWEST_KEYS = 1024
"""Taken over from an H200 (`fa3_fp8`); not measured on an MI355X, whose memory and products are both faster."""

MOST_BYTES = 2**31
"""Kernels count bytes from a tensor's start in 32 bits."""


def why_not_aiter(machine: Machine, chips: tuple[str, ...], function: str) -> list[str]:
    """Reasons from the machine: no such GPU (nothing else matters then), no such function, or a trial run that
    failed."""
    found = [gpu.arch.split(":")[0] for gpu in machine.usable_gpus()]
    if not set(found) & set(chips):
        there = f"found {', '.join(found)}" if found else "found no GPU that can be used"
        return [f"aiter's {function} runs on {runs_on(chips)}, {there}"]
    package = machine.packages.get(PACKAGE)
    if package is None or not package.installed:
        return [f"aiter is not installed; {advice.AITER}"]
    if not package.importable:
        return [f"{package.reason}; {advice.AITER}"]
    if function not in package.ops:
        return [f"{package.distribution} {package.version} has no {function}; a newer release has"]
    unproved = machine.why_unproved(f"aiter.{function}")
    return [unproved] if unproved else []


def runs_on(chips: tuple[str, ...]) -> str:
    """These chips with the names of the cards that have them."""
    return " and ".join(f"{chip} ({CHIPS[chip]})" for chip in chips)


def chip(device: Any) -> str:
    """The chip of a torch device ("gfx950"), empty when it is no AMD GPU."""
    import torch

    if device.type != "cuda" or not torch.version.hip:
        return ""
    return torch.cuda.get_device_properties(device).gcnArchName.split(":")[0]


def why_not_call(call: AttentionCall, chips: tuple[str, ...]) -> str:
    """Why aiter can't serve this one call in bf16 on `chips`, as one sentence; empty when it can."""
    device = call.query.device
    if chip(device) not in chips:
        return f"the tensors are on {chip(device) or device}, this kernel runs on {' and '.join(chips)}"
    return why_not_form(call, ("bfloat16",))


def why_not_fp8(call: AttentionCall) -> str:
    """As `why_not_call`, for what aiter's FP8 kernels ask on top."""
    query, key = call.query, call.key
    reason = why_not_call(call, ("gfx950",))
    if reason:
        return reason
    if query.shape[3] != HEAD_SIZE:
        return f"head size {query.shape[3]} is not {HEAD_SIZE}"
    if call.causal:
        return "causal attention, this kernel is used without"
    if query.shape[2] != key.shape[2]:
        return f"{query.shape[2]} query heads beside {key.shape[2]} key heads"
    largest = max(query.numel(), key.numel()) * query.element_size()
    return f"a tensor of {largest} bytes, the kernel counts to {MOST_BYTES}" if largest >= MOST_BYTES else ""


def quantised(x: torch.Tensor, width: int = HEAD_SIZE) -> tuple[torch.Tensor, torch.Tensor]:
    """`x` (batch, tokens, heads, head_dim) as e4m3fn (batch * tokens, heads, width), contiguous, zeros behind each
    head, and one float32 scale of shape (1,)."""
    from accel import fp8

    # one item: one scale for the whole tensor
    one = dense(x).flatten(0, 1).unsqueeze(0)
    made, scale = fp8.kernels(x.device).quantise_heads(one, 1, fp8.format_for(x.device), width)
    return made[0].contiguous(), scale.view(1)


def on(device: Any) -> Any:
    """A context in which `device` is the current GPU."""
    import torch

    return torch.cuda.device(device)


def function(name: str) -> Any:
    """One of aiter's functions. Raises Refused when the package or the function is not there."""
    try:
        module = importlib.import_module(PACKAGE)
    except ImportError as error:
        raise Refused(f"aiter does not import: {error}") from error
    found = getattr(module, name, None)
    if found is None:
        raise Refused(f"this aiter has no {name}")
    return found


@functools.cache
def arguments(name: str) -> tuple[str, ...]:
    """Names of the arguments of aiter's function `name`. What it puts into torch's dispatcher hides its signature."""
    import torch

    registered = getattr(torch.ops.aiter, name, None)
    if registered is not None:
        return tuple(argument.name for argument in registered.default._schema.arguments)
    return tuple(inspect.signature(function(name)).parameters)


def first(out: Any) -> Any:
    """The output proper: some releases hand the softmax's sums back with it."""
    return out[0] if isinstance(out, tuple) else out
