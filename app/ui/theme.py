"""How the page looks: paper and ink, one accent, the same radius and the same spacing step everywhere.

Colours stand here once; the stylesheet in `assets` uses them by the names that Gradio gives them, and the `--kt-*`
variables of `VARIABLES` for what Gradio has no name for.
"""

from __future__ import annotations

from dataclasses import dataclass

import gradio as gr

FONT = ["system-ui", "-apple-system", "Segoe UI", "Roboto", "Noto Sans", "Ubuntu", "DejaVu Sans", "sans-serif"]
MONO = ["ui-monospace", "SF Mono", "Consolas", "DejaVu Sans Mono", "monospace"]


@dataclass(frozen=True)
class Colours:
    """One of the two looks. Contrast of text on paper and of the accent's text is at least 4.5 : 1."""

    paper: str
    card: str
    ink: str
    quiet: str
    line: str
    accent: str
    """Generate, the focus ring, progress. Nothing else."""
    on_accent: str
    good: str
    fair: str
    bad: str


LIGHT = Colours(
    paper="#f6f5f1",
    card="#fdfcfa",
    ink="#1b1c20",
    quiet="#62635f",
    line="#dcdad2",
    accent="#e8622c",
    on_accent="#1b1c20",
    good="#1f6f43",
    fair="#8a5a00",
    bad="#a82a1d",
)
DARK = Colours(
    paper="#15161a",
    card="#1b1d22",
    ink="#e9e8e4",
    quiet="#a0a19f",
    line="#2b2d33",
    accent="#e8622c",
    on_accent="#15161a",
    good="#6cc28f",
    fair="#e0ae4c",
    bad="#f0897b",
)


def _variables(colours: Colours) -> str:
    names = ("paper", "card", "ink", "quiet", "line", "accent", "on_accent", "good", "fair", "bad")
    return " ".join(f"--kt-{name.replace('_', '-')}: {getattr(colours, name)};" for name in names)


VARIABLES = f":root {{ {_variables(LIGHT)} }}\n.dark {{ {_variables(DARK)} }}\n"
"""The colours for the stylesheet: `var(--kt-line)` and so on."""


_SHADOWS = ("shadow_drop", "shadow_drop_lg", "shadow_inset", "block_label_shadow", "checkbox_shadow")


def theme() -> gr.themes.Base:
    """The theme for `launch`. References no font or script from elsewhere."""
    made = gr.themes.Base(
        font=FONT,
        font_mono=MONO,
        spacing_size=gr.themes.sizes.spacing_sm,
        radius_size=gr.themes.Size(name="kt", xxs="6px", xs="6px", sm="6px", md="6px", lg="6px", xl="6px", xxl="6px"),
        text_size=gr.themes.Size(
            name="kt", xxs="12px", xs="12px", sm="13px", md="14px", lg="16px", xl="16px", xxl="16px"
        ),
    )
    settings = dict.fromkeys(_SHADOWS, "none")
    for colours, ending in ((LIGHT, ""), (DARK, "_dark")):
        settings |= {name + ending: value for name, value in _settings(colours).items()}
    return made.set(**settings)


def _settings(c: Colours) -> dict[str, str]:
    return {
        "body_background_fill": c.paper,
        "body_text_color": c.ink,
        "body_text_color_subdued": c.quiet,
        "background_fill_primary": c.card,
        "background_fill_secondary": c.paper,
        "border_color_primary": c.line,
        "border_color_accent": c.line,
        "color_accent_soft": c.line,
        "link_text_color": c.ink,
        "link_text_color_hover": c.ink,
        "link_text_color_active": c.ink,
        "link_text_color_visited": c.ink,
        "shadow_spread": "0px",
        "block_background_fill": "transparent",
        "block_border_width": "0px",
        "block_border_color": c.line,
        "block_label_background_fill": "transparent",
        "block_label_border_width": "0px",
        "block_label_text_color": c.quiet,
        "block_title_text_color": c.quiet,
        "block_title_background_fill": "transparent",
        "block_title_border_width": "0px",
        "block_info_text_color": c.quiet,
        "block_shadow": "none",
        "panel_background_fill": "transparent",
        "panel_border_color": c.line,
        "panel_border_width": "0px",
        "accordion_text_color": c.quiet,
        "table_text_color": c.ink,
        "table_border_color": c.line,
        "table_even_background_fill": c.card,
        "table_odd_background_fill": c.card,
        "table_row_focus": c.paper,
        "checkbox_background_color": c.card,
        "checkbox_background_color_hover": c.card,
        "checkbox_background_color_focus": c.card,
        "checkbox_background_color_selected": c.ink,
        "checkbox_border_color": c.quiet,
        "checkbox_border_color_hover": c.ink,
        "checkbox_border_color_focus": c.accent,
        "checkbox_border_color_selected": c.ink,
        "checkbox_label_background_fill": "transparent",
        "checkbox_label_background_fill_hover": c.paper,
        "checkbox_label_background_fill_selected": c.line,
        "checkbox_label_border_color": c.line,
        "checkbox_label_border_color_hover": c.quiet,
        "checkbox_label_text_color": c.ink,
        "checkbox_label_text_color_selected": c.ink,
        "checkbox_label_shadow": "none",
        "input_background_fill": c.card,
        "input_background_fill_hover": c.card,
        "input_background_fill_focus": c.card,
        "input_border_width": "1px",
        "input_border_color": c.line,
        "input_border_color_hover": c.quiet,
        "input_border_color_focus": c.accent,
        "input_placeholder_color": c.quiet,
        "input_shadow": "none",
        "input_shadow_focus": "none",
        "loader_color": c.accent,
        "slider_color": c.accent,
        "stat_background_fill": c.line,
        "error_background_fill": c.card,
        "error_border_color": c.bad,
        "error_text_color": c.bad,
        "error_icon_color": c.bad,
        "code_background_fill": c.paper,
        "button_primary_background_fill": c.accent,
        "button_primary_background_fill_hover": c.accent,
        "button_primary_border_color": c.accent,
        "button_primary_border_color_hover": c.ink,
        "button_primary_text_color": c.on_accent,
        "button_primary_text_color_hover": c.on_accent,
        "button_primary_shadow": "none",
        "button_secondary_background_fill": c.card,
        "button_secondary_background_fill_hover": c.paper,
        "button_secondary_border_color": c.line,
        "button_secondary_border_color_hover": c.quiet,
        "button_secondary_text_color": c.ink,
        "button_secondary_text_color_hover": c.ink,
        "button_secondary_shadow": "none",
        "button_cancel_background_fill": c.card,
        "button_cancel_background_fill_hover": c.paper,
        "button_cancel_border_color": c.bad,
        "button_cancel_border_color_hover": c.bad,
        "button_cancel_text_color": c.bad,
        "button_cancel_text_color_hover": c.bad,
    }
