"""Properties of masking for any batch and of the loss for any labels, compared with loops over lists."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from labml_bert.checks import check_masking
from labml_bert.mlm import (
    IGNORE,
    BertLMPredictionHead,
    MaskedLM,
    TokenMasker,
    masked_accuracy,
    masked_lm_loss,
)
from tests.support.by_hand import cross_entropy_by_hand, head_by_hand, is_close, randomize_weights
from tests.support.strategies import DTYPES, ID_DTYPES, PROBABILITY, draw_ids, logits_and_labels


def round_half_to_even(x: float) -> int:
    """Rounds to the nearest integer, and ties to the even one, as the original does."""
    return round(x)


@dataclasses.dataclass
class MaskingCase:
    """A configuration of the masker and a batch for it."""

    vocab_size: int
    mask: int
    specials: set[int]
    listed_specials: set[int]
    p: float
    mask_prob: float
    random_prob: float
    max_predictions: int | None
    seed: int
    input_ids: Tensor
    attention_mask: Tensor | None
    word_ids: Tensor | None

    def mask_batch(self) -> tuple[Tensor, Tensor]:
        masker = TokenMasker(
            self.vocab_size,
            self.mask,
            self.listed_specials,
            mlm_probability=self.p,
            mask_replace_prob=self.mask_prob,
            random_replace_prob=self.random_prob,
            max_predictions_per_seq=self.max_predictions,
            generator=torch.Generator().manual_seed(self.seed),
        )
        return masker(self.input_ids, self.attention_mask, self.word_ids)


@st.composite
def masking_cases(draw: st.DrawFn) -> MaskingCase:
    V = draw(st.integers(2, 9))
    specials = draw(st.sets(st.integers(0, V - 1), min_size=1, max_size=V - 1))
    mask = draw(st.sampled_from(sorted(specials)))
    B, T = draw(st.integers(0, 3)), draw(st.integers(0, 7))
    mask_prob = draw(PROBABILITY)
    attention_mask = word_ids = None
    if draw(st.booleans()):
        attention_mask = draw_ids(draw, B, T, st.integers(0, 1)).to(draw(st.sampled_from(DTYPES)))
    if draw(st.booleans()):
        word_ids = draw_ids(draw, B, T, st.integers(-2, T - 1))
    return MaskingCase(
        V,
        mask,
        specials,
        # `[MASK]` counts as special even if it isn't listed.
        draw(st.sampled_from([specials, specials - {mask}])),
        draw(PROBABILITY),
        mask_prob,
        (1 - mask_prob) * draw(PROBABILITY),
        draw(st.none() | st.integers(1, 6)),
        draw(st.integers(0, 2**32)),
        draw_ids(draw, B, T, st.integers(0, V - 1)).to(draw(st.sampled_from(ID_DTYPES))),
        attention_mask,
        word_ids,
    )


def candidates_of(case: MaskingCase, row: int) -> list[int]:
    """The positions of a row that may be chosen."""
    positions = []
    for t, token in enumerate(case.input_ids[row].tolist()):
        if token in case.specials:
            continue
        if case.attention_mask is not None and not case.attention_mask[row, t]:
            continue
        if case.word_ids is not None and case.word_ids[row, t] < 0:
            continue
        positions.append(t)
    return positions


def words_of(case: MaskingCase, row: int, positions: list[int]) -> list[list[int]]:
    """The positions grouped by word. Without word ids, each position is a word."""
    if case.word_ids is None:
        return [[t] for t in positions]
    words: dict[int, list[int]] = {}
    for t in positions:
        words.setdefault(int(case.word_ids[row, t]), []).append(t)
    return list(words.values())


@given(masking_cases())
def test_masking(case: MaskingCase) -> None:
    """Checks which positions are chosen, how many, and what replaces them. Nothing else may change."""
    original = case.input_ids.clone()
    masked_ids, labels = case.mask_batch()
    assert torch.equal(case.input_ids, original)
    assert masked_ids.dtype == original.dtype
    assert labels.dtype == torch.int64
    assert masked_ids.shape == labels.shape == original.shape
    for row, ids in enumerate(original.tolist()):
        candidates = candidates_of(case, row)
        labeled_positions = [t for t, label in enumerate(labels[row].tolist()) if label != IGNORE]
        assert set(labeled_positions) <= set(candidates)
        for t, token in enumerate(ids):
            output_token = int(masked_ids[row, t])
            if t not in labeled_positions:
                assert output_token == token
                continue
            assert labels[row, t] == token
            possible = set()
            if case.mask_prob > 0:
                possible.add(case.mask)
            if case.random_prob > 0:
                possible |= set(range(case.vocab_size)) - case.specials
            if case.mask_prob + case.random_prob < 1:
                possible.add(token)
            assert output_token in possible

        words = words_of(case, row, candidates)
        unmasked_words = [word for word in words if not set(word) & set(labeled_positions)]
        assert all(set(word) <= set(labeled_positions) for word in words if word not in unmasked_words)
        if case.max_predictions is None:
            if case.p == 0:
                assert not labeled_positions
            if case.p == 1:
                assert not unmasked_words
        else:
            count = min(max(1, round_half_to_even(len(candidates) * case.p)), case.max_predictions)
            assert len(labeled_positions) <= count
            # Words are skipped only if they no longer fit.
            assert all(len(word) > count - len(labeled_positions) for word in unmasked_words)


@given(masking_cases())
def test_the_generator_state_determines_the_masking(case: MaskingCase) -> None:
    (first_ids, first_labels), (second_ids, second_labels) = case.mask_batch(), case.mask_batch()
    assert torch.equal(first_ids, second_ids)
    assert torch.equal(first_labels, second_labels)


ANY_FLOAT = st.sampled_from([0.0, 0.8, 1.0, math.nan, math.inf, -0.1]) | st.floats()


@given(
    st.integers(-1, 6),
    st.integers(-2, 6) | st.none(),
    st.lists(st.integers(-2, 6) | st.none(), max_size=7),
    st.tuples(ANY_FLOAT, ANY_FLOAT, ANY_FLOAT),
    st.none() | st.integers(-1, 2),
)
@example(5, 4, [0], (0.15, math.nan, 0.1), None)
@example(5, 4, [0], (0.15, 0.8, math.nan), None)
@example(5, None, [0], (0.15, 0.8, 0.1), None)
def test_a_masker_is_built_or_rejected(
    vocab_size: int,
    mask: Any,
    specials: Any,
    probabilities: tuple[float, float, float],
    max_predictions: int | None,
) -> None:
    p, mask_prob, random_prob = probabilities
    all_specials = {mask, *specials}
    is_valid = (
        0 <= p <= 1
        and mask_prob >= 0
        and random_prob >= 0
        and mask_prob + random_prob <= 1
        and all(i is not None and 0 <= i < vocab_size for i in all_specials)
        and len(all_specials) < vocab_size
        and (max_predictions is None or max_predictions >= 1)
    )
    if is_valid:
        check_masking(vocab_size, mask, specials, p, mask_prob, random_prob, max_predictions)
        TokenMasker(vocab_size, mask, specials, p, mask_prob, random_prob, max_predictions)
    else:
        with pytest.raises(ValueError, match=r"."):
            check_masking(vocab_size, mask, specials, p, mask_prob, random_prob, max_predictions)


@given(
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 3), max_size=3),
    st.integers(-2, 6),
    st.none() | st.integers(1, 2),
)
# PyTorch would use the first two as masks over the vocabulary, and -1 as the index of the last token.
@example(torch.bool, [5], 1, None)
@example(torch.uint8, [5], 1, None)
@example(torch.int64, [1, 3], -1, None)
@example(torch.int64, [1, 3], 5, None)
@example(torch.int64, [2, 3, 3], 1, 2)
def test_ids_are_rows_of_integers_in_the_vocabulary_or_rejected(
    dtype: torch.dtype, shape: list[int], value: int, max_predictions: int | None
) -> None:
    masker = TokenMasker(5, 4, [0], max_predictions_per_seq=max_predictions)
    ids = torch.zeros(shape).to(dtype)
    if ids.numel():
        ids.view(-1)[-1] = value
    if dtype in ID_DTYPES and len(shape) == 2 and (0 <= value < 5 or not ids.numel()):
        assert masker(ids).labels.dtype == torch.int64
    else:
        with pytest.raises(ValueError, match=r"ids from 0 to 4, and not labels$"):
            masker(ids)


@given(st.sampled_from(DTYPES), st.lists(st.integers(0, 3), max_size=3), st.sampled_from([0, 1, -1, -10_000]))
@example(torch.float32, [2, 3], -10_000)
@example(torch.float32, [2, 3], -1)
@example(torch.int64, [2, 1, 3], 1)
@example(torch.int64, [2, 1], 1)
def test_an_attention_mask_fits_the_ids_or_is_rejected(
    dtype: torch.dtype, shape: list[int], value: int
) -> None:
    """An additive mask, with large negative values, would otherwise hide the tokens and show the padding."""
    ids, attention_mask = torch.ones(2, 3, dtype=torch.long), torch.ones(shape).to(dtype)
    if attention_mask.numel() and (value >= 0 or dtype.is_floating_point):
        attention_mask.view(-1)[0] = value
    masker = TokenMasker(5, 4, [0])
    if shape == [2, 3] and (attention_mask >= 0).all():
        masker(ids, attention_mask)
    else:
        message = r"^attention_mask must be \(B, T\), with 1 for a token and 0 for padding$"
        with pytest.raises(ValueError, match=message):
            masker(ids, attention_mask)


@given(logits_and_labels(5, st.integers(1, 5)))
@example((torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)))
@example((torch.zeros(2, 3), torch.tensor([IGNORE, IGNORE])))
def test_the_masked_loss_and_the_accuracy_match_loops(case: tuple[Tensor, Tensor]) -> None:
    logits, labels = case
    logits.requires_grad_()
    labeled = [m for m, label in enumerate(labels.tolist()) if label != IGNORE]
    rows = logits.tolist()
    expected = sum(cross_entropy_by_hand(rows[m], int(labels[m])) for m in labeled) / max(1, len(labeled))
    loss = masked_lm_loss(logits, labels)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected, rel=1e-5, abs=1e-4)
    loss.backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    for m in range(len(rows)):
        assert m in labeled or not logits.grad[m].any()

    # When several logits are equal, any of them may count as the largest.
    possibly_correct = [m for m in labeled if rows[m][labels[m]] == max(rows[m])]
    surely_correct = [m for m in possibly_correct if rows[m].count(max(rows[m])) == 1]
    correct = masked_accuracy(logits, labels).item() * max(1, len(labeled))
    assert len(surely_correct) - 1e-4 <= correct <= len(possibly_correct) + 1e-4


@given(st.sampled_from(DTYPES), st.integers(-3, 8))
def test_labels_are_classes_or_rejected(dtype: torch.dtype, label: int) -> None:
    """-1 is not an ignored label, and a fraction is not a label at all. PyTorch raises the errors."""
    labels = torch.tensor([label]).to(dtype)
    if dtype in (torch.int64, torch.uint8) and 0 <= labels.item() < 5:
        assert masked_lm_loss(torch.zeros(1, 5), labels).item() == pytest.approx(math.log(5))
    else:
        with pytest.raises((RuntimeError, IndexError)):
            masked_lm_loss(torch.zeros(1, 5), labels)


@given(st.data())
def test_the_head_computes_logits_only_at_labeled_positions(data: st.DataObject) -> None:
    B, T, D, V = (data.draw(st.integers(*bounds)) for bounds in ((0, 3), (0, 4), (1, 3), (1, 4)))
    labels = draw_ids(data.draw, B, T, st.sampled_from([IGNORE, 0, V - 1]))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    head = randomize_weights(BertLMPredictionHead(D, V), generator)
    hidden = torch.randn((B, T, D), generator=generator, dtype=torch.float64).requires_grad_()
    embedding = torch.randn((V, D), generator=generator, dtype=torch.float64)
    table = torch.nn.Embedding(V, D).double()
    models = [MaskedLM(lambda ids: hidden, table), MaskedLM(lambda ids: (hidden, None), table)]  # type: ignore[arg-type]
    for model in models:
        model.head, model._embedding[0].weight.data = head, embedding
    input_ids = torch.zeros(B, T)
    output = models[0](input_ids, labels)
    positions = [(b, t) for b in range(B) for t in range(T) if labels[b, t] != IGNORE]
    full = [[head_by_hand(head, x, embedding) for x in row] for row in hidden.tolist()]
    assert output.labels is not None
    assert output.loss is not None
    assert output.labels.tolist() == [int(labels[position]) for position in positions]
    assert is_close(output.logits, [full[b][t] for b, t in positions])
    total = sum(cross_entropy_by_hand(full[b][t], int(labels[b, t])) for b, t in positions)
    assert output.loss.item() == pytest.approx(total / max(1, len(positions)), rel=1e-5, abs=1e-5)
    # Only labeled positions have a gradient, and with a single class not even those.
    output.loss.backward()
    assert hidden.grad is not None
    assert hidden.grad.isfinite().all()
    for b in range(B):
        for t in range(T):
            assert labels[b, t] != IGNORE or not hidden.grad[b, t].any()

    without = models[0](input_ids)
    assert without.loss is None
    assert without.labels is None
    assert without.logits.shape == (B, T, V)
    assert is_close(without.logits, full)
    # The encoder may also return a tuple that starts with the hidden states.
    assert torch.equal(models[1](input_ids, labels).logits, output.logits)
