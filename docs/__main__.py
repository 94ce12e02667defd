"""
Writes the pages of the site: `python -m docs`. With the argument `readme`, it updates the table of modules in
`README.md` instead.
"""

import sys

from docs.literate.rows import PageError
from docs.literate.site import read_sources, write_site
from docs.literate.tree import with_module_table
from docs.site import SITE


def main(arguments: list[str]) -> None:
    """Raises `PageError` if a source or a chapter has a mistake that would spoil its page."""
    if not arguments:
        write_site(SITE)
    elif arguments == ["readme"]:
        path = SITE.root / "README.md"
        sources = read_sources(SITE.root, SITE.folders)
        path.write_text(with_module_table(SITE, sources, path.read_text("utf-8")), "utf-8")
    else:
        sys.exit("usage: python -m docs [readme]")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except PageError as error:
        sys.exit(f"error: {error}")
