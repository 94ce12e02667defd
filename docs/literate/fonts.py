"""
# The typefaces

The site's own typefaces come from npm. While the site is built, fontTools keeps only the characters that the
pages use, so that a reader downloads about 60 KB for all of them. A character that a typeface doesn't have is
shown in one of the reader's own.
"""

import io
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from docs.literate.rows import PageError

PACKAGES = Path(__file__).parents[1] / "node_modules" / "@fontsource"
# The names of the files that the style sheet asks for: package and style.
FACES = {
    "text": ("source-serif-4", "400-normal"),
    "text-italic": ("source-serif-4", "400-italic"),
    "text-bold": ("source-serif-4", "600-normal"),
    "code": ("source-code-pro", "400-normal"),
}
# The characters that readers may type into the live page and the search field.
PRINTABLE = "".join(map(chr, range(0x20, 0x7F)))


@cache
def subset(package: str, style: str, characters: str) -> bytes:
    """A typeface with only these characters, as WOFF2. Raises `PageError` if its package isn't installed."""
    from fontTools.subset import Options, Subsetter, load_font, save_font

    path = PACKAGES / package / "files" / f"{package}-latin-{style}.woff2"
    if not path.is_file():
        raise PageError("the typefaces are not installed: type make site")
    options = Options(
        flavor="woff2",
        layout_features=["kern", "liga", "ccmp", "mark", "pnum", "tnum"],
        # The license reserves the name for the unmodified typeface, so keep only copyright and license.
        name_IDs=[0, 13, 14],
        notdef_outline=True,
    )
    font = load_font(str(path), options)
    subsetter = Subsetter(options)
    subsetter.populate(text=characters)
    subsetter.subset(font)
    data = io.BytesIO()
    save_font(font, data, options)
    return data.getvalue()


def typefaces(texts: Iterable[str]) -> dict[str, bytes]:
    """The contents of all font files for these texts and their licenses, by name."""
    characters = "".join(sorted(set(PRINTABLE).union(*texts)))
    files = {f"{name}.woff2": subset(*face, characters) for name, face in FACES.items()}
    for package, _ in FACES.values():
        files[f"{package}.txt"] = (PACKAGES / package / "LICENSE").read_bytes()
    return files
