"""
# Lists of modules, generated from the file tree

The site's navigation and a table in the README list every source file, and nobody has to maintain them. Files
come before subfolders. Among each, those that a project lists in `first` come first, in this order; the rest
follow in alphabetical order.
"""

import ast
import re
import sys
from collections.abc import Iterable
from typing import Any

from docs.literate.names import Source, Sources, in_reference, summary
from docs.literate.rows import PageError
from docs.literate.site import Site

BLOCK = re.compile(r"(<!-- modules: .+? -->\n).*?(<!-- /modules -->)", re.S)


def sort_key(site: Site, path: str) -> tuple[bool, int, bool, str]:
    """The sorting key of a file or a folder within its folder. `path` has no extension."""
    rank = site.first.index(path) if path in site.first else len(site.first)
    # Subfolders come after files.
    return (site.root / path).is_dir(), rank, path.endswith("__init__"), path


def section(site: Site, paths: Iterable[str], folder: str) -> list[Any]:
    """
    The navigation of one folder: the `paths` in it, without extensions and in order, and a section for each
    subfolder.
    """
    inside = [path for path in paths if path.startswith(f"{folder}/")]
    names = {f"{folder}/{path.removeprefix(f'{folder}/').partition('/')[0]}" for path in inside}
    return [
        name if name in inside else {title(site, name): section(site, inside, name)}
        for name in sorted(names, key=lambda name: sort_key(site, name))
    ]


def title(site: Site, folder: str) -> str:
    """The title of a folder in the navigation."""
    return site.titles.get(folder) or folder.rpartition("/")[2].replace("_", " ").capitalize()


def navigation(site: Site, sources: Sources) -> list[Any]:
    """
    ## What follows the chapters in the navigation

    A section for each folder of sources, one for the scripts, and one for the reference, in MkDocs's format.
    """
    paths = [source.page for source in sources.values()]
    parts = {title(site, folder): to_pages(section(site, paths, folder)) for folder in site.folders}
    for name in site.scripts:
        page = name.rpartition(".")[0]
        parts.setdefault(title(site, name.rpartition("/")[0]), []).append(f"{page}.md")
    public = [source.page for source in sources.values() if in_reference(source, site.package)]
    parts["Reference"] = to_pages(section(site, public, site.package), f"{site.package}/", "reference/")
    return [{name: entries} for name, entries in parts.items()]


def to_pages(entries: list[Any], old: str = "", new: str = "") -> list[Any]:
    """Turns the paths of a navigation into Markdown files and replaces the prefix `old` of each by `new`."""
    return [
        f"{new}{entry.removeprefix(old)}.md"
        if isinstance(entry, str)
        else {name: to_pages(inside, old, new) for name, inside in entry.items()}
        for entry in entries
    ]


def requirements(site: Site, source: Source) -> str:
    """What a file needs to run: nothing but Python, some packages, or the rest of this project."""
    nodes = [node for node in ast.walk(source.tree) if isinstance(node, ast.Import)]
    names = [*source.imports, *(alias.name for node in nodes for alias in node.names)]
    tops = {name.partition(".")[0] for name in names} - sys.stdlib_module_names
    return "the package" if tops & {*site.folders} else ", ".join(sorted(tops)) or "Python"


def flatten(entries: list[Any]) -> list[str]:
    """The pages of a navigation, in order."""
    pages: list[str] = []
    for entry in entries:
        if isinstance(entry, str):
            pages.append(entry)
        else:
            pages += flatten([one for inside in entry.values() for one in inside])
    return pages


def module_table(site: Site, sources: Sources) -> str:
    """
    ## All modules with their first sentences, as a Markdown table

    A folder with a `__main__.py` is one command, so that file stands for the whole folder.
    """
    by_page = {source.page: source for source in sources.values()}
    commands = [page.removesuffix("__main__") for page in by_page if page.endswith("/__main__")]
    rows = []
    for folder in site.folders:
        for page in flatten(section(site, by_page, folder)):
            if page.startswith((*commands,)) and not page.endswith("/__main__"):
                continue
            source = by_page[page]
            heading = source.rows[0].heading
            end = "" if heading.endswith(("?", "!", ".")) else "."
            title_words = [f"**{heading}{end}**"] if heading else []
            description = " ".join([*title_words, summary(source.rows[0].prose)]).strip()
            rows.append(
                f"| [`{source.path}`]({source.path}) | {description} | {requirements(site, source)} |\n"
            )
    return "| file | topic | requirements |\n|---|---|---|\n" + "".join(rows)


def with_module_table(site: Site, sources: Sources, text: str) -> str:
    """
    `text` with an up-to-date table of modules, which goes between `<!-- modules: … -->` and `<!-- /modules
    -->`. Raises `PageError` if these are missing.
    """
    if not BLOCK.search(text):
        raise PageError("there is no <!-- modules: … --> with its <!-- /modules -->")
    table = module_table(site, sources)
    return BLOCK.sub(lambda match: f"{match[1]}\n{table}\n{match[2]}", text)
