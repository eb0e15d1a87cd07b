"""Pictures and LoRAs on Create: what the fields ask the server, and the fields themselves in a browser."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from app.errors import UsageError
from app.models import family_for
from app.paths import Home
from app.request import GenerationRequest, Lora
from app.ui.brought import choices, kept, possible, seen
from app.ui.context import Context
from app.ui.create import _defaults_of
from app.ui.form import NAMES, FormFields, request_of, values_of
from tests.app import lora_files
from tests.app.drawn import drawn, saved
from tests.app.ui.desk import Desk
from tests.app.ui.serving import Served
from tests.app.ui.tab import Tab

BOTH = "wan2.2-i2v-a14b"
"""A model that takes both pictures and has two transformers."""


@pytest.fixture
def context(tmp_path: Path) -> Context:
    uploads = tmp_path / "uploads"
    uploads.mkdir()
    home = Home(tmp_path / "home")
    return Context(Desk(home, "skylake-avx2"), home, uploads=uploads)


def uploaded(context: Context, data: bytes, name: str) -> dict[str, Any]:
    assert context.uploads is not None
    path = context.uploads / name
    path.write_bytes(data)
    return {"path": str(path), "name": name}


# -- what the fields ask ----------------------------------------------------------------------------------------------


def test_an_upload_is_kept_and_seen_small(context: Context) -> None:
    found = kept(context, "image", uploaded(context, saved(drawn(960, 480)), "My Photo.png"))
    assert found["name"].startswith("my-photo-")
    assert found["about"] == "960 × 480"
    data = base64.b64decode(found["picture"].removeprefix("data:image/png;base64,"))
    assert Image.open(io.BytesIO(data)).size == (192, 96)
    assert seen(context, "image", found["name"]) == found


def test_what_is_no_picture_or_no_upload_is_one_sentence(context: Context, tmp_path: Path) -> None:
    secret = tmp_path / "secret.png"
    secret.write_bytes(saved())
    assert "no picture that can be read" in kept(context, "image", uploaded(context, b"x", "a.png"))["error"]
    assert (
        "neither one of the clips nor an upload" in kept(context, "image", {"path": str(secret), "name": "a"})["error"]
    )
    assert kept(context, "image", {"path": "", "name": "big.png"})["error"].startswith("big.png could not be uploaded")
    for name in ("gone.png", "../uploads/a.png", "/etc/passwd", ""):
        assert seen(context, "last_image", name)["error"].startswith("last_image: ")
    assert list(context.home.root.glob("pictures/*")) == []


def test_the_list_of_loras_follows_the_model_and_the_folder(context: Context) -> None:
    assert choices(context, BOTH)["nothing"].startswith("Put LoRA files (.safetensors) into ")
    lora_files.save(context.home.loras / "styles" / "soft.safetensors", lora_files.tensors())
    (context.home.loras / "old.ckpt").write_bytes(b"x")
    found = choices(context, BOTH)
    assert [(one["name"], bool(one["problem"])) for one in found["choices"]] == [
        ("old.ckpt", True),
        ("styles/soft.safetensors", False),
    ]
    assert found["two"]
    assert not choices(context, "wan2.1-t2v-1.3b")["two"]
    assert "not known" in choices(context, "wonder")["nothing"]


def test_only_what_the_model_can_use_is_shown() -> None:
    assert [one["visible"] for one in possible(family_for(BOTH))] == [True, True, True]
    assert [one["visible"] for one in possible(family_for("wan2.1-t2v-1.3b"))] == [False, False, True]
    plain = replace(family_for("starter"), takes=frozenset())
    assert [one["visible"] for one in possible(plain, "a.png", "", '{"loras": []}')] == [True, False, False]
    assert [one["visible"] for one in possible(plain, "", "", '{"loras": ["a"]}')] == [False, False, True]
    assert possible(plain, "", "", "{")[2]["visible"]
    form = FormFields(dict.fromkeys(NAMES))
    filled = dict(zip(NAMES, form.fill(GenerationRequest(image="a.png")), strict=True))
    assert filled["image"] == {"value": "a.png", "visible": True, "__type__": "update"}
    assert "visible" not in filled["loras"]


# -- the form ---------------------------------------------------------------------------------------------------------


def test_pictures_and_loras_come_back_from_the_form_as_they_went_in() -> None:
    loras = (Lora(name="a.safetensors", weight=0.25), Lora(name="b_low.safetensors", noise="both"))
    request = GenerationRequest(model=BOTH, prompt="x", image="a.png", last_image="z.png", loras=loras)
    back = request_of(values_of(request))
    assert (back.image, back.last_image, back.loras) == ("a.png", "z.png", loras)
    assert json.loads(values_of(GenerationRequest(model=BOTH))["loras"]) == {"model": BOTH, "loras": []}


@pytest.mark.parametrize("text", ["{", "[]", '"x"', '{"loras": 5}', '{"loras": [{"name": "a", "weight": "x"}]}'])
def test_a_browser_that_kept_nonsense_is_told(text: str) -> None:
    with pytest.raises(UsageError, match="loras"):
        request_of(values_of(GenerationRequest()) | {"loras": text})


def test_another_model_keeps_the_picture_if_it_can_use_it_and_no_lora() -> None:
    request = GenerationRequest(model=BOTH, image="a.png", last_image="z.png", loras=(Lora(name="a.safetensors"),))
    values = list(values_of(request).values())

    def switched(model: str) -> dict[str, Any]:
        return dict(zip(NAMES, _defaults_of(model, *values), strict=True))

    pictured, plain = switched("wan2.2-ti2v-5b"), switched("wan2.1-t2v-1.3b")
    assert (pictured["image"], pictured["last_image"]) == ("a.png", "")
    assert json.loads(pictured["loras"]) == {"model": "wan2.2-ti2v-5b", "loras": []}
    assert plain["image"] == ""


# -- in a browser -----------------------------------------------------------------------------------------------------


@pytest.fixture
def form(new_tab: Callable[..., Tab], served: Served, tmp_path: Path) -> Tab:
    """Create with a model that takes both pictures; a LoRA lies in its folder."""
    lora_files.save(served.home / "loras" / "styles" / "soft.safetensors", lora_files.tensors())
    tab = new_tab().open()
    choose_model(tab, "Wan 2.2 I2V A14B")
    return tab


def choose_model(tab: Tab, title: str) -> None:
    tab.field("Model").click()
    tab.page.get_by_role("option", name=title).click()


def test_a_picture_is_chosen_seen_cut_kept_over_a_reload_and_removed(form: Tab, tmp_path: Path) -> None:
    page, picture = form.page, form.page.locator("#kt-image")
    (tmp_path / "bad.png").write_bytes(b"text")
    picture.locator("input[type=file]").set_input_files(str(tmp_path / "bad.png"))
    picture.get_by_text("bad.png is no picture that can be read").wait_for()
    (tmp_path / "My Photo.png").write_bytes(saved(drawn(400, 300)))
    picture.locator("input[type=file]").set_input_files(str(tmp_path / "My Photo.png"))
    picture.get_by_text("400 × 300").wait_for()
    assert picture.locator(".kp-problem").inner_text() == ""
    assert picture.locator("img").evaluate("(image) => image.naturalWidth") > 0
    page.locator("#kt-length").get_by_text("rows are cut off at top and bottom").wait_for()
    page.wait_for_function("() => JSON.stringify({...localStorage}).length > 0")
    page.wait_for_timeout(500)  # the browser's own storage is written after the change
    form.open()
    picture.get_by_text("400 × 300").wait_for()
    picture.get_by_role("button", name="Remove the first picture").click()
    page.locator("#kt-why-image").get_by_text("needs a picture").wait_for()
    assert picture.locator("img").is_hidden()
    assert form.errors == []


def test_loras_are_added_weighed_and_removed(form: Tab) -> None:
    page, loras = form.page, form.page.locator("#kt-loras")
    page.get_by_text("More", exact=True).click()
    loras.get_by_label("Add a LoRA").select_option("styles/soft.safetensors")
    strength = loras.get_by_label("Strength of styles/soft.safetensors")
    strength.fill("0.4")
    strength.press("Tab")
    loras.get_by_label("Transformer of styles/soft.safetensors").select_option("high")
    page.wait_for_timeout(500)
    form.open()
    page.get_by_text("More", exact=True).click()
    strength.wait_for()
    assert strength.input_value() == "0.4"
    assert loras.get_by_label("Transformer of styles/soft.safetensors").input_value() == "high"
    loras.get_by_role("button", name="Remove styles/soft.safetensors").click()
    strength.wait_for(state="detached")
    assert form.errors == []


def test_fields_that_a_model_can_t_use_are_not_there(form: Tab) -> None:
    form.page.locator("#kt-image").wait_for()
    form.page.locator("#kt-last-image").wait_for()
    choose_model(form, "Wan 2.2 T2V A14B")
    form.page.locator("#kt-image").wait_for(state="hidden")
    form.page.locator("#kt-last-image").wait_for(state="hidden")


def test_programs_keep_pictures_and_list_loras(served: Served, tmp_path: Path) -> None:
    client = served.client()
    (tmp_path / "a.png").write_bytes(saved())
    with pytest.raises(Exception, match="neither one of the clips nor an upload"):
        client.predict(str(tmp_path / "a.png"), api_name="/picture_keep")
    boundary, body = "kinetile", saved()
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n'.encode()
    data = head + body + f"\r\n--{boundary}--\r\n".encode()
    kind = f"multipart/form-data; boundary={boundary}"
    status, answer = served.ask("/gradio_api/upload", data, Content_Type=kind)
    assert status == 200
    found = client.predict(json.loads(answer)[0], "a.png", api_name="/picture_keep")
    assert (served.home / "pictures" / found["name"]).read_bytes() == body
    lora_files.save(served.home / "loras" / "styles" / "soft.safetensors", lora_files.tensors())
    listed = client.predict("wan2.2-ti2v-5b", api_name="/lora_list")
    assert ("styles/soft.safetensors", "") in [(one["name"], one["problem"]) for one in listed]


# -- on Presets -------------------------------------------------------------------------------------------------------


def test_a_clip_brings_its_picture_to_the_page_and_a_preset_keeps_it(context: Context, tmp_path: Path) -> None:
    from app import video
    from app.pictures import to_metadata
    from app.presets.files import Preset, save_own
    from app.presets.incoming import from_upload
    from app.ui.presets import _Tab

    request = GenerationRequest(model="wan2.2-ti2v-5b", prompt="x", image="a-0123456789abcdef.png")
    record = {"kinetile": 1, "request": request.model_dump(mode="json"), "pictures": to_metadata({"image": saved()})}
    clip = video.save(np.zeros((5, 64, 64, 3), np.uint8), 8, tmp_path, "clip", record).path
    tab = _Tab(context)
    brought = tab._imported(from_upload(clip)).request
    assert brought is not None
    assert brought.image is not None
    assert (context.home.pictures / brought.image).read_bytes() == saved()
    save_own(context.home, Preset.of(brought, "Mine"))
    (context.home.pictures / brought.image).unlink()
    chosen = tab._entry("own", "mine").request
    assert chosen == brought, "a preset's picture is kept again when it is looked at"
    assert (context.home.pictures / brought.image).is_file()
