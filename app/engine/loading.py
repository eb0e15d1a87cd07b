"""Load a model's folder (diffusers layout) into a pipeline, one component at a time.

diffusers loads all components in one call that can be neither watched nor stopped, and that loads an optional
component (Wan's transformer is one) even when it is handed over. Here each component of `model_index.json` is loaded
by its own class and the pipeline is put together from them, so that loading tells how far it is and a cancel acts
between components. Only safetensors weights are read, and nothing is fetched: a model lies complete on the disk or is
refused.
"""

import errno
import importlib
import inspect
import threading
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from safetensors import SafetensorError

from accel.reading import read_json
from app.errors import CannotRunError
from app.models.sources.choosing import INDEX, components_in
from app.models.sources.network import go_offline as go_offline

_NONE: Mapping[str, Any] = MappingProxyType({})

# What the libraries raise over files that are missing, cut short or not theirs.
_BROKEN = (OSError, ValueError, RuntimeError, AttributeError, ImportError, KeyError, TypeError, SafetensorError)


LIBRARIES = ("torch", "diffusers", "transformers")
_importing = threading.Lock()
_imported: list[float] = []


def import_libraries() -> None:
    """Import what models are made of. Every thread begins with this: while diffusers or transformers is imported for
    the first time it puts another module in its own place, and a thread that took the first one finds it empty.
    """
    with _importing:
        begun = time.perf_counter()
        for name in LIBRARIES:
            importlib.import_module(name)
        if not _imported:
            _imported.append(time.perf_counter() - begun)


def imported_in() -> float:
    """Seconds that importing them took in this process; 0 before."""
    return _imported[0] if _imported else 0.0


def quieten() -> None:
    """Silence the libraries' own progress bars and notices: progress is ours to tell."""
    import_libraries()
    from diffusers.utils import logging as diffusers_logging
    from transformers.utils import logging as transformers_logging

    for library in (diffusers_logging, transformers_logging):
        library.set_verbosity_error()
        library.disable_progress_bar()


def components_of(folder: Path) -> dict[str, tuple[str, str]]:
    """The components that `folder` names, as {name: (library, class)}, in the order of its index.

    Raises CannotRunError when the folder holds no readable model_index.json or a component's folder is missing.
    """
    index = folder / INDEX
    try:
        entries = read_json(index)
    except FileNotFoundError:
        raise CannotRunError(f"The model's folder {folder} has no {INDEX}: fetch the model again.") from None
    except (OSError, ValueError) as error:
        raise CannotRunError(f"The model's index {index} can't be read ({error}): fetch the model again.") from None
    found = components_in(entries)
    missing = sorted(name for name in found if not (folder / name).is_dir())
    if missing:
        raise CannotRunError(f"The model's folder {folder} lacks {', '.join(missing)}: fetch the model again.")
    return found


def load_pipeline(
    folder: Path,
    dtypes: Mapping[str, str],
    on_component: Callable[[int, int], None] = lambda done, of: None,
    *,
    bare: Collection[str] = (),
    given: Mapping[str, Any] | None = None,
) -> Any:
    """The pipeline in `folder`, on the CPU, ready to be moved or accelerated. Components in `bare` get their shapes and
    no weights, those in `given` are taken as they are.

    `dtypes` maps a component's name (or "default") to a torch dtype's name such as "float32". `on_component(done,
    of)` is called before the first component and after each; what it raises ends the loading. Raises CannotRunError
    when the folder is not a whole model.
    """
    import torch

    quieten()
    components = components_of(folder)
    loaded: dict[str, Any] = {}
    on_component(0, len(components))
    try:
        for done, (name, (library, kind)) in enumerate(components.items(), start=1):
            factory, place = _factory(library, kind), str(folder / name)
            if name in (given or {}):
                loaded[name] = (given or {})[name]
            elif _has_weights(factory):
                dtype = getattr(torch, dtypes.get(name, dtypes.get("default", "float32")))
                loaded[name] = (
                    _shaped(library, factory, place).to(dtype)
                    if name in bare
                    else factory.from_pretrained(place, dtype=dtype, use_safetensors=True, local_files_only=True)
                )
            else:
                loaded[name] = _without_weights(factory, place)
            on_component(done, len(components))
        pipeline = _assemble(folder, loaded)
    except _BROKEN as error:
        if (reason := memory_ran_out(error)) is not None:  # no fault of the model's files
            raise MemoryError(reason) from error
        raise _broken(folder, error) from error
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def as_kind(pipeline: Any, name: str, settings: Mapping[str, Any] = _NONE) -> Any:
    """`pipeline` itself if it is of the diffusers class `name`, else one of that class around the same components, with
    the same settings but for `settings`.
    """
    import diffusers

    kind = getattr(diffusers, name)
    if type(pipeline) is kind:
        return pipeline
    at_hand = {**pipeline.config, **pipeline.components, **settings}
    wanted = {
        one: at_hand.get(one)
        for one, parameter in inspect.signature(kind).parameters.items()
        if one in at_hand or parameter.default is parameter.empty  # what it wants and the other lacks is optional there
    }
    other = kind(**wanted)
    other.register_to_config(_name_or_path=pipeline.config.get("_name_or_path", ""))
    other.set_progress_bar_config(disable=True)
    return other


def skeleton(folder: Path) -> Any:
    """The pipeline in `folder` with components that have shapes but no weights: to describe a model before it is
    loaded.

    Raises CannotRunError as `load_pipeline` does.
    """
    quieten()
    made: dict[str, Any] = {}
    try:
        for name, (library, kind) in components_of(folder).items():
            factory, place = _factory(library, kind), str(folder / name)
            weighs = _has_weights(factory)
            made[name] = _shaped(library, factory, place) if weighs else _without_weights(factory, place)
        return _assemble(folder, made)
    except _BROKEN as error:
        raise _broken(folder, error) from error


def _shaped(library: str, factory: Any, place: str) -> Any:
    """A component with the shapes of its weights and no values."""
    import torch
    from transformers import AutoConfig

    with torch.device("meta"):
        if library == "transformers":
            return factory(AutoConfig.from_pretrained(place, local_files_only=True))
        return factory.from_config(factory.load_config(place, local_files_only=True))


def _factory(library: str, kind: str) -> Any:
    """The class of a component; diffusers keeps some in the module of their pipeline, and names that as the library."""
    known = library if library in ("diffusers", "transformers") else f"diffusers.pipelines.{library}"
    return getattr(importlib.import_module(known), kind)


def _has_weights(factory: Any) -> bool:
    import torch

    return isinstance(factory, type) and issubclass(factory, torch.nn.Module)


def _without_weights(factory: Any, place: str) -> Any:
    """A tokenizer, scheduler or processor. Tokenizers split text as their tokenizer.json says, where there is one.

    transformers 5 builds a tokenizer anew from its vocabulary by the rules of the class that the index names. Those of
    HunyuanVideo's index, LlamaTokenizerFast, are not Llama 3's, whose tokenizer.json lies there: every space is lost.
    """
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

    if issubclass(factory, PreTrainedTokenizerBase) and (Path(place) / "tokenizer.json").is_file():
        factory = PreTrainedTokenizerFast
    return factory.from_pretrained(place, local_files_only=True)


def _assemble(folder: Path, components: Mapping[str, Any]) -> Any:
    """The pipeline that the index names, from its components, the parts it can do without, and its own settings."""
    import diffusers

    index = read_json(folder / INDEX)
    kind = getattr(diffusers, index["_class_name"])
    known = inspect.signature(kind.__init__).parameters
    absent = {name: None for name, value in index.items() if value == [None, None]}
    settings = {name: value for name, value in index.items() if name in known and not isinstance(value, list)}
    pipeline = kind(**{**absent, **settings, **components})
    pipeline.register_to_config(_name_or_path=str(folder))
    return pipeline


_NO_MEMORY = ("out of memory", "can't allocate", "cannot allocate", "not enough memory")


def memory_ran_out(error: BaseException) -> str | None:
    """What was said about memory on the way to `error`, None if that was not it: the libraries put their own sentence
    about a damaged file over the system's about memory.
    """
    seen: BaseException | None = error
    while seen is not None:
        text = str(seen).lower()
        if isinstance(seen, MemoryError) or getattr(seen, "errno", None) == errno.ENOMEM:
            return str(seen) or "out of memory"
        if any(words in text for words in _NO_MEMORY):
            return str(seen)
        seen = seen.__cause__ or seen.__context__
    return None


def _broken(folder: Path, error: Exception) -> CannotRunError:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return CannotRunError(f"The model in {folder} can't be loaded ({reason}): fetch the model again.")
