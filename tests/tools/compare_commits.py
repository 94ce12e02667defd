"""
Runs the same experiments at two commits, here and now, and compares them bit for bit: the loss of every step,
the weights and the optimizer's moments after every step, and every evaluation.

    python tests/tools/compare_commits.py b87d2b1                     # that commit against the working tree
    python tests/tools/compare_commits.py b87d2b1 HEAD --only mlm     # names that contain "mlm"
    python tests/tools/compare_commits.py --list

It prints a line for each command, `same` or `DIFFERENT` with the first difference, and exits with 1 if one
differs that is not in `INTENDED`. Use it while you refactor: a change that should not change training must
leave every line at `same`.

Each commit is checked out into a temporary folder. The working tree is taken as it is, with untracked files.
The tool imports nothing from the project, since the project is what changes: `step_hook.py` watches torch from
inside each process, and evaluations come from the JSON file that `--record` writes. It compares parameters by
their order in the optimizer, not by name. Times are not compared, nor are the training metrics in a record, whose
reporting follows the clock.

What a commit computes is kept in `--results` and not computed again for another comparison, so the base runs
once. All commands take about half an hour a commit on two cores.
"""

import argparse
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
import tempfile
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
HOOK = Path(__file__).with_name("step_hook.py")
SOURCES = [path.read_text("utf-8") for path in (HOOK, Path(__file__))]

# Commands whose results are meant to differ, and why.
INTENDED: dict[str, str] = {}
# Keys of a record that have another name at the newer commit.
RENAMED: dict[str, str] = {}
# Parts of a record that say how it was made. What they decide shows in the losses.
NOT_MEASURED = {"command", "date", "commit", "versions", "hardware", "configuration", "corpus", "claim"}

# Sizes for runs of a few seconds.
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "batch_tokens": 512}
OPTIONS = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in SMALL.items())
MASKED = f"--corpus {{texts}} {OPTIONS} --schedule 16:1,64:1 --steps 40"
PAIRS = f"--corpus {{texts}} {OPTIONS} --vocab-size 300 --schedule 32:1,64:1 --steps 40"
# The claims cut down to so many steps; in one of them the length grows where 400 losses say so.
CLAIM_STEPS, GROWING_STEPS, CLAIM_BATCH = 24, 640, 256
# Scores need fine-tuning, so one claim measures them.
CLAIM_WITH_SCORES = "next-sentence"
CLAIMS = (
    "short-to-long left-to-right next-sentence mask-shares mask-rate tying head warm-up initial-spread whole-words "
    "dynamic-masks"
)
SECONDS = 3600


@dataclass(frozen=True)
class Command:
    """
    A script under `experiments/`, found by its name. In `arguments` the names `{texts}` and `{model}` stand for a
    folder of text and one of a small pretrained model. An option that was renamed is written `--old|--new`. With
    `kill_after` the run is done a second time, killed after so many backward passes, and resumed.
    """

    name: str
    script: str
    arguments: str
    processes: int = 1
    kill_after: int = 0
    record: str = "record.json"


def commands() -> list[Command]:
    """Everything that is run."""
    full = [
        Command(f"{name}, defaults", name, "--steps 24") for name in ("mlm_tiny", "mlm_words", "bert_tiny")
    ]
    seeds = [
        Command(f"{name}, seed {seed}", name, f"{options} --seed {seed}")
        for seed in (0, 1)
        for name, options in {
            "mlm_tiny": MASKED,
            "mlm_words": MASKED,
            "own_language": "--corpus {texts} --steps 24",
            "bert_tiny": PAIRS,
            "live": f"{MASKED} --max-position-embeddings 64",
        }.items()
    ]
    variants = [
        Command("mlm_tiny, float32", "mlm_tiny", f"{MASKED} --precision float32"),
        Command("mlm_tiny, bfloat16", "mlm_tiny", f"{MASKED} --precision bfloat16"),
        Command("mlm_tiny, dropout", "mlm_tiny", f"{MASKED} --hidden-dropout-prob 0.1"),
        Command("mlm_tiny, word pieces", "mlm_tiny", f"{MASKED} --tokenizer wordpiece --vocab-size 300"),
        Command("mlm_tiny, accumulation", "mlm_tiny", f"{MASKED} --gradient-accumulation-steps 2"),
        Command("bert_tiny, accumulation", "bert_tiny", f"{PAIRS} --gradient-accumulation-steps 2"),
        Command("bert_tiny, static masks", "bert_tiny", f"{PAIRS} --masking static"),
        Command("bert_tiny, whole words", "bert_tiny", f"{PAIRS} --masking whole-word"),
        Command("bert_tiny, published Adam", "bert_tiny", f"{PAIRS} --adam published"),
    ]
    several = [
        Command(f"{name}, two processes", name, options, processes=2)
        for name, options in {"mlm_tiny": MASKED, "bert_tiny": PAIRS}.items()
    ]
    killed = [
        Command("mlm_tiny, killed and resumed", "mlm_tiny", MASKED, kill_after=22),
        Command("bert_tiny, killed and resumed", "bert_tiny", PAIRS, kill_after=22),
        Command("mlm_tiny, two processes, killed", "mlm_tiny", MASKED, processes=2, kill_after=22),
        Command("bert_tiny, two processes, killed", "bert_tiny", PAIRS, processes=2, kill_after=22),
    ]
    tuned = [
        Command(
            "finetune_docstrings",
            "finetune_docstrings",
            "--model {model} --labels 100 200 --pairs 100 --seeds 2 --steps 10",
        )
    ]
    claims = [Command(f"claim {name}", "claims", name, record="records") for name in CLAIMS.split()]
    return [*seeds, *variants, *several, *killed, *full, *tuned, *claims]


def write_texts(folder: Path) -> None:
    """Thirty files in a small random language, always the same."""
    r = random.Random(0)
    words = [
        "".join(r.choice("bdfgklmnprst") + r.choice("aeiou") for _ in range(r.randint(1, 3)))
        for _ in range(200)
    ]
    folder.mkdir()
    for number in range(30):
        sentences = (" ".join(r.choices(words, range(200, 0, -1), k=r.randint(4, 12))) for _ in range(60))
        text = "\n".join(sentence.capitalize() + r.choice(".!?") for sentence in sentences)
        (folder / f"{number:02}.txt").write_text(text + "\n")


def shrink_claims(path: Path, texts: Path) -> None:
    """Cuts every claim of the file down to a few steps on other texts, one seed and two learning rates."""
    document = tomllib.loads(path.read_text("utf-8"))
    for claim in document["claim"]:
        if "options" not in claim:
            continue
        steps = GROWING_STEPS if claim["name"] == "short-to-long" else CLAIM_STEPS
        small = {**SMALL, "batch_tokens": CLAIM_BATCH, "corpus": str(texts)}
        claim["options"] = {**small, **claim["options"], "tokens": steps * CLAIM_BATCH}
        claim["seeds"] = 1
        claim["grid"] = {
            name: [CLAIM_BATCH] if name == "batch_tokens" else values[:2]
            for name, values in claim["grid"].items()
        }
        if claim["name"] != CLAIM_WITH_SCORES:
            claim.pop("scores", None)
        for arm in claim["arms"].values():
            if "tokens" in arm:
                arm["tokens"] = 2 * steps * CLAIM_BATCH
    path.write_text("".join(f"{key} = {as_toml(value)}\n" for key, value in document.items()), "utf-8")


def as_toml(value: Any) -> str:
    """A value in TOML, on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{as_toml(key)} = {as_toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(as_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def git(*arguments: str, **environment: str) -> str:
    """What a git command prints."""
    done = subprocess.run(
        ["git", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.stdout.strip()


def commit_of_working_tree(folder: Path) -> str:
    """A commit, on no branch, of the working tree with its untracked files. The index stays as it is."""
    index = {"GIT_INDEX_FILE": str(folder / "index")}
    git("read-tree", "HEAD", **index)
    git("add", "--all", **index)
    return git("commit-tree", git("write-tree", **index), "-p", "HEAD", "-m", "Working tree")


Outcome = dict[str, Any]
"""
`logs`: for each process the lines of its log; `numbers`: by their path in the record; `problem`: why there is
nothing to compare, or what went wrong on the way, else `None`.
"""


class Side:
    """One of the two commits, checked out in `folder`."""

    def __init__(self, name: str, commit: str, folder: Path, results: Path):
        self.name, self.commit, self.folder, self.results = name, commit, folder, results
        self.root, self.texts = folder / "checkout", folder / "texts"
        folder.mkdir()
        git("worktree", "add", "--quiet", "--detach", str(self.root), commit)
        write_texts(self.texts)
        (folder / "hook").mkdir()
        (folder / "hook" / "sitecustomize.py").write_text(SOURCES[0], "utf-8")
        for path in self.root.glob("experiments/**/claims.toml"):
            shrink_claims(path, self.texts)
        self.count = itertools.count()

    def close(self) -> None:
        """Forgets the checkout."""
        git("worktree", "remove", "--force", str(self.root))

    def key(self, command: Command) -> str:
        """Of all that decides the outcome."""
        trees = [git("rev-parse", f"{self.commit}:{tree}") for tree in ("labml_bert", "experiments")]
        machine = [*platform.uname()[:3], platform.python_version(), version("torch"), version("tokenizers")]
        return hashlib.sha256(json.dumps([*trees, *SOURCES, *machine, repr(command)]).encode()).hexdigest()

    def outcome(self, command: Command) -> Outcome:
        """Runs the command, unless that was done before."""
        path = self.results / f"{self.key(command)}.json"
        if path.exists():
            return json.loads(path.read_text("utf-8"))
        outcome = self.run(command)
        if command.kill_after and not outcome["problem"]:
            outcome["problem"] = self.kill_and_resume(command, outcome)
        if not outcome["problem"]:
            self.results.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(outcome), "utf-8")
        return outcome

    @functools.cached_property
    def model(self) -> Path:
        """The folder of a pretrained model."""
        outcome = self.run(
            Command("a model to fine-tune", "bert_tiny", f"{PAIRS} --runs {self.folder / 'model'}")
        )
        found = [*self.folder.glob("model/**/config.json")]
        if outcome["problem"] or not found:
            raise RuntimeError(f"no model to fine-tune: {outcome['problem']}")
        return found[0].parent

    def words(self, command: Command) -> list[str]:
        """What stands after `python`."""
        found = [*self.root.glob(f"experiments/**/{command.script}.py")]
        if len(found) != 1:
            raise RuntimeError(f"{len(found)} scripts are called {command.script}.py")
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(command.processes)]
        arguments = command.arguments.replace("{texts}", str(self.texts))
        if "{model}" in arguments:
            arguments = arguments.replace("{model}", str(self.model))
        words = shlex.split(arguments)
        if any("|" in word for word in words):
            offered = self.start([str(found[0]), "--help"], self.folder).stdout
            words = [next((w for w in word.split("|") if w in offered), word) for word in words]
        return [*(torchrun if command.processes > 1 else []), str(found[0]), *words]

    def start(self, words: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs Python in `folder`, with this commit in front of all that is installed."""
        environment |= {
            "PYTHONPATH": f"{self.folder / 'hook'}{os.pathsep}{self.root}",
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            "OMP_NUM_THREADS": "1",
        }
        return subprocess.run(
            [sys.executable, *words],
            cwd=folder,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
        )

    def run(
        self, command: Command, *more: str, words: list[str] | None = None, **environment: str
    ) -> Outcome:
        """Runs a command to its end, in a folder of its own."""
        folder = self.folder / f"run{next(self.count)}"
        (folder / "steps").mkdir(parents=True)
        try:
            words = words or self.words(command)
            record = ["--record", command.record]
            done = self.start([*words, *more, *record], folder, STEP_LOG=str(folder / "steps"), **environment)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            return {"logs": {}, "numbers": {}, "problem": str(error)}
        records = [path for path in (folder / command.record, *folder.glob(f"{command.record}/**/*.json"))]
        measured = {path.name: json.loads(path.read_text("utf-8")) for path in records if path.is_file()}
        last = " / ".join(done.stdout.strip().splitlines()[-3:])
        problem = f"exit code {done.returncode}: {last}" if done.returncode else None
        logs = read_logs(folder / "steps")
        if not problem and not (logs and measured):
            problem = f"{len(logs)} processes trained, {len(measured)} records: {last}"
        return {"logs": logs, "numbers": dict(numbers(measured)), "problem": problem}

    def kill_and_resume(self, command: Command, whole: Outcome) -> str | None:
        """What is wrong with a run that is killed and resumed, compared with the whole one."""
        runs = self.folder / f"killed{next(self.count)}"
        killed = self.run(
            command,
            *("--runs", str(runs), "--checkpoint-seconds", "0"),
            STEP_LOG_KILL_AFTER=str(command.kill_after),
            STEP_LOG_RUNS=str(runs),
        )
        checkpoints = [*runs.glob("**/checkpoint.safetensors")]
        if not killed["problem"] or len(checkpoints) != 1:
            return f"the run was not killed, or left {len(checkpoints)} checkpoints"
        at = self.words(command)
        script = next(i for i, word in enumerate(at) if word.endswith(".py"))
        resumed = self.run(command, words=[*at[: script + 1], "--resume", str(checkpoints[0].parent)])
        if resumed["problem"]:
            return f"cannot resume: {resumed['problem']}"
        for process, lines in whole["logs"].items():
            before, after = (run["logs"].get(process, []) for run in (killed, resumed))
            if before != lines[: len(before)]:
                return f"{process}, killed: {first_difference(lines[: len(before)], before, ('whole', 'killed'))}"
            rest = lines[len(lines) - len(after) :]
            if not after or len(after) >= len(lines) or rest != after:
                return f"{process}, resumed: {first_difference(rest, after, ('whole', 'resumed'))}"
        return different_number(whole["numbers"], resumed["numbers"], ("whole", "resumed"))


def read_logs(folder: Path) -> dict[str, list[str]]:
    """What each process logged, by `rank 0`, `rank 0 again`, and so on, in the order in which they began."""
    logs: dict[str, list[str]] = {}
    for path in sorted(folder.glob("*.log"), key=lambda path: [*map(int, path.stem.split("-"))]):
        name = f"rank {path.stem.split('-')[0]}"
        while name in logs:
            name += " again"
        logs[name] = path.read_text("utf-8").splitlines()
    return logs


def numbers(record: Any, path: str = "", key: str = "") -> Iterator[tuple[str, Any]]:
    """Every number of a record that does not depend on the clock, and every sha256, by its path."""
    if isinstance(record, dict):
        for name, value in record.items():
            clock = "seconds" in name or (key == "history" and not name.startswith("valid."))
            if name not in NOT_MEASURED and not clock:
                yield from numbers(value, f"{path}/{name}", name)
    elif isinstance(record, list):
        for i, value in enumerate(record):
            yield from numbers(value, f"{path}/{i}", key)
    elif not isinstance(record, str) or key == "sha256":
        yield path, record


def first_difference(base: list[str], head: list[str], names: tuple[str, str]) -> str | None:
    """The first line of two logs that is not the same, as a step and two values."""
    for i, pair in enumerate(itertools.zip_longest(base, head, fillvalue="nothing")):
        if pair[0] != pair[1]:
            step = sum(line.startswith("weights") for line in base[:i]) + (pair[0].split()[0] != "moments")
            return f"step {step}: " + ", ".join(
                f"{readable(x)} ({n})" for x, n in zip(pair, names, strict=True)
            )
    return None


def readable(line: str) -> str:
    """A line of a log for people."""
    kind, _, value = line.partition(" ")
    return f"loss {float.fromhex(value)!r}" if kind == "loss" else f"{kind} {value[:12]}".strip()


def different_number(base: dict[str, Any], head: dict[str, Any], names: tuple[str, str]) -> str | None:
    """The first number of a record that is not the same. What only the newer record has is not compared."""
    for path, before in base.items():
        after = head.get("/".join(RENAMED.get(part, part) for part in path.split("/")), "nothing")
        if json.dumps(before) != json.dumps(after):
            return f"evaluation {path.strip('/')}: {before} ({names[0]}), {after} ({names[1]})"
    return None


def difference(base: Outcome, head: Outcome) -> str | None:
    """What differs first between two outcomes, `None` if nothing does."""
    for name, outcome in (("base", base), ("head", head)):
        if outcome["problem"]:
            return f"{name}: {outcome['problem']}"
    if base["logs"].keys() != head["logs"].keys():
        return f"processes that trained: {', '.join(base['logs'])} (base), {', '.join(head['logs'])} (head)"
    for process, lines in base["logs"].items():
        if found := first_difference(lines, head["logs"][process], ("base", "head")):
            return f"{process}, {found}"
    return different_number(base["numbers"], head["numbers"], ("base", "head"))


def main(argv: list[str] | None = None) -> None:
    """Reads the command line, compares, and exits with 1 if something differs."""
    parser = argparse.ArgumentParser(description="Compare training at two commits, bit for bit.")
    parser.add_argument("base", nargs="?", help="the older commit")
    parser.add_argument("head", nargs="?", help="the newer commit (default: the working tree)")
    parser.add_argument(
        "--only", nargs="+", default=[""], metavar="NAME", help="commands whose name contains one"
    )
    parser.add_argument("--list", action="store_true", help="print the commands")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parser.add_argument(
        "--results", type=Path, default=cache / "compare_commits", help="(default: %(default)s)"
    )
    given = parser.parse_args(argv)
    chosen = [command for command in commands() if any(part in command.name for part in given.only)]
    if given.list:
        print("\n".join(f"{c.name:<34} {c.script} {c.arguments}" for c in chosen))
        return
    if not given.base or not chosen:
        parser.error("give a commit to compare with, and commands that exist (see --list)")
    counts = {"same": 0, "intended": 0, "DIFFERENT": 0}
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(2) as pool:
        folder = Path(name)
        head = given.head or commit_of_working_tree(folder)
        sides = []
        try:
            for which, commit in (("base", given.base), ("head", head)):
                sides.append(
                    Side(which, git("rev-parse", f"{commit}^{{commit}}"), folder / which, given.results)
                )
            for command in chosen:
                base, now = pool.map(lambda side, command=command: side.outcome(command), sides)
                found = difference(base, now)
                verdict = "same" if found is None else "intended" if command.name in INTENDED else "DIFFERENT"
                counts[verdict] += 1
                steps = sum(line.startswith("weights") for lines in base["logs"].values() for line in lines)
                said = found or f"{steps} steps, {len(base['numbers'])} numbers"
                why = f" (intended: {INTENDED[command.name]})" if command.name in INTENDED else ""
                print(f"{verdict:<10} {command.name:<34} {said}{why}", flush=True)
        finally:
            for side in sides:
                side.close()
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    sys.exit(counts["DIFFERENT"] > 0)


if __name__ == "__main__":
    main()
