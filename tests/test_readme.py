"""What the README says is so: its tables, its commands, its worked examples, the sentences that it quotes."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import accel
from accel import doctor
from accel.backends import __main__ as accelerators
from accel.backends import backends
from accel.plan import make_plan
from accel.probe import probe
from accel.probing import gpus
from accel.probing.host import Recorded
from accel.tables import cells
from accel.types import Preferences
from app import bootstrap, cli, headless
from app.arguments import parser
from app.headless.batch import BatchSettings
from app.models import family_for
from app.models.sources.resolving import is_source
from app.presets import read_source
from app.presets.files import Preset, load_preset
from app.request import AccelPreferences, Assignment, GenerationRequest
from tests.accel.recorded import machine, model, record

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
MORE = "".join(path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("a*/*/README.md")))
"""What the rooms say of themselves, where the README points."""
MOST_LINES = 490


def section(title: str) -> str:
    """The text under a heading, down to the next of its rank."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", TEXT, re.DOTALL | re.MULTILINE)
    assert found, title
    return found[1]


def test_it_can_be_read_in_one_go() -> None:
    assert len(TEXT.splitlines()) <= MOST_LINES


def test_what_it_links_and_shows_is_there() -> None:
    anchors = {re.sub(r"[^\w -]", "", head).lower().replace(" ", "-") for head in re.findall(r"^#+ (.*)", TEXT, re.M)}
    for target in re.findall(r"\]\(([^)]+)\)", TEXT):
        if target.startswith("#"):
            assert target[1:] in anchors, target
        elif not target.startswith("https://"):
            assert (ROOT / target).is_file(), target


# -- tables -----------------------------------------------------------------------------------------------------------


def test_the_table_of_accelerators_is_the_one_that_the_code_gives() -> None:
    assert accelerators.TABLE.within(TEXT) == TEXT, "run `python -m accel.backends --write README.md`"


def test_what_was_measured_stays_when_the_table_is_written_anew() -> None:
    old = accelerators.make()
    assert [cells(line)[-1] for line in old[2:]].count(accelerators.NOTHING) == len(old) - 2
    kept = [line.replace(accelerators.NOTHING, "twice as fast") for line in old]
    assert accelerators.make(kept) == kept


def test_every_field_of_a_preset_is_told() -> None:
    rows = [cells(line) for line in section("Presets and sharing").splitlines() if line.startswith("| `")]
    names = {
        name for row in rows[: 1 + [row[0] for row in rows].index("`accel`")] for name in re.findall(r"`(\w+)`", row[0])
    }
    assert names == GenerationRequest.model_fields.keys() - {"kinetile"}
    told = next(row[1] for row in rows if row[0] == "`accel`")
    assert set(re.findall(r"`(\w+)`", told)) == set(AccelPreferences.model_fields)


def test_the_preset_that_it_shows_is_read(tmp_path: Path) -> None:
    (shown,) = re.findall(r"```json\n(.*?)```", section("Presets and sharing"), re.DOTALL)
    file = tmp_path / "shown.json"
    file.write_text(shown, encoding="utf-8")
    assert isinstance(load_preset(file), Preset)


# -- commands ---------------------------------------------------------------------------------------------------------


def commands() -> list[str]:
    """Every `python launch.py ...`, in blocks (what it does follows after two spaces) and within lines."""
    blocks = re.findall(r"^python (launch\.py.*?)(?:  |$)", TEXT + MORE, re.MULTILINE)
    inline = re.findall(r"`python (launch\.py[^`]*)`", TEXT + MORE)
    return sorted({line.strip() for line in (*blocks, *inline)})


class Recorder:
    """Stands where the command line hands over."""

    def __init__(self) -> None:
        self.given: tuple[Any, ...] = ()

    def __call__(self, *given: Any, **_: Any) -> int:
        self.given = given
        return 0


@pytest.mark.parametrize("line", commands())
def test_a_command_is_taken(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options, rest = bootstrap.split_options(shlex.split(line)[1:])
    if options.test or options.help:
        return  # pytest's and argparse's own
    took = Recorder()
    verbs = ("app.headless.run_batch", "app.headless.share", "app.bench.run_bench", "app.ui.server.serve")
    more = ("app.catalogue.list_models", "app.catalogue.run_fetch", "app.engine.acceleration.as_shipped")
    for place in (*verbs, *more, "accel.doctor.main"):
        monkeypatch.setattr(place, took)
    assert cli.main(rest) == 0
    parsed = parser().parse_args(rest)
    for source in (*(parsed.headless or ()), parsed.share, parsed.preset):
        if source and not re.search(r"my-batch\.jsonl|\.mp4|CLIP\.json", source):  # the reader's own
            assert read_source(source)
    for name in (parsed.fetch, parsed.verify, parsed.model):
        assert name in (None, "MODEL") or family_for(name)
    for settings in took.given:
        if isinstance(settings, BatchSettings):
            check_assignments(settings.assignments)


def check_assignments(assignments: tuple[str | Assignment, ...]) -> None:
    """They can be set, and name models and backends that there are."""
    asked = GenerationRequest().with_set(assignments)
    assert is_source(asked.model) or family_for(asked.model)
    for setting, kind in (("attention", "attention"), ("linear", "linear"), ("vae", "vae")):
        names = {item.name for item in backends(kind)}  # type: ignore[arg-type]
        assert getattr(asked.accel, setting) in {"auto", "fp8", *names}


def test_there_are_commands_of_every_kind() -> None:
    found = " ".join(commands())
    for verb in ("--headless", "--share", "--models", "--fetch", "--doctor", "--bench", "--verify", "--test"):
        assert verb in found
    assert headless.run_batch.__name__ == "run_batch"


def test_the_training_commands_are_taken() -> None:
    from app.starter import train

    commands = re.findall(
        rf"`(?:torchrun|python) (?:--nproc-per-node 4 )?-m {train.__name__} (.*?)`", TEXT + MORE, re.DOTALL
    )
    assert len(commands) == 7
    for words in map(shlex.split, commands):
        assert str(train.arguments_parser().parse_args(words).out) in {"FOLDER", "ONE", "TWO", "THREE"}


# -- the doctor's sentences -------------------------------------------------------------------------------------------


def quoted() -> list[str]:
    title = "Troubleshooting: what the doctor says"
    return [cells(line)[0].strip("`") for line in section(title).splitlines() if line.startswith("| `")]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the doctor says of machines on which this and that is wrong."""
    reports = []

    def look(name: str, **changes: Any) -> None:
        found = machine(name, tmp_path_factory.mktemp("cache"), **changes)
        reports.extend(doctor.sentences(found, make_plan(found, model())))

    nothing = {"result": {"ok": True, "reason": "listed", "gpus": [], "arches": ["sm_90"], "mps": False}}
    undefined = {"result": {"ok": False, "reason": "ImportError: sgl_kernel.so: undefined symbol: _ZN3c10"}}
    iterators = {"result": {"ok": False, "reason": "this is the iterator library named aiter", "ops": []}}
    claims = {"result": {**record("mi300x")["runs"]["gpus"]["result"]}}
    chip = {"simd_count 128\ngfx_target_version 120001\n"}
    limits = {
        "/proc/self/cgroup": "0::/\n",
        "/proc/self/mountinfo": "41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        "/sys/fs/cgroup/memory.max": f"{6 * 2**30}\n",
    }
    look("skylake-avx2", numbers={"affinity": 2}, files=limits, environ={"ONEDNN_MAX_CPU_ISA": "SSE41"})
    look("skylake-avx2", commands={" ".join(gpus.SMI): "NVIDIA GeForce RTX 3050, 8.6, 8192, 580.95.05, GPU-1\n"})
    look("rtx5090-old-torch")
    look("h100", environ={"CUDA_VISIBLE_DEVICES": ""}, runs={"gpus": nothing})
    look("h100", runs={"gpus": nothing})
    look("h100", distributions={"sglang-kernel": None})
    look("mi300x", runs={"gpu:3": {"signal": 11}})
    look("mi300x", distributions={"amd-aiter": None})
    wrong = {"amd-aiter": None, "aiter": {"version": "0.13.20191203", "torch": ""}}
    look("mi300x", distributions=wrong, runs={"aiter": iterators})
    nodes = {f"{gpus.KFD}/{number}/properties": text for number in range(1, 9) for text in chip}
    look("mi300x", files=nodes, runs={"gpus": claims}, environ={"HSA_OVERRIDE_GFX_VERSION": "9.4.2"})
    look("lying-amx")
    look("sapphire-rapids", runs={"sgl_kernel": undefined})
    look("sapphire-rapids", distributions={"sglang-kernel-cpu": None})
    cuda = {"result": {"ok": True, "reason": "imports", "ops": ["fwd"]}}
    look("sapphire-rapids", runs={"sgl_kernel": cuda})
    look("h100", runs={"sgl_kernel": {"timeout": True}})
    look("zen5", distributions={"torch": None, "diffusers": None})
    hasty = probe(host=Recorded(record("mi355x")), cache_folder=tmp_path_factory.mktemp("cache"), patience=0.0)
    reports.extend(doctor.sentences(hasty, make_plan(hasty, model())))
    return "\n".join(reports)


@pytest.mark.parametrize("sentence", quoted())
def test_the_doctor_says_what_is_quoted(sentence: str, told: str) -> None:
    pattern = ".+".join(map(re.escape, sentence.split("…")))
    assert re.search(rf"^ *{pattern}$", told, re.MULTILINE), told


def test_nothing_that_the_doctor_may_find_missing_is_left_out(told: str) -> None:
    """Every line under its heading on what is missing begins as one of the quoted ones does."""
    patterns = [".+".join(map(re.escape, sentence.split("…"))) for sentence in quoted()]
    lines = re.findall(rf"^{re.escape(doctor.MISSING)}\n((?:  .*\n?)+)", told, re.MULTILINE)
    missing = {line.strip() for block in lines for line in block.splitlines()} - {doctor.NOTHING}
    assert missing
    assert [line for line in missing if not any(re.fullmatch(pattern, line) for pattern in patterns)] == []


# -- worked examples --------------------------------------------------------------------------------------------------


def marked(kind: str) -> Iterator[tuple[str, str]]:
    """The file's name and the block of each mark of this kind."""
    yield from re.findall(rf"<!-- {kind}: (\S+) -->\n```\w+\n(.*?)```", TEXT, re.DOTALL)


def changed(text: str, diff: str) -> str:
    """`text` with a diff of hunks, each of which must fit in exactly one place."""
    for hunk in diff.split("@@\n"):
        rows = hunk.splitlines(keepends=True)
        old = "".join(row[1:] for row in rows if row[0] == " ")
        assert text.count(old) == 1, f"{old!r} stands there {text.count(old)} times"
        text = text.replace(old, "".join(row[1:] for row in rows))
    return text


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kinetile with the README's examples in it, and nothing else changed."""
    copy = tmp_path_factory.mktemp("followed")
    weights = shutil.ignore_patterns("__pycache__", "weights")
    for room in ("accel", "app"):
        shutil.copytree(ROOT / room, copy / room, ignore=weights)
    (copy / "app/starter/weights").symlink_to(ROOT / "app/starter/weights")
    shutil.copy(ROOT / "pyproject.toml", copy)
    for name, text in marked("example"):
        assert not (ROOT / name).exists()
        (copy / name).write_text(text, encoding="utf-8")
    for name, diff in marked("change"):
        (copy / name).write_text(changed((copy / name).read_text(encoding="utf-8"), diff), encoding="utf-8")
    return copy


def run_in(copy: Path, function: Callable[..., Any], folder: Path) -> dict[str, Any]:
    """What `function` of this module returns in a process of its own, in which app and accel are the copy's."""
    code = f"import json, pathlib; from tests.test_readme import {function.__name__} as run; "
    code += f"print(json.dumps(run(pathlib.Path({str(folder)!r}))))"
    places = {**os.environ, "PYTHONPATH": os.pathsep.join([str(copy), str(ROOT)])}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=copy, env=places, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("accel") == str(copy / "accel/__init__.py")
    return found


def test_the_examples_are_written_as_the_rest_is(followed: Path) -> None:
    files = [name for kind in ("example", "change") for name, _ in marked(kind)]
    for check in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *check, "--no-cache", *files],
            capture_output=True, text=True, cwd=followed, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr


def follow_backend(folder: Path) -> dict[str, Any]:
    """Runs in the copy: the new backend in a tiny pipeline, forced, beside plain PyTorch, and taken out again."""
    import io

    import numpy as np
    import torch

    from accel import selfcheck
    from accel.originals import same_bits
    from tests import builders
    from tests.accel.installed import bits

    torch.set_num_threads(1)  # another number of threads sums in another order
    here = machine("zen4", folder)
    pipeline = builders.wan()
    traits = accel.traits_of(pipeline)
    before, plain = bits(pipeline), builders.run_wan(pipeline)
    stock = {
        item.name: "stock" for item in fields(Preferences) if item.name in ("linear", "text_encoder_linear", "vae")
    }
    plan = accel.make_plan(here, traits, Preferences(attention="sliced", dtype="float32", **stock))
    installation = accel.install(pipeline, plan)
    clip = builders.run_wan(pipeline)
    counted = installation.report()["attention"]["transformer"]
    notes = installation.remove()
    after = bits(pipeline)
    out = io.StringIO()
    stage = plan.stage("transformer")
    assert stage is not None
    automatic = accel.make_plan(here, traits).stage("transformer")
    assert automatic is not None
    return {
        "accel": accel.__file__,
        "engaged": stage.attention.engaged,
        "automatic": automatic.attention.engaged,
        "calls": counted["calls"],
        "served": counted["served"],
        "error": float(np.abs(clip - plain).max()),
        "notes": notes,
        "restored": all(same_bits(after[name], before[name]) for name in before),
        "again": bool(np.array_equal(builders.run_wan(pipeline), plain)),
        "faults": selfcheck.run_sweep(out, here, quick=True, only=["sliced"]),
        "sweep": out.getvalue(),
        "listed": "`attention=sliced`" in "\n".join(accelerators.make()),
    }


def test_the_backend_that_it_adds_is_chosen_counted_right_and_taken_out(followed: Path, tmp_path: Path) -> None:
    found = run_in(followed, follow_backend, tmp_path)
    assert (found["engaged"], found["automatic"]) == ("sliced", "sdpa")
    assert found["served"] == found["calls"] > 0
    assert found["error"] < 1e-4
    assert (found["notes"], found["restored"], found["again"]) == ([], True, True)
    assert found["faults"] == 0, found["sweep"]
    assert "sliced" in found["sweep"]
    assert found["listed"]


def follow_family(folder: Path) -> dict[str, Any]:
    """Runs in the copy: the new family's rules, and a clip with a tiny pipeline of its class."""
    from diffusers import WanVACEPipeline, WanVACETransformer3DModel

    from app.engine import Engine
    from app.models import __main__ as catalogue
    from app.models import all_families
    from app.paths import Home
    from tests.tiny import text, wan

    shape = {"num_attention_heads": 2, "attention_head_dim": 32, "ffn_dim": 64, "num_layers": 2, "freq_dim": 32}
    channels = {"in_channels": 16, "out_channels": 16, "vace_in_channels": 96, "vace_layers": [0]}
    transformer = WanVACETransformer3DModel(patch_size=(1, 2, 2), text_dim=text.WIDTH, **shape, **channels).eval()
    parts = (text.t5_tokenizer(), text.umt5_encoder(), wan.vae(), wan.scheduler(), transformer)
    WanVACEPipeline(*parts).save_pretrained(folder / "vace")
    asked = GenerationRequest(model="my-vace", prompt="a red ball", width=130, height=128, frames=30)
    normalised = family_for("my-vace").normalise(asked)
    small = GenerationRequest(model=str(folder / "vace"), prompt="a red ball", width=128, height=128, frames=5, steps=2)
    request = family_for(small.model).normalise(small, strict=True).request
    with Engine(Home(folder / "home")) as engine:
        clip = engine.generate(request.model_copy(update={"seed": 1}))
    return {
        "accel": accel.__file__,
        "families": [family.name for family in all_families()],
        "reasons": [item.reason for item in normalised.adjustments],
        "steps": normalised.request.steps,
        "shape": clip.frames.shape,
        "varied": bool(clip.frames.std() > 0),
        "attention": clip.report["attention"]["transformer"],
        "listed": "`my-vace`" in "\n".join(catalogue.make()),
    }


def test_the_family_that_it_adds_takes_a_request_and_makes_a_clip(followed: Path, tmp_path: Path) -> None:
    found = run_in(followed, follow_family, tmp_path)
    assert found["families"][-1] == "my-vace"
    assert found["reasons"] == [
        "My VACE takes a width in multiples of 16, from 128 to 1280 pixels, so 130 becomes 128.",
        "My VACE makes 4k+1 frames, from 5 to 81, so 30 frames become 29.",
    ]
    assert found["steps"] == 50
    assert found["shape"] == [5, 128, 128, 3]
    assert found["varied"]
    assert found["attention"]["served"] == found["attention"]["calls"] > 0
    assert found["listed"]
