"""Which files of a repository a model needs: its components' settings and one set of safetensors weights for each.

Repositories hold more than that: the same weights in other precisions ("variants"), as one file and in shards, pickled,
or in the layout of another program at the top. What is chosen is what diffusers and transformers would load. Pickled
weights can run code when they are loaded, so they are never fetched nor read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from app.errors import CannotRunError

INDEX = "model_index.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
SETTINGS = (".json", ".txt", ".model", ".jinja", ".tiktoken")
"""Endings of what a component has besides weights: configurations, vocabularies, templates."""

_WEIGHTLESS = re.compile(r"Tokenizer|Scheduler|Processor|FeatureExtractor|Guid(ance|er)")
# diffusers and transformers name weights BASE[.VARIANT][-NNNNN-of-NNNNN].safetensors
_WEIGHTS = re.compile(r"(?P<base>[^.]+?)(?:\.(?P<variant>[^.]+?))?(?:-\d{5}-of-(?P<shards>\d{5}))?\.safetensors")


def components_in(index: Any) -> dict[str, tuple[str, str]]:
    """The components that a model_index.json names: {name: (library, class)}."""
    if not isinstance(index, Mapping):
        return {}
    return {
        str(name): (str(value[0]), str(value[1]))
        for name, value in index.items()
        if isinstance(value, list) and len(value) == 2 and value[0] is not None and value[1] is not None
    }


def has_weights(kind: str) -> bool:
    """Whether a component of this class has weights: tokenizers, schedulers, processors and guiders have none."""
    return _WEIGHTLESS.search(kind) is None


def is_pickle(name: str) -> bool:
    """Whether a file of this name holds pickled data, which can run code when it is loaded."""
    return name.lower().endswith(PICKLES)


def needed(paths: Iterable[str], index: Any, repo: str) -> tuple[str, ...]:
    """The files among ``paths`` ("/" between folders) that the model with this index consists of, sorted.

    Raises CannotRunError when a component is missing, or comes without safetensors weights.
    """
    found = [INDEX]
    by_folder: dict[str, list[str]] = {}
    for path in paths:
        folder, slash, name = path.partition("/")
        if slash:
            by_folder.setdefault(folder, []).append(name)
    components = components_in(index)
    if not components:
        raise CannotRunError(f"{repo} is no diffusers model: its {INDEX} names no components; choose another one.")
    for component, (library, kind) in components.items():
        names = by_folder.get(component, [])
        if not names:
            raise CannotRunError(f"{repo} lacks the folder {component} that its {INDEX} names; choose another one.")
        found += [f"{component}/{name}" for name in names if _is_setting(name)]
        if has_weights(kind):
            found += [f"{component}/{name}" for name in _weights(names, library, f"{repo}: {component}")]
    return tuple(sorted(found))


def _is_setting(name: str) -> bool:
    """Settings lie beside the weights; an index of a variant's shards is of no use without them."""
    if "/" in name or not name.lower().endswith(SETTINGS):
        return False
    parts = name.split(".")
    of_weights = name.endswith(".index.json")
    return not of_weights or (len(parts) == 4 and parts[1] == "safetensors")


def _weights(names: list[str], library: str, what: str) -> list[str]:
    """One set of weights. Raises CannotRunError when there is none."""
    whole: list[str] = []
    shards: dict[str, list[str]] = {}
    variants: set[str] = set()
    for name in names:
        match = _WEIGHTS.fullmatch(name)
        if match is None:
            continue
        if match["variant"]:
            variants.add(match["variant"])
        elif match["shards"]:
            shards.setdefault(f"{match['base']}-{match['shards']}", []).append(name)
        else:
            whole.append(name)
    listed = any(name.endswith(".safetensors.index.json") and name.count(".") == 3 for name in names)
    # transformers looks for the single file first, diffusers for the list of shards
    if whole and not (listed and shards and library != "transformers"):
        return whole
    if shards and listed:
        return max(shards.values(), key=len)
    pickles = sorted(name for name in names if is_pickle(name))
    if pickles:
        raise CannotRunError(
            f"{what} has only pickled weights ({pickles[0]}), which can run code when they are loaded: choose a model "
            "whose weights are safetensors."
        )
    if variants:
        raise CannotRunError(
            f"{what} has its weights only as {', '.join(sorted(variants))} variants, which are not loaded here: choose "
            "another model."
        )
    raise CannotRunError(f"{what} has no safetensors weights; choose another model.")
