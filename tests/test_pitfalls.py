"""
A catalog of mistakes that people make with BERT, each with the check that detects it.

Every check runs twice: on our code, where it must pass, and on a variant with the mistake, where it must
fail. If the variant is written here, the check also runs on it without the mistake, so that it can't fail for
another reason.
"""

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from labml_bert.bert import BertConfig, BertModel
from labml_bert.data.corpora import load_corpus
from labml_bert.data.masked_text import MaskedText
from labml_bert.data.tokenizers import character_tokenizer
from labml_bert.data.windows import Batch, random_windows
from labml_bert.mlm import IGNORE, TokenMasker, masked_lm_loss
from labml_bert.models import BertForMaskedLM
from labml_bert.nsp import next_sentence_loss
from labml_bert.training.evaluation import evaluate_masked_lm
from labml_bert.training.optimization import TrainingArguments, parameter_groups
from labml_bert.training.trainer import Trainer
from tests.support.trainers import train_on

V, MASK, PAD = 40, 4, 0
SPECIALS = range(5)


def detects(check: Callable[[Any], None], faulty: Any) -> bool:
    """Whether the check fails, by an assertion or by an exception in PyTorch."""
    try:
        check(faulty)
    except (AssertionError, IndexError, RuntimeError):
        return True
    return False


def config(**sizes: Any) -> BertConfig:
    small = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 16,
    }
    return BertConfig(**{"vocab_size": V, **small, **sizes})


# Masking tokens

Masking = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]]


def our_masking(p: float = 0.15) -> Masking:
    return TokenMasker(V, MASK, SPECIALS, mlm_probability=p, generator=torch.Generator().manual_seed(0))


def common_masking(mistake: str = "", p: float = 0.15) -> Masking:
    """Masking as it is often written, with one mistake or none."""
    g = torch.Generator().manual_seed(0)

    def mask_tokens(input_ids: Tensor, attention_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        masked_ids = input_ids if mistake == "in place" else input_ids.clone()
        is_chosen = torch.rand(masked_ids.shape, generator=g) < p
        if mistake != "special tokens masked":
            is_chosen &= input_ids >= len(SPECIALS)
        if attention_mask is not None and mistake != "padding masked":
            is_chosen &= attention_mask.bool()
        labels = input_ids.clone()
        if mistake == "shifted":
            labels = labels.roll(-1, 1)
        if mistake != "labels at all positions":
            labels[~is_chosen] = {"minus one": -1, "zero": 0}.get(mistake, IGNORE)
        action = torch.rand(masked_ids.shape, generator=g)
        is_masked, is_random = action < 0.8, (action >= 0.8) & (action < 0.9)
        if mistake == "two separate draws":
            # One draw decides about random tokens, another about keeping the rest; what remains is masked.
            is_random = action < 0.1
            is_masked = ~is_random & (torch.rand(masked_ids.shape, generator=g) >= 0.1)
        lowest_id = 0 if mistake == "random special tokens" else len(SPECIALS)
        masked_ids[is_chosen & is_random] = torch.randint(lowest_id, V, masked_ids.shape, generator=g)[
            is_chosen & is_random
        ]
        masked_ids[is_chosen & is_masked] = MASK
        return masked_ids, labels

    return mask_tokens


def text(rows: int = 100, T: int = 100) -> Tensor:
    return torch.randint(0, V, (rows, T), generator=torch.Generator().manual_seed(1))


def never_chooses_special_tokens(mask_tokens: Masking) -> None:
    ids = text()
    assert (ids[mask_tokens(ids.clone(), None)[1] != IGNORE] >= len(SPECIALS)).all()


def never_chooses_padding(mask_tokens: Masking) -> None:
    attention_mask = (torch.arange(100) < torch.arange(100)[:, None]).long()
    # The ids are ordinary tokens, so that only the attention mask tells what is padding.
    labels = mask_tokens(text().clamp(min=5), attention_mask)[1]
    assert (labels[attention_mask == 0] == IGNORE).all()


def replaces_with_ordinary_tokens(mask_tokens: Masking) -> None:
    ids = text()
    masked_ids, labels = mask_tokens(ids.clone(), None)
    replacements = masked_ids[(labels != IGNORE) & (masked_ids != MASK)]
    assert (replacements >= len(SPECIALS)).all()


def fractions_are_80_10_10(mask_tokens: Masking) -> None:
    ids = torch.full((1000, 400), 7)
    masked_ids, labels = mask_tokens(ids.clone(), None)
    chosen_ids = masked_ids[labels != IGNORE]
    n = len(chosen_ids)
    # One random token in 35 is the original token itself.
    for fraction, expected in (
        ((chosen_ids == MASK).sum() / n, 0.8),
        ((chosen_ids == 7).sum() / n, 0.1 + 0.1 / 35),
    ):
        assert abs(fraction - expected) < 5 * math.sqrt(expected * (1 - expected) / n)


def leaves_its_input_unchanged(mask_tokens: Masking) -> None:
    ids = text()
    original = ids.clone()
    mask_tokens(ids, None)
    assert torch.equal(ids, original)


def labels_are_the_original_tokens(mask_tokens: Masking) -> None:
    ids = text()
    labels = mask_tokens(ids.clone(), None)[1]
    is_chosen = labels != IGNORE
    assert torch.equal(labels[is_chosen], ids[is_chosen])


def labels_only_chosen_positions(mask_tokens: Masking) -> None:
    """With other labels, the model can copy visible tokens, or learns one label at all unmasked positions."""
    masked_ids, labels = mask_tokens(text(), None)
    # At most twice as many labels as chosen tokens, and few labeled tokens are still visible.
    assert (labels != IGNORE).float().mean() < 0.3
    assert (masked_ids == labels).float().mean() < 0.1


@pytest.mark.parametrize(
    ("mistake", "check", "p"),
    [
        ("special tokens masked", never_chooses_special_tokens, 0.15),
        ("padding masked", never_chooses_padding, 0.15),
        ("random special tokens", replaces_with_ordinary_tokens, 0.15),
        # 81% masked, 10% random and 9% unchanged.
        ("two separate draws", fractions_are_80_10_10, 1.0),
        ("in place", leaves_its_input_unchanged, 0.15),
        ("shifted", labels_are_the_original_tokens, 0.15),
        ("labels at all positions", labels_only_chosen_positions, 0.15),
    ],
)
def test_mistakes_in_masking(mistake: str, check: Callable[[Masking], None], p: float) -> None:
    check(our_masking(p))
    check(common_masking(p=p))
    assert detects(check, common_masking(mistake, p))


@pytest.mark.parametrize("mistake", ["minus one", "zero"])
def test_mistakes_in_the_ignored_label(mistake: str) -> None:
    """-1 was the ignored label of old versions. With 0, all unmasked positions learn to predict token 0."""

    def check(mask_tokens: Masking) -> None:
        ids = text(8, 20)
        labels = mask_tokens(ids.clone(), None)[1].flatten()
        logits = torch.randn(160, V, generator=torch.Generator().manual_seed(2))
        loss = masked_lm_loss(logits, labels)
        logp, answers = logits.log_softmax(-1).tolist(), ids.flatten().tolist()
        is_chosen = [m for m, label in enumerate(labels.tolist()) if label not in (IGNORE, -1, 0)]
        expected_losses = [-logp[m][answers[m]] for m in is_chosen]
        assert loss.item() == pytest.approx(sum(expected_losses) / len(expected_losses), abs=1e-4)

    check(our_masking())
    check(common_masking())
    assert detects(check, common_masking(mistake))


# The losses


def test_a_mean_over_all_positions() -> None:
    """Dividing by the number of all positions makes the loss depend on the amount of padding."""

    def check(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        logits = torch.randn(6, V, generator=torch.Generator().manual_seed(0))
        labels = torch.tensor([7, IGNORE, 9, IGNORE, IGNORE, IGNORE])
        assert loss(logits, labels).item() == pytest.approx(loss(logits[[0, 2]], labels[[0, 2]]).item())

    def faulty(logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels, reduction="none").mean()

    check(masked_lm_loss)
    assert detects(check, faulty)


def test_unmasked_positions_trained_to_predict_class_0() -> None:
    def check(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        logits = torch.zeros(4, V, requires_grad=True)
        loss(logits, torch.tensor([7, IGNORE, IGNORE, 9])).backward()
        assert logits.grad is not None
        assert not logits.grad[[1, 2]].any()
        assert logits.grad[[0, 3]].any(1).all()

    def faulty(logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels.clamp(min=0))

    check(masked_lm_loss)
    assert detects(check, faulty)


def test_minus_one_as_the_ignored_label() -> None:
    """-1 must raise an error; only -100 is ignored."""

    def check(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        logits = torch.zeros(2, V)
        assert loss(logits, torch.tensor([7, IGNORE])).item() == pytest.approx(math.log(V))
        try:
            value = loss(logits, torch.tensor([7, -1]))
        except IndexError:
            return
        raise AssertionError(f"the label -1 was accepted, with a loss of {value}")

    def faulty(logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels.clamp(min=-1), ignore_index=-1)

    check(masked_lm_loss)
    assert detects(check, faulty)


def test_a_batch_without_masked_tokens() -> None:
    """A mean over no labels is 0/0, and one such batch turns all weights into NaN."""

    def check(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        logits = torch.randn(3, V, requires_grad=True)
        value = loss(logits, torch.full((3,), IGNORE))
        value.backward()
        assert value == 0
        assert logits.grad is not None
        assert logits.grad.isfinite().all()

    check(masked_lm_loss)
    assert detects(check, F.cross_entropy)


def test_an_ignored_class_in_next_sentence_prediction() -> None:
    """Label 0 is a class. A loss that ignores it never learns to recognize the next sentence."""

    def check(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        logits = torch.tensor([[-2.0, 2.0], [-2.0, 2.0]], requires_grad=True)
        value = loss(logits, torch.tensor([0, 1]))
        value.backward()
        assert logits.grad is not None
        assert logits.grad[0].any()
        assert value.item() == pytest.approx((math.log(1 + math.exp(4)) + math.log(1 + math.exp(-4))) / 2)

    check(next_sentence_loss)
    assert detects(check, lambda logits, labels: F.cross_entropy(logits, labels, ignore_index=0))


# The encoder


class AddsTheMask(nn.Module):
    """Attention that adds a mask of ones and zeros to the scores: padding is only slightly less likely."""

    def __init__(self, attention: Any):
        super().__init__()
        self.inner = attention

    def forward(
        self, query_states: Tensor, hidden_states: Tensor, attention_mask: Tensor | None, *_: bool
    ) -> Any:
        a = self.inner
        q, k, v = a.project(hidden_states, a.query, a.key, a.value)
        mask = None if attention_mask is None else attention_mask.to(q.dtype)
        return F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2), None


def test_an_attention_mask_added_to_the_scores() -> None:
    def check(model: BertModel) -> None:
        ids = torch.randint(5, V, (3, 12), generator=torch.Generator().manual_seed(0))
        attention_mask = torch.ones(3, 12)
        attention_mask[:, 8:] = 0
        alone = model(ids[:, :8]).last_hidden_state
        assert (model(ids, attention_mask).last_hidden_state[:, :8] - alone).abs().max() < 1e-5

    torch.manual_seed(0)
    model = BertModel(config()).eval()
    check(model)
    for layer in model.encoder.layer:
        layer.attention.self = AddsTheMask(layer.attention.self)
    assert detects(check, model)


@pytest.mark.parametrize("mistake", ["", "eps", "tanh"])
def test_other_layer_norm_eps_and_gelu_than_the_original(mistake: str) -> None:
    """With PyTorch's default LayerNorm eps or the tanh form of GELU, released weights give other outputs."""
    torch.manual_seed(0)
    model = BertModel(config(layer_norm_eps=1e-5 if mistake == "eps" else 1e-12)).eval()
    # The two forms of GELU differ with large weights; the two values of eps, with small embeddings.
    if mistake != "eps":
        for name, parameter in model.named_parameters():
            if "LayerNorm" not in name:
                nn.init.normal_(parameter, std=0.5)
    sizes = {name: value for name, value in vars(model.config).items() if name != "layer_norm_eps"}
    reference = transformers.BertModel(transformers.BertConfig(**sizes)).eval()
    reference.load_state_dict(model.state_dict())
    if mistake == "tanh":
        for layer in model.encoder.layer:
            dense = layer.intermediate.dense
            layer.intermediate = nn.Sequential(dense, nn.GELU("tanh"))

    def check(model: BertModel) -> None:
        ids = torch.randint(5, V, (3, 12), generator=torch.Generator().manual_seed(0))
        difference = model(ids).last_hidden_state - reference(ids).last_hidden_state
        assert difference.abs().max() < 1e-5

    assert detects(check, model) == bool(mistake)


def test_an_initial_loss_far_above_ln_v() -> None:
    """If the output layer is an embedding initialized with N(0, 1), the initial loss is far above ln V."""

    def check(model: BertForMaskedLM) -> None:
        g = torch.Generator().manual_seed(0)
        ids, labels = (torch.randint(5, 2000, (8, 16), generator=g) for _ in range(2))
        assert abs(model(ids, labels).loss / math.log(2000) - 1) < 0.05

    torch.manual_seed(0)
    model = BertForMaskedLM(config(vocab_size=2000, hidden_size=128)).eval()
    check(model)
    nn.init.normal_(model.bert.embeddings.word_embeddings.weight)
    assert detects(check, model)


class StaleBias(BertForMaskedLM):
    """Resizes the embedding but forgets the bias, which has an entry for each token as well."""

    def resize_token_embeddings(self, vocab_size: int) -> None:
        bias = self.cls.predictions.bias
        super().resize_token_embeddings(vocab_size)
        self.cls.predictions.bias = bias


@pytest.mark.parametrize("size", [V + 3, V - 3])
def test_a_bias_that_is_not_resized(size: int) -> None:
    def check(model: BertForMaskedLM) -> None:
        model.resize_token_embeddings(size)
        assert model(torch.zeros(1, 4, dtype=torch.long)).logits.shape == (1, 4, size)

    check(BertForMaskedLM(config()))
    assert detects(check, StaleBias(config()))


# The data


def test_short_windows_that_all_start_at_position_zero() -> None:
    """If all short sequences start at position 0, the rest of the position table is never trained."""

    def windows_at_zero(*arguments: Any) -> Batch:
        batch = random_windows(*arguments)
        return batch._replace(position_ids=torch.arange(batch.input_ids.size(1)).expand_as(batch.input_ids))

    def check(draw_windows: Callable[..., Batch]) -> None:
        generator = torch.Generator().manual_seed(0)
        batches = [draw_windows(torch.arange(500), 64, 4, 16, generator) for _ in range(20)]
        positions = torch.cat([batch.position_ids.flatten() for batch in batches])
        assert sorted(set(positions.tolist())) == [*range(16)]

    check(random_windows)
    assert detects(check, windows_at_zero)


# Training


def test_names_that_exclude_nothing_from_weight_decay() -> None:
    """A rule that uses outdated parameter names excludes nothing from weight decay."""

    def by_name(*names: str) -> Callable[[nn.Module, float], list[dict[str, Any]]]:
        def groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
            excluded = [p for n, p in model.named_parameters() if any(name in n for name in names)]
            others = [p for n, p in model.named_parameters() if not any(name in n for name in names)]
            return [
                {"params": others, "weight_decay": weight_decay},
                {"params": excluded, "weight_decay": 0.0},
            ]

        return groups

    def check(groups: Callable[[nn.Module, float], list[dict[str, Any]]]) -> None:
        model = BertForMaskedLM(config())
        decay = {id(p): group["weight_decay"] for group in groups(model, 0.01) for p in group["params"]}
        for name, p in model.named_parameters():
            excluded = name.endswith("bias") or "LayerNorm" in name
            assert decay[id(p)] == (0.0 if excluded else 0.01), name

    check(parameter_groups)
    check(by_name("bias", "LayerNorm"))
    # These are names from the first PyTorch port, and of the original's variables.
    assert detects(check, by_name("gamma", "beta"))
    assert detects(check, by_name("bias", "gamma", "beta"))
    assert detects(check, by_name("layer_norm", "bias"))


class PlainTrainer:
    """A plain training loop, with one mistake or none."""

    def __init__(self, model: nn.Module, mistake: str = ""):
        self.model = model
        # An optimizer created before the model is copied or resized updates parameters that nobody uses.
        optimized_model = copy.deepcopy(model) if mistake == "other parameters" else model
        self.optimizers = [torch.optim.AdamW(optimized_model.parameters(), lr=1e-3)]
        self.mistake = mistake

    def train_step(self, batch: dict[str, Tensor]) -> None:
        self.model(**batch).loss.backward()
        for parameters in (
            [[p] for p in self.model.parameters()]
            if self.mistake == "clip per parameter"
            else [[*self.model.parameters()]]
        ):
            nn.utils.clip_grad_norm_(parameters, 0.1)
        self.optimizers[0].step()
        self.optimizers[0].zero_grad()


def trainer(model: nn.Module) -> Trainer:
    arguments = TrainingArguments(steps=10, learning_rate=1e-3, warmup_ratio=0.0, max_grad_norm=0.1)
    return Trainer(model, arguments, torch.Generator(), torch.device("cpu"), precision="float32")


def train_one_step(any_trainer: PlainTrainer | Trainer) -> None:
    if isinstance(any_trainer, PlainTrainer):
        any_trainer.train_step(examples())
    else:
        train_on(next(any_trainer.steps()), examples())


def examples() -> dict[str, Tensor]:
    ids = torch.randint(5, V, (8, 16), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "labels": ids}


def test_clipping_each_parameter_separately() -> None:
    """Clipping each parameter by its own norm changes the direction of the step."""

    def check(any_trainer: Any) -> None:
        model, clipped = any_trainer.model, {}
        model(**examples()).loss.backward()
        gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
        model.zero_grad()
        norm = torch.stack([g.square().sum() for g in gradients.values()]).sum().sqrt()
        assert norm > 0.1
        optimizer = any_trainer.optimizers[0]
        step = optimizer.step

        def record_and_step() -> None:
            clipped.update({name: p.grad.clone() for name, p in model.named_parameters()})
            step()

        optimizer.step = record_and_step
        train_one_step(any_trainer)
        for name, g in gradients.items():
            assert torch.allclose(clipped[name], g * (0.1 / norm), rtol=1e-3, atol=1e-7), name

    torch.manual_seed(0)
    model = BertForMaskedLM(config(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    check(trainer(copy.deepcopy(model)))
    check(PlainTrainer(copy.deepcopy(model)))
    assert detects(check, PlainTrainer(copy.deepcopy(model), "clip per parameter"))


def test_an_optimizer_for_other_parameters() -> None:
    def check(any_trainer: Any) -> None:
        weights_before = {name: p.detach().clone() for name, p in any_trainer.model.named_parameters()}
        train_one_step(any_trainer)
        for name, p in any_trainer.model.named_parameters():
            assert not torch.equal(p, weights_before[name]), name

    torch.manual_seed(0)
    # One step moves every parameter, even those that start at 0 or have a tiny gradient.
    model = BertForMaskedLM(config(max_position_embeddings=16, type_vocab_size=1))
    check(trainer(copy.deepcopy(model)))
    check(PlainTrainer(copy.deepcopy(model)))
    assert detects(check, PlainTrainer(copy.deepcopy(model), "other parameters"))


def test_a_learning_rate_of_zero() -> None:
    """With integer division, the fraction of the budget is 0 until the end."""

    def check(learning_rate_at: Callable[[int], float]) -> None:
        learning_rates = [learning_rate_at(step) for step in range(1, 100)]
        assert all(0 < r <= 1 for r in learning_rates)
        assert max(learning_rates) == pytest.approx(1)
        assert learning_rates[:10] == sorted(learning_rates[:10])
        assert learning_rates[10:] == sorted(learning_rates[10:], reverse=True)

    arguments = TrainingArguments(steps=100, learning_rate=1.0, warmup_ratio=0.1)
    check(lambda step: arguments.learning_rate_at(step / 100))
    assert detects(check, lambda step: arguments.learning_rate_at(step // 100))


def test_dropout_during_evaluation(corpus_file: Path) -> None:
    """Two evaluations of the same text give the same loss; afterwards, training continues with dropout."""

    corpus = load_corpus(str(corpus_file))
    text = MaskedText(corpus, character_tokenizer(corpus.train), 16, 2048, 16, 0.15, torch.Generator())

    def check(model: BertForMaskedLM) -> None:
        model.train()
        first, second = (evaluate_masked_lm(trainer(model), text.held_out) for _ in range(2))
        assert first == second
        assert model.training

    model = BertForMaskedLM(config(vocab_size=text.vocab_size, hidden_dropout_prob=0.5))
    check(model)
    model.eval = lambda: model  # type: ignore[method-assign]
    assert detects(check, model)


def test_dropout_in_a_loaded_model(tmp_path: Path) -> None:
    def check(model: BertForMaskedLM) -> None:
        ids = examples()["input_ids"]
        assert torch.equal(model(ids).logits, model(ids).logits)

    BertForMaskedLM(config()).save_pretrained(tmp_path)
    model = BertForMaskedLM.from_pretrained(tmp_path)
    check(model)
    assert detects(check, model.train())
