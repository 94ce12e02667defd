"""
# Checks: training

What the steps in `data` and `training` must do.
"""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from labml_bert.course.compare import Probe
from labml_bert.course.probes.tools import numbers, raises
from labml_bert.mlm import MaskedLMOutput, MaskedTokens, masked_lm_loss
from labml_bert.training.optimization import TrainingArguments


def probe_windows(m: Any) -> Iterator[tuple[str, Any]]:
    generator, before = torch.Generator().manual_seed(0), torch.get_rng_state()
    windows = m.random_windows(torch.arange(100, 120), 500, 4, 9, generator)
    yield "the names of the two tensors", getattr(windows, "_fields", "no names")
    ids, positions = windows
    yield "the shapes", {"input_ids": tuple(ids.shape), "position_ids": tuple(positions.shape)}
    yield "whether every row is a window of the text", bool((ids.diff(dim=1) == 1).all())
    yield "the number of different tokens that occur", len(ids.unique())
    yield "the tokens that occur", ids.unique()
    yield "whether every row starts at position 0", not positions[:, 0].any()
    yield "whether rows start at different positions", len(positions[:, 0].unique()) > 1
    yield "the number of different positions that occur", len(positions.unique())
    yield "the positions that occur", positions.unique()
    yield "whether every row has consecutive positions", bool((positions.diff(dim=1) == 1).all())
    pairs = torch.stack((ids[:, 0], positions[:, 0])).unique(dim=1).size(1)
    yield "whether nearly every pair of a start and an offset occurs", pairs > 90
    yield "whether all draws are from the generator", torch.equal(before, torch.get_rng_state())
    again = m.random_windows(torch.arange(100, 120), 500, 4, 9, generator)
    yield "whether two calls draw the same windows", torch.equal(ids, again.input_ids)
    yield "whether two calls draw the same offsets", torch.equal(positions, again.position_ids)
    whole = m.random_windows(torch.arange(4), 2, 4, 4, generator)
    yield "the windows of a text that is as long as a window", whole


def probe_length(m: Any) -> Iterator[tuple[str, Any]]:
    stages = [m.Stage(16, 0.5), m.Stage(32, 0.25), m.Stage(128, 0.25)]
    for progress in (0.0, 0.3, 0.5, 0.6, 0.75, 0.9, 1.0):
        yield f"the length at progress {progress:g}", m.length_at(stages, progress)
    rounded = [m.Stage(16, 1 / 3), m.Stage(32, 1 / 3), m.Stage(64, 1 / 3 - 1e-9)]
    yield "the length just before the end, with rounded fractions", m.length_at(rounded, 1 - 1e-12)


def probe_learning_rate(m: Any) -> Iterator[tuple[str, Any]]:
    arguments = m.TrainingArguments(steps=10, learning_rate=0.5, warmup_ratio=0.2)
    for progress in (0.0, 0.1, 0.2, 0.6, 1.0, 1.1):
        name = f"the learning rate at progress {progress:g}, with a peak of 0.5 and a warm-up of 0.2"
        yield name, float(arguments.learning_rate_at(progress))
    without = m.TrainingArguments(steps=10, learning_rate=0.5, warmup_ratio=0.0)
    yield "the learning rate at the start, without warm-up", float(without.learning_rate_at(0.0))


class Small(nn.Module):
    """An embedding, a list of two blocks and a head. One matrix and one bias are frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        blocks = (nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)) for _ in range(2))
        self.layers = nn.ModuleList(blocks)
        self.head = nn.Linear(4, 5)
        next(self.layers[1].parameters()).requires_grad_(False)
        self.head.bias.requires_grad_(False)


class Unusual(Small):
    """It also has a scalar parameter, and in a block, one with three dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.layers[0].kernel = nn.Parameter(torch.zeros(2, 2, 2))


class Shared(Small):
    """Its blocks are in an encoder, one of them is a list, and two matrices are in the model twice."""

    def __init__(self) -> None:
        super().__init__()
        shared = next(self.layers[0].children())
        blocks = self.layers
        self.encoder = nn.ModuleDict({"layer": blocks})
        del self.layers
        blocks.append(nn.ModuleList([nn.Linear(4, 3), shared]))
        self.head.weight = self.embedding.weight


def names_of(model: nn.Module, parameters: list[nn.Parameter]) -> list[str]:
    """The sorted names of parameters, in which a parameter can occur twice."""
    names = {id(p): name for name, p in model.named_parameters()}
    return sorted(names[id(p)] for p in parameters)


def probe_groups(m: Any) -> Iterator[tuple[str, Any]]:
    model = Small()
    for words, exclude in (("", ()), (" without the embedding", (model.embedding.weight,))):
        groups = m.parameter_groups(model, 0.1, exclude)
        yield f"the number of groups{words}", len(groups)
        for name, group in zip(("first", "second"), groups, strict=True):
            yield f"the parameters of the {name} group{words}", names_of(model, group["params"])
            yield f"the weight decay of the {name} group{words}", group["weight_decay"]
            yield f"has_decay of the {name} group{words}", group["has_decay"]
    for other, words in (
        (Unusual(), "with parameters of none and of three dimensions"),
        (Shared(), "with shared matrices"),
    ):
        for name, group in zip(("first", "second"), m.parameter_groups(other, 0.1), strict=True):
            yield f"the parameters of the {name} group, {words}", names_of(other, group["params"])


def probe_matrices(m: Any) -> Iterator[tuple[str, Any]]:
    model = Small()
    yield "the names of the matrices", names_of(model, m.block_matrices(model))
    unusual = Unusual()
    matrices = names_of(unusual, m.block_matrices(unusual))
    yield "the names of the matrices, with a parameter of three dimensions in a block", matrices
    shared = Shared()
    matrices = names_of(shared, m.block_matrices(shared))
    yield "the names of the matrices, with the blocks in an encoder, and a shared matrix", matrices


def probe_set_learning_rate(m: Any) -> Iterator[tuple[str, Any]]:
    groups = ("the group of matrices of AdamW", "the group of vectors of AdamW", "the group of Muon")
    for words, has_correction in (("with", True), ("without", False)):
        arguments = m.TrainingArguments(
            steps=10,
            learning_rate=0.5,
            warmup_ratio=0.2,
            adam_bias_correction=has_correction,
            adam_epsilon=0.01,
            weight_decay=0.1,
            optimizer="muon",
        )
        optimizers = m.make_optimizers(Small(), arguments)
        for step in (2, 3):
            m.set_learning_rate(optimizers, arguments, step, step / 30)
        # Whatever a group has besides these keys, PyTorch gave it.
        for key in ("lr", "eps", "weight_decay"):
            for name, group in zip(groups, (g for o in optimizers for g in o.param_groups), strict=True):
                yield f"{key} of {name} in step 3, {words} bias correction", float(group[key])
        for name, group in zip(groups, optimizers[0].param_groups, strict=False):
            yield f"learning_rate of {name}, {words} bias correction", group.get("learning_rate")
        alone = m.make_optimizers(Small(), replace(arguments, optimizer="adamw"))
        m.set_learning_rate(alone, arguments, 3, 0.1)
        yield f"lr in step 3 without Muon, {words} bias correction", float(alone[0].param_groups[0]["lr"])


def probe_backward(m: Any) -> Iterator[tuple[str, Any]]:
    weight = nn.Parameter(torch.tensor([1.0, 2.0]))
    m.world_size = lambda: 2
    # Like a gradient scaler for float16.
    scaler = SimpleNamespace(scale=lambda loss: 4 * loss)
    arguments = TrainingArguments(steps=10, gradient_accumulation_steps=3)
    step = m.Step(SimpleNamespace(step=0, progress=0.0, scaler=scaler, arguments=arguments))
    step.backward((weight * 3).sum(), accuracy=torch.tensor(0.25))
    yield (
        "the gradient after one micro-batch, if world_size() is 2 and the scaler multiplies by 4",
        0.0 if weight.grad is None else weight.grad.clone(),
    )
    step.backward((weight * 5).sum(), accuracy=torch.tensor(0.5))
    yield "the gradient after two micro-batches", 0.0 if weight.grad is None else weight.grad.clone()
    yield "the metrics after two micro-batches", dict(step.metrics)
    needs_gradient = any(value.requires_grad for value in step.metrics.values())
    yield "whether a metric still needs its graph", needs_gradient
    yield "whether a batch without a loss raises an exception", raises(step.backward, None) != "no error"


class Scorer(nn.Module):
    """A model whose logits and loss depend on its input, and on whether it's in train mode."""

    def forward(
        self, input_ids: Tensor, labels: Tensor, num_items_in_batch: Tensor | None = None
    ) -> MaskedLMOutput:
        """The output of a `MaskedLM` with a vocabulary of 5."""
        ids, labels = input_ids[labels != -100], labels[labels != -100]
        logits = nn.functional.one_hot(ids, 5).float() * (3.0 if self.training else 1.0)
        loss = masked_lm_loss(logits, labels, num_items_in_batch)
        return MaskedLMOutput(loss, logits, labels)


def batch_means(model: nn.Module, held_out: MaskedTokens) -> list[Tensor]:
    """The loss and the accuracy of each batch, for batches of 1 row, of 2 rows, …, and of all rows."""
    sums = []  # For each window, the sums of the loss and of the correct tokens, and the number of labels.
    for ids, labels in zip(*held_out, strict=True):
        loss, logits, labels = model.eval()(ids, labels)
        sums.append(len(labels) * torch.tensor([loss, (logits.argmax(-1) == labels).float().mean(), 1.0]))
    model.train()
    table = torch.stack(sums).double()
    batches = [torch.stack([b.sum(0) for b in table.split(rows)]) for rows in range(1, len(table) + 1)]
    return [sums[:, :2] / sums[:, 2:] for sums in batches]


def is_mean_over_batches(result: dict[str, float], batches: list[Tensor]) -> bool:
    """Whether a result is what you get if each batch counts the same, for any number of rows per batch."""

    def is_found(means: Tensor) -> list[bool]:
        pairs = zip(means.mean(0).tolist(), (result["loss"], result["accuracy"]), strict=True)
        return [math.isclose(a, b, rel_tol=1e-5) for a, b in pairs]

    *some, all_rows = batches
    return not all(is_found(all_rows)) and any(any(is_found(means)) for means in some)


def is_sum_over_batches(result: dict[str, float], batches: list[Tensor], labels: int) -> bool:
    """Whether the loss is the sum of the batches' losses, divided by the number of labels or not."""
    sums = [means[:, 0].sum().item() for means in batches[:-1]]
    return any(math.isclose(s / n, result["loss"], rel_tol=1e-5) for s in sums for n in (1, labels))


def probe_evaluation(m: Any) -> Iterator[tuple[str, Any]]:
    model = Scorer().train()
    calls: list[str] = []

    def autocast() -> contextlib.AbstractContextManager[None]:
        calls.append("autocast")
        return contextlib.nullcontext()

    trainer = SimpleNamespace(model=model, device=torch.device("cpu"), autocast=autocast)
    # Later windows have fewer labels, and other tokens. There are more windows than fit into a usual batch.
    N, T = 70, 256
    window = torch.arange(N)[:, None]
    ids = (numbers(N, T).abs() * (1 + window / 35)).long().clamp(max=4)
    labels = torch.where(numbers(N, T, seed=1) > window / 50, (ids * 2) % 5, -100)
    held_out = MaskedTokens(ids, labels)
    result = m.evaluate_masked_lm(trainer, held_out)
    is_training = model.training
    batches, count = batch_means(model, held_out), int((labels != -100).sum())
    yield "whether the means of the batches are added up", is_sum_over_batches(result, batches, count)
    yield "whether batches with few labels count too much", is_mean_over_batches(result, batches)
    yield "the result", result
    yield "whether the model is in train mode afterwards", is_training
    yield "whether trainer.autocast is called", bool(calls)
    model.train()
    yield "the result on the first 3 windows", m.evaluate_masked_lm(trainer, held_out, 3 * T + 5)
    yield "the result for less than a window", m.evaluate_masked_lm(trainer, held_out, 2)
    late = labels.index_fill(0, torch.tensor([0, 1]), -100)
    yield (
        "the result on the first window, without its labels",
        m.evaluate_masked_lm(trainer, MaskedTokens(ids, late), T),
    )
    single = torch.full_like(labels, -100).index_fill(0, torch.tensor([1]), 3)
    single[:, 1:] = -100
    yield "the result with a single label", m.evaluate_masked_lm(trainer, MaskedTokens(ids, single))
    nothing = m.evaluate_masked_lm(trainer, MaskedTokens(ids, torch.full_like(labels, -100)))
    yield "the result without any label", {key: math.fsum([value]) for key, value in nothing.items()}


PROBES: dict[str, Probe] = {
    "data/windows.py:random_windows": probe_windows,
    "data/curriculum.py:length_at": probe_length,
    "training/optimization.py:TrainingArguments.learning_rate_at": probe_learning_rate,
    "training/optimization.py:parameter_groups": probe_groups,
    "training/optimization.py:block_matrices": probe_matrices,
    "training/optimization.py:set_learning_rate": probe_set_learning_rate,
    "training/trainer.py:Step.backward": probe_backward,
    "training/evaluation.py:evaluate_masked_lm": probe_evaluation,
}
