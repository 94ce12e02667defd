"""
# Lists of modules, taken from the tree

The navigation of the site and a table for the README list every source file, so nobody keeps them by hand.
Folders and files that a project names as `first` come before their neighbors, and the others follow by name.
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


def order(site: Site, path: str) -> tuple[bool, int, bool, str]:
    """The sorting key of a file or a folder among its neighbors, for a `path` without an ending."""
    rank = site.first.index(path) if path in site.first else len(site.first)
    # Folders stand below the files beside them.
    return (site.root / path).is_dir(), rank, path.endswith("__init__"), path


def section(site: Site, paths: Iterable[str], folder: str) -> list[Any]:
    """
    The navigation of one folder: the `paths` in it, without endings, in order, and a part for each folder
    below.
    """
    inside = [path for path in paths if path.startswith(f"{folder}/")]
    names = {f"{folder}/{path.removeprefix(f'{folder}/').partition('/')[0]}" for path in inside}
    return [
        name if name in inside else {title(site, name): section(site, inside, name)}
        for name in sorted(names, key=lambda name: order(site, name))
    ]


def title(site: Site, folder: str) -> str:
    """What a folder is called in the navigation."""
    return site.titles.get(folder) or folder.rpartition("/")[2].replace("_", " ").capitalize()


def navigation(site: Site, sources: Sources) -> list[Any]:
    """
    ## What follows the chapters in the navigation

    A part for each folder of sources, one for the scripts, and one for the reference, as MkDocs reads them.
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
    """A navigation of paths as one of Markdown files, with the beginning `old` of each replaced by `new`."""
    return [
        f"{new}{entry.removeprefix(old)}.md"
        if isinstance(entry, str)
        else {name: to_pages(inside, old, new) for name, inside in entry.items()}
        for entry in entries
    ]


def needs(site: Site, source: Source) -> str:
    """What has to be there for a file to run: nothing, some packages, or the rest of this project."""
    nodes = [node for node in ast.walk(source.tree) if isinstance(node, ast.Import)]
    names = [*source.imports, *(alias.name for node in nodes for alias in node.names)]
    tops = {name.partition(".")[0] for name in names} - sys.stdlib_module_names
    return "the package" if tops & {*site.folders} else ", ".join(sorted(tops)) or "Python"


def flat(entries: list[Any]) -> list[str]:
    """The pages of a navigation, in order."""
    found: list[str] = []
    for entry in entries:
        if isinstance(entry, str):
            found.append(entry)
        else:
            found += flat([one for inside in entry.values() for one in inside])
    return found


def module_table(site: Site, sources: Sources) -> str:
    """
    ## All modules with their first sentences, as a Markdown table
    """
    by_page = {source.page: source for source in sources.values()}
    rows = []
    for folder in site.folders:
        for page in flat(section(site, by_page, folder)):
            source = by_page[page]
            heading = source.rows[0].heading
            end = "" if heading.endswith(("?", "!", ".")) else "."
            words = [f"**{heading}{end}**"] if heading else []
            about = " ".join([*words, summary(source.rows[0].prose)]).strip()
            rows.append(f"| [`{source.path}`]({source.path}) | {about} | {needs(site, source)} |\n")
    return "| file | what it is about | needs |\n|---|---|---|\n" + "".join(rows)


def with_module_table(site: Site, sources: Sources, text: str) -> str:
    """
    `text` with its table of modules as it should be now. It stands between `<!-- modules: … -->` and
    `<!-- /modules -->`. Raises `PageError` if there is no such place.
    """
    if not BLOCK.search(text):
        raise PageError("there is no <!-- modules: … --> with its <!-- /modules -->")
    table = module_table(site, sources)
    return BLOCK.sub(lambda match: f"{match[1]}\n{table}\n{match[2]}", text)
