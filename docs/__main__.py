"""
Writes the pages of the site: `python -m docs`. With the argument `readme`, it updates the table of modules in
`README.md` instead.
"""

import argparse
import sys

try:
    from docs.literate.rows import PageError, read_page
    from docs.literate.site import read_sources, write_site
    from docs.literate.tree import with_module_table
    from docs.site import SITE
    from labml_bert.files import whole_file
except ModuleNotFoundError as error:
    sys.exit(f"error: {error.name} is not installed; make site installs it")


def main(arguments: list[str]) -> None:
    """
    Raises `PageError` if a source or a chapter has a mistake that would spoil its page, and `OSError` if a
    file can't be read or written.
    """
    parser = argparse.ArgumentParser(prog="python -m docs", description="Write the pages of the site.")
    parser.add_argument(
        "command", nargs="?", choices=["readme"], help="update the table of modules in README.md instead"
    )
    if parser.parse_args(arguments).command is None:
        write_site(SITE)
    else:
        path = SITE.root / "README.md"
        sources = read_sources(SITE.root, SITE.folders)
        text = with_module_table(SITE, sources, read_page(path))
        with whole_file(path) as part:
            part.write_text(text, "utf-8")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (PageError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
