r"""
# The training loop

What does training need besides a model? It needs an optimizer, a precision that is fast on the machine, a
budget, and a way to stop and resume as if nothing had happened. Each script has its own training loop.
This file provides the methods that the loop calls:

    for step in trainer.steps():                      # budget, clock, Ctrl-C, checkpoints
        batch = ...                                   # the script's data
        for part in step.micro_batches(batch):        # this process's rows, on its device
            with step.autocast():                     # 16 bits where that is fast
                output = trainer.parallel(**part)
            step.backward(output.loss)
        step.update()                                 # clip, check, optimizer

The budget is a number of steps or of minutes. With a budget of steps, a run on the CPU of one machine is
reproducible: the same seed gives the same bits. Even a difference in the last bits can grow over many steps.
Each of the following can change the result:

- a budget of minutes, because the learning rate and the sequence lengths then depend on the clock;
- a different number of threads, because numbers are then added in a different order;
- a different number of processes or micro-batches, for the same reason and because dropout masks change;
- a different processor, version of PyTorch or precision, or compiling the model in only one of the two runs
  or twice in one process, because numbers are then rounded differently;
- a GPU, because some sums, such as those in the gradient of attention, add numbers in the order in which
  threads finish;
- three or more processes, because the order in which their gradients are added isn't fixed.

`distributed.py` divides batches, `optimization.py` sets the learning rate, and `checkpoint.py` saves the run.
"""

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from labml_bert.stdout import discard_unread_output
from labml_bert.training.checkpoint import (
    CHECKPOINT,
    FAILED_STEP,
    HASHED,
    PendingStep,
    as_saved,
    load_checkpoint,
    other_value_error,
    remember_step,
    restore,
    save_checkpoint,
    save_failed_step,
)
from labml_bert.training.device import Precision, autocast, choose_precision, compile_model, count_updates
from labml_bert.training.distributed import (
    all_reduce_flag,
    all_reduce_max,
    all_reduce_sum,
    no_sync,
    rank,
    split_into_micro_batches,
    world_size,
    wrap_in_ddp,
)
from labml_bert.training.optimization import TrainingArguments, make_optimizers, set_learning_rate
from labml_bert.training.signals import handle_signals

# The default of `largest_loss`, in nats. For 400,000 tokens, a uniform prediction has a loss of only 12.9.
LARGEST_LOSS = 100.0


class Report(NamedTuple):
    """What the loop reports after each evaluation, before it stops, and otherwise at most once a second."""

    step: int
    """The number of steps taken so far, including those before a resume."""
    progress: float
    """The fraction of the budget spent, from 0 to 1."""
    seconds: float
    """The seconds since the first step's end, including evaluations and the time before a resume."""
    metrics: dict[str, float]
    """The mean of each metric, such as `loss`, since the last report. A step without it counts as 0."""
    evaluation: dict[str, float] | None
    """The result of the evaluation after this step, or `None` if there was none."""
    length: int
    """The length of the last batch's sequences, in tokens, including padding."""


class NonFiniteLossError(ArithmeticError):
    """The loss or its gradient was NaN or infinite, or the loss was too large. No parameter has changed."""


class Trainer:
    """
    ## The trainer

    The script draws its batches with `generator`, so the generator's state determines the next batches. If
    `precision` is `auto`, the hardware determines the precision. `configuration` describes the model and the
    run. Each checkpoint contains it, and `resume` rejects checkpoints with a different configuration. Give
    each run its own folder: a new run overwrites the checkpoints that it finds in `run_path`. Without a
    `run_path`, the trainer writes no files, which suits a few minutes of fine-tuning."""

    def __init__(
        self,
        model: nn.Module,
        arguments: TrainingArguments,
        generator: torch.Generator,
        device: torch.device,
        precision: Precision = "auto",
        run_path: Path | None = None,
        configuration: dict[str, Any] | None = None,
        largest_loss: float = LARGEST_LOSS,
    ):
        # A model that was loaded from a folder is in eval mode, so switch it to train mode.
        self.model = model.to(device).train()
        # Compiling or wrapping in DDP renames the parameters, so keep the plain model for checkpoints.
        self.parallel = wrap_in_ddp(compile_model(self.model) if arguments.torch_compile else self.model)
        self.arguments = arguments
        self.generator, self.device, self.largest_loss = generator, device, largest_loss
        self.precision = choose_precision(device, precision)
        # In float16, small gradients would underflow to zero. So the scaler multiplies the loss by a scale,
        # and later divides the gradients by the same scale. In the other precisions, the scaler does nothing.
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.precision == "float16")
        self.run_path, self.configuration = run_path, as_saved(configuration or {})
        # The list contains AdamW and, if the arguments choose it, Muon.
        self.optimizers = make_optimizers(model, arguments)
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        # The first failed step sets this flag to 1 for good. On a CPU or CUDA GPU, the fused AdamW reads the
        # flag on the device and skips its update if the flag is 1. So the loop needn't wait for the GPU.
        self.has_failed = torch.zeros((), dtype=torch.float32, device=device)
        self.reads_flag = device.type in ("cpu", "cuda")
        if self.reads_flag:
            self.optimizers[0].found_inf = self.has_failed  # type: ignore[attr-defined]
        # Counts the first failed step and all steps after it.
        self.failures = torch.zeros((), dtype=torch.float32, device=device)
        self.pending: list[PendingStep] = []
        self.step, self.seconds, self.last_report = 0, 0.0, 0.0
        self.start_time: float | None = None
        self.evaluation_points: list[float] = []
        self.milestones: list[float] = []
        self.metric_sums: dict[str, Tensor] = {}
        self.metric_steps = 0
        self.stop_signal: int | None = None
        self.is_stopping = False
        # In rank zero, the loop calls the listener `on_report` with each report. In all processes, it calls
        # the listener `on_step` after each step. On a GPU, reading a step's loss means waiting for the GPU.
        self.on_report: Callable[[Report], None] = lambda report: None
        self.on_step: Callable[[Step], None] = lambda step: None
        if rank() > 0:
            # With the same seed, all processes would use the same dropout masks for their different rows.
            torch.manual_seed(torch.initial_seed() + rank())

    @property
    def progress(self) -> float:
        """The fraction of the budget spent, from 0 to 1."""
        if self.arguments.steps is not None:
            return min(1.0, self.step / self.arguments.steps)
        assert self.arguments.minutes is not None
        return min(1.0, self.seconds / (60 * self.arguments.minutes))

    def autocast(self) -> torch.autocast:
        """In the block, matmuls run in this run's precision. PyTorch chooses the precision of other ops."""
        return autocast(self.device, self.precision)

    def steps(self, evaluate_at: Sequence[float] = ()) -> Iterator["Step"]:
        """
        ## The steps of a run

        Yields one `Step` after another until the budget is spent. Evaluations are due at regular intervals,
        and at each fraction of the budget in `evaluate_at`. If there are several processes, they run this
        loop in lockstep, and all of them must draw the same batches.

        In a run with a folder, Ctrl-C, SIGTERM and SIGHUP finish the step, save a checkpoint and raise
        `KeyboardInterrupt`. So only one such loop may run at a time. Raises `ValueError` for other fractions,
        and `NonFiniteLossError` if a loss or gradient isn't finite or a loss reaches `largest_loss`.
        """
        evaluate_at = sorted(evaluate_at)
        if not all(0 <= point <= 1 for point in evaluate_at):
            raise ValueError(f"evaluate_at is {evaluate_at}; use fractions of the budget, from 0 to 1")
        n = self.arguments.evaluations
        points = sorted({round(point, 9) for point in (*evaluate_at, *(i / n for i in range(1, n + 1)))})
        # The points are rounded to nine decimals, so compare them with a tolerance.
        self.evaluation_points = [p for p in points if p > self.progress + 1e-9 or self.progress == 0]
        self.milestones = [p for p in evaluate_at if p > self.progress + 1e-9 or self.progress == 0]
        self.start_time, self.stop_signal, self.is_stopping = None, None, False
        self.last_report = last_save = self.seconds
        with self.stoppable():
            self.save()
            # If an evaluation or a report uses up the minutes, the last evaluation follows one step later.
            while self.progress < 1 or self.evaluation_points:
                updates = count_updates(self.optimizers[0]) if self.scaler.is_enabled() else self.step
                set_learning_rate(self.optimizers, self.arguments, updates + 1, self.progress)
                step = Step(self)
                yield step
                self.on_step(step)
                if not step.report_due:
                    continue
                self.report(step)
                if self.is_stopping:
                    break
                if self.last_report - last_save > self.arguments.checkpoint_seconds:
                    self.save()
                    last_save = self.last_report
            self.check_pending_steps()
            self.save()
        # A signal can arrive in any process at any time, even during the last save.
        if any(all_reduce_max([float(self.stop_signal is not None)])):
            raise KeyboardInterrupt

    def report(self, step: "Step") -> None:
        """Reports the metrics, summed over processes and averaged over the steps since the last report."""
        self.read_clock()
        totals = all_reduce_sum([value.item() for value in self.metric_sums.values()])
        means = {key: total / self.metric_steps for key, total in zip(self.metric_sums, totals, strict=True)}
        self.metric_sums, self.metric_steps = {}, 0
        report = Report(self.step, self.progress, self.seconds, means, step.evaluation, step.length)
        if rank() == 0:
            self.on_report(report)
        # The time in `on_report` is part of the training time, so read the clock again.
        self.read_clock()
        self.last_report = self.seconds

    def read_clock(self) -> None:
        """
        Sets `seconds` from rank zero's clock, and sets `is_stopping` if any process was asked to stop. So all
        processes stop together. If one process stopped alone, the others would wait for it in the next step.
        """
        # The clock starts after the first step, because compiling the model can take longer than the warm-up.
        if self.start_time is None:
            self.start_time = time.monotonic() - self.seconds
        clock = time.monotonic() - self.start_time if rank() == 0 else 0.0
        self.seconds, stop = all_reduce_max([clock, float(self.stop_signal is not None)])
        self.is_stopping = stop > 0

    @contextlib.contextmanager
    def stoppable(self, handler: Callable[[int, FrameType | None], Any] | None = None) -> Iterator[None]:
        """In the main thread of a run with a folder, lets signals call `handler` or end the loop."""

        def remember(number: int, frame: FrameType | None) -> None:
            self.stop_signal = number
            discard_unread_output()
            # Compiling in the first step can take minutes. The checkpoint is up to date, so don't wait.
            if self.arguments.torch_compile and self.start_time is None and world_size() == 1:
                raise KeyboardInterrupt

        def restart_clock(number: int, frame: FrameType | None) -> None:
            # The process was suspended, for example by Ctrl-Z, and the time since then must not count.
            if self.start_time is not None:
                self.start_time = time.monotonic() - self.seconds

        handlers = dict.fromkeys(("SIGINT", "SIGTERM", "SIGHUP"), handler or remember)
        with handle_signals({**handlers, "SIGCONT": restart_clock} if self.run_path is not None else {}):
            yield

    def check_pending_steps(self) -> None:
        """
        ## When a loss explodes

        Checks that no step has failed since the last check. The loop calls this method before each report and
        at the end of the run. A failed step doesn't change the weights, and neither do the steps after it. We
        save these weights for `replay`, with the batch and the random states of the first failed step.

        Raises `NonFiniteLossError` if a loss or a gradient wasn't finite, or if a loss was too large.
        """
        pending, self.pending = self.pending, []
        # All steps after the first failed step count too, so that step is the `failures`-th from the end.
        (failures,) = all_reduce_max([self.failures.item()])
        if not failures:
            return
        step = self.step - int(failures) + 1
        cause = f"the loss or its gradient exploded or became NaN at step {step}"
        if self.run_path is None:
            raise NonFiniteLossError(f"{cause}; try a lower learning rate")
        if rank() == 0:
            metadata = {"step": step, "precision": self.precision, "configuration": self.configuration}
            save_failed_step(self.run_path, self.model, pending[-int(failures)], metadata)
        raise NonFiniteLossError(
            f"{cause}; the last good state is in {self.run_path / CHECKPOINT}, the step with its batch in "
            f"{FAILED_STEP} (see labml_bert.training.checkpoint.replay); "
            "start a new run with a lower learning rate"
        )

    def save(self) -> None:
        """Saves a checkpoint, if this run has a folder."""
        if self.run_path is not None:
            seconds = self.seconds
            if self.arguments.minutes is not None and self.evaluation_points:
                # The last evaluation is still due, even if another one has used up the budget.
                seconds = min(seconds, 60 * self.arguments.minutes * (1 - 1e-6))
            metadata = {
                "step": self.step,
                "seconds": seconds,
                "configuration": self.configuration,
                "scaler": self.scaler.state_dict(),
                "threads": torch.get_num_threads(),
                "processes": world_size(),
                "gradient_accumulation_steps": self.arguments.gradient_accumulation_steps,
                "torch_compile": self.arguments.torch_compile,
            }
            save_checkpoint(self.run_path, self.model, self.optimizers, self.generator, self.device, metadata)

    def resume(self) -> None:
        """
        Restores the last checkpoint in `run_path`, including its number of threads. Keeps the current number
        of threads if the machine has too few logical cores, or if the number of processes has changed.

        Raises `ValueError` if the checkpoint can't be read, is damaged, or has a different configuration.
        """
        assert self.run_path is not None
        state, tensors = load_checkpoint(self.run_path)
        before, now = state["configuration"], self.configuration
        # A text may have moved, so compare its checksum and not its path.
        now = now | {k: path for k, path in before.items() if k in HASHED and f"{k}_sha256" in before}
        if before != now:
            if one_sided := before.keys() ^ now.keys():
                raise ValueError(
                    f"{self.run_path} is a run of another version, which doesn't share the option "
                    f"{min(one_sided)}; resume it with that version, or start a new run"
                )
            key = next(key for key in before if before[key] != now[key])
            raise other_value_error(self.run_path, key, before[key], now[key])
        restore(self.run_path, tensors, state, self.model, self.optimizers, self.generator, self.device)
        self.step, self.seconds = state["step"], state["seconds"]
        # Checkpoints from older versions contain neither the scaler's state nor the number of threads.
        if state.get("scaler"):
            self.scaler.load_state_dict(state["scaler"])
        threads = state.get("threads", 0)
        if 0 < threads <= (os.cpu_count() or 1) and state.get("processes") == world_size():
            torch.set_num_threads(threads)


class Step:
    """
    ## One step

    `progress` is the fraction of the budget that was spent before this step. It determines the learning rate
    and, in most scripts, the sequence length. After `update`, `number` is the number of steps taken,
    including this one. In rank zero, `evaluation_due` then says whether to evaluate. If this step has reached
    a point in `evaluate_at`, `milestone` is that point. Other processes keep the initial values of both."""

    def __init__(self, trainer: Trainer):
        self.trainer = trainer
        self.number, self.progress = trainer.step, trainer.progress
        self.length = 0
        self.metrics: dict[str, Tensor] = {}
        self.evaluation: dict[str, float] | None = None
        self.evaluation_due = False
        self.milestone: float | None = None
        self.report_due = False

    @property
    def loss(self) -> Tensor:
        """The loss of this process's rows, a scalar. The losses of all processes add up to the batch's."""
        return self.metrics["loss"]

    def micro_batches(self, batch: dict[str, Tensor]) -> Iterator[dict[str, Tensor]]:
        """
        Yields this process's rows of the batch on the trainer's device, one micro-batch at a time. The losses
        of all micro-batches in all processes must add up to the loss of the batch. So every micro-batch
        contains the scalar tensors of the batch, such as `num_items_in_batch`, the common divisor.
        """
        trainer, count = self.trainer, self.trainer.arguments.gradient_accumulation_steps
        assert world_size() * count == 1 or "num_items_in_batch" in batch, (
            "a micro-batch needs num_items_in_batch, the number of labels in the whole batch"
        )
        assert not self.metrics, "call micro_batches once per step, with all rows of the step"
        self.length = batch["input_ids"].size(1) if "input_ids" in batch else 0
        if trainer.run_path is not None:
            trainer.pending.append(remember_step(batch, trainer.device))
        parts = split_into_micro_batches(batch, count)
        for i, part in enumerate(parts, 1):
            # DDP combines the gradients of all processes once per step, in the last backward pass.
            with no_sync(trainer.parallel) if i < len(parts) else contextlib.nullcontext():
                yield {key: value.to(trainer.device, non_blocking=True) for key, value in part.items()}

    def autocast(self) -> torch.autocast:
        """Calls `Trainer.autocast`."""
        return self.trainer.autocast()

    def backward(self, loss: Tensor | None, **metrics: Tensor) -> None:
        """
        Computes the gradient of `loss`, the scalar loss of a micro-batch, and adds this gradient to the
        step's gradient, which is a sum over all micro-batches and processes. `metrics` are other scalars to
        report. Like the losses, the metrics of all micro-batches are added up. In float16, `trainer.scaler`
        multiplies the loss by its scale. In other precisions, the scaler does nothing.
        """
        assert loss is not None, "the batch has no labels"
        # DDP averages the gradients of the processes, but we need their sum, so multiply by the world size.
        self.trainer.scaler.scale(world_size() * loss).backward()
        for key, value in {"loss": loss, **metrics}.items():
            value = value.detach()
            self.metrics[key] = self.metrics[key] + value if key in self.metrics else value

    def update(self) -> None:
        """
        Clips the gradient. Updates the weights unless a step has failed or this one overflowed in float16.

        Raises `NonFiniteLossError` if a check is due and finds a failed step.
        """
        trainer, scaler = self.trainer, self.trainer.scaler
        for optimizer in trainer.optimizers:
            scaler.unscale_(optimizer)
        # Clip with one norm over all parameters. A norm per optimizer could change the gradient's direction.
        norm = nn.utils.clip_grad_norm_(trainer.parameters, trainer.arguments.max_grad_norm)
        # `NaN < x` is always false, so a NaN loss makes `is_good` false. A finite loss can have infinite
        # gradients, and clipping by their infinite norm turns them into NaN. So check the norm too.
        # In float16, a scaled gradient may exceed 65,504, the largest float16 number. Then the scaler halves
        # the scale, and the update is skipped. To check for this overflow, we have to wait for the device.
        has_overflowed = scaler.is_enabled() and not norm < math.inf and scaler.get_scale() > 1
        is_finite = (norm < math.inf) | has_overflowed
        is_good = is_finite & (-math.inf < self.loss) & (world_size() * self.loss < trainer.largest_loss)
        trainer.has_failed.logical_or_(~is_good)
        # Each process knows only its part of the loss, but if one process skips an update, all must skip it.
        all_reduce_flag(trainer.has_failed)
        trainer.failures += trainer.has_failed
        adamw, *muon = trainer.optimizers
        if not has_overflowed and (trainer.reads_flag or not trainer.has_failed):
            adamw.step()
        # Muon, unlike the fused AdamW, can't read the flag on the device. So we wait for the flag here.
        if muon and not has_overflowed and not trainer.has_failed:
            muon[0].step()
        scaler.update()
        for optimizer in trainer.optimizers:
            optimizer.zero_grad()

        # The norm is the same in all processes, and a report adds up the norms, so divide by the world size.
        self.metrics["gradient_norm"] = norm.detach() / world_size() if not has_overflowed else 0 * self.loss
        sums = trainer.metric_sums  # in float32, because a sum of bfloat16 numbers stops growing at 256
        for key, value in self.metrics.items():
            sums[key] = sums.get(key, 0) + value.to(torch.promote_types(value.dtype, torch.float32))
        trainer.metric_steps += 1
        trainer.step += 1
        self.number = trainer.step
        trainer.read_clock()
        points = trainer.evaluation_points
        is_point = bool(points) and trainer.progress >= points[0] - 1e-9
        self.report_due = is_point or trainer.is_stopping or trainer.seconds - trainer.last_report > 1
        if self.report_due:
            trainer.check_pending_steps()
        if is_point:
            trainer.evaluation_points = [point for point in points if point > trainer.progress + 1e-9]
            # Only rank zero evaluates. The other processes wait for rank zero at the next collective call.
            self.evaluation_due = rank() == 0
            passed = [point for point in trainer.milestones if point <= trainer.progress + 1e-9]
            trainer.milestones = trainer.milestones[len(passed) :]
            self.milestone = passed[-1] if passed and self.evaluation_due else None
