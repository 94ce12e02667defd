"""
The thread between MkDocs and the renderer: it writes the pages before a build, and watches what they
are made from, so that an edit shows under `make serve`. Another generator needs only the command.
"""

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from docs.literate.rows import PageError  # noqa: E402
from docs.literate.site import FOLDERS, LIVE, write_site  # noqa: E402

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
        write_site(reference=config.docs_dir not in written)
        written.append(config.docs_dir)
    except PageError as error:
        raise PluginError(str(error)) from None


def on_serve(server: Any, config: Any, builder: Any) -> Any:
    """Called by MkDocs once, before it serves."""
    # What is written follows from the rest; to watch it would build everything twice.
    server.unwatch(config.docs_dir)
    for name in (*FOLDERS, LIVE, "docs/pages", "docs/runs"):
        server.watch(str(ROOT / name))
    return server
