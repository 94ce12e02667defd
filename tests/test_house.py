"""What holds for every file of the project."""

import ast
import importlib.metadata
import re
import tomllib

from packaging.requirements import Requirement

from tests.support.runs import ROOT


def test_no_pickle_and_no_archive_is_opened() -> None:
    """Neither by an import nor by a call, in the package, the experiments and the builder of the site."""
    refused = {
        "pickle",
        "cPickle",
        "dill",
        "marshal",
        "shelve",
        "zipfile",
        "tarfile",
        "joblib",
        "cloudpickle",
    }
    calls = {"torch.load", "np.load", "numpy.load", "shutil.unpack_archive", "yaml.load"}
    found = []
    folders = ("labml_bert", "experiments", "docs/literate", "docs/figures")
    for path in (path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if refused & {name.split(".")[0] for name in names}:
                found.append((path.name, names))
            if isinstance(node, ast.Call) and ast.unparse(node.func) in calls:
                found.append((path.name, ast.unparse(node.func)))
    assert found == []


def test_every_package_that_is_installed_for_us_is_pinned() -> None:
    """With its dependencies and theirs, as far as they are here; constraints.txt is what CI installs by."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {plain_name(line.split("==")[0]) for line in lines if "==" in line}
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *table["dependencies"],
        *(w for extra in table["optional-dependencies"].values() for w in extra),
    ]
    waiting, seen, here = [plain_name(word) for word in wanted], set(), set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            needs = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            # Of an extra that is not here.
            continue
        here.add(name)
        for need in map(Requirement, needs):
            # What is for another system or an older Python may lie about inside some other package.
            if need.marker is None or need.marker.evaluate({"extra": ""}):
                waiting.append(plain_name(need.name))
    assert len(here) > 20
    assert here - pinned == set()


def plain_name(requirement: str) -> str:
    """`Foo_bar>=1; python_version > "3"` is `foo-bar`."""
    found = re.match(r"[\w.-]+", requirement)
    assert found is not None
    return re.sub(r"[-_.]+", "-", found[0]).lower()
