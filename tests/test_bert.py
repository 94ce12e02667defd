"""The encoder against `transformers`: the same weights and inputs give the same outputs."""

import copy
import dataclasses
import math
import random
from collections.abc import Callable

import pytest
import torch
import transformers
from torch import nn
from torch.nn.utils import prune

from labml_bert.bert import (
    BertConfig,
    BertModel,
    BertSelfAttention,
    Dropout,
    cast_once,
    init_weights,
    is_plain,
    written_out_is_faster,
)
from labml_bert.mlm import IGNORE, MaskedLM, masked_lm_positions
from labml_bert.models import BertForMaskedLM, BertForPreTraining
from tests.support.kernels import record_fused_attention

TOLERANCE = 1e-5


def random_config(seed: int) -> BertConfig:
    r = random.Random(seed)
    heads = r.choice([1, 2, 3, 4, 6])
    return BertConfig(
        vocab_size=r.randint(20, 200),
        hidden_size=heads * r.choice([3, 4, 8, 16]),
        num_hidden_layers=r.randint(1, 4),
        num_attention_heads=heads,
        intermediate_size=r.randint(5, 100),
        max_position_embeddings=r.randint(20, 40),
        type_vocab_size=r.randint(1, 3),
    )


def reference_of(config: BertConfig, implementation: str) -> transformers.BertForMaskedLM:
    hf = transformers.BertConfig(**dataclasses.asdict(config), attn_implementation=implementation)
    model = transformers.BertForMaskedLM(hf).eval()
    # Move all parameters, biases and norms included, far from their initial values, so that no error hides
    # behind a zero.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3)
        for name, parameter in model.named_parameters():
            if name.endswith("LayerNorm.weight"):
                parameter.add_(1)
    return model


def name_in_masked_lm(reference_name: str) -> str:
    """The name in `MaskedLM` of a parameter of `transformers.BertForMaskedLM`."""
    return reference_name.replace("bert.", "encoder.").replace("cls.predictions.", "head.")


def copy_weights(reference: transformers.BertForMaskedLM, config: BertConfig) -> MaskedLM:
    encoder = BertModel(config, add_pooling_layer=False)
    model = MaskedLM(encoder, encoder.embeddings.word_embeddings, config.layer_norm_eps).eval()
    state = {
        name_in_masked_lm(name): value
        for name, value in reference.state_dict().items()
        if not name.startswith("cls.predictions.decoder.")
    }
    model.load_state_dict(state)
    return model


def random_batch(config: BertConfig, seed: int) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    B, T = 5, config.max_position_embeddings - 3
    input_ids = torch.randint(1, config.vocab_size, (B, T), generator=g)
    lengths = torch.randint(1, T + 1, (B,), generator=g)
    lengths[0] = T
    attention_mask = (torch.arange(T) < lengths[:, None]).long()
    input_ids[attention_mask == 0] = config.pad_token_id
    labels = torch.randint(0, config.vocab_size, (B, T), generator=g)
    unlabeled = (torch.rand((B, T), generator=g) > 0.4) | (attention_mask == 0)
    unlabeled[0, 0] = False
    return {
        "input_ids": input_ids,
        "attention_mask": attention_mask,
        "token_type_ids": torch.randint(0, config.type_vocab_size, (B, T), generator=g),
        "labels": labels.masked_fill(unlabeled, IGNORE),
    }


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("seed", range(6))
def test_outputs_and_gradients_match_transformers(seed: int, implementation: str) -> None:
    """Hidden states, pooled output, logits, loss and every gradient, with padding and token types."""
    torch.manual_seed(seed)
    config = random_config(seed)
    reference = reference_of(config, implementation)
    model = copy_weights(reference, config)
    batch = random_batch(config, seed)

    theirs = reference(**batch)
    ours = model(**batch)
    is_labeled = batch["labels"] != IGNORE
    assert (ours.logits - theirs.logits[is_labeled]).abs().max() < TOLERANCE
    assert abs(ours.loss - theirs.loss) < TOLERANCE
    ours.loss.backward()
    theirs.loss.backward()
    grads = {name_in_masked_lm(name): p.grad for name, p in reference.named_parameters()}
    grads.pop("head.decoder.weight", None)
    our_parameters = dict(model.named_parameters())
    assert set(our_parameters) == set(grads)
    for name, parameter in our_parameters.items():
        assert parameter.grad is not None, name
        assert (parameter.grad - grads[name]).abs().max() < TOLERANCE, name

    inputs = {key: value for key, value in batch.items() if key != "labels"}
    # Without labels, the model returns logits at every position.
    attended = batch["attention_mask"].bool()
    assert (model(**inputs).logits - reference(**inputs).logits)[attended].abs().max() < TOLERANCE
    hidden = model.encoder(**inputs).last_hidden_state
    assert (hidden - reference.bert(**inputs)[0])[attended].abs().max() < TOLERANCE


@pytest.mark.parametrize("seed", range(3))
def test_the_pooler_and_the_attention_weights_match_transformers(seed: int) -> None:
    torch.manual_seed(seed)
    config = random_config(seed)
    hf = transformers.BertConfig(**dataclasses.asdict(config), attn_implementation="eager")
    reference = transformers.BertModel(hf).eval()
    model = BertModel(config).eval()
    model.load_state_dict(reference.state_dict())
    inputs = random_batch(config, seed)
    del inputs["labels"]
    theirs = reference(**inputs, output_attentions=True)
    fused, unfused = model(**inputs), model(**inputs, output_attentions=True)
    assert (unfused.pooler_output - theirs.pooler_output).abs().max() < TOLERANCE
    assert (fused.pooler_output - theirs.pooler_output).abs().max() < TOLERANCE
    assert fused.attentions is None
    assert len(unfused.attentions) == config.num_hidden_layers
    for our_weights, their_weights in zip(unfused.attentions, theirs.attentions, strict=True):
        assert (our_weights - their_weights).abs().max() < TOLERANCE


LARGE = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
}
FORUM = {"vocab_size": 20_000, "num_hidden_layers": 6}


@pytest.mark.parametrize(
    ("build", "sizes", "count"),
    [
        (BertModel, {}, 109_482_240),
        (BertModel, LARGE, 335_141_888),
        (BertForMaskedLM, {}, 109_514_298),
        (BertForMaskedLM, FORUM, 58_895_648),
        (BertForPreTraining, {}, 110_106_428),
        (BertForPreTraining, LARGE, 336_226_108),
    ],
    ids=["base", "large", "masked LM base", "the forum's masked LM", "both heads", "both heads, large"],
)
def test_parameter_counts(build, sizes: dict[str, int], count: int) -> None:
    # On the meta device, a model has shapes but no memory.
    with torch.device("meta"):
        model = build(BertConfig(**sizes))
    assert sum(p.numel() for p in model.parameters()) == count


@pytest.mark.slow("builds six models")
@torch.no_grad()
def test_the_initial_loss_is_ln_v() -> None:
    """
    An untrained model predicts every token with about the same probability. The last sizes are those of
    `mlm_tiny.py`.
    """
    narrow = {"vocab_size": 115, "hidden_size": 128, "initializer_range": 0.04}
    for seed in range(2):
        torch.manual_seed(seed)
        for sizes in (
            {"vocab_size": 8192, "hidden_size": 128},
            {"vocab_size": 70, "hidden_size": 256},
            narrow,
        ):
            config = BertConfig(
                **sizes, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=128
            )
            ids = torch.randint(5, config.vocab_size, (8, 128))
            loss = BertForMaskedLM(config)(ids, torch.randint(5, config.vocab_size, (8, 128))).loss
            expected = math.log(config.vocab_size)
            if config.initializer_range == 0.02:
                assert abs(loss / expected - 1) < 0.02
            # The logits aren't quite zero: each is the dot product of a normalized vector of D elements and
            # an embedding row.
            std = 0.8796 * config.initializer_range
            assert abs(loss - expected - config.hidden_size * std**2 / 2) < 0.01 * expected


def test_initial_weights_are_truncated_normal() -> None:
    torch.manual_seed(0)
    model = BertModel(
        BertConfig(hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=512)
    )
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            assert module.weight.abs().max() <= 0.04
        if isinstance(module, nn.Linear):
            # A normal distribution truncated at two sigma has 0.8796 of the original standard deviation.
            assert abs(module.weight.std() / 0.02 - 0.8796) < 0.02
            assert not module.bias.any()
        if isinstance(module, nn.LayerNorm):
            assert (module.weight == 1).all()
            assert module.eps == 1e-12
    layer = nn.Linear(100, 100)
    init_weights(layer)
    assert 0.0399 < layer.weight.abs().max() <= 0.04


def small_config() -> BertConfig:
    return BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=12,
    )


def test_padding_does_not_affect_the_other_tokens() -> None:
    torch.manual_seed(0)
    model = BertModel(small_config()).eval()
    ids = torch.randint(1, 50, (2, 7))
    padded = torch.cat([ids, torch.randint(1, 50, (2, 4))], 1)
    mask = torch.tensor([[1] * 7 + [0] * 4] * 2)
    for attentions in (False, True):
        alone = model(ids, output_attentions=attentions).last_hidden_state
        with_padding = model(padded, mask, output_attentions=attentions).last_hidden_state[:, :7]
        assert (alone - with_padding).abs().max() < 1e-6


def test_the_padding_embedding_gets_no_gradient() -> None:
    """It gets none even without an attention mask."""
    torch.manual_seed(0)
    model = BertModel(small_config())
    ids = torch.randint(1, 50, (2, 6))
    ids[:, 4:] = 0
    model(ids).last_hidden_state.square().sum().backward()
    has_gradient = model.embeddings.word_embeddings.weight.grad.abs().sum(1) > 0
    assert has_gradient.nonzero().flatten().tolist() == sorted(set(ids[:, :4].flatten().tolist()))


@pytest.mark.parametrize("attentions", [False, True])
def test_a_row_of_nothing_but_padding_gives_finite_outputs_and_gradients(attentions: bool) -> None:
    torch.manual_seed(0)
    model = BertModel(small_config())
    mask = torch.ones(2, 6)
    mask[1] = 0
    output = model(torch.randint(1, 50, (2, 6)), mask, output_attentions=attentions)
    assert output.last_hidden_state.isfinite().all()
    output.last_hidden_state.sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all(), name


def test_position_ids_select_rows_of_the_position_table() -> None:
    """A sequence with an offset uses the rows of the position table at that offset and no others."""
    torch.manual_seed(0)
    model = BertModel(small_config())
    ids = torch.randint(1, 50, (2, 4))
    offsets = torch.tensor([[3], [7]])
    model(ids, position_ids=offsets + torch.arange(4)).last_hidden_state.square().sum().backward()
    has_gradient = model.embeddings.position_embeddings.weight.grad.abs().sum(1) > 0
    assert has_gradient.nonzero().flatten().tolist() == [*range(3, 11)]


def test_bfloat16_agrees_with_float32_up_to_its_precision() -> None:
    torch.manual_seed(0)
    model = BertModel(small_config()).eval()
    ids, mask = torch.randint(1, 50, (3, 12)), torch.ones(3, 12)
    mask[1, 5:] = 0
    exact = model(ids, mask).last_hidden_state
    with torch.autocast("cpu", torch.bfloat16):
        rounded = model(ids, mask).last_hidden_state.float()
    # After LayerNorm, values have a size of about 1, and bfloat16 has 8 bits of precision.
    assert (exact - rounded).abs().mean() < 0.02


@pytest.mark.parametrize("pooler", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_output_positions_select_from_the_full_output(pooler: bool, training: bool) -> None:
    """
    Computing the last layer at some positions only gives the same outputs and gradients as computing it
    everywhere.
    """
    torch.manual_seed(0)
    config = dataclasses.replace(random_config(3), hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model = BertModel(config, pooler).train(training)
    ids = torch.randint(1, config.vocab_size, (3, 9))
    mask = torch.ones(3, 9)
    mask[1, 6:] = 0
    positions = torch.tensor([[4, 2], [0, 5], [8, 8]])
    results = []
    for output_positions in (None, positions):
        model.zero_grad()
        output = model(ids, mask, output_positions=output_positions)
        x = output.last_hidden_state
        if output_positions is None:
            x = x[torch.arange(3)[:, None], positions]
        loss = (x * torch.arange(x.numel()).view(x.shape)).sum() / 100
        if pooler:
            loss = loss + output.pooler_output.square().sum()
        loss.backward()
        results.append((x.detach(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}))
    (full_output, full_gradients), (partial_output, partial_gradients) = results
    torch.testing.assert_close(partial_output, full_output, atol=1e-5, rtol=1e-5)
    assert partial_gradients.keys() == full_gradients.keys()
    for name, gradient in full_gradients.items():
        torch.testing.assert_close(partial_gradients[name], gradient, atol=1e-4, rtol=1e-4)


def test_only_the_last_call_of_a_shared_layer_selects_positions() -> None:
    """In ALBERT, all layers have the same weights."""
    torch.manual_seed(0)
    model = BertModel(small_config(), add_pooling_layer=False).eval()
    model.encoder.layer[0] = model.encoder.layer[1]
    ids, positions = torch.randint(50, (3, 9)), torch.tensor([[4], [0], [8]])
    everywhere = model(ids).last_hidden_state
    selected = model(ids, output_positions=positions).last_hidden_state
    torch.testing.assert_close(
        selected, everywhere[torch.arange(3)[:, None], positions], atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("is_written_out", [False, True])
def test_attention_dropout_follows_the_dropout_module(
    is_written_out: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Monte-Carlo dropout, for example, turns on only the dropout modules."""
    monkeypatch.setattr("labml_bert.bert.written_out_is_faster", lambda *_: is_written_out)
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 24}
    model = BertModel(BertConfig(20, **sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.5))
    attention = model.encoder.layer[0].attention["self"]
    ids = torch.arange(12)[None]
    for mode in (False, True):
        model.train(not mode)
        attention.dropout.train(mode)
        first, second = (model(ids).last_hidden_state for _ in range(2))
        assert torch.equal(first, second) is not mode


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_dropout_drops_with_its_probability(p: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    n = 1_000_003
    x = torch.ones(n, dtype=dtype, requires_grad=True)
    y = Dropout(p).train()(x)
    y.sum().backward()
    dropped_fraction = (y == 0).double().mean().item()
    assert abs(dropped_fraction - p) < 5 * math.sqrt(p * (1 - p) / n) + 2**-17
    factor = 1 / (1 - round(p * 2**16) / 2**16)
    assert factor == pytest.approx(1 / (1 - p), rel=1e-4)
    assert set(y.detach().unique().tolist()) == {0.0, torch.tensor(factor, dtype=dtype).item()}
    assert torch.equal(x.grad, y.detach())
    # Neighboring elements share a random draw of 64 bits, but must be dropped independently.
    dropped = (y == 0).double()
    for distance in (1, 2, 3, 4):
        both = (dropped[:-distance] * dropped[distance:]).mean().item()
        assert abs(both - p * p) < 5 * math.sqrt(p * p * (1 - p * p) / n) + 2**-16
    assert torch.equal(Dropout(p).eval()(x), x) and torch.equal(Dropout(0.0).train()(x), x)
    assert not Dropout(1.0).train()(x).any()


def test_masked_lm_positions_are_the_labeled_ones() -> None:
    labels = torch.tensor([[-100, 5, -100, 6], [7, -100, -100, -100], [-100] * 4])
    positions = masked_lm_positions(labels)
    assert positions.shape == (3, 2)
    assert positions[0].tolist() == [1, 3] and positions[1, 0] == 0
    assert labels.gather(1, positions).tolist() == [[5, 6], [7, -100], [-100, -100]]
    assert masked_lm_positions(labels[2:]).shape == (1, 0)
    assert masked_lm_positions(labels[:0]).shape == (0, 0)


def test_each_dropout_layer_acts_in_training_and_only_then() -> None:
    """This includes the dropout of attention weights, which the fused kernel applies itself."""
    torch.manual_seed(0)
    config = dataclasses.replace(small_config(), hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.2)
    model, ids = BertModel(config), torch.randint(1, 50, (2, 7))
    layers = {name: module for name, module in model.named_modules() if isinstance(module, Dropout)}
    assert len(layers) == 1 + 3 * config.num_hidden_layers
    for name, layer in layers.items():
        assert layer.p == (0.2 if name.endswith("self.dropout") else 0.3)
        layer.p = 0.0
    for name, layer in layers.items():
        layer.p = 0.5
        first, second = (model.train()(ids).last_hidden_state for _ in range(2))
        assert not torch.equal(first, second), name
        first, second = (model.eval()(ids).last_hidden_state for _ in range(2))
        assert torch.equal(first, second), name
        layer.p = 0.0


class LinearWithLoRA(nn.Linear):
    """As in `peft`, the layer's own `forward` adds the update."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + x[..., :1]


class QuantizedWeight(torch.Tensor):
    """Like the weights of `torchao`, which no concatenation accepts."""


def test_every_linear_layer_is_called_if_it_does_more_than_a_matmul() -> None:
    """One matmul for query, key and value would silently ignore LoRA, pruning and hooks."""
    torch.manual_seed(0)
    config, ids = small_config(), torch.randint(1, 50, (2, 7))
    model = BertModel(config).eval()
    expected = model(ids).last_hidden_state
    names = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    assert len(names) == 1 + 6 * config.num_hidden_layers

    # Without hooks, they share one matmul.
    assert all(is_plain(model.get_submodule(name)) for name in names)

    called: list[str] = []
    for register in ("register_forward_pre_hook", "register_forward_hook", "register_full_backward_hook"):
        called.clear()
        handles = [
            getattr(model.get_submodule(name), register)(lambda *_, name=name: called.append(name))
            for name in names
        ]
        output = model(ids)
        (output.last_hidden_state.sum() + output.pooler_output.sum()).backward()
        assert sorted(called) == sorted(names), register
        torch.testing.assert_close(output.last_hidden_state, expected, atol=1e-6, rtol=0)
        for handle in handles:
            handle.remove()

    calls: list[nn.Module] = []
    handle = nn.modules.module.register_module_forward_hook(lambda module, *_: calls.append(module))
    model(ids)
    handle.remove()
    assert sum(isinstance(module, nn.Linear) for module in calls) == len(names)

    def output_with(change: Callable[[nn.Linear], nn.Linear | None], name: str) -> torch.Tensor:
        other = copy.deepcopy(model)
        parent, _, last = name.rpartition(".")
        if (layer := change(other.get_submodule(name))) is not None:
            setattr(other.get_submodule(parent), last, layer)
        for _ in range(2):
            # Pruning computes the weight anew in each call.
            other(ids).last_hidden_state.sum().backward()
        return other(ids).last_hidden_state

    def prune_half(layer: nn.Linear) -> None:
        prune.l1_unstructured(layer, "weight", 0.5)

    def patch_forward(layer: nn.Linear) -> None:
        layer.forward = lambda x: nn.Linear.forward(layer, x) * 2

    def add_lora(layer: nn.Linear) -> nn.Linear:
        new = LinearWithLoRA(layer.in_features, layer.out_features)
        new.load_state_dict(layer.state_dict())
        return new

    def remove_bias(layer: nn.Linear) -> nn.Linear:
        return nn.Linear(layer.in_features, layer.out_features, bias=False)

    assert not is_plain(remove_bias(nn.Linear(2, 2)))
    quantized = nn.Linear(2, 2)
    quantized.weight = nn.Parameter(quantized.weight.detach().as_subclass(QuantizedWeight))
    assert is_plain(nn.Linear(2, 2)) and not is_plain(quantized)
    assert not is_plain(nn.Sequential(nn.Linear(2, 2)))  # type: ignore[arg-type]

    for name in names[:3]:
        for change in (remove_bias, prune_half, patch_forward, add_lora):
            assert not torch.allclose(output_with(change, name), expected, atol=1e-6), (name, change)


def test_the_fused_kernel_is_avoided_only_where_it_is_slow() -> None:
    q = torch.zeros(1, 1, 2, 4)
    assert not written_out_is_faster(q, 0.0)
    assert written_out_is_faster(q, 0.1)
    assert written_out_is_faster(q.bfloat16(), 0.0)
    assert not written_out_is_faster(q.bfloat16().to("meta"), 0.1)


def test_the_fused_kernel_drops_attention_weights_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor on `meta` has no values, but like one on a GPU, it isn't on the CPU."""
    calls = record_fused_attention(monkeypatch)
    config = dataclasses.replace(small_config(), attention_probs_dropout_prob=0.2)
    attention, x = BertSelfAttention(config).to("meta"), torch.zeros(2, 5, 16, device="meta")
    for training, p in ((True, 0.2), (False, 0.0)):
        attention.train(training)(x, x)
        assert calls[-1][-1] == p


def test_autocast_casts_the_embeddings_once() -> None:
    x = torch.zeros(2)
    assert cast_once(x).dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert cast_once(x).dtype == torch.bfloat16


def test_positions_and_word_ids_of_one_row_serve_all_rows() -> None:
    """As for `position_ids` and `token_type_ids`, one row of them is enough."""
    torch.manual_seed(0)
    model = BertModel(BertConfig(30, 16, 2, 2, 32)).eval()
    ids, positions = torch.randint(30, (3, 10)), torch.tensor([[1, 4]])
    output = model(ids, output_positions=positions)
    expected = model(ids).last_hidden_state[:, [1, 4]]
    torch.testing.assert_close(output.last_hidden_state, expected)
    torch.testing.assert_close(output.pooler_output, model(ids).pooler_output)
