"""A transformer's weights out of one file, safetensors or GGUF, in the layout of diffusers or of the model's makers.

diffusers reads both and renames what is called otherwise. GGUF's numbers are turned back into the plan's dtype when
they are loaded: every accelerator works with them then, and the memory is that of the model, not of the file.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accel.advice import pip
from app.engine import loading
from app.errors import CannotRunError
from app.models.base import Family
from app.models.sources.wholeness import tensors_in

_SCALES = ("scale_weight", "scale_input", "weight_scale", "input_scale", "scaled_fp8")


def components(family: Family, dtypes: Mapping[str, str]) -> dict[str, Any]:
    """What of the family's pipeline comes out of its own file: {"transformer": the model}; empty without a file.

    `dtypes` as `loading.load_pipeline` takes them. Raises CannotRunError when the file is not such a transformer.
    """
    if family.file is None:
        return {}
    assert family.folder is not None, "a file belongs to a family whose folder is here"
    loading.go_offline()
    dtype = dtypes.get("transformer", dtypes.get("default", "float32"))
    return {"transformer": _load(family.file, family.folder, dtype)}


def _load(file: Path, folder: Path, dtype_name: str) -> Any:
    import diffusers
    import torch

    loading.quieten()
    _, kind = loading.components_of(folder)["transformer"]
    factory, dtype = getattr(diffusers, kind), getattr(torch, dtype_name)
    if not hasattr(factory, "from_single_file"):
        raise CannotRunError(f"{file.name} can't be loaded: diffusers reads no single files of a {kind}.")
    options: dict[str, Any] = {"config": str(folder), "subfolder": "transformer", "local_files_only": True}
    quantised = file.suffix.lower() == ".gguf"
    if not quantised and (scaled := [name for name in tensors_in(file) if name.endswith(_SCALES)]):
        raise CannotRunError(
            f"{file.name} holds FP8 numbers with scales of their own ({scaled[0]}), which diffusers does not read: "
            "choose a file in bf16, fp16 or GGUF."
        )
    if quantised:
        options["quantization_config"] = _quantisation(file, dtype)
    incomplete = f"{file.name} does not hold all tensors of a {kind}: choose another file."
    try:
        model = factory.from_single_file(str(file), **options)
        if quantised:
            model.dequantize()
    except (
        Exception
    ) as error:  # diffusers has errors of its own for files it does not know, derived from Exception only
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if "meta tensor" in reason:  # what the file did not fill
            raise CannotRunError(incomplete) from error
        if loading.memory_ran_out(error) is not None:
            raise MemoryError(reason) from error
        raise CannotRunError(f"{file.name} can't be loaded as a {kind} ({reason}): choose another file.") from error
    if any(one.is_meta for one in model.parameters()):
        raise CannotRunError(incomplete)
    _cast(model, dtype)
    return model.eval()


def _cast(model: Any, dtype: Any) -> None:
    """Every parameter in `dtype`, but those that the class wants in float32: as a model from a folder has them.

    The parameters are made anew, since diffusers leaves tensors where GGUF's numbers were that only look like some.
    """
    import torch

    kept = tuple(model._keep_in_fp32_modules or ())
    for path, module in model.named_modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            exact = any(part in kept for part in (*path.split("."), name))
            plain = parameter.detach().as_subclass(torch.Tensor).to(torch.float32 if exact else dtype)
            setattr(module, name, None)
            setattr(module, name, torch.nn.Parameter(plain, requires_grad=False))


def _quantisation(file: Path, dtype: Any) -> Any:
    from diffusers import GGUFQuantizationConfig

    if importlib.util.find_spec("gguf") is None:
        raise CannotRunError(
            f"{file.name} needs the Python package gguf: `{pip('install', 'gguf')}`, or choose a safetensors file."
        )
    return GGUFQuantizationConfig(compute_dtype=dtype)
