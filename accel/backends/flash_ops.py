"""FlashAttention-3 out of SGLang's CUDA kernels: finding its library, calling its operator, saying why that can't be.

`torch.ops.sgl_kernel.fwd` is registered by `flash_ops` alone, one of several libraries in the package, 1 GB large. So
that library is loaded, at the first call, and the package (which imports all of them) is not. Releases add arguments,
hence every call is bound by the names in the operator's own schema.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import re
from pathlib import Path
from typing import Any

from accel import advice
from accel.contract import AttentionCall, Refused
from accel.types import Machine, StageTraits

PACKAGE, LIBRARY, OPERATOR = "sgl_kernel", "flash_ops*", "fwd"
ARCH = "sm_90"
RUNS_ON = "Hopper GPUs (H100, H200, GH200)"
COMES_WITH = advice.SGL_HOPPER
HEAD_SIZES = (64, 128)
"""Head sizes that were compared with float64 on an H200."""

DEFAULTS: dict[str, Any] = {
    "window_size_left": -1,
    "window_size_right": -1,
    "softcap": 0.0,
    "is_rotary_interleaved": False,
    "num_splits": 1,
    "sm_margin": 0,
    "attention_chunk": 0,
    "only_qv": False,
}
"""Values that mean "as usual" for arguments that are neither ours nor optional, over all releases read."""


def why_not_flash(machine: Machine, proof: str) -> list[str]:
    """Reasons from the machine: no such GPU (nothing else matters then), no package, or a trial run that failed."""
    found = [gpu.arch for gpu in machine.usable_gpus()]
    if ARCH not in found:
        there = f"found {', '.join(found)}" if found else "found no GPU that can be used"
        return [f"FlashAttention-3 runs on compute capability 9.0 (H100, H200, GH200), {there}"]
    package = machine.packages.get(PACKAGE)
    if package is None or not package.installed:
        return [f"sgl_kernel is not installed; {advice.SGL_HOPPER}"]
    unproved = machine.why_unproved(proof)
    return [unproved] if unproved else []


def why_not_head(size: int) -> str:
    return "" if size in HEAD_SIZES else f"head size {size} is not {' or '.join(str(known) for known in HEAD_SIZES)}"


def why_not_stage(traits: StageTraits) -> list[str]:
    """Why the heads of a whole stage can't be served, as far as their size is known."""
    reason = why_not_head(traits.head_dim) if traits.head_dim else ""
    return [reason] if reason else []


def scale_of(call: AttentionCall) -> float:
    """The softmax scale, from the model's own head size: zeros behind a head change no product."""
    return call.query.shape[3] ** -0.5 if call.scale is None else float(call.scale)


def capability(device: Any) -> tuple[int, int]:
    """Compute capability of a torch device, (0, 0) when it is no NVIDIA GPU."""
    import torch

    return torch.cuda.get_device_capability(device) if device.type == "cuda" and not torch.version.hip else (0, 0)


def why_not_call(call: AttentionCall, dtypes: tuple[str, ...]) -> str:
    """Why this one call can't be served, as one sentence; empty when it can."""
    if capability(call.query.device) != (9, 0):
        return f"the tensors are on {call.query.device}, this kernel runs on compute capability 9.0"
    return why_not_form(call, dtypes) or why_not_head(call.query.shape[3])


def why_not_form(call: AttentionCall, dtypes: tuple[str, ...]) -> str:
    """What kernels of this kind take, whoever made them: one dtype, no mask, key heads that divide the query's."""
    query, key, value = call.query, call.key, call.value
    dtype = str(query.dtype).removeprefix("torch.")
    if dtype not in dtypes:
        return f"{dtype} input, this kernel is used in {' and '.join(dtypes)}"
    if key.dtype != query.dtype or value.dtype != query.dtype:
        return "query, key and value differ in dtype"
    if call.mask is not None:
        return "a mask, this kernel has no mask argument"
    if query.shape[1] == 0 or key.shape[1] == 0:
        return "no tokens"
    if query.shape[2] % key.shape[2]:
        return f"{query.shape[2]} query heads are no multiple of {key.shape[2]} key heads"
    if call.causal and query.shape[1] != key.shape[1]:
        return "causal attention with different query and key lengths"
    if value.shape[3] != query.shape[3]:
        return f"value heads of {value.shape[3]} beside query heads of {query.shape[3]}"
    return ""


def attend(query: Any, key: Any, value: Any, scale: float, causal: bool, **descales: Any) -> Any:
    """The kernel on (batch, tokens, heads, head_dim), last dim contiguous; bf16 (or the query's fp16) out.

    descales: `q_descale`, `k_descale`, `v_descale`, float32 (batch, kv_heads), for FP8 input.
    """
    given = {"q": query, "k": key, "v": value, "softmax_scale": scale, "is_causal": causal, **descales}
    op = operator()
    bound = {argument.name: _bound(argument, given) for argument in op._schema.arguments}
    by_name = {argument.name for argument in op._schema.arguments if argument.kwarg_only}
    positional = [value for name, value in bound.items() if name not in by_name]
    return op(*positional, **{name: bound[name] for name in by_name})[0]


def _bound(argument: Any, given: dict[str, Any]) -> Any:
    if argument.name in given:
        return given[argument.name]
    if argument.name in DEFAULTS:
        return DEFAULTS[argument.name]
    if argument.has_default_value():
        return argument.default_value
    if argument.type.kind() == "OptionalType":
        return None
    raise Refused(f"this release of sgl_kernel wants {argument.name}, which is not known here")


def operator() -> Any:
    """`torch.ops.sgl_kernel.fwd.default`, its library loaded when it is not there yet. Raises Refused."""
    import torch

    found = getattr(torch.ops.sgl_kernel, OPERATOR, None)
    if found is None:
        reason = _load()
        found = getattr(torch.ops.sgl_kernel, OPERATOR, None)
        if found is None:
            raise Refused(reason or f"{LIBRARY} registers no {OPERATOR}")
    return found.default


@functools.cache
def _load() -> str:
    """Load the library, once per process. Returns why that failed, empty when it did not."""
    import torch

    spec = importlib.util.find_spec(PACKAGE)
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    paths = sorted(path for place in places for path in Path(place).glob(f"{LIBRARY}.so"))
    if not paths:
        return f"sgl_kernel holds no {LIBRARY}.so; {advice.SGL_HOPPER}"
    missing = ""
    while True:
        try:
            torch.ops.load_library(paths[0])
            return ""
        except OSError as error:
            # torch puts a sentence of its own over the loader's
            reason, before = " ".join(str(error.__cause__ or error).split())[:200], missing
            missing = next(iter(re.findall(r"^(\S+): cannot open shared object", reason)), "")
            if not missing or missing == before or not _preload(missing):
                return f"{paths[0].name} does not load: {reason}; {advice.SGL_HOPPER}"


def _preload(name: str) -> bool:
    """Load a library of CUDA's own (libnvrtc, say) from the packages that torch takes it from: torch itself loads some
    of them only when it needs them, and the system's loader does not look there."""
    spec = importlib.util.find_spec("nvidia")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    found = next((path for place in places for path in Path(place).glob(f"*/lib/{name}")), None)
    if found is None:
        return False
    ctypes.CDLL(str(found), mode=ctypes.RTLD_GLOBAL)
    return True


ALIGNED = 16
"""Bytes that rows and starts are a multiple of, for Hopper's bulk copies."""


def dense(tensor: Any) -> Any:
    """`tensor` as the kernel reads it: the last dim contiguous, every row at a multiple of 16 bytes, no stride of 0."""
    if tensor.shape[0] == 1:
        tensor = tensor[0].unsqueeze(0)  # compiled code gives a batch of one any stride
    size = tensor.element_size()
    uneven = tensor.data_ptr() % ALIGNED or any(stride * size % ALIGNED for stride in tensor.stride()[:-1])
    return tensor.contiguous() if tensor.stride(-1) != 1 or uneven or 0 in tensor.stride() else tensor
