"""The words that the starter knows: all of them, no other, and a click away from the prompt."""

from __future__ import annotations

from app.models.base import Normalised
from app.models.starter import STARTER
from app.request import GenerationRequest
from app.ui.create import _possible
from app.ui.starter_words import VOCABULARY, groups, words_html, words_in
from tests.app.ui.tab import Tab
from tests.app.ui.test_queue_view import Reader


def normalised(prompt: str) -> Normalised:
    return STARTER.normalise(GenerationRequest(prompt=prompt))


def test_every_known_word_can_be_found_and_no_other() -> None:
    found = groups()
    words = {word for told in found.values() for phrase in told for word in words_in(phrase)}
    assert words == set(VOCABULARY.read_text(encoding="utf-8").split())
    for told in found.values():
        use = normalised(" ".join(told[:8])).prompt_tokens
        assert use is not None
        assert use.unknown == ()
    for title, one in {
        "Objects": "rocket",
        "Colours": "cyan",
        "Backgrounds": "in the snow",
        "Motions": "spins",
    }.items():
        assert one in found[title]


def test_the_groups_are_folded_and_only_the_starter_shows_them() -> None:
    page = Reader(words_html({"Objects": ("ball", "<b>")}))
    assert page.text == "Words the starter knowsObjects 2ball<b>"
    assert not any("open" in attributes for tag, attributes in page.tags if tag == "details")
    assert [_possible(model, "", "", "")[-1]["visible"] for model in ("starter", "wan2.1-t2v-1.3b")] == [True, False]


def test_a_word_that_is_clicked_is_in_the_prompt(tab: Tab) -> None:
    tab.fill(Prompt="a red ")
    words = tab.page.locator("#kt-words")
    words.get_by_text("Words the starter knows").click()
    words.locator("summary", has_text="Objects").click()
    words.get_by_role("button", name="Add to the prompt: rocket", exact=True).click()
    words.locator("summary", has_text="Backgrounds").click()
    words.get_by_role("button", name="Add to the prompt: over a night city", exact=True).press("Enter")
    tab.expect_value("Prompt", "a red rocket over a night city")
    tab.page.locator("#kt-tokens").get_by_text("8 of 64 tokens").wait_for()  # the form has it, too
    assert words.locator("summary", has_text="Objects").is_visible(), "it folded itself"
    tab.open().expect_value("Prompt", "a red rocket over a night city")
    assert tab.errors == []
