"""Rules for all files: which imports are allowed, how long a file may be, and what must never be opened."""

import ast
import importlib.metadata
import multiprocessing
import os
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
    """All nodes of the file's syntax tree, starting with the root."""
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


class Import(NamedTuple):
    """One import in a file, possibly inside a function."""

    path: Path
    line: int
    module: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line} imports {self.module}"


def imports(path: Path) -> Iterator[Import]:
    """Every import of the file. `from package import module` counts as an import of the module."""
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            yield from (Import(path, node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{path}:{node.lineno} is a relative import"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield Import(path, node.lineno, full if full in MODULES | SCRIPTS else node.module)


def own_imports(path: Path) -> Iterator[Import]:
    """The file's imports of modules of the package."""
    return (imported for imported in imports(path) if imported.module in MODULES)


def assert_none(problems: Iterable[object]) -> None:
    """Fails if there are problems, and lists one per line."""
    lines = dict.fromkeys(map(str, problems))
    assert not lines, "\n" + "\n".join(lines)


# Imports

STANDALONE = {f"labml_bert.{name}" for name in ("bert", "mlm", "nsp", "modern")}
# The parts that each part of the package may import besides itself. Parts that use a trained model, such as
# `export`, may import everything, so they aren't listed.
BASE = {"stand-alone", "files", "checks", "checksums", "stdout", "labeled_text"}
MAY_IMPORT: dict[str, set[str]] = {
    "stand-alone": set(),
    "files": set(),
    "stdout": set(),
    "labeled_text": set(),
    "model_card": {"files", "stdout"},
    "checks": {"stand-alone"},
    "checksums": {"files"},
    "model_folder": BASE,
    "modern_folder": {*BASE, "model_folder"},
    "models": {*BASE, "model_folder"},
    "baselines": BASE,
    "data": {*BASE, "baselines"},
    "training": {*BASE, "models", "model_folder"},
    "run": {*BASE, "models", "model_folder", "modern_folder", "model_card", "baselines", "data", "training"},
}


def part_of(module: str) -> str:
    if module in STANDALONE:
        return "stand-alone"
    name = module.split(".")[1] if "." in module else ""
    return name if name in MAY_IMPORT else "uses of a model"


def test_imports_respect_the_layers() -> None:
    """
    The stand-alone files import nothing from the project, `models` imports only them and helpers, `training`
    doesn't depend on any dataset, and `data` and `baselines` depend on neither `training` nor `run`.
    """
    violations = []
    for module, path in MODULES.items():
        part = part_of(module)
        for target in own_imports(path):
            other_part = part_of(target.module)
            # The stand-alone files must work without each other as well.
            inside = part == other_part and part != "stand-alone"
            if part in MAY_IMPORT and not inside and other_part not in MAY_IMPORT[part]:
                violations.append(target)
    assert_none(violations)


def test_the_package_imports_no_experiment_and_no_code_imports_the_site() -> None:
    experiments = {"experiments"} | {path.stem for path in EXPERIMENTS}
    violations = [i for path in PACKAGE for i in imports(path) if i.module.split(".")[0] in experiments]
    violations += [
        i for path in (*PACKAGE, *EXPERIMENTS) for i in imports(path) if i.module.split(".")[0] == "docs"
    ]
    assert_none(violations)


def test_experiments_never_import_each_other() -> None:
    """The files of one folder count as one experiment."""
    # A script can also import the files in its own folder by their bare names.
    scripts = SCRIPTS | {path.stem: path for path in EXPERIMENTS}
    folder = ROOT / "experiments"
    assert_none(
        i
        for path in EXPERIMENTS
        for i in imports(path)
        if i.module in scripts and (scripts[i.module].parent != path.parent or path.parent == folder)
    )


def test_imports_have_no_cycle() -> None:
    """Imports inside functions count as well: they hide a cycle, but don't break it."""
    graph = {module: list(own_imports(path)) for module, path in MODULES.items()}
    finished: set[str] = set()

    def visit(module: str, chain: list[Import]) -> None:
        cycle = [i for i in chain if i.path == MODULES[module]]
        if cycle:
            cycles.append("\n".join(map(str, chain[chain.index(cycle[0]) :])) + "\n")
        elif module not in finished:
            for i in graph[module]:
                visit(i.module, [*chain, i])
            finished.add(module)

    cycles: list[object] = []
    for module in graph:
        visit(module, [])
    assert_none(cycles)


def is_program(path: Path) -> bool:
    return 'if __name__ == "__main__":' in path.read_text(encoding="utf-8").splitlines()


def test_no_module_of_the_package_serves_only_one_experiment() -> None:
    """A module for one experiment belongs to that experiment, unless it is a program that users start."""
    used_inside = {i.module for path in PACKAGE for i in own_imports(path)}
    users: dict[str, set[str]] = {module: set() for module in MODULES}
    chapters = "".join(path.read_text("utf-8") for path in (ROOT / "docs" / "pages").glob("*.md"))
    # The samples in chapters import these modules.
    taught = {module for module in MODULES if f"\nfrom {module} import" in chapters}
    for path in EXPERIMENTS:
        for i in own_imports(path):
            users[i.module].add(path.relative_to(ROOT / "experiments").parts[0])
    assert_none(
        [
            f"{MODULES[module].relative_to(ROOT)}:1 is used by experiments/{next(iter(names))} only"
            for module, names in users.items()
            if len(names) == 1
            and module not in used_inside
            and not is_program(MODULES[module])
            and module not in taught
            # The baselines stay together, even if only one experiment uses one of them.
            and part_of(module) != "baselines"
        ]
    )


def test_no_test_imports_another_test() -> None:
    violations = []
    for path in (ROOT / "tests").rglob("*.py"):
        for i in imports(path):
            parts = i.module.split(".")
            if parts[0] == "tests" and parts[1:2] not in (["support"], ["tools"]):
                violations.append(i)
    assert_none(violations)


@pytest.mark.parametrize("path", [path for path in PACKAGE if path.name == "__init__.py"], ids=module_name)
def test_importing_the_package_runs_no_code(path: Path) -> None:
    """The only exception is an environment variable for the threads."""
    name = path.relative_to(ROOT).as_posix()
    statements = ["import os", 'os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")']
    allowed = {"labml_bert/__init__.py": [ast.unparse(ast.parse(line)) for line in statements]}
    body = ast.parse(path.read_text(encoding="utf-8")).body
    statements_run = [
        node for node in body if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant)
    ]
    assert_none(
        f"{name}:{node.lineno} does {line}"
        for node in statements_run
        if (line := ast.unparse(node)) not in allowed.get(name, [])
    )


# Lengths of files

LONGEST = {
    "labml_bert/bert.py": 430,
    "labml_bert/mlm.py": 330,
    "labml_bert/nsp.py": 220,
    "experiments/mlm_tiny.py": 200,
    "experiments/mlm_modern.py": 200,
    "experiments/mlm_words.py": 200,
    "experiments/bert_tiny.py": 200,
    "experiments/own_language.py": 200,
}


def test_no_file_is_too_long() -> None:
    limits = {path.relative_to(ROOT).as_posix(): 450 for path in PACKAGE} | LONGEST
    lengths = {name: len((ROOT / name).read_text(encoding="utf-8").splitlines()) for name in limits}
    assert_none(
        [
            f"{name}:{length} is line {length} of at most {limits[name]}"
            for name, length in lengths.items()
            if length > limits[name]
        ]
    )


# Experiments don't change the package


def from_the_package(path: Path) -> set[str]:
    """The names that a file imports from the package."""
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
    """The run options are an exception, because each experiment adds its own."""
    violations = []
    for path in EXPERIMENTS:
        names = from_the_package(path) - {"RunOptions"}
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef) and names & set(map(root_name, node.bases)):
                bases = ", ".join(map(ast.unparse, node.bases))
                violations.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name} subclasses {bases}")
    assert_none(violations)


def test_no_experiment_changes_what_it_imports() -> None:
    """An experiment uses no `mock.patch` and no `setattr`, and assigns to no attribute of the package."""
    violations = []
    for path in EXPERIMENTS:
        names = from_the_package(path)
        relative_path = path.relative_to(ROOT)
        violations += [i for i in imports(path) if i.module.split(".")[0] in ("mock", "unittest", "pytest")]
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
                    violations.append(f"{relative_path}:{node.lineno} changes {root_name(target)}")
    assert_none(violations)


# Tests without the marker `processes`


def exit_child_of(by: Callable[[], object]) -> None:
    """Calls a function that forks, and ends the child at once."""
    if by() == 0:
        os._exit(0)


STARTS: dict[str, Callable[[], object]] = {
    "subprocess": lambda: subprocess.run([sys.executable, "-c", ""]),
    "system": lambda: os.system("true"),
}
# On Windows, an audit hook sees no other ways to start a process.
if sys.platform != "win32":
    import pty

    STARTS |= {
        "posix_spawn": lambda: os.posix_spawn(sys.executable, [sys.executable, "-c", ""], {}),
        "fork": lambda: exit_child_of(os.fork),
        "pty": lambda: exit_child_of(lambda: pty.fork()[0]),
        "multiprocessing fork": lambda: multiprocessing.get_context("fork").Process(target=int).start(),
        "multiprocessing spawn": lambda: multiprocessing.get_context("spawn").Process(target=int).start(),
    }


@pytest.mark.parametrize("name", STARTS)
def test_a_test_without_the_marker_starts_no_process(name: str) -> None:
    with pytest.raises(pytest.fail.Exception, match="starts a process; mark it with"):
        STARTS[name]()


# Unsafe formats and dependencies


def test_no_code_opens_pickles_or_archives() -> None:
    """The package, the experiments and the site builder contain no import and no call that opens them."""
    forbidden_modules = {
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
    forbidden_calls = {"torch.load", "np.load", "numpy.load", "shutil.unpack_archive", "yaml.load"}
    violations = []
    folders = ("labml_bert", "experiments", "docs/literate", "docs/figures")
    for path in (p for folder in folders for p in (ROOT / folder).rglob("*.py")):
        for node in nodes_of(path):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if forbidden_modules & {name.split(".")[0] for name in names}:
                violations.append((path.name, names))
            if isinstance(node, ast.Call) and ast.unparse(node.func) in forbidden_calls:
                violations.append((path.name, ast.unparse(node.func)))
    assert violations == []


def test_all_dependencies_are_pinned() -> None:
    """
    Indirect dependencies are checked too, as far as they are installed. CI installs with constraints.txt.
    """
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {plain_name(line.split("==")[0]) for line in lines if "==" in line}
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = [
        *table["dependencies"],
        *(w for extra in table["optional-dependencies"].values() for w in extra),
    ]
    queue, visited, installed = [plain_name(word) for word in requirements], set(), set()
    while queue:
        name = queue.pop()
        if name in visited:
            continue
        visited.add(name)
        try:
            dependencies = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            # The requirement belongs to an extra that isn't installed.
            continue
        installed.add(name)
        for dependency in map(Requirement, dependencies):
            # Requirements for other systems or older versions of Python may be vendored by another package.
            if dependency.marker is None or dependency.marker.evaluate({"extra": ""}):
                queue.append(plain_name(dependency.name))
    assert len(installed) > 20
    assert installed - pinned == set()


def plain_name(requirement: str) -> str:
    """`Foo_bar>=1; python_version > "3"` is `foo-bar`."""
    match = re.match(r"[\w.-]+", requirement)
    assert match is not None
    return re.sub(r"[-_.]+", "-", match[0]).lower()
