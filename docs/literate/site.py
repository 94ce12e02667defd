"""
# Everything that is written

The order is: read every source, so that each page can link to all of them; write their pages, the downloads,
the notebooks and the chapters; then the reference and the fonts. A file that hasn't changed is not touched,
so a generator that watches the folder rebuilds only what it must.
"""

import hashlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from markupsafe import Markup

from docs.literate import maths
from docs.literate.expressions import chapter, read_glossary
from docs.literate.fonts import typefaces
from docs.literate.names import Source, Sources, read_source
from docs.literate.page import chapter_notebook, notebook, source_page
from docs.literate.rows import find_files, read_page
from docs.literate.scripts import read_script

# This file holds the `reference_hash` of the reference that was last written.
MARK = ".hash"
# What other code writes, such as the reference, and git's files, whose names begin with a dot.
OTHERS = ("reference/", "assets/", ".")
# The name of each file to write, relative to the folder of the site's pages, and its contents.
Files = Iterator[tuple[str, str | bytes]]


class Contents(Protocol):
    """What a project adds to its pages."""

    def names(self, page: str) -> dict[str, Callable[..., Any]]:
        """The names that an expression between `{{ ` and ` }}` may use on a page."""

    def after(self, source: Source) -> str:
        """Markdown that follows the code of a source file."""

    def notes(self, source: Source) -> dict[str, str]:
        """Markdown that follows the explanation of a definition, by the name of the definition."""

    def pictures(self, source: Source) -> dict[str, Markup]:
        """Figures to put below the code of a definition, by its name; the first row has an empty name."""

    def files(self) -> dict[str, str]:
        """The texts of other files that pages link to, by path."""


@dataclass(frozen=True)
class Site:
    """The settings of a project. Paths are relative to `root`."""

    root: Path
    contents: Callable[[Sources], Contents]
    """Called once per build, with all sources."""
    folders: tuple[str, ...]
    """Folders of Python files; each file gets a page."""
    package: str
    """The one among `folders` that gets a reference."""
    notebooks: dict[str, str] = field(default_factory=dict)
    """The source files and chapters that get a notebook, each with the code of a first cell."""
    notebook_hosts: Callable[[str], dict[str, str]] = lambda path: {}
    """Returns links that open a notebook elsewhere, by their labels, given its path on the site."""
    scripts: tuple[str, ...] = ()
    """JavaScript files that get a page."""
    copied: tuple[str, ...] = ()
    """Folders that are copied to the site unchanged."""
    unsearched: tuple[str, ...] = ()
    """What the paths of files begin with whose pages search leaves out."""
    chapters: str = "docs/pages"
    written: str = "docs/written"
    watched: tuple[str, ...] = ()
    """Other folders that the pages depend on."""
    titles: dict[str, str] = field(default_factory=dict)
    """The titles of folders in the navigation; a folder without one uses its name."""
    first: tuple[str, ...] = ()
    """Folders and files that come first in the navigation; the rest follow in alphabetical order."""

    @property
    def out(self) -> Path:
        """The folder that the pages are written to."""
        return self.root / self.written


def read_sources(root: Path, folders: tuple[str, ...]) -> Sources:
    """
    Reads all sources and returns them by module name. An empty file, such as most `__init__.py`, is skipped.
    """
    files = (path for name in folders for path in find_files(root / name, "**/*.py"))
    paths = sorted(path for path in files if path.stat().st_size)
    sources = (read_source(root, path.relative_to(root).as_posix()) for path in paths)
    return {source.module: source for source in sources}


def write_if_changed(path: Path, text: str | bytes) -> None:
    """Writes a file, unless it already has these contents."""
    data = text.encode() if isinstance(text, str) else text
    if not path.is_file() or path.read_bytes() != data:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def is_searched(site: Site, source: Source) -> bool:
    """Whether search lists the page of a source."""
    return not source.path.startswith(site.unsearched)


def source_files(site: Site, sources: Sources, contents: Contents) -> Files:
    """Yields the page of each source, a copy of the file, and its notebook if it gets one."""
    for source in sources.values():
        if source.path in site.notebooks:
            yield f"{source.page}.ipynb", notebook(source, site.notebooks[source.path])
        page = source_page(
            source,
            sources,
            contents.after(source),
            is_searched(site, source),
            notebook_links(site, source),
            contents.notes(source),
            contents.pictures(source),
        )
        yield f"{source.page}.md", page
        yield source.path, source.text


def notebook_links(site: Site, source: Source) -> dict[str, str]:
    """The links of a source's page to its notebook. The first one downloads it."""
    if source.path not in site.notebooks:
        return {}
    name = source.page.rpartition("/")[2]
    return {"Notebook": f"../{name}.ipynb", **site.notebook_hosts(f"{source.page}.ipynb")}


def script_files(site: Site, sources: Sources) -> Files:
    """Yields the files of the folders that are served unchanged, and the pages of the scripts."""
    for folder in site.copied:
        for path in find_files(site.root / folder, "**/*.*"):
            yield path.relative_to(site.root).as_posix(), path.read_bytes()
    for name in site.scripts:
        script = read_script(site.root, name)
        yield f"{script.page}.md", source_page(script, sources, searched=is_searched(site, script))


def chapter_files(site: Site, sources: Sources, contents: Contents) -> Files:
    """Yields the chapters, and their notebooks."""
    pages = site.root / site.chapters
    glossary = pages / "glossary.md"
    terms = read_glossary(read_page(glossary)) if glossary.is_file() else []
    for path in find_files(pages, "**/*.md"):
        name = path.relative_to(pages).as_posix().removesuffix(".md")
        text = chapter(path, name, sources, contents.names(name), terms)
        if f"{site.chapters}/{name}.md" in site.notebooks:
            setup = site.notebooks[f"{site.chapters}/{name}.md"]
            yield f"{name}.ipynb", chapter_notebook(read_page(path), setup)
            text += run_chapter(name, site.notebook_hosts(f"{name}.ipynb"))
        yield f"{name}.md", text


def run_chapter(name: str, links: dict[str, str]) -> str:
    """The end of a chapter that has a notebook, in Markdown."""
    others = "".join(f" · [{label}]({address})" for label, address in links.items())
    notebook = f"[Notebook]({name.rpartition('/')[2]}.ipynb)"
    return f"\n\n## Run the code of this page {{#notebook}}\n\n{notebook}{others}\n"


def reference_hash(sources: Sources) -> str:
    """A hash of everything that the reference follows from: the sources and the code that renders them."""
    renderer = [path.read_text("utf-8") for path in sorted(Path(__file__).parent.glob("*.py"))]
    texts = [*renderer, *(f"{source.path}\n{source.text}" for source in sources.values())]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def write_site(site: Site, reference: bool = True) -> Sources:
    """
    Writes all pages and returns the sources. Deletes the pages of files that are gone. Writing the
    `reference` takes seconds and can be skipped. Raises `PageError` if a page would be wrong.
    """
    sources = read_sources(site.root, site.folders)
    contents = site.contents(sources)
    files = {
        **dict(source_files(site, sources, contents)),
        **dict(script_files(site, sources)),
        **dict(chapter_files(site, sources, contents)),
        **contents.files(),
    }
    for path in [*site.out.rglob("*")]:
        name = path.relative_to(site.out).as_posix()
        if path.is_file() and name not in files and not name.startswith(OTHERS):
            path.unlink()
    for name, data in files.items():
        write_if_changed(site.out / name, data)
    mark = site.out / "reference" / MARK
    is_old = not mark.is_file() or mark.read_text("utf-8") != reference_hash(sources)
    if reference and is_old:
        # The reference imports the package, and a server that keeps running must not hold on to an old
        # version of it.
        command = ["docs.literate.api", site.package, str(site.out), *site.folders]
        # In a process group of its own, the command doesn't get Ctrl-C. `run` kills it instead.
        subprocess.run([sys.executable, "-m", *command], cwd=site.root, check=True, process_group=0)
    maths.write_assets(site.out / "assets" / "katex")
    pages = (path.read_text("utf-8") for path in site.out.rglob("*.md"))
    for name, data in typefaces(pages).items():
        write_if_changed(site.out / "assets" / "fonts" / name, data)
    return sources
