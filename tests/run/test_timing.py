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
    KINDS,
    forward_operations,
    interleaved,
    kind_of,
    peak_memory,
    random_batch,
    single_operations,
    spread,
    training_step,
    where_time_goes,
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
def test_operations_are_those_that_pytorch_counts(layers: int) -> None:
    B, T = 3, 20
    model = BertForMaskedLM(config(layers)).eval()
    input_ids, labels = random_batch(50, B, T, CPU)
    with torch.no_grad(), counted() as counter:
        model(input_ids)
    everywhere = forward_operations(config(layers), B, T, predictions=B * T, places=T)
    assert counter.get_total_flops() == everywhere
    with torch.no_grad(), counted() as counter:
        model(input_ids, labels)
    labelled = (labels != IGNORE).sum(1)
    places, predictions = int(labelled.max()), int(labelled.sum())
    some = forward_operations(config(layers), B, T, predictions, places)
    assert counter.get_total_flops() == some < everywhere


def test_a_backward_pass_has_twice_the_operations() -> None:
    model = BertForMaskedLM(config()).eval()
    batch = random_batch(50, 3, 20, CPU)
    with counted() as counter:
        model(*batch).loss.backward()
    labelled = (batch[1] != IGNORE).sum(1)
    forward = forward_operations(config(), 3, 20, int(labelled.sum()), int(labelled.max()))
    assert counter.get_total_flops() == pytest.approx(3 * forward, rel=0.01)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_each_piece_of_a_layer_is_counted(dtype: torch.dtype) -> None:
    pieces = single_operations(config(), 3, 20, CPU, dtype)
    for piece in pieces:
        with counted() as counter:
            result = piece.work()
        assert isinstance(result, torch.Tensor) and result.dtype == dtype
        if piece.name.endswith("product"):
            assert counter.get_total_flops() == piece.operations, piece.name
        else:
            # Read once and written once.
            assert piece.bytes == 2 * result.numel() * dtype.itemsize, piece.name
            assert piece.operations / result.numel() in (5, 7)
    x, weight, y = 60 * 24, 24 * 40, 60 * 40
    assert pieces[0].bytes == dtype.itemsize * (x + weight + y)


def test_arms_take_turns() -> None:
    calls: list[str] = []
    arms = {name: lambda name=name: calls.append(name) for name in "ab"}
    times = interleaved(arms, CPU, rounds=3, repeats=2)
    assert "".join(calls) == "aabb" + "aabb" * 3
    assert {name: len(found) for name, found in times.items()} == {"a": 3, "b": 3}


def test_the_same_batch_every_time() -> None:
    (a, labels), (b, again) = random_batch(100, 4, 40, CPU), random_batch(100, 4, 40, CPU)
    assert torch.equal(a, b) and torch.equal(labels, again)
    assert (labels != IGNORE).sum(1).tolist() == [6] * 4


def test_a_step_trains() -> None:
    torch.manual_seed(0)
    model = BertForMaskedLM(config())
    batch = random_batch(50, 3, 20, CPU)
    loss = lambda ids, labels: model(ids, labels).loss  # noqa: E731
    loss.parameters = model.parameters
    forward, step = training_step(loss, batch, bfloat16=False)
    before = forward()
    assert not before.requires_grad
    for _ in range(5):
        step()
    assert forward() < before - 0.01
    assert all(p.grad is None for p in model.parameters())


def test_memory_that_comes_and_goes_is_seen() -> None:
    megabytes = 2**20
    kept = [peak_memory(lambda: torch.ones(200 * megabytes, dtype=torch.uint8), CPU) for _ in range(2)]
    if kept[0] is None:
        pytest.skip("this system does not tell the memory of a process")
    for found in kept:
        assert found == pytest.approx(200 * megabytes, rel=0.1)


def test_shares_of_the_time() -> None:
    a, b = torch.randn(300, 300), torch.randn(30)
    shares = where_time_goes(lambda: (a @ a, b.softmax(0)))
    assert list(shares) == [*KINDS, "the rest"]
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["products of matrices"] > shares["softmax"] > 0
    assert shares["GELU"] == shares["optimiser and clipping"] == 0


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        ("aten::addmm", "products of matrices"),
        ("aten::bmm", "products in the attention"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "products in the attention"),
        ("aten::_log_softmax_backward_data", "softmax"),
        ("aten::native_layer_norm", "LayerNorm"),
        ("aten::add_", "sums and elementwise"),
        ("aten::_fused_adamw_", "optimiser and clipping"),
        ("aten::copy_", "copies, casts and new layouts"),
        ("autograd::engine::evaluate_function: SplitBackward0", "the rest"),
    ],
)
def test_kinds(operation: str, kind: str) -> None:
    assert kind_of(operation) == kind


def test_spread() -> None:
    assert spread([3.0, 1.0, 2.0, 9.0]) == {"median": 2.5, "min": 1.0, "max": 9.0}
