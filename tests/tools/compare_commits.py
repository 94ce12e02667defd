"""
Runs the same experiments at two commits on this machine and compares them bit for bit: the loss of every
step, the weights and the optimizer's moments after every step, and every evaluation.

    python tests/tools/compare_commits.py b87d2b1                     # that commit against the working tree
    python tests/tools/compare_commits.py b87d2b1 HEAD --only mlm     # commands whose name contains "mlm"
    python tests/tools/compare_commits.py --list

Use it when you refactor. It prints one line for each command, `same` or `DIFFERENT` with the first
difference, and exits with 1 if a command differs that is not in `INTENDED`.

Each commit is checked out into a temporary folder. The working tree is compared as it is, including untracked
files. The tool imports nothing from the project, because the project is what changes. `step_hook.py` watches
torch inside each process, and the evaluations come from the JSON files that `--record` writes. Parameters are
compared by their order in the optimizer, not by name. Times are not compared.

The outcome of a command is cached in the folder `--results` until the code of the package or of the
experiments changes, so the older commit runs only once.
"""

import argparse
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # Works as a script, and from any folder.

from tests.tools.commit_runs import (
    PAIRS,
    SMALL_OPTIONS,
    Checkout,
    Command,
    Outcome,
    commit_of_working_tree,
)

ROOT = Path(__file__).parents[2]
# Commands whose outcome is meant to differ, by the start of their names, with the reason.
INTENDED = {
    "finetune_docstrings": "the bag of words is fitted by scikit-learn; the networks have equal losses",
    "mlm_words": "the script trains the modern encoder",
    "own_language": "the script trains the modern encoder",
    "bert_tiny": "Muon, more masks, no dropout, and more time at the full length",
    "live": "it trains a third model, the modern encoder",
    "mlm_modern": "older commits have no such script",
    "mlm_tiny, Muon": "older commits have no such option",
    "claim positions": "older commits have no such claim",
}
# Keys of a record that were renamed in the newer commit.
RENAMED = {"floors": "baselines", "floor": "unigram_loss", "neighbours": "neighbors"}

MASKED = f"--corpus {{texts}} {SMALL_OPTIONS} --schedule 16:1,64:1 --steps 40"
CLAIMS = (
    "short-to-long left-to-right next-sentence mask-shares mask-rate tying head warm-up initial-spread "
    "whole-words dynamic-masks positions"
)


def all_commands() -> list[Command]:
    """All commands, the quick ones first."""
    small = {
        "mlm_tiny": MASKED,
        "mlm_words": MASKED,
        "mlm_modern": MASKED,
        "own_language": "--corpus {texts} --steps 24",
        "bert_tiny": PAIRS,
        "live": f"{MASKED} --max-position-embeddings 64",
    }
    variants = {
        "mlm_tiny, float32": f"{MASKED} --precision float32",
        "mlm_tiny, bfloat16": f"{MASKED} --precision bfloat16",
        "mlm_tiny, dropout": f"{MASKED} --hidden-dropout-prob 0.1",
        "mlm_tiny, Muon": f"{MASKED} --optimizer muon",
        "mlm_tiny, accumulation": f"{MASKED} --gradient-accumulation-steps 2",
        "bert_tiny, accumulation": f"{PAIRS} --gradient-accumulation-steps 2",
        "bert_tiny, static masks": f"{PAIRS} --masking static",
        "bert_tiny, whole words": f"{PAIRS} --masking whole-word",
        "bert_tiny, published Adam": f"{PAIRS} --adam published",
    }
    commands = [
        Command(f"{name}, seed {seed}", name, f"{options} --seed {seed}")
        for seed in (0, 1)
        for name, options in small.items()
    ]
    commands += [Command(name, name.split(",")[0], options) for name, options in variants.items()]
    for name in ("mlm_tiny", "mlm_modern", "bert_tiny"):
        options = f"{small[name]} --seed 0"
        commands += [
            Command(f"{name}, two processes", name, options, processes=2),
            Command(f"{name}, killed and resumed", name, options, kill_after=22),
            Command(f"{name}, two processes, killed", name, options, processes=2, kill_after=22),
        ]
    finetuning = "--model {model} --labels 100 200 --pairs 100 --seeds 2 --steps 10"
    commands += [Command("finetune_docstrings", "finetune_docstrings", finetuning)]
    commands += [Command(f"claim {name}", "claims", name, record="records") for name in CLAIMS.split()]
    # The model size and the corpus that a reader gets without any options.
    commands += [
        Command(f"{name}, defaults", name, "--steps 24") for name in ("mlm_tiny", "mlm_words", "bert_tiny")
    ]
    return commands


def without_fingerprints(outcome: Outcome) -> Outcome:
    """
    The outcome without the fingerprints in its record, which rank zero takes after its last step. Older
    commits have none.
    """
    count = sum("/fingerprints/" in path and "/losses/" in path for path in outcome.numbers)
    numbers = {path: value for path, value in outcome.numbers.items() if "/fingerprints/" not in path}
    logs = {
        name: without_last_steps(lines, count) if name == "rank 0" else lines
        for name, lines in outcome.logs.items()
    }
    return replace(outcome, logs=logs, numbers=numbers)


def without_last_steps(log: list[str], count: int) -> list[str]:
    """A log without its last `count` optimizer steps. A step ends with the moments."""
    ends = [i for i, line in enumerate(log, 1) if line.startswith("moments")]
    return log[: [0, *ends][-1 - count]] if count else log


def difference(base: Outcome, head: Outcome) -> str | None:
    """The first difference between two outcomes, or `None` if there is none."""
    base, head = without_fingerprints(base), without_fingerprints(head)
    problems = [f"{n}: {o.problem}" for n, o in (("base", base), ("head", head)) if o.problem]
    if problems:
        return "; ".join(problems)
    if base.logs.keys() != head.logs.keys():
        return f"processes that trained: {', '.join(base.logs)} (base), {', '.join(head.logs)} (head)"
    for process, lines in base.logs.items():
        if step_difference := different_step(lines, head.logs[process]):
            return f"{process}, {step_difference}"
    return different_number(base.numbers, head.numbers)


def different_step(base: list[str], head: list[str]) -> str | None:
    """The first line that differs between two logs, as the number of the step and both values."""
    for i, (base_line, head_line) in enumerate(itertools.zip_longest(base, head, fillvalue="nothing")):
        if base_line != head_line:
            # Within a step, the losses come first, then the weights, then the moments.
            step = sum(line.startswith("weights") for line in base[:i])
            step += not base_line.startswith("moments")
            return f"step {step}: {readable(base_line)} (base), {readable(head_line)} (head)"
    return None


def readable(line: str) -> str:
    """A line of a log, formatted for people."""
    kind, _, value = line.partition(" ")
    return f"loss {float.fromhex(value)!r}" if kind == "loss" else f"{kind} {value[:12]}".strip()


def different_number(base: dict[str, Any], head: dict[str, Any]) -> str | None:
    """The first number that differs between two records. Numbers that only the newer one has are ignored."""
    for path, base_value in base.items():
        head_value = head.get("/".join(RENAMED.get(key, key) for key in path.split("/")), "nothing")
        # Compare as text, because NaN isn't equal to itself.
        if json.dumps(base_value) != json.dumps(head_value):
            return f"evaluation {path}: {base_value} (base), {head_value} (head)"
    return None


def main(argv: list[str] | None = None) -> None:
    """Parses the command line, compares the commits, and exits with 1 if something differs."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parser = argparse.ArgumentParser(description="Compare training at two commits, bit for bit.")
    parser.add_argument("base", nargs="?", help="the older commit")
    parser.add_argument("head", nargs="?", help="the newer commit (default: the working tree)")
    parser.add_argument("--only", nargs="+", default=[""], metavar="NAME", help="parts of commands' names")
    parser.add_argument("--list", action="store_true", help="print the commands")
    parser.add_argument(
        "--results", type=Path, default=cache / "compare_commits", help="(default: %(default)s)"
    )
    options = parser.parse_args(argv)
    commands = [each for each in all_commands() if any(part in each.name for part in options.only)]
    if options.list:
        print("\n".join(f"{each.name:<34} {each.script} {each.arguments}" for each in commands))
        return
    if not options.base or not commands:
        parser.error("name a commit to compare with, and parts of names that --list prints")
    counts = {"same": 0, "intended": 0, "DIFFERENT": 0}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        sides = []
        for name, commit in (
            ("base", options.base),
            ("head", options.head or commit_of_working_tree(ROOT, folder)),
        ):
            try:
                sides.append(Checkout(ROOT, commit, folder / name, options.results))
            except subprocess.CalledProcessError:
                parser.error(f"cannot check out {commit}")
            stack.callback(sides[-1].close)
        pool = stack.enter_context(ThreadPoolExecutor(2))
        for command in commands:
            base, head = pool.map(lambda side, command=command: side.outcome(command), sides)
            change = difference(base, head)
            reason = next((why for name, why in INTENDED.items() if command.name.startswith(name)), "")
            verdict = "same" if change is None else "intended" if reason else "DIFFERENT"
            counts[verdict] += 1
            text = change or f"{base.steps} steps, {len(base.numbers)} numbers"
            why = f" (listed as intended: {reason})" if reason else ""
            print(f"{verdict:<10} {command.name:<34} {text}{why}", flush=True)
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    sys.exit(counts["DIFFERENT"] > 0)


if __name__ == "__main__":
    # `kill` ends the tool like Ctrl-C, so that git removes the checkouts.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    main()
