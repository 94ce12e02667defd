r"""
# Timing a training step

How long a training step takes depends on the machine, and on what else is running there. Two measures depend
less on the machine and its load:

- **The ratio of two programs' times, measured in turn.** What slows one program usually slows the other.
- **Model FLOPs utilization (MFU)**: the FLOP/s that a training step achieves, as a fraction of what the same
  machine achieves in one large matrix multiplication. (Papers usually divide by the peak on the data
  sheet instead.)

$$\text{MFU} = \frac{\text{FLOPs of the matrix multiplications in a step}}
                    {\text{seconds} \cdot \text{FLOP/s of a large matrix multiplication}}$$

The letters for sizes are the same as in `bert.py`.
"""

import ctypes
import gc
import os
import re
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor, nn

from labml_bert.bert import BertConfig
from labml_bert.mlm import IGNORE, MaskedTokens, TokenMasker
from labml_bert.training.device import compile_model
from labml_bert.training.optimization import parameter_groups


def synchronize(device: torch.device) -> None:
    """Waits until a GPU has finished the work that Python has queued. Stop the clock after this call."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def time_call(work: Callable[[], object], device: torch.device, repeats: int = 1) -> float:
    """Returns the seconds per call, averaged over `repeats` calls in a row."""
    synchronize(device)
    start = time.perf_counter()
    for _ in range(repeats):
        work()
    synchronize(device)
    return (time.perf_counter() - start) / repeats


def time_in_turn(
    variants: Mapping[str, Callable[[], object]], device: torch.device, rounds: int = 5, repeats: int = 1
) -> dict[str, list[float]]:
    """
    Times several variants in turn, `rounds` times each. Before that, calls each variant twice to compile
    kernels and fill caches. For each variant, returns a list with the seconds per call in each round.
    """
    for work in variants.values():
        work()
        work()
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, work in variants.items():
            times[name].append(time_call(work, device, repeats))
    return times


def summarize(times: Iterable[float]) -> dict[str, float]:
    """Returns the median, the minimum and the maximum."""
    times = sorted(times)
    return {"median": median(times), "min": times[0], "max": times[-1]}


def measure_matmul_flops(device: torch.device, dtype: torch.dtype) -> float:
    """
    Returns the FLOP/s of one large square matrix multiplication, the best of five. Unlike the peak on the
    data sheet, this is a speed that a program can reach.
    """
    size = 8192 if device.type == "cuda" else 4096
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    small = a[:512, :512].contiguous()
    small @ small
    if time_call(lambda: small @ small, device) * (size / 512) ** 3 > 30:
        # The hardware lacks this data type. In emulation, the large matmuls would take minutes.
        size, a, b = 512, small, small
    a @ b
    return 2 * size**3 / min(time_call(lambda: a @ b, device) for _ in range(5))


def measure_memory_bandwidth(device: torch.device) -> float:
    """Returns the bytes read and written per second while copying a tensor too large for the caches."""
    x = torch.ones(2**28 if device.type == "cuda" else 2**26, device=device)
    y = torch.empty_like(x)
    y.copy_(x)
    return 2 * x.numel() * x.element_size() / min(time_call(lambda: y.copy_(x), device) for _ in range(5))


def count_forward_flops(config: BertConfig, B: int, T: int, predictions: int, positions: int) -> float:
    r"""
    Returns the FLOPs of all matrix multiplications in a forward pass. Multiplying a matrix of shape $(n, k)$
    by one of shape $(k, m)$ takes $2nkm$ FLOPs.

    `predictions` is the number of tokens in the batch that the head predicts. `positions` is the number of
    positions per row that the last layer computes, at most `T`.
    """
    D, I, N = config.hidden_size, config.intermediate_size, B * T  # noqa: E741

    def count_layer_flops(queries: int) -> float:
        """Only `queries` of the `N` tokens have query states and go through the feed-forward network."""
        dense = 2 * (2 * queries * D * D + 2 * N * D * D + 2 * queries * D * I)
        # Scores and weighted sums: each query attends to the T tokens of its row.
        return dense + 2 * 2 * queries * T * D

    head = 2 * predictions * D * (D + config.vocab_size)
    return (config.num_hidden_layers - 1) * count_layer_flops(N) + count_layer_flops(B * positions) + head


def count_step_flops(config: BertConfig, labels: Tensor, only_labeled: bool) -> float:
    """
    Returns the FLOPs of a training step: a forward pass, and a backward pass that takes twice as many FLOPs.
    `labels` is `(B, T)`. `only_labeled` says whether the last layer and the head skip unlabeled positions.
    """
    B, T = labels.shape
    predictions, positions = B * T, T
    if only_labeled:
        is_labeled = labels != IGNORE
        predictions, positions = int(is_labeled.sum()), int(is_labeled.sum(1).max())
    return 3 * count_forward_flops(config, B, T, predictions, positions)


class LayerOp(NamedTuple):
    """One op of a layer, to time by itself."""

    name: str
    run: Callable[[], Tensor]
    flops: float
    bytes: float
    """The memory traffic if each input is read once and the result is written once."""


def build_layer_ops(
    config: BertConfig, B: int, T: int, device: torch.device, dtype: torch.dtype
) -> list[LayerOp]:
    """
    Returns the ops of a layer's forward pass. At usual sizes, the matmuls do hundreds of FLOPs for each
    number that they read. The other ops do only a few. An exponential, an error function and a division count
    as one FLOP each.
    """
    D, I, H, N = config.hidden_size, config.intermediate_size, config.num_attention_heads, B * T  # noqa: E741

    def draw(*sizes: int) -> Tensor:
        return torch.randn(sizes, device=device).to(dtype)

    x, square, wide, inner = draw(N, D), draw(D, D), draw(D, I), draw(N, I)
    q, k, scores = draw(B * H, T, D // H), draw(B * H, D // H, T), draw(B * H, T, T)
    ops: list[tuple[str, Callable[[], Tensor], float, int]] = [
        ("feed-forward matmul", lambda: x @ wide, 2 * N * D * I, N * D + D * I + N * I),
        ("projection matmul", lambda: x @ square, 2 * N * D * D, 2 * N * D + D * D),
        ("attention matmul", lambda: q @ k, 2 * N * T * D, 2 * N * D + B * H * T * T),
        ("GELU", lambda: nn.functional.gelu(inner), 5 * N * I, 2 * N * I),
        ("LayerNorm", lambda: nn.functional.layer_norm(x, (D,)), 7 * N * D, 2 * N * D),
        ("softmax", lambda: scores.softmax(-1), 5 * B * H * T * T, 2 * B * H * T * T),
    ]
    return [LayerOp(name, run, flops, numbers * dtype.itemsize) for name, run, flops, numbers in ops]


def draw_batch(vocab_size: int, B: int, T: int, device: torch.device) -> MaskedTokens:
    """Returns random tokens, 15% of each row masked, and their labels. Every call returns the same batch."""
    generator = torch.Generator().manual_seed(0)
    input_ids = torch.randint(5, vocab_size, (B, T), generator=generator)
    masker = TokenMasker(vocab_size, 4, range(5), max_predictions_per_seq=T, generator=generator)
    return MaskedTokens(*(tensor.to(device) for tensor in masker(input_ids)))


def build_training_step(
    model: nn.Module, batch: MaskedTokens, bfloat16: bool, torch_compile: bool = False
) -> tuple[Callable[[], Tensor], Callable[[], None]]:
    """
    Returns two functions. The first runs the forward pass without gradients and returns the loss. The second
    runs a whole training step with the backward pass, clipping and AdamW.

    `model` takes `input_ids` and `labels`, as the models of `transformers` do, and returns an output with a
    `loss`. The optimizer is fused AdamW, as in the `Trainer` of `transformers` by default.
    """
    optimizer = torch.optim.AdamW(parameter_groups(model, 0.01), lr=1e-4, fused=True)
    compute = compile_model(model) if torch_compile else model
    device = batch.input_ids.device

    def forward() -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
            return compute(input_ids=batch.input_ids, labels=batch.labels).loss

    def step() -> None:
        forward().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return torch.no_grad()(forward), step


def measure_peak_memory(work: Callable[[], object], device: torch.device) -> float | None:
    """
    Returns the peak memory of a call in bytes, on top of what was allocated before. Without CUDA, this
    function reads the process's peak from the Linux kernel, or returns `None` on other systems.
    """
    gc.collect()
    synchronize(device)
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        work()
        synchronize(device)
        return float(torch.cuda.max_memory_allocated(device) - before)
    try:
        # Return free blocks to the system. Otherwise `work` could reuse them without raising the peak.
        ctypes.CDLL(None).malloc_trim(0)
        # Reset the peak, `VmHWM`.
        Path("/proc/self/clear_refs").write_text("5")
        resident = read_process_memory("VmRSS")
        work()
        return read_process_memory("VmHWM") - resident
    except (OSError, AttributeError):
        return None


def read_process_memory(field: str) -> float:
    """
    Returns a field of `/proc/self/status` in bytes, such as `VmRSS` for the resident memory.

    Raises `OSError` if the field is missing, as on any system but Linux.
    """
    match = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    if match is None:
        raise OSError(f"no {field} in /proc/self/status")
    return int(match[1]) * 1024.0


OP_KINDS = {
    "matrix multiplications": ("aten::mm", "aten::addmm", "aten::linear"),
    "attention matmuls": ("aten::bmm", "dot_product", "attention_forward", "attention_backward"),
    "softmax": ("softmax",),
    "GELU": ("gelu",),
    "LayerNorm": ("layer_norm",),
    "dropout": ("random_", "bernoulli", "dropout", "aten::ge"),
    "optimizer and clipping": ("adam", "vector_norm", "foreach", "clamp"),
    "copies, casts and layout changes": ("copy", "aten::cat", "contiguous", "clone"),
    "embedding lookup": ("embedding", "index", "gather", "scatter"),
    "sums and elementwise ops": (
        "aten::add",
        "aten::mul",
        "aten::div",
        "aten::sum",
        "aten::sub",
        "aten::where",
    ),
}


def classify_op(name: str) -> str:
    """Returns the kind of an op, given its name in PyTorch's profiler."""
    name = name.lower()
    return next((kind for kind, parts in OP_KINDS.items() if any(part in name for part in parts)), "the rest")


def profile_step(step: Callable[[], object], calls: int = 3) -> dict[str, float]:
    """
    Returns the fraction of a step's time that each kind of op takes, according to PyTorch's profiler. "The
    rest" is mostly autograd and the dispatch of ops. The time that Python itself takes isn't included.
    """
    from torch.profiler import ProfilerActivity, profile

    # Keep the profiler from printing when it starts and stops.
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    step()
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    with warnings.catch_warnings(action="ignore"), profile(activities=activities) as profiler:
        for _ in range(calls):
            step()
    # On a GPU, the profiler lists the kernels too. An op's time includes its kernels, so count only the ops.
    events = [event for event in profiler.key_averages() if event.device_type.name == "CPU"]
    on_gpu = any(event.self_device_time_total for event in events)
    times = {e.key: e.self_device_time_total if on_gpu else e.self_cpu_time_total for e in events}
    total = sum(times.values())
    fractions = dict.fromkeys([*OP_KINDS, "the rest"], 0.0)
    for name, value in times.items():
        fractions[classify_op(name)] += value / total
    return fractions
