"""
Writes the pages of the site: `python -m docs`. With `readme` as an argument it brings the table of modules in
`README.md` up to date in place of that.
"""

import sys

from docs.literate.rows import PageError
from docs.literate.site import read_sources, write_site
from docs.literate.tree import with_module_table
from docs.site import SITE


def main(arguments: list[str]) -> None:
    """Raises `PageError` if a page would be wrong."""
    if not arguments:
        write_site(SITE)
    elif arguments == ["readme"]:
        path = SITE.root / "README.md"
        sources = read_sources(SITE.root, SITE.folders)
        path.write_text(with_module_table(SITE, sources, path.read_text("utf-8")), "utf-8")
    else:
        sys.exit("error: what to do? python -m docs, or python -m docs readme")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except PageError as error:
        sys.exit(f"error: {error}")
