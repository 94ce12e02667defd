"""What holds for any batch that is masked and any labels, compared with loops over Python lists."""

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


def rounded(x: float) -> int:
    """To the nearest whole number, as `round` of the original."""
    return round(x)


@dataclasses.dataclass
class ToMask:
    """A masker and a batch for it."""

    vocab_size: int
    mask: int
    specials: set[int]
    given: set[int]
    p: float
    masked: float
    random: float
    most: int | None
    seed: int
    input_ids: Tensor
    attention_mask: Tensor | None
    word_ids: Tensor | None

    def run(self) -> tuple[Tensor, Tensor]:
        masker = TokenMasker(
            self.vocab_size,
            self.mask,
            self.given,
            mlm_probability=self.p,
            mask_replace_prob=self.masked,
            random_replace_prob=self.random,
            max_predictions_per_seq=self.most,
            generator=torch.Generator().manual_seed(self.seed),
        )
        return masker(self.input_ids, self.attention_mask, self.word_ids)


@st.composite
def to_mask(draw: st.DrawFn) -> ToMask:
    V = draw(st.integers(2, 9))
    specials = draw(st.sets(st.integers(0, V - 1), min_size=1, max_size=V - 1))
    mask = draw(st.sampled_from(sorted(specials)))
    B, T = draw(st.integers(0, 3)), draw(st.integers(0, 7))
    masked = draw(PROBABILITY)
    attention_mask = word_ids = None
    if draw(st.booleans()):
        attention_mask = draw_ids(draw, B, T, st.integers(0, 1)).to(draw(st.sampled_from(DTYPES)))
    if draw(st.booleans()):
        word_ids = draw_ids(draw, B, T, st.integers(-2, T - 1))
    return ToMask(
        V,
        mask,
        specials,
        # `[MASK]` is special whether or not it is listed.
        draw(st.sampled_from([specials, specials - {mask}])),
        draw(PROBABILITY),
        masked,
        (1 - masked) * draw(PROBABILITY),
        draw(st.none() | st.integers(1, 6)),
        draw(st.integers(0, 2**32)),
        draw_ids(draw, B, T, st.integers(0, V - 1)).to(draw(st.sampled_from(ID_DTYPES))),
        attention_mask,
        word_ids,
    )


def candidates_of(case: ToMask, row: int) -> list[int]:
    """The places of a row that may be chosen."""
    found = []
    for t, token in enumerate(case.input_ids[row].tolist()):
        if token in case.specials:
            continue
        if case.attention_mask is not None and not case.attention_mask[row, t]:
            continue
        if case.word_ids is not None and case.word_ids[row, t] < 0:
            continue
        found.append(t)
    return found


def words_of(case: ToMask, row: int, places: list[int]) -> list[list[int]]:
    """The places by word; each its own where there are no words."""
    if case.word_ids is None:
        return [[t] for t in places]
    words: dict[int, list[int]] = {}
    for t in places:
        words.setdefault(int(case.word_ids[row, t]), []).append(t)
    return list(words.values())


@given(to_mask())
def test_masking(case: ToMask) -> None:
    """Which places may be chosen, how many must be, what may stand there then, and nothing else."""
    before = case.input_ids.clone()
    seen, labels = case.run()
    assert torch.equal(case.input_ids, before)
    assert seen.dtype == before.dtype
    assert labels.dtype == torch.int64
    assert seen.shape == labels.shape == before.shape
    for row, ids in enumerate(before.tolist()):
        candidates = candidates_of(case, row)
        chosen = [t for t, label in enumerate(labels[row].tolist()) if label != IGNORE]
        assert set(chosen) <= set(candidates)
        for t, token in enumerate(ids):
            shown = int(seen[row, t])
            if t not in chosen:
                assert shown == token
                continue
            assert labels[row, t] == token
            possible = set()
            if case.masked > 0:
                possible.add(case.mask)
            if case.random > 0:
                possible |= set(range(case.vocab_size)) - case.specials
            if case.masked + case.random < 1:
                possible.add(token)
            assert shown in possible

        words = words_of(case, row, candidates)
        left = [word for word in words if not set(word) & set(chosen)]
        assert all(set(word) <= set(chosen) for word in words if word not in left)
        if case.most is None:
            if case.p == 0:
                assert not chosen
            if case.p == 1:
                assert not left
        else:
            count = min(max(1, rounded(len(candidates) * case.p)), case.most)
            assert len(chosen) <= count
            # A word was passed over only because it did not fit any more.
            assert all(len(word) > count - len(chosen) for word in left)


@given(to_mask())
def test_the_state_of_the_generator_decides_all_of_the_masking(case: ToMask) -> None:
    (first, labels), (again, same) = case.run(), case.run()
    assert torch.equal(first, again)
    assert torch.equal(labels, same)


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
def test_a_masker_is_built_or_refused(
    vocab_size: int, mask: Any, specials: Any, shares: tuple[float, float, float], most: int | None
) -> None:
    p, masked, drawn = shares
    every = {mask, *specials}
    good = (
        0 <= p <= 1
        and masked >= 0
        and drawn >= 0
        and masked + drawn <= 1
        and all(i is not None and 0 <= i < vocab_size for i in every)
        and len(every) < vocab_size
        and (most is None or most >= 1)
    )
    if good:
        check_masking(vocab_size, mask, specials, p, masked, drawn, most)
        TokenMasker(vocab_size, mask, specials, p, masked, drawn, most)
    else:
        with pytest.raises(ValueError, match=r"."):
            check_masking(vocab_size, mask, specials, p, masked, drawn, most)


@given(
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 3), max_size=3),
    st.integers(-2, 6),
    st.none() | st.integers(1, 2),
)
# PyTorch takes these for masks over the vocabulary, and this for its last token.
@example(torch.bool, [5], 1, None)
@example(torch.uint8, [5], 1, None)
@example(torch.int64, [1, 3], -1, None)
@example(torch.int64, [1, 3], 5, None)
@example(torch.int64, [2, 3, 3], 1, 2)
def test_ids_are_whole_numbers_of_the_vocabulary_in_rows_or_refused(
    dtype: torch.dtype, shape: list[int], value: int, most: int | None
) -> None:
    masker = TokenMasker(5, 4, [0], max_predictions_per_seq=most)
    ids = torch.zeros(shape).to(dtype)
    if ids.numel():
        ids.view(-1)[-1] = value
    if dtype in ID_DTYPES and len(shape) == 2 and (0 <= value < 5 or not ids.numel()):
        assert masker(ids).labels.dtype == torch.int64
    else:
        with pytest.raises(ValueError, match="input_ids"):
            masker(ids)


@given(st.sampled_from(DTYPES), st.lists(st.integers(0, 3), max_size=3), st.sampled_from([0, 1, -1, -10_000]))
@example(torch.float32, [2, 3], -10_000)
@example(torch.float32, [2, 3], -1)
@example(torch.int64, [2, 1, 3], 1)
@example(torch.int64, [2, 1], 1)
def test_a_mask_fits_the_ids_or_is_refused(dtype: torch.dtype, shape: list[int], value: int) -> None:
    """One to be added to scores would hide all tokens and show the padding."""
    ids, attention_mask = torch.ones(2, 3, dtype=torch.long), torch.ones(shape).to(dtype)
    if attention_mask.numel() and (value >= 0 or dtype.is_floating_point):
        attention_mask.view(-1)[0] = value
    masker = TokenMasker(5, 4, [0])
    if shape == [2, 3] and (attention_mask >= 0).all():
        masker(ids, attention_mask)
    else:
        with pytest.raises(ValueError, match="attention_mask"):
            masker(ids, attention_mask)


@given(logits_and_labels(5, st.integers(1, 5)))
@example((torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)))
@example((torch.zeros(2, 3), torch.tensor([IGNORE, IGNORE])))
def test_the_masked_loss_and_the_accuracy(case: tuple[Tensor, Tensor]) -> None:
    logits, labels = case
    logits.requires_grad_()
    counted = [m for m, label in enumerate(labels.tolist()) if label != IGNORE]
    rows = logits.tolist()
    expected = sum(cross_entropy_by_hand(rows[m], int(labels[m])) for m in counted) / max(1, len(counted))
    loss = masked_lm_loss(logits, labels)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected, rel=1e-5, abs=1e-4)
    loss.backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    for m in range(len(rows)):
        assert m in counted or not logits.grad[m].any()

    # Among equal logits any may count as the first.
    firsts = [m for m in counted if rows[m][labels[m]] == max(rows[m])]
    sure = [m for m in firsts if rows[m].count(max(rows[m])) == 1]
    right = masked_accuracy(logits, labels).item() * max(1, len(counted))
    assert len(sure) - 1e-4 <= right <= len(firsts) + 1e-4


@given(st.sampled_from(DTYPES), st.integers(-3, 8))
def test_labels_are_classes_or_refused(dtype: torch.dtype, label: int) -> None:
    """-1 is no label to pass over, and no fraction is one. What PyTorch refuses it names itself."""
    labels = torch.tensor([label]).to(dtype)
    if dtype in (torch.int64, torch.uint8) and 0 <= labels.item() < 5:
        assert masked_lm_loss(torch.zeros(1, 5), labels).item() == pytest.approx(math.log(5))
    else:
        with pytest.raises((RuntimeError, IndexError)):
            masked_lm_loss(torch.zeros(1, 5), labels)


@given(st.data())
def test_the_head_works_where_there_is_a_label_and_nowhere_else(data: st.DataObject) -> None:
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
    places = [(b, t) for b in range(B) for t in range(T) if labels[b, t] != IGNORE]
    every = [[head_by_hand(head, x, embedding) for x in row] for row in hidden.tolist()]
    assert output.labels is not None
    assert output.loss is not None
    assert output.labels.tolist() == [int(labels[place]) for place in places]
    assert is_close(output.logits, [every[b][t] for b, t in places])
    total = sum(cross_entropy_by_hand(every[b][t], int(labels[b, t])) for b, t in places)
    assert output.loss.item() == pytest.approx(total / max(1, len(places)), rel=1e-5, abs=1e-5)
    # One class has nothing to learn. Else a place is moved if and only if it has a label.
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
    assert is_close(without.logits, every)
    # The encoder's output may also be the first of a tuple.
    assert torch.equal(models[1](input_ids, labels).logits, output.logits)
