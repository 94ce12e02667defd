"""What holds for the sentence pairs of any documents, and for their loss."""

import math
import random
from itertools import pairwise

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from torch import Tensor

from labml_bert.checks import check_pairs
from labml_bert.mlm import IGNORE
from labml_bert.nsp import (
    IS_NEXT,
    IS_RANDOM,
    BertOnlyNSPHead,
    PairMaker,
    SentencePair,
    collate,
    next_sentence_loss,
)
from tests.support.by_hand import cross_entropy_by_hand, is_close, linear, randomize_weights
from tests.support.strategies import DTYPES, PROBABILITY, is_consecutive, logits_and_labels

CLS, SEP = -1, -2
# Numbers that say where a token stands: the document, and the place in it.
DOCUMENTS = st.lists(st.lists(st.integers(0, 6), max_size=6), max_size=4).map(
    lambda sizes: [
        [
            [*range(1000 * d + sum(document[:s]), 1000 * d + sum(document[: s + 1]))]
            for s in range(len(document))
        ]
        for d, document in enumerate(sizes)
    ]
)


def sides(pair: SentencePair) -> tuple[list[int], list[int]]:
    """A and B, and all else as it must be."""
    ids = pair.input_ids
    cut = ids.index(SEP)
    first, second = ids[1:cut], ids[cut + 1 : -1]
    assert ids == [CLS, *first, SEP, *second, SEP]
    assert pair.token_type_ids == [0] * (len(first) + 2) + [1] * (len(second) + 1)
    return first, second


@given(
    DOCUMENTS,
    st.integers(3, 20) | st.just(500),
    PROBABILITY | st.sampled_from([-0.1, 1.1, math.nan]),
    PROBABILITY | st.sampled_from([-0.1, 1.1, math.nan]),
    st.booleans(),
    st.integers(0, 2**32),
)
@example([[[0]], [[1000]]], 5, 1.1, 0.5, True, 0)
@example([[[0]], [[1000]]], 5, 0.1, math.nan, True, 0)
@example([[[0]], [[1000]]], 5, -0.1, 0.5, True, 0)
@example([[[0]], [[1000]]], 5, 0.1, -0.1, True, 0)
def test_pairs(
    documents: list[list[list[int]]], length: int, short: float, share: float, lone: bool, seed: int
) -> None:
    kept = [[token for sentence in document for token in sentence] for document in documents]
    kept = [tokens for tokens in kept if tokens]
    arguments = (documents, CLS, SEP, length, short, share, lone)
    if len(kept) < 2 or length < 5 or not 0 <= short <= 1 or not 0 <= share <= 1:
        with pytest.raises(ValueError, match=r"."):
            check_pairs(length, short, share)
            PairMaker(*arguments)
        return
    check_pairs(length, short, share)
    maker = PairMaker(*arguments)
    for index, tokens in enumerate(kept):
        used = []
        for pair in maker.pairs_of(index, random.Random(seed)):
            first, second = sides(pair)
            assert 5 <= len(pair.input_ids) <= length
            assert is_consecutive(first)
            assert is_consecutive(second)
            assert set(first) <= set(tokens)
            if pair.next_sentence_label == IS_NEXT:
                assert set(second) <= set(tokens)
                assert first[-1] < second[0]
                used += first + second
            else:
                assert pair.next_sentence_label == IS_RANDOM
                assert not set(second) & set(tokens)
                used += first
            if share == 1:
                assert pair.next_sentence_label == IS_RANDOM
            if share == 0 and not lone:
                assert pair.next_sentence_label == IS_NEXT
        # In their order, and none twice.
        assert all(a < b for a, b in pairwise(used))
    passes = list(maker(random.Random(seed)))
    assert passes == list(PairMaker(*arguments)(random.Random(seed)))
    if lone:
        assert {pair.input_ids[1] // 1000 for pair in passes} == {tokens[0] // 1000 for tokens in kept}


@given(DOCUMENTS, st.integers(2, 20), PROBABILITY, st.booleans(), st.integers(0, 2**32))
def test_no_text_is_left_out(
    documents: list[list[list[int]]], target: int, share: float, lone: bool, seed: int
) -> None:
    """Where no pair is so long that it is cut, every token is used once, but a lone last sentence."""
    documents = [[sentence for sentence in document if sentence] for document in documents]
    documents = [document for document in documents if document]
    assume(len(documents) > 1)
    maker = PairMaker(documents, CLS, SEP, 500, 0.1, share, lone)
    maker.target_length = lambda generator: target  # type: ignore[method-assign]
    for index, document in enumerate(documents):
        used: list[int] = []
        for pair in maker.pairs_of(index, random.Random(seed)):
            first, second = sides(pair)
            used += first + (second if pair.next_sentence_label == IS_NEXT else [])
            # A pile ends with the sentence that fills it, or with the second where one is not enough.
            if pair.next_sentence_label == IS_NEXT:
                last = next(sentence for sentence in document if sentence[-1] == second[-1])
                enough = len(first) + len(second) - len(last) >= target
                assert not enough or (not lone and len(first) + len(second) - len(last) == len(first))
        tokens = [token for sentence in document for token in sentence]
        assert used == tokens or (not lone and [*used, *document[-1]] == tokens)


@given(DOCUMENTS, st.integers(-3, 20), st.integers(0, 99))
def test_text_from_elsewhere(documents: list[list[list[int]]], length: int, seed: int) -> None:
    """Whole sentences of another document, as many as fill the length or as there are."""
    documents = [[sentence for sentence in document if sentence] for document in documents]
    documents = [document for document in documents if document]
    assume(len(documents) > 1)
    maker = PairMaker(documents, CLS, SEP)
    index = seed % len(documents)
    tokens = maker.elsewhere(index, length, random.Random(seed))
    possible = []
    for document in documents[:index] + documents[index + 1 :]:
        for start in range(len(document)):
            run = [*document[start]]
            for sentence in document[start + 1 :]:
                if len(run) < length:
                    run += sentence
            possible.append(run)
    assert tokens in possible


@given(st.integers(1, 12), st.integers(1, 12), st.integers(5, 20), st.integers(0, 99))
def test_cutting_takes_from_the_longer_side_and_no_more_than_needed(
    a: int, b: int, length: int, seed: int
) -> None:
    first, second = [*range(a)], [*range(100, 100 + b)]
    maker = PairMaker([[[0]], [[1]]], CLS, SEP, length)
    pair = maker.assemble(first, second, IS_NEXT, random.Random(seed))
    kept = sides(pair)
    room = length - 3
    while a + b > room:
        if a > b:
            a -= 1
        else:
            b -= 1
    assert (len(kept[0]), len(kept[1])) == (a, b)
    assert all(is_consecutive(side) for side in kept)
    assert set(kept[0]) <= set(first)
    assert set(kept[1]) <= set(second)
    assert pair.next_sentence_label == IS_NEXT
    # The caller's lists are the caller's.
    assert first == [*range(len(first))]
    assert second == [*range(100, 100 + len(second))]


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 9), max_size=5), st.integers(0, 1)), max_size=4),
    st.integers(0, 9),
)
@example([], 0)
def test_collate(rows: list[tuple[list[int], int]], pad: int) -> None:
    pairs = [SentencePair(ids, [i % 2 for i in ids], label) for ids, label in rows]
    if not pairs:
        with pytest.raises(ValueError, match="empty"):
            collate(pairs, pad)
        return
    batch = collate(pairs, pad)
    T = max(len(ids) for ids, _ in rows)
    assert batch["next_sentence_label"].tolist() == [label for _, label in rows]
    for b, (ids, _) in enumerate(rows):
        left = T - len(ids)
        assert batch["input_ids"][b].tolist() == ids + [pad] * left
        assert batch["attention_mask"][b].tolist() == [1] * len(ids) + [0] * left
        assert batch["token_type_ids"][b].tolist() == [i % 2 for i in ids] + [0] * left
    assert {values.dtype for values in batch.values()} == {torch.int64}


@given(logits_and_labels(5, st.just(2)))
@example((torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64)))
@example((torch.zeros(2, 2), torch.tensor([IGNORE, IGNORE])))
def test_the_loss_of_pairs(case: tuple[Tensor, Tensor]) -> None:
    logits, labels = case
    counted = [m for m, label in enumerate(labels.tolist()) if label != IGNORE]
    expected = sum(cross_entropy_by_hand(logits[m].tolist(), int(labels[m])) for m in counted) / max(
        1, len(counted)
    )
    loss = next_sentence_loss(logits, labels)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected, rel=1e-5, abs=1e-4)


@given(st.sampled_from(DTYPES), st.integers(-3, 8))
def test_labels_are_classes_or_refused(dtype: torch.dtype, label: int) -> None:
    """-1 is no label to pass over, and no fraction is one. What PyTorch refuses it names itself."""
    labels = torch.tensor([label]).to(dtype)
    if dtype in (torch.int64, torch.uint8) and 0 <= labels.item() < 2:
        assert next_sentence_loss(torch.zeros(1, 2), labels).item() == pytest.approx(math.log(2))
    else:
        with pytest.raises((RuntimeError, IndexError)):
            next_sentence_loss(torch.zeros(1, 2), labels)


@given(st.integers(0, 3), st.integers(1, 3), st.integers(0, 99))
def test_the_head_for_pairs(B: int, D: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    head = randomize_weights(BertOnlyNSPHead(D), generator)
    pooled = torch.randn((B, D), generator=generator, dtype=torch.float64)
    assert is_close(head(pooled), [linear(head.seq_relationship, x) for x in pooled.tolist()])
