r"""
# How fast is it?

A time in seconds says little: another machine, another hour, another neighbour on the same machine, and it
is another time. Two things travel better. One is a ratio of two programs measured in turn, so that whatever
slows one slows the other. The other is a share of what the machine could do: the arithmetic that a step
needs, over the arithmetic that the machine does in the same time in one large product,

$$\text{share of the peak} = \frac{\text{operations of the products in a step}}
                               {\text{seconds} \cdot \text{operations a second in a large product}}$$

Letters for sizes are those of `bert.py`.
"""

import ctypes
import gc
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor, nn

from labml_bert.bert import BertConfig
from labml_bert.mlm import TokenMasker
from labml_bert.training.optimization import parameter_groups


def wait(device: torch.device) -> None:
    """A GPU works on while Python goes on; a clock has to wait for it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(work: Callable[[], object], device: torch.device, repeats: int = 1) -> float:
    """How long one call takes, as the mean of `repeats` in a row."""
    wait(device)
    start = time.perf_counter()
    for _ in range(repeats):
        work()
    wait(device)
    return (time.perf_counter() - start) / repeats


def interleaved(
    arms: Mapping[str, Callable[[], object]], device: torch.device, rounds: int = 5, repeats: int = 1
) -> dict[str, list[float]]:
    """
    Times several pieces of work in turn, `rounds` times each, after two calls that do not count: the first
    prepares kernels and fills the caches. Returns the seconds of a call for each arm and round.
    """
    for work in arms.values():
        work()
        work()
    found: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(rounds):
        for name, work in arms.items():
            found[name].append(seconds(work, device, repeats))
    return found


def matmul_peak(device: torch.device, dtype: torch.dtype) -> float:
    """
    Floating-point operations a second in one large square product, the best of several. It is what can be
    reached, and below what the maker says.
    """
    size = 8192 if device.type == "cuda" else 4096
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    a @ b
    return 2 * size**3 / min(seconds(lambda: a @ b, device) for _ in range(5))


def memory_rate(device: torch.device) -> float:
    """Bytes a second from memory and back, in a copy of a tensor far larger than any cache."""
    x = torch.ones(2**28 if device.type == "cuda" else 2**26, device=device)
    y = torch.empty_like(x)
    y.copy_(x)
    return 2 * x.numel() * x.element_size() / min(seconds(lambda: y.copy_(x), device) for _ in range(5))


def forward_operations(config: BertConfig, B: int, T: int, predictions: int, places: int) -> float:
    r"""
    Floating-point operations of all products of one forward pass. A product of $(n, k)$ with $(k, m)$ has
    $2nkm$. `predictions` are the masked tokens of the batch, and `places` the positions of a row that the
    last layer computes, `T` for all. A backward pass has twice as many operations.
    """
    D, wide, N = config.hidden_size, config.intermediate_size, B * T

    def block(asking: int) -> float:
        """`asking` of the tokens have queries, and go through the wide layer."""
        products = 2 * (2 * asking * D * D + 2 * N * D * D + 2 * asking * D * wide)
        # Scores and mixtures: each asking token with each of the T of its row.
        return products + 2 * 2 * asking * T * D

    head = 2 * predictions * D * (D + config.vocab_size)
    return (config.num_hidden_layers - 1) * block(N) + block(B * places) + head


class Operation(NamedTuple):
    """A part of a step that can be timed alone."""

    name: str
    work: Callable[[], object]
    operations: float
    bytes: float
    """What comes from memory and goes back, if each input is read once and the result is written once."""


def single_operations(
    config: BertConfig, B: int, T: int, device: torch.device, dtype: torch.dtype
) -> list[Operation]:
    """
    The forward pass of a layer in pieces. The products do hundreds of operations on each number that they
    read, the others a few. Of these an exponential, an error function and a division count as one each.
    """
    D, wide, H, N = config.hidden_size, config.intermediate_size, config.num_attention_heads, B * T

    def some(*sizes: int) -> Tensor:
        return torch.randn(sizes, device=device).to(dtype)

    x, square, to_wide, inside = some(N, D), some(D, D), some(D, wide), some(N, wide)
    q, k, scores = some(B * H, T, D // H), some(B * H, D // H, T), some(B * H, T, T)
    functional = nn.functional
    works: list[tuple[str, Callable[[], Tensor], float, int]] = [
        ("feed-forward product", lambda: x @ to_wide, 2 * N * D * wide, N * D + D * wide + N * wide),
        ("projection product", lambda: x @ square, 2 * N * D * D, 2 * N * D + D * D),
        ("attention product", lambda: q @ k, 2 * N * T * D, 2 * N * D + B * H * T * T),
        ("GELU", lambda: functional.gelu(inside), 5 * N * wide, 2 * N * wide),
        ("LayerNorm", lambda: functional.layer_norm(x, (D,)), 7 * N * D, 2 * N * D),
        ("softmax", lambda: scores.softmax(-1), 5 * B * H * T * T, 2 * B * H * T * T),
    ]
    return [Operation(name, work, count, numbers * dtype.itemsize) for name, work, count, numbers in works]


def random_batch(vocab_size: int, B: int, T: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Random tokens and their labels, always the same; of each row 15% are covered."""
    generator = torch.Generator().manual_seed(0)
    input_ids = torch.randint(5, vocab_size, (B, T), generator=generator)
    masker = TokenMasker(vocab_size, 4, range(5), max_predictions_per_seq=T, generator=generator)
    covered, labels = masker(input_ids)
    return covered.to(device), labels.to(device)


def training_step(
    model: nn.Module, batch: tuple[Tensor, Tensor], bfloat16: bool, compiled: bool = False
) -> tuple[Callable[[], object], Callable[[], object]]:
    """
    A forward pass, and a whole step: forward, backward, clipping, AdamW. `model` takes the tokens and the
    labels and returns the loss. The optimiser is the one that `transformers` chooses by default.
    """
    optimizer = torch.optim.AdamW(parameter_groups(model, 0.01), lr=1e-4, fused=True)
    call = torch.compile(model) if compiled else model
    device = batch[0].device

    def forward() -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
            return call(*batch)

    def step() -> None:
        forward().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return torch.no_grad()(forward), step


def peak_memory(work: Callable[[], object], device: torch.device) -> float | None:
    """
    Bytes that a call needs at its fullest moment beside what was there before. On a CPU the kernel of Linux
    counts the pages of the process; elsewhere it is not known.
    """
    gc.collect()
    wait(device)
    if device.type == "cuda":
        held = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        work()
        wait(device)
        return float(torch.cuda.max_memory_allocated(device) - held)
    try:
        # What is free and kept for later would else be used first, and not be seen.
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        before = resident("VmRSS")
        work()
        return resident("VmHWM") - before
    except (OSError, AttributeError):
        return None


def resident(line: str) -> float:
    """A line of `/proc/self/status` in bytes; `VmHWM` is the most since the mark was put back."""
    found = re.search(rf"{line}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    if found is None:
        raise OSError(f"no {line} in /proc/self/status")
    return int(found[1]) * 1024.0


KINDS = {
    "products of matrices": ("aten::mm", "aten::addmm", "aten::linear"),
    "products in the attention": ("aten::bmm", "scaled_dot_product", "_flash_attention"),
    "softmax": ("softmax",),
    "GELU": ("gelu",),
    "LayerNorm": ("layer_norm",),
    "dropout": ("random_", "bernoulli", "dropout", "aten::ge"),
    "optimiser and clipping": ("adam", "vector_norm", "clamp"),
    "copies, casts and new layouts": ("copy", "aten::cat", "contiguous", "clone"),
    "lookup of embeddings": ("embedding", "index", "gather", "scatter"),
    "sums and elementwise": ("aten::add", "aten::mul", "aten::div", "aten::sum", "aten::sub", "aten::where"),
}


def where_time_goes(work: Callable[[], object], calls: int = 3) -> dict[str, float]:
    """
    The share of each kind of operation in the time of a call, by PyTorch's profiler. What is left is autograd
    and the dispatch between operations. Python's own time is not seen.
    """
    from torch.profiler import ProfilerActivity, profile

    # Else it says on the terminal that it begins, and that it ends.
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    work()
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as profiler:
        for _ in range(calls):
            work()
    events = profiler.key_averages()
    on_gpu = any(event.self_device_time_total for event in events)
    times = {e.key: e.self_device_time_total if on_gpu else e.self_cpu_time_total for e in events}
    total = sum(times.values())
    shares = dict.fromkeys([*KINDS, "the rest"], 0.0)
    for name, value in times.items():
        shares[kind_of(name)] += value / total
    return shares


def kind_of(operation: str) -> str:
    """Which kind an operation of the profiler belongs to."""
    lower = operation.lower()
    return next((kind for kind, words in KINDS.items() if any(w in lower for w in words)), "the rest")


def spread(times: Iterable[float]) -> dict[str, float]:
    """Median, least and most."""
    times = sorted(times)
    return {"median": median(times), "min": times[0], "max": times[-1]}
