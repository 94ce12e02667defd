"""
# Who publishes this site, and from where

The site takes its license, authors and addresses from `pyproject.toml`, the one file that a fork changes. The
environment variables `SITE_URL` and `REPO_URL` overrule the addresses. The workflow that publishes the site
sets both, so a fork on GitHub Pages needs no change at all. A site without addresses works offline; it has no
canonical links and no links to a repository.
"""

import os
import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Project:
    """What `pyproject.toml` says about the project."""

    name: str
    description: str
    version: str
    license: str
    authors: str
    site_url: str
    """Where the site is published, with a slash at the end, or an empty string."""
    repo_url: str
    """The repository's address without a slash at the end, or an empty string."""


def read_project(environment: Mapping[str, str] = os.environ) -> Project:
    """
    Raises `ValueError` if an address doesn't start with `https://` or `http://`, or has a character that HTML
    escapes.
    """
    table = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    urls = table.get("urls", {})
    site_url = environment.get("SITE_URL") or urls.get("Homepage", "")
    repo_url = environment.get("REPO_URL") or urls.get("Repository", "")
    for url in (site_url, repo_url):
        if url and not re.fullmatch(r"https?://[^\s\"<>`]+", url):
            raise ValueError(
                f'{url!r} is not an address; it has to start with https:// and has no spaces and none of "<>`'
            )
    return Project(
        name=table["name"].replace("-", "_"),
        description=table["description"],
        version=table["version"],
        license=table["license"],
        authors=", ".join(author.get("name") or author["email"] for author in table["authors"]),
        site_url=f"{site_url.rstrip('/')}/" if site_url else "",
        repo_url=repo_url.rstrip("/").removesuffix(".git"),
    )


try:
    PROJECT = read_project()
except ValueError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)


def clone_cell(project: Project) -> str:
    """The first lines of a notebook that needs the project; empty if the repository's address isn't known."""
    if not project.repo_url:
        return ""
    return (
        f"!git clone --quiet --depth 1 {project.repo_url} project\n%cd -q project\n%pip install --quiet .\n\n"
    )


def notebook_links(path: str, project: Project = PROJECT) -> dict[str, str]:
    """
    Links that open a notebook of the site in Colab and on Kaggle, by their labels. Both read it from GitHub,
    from the branch `notebooks` that `.ci/notebooks` writes. For a repository elsewhere, there are none.
    """
    host, _, repository = project.repo_url.partition("://github.com/")
    if host != "https":
        return {}
    file = f"{repository}/blob/notebooks/{path}"
    return {
        "Open in Colab": f"https://colab.research.google.com/github/{file}",
        "Open on Kaggle": f"https://kaggle.com/kernels/welcome?src=https://github.com/{file}",
    }


def quick_start(project: Project = PROJECT) -> str:
    """The first commands that a reader types, as a fenced block."""
    name = project.repo_url.rpartition("/")[2]
    clone = f"git clone {project.repo_url}\ncd {name}\n" if project.repo_url else ""
    return f"```sh\n{clone}make train\n```"


def license_text() -> str:
    """The file `LICENSE`, as a fenced block."""
    return f"```text\n{(ROOT / 'LICENSE').read_text('utf-8').strip()}\n```"


def bibtex(project: Project = PROJECT) -> str:
    """The project as a BibTeX entry, as a fenced block. The year is that of the first copyright."""
    year = re.search(r"^Copyright \(c\) (\d{4})", license_text(), re.M)
    fields = {
        "title": f"{{{project.name}}}. {project.description}",
        "author": f"{{{project.authors}}}",
        "year": year[1] if year else "",
        "version": project.version,
        "url": project.site_url or project.repo_url,
    }
    lines = [f"  {name} = {{{value}}},\n" for name, value in fields.items() if value]
    return f"```text\n@software{{{project.name},\n{''.join(lines)}}}\n```"


def where_the_code_is(project: Project = PROJECT) -> str:
    """A sentence with a link to the repository, or an empty string if its address is unknown."""
    return f"The whole project is at [{project.repo_url}]({project.repo_url})." if project.repo_url else ""
