"""
# Everything that is written

The order is: read every source, so that each page can link to all of them; write their pages, the downloads
and the notebooks; then the chapters; then the fonts. A file that hasn't changed is not touched, so a
generator that watches the folder rebuilds only what it must.
"""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from markupsafe import Markup

from docs.literate import maths
from docs.literate.expressions import chapter, read_glossary
from docs.literate.fonts import typefaces
from docs.literate.names import Source, Sources, read_source
from docs.literate.page import chapter_notebook, notebook, source_page
from docs.literate.scripts import read_script

# The modification time of this file tells when the reference was last written.
MARK = ".made"


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
    So is a file whose name begins with a dot: Emacs locks a file with such a link, and its target is missing.
    """
    files = (path for name in folders for path in (root / name).rglob("*.py"))
    paths = sorted(path for path in files if not path.name.startswith(".") and path.stat().st_size)
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


def write_sources(site: Site, sources: Sources, contents: Contents) -> None:
    """Writes the page of each source, a copy of the file, and its notebook if it gets one."""
    for source in sources.values():
        path = site.out / f"{source.page}.ipynb"
        if source.path in site.notebooks:
            write_if_changed(path, notebook(source, site.notebooks[source.path]))
        else:
            path.unlink(missing_ok=True)
        page = source_page(
            source,
            sources,
            contents.after(source),
            is_searched(site, source),
            notebook_links(site, source),
            contents.notes(source),
            contents.pictures(source),
        )
        write_if_changed(site.out / f"{source.page}.md", page)
        write_if_changed(site.out / source.path, source.text)


def notebook_links(site: Site, source: Source) -> dict[str, str]:
    """The links of a source's page to its notebook. The first one downloads it."""
    if source.path not in site.notebooks:
        return {}
    name = source.page.rpartition("/")[2]
    return {"Notebook": f"../{name}.ipynb", **site.notebook_hosts(f"{source.page}.ipynb")}


def write_scripts(site: Site, sources: Sources) -> None:
    """Copies the folders that are served unchanged, and writes the pages of the scripts."""
    for folder in site.copied:
        for path in (site.root / folder).glob("**/*.*"):
            write_if_changed(site.out / path.relative_to(site.root), path.read_bytes())
    for name in site.scripts:
        script = read_script(site.root, name)
        page = source_page(script, sources, searched=is_searched(site, script))
        write_if_changed(site.out / f"{script.page}.md", page)


def write_chapters(site: Site, sources: Sources, contents: Contents) -> None:
    """Writes the chapters, and their notebooks."""
    pages = site.root / site.chapters
    glossary, files = pages / "glossary.md", contents.files()
    terms = read_glossary(glossary.read_text("utf-8")) if glossary.is_file() else []
    for path in sorted(pages.glob("**/*.md")):
        name = path.relative_to(pages).as_posix().removesuffix(".md")
        text = chapter(path, name, sources, contents.names(name), terms)
        notebook_path = site.out / f"{name}.ipynb"
        if f"{site.chapters}/{name}.md" in site.notebooks:
            setup = site.notebooks[f"{site.chapters}/{name}.md"]
            write_if_changed(notebook_path, chapter_notebook(path.read_text("utf-8"), setup))
            text += run_chapter(name, site.notebook_hosts(f"{name}.ipynb"))
        elif notebook_path.name not in files:
            notebook_path.unlink(missing_ok=True)
        write_if_changed(site.out / f"{name}.md", text)


def run_chapter(name: str, links: dict[str, str]) -> str:
    """The end of a chapter that has a notebook, in Markdown."""
    others = "".join(f" · [{label}]({address})" for label, address in links.items())
    notebook = f"[Notebook]({name.rpartition('/')[2]}.ipynb)"
    return f"\n\n## Run the code of this page {{#notebook}}\n\n{notebook}{others}\n"


def reference_is_old(site: Site, sources: Sources) -> bool:
    """Whether a source has changed since the reference was written."""
    mark = site.out / "reference" / MARK
    newest = max((site.root / source.path).stat().st_mtime for source in sources.values())
    return not mark.is_file() or mark.stat().st_mtime < newest


def remove_old_pages(site: Site, sources: Sources) -> None:
    """Deletes what was written for source files that have since been moved or deleted."""
    page_paths = {site.out / source.path for source in sources.values()}
    for folder in site.folders:
        for path in (site.out / folder).rglob("*.py"):
            if path not in page_paths:
                for suffix in (".py", ".md", ".ipynb"):
                    path.with_suffix(suffix).unlink(missing_ok=True)


def write_site(site: Site, reference: bool = True) -> Sources:
    """
    Writes all pages and returns the sources. Writing the `reference` takes seconds and can be skipped. Raises
    `PageError` if a page would be wrong.
    """
    sources = read_sources(site.root, site.folders)
    contents = site.contents(sources)
    remove_old_pages(site, sources)
    write_sources(site, sources, contents)
    write_scripts(site, sources)
    write_chapters(site, sources, contents)
    for path, text in contents.files().items():
        write_if_changed(site.out / path, text)
    maths.write_assets(site.out / "assets" / "katex")
    pages = (path.read_text("utf-8") for path in site.out.rglob("*.md"))
    for name, data in typefaces(pages).items():
        write_if_changed(site.out / "assets" / "fonts" / name, data)
    if reference and reference_is_old(site, sources):
        # The reference imports the package, and a server that keeps running must not hold on to an old
        # version of it.
        command = ["docs.literate.api", site.package, str(site.out), *site.folders]
        subprocess.run([sys.executable, "-m", *command], cwd=site.root, check=True)
    return sources
