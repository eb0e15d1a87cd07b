"""Exact weights that an installation must be able to give back: kept in the host's memory, or read again from the file
they came from.

A file counts only when it was read once and gave the very bits that are in memory (after the cast that loading did), so
weights changed since loading, by a fused LoRA say, are kept. Reading costs one pass over the file at installing and
one at removing; keeping costs the memory.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from accel.reading import read_json

INDEXES = ("diffusion_pytorch_model.safetensors", "model.safetensors")


class WeightsFile:
    """Tensors of one component's safetensors file or shards, by the name of the parameter."""

    def __init__(self, places: dict[str, Path], folder: Path) -> None:
        self._places, self.folder = places, folder

    def read(self, name: str) -> torch.Tensor | None:
        """The tensor as stored, None when the file does not hold it (any more)."""
        from safetensors import SafetensorError, safe_open

        path = self._places.get(name)
        if path is None:
            return None
        try:
            with safe_open(path, framework="pt") as file:
                return file.get_tensor(name)
        except (OSError, SafetensorError):
            return None


def weights_file(component: nn.Module) -> WeightsFile | None:
    """Where `component` was loaded from, None when it was not loaded from a local safetensors folder."""
    from safetensors import SafetensorError, safe_open

    config = getattr(component, "config", None)
    source = getattr(config, "_name_or_path", None)
    if not source or not Path(source).is_dir():
        return None
    folder = Path(source)
    try:
        for index in INDEXES:
            if (folder / f"{index}.index.json").is_file():
                names = read_json(folder / f"{index}.index.json")["weight_map"]
                return WeightsFile({name: folder / shard for name, shard in names.items()}, folder)
            if (folder / index).is_file():
                with safe_open(folder / index, framework="pt") as file:
                    return WeightsFile(dict.fromkeys(file.keys(), folder / index), folder)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError):  # no such layout
        return None
    return None


class Original:
    """One exact tensor: in `kept`, or in `file` under `name`."""

    def __init__(self, tensor: torch.Tensor, file: WeightsFile | None, name: str) -> None:
        """`tensor` is only held on to when the file can't give it back."""
        self.dtype, self.device, self.file, self.name = tensor.dtype, tensor.device, file, name
        stored = file.read(name) if file is not None else None
        same = stored is not None and same_bits(stored.to(tensor.device).to(tensor.dtype), tensor)
        # a GPU's memory is what the smaller format is for
        self.kept: torch.Tensor | None = None if same else tensor.cpu()

    @property
    def kept_bytes(self) -> int:
        return 0 if self.kept is None else self.kept.numel() * self.kept.element_size()

    def read(self) -> torch.Tensor:
        """The exact tensor, as a new one. Raises RuntimeError when the file is gone or changed size."""
        if self.kept is not None:
            return self.kept.to(self.device, copy=True)
        stored = self.file.read(self.name) if self.file is not None else None
        if stored is None:
            where = self.file.folder if self.file is not None else "its file"
            raise RuntimeError(f"the weight {self.name} can't be read again from {where}; load the model anew")
        return stored.to(self.dtype).to(self.device, copy=True)

    def replace(self, tensor: torch.Tensor) -> None:
        """`tensor` is the exact weight from now on; the file no longer is."""
        self.kept, self.file = tensor.to("cpu", copy=True), None


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal shape, dtype and bits: NaN equals itself, 0.0 differs from -0.0."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.numel():
        return True
    return torch.equal(a.flatten().view(torch.uint8), b.flatten().view(torch.uint8))
