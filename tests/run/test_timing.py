"""FLOPs, times and memory, checked against PyTorch's own counts and known sizes."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from labml_bert.bert import BertConfig
from labml_bert.mlm import IGNORE
from labml_bert.models import BertForMaskedLM
from labml_bert.run import timing
from labml_bert.run.timing import (
    OP_KINDS,
    build_layer_ops,
    build_training_step,
    classify_op,
    count_forward_flops,
    count_step_flops,
    draw_batch,
    measure_peak_memory,
    profile_step,
    summarize,
    time_in_turn,
)

CPU = torch.device("cpu")


def config(layers: int = 3) -> BertConfig:
    return BertConfig(
        vocab_size=50,
        hidden_size=24,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=40,
        max_position_embeddings=20,
    )


@contextmanager
def count_flops() -> Iterator[FlopCounterMode]:
    """PyTorch's counter doesn't know the CPU's fused attention kernel, so use the unfused one."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        yield counter


@pytest.mark.parametrize("layers", [1, 3])
def test_flops_match_pytorch_counter(layers: int) -> None:
    B, T = 3, 20
    model = BertForMaskedLM(config(layers)).eval()
    input_ids, labels = draw_batch(50, B, T, CPU)
    with torch.no_grad(), count_flops() as counter:
        model(input_ids)
    at_all_positions = count_forward_flops(config(layers), B, T, predictions=B * T, positions=T)
    assert counter.get_total_flops() == at_all_positions
    with torch.no_grad(), count_flops() as counter:
        model(input_ids, labels)
    labeled = (labels != IGNORE).sum(1)
    positions, predictions = int(labeled.max()), int(labeled.sum())
    at_labeled_positions = count_forward_flops(config(layers), B, T, predictions, positions)
    assert counter.get_total_flops() == at_labeled_positions < at_all_positions


def test_a_backward_pass_has_twice_the_flops() -> None:
    model = BertForMaskedLM(config()).eval()
    batch = draw_batch(50, 3, 20, CPU)
    with count_flops() as counter:
        model(*batch).loss.backward()
    labeled = (batch[1] != IGNORE).sum(1)
    forward = count_forward_flops(config(), 3, 20, int(labeled.sum()), int(labeled.max()))
    assert counter.get_total_flops() == pytest.approx(3 * forward, rel=0.01)
    assert count_step_flops(config(), batch.labels, only_labeled=True) == 3 * forward
    at_all_positions = count_forward_flops(config(), 3, 20, predictions=60, positions=20)
    assert count_step_flops(config(), batch.labels, only_labeled=False) == 3 * at_all_positions


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_each_op_of_a_layer_is_counted(dtype: torch.dtype) -> None:
    ops = build_layer_ops(config(), 3, 20, CPU, dtype)
    for op in ops:
        with count_flops() as counter:
            result = op.run()
        assert isinstance(result, torch.Tensor) and result.dtype == dtype
        if op.name.endswith("matmul"):
            assert counter.get_total_flops() == op.flops, op.name
        else:
            # Each input element is read once and each output element written once.
            assert op.bytes == 2 * result.numel() * dtype.itemsize, op.name
            assert op.flops / result.numel() in (5, 7)
    x, weight, y = 60 * 24, 24 * 40, 60 * 40
    assert ops[0].bytes == dtype.itemsize * (x + weight + y)


def test_variants_are_timed_in_turn() -> None:
    calls: list[str] = []
    variants = {name: lambda name=name: calls.append(name) for name in "ab"}
    times = time_in_turn(variants, CPU, rounds=3, repeats=2)
    assert "".join(calls) == "aabb" + "aabb" * 3
    assert {name: len(durations) for name, durations in times.items()} == {"a": 3, "b": 3}


def test_the_batch_is_always_the_same() -> None:
    (a, labels), (b, same_labels) = draw_batch(100, 4, 40, CPU), draw_batch(100, 4, 40, CPU)
    assert torch.equal(a, b) and torch.equal(labels, same_labels)
    assert (labels != IGNORE).sum(1).tolist() == [6] * 4


def test_a_training_step_reduces_the_loss() -> None:
    torch.manual_seed(0)
    model = BertForMaskedLM(config())
    batch = draw_batch(50, 3, 20, CPU)
    forward, step = build_training_step(model, batch, bfloat16=False)
    loss_before = forward()
    assert not loss_before.requires_grad
    for _ in range(5):
        step()
    assert forward() < loss_before - 0.01
    assert all(p.grad is None for p in model.parameters())


def test_peak_memory_includes_memory_that_was_freed() -> None:
    megabytes = 2**20
    peaks = [
        measure_peak_memory(lambda: torch.ones(200 * megabytes, dtype=torch.uint8), CPU) for _ in range(2)
    ]
    if peaks[0] is None:
        pytest.skip("this system does not report the memory of a process")
    for peak in peaks:
        assert peak == pytest.approx(200 * megabytes, rel=0.1)


def test_fractions_of_the_time() -> None:
    a, b = torch.randn(300, 300), torch.randn(30)
    fractions = profile_step(lambda: (a @ a, b.softmax(0)))
    assert list(fractions) == [*OP_KINDS, "the rest"]
    assert sum(fractions.values()) == pytest.approx(1)
    assert fractions["matrix multiplications"] > 0 and fractions["softmax"] > 0
    assert fractions["GELU"] == fractions["optimizer and clipping"] == 0


@pytest.mark.parametrize(
    ("op", "kind"),
    [
        ("aten::addmm", "matrix multiplications"),
        ("aten::bmm", "attention matmuls"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "attention matmuls"),
        ("aten::_efficient_attention_backward", "attention matmuls"),
        ("aten::_log_softmax_backward_data", "softmax"),
        ("aten::native_layer_norm", "LayerNorm"),
        ("aten::add_", "sums and elementwise ops"),
        ("aten::_fused_adamw_", "optimizer and clipping"),
        ("aten::_foreach_norm", "optimizer and clipping"),
        ("aten::copy_", "copies, casts and layout changes"),
        ("autograd::engine::evaluate_function: SplitBackward0", "the rest"),
    ],
)
def test_classifying_ops(op: str, kind: str) -> None:
    assert classify_op(op) == kind


def test_summarize() -> None:
    assert summarize([3.0, 1.0, 2.0, 9.0]) == {"median": 2.5, "min": 1.0, "max": 9.0}


def test_a_slow_data_type_is_measured_with_a_small_matmul(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a second for a matmul of size 512 would be minutes for one of size 4096."""
    monkeypatch.setattr(timing, "time_call", lambda *_: 0.5)
    assert timing.measure_matmul_flops(torch.device("cpu"), torch.float32) == 2 * 512**3 / 0.5
