"""What is counted, timed and weighed is what is there."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from labml_bert.bert import BertConfig
from labml_bert.mlm import IGNORE
from labml_bert.models import BertForMaskedLM
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
def counted() -> Iterator[FlopCounterMode]:
    """PyTorch's counter does not know the attention of a CPU in one piece."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        yield counter


@pytest.mark.parametrize("layers", [1, 3])
def test_flops_are_those_that_pytorch_counts(layers: int) -> None:
    B, T = 3, 20
    model = BertForMaskedLM(config(layers)).eval()
    input_ids, labels = draw_batch(50, B, T, CPU)
    with torch.no_grad(), counted() as counter:
        model(input_ids)
    everywhere = count_forward_flops(config(layers), B, T, predictions=B * T, positions=T)
    assert counter.get_total_flops() == everywhere
    with torch.no_grad(), counted() as counter:
        model(input_ids, labels)
    labeled = (labels != IGNORE).sum(1)
    positions, predictions = int(labeled.max()), int(labeled.sum())
    some = count_forward_flops(config(layers), B, T, predictions, positions)
    assert counter.get_total_flops() == some < everywhere


def test_a_backward_pass_has_twice_the_flops() -> None:
    model = BertForMaskedLM(config()).eval()
    batch = draw_batch(50, 3, 20, CPU)
    with counted() as counter:
        model(*batch).loss.backward()
    labeled = (batch[1] != IGNORE).sum(1)
    forward = count_forward_flops(config(), 3, 20, int(labeled.sum()), int(labeled.max()))
    assert counter.get_total_flops() == pytest.approx(3 * forward, rel=0.01)
    assert count_step_flops(config(), batch.labels, only_labeled=True) == 3 * forward
    everywhere = count_forward_flops(config(), 3, 20, predictions=60, positions=20)
    assert count_step_flops(config(), batch.labels, only_labeled=False) == 3 * everywhere


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_each_op_of_a_layer_is_counted(dtype: torch.dtype) -> None:
    ops = build_layer_ops(config(), 3, 20, CPU, dtype)
    for op in ops:
        with counted() as counter:
            result = op.run()
        assert isinstance(result, torch.Tensor) and result.dtype == dtype
        if op.name.endswith("matmul"):
            assert counter.get_total_flops() == op.flops, op.name
        else:
            # Read once and written once.
            assert op.bytes == 2 * result.numel() * dtype.itemsize, op.name
            assert op.flops / result.numel() in (5, 7)
    x, weight, y = 60 * 24, 24 * 40, 60 * 40
    assert ops[0].bytes == dtype.itemsize * (x + weight + y)


def test_variants_take_turns() -> None:
    calls: list[str] = []
    variants = {name: lambda name=name: calls.append(name) for name in "ab"}
    times = time_in_turn(variants, CPU, rounds=3, repeats=2)
    assert "".join(calls) == "aabb" + "aabb" * 3
    assert {name: len(found) for name, found in times.items()} == {"a": 3, "b": 3}


def test_the_same_batch_every_time() -> None:
    (a, labels), (b, again) = draw_batch(100, 4, 40, CPU), draw_batch(100, 4, 40, CPU)
    assert torch.equal(a, b) and torch.equal(labels, again)
    assert (labels != IGNORE).sum(1).tolist() == [6] * 4


def test_a_step_trains() -> None:
    torch.manual_seed(0)
    model = BertForMaskedLM(config())
    batch = draw_batch(50, 3, 20, CPU)
    forward, step = build_training_step(model, batch, bfloat16=False)
    before = forward()
    assert not before.requires_grad
    for _ in range(5):
        step()
    assert forward() < before - 0.01
    assert all(p.grad is None for p in model.parameters())


def test_memory_that_comes_and_goes_is_seen() -> None:
    megabytes = 2**20
    kept = [
        measure_peak_memory(lambda: torch.ones(200 * megabytes, dtype=torch.uint8), CPU) for _ in range(2)
    ]
    if kept[0] is None:
        pytest.skip("this system does not tell the memory of a process")
    for found in kept:
        assert found == pytest.approx(200 * megabytes, rel=0.1)


def test_shares_of_the_time() -> None:
    a, b = torch.randn(300, 300), torch.randn(30)
    shares = profile_step(lambda: (a @ a, b.softmax(0)))
    assert list(shares) == [*OP_KINDS, "the rest"]
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["matrix multiplications"] > shares["softmax"] > 0
    assert shares["GELU"] == shares["optimizer and clipping"] == 0


@pytest.mark.parametrize(
    ("op", "kind"),
    [
        ("aten::addmm", "matrix multiplications"),
        ("aten::bmm", "attention matmuls"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "attention matmuls"),
        ("aten::_log_softmax_backward_data", "softmax"),
        ("aten::native_layer_norm", "LayerNorm"),
        ("aten::add_", "sums and elementwise ops"),
        ("aten::_fused_adamw_", "optimizer and clipping"),
        ("aten::copy_", "copies, casts and layout changes"),
        ("autograd::engine::evaluate_function: SplitBackward0", "the rest"),
    ],
)
def test_kinds(op: str, kind: str) -> None:
    assert classify_op(op) == kind


def test_summarize() -> None:
    assert summarize([3.0, 1.0, 2.0, 9.0]) == {"median": 2.5, "min": 1.0, "max": 9.0}
