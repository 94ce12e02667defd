"""
# The samples of the chapters

The code in a chapter runs. All fences of a page that are marked `python` form one program, in order; a fence
marked `output` below one of them is what it printed. The tests compare the two, and
`python -m docs samples docs/pages/some.md` updates the output in the page. The samples of a page run
in an empty folder, so they can write files.
"""

import contextlib
import io
import re
import tempfile
from collections.abc import Iterator
from typing import Any

from docs.literate.prose import fence_code

SAMPLE = re.compile(
    r"^(?P<indent>[ ]*)(?P<fence>`{3,})[ ]?python\n(?P<code>.*?)^(?P=indent)(?P=fence)[ ]*\n(?P<gap>\n*)"
    r"(?P<whole>(?P=indent)(?P<mark>`{3,})output\n(?P<output>.*?)^(?P=indent)(?P=mark)[ ]*\n)?",
    re.S | re.M,
)


def run_samples(text: str, page: str) -> Iterator[tuple[re.Match[str], str]]:
    """
    Yields each sample of a page with what it prints, in order. The last line gets a line end if it has none.
    An exception in a sample is not caught.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    with tempfile.TemporaryDirectory() as folder:
        for match in SAMPLE.finditer(text):
            # Put as many empty lines in front as the page has, so that a traceback names the right line.
            above = "\n" * (text.count("\n", 0, match.start()) + 1)
            code = re.sub(rf"^{match['indent']}", "", match["code"], flags=re.M)
            output = io.StringIO()
            with contextlib.chdir(folder), contextlib.redirect_stdout(output):
                exec(compile(above + code, page, "exec"), names)
            yield match, re.sub(r"(?<=[^\n])\Z", "\n", output.getvalue())


def indent_lines(text: str, indent: str) -> str:
    """`text` with `indent` before each non-empty line."""
    return re.sub(r"^(?=.)", indent, text, flags=re.M)


def update_outputs(text: str, page: str) -> str:
    """The page with the current output of every sample."""
    parts, end = [], 0
    for match, output in run_samples(text, page):
        indent = match["indent"]
        parts.append(text[end : match.start()])
        code = text[match.start() : match.start("gap")]
        block = "\n" + fence_code("output", output.removesuffix("\n")) if output else ""
        parts.append(code + indent_lines(block, indent) + (match["gap"] if not match["whole"] else ""))
        end = match.end()
    return "".join(parts) + text[end:]
