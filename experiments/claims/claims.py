r"""
# What the papers say, run here

Everybody repeats the same sentences about BERT. Which of them hold at a size that a laptop can repeat? Each
is an entry of `claims.toml`: the sentence, its source, the arms to be compared, and in what, written down
before the first run. [The page of claims](../../claims.md) computes the verdicts.

    python experiments/claims/claims.py --list
    python experiments/claims/claims.py short-to-long
    python experiments/claims/claims.py short-to-long --arm "length 128" --seed 3

The second line runs a claim and goes on where it was stopped: each result is in the record as soon as it is
there. The third repeats one row of the record and changes nothing.

A run is so many tokens long, not so many minutes, and does not depend on who else uses the machine. At the
end a step of each arm is timed, all in turn; a time to reach a loss is the number of steps to it times that.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # A clone runs without being installed.
from labml_bert.run import script  # noqa: F401  # isort: skip

import json
import math
import subprocess
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from functools import cache, partial
from itertools import product
from statistics import median
from textwrap import fill
from typing import Any

from experiments.claims.variants import Growing, Options, TextPairJob, WindowJob, build
from labml_bert.data.docstring_tasks import Task, distinct_docstrings, package_task, summary_task
from labml_bert.files import lock, write_whole
from labml_bert.finetuning import (
    BertForSequenceClassification,
    Example,
    batch_of,
    encode_examples,
    fine_tune,
    predict,
    score,
)
from labml_bert.mlm import IGNORE
from labml_bert.nsp import SentencePair
from labml_bert.run.job import PRECISIONS
from labml_bert.run.record import record_head
from labml_bert.run.terminal import OneLineParser, bad_input_ends_here, console, shown
from labml_bert.run.timing import interleaved
from labml_bert.training.device import choose_device
from labml_bert.training.trainer import Trainer

import torch  # isort: skip
from torch import Tensor, nn  # isort: skip

CLAIMS = Path(__file__).with_name("claims.toml")
# No final run uses it, so what was chosen with it was not chosen for them.
TUNING_SEED = 100
EVALUATIONS = 40
LABELS = 1000
FEWEST_STEPS = 200
# The rates that won for a pretrained model in `finetune_docstrings.py`, and the tokens of a text.
FINE_TUNING = {"package": (1e-3, 48), "summary": (1e-4, 64)}


def trainer_of(job: WindowJob | TextPairJob) -> Trainer:
    """Of the one loop of this project only its step: a run of minutes needs no checkpoint and no folder."""
    bfloat16 = PRECISIONS[job.options.precision]
    trainer = Trainer(job.model, job.arguments, Path(), {}, job.generator, job.device, bfloat16)
    # One of the claims is about losses that begin above what a run of one's own should have.
    trainer.largest_loss = math.inf
    return trainer


def number(value: float) -> float | None:
    """Six digits after the point, and `None` for what JSON has no word for."""
    return round(value, 6) if math.isfinite(value) else None


def train(job: WindowJob | TextPairJob) -> tuple[Trainer, dict[str, Any]]:
    """
    ## One run

    Returns the held-out loss by step, at which step each length began, and what stands at the end. A run
    whose loss is no number any more ends there.
    """
    trainer = trainer_of(job)
    steps = job.arguments.steps
    assert steps is not None
    marks = {round(steps * i / EVALUATIONS) for i in range(1, EVALUATIONS + 1)}
    curve = [[0, number(job.evaluate(trainer, quick=True)["loss"])]]
    lengths: list[list[int]] = []
    growing = isinstance(job, WindowJob) and job.variations.growth == "plateau"
    while trainer.step < steps and curve[-1][1] is not None:
        length = job.length(trainer.progress)
        if not lengths or lengths[-1][1] != length:
            lengths.append([trainer.step, length])
        trainer.set_rate()
        values = trainer.train_step(job.next_batch(trainer.progress), lambda *_: {})
        trainer.step += 1
        if growing:
            assert isinstance(job, WindowJob) and isinstance(job.curriculum, Growing)
            job.curriculum.saw(values["loss"].item())
        if trainer.step in marks:
            # After a step that came to no good the weights no longer change, and their loss says nothing.
            loss = math.nan if trainer.failed else job.evaluate(trainer, quick=True)["loss"]
            curve.append([trainer.step, number(loss)])
    end = None if trainer.failed else number(job.evaluate(trainer)["loss"])
    floor = next(floor.loss for floor in job.floors if floor.name == "frequencies")
    return trainer, {
        "curve": curve,
        "lengths": lengths,
        "floor": floor,
        "batch_tokens": job.batch_tokens,
        "parameters": sum(p.numel() for p in job.model.parameters()),
        "result": {"loss": end, "failed": float(end is None or end > floor - 0.1)},
    }


@cache
def labelled(name: str) -> Task:
    """The task `package` or `summary`."""
    return (package_task if name == "package" else summary_task)(docstrings())


docstrings = cache(distinct_docstrings)


def drawn(task: Task, seed: int) -> list[Example]:
    """The labelled texts of a seed."""
    generator = torch.Generator().manual_seed(seed)
    return [task.train[i] for i in torch.randperm(len(task.train), generator=generator)[:LABELS].tolist()]


def fine_tuned(job: TextPairJob, name: str, seed: int) -> float:
    """The share of right answers after fine-tuning on `LABELS` texts."""
    task, (rate, length) = labelled(name), FINE_TUNING[name]
    length = min(length, job.config.max_position_embeddings)
    torch.manual_seed(seed)
    model = BertForSequenceClassification(job.config, task.labels).to(job.device)
    model.bert.load_state_dict(job.model.bert.state_dict())
    fine_tune(
        model, encode_examples(job.tokenizer, drawn(task, seed), length), rate, 4, FEWEST_STEPS, seed=seed
    )
    logits = predict(model, encode_examples(job.tokenizer, task.test, length))
    return score(logits, torch.tensor([example.label for example in task.test])).accuracy


@torch.no_grad()
def mean_vectors(job: TextPairJob, rows: list[SentencePair]) -> Tensor:
    """The mean over the tokens of each text, `(N, D)`."""
    job.model.eval()
    found = []
    for start in range(0, len(rows), 64):
        inputs = batch_of(rows[start : start + 64], job.device)
        del inputs["labels"]
        hidden = job.model.bert(**inputs).last_hidden_state.float()
        here = inputs["attention_mask"][..., None]
        found.append(((hidden * here).sum(1) / here.sum(1)).cpu())
    return torch.cat(found)


def probe(job: TextPairJob, seed: int) -> float:
    r"""
    What a linear layer reads out of a model that does not change: the share of right answers in `package`.
    The layer solves a ridge regression on the classes, $(X^\top X + \lambda I)^{-1} X^\top Y$, with each
    column of $X$ scaled to mean 0 and spread 1, and $\lambda$ a hundredth of the number of texts.
    """
    task = labelled("package")
    length = min(FINE_TUNING["package"][1], job.config.max_position_embeddings)
    examples = drawn(task, seed)
    known, asked = (
        mean_vectors(job, encode_examples(job.tokenizer, e, length)) for e in (examples, task.test)
    )
    mean, spread = known.mean(0), known.std(0) + 1e-6
    known, asked = (
        nn.functional.pad((x - mean) / spread, (0, 1), value=1.0).double() for x in (known, asked)
    )
    classes = nn.functional.one_hot(torch.tensor([e.label for e in examples]), len(task.labels)).double()
    ridge = len(known) / 100 * torch.eye(known.size(1), dtype=torch.double)
    weight = torch.linalg.solve(known.T @ known + ridge, known.T @ classes)
    return score(asked @ weight, torch.tensor([e.label for e in task.test])).accuracy


def seen_loss(job: TextPairJob, trainer: Trainer) -> float:
    """The held-out loss at the same places with nothing covered: each token asks for itself."""
    covered = job.held_out
    job.held_out = [
        {**batch, "input_ids": torch.where(batch["labels"] == IGNORE, batch["input_ids"], batch["labels"])}
        for batch in covered
    ]
    loss = job.evaluate(trainer)["loss"]
    job.held_out = covered
    return loss


def scores(job: WindowJob | TextPairJob, trainer: Trainer, names: list[str], seed: int) -> dict[str, float]:
    """What a claim wants to know beside the loss."""
    found = {}
    for name in names:
        assert isinstance(job, TextPairJob), "a model of characters has no labelled texts"
        if name == "seen_loss":
            found[name] = seen_loss(job, trainer)
        elif name == "probe":
            found[name] = probe(job, seed)
        else:
            found[name] = fine_tuned(job, name, seed)
    return found


@dataclass
class Claim:
    """
    ## A claim

    What the script needs of an entry of `claims.toml`, where the fields are explained.
    """

    name: str
    title: str
    seeds: int
    minutes: int
    arms: dict[str, Options]
    job: str = ""
    options: Options | None = None
    grid: dict[str, list[Any]] | None = None
    over_grid: bool = False
    scores: list[str] | None = None
    tests: list[Options] | None = None
    record: str | None = None
    experiments: list[str] | None = None

    def points(self) -> list[Options]:
        """All of the grid."""
        grid = self.grid or {}
        return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]

    def runs(self) -> int:
        """How many there are, the search included."""
        points = len(self.points())
        searching = sum("rate_of" not in arm for arm in self.arms.values())
        if self.over_grid:
            return len(self.arms) * self.seeds * points
        return len(self.arms) * self.seeds + (searching * points if points > 1 else 0)


def read_claims(path: Path = CLAIMS) -> dict[str, Claim]:
    """All claims by name."""
    names = {field.name for field in fields(Claim)}
    entries = tomllib.loads(path.read_text("utf-8"))["claim"]
    claims = [Claim(**{key: value for key, value in entry.items() if key in names}) for entry in entries]
    return {claim.name: claim for claim in claims}


class Ledger:
    """
    ## The record of a claim

    `FOLDER/claims/NAME.json`, written whole after each run. A run that is in it is not done again; one whose
    options are no longer those of the claim is forgotten.
    """

    def __init__(self, claim: Claim, folder: Path, device: torch.device):
        """Raises `ValueError` where the file is no record or cannot be written."""
        self.claim, self.device = claim, device
        self.path = folder / "claims" / f"{claim.name}.json"
        # What is wanted, in the order in which it is asked for.
        self.rows: dict[str, dict[str, Any]] = {}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.record = json.loads(self.path.read_text("utf-8")) if self.path.exists() else self.new()
            self.before = {self.key(row): row for row in self.record["table"]}
            self.check()
            self.held = lock(self.path.parent, name=f".{claim.name}.lock")
        except BlockingIOError:
            raise ValueError(f"another process runs this claim in {self.path}; wait until it ends") from None
        except OSError as error:
            raise ValueError(f"cannot use {self.path}: {error.strerror}; choose another --record") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise ValueError(f"{self.path} is no record of a claim; move it away to start anew") from None

    def new(self) -> dict[str, Any]:
        """A record without a result."""
        return {
            **record_head("claims/claims", [self.claim.name], self.device),
            "claim": {},
            "table": [],
            "step_seconds": {},
        }

    def check(self) -> None:
        """Raises `ValueError` where something is missing that will be needed."""
        heads = {"claim", "step_seconds", "commit", "versions", "hardware"}
        parts = {"arm", "seed", "options", "result", "core_seconds", "curve", "lengths"}
        if heads - self.record.keys() or any(parts - row.keys() for row in self.before.values()):
            raise ValueError("something is missing")
        for row in self.before.values():
            # What is no number raises here and not in the middle of a run.
            for value in (row["result"]["loss"], row["core_seconds"]):
                math.isfinite(0 if value is None else value)
            told(row)
        self.record["step_seconds"].keys()

    @staticmethod
    def key(row: dict[str, Any]) -> str:
        """What decides a result."""
        return json.dumps([row["arm"], row["seed"], row["options"]], sort_keys=True)

    def write(self) -> None:
        """The rows that are wanted so far, and those of which it is not known yet."""
        table = [*{**self.rows, **self.before}.values()]
        self.record |= {"claim": asdict(self.claim), "table": table}
        write_whole(self.path, json.dumps(self.record, indent=1))

    def options(self, arm: str, point: Options) -> Options:
        """All options of a run."""
        changed = {key: value for key, value in self.claim.arms[arm].items() if key != "rate_of"}
        return {**(self.claim.options or {}), **point, **changed}

    def row(self, arm: str, seed: int, point: Options) -> dict[str, Any]:
        """The result of a run, which is made if it is not there."""
        row: dict[str, Any] = {"arm": arm, "seed": seed, "options": self.options(arm, point), "point": point}
        key = self.key(row)
        if key in self.before:
            self.rows[key] = self.before[key]
        elif key not in self.rows:
            self.rows[key] = {**row, **(self.elsewhere(row) or self.one(row["options"], seed))}
            self.write()
            said = f"  {arm}, seed {seed}{named(point)}: {told(self.rows[key])}"
            console.print(said, soft_wrap=True)
        return self.rows[key]

    def elsewhere(self, wanted: dict[str, Any]) -> dict[str, Any] | None:
        """
        The same run in the ledger of another claim, with the scores of this one. Several claims compare
        something with the same baseline, which is then trained once. A record that cannot be read has none.
        """
        scores = set(self.claim.scores or ()) if wanted["seed"] != TUNING_SEED else set()
        for path in sorted(self.path.parent.glob("*.json")):
            if path == self.path:
                continue
            try:
                other = json.loads(path.read_text("utf-8"))
                for row in other["table"]:
                    same = other["claim"]["job"] == self.claim.job
                    same = same and all(
                        other[key] == self.record[key] for key in ("commit", "versions", "hardware")
                    )
                    same = same and all(row[key] == wanted[key] for key in ("seed", "options"))
                    if same and (row["result"]["loss"] is None or scores <= row["result"].keys()):
                        source = row.get("from", path.stem)
                        return {**row, "arm": wanted["arm"], "point": wanted["point"], "from": source}
            except (OSError, ValueError, KeyError, TypeError):
                continue
        return None

    def one(self, options: Options, seed: int) -> dict[str, Any]:
        """A run and its scores. The search for a rate looks at the loss only."""
        began = time.process_time()
        job = build(self.claim.job, options, seed, self.device)
        trainer, found = train(job)
        if seed != TUNING_SEED and found["result"]["loss"] is not None:
            found["result"] |= scores(job, trainer, self.claim.scores or [], seed)
        # Of all cores together, so that a busy machine changes it little.
        return {**found, "core_seconds": time.process_time() - began}

    def best(self, arm: str) -> Options:
        """The point of the grid with the lowest held-out loss."""
        points = self.claim.points()
        arm = self.claim.arms[arm].get("rate_of", arm)
        if len(points) == 1:
            return points[0]
        rows = [self.row(arm, TUNING_SEED, point) for point in points]
        losses = [row["result"]["loss"] for row in rows]
        return points[min(range(len(points)), key=lambda i: math.inf if losses[i] is None else losses[i])]

    def run(self) -> None:
        """All that is missing, and then the times."""
        for arm in self.claim.arms:
            for point in self.claim.points() if self.claim.over_grid else [self.best(arm)]:
                for seed in range(self.claim.seeds):
                    self.row(arm, seed, point)
        stale = bool(self.before.keys() - self.rows.keys())
        self.before = self.rows
        if stale or {*self.record["step_seconds"]} != {*self.claim.arms}:
            self.measure()

    def measure(self, rounds: int = 5, repeats: int = 10) -> None:
        """Seconds of a step, of each arm at each of its lengths, all in turn."""
        works: dict[str, Callable[[], object]] = {}
        for arm in self.claim.arms:
            row = next(row for row in self.rows.values() if row["arm"] == arm and row["seed"] == 0)
            job = build(self.claim.job, row["options"], 0, self.device)
            trainer = trainer_of(job)
            for length in sorted({length for _, length in row["lengths"]}):
                works[json.dumps([arm, length])] = partial(step, trainer, job, length)
        found: dict[str, dict[str, float]] = {arm: {} for arm in self.claim.arms}
        for name, taken in interleaved(works, self.device, rounds, repeats).items():
            arm, length = json.loads(name)
            found[arm][str(length)] = round(median(taken), 6)
        self.record["step_seconds"] = found
        self.write()

    def repeat(self, arm: str, seed: int) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """
        Rows of the record and the same run again.

        Raises `ValueError` where there is none.
        """
        rows = [row for row in self.before.values() if (row["arm"], row["seed"]) == (arm, seed)]
        if not rows:
            raise ValueError(f"{self.path} has no run of {arm!r} with seed {seed}; run the claim first")
        for row in rows:
            yield row, {**row, **self.one(row["options"], seed)}


def run_elsewhere(claim: Claim, folder: Path, repeating: bool) -> None:
    """
    A claim whose record is that of other experiments: they are run if it is not there.

    Raises `ValueError` if one row of it is asked for, and `SystemExit` where an experiment fails.
    """
    path = folder / f"{claim.record}.json"
    if repeating:
        raise ValueError(f"{claim.name} is recorded as a whole; run python experiments/{claim.record}.py")
    if path.exists():
        console.print(f"  record      {shown(path)}")
        return
    *first, last = ([sys.executable, str(CLAIMS.parent / name)] for name in claim.experiments or [])
    for command in [*first, [*last, "--record", str(path)]]:
        if ended := subprocess.run(command, check=False).returncode:
            sys.exit(ended)


def step(trainer: Trainer, job: WindowJob | TextPairJob, length: int) -> None:
    """What is timed: drawing, covering, and a step."""
    job.only(length)
    trainer.train_step(job.next_batch(0.0), lambda *_: {})


def named(point: Options) -> str:
    """A point of the grid, in the command's words."""
    return "".join(f", {key} {value:g}" for key, value in point.items())


def told(row: dict[str, Any]) -> str:
    """The numbers of a run."""
    numbers = (f"{key} {'none' if value is None else f'{value:.4f}'}" for key, value in row["result"].items())
    return f"{', '.join(numbers)} ({row['core_seconds']:.0f} s of a core)"


def main(argv: list[str] | None = None) -> None:
    """Reads the command line, and runs claims, or repeats a row of one."""
    parser = OneLineParser(description="Run what is said of masked language models.")
    parser.add_argument("claim", nargs="*", help="which; see --list")
    parser.add_argument("--all", action="store_true", help="all claims; what is recorded is not run again")
    parser.add_argument("--list", action="store_true", help="print the claims, their arms and what they take")
    parser.add_argument("--arm", help="repeat the recorded runs of this arm, with --seed; records nothing")
    parser.add_argument("--seed", type=int, help=f"which run of the arm; {TUNING_SEED} is the search")
    parser.add_argument(
        "--record", type=Path, default=Path("docs/runs"), metavar="FOLDER", help="(default: docs/runs)"
    )
    parser.add_argument("--device", default="auto", help="cpu, cuda, or the GPU if there is one")
    given = parser.parse_args(argv)
    claims = read_claims()
    with bad_input_ends_here():
        unknown = [name for name in given.claim if name not in claims]
        if unknown:
            raise ValueError(f"no claim {unknown[0]!r}; choose from {', '.join(claims)}")
        if not (given.list or given.all or given.claim):
            raise ValueError("name a claim, or give --all or --list")
        if (given.arm is None) != (given.seed is None) or (given.arm is not None and len(given.claim) != 1):
            raise ValueError("to repeat a row give one claim, --arm and --seed")
        device = choose_device(given.device)
    chosen = list(claims.values()) if given.all or not given.claim else [claims[name] for name in given.claim]
    if given.list:
        for claim in chosen:
            console.print(
                f"{claim.name}: {claim.title}\n  {claim.seeds} seeds, {claim.runs()} runs, "
                f"about {claim.minutes} minutes\n"
                + fill("; ".join(claim.arms), 78, initial_indent="  ", subsequent_indent="  "),
                highlight=False,
                soft_wrap=True,
            )
        console.print(f"together about {sum(claim.minutes for claim in chosen) / 60:.1f} hours")
        return
    for claim in chosen:
        console.print(f"{claim.name}: {claim.title}", soft_wrap=True)
        if claim.record:
            with bad_input_ends_here():
                run_elsewhere(claim, given.record, given.arm is not None)
            continue
        with bad_input_ends_here():
            ledger = Ledger(claim, given.record, device)
            if given.arm is not None:
                for before, now in ledger.repeat(given.arm, given.seed):
                    console.print(f"  recorded  {told(before)}\n  now       {told(now)}", soft_wrap=True)
                continue
            try:
                ledger.run()
            except KeyboardInterrupt:
                console.print("  stopped; the same command goes on from the last run that was finished")
                raise
            console.print(f"  record      {shown(ledger.path)}")


if __name__ == "__main__":
    main()
