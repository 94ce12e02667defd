r"""
# Data parallelism

How do several GPUs train one model? Each GPU has a process of its own with a copy of the model. In each step,
the processes divide the rows of the batch among themselves. Then they sum their gradients. All processes take
the same step from the same weights, so the copies stay identical. PyTorch's `DistributedDataParallel`
combines the gradients. `torchrun` starts the processes and gives each one a number, its *rank*:

    torchrun --nproc_per_node 2 experiments/mlm_tiny.py

Apart from rounding and dropout, a step shouldn't depend on the number of processes. Three rules ensure this:

- **Every process draws the whole batch** and keeps its own rows. Drawing costs little compared with training.
  The data generators of all processes stay in the same state, so a checkpoint needs only one of these states.
  This is also why you can resume the run with a different number of processes.
- **Means are over the whole batch.** The rows of a batch can have different numbers of masked tokens. If one
  half of the batch has 10 masked tokens and the other half has 30, averaging the two means gives each of the
  10 three times the weight of each of the 30. So each process divides the *sum* of its losses by $M$, the
  number of masked tokens in the whole batch. Every process knows $M$ because it has all the labels. The
  quotients add up to the mean loss of the batch:
  $$\mathcal L = \frac{1}{M} \sum_{r} \sum_{i \in \text{rows of } r} -\log p_i$$
  `transformers` calls $M$ `num_items_in_batch`.
- **Gradients are summed.** `DistributedDataParallel` computes their mean: the sum divided by the number of
  processes, the *world size*. So each process first multiplies its loss by the world size.

To save memory, set `gradient_accumulation_steps`. Each process then divides its rows again, into that many
micro-batches. The losses and gradients of the micro-batches add up like those of the processes.

Only rank zero evaluates, saves the run and prints, while the other processes wait. But any process can print
the error that ends a run.
"""

import contextlib
import gc
import io
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from types import FrameType
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from labml_bert.stdout import print_error

T = TypeVar("T")

# After `torchrun` has ended, a process has this many seconds to save the run and exit.
SECONDS_TO_SAVE = 600

# A process that can't connect to `torchrun` gives up after this many seconds.
SECONDS_TO_CONNECT = 5

# A process that gets SIGTERM outside the training loop has this many seconds to report an error.
SECONDS_TO_REPORT = 5

# After this many seconds without a heartbeat, a process is killed by the process that watches it.
SECONDS_WITHOUT_HEARTBEAT = 600

# `destroy_process_group` sets this event, because this process then no longer needs the others.
is_done = threading.Event()


def rank() -> int:
    """Returns the rank in the process group. Without a group, returns the rank from `torchrun`, or 0."""
    if dist.is_initialized():
        return dist.get_rank()
    return int(os.environ["RANK"]) if dist.is_torchelastic_launched() else 0


def world_size() -> int:
    """Returns the number of processes, or 1 if no process group is initialized."""
    return dist.get_world_size() if dist.is_initialized() else 1


def launcher() -> list[str]:
    """Returns the arguments of `python` that start `torchrun` again, or an empty list without `torchrun`."""
    if not dist.is_torchelastic_launched():
        return []
    return ["-m", "torch.distributed.run", "--nproc_per_node", os.environ["LOCAL_WORLD_SIZE"]]


def check_single_process() -> None:
    """Raises `ValueError` if `torchrun` has started this process."""
    if launcher():
        raise ValueError("this experiment needs a single process; start it without torchrun")


def local_gpu(name: str) -> str:
    """
    ## One GPU per process

    Returns the name of this process's GPU. Under `torchrun`, `cuda` becomes `cuda:N`, where N is the local
    rank of the process. Otherwise, the name stays the same.

    Raises `ValueError` if there are more processes than GPUs, or if `name` is one GPU for several processes.
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
    """Chooses Gloo for CPU tensors, such as the training time, and on CUDA also NCCL for GPU tensors."""
    return "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"


def init_process_group(device: torch.device) -> None:
    """
    Connects to the other processes, if `torchrun` started this one.

    Raises `ValueError` if `torchrun` has set its environment variables but no longer runs.
    """
    if not dist.is_torchelastic_launched():
        return
    # Only if `torchrun` runs the store can we connect to it before `dist.init_process_group`.
    has_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if has_store:
        try:
            watch_neighbor()
        except (dist.DistError, OSError):
            raise ValueError("cannot reach torchrun; start it again, or unset TORCHELASTIC_RUN_ID") from None
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if rank() > 0:
        # Outside the training loop, Ctrl-C ends this process without a traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, exit_after_report)
    # The other processes may wait for a long time while rank zero prepares a large text or evaluates. So we
    # set a long timeout. It does no harm, because `torchrun` ends the other processes if one dies.
    dist.init_process_group(backend_for(device), timeout=timedelta(days=7))
    threading.Thread(target=stop_after_launcher, args=[os.getppid()], daemon=True).start()
    if not has_store:
        watch_neighbor()


def watch_neighbor() -> None:
    """Starts `kill_stopped_neighbor` in a thread. Raises `OSError` if `torchrun` doesn't answer."""
    store = launcher_store()
    store.set(f"process id {rank()}", str(os.getpid()))
    threading.Thread(target=kill_stopped_neighbor, args=[store], daemon=True).start()


def exit_after_report(number: int, frame: FrameType | None) -> None:
    """
    Handles SIGTERM outside the training loop. When one process is killed, `torchrun` stops the others with
    SIGTERM. This process may not know yet that it has lost a connection, so it gets some time to report that.
    """
    timer = threading.Timer(SECONDS_TO_REPORT, os._exit, [1])
    timer.daemon = True
    timer.start()


def kill_stopped_neighbor(store: Any) -> None:
    """
    Watches this process's neighbor, the process with the next local rank. Kills the neighbor after
    `SECONDS_WITHOUT_HEARTBEAT` seconds without a heartbeat. SIGSTOP or a debugger can stop a process, and all
    others would then wait for it. After the kill, `torchrun` ends the run. If the neighbor was stopped before
    it could store its process id, this process exits instead, and `torchrun` ends the run too. The time in
    which this process itself is suspended doesn't count, so you can suspend a whole run as long as you like.
    """
    local_rank, local_size = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    neighbor = rank() - local_rank + (local_rank + 1) % local_size
    beats, seconds_without = 0, 0
    # After the launcher has ended, its store raises `RuntimeError`, and `stop_after_launcher` takes over.
    with contextlib.suppress(RuntimeError):
        while neighbor != rank() and not is_done.wait(1):
            store.add(f"heartbeats {rank()}", 1)
            last_beats, beats = beats, store.add(f"heartbeats {neighbor}", 0)
            seconds_without = seconds_without + 1 if beats == last_beats else 0
            if seconds_without == SECONDS_WITHOUT_HEARTBEAT:
                if not store.check([f"process id {neighbor}"]):
                    print_error("another process doesn't start; run the same command again")
                    os._exit(2)
                os.kill(int(store.get(f"process id {neighbor}")), signal.SIGKILL)


def stop_after_launcher(launcher_id: int) -> None:
    """
    Waits until `torchrun` ends. A killed `torchrun` can't stop the processes that it started. So each process
    sends itself SIGTERM. During training, this signal saves and ends the run. A process that is stuck waiting
    for another one can't react to SIGTERM, so after `SECONDS_TO_SAVE` seconds, it exits without saving.
    """
    while os.getppid() == launcher_id:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(SECONDS_TO_SAVE)
    os._exit(1)


def has_lost_another(error: BaseException) -> bool:
    """Whether the error comes from the connection to another process, which has then probably ended."""
    # Gloo raises a plain `RuntimeError`, so look at the message.
    return isinstance(error, dist.DistError) or any(
        words in str(error)
        for words in ("Connection closed by peer", "Connection reset by peer", "Broken pipe")
    )


def destroy_process_group() -> None:
    """Waits for the other processes and disconnects. First delete the model that `wrap_in_ddp` returned."""
    if dist.is_initialized():
        dist.barrier()
        is_done.set()
        dist.destroy_process_group()
        # An uncollected reference to the group would keep its thread alive, which would abort Python at exit.
        gc.collect()


@contextlib.contextmanager
def rank_zero_first() -> Iterator[None]:
    """
    ## Rank zero first

    Runs the block in rank zero first, and then in all other processes. The others find on disk what rank zero
    has downloaded or built. Then each process waits until all of them have finished the block.
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
    """Calls `function` in rank zero only. Returns the result, which must not be `None`, in all processes."""
    results = [function() if rank() == 0 else None]
    if world_size() > 1:
        dist.broadcast_object_list(results)
    assert results[0] is not None
    return results[0]


@contextlib.contextmanager
def only_rank_zero_prints() -> Iterator[None]:
    """Silences all processes except rank zero in a block that would print the same text in all of them."""
    if rank() == 0:
        yield
        return
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def launcher_store() -> Any:
    """Connects to the key-value store of all processes. Raises `OSError` if the launcher doesn't answer."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    timeout = timedelta(seconds=SECONDS_TO_CONNECT)
    # Without a launcher, `TCPStore` would print pages of stack frames. So first see whether anybody answers.
    socket.create_connection((address, port), SECONDS_TO_CONNECT).close()
    return dist.TCPStore(address, port, is_master=False, timeout=timeout)  # type: ignore[attr-defined]


def is_first_to_fail() -> bool:
    """
    Whether no process of the run has called this function before. Always true without `torchrun`. When one
    process fails, its failure usually makes the others fail too, but only the first process knows the reason.
    """
    if not dist.is_torchelastic_launched():
        return True
    try:
        return bool(launcher_store().add("failed", 1) == 1)
    except (dist.DistError, OSError):
        # Without a launcher, no other process can have failed first.
        return True


def wrap_in_ddp(model: nn.Module) -> nn.Module:
    """
    ## Dividing a step

    If there are several processes, wraps `model` so that the backward pass averages their gradients.
    Otherwise, returns `model` itself.
    """
    return DistributedDataParallel(model) if world_size() > 1 else model


def no_sync(model: nn.Module) -> AbstractContextManager[None]:
    """Delays the exchange of gradients. Use this block for all micro-batches of a step except the last."""
    return model.no_sync() if isinstance(model, DistributedDataParallel) else contextlib.nullcontext()


def split_into_micro_batches(batch: dict[str, Tensor], count: int) -> list[dict[str, Tensor]]:
    """
    Returns this process's rows of `batch`, divided into `count` micro-batches. The numbers of rows differ by
    at most one. A scalar tensor describes the whole batch, so every micro-batch contains that tensor.
    """
    total = world_size() * count
    # Without a process group, the processes of `torchrun` train independently.
    first = rank() * count if world_size() > 1 else 0
    parts = {key: v.tensor_split(total) if v.dim() else [v] * total for key, v in batch.items()}
    return [{key: split[i] for key, split in parts.items()} for i in range(first, first + count)]


def all_reduce_sum(values: list[float]) -> list[float]:
    """Returns, for each position in `values`, the sum over all processes."""
    return all_reduce(values, dist.ReduceOp.SUM)


def all_reduce_max(values: list[float]) -> list[float]:
    """Returns, for each position in `values`, the maximum over all processes."""
    return all_reduce(values, dist.ReduceOp.MAX)


def all_reduce(values: list[float], operation: dist.ReduceOp.RedOpType) -> list[float]:
    """Returns, for each position in `values`, the numbers of all processes combined with `operation`."""
    if world_size() == 1:
        return values
    tensor = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(tensor, operation)
    return tensor.tolist()


def all_reduce_flag(flag: Tensor) -> None:
    """Replaces `flag`, a tensor with 0 or 1, in place with its maximum over all processes."""
    if world_size() > 1:
        dist.all_reduce(flag, dist.ReduceOp.MAX)


def all_gather(tensor: Tensor) -> list[Tensor]:
    """Returns the tensors of all processes by rank. All tensors must have the same shape and dtype."""
    if world_size() == 1:
        return [tensor]
    tensors = [torch.empty_like(tensor) for _ in range(world_size())]
    dist.all_gather(tensors, tensor)
    return tensors
