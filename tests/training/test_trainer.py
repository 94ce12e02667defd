"""The training loop: learning rate, parameter groups, atomic checkpoints, and readable metrics."""

import contextlib
import itertools
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from labml_bert import files
from labml_bert.files import bytes_of, write_tensors
from labml_bert.lora import add_lora
from labml_bert.mlm import IGNORE
from labml_bert.model_folder import ALIASES
from labml_bert.models import BertForMaskedLM
from labml_bert.modern import ModernBertConfig, ModernBertForMaskedLM
from labml_bert.training.checkpoint import CHECKPOINT, FAILED_STEP, load_checkpoint
from labml_bert.training.device import choose_device, choose_precision
from labml_bert.training.optimization import (
    OptimizerName,
    TrainingArguments,
    make_optimizers,
    parameter_groups,
)
from labml_bert.training.tracking import METRICS, read_metrics
from labml_bert.training.trainer import NonFiniteLossError, Report, Step, Trainer
from tests.support.trainers import CONFIG, edit_checkpoint, new_trainer, train, train_on, train_to_end


def test_the_learning_rate_warms_up_and_decays() -> None:
    arguments = TrainingArguments(steps=1, learning_rate=2.0, warmup_ratio=0.1)
    assert [arguments.learning_rate_at(p) for p in (0, 0.05, 0.1, 0.55, 1)] == pytest.approx([0, 1, 2, 1, 0])
    assert TrainingArguments(steps=1, learning_rate=2.0, warmup_ratio=0).learning_rate_at(0) == 2


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "set a budget"),
        ({"steps": 1, "minutes": 1}, "set a budget"),
        ({"steps": 0}, "steps is 0"),
        ({"minutes": -1}, "minutes is -1"),
        ({"minutes": float("nan")}, "minutes is nan"),
        ({"steps": 1, "learning_rate": 0}, "learning_rate is 0"),
        ({"steps": 1, "warmup_ratio": 1}, "warmup_ratio is 1"),
        ({"steps": 1, "evaluations": 0}, "evaluations is 0; it must be at least 1"),
        ({"steps": 1, "max_grad_norm": 0.0}, "max_grad_norm is 0.0; it must be above 0"),
        ({"steps": 1, "adam_epsilon": float("inf")}, "adam_epsilon is inf; it must be above 0 and finite"),
        ({"steps": 1, "adam_beta2": 1.0}, "adam_beta2 is 1.0; it must be in"),
        ({"steps": 1, "weight_decay": -0.1}, "weight_decay is -0.1; it must be 0 or more"),
        ({"steps": 1, "optimizer": "sgd"}, "optimizer is 'sgd'"),
    ],
)
def test_invalid_arguments_are_rejected(values: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        TrainingArguments(**values)


def test_each_parameter_is_in_one_group_and_biases_do_not_decay() -> None:
    model = BertForMaskedLM(CONFIG)
    with_decay, without_decay = parameter_groups(model, 0.1)
    names = {id(p): name for name, p in model.named_parameters()}
    assert with_decay["weight_decay"] == 0.1
    assert without_decay["weight_decay"] == 0
    for p in without_decay["params"]:
        assert names.pop(id(p)).endswith(("bias", "LayerNorm.weight"))
    for p in with_decay["params"]:
        assert names.pop(id(p)).endswith("weight")
    assert not names


@pytest.mark.parametrize(
    "model",
    [
        BertForMaskedLM(CONFIG),
        ModernBertForMaskedLM(ModernBertConfig(30, 16, 2, 2, 24, pad_token_id=0)),
    ],
)
def test_muon_gets_the_matrices_of_the_blocks_and_adamw_the_rest(model: torch.nn.Module) -> None:
    adamw, muon = make_optimizers(model, TrainingArguments(steps=1, optimizer="muon", weight_decay=0.1))
    names = {id(p): name for name, p in model.named_parameters()}
    assert isinstance(muon, torch.optim.Muon)
    for p in muon.param_groups[0]["params"]:
        name = names.pop(id(p))
        assert "layer" in name and name.endswith("weight") and p.dim() == 2
    with_decay, without_decay = adamw.param_groups
    assert {names[id(p)].split(".")[-2] for p in with_decay["params"]} <= {
        "word_embeddings",
        "position_embeddings",
        "token_type_embeddings",
        "tok_embeddings",
        "dense",
    }
    for p in (*with_decay["params"], *without_decay["params"]):
        assert "layer" not in names.pop(id(p)) or p.dim() == 1
    assert not names


def test_muon_gets_a_matrix_once_even_if_it_is_in_two_lists() -> None:
    """LoRA puts its matrices into a list of their own, inside a block."""
    model = BertForMaskedLM(CONFIG)
    add_lora(model.bert, r=2)
    nested = torch.nn.ModuleList([torch.nn.ModuleList([torch.nn.Linear(3, 2)])])
    for module, count in ((model, 2 * 2 * 2), (nested, 1)):
        muon = make_optimizers(module, TrainingArguments(steps=1, optimizer="muon"))[1]
        parameters = muon.param_groups[0]["params"]
        assert len(parameters) == len({id(p) for p in parameters}) == count


def test_an_update_of_muon_is_nearly_orthogonal_and_as_large_as_one_of_adamw() -> None:
    """
    Newton-Schulz makes all but tiny singular values nearly equal; the root mean square is 0.2 learning rates.
    """
    trainer, next_batch = new_trainer(None, optimizer="muon")
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    steps = trainer.steps()
    # The first step has a learning rate of zero, because it is the start of the warm-up.
    for _ in range(2):
        before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
        train_on(next(steps), next_batch())
    learning_rate = trainer.optimizers[1].param_groups[0]["lr"]
    name = "bert.encoder.layer.0.intermediate.dense.weight"
    after = dict(trainer.model.named_parameters())[name].detach()
    update = (after - before[name] * (1 - 0.01 * learning_rate)) / learning_rate
    singular_values = torch.linalg.svdvals(update)
    assert singular_values[-2] > singular_values[0] / 2
    assert 0.14 < update.square().mean().sqrt() < 0.26


def test_a_failed_step_leaves_the_weights_alone_with_muon_too() -> None:
    trainer, next_batch = new_trainer(None, optimizer="muon")
    trainer.largest_loss = 0.1
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    with pytest.raises(NonFiniteLossError):
        train(trainer, next_batch)
    assert all(torch.equal(p, before[name]) for name, p in trainer.model.named_parameters())


@pytest.mark.parametrize(("epochs", "length"), [(3, 1), (6, 1), (3, 5), (6, 5), (7, 3)])
def test_evaluations_are_due_after_each_epoch(epochs: int, length: int) -> None:
    """Fractions such as 1/3 have no exact floating-point value."""
    trainer, next_batch = new_trainer(None, steps=epochs * length)
    trainer.arguments = replace(trainer.arguments, evaluations=epochs)
    due = []
    for step in trainer.steps():
        train_on(step, next_batch())
        due += [step.number] * step.evaluation_due
    assert due == [*range(length, epochs * length + 1, length)]


def test_the_end_of_a_budget_of_minutes_is_evaluated() -> None:
    """It's evaluated even if the report before takes longer than the rest of the budget."""
    trainer, next_batch = new_trainer(None)
    trainer.arguments = replace(trainer.arguments, steps=None, minutes=1 / 60, evaluations=4)
    trainer.on_report = lambda report: time.sleep(0.6)
    due = []
    for step in trainer.steps():
        train_on(step, next_batch())
        due += [trainer.progress] * step.evaluation_due
    assert due[-1] >= 1


def test_a_resumed_budget_of_minutes_is_evaluated_at_its_end(tmp_path: Path) -> None:
    """An evaluation uses up the budget, and the run is stopped before the last evaluation."""
    due = []
    for is_resumed in (False, True):
        trainer, next_batch = new_trainer(tmp_path)
        trainer.arguments = replace(trainer.arguments, steps=None, minutes=1 / 60, evaluations=2)
        if is_resumed:
            trainer.resume()
        with pytest.raises(KeyboardInterrupt) if not is_resumed else contextlib.nullcontext():
            for step in trainer.steps():
                train_on(step, next_batch())
                if step.evaluation_due and not due:
                    trainer.seconds, trainer.start_time = 2.0, trainer.start_time - 2.0
                    os.kill(os.getpid(), signal.SIGINT)
                due += [trainer.progress] * step.evaluation_due
    assert len(due) == 2 and due[-1] >= 1 - 1e-9


def test_compiling_does_not_use_up_the_warmup(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without this, the second step of a compiled model had nearly the peak learning rate."""
    now, values = 1000.0, []
    monkeypatch.setattr("labml_bert.training.trainer.time.monotonic", lambda: now)
    trainer, next_batch = new_trainer(None)
    trainer.arguments = replace(trainer.arguments, steps=None, minutes=1, warmup_ratio=0.5, evaluations=1)
    for step in trainer.steps():
        values.append(trainer.optimizers[0].param_groups[0]["lr"])
        now += 30 if step.number == 0 else 15
        train_on(step, next_batch())
    assert values == pytest.approx([0, 0, 5e-4, 1e-3, 5e-4])


def test_a_step_knows_its_number_and_its_progress() -> None:
    """A batch without token ids has the length 0."""
    trainer, next_batch = new_trainer(None, steps=4)
    trainer.arguments = replace(trainer.arguments, evaluations=2)
    for number, step in enumerate(trainer.steps(evaluate_at=(0.0,))):
        assert (step.number, step.progress, step.length) == (number, number / 4, 0)
        assert (step.evaluation, step.evaluation_due, step.report_due) == (None, False, False)
        next(step.micro_batches({"labels": torch.ones(8)}))
        assert step.length == 0
        train_on(step, next_batch())
        assert (step.number, step.length) == (number + 1, 16)
        # An evaluation at 0 follows the first step.
        assert step.evaluation_due is step.report_due is (step.number in (1, 2, 4))


def test_checkpoints_are_saved_at_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step takes ten seconds, but the clock starts after the first one."""
    now, saved = 1000.0, []
    monkeypatch.setattr("labml_bert.training.trainer.time.monotonic", lambda: now)
    trainer, next_batch = new_trainer(None, steps=10)
    trainer.arguments = replace(trainer.arguments, evaluations=1, checkpoint_seconds=20)
    trainer.save = lambda: saved.append(trainer.step)
    for step in trainer.steps():
        now += 10
        train_on(step, next_batch())
    assert saved == [0, 4, 7, 10, 10]


def test_micro_batches_have_the_loss_and_the_gradient_of_the_batch() -> None:
    results = []
    for count in (1, 2, 4):
        trainer, next_batch = new_trainer(None, steps=1)
        trainer.model.eval()
        trainer.arguments = replace(trainer.arguments, gradient_accumulation_steps=count)
        for step in trainer.steps():
            batch = next_batch()
            batch["num_items_in_batch"] = (batch["labels"] != IGNORE).sum()
            train_on(step, batch)
        results.append([value.item() for value in step.metrics.values()])
    assert results[1] == pytest.approx(results[0]) and results[2] == pytest.approx(results[0])


def test_only_the_last_micro_batch_exchanges_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between several processes, an exchange takes time, and one for the whole step is enough."""
    trainer, next_batch = new_trainer(None, steps=1)
    active: list[torch.nn.Module] = []

    @contextlib.contextmanager
    def no_sync(module: torch.nn.Module) -> Iterator[None]:
        active.append(module)
        yield
        active.remove(module)

    monkeypatch.setattr("labml_bert.training.trainer.no_sync", no_sync)
    trainer.arguments = replace(trainer.arguments, gradient_accumulation_steps=4)
    batch = next_batch()
    batch["num_items_in_batch"] = (batch["labels"] != IGNORE).sum()
    states = [[*active] for _ in Step(trainer).micro_batches(batch)]
    assert states == [[trainer.parallel]] * 3 + [[]] and active == []


def test_a_batch_without_labels_or_their_number_is_refused() -> None:
    trainer, next_batch = new_trainer(None, steps=1)
    step = next(trainer.steps())
    with pytest.raises(AssertionError, match=r"^the batch has no labels$"):
        step.backward(None)
    trainer.arguments = replace(trainer.arguments, gradient_accumulation_steps=2)
    message = "^a micro-batch needs num_items_in_batch, the number of labels in the whole batch$"
    with pytest.raises(AssertionError, match=message):
        next(step.micro_batches(next_batch()))


def test_a_checkpoint_has_the_number_of_threads_and_processes(tmp_path: Path) -> None:
    train(*new_trainer(tmp_path, steps=1))
    metadata = load_checkpoint(tmp_path)[0]
    expected: dict[str, object] = {"threads": torch.get_num_threads(), "processes": 1}
    expected |= {"gradient_accumulation_steps": 1, "torch_compile": False}
    assert {name: metadata[name] for name in expected} == expected


def test_without_a_folder_a_failed_step_is_named() -> None:
    trainer, next_batch = new_trainer(None)
    trainer.largest_loss = 0.1
    message = "^the loss or its gradient exploded or became NaN at step 1; try a lower learning rate$"
    with pytest.raises(NonFiniteLossError, match=message):
        train(trainer, next_batch)


def test_a_model_in_eval_mode_is_trained_with_dropout() -> None:
    trainer, _ = new_trainer(None)
    again = Trainer(trainer.model.eval(), trainer.arguments, trainer.generator, trainer.device)
    assert all(module.training for module in again.model.modules())
    assert again.precision == choose_precision(trainer.device)


def test_a_model_is_compiled_only_if_the_arguments_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints are of the plain model."""
    compiled = torch.nn.Linear(1, 1)
    calls: list[torch.nn.Module] = []
    monkeypatch.setattr(
        "labml_bert.training.trainer.compile_model", lambda model: calls.append(model) or compiled
    )
    trainer, _ = new_trainer(None)
    assert trainer.parallel is trainer.model and calls == []
    arguments = replace(trainer.arguments, torch_compile=True)
    again = Trainer(trainer.model, arguments, trainer.generator, trainer.device)
    assert again.parallel is compiled and again.model is trainer.model and calls == [trainer.model]


@pytest.mark.parametrize("reads_flag", [True, False])
def test_a_failed_step_leaves_the_weights_alone_on_every_device(reads_flag: bool) -> None:
    """AdamW reads the flag on a CPU or CUDA GPU. On other devices, the trainer reads it."""
    trainer, next_batch = new_trainer(None, steps=3)
    assert trainer.reads_flag is True and trainer.optimizers[0].found_inf is trainer.has_failed
    trainer.reads_flag = reads_flag
    if not reads_flag:
        del trainer.optimizers[0].found_inf
    trainer.arguments = replace(trainer.arguments, warmup_ratio=0.0)
    weights = [copy_weights(trainer)]
    with pytest.raises(NonFiniteLossError):
        for step in trainer.steps():
            trainer.largest_loss = 0.0 if step.number == 1 else 100.0
            train_on(step, next_batch())
            weights.append(copy_weights(trainer))
    first, second = weights
    assert not torch.equal(first, second) and torch.equal(second, copy_weights(trainer))


def copy_weights(trainer: Trainer) -> torch.Tensor:
    """All weights as one vector."""
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


def test_reports_are_at_least_a_second_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step takes exactly a second, but the clock starts after the first one."""
    now, reported = 1000.0, []
    monkeypatch.setattr("labml_bert.training.trainer.time.monotonic", lambda: now)
    trainer, next_batch = new_trainer(None, steps=8)
    trainer.arguments = replace(trainer.arguments, evaluations=1)
    trainer.on_report = lambda report: reported.append(report.step)
    for step in trainer.steps():
        now += 1
        train_on(step, next_batch())
    assert reported == [3, 5, 7, 8]


@pytest.mark.parametrize("number", [0, 1])
def test_one_of_two_processes(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Here, both processes have the same rows, so all sums are twice as large as with one process. For real
    processes, see `test_distributed.py`.
    """
    alone, next_batch = new_trainer(None)
    alone.model.eval()
    batch = next_batch()
    batch["num_items_in_batch"] = (batch["labels"] != IGNORE).sum()
    train_on(next(alone.steps()), batch)
    expected = {name: value.item() for name, value in alone.metric_sums.items()}
    clocks: list[float] = []
    flags: list[torch.Tensor] = []

    def all_reduce_max(values: list[float]) -> list[float]:
        clocks.append(values[0])
        return values

    for name, function in {
        "rank": lambda: number,
        "world_size": lambda: 2,
        "all_reduce_sum": lambda values: [2 * value for value in values],
        "all_reduce_max": all_reduce_max,
        "all_reduce_flag": flags.append,
    }.items():
        monkeypatch.setattr(f"labml_bert.training.trainer.{name}", function)
    trainer, _ = new_trainer(tmp_path)
    assert torch.initial_seed() == number, "each process has its own dropout masks"
    trainer.model.eval()
    reports: list[Report] = []
    trainer.on_report = reports.append
    steps = trainer.steps(evaluate_at=(0.01,))
    train_on(step := next(steps), batch)
    assert {name: value.item() for name, value in step.metrics.items()} == pytest.approx(expected, rel=1e-4)
    assert step.evaluation_due is (number == 0) and step.milestone == (0.01 if number == 0 else None)
    # Only rank zero has a clock and a listener.
    step = next(steps)
    assert (clocks[-1] > 0) is (number == 0)
    doubled = {name: 2 * value for name, value in expected.items()}
    assert [report.metrics for report in reports] == [pytest.approx(doubled, rel=1e-4)] * (1 - number)
    # The limit is for the loss of the whole batch, of which this process has half.
    trainer.largest_loss = 1.5 * expected["loss"]
    train_on(step, batch)
    with pytest.raises(NonFiniteLossError):
        trainer.check_pending_steps()
    assert (tmp_path / FAILED_STEP).exists() is (number == 0)
    # If one process skips an update, all must skip it.
    assert len(flags) == 2 and all(flag is trainer.has_failed for flag in flags)


@pytest.mark.parametrize(
    ("precision", "scale", "is_failure"),
    # In float16, the scaler halves a scale that is too large. A scale of 1 can't be the cause.
    [("float32", None, True), ("float16", 1.0, True), ("float16", 2.0, False)],
)
def test_an_infinite_gradient_of_a_finite_loss(precision: Any, scale: float | None, is_failure: bool) -> None:
    trainer, next_batch = new_trainer(None, precision=precision)
    if scale is not None:
        trainer.scaler.load_state_dict({**trainer.scaler.state_dict(), "scale": scale})
    bias = next(p for p in trainer.model.parameters() if p.dim() == 1)
    bias.register_hook(lambda gradient: torch.full_like(gradient, torch.inf))
    train_on(next(trainer.steps()), next_batch())
    assert (trainer.failures.item() == 1) is is_failure


def test_a_loss_of_minus_infinity_is_a_failure() -> None:
    """Its gradient can be finite."""
    trainer, next_batch = new_trainer(None)
    step = next(trainer.steps())
    for part in step.micro_batches(next_batch()):
        step.backward(trainer.parallel(**part).loss - math.inf)
    step.update()
    assert trainer.failures.item() == 1


def test_the_largest_loss_is_too_large() -> None:
    """A loss as large as `largest_loss` is a failure, as the documentation of `steps` says."""
    trainer, next_batch = new_trainer(None)
    batch = next_batch()
    trainer.model.eval()
    step = next(trainer.steps())
    trainer.largest_loss = trainer.model(**batch).loss.item()
    train_on(step, batch)
    assert trainer.failures.item() == 1


def test_a_new_trainer_has_done_nothing() -> None:
    """It draws no random numbers either, so the script's seed determines the first dropout masks."""
    trainer, _ = new_trainer(None)
    torch.rand(1)
    before = torch.get_rng_state()
    trainer = Trainer(trainer.model, trainer.arguments, trainer.generator, trainer.device)
    assert torch.equal(torch.get_rng_state(), before)
    assert (trainer.step, trainer.seconds, trainer.start_time, trainer.last_report) == (0, 0.0, None, 0.0)
    assert (trainer.evaluation_points, trainer.milestones, trainer.metric_sums) == ([], [], {})
    assert trainer.stop_signal is None and trainer.is_stopping is False


def test_everything_is_on_the_device() -> None:
    """On the device `meta`, tensors have shapes and no values, so it can stand for any device."""
    trainer, _ = new_trainer(None)
    trainer = Trainer(trainer.model, trainer.arguments, trainer.generator, torch.device("meta"), "float32")
    tensors = [*trainer.model.parameters(), trainer.has_failed, trainer.failures]
    assert {tensor.device.type for tensor in tensors} == {"meta"} and trainer.reads_flag is False
    (part,) = Step(trainer).micro_batches({"input_ids": torch.zeros(2, 3), "labels": torch.zeros(2, 3)})
    assert {tensor.device.type for tensor in part.values()} == {"meta"}


def test_an_unavailable_device_is_rejected() -> None:
    with pytest.raises(ValueError, match="not available here"):
        choose_device("cuda:99")
    with pytest.raises(ValueError, match="'nonsense' is not available"):
        choose_device("nonsense")


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_stopped_and_resumed_run_gives_identical_tensors(tmp_path: Path, optimizer: OptimizerName) -> None:
    """Weights, moments and random states agree bit for bit, with dropout on."""
    train_to_end(tmp_path / "whole", optimizer=optimizer)
    path = tmp_path / "parts"
    path.mkdir()
    for stop in (7, 19, None):
        trainer, draw = new_trainer(path, optimizer=optimizer)
        if stop != 7:
            trainer.resume()

        def next_batch(trainer=trainer, stop=stop, draw=draw):
            if trainer.step == stop:
                os.kill(os.getpid(), signal.SIGTERM)
            return draw()

        if stop:
            with pytest.raises(KeyboardInterrupt):
                train(trainer, next_batch)
            assert load_checkpoint(path)[0]["step"] == stop + 1
        else:
            train(trainer, next_batch)
    (metadata_a, a), (metadata_b, b) = load_checkpoint(tmp_path / "whole"), load_checkpoint(path)
    assert metadata_a["step"] == metadata_b["step"] == 30
    assert a.keys() == b.keys()
    assert all(torch.equal(a[key], b[key]) for key in a)
    # The metrics of all three parts of the run are there, with each step once.
    steps = [step for step, _ in read_metrics(path)["loss"]]
    assert steps == sorted(set(steps))
    assert steps[-1] == 30
    assert {7 + 1, 19 + 1} <= set(steps)


@pytest.mark.parametrize(
    ("save_at", "stops_at", "number"),
    [(0, 1, signal.SIGINT), (30, 30, signal.SIGINT), (30, 30, signal.SIGTERM)],
)
def test_a_signal_during_the_first_or_last_save_stops_the_run(
    tmp_path: Path, save_at: int, stops_at: int, number: int
) -> None:
    """After the last save the run is complete, but its evaluation and its result could still take minutes."""
    trainer, draw = new_trainer(tmp_path)
    save = trainer.save

    def save_and_stop() -> None:
        if trainer.step == save_at:
            os.kill(os.getpid(), number)
        save()

    trainer.save = save_and_stop  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        train(trainer, draw)
    assert load_checkpoint(tmp_path)[0]["step"] == trainer.step == stops_at


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_an_ignored_signal_stays_ignored(tmp_path: Path, name: str) -> None:
    """A script that starts a program with `&` makes it ignore Ctrl-C, and `nohup` makes it ignore SIGHUP."""
    number = getattr(signal, name)
    before = signal.signal(number, signal.SIG_IGN)
    try:
        trainer, draw = new_trainer(tmp_path)
        train(trainer, lambda: (os.kill(os.getpid(), number), draw())[1])
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)
    assert trainer.step == 30


def test_resuming_with_another_configuration_is_rejected(tmp_path: Path) -> None:
    train_to_end(tmp_path / "run", width=16)
    trainer, _ = new_trainer(tmp_path / "run", width=32)
    message = "was started with width = 16, not 32; leave that option out to resume, or start a new run"
    with pytest.raises(ValueError, match=f"^{re.escape(str(tmp_path / 'run'))} {message}$"):
        trainer.resume()


@pytest.mark.parametrize(
    ("key", "text"),
    [("corpus", "the text"), ("old_corpus", "the old text"), ("start", "the model to continue")],
)
def test_resuming_with_another_text_is_rejected_unless_it_only_moved(
    tmp_path: Path, key: str, text: str
) -> None:
    values = {key: "a.txt", f"{key}_sha256": "1"}
    train(*new_trainer(tmp_path, steps=3, **values))
    new_trainer(tmp_path, steps=3, **{**values, key: "moved.txt"})[0].resume()
    message = f"{text} has changed since {tmp_path} was started; use it as it was, or start a new run"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        new_trainer(tmp_path, steps=3, **{**values, f"{key}_sha256": "2"})[0].resume()


def test_an_option_of_an_own_script_is_no_text(tmp_path: Path) -> None:
    values = {"weights": "a", "weights_sha256": "1"}
    train(*new_trainer(tmp_path, steps=3, **values))
    for name, before in values.items():
        with pytest.raises(ValueError, match=f"was started with {name} = {before}, not other"):
            new_trainer(tmp_path, steps=3, **{**values, name: "other"})[0].resume()


@pytest.mark.parametrize(
    ("threads", "processes", "cores", "expected"),
    [
        (2, 1, 2, 2),
        (1, 1, 2, 1),
        (0, 1, 2, 7),
        (10**6, 1, 2, 7),
        (2, 2, 2, 7),
        (..., ..., 2, 7),
        (..., 1, 2, 7),
        (1, 1, None, 1),
        (2, 1, None, 7),
    ],
)
def test_resuming_keeps_the_number_of_threads_if_the_machine_has_them(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    threads: Any,
    processes: Any,
    cores: int | None,
    expected: int,
) -> None:
    """
    The current number is 7. Checkpoints of older versions contain no numbers of threads and processes. Some
    systems don't say how many cores they have.
    """
    train(*new_trainer(tmp_path, steps=3))
    edit_checkpoint(tmp_path, threads=threads, processes=processes)
    current = [7]
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr(torch, "set_num_threads", current.append)
    trainer, _ = new_trainer(tmp_path, steps=3)
    trainer.resume()
    assert current[-1] == expected and trainer.step == 3


def test_resuming_restores_the_scale_of_float16(tmp_path: Path) -> None:
    train(*new_trainer(tmp_path, steps=3, precision="float16"))
    edit_checkpoint(tmp_path, scaler={**load_checkpoint(tmp_path)[0]["scaler"], "scale": 512.0})
    trainer, _ = new_trainer(tmp_path, steps=3, precision="float16")
    trainer.resume()
    assert trainer.scaler.get_scale() == 512.0


@pytest.mark.parametrize("scale", [1.0, 2.0**24])
def test_a_skipped_step_of_float16_does_not_count_for_the_missing_bias_correction(scale: float) -> None:
    """Without the correction, Adam's first update of each weight is (1 - beta1) / sqrt(1 - beta2) long."""
    trainer, next_batch = new_trainer(None, precision="float16")
    trainer.arguments = replace(trainer.arguments, adam_bias_correction=False, warmup_ratio=0.0)
    trainer.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    bias = trainer.model.cls.predictions.bias
    for step in trainer.steps():
        before = bias.detach().clone()
        train_on(step, next_batch())
        update = (bias - before).abs().max().item()
        if update > 0:
            break
    assert (step.number > 1) == (scale > 1)
    learning_rate = trainer.arguments.learning_rate_at(step.number / 30 - 1 / 30)
    assert update == pytest.approx(learning_rate * 0.1 / 0.001**0.5, rel=0.02)


def test_the_last_of_a_million_steps_is_evaluated() -> None:
    trainer, next_batch = new_trainer(None, steps=10**6)
    trainer.step = 10**6 - 3
    due = []
    for step in trainer.steps():
        train_on(step, next_batch())
        due.append(step.evaluation_due)
    assert due == [False, False, True]


def test_points_of_an_evaluation_can_be_in_any_order_and_at_the_start() -> None:
    trainer, next_batch = new_trainer(None, steps=4)
    milestones = []
    points: Any = (point for point in [1.0, 0.5, 0.0])
    for step in trainer.steps(points):
        train_on(step, next_batch())
        milestones.append(step.milestone)
    assert milestones == [0.0, 0.5, None, 1.0]


def test_a_resumed_run_does_not_repeat_a_milestone(tmp_path: Path) -> None:
    milestones = []
    for stop in (3, 10):
        trainer, next_batch = new_trainer(tmp_path, steps=10)
        if stop == 10:
            trainer.resume()
        for step in trainer.steps([0.1 + 0.2]):
            train_on(step, next_batch())
            milestones.append(step.milestone)
            if step.number == stop:
                break
        trainer.save()
    assert milestones == [None, None, 0.1 + 0.2, *[None] * 7]


def test_the_sum_of_a_16_bit_metric_keeps_growing() -> None:
    """In bfloat16, 256 + 1 is 256."""
    trainer, next_batch = new_trainer(None, steps=1)
    one = torch.ones((), dtype=torch.bfloat16)
    trainer.metric_sums, trainer.metric_steps = {"one": 256 * one}, 256
    reports: list[Report] = []
    trainer.on_report = reports.append
    for step in trainer.steps():
        for part in step.micro_batches(next_batch()):
            step.backward(trainer.parallel(**part).loss, one=one)
        step.update()
    assert reports[-1].metrics["one"] == 1


@pytest.mark.parametrize("optimizer", get_args(OptimizerName))
def test_a_run_with_a_parameter_without_gradient_can_be_resumed(
    tmp_path: Path, optimizer: OptimizerName
) -> None:
    results = []
    for stop in (30, 10, 30):
        path = tmp_path / str(len(results) > 0)
        path.mkdir(exist_ok=True)
        trainer, next_batch = new_trainer(path, optimizer=optimizer)
        unused = torch.nn.Linear(2, 2)
        trainer.model.add_module("unused", torch.nn.ModuleList([unused]))
        trainer.optimizers = make_optimizers(trainer.model, trainer.arguments)
        if len(results) == 2:
            trainer.resume()
        for step in trainer.steps():
            train_on(step, next_batch())
            if step.number == stop:
                trainer.save()
                break
        results.append(trainer.model.state_dict())
    assert all(torch.equal(value, results[2][name]) for name, value in results[0].items())


def test_a_parameter_in_another_memory_order_is_resumed_exactly(tmp_path: Path) -> None:
    """Some weights come from matrices that were transposed without a copy."""
    results = []
    for stop in (30, 10, 30):
        path = tmp_path / str(len(results) > 0)
        path.mkdir(exist_ok=True)
        trainer, next_batch = new_trainer(path)
        layer = trainer.model.bert.encoder.layer[0].intermediate.dense
        layer.weight.data = layer.weight.data.T.contiguous().T
        trainer.optimizers = make_optimizers(trainer.model, trainer.arguments)
        if len(results) == 2:
            trainer.resume()
            layer.weight.data = layer.weight.data.T.contiguous().T
        for step in trainer.steps():
            train_on(step, next_batch())
            if step.number == stop:
                trainer.save()
                break
        results.append(layer.weight.detach().clone())
    assert not layer.weight.is_contiguous() and torch.equal(results[0], results[2])


def test_a_parameter_that_is_a_slice_is_refused() -> None:
    """PyTorch's fused AdamW would write to the other columns."""
    arguments = TrainingArguments(steps=1)
    layer, joint = torch.nn.Linear(4, 4), torch.zeros(4, 12)
    for weight in (joint[:, :4], joint[::2, :], joint[:, :1].expand(4, 4)):
        layer.weight = torch.nn.Parameter(weight)
        with pytest.raises(ValueError, match="weight is a slice of another tensor; replace it with a copy"):
            make_optimizers(layer, arguments)
    for weight in (
        joint[:2],
        joint.T,
        torch.zeros(3, 1, 5).permute(2, 1, 0),
        torch.zeros(0, 4),
        joint[:, 0].clone(),
    ):
        layer.weight = torch.nn.Parameter(weight)
        make_optimizers(layer, arguments)


@pytest.mark.parametrize("optimizer", get_args(OptimizerName))
def test_another_default_type_does_not_matter(optimizer: OptimizerName) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        trainer, next_batch = new_trainer(None, steps=3, optimizer=optimizer)
        for step in trainer.steps():
            train_on(step, next_batch())
    finally:
        torch.set_default_dtype(torch.float32)
    assert trainer.step == 3 and trainer.model.cls.predictions.bias.dtype == torch.float64


def test_a_step_has_one_batch() -> None:
    """Otherwise, the batch that is saved for a replay could be another one than that of the failed loss."""
    trainer, next_batch = new_trainer(None)
    step = next(trainer.steps())
    for part in step.micro_batches(next_batch()):
        step.backward(trainer.parallel(**part).loss)
    with pytest.raises(AssertionError, match="call micro_batches once per step"):
        next(step.micro_batches(next_batch()))


def test_tensors_of_the_script_may_change_after_a_step(tmp_path: Path) -> None:
    trainer, next_batch = new_trainer(tmp_path, steps=4)
    trainer.arguments = replace(trainer.arguments, evaluations=1)
    reports: list[Report] = []
    trainer.on_report = reports.append
    batch, count = next_batch(), torch.zeros(())
    for step in trainer.steps():
        kept = trainer.pending[-1].batch["input_ids"].clone() if trainer.pending else None
        batch["input_ids"].random_(5, 30)
        assert kept is None or torch.equal(trainer.pending[-1].batch["input_ids"], kept)
        count += 1
        for part in step.micro_batches(batch):
            step.backward(trainer.parallel(**part).loss, count=count)
        step.update()
    assert reports[-1].metrics["count"] == 2.5


def test_gradients_from_before_the_training_do_not_count() -> None:
    results = []
    for has_gradients in (False, True):
        trainer, next_batch = new_trainer(None, steps=2)
        if has_gradients:
            trainer.model.eval()(torch.full((2, 8), 7)).logits.sum().backward()
            trainer.model.train()
            trainer.optimizers = make_optimizers(trainer.model, trainer.arguments)
        for step in trainer.steps():
            train_on(step, next_batch())
        results.append(trainer.model.cls.predictions.bias.detach().clone())
    assert results[0].any() and torch.equal(*results)


def test_parameters_that_are_not_trained_do_not_count_for_the_norm() -> None:
    """A parameter that is unfrozen later isn't trained, as in PyTorch. Its gradient must change nothing."""
    results = []
    for is_unfrozen in (False, True):
        trainer, next_batch = new_trainer(None, steps=3)
        model = trainer.model
        model.bert.encoder.requires_grad_(False)
        trainer = Trainer(model, trainer.arguments, trainer.generator, trainer.device)
        model.bert.encoder.requires_grad_(is_unfrozen)
        for step in trainer.steps():
            train_on(step, next_batch())
        results.append(trainer.model.cls.predictions.bias.detach().clone())
    assert results[0].any() and torch.equal(*results)


def test_a_stopped_trainer_can_go_on(tmp_path: Path) -> None:
    """In a notebook, a cell can be run again after Ctrl-C."""
    trainer, next_batch = new_trainer(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        for step in trainer.steps():
            train_on(step, next_batch())
            if step.number == 5:
                os.kill(os.getpid(), signal.SIGINT)
    assert trainer.step in (5, 6)
    train(trainer, next_batch)
    assert trainer.step == 30


def test_muon_needs_blocks() -> None:
    with pytest.raises(ValueError, match=r"Muon trains matrices in an nn\.ModuleList, and the model"):
        make_optimizers(
            torch.nn.Sequential(torch.nn.Linear(2, 2)), TrainingArguments(steps=1, optimizer="muon")
        )


def test_a_configuration_is_compared_as_it_was_saved(tmp_path: Path) -> None:
    configuration = {"lengths": (16, 32), "names": {1: "a"}, "rate": float("nan")}
    train_to_end(tmp_path / "run", **configuration)
    new_trainer(tmp_path / "run", **configuration)[0].resume()
    with pytest.raises(ValueError, match=r"started with lengths = \[16, 32\], not \[16\]"):
        new_trainer(tmp_path / "run", **{**configuration, "lengths": (16,)})[0].resume()
    for name in ("experiment", "corpus"):
        with pytest.raises(ValueError, match=f"{name} in the configuration is 3; it must be a string"):
            new_trainer(None, **{name: 3})


@pytest.mark.parametrize("point", [-0.1, 1.5, 50, float("nan")])
def test_a_point_outside_the_budget_is_refused(point: float) -> None:
    with pytest.raises(ValueError, match="use fractions of the budget, from 0 to 1"):
        next(new_trainer(None)[0].steps([0.5, point]))


@pytest.mark.skipif(not hasattr(signal, "SIGCONT"), reason="Windows doesn't suspend a process with a signal")
def test_the_time_in_which_a_run_is_suspended_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, next_batch = new_trainer(tmp_path)
    trainer.arguments = replace(trainer.arguments, steps=None, minutes=1.0)
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    lengths = []
    for step in trainer.steps():
        train_on(step, next_batch())
        lengths.append(step.number)
        now += 20.0
        if step.number == 2:
            now += 3600.0
            os.kill(os.getpid(), signal.SIGCONT)
    assert lengths == [1, 2, 3, 4, 5] and trainer.seconds == 80.0


def test_a_report_has_the_means_since_the_last_one() -> None:
    trainer, next_batch = new_trainer(None, steps=8)
    trainer.arguments = replace(trainer.arguments, evaluations=2)
    reports, losses = [], []
    trainer.on_report = reports.append
    trainer.on_step = lambda step: losses.append(step.loss.item())
    for step in trainer.steps():
        train_on(step, next_batch())
    assert [(report.step, report.progress, report.length) for report in reports] == [(4, 0.5, 16), (8, 1, 16)]
    for report, part in zip(reports, (losses[:4], losses[4:]), strict=True):
        assert report.metrics["loss"] == pytest.approx(sum(part) / 4)


@pytest.mark.parametrize("stop", [3, 20, 21])
def test_a_resumed_run_does_not_repeat_evaluations(tmp_path: Path, stop: int) -> None:
    """With 9 evaluations in 27 steps, a fraction such as 7/9 isn't exact."""
    due, milestones = [], []
    for last_step in (stop, 27):
        trainer, next_batch = new_trainer(tmp_path, steps=27)
        trainer.arguments = replace(trainer.arguments, evaluations=9)
        if last_step == 27:
            trainer.resume()
        for step in trainer.steps(evaluate_at=[7 / 9]):
            train_on(step, next_batch())
            due += [step.number] * step.evaluation_due
            milestones += [step.number] * (step.milestone is not None)
            if step.number == last_step:
                trainer.save()
                break
    assert due == [*range(3, 28, 3)] and milestones == [21]


def test_resuming_a_run_of_another_version_is_rejected(tmp_path: Path) -> None:
    """It's rejected even if the option that this version doesn't have is null."""
    train_to_end(tmp_path / "run", width=16)
    configuration = load_checkpoint(tmp_path / "run")[0]["configuration"]
    for other in ({**configuration, "new": None}, {}):
        edit_checkpoint(tmp_path / "run", configuration=other)
        with pytest.raises(ValueError, match="another version, which doesn't share the option"):
            new_trainer(tmp_path / "run", width=16)[0].resume()


def test_resuming_without_a_valid_checkpoint_is_rejected(tmp_path: Path) -> None:
    trainer, _ = new_trainer(tmp_path)
    with pytest.raises(ValueError, match="there is no run at"):
        trainer.resume()
    for junk in (b"", b"not a checkpoint at all", b"\x00" * 100):
        (tmp_path / CHECKPOINT).write_bytes(junk)
        with pytest.raises(ValueError, match="is damaged"):
            trainer.resume()


def test_an_incomplete_checkpoint_is_rejected(tmp_path: Path) -> None:
    train_to_end(tmp_path / "run", optimizer="muon")
    metadata, tensors = load_checkpoint(tmp_path / "run")
    path = tmp_path / "run" / CHECKPOINT
    adamw, *_, muon = sorted({name.rpartition(".")[0] for name in tensors if name.startswith("optimizer.")})
    moments = (f"{adamw}.", f"{adamw}.exp_avg_sq", f"{adamw}.step", f"{muon}.")
    for part in ("model.", "optimizer.", *moments, "random.torch", "random.data"):
        incomplete = {key: value for key, value in tensors.items() if not key.startswith(part)}
        write_tensors(path, incomplete, {"about": json.dumps(metadata)})
        with pytest.raises(ValueError, match="is incomplete"):
            new_trainer(tmp_path / "run", optimizer="muon")[0].resume()
    moment = next(name for name in tensors if name.endswith("exp_avg_sq") and tensors[name].dim() > 1)
    for wrong in (tensors[moment][:1], tensors[moment].int()):
        write_tensors(path, {**tensors, moment: wrong}, {"about": json.dumps(metadata)})
        with pytest.raises(ValueError, match="is incomplete"):
            new_trainer(tmp_path / "run", optimizer="muon")[0].resume()
    for changes in ({"threads": "two"}, {"threads": True}, {"step": 10**400}, {"seconds": 10**400}):
        (name,) = changes
        write_tensors(path, tensors, {"about": json.dumps({**metadata, **changes})})
        with pytest.raises(ValueError, match=rf"is damaged \({name} is .{{3,20}}\)"):
            load_checkpoint(tmp_path / "run")
    name, count = "model.bert.embeddings.word_embeddings.weight", f"{adamw}.step"
    wrong_weights = (tensors[name].T.contiguous(), tensors[name][:1], tensors[name].long())
    for key, wrong in (*((name, weight) for weight in wrong_weights), (count, torch.ones(3))):
        write_tensors(path, {**tensors, key: wrong}, {"about": json.dumps(metadata)})
        with pytest.raises(ValueError, match="is incomplete"):
            new_trainer(tmp_path / "run", optimizer="muon")[0].resume()
    for invalid_metadata in ([], None, {}, {**metadata, "configuration": "x"}, {**metadata, "step": "many"}):
        write_tensors(path, tensors, {"about": json.dumps(invalid_metadata)})
        with pytest.raises(ValueError, match="is damaged"):
            new_trainer(tmp_path / "run")[0].resume()


def test_the_last_metrics_are_on_disk_after_the_run(tmp_path: Path) -> None:
    train_to_end(tmp_path / "run")
    assert [step for step, _ in read_metrics(tmp_path / "run")["valid.loss"]] == [6, 12, 18, 24, 30]


def test_an_incompletely_written_checkpoint_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = train_to_end(tmp_path / "run")
    intact = (tmp_path / "run" / CHECKPOINT).read_bytes()

    calls, tensors = itertools.count(), len(load_checkpoint(tmp_path / "run")[1])

    def fill_the_disk(tensor: torch.Tensor) -> memoryview:
        # The checksum reads all tensors. Then they are written, and the disk is full after the first.
        if next(calls) > tensors:
            raise OSError(28, "No space left on device")
        return bytes_of(tensor)

    trainer.step = 31
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(files, "bytes_of", fill_the_disk)
        trainer.save()
    assert (tmp_path / "run" / CHECKPOINT).read_bytes() == intact
    assert load_checkpoint(tmp_path / "run")[0]["step"] == 30


@pytest.mark.processes
@pytest.mark.skipif(sys.platform == "win32", reason="Windows can't fork a process")
def test_a_forked_process_ends_at_sigterm(tmp_path: Path) -> None:
    """Otherwise a worker that a script starts in its loop could never be stopped."""
    trainer, _ = new_trainer(tmp_path, steps=1)
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with trainer.stoppable():
        child = os.fork()
        while not child:
            time.sleep(5)
            os._exit(0)
        os.kill(child, signal.SIGINT)  # Ctrl-C reaches the workers too, and the loop still needs them
        time.sleep(0.2)
        assert os.waitpid(child, os.WNOHANG) == (0, 0)
        os.kill(child, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
    signal.signal(signal.SIGTERM, before)
    assert trainer.stop_signal is None


# Forks a child for each line of input, so that the slow imports happen only once.
SAVE_FOREVER = """
import os, sys, torch
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.support.trainers import new_trainer
trainer, _ = new_trainer(Path(sys.argv[2]))
for line in sys.stdin:
    child = os.fork()
    while not child:
        trainer.step += 1
        with torch.no_grad():
            for p in trainer.model.parameters():
                p.fill_(trainer.step)
        trainer.save()
        # A kill can end a `print` between two of its parts.
        os.write(1, f"{os.getpid()} {trainer.step}\\n".encode())
    os.waitpid(child, 0)
    os.write(1, f"{child} 0\\n".encode())
"""


@pytest.mark.processes
def test_kills_while_saving(tmp_path: Path) -> None:
    """SIGKILL at any moment leaves a consistent checkpoint."""
    process = subprocess.Popen(
        [sys.executable, "-c", SAVE_FOREVER, str(Path(__file__).parents[2]), str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdin is not None and process.stdout is not None
        for attempt in range(20):
            process.stdin.write("go\n")
            process.stdin.flush()
            last_step = 0
            while last_step < 3:
                child, last_step = map(int, process.stdout.readline().split())
            time.sleep(0.0005 * attempt)
            os.kill(child, signal.SIGKILL)
            while (saved_step := int(process.stdout.readline().split()[1])) > 0:
                last_step = saved_step
            metadata, tensors = load_checkpoint(tmp_path)
            # Each child starts counting again, so a checkpoint of an earlier child would have another step.
            assert metadata["step"] in (last_step, last_step + 1)
            assert all(
                (value == metadata["step"]).all()
                for key, value in tensors.items()
                if key.startswith("model.")
            )
        process.stdin.close()


def test_a_nan_loss_stops_the_run_and_keeps_the_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    trainer, draw = new_trainer(tmp_path / "run")

    def next_batch_with_nan() -> dict[str, torch.Tensor]:
        if trainer.step == 12:
            with torch.no_grad():
                next(trainer.model.parameters()).fill_(float("nan"))
        return draw()

    with pytest.raises(NonFiniteLossError, match=r"; start a new run with a lower learning rate$"):
        train(trainer, next_batch_with_nan)
    metadata, tensors = load_checkpoint(tmp_path / "run")
    assert metadata["step"] <= 12
    assert all(value.isfinite().all() for key, value in tensors.items() if key.startswith("model."))
    # NaN isn't valid JSON.
    for line in (tmp_path / "run" / METRICS).read_text().splitlines():
        json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} in the log"))


def test_a_truncated_last_line_of_the_log_is_ignored(tmp_path: Path) -> None:
    train_to_end(tmp_path / "run")
    metrics = read_metrics(tmp_path / "run")
    assert {"loss", "accuracy", "seconds", "valid.loss"} <= set(metrics)
    assert [step for step, _ in metrics["valid.loss"]] == [6, 12, 18, 24, 30]
    with open(tmp_path / "run" / METRICS, "a") as file:
        file.write('{"step": 31, "loss": 2')
    assert read_metrics(tmp_path / "run") == metrics
    assert read_metrics(tmp_path) == {}


@pytest.mark.parametrize("bias_correction", [True, False])
def test_adam_matches_the_published_algorithm(tmp_path: Path, bias_correction: bool) -> None:
    """Compares with the update by hand, with weight decay for matrices only and one norm for clipping."""
    steps = 12
    trainer, next_batch = new_trainer(None)
    trainer.arguments = TrainingArguments(
        steps=steps,
        learning_rate=1e-2,
        weight_decay=0.3,
        warmup_ratio=0.25,
        max_grad_norm=0.5,
        adam_bias_correction=bias_correction,
    )
    trainer.model.eval()
    expected = {name: p.detach().clone().double() for name, p in trainer.model.named_parameters()}
    m = {name: torch.zeros_like(p) for name, p in expected.items()}
    v = {name: torch.zeros_like(p) for name, p in expected.items()}
    for step, trainer_step in enumerate(trainer.steps()):
        batch = next_batch()
        trainer.model(**batch).loss.backward()
        grads = {name: p.grad.double() for name, p in trainer.model.named_parameters()}
        norm = torch.stack([g.square().sum() for g in grads.values()]).sum().sqrt()
        trainer.model.zero_grad()
        learning_rate = 1e-2 * min(step / steps / 0.25, (1 - step / steps) / 0.75)
        # This learning rate doesn't include the factor that undoes the bias correction.
        assert trainer.optimizers[0].param_groups[0]["learning_rate"] == pytest.approx(learning_rate)
        for name, g in grads.items():
            g = g * min(1.0, 0.5 / (norm + 1e-6))
            m[name] = 0.9 * m[name] + 0.1 * g
            v[name] = 0.999 * v[name] + 0.001 * g * g
            mean, square = m[name], v[name]
            if bias_correction:
                mean, square = mean / (1 - 0.9 ** (step + 1)), square / (1 - 0.999 ** (step + 1))
            decay = 0.3 * expected[name] if expected[name].dim() > 1 else 0.0
            expected[name] = expected[name] - learning_rate * (mean / (square.sqrt() + 1e-6) + decay)
        train_on(trainer_step, batch)
        for name, p in trainer.model.named_parameters():
            assert torch.allclose(p.double(), expected[name], atol=2e-6), (step, name)


@pytest.mark.long
@pytest.mark.slow("the compiler traces the model anew for every number of masked tokens")
def test_a_compiled_model_takes_the_same_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is compiled to a graph but not to machine code, which would require a C++ compiler."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    final_states = []
    for is_compiled in (False, True):
        path = tmp_path / str(is_compiled)
        path.mkdir()
        first, next_batch = new_trainer(path, 3)
        arguments = replace(first.arguments, torch_compile=is_compiled)
        trainer = Trainer(first.model, arguments, first.generator, first.device, "float32", path)
        assert (trainer.parallel is trainer.model) is not is_compiled
        train(trainer, next_batch)
        final_states.append(trainer.model.state_dict())
    assert final_states[0].keys() == final_states[1].keys() == load_names(tmp_path / "True")
    for name, value in final_states[0].items():
        torch.testing.assert_close(final_states[1][name], value)


def load_names(path: Path) -> set[str]:
    """The parameter names in a checkpoint, including the aliases of tied ones."""
    names = {key.removeprefix("model.") for key in load_checkpoint(path)[1] if key.startswith("model.")}
    return names | set(ALIASES)
