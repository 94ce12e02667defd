"""The timeline of models: its dates are those of the papers, and the chapter links every one of them."""

import re
from pathlib import Path

from docs.figures.timeline import CHANGE, ENTRIES, NAME, timeline
from docs.literate.chart import WIDTH

CHAPTER = Path(__file__).parents[2] / "docs" / "pages" / "before-and-after.md"


def test_dates_match_the_papers() -> None:
    """An arXiv number starts with the year and the month of the first version."""
    for entry in ENTRIES:
        number = re.search(r"arxiv\.org/abs/(\d\d)(\d\d)\.\d+$", entry.source)
        if number:
            assert entry.date == f"20{number[1]}-{number[2]}", entry.name
    assert sum("arxiv.org" in entry.source for entry in ENTRIES) == len(ENTRIES) - 1  # GPT is not on arXiv


def test_entries_are_sorted_by_date() -> None:
    """In another order, the lines to the axis would cross."""
    assert [entry.date for entry in ENTRIES] == sorted(entry.date for entry in ENTRIES)


def test_the_chapter_links_every_paper() -> None:
    chapter = CHAPTER.read_text("utf-8")
    for entry in ENTRIES:
        assert f"({entry.source})" in chapter, entry.name


def test_the_figure_is_described_in_words() -> None:
    figure = timeline()
    assert "\n" not in figure and 'role="img"' in figure
    description = re.search(r"<desc[^>]*>(.*?)</desc>", figure)
    assert description is not None
    for entry in ENTRIES:
        assert f"{entry.date}: {entry.name}, {entry.change}" in description[1]


def test_colors_come_from_the_theme() -> None:
    assert not re.search(r'(?:fill|stroke|style)="', timeline())


def test_text_fits_on_a_phone() -> None:
    """On a phone, letters are 22 units high. In common serif fonts, they average at most these widths."""
    for entry in ENTRIES:
        assert NAME + 14 * len(entry.name) + 16 <= CHANGE, entry.name
        assert CHANGE + 11 * len(entry.change) <= WIDTH, entry.change
