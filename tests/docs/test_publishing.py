"""What a published site and a published package need, and what they must not have by default."""

import os
import re
import shutil
import socket
import subprocess
import sys
import tomllib
import zipfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import yaml
from bs4 import BeautifulSoup, Tag
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import PluginError

import docs.hook
from docs.project import PROJECT, bibtex, license_text, read_project
from tests.support.runs import SMALL, small_text

ROOT = Path(__file__).parents[2]
ADDRESSES = {"SITE_URL": "https://site.example/bert", "REPO_URL": "https://code.example/me/bert.git"}


def parse(path: Path) -> BeautifulSoup:
    return BeautifulSoup(path.read_text("utf-8"), "html.parser")


def parse_head(text: str) -> Tag:
    """The head of a page. The rest of the page, which takes much longer to parse, is left out."""
    head = BeautifulSoup(text[: text.index("</head>")], "html.parser").head
    assert head is not None
    return head


def build_two_pages(folder: Path) -> Path:
    """Builds a small site with our theme and our hook, which takes seconds. Returns its folder."""
    pages = folder / "pages"
    pages.mkdir()
    (pages / "index.md").write_text("---\ntitle: home\n---\n# Learn & run\n\nText.\n")
    (pages / "about.md").write_text(
        '---\ndescription: "One &amp; two."\nsource: docs/pages/about.md\n---\n# A & B\n'
    )
    config = load_config(
        str(ROOT / "mkdocs.yml"),
        docs_dir=str(pages),
        site_dir=str(folder / "site"),
        hooks=[],
        nav=["index.md", "about.md"],
    )
    docs.hook.on_config(config)
    build(config)
    return folder / "site"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ADDRESSES.items():
            patch.setenv(name, value)
        return build_two_pages(tmp_path_factory.mktemp("published"))


def test_every_page_has_a_description_and_a_title_of_its_own(site: Path) -> None:
    texts = {path: path.read_text("utf-8") for path in site.glob("**/index.html")}
    pages = {path: parse_head(text) for path, text in texts.items()}
    descriptions = {
        path: head.select_one("meta[name=description]")["content"] for path, head in pages.items()
    }
    defaults = [path for path, text in descriptions.items() if text == PROJECT.description]
    assert not defaults, "these pages have no description of their own"
    for values in (descriptions.values(), [head.title.get_text() for head in pages.values()]):
        assert [value for value, count in Counter(values).items() if count > 1 or len(value) < 20] == []


def test_without_addresses_nothing_points_to_another_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ADDRESSES:
        monkeypatch.setenv(name, "")
    monkeypatch.setattr("docs.hook.read_project", lambda: read_project({}))
    if PROJECT.site_url or PROJECT.repo_url:
        pytest.skip("this fork has addresses")
    for path in build_two_pages(tmp_path).glob("**/*.html"):
        html = path.read_text("utf-8")
        assert 'rel="canonical"' not in html and 'rel="edit"' not in html
        assert not re.search(r'(?:href|src)="https?:', html), path


def test_a_port_that_does_not_exist_is_one_line() -> None:
    with pytest.raises(
        PluginError, match=r'99999: .*; try another port: make serve ARGS="--dev-addr h:8000"$'
    ):
        docs.hook.check_address("h", 99999)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_a_port_that_another_program_uses_is_named_before_the_build(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("docs.hook.written", [])
    monkeypatch.setattr("docs.hook.serving", False)
    docs.hook.on_startup("serve", False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        remedy = re.escape(f'make serve ARGS="--dev-addr {host}:{port + 1}"')
        with pytest.raises(
            PluginError, match=f"{host}:{port}: Address already in use; try another port: {remedy}$"
        ):
            docs.hook.on_config(load_config(str(ROOT / "mkdocs.yml"), hooks=[], dev_addr=f"{host}:{port}"))
    docs.hook.on_config(load_config(str(ROOT / "mkdocs.yml"), hooks=[], dev_addr=f"{host}:{port}"))


def test_the_authors_stay_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = 'A "B" <b class="x"> & C'
    project = replace(PROJECT, description=words, authors=words, license=words)
    monkeypatch.setattr("docs.hook.read_project", lambda: project)
    page = parse(build_two_pages(tmp_path) / "index.html")
    for name in ("description", "author"):
        assert page.select_one(f"meta[name={name}]")["content"] == words
    assert f"{words}. By {words}." in page.select_one(".foot p").get_text()
    assert f"{words} license" in page.select_one(".foot li").get_text() and not page.select("b.x")


def test_a_published_page_says_where_it_is_and_where_its_source_is(published: Path) -> None:
    page = parse(published / "about" / "index.html")
    address = "https://site.example/bert/about/"
    assert page.select_one("link[rel=canonical]")["href"] == address
    content = {tag["property"]: tag["content"] for tag in page.select("meta[property]")}
    assert content["og:url"] == address
    assert content["og:title"] == "A & B" and page.title.get_text() == "A & B - labml_bert"
    assert content["og:description"] == "One & two."
    links = {a["href"] for a in page.select(".foot a")}
    assert "https://code.example/me/bert" in links
    assert "https://code.example/me/bert/edit/main/docs/pages/about.md" in links
    assert parse(published / "index.html").title.get_text() == "Learn & run - labml_bert"
    assert "https://site.example/bert/about/" in (published / "sitemap.xml").read_text("utf-8")


def test_a_missing_page_leads_back(published: Path) -> None:
    page = parse(published / "404.html")
    assert page.title.get_text().startswith("Page not found")
    links = [a["href"] for a in page.select("article a")]
    assert "/bert/." in links and len(links) >= 5
    # The server sends the page for an address at any depth, so a relative link would lead nowhere.
    assert all(link.startswith(("/bert/", "https://code.example/")) for link in links)


def test_the_ways_out_of_a_missing_page_exist(site: Path) -> None:
    for link in parse(site / "404.html").select("article a"):
        assert (site / link["href"].lstrip("/") / "index.html").is_file(), link


def test_an_address_is_normalized_or_rejected() -> None:
    project = read_project(ADDRESSES)
    assert (project.site_url, project.repo_url) == (
        "https://site.example/bert/",
        "https://code.example/me/bert",
    )
    assert "url = {https://site.example/bert/}" in bibtex(project)
    year = re.search(r"year = {\d{4}}", bibtex(project))
    assert year
    # A fork adds a line of its own below ours.
    text = license_text()
    with mock.patch("docs.project.license_text", lambda: f"{text}\nCopyright (c) 2999 Ada\n"):
        assert year[0] in bibtex(project)
    for url in ("git@code.example:me/bert", 'https://code.example/"onclick="', "https://code.example/a b"):
        with pytest.raises(ValueError, match="has to start with https"):
            read_project({"REPO_URL": url})


def test_a_wrong_address_is_reported_in_one_line() -> None:
    command = [sys.executable, "-m", "docs"]
    environment = {**os.environ, "SITE_URL": "site.example"}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert re.fullmatch(r"error: 'site\.example' is not an address; .*\n", result.stderr)


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda path: path.stem)
def test_workflows_and_forms_are_complete(path: Path) -> None:
    table = yaml.safe_load(path.read_text("utf-8"))
    if path.parent.name == "workflows":
        # YAML reads the key `on` as true.
        assert table[True] and table["permissions"] == {"contents": "read"}
        assert all("timeout-minutes" in job or "environment" in job for job in table["jobs"].values())
    else:
        assert table["name"] and table["description"]
        assert len({part["id"] for part in table["body"]}) == len(table["body"])


def test_the_notebooks_of_the_site_go_to_a_branch(tmp_path: Path) -> None:
    """Runs the workflow's script with a local repository. The second time, the branch exists."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "notebooks", tmp_path / ".ci")
    (tmp_path / "site" / "deep").mkdir(parents=True)
    for name in ("a.ipynb", "deep/b.ipynb", "deep/c.html"):
        (tmp_path / "site" / name).write_text(name)
    subprocess.run(["git", "init", "--quiet", "--bare", "remote"], cwd=tmp_path, check=True)
    list_files = ["git", "-C", "remote", "ls-tree", "-r", "--name-only", "notebooks"]
    for expected in (["a.ipynb", "deep/b.ipynb"], ["deep/b.ipynb"]):
        subprocess.run([tmp_path / ".ci" / "notebooks", tmp_path / "remote"], check=True)
        files = subprocess.run(list_files, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
        assert files.split() == expected
        (tmp_path / "site" / "a.ipynb").unlink(missing_ok=True)


def test_every_make_command_exists() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([\w-]+):", makefile, re.M))
    paths = [ROOT / name for name in ("CONTRIBUTING.md", ".pre-commit-config.yaml", ".ci/run")]
    paths += [path for path in (ROOT / ".github").rglob("*") if path.is_file()]
    commands = {
        name
        for path in paths
        for name in re.findall(r"(?:^|`|: )make ([a-z-]+)", path.read_text("utf-8"), re.M)
    }
    assert {"site", "test-fast"} <= commands <= targets


def folder_with_makefile(folder: Path, python: str) -> Path:
    """A folder in which `make site` calls the shell script `python` and installs nothing."""
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / "docs").mkdir()
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "docs/package-lock.json"):
        shutil.copy(ROOT / name, folder / name)
    path = folder / ".venv" / "bin" / "python"
    path.write_text(f"#!/bin/sh\n{python}\n")
    path.chmod(0o755)
    for name in ("bin/pip", ".run", ".site"):
        (folder / ".venv" / name).touch()
    return folder


def make_site(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # Don't pass on the arguments of a `make test-site` that runs this test.
    return subprocess.run(
        ["make", "site", *arguments],
        cwd=folder,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )


def test_make_finishes_an_environment_that_was_interrupted(tmp_path: Path) -> None:
    """`venv` puts Python into the folder first and pip last."""
    folder = folder_with_makefile(tmp_path, "exit 0")
    assert " -m venv " not in make_site(folder, "--dry-run").stdout
    (folder / ".venv" / "bin" / "pip").unlink()
    assert " -m venv --clear .venv\n" in make_site(folder, "--dry-run").stdout


@pytest.mark.parametrize("target", ["index.md", "gone.md"])
def test_make_site_fails_for_a_broken_link(tmp_path: Path, target: str) -> None:
    folder = folder_with_makefile(tmp_path, f'exec "{sys.executable}" "$@"')
    (folder / "mkdocs.yml").write_text("site_name: small\ndocs_dir: pages\n")
    (folder / "pages").mkdir()
    (folder / "pages" / "index.md").write_text(f"# Start\n\nA [link]({target}).\n")
    result = make_site(folder)
    assert (result.returncode == 0) == (target == "index.md"), result.stderr
    assert ("built: site/index.html" in result.stdout) == (target == "index.md")


def test_make_runs_npm_in_a_folder_with_a_space(tmp_path: Path) -> None:
    folder = folder_with_makefile(tmp_path / "a folder", ":")
    (folder / ".venv" / ".site").unlink()
    npm = folder / ".venv" / "bin" / "npm"
    npm.write_text('#!/bin/sh\necho "$1" > called\n')
    npm.chmod(0o755)
    result = make_site(folder)
    assert result.returncode == 0, result.stderr
    assert (folder / "docs" / "called").read_text() == "ci\n"


def test_make_does_not_use_an_environment_that_failed(tmp_path: Path) -> None:
    """On a Debian without python3-venv, Python leaves an incomplete folder and ends with an error."""
    folder = folder_with_makefile(tmp_path, ":")
    shutil.rmtree(folder / ".venv")
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\n[ "$1" = -m ] || exit 0\nmkdir -p .venv/bin\ntouch .venv/bin/pip\nexit 1\n')
    python.chmod(0o755)
    for _ in range(2):
        assert "-m venv" in make_site(folder, f"PYTHON={python}").stdout
    assert not (folder / ".venv" / "bin" / "pip").exists()


def test_the_workflow_tests_every_version_that_the_package_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    tests = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text("utf-8"))
    versions = tests["jobs"]["fast"]["strategy"]["matrix"]["python"]
    named = [line.rpartition(" ")[2] for line in project["classifiers"] if ":: 3." in line]
    assert versions == named and project["requires-python"] == f">={versions[0]}"


def test_the_citation_matches_the_package() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["title"] == PROJECT.name and citation["abstract"] == PROJECT.description
    assert citation["version"] == PROJECT.version and citation["license"] == PROJECT.license
    assert ", ".join(author["name"] for author in citation["authors"]) == PROJECT.authors


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Build a copy, because setuptools writes into the folder that it builds.
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    for name in ("labml_bert", "experiments"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", "out", "."], cwd=folder, check=True)
    (path,) = (folder / "out").iterdir()
    return path


def test_the_wheel_has_the_sources_the_types_and_the_license(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        files = set(archive.namelist())
    sources = {
        path.relative_to(ROOT).as_posix()
        for folder in ("labml_bert", "experiments")
        for suffix in ("py", "toml", "typed")
        for path in (ROOT / folder).rglob(f"*.{suffix}")
    }
    assert sources == {name for name in files if ".dist-info/" not in name}
    assert any(name.endswith("/licenses/LICENSE") for name in files)


@pytest.mark.long
def test_the_installed_wheel_trains_and_fills_a_mask(wheel: Path, tmp_path: Path) -> None:
    """The wheel works in any folder, without the clone."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site-packages")
    folder = tmp_path / "empty"
    folder.mkdir()
    (tmp_path / "text.txt").write_text(small_text(200))

    def python(*words: object) -> str:
        return subprocess.run(
            [sys.executable, *map(str, words)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(tmp_path / "site-packages")},
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    where = "import labml_bert, labml_bert.run.fingerprint as f; print(labml_bert.__file__, f.ROOT)"
    assert python("-c", where).count(str(tmp_path / "site-packages")) == 2
    options = [*SMALL, "--corpus", tmp_path / "text.txt", "--steps", 4, "--record", "record.json"]
    assert "held-out text" in python("-m", "experiments.mlm_tiny", *options)
    assert (folder / "record.json").is_file()
    assert "the cat" in python("-m", "labml_bert.fill_mask", "the cat see[MASK] the dog today.")
