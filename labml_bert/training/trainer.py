r"""
# The training loop

What does it take, apart from the model, to train one? An optimiser and a plan for its rate, a
precision that the machine is good at, a budget, and a way to stop and go on as if nothing had
happened. There is one loop, and every experiment uses it.

The rate follows the share $\tau$ of the budget that is spent. It rises to its peak over the first
$w$ and falls to zero at the end:

$$\eta(\tau) = \eta_{\max} \cdot \min\!\left(\frac{\tau}{w}, \frac{1 - \tau}{1 - w}\right)$$

The budget is steps or minutes. With steps a run is repeatable on one machine: the same seed gives the same
bits. Five things change the last bits, and in time all the others:

- a budget of minutes, as the rate and the lengths follow the clock;
- another number of threads, of processes or of turns, which add the same numbers in another order;
- another processor, another version of PyTorch or another precision, whose products differ in the last bit;
- a GPU, where some sums, as that of an embedding's gradient, are in the order in which its threads arrive;
- three processes or more, where the network decides who is added to whom.

The batch of a step can be cut in parts: one for each process that `torchrun` started, and in a process one
for each of its turns. The parts are pieces of one batch, not batches of their own. What is reported, clipped
and saved is that of the whole. How this is done stands in `distributed.py`.
"""

import contextlib
import io
import json
import math
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from labml_bert.files import read_tensors, write_tensors
from labml_bert.training.distributed import (
    gathered,
    largest,
    own_gpu,
    own_parts,
    parallel,
    rank,
    summed,
    unsynced,
    world_size,
)

CHECKPOINT = "checkpoint.safetensors"
# The checkpoint before it, for the day on which a disk gives back other bits.
PREVIOUS = "previous.safetensors"
# The last step of a run that failed, with its batch.
FAILED_STEP = "failed_step.safetensors"
# In nats. Who knows nothing at all loses the logarithm of the vocabulary, which is below 13.
LARGEST_LOSS = 100.0


@dataclass(frozen=True)
class TrainingArguments:
    """
    How to train, apart from what. Field names are those of `transformers.TrainingArguments` where it
    has them. Give `steps` or `minutes`; the clock of `minutes` counts everything between the first step and
    the last, evaluations too.

    Raises `ValueError` where a value makes no sense.
    """

    steps: int | None = None
    minutes: float | None = None
    learning_rate: float = 1e-4
    warmup_ratio: float = 0.01
    weight_decay: float = 0.01
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-6
    # The original left it out: the first steps are then several times too long, or too short.
    adam_bias_correction: bool = True
    max_grad_norm: float = 1.0
    # In how many turns a process goes through its rows of a batch: less memory, the same result.
    gradient_accumulation_steps: int = 1
    # Pays on a GPU, after a minute of compiling. On a CPU it needs a C++ compiler, and gave nothing.
    torch_compile: bool = False
    # How many evaluations, evenly over the run.
    evaluations: int = 20
    # Seconds of work that a killed run may lose.
    checkpoint_seconds: float = 30.0

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.minutes is None):
            raise ValueError("give a budget: either steps or minutes")
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"steps is {self.steps}; it must be at least 1")
        if self.minutes is not None and not 0 < self.minutes < math.inf:
            raise ValueError(f"minutes is {self.minutes}; it must be above 0 and finite")
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate is {self.learning_rate}; it must be above 0 and finite")
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"weight_decay is {self.weight_decay}; it must be 0 or more and finite")
        for name in ("adam_beta1", "adam_beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be in [0, 1)")
        if not 0 <= self.checkpoint_seconds < math.inf:
            raise ValueError(f"checkpoint_seconds is {self.checkpoint_seconds}; it must be 0 or more")
        if self.gradient_accumulation_steps < 1:
            raise ValueError(
                f"gradient_accumulation_steps is {self.gradient_accumulation_steps}; it must be at least 1"
            )
        if not 0 <= self.warmup_ratio < 1:
            raise ValueError(f"warmup_ratio is {self.warmup_ratio}; it must be in [0, 1)")

    def rate(self, progress: float) -> float:
        """The learning rate when the share `progress` of the budget is spent."""
        falling = (1 - progress) / (1 - self.warmup_ratio)
        rising = progress / self.warmup_ratio if self.warmup_ratio else math.inf
        return self.learning_rate * max(0.0, min(rising, falling))


def choose_device(name: str = "auto") -> torch.device:
    """
    ## Where to run

    `auto` is the GPU if there is one; of several, each process of `torchrun` has its own.

    Raises `ValueError` for a device that PyTorch does not know or that is not here.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda"):
        name = own_gpu(name)
    try:
        device = torch.device(name)
        # On "meta" a tensor has a shape and no numbers, and this raises too.
        torch.zeros(1, device=device).item()
    except Exception:  # Each backend that is not there has an error of its own.
        raise ValueError(f"device {name!r} is not available here; use --device cpu, or auto") from None
    return device


def has_fast_bfloat16(device: torch.device) -> bool:
    """
    ## Which precision

    bfloat16 has the range of float32 with 8 bits of precision. A processor that multiplies it in
    hardware does so several times faster; one that does not is far slower, so it is asked.
    """
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities()
    return device.type == "cpu" and any(capabilities.get(k) for k in ("amx_bf16", "avx512_bf16"))


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """
    ## What decays

    Weight decay pulls towards zero. That makes sense for matrices, and the original spares biases
    and LayerNorms. Both are exactly the parameters with one dimension. Each parameter must be in
    one group and in one only; old ports tested names that never matched, and decayed everything.

    Source: `AdamWeightDecayOptimizer` in `optimization.py` of
    [google-research/bert](https://github.com/google-research/bert).
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    decayed = [p for p in parameters if p.dim() > 1]
    spared = [p for p in parameters if p.dim() <= 1]
    assert {id(p) for p in decayed} | {id(p) for p in spared} == {id(p) for p in parameters}
    assert len(decayed) + len(spared) == len(parameters)
    return [
        {"params": decayed, "weight_decay": weight_decay, "decayed": True},
        {"params": spared, "weight_decay": 0.0, "decayed": False},
    ]


class Update(NamedTuple):
    """What the loop reports: about once a second, and after each evaluation."""

    step: int
    """Steps done."""
    progress: float
    """The share of the budget spent, 0 to 1."""
    seconds: float
    """Time spent training, over all resumes."""
    metrics: dict[str, float]
    """Means over the steps since the last update; `loss` is among them."""
    evaluation: dict[str, float] | None
    """The result of an evaluation, if there was one."""


class NonFiniteLossError(ArithmeticError):
    """The loss or the gradient became NaN or infinite, or the loss absurd. The step was not taken."""


class Attempt(NamedTuple):
    """A step that nobody has looked at yet, with all that it takes to do it again."""

    batch: dict[str, Tensor]
    random: dict[str, Tensor]


class HasLoss(Protocol):
    """What a model returns to the loop."""

    @property
    def loss(self) -> Tensor | None:
        """A scalar to descend, or `None` for a batch without labels."""


class Trainer:
    """
    ## The loop

    `configuration` says how the model was built. It is saved in each checkpoint, so that a folder
    with one is all that is needed to use the model or to go on.
    """

    def __init__(
        self,
        model: nn.Module,
        arguments: TrainingArguments,
        run_path: Path,
        configuration: dict[str, Any],
        generator: torch.Generator,
        device: torch.device,
        bfloat16: bool | None = None,
    ):
        """
        `generator` is the one from which batches are drawn; its state is saved as the position in
        the data. `bfloat16` of `None` asks the machine.
        """
        self.model = model.to(device)
        # What is called in a step. The model itself keeps the names of its parameters.
        called: Any = torch.compile(self.model) if arguments.torch_compile else self.model
        self.parallel = parallel(called)
        self.processes = world_size()
        self.arguments = arguments
        self.run_path = run_path
        self.configuration = configuration
        self.generator = generator
        self.device = device
        self.bfloat16 = has_fast_bfloat16(device) if bfloat16 is None else bfloat16
        self.optimizer = torch.optim.AdamW(
            parameter_groups(model, arguments.weight_decay),
            lr=arguments.learning_rate,
            betas=(arguments.adam_beta1, arguments.adam_beta2),
            eps=arguments.adam_epsilon,
            fused=True,
        )
        # 1 from the first step on that came to no good. The optimiser reads it on the device and then leaves
        # the weights alone, so nobody has to wait for the device in every step.
        self.failed = torch.zeros((), device=device)
        self.optimizer.found_inf = self.failed  # type: ignore[attr-defined]
        # In how many of the steps since the last look.
        self.failures = torch.zeros((), device=device)
        self.attempts: list[Attempt] = []
        # A loss of this size is no good either.
        self.largest_loss = LARGEST_LOSS
        self.step = 0
        self.seconds = 0.0
        self.stop_signal: int | None = None
        self.stopping = False
        self.began = 0.0
        if rank() > 0:
            # Else all processes would drop the same units of their different rows.
            torch.manual_seed(torch.initial_seed() + rank())

    @property
    def progress(self) -> float:
        """The share of the budget spent, 0 to 1."""
        if self.arguments.steps is not None:
            return min(1.0, self.step / self.arguments.steps)
        assert self.arguments.minutes is not None
        return min(1.0, self.seconds / (60 * self.arguments.minutes))

    def autocast(self) -> torch.autocast:
        """Matrix products in bfloat16 where that is fast, all else as it is."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.bfloat16)

    def train(
        self,
        next_batch: Callable[[float], dict[str, Tensor]],
        metrics: Callable[[Any, dict[str, Tensor]], dict[str, Tensor]],
        evaluate: Callable[[], dict[str, float]],
        evaluate_at: tuple[float, ...] = (),
    ) -> Iterator[Update]:
        """
        Trains until the budget is spent. `next_batch(progress)` gives the arguments of the model,
        `metrics(output, batch)` scalars to watch beside `output.loss`, `evaluate()` what the held-out text
        says. It is called at even distances and at each share of the budget in `evaluate_at`.

        Where a batch is cut in parts, the loss and the metrics of the parts must add up to those of the
        batch. A tensor without dimensions in the batch, such as `num_items_in_batch`, is there for that.

        With several processes, all go through this loop in step, and each must draw the same batches. Only
        the first evaluates.

        Ctrl-C and SIGTERM let the step end, save a checkpoint and raise `KeyboardInterrupt`.
        Raises `NonFiniteLossError` where the loss or the gradient is no number any more, or the loss is above
        `LARGEST_LOSS`.
        """
        n = self.arguments.evaluations
        marks = sorted({round(mark, 6) for mark in (*evaluate_at, *(i / n for i in range(1, n + 1)))})
        marks = [mark for mark in marks if mark > self.progress or self.progress == 0]
        sums: dict[str, Tensor] = {}
        count = 0
        self.save()
        self.began = time.monotonic() - self.seconds
        reported = saved = self.seconds
        with self.stoppable():
            while self.progress < 1:
                self.set_rate()
                batch = next_batch(self.progress)
                self.attempts.append(Attempt(batch, self.random_states()))
                values = self.train_step(batch, metrics)
                for key, value in values.items():
                    sums[key] = sums[key] + value if key in sums else value
                count += 1
                self.step += 1
                self.look_up()

                due = bool(marks) and self.progress >= marks[0]
                if due or self.stopping or self.seconds - reported > 1:
                    self.check_steps()
                    totals = summed([value.item() for value in sums.values()])
                    means = {key: total / count for key, total in zip(sums, totals, strict=True)}
                    evaluation = None
                    if due:
                        marks = [mark for mark in marks if mark > self.progress]
                        evaluation = evaluate() if rank() == 0 else None
                        self.look_up()
                    sums, count = {}, 0
                    update = Update(self.step, self.progress, self.seconds, means, evaluation)
                    if rank() == 0:
                        track(update)
                    yield update
                    # What the reader of the update did with the time is in the budget too.
                    self.look_up()
                    reported = self.seconds
                    if self.stopping or reported - saved > self.arguments.checkpoint_seconds:
                        self.save()
                        saved = reported
                    if self.stopping:
                        raise KeyboardInterrupt
        self.save()

    def look_up(self) -> None:
        """
        Reads the clock, and whether to stop. All processes go by the clock of the first, and where one is to
        stop all do; else one would wait for ever for the others' next step.
        """
        clock = time.monotonic() - self.began if rank() == 0 else 0.0
        self.seconds, stop = largest([clock, float(self.stop_signal is not None)])
        self.stopping = stop > 0

    def set_rate(self) -> None:
        r"""
        Puts the rate of this step into the optimiser.

        Adam divides its running means $m$ and $v$ by $1 - \beta^t$, since both begin at zero. The original
        does not. PyTorch always does, so its step is given a rate, an $\epsilon$ and a decay that undo it:

        $$\eta\, \frac{m}{\sqrt v + \epsilon} =
          \eta\, \frac{1 - \beta_1^t}{c} \cdot \frac{m / (1 - \beta_1^t)}{\sqrt v / c + \epsilon / c},
          \qquad c = \sqrt{1 - \beta_2^t}$$

        Source: `AdamWeightDecayOptimizer` in `optimization.py` of
        [google-research/bert](https://github.com/google-research/bert).
        """
        arguments, t = self.arguments, self.step + 1
        rate, epsilon, stretch = arguments.rate(self.progress), arguments.adam_epsilon, 1.0
        if not arguments.adam_bias_correction:
            c = math.sqrt(1 - arguments.adam_beta2**t)
            stretch = (1 - arguments.adam_beta1**t) / c
            epsilon = epsilon / c
        for group in self.optimizer.param_groups:
            decay = arguments.weight_decay if group["decayed"] else 0.0
            group["lr"], group["eps"] = rate * stretch, epsilon
            # AdamW multiplies the decay by the rate that it is given.
            group["weight_decay"] = decay / stretch

    def train_step(
        self, batch: dict[str, Tensor], metrics: Callable[[Any, dict[str, Tensor]], dict[str, Tensor]]
    ) -> dict[str, Tensor]:
        """
        One step down the gradient. Returns the loss and the metrics, still on the device; with several
        processes, what the rows of this one add to them.
        """
        values: dict[str, Tensor] = {}
        turns = self.arguments.gradient_accumulation_steps
        whole = self.processes * turns == 1
        assert whole or "num_items_in_batch" in batch, "the loss of a part must know the count of the batch"
        parts = own_parts(batch, turns)
        for i, part in enumerate(parts, 1):
            part = {key: value.to(self.device, non_blocking=True) for key, value in part.items()}
            with unsynced(self.parallel) if i < len(parts) else contextlib.nullcontext():
                with self.autocast():
                    output: HasLoss = self.parallel(**part)
                assert output.loss is not None
                # The processes' gradients will be averaged, and their sum is wanted.
                (self.processes * output.loss).backward()
            for key, value in {"loss": output.loss.detach(), **metrics(output, part)}.items():
                values[key] = values[key] + value if key in values else value
        # One norm over all parameters together: clipping each by itself would turn the direction.
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.arguments.max_grad_norm)
        # Every comparison with NaN is false. A finite loss can have a gradient that is not, and clipping by
        # such a norm makes every weight NaN.
        good = (norm < math.inf) & (self.processes * values["loss"] < self.largest_loss)
        self.failed.logical_or_(~good)
        self.failures += self.failed
        self.optimizer.step()
        self.optimizer.zero_grad()
        return values

    def check_steps(self) -> None:
        """
        ## When the numbers go wrong

        Looks, once a second, whether all steps since the last look went well. Where one did not, the weights
        are still those before it. It is saved with its batch and its random numbers, and `replay` does it
        again.

        Raises `NonFiniteLossError` where a step did not go well.
        """
        attempts, self.attempts = self.attempts, []
        # From the first bad step on all are left out, and those of this look are the last ones.
        (failures,) = largest([self.failures.item()])
        if not failures:
            return
        count = int(failures)
        attempt, step = attempts[-count], self.step - count + 1
        if rank() == 0:
            tensors = {f"batch.{key}": value for key, value in attempt.batch.items()}
            tensors |= {f"model.{key}": value for key, value in self.named_tensors().items()}
            tensors |= {random_name(kind, 0): state for kind, state in attempt.random.items()}
            about = {"step": step, "bfloat16": self.bfloat16, "configuration": self.configuration}
            write_tensors(self.run_path / FAILED_STEP, tensors, {"about": json.dumps(about)})
        saved = self.run_path / CHECKPOINT
        raise NonFiniteLossError(
            f"the loss or its gradient exploded or is no number at step {step}; the last good state is in "
            f"{saved}, the step with its batch in {FAILED_STEP} (see labml_bert.training.trainer.replay); "
            "start a new run with a lower learning rate"
        )

    def named_tensors(self) -> dict[str, Tensor]:
        """The weights by name. Not the `state_dict`, which names a tied tensor twice."""
        return dict([*self.model.named_parameters(), *self.model.named_buffers()])

    def random_states(self) -> dict[str, Tensor]:
        """Of the generators that drop units, by kind of device."""
        states = {"torch": torch.get_rng_state()}
        if self.device.type == "cuda":
            states["cuda"] = torch.cuda.get_rng_state(self.device)
        return states

    @contextlib.contextmanager
    def stoppable(self) -> Iterator[None]:
        """Turns Ctrl-C and SIGTERM into a wish that the loop grants between two steps."""

        def remember(number: int, frame: FrameType | None) -> None:
            self.stop_signal = number

        before = {number: signal.signal(number, remember) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def save(self) -> None:
        """
        ## Checkpoints

        All that the next step depends on: weights, both moments of Adam, the state of every random
        generator, the step and the clock. It is one file, written under another name and then
        renamed. So at any moment the file under its own name is whole, whatever happens to us. The one before
        it is kept too.

        All processes have the same weights, and each drops units by random numbers of its own. The first
        gathers these and writes the file.
        """
        states = {
            random_name(kind, number): state
            for kind, own in self.random_states().items()
            for number, state in enumerate(gathered(own))
        }
        if rank() > 0:
            return
        tensors = {f"model.{key}": value for key, value in self.named_tensors().items()}
        for index, state in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{key}": value for key, value in state.items()}
        tensors |= {**states, "random.data": self.generator.get_state()}
        about = {"step": self.step, "seconds": self.seconds, "configuration": self.configuration}
        path, previous = self.run_path / CHECKPOINT, self.run_path / PREVIOUS
        if path.is_file():
            # A second name for the same file, so that there is no moment without a checkpoint. A disk that
            # knows no second names keeps one checkpoint only.
            second = previous.with_suffix(".part")
            with contextlib.suppress(OSError):
                second.unlink(missing_ok=True)
                os.link(path, second)
                os.replace(second, previous)
        write_tensors(path, tensors, {"about": json.dumps(about)})

    def resume(self) -> None:
        """
        Goes back to the last checkpoint of `run_path`. It may be of another number of processes; one that was
        not there then keeps the random numbers that it began with.

        Raises `ValueError` where it is not there, is damaged, or belongs to another configuration.
        """
        about, tensors = load_checkpoint(self.run_path)
        if about["configuration"] != self.configuration:
            before, now = about["configuration"], self.configuration
            key = next(key for key in [*before, *now] if before.get(key) != now.get(key))
            raise ValueError(
                f"{self.run_path} was made with {key} = {before.get(key)}, not {now.get(key)}; "
                "leave that option out to go on, or start a new run"
            )
        try:
            self.model.load_state_dict(part_of(tensors, "model."))
            self.optimizer.load_state_dict(
                {
                    "state": {
                        index: part_of(tensors, f"optimizer.{index}.")
                        for index in {
                            int(key.split(".")[1]) for key in tensors if key.startswith("optimizer.")
                        }
                    },
                    "param_groups": self.optimizer.state_dict()["param_groups"],
                }
            )
            self.generator.set_state(tensors["random.data"])
            own, own_cuda = random_name("torch", rank()), random_name("cuda", rank())
            if rank() == 0 or own in tensors:
                torch.set_rng_state(tensors[own])
            if own_cuda in tensors and self.device.type == "cuda":
                torch.cuda.set_rng_state(tensors[own_cuda], self.device)
            complete = {f"optimizer.{i}.exp_avg" for i, _ in enumerate(self.model.parameters())}
            if about["step"] > 0 and not complete <= tensors.keys():
                raise KeyError("a moment of Adam is missing")
        except (KeyError, RuntimeError, TypeError, ValueError):
            raise ValueError(f"{self.run_path / CHECKPOINT} is incomplete; start a new run") from None
        self.step, self.seconds = about["step"], about["seconds"]


def random_name(kind: str, number: int) -> str:
    """What the state of a generator is called in a checkpoint: `random.torch`, of rank 1 `random.torch.1`."""
    return f"random.{kind}.{number}" if number else f"random.{kind}"


def part_of(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose name starts with `prefix`, without it."""
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}


def load_checkpoint(run_path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """
    What `Trainer.save` wrote: a dictionary with `step`, `seconds` and `configuration`, and the tensors
    by name.

    Raises `ValueError` where there is no checkpoint or it is damaged. Where the one before it is whole, the
    message says how to go on from there.
    """
    path, previous = run_path / CHECKPOINT, run_path / PREVIOUS
    if not path.is_file():
        raise ValueError(
            f"there is no run at {run_path} (no {CHECKPOINT}); give the folder that a run printed"
        )
    try:
        return read_checkpoint(path)
    except ValueError as error:
        try:
            step = read_checkpoint(previous)[0]["step"]
        except ValueError:
            raise ValueError(f"{error}; start a new run") from None
        raise ValueError(
            f"{error}; the one before it, of step {step}, is whole: rename {PREVIOUS} to {CHECKPOINT}"
        ) from None


def read_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """One file of `load_checkpoint`. Raises `ValueError` where it is damaged."""
    tensors, metadata = read_tensors(path)
    try:
        about = json.loads(metadata["about"])
        about["configuration"].items()
        if not (isinstance(about["step"], int) and about["step"] >= 0 and 0 <= about["seconds"] < math.inf):
            raise ValueError(f"step {about['step']} at {about['seconds']} seconds")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{path} is damaged ({error})") from None
    return about, tensors


def replay(run_path: Path, model: nn.Module) -> tuple[float, dict[str, float]]:
    """
    ## The step that failed, again

    Puts the weights of then into `model`, does the forward and backward pass with the batch and the random
    numbers of then, and takes no step. Returns the loss, and for each parameter the norm of its gradient; the
    first that is no number tells where it began. `model` is of the class and the sizes of the run, on any
    device:

        saved = json.loads(read_tensors(run_path / FAILED_STEP)[1]["about"])["configuration"]
        loss, norms = replay(run_path, BertForMaskedLM(BertConfig(**saved["model"])))

    With one process on the same device the numbers are those of then. The batch of several processes is done
    in one go, with other units dropped.

    Raises `ValueError` where there is no such step, it is damaged, or it is of another model.
    """
    path = run_path / FAILED_STEP
    if not path.is_file():
        raise ValueError(f"no step has failed in {run_path} (no {FAILED_STEP})")
    tensors, metadata = read_tensors(path)
    device = next(model.parameters()).device
    try:
        model.load_state_dict(part_of(tensors, "model."))
    except RuntimeError:
        raise ValueError(f"{path} is of another model; build it from the configuration in the file") from None
    torch.set_rng_state(tensors[random_name("torch", 0)])
    if device.type == "cuda" and random_name("cuda", 0) in tensors:
        torch.cuda.set_rng_state(tensors[random_name("cuda", 0)], device)
    batch = {key: value.to(device) for key, value in part_of(tensors, "batch.").items()}
    model.train()
    model.zero_grad()
    with torch.autocast(device.type, torch.bfloat16, enabled=json.loads(metadata["about"])["bfloat16"]):
        loss: Tensor = model(**batch).loss
    loss.backward()
    named = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return loss.item(), {name: grad.norm().item() for name, grad in named.items()}


@contextlib.contextmanager
def other_home() -> Iterator[None]:
    """labml insists on a folder `~/.labml` with a name for this computer. It gets one that goes again."""
    from labml.internal.computer import configs

    # Of an earlier run in this process.
    configs._internal = None
    before = os.environ.get("HOME")
    with tempfile.TemporaryDirectory() as home:
        os.environ["HOME"] = home
        try:
            yield
        finally:
            if before is None:
                del os.environ["HOME"]
            else:
                os.environ["HOME"] = before


@contextlib.contextmanager
def tracked(run_path: Path, configuration: dict[str, Any]) -> Iterator[None]:
    """
    ## Tracking

    [labml](https://github.com/labmlai/labml) keeps a run's configuration, the commit and its metrics.
    Everything stays in `run_path`, on this disk: `configs.yaml`, `run.yaml`, and the metrics in
    `log.jsonl`, which `read_metrics` reads. No server is asked.
    """
    from labml import experiment, lab
    from labml.internal.tracker.writers import file as file_writer

    # Left alone, labml writes rarer and rarer, up to a minute apart, and a killed run loses that. It goes by
    # the clock on the wall, too, which somebody may set back. So it is to write what it gets when it gets it.
    file_writer.FREQUENCY = -math.inf
    # Left by a run that was killed; labml insists on making it anew.
    pid = run_path / "run.pid"
    pid.unlink(missing_ok=True)
    log = run_path / "log.jsonl"
    if log.is_file() and log.stat().st_size and not log.read_bytes().endswith(b"\n"):
        # Cut off in the middle of a line, to which the next one would be added.
        with open(log, "a") as file:
            file.write("\n")
    send = file_writer.FileWriterThread._send

    def send_or_say(*packet: Any) -> None:
        try:
            send(*packet)
        except OSError as error:
            # In a thread of labml, where nobody would hear it.
            log_failures.append(error)

    log_failures.clear()
    file_writer.FileWriterThread._send = send_or_say
    lab.configure({"experiments_path": str(run_path.parent.parent.resolve())})
    # What labml prints at the start, our own header says better.
    with contextlib.redirect_stdout(io.StringIO()), other_home():
        experiment.create(uuid=run_path.name, name=run_path.parent.name, writers={"file"})
        experiment.configs(dict(configuration))
        watcher = experiment.start()
    try:
        with watcher:
            yield
    finally:
        # labml hands the last metrics to a thread and does not wait for it; whoever reads the file
        # next would miss them.
        for thread in threading.enumerate():
            if isinstance(thread, file_writer.FileWriterThread):
                # On a full disk labml itself does not come to the end at which it would say so.
                thread.push("done")
                thread.join()
        file_writer.FileWriterThread._send = send
        pid.unlink(missing_ok=True)
    if log_failures:
        raise log_failures[0]


# What went wrong with `log.jsonl`.
log_failures: list[OSError] = []


def track(update: Update) -> None:
    """
    Hands an update to labml: training metrics by their name, held-out ones as `valid.…`.

    Raises `OSError` where an earlier one could not be written.
    """
    from labml import tracker

    if log_failures:
        raise log_failures[0]
    held_out = {f"valid.{key}": value for key, value in (update.evaluation or {}).items()}
    tracker.save(update.step, {"seconds": update.seconds, **update.metrics, **held_out})


def read_metrics(run_path: Path) -> dict[str, list[tuple[int, float]]]:
    """
    All metrics of a run by name, each a list of `(step, value)` in order of the steps. Where a run was
    killed and went on from its checkpoint, the later value of a step counts, and a last line that
    was cut off is passed over.
    """
    found: dict[str, dict[int, float]] = {}
    log = run_path / "log.jsonl"
    for line in log.read_text(encoding="utf-8").splitlines() if log.is_file() else []:
        try:
            packet = json.loads(line)["track"]
        except (ValueError, KeyError):
            continue
        for name, points in packet.items():
            for step, values in points:
                found.setdefault(name, {})[step] = sum(values) / len(values)
    return {name: sorted(points.items()) for name, points in found.items()}
