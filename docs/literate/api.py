"""
# The reference

pdoc reads the package and knows what is public, what is inherited and how a signature is written. Its
model is rendered here as Markdown, so that the reference stands in the same pages as all else. It has
to import the package, which takes seconds, so it is a process of its own and runs only where a source
is newer than what it wrote last. The search leaves it out: it would find every word twice.
"""

import re
import sys
import warnings
from pathlib import Path

import pdoc.doc

from docs.literate.names import Source, summary
from docs.literate.page import front_matter
from docs.literate.prose import fenced, names_in_file, prepared
from docs.literate.rows import split_heading
from docs.literate.site import MARK, OUT, put, read_sources


def words(member: pdoc.doc.Doc, source: Source, sources: dict[str, Source]) -> str:
    """The docstring, without a heading of its own, ready for the page."""
    text = split_heading(member.docstring)[2]
    page = f"reference/{source.module.rpartition('.')[2]}"
    return prepared(text, page, names_in_file(source, sources), source.path)


def signature(member: pdoc.doc.Doc) -> str:
    """How it is called or declared, without what a reader of the page knows already."""
    if isinstance(member, pdoc.doc.Class):
        start = member.members.get("__init__")
        inside = str(start.signature) if isinstance(start, pdoc.doc.Function) else "()"
        text = f"class {member.qualname}{inside}"
    elif isinstance(member, pdoc.doc.Function):
        text = f"{member.funcdef} {member.name}{member.signature}"
    else:
        assert isinstance(member, pdoc.doc.Variable)
        value = member.default_value_str
        text = f"{member.name}{member.annotation_str}" + (f" = {value}" if value else "")
    text = re.sub(r"\((\s*)(?:self|_cls)(?:,\s*|(?=\)))", r"(\1", text)
    return re.sub(
        r"\b(?:labml_bert\.\w+|torch\._C|collections\.abc|typing|pathlib\._local|pathlib)\.", "", text
    )


def own(member: pdoc.doc.Doc, module: str) -> bool:
    """Whether it is public and written here; the hundred methods of `nn.Module` are described elsewhere."""
    if member.taken_from[0] != module or member.name.startswith("_"):
        return False
    return bool(member.docstring) or not isinstance(member, pdoc.doc.Variable)


def entry(member: pdoc.doc.Doc, source: Source, sources: dict[str, Source], level: int) -> str:
    """One definition and, for a class, its members."""
    symbol = source.symbols.get(member.qualname)
    heading = f"{'#' * level} `{member.qualname}` {{#{member.qualname}}}\n\n"
    more = ""
    if symbol:
        page = f"reference/{source.module.rpartition('.')[2]}"
        more = f'<p class="seen">{symbol.link(page, "source")}</p>\n\n'
    text = heading + fenced("py", signature(member)) + f"\n{words(member, source, sources)}\n\n{more}"
    if isinstance(member, pdoc.doc.Class):
        for inner in member.own_members:
            if own(inner, source.module) and inner.name != "__init__":
                text += entry(inner, source, sources, level + 1)
    return text


def reference_page(source: Source, sources: dict[str, Source]) -> str:
    """## The reference of one module"""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = pdoc.doc.Module.from_name(source.module)
    members = [member for member in module.members.values() if own(member, source.module)]
    body = "".join(entry(member, source, sources, 2) for member in members)
    maths = 'class="katex' in body
    lead = summary(source.rows[0].prose)
    meta = front_matter(title=source.module, maths=maths, search={"exclude": True})
    title = f"# `{source.module}` {{#{source.module}}}"
    return f"{meta}{title}\n\n[{source.title}](../{source.page}.md). {lead}\n\n{body}"


def write_reference(out: Path) -> None:
    """A page for each module of the package."""
    sources = read_sources()
    for source in sources.values():
        if source.path.startswith("labml_bert/") and not source.path.endswith("__init__.py"):
            put(out / "reference" / f"{source.module.rpartition('.')[2]}.md", reference_page(source, sources))
    (out / "reference" / MARK).touch()


if __name__ == "__main__":
    write_reference(Path(sys.argv[1]) if len(sys.argv) > 1 else OUT)
