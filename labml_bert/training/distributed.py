r"""
# One process for each device

How do several processors train one model? Each has all of it in a process of its own, and each step they
share the rows of the batch. They go through their rows side by side, agree on the sum of their gradients, and
take the same step from the same place; so they stay the same. This is data parallelism, and
`DistributedDataParallel` of PyTorch does it. `torchrun` starts the processes and tells each its number, its
*rank*:

    torchrun --nproc_per_node 2 experiments/mlm_tiny.py

The result should not depend on how many there are. Three things take care of that:

- **Every process draws the whole batch** and keeps its own rows. Drawing is cheap beside training. All
  generators then stand at the same place, so a checkpoint needs one of them, and another number of processes
  can go on with it.
- **A mean is over the whole batch.** The masked tokens are not spread evenly. With 10 of them in one half of
  the batch and 30 in the other, the mean of the two means counts each of the 10 three times. So each process
  divides the *sum* over its rows by the count in all rows, which it knows, as it has seen all labels. The
  parts then add up:
  $$\mathcal L = \frac{1}{M} \sum_{r} \sum_{i \in \text{rows of } r} -\log p_i$$
  `transformers` calls $M$ `num_items_in_batch`.
- **Gradients are summed.** `DistributedDataParallel` takes the mean over the processes, which is the sum
  divided by their number. So each multiplies its loss by that number first.

Where memory is short, a process can go through its rows in turns, with `gradient_accumulation_steps`. A turn
is one more part, and the same sums hold.

Only the process of rank 0 speaks, evaluates and writes. The others wait for it.
"""

import contextlib
import gc
import io
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

T = TypeVar("T")


def rank() -> int:
    """Which of the processes this is. The one of rank 0 speaks and writes; without `torchrun` it is alone."""
    return int(os.environ["RANK"]) if dist.is_torchelastic_launched() else 0


def world_size() -> int:
    """How many processes train together: 1 before `init_process_group` and after `destroy_process_group`."""
    return dist.get_world_size() if dist.is_initialized() else 1


def launcher() -> list[str]:
    """What stood between `python` and the script: `torchrun`, or nothing."""
    if not dist.is_torchelastic_launched():
        return []
    return ["-m", "torch.distributed.run", "--nproc_per_node", os.environ["LOCAL_WORLD_SIZE"]]


def local_gpu(name: str) -> str:
    """
    ## A GPU for each

    `cuda` is the GPU whose number on this machine is that of the process. Without `torchrun`, it is `name`.

    Raises `ValueError` where several processes would share one.
    """
    if not dist.is_torchelastic_launched():
        return name
    processes, gpus = int(os.environ["LOCAL_WORLD_SIZE"]), torch.cuda.device_count()
    if processes > gpus:
        raise ValueError(
            f"{processes} processes and {gpus} GPUs; start one process for each GPU, or use --device cpu"
        )
    if name != "cuda" and processes > 1:
        raise ValueError(f"{name} is one GPU for {processes} processes; use --device cuda")
    return f"cuda:{os.environ['LOCAL_RANK']}" if name == "cuda" else name


def backend_for(device: torch.device) -> str:
    """Gloo carries what is in memory, NCCL what is on GPUs. The clock and the like are always in memory."""
    return "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"


def init_process_group(device: torch.device) -> None:
    """Joins the other processes, if `torchrun` started this one."""
    if not dist.is_torchelastic_launched():
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if rank() > 0:
        # Until the training begins, Ctrl-C is answered by the first process.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # The first makes the pairs of a large text, or evaluates, while the others wait; `torchrun` ends all
    # where one has died.
    dist.init_process_group(backend_for(device), timeout=timedelta(days=7))


def destroy_process_group() -> None:
    """Goes on alone. Nobody may keep what `wrap_in_ddp` returned."""
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
        # What still holds the group keeps a thread of it alive, which aborts an interpreter that is ending.
        gc.collect()


@contextlib.contextmanager
def rank_zero_first() -> Iterator[None]:
    """
    ## Taking turns

    The block runs in the first process, then in all others. What the first puts on the disk, a download or a
    dataset, the others find. All leave together.
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


def broadcast_from_rank_zero(make: Callable[[], T]) -> T:
    """What `make` returns in the first process, where alone it is called."""
    made = [make() if rank() == 0 else None]
    if world_size() > 1:
        dist.broadcast_object_list(made)
    assert made[0] is not None
    return made[0]


@contextlib.contextmanager
def only_rank_zero_prints() -> Iterator[None]:
    """For a block that says the same in all processes."""
    if rank() == 0:
        yield
        return
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def is_first_to_fail() -> bool:
    """
    Whether no process has asked this before. One that fails takes the others with it, and only the first to
    fail knows why. Its launcher keeps the count, as it outlives them all.
    """
    if not dist.is_torchelastic_launched():
        return True
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(address, port, is_master=False)  # type: ignore[attr-defined]
    return store.add("failed", 1) == 1


def wrap_in_ddp(model: nn.Module) -> nn.Module:
    """
    ## Sharing a step

    `model`, or around it what sums the gradients of all processes during the backward pass.
    """
    return DistributedDataParallel(model) if world_size() > 1 else model


def no_sync(model: nn.Module) -> AbstractContextManager[None]:
    """For a part that is not the last of this process: gradients are summed once a step."""
    return model.no_sync() if isinstance(model, DistributedDataParallel) else contextlib.nullcontext()


def split_into_micro_batches(batch: dict[str, Tensor], turns: int) -> list[dict[str, Tensor]]:
    """
    The rows of this process, in as many parts as it takes `turns`. A tensor without dimensions says something
    of the whole batch, and is in each part. Parts may differ by a row.
    """
    count, first = world_size() * turns, rank() * turns
    cut = {key: v.tensor_split(count) if v.dim() else [v] * count for key, v in batch.items()}
    return [{key: pieces[i] for key, pieces in cut.items()} for i in range(first, first + turns)]


def all_reduce_sum(values: list[float]) -> list[float]:
    """Each number summed over all processes."""
    return all_reduce(values, dist.ReduceOp.SUM)


def all_reduce_max(values: list[float]) -> list[float]:
    """For each number, the largest in any process."""
    return all_reduce(values, dist.ReduceOp.MAX)


def all_reduce(values: list[float], operation: dist.ReduceOp.RedOpType) -> list[float]:
    """The same numbers in all processes. With one process they stay what they are."""
    if world_size() == 1:
        return values
    together = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(together, operation)
    return together.tolist()


def all_gather(tensor: Tensor) -> list[Tensor]:
    """The tensor of each process, by rank; all have one shape."""
    if world_size() == 1:
        return [tensor]
    found = [torch.empty_like(tensor) for _ in range(world_size())]
    dist.all_gather(found, tensor)
    return found
