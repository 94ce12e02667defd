r"""
# Data parallelism

How do several GPUs train one model? Each one has a copy of the model, in a process of its own. In each step,
the processes divide the rows of the batch between them. They sum their gradients and take the same step from
the same weights, so the copies stay equal. PyTorch's `DistributedDataParallel` does this. `torchrun` starts
the processes and gives each one a number, its *rank*:

    torchrun --nproc_per_node 2 experiments/mlm_tiny.py

The result shouldn't depend on the number of processes. Three things ensure that:

- **Every process draws the whole batch** and keeps its own rows. Drawing costs little next to training. All
  the generators are then in the same state, so a checkpoint needs only one state, and a run can be resumed
  with a different number of processes.
- **Means are over the whole batch.** Masked tokens aren't distributed evenly over the rows. If one half of
  the batch has 10 of them and the other half has 30, the mean of the two means gives each of the 10 three
  times the weight. So each process divides the *sum* over its rows by the count in all rows. It knows that
  count, because it has all the labels. The parts then add up:
  $$\mathcal L = \frac{1}{M} \sum_{r} \sum_{i \in \text{rows of } r} -\log p_i$$
  `transformers` calls $M$, the number of masked tokens in the batch, `num_items_in_batch`.
- **Gradients are summed.** `DistributedDataParallel` takes their mean, which is the sum divided by the world
  size. So each process multiplies its loss by the world size first.

If memory is short, a process can divide its rows again, into micro-batches, with
`gradient_accumulation_steps`. A micro-batch is one more part of the batch, and the same sums hold.

Only rank zero prints, evaluates and writes files. The others wait for it.
"""

import contextlib
import gc
import io
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

T = TypeVar("T")

# How long a process may take to save the run after `torchrun` was killed.
SECONDS_TO_SAVE = 600

# After this time without a heartbeat, a process is killed.
SECONDS_WITHOUT_HEARTBEAT = 600

# Set once this process needs no other one any more.
is_done = threading.Event()


def rank() -> int:
    """The rank of this process; 0 without `torchrun`."""
    return int(os.environ["RANK"]) if dist.is_torchelastic_launched() else 0


def world_size() -> int:
    """The number of processes; 1 before `init_process_group` and after `destroy_process_group`."""
    return dist.get_world_size() if dist.is_initialized() else 1


def launcher() -> list[str]:
    """The words between `python` and the script that start this run again: `torchrun`, or nothing."""
    if not dist.is_torchelastic_launched():
        return []
    return ["-m", "torch.distributed.run", "--nproc_per_node", os.environ["LOCAL_WORLD_SIZE"]]


def local_gpu(name: str) -> str:
    """
    ## One GPU per process

    Returns the GPU of this process. Under `torchrun`, `cuda` means the GPU whose number is the local rank of
    the process. Any other `name` is returned unchanged.

    Raises `ValueError` if processes would share a GPU.
    """
    if not dist.is_torchelastic_launched():
        return name
    processes, gpus = int(os.environ["LOCAL_WORLD_SIZE"]), torch.cuda.device_count()
    if processes > gpus:
        raise ValueError(
            f"{processes} processes and {gpus} GPUs; start one process per GPU, or use --device cpu"
        )
    if name != "cuda" and processes > 1:
        raise ValueError(f"{name} is one GPU for {processes} processes; use --device cuda")
    return f"cuda:{os.environ['LOCAL_RANK']}" if name == "cuda" else name


def backend_for(device: torch.device) -> str:
    """NCCL for tensors on GPUs, and Gloo for tensors on the CPU, such as the clock."""
    return "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"


def init_process_group(device: torch.device) -> None:
    """Connects to the other processes, if `torchrun` started this one."""
    if not dist.is_torchelastic_launched():
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if rank() > 0:
        # Until training begins, only rank zero handles Ctrl-C.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # The others may wait for a long time while rank zero prepares a large text or evaluates. They don't need
    # a short timeout: if a process dies, `torchrun` ends the rest.
    dist.init_process_group(backend_for(device), timeout=timedelta(days=7))
    threading.Thread(target=stop_after_launcher, args=[os.getppid()], daemon=True).start()
    store = launcher_store()
    store.set(f"process id {rank()}", str(os.getpid()))
    threading.Thread(target=kill_stopped_neighbor, args=[store], daemon=True).start()


def kill_stopped_neighbor(store: Any) -> None:
    """
    Kills the next process on this machine if it has no heartbeat for `SECONDS_WITHOUT_HEARTBEAT`, because
    SIGSTOP or a debugger stopped it. Otherwise, all the others would wait for it. Then `torchrun` ends the
    run. The loop counts only seconds in which this process itself runs, so you can suspend all processes for
    as long as you like.
    """
    local_rank, local_size = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    neighbor = rank() - local_rank + (local_rank + 1) % local_size
    beats, seconds_without = 0, 0
    # If the store is gone, so is the launcher that has it.
    with contextlib.suppress(RuntimeError):
        process_id = int(store.get(f"process id {neighbor}"))
        while neighbor != rank() and not is_done.wait(1):
            store.add(f"heartbeats {rank()}", 1)
            last_beats, beats = beats, store.add(f"heartbeats {neighbor}", 0)
            seconds_without = seconds_without + 1 if beats == last_beats else 0
            if seconds_without == SECONDS_WITHOUT_HEARTBEAT:
                os.kill(process_id, signal.SIGKILL)


def stop_after_launcher(launcher_id: int) -> None:
    """
    Waits until `torchrun` ends. If it's killed, it can't stop the processes that it has started, so each one
    sends SIGTERM to itself: they save the run and end. A process that is stuck waiting for another one
    can't save, so it's ended after `SECONDS_TO_SAVE`.
    """
    while os.getppid() == launcher_id:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(SECONDS_TO_SAVE)
    os._exit(1)


def has_lost_another(error: BaseException) -> bool:
    """Whether the error says only that another process has ended."""
    # Gloo has no exception type of its own.
    return isinstance(error, dist.DistError) or any(
        words in str(error) for words in ("Connection closed by peer", "Connection reset by peer")
    )


def destroy_process_group() -> None:
    """Disconnects from the other processes. Delete the model that `wrap_in_ddp` returned before this call."""
    if dist.is_initialized():
        dist.barrier()
        is_done.set()
        dist.destroy_process_group()
        # Any reference to the group keeps its thread alive, which would abort the interpreter at exit.
        gc.collect()


@contextlib.contextmanager
def rank_zero_first() -> Iterator[None]:
    """
    ## Rank zero first

    Runs the block in rank zero, then in all other processes. They find on disk what rank zero has downloaded
    or built. All processes leave the block together.
    """
    if world_size() == 1:
        yield
        return
    if rank() > 0:
        dist.barrier()
    yield
    if rank() == 0:
        dist.barrier()
    dist.barrier()


def broadcast_from_rank_zero(function: Callable[[], T]) -> T:
    """Calls `function` in rank zero only, and returns its result, which isn't `None`, in all processes."""
    results = [function() if rank() == 0 else None]
    if world_size() > 1:
        dist.broadcast_object_list(results)
    assert results[0] is not None
    return results[0]


@contextlib.contextmanager
def only_rank_zero_prints() -> Iterator[None]:
    """Silences all processes but rank zero, for a block that prints the same in all of them."""
    if rank() == 0:
        yield
        return
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def launcher_store() -> Any:
    """What all processes share. The launcher keeps it, because it outlives them all."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.TCPStore(address, port, is_master=False)  # type: ignore[attr-defined]


def is_first_to_fail() -> bool:
    """
    Whether this process is the first one that calls this function. If a process fails, the others fail with
    it, and only the first one knows why.
    """
    return not dist.is_torchelastic_launched() or launcher_store().add("failed", 1) == 1


def wrap_in_ddp(model: nn.Module) -> nn.Module:
    """
    ## Dividing a step

    With several processes, wraps `model` so that the backward pass averages their gradients.
    """
    return DistributedDataParallel(model) if world_size() > 1 else model


def no_sync(model: nn.Module) -> AbstractContextManager[None]:
    """For all micro-batches of a step but the last, so that the processes exchange gradients only once."""
    return model.no_sync() if isinstance(model, DistributedDataParallel) else contextlib.nullcontext()


def split_into_micro_batches(batch: dict[str, Tensor], count: int) -> list[dict[str, Tensor]]:
    """
    Returns the rows of this process in `count` micro-batches, whose sizes differ by at most one row. A tensor
    without dimensions describes the whole batch, and every micro-batch contains it.
    """
    total, first = world_size() * count, rank() * count
    parts = {key: v.tensor_split(total) if v.dim() else [v] * total for key, v in batch.items()}
    return [{key: split[i] for key, split in parts.items()} for i in range(first, first + count)]


def all_reduce_sum(values: list[float]) -> list[float]:
    """The sum of each number over all processes."""
    return all_reduce(values, dist.ReduceOp.SUM)


def all_reduce_max(values: list[float]) -> list[float]:
    """The maximum of each number over all processes."""
    return all_reduce(values, dist.ReduceOp.MAX)


def all_reduce(values: list[float], operation: dist.ReduceOp.RedOpType) -> list[float]:
    """Combines each number over all processes. All processes get the result."""
    if world_size() == 1:
        return values
    tensor = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(tensor, operation)
    return tensor.tolist()


def all_reduce_flag(flag: Tensor) -> None:
    """Sets a tensor of zeros and ones to the maximum over all processes, on its device."""
    if world_size() > 1:
        dist.all_reduce(flag, dist.ReduceOp.MAX)


def all_gather(tensor: Tensor) -> list[Tensor]:
    """The tensors of all processes, in the order of their ranks. They must have the same shape."""
    if world_size() == 1:
        return [tensor]
    tensors = [torch.empty_like(tensor) for _ in range(world_size())]
    dist.all_gather(tensors, tensor)
    return tensors
