"""Pages read well in a terminal: prose is wrapped, whatever width its writer's editor has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *sorted(ROOT.glob("docs/**/*.md")), *ROOT.glob("charts/*/*.md")]
COLUMNS = 100
#: As many words of our own as a newcomer learns at once.
MOST_WORDS = 12


def prose(text: str) -> Iterator[str]:
    """The lines that can be wrapped: no tables, no fences, no indented code."""
    inside = False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            inside = not inside
        elif not inside and not line.startswith(("|", "    ")):
            yield line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_prose_is_wrapped(page: Path) -> None:
    assert [line for line in prose(page.read_text("utf-8")) if len(line) > COLUMNS] == []


def test_glossary_has_at_most_twelve_terms() -> None:
    words = re.findall(r"^\*\*[^*]+\.\*\*", (ROOT / "docs" / "glossary.md").read_text("utf-8"), re.MULTILINE)
    assert 0 < len(words) <= MOST_WORDS
