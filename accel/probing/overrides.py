"""Environment variables that make a machine look like another one, or keep libraries from using what it has."""

from __future__ import annotations

from accel.probing.host import Host
from accel.types import Override

EFFECTS = {
    "HSA_OVERRIDE_GFX_VERSION": "makes an AMD GPU claim another chip's name, so the wrong kernels may be loaded",
    "GPU_ARCHS": "tells aiter which chips to build for, whatever is installed",
    "PYTORCH_ROCM_ARCH": "tells builds which AMD chips to compile for",
    "TORCH_CUDA_ARCH_LIST": "tells builds which NVIDIA chips to compile for",
    "CUDA_VISIBLE_DEVICES": "hides or reorders NVIDIA GPUs",
    "HIP_VISIBLE_DEVICES": "hides or reorders AMD GPUs",
    "ROCR_VISIBLE_DEVICES": "hides or reorders AMD GPUs",
    "ONEDNN_MAX_CPU_ISA": "keeps oneDNN from using newer CPU instructions",
    "DNNL_MAX_CPU_ISA": "keeps oneDNN from using newer CPU instructions",
    "ATEN_CPU_CAPABILITY": "keeps torch's own loops from using newer CPU instructions",
    "MKL_ENABLE_INSTRUCTIONS": "keeps MKL from using newer CPU instructions",
    "DIFFUSERS_ATTN_BACKEND": "sets diffusers' attention for the whole process",
    "OMP_NUM_THREADS": "sets the number of threads",
    "MKL_NUM_THREADS": "sets the number of threads in MKL",
}


APPLIED = "ACCEL_APPLIED"
"""Names, separated by commas, the variables that `accel.threads.apply` set in this process: not the person's doing."""


def read(host: Host) -> tuple[Override, ...]:
    ours = host.environ.get(APPLIED, "").split(",")
    names = [name for name in EFFECTS if name in host.environ and (name not in ours or name.startswith("ONEDNN"))]
    return tuple(Override(name, host.environ[name], EFFECTS[name]) for name in names)
