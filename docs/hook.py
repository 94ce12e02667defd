"""
The thread between MkDocs and the renderer: it writes the pages before a build, adds the source files to the
navigation, and watches what the pages are made from, so that an edit shows under `make serve`. Another
generator needs only the command `python -m docs`.
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from docs.literate.rows import PageError
from docs.literate.site import write_site
from docs.literate.tree import navigation
from docs.site import SITE

written: list[str] = []
serving = False


def on_startup(command: str, dirty: bool) -> None:
    """Called by MkDocs first."""
    global serving
    serving = command == "serve"


def on_config(config: Any) -> None:
    """Called by MkDocs once it knows its settings."""
    config.extra["serving"] = serving


def on_pre_build(config: Any) -> None:
    """Called by MkDocs before it reads the pages."""
    from mkdocs.exceptions import PluginError

    try:
        # While somebody edits, the reference can wait for the next start.
        sources = write_site(SITE, reference=config.docs_dir not in written)
        written.append(config.docs_dir)
    except PageError as error:
        raise PluginError(str(error)) from None
    # mkdocs.yml holds the chapters, in the order in which people should read them.
    config.nav += navigation(SITE, sources)


def on_serve(server: Any, config: Any, builder: Any) -> Any:
    """Called by MkDocs once, before it serves."""
    # What is written follows from the rest; to watch it would build everything twice.
    server.unwatch(config.docs_dir)
    for name in (*SITE.folders, *SITE.copied, SITE.chapters, *SITE.watched):
        server.watch(str(SITE.root / name))
    return server
