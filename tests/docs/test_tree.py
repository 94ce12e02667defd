"""The renderer is independent of this project, and the lists of modules follow the file tree."""

import ast
import errno
import graphlib
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest import mock

import nbformat
import pytest
import yaml

from docs.__main__ import main
from docs.literate.rows import PageError
from docs.literate.scripts import read_script
from docs.literate.site import Contents, Site, read_sources, reference_hash, write_site
from docs.literate.tree import flatten, module_table, navigation, with_module_table
from docs.project import PROJECT, notebook_links
from docs.site import SITE

ROOT = SITE.root
TOOLS = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for pattern in ("docs/*.py", "docs/literate/*.py", "docs/figures/*.py")
    for path in ROOT.glob(pattern)
}


def imports(path: Path) -> set[str]:
    """The modules of `docs` that a file imports, including imports inside functions."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            modules |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
    return modules & TOOLS.keys()


def test_imports_have_no_cycle() -> None:
    graph = {name: imports(path) for name, path in TOOLS.items()}
    assert len([*graphlib.TopologicalSorter(graph).static_order()]) == len(TOOLS) > 20


@pytest.mark.parametrize("name", sorted(name for name in TOOLS if name.startswith("docs.literate.")))
def test_the_renderer_does_not_depend_on_this_project(name: str) -> None:
    assert all(module.startswith("docs.literate.") for module in imports(TOOLS[name]))
    assert "labml" not in TOOLS[name].read_text("utf-8")


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


class StubContents(Contents):
    def names(self, page: str) -> dict:
        return {"page": lambda: page}

    def after(self, source: object) -> str:
        return "The end.\n"

    def notes(self, source: object) -> dict:
        return {}

    def pictures(self, source: object) -> dict:
        return {}

    def files(self) -> dict:
        return {"more/table.csv": "1,2\n"}


def project(root: Path) -> Site:
    """A package with a folder in it, and a chapter."""
    write(
        root,
        "pack/b.py",
        '"""\n# The second\n\nAsks a question? And more.\n"""\n\nimport numpy\n\ndef f(): ...\n',
    )
    write(root, "pack/a.py", '"""# The first"""\n\nfrom pack.b import numpy\n\nclass A: ...\n')
    write(root, "pack/c.py", '"""Without a heading. And more."""\n')
    write(root, "pack/__init__.py", "")
    write(root, "pack/deep/x.py", '"""# Deep\n\nSee `pack.b`, or `b.py`."""\n\ndef g(): ...\n')
    write(root, "docs/pages/index.md", "# Start\n\nThis is {{ page() }}, beside `b.py`.\n")
    return Site(
        root=root,
        contents=lambda sources: StubContents(),
        folders=("pack",),
        package="pack",
        notebooks={"pack/deep/x.py": "print(1)"},
        first=("pack/b",),
    )


def test_the_renderer_writes_pages_for_another_project(tmp_path: Path) -> None:
    site = project(tmp_path)
    write_site(site, reference=False)
    deep = (site.out / "pack/deep/x.md").read_text("utf-8")
    assert "# Deep {#x.py}" in deep and deep.endswith("The end.\n")
    assert deep.count('href="../../b/#b.py"') == 2
    assert (site.out / "pack/deep/x.py").is_file() and "print(1)" in (
        site.out / "pack/deep/x.ipynb"
    ).read_text()
    assert not (site.out / "pack/b.ipynb").exists() and "Notebook" not in (site.out / "pack/b.md").read_text()
    assert (site.out / "more/table.csv").read_text("utf-8") == "1,2\n"
    assert "This is index, beside" in (site.out / "index.md").read_text("utf-8")
    assert not (site.out / "pack/__init__.md").exists(), "an empty file has no page"
    (tmp_path / "pack/deep/x.py").rename(tmp_path / "pack/deep/y.py")
    write_site(site, reference=False)
    assert not (site.out / "pack/deep/x.md").exists() and (site.out / "pack/deep/y.md").is_file()


@pytest.mark.parametrize("name", ["old", "glossary"])
def test_a_chapter_that_is_not_utf8_is_named(name: str, tmp_path: Path) -> None:
    site = project(tmp_path)
    (tmp_path / "docs" / "pages" / f"{name}.md").write_bytes(b"# Caf\xe9\n")
    with pytest.raises(PageError, match=rf"{name}\.md: this isn't UTF-8"):
        write_site(site, reference=False)


def test_what_is_gone_is_not_published(tmp_path: Path) -> None:
    site = replace(project(tmp_path), copied=("live",))
    write(tmp_path, "docs/pages/old.md", "# Old\n")
    write(tmp_path, "live/model.bin", "weights")
    write(tmp_path, "docs/written/reference/b.md", "# The reference\n")
    write(tmp_path, "docs/written/.gitignore", "*")
    write_site(site, reference=False)
    assert (site.out / "old.md").is_file() and (site.out / "live/model.bin").is_file()
    for path in ("docs/pages/old.md", "live/model.bin", "pack/c.py"):
        (tmp_path / path).unlink()
    write_site(site, reference=False)
    left = {path.stem for path in site.out.rglob("*") if path.is_file()}
    assert not left & {"old", "model", "c"} and {"index", "b", "x", "table"} <= left
    assert (site.out / "reference/b.md").is_file() and (site.out / ".gitignore").is_file()


def test_the_reference_is_written_again_only_if_it_would_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr("docs.literate.site.subprocess.run", lambda words, **_: commands.append(words))
    site = project(tmp_path)
    sources = write_site(site)
    assert len(commands) == 1
    write(tmp_path, "docs/written/reference/.hash", reference_hash(sources))
    write_site(site)
    assert len(commands) == 1
    # An archive or `git stash` can restore an old modification time.
    path = tmp_path / "pack" / "b.py"
    path.write_text(path.read_text("utf-8") + "x = 1\n", "utf-8")
    os.utime(path, (0, 0))
    write_site(site)
    assert len(commands) == 2


def test_navigation_and_table_follow_the_file_tree(tmp_path: Path) -> None:
    """`pack/c.py` defines nothing, so it has no page in the reference."""
    site = project(tmp_path)
    sources = read_sources(site.root, site.folders)
    assert navigation(site, sources) == [
        {"Pack": ["pack/b.md", "pack/a.md", "pack/c.md", {"Deep": ["pack/deep/x.md"]}]},
        {
            "Reference": [
                "reference/b.md",
                "reference/a.md",
                {"Deep": ["reference/deep/x.md"]},
            ]
        },
    ]
    assert module_table(site, sources).splitlines()[2:] == [
        "| [`pack/b.py`](pack/b.py) | **The second.** Asks a question? | numpy |",
        "| [`pack/a.py`](pack/a.py) | **The first.** | the package |",
        "| [`pack/c.py`](pack/c.py) | Without a heading. | Python |",
        "| [`pack/deep/x.py`](pack/deep/x.py) | **Deep.** See pack.b, or b.py. | Python |",
    ]
    with pytest.raises(PageError, match="there is no <!-- modules"):
        with_module_table(site, sources, "# A README\n")
    (tmp_path / "pack/deep/__main__.py").write_text('"""A command."""\nprint(2)\n', "utf-8")
    sources = read_sources(site.root, site.folders)
    deep = [line for line in module_table(site, sources).splitlines() if "deep" in line]
    assert deep == ["| [`pack/deep/__main__.py`](pack/deep/__main__.py) | A command. | Python |"]


def test_every_module_is_in_the_generated_navigation() -> None:
    sources = read_sources(ROOT, SITE.folders)
    entries = navigation(SITE, sources)
    pages = flatten([entry for part in entries for inside in part.values() for entry in inside])
    assert {f"{source.page}.md" for source in sources.values()} <= {*pages}
    assert len(pages) == len({*pages})
    assert "labml_bert" not in "".join(str(yaml.safe_load(part)) for part in handwritten_entries())


def handwritten_entries() -> list[str]:
    """The handwritten entries of the navigation, in mkdocs.yml."""
    return (ROOT / "mkdocs.yml").read_text("utf-8").split("\nnav:\n")[1].splitlines()


def test_every_path_in_first_exists() -> None:
    for name in SITE.first:
        assert (ROOT / name).is_dir() or (ROOT / f"{name}.py").is_file(), name


def test_the_module_table_in_the_readme_is_up_to_date() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert with_module_table(SITE, read_sources(ROOT, SITE.folders), text) == text, "run: make readme"


def test_samples_are_updated_unless_somebody_edits_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text('```python\nprint("one line", end="")\n```\n', "utf-8")
    for _ in range(2):
        main(["samples", str(page)])
        text = page.read_text("utf-8")
        assert text == '```python\nprint("one line", end="")\n```\n\n```output\none line\n```\n'
    text += f"\n```python\nprint(open({str(page)!r}, 'a').write('mine'))\n```\n"
    page.write_text(text, "utf-8")
    with pytest.raises(PageError, match=r"page\.md was edited meanwhile; run the command again"):
        main(["samples", str(page)])
    assert page.read_text("utf-8") == f"{text}mine" and [*tmp_path.iterdir()] == [page]


def test_without_the_packages_of_the_site_the_command_exits_with_2(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['nbformat'] = None\n")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "docs", "readme"]
    process = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert process.returncode == 2
    assert process.stderr == "error: nbformat is not installed; make site installs it\n"


@pytest.mark.long
def test_the_readme_is_replaced_only_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk leaves the old text."""
    text = (ROOT / "README.md").read_text("utf-8").replace("| [`labml_bert/bert", "| [`labml_bert/old")
    (tmp_path / "README.md").write_text(text, "utf-8")
    monkeypatch.setattr("docs.__main__.SITE", replace(SITE, root=tmp_path))
    monkeypatch.setattr("docs.__main__.read_sources", lambda root, folders: read_sources(ROOT, folders))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", mock.Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
        with pytest.raises(OSError, match="No space left"):
            main(["readme"])
    assert [*tmp_path.iterdir()] == [tmp_path / "README.md"]
    assert (tmp_path / "README.md").read_text("utf-8") == text
    main(["readme"])
    assert "| [`labml_bert/bert" in (tmp_path / "README.md").read_text("utf-8")
    (tmp_path / "README.md").write_bytes(b"# Caf\xe9\n")
    with pytest.raises(PageError, match=r"README\.md: this isn't UTF-8"):
        main(["readme"])


@pytest.mark.parametrize(
    "content", [b"def f(:\n", b"x = '\xff'\n", b'x = """\n', b"x = " + b"-" * 100_000 + b"1\n"]
)
def test_a_source_that_is_not_python_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "mine.py").write_bytes(content)
    with pytest.raises(
        PageError, match=r"^code/mine\.py: this isn't Python code in UTF-8 \(.*\); correct it$"
    ):
        read_sources(tmp_path, ("code",))


def test_the_files_of_editors_get_no_pages(tmp_path: Path) -> None:
    """Emacs locks a file with a link that leads nowhere, and Jupyter keeps copies."""
    site = replace(project(tmp_path), copied=("served",))
    write(tmp_path, "served/data.bin", "1")
    write_site(site, reference=False)
    paths = {*site.out.rglob("*")}
    for name in ("pack/a.py", "docs/pages/index.md", "served/data.bin"):
        folder, name = (tmp_path / name).parent, Path(name).name
        (folder / f".#{name}").symlink_to("me@here.1")
        write(folder, f".ipynb_checkpoints/checkpoint-{name}", "# A page?\n")
    (tmp_path / "pack" / "folder.py").mkdir()
    write_site(site, reference=False)
    assert {*site.out.rglob("*")} == paths


def test_a_script_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.js").write_bytes(b"// Caf\xe9\n")
    with pytest.raises(PageError, match=r"a\.js: this isn't UTF-8"):
        read_script(tmp_path, "a.js")


@pytest.mark.parametrize("separator", ["\f\n\f\n", "# \u2028 \u2028 \x0b\n"])
def test_characters_that_end_no_line(tmp_path: Path, separator: str) -> None:
    """`str.splitlines` ends a line at each of them, and Python at none."""
    site = project(tmp_path)
    write(tmp_path, "pack/c.py", f'"""Words."""\n{separator}\ndef f_g():\n    return 1\n{separator}')
    write_site(site, reference=False)
    page = (site.out / "pack/c.md").read_text("utf-8")
    assert page.count('id="L') == (tmp_path / "pack/c.py").read_text("utf-8").count("\n")


def test_colab_and_kaggle_open_the_notebooks_of_a_repository_on_github(tmp_path: Path) -> None:
    github = replace(PROJECT, repo_url="https://github.com/me/bert")
    for address in ("", "https://example.org/me/bert", "http://github.com/me/bert"):
        assert notebook_links("a.ipynb", replace(PROJECT, repo_url=address)) == {}
    links = {
        "a": "https://colab.research.google.com/github/me/bert/blob/notebooks/pack/deep/x.ipynb",
        "b": "https://kaggle.com/kernels/welcome?src=https://github.com/me/bert/blob/notebooks/index.ipynb",
    }
    site = project(tmp_path)
    (tmp_path / "docs/pages/index.md").write_text("# Start\n\nText.\n\n```python\nprint(2)\n```\n")
    files = {"pack/deep/x.py": "print(1)", "docs/pages/index.md": "print(3)"}
    with_links = replace(site, notebooks=files, notebook_hosts=lambda path: notebook_links(path, github))
    write_site(with_links, reference=False)
    source_page, chapter = (site.out / name for name in ("pack/deep/x.md", "index.md"))
    assert f'href="{links["a"]}"' in source_page.read_text() and "../x.ipynb" in source_page.read_text()
    assert links["b"] in chapter.read_text() and "(index.ipynb)" in chapter.read_text()
    book = nbformat.read(site.out / "index.ipynb", as_version=4)
    assert [cell.source for cell in book.cells] == ["print(3)", "# Start", "print(2)"]
    write_site(replace(site, notebooks={}), reference=False)
    assert not list(site.out.rglob("*.ipynb"))
    assert "Notebook" not in source_page.read_text() + chapter.read_text()


def test_ctrl_c_ends_the_renderer_of_formulas_without_a_traceback() -> None:
    program = (
        "import time\n"
        "from docs.literate.maths import formula\n"
        "try:\n"
        "    print(len(formula('x', False)), flush=True)\n"
        "    time.sleep(60)\n"
        "except KeyboardInterrupt:\n"
        "    pass\n"
    )
    command = [sys.executable, "-c", program]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, text=True
    )
    assert process.stdout is not None and int(process.stdout.readline()) > 100
    os.killpg(process.pid, signal.SIGINT)
    # This returns once the renderer has ended too.
    assert process.communicate(timeout=60) == ("", "")
