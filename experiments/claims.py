r"""
# What the papers say, run here

Everybody repeats the same sentences about BERT. Which of them hold at a size that a laptop can repeat? Each
is an entry of `claims.toml`: the sentence, its source, the arms to be compared, and in what, written down
before the first run. [The page of claims](../claims.md) computes the verdicts.

    python experiments/claims.py --list
    python experiments/claims.py short-to-long
    python experiments/claims.py short-to-long --arm "length 128" --seed 3

The second line runs a claim and goes on where it was stopped: each result is in the record as soon as it is
there. The third repeats one row of the record and changes nothing.

A run is so many tokens long, not so many minutes, and does not depend on who else uses the machine. At the
end a step of each arm is timed, all in turn; a time to reach a loss is the number of steps to it times that.
"""

import argparse
import json
import math
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from labml_bert import mlm_run, pair_run
from labml_bert.bert import BertConfig, BertEncoder
from labml_bert.curriculum import Curriculum, Stage
from labml_bert.docstring_tasks import Task, distinct_docstrings, package_task, summary_task
from labml_bert.files import write_whole
from labml_bert.finetuning import (
    BertForSequenceClassification,
    Example,
    batch_of,
    encode_examples,
    fine_tune,
    predict,
    score,
)
from labml_bert.mlm import IGNORE, MaskedLMOutput, MaskedTokens, TokenMasker, masked_lm_output
from labml_bert.mlm_run import MaskedLMJob
from labml_bert.nsp import SentencePair
from labml_bert.pair_run import PairJob
from labml_bert.pretraining import BertForMaskedLM
from labml_bert.report import bad_input_ends_here, console, shown
from labml_bert.run import PRECISIONS, hardware, origin, versions
from labml_bert.timing import interleaved
from labml_bert.training import Trainer, choose_device, has_fast_bfloat16

CLAIMS = Path(__file__).with_name("claims.toml")
# No final run uses it, so what was chosen with it was not chosen for them.
TUNING_SEED = 100
EVALUATIONS = 40
LABELS = 1000
FEWEST_STEPS = 200
# The rates that won for a pretrained model in `finetune_docstrings.py`, and the tokens of a text.
FINE_TUNING = {"package": (1e-3, 48), "summary": (1e-4, 64)}

Options = dict[str, Any]


@dataclass(frozen=True)
class Variations:
    """
    ## What an arm can change

    Beside the options of the two jobs. The values here change nothing.
    """

    # Whether a window is put at a random place among the positions, or always at the first.
    offsets: bool = True
    # How the length grows: by the stages of the schedule, evenly, or when the loss stands still.
    growth: str = "stages"
    # Each token sees those before it, and the question is the next one.
    causal: bool = False
    # Shares of the chosen tokens; the rest is kept as it is.
    mask_replace_prob: float = 0.8
    random_replace_prob: float = 0.1
    # The share that is chosen on pairs; the other job has an option for it.
    mlm_probability: float = 0.15
    next_sentence: bool = True
    tied: bool = True
    head_dense: bool = True
    head_norm: bool = True
    # Spread of the three embeddings, where it is not that of all other weights.
    embedding_std: float | None = None
    # The other job has an option for this one.
    adam: str = "corrected"


class Growing(Curriculum):
    """
    ## How the length grows

    `stages` as in the schedule. `linear` in steps of eight, for as long as the stages would grow. `plateau`
    goes to the next length when 200 steps were not better by 0.02 nats than the 200 before. In all three the
    last length has the same share of the run at least.
    """

    def __init__(self, plain: Curriculum, growth: str, offsets: bool):
        super().__init__(
            plain.token_ids,
            plain.stages,
            plain.batch_tokens,
            plain.max_position_embeddings,
            plain.generator,
            plain.frame,
        )
        if growth not in ("stages", "linear", "plateau"):
            raise ValueError(f"growth is {growth!r}; it must be stages, linear or plateau")
        self.growth, self.offsets = growth, offsets
        self.at, self.losses = 0, list[float]()

    def length(self, progress: float) -> int:
        """The length in force when the share `progress` of the budget is spent."""
        grows_until = 1 - self.stages[-1].share
        if self.growth == "stages":
            return super().length(progress)
        first, last = self.stages[0].length, self.stages[-1].length
        if progress >= grows_until:
            return last
        if self.growth == "linear":
            return first + int((last - first) * progress / grows_until) // 8 * 8
        return self.stages[self.at].length

    def saw(self, loss: float) -> None:
        """The training loss of a step."""
        self.losses.append(loss)
        if len(self.losses) == 400:
            before, after = sum(self.losses[:200]) / 200, sum(self.losses[200:]) / 200
            if before - after < 0.02:
                self.at = min(self.at + 1, len(self.stages) - 1)
                self.losses = []
            else:
                self.losses = self.losses[200:]

    def batch(self, progress: float) -> Any:
        """The next random windows."""
        batch = super().batch(progress)
        if self.offsets:
            return batch
        return batch._replace(position_ids=batch.position_ids - batch.position_ids[:, :1])


class NextToken(TokenMasker):
    """
    ## The question of a left-to-right model

    Nothing is covered, and the label of a place is the token after it.
    """

    def __call__(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, word_ids: Tensor | None = None
    ) -> MaskedTokens:
        """`(B, T)`. At a share `mlm_probability` of the places, drawn by lot; the last has no next token."""
        labels = torch.full_like(input_ids, IGNORE)  # (B, T)
        following = input_ids[:, 1:]
        asked = (self.rand(following) < self.mlm_probability) & ~self.is_special[following]
        labels[:, :-1] = following.masked_fill(~asked, IGNORE)
        return MaskedTokens(input_ids, labels)


class CausalEncoder(BertEncoder):
    """
    ## The same encoder, looking back only
    """

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None,
        output_attentions: bool,
        output_positions: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Tensor, ...] | None]:
        """As `BertEncoder.forward`, without padding."""
        T = hidden_states.size(1)
        back = torch.ones(T, T, dtype=torch.bool, device=hidden_states.device).tril()  # (T, T)
        x, attentions = super().forward(hidden_states, back[None, None], output_attentions)
        if output_positions is not None:
            x = x.gather(1, output_positions[..., None].expand(-1, -1, x.size(-1)))
        return x, attentions


class UntiedMaskedLM(BertForMaskedLM):
    """
    ## An output matrix of its own
    """

    def __init__(self, config: BertConfig):
        super().__init__(config)
        self.decoder = nn.Parameter(torch.empty(config.vocab_size, config.hidden_size))
        spread = config.initializer_range
        nn.init.trunc_normal_(self.decoder, std=spread, a=-2 * spread, b=2 * spread)

    def forward(
        self,
        input_ids: Tensor,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | None = None,
        **inputs: Tensor,
    ) -> MaskedLMOutput:
        """As `BertForMaskedLM.forward`."""
        encoded, labels = self.encode(input_ids, labels, inputs)
        hidden = encoded.last_hidden_state
        return masked_lm_output(self.cls.predictions, hidden, self.decoder, labels, num_items_in_batch)


class WindowJob(MaskedLMJob):
    """
    ## Windows of a text, varied
    """

    def __init__(self, options: mlm_run.Options, variations: Variations, device: torch.device):
        self.variations = variations
        super().__init__(options, device)
        self.curriculum: Curriculum = Growing(self.curriculum, variations.growth, variations.offsets)
        self.arguments = replace(self.arguments, adam_bias_correction=variations.adam == "corrected")
        if not variations.tied:
            self.model = UntiedMaskedLM(self.config)
        if variations.causal:
            encoder = CausalEncoder(self.config)
            encoder.load_state_dict(self.model.bert.encoder.state_dict())
            self.model.bert.encoder = encoder
        head = self.model.cls.predictions
        parts: list[nn.Module] = [head.transform.dense, nn.GELU()] if variations.head_dense else []
        if variations.head_norm:
            parts.append(head.transform.LayerNorm)
        if not (variations.head_dense and variations.head_norm):
            head.transform = nn.Sequential(*parts)  # type: ignore[assignment]
        if variations.embedding_std is not None:
            for module in self.model.bert.embeddings.modules():
                if isinstance(module, nn.Embedding):
                    nn.init.normal_(module.weight, std=variations.embedding_std)

    def make_masker(
        self,
        generator: torch.Generator,
        mlm_probability: float = 0.15,
        mask_replace_prob: float = 0.8,
        most: int | None = None,
    ) -> TokenMasker:
        """As `MaskedLMJob.make_masker`, or what asks for the next token."""
        if self.variations.causal:
            specials = self.special_ids
            return NextToken(
                self.config.vocab_size, specials[0], specials, mlm_probability, generator=generator
            )
        return super().make_masker(generator, mlm_probability, mask_replace_prob, most)

    def only(self, length: int) -> None:
        """From now on all batches have this length."""
        self.curriculum.stages = [Stage(length, 1.0)]


class TextPairJob(PairJob):
    """
    ## Pairs of texts, varied
    """

    def __init__(self, options: pair_run.Options, variations: Variations, device: torch.device):
        super().__init__(options, device)
        self.next_sentence = variations.next_sentence
        for batches in self.batches.values():
            masker = batches.collator.masker
            masker.mlm_probability = variations.mlm_probability
            masker.mask_replace_prob = variations.mask_replace_prob
            masker.random_replace_prob = variations.random_replace_prob

    def next_batch(self, progress: float) -> dict[str, Tensor]:
        """The next pairs; without the second task nobody says which belong together."""
        batch = super().next_batch(progress)
        if not self.next_sentence:
            del batch["next_sentence_label"]
        return batch

    def only(self, length: int) -> None:
        """From now on all batches have this length."""
        self.stages = [Stage(length, 1.0)]


def build(kind: str, options: Options, seed: int, device: torch.device) -> WindowJob | TextPairJob:
    """
    The parts of a run. `kind` is `masked` or `pairs`, `options` as in `claims.toml`.

    Raises `ValueError` for an option that neither a job nor `Variations` has, or one that makes no sense.
    """
    options = dict(options)
    tokens = options.pop("tokens")
    defaults: mlm_run.Options | pair_run.Options = (
        mlm_run.Options("claims", minutes=None, steps=1, seed=seed)
        if kind == "masked"
        else pair_run.Options("claims", minutes=None, steps=1, seed=seed)
    )
    names = {field.name for field in fields(defaults)}
    varied = {key: value for key, value in options.items() if key not in names}
    unknown = varied.keys() - {field.name for field in fields(Variations)}
    if unknown:
        raise ValueError(f"no option {min(unknown)!r} in a claim on {kind!r}; see {shown(CLAIMS)}")
    chosen = replace(defaults, **{key: value for key, value in options.items() if key in names})
    chosen = replace(chosen, steps=max(1, tokens // chosen.batch_tokens))
    torch.manual_seed(seed)
    if isinstance(chosen, mlm_run.Options):
        return WindowJob(chosen, Variations(**varied), device)
    return TextPairJob(chosen, Variations(**varied), device)


def trainer_of(job: WindowJob | TextPairJob) -> Trainer:
    """Of the one loop of this project only its step: a run of minutes needs no checkpoint and no folder."""
    bfloat16 = PRECISIONS[job.options.precision]
    return Trainer(job.model, job.arguments, Path(), {}, job.generator, job.device, bfloat16)


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
        loss = trainer.train_step(job.next_batch(trainer.progress), lambda *_: {})["loss"]
        trainer.step += 1
        if growing:
            assert isinstance(job, WindowJob) and isinstance(job.curriculum, Growing)
            job.curriculum.saw(loss.item())
        if trainer.step in marks:
            curve.append([trainer.step, number(job.evaluate(trainer, quick=True)["loss"])])
    end = number(job.evaluate(trainer)["loss"])
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
    record: str | None = None

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
        except OSError as error:
            raise ValueError(f"cannot use {self.path}: {error.strerror}; choose another --record") from None
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{self.path} is no record of a claim; move it away to start anew") from None

    def new(self) -> dict[str, Any]:
        """A record without a result."""
        return {
            "experiment": "claims",
            "command": f"python experiments/claims.py {self.claim.name}",
            **origin(),
            "versions": versions(),
            "hardware": hardware(self.device, "bfloat16" if has_fast_bfloat16(self.device) else "float32"),
            "claim": {},
            "table": [],
            "step_seconds": {},
        }

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
            self.rows[key] = {**row, **self.one(row["options"], seed)}
            self.write()
            console.print(f"  {arm}, seed {seed}{named(point)}: {told(self.rows[key])}", soft_wrap=True)
        return self.rows[key]

    def one(self, options: Options, seed: int) -> dict[str, Any]:
        """A run and its scores. The search for a rate looks at the loss only."""
        began = time.monotonic()
        job = build(self.claim.job, options, seed, self.device)
        trainer, found = train(job)
        if seed != TUNING_SEED and found["result"]["loss"] is not None:
            found["result"] |= scores(job, trainer, self.claim.scores or [], seed)
        return {**found, "seconds": time.monotonic() - began}

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
    return f"{', '.join(numbers)} ({row['seconds']:.0f} s)"


def main(argv: list[str] | None = None) -> None:
    """Reads the command line, and runs claims, or repeats a row of one."""
    parser = argparse.ArgumentParser(description="Run what is said of masked language models.")
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
                f"about {claim.minutes} minutes\n  {'; '.join(claim.arms)}",
                highlight=False,
                soft_wrap=True,
            )
        console.print(f"together about {sum(claim.minutes for claim in chosen) / 60:.1f} hours")
        return
    try:
        for claim in chosen:
            console.print(f"{claim.name}: {claim.title}", soft_wrap=True)
            if claim.record:
                console.print(f"  recorded by: python experiments/{claim.record}.py", soft_wrap=True)
                continue
            with bad_input_ends_here():
                ledger = Ledger(claim, given.record, device)
                if given.arm is None:
                    ledger.run()
                    console.print(f"  record      {shown(ledger.path)}")
                    continue
                for before, now in ledger.repeat(given.arm, given.seed):
                    console.print(f"  recorded  {told(before)}\n  now       {told(now)}", soft_wrap=True)
    except KeyboardInterrupt:
        console.print("  stopped; the same command goes on from the last run that was finished")
        sys.exit(130)


if __name__ == "__main__":
    main()
