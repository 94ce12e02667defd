"""
# The reference

pdoc reads the package and finds out what is public, what is inherited, and how to write a signature. This
file renders the result as Markdown, so that the reference becomes part of the same site. pdoc has to import
the package, which takes seconds, so this runs as a process of its own and only if a source has changed since
the last time. The reference is excluded from search, which would otherwise list every match twice.
"""

import posixpath
import re
import sys
import warnings
from pathlib import Path

import pdoc.doc

from docs.literate.names import Source, Sources, description, in_reference, summary
from docs.literate.page import front_matter
from docs.literate.prose import fence_code, names_in_file, render_prose
from docs.literate.rows import split_heading
from docs.literate.site import MARK, read_sources, reference_hash, write_if_changed


def reference_of(source: Source) -> str:
    """The path of a module's reference page, without the extension."""
    return f"reference/{source.page.partition('/')[2]}"


def render_docstring(member: pdoc.doc.Doc, source: Source, sources: Sources) -> str:
    """The docstring without its heading, rendered for the page."""
    text = split_heading(member.docstring)[2]
    return render_prose(text, reference_of(source), names_in_file(source, sources), source.path)


def signature(member: pdoc.doc.Doc) -> str:
    """The signature or declaration, without what the page already makes clear."""
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
    package = re.escape(member.modulename.partition(".")[0])
    others = r"torch\._C|collections\.abc|typing|pathlib\._local|pathlib"
    return re.sub(rf"\b(?:{package}(?:\.\w+)*|{others})\.", "", text)


def is_documented_here(member: pdoc.doc.Doc, module: str) -> bool:
    """
    Whether a member is public and defined in this module. (The hundred methods inherited from `nn.Module` are
    documented elsewhere.)
    """
    if member.taken_from[0] != module or member.name.startswith("_"):
        return False
    # Python itself writes "Alias for field number 0" for the first field of a named tuple.
    is_documented = bool(member.docstring) and not member.docstring.startswith("Alias for field number")
    return is_documented or not isinstance(member, pdoc.doc.Variable)


def entry(member: pdoc.doc.Doc, source: Source, sources: Sources, level: int) -> str:
    """One definition and, for a class, its members."""
    symbol = source.symbols.get(member.qualname)
    heading = f"{'#' * level} `{member.qualname}` {{#{member.qualname}}}\n\n"
    more = ""
    if symbol:
        more = f'<p class="seen">{symbol.link(reference_of(source), "source")}</p>\n\n'
    text = (
        heading
        + fence_code("py", signature(member))
        + f"\n{render_docstring(member, source, sources)}\n\n{more}"
    )
    if isinstance(member, pdoc.doc.Class):
        for inner in member.own_members:
            if is_documented_here(inner, source.module) and inner.name != "__init__":
                text += entry(inner, source, sources, level + 1)
    return text


def reference_page(source: Source, sources: Sources) -> str:
    """## The reference of one module"""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = pdoc.doc.Module.from_name(source.module)
    members = [member for member in module.members.values() if is_documented_here(member, source.module)]
    body = "".join(entry(member, source, sources, 2) for member in members)
    maths = 'class="katex' in body
    lead = summary(source.rows[0].prose)
    meta = front_matter(
        title=source.module,
        description=f"Reference of {source.module}. {description(source.rows[0].prose)}",
        maths=maths,
        source=source.path,
        search={"exclude": True},
    )
    # On a phone, a long name continues on the next line after a dot or an underscore.
    name = source.module.replace(".", ".<wbr>").replace("_", "&#95;<wbr>")
    title = f"# <code>{name}</code> {{#{source.module}}}"
    home = posixpath.relpath(f"{source.page}.md", posixpath.dirname(reference_of(source)))
    return f"{meta}{title}\n\n[{source.title}]({home}). {lead}\n\n{body}"


def write_reference(package: str, out: Path, folders: tuple[str, ...]) -> None:
    """
    Writes a page for each module of the package into `out/reference`. `folders` are the folders of all
    sources.
    """
    sources = read_sources(Path(), folders)
    old = {*(out / "reference").rglob("*.md")}
    for source in sources.values():
        if in_reference(source, package):
            path = out / f"{reference_of(source)}.md"
            write_if_changed(path, reference_page(source, sources))
            old.discard(path)
    for path in old:
        path.unlink()
    write_if_changed(out / "reference" / MARK, reference_hash(sources))


if __name__ == "__main__":
    package, out, *folders = sys.argv[1:]
    write_reference(package, Path(out), tuple(folders))
