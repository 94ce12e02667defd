"""The modern encoder: it equals that of `transformers`, and its parts do what they promise."""

import random
from types import ModuleType

import pytest
import torch
from torch import Tensor

from labml_bert.modern import (
    ModernBertConfig,
    ModernBertForMaskedLM,
    ModernBertMLP,
    ModernBertModel,
    attend,
    labeled_positions,
    rotary_angles,
    rotate,
)
from tests.support.kernels import record_fused_attention
from tests.support.parity import TOLERANCE, assert_same_gradients


def random_config(seed: int) -> ModernBertConfig:
    r = random.Random(seed)
    heads = r.choice([1, 2, 3])
    return ModernBertConfig(
        vocab_size=r.randint(20, 90),
        hidden_size=heads * r.choice([4, 8, 10]),
        num_hidden_layers=r.randint(1, 5),
        num_attention_heads=heads,
        intermediate_size=r.randint(3, 40),
        global_attn_every_n_layers=r.randint(1, 3),
        local_attention=r.choice([2, 6, 8, 128]),
        norm_eps=r.choice([1e-5, 1e-2]),
        initializer_range=0.2,
        pad_token_id=0,
    )


def random_batch(config: ModernBertConfig, seed: int) -> dict[str, Tensor]:
    """Rows of different lengths, longer than most windows, and labels on a third of the tokens."""
    g = torch.Generator().manual_seed(seed)
    B, T = 4, 33
    input_ids = torch.randint(1, config.vocab_size, (B, T), generator=g)
    lengths = torch.tensor([T, T - 1, 12, 2])
    attention_mask = (torch.arange(T) < lengths[:, None]).long()
    is_labeled = (torch.rand((B, T), generator=g) < 0.3) & attention_mask.bool()
    is_labeled[0, 0] = True
    return {
        "input_ids": input_ids * attention_mask,
        "attention_mask": attention_mask,
        "labels": torch.where(is_labeled, input_ids, -100),
    }


@pytest.mark.parametrize("seed", range(12))
def test_it_agrees_with_transformers(seed: int) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is what this is compared with")
    torch.manual_seed(seed)
    config = random_config(seed)
    ours = ModernBertForMaskedLM(config)
    special = {"bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
    theirs = transformers.ModernBertForMaskedLM(
        transformers.ModernBertConfig(**vars(config), **special, attn_implementation="sdpa")
    )
    theirs.load_state_dict(ours.state_dict())
    batch = random_batch(config, seed)
    expected = theirs(**batch)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    is_token = batch["attention_mask"].bool()

    vectors = ours.model(**inputs)
    difference = vectors - theirs.model(**inputs).last_hidden_state
    assert difference[is_token].abs().max() < TOLERANCE
    assert (ours(**inputs).logits - expected.logits)[is_token].abs().max() < TOLERANCE
    output = ours(**batch)
    assert output.labels is not None and output.loss is not None
    labeled = expected.logits[batch["labels"] != -100]
    assert (output.logits - labeled).abs().max() < TOLERANCE
    assert abs(output.loss - expected.loss) < TOLERANCE
    output.loss.backward()
    expected.loss.backward()
    assert_same_gradients(ours, theirs)


def test_the_published_size() -> None:
    with torch.device("meta"):
        model = ModernBertForMaskedLM(ModernBertConfig())
    assert sum(p.numel() for p in model.model.parameters()) == 149_014_272
    assert sum(p.numel() for p in model.parameters()) == 149_655_232


def small(**changes: object) -> ModernBertConfig:
    sizes = {"vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 24, "pad_token_id": 0, "initializer_range": 0.2}
    return ModernBertConfig(**{**sizes, **changes})  # type: ignore[arg-type]


def test_the_matrices_are_initialized_as_the_paper_says() -> None:
    """
    The weights are normal, truncated at two sigma (0.8796 of the standard deviation). With 8 layers, sigma
    is a quarter for the matrices that add to the residual stream, and, as in `transformers`, in the head.
    """
    torch.manual_seed(0)
    model = ModernBertForMaskedLM(ModernBertConfig(500, 96, 8, 2, 96, pad_token_id=0, initializer_range=0.02))
    matrices = {name: p for name, p in model.named_parameters() if p.dim() == 2}
    assert len(matrices) == 4 * 8 + 2
    for name, weight in matrices.items():
        sigma = 0.005 if name.endswith(("Wo.weight", "head.dense.weight")) else 0.02
        assert 0.99 * 2 * sigma < weight.max() <= 2 * sigma, name
        assert -2 * sigma <= weight.min() < -0.99 * 2 * sigma, name
        assert abs(weight.std() / sigma - 0.8796) < 0.03, name
    assert all((p == 1).all() for name, p in model.named_parameters() if p.dim() == 1 and "norm" in name)


def test_the_padding_token_is_not_trained() -> None:
    model = ModernBertModel(small())
    model(torch.tensor([[3, 4, 0, 0]])).square().sum().backward()
    gradient = model.embeddings.tok_embeddings.weight.grad
    assert gradient is not None and gradient[3].any() and not gradient[0].any()


def test_a_model_in_bfloat16_without_autocast() -> None:
    torch.manual_seed(0)
    model, ids = ModernBertModel(small()).eval(), torch.randint(1, 30, (2, 9))
    exact = model(ids)
    rounded = model.bfloat16()(ids)
    assert rounded.dtype == torch.bfloat16
    assert (exact - rounded).abs().mean() < 0.03


def test_a_score_depends_on_the_distance_alone() -> None:
    torch.manual_seed(0)
    q, k = torch.randn(2, 8, dtype=torch.float64)

    def score(query_position: int, key_position: int) -> Tensor:
        cos, sin = rotary_angles(torch.tensor([[query_position, key_position]]), 8, 10_000.0)
        x = torch.stack((q, k))[None, None, None]  # (1, 1, 1, 2, d)
        turned = rotate(x, cos.double(), sin.double())[0, 0, 0]
        return turned[0] @ turned[1]

    assert torch.allclose(score(3, 1), score(40, 38), atol=1e-5)
    assert not torch.allclose(score(3, 1), score(3, 2), atol=1e-2)
    assert torch.allclose(score(5, 5), q @ k, atol=1e-5)


def test_only_differences_of_positions_matter() -> None:
    torch.manual_seed(0)
    model = ModernBertModel(small()).eval()
    ids, positions = torch.randint(1, 30, (2, 9)), torch.arange(9)[None]
    assert torch.allclose(model(ids), model(ids, position_ids=positions + 50), atol=1e-5)
    assert not torch.allclose(model(ids), model(ids, position_ids=2 * positions), atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_angles_are_exact_whatever_the_default_dtype(dtype: torch.dtype) -> None:
    positions = torch.tensor([[1, 1000]])
    expected = rotary_angles(positions, 8, 160_000.0)
    torch.set_default_dtype(dtype)
    try:
        angles = rotary_angles(positions, 8, 160_000.0)
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(torch.equal(a, b) for a, b in zip(angles, expected, strict=True))


def test_a_local_layer_sees_its_window_only() -> None:
    """A local layer follows a global layer that adds nothing: a change reaches 4 tokens to each side."""
    torch.manual_seed(0)
    model = ModernBertModel(
        small(num_hidden_layers=2, global_attn_every_n_layers=2, local_attention=8)
    ).eval()
    model.layers[0].attn.Wo.weight.data.zero_()
    ids = torch.randint(1, 30, (1, 20))
    new_ids = ids.clone()
    new_ids[0, 10] = ids[0, 10] % 29 + 1
    differs = (model(ids) - model(new_ids)).abs().amax(-1)[0] > 1e-6
    assert differs.nonzero().flatten().tolist() == [*range(6, 15)]


def test_padding_changes_nothing_for_the_tokens() -> None:
    torch.manual_seed(0)
    model = ModernBertModel(small(local_attention=6)).eval()
    ids = torch.randint(1, 30, (1, 12))
    padded = torch.cat((ids, torch.zeros(1, 5, dtype=torch.long)), dim=1)
    mask = (torch.arange(17) < 12).long()[None]
    assert torch.allclose(model(ids), model(padded, mask)[:, :12], atol=1e-5)


def test_a_mask_of_the_other_convention_is_refused() -> None:
    model, ids = ModernBertModel(small()).eval(), torch.ones(2, 3, dtype=torch.long)
    for mask in (torch.ones(2, 1, 1, 3), torch.zeros(2, 3) - 10_000):
        with pytest.raises(ValueError, match=r"^attention_mask must be \(B, T\), with 1 for a token and 0"):
            model(ids, mask)
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    assert torch.equal(model(ids, mask), model(ids, mask.float()))


def test_the_decoder_is_the_embedding() -> None:
    model = ModernBertForMaskedLM(small())
    assert model.decoder.weight is model.model.embeddings.tok_embeddings.weight
    assert not [name for name, _ in model.named_parameters() if "bias" in name and name != "decoder.bias"]


@pytest.mark.parametrize("local_attention", [4, 128])
def test_bfloat16_is_near_float32(local_attention: int) -> None:
    """In bfloat16, a CPU uses attention written out, and rotations are in bfloat16. The batch has padding."""
    torch.manual_seed(0)
    model = ModernBertForMaskedLM(small(local_attention=local_attention))
    ids, mask, labels = torch.randint(1, 30, (4, 12)), torch.ones(4, 12), torch.full((4, 12), -100)
    mask[1, 7:] = 0
    labels[:, 2:6] = ids[:, 2:6]
    dtypes = []
    model.model.layers[0].register_forward_hook(lambda _, inputs, output: dtypes.append(inputs[0].dtype))
    exact = model(ids, labels, attention_mask=mask)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = model(ids, labels, attention_mask=mask)
    assert dtypes == [torch.float32, torch.bfloat16]
    assert rounded.loss is not None and rounded.loss.dtype == torch.float32
    # The logits have a standard deviation of about 0.8.
    assert (exact.logits - rounded.logits).abs().mean() < 0.02


ATTENTION_MASKS = {
    "no mask": None,
    "padding": torch.tensor([[[[1, 1, 1, 1, 1]]], [[[1, 1, 1, 0, 0]]]]).bool(),  # (B, 1, 1, T)
    "windows": (torch.arange(5)[:, None] - torch.arange(5)).abs()[None, None, :3] < 3,  # (1, 1, P, T)
}


@pytest.mark.parametrize("mask", ATTENTION_MASKS.values(), ids=ATTENTION_MASKS)
def test_attention_written_out_is_that_of_the_fused_kernel(
    mask: Tensor | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fused kernel is used in float32 without dropout, and only then."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, length, 8) for length in (3, 5, 5))
    calls = record_fused_attention(monkeypatch)
    fused = attend(q, k, v, mask, 0.0)
    assert len(calls) == 1
    rounded = attend(q.bfloat16(), k.bfloat16(), v.bfloat16(), mask, 0.0)
    assert rounded.dtype == torch.bfloat16 and (rounded - fused).abs().max() < 0.05
    # The mean over many dropout masks is the result without dropout.
    many = (tensor.repeat(2000, 1, 1, 1) for tensor in (q[:1], k[:1], v[:1]))
    draws = attend(*many, None if mask is None else mask[:1], 0.25)
    assert (draws.mean(0) - fused[0]).abs().max() < 0.1
    assert draws.std(0).min() > 0.05
    assert len(calls) == 1
    # On a GPU, the kernel applies the dropout. A tensor on `meta` has no values but isn't on the CPU.
    attend(*(tensor.to("meta") for tensor in (q, k, v)), None, 0.25)
    assert calls[-1][-1] == 0.25 and len(calls) == 2


def test_each_dropout_probability_acts_in_training_and_only_then() -> None:
    ids = torch.randint(1, 30, (2, 9))
    for name in ("embedding_dropout", "attention_dropout", "mlp_dropout"):
        model = ModernBertModel(small(**{name: 0.5}))
        first, second = (model.train()(ids) for _ in range(2))
        assert not torch.equal(first, second), name
        first, second = (model.eval()(ids) for _ in range(2))
        assert torch.equal(first, second), name
    for layer in ModernBertModel(small(attention_dropout=0.5)).layers:
        # Only the dropout of the attention weights is left.
        layer.attn.out_drop.p = 0.0
        x, rotary = torch.randn(1, 9, 16), rotary_angles(torch.arange(9)[None], 8, 10_000.0)
        assert not torch.equal(layer.attn(x, rotary, None), layer.attn(x, rotary, None))


def test_the_losses_of_micro_batches_add_up() -> None:
    torch.manual_seed(0)
    model, ids = ModernBertForMaskedLM(small()), torch.randint(1, 30, (3, 9))
    labels = torch.full_like(ids, -100)
    labels[0, 4] = 7
    labels[1:, :3] = ids[1:, :3]
    parts = [model(ids[rows], labels[rows], torch.tensor(7)).loss for rows in (slice(1), slice(1, 3))]
    whole = model(ids, labels).loss
    assert sum(part.item() for part in parts) == pytest.approx(whole.item(), rel=1e-5)
    # The batch has a single label, so the mean is its loss.
    assert model(ids[:1], labels[:1]).loss.item() == pytest.approx(7 * parts[0].item(), rel=1e-5)


@pytest.mark.parametrize("local_attention", [4, 128])
def test_the_last_layer_at_some_positions_only_is_the_same(local_attention: int) -> None:
    """The batch has padding, and the window of the last layer is shorter or longer than the rows."""
    torch.manual_seed(0)
    model = ModernBertModel(small(num_hidden_layers=2, local_attention=local_attention)).eval()
    ids, mask = torch.randint(1, 30, (2, 12)), torch.ones(2, 12)
    mask[1, 8:] = 0
    positions = torch.tensor([[11, 0, 5], [7, 3, 3]])
    expected = model(ids, mask).take_along_dim(positions[:, :, None], dim=1)
    assert torch.allclose(model(ids, mask, output_positions=positions), expected, atol=1e-5)


@pytest.mark.parametrize("width", [8, 10])
def test_labels_of_another_width_are_refused(width: int) -> None:
    with pytest.raises(ValueError, match=r"^labels must be \(B, T\), like input_ids$"):
        ModernBertForMaskedLM(small())(torch.ones(2, 9, dtype=torch.long), torch.full((2, width), 3))


def test_labeled_positions_without_labels() -> None:
    assert labeled_positions(torch.full((2, 5), -100)).shape == (2, 0)
    assert labeled_positions(torch.tensor([[-100, 7, -100, 3], [-100, -100, 4, -100]])).tolist() == [
        [1, 3],
        [2, 0],
    ]
    assert labeled_positions(torch.zeros(0, 5)).shape == (0, 0)


def test_a_batch_without_labels_has_a_loss_of_zero() -> None:
    model = ModernBertForMaskedLM(small())
    ids = torch.randint(1, 30, (2, 5))
    loss = model(ids, torch.full_like(ids, -100)).loss
    assert loss is not None and loss == 0
    loss.backward()


@pytest.fixture()
def labml_nn(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    labml_nn = pytest.importorskip("labml_nn", reason="make peers installs it")
    # labml_nn 0.5.1 calls a function that labml has removed.
    monkeypatch.setattr(pytest.importorskip("labml.tracker"), "debug", lambda *_: None, raising=False)
    return labml_nn


def test_rotary_positions_are_those_of_labml_nn(labml_nn: ModuleType) -> None:
    """Both pair the same elements and turn them by the same angles. `labml_nn` has tensors (T, B, H, d)."""
    rope = pytest.importorskip("labml_nn.transformers.rope")
    torch.manual_seed(0)
    x = torch.randn(2, 3, 9, 8)  # (B, H, T, d)
    cos, sin = rotary_angles(torch.arange(9)[None], 8, 10_000.0)
    ours = rotate(x[:, None], cos, sin)[:, 0]
    theirs = rope.RotaryPositionalEmbeddings(8)(x.permute(2, 0, 1, 3)).permute(1, 2, 0, 3)
    assert torch.allclose(ours, theirs, atol=1e-6)


def test_the_gated_network_is_that_of_labml_nn(labml_nn: ModuleType) -> None:
    """`labml_nn` keeps the two projections apart, and has biases by default."""
    feed_forward = pytest.importorskip("labml_nn.transformers.feed_forward")
    torch.manual_seed(0)
    ours = ModernBertMLP(small())
    no_bias = dict.fromkeys(("bias1", "bias2", "bias_gate"), False)
    theirs = feed_forward.FeedForward(16, 24, 0.0, torch.nn.GELU(), is_gated=True, **no_bias)
    activated, gate = ours.Wi.weight.chunk(2)
    theirs.load_state_dict(
        {"layer1.weight": activated, "linear_v.weight": gate, "layer2.weight": ours.Wo.weight}
    )
    x = torch.randn(2, 5, 16)
    assert torch.allclose(ours(x), theirs(x), atol=1e-6)
