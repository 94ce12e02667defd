r"""
# What a model knows after some seconds

What does a masked language model know after ten seconds, and what after three minutes? Two are trained for
three minutes each, one on short sequences first, as `curriculum.py` has it, and one on the full length from
the start. Of each the weights of a few moments are kept, as files for a page on which a reader asks them.

What has to arrive before a page can answer decides the size. The weights are float16, and a file of them
should be a few hundred kilobytes. So the model is narrower than that of `mlm_tiny.py` and has two layers in
place of four; all else is as there. Of the sizes that fit, a wider one with fewer layers knew more after the
same time: each of its steps is shorter.

From the last of the weights come four pictures: where each head looks in one sentence, which positions are
like which others, what the dense layer of the head does to a hidden vector, and which tokens have vectors
alike. They are of the rounded weights, as the page has them.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # A clone runs without being installed.
from labml_bert.run import script  # noqa: F401  # isort: skip

import json
import shlex
import time
from argparse import Namespace
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from rich.table import Table
from torch import Tensor

from labml_bert.data.curriculum import parse_schedule
from labml_bert.export import made, rounded, rounding_error, write_web, write_weights
from labml_bert.files import write_whole
from labml_bert.mlm import IGNORE
from labml_bert.run.job import parse, run, run_record
from labml_bert.run.mlm_run import HELP, UNITS, MaskedLMJob, Options
from labml_bert.run.record import check_record
from labml_bert.run.terminal import OneLineParser, bad_input_ends_here, console, shown
from labml_bert.training.distributed import launcher
from labml_bert.training.trainer import Trainer

DEFAULTS = Options(experiment="live", hidden_size=80, num_hidden_layers=2)
# The two sides of the page's switch.
SHORT, FIXED = "short to long", "fixed length"
# Shares of the budget. Of three minutes they are 2, 45, 90 and 180 seconds: where only frequencies are known,
# among neighbours, and twice among words.
MOMENTS = (2 / 180, 45 / 180, 90 / 180, 1.0)

TEXT = "Return a copy of the [MASK]ist."
# Tokens whose neighbours are shown: a vowel, consonants, a capital, a digit, a bracket, a blank.
ASKED = "aetT7( "
# Ends of the ranks that are counted together.
RANKS = [[1, 1], [2, 3], [4, 10], [11, 10**6]]


class Moment(NamedTuple):
    """The weights at one moment of a run."""

    seconds: float
    steps: int
    weights: dict[str, Tensor]


class LiveJob(MaskedLMJob):
    """
    ## A run that is watched

    At each of `MOMENTS` the loop evaluates and shows what the model can do by now. There the weights are
    kept.
    """

    def __init__(self, options: Options, device: torch.device):
        super().__init__(options, device)
        tokens = len(self.tokenizer.encode(TEXT).ids)
        if tokens > options.max_position_embeddings:
            raise ValueError(
                f"the sentence of the pictures has {tokens} tokens and max_position_embeddings is "
                f"{options.max_position_embeddings}; raise it"
            )
        self.marks = [(share, f"{share:.0%} of the time") for share in MOMENTS]
        # By step.
        self.kept: dict[int, dict[str, Tensor]] = {}
        self.moments: list[Moment] = []

    def evaluate(self, trainer: Trainer, quick: bool = False) -> dict[str, float]:
        """Keeps what is judged on a part of the held-out text while the clock runs."""
        if quick:
            weights = {name: p.detach().cpu().clone() for name, p in self.model.named_parameters()}
            self.kept[trainer.step] = weights
        return super().evaluate(trainer, quick)

    def show_samples(self, trainer: Trainer, count: int = 2) -> None:
        """Marks the weights that were kept just now."""
        self.moments.append(Moment(trainer.seconds, trainer.step, self.kept[trainer.step]))
        self.trainer = trainer
        super().show_samples(trainer, count)

    def history(self) -> dict[str, list[list[float]]]:
        """
        What was kept, judged on all of the held-out text: a page shows the curve and the moments in one
        picture, and they should lie on each other.
        """
        found: dict[str, list[list[float]]] = {"valid.loss": [], "valid.accuracy": []}
        for step, weights in self.kept.items():
            self.model.load_state_dict(weights)
            for name, value in self.evaluate(self.trainer).items():
                found[f"valid.{name}"].append([step, round(value, 6)])
        return found

    def conclude(self, result: dict[str, float]) -> None:
        """Keeps the result."""
        self.result = result

    def put(self, weights: dict[str, Tensor]) -> None:
        """Puts weights into the model, rounded to float16."""
        self.model.load_state_dict(weights)
        self.model.load_state_dict(rounded(self.model))

    def as_the_page(self) -> None:
        """From now on all is computed in float32, here."""
        self.model.cpu()
        self.device = self.trainer.device = torch.device("cpu")
        self.trainer.bfloat16 = False

    def write(self, folder: Path, arm: str) -> list[dict[str, Any]]:
        """
        One file for each moment. Returns the entries of `model.json`, with the held-out loss of the rounded
        weights in float32, which is how a page computes.
        """
        entries = []
        for number, moment in enumerate(self.moments, 1):
            self.put(moment.weights)
            entries.append(
                {
                    "arm": arm,
                    "seconds": round(moment.seconds, 1),
                    "steps": moment.steps,
                    **{name: round(value, 4) for name, value in self.evaluate(self.trainer).items()},
                    **write_weights(folder / f"{arm.replace(' ', '-')}-{number}.bin", self.model),
                }
            )
        return entries


@torch.no_grad()
def attention(job: LiveJob) -> dict[str, Any]:
    """The tokens of `TEXT`, the places of its masks, and the weights by layer, head, place and place."""
    encoding = job.tokenizer.encode(TEXT)
    input_ids = torch.tensor([encoding.ids])
    output = job.model.bert(input_ids, output_attentions=True)
    mask = job.tokenizer.token_to_id("[MASK]")
    masks = [place for place, token in enumerate(encoding.ids) if token == mask]
    probabilities = job.model(input_ids).logits[0, masks[0]].softmax(-1)
    best = probabilities.topk(5)
    return {
        "text": TEXT,
        "tokens": encoding.tokens,
        "masks": masks,
        "guesses": [
            [job.tokenizer.id_to_token(i), round(p, 4)]
            for i, p in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ],
        "attentions": to_list(torch.stack(output.attentions)[:, 0], 3),
    }


def to_list(tensor: Tensor, digits: int) -> Any:
    """Numbers for JSON, no more of them than a picture shows."""
    factor = 10.0**digits
    return json.loads(json.dumps((tensor.double() * factor).round().div(factor).tolist()))


@torch.no_grad()
def positions(job: LiveJob, most: int = 40) -> dict[str, Any]:
    """
    ## Which positions are alike

    The cosine of the angle between the vectors of two positions: for the first `most` with each other, and
    the mean over all pairs at each distance.
    """
    vectors = F.normalize(job.model.bert.embeddings.position_embeddings.weight, dim=-1)
    cosines = vectors @ vectors.T
    distances = [cosines.diagonal(distance).mean() for distance in range(len(vectors))]
    return {
        "cosines": to_list(cosines[:most, :most], 2),
        "by_distance": to_list(torch.stack(distances), 3),
    }


@torch.no_grad()
def dense_layer(job: LiveJob, most: int = 4096) -> dict[str, Any]:
    r"""
    ## What the dense layer is for

    The hidden vector $h$ at a masked place goes through a dense layer and a norm before it is held against
    the embeddings. What if it did not? Both are scored here, $E h + b$ and $E\, t(h) + b$ with $t$ the dense
    layer and norm, on `most` masked places of the held-out text: how often the best answer is right, at which
    rank the right one stands, how spread the answers are (the entropy, in nats), and the cosine of the angle
    to the right token's embedding and, on average, to all.
    """
    input_ids, labels = (part[: most // 16] for part in job.held_out)
    hidden = job.model.bert(input_ids).last_hidden_state[labels != IGNORE][:most]
    labels = labels[labels != IGNORE][:most]
    head, E = job.model.cls.predictions, job.model.bert.embeddings.word_embeddings.weight
    found = {}
    for name, vectors in (("without", hidden), ("with", head.transform(hidden))):
        logits = F.linear(vectors, E, head.bias)
        chances = logits.log_softmax(-1)
        right = logits.gather(1, labels[:, None])
        ranks = (logits > right).sum(1) + 1
        cosines = F.normalize(vectors, dim=-1) @ F.normalize(E, dim=-1).T
        found[name] = {
            "right": round((ranks == 1).double().mean().item(), 4),
            "ranks": [int(((low <= ranks) & (ranks <= high)).sum()) for low, high in RANKS],
            "median_rank": ranks.median().item(),
            "entropy": round(-(chances.exp() * chances).sum(-1).mean().item(), 3),
            "cosine_right": round(cosines.gather(1, labels[:, None]).mean().item(), 3),
            "cosine_all": round(cosines.mean().item(), 3),
        }
    return {"places": len(labels), "rank_bounds": RANKS, **found}


@torch.no_grad()
def neighbours(job: LiveJob, many: int = 6) -> list[dict[str, Any]]:
    """
    ## Who is whose neighbour

    For some tokens, the `many` others whose embeddings point most nearly the same way, with the cosine.
    Special tokens are left out.
    """
    E = F.normalize(job.model.bert.embeddings.word_embeddings.weight, dim=-1)
    found = []
    for token in ASKED:
        i = job.tokenizer.token_to_id(token)
        if i is None:
            continue
        cosines = E @ E[i]
        cosines[[*job.special_ids, i]] = -1.0
        best = cosines.topk(min(many, len(E) - len(job.special_ids) - 1))
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        found.append(
            {"token": token, "nearest": [[job.tokenizer.id_to_token(j), round(c, 3)] for j, c in pairs]}
        )
    return found


def pictures(job: LiveJob) -> dict[str, Any]:
    """All four, of the weights that are in the model."""
    job.model.eval()
    return {
        "attention": attention(job),
        "positions": positions(job),
        "dense_layer": dense_layer(job),
        "neighbours": neighbours(job),
    }


def print_moments(entries: list[dict[str, Any]]) -> None:
    """The held-out loss of each file."""
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for column in ("lengths", "seconds", "steps", "loss (nats)", "right", "kilobytes"):
        table.add_column(column, justify="left" if column == "lengths" else "right")
    for entry in entries:
        numbers = (f"{entry['seconds']:.0f}", f"{entry['steps']:,}", f"{entry['loss']:.3f}")
        table.add_row(entry["arm"], *numbers, f"{entry['accuracy']:.1%}", f"{entry['bytes'] / 1e3:.0f}")
    console.print(table)
    console.print()


def curve(record: dict[str, Any]) -> list[list[float]]:
    """Seconds and held-out loss."""
    seconds = dict(record["history"]["seconds"])
    return [[round(seconds[step], 1), round(loss, 4)] for step, loss in record["history"]["valid.loss"]]


def train(options: Options, given: Namespace) -> tuple[LiveJob, dict[str, Any]]:
    """One run. Returns its parts as they are at its end, and its record."""
    jobs: list[LiveJob] = []

    def make_job(options: Options, device: torch.device) -> LiveJob:
        jobs.append(LiveJob(options, device))
        return jobs[0]

    began = time.monotonic()
    # There is one record of both.
    run(DEFAULTS, make_job, options, Namespace(**{**vars(given), "record": None}), resumable=False)
    (job,) = jobs
    return job, run_record(options, DEFAULTS, job, job.trainer, job.result, time.monotonic() - began)


def main(argv: list[str] | None = None) -> None:
    """
    Trains both, writes the files of the page to `--output`, and the record if asked. All other options are
    those of every run of a masked language model; a schedule is that of the first of the two.
    """
    argv = sys.argv[1:] if argv is None else argv
    first = OneLineParser(add_help=False)
    first.add_argument("--output", type=Path, default=Path("logs/live/web"))
    own, rest = first.parse_known_args(argv)
    description = (
        "Train two models for a page and write their weights at several moments to the folder --output "
        "(default: logs/live/web)."
    )
    options, given = parse(DEFAULTS, description, rest, HELP, {"tokenizer": [*UNITS]})
    with bad_input_ends_here():
        if given.resume:
            raise ValueError("the moments of a run that was stopped are lost; start again, without --resume")
        if launcher():
            raise ValueError("the moments of a run are in one process; start it without torchrun")
        if given.record is not None:
            check_record(given.record)
        longest = parse_schedule(options.schedule)[-1].length
        folder = made(own.output)
    began = time.monotonic()
    short, record = train(options, given)
    fixed, beside = train(replace(options, schedule=str(longest)), given)
    with bad_input_ends_here():
        for job, found in ((short, record), (fixed, beside)):
            found["history"] |= job.history()
            job.as_the_page()
            job.model.load_state_dict(job.moments[-1].weights)
        rounding = {
            "probability": float(f"{rounding_error(short.model):.2g}"),
            "loss_before": round(short.evaluate(short.trainer)["loss"], 4),
        }
        entries = [*fixed.write(folder, FIXED), *short.write(folder, SHORT)]
        curves = {SHORT: curve(record), FIXED: curve(beside)}
        write_web(folder, short.model, short.tokenizer, entries, curves)
        record |= {
            "command": f"{record['command']} --output {shlex.quote(shown(folder))}",
            "fixed": {name: beside[name] for name in ("history", "result")},
            "checkpoints": entries,
            "rounding": rounding,
            "pictures": pictures(short),
        }
        record["result"]["wall_seconds"] = time.monotonic() - began
        if given.record is not None:
            write_whole(given.record, json.dumps(record, separators=(",", ":")))
    print_moments(entries)
    console.print(f"  for a page  {shown(folder)}\n")


if __name__ == "__main__":
    main()
