"""The diagrams: everybody can read them, and nothing in them overlaps."""

import re
import xml.etree.ElementTree as ET
from itertools import combinations, pairwise
from typing import NamedTuple

import pytest

from docs.figures.diagrams import BESIDE, DIAGRAMS, diagram, diagrams_beside
from docs.figures.diagrams.drawing import PHONE, text_width
from docs.figures.quotable import quotable
from docs.figures.records import read_records
from docs.literate.expressions import evaluate
from docs.literate.page import source_page
from docs.literate.rows import PageError
from docs.literate.site import read_sources
from docs.project import ROOT
from labml_bert.bert import BertConfig
from labml_bert.data.curriculum import parse_schedule


class Area(NamedTuple):
    """A rectangle in the drawing, and the text in it."""

    left: float
    top: float
    right: float
    bottom: float
    words: str = ""

    def overlaps(self, other: "Area") -> bool:
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )

    def contains(self, other: "Area") -> bool:
        return (
            self.left <= other.left
            and other.right <= self.right
            and self.top <= other.top
            and other.bottom <= self.bottom
        )


def drawings(name: str) -> list[ET.Element]:
    """The drawings of a diagram. Raises `ParseError` if the diagram isn't well-formed XML."""
    return list(ET.fromstring(diagram(name)).iter("svg"))


def area_of_text(text: ET.Element) -> Area:
    """The area of the letters, without the space above and below them."""
    size, words = float(text.get("font-size", "0")), text.text or ""
    width = text_width(words, size, "mono" in text.get("class", ""))
    left = (
        float(text.get("x", "0")) - width * {"start": 0, "middle": 0.5, "end": 1}[text.get("text-anchor", "")]
    )
    y = float(text.get("y", "0"))
    return Area(left, y - 0.7 * size, left + width, y + 0.15 * size, words)


def area_of_box(box: ET.Element) -> Area:
    x, y, width, height = (float(box.get(key, "0")) for key in ("x", "y", "width", "height"))
    return Area(x, y, x + width, y + height)


def areas_of_lines(path: ET.Element) -> list[Area]:
    """The straight segments of a line. All lines are horizontal or vertical."""
    points = [(float(x), float(y)) for x, y in re.findall(r"(-?[\d.]+),(-?[\d.]+)", path.get("d", ""))]
    segments = [Area(min(a, c), min(b, d), max(a, c), max(b, d)) for (a, b), (c, d) in pairwise(points)]
    assert all(segment.left == segment.right or segment.top == segment.bottom for segment in segments)
    return [Area(a - 1, b - 1, c + 1, d + 1) for a, b, c, d, _ in segments]


@pytest.mark.parametrize("name", DIAGRAMS)
def test_a_screen_reader_gets_a_title_and_a_description(name: str) -> None:
    figure = ET.fromstring(diagram(name))
    assert figure.tag == "figure" and figure.findtext("figcaption")
    for svg in figure.iter("svg"):
        descriptions = {
            element.get("id"): element.text or "" for element in svg if element.tag in ("title", "desc")
        }
        assert svg.get("role") == "img" and svg.get("aria-labelledby", "").split() == list(descriptions)
        title, description = descriptions.values()
        assert 3 <= len(title.split()) <= 12 and len(description.split()) > 50


@pytest.mark.parametrize("name", DIAGRAMS)
def test_a_diagram_is_one_line_of_html(name: str) -> None:
    assert diagram(name).startswith("<figure") and "\n" not in diagram(name)


def test_ids_are_unique_on_a_page() -> None:
    page = "".join(diagram(name) for name in [*DIAGRAMS, *DIAGRAMS])
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids)) == 2 * len(DIAGRAMS) * 4


@pytest.mark.parametrize("name", DIAGRAMS)
def test_no_texts_overlap(name: str) -> None:
    for svg in drawings(name):
        texts = [area_of_text(text) for text in svg.iter("text")]
        for one, other in combinations(texts, 2):
            assert not one.overlaps(other), (svg.get("class"), one.words, other.words)


@pytest.mark.parametrize("name", DIAGRAMS)
def test_no_text_overlaps_a_line(name: str) -> None:
    for svg in drawings(name):
        lines = [
            segment
            for path in svg.iter("path")
            if path.get("class") in ("arrow", "path", "tie")
            for segment in areas_of_lines(path)
        ]
        for text in map(area_of_text, svg.iter("text")):
            assert not [line for line in lines if line.overlaps(text)], (svg.get("class"), text.words)


@pytest.mark.parametrize("name", DIAGRAMS)
def test_text_is_completely_inside_or_outside_a_box(name: str) -> None:
    for svg in drawings(name):
        for box in map(area_of_box, svg.iter("rect")):
            for text in map(area_of_text, svg.iter("text")):
                # Words must not touch the edge of their box.
                wide_text = text._replace(left=text.left - 2, right=text.right + 2)
                assert box.contains(wide_text) or not box.overlaps(text), (svg.get("class"), text.words)


@pytest.mark.parametrize("name", DIAGRAMS)
def test_a_drawing_fits_its_frame_and_is_legible(name: str) -> None:
    for svg in drawings(name):
        x, y, width, height = map(float, svg.get("viewBox", "").split())
        frame = Area(x, y, x + width, y + height)
        for text in svg.iter("text"):
            assert frame.contains(area_of_text(text)), (svg.get("class"), text.text)
            assert float(text.get("font-size", "0")) >= 11.5
        for box in map(area_of_box, svg.iter("rect")):
            assert frame.contains(box), svg.get("class")
    # On a screen 390 pixels wide, the text is 342 pixels wide, so letters of size 11.5 have 11.4 pixels.
    assert width == PHONE + 4


def test_sizes_match_the_code_and_the_records() -> None:
    config = BertConfig()
    assert f"{config.hidden_size} → {config.intermediate_size:,} → {config.hidden_size}" in diagram("block")
    assert f"one of {config.vocab_size:,} rows" in diagram("embeddings")
    schedule = read_records()["mlm_tiny"].data["configuration"]["schedule"]
    assert schedule in diagram("curriculum")
    assert all(f">{stage.length}</text>" in diagram("curriculum") for stage in parse_schedule(schedule))


def test_chapters_can_use_the_diagrams() -> None:
    names = quotable({}, {}, "page")
    assert evaluate('diagram("model")', names).startswith("<figure")
    with pytest.raises(PageError, match=r"no diagram 'modle'; known are model, embeddings"):
        evaluate('diagram("modle")', names)


def test_the_diagrams_next_to_the_code() -> None:
    sources = read_sources(ROOT, ("labml_bert",))
    by_path = {source.path: source for source in sources.values()}
    for path, diagrams in BESIDE.items():
        source = by_path[path]
        page = source_page(source, sources, pictures=diagrams_beside(path))
        assert page.count('<figure class="diagram">') == len(diagrams)
        for definition in diagrams:
            # The diagram is below the code of its own row.
            row = next(row for row in source.rows if row.name == definition)
            code, _, rest = page.partition('<figure class="diagram">')
            assert f'id="L{row.first}"' in code and f'id="L{source.rows[-1].first}"' in rest
            page = code + rest
    assert diagrams_beside("labml_bert/files.py") == {}


def test_a_diagram_without_a_row_is_refused() -> None:
    sources = read_sources(ROOT, ("labml_bert",))
    with pytest.raises(PageError, match=r"labml_bert/bert.py defines no Nothing, but has a picture for it"):
        source_page(sources["labml_bert.bert"], sources, pictures={"Nothing": diagram("model")})
