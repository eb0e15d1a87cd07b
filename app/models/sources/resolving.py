"""Which family a model belongs to that is no name of the catalogue: a repository, a folder, a single file.

    hf:owner/name         a repository of the hub, in diffusers layout, once it was fetched
    /somewhere/a-model    a folder in diffusers layout; also C:\\models\\a-model, ~/models/a-model, ./a-model
    /somewhere/x.gguf     the weights of one transformer (safetensors or GGUF); all else comes from the family's own

The pipeline that the folder's index names decides; of several families with that pipeline the one whose repository has
the folder's name, else one of the same build (transformers, sizes), with the most similar number of parameters.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PureWindowsPath
from typing import Any

from accel.reading import read_json
from app.errors import UsageError
from app.models.base import Family
from app.models.geometry import Multiples, joins_two_pictures, multiples_in
from app.models.sources.cache import REPO, Located, in_cache
from app.models.sources.choosing import INDEX, components_in, is_pickle
from app.models.sources.gguf import read_tensors
from app.models.sources.wholeness import numbers_in, problems_in, tensors_in
from app.paths import without_home
from app.strict_json import short

HUB = "hf:"
FILES = (".safetensors", ".gguf")
ALIKE = 0.02
"""How far the parameters of a single file may differ from those of the model it takes the place of: formats count a
few buffers differently."""

_LORA = re.compile(r"[._]lora(?:_|\.)|^lora_|\.alpha$")
"""In the name of each tensor of a LoRA, whoever trained it; in none of a model's."""

Locate = Callable[[Family], Located]


def is_source(model: str) -> bool:
    """Whether `model` is written like a repository, a folder or a file, and no name of the catalogue could be."""
    return model.startswith(HUB) or is_path(model)


def is_path(model: str) -> bool:
    """Whether `model` is written like a path of this system or another one: names of the catalogue never are."""
    return bool(re.match(r"[/\\~]|\.{1,2}[/\\]|[A-Za-z]:[/\\]", model)) or model.lower().endswith((*FILES, ".ckpt"))


def family_of(model: str, known: Sequence[Family], locate: Locate) -> Family:
    """The family of a repository ("hf:owner/name"), folder or file, with its weights in place.

    `locate` finds a family's own weights. Raises UsageError for what can't be a model, is not here, or belongs to no
    family.
    """
    if model.startswith(HUB):
        return _of_repository(model, known, locate)
    path = _path(model)
    if path.is_dir():
        return _of_folder(path, without_home(str(path)), path.name, known)
    if path.is_file():
        return _of_file(path, known, locate)
    raise UsageError(f"model: {short(model)} is not on this machine; choose another folder or file, or a model's name.")


def repo_of(model: str) -> str:
    """The repository that "hf:owner/name" means. Raises UsageError when that is no repository's name."""
    repo = model.removeprefix(HUB)
    if not REPO.fullmatch(repo):
        raise UsageError(
            f"model: {short(model)} is no repository; write hf:OWNER/NAME, as its page on the hub is called."
        )
    return repo


def _path(model: str) -> Path:
    """Raises UsageError for a path that this system can't have, or that leads to another machine."""
    if re.match(r"[/\\]{2}", model):
        raise UsageError(f"model: {short(model)} lies on another machine; copy it to this one.")
    if "\0" in model or (Path("/") == Path(Path.cwd().anchor) and PureWindowsPath(model).drive):
        raise UsageError(f"model: {short(model)} is a path of another system; choose a folder or file of this machine.")
    try:
        return Path(model).expanduser().absolute()
    except (OSError, RuntimeError, ValueError) as error:
        raise UsageError(f"model: {short(model)} can't be looked for ({error}); choose another folder.") from error


def _of_repository(model: str, known: Sequence[Family], locate: Locate) -> Family:
    repo = repo_of(model)
    for family in known:
        if repo in family.repos:
            located = locate(family)
            return family.with_folder(located.folder) if located.is_whole and located.folder else family
    located = in_cache(repo)
    if located.folder is None or not (located.folder / INDEX).is_file():
        raise UsageError(
            f"model: {short(model)} is not on this machine, and only its files tell what it is: fetch it under "
            f"Models (on the command line: python launch.py --fetch {HUB}{repo})."
        )
    name = repo.partition("/")[2]
    made = _of_folder(located.folder, HUB + repo, name, known, located.problems)
    return replace(made, repos=(repo,))


def _of_folder(
    folder: Path, model: str, title: str, known: Sequence[Family], problems: tuple[str, ...] | None = None
) -> Family:
    """A folder in diffusers layout as a model of its own, with the rules of its family. `problems`: what it lacks,
    where that is known already. Raises UsageError for one that is not whole or belongs to no family.
    """
    try:
        index = read_json(folder / INDEX)
        pipeline = index["_class_name"]
    except FileNotFoundError:
        raise UsageError(
            f"model: {short(str(folder))} has no {INDEX}, so it is no model in diffusers layout; choose another folder."
        ) from None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UsageError(
            f"model: {short(str(folder / INDEX))} can't be read ({error}); choose another folder."
        ) from None
    alike = [one for one in known if pipeline in (one.pipeline, one.image_pipeline)]
    if not alike:
        possible = ", ".join(sorted({one.pipeline for one in known}))
        raise UsageError(
            f"model: {short(title)} is a {short(str(pipeline))}, which Kinetile does not know; it knows {possible}."
        )
    lacks = problems_in(folder) if problems is None else problems
    if lacks:
        shown = "; ".join(lacks[:3]) + (f"; and {len(lacks) - 3} more" if len(lacks) > 3 else "")
        rest = f"fetch the rest under Models (on the command line: python launch.py --fetch {model})"
        remedy = rest if model.startswith(HUB) else "copy it again"
        raise UsageError(f"model: {short(title)} is not whole ({shown}): {remedy}.")
    return _own(_nearest(folder, title, index, alike), model, title).with_folder(folder)


def _own(family: Family, name: str, title: str) -> Family:
    """A person's own model, by the rules of its family but with nothing that is told of that one alone."""
    return replace(family, name=name, aliases=(), repos=(), title=title, called="", knows=())


def _nearest(folder: Path, title: str, index: Mapping[str, Any], alike: Sequence[Family]) -> Family:
    """Of the families that this pipeline belongs to, the one whose repository is called so; else one of the same
    build, which no training changes, and of several such the nearest in size.
    """
    for family in alike:
        if any(repo.partition("/")[2].lower() == title.lower() for repo in family.repos):
            return family
    held = sum(_parameters(part) for part in folder.iterdir() if part.is_dir())
    two, found = "transformer_2" in components_in(index), multiples_in(folder)
    joins = joins_two_pictures(folder)

    def apart(family: Family) -> tuple[bool, bool, bool, bool, float]:
        figure, both = family.memory.get("bfloat16"), bool(family.image_pipeline)
        return (
            two != (family.defaults.guidance_2 is not None),
            # Wan's way of starting one transformer from text as well as from a picture.
            bool(index.get("expand_timesteps", both)) != both,
            joins != ("last_image" in family.needs),
            found is not None and found != _multiples_of(family),
            abs(math.log(figure.value / 2 / held)) if figure is not None and figure.value and held else math.inf,
        )

    return min(alike, key=apart)


def _multiples_of(family: Family) -> Multiples:
    """As its files tell, where they are known to lie here; else as its rules do, which may ask for more."""
    told = multiples_in(family.folder) if family.folder is not None else None
    if told is not None:
        return told
    width, height, frames = family.rules.width, family.rules.height, family.rules.frames
    only = (width.most, height.most) if (width.least, height.least) == (width.most, height.most) else None
    return Multiples(width.step, height.step, frames.step, only)


def _parameters(component: Path) -> int:
    total = 0
    for file in component.glob("*.safetensors"):
        try:
            total += numbers_in(tensors_in(file))
        except (OSError, ValueError):
            return 0
    return total


# -- single files --


def _of_file(file: Path, known: Sequence[Family], locate: Locate) -> Family:
    """A transformer's weights in one file: the family whose own transformer here has as many parameters, and whose name
    the file's is most like where several have.
    """
    if is_pickle(file.name):
        raise UsageError(
            f"model: {file.name} holds pickled weights, which can run code when they are loaded; choose a file that "
            "ends in .safetensors or .gguf."
        )
    if file.suffix.lower() not in FILES:
        raise UsageError(f"model: {file.name} is no model; choose a file that ends in {' or '.join(FILES)}.")
    try:
        tensors = read_tensors(file) if file.suffix.lower() == ".gguf" else tensors_in(file)
        held = numbers_in(tensors)
    except (OSError, ValueError) as error:
        raise UsageError(f"model: {file.name} can't be read ({error}); copy or download it again.") from None
    if not held:
        raise UsageError(f"model: {file.name} holds no tensors; copy or download it again.")
    if all(_LORA.search(name) for name in tensors):
        raise UsageError(
            f"model: {file.name} is a LoRA, which goes beside a model: put it into loras of the data folder, choose "
            "the model that it was made for, and add it to the LoRAs."
        )
    fitting: list[tuple[float, int, Family, Path]] = []
    for family in known:
        located = locate(family)
        if not located.is_whole or located.folder is None or (located.folder / "transformer_2").is_dir():
            continue
        apart = abs(_parameters(located.folder / "transformer") / held - 1)
        if apart <= ALIKE:
            fitting.append((apart, -_words_in_common(file.stem, family), family, located.folder))
    if not fitting:
        raise UsageError(
            f"model: {file.name} holds {held / 1e9:.2f} billion parameters, as no model here does: fetch the model "
            "that it was made from, for its text encoder and VAE, or check the file."
        )
    best = min(one[:2] for one in fitting)
    (_, _, family, folder), *others = (one for one in fitting if one[:2] == best)
    if others:
        names = " or ".join([family.name, *(one[2].name for one in others)])
        raise UsageError(
            f"model: {file.name} may have been made from {names}, which are built alike: give it a name that holds one "
            "of these."
        )
    return replace(_own(family, without_home(str(file)), file.stem), file=file).with_folder(folder)


def _words_in_common(stem: str, family: Family) -> int:
    """How many words of the family's name a file's name holds, however either divides them."""
    letters = re.sub(r"[^a-z0-9]", "", stem.lower())
    return sum(word.replace(".", "") in letters for word in family.name.split("-"))
