"""
Checks out a commit, runs its experiments, and reads their logs and records. `compare_commits.py` uses it to
compare two commits.
"""

import functools
import hashlib
import itertools
import json
import os
import platform
import random
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

SOURCES = [Path(__file__).with_name(f"{name}.py").read_text("utf-8") for name in ("step_hook", "commit_runs")]
# Parts of a record that describe the run. If a difference in them matters, the losses differ as well.
NOT_MEASURED = {"command", "date", "commit", "versions", "hardware", "configuration", "corpus", "claim"}

# Sizes for runs of a few seconds.
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "batch_tokens": 512}
SMALL_OPTIONS = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in SMALL.items())
PAIRS = f"--corpus {{texts}} {SMALL_OPTIONS} --vocab-size 300 --schedule 32:1,64:1 --steps 40"
# The steps of a run in a claim. One claim looks at 400 losses before it lengthens the sequences, so it needs
# more.
CLAIM_BATCH, CLAIM_STEPS, GROWING_CLAIM, GROWING_STEPS = 256, 24, "short-to-long", 640
# Scores require fine-tuning on thousands of texts, so only the first claim with scores measures them.
CLAIM_WITH_SCORES = "next-sentence"
# Seconds. No command takes this long unless it is stuck.
TIMEOUT = 3600


@dataclass(frozen=True)
class Command:
    """
    A script under `experiments/`, found by its file name. In `arguments`, `{texts}` and `{model}` stand for a
    folder of text and a folder with a small pretrained model, and `--old|--new` for an option that was
    renamed. With `kill_after`, the run is repeated, killed after that many backward passes, and resumed.
    """

    name: str
    script: str
    arguments: str
    processes: int = 1
    kill_after: int = 0
    # A file, or a folder for a script that writes several records.
    record: str = "record.json"


@dataclass(frozen=True)
class Outcome:
    """The results of a command."""

    # The lines of each process's log.
    logs: dict[str, list[str]]
    # Every number in the record, by its path.
    numbers: dict[str, Any]
    # Why the command failed, if it did.
    problem: str | None = None

    @property
    def steps(self) -> int:
        """The number of optimizer steps in all processes."""
        return sum(line.startswith("weights") for lines in self.logs.values() for line in lines)


def git(root: Path, *arguments: str, **environment: str) -> str:
    """
    Runs a git command and returns what it prints.

    Raises `CalledProcessError` if it fails.
    """
    command = ["git", "-C", str(root), *arguments]
    environment = {**os.environ, **environment}
    return subprocess.run(
        command, env=environment, check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()


def commit_of_working_tree(root: Path, folder: Path) -> str:
    """Commits the working tree, including untracked files, without changing any branch or the index."""
    index = {"GIT_INDEX_FILE": str(folder / "index")}
    git(root, "read-tree", "HEAD", **index)
    git(root, "add", "--all", **index)
    tree = git(root, "write-tree", **index)
    return git(root, "commit-tree", tree, "-p", "HEAD", "-m", "The working tree", **index)


class Checkout:
    """A commit in a folder of its own, and the outcomes of its commands."""

    def __init__(self, repository: Path, commit: str, folder: Path, results: Path):
        """`results` is the folder with the outcomes of earlier comparisons."""
        self.repository, self.folder, self.results = repository, folder, results
        self.commit = git(repository, "rev-parse", f"{commit}^{{commit}}")
        self.root, self.texts, self.cache = folder / "checkout", folder / "texts", folder / "cache"
        (folder / "hook").mkdir(parents=True)
        (folder / "hook" / "sitecustomize.py").write_text(SOURCES[0], "utf-8")
        write_texts(self.texts)
        git(repository, "worktree", "add", "--quiet", "--detach", str(self.root), self.commit)
        for path in self.root.glob("experiments/**/claims.toml"):
            shrink_claims(path, self.texts)
        self.numbers = itertools.count()

    def close(self) -> None:
        """Removes the checkout, and git's record of it."""
        git(self.repository, "worktree", "remove", "--force", str(self.root))

    def outcome(self, command: Command) -> Outcome:
        """Runs the command, unless its outcome is cached."""
        path = self.results / f"{self.key(command)}.json"
        if path.exists():
            return Outcome(**json.loads(path.read_text("utf-8")))
        if command.kill_after:
            outcome = self.outcome(replace(command, kill_after=0))
            if not outcome.problem:
                outcome = replace(outcome, problem=self.kill_and_resume(command, outcome))
        else:
            outcome = self.run(command)
        if not outcome.problem:
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(f".{os.getpid()}.{self.folder.name}")
            part.write_text(json.dumps(vars(outcome)), "utf-8")
            part.replace(path)
        return outcome

    def key(self, command: Command) -> str:
        """A hash of everything that affects the outcome."""
        code = git(self.repository, "ls-tree", self.commit, "labml_bert", "experiments")
        libraries = [version(name) for name in ("torch", "tokenizers", "numpy")]
        machine = [*platform.uname()[:3], sys.version, *libraries]
        key = json.dumps([code, *SOURCES, *machine, repr(replace(command, name=""))])
        return hashlib.sha256(key.encode()).hexdigest()

    def run(self, command: Command, more: list[str] | None = None, **environment: str) -> Outcome:
        """
        Runs a command to its end in a new folder. `more` are additional options; if they contain `--resume`,
        they replace all others.
        """
        folder = self.folder / f"run{next(self.numbers)}"
        (folder / "steps").mkdir(parents=True)
        more = more or []
        try:
            options = [] if "--resume" in more else self.options(command)
            words = [*self.script(command), *options, *more, "--record", command.record]
            process = self.python(words, folder, STEP_LOG=str(folder / "steps"), **environment)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            return Outcome({}, {}, str(error))
        paths = [folder / command.record, *folder.glob(f"{command.record}/**/*.json")]
        records = {path.name: json.loads(path.read_text("utf-8")) for path in paths if path.is_file()}
        logs = read_logs(folder / "steps")
        problem = None
        if process.returncode or not logs or not records:
            problem = (
                f"exit code {process.returncode}, {len(logs)} processes trained, {len(records)} records: "
            )
            problem += " / ".join(process.stdout.strip().splitlines()[-3:])
        return Outcome(logs, dict(numbers(records)), problem)

    def script(self, command: Command) -> list[str]:
        """
        The arguments of `python` before the options.

        Raises `RuntimeError` if this commit has no such script, or several.
        """
        paths = [*self.root.glob(f"experiments/**/{command.script}.py")]
        if len(paths) != 1:
            raise RuntimeError(f"{len(paths)} scripts are called {command.script}.py")
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(command.processes)]
        return [*(torchrun if command.processes > 1 else []), str(paths[0])]

    def options(self, command: Command) -> list[str]:
        """The arguments of a command, with the option names that this commit uses."""
        arguments = command.arguments.replace("{texts}", str(self.texts))
        if "{model}" in arguments:
            arguments = arguments.replace("{model}", str(self.model))
        if "|" in arguments:
            help_words = self.python([*self.script(command)[-1:], "--help"], self.folder).stdout.split()
            words = [word.split("|") for word in shlex.split(arguments)]
            return [next((name for name in names if name in help_words), names[0]) for names in words]
        return shlex.split(arguments)

    def python(self, words: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs Python in `folder`, with this commit's code ahead of anything installed."""
        environment |= {
            "PYTHONPATH": f"{self.folder / 'hook'}{os.pathsep}{self.root}",
            "XDG_CACHE_HOME": str(self.cache),
            "OMP_NUM_THREADS": "1",
        }
        return subprocess.run(
            [sys.executable, *words],
            cwd=folder,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT,
        )

    @functools.cached_property
    def model(self) -> Path:
        """A folder with a small pretrained model. Raises `RuntimeError` if training it fails."""
        outcome = self.run(Command("", "bert_tiny", PAIRS), ["--runs", str(self.folder / "model")])
        paths = [*self.folder.glob("model/**/config.json")]
        if outcome.problem or not paths:
            raise RuntimeError(f"no model to fine-tune: {outcome.problem}")
        return paths[0].parent

    def kill_and_resume(self, command: Command, uninterrupted: Outcome) -> str | None:
        """Compares a killed and resumed run with an uninterrupted one. Returns what is wrong, or `None`."""
        runs = self.folder / f"killed{next(self.numbers)}"
        killing = {"STEP_LOG_KILL_AFTER": str(command.kill_after), "STEP_LOG_RUNS": str(runs)}
        killed = self.run(command, ["--runs", str(runs), "--checkpoint-seconds", "0"], **killing)
        checkpoints = [*runs.glob("**/checkpoint.safetensors")]
        if not killed.problem or len(checkpoints) != 1:
            return f"expected a killed run ({killed.problem}) with one checkpoint ({len(checkpoints)})"
        resumed = self.run(command, ["--resume", str(checkpoints[0].parent)])
        if resumed.problem:
            return f"resumed: {resumed.problem}"
        for process, lines in uninterrupted.logs.items():
            log_before, log_after = killed.logs.get(process, []), resumed.logs.get(process, [])
            if log_before != lines[: len(log_before)]:
                return f"{process}, killed, is not a prefix of the uninterrupted run"
            if not 0 < len(log_after) < len(lines) or log_after != lines[-len(log_after) :]:
                return f"{process}, resumed, is not a suffix of the uninterrupted run"
        if uninterrupted.numbers != resumed.numbers:
            paths = uninterrupted.numbers.keys() | resumed.numbers.keys()
            path = min(p for p in paths if uninterrupted.numbers.get(p) != resumed.numbers.get(p))
            return f"resumed: {path} differs"
        return None


def read_logs(folder: Path) -> dict[str, list[str]]:
    """
    The log of each process, by `rank 0`, `rank 1` and so on. `rank 0 again` is a process that started
    training later.
    """
    logs: dict[str, list[str]] = {}
    for path in sorted(folder.glob("*.log"), key=lambda path: [*map(int, path.stem.split("-"))]):
        name = f"rank {path.stem.split('-')[0]}"
        while name in logs:
            name += " again"
        logs[name] = path.read_text("utf-8").splitlines()
    return logs


def numbers(record: Any, path: str = "", key: str = "") -> Iterator[tuple[str, Any]]:
    """
    Every number and every sha256 in a record, with its path. Times are left out, and so is the history of the
    training metrics, because these are averages over about a second.
    """
    if isinstance(record, dict):
        for name, value in record.items():
            clock = "seconds" in name or (key == "history" and not name.startswith("valid."))
            if name not in NOT_MEASURED and not clock:
                yield from numbers(value, f"{path}/{name}".lstrip("/"), name)
    elif isinstance(record, list):
        for i, value in enumerate(record):
            yield from numbers(value, f"{path}/{i}", key)
    elif not isinstance(record, str) or key == "sha256":
        yield path, record


def write_texts(folder: Path) -> None:
    """Writes thirty files in a small random language, the same every time."""
    r = random.Random(0)
    syllables = [consonant + vowel for consonant in "bdfgklmnprst" for vowel in "aeiou"]
    words = ["".join(r.choices(syllables, k=r.randint(1, 3))) for _ in range(200)]
    folder.mkdir()
    for number in range(30):
        sentences = [r.choices(words, range(200, 0, -1), k=r.randint(4, 12)) for _ in range(60)]
        lines = [" ".join(sentence).capitalize() + r.choice(".!?") for sentence in sentences]
        (folder / f"{number:02}.txt").write_text("\n".join(lines) + "\n")


def shrink_claims(path: Path, texts: Path) -> None:
    """Reduces every claim in the file to a small model, one seed, few steps and two learning rates."""
    document = tomllib.loads(path.read_text("utf-8"))
    for claim in document["claim"]:
        if "options" not in claim:
            continue
        steps = GROWING_STEPS if claim["name"] == GROWING_CLAIM else CLAIM_STEPS
        tokens = {"tokens": steps * CLAIM_BATCH}
        small_options = {**SMALL, "batch_tokens": CLAIM_BATCH, "corpus": str(texts)}
        claim["options"] = {**small_options, **claim["options"], **tokens}
        claim["seeds"] = 1
        # Older commits run no fresh seeds. Without a primary endpoint, newer commits don't either.
        claim.pop("primary", None)
        claim["grid"] = {name: values[:2] for name, values in claim["grid"].items()}
        if "batch_tokens" in claim["grid"]:
            claim["grid"]["batch_tokens"] = [CLAIM_BATCH]
        if claim["name"] != CLAIM_WITH_SCORES:
            claim.pop("scores", None)
        for arm in claim["arms"].values():
            if "tokens" in arm:
                arm.update(tokens)
    path.write_text("".join(f"{key} = {as_toml(value)}\n" for key, value in document.items()), "utf-8")


def as_toml(value: Any) -> str:
    """Formats a value as TOML, on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{as_toml(key)} = {as_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(as_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
