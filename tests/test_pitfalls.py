"""
A map of known failures: each mistake that people make with BERT, and the check that finds it.

Every check runs twice: on ours, which must pass, and on a variant with the mistake, which must not.
Where the variant is written here, it also runs without the mistake, so that it fails for nothing else.
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
from labml_bert.data.curriculum import Batch, random_windows
from labml_bert.data.masked_text import MaskedText
from labml_bert.data.tokenizers import character_tokenizer
from labml_bert.mlm import IGNORE, TokenMasker, masked_lm_loss
from labml_bert.models import BertForMaskedLM
from labml_bert.nsp import next_sentence_loss
from labml_bert.training.evaluation import evaluate_masked_lm
from labml_bert.training.optimization import TrainingArguments, parameter_groups
from labml_bert.training.trainer import Trainer
from tests.support.trainers import train_on

V, MASK, PAD = 40, 4, 0
SPECIALS = range(5)


def found(check: Callable[[Any], None], faulty: Any) -> bool:
    """Whether the check fails, by an assertion or because PyTorch refuses."""
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

Cover = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]]


def ours(p: float = 0.15) -> Cover:
    return TokenMasker(V, MASK, SPECIALS, mlm_probability=p, generator=torch.Generator().manual_seed(0))


def plain(mistake: str = "", p: float = 0.15) -> Cover:
    """Masking as it is often written, with one mistake or none."""
    g = torch.Generator().manual_seed(0)

    def cover(input_ids: Tensor, attention_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        seen = input_ids if mistake == "in place" else input_ids.clone()
        chosen = torch.rand(seen.shape, generator=g) < p
        if mistake != "special tokens masked":
            chosen &= input_ids >= len(SPECIALS)
        if attention_mask is not None and mistake != "padding masked":
            chosen &= attention_mask.bool()
        labels = input_ids.clone()
        if mistake == "shifted":
            labels = labels.roll(-1, 1)
        if mistake != "labels everywhere":
            labels[~chosen] = {"minus one": -1, "zero": 0}.get(mistake, IGNORE)
        fate = torch.rand(seen.shape, generator=g)
        masked, drawn = fate < 0.8, (fate >= 0.8) & (fate < 0.9)
        if mistake == "drawing twice":
            # A draw for the random token, another for keeping, and the mask for the rest.
            drawn = fate < 0.1
            masked = ~drawn & (torch.rand(seen.shape, generator=g) >= 0.1)
        first = 0 if mistake == "specials drawn" else len(SPECIALS)
        seen[chosen & drawn] = torch.randint(first, V, seen.shape, generator=g)[chosen & drawn]
        seen[chosen & masked] = MASK
        return seen, labels

    return cover


def text(rows: int = 100, T: int = 100) -> Tensor:
    return torch.randint(0, V, (rows, T), generator=torch.Generator().manual_seed(1))


def spares_special_tokens(cover: Cover) -> None:
    ids = text()
    assert (ids[cover(ids.clone(), None)[1] != IGNORE] >= len(SPECIALS)).all()


def spares_padding(cover: Cover) -> None:
    attention_mask = (torch.arange(100) < torch.arange(100)[:, None]).long()
    # With ids of ordinary tokens: only the mask says that they are padding.
    labels = cover(text().clamp(min=5), attention_mask)[1]
    assert (labels[attention_mask == 0] == IGNORE).all()


def draws_ordinary_tokens(cover: Cover) -> None:
    ids = text()
    seen, labels = cover(ids.clone(), None)
    shown = seen[(labels != IGNORE) & (seen != MASK)]
    assert (shown >= len(SPECIALS)).all()


def shares_are_80_10_10(cover: Cover) -> None:
    ids = torch.full((1000, 400), 7)
    seen, labels = cover(ids.clone(), None)
    shown = seen[labels != IGNORE]
    n = len(shown)
    # The random token is the token itself once in 35.
    for share, expected in (
        ((shown == MASK).sum() / n, 0.8),
        ((shown == 7).sum() / n, 0.1 + 0.1 / 35),
    ):
        assert abs(share - expected) < 5 * math.sqrt(expected * (1 - expected) / n)


def leaves_its_input(cover: Cover) -> None:
    ids = text()
    before = ids.clone()
    cover(ids, None)
    assert torch.equal(ids, before)


def labels_are_the_hidden_tokens(cover: Cover) -> None:
    ids = text()
    labels = cover(ids.clone(), None)[1]
    chosen = labels != IGNORE
    assert torch.equal(labels[chosen], ids[chosen])


def labels_only_what_was_chosen(cover: Cover) -> None:
    """Else a visible token is its own answer, or all places learn one token."""
    seen, labels = cover(text(), None)
    # Twice the share, and a tenth of the rest: what is labeled and yet in plain view.
    assert (labels != IGNORE).float().mean() < 0.3
    assert (seen == labels).float().mean() < 0.1


@pytest.mark.parametrize(
    ("mistake", "check", "p"),
    [
        ("special tokens masked", spares_special_tokens, 0.15),
        ("padding masked", spares_padding, 0.15),
        ("specials drawn", draws_ordinary_tokens, 0.15),
        # 81% masked, 10% random and 9% kept.
        ("drawing twice", shares_are_80_10_10, 1.0),
        ("in place", leaves_its_input, 0.15),
        ("shifted", labels_are_the_hidden_tokens, 0.15),
        ("labels everywhere", labels_only_what_was_chosen, 0.15),
    ],
)
def test_covering(mistake: str, check: Callable[[Cover], None], p: float) -> None:
    check(ours(p))
    check(plain(p=p))
    assert found(check, plain(mistake, p))


@pytest.mark.parametrize("mistake", ["minus one", "zero"])
def test_the_label_of_places_that_do_not_count(mistake: str) -> None:
    """-1 was the old value. With 0, all unmasked positions are trained toward class 0."""

    def check(cover: Cover) -> None:
        ids = text(8, 20)
        labels = cover(ids.clone(), None)[1].flatten()
        logits = torch.randn(160, V, generator=torch.Generator().manual_seed(2))
        loss = masked_lm_loss(logits, labels)
        logp, answers = logits.log_softmax(-1).tolist(), ids.flatten().tolist()
        chosen = [m for m, label in enumerate(labels.tolist()) if label not in (IGNORE, -1, 0)]
        by_hand = [-logp[m][answers[m]] for m in chosen]
        assert loss.item() == pytest.approx(sum(by_hand) / len(by_hand), abs=1e-4)

    check(ours())
    check(plain())
    assert found(check, plain(mistake))


# The losses


def test_padding_in_the_mean() -> None:
    """As many numbers to divide by as there are places, and the loss depends on how much is padded."""

    def check(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        logits = torch.randn(6, V, generator=torch.Generator().manual_seed(0))
        labels = torch.tensor([7, IGNORE, 9, IGNORE, IGNORE, IGNORE])
        assert loss(logits, labels).item() == pytest.approx(loss(logits[[0, 2]], labels[[0, 2]]).item())

    def faulty(logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels, reduction="none").mean()

    check(masked_lm_loss)
    assert found(check, faulty)


def test_unmasked_positions_trained_toward_class_0() -> None:
    def check(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        logits = torch.zeros(4, V, requires_grad=True)
        loss(logits, torch.tensor([7, IGNORE, IGNORE, 9])).backward()
        assert logits.grad is not None
        assert not logits.grad[[1, 2]].any()
        assert logits.grad[[0, 3]].any(1).all()

    def faulty(logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels.clamp(min=0))

    check(masked_lm_loss)
    assert found(check, faulty)


def test_minus_one_is_no_label_to_ignore() -> None:
    """It is refused, and -100 is what is passed over."""

    def check(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        logits = torch.zeros(2, V)
        assert loss(logits, torch.tensor([7, IGNORE])).item() == pytest.approx(math.log(V))
        try:
            value = loss(logits, torch.tensor([7, -1]))
        except IndexError:
            return
        raise AssertionError(f"the loss is {value} and nobody knows of what")

    def faulty(logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels.clamp(min=-1), ignore_index=-1)

    check(masked_lm_loss)
    assert found(check, faulty)


def test_nothing_masked() -> None:
    """A mean over nothing is 0/0, and one such batch ends a run."""

    def check(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        logits = torch.randn(3, V, requires_grad=True)
        value = loss(logits, torch.full((3,), IGNORE))
        value.backward()
        assert value == 0
        assert logits.grad is not None
        assert logits.grad.isfinite().all()

    check(masked_lm_loss)
    assert found(check, F.cross_entropy)


def test_pairs_share_no_ignored_label_with_tokens() -> None:
    """Label 0 is a class. A loss that passes over it never learns that anything is next."""

    def check(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        logits = torch.tensor([[-2.0, 2.0], [-2.0, 2.0]], requires_grad=True)
        value = loss(logits, torch.tensor([0, 1]))
        value.backward()
        assert logits.grad is not None
        assert logits.grad[0].any()
        assert value.item() == pytest.approx((math.log(1 + math.exp(4)) + math.log(1 + math.exp(-4))) / 2)

    check(next_sentence_loss)
    assert found(check, lambda logits, labels: F.cross_entropy(logits, labels, ignore_index=0))


# The encoder


class AddsTheMask(nn.Module):
    """Attention that adds a mask of 1 and 0 to the scores: what is hidden is only a little less likely."""

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


def test_a_mask_is_applied_and_not_added() -> None:
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
    assert found(check, model)


@pytest.mark.parametrize("mistake", ["", "eps", "tanh"])
def test_the_same_numbers_as_the_original(mistake: str) -> None:
    """LayerNorm at PyTorch's eps, or the tanh form of GELU, and released weights give other answers."""
    torch.manual_seed(0)
    model = BertModel(config(layer_norm_eps=1e-5 if mistake == "eps" else 1e-12)).eval()
    # Wide, so that the two forms of GELU part; or as at the start, where embeddings are small.
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

    assert found(check, model) == bool(mistake)


def test_the_first_loss_is_ln_v() -> None:
    """An output layer that is an embedding drawn at N(0, 1) starts far above."""

    def check(model: BertForMaskedLM) -> None:
        g = torch.Generator().manual_seed(0)
        ids, labels = (torch.randint(5, 2000, (8, 16), generator=g) for _ in range(2))
        assert abs(model(ids, labels).loss / math.log(2000) - 1) < 0.05

    torch.manual_seed(0)
    model = BertForMaskedLM(config(vocab_size=2000, hidden_size=128)).eval()
    check(model)
    nn.init.normal_(model.bert.embeddings.word_embeddings.weight)
    assert found(check, model)


class StaleBias(BertForMaskedLM):
    """Resizes the embedding and forgets that the head has a number for each token too."""

    def resize_token_embeddings(self, vocab_size: int) -> None:
        bias = self.cls.predictions.bias
        super().resize_token_embeddings(vocab_size)
        self.cls.predictions.bias = bias


@pytest.mark.parametrize("size", [V + 3, V - 3])
def test_the_bias_follows_a_resize(size: int) -> None:
    def check(model: BertForMaskedLM) -> None:
        model.resize_token_embeddings(size)
        assert model(torch.zeros(1, 4, dtype=torch.long)).logits.shape == (1, 4, size)

    check(BertForMaskedLM(config()))
    assert found(check, StaleBias(config()))


# The data


def test_every_position_is_met_in_a_short_stage() -> None:
    """Sequences that all stand at offset 0 leave the other rows of the table as noise."""

    def windows_at_zero(*arguments: Any) -> Batch:
        batch = random_windows(*arguments)
        return batch._replace(position_ids=torch.arange(batch.input_ids.size(1)).expand_as(batch.input_ids))

    def check(draw_windows: Callable[..., Batch]) -> None:
        generator = torch.Generator().manual_seed(0)
        batches = [draw_windows(torch.arange(500), 64, 4, 16, generator) for _ in range(20)]
        met = torch.cat([batch.position_ids.flatten() for batch in batches])
        assert sorted(set(met.tolist())) == [*range(16)]

    check(random_windows)
    assert found(check, windows_at_zero)


# Training


def test_what_is_spared_from_decay() -> None:
    """A rule by names that no parameter has any more excludes nothing."""

    def by_name(*names: str) -> Callable[[nn.Module, float], list[dict[str, Any]]]:
        def groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
            spared = [p for n, p in model.named_parameters() if any(name in n for name in names)]
            others = [p for n, p in model.named_parameters() if not any(name in n for name in names)]
            return [{"params": others, "weight_decay": weight_decay}, {"params": spared, "weight_decay": 0.0}]

        return groups

    def check(groups: Callable[[nn.Module, float], list[dict[str, Any]]]) -> None:
        model = BertForMaskedLM(config())
        decay = {id(p): group["weight_decay"] for group in groups(model, 0.01) for p in group["params"]}
        for name, p in model.named_parameters():
            spared = name.endswith("bias") or "LayerNorm" in name
            assert decay[id(p)] == (0.0 if spared else 0.01), name

    check(parameter_groups)
    check(by_name("bias", "LayerNorm"))
    # The names of the first port, and those of the original's variables.
    assert found(check, by_name("gamma", "beta"))
    assert found(check, by_name("bias", "gamma", "beta"))
    assert found(check, by_name("layer_norm", "bias"))


class Stepper:
    """A plain step of training, with one mistake or none."""

    def __init__(self, model: nn.Module, mistake: str = ""):
        self.model = model
        # An optimizer made before the model was copied, or resized, holds parameters that nobody uses.
        held = copy.deepcopy(model) if mistake == "other parameters" else model
        self.optimizer = torch.optim.AdamW(held.parameters(), lr=1e-3)
        self.mistake = mistake

    def train_step(self, batch: dict[str, Tensor]) -> None:
        self.model(**batch).loss.backward()
        for some in (
            [[p] for p in self.model.parameters()]
            if self.mistake == "clip per parameter"
            else [[*self.model.parameters()]]
        ):
            nn.utils.clip_grad_norm_(some, 0.1)
        self.optimizer.step()
        self.optimizer.zero_grad()


def trainer(model: nn.Module) -> Trainer:
    arguments = TrainingArguments(steps=10, learning_rate=1e-3, warmup_ratio=0.0, max_grad_norm=0.1)
    return Trainer(model, arguments, torch.Generator(), torch.device("cpu"), bfloat16=False)


def take_a_step(stepper: Stepper | Trainer) -> None:
    if isinstance(stepper, Stepper):
        stepper.train_step(examples())
    else:
        train_on(next(stepper.steps()), examples())


def examples() -> dict[str, Tensor]:
    ids = torch.randint(5, V, (8, 16), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "labels": ids}


def test_one_norm_clips_all_parameters() -> None:
    """Clipping each by itself turns the direction of the step."""

    def check(stepper: Any) -> None:
        model, seen = stepper.model, {}
        model(**examples()).loss.backward()
        whole = {name: p.grad.clone() for name, p in model.named_parameters()}
        model.zero_grad()
        norm = torch.stack([g.square().sum() for g in whole.values()]).sum().sqrt()
        assert norm > 0.1
        step = stepper.optimizer.step

        def look() -> None:
            seen.update({name: p.grad.clone() for name, p in model.named_parameters()})
            step()

        stepper.optimizer.step = look
        take_a_step(stepper)
        for name, g in whole.items():
            assert torch.allclose(seen[name], g * (0.1 / norm), rtol=1e-3, atol=1e-7), name

    torch.manual_seed(0)
    model = BertForMaskedLM(config(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    check(trainer(copy.deepcopy(model)))
    check(Stepper(copy.deepcopy(model)))
    assert found(check, Stepper(copy.deepcopy(model), "clip per parameter"))


def test_the_optimizer_holds_the_parameters_of_the_model() -> None:
    def check(stepper: Any) -> None:
        before = {name: p.detach().clone() for name, p in stepper.model.named_parameters()}
        take_a_step(stepper)
        for name, p in stepper.model.named_parameters():
            assert not torch.equal(p, before[name]), name

    torch.manual_seed(0)
    # One step at a rate that moves everything, also what starts at 0 or has a tiny gradient.
    model = BertForMaskedLM(config(max_position_embeddings=16, type_vocab_size=1))
    check(trainer(copy.deepcopy(model)))
    check(Stepper(copy.deepcopy(model)))
    assert found(check, Stepper(copy.deepcopy(model), "other parameters"))


def test_the_rate_is_not_zero() -> None:
    """A share of the budget in whole numbers is 0 until the end."""

    def check(rate: Callable[[int], float]) -> None:
        rates = [rate(step) for step in range(1, 100)]
        assert all(0 < r <= 1 for r in rates)
        assert max(rates) == pytest.approx(1)
        assert rates[:10] == sorted(rates[:10])
        assert rates[10:] == sorted(rates[10:], reverse=True)

    arguments = TrainingArguments(steps=100, learning_rate=1.0, warmup_ratio=0.1)
    check(lambda step: arguments.learning_rate_at(step / 100))
    assert found(check, lambda step: arguments.learning_rate_at(step // 100))


def test_evaluation_is_without_dropout(corpus_file: Path) -> None:
    """Twice the same held-out text, twice the same loss; and training goes on with dropout after it."""

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
    assert found(check, model)


def test_a_loaded_model_is_without_dropout(tmp_path: Path) -> None:
    def check(model: BertForMaskedLM) -> None:
        ids = examples()["input_ids"]
        assert torch.equal(model(ids).logits, model(ids).logits)

    BertForMaskedLM(config()).save_pretrained(tmp_path)
    model = BertForMaskedLM.from_pretrained(tmp_path)
    check(model)
    assert found(check, model.train())
