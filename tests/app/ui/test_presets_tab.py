"""Presets in a browser: import restores the exact request, the hostile is refused, nothing runs unasked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app import video
from app.errors import UsageError
from app.paths import Home
from app.presets import Preset, encode_code, load_preset, save_own, save_preset
from app.presets.incoming import from_text
from app.presets.portability import Here
from app.request import AccelPreferences, GenerationRequest
from app.ui.context import Context
from app.ui.form import NAMES, FormFields, values_of
from app.ui.presets import _Tab
from app.ui.presets_view import Chosen, chosen_html, list_html, problem_of
from tests.app.ui.desk import Desk
from tests.app.ui.serving import Served
from tests.app.ui.tab import PATIENCE, Tab
from tests.app.ui.test_queue_view import Reader

ASKED = GenerationRequest(
    prompt="a “red” ball\nrolls <b>down</b>",
    negative_prompt="fog",
    width=64,
    height=96,
    frames=9,
    steps=3,
    guidance=2.5,
    seed=2**53 - 1,
    accel=AccelPreferences(vae="stock"),
)
TOLD = "#tab-presets .kt-line-place .kt-problem"
DROP = """async ([data, name, type]) => {
    const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
    const transfer = new DataTransfer();
    transfer.items.add(new File([bytes], name, { type }));
    for (const kind of ['dragenter', 'dragover', 'drop'])
        document.querySelector('.gradio-container').dispatchEvent(
            new DragEvent(kind, { dataTransfer: transfer, bubbles: true, cancelable: true }));
}"""


def clip(folder: Path, request: GenerationRequest = ASKED) -> Path:
    """A clip with its request in it."""
    frames = np.full((9, 96, 64, 3), 90, np.uint8)
    return video.save(frames, 8, folder, "clip", {"kinetile": 1, "request": request.model_dump(mode="json")}).path


def drop(tab: Tab, path: Path, name: str = "") -> None:
    """Drop a file on the page, as a person does."""
    import base64

    data = base64.b64encode(path.read_bytes()).decode()
    tab.page.evaluate(DROP, [data, name or path.name, "video/mp4" if path.suffix == ".mp4" else "application/json"])


def apply(tab: Tab) -> None:
    """Take the chosen preset over, once its differences were said."""
    button = tab.page.locator('#kt-preset button[data-do="apply"]:not([aria-disabled])')
    button.wait_for(timeout=PATIENCE)
    button.click()
    tab.page.wait_for_function("document.querySelector('.kt-request').offsetParent !== null")


def generated(tab: Tab, served: Served) -> GenerationRequest:
    """The request that pressing Generate now asks for."""
    client = served.client()
    before = client.predict(limit=1, api_name="/history")["total"]
    tab.generate()
    tab.page.wait_for_function("() => window.kinetile.running()", timeout=PATIENCE)
    tab.page.wait_for_function("() => !window.kinetile.running()", timeout=PATIENCE)
    found = client.predict(limit=1, api_name="/history")
    assert found["total"] == before + 1
    settings: dict[str, Any] = client.predict(found["jobs"][0]["id"], api_name="/job_settings")
    return GenerationRequest.model_validate_json(json.dumps(settings))


def same(found: GenerationRequest) -> None:
    """Equal where ASKED says something; the rest are the model's defaults written out."""
    asked = ASKED.model_dump(mode="json", exclude_defaults=True)
    assert found.model_dump(mode="json", include=set(asked)) == {
        **asked,
        "accel": ASKED.accel.model_dump(),
    }


@pytest.mark.parametrize("how", ["code", "text", "file", "dropped clip", "dropped preset"])
def test_every_way_in_restores_the_exact_request_and_runs_nothing(
    tab: Tab, served: Served, tmp_path: Path, how: str
) -> None:
    ended_before = served.client().predict(limit=1, api_name="/history")["total"]
    preset = save_preset(Preset.of(ASKED, "Down the hill"), tmp_path / "hill.json")
    if how.startswith("dropped"):
        drop(tab, clip(tmp_path) if how == "dropped clip" else preset)
    else:
        tab.show("Presets")
        if how == "file":
            with tab.page.expect_file_chooser() as chooser:
                tab.page.get_by_role("button", name="Import a file").click()
            chooser.value.set_files(preset)
        else:
            text = encode_code(ASKED) if how == "code" else preset.read_text()
            tab.page.get_by_role("button", name="Paste a share code").click()
            tab.page.get_by_label("Share code or text of a preset").fill(text)
            tab.page.get_by_role("button", name="Read it").click()
    tab.page.get_by_text("it is not kept yet").wait_for()
    apply(tab)
    now = served.client().predict(api_name="/queue")
    assert (now["running"], now["waiting"]) == (None, [])
    assert served.client().predict(limit=1, api_name="/history")["total"] == ended_before
    tab.expect_value("Prompt", ASKED.prompt)
    tab.expect_value("Seed number", str(ASKED.seed))
    if how in ("code", "dropped clip"):
        same(generated(tab, served))
    assert tab.errors == []


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"kinetile": 1, "request": {"prompt": "x", "steps": 0}}', "evil.json, line 1, column 53, request.steps"),
        (b'{"kinetile": 1, "request": {"output": "../../x"}}', "request.output"),
        (b"\0\0\0\x20ftypisom but no clip", "evil.json"),
        (b'{"kinetile": 1, "request": {"prompt": "x",}}', "remove the comma"),
        (b'{"kinetile": 1, "request": {"seed": 9007199254740993}}', "request.seed: 9007199254740993 is not possible"),
    ],
)
def test_a_hostile_preset_is_refused_with_its_sentence(tab: Tab, tmp_path: Path, content: bytes, says: str) -> None:
    """Cases 21 and 28 among them: a seed is never rounded, and where a clip goes is nothing that a preset can say."""
    path = tmp_path / "evil.json"
    path.write_bytes(content)
    tab.fill(Prompt="kept")
    tab.show("Presets").page.locator("#kt-preset-list .kt-preset").first.click()
    chosen = tab.page.locator('#kt-preset button[data-do="apply"]')
    chosen.wait_for()
    drop(tab, path)
    message = tab.page.locator(TOLD)
    message.wait_for()
    assert says in message.inner_text()
    assert "/tmp" not in message.inner_text()
    chosen.wait_for(state="detached")
    assert tab.page.locator("#kt-preset-list [aria-current=true], #kt-preset-list [aria-pressed=true]").count() == 0
    assert tab.page.locator(".toast-body").count() == 0
    above = tab.page.locator("#kt-import-file").bounding_box()
    assert 0 <= message.bounding_box()["y"] - above["y"] - above["height"] < 40, "it is told elsewhere"
    tab.expect_value("Prompt", "kept")


def test_why_it_was_not_done_stands_until_the_next_action(tab: Tab, tmp_path: Path) -> None:
    path = tmp_path / "evil.json"
    path.write_text('{"kinetile": 1, "request": {"image": "../../etc/passwd"}}')
    drop(tab, path)
    message = tab.page.locator(TOLD)
    message.wait_for()
    tab.page.get_by_role("button", name="Paste a share code").click()
    tab.page.wait_for_timeout(500)
    assert message.is_visible()
    tab.page.get_by_role("button", name="Read it").click()
    message.get_by_text("Nothing was pasted; paste a share code (KT1-…) or the text of a preset.").wait_for()
    assert message.count() == 1
    tab.page.locator("#kt-preset-list .kt-preset").first.click()
    message.wait_for(state="detached")


@pytest.fixture
def own(tmp_path: Path) -> Iterator[_Tab]:
    """The tab's functions over a data folder of their own, which holds one preset."""
    with Desk(Home(tmp_path)) as desk:
        save_own(desk.home, Preset.of(ASKED, "Über, mich"))
        yield _Tab(Context(desk, desk.home, form=FormFields(dict.fromkeys(NAMES))))


def test_a_title_that_is_taken_is_told_in_the_words_of_the_box(own: _Tab) -> None:
    form = values_of(GenerationRequest(prompt="another")).values()
    with pytest.raises(UsageError, match="A preset of yours is called “Über, mich” already: choose another title, or "):
        own.save("über mich", "", False, 0, *form)
    path = Home(own.context.home.root).presets / "über-mich.json"
    assert load_preset(path).request["prompt"] == ASKED.prompt
    assert own.save("über mich", "", True, 0, *form)[-1] is False, "the next one would be replaced without a word"
    assert load_preset(path).request["prompt"] == "another"
    save_own(own.context.home, Preset.of(ASKED, "Mine"))
    with pytest.raises(UsageError, match=r"“Mine” already: choose another title[.]$"):
        own.rename(own._entry("own", "über-mich"), "mine", 0)


def test_what_is_imported_twice_is_kept_twice(own: _Tab) -> None:
    chosen = own.paste(encode_code(ASKED))[0]
    titles = [own._keep(chosen, 0)[0].title for _ in range(3)]
    assert titles == [chosen.title, f"{chosen.title} 2", f"{chosen.title} 3"]


def test_a_shipped_presets_title_is_not_taken_without_a_word(own: _Tab) -> None:
    form = values_of(GenerationRequest(prompt="another")).values()
    assert "A shipped preset is called that too." in own.save("lift-off", "", False, 0, *form)[-2]
    assert "shipped" not in own.save("Something else", "", False, 0, *form)[-2]
    assert "A shipped preset is called that too." in own.rename(own._entry("own", "something-else"), "Bounce", 0)[-1]


def test_a_page_tells_every_key_itself() -> None:
    with pytest.raises(UsageError, match=r"possible are .*negative_prompt.*accel") as told:
        from_text('{"request": {"output": "x"}}')
    assert "README" not in str(told.value)


def test_what_is_wrong_on_create_is_named_where_a_preset_is_saved(tab: Tab) -> None:
    tab.fill(Prompt="x", Frames="12.5", Clips="0")
    tab.show("Presets").page.get_by_role("button", name="Save what Create asks for").click()
    tab.page.get_by_role("button", name="Save preset").click()
    tab.page.locator(TOLD).get_by_text("A preset needs a title").wait_for()
    tab.page.get_by_label("Title").first.fill("Mine")
    tab.page.get_by_role("button", name="Save preset").click()
    tab.page.locator(TOLD).get_by_text("Nothing was saved; on Create look at Frames and Clips.").wait_for()


def test_what_differs_here_is_said_before_it_is_applied(tab: Tab, served: Served) -> None:
    asked = ASKED.model_copy(update={"width": 700, "accel": AccelPreferences(attention="aiter")})
    tab.show("Presets").page.get_by_role("button", name="Paste a share code").click()
    tab.page.get_by_label("Share code or text of a preset").fill(encode_code(asked))
    tab.page.get_by_role("button", name="Read it").click()
    here = tab.page.locator("#kt-preset .kt-here")
    here.get_by_text("Engaged instead").wait_for(timeout=PATIENCE)
    assert "700 becomes 512" in here.inner_text()
    assert "attention=aiter" in here.inner_text()
    tab.page.get_by_role("button", name="Keep as a preset").click()
    tab.page.get_by_label("Your presets").locator(".kt-preset").first.wait_for()
    (kept,) = (served.home / "presets").glob("*.json")
    assert load_preset(kept).request["width"] == 700  # kept as it came, not as this machine takes it
    kept.unlink()


def test_a_preset_of_ones_own_from_save_to_undo(tab: Tab, served: Served) -> None:
    tab.fill(Prompt="my own preset", Steps=5)
    tab.show("Presets").page.get_by_role("button", name="Save what Create asks for").click()
    tab.page.get_by_label("Title").first.fill("Über <mich>")
    tab.page.get_by_role("button", name="Save preset").click()
    own = tab.page.get_by_label("Your presets")
    own.get_by_text("Über <mich>").wait_for()
    path = served.home / "presets" / "über-mich.json"
    assert load_preset(path).request["prompt"] == "my own preset"
    tab.page.locator(".kt-rename").get_by_label("Title").fill("Better")
    tab.page.get_by_role("button", name="Rename").click()
    own.get_by_text("Better", exact=True).wait_for()
    assert not path.exists()
    with tab.page.expect_download() as download:
        tab.page.get_by_text("Export as a file").click()
    assert download.value.suggested_filename == "better.json"
    assert load_preset(download.value.path()).request["steps"] == 5
    tab.page.get_by_role("button", name="Show it as a share code").click()
    code = tab.page.locator("#kt-preset .kt-code")
    code.wait_for()
    assert code.input_value().startswith("KT1-")
    tab.page.get_by_role("button", name="Delete the preset Better").click()
    own.get_by_text("Better", exact=True).wait_for(state="detached")
    assert not (served.home / "presets" / "better.json").exists()
    tab.page.locator("#kt-preset-notice button").click()
    own.get_by_text("Better", exact=True).wait_for()
    assert (served.home / "presets" / "better.json").exists()
    served.client().predict("better", api_name="/preset_delete")


def test_the_same_through_the_endpoints(served: Served, tmp_path: Path) -> None:
    from gradio_client import handle_file

    client = served.client()
    found = client.predict(encode_code(ASKED), api_name="/preset_import_text")
    assert GenerationRequest.model_validate_json(json.dumps(found["request"])) == ASKED
    assert found["here"]["runs"]
    assert client.predict("Mine", found["request"], api_name="/preset_save") == {"name": "mine"}
    names = [entry["name"] for entry in client.predict(api_name="/presets")["own"]]
    assert "mine" in names
    assert client.predict("mine", "Yours", api_name="/preset_rename") == {"name": "yours"}
    token = client.predict("yours", api_name="/preset_delete")["token"]
    assert client.predict(token, api_name="/preset_undo") == {"name": "yours"}
    client.predict("yours", api_name="/preset_delete")
    assert client.predict(found["request"], api_name="/preset_code") == encode_code(ASKED)
    assert not client.predict({"model": "wonder"}, api_name="/preset_check")["runs"]
    for path in ("/etc/passwd", "../../etc/passwd", str(served.home / "kinetile.sqlite3"), str(tmp_path)):
        with pytest.raises(Exception, match="neither one of the clips nor an upload"):
            client.predict(path, api_name="/preset_import_file")
    assert handle_file(clip(tmp_path))


BROKEN = {"a": "{}", "b": '{"model": null}', "c": "[1]", "d": "", "e": '{"kinetile": 1, "request": {"steps": 0}}'}


def test_broken_files_are_listed_with_their_reason_and_hurt_nobody(tab: Tab, served: Served) -> None:
    """Case 24: the page opens, and the others work."""
    folder = Home(served.home).presets
    for name, text in BROKEN.items():
        (folder / f"{name}.json").write_text(text)
    save_preset(Preset.of(ASKED, "Fine"), folder / "fine.json", overwrite=True)
    try:
        tab.open().show("Presets")
        own = tab.page.get_by_label("Your presets")
        own.get_by_text("Fine", exact=True).wait_for()
        assert own.locator(".kt-broken").count() == len(BROKEN)
        assert all("invalid: " in text for text in own.locator(".kt-broken").all_inner_texts())
        own.locator(".kt-broken").last.click()
        tab.page.locator("#kt-preset").get_by_text("This file is no valid preset").wait_for()
    finally:
        for path in folder.glob("*.json"):
            path.unlink()


@pytest.mark.parametrize("text", ["<script>alert(1)</script>", '" onerror="x', "${1} {{2}}", "</li></ul>"])
def test_whatever_a_preset_says_is_text(tmp_path: Path, text: str) -> None:
    from app.presets.files import PresetEntry

    request = GenerationRequest(prompt=text, negative_prompt=text, scheduler=None)
    entry = PresetEntry(text, tmp_path / "x.json", Preset.of(request, text, text), request)
    broken = PresetEntry(text, tmp_path / "y.json", problem=f"{tmp_path / 'y.json'}: {text}")
    chosen = Chosen.entry(entry, "own")
    said = Here(request, (text,), text)
    for markup in (
        list_html([entry, broken], [entry], chosen),
        chosen_html(chosen),
        chosen_html(Chosen("import", text, text, request, text, text, (text,), None, said), text),
        chosen_html(Chosen.entry(broken, "own")),
    ):
        page = Reader(markup)
        assert not {tag for tag, _ in page.tags} & {"script", "img", "iframe"}
        handlers = [attributes for _, attributes in page.tags if any(name.startswith("on") for name in attributes)]
        assert all(attributes.get("class") == "kt-code" for attributes in handlers)
    assert str(tmp_path) not in problem_of(broken)
