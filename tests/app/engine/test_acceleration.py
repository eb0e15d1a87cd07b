"""The engine's door to accel: plans before weights, recorded plans again, differences and summaries in words."""

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import accel
from app.engine import acceleration, loading
from app.engine.acceleration import decide, summary
from app.errors import CannotRunError, UsageError
from app.models.base import Family
from app.request import AccelPreferences, GenerationRequest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def request_(tiny_family: Family) -> GenerationRequest:
    return tiny_family.normalise(GenerationRequest(prompt="a red ball", width=64, height=64, frames=5)).request


def wishing(request: GenerationRequest, **wishes: str) -> GenerationRequest:
    return request.model_copy(update={"accel": AccelPreferences.model_validate(wishes)})


def test_a_plan_needs_no_weights(tiny_family: Family, request_: GenerationRequest, tmp_path: Path) -> None:
    assert tiny_family.folder is not None
    folder = tmp_path / "model"
    shutil.copytree(tiny_family.folder, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    assert decide(tiny_family.with_folder(folder), request_) == decide(tiny_family, request_)


def test_a_model_is_described_alike_before_and_after_loading(tiny_folder: Path) -> None:
    loaded = accel.traits_of(loading.load_pipeline(tiny_folder, {}), width=64, height=64, frames=5)
    assert acceleration.traits(tiny_folder, 64, 64, 5) == loaded


def test_threads_are_set_before_torch_is_imported(tiny_folder: Path) -> None:
    code = f"""if True:
        import os, sys
        from pathlib import Path
        from app.engine import acceleration

        class Seen:
            def find_spec(self, name, path=None, target=None):
                if name == "torch" and "WAIT" not in globals():
                    globals()["WAIT"] = os.environ.get("OMP_WAIT_POLICY")

        sys.meta_path.insert(0, Seen())
        acceleration.traits(Path({str(tiny_folder)!r}), 64, 64, 5)
        print(WAIT, "torch" in sys.modules)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "PASSIVE True"


def test_settings_that_do_not_exist_are_bad_usage(tiny_family: Family, request_: GenerationRequest) -> None:
    for wishes in ({"attention": "fast"}, {"linear": "fast"}, {"dtype": "int3"}, {"cache": "big"}, {"offload": "disk"}):
        ((name, value),) = wishes.items()
        with pytest.raises(UsageError, match=f"{name}.*{value}"):
            decide(tiny_family, wishing(request_, **wishes))


def test_settings_that_cannot_be_here_are_not(tiny_family: Family, request_: GenerationRequest) -> None:
    with pytest.raises(CannotRunError, match="float16"):
        decide(tiny_family, wishing(request_, dtype="float16"))
    with pytest.raises(CannotRunError, match="not on this machine"):
        decide(replace(tiny_family, folder=None), request_)


def test_a_recorded_plan_is_engaged_again(tiny_family: Family, request_: GenerationRequest) -> None:
    plain = wishing(
        request_, attention="sdpa", linear="stock", text_encoder_linear="stock", vae="stock", dtype="float32"
    )
    for first in (decide(tiny_family, request_), decide(tiny_family, plain)):
        again = decide(tiny_family, request_, first.data)
        assert again.identity == first.identity
        assert again.differences == ()


def test_what_a_recorded_plan_cannot_have_is_said_and_the_rest_kept(
    tiny_family: Family,
    request_: GenerationRequest,
) -> None:
    recorded = decide(tiny_family, wishing(request_, dtype="float32", vae="stock")).data
    stages: dict[str, Any] = {stage["stage"]: stage for stage in recorded["stages"]}
    stages["transformer"]["linear"]["engaged"] = "from_the_future"
    decision = decide(tiny_family, request_, recorded)
    (sentence,) = decision.differences
    assert sentence.startswith("It was made with transformer linear from_the_future, here it is ")
    vae = decision.plan.stage("vae")
    assert vae is not None
    assert (vae.vae.engaged, vae.dtype.engaged) == ("stock", "float32")


def test_a_wish_of_the_clip_that_cannot_run_here_does_not_stop_its_replay(
    tiny_family: Family,
    request_: GenerationRequest,
) -> None:
    recorded = decide(tiny_family, request_).data
    assert decide(tiny_family, wishing(request_, dtype="float16"), recorded).differences == ()


def test_summary_names_what_is_not_plain_pytorch(tiny_family: Family, request_: GenerationRequest) -> None:
    plan = decide(tiny_family, wishing(request_, dtype="float32", vae="stock", attention="sdpa", linear="stock")).data
    assert summary(plan) == "float32, stock PyTorch"
    stages = {stage["stage"]: stage for stage in plan["stages"]}
    stages["transformer"]["attention"]["engaged"] = "sgl_amx"
    stages["text_encoder"]["linear"]["engaged"] = "onednn_bf16"
    report = {"attention": {"transformer": {"calls": 10, "served": 8}, "transformer_2": {"calls": 2, "served": 2}}}
    assert summary(plan, report) == "float32, text linear onednn_bf16, attention sgl_amx 10/12"
