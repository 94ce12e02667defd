"""
Writes the pages of the site: `python -m docs`. With the argument `readme`, it updates the table of modules in
`README.md` instead. With `samples docs/pages/some.md`, it updates what the samples of that chapter print.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

try:
    from docs.literate.rows import PageError, read_page
    from docs.literate.samples import update_outputs
    from docs.literate.site import read_sources, write_site
    from docs.literate.tree import with_module_table
    from docs.site import SITE
    from labml_bert.files import whole_file
    from labml_bert.stdout import OneLineParser, print_error
except ModuleNotFoundError as error:
    print(f"error: {error.name} is not installed; make site installs it", file=sys.stderr)
    sys.exit(2)


def rewrite(path: Path, change: Callable[[str], str]) -> None:
    """Replaces the text of a page by `change(text)`. Raises `PageError` if it's edited meanwhile."""
    text = read_page(path)
    changed_text = change(text)
    if read_page(path) != text:
        raise PageError(f"{path} was edited meanwhile; run the command again")
    with whole_file(path.resolve()) as part:
        part.write_text(changed_text, "utf-8")


def main(arguments: list[str]) -> None:
    """
    Raises `PageError` if a source or a chapter has a mistake that would spoil its page, and `OSError` if a
    file can't be read or written.
    """
    parser = OneLineParser(prog="python -m docs", description="Write the pages of the site.")
    commands = parser.add_subparsers(dest="command", metavar="readme|samples")
    commands.add_parser("readme", help="update the table of modules in README.md instead")
    samples = commands.add_parser("samples", help="update what the samples of chapters print instead")
    samples.add_argument("pages", nargs="+", type=Path, metavar="page", help="such as docs/pages/idea.md")
    options = parser.parse_args(arguments)
    if options.command is None:
        write_site(SITE)
    elif options.command == "samples":
        for path in options.pages:
            rewrite(path, partial(update_outputs, page=str(path)))
    else:
        sources = read_sources(SITE.root, SITE.folders)
        rewrite(SITE.root / "README.md", partial(with_module_table, SITE, sources))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (PageError, OSError) as error:
        print_error(error)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
