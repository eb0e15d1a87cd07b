"""Presets: shipped and own; saved from Create, imported from a file, a code or a drop, and handed on.

Choosing one only shows it, together with what differs on this machine. Applying fills the Create form, and even then
nothing runs before Generate is pressed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gradio as gr

from app.errors import NameTakenError, UsageError
from app.paths import slug
from app.pictures import adopt
from app.presets import NamedRequest, encode_code, own_presets, rename_own, save_own, shipped_presets
from app.presets.bin import bring_back, put_aside
from app.presets.files import Preset
from app.presets.incoming import from_text, from_upload
from app.presets.portability import here
from app.request import GenerationRequest
from app.ui import presets_endpoints
from app.ui.carried import whose
from app.ui.context import TO_FORM, Context, TabParts
from app.ui.lines import Lines
from app.ui.mistakes import in_words
from app.ui.presets_view import Chosen, chosen_html, list_html
from app.ui.rows import HEARD, actions, read_data, script
from app.ui.undo import offer, said, undo_bar

_IMPORT = (
    '<p class="kt-import"><button type="button" class="kt-do">Import a file</button>'
    '<input type="file" accept=".json,.jsonl,.txt,.mp4,.m4v,.mov" hidden tabindex="-1" aria-hidden="true">'
    '<span class="kt-quiet">or drop a preset, or a clip made by Kinetile, anywhere on the page</span></p>'
)
_DROP = '<div class="kt-drop" hidden aria-hidden="true"><p>Drop a preset or a clip to see its settings</p></div>'


REPLACE = "Replace a preset of the same name"
MOST_ALIKE = 100
"""Most presets of one title that are told apart by a number."""


def build(context: Context) -> TabParts:
    """The tab's components and events, inside the `gr.Tab` that is open."""
    chosen, notices, lines = gr.State(None), gr.State(0), Lines()
    with gr.Row(elem_classes=["kt-two"]):
        with gr.Column(scale=2, min_width=300):
            file = gr.HTML(_IMPORT, js_on_load=script("choose.js"), apply_default_css=False, elem_id="kt-import-file")
            lines.place("file")
            with gr.Accordion("Paste a share code", open=False, elem_classes=["kt-tools"]):
                pasted = gr.Textbox(
                    label="Share code or text of a preset", lines=3, max_lines=6, placeholder="KT1-… or { … }"
                )
                read = gr.Button("Read it", size="sm")
                lines.place("paste")
            with gr.Accordion("Save what Create asks for", open=False, elem_classes=["kt-tools"]):
                title = gr.Textbox(label="Title", max_length=200, max_lines=1, placeholder="how you will find it again")
                notes = gr.Textbox(label="Notes", max_length=20_000, lines=2)
                overwrite = gr.Checkbox(label=REPLACE)
                save = gr.Button("Save preset", size="sm")
                lines.place("save")
            lines.place("list")
            listed = actions(elem_id="kt-preset-list")
        with gr.Column(scale=3, min_width=300, elem_classes=["kt-detail"]):
            detail = actions(chosen_html(None), script("detail.js"), elem_id="kt-preset")
            with gr.Row(visible=False, elem_classes=["kt-rename"]) as renaming:
                new_title = gr.Textbox(label="Title", max_length=200, max_lines=1, scale=3)
                rename = gr.Button("Rename", scale=0, min_width=100, size="sm")
            lines.place("detail")
    notice = undo_bar(elem_id="kt-preset-notice")

    tab = _Tab(context)
    shown = [chosen, listed, detail, renaming, new_title]
    noted = [*shown, notices, notice]

    def nothing() -> dict[Any, Any]:
        # whatever was looked at before is not what was handed over
        return dict(zip(shown, tab.show(None), strict=True))

    def heard(event: Any, place: str, function: Any, inputs: list[Any], outputs: list[Any], refused: Any = None) -> Any:
        return event(lines.at(place, function, outputs, refused), inputs, [*outputs, *lines.components], **HEARD)

    def then_compare(done: Any) -> None:
        done.success(tab.compare, [chosen], [chosen, detail], **HEARD)

    def taken(event: Any) -> None:
        # whoever dropped it anywhere on the page is told where files are imported
        def to_here() -> dict[Any, Any]:
            return {**nothing(), context.tabs: gr.update(selected="presets")}

        then_compare(heard(event, "file", tab.taken, [], [*shown, context.tabs], refused=to_here))

    then_compare(heard(listed.select, "list", tab.open, [], shown))
    then_compare(heard(read.click, "paste", tab.paste, [pasted], shown, refused=nothing))
    taken(file.upload)
    saved = [title, notes, overwrite, notices, *context.form.components]
    then_compare(heard(save.click, "save", tab.save, saved, [*noted, overwrite]))
    heard(
        detail.apply, "detail", tab.apply, [chosen], [*context.form.components, context.form.source, context.tabs]
    ).then(**TO_FORM)
    then_compare(heard(detail.click, "detail", tab.act, [chosen, notices], noted))
    heard(rename.click, "detail", tab.rename, [chosen, new_title, notices], noted)
    then_compare(heard(notice.undo, "list", tab.undo, [notices], noted))
    presets_endpoints.add(context)

    def outside() -> None:
        drop = gr.HTML(_DROP, js_on_load=script("drop.js"), apply_default_css=False, elem_id="kt-drop-place")
        taken(drop.upload)

    return TabParts(on_load=[(lambda: tab.listed(None), [listed])], outside=[outside])


@dataclass
class _Tab:
    """The events' functions. `shown` values: chosen, list, detail, rename row, its text."""

    context: Context

    # -- showing --

    def listed(self, chosen: Chosen | None) -> str:
        """The lists as they lie on disk now."""
        return list_html(own_presets(self.context.home), shipped_presets(), chosen)

    def show(self, chosen: Chosen | None, code: str = "") -> list[Any]:
        """Everything that depends on the preset that is looked at."""
        own = chosen is not None and chosen.kind == "own" and chosen.request is not None
        return [
            chosen,
            self.listed(chosen),
            chosen_html(chosen, code),
            gr.update(visible=own),
            chosen.title if chosen is not None and own else "",
        ]

    def open(self, event: gr.EventData) -> list[Any]:
        """A preset of the list."""
        data = read_data(event)
        return self.show(self._entry(data.get("kind", ""), data.get("name", "")))

    def _entry(self, kind: str, name: str) -> Chosen:
        entries = own_presets(self.context.home) if kind == "own" else shipped_presets()
        for entry in entries:
            if entry.name == name:
                found = Chosen.entry(entry, kind if kind == "own" else "shipped")
                if found.request is None:
                    return found
                return replace(found, request=adopt(found.request, self.context.home, entry.path.parent))
        raise UsageError(f"The preset {name[:80]!r} is no longer there; reload the page.")

    def compare(self, chosen: Chosen | None) -> tuple[Any, Any]:
        """What of it differs on this machine; asks the worker, so it may take a moment."""
        if chosen is None or chosen.request is None or chosen.here is not None:
            return gr.skip(), gr.skip()
        found = replace(chosen, here=here(chosen.request, self.context.home, self.context.service, chosen.recorded))
        return found, chosen_html(found)

    # -- importing --

    def paste(self, text: str) -> list[Any]:
        """A pasted code or preset."""
        return self.show(self._imported(from_text(text or "")))

    def taken(self, event: gr.EventData) -> list[Any]:
        """A file that was chosen, or dropped on the page; brings Presets to the front."""
        data = event._data if isinstance(event._data, dict) else {}
        name = Path(str(data.get("name", ""))).name[:200] or "The file"
        if not data.get("path"):
            raise UsageError(f"{name} could not be uploaded; it may be too large.")
        path = self.context.open_path(str(data["path"])[:4000])
        return [*self.show(self._imported(from_upload(path, name))), gr.Tabs(selected="presets")]

    def _imported(self, found: NamedRequest) -> Chosen:
        title = found.title or " ".join(found.request.prompt.split())[:60] or found.name
        recorded = (found.metadata or {}).get("plan")
        return Chosen(
            "import",
            found.name,
            title,
            adopt(found.request, self.context.home, found.folder, found.pictures),
            origin=found.origin,
            warnings=found.warnings,
            recorded=recorded if isinstance(recorded, dict) else None,
        )

    # -- doing --

    def save(self, title: str, notes: str, overwrite: bool, notices: int, *form: Any) -> list[Any]:
        """What Create asks for, as a preset of one's own."""
        if not (title or "").strip():
            raise UsageError("A preset needs a title: write a few words.")
        request, wrong = self.context.form.look(*form)
        if wrong:
            raise UsageError(f"Nothing was saved; on Create look at {in_words(wrong)}.")
        preset = Preset.of(request, title.strip(), notes or "")
        try:
            path = save_own(self.context.home, preset, overwrite=bool(overwrite))
        except NameTakenError as error:
            raise self._taken(preset.title, f"choose another title, or tick “{REPLACE}”") from error
        notice = _noted(notices, _now_called("Saved as", preset.title))
        # what was ticked was meant for this once
        return [*self.show(self._entry("own", path.stem)), *notice, False]

    def _taken(self, title: str, way_out: str) -> UsageError:
        """What to say of a name that another preset has, by that one's own title."""
        there = next((entry for entry in own_presets(self.context.home) if entry.name == slug(title)), None)
        called = there.preset.title if there is not None and there.preset is not None else ""
        return UsageError(f"A preset of yours is called “{(called or title)[:60]}” already: {way_out}.")

    def apply(self, chosen: Chosen | None) -> list[Any]:
        """The preset into the Create form, as this machine can take it, and Create to the front."""
        if chosen is None or chosen.request is None:
            raise UsageError("No preset is chosen; choose one in the list.")
        found = chosen.here or here(chosen.request, self.context.home, self.context.service, chosen.recorded)
        return [*self.context.form.fill(found.request), whose(chosen.title), self.context.show_create()]

    def act(self, chosen: Chosen | None, notices: int, event: gr.EventData) -> list[Any]:
        """What a button in the detail says."""
        if chosen is None:
            raise UsageError("No preset is chosen; choose one in the list.")
        known: dict[str, Callable[[Chosen, int], list[Any]]] = {
            "share": self._share,
            "keep": self._keep,
            "delete": self._delete,
        }
        do = read_data(event).get("do", "")
        if do not in known:
            raise UsageError(f"{do[:40]!r} is nothing that can be done here; reload the page.")
        return known[do](chosen, notices)

    def _share(self, chosen: Chosen, notices: int) -> list[Any]:
        return [*self.show(chosen, encode_code(_request(chosen))), notices, gr.skip()]

    def _keep(self, chosen: Chosen, notices: int) -> list[Any]:
        path = self._keep_under_free_name(chosen)
        kept = replace(self._entry("own", path.stem), here=chosen.here)
        return [*self.show(kept), *_noted(notices, _now_called("Kept as", kept.title))]

    def _keep_under_free_name(self, chosen: Chosen) -> Path:
        """What is imported brings its title, nobody was asked for one: where that is taken, it gets a number."""
        title = chosen.title or chosen.name
        for number in range(1, MOST_ALIKE):
            called = title if number == 1 else f"{title[:190]} {number}"
            with contextlib.suppress(NameTakenError):
                return save_own(self.context.home, Preset.of(_request(chosen), called, chosen.notes))
        raise self._taken(title, "rename or delete some of that name first")

    def _delete(self, chosen: Chosen, notices: int) -> list[Any]:
        if chosen.kind != "own":
            raise UsageError("Shipped presets can't be deleted.")
        deleted = put_aside(self.context.home, chosen.name)
        bar = offer(f"Preset “{chosen.title[:40]}” deleted.", notices + 1, token=deleted.token)
        return [*self.show(None), notices + 1, bar]

    def rename(self, chosen: Chosen | None, title: str, notices: int) -> list[Any]:
        """Another title for an own preset."""
        if chosen is None or chosen.kind != "own":
            raise UsageError("Only your own presets can be renamed; save a copy of this one first.")
        if not title.strip():
            raise UsageError("A preset needs a title: write a few words.")
        try:
            path = rename_own(self.context.home, chosen.name, title.strip())
        except NameTakenError as error:
            raise self._taken(title.strip(), "choose another title") from error
        renamed = replace(self._entry("own", path.stem), here=chosen.here)
        return [*self.show(renamed), *_noted(notices, _now_called("Renamed to", renamed.title))]

    def undo(self, notices: int, event: gr.EventData) -> list[Any]:
        """Bring a deleted preset back."""
        name = bring_back(self.context.home, read_data(event).get("token", ""))
        chosen = self._entry("own", name)
        return [*self.show(chosen), *_noted(notices, f"Preset “{chosen.title[:40]}” is back.")]


def _request(chosen: Chosen) -> GenerationRequest:
    if chosen.request is None:
        raise UsageError(f"{chosen.title} is no valid preset.")
    return chosen.request


def _now_called(what: str, title: str) -> str:
    """A notice; a title that a shipped preset has is said, since both are in the list."""
    shipped = {entry.preset.title.casefold() for entry in shipped_presets() if entry.preset}
    also = " A shipped preset is called that too." if title.casefold() in shipped else ""
    return f"{what} “{title[:60]}”.{also}"


def _noted(notices: int, words: str) -> tuple[int, str]:
    return notices + 1, said(words, notices + 1)
