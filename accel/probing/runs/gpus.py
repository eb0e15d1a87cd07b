"""Small runs on graphics processors: what torch shows, a product and a conv3d on each, and a kernel compiled by
triton."""

from __future__ import annotations

import importlib
import time

from accel.probing.runs.tools import Result, best_ms, judged, seeded


def gpus() -> Result:
    """What torch shows, without running anything on it."""
    import torch

    found = []
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            item = torch.cuda.get_device_properties(index)
            arch = getattr(item, "gcnArchName", "") if torch.version.hip else f"sm_{item.major}{item.minor}"
            shown_uuid = str(getattr(item, "uuid", ""))
            found.append(
                {"index": index, "name": item.name, "memory": item.total_memory, "arch": arch, "uuid": shown_uuid}
            )
    arches = list(torch.cuda.get_arch_list()) if torch.version.cuda or torch.version.hip else []
    mps = torch.backends.mps.is_available() if hasattr(torch.backends, "mps") else False
    memory = int(torch.mps.recommended_max_memory()) if mps and hasattr(torch.mps, "recommended_max_memory") else 0
    return {"ok": True, "reason": "listed", "gpus": found, "arches": arches, "mps": mps, "mps_memory": memory}


def gpu(which: str) -> Result:
    """A product and a conv3d on one GPU, in bf16 where it can and float32, against float64 on the CPU."""
    import torch

    device = torch.device("mps" if which == "mps" else f"cuda:{which}")
    finish = torch.mps.synchronize if which == "mps" else torch.cuda.synchronize
    x, weight = seeded(256, 512), seeded(512, 512)
    want = x.double() @ weight.double().T
    single = judged(x.to(device) @ weight.to(device).T, want, "float16")
    clip, kernel = seeded(1, 8, 3, 34, 34), seeded(8, 8, 3, 3, 3)
    convolve = torch.nn.functional.conv3d
    volume = judged(convolve(clip.to(device), kernel.to(device)), convolve(clip.double(), kernel.double()), "bfloat16")
    if not (single["ok"] and volume["ok"]):
        return single if not single["ok"] else volume
    figures = {"error": single["figures"]["error"]}
    big = seeded(1024, 1024).to(device)
    for name in ("float32", "float16", "bfloat16"):
        low = big.to(getattr(torch, name))
        figures[f"linear_{name}_ms"] = best_ms(lambda low=low: (low @ low, finish()), time.perf_counter)  # type: ignore[misc]
    low_x, low_weight = x.to(device).bfloat16(), weight.to(device).bfloat16()
    wanted = low_x.cpu().double() @ low_weight.cpu().double().T
    return judged(low_x @ low_weight.T, wanted, "bfloat16", figures=figures)


def triton_kernel() -> Result:
    """Compiles and runs a kernel that doubles numbers: torch.compile on a GPU rests on this."""
    import torch

    if not torch.cuda.is_available():
        raise LookupError("triton needs a GPU that torch can use")
    triton = importlib.import_module("triton")
    globals()["tl"] = importlib.import_module("triton.language")

    def double(source, target):  # type: ignore[no-untyped-def]
        at = tl.arange(0, 256)  # type: ignore[name-defined]  # noqa: F821
        tl.store(target + at, tl.load(source + at) * 2)  # type: ignore[name-defined]  # noqa: F821

    x = seeded(256).cuda()
    got = torch.empty_like(x)
    triton.jit(double)[(1,)](x, got)
    return judged(got, x.double() * 2, "float32")
