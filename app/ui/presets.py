"""Presets: shipped and own; saved from Create, imported from a file, a code or a drop, and handed on.

Choosing one only shows it, together with what differs on this machine. Applying fills the Create form, and even then
nothing runs before Generate is pressed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gradio as gr

from app.errors import UsageError
from app.pictures import adopt
from app.presets import NamedRequest, encode_code, own_presets, rename_own, save_own, shipped_presets
from app.presets.bin import bring_back, put_aside
from app.presets.files import Preset
from app.presets.incoming import from_text, from_upload
from app.presets.portability import here
from app.request import GenerationRequest
from app.ui import presets_endpoints
from app.ui.context import PRIVATE, Context, TabParts, told
from app.ui.presets_view import Chosen, chosen_html, list_html
from app.ui.rows import HEARD, actions, read_data, script
from app.ui.undo import offer, said, undo_bar

_IMPORT = (
    '<p class="kt-import"><button type="button" class="kt-do">Import a file</button>'
    '<input type="file" accept=".json,.jsonl,.txt,.mp4,.m4v,.mov" hidden tabindex="-1" aria-hidden="true">'
    '<span class="kt-quiet">or drop a preset, or a clip made by Kinetile, anywhere on the page</span></p>'
)
_DROP = '<div class="kt-drop" hidden aria-hidden="true"><p>Drop a preset or a clip to see its settings</p></div>'


_CLEAR = "() => { for (const old of document.querySelectorAll('.toast-close')) old.click(); }"
"""What went well takes away what an earlier try was told."""


def build(context: Context) -> TabParts:
    """The tab's components and events, inside the `gr.Tab` that is open."""
    chosen = gr.State(None)
    notices = gr.State(0)
    with gr.Row(elem_classes=["kt-two"]):
        with gr.Column(scale=2, min_width=300):
            file = gr.HTML(_IMPORT, js_on_load=script("choose.js"), apply_default_css=False, elem_id="kt-import-file")
            with gr.Accordion("Paste a share code", open=False, elem_classes=["kt-tools"]):
                pasted = gr.Textbox(
                    label="Share code or text of a preset", lines=3, max_lines=6, placeholder="KT1-… or { … }"
                )
                read = gr.Button("Read it", size="sm")
            with gr.Accordion("Save what Create asks for", open=False, elem_classes=["kt-tools"]):
                title = gr.Textbox(label="Title", max_length=200, max_lines=1, placeholder="how you will find it again")
                notes = gr.Textbox(label="Notes", max_length=20_000, lines=2)
                overwrite = gr.Checkbox(label="Replace a preset of the same name")
                save = gr.Button("Save preset", size="sm")
            listed = actions(elem_id="kt-preset-list")
        with gr.Column(scale=3, min_width=300, elem_classes=["kt-detail"]):
            detail = actions(chosen_html(None), script("detail.js"), elem_id="kt-preset")
            with gr.Row(visible=False, elem_classes=["kt-rename"]) as renaming:
                new_title = gr.Textbox(label="Title", max_length=200, max_lines=1, scale=3)
                rename = gr.Button("Rename", scale=0, min_width=100, size="sm")
    notice = undo_bar(elem_id="kt-preset-notice")

    tab = _Tab(context)
    shown = [chosen, listed, detail, renaming, new_title]
    noted = [notices, notice]

    def then_compare(event: Any) -> None:
        event.success(tab.compare, [chosen], [chosen, detail], **HEARD)
        event.success(None, None, None, js=_CLEAR, **PRIVATE)

    then_compare(listed.select(told(tab.open), None, shown, **HEARD))
    then_compare(read.click(told(tab.paste), [pasted], shown, **HEARD))
    then_compare(file.upload(told(tab.taken), None, [*shown, context.tabs], **HEARD))
    save.click(
        told(tab.save), [title, notes, overwrite, notices, *context.form.components], [*shown, *noted], **HEARD
    ).success(tab.compare, [chosen], [chosen, detail], **HEARD)
    detail.apply(told(tab.apply), [chosen], [*context.form.components, context.tabs], **HEARD)
    then_compare(detail.click(told(tab.act), [chosen, notices], [*shown, *noted], **HEARD))
    rename.click(told(tab.rename), [chosen, new_title, notices], [*shown, *noted], **HEARD)
    then_compare(notice.undo(told(tab.undo), [notices], [*shown, *noted], **HEARD))
    presets_endpoints.add(context)

    def outside() -> None:
        drop = gr.HTML(_DROP, js_on_load=script("drop.js"), apply_default_css=False, elem_id="kt-drop-place")
        then_compare(drop.upload(told(tab.taken), None, [*shown, context.tabs], **HEARD))

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
            raise UsageError("title: a preset needs one; write a few words.")
        request = self.context.form.read(*form)
        path = save_own(self.context.home, Preset.of(request, title.strip(), notes or ""), overwrite=bool(overwrite))
        return [*self.show(self._entry("own", path.stem)), *_noted(notices, f"Saved as “{title.strip()[:60]}”.")]

    def apply(self, chosen: Chosen | None) -> list[Any]:
        """The preset into the Create form, as this machine can take it, and Create to the front."""
        if chosen is None or chosen.request is None:
            raise UsageError("No preset is chosen; choose one in the list.")
        found = chosen.here or here(chosen.request, self.context.home, self.context.service, chosen.recorded)
        return [*self.context.form.fill(found.request), self.context.show_create()]

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
        title = chosen.title or chosen.name
        path = save_own(self.context.home, Preset.of(_request(chosen), title, chosen.notes))
        kept = replace(self._entry("own", path.stem), here=chosen.here)
        return [*self.show(kept), *_noted(notices, f"Kept as “{title[:60]}”.")]

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
            raise UsageError("title: a preset needs one; write a few words.")
        path = rename_own(self.context.home, chosen.name, title.strip())
        renamed = replace(self._entry("own", path.stem), here=chosen.here)
        return [*self.show(renamed), *_noted(notices, f"Renamed to “{title.strip()[:60]}”.")]

    def undo(self, notices: int, event: gr.EventData) -> list[Any]:
        """Bring a deleted preset back."""
        name = bring_back(self.context.home, read_data(event).get("token", ""))
        chosen = self._entry("own", name)
        return [*self.show(chosen), *_noted(notices, f"Preset “{chosen.title[:40]}” is back.")]


def _request(chosen: Chosen) -> GenerationRequest:
    if chosen.request is None:
        raise UsageError(f"{chosen.title} is no valid preset.")
    return chosen.request


def _noted(notices: int, words: str) -> tuple[int, str]:
    return notices + 1, said(words, notices + 1)
