"""
Connects MkDocs to the renderer: writes the pages before each build, adds the source files to the navigation,
and watches everything the pages are built from, so that `make serve` picks up your edits. With another
generator, the command `python -m docs` is all you need.
"""

import socket
import sys
from html import escape
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

sys.path.insert(0, str(Path(__file__).parents[1]))

from docs.literate.prose import fold_parts, keep_options, label_cells, prepare_for_search, tag_sections
from docs.literate.rows import PageError
from docs.literate.site import write_site
from docs.literate.tree import navigation
from docs.project import read_project
from docs.site import SITE

written: list[str] = []
serving = False


def on_startup(command: str, dirty: bool) -> None:
    """The first function that MkDocs calls."""
    global serving
    serving = command == "serve"


def on_config(config: Any) -> None:
    """MkDocs calls this once it has read its settings."""
    if serving and not written:
        check_address(*config.dev_addr)
    project = read_project()
    config.extra.update(serving=serving, project=project)
    # Material's templates insert both as they are.
    config.site_description, config.site_author = map(escape, (project.description, project.authors))
    # `mkdocs serve` has set its own address by now.
    config.site_url = config.site_url or project.site_url or None


def check_address(host: str, port: int) -> None:
    """Raises `PluginError` if MkDocs can't listen there. MkDocs itself would build the site first."""
    try:
        socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except (OSError, OverflowError) as error:
        cause = (getattr(error, "strerror", None) or str(error)).partition(" (while")[0]
        remedy = f'make serve ARGS="--dev-addr {host}:{port + 1 if port < 65535 else 8000}"'
        raise PluginError(f"{host}:{port}: {cause}; try another port: {remedy}") from None


def on_pre_build(config: Any) -> None:
    """MkDocs calls this before it reads the pages."""
    try:
        # While you edit, the reference isn't rewritten: that takes seconds and can wait until the server
        # restarts.
        sources = write_site(SITE, reference=config.docs_dir not in written)
        written.append(config.docs_dir)
    except (PageError, OSError, ValueError) as error:
        raise PluginError(str(error)) from None
    # mkdocs.yml lists the chapters, in reading order.
    config.nav += navigation(SITE, sources)


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """MkDocs calls this with the HTML of each page."""
    return keep_options(prepare_for_search(label_cells(fold_parts(html))))


def on_post_build(config: Any) -> None:
    """MkDocs calls this after Material has written the search index."""
    path = Path(config.site_dir, "search", "search_index.json")
    path.write_text(tag_sections(path.read_text("utf-8")), "utf-8")


def on_serve(server: Any, config: Any, builder: Any) -> Any:
    """MkDocs calls this once, before it starts serving."""
    # The written pages follow from the other files; watching them too would build everything twice.
    server.unwatch(config.docs_dir)
    for name in (*SITE.folders, *SITE.copied, SITE.chapters, *SITE.watched):
        server.watch(str(SITE.root / name))
    return server
