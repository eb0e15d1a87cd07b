"""Models on disk: loaded once, in the dtypes asked for, or refused in one sentence."""

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from app.engine import loading
from app.errors import CannotRunError
from app.worker.questions import warm
from tests.app.engines import tensor_bytes


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / "model_index.json").unlink(), "has no model_index.json"),
        (lambda folder: (folder / "model_index.json").write_text("{"), "can't be read"),
        (lambda folder: (folder / "vae").rename(folder / "gone"), "lacks vae"),
        (lambda folder: (folder / "vae" / "config.json").unlink(), "can't be loaded"),
        (
            lambda folder: (folder / "transformer" / "diffusion_pytorch_model.safetensors").write_bytes(b"12345678"),
            "can't be loaded",
        ),
    ],
)
def test_a_model_that_is_not_whole_is_said_in_one_sentence(
    tiny_folder: Path,
    tmp_path: Path,
    damage: Callable[[Path], Any],
    words: str,
) -> None:
    import shutil

    folder = tmp_path / "model"
    shutil.copytree(tiny_folder, folder)
    damage(folder)
    with pytest.raises(CannotRunError, match=words) as caught:
        loading.load_pipeline(folder, {})
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_loading_tells_each_component_and_loads_it_once(
    tiny_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from diffusers import DiffusionPipeline, WanTransformer3DModel

    loads = []
    load = WanTransformer3DModel.from_pretrained

    def counted(place: str, **options: Any) -> Any:
        loads.append(place)
        return load(place, **options)

    monkeypatch.setattr(WanTransformer3DModel, "from_pretrained", counted)
    seen: list[tuple[int, int]] = []
    dtypes = {"default": "float32", "transformer": "bfloat16"}
    pipeline = loading.load_pipeline(tiny_folder, dtypes, lambda *at: seen.append(at))
    assert loads == [str(tiny_folder / "transformer")]
    assert seen == [(done, 5) for done in range(6)]
    assert pipeline.transformer.dtype == torch.bfloat16
    assert pipeline.vae.dtype == torch.float32
    monkeypatch.undo()
    stock = DiffusionPipeline.from_pretrained(str(tiny_folder))
    assert type(pipeline) is type(stock)
    assert dict(pipeline.config) == dict(stock.config)
    assert set(pipeline.components) == set(stock.components)


def test_pickled_weights_are_not_read(tiny_folder: Path, tmp_path: Path) -> None:
    import shutil

    folder = tmp_path / "model"
    shutil.copytree(tiny_folder, folder)
    weights = folder / "vae" / "diffusion_pytorch_model.safetensors"
    torch.save(loading.load_pipeline(tiny_folder, {}).vae.state_dict(), weights.with_suffix(".bin"))
    weights.unlink()
    with pytest.raises(CannotRunError, match="can't be loaded"):
        loading.load_pipeline(folder, {})


def test_memory_that_ran_out_is_not_called_a_broken_model(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from diffusers import WanTransformer3DModel

    def fail(*_: Any, **__: Any) -> None:
        try:
            raise OSError("Cannot allocate memory (os error 12)")  # as safetensors says it
        except OSError:
            raise OSError("Unable to load weights from checkpoint file") from None  # as diffusers puts over it

    monkeypatch.setattr(WanTransformer3DModel, "from_pretrained", fail)
    with pytest.raises(MemoryError, match="os error 12"):
        loading.load_pipeline(tiny_folder, {})


@pytest.mark.parametrize("name", ["hunyuan", "hunyuan-15", "sana", "ltx", "cogvideox-2b"])
def test_text_is_split_as_the_models_own_files_say(tiny_models: Callable[[str], Path], name: str) -> None:
    from transformers import AutoTokenizer

    folder = tiny_models(name)
    loaded = loading.load_pipeline(folder, {})
    assert loading.skeleton(folder).tokenizer("a red ball").input_ids == loaded.tokenizer("a red ball").input_ids
    assert (
        loaded.tokenizer("a red ball").input_ids
        == AutoTokenizer.from_pretrained(folder / "tokenizer")("a red ball").input_ids
    )
    assert loaded.tokenizer("a red ball").input_ids != loaded.tokenizer("aredball").input_ids, "spaces count"


def test_a_thread_that_comes_while_a_library_is_imported_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like diffusers and transformers, this one puts another module in its own place when it is nearly done."""
    loading.quieten()  # the real ones
    (tmp_path / "swapping.py").write_text(
        "import sys, threading, types\n"
        "begun, go_on = sys.kinetile_test\n"
        "begun.set()\n"
        "assert go_on.wait(60)\n"
        "other = types.ModuleType(__name__)\n"
        "other.thing = 3\n"
        "sys.modules[__name__] = other\n",
        encoding="utf-8",
    )
    begun, go_on = threading.Event(), threading.Event()
    monkeypatch.setattr(sys, "kinetile_test", (begun, go_on), raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(loading, "LIBRARIES", ("swapping",))
    first = threading.Thread(target=warm)
    first.start()
    assert begun.wait(60)
    threading.Timer(0.5, go_on.set).start()
    loading.quieten()
    from swapping import thing  # type: ignore[import-not-found]

    first.join()
    assert thing == 3


def test_moved_to_a_device_no_weight_stays_behind(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row 47, seen too (ComfyUI issue 10896): where GPU and CPU share one memory, weights that lie in it twice are too
    many. torch's "meta" stands in for the device: of what moves there, nothing is left here, part by part.
    """
    before = tensor_bytes()
    pipeline = loading.load_pipeline(tiny_folder, {"default": "float32"})
    loaded, left = tensor_bytes() - before, []
    move = torch.nn.Module.to

    def moved(part: torch.nn.Module, *arguments: Any, **named: Any) -> Any:
        found = move(part, *arguments, **named)
        left.append(tensor_bytes() - before)
        return found

    monkeypatch.setattr(torch.nn.Module, "to", moved)
    pipeline.to("meta")
    assert loaded > 100_000
    assert left == sorted(left, reverse=True)
    assert loaded > left[0] > left[-1]
    assert left[-1] < loaded / 20, "a scheduler's own tables, at most"
