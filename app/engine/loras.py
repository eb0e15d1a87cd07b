"""LoRAs on a loaded pipeline: beside its weights, never in them.

An adapter adds B(A x) to what a linear gives. The weights stay as they are, so a strength is a number that costs
nothing to change, taking a LoRA off gives back the bits of before, and packed linears (int8, FP8, bf16) serve under an
adapter as they do alone. Fusing would save the two small products, and lose all three: in a packed format the sum is
rounded anew, and the way back needs a second copy of every weight.

What the file's layers are called is settled by diffusers' own converters; that they are this model's is checked here
before anything is changed, since diffusers leaves out what it can't place.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from accel.reading import parse_json
from app import loras
from app.errors import UsageError
from app.loras import LoraFile
from app.models.sources.wholeness import header_of
from app.request import Adjustment, Lora

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    Tensors = dict[str, torch.Tensor]

FIRST, SECOND = "transformer", "transformer_2"
_LAYER = re.compile(r"transformer\.(?P<layer>.+)\.lora_(?P<half>[AB])\.(?P<kind>weight|bias)")
# "high" and "low" of noise, not those of "low-poly" or "high_detail": nothing follows but what file names end with.
_ENDS = r"(?:safetensors|and|lora|model|fp|bf|rank|epoch|steps?|v)(?![a-z])"
_NOISE = re.compile(rf"(?:^|[^a-z])(high|low)(?=[^a-z]?noise|[^a-z]*(?:$|{_ENDS}))")
_CHANGE = re.compile(r"\.diff(_b)?$")
_PREFIXES = ("transformer.", "diffusion_model.", "lora_unet_", "text_encoder", "model.diffusion_model.")
SHOWN = 3
"""Most layers named in a sentence."""


@dataclass(frozen=True)
class _Adapter:
    """One LoRA, ready to be put on: its tensors in the model's names and dtypes, by component."""

    file: LoraFile
    name: str
    tensors: dict[str, Tensors]
    metadata: dict[str, Any] | None
    left_out: Adjustment | None = None

    def to_dict(self) -> dict[str, Any]:
        layers = {part: sum(name.endswith("lora_A.weight") for name in held) for part, held in self.tensors.items()}
        return {"name": self.file.lora.name, "weight": self.file.lora.weight, "layers": layers}


class Adapters:
    """The LoRAs of one pipeline. `use` says which; those that it holds already are not read again."""

    def __init__(self, pipeline: Any, title: str) -> None:
        """`title`: what a person calls the model."""
        self._pipeline, self._title = pipeline, title
        self._held: tuple[Any, ...] = ()
        self._adapters: list[_Adapter] = []

    def use(self, files: Sequence[LoraFile], check_stop: Callable[[], None] = lambda: None) -> tuple[Adjustment, ...]:
        """Have exactly these act, with their strengths; returns what of them can't. `check_stop` is called before each
        one is read, and what it raises ends it with no LoRA held.

        Raises UsageError for a file that is no LoRA of this model; the pipeline then has none.
        """
        wanted = tuple(_identity(file) for file in files)
        if wanted != self._held:
            self._take_off()
            try:
                self._put_on(files, check_stop)
            except BaseException:
                self._take_off()
                raise
            self._held = wanted
        self._weigh(files)
        return tuple(one.left_out for one in self._adapters if one.left_out is not None)

    def report(self) -> list[dict[str, Any]]:
        """JSON data: name, weight, and number of layers by component."""
        return [adapter.to_dict() for adapter in self._adapters]

    def _components(self) -> dict[str, Any]:
        found = {name: getattr(self._pipeline, name, None) for name in (FIRST, SECOND)}
        return {name: component for name, component in found.items() if component is not None}

    def _take_off(self) -> None:
        if not self._adapters:
            return
        for component in self._components().values():
            if getattr(component, "peft_config", None):
                component.unload_lora()
        self._adapters, self._held = [], ()

    def _put_on(self, files: Sequence[LoraFile], check_stop: Callable[[], None]) -> None:
        for number, file in enumerate(files):
            check_stop()
            # noted first: what is half put on must be taken off
            self._adapters.append(self._read(file, f"lora_{number}"))
            adapter = self._adapters[-1]
            for part, tensors in adapter.tensors.items():
                component = self._components()[part]
                with _names_only(component), warnings.catch_warnings():
                    warnings.filterwarnings("ignore", message="Already found a `peft_config`")  # several are meant
                    component.load_lora_adapter(
                        {f"transformer.{name}": tensor for name, tensor in tensors.items()},
                        prefix="transformer",
                        adapter_name=adapter.name,
                        metadata=adapter.metadata,
                        low_cpu_mem_usage=True,
                        _pipeline=self._pipeline,
                    )

    def _weigh(self, files: Sequence[LoraFile]) -> None:
        from diffusers.utils import set_weights_and_activate_adapters

        self._adapters = [replace(one, file=file) for one, file in zip(self._adapters, files, strict=True)]
        for part, component in self._components().items():
            acting = [one for one in self._adapters if part in one.tensors]
            if acting:
                names, weights = [one.name for one in acting], [one.file.lora.weight for one in acting]
                set_weights_and_activate_adapters(component, names, weights)

    def _read(self, file: LoraFile, name: str) -> _Adapter:
        """Raises UsageError."""
        lora, components = file.lora, self._components()
        tensors, metadata, unused = _converted(self._pipeline, file)
        parts = parts_of(lora, SECOND in components, self._title)
        found: dict[str, Tensors] = {}
        left: list[str] = []
        for part in parts:
            found[part], left = _placed(lora.name, tensors, components[part], self._title)
        left += unused
        layers = {match["layer"] for key in tensors if (match := _LAYER.fullmatch(key))} | set(unused)
        return _Adapter(file, name, found, metadata, _left_out(lora.name, left, len(layers), self._title))


def parts_of(lora: Lora, has_two: bool, title: str) -> tuple[str, ...]:
    """The components that a LoRA is for. Raises UsageError for one of two where there is one."""
    if not has_two:
        if lora.noise in ("high", "low"):
            raise UsageError(
                f'LoRA {lora.name!r}: {title} has one transformer for all noise; leave "noise": "{lora.noise}" out.'
            )
        return (FIRST,)
    noise: str = lora.noise
    if noise == "auto":
        said = {match.group(1) for match in _NOISE.finditer(lora.name.lower())}
        noise = said.pop() if len(said) == 1 else "both"
    return {"high": (FIRST,), "low": (SECOND,)}.get(noise, (FIRST, SECOND))


def _identity(file: LoraFile) -> tuple[Any, ...]:
    """Equal for a LoRA that is put on alike, whatever its strength."""
    facts = file.path.stat()
    return str(file.path), facts.st_size, facts.st_mtime_ns, file.lora.noise


@contextmanager
def _names_only(component: Any) -> Iterator[None]:
    """While entered, the component's state dict names its weights without unpacking them: diffusers asks it for the
    names alone, and all packed weights unpacked at once would not fit.
    """
    component.state_dict = partial(type(component).state_dict, component, keep_vars=True)
    try:
        yield
    finally:
        del component.state_dict


def _converted(pipeline: Any, file: LoraFile) -> tuple[Tensors, dict[str, Any] | None, list[str]]:
    """The file's tensors in diffusers' names, what it says of rank and alpha, and the layers that get lost on the way.
    Raises UsageError.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    name = file.lora.name
    if problem := loras.why_not(file.path):
        raise UsageError(f"LoRA {name!r} {problem}")
    try:
        about = (header_of(file.path).get("__metadata__") or {}).get(loras.METADATA)
        metadata = None if about is None else parse_json(about.encode())
        tensors = _prefixed(load_file(file.path))
    except (OSError, SafetensorError, ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"LoRA {name!r} can't be read ({error}); get it again.") from error
    if broken := [one for one, tensor in tensors.items() if not _is_finite(tensor)]:
        raise UsageError(
            f"LoRA {name!r} is broken: {len(broken)} of its {len(tensors)} tensors hold values that are no finite "
            f"numbers ({broken[0]}); get it again, or another one."
        )
    changed = _changed_norms(tensors)
    convert = getattr(type(pipeline), "lora_state_dict", None)
    if convert is not None:
        try:
            tensors = convert(tensors)
        except (ValueError, KeyError, IndexError, AttributeError, TypeError, RuntimeError) as error:
            reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
            raise UsageError(
                f"LoRA {name!r} is not named as LoRAs of this kind of model are ({reason}); choose one made for it."
            ) from error
    lost = [layer for layer in changed if not any(layer in name for name in tensors)]
    return _with_alphas(tensors), metadata, lost


def _is_finite(tensor: torch.Tensor) -> bool:
    """A float8 tensor, which tells less about itself, is looked at in bfloat16, which holds all its values."""
    import torch

    return bool((tensor.to(torch.bfloat16) if tensor.itemsize == 1 else tensor).isfinite().all())


def _changed_norms(tensors: Tensors) -> list[str]:
    """The norms that a file changes as they are, not by a product: diffusers' converters take such changes to be zero,
    and leave them out.
    """
    changed = [one for one, tensor in tensors.items() if "norm" in one and _CHANGE.search(one) and bool(tensor.any())]
    return list(dict.fromkeys(_CHANGE.sub("", name).removeprefix("diffusion_model.") for name in changed))


def _prefixed(tensors: Tensors) -> Tensors:
    """Names as diffusers' converters expect them to begin; trainers leave the beginning out or put their own before."""
    plain = {
        name.removeprefix("base_model.model.").removeprefix("model.").replace(".default.weight", ".weight"): tensor
        for name, tensor in tensors.items()
    }
    if any(name.startswith(_PREFIXES) for name in plain):
        return plain
    prefix = "diffusion_model." if any(".self_attn." in name for name in plain) else "transformer."
    return {prefix + name: tensor for name, tensor in plain.items()}


def _with_alphas(tensors: Tensors) -> Tensors:
    """Alphas that the converters left, multiplied into B: a LoRA acts with alpha / rank."""
    alphas = {name.removesuffix(".alpha"): tensor for name, tensor in tensors.items() if name.endswith(".alpha")}
    found = {name: tensor for name, tensor in tensors.items() if not name.endswith(".alpha")}
    for layer, alpha in alphas.items():
        if (key := f"{layer}.lora_B.weight") in found:
            found[key] = found[key] * (float(alpha) / found[key].shape[1])
    return found


def _placed(name: str, tensors: Tensors, component: Any, title: str) -> tuple[Tensors, list[str]]:
    """The tensors whose layers the component has, in these layers' dtypes and on their devices, and the layers it
    lacks. Raises UsageError when it has none of them, or has one in another size.
    """
    placed: Tensors = {}
    missing: dict[str, None] = {}
    for key, tensor in tensors.items():
        match = _LAYER.fullmatch(key)
        layer = None if match is None else _layer(component, match["layer"])
        if match is None or layer is None:
            missing[key if match is None else match["layer"]] = None
            continue
        weight = layer.weight
        if match["kind"] == "weight":
            _check_size(name, match, tensor, layer, title)
        dtype = weight.dtype if weight.dtype.is_floating_point and weight.dtype.itemsize > 1 else component.dtype
        placed[key.removeprefix("transformer.")] = tensor.to(weight.device, dtype)
    if not placed:
        raise UsageError(
            f"LoRA {name!r} is for another model: {title} has none of its {len(missing)} layers "
            f"({_named(list(missing))}); choose one made for it."
        )
    return placed, list(missing)


def _layer(component: Any, name: str) -> Any:
    """The layer of that name, under any adapters it has already; None for what is none or has no weight."""
    try:
        found = component.get_submodule(name)
    except AttributeError:
        return None
    found = getattr(found, "base_layer", found)
    return found if getattr(found, "weight", None) is not None else None


def _check_size(name: str, match: re.Match[str], tensor: Any, layer: Any, title: str) -> None:
    """Numbers that go in (A) and come out (B) must be the layer's. A linear says them itself, whatever its weight is
    stored as; a convolution takes a window of them.
    """
    into = match["half"] == "A"
    size = layer.weight.shape
    if hasattr(layer, "in_features"):
        size = (layer.out_features, layer.in_features)
    wanted, got = (size[1:], tensor.shape[1:]) if into else (size[:1], tensor.shape[:1])
    if tuple(wanted) != tuple(got):
        does = "takes" if into else "gives"
        raise UsageError(
            f"LoRA {name!r} is for another model: its {match['layer']} {does} {_times(got)} numbers, that of {title} "
            f"{_times(wanted)}; choose one made for it."
        )


def _times(shape: Sequence[int]) -> str:
    return "x".join(str(size) for size in shape)


def _left_out(name: str, layers: list[str], total: int, title: str) -> Adjustment | None:
    if not layers:
        return None
    reason = f"Not all of the LoRA {name!r} acts on {title}: {_named(layers)} have no effect."
    return Adjustment(
        field="loras", asked=f"{total} layers", used=f"{max(total - len(layers), 0)} layers", reason=reason
    )


def _named(layers: Sequence[str]) -> str:
    shown = ", ".join(layer[:80] for layer in layers[:SHOWN])
    return shown + (f" and {len(layers) - SHOWN:,} more" if len(layers) > SHOWN else "")


__all__ = ["Adapters", "parts_of"]
