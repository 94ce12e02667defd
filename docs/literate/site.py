"""
# Everything that is written

The order is: read every source, so that each page can link to all; write their pages, the files to
download and the notebooks; then the chapters; then KaTeX's fonts. A file that did not change is not
touched, so a generator that watches the folder builds no more than it must.
"""

import subprocess
import sys
from pathlib import Path

from docs.literate import maths
from docs.literate.chapters import chapter, read_glossary
from docs.literate.names import Source, read_source
from docs.literate.page import notebook, source_page
from docs.literate.records import Record, read_records
from docs.literate.runs import recorded_runs
from docs.literate.scripts import read_script

ROOT = Path(__file__).parents[2]
OUT = ROOT / "docs" / "written"
MARK = ".made"
FOLDERS = ("labml_bert", "experiments")
LIVE = "docs/live"


def read_sources(root: Path = ROOT) -> dict[str, Source]:
    """All sources by module name."""
    paths = sorted(
        path for folder in FOLDERS for path in (root / folder).rglob("*.py") if path.stat().st_size
    )
    found = (read_source(root, path.relative_to(root).as_posix()) for path in paths)
    return {source.module: source for source in found}


def put(path: Path, text: str | bytes) -> None:
    """Writes a file if it is not the same already."""
    data = text.encode() if isinstance(text, str) else text
    if not path.is_file() or path.read_bytes() != data:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def write_sources(sources: dict[str, Source], records: dict[str, Record], out: Path) -> None:
    """The page of each source, the file itself, and its notebook."""
    for source in sources.values():
        put(out / f"{source.page}.md", source_page(source, sources, recorded_runs(source, sources, records)))
        put(out / source.path, source.text)
        put(out / f"{source.page}.ipynb", notebook(source))


def write_live(sources: dict[str, Source], out: Path) -> None:
    """What runs in the page: its scripts and weights as they are, and the page of the model's script."""
    for path in (ROOT / LIVE).glob("**/*.*"):
        put(out / path.relative_to(ROOT), path.read_bytes())
    model = read_script(ROOT, f"{LIVE}/bert.js")
    put(out / f"{model.page}.md", source_page(model, sources))


def write_chapters(sources: dict[str, Source], records: dict[str, Record], out: Path) -> None:
    """The chapters that people wrote."""
    pages = ROOT / "docs" / "pages"
    glossary = pages / "glossary.md"
    terms = read_glossary(glossary.read_text("utf-8")) if glossary.is_file() else []
    for path in sorted(pages.glob("**/*.md")):
        name = path.relative_to(pages).as_posix().removesuffix(".md")
        put(out / f"{name}.md", chapter(path, name, sources, records, terms))


def reference_is_old(sources: dict[str, Source], out: Path) -> bool:
    """Whether a source was edited since the reference was written."""
    mark = out / "reference" / MARK
    newest = max((ROOT / source.path).stat().st_mtime for source in sources.values())
    return not mark.is_file() or mark.stat().st_mtime < newest


def write_site(out: Path = OUT, reference: bool = True) -> None:
    """
    Writes all pages; the `reference` takes seconds and can be left as it is. Raises `PageError` where
    a page would be wrong.
    """
    sources = read_sources()
    records = read_records()
    write_sources(sources, records, out)
    write_live(sources, out)
    write_chapters(sources, records, out)
    maths.write_assets(out / "assets" / "katex")
    if reference and reference_is_old(sources, out):
        subprocess.run([sys.executable, "-m", "docs.literate.api", str(out)], cwd=ROOT, check=True)
