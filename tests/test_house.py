"""What holds for every file of the project: who may import whom, how long a file is, what is never opened."""

import ast
import importlib.metadata
import multiprocessing
import os
import pty
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement

from tests.support.runs import ROOT

PACKAGE = sorted((ROOT / "labml_bert").rglob("*.py"))
EXPERIMENTS = sorted((ROOT / "experiments").rglob("*.py"))


def module_name(path: Path) -> str:
    """`labml_bert/run/record.py` is `labml_bert.run.record`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in PACKAGE}
SCRIPTS = {module_name(path): path for path in EXPERIMENTS}


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """All nodes of the file's syntax tree, its own first."""
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


class Import(NamedTuple):
    """One import in a file, inside a function too."""

    path: Path
    line: int
    module: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line} imports {self.module}"


def imports(path: Path) -> Iterator[Import]:
    """Every import of the file. `from package import module` is an import of the module."""
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            yield from (Import(path, node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{path}:{node.lineno} is a relative import"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield Import(path, node.lineno, full if full in MODULES | SCRIPTS else node.module)


def own_imports(path: Path) -> Iterator[Import]:
    """The imports of modules of the package."""
    return (found for found in imports(path) if found.module in MODULES)


def report(found: Iterable[object]) -> None:
    """Fails with one line for each."""
    lines = dict.fromkeys(map(str, found))
    assert not lines, "\n" + "\n".join(lines)


# Who may import whom

STANDALONE = {f"labml_bert.{name}" for name in ("bert", "mlm", "nsp", "modern")}
# What each room may import, besides itself. What people do with a trained model may import everything.
BASE = {"stand-alone", "files", "checks", "stdout", "labeled_text"}
MAY_IMPORT: dict[str, set[str]] = {
    "stand-alone": set(),
    "files": set(),
    "stdout": set(),
    "labeled_text": set(),
    "checks": {"stand-alone"},
    "model_folder": BASE,
    "models": {*BASE, "model_folder"},
    "baselines": BASE,
    "data": {*BASE, "baselines"},
    "training": {*BASE, "models", "model_folder"},
    "run": {*BASE, "models", "model_folder", "baselines", "data", "training"},
}


def room_of(module: str) -> str:
    if module in STANDALONE:
        return "stand-alone"
    name = module.split(".")[1] if "." in module else ""
    return name if name in MAY_IMPORT else "uses of a model"


def test_no_import_goes_upwards() -> None:
    """
    The stand-alone files import nothing of the project, `models` imports those, `training` knows no data set,
    `data` and `baselines` know neither `training` nor `run`.
    """
    found = []
    for module, path in MODULES.items():
        room = room_of(module)
        for target in own_imports(path):
            other = room_of(target.module)
            # Each stand-alone file has to work without the others.
            inside = room == other and room != "stand-alone"
            if room in MAY_IMPORT and not inside and other not in MAY_IMPORT[room]:
                found.append(target)
    report(found)


def test_the_package_imports_no_experiment_and_nothing_imports_the_site() -> None:
    experiments = {"experiments"} | {path.stem for path in EXPERIMENTS}
    found = [i for path in PACKAGE for i in imports(path) if i.module.split(".")[0] in experiments]
    found += [
        i for path in (*PACKAGE, *EXPERIMENTS) for i in imports(path) if i.module.split(".")[0] == "docs"
    ]
    report(found)


def test_experiments_never_import_each_other() -> None:
    """The files of one folder are one experiment."""
    # A script finds what is in its own folder by the bare name, too.
    scripts = SCRIPTS | {path.stem: path for path in EXPERIMENTS}
    folder = ROOT / "experiments"
    report(
        i
        for path in EXPERIMENTS
        for i in imports(path)
        if i.module in scripts and (scripts[i.module].parent != path.parent or path.parent == folder)
    )


def test_no_import_goes_in_a_circle() -> None:
    """Imports inside functions count too: they hide a circle and don't open it."""
    graph = {module: list(own_imports(path)) for module, path in MODULES.items()}
    finished: set[str] = set()

    def visit(module: str, way: list[Import]) -> None:
        circle = [i for i in way if i.path == MODULES[module]]
        if circle:
            found.append("\n".join(map(str, way[way.index(circle[0]) :])) + "\n")
        elif module not in finished:
            for i in graph[module]:
                visit(i.module, [*way, i])
            finished.add(module)

    found: list[object] = []
    for module in graph:
        visit(module, [])
    report(found)


def is_program(path: Path) -> bool:
    return 'if __name__ == "__main__":' in path.read_text(encoding="utf-8").splitlines()


def test_no_module_of_the_package_is_there_for_one_experiment_only() -> None:
    """Such a module belongs to the experiment, unless it is a program that people start themselves."""
    used_inside = {i.module for path in PACKAGE for i in own_imports(path)}
    users: dict[str, set[str]] = {module: set() for module in MODULES}
    for path in EXPERIMENTS:
        for i in own_imports(path):
            users[i.module].add(path.relative_to(ROOT / "experiments").parts[0])
    report(
        [
            f"{MODULES[module].relative_to(ROOT)}:1 is used by experiments/{next(iter(names))} only"
            for module, names in users.items()
            if len(names) == 1
            and module not in used_inside
            and not is_program(MODULES[module])
            # A baseline stands beside the others, however many use it.
            and room_of(module) != "baselines"
        ]
    )


def test_no_test_imports_another() -> None:
    found = []
    for path in (ROOT / "tests").rglob("*.py"):
        for i in imports(path):
            parts = i.module.split(".")
            if parts[0] == "tests" and parts[1:2] not in (["support"], ["tools"]):
                found.append(i)
    report(found)


@pytest.mark.parametrize("path", [path for path in PACKAGE if path.name == "__init__.py"], ids=module_name)
def test_importing_the_package_does_no_work(path: Path) -> None:
    """It sets the variable of the threads, and no more."""
    name = path.relative_to(ROOT).as_posix()
    statements = ["import os", 'os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")']
    allowed = {"labml_bert/__init__.py": [ast.unparse(ast.parse(line)) for line in statements]}
    body = ast.parse(path.read_text(encoding="utf-8")).body
    found = [
        node for node in body if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant)
    ]
    report(
        f"{name}:{node.lineno} does {line}"
        for node in found
        if (line := ast.unparse(node)) not in allowed.get(name, [])
    )


# How long a file is

LONGEST = {
    "labml_bert/bert.py": 430,
    "labml_bert/mlm.py": 330,
    "labml_bert/nsp.py": 220,
    "experiments/mlm_tiny.py": 200,
    "experiments/mlm_words.py": 200,
    "experiments/bert_tiny.py": 200,
    "experiments/own_language.py": 200,
}


def test_no_file_is_too_long() -> None:
    limits = {path.relative_to(ROOT).as_posix(): 450 for path in PACKAGE} | LONGEST
    lengths = {name: len((ROOT / name).read_text(encoding="utf-8").splitlines()) for name in limits}
    report(
        [
            f"{name}:{length} is line {length} of at most {limits[name]}"
            for name, length in lengths.items()
            if length > limits[name]
        ]
    )


# What an experiment leaves alone


def from_the_package(path: Path) -> set[str]:
    """The names that the file gets from the package."""
    return {
        alias.asname or alias.name.split(".")[0]
        for node in nodes_of(path)
        if (isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "labml_bert")
        or isinstance(node, ast.Import)
        for alias in node.names
        if isinstance(node, ast.ImportFrom) or alias.name.split(".")[0] == "labml_bert"
    }


def root_name(node: ast.expr) -> str:
    """`a` of `a.b.c`."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def test_no_experiment_subclasses_a_class_of_the_package() -> None:
    """Except for the options, which each experiment adds its own values to."""
    found = []
    for path in EXPERIMENTS:
        names = from_the_package(path) - {"RunOptions"}
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef) and names & set(map(root_name, node.bases)):
                bases = ", ".join(map(ast.unparse, node.bases))
                found.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name} subclasses {bases}")
    report(found)


def test_no_experiment_changes_what_it_imports() -> None:
    """No `mock.patch`, no `setattr` and no assignment to a module or a class of the package."""
    found = []
    for path in EXPERIMENTS:
        names = from_the_package(path)
        place = path.relative_to(ROOT)
        found += [i for i in imports(path) if i.module.split(".")[0] in ("mock", "unittest", "pytest")]
        for node in nodes_of(path):
            targets: list[ast.expr] = []
            if isinstance(node, ast.Assign):
                targets = node.targets
            elif isinstance(node, ast.AugAssign | ast.AnnAssign):
                targets = [node.target]
            elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("setattr", "delattr"):
                targets = [ast.Attribute(node.args[0])]
            for target in targets:
                if isinstance(target, ast.Attribute | ast.Subscript) and root_name(target) in names:
                    found.append(f"{place}:{node.lineno} changes {root_name(target)}")
    report(found)


# What a test without the marker `processes` must not do


def fork(by: Callable[[], object]) -> None:
    """Ends the child at once if there is one."""
    if by() == 0:
        os._exit(0)


STARTS: dict[str, Callable[[], object]] = {
    "subprocess": lambda: subprocess.run([sys.executable, "-c", ""]),
    "system": lambda: os.system("true"),
    "posix_spawn": lambda: os.posix_spawn(sys.executable, [sys.executable, "-c", ""], {}),
    "fork": lambda: fork(os.fork),
    "pty": lambda: fork(lambda: pty.fork()[0]),
    "multiprocessing fork": lambda: multiprocessing.get_context("fork").Process(target=int).start(),
    "multiprocessing spawn": lambda: multiprocessing.get_context("spawn").Process(target=int).start(),
}


@pytest.mark.parametrize("name", STARTS)
def test_a_test_without_the_marker_starts_no_process(name: str) -> None:
    with pytest.raises(pytest.fail.Exception, match="starts a process; mark it with"):
        STARTS[name]()


# What is never opened


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
    for path in (p for folder in folders for p in (ROOT / folder).rglob("*.py")):
        for node in nodes_of(path):
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
