"""
# How many threads?

On an idle machine, several threads usually train faster than one. If other programs use the same cores, each
step waits for the slowest thread, and one thread can be faster. One thread can also be faster for a small
model, because splitting a small matmul can take longer than computing it. So `--threads auto` times a few
steps to find the best number.

The number of threads determines the order of additions, and with it the last bits of a result. So checkpoints
contain the number of threads, and a resumed run keeps it.
"""

import copy
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from labml_bert.run.timing import summarize, time_in_turn
from labml_bert.training.device import Precision
from labml_bert.training.optimization import TrainingArguments
from labml_bert.training.trainer import Step, Trainer

MOST_THREADS = 1024


def read_threads(value: str) -> int | None:
    """
    Returns the number of threads that `--threads` names, or `None` for `auto` and `default`.

    Raises `ValueError` if `value` is neither `auto` nor `default` nor a number from 1 to 1,024.
    """
    if value in ("auto", "default"):
        return None
    if not value.isdecimal() or len(value) > 9 or not 1 <= int(value) <= MOST_THREADS:
        raise ValueError(f"threads is {value[:20]!r}; it must be auto, default or a number from 1 to 1,024")
    return int(value)


def thread_counts(most: int) -> list[int]:
    """The numbers of threads to try: the powers of two below `most`, and `most` itself."""
    return [*(2**i for i in range(most.bit_length()) if 2**i < most), most]


def time_threads(
    model: nn.Module,
    arguments: TrainingArguments,
    precision: Precision,
    generator: torch.Generator,
    draw_batch: Callable[[], dict[str, Tensor]],
) -> dict[int, float]:
    """
    ## Timing a few steps

    Times whole training steps on the CPU, in turn with each number of threads in `thread_counts`, up to as
    many as PyTorch uses now. Returns the median seconds per step for each number. The steps train a copy of
    `model` on one batch that `draw_batch` draws with `generator`. Afterwards, `generator` and
    PyTorch's default generator are in the same states as before. If there are several processes, all of them
    must call this function.
    """
    default = torch.get_num_threads()
    state = generator.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            batch = draw_batch()
            trainer = Trainer(copy.deepcopy(model), arguments, generator, torch.device("cpu"), precision)
            # At a learning rate of 0, a step takes as long as at any other, but the loss can't explode.
            for optimizer in trainer.optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = 0.0
            steps = {str(n): partial(train_with, n, trainer, batch) for n in thread_counts(default)}
            times = time_in_turn(steps, trainer.device)
    finally:
        torch.set_num_threads(default)
        generator.set_state(state)
    return {int(n): summarize(seconds)["median"] for n, seconds in times.items()}


def train_with(threads: int, trainer: Trainer, batch: dict[str, Tensor]) -> None:
    """Takes one training step with this number of threads."""
    torch.set_num_threads(threads)
    step = Step(trainer)
    for part in step.micro_batches(batch):
        with step.autocast():
            output = trainer.parallel(**part)
        step.backward(output.loss)
    step.update()
