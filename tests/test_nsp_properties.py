"""Properties of the sentence pairs of any documents, and of their loss."""

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
# Each token id tells the document that the token comes from, and its position there.
DOCUMENTS = st.lists(st.lists(st.integers(0, 6), max_size=6), max_size=4).map(
    lambda sizes: [
        [
            [*range(1000 * d + sum(document[:s]), 1000 * d + sum(document[: s + 1]))]
            for s in range(len(document))
        ]
        for d, document in enumerate(sizes)
    ]
)


def segments_of(pair: SentencePair) -> tuple[list[int], list[int]]:
    """Returns A and B, and checks the special tokens and token types."""
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
def test_pairs_of_any_documents(
    documents: list[list[list[int]]],
    length: int,
    short: float,
    random_next_prob: float,
    lone: bool,
    seed: int,
) -> None:
    texts = [[token for sentence in document for token in sentence] for document in documents]
    texts = [tokens for tokens in texts if tokens]
    arguments = (documents, CLS, SEP, length, short, random_next_prob, lone)
    if len(texts) < 2 or length < 5 or not 0 <= short <= 1 or not 0 <= random_next_prob <= 1:
        with pytest.raises(ValueError, match=r"."):
            check_pairs(length, short, random_next_prob)
            PairMaker(*arguments)
        return
    check_pairs(length, short, random_next_prob)
    maker = PairMaker(*arguments)
    for index, tokens in enumerate(texts):
        tokens_of_pairs = []
        for pair in maker.pairs_of(index, random.Random(seed)):
            first, second = segments_of(pair)
            assert 5 <= len(pair.input_ids) <= length
            assert is_consecutive(first)
            assert is_consecutive(second)
            assert set(first) <= set(tokens)
            if pair.next_sentence_label == IS_NEXT:
                assert set(second) <= set(tokens)
                assert first[-1] < second[0]
                tokens_of_pairs += first + second
            else:
                assert pair.next_sentence_label == IS_RANDOM
                assert not set(second) & set(tokens)
                tokens_of_pairs += first
            if random_next_prob == 1:
                assert pair.next_sentence_label == IS_RANDOM
            if random_next_prob == 0 and not lone:
                assert pair.next_sentence_label == IS_NEXT
        # The tokens are in their original order, and none is used twice.
        assert all(a < b for a, b in pairwise(tokens_of_pairs))
    all_pairs = list(maker(random.Random(seed)))
    assert all_pairs == list(PairMaker(*arguments)(random.Random(seed)))
    if lone:
        assert {pair.input_ids[1] // 1000 for pair in all_pairs} == {tokens[0] // 1000 for tokens in texts}


@given(DOCUMENTS, st.integers(2, 20), PROBABILITY, st.booleans(), st.integers(0, 2**32))
def test_every_token_is_used_once(
    documents: list[list[list[int]]], target: int, random_next_prob: float, lone: bool, seed: int
) -> None:
    """If no pair has to be truncated, every token is used once, except perhaps a single last sentence."""
    documents = [[sentence for sentence in document if sentence] for document in documents]
    documents = [document for document in documents if document]
    assume(len(documents) > 1)
    maker = PairMaker(documents, CLS, SEP, 500, 0.1, random_next_prob, lone)
    maker.target_length = lambda generator: target  # type: ignore[method-assign]
    for index, document in enumerate(documents):
        tokens_of_pairs: list[int] = []
        for pair in maker.pairs_of(index, random.Random(seed)):
            first, second = segments_of(pair)
            tokens_of_pairs += first + (second if pair.next_sentence_label == IS_NEXT else [])
            # A chunk ends with the sentence that fills it, or with its second if the first alone fills it.
            if pair.next_sentence_label == IS_NEXT:
                last = next(sentence for sentence in document if sentence[-1] == second[-1])
                is_full = len(first) + len(second) - len(last) >= target
                assert not is_full or (not lone and len(first) + len(second) - len(last) == len(first))
        tokens = [token for sentence in document for token in sentence]
        assert tokens_of_pairs == tokens or (not lone and [*tokens_of_pairs, *document[-1]] == tokens)


@given(DOCUMENTS, st.integers(-3, 20), st.integers(0, 99))
def test_a_random_segment_is_text_of_another_document(
    documents: list[list[list[int]]], length: int, seed: int
) -> None:
    """It has complete sentences of another document, until the length is reached or the document ends."""
    documents = [[sentence for sentence in document if sentence] for document in documents]
    documents = [document for document in documents if document]
    assume(len(documents) > 1)
    maker = PairMaker(documents, CLS, SEP)
    index = seed % len(documents)
    tokens = maker.elsewhere(index, length, random.Random(seed))
    possible = []
    for document in documents[:index] + documents[index + 1 :]:
        for start in range(len(document)):
            text = [*document[start]]
            for sentence in document[start + 1 :]:
                if len(text) < length:
                    text += sentence
            possible.append(text)
    assert tokens in possible


@given(st.integers(1, 12), st.integers(1, 12), st.integers(5, 20), st.integers(0, 99))
def test_truncation_shortens_the_longer_segment_as_little_as_possible(
    a: int, b: int, length: int, seed: int
) -> None:
    first, second = [*range(a)], [*range(100, 100 + b)]
    maker = PairMaker([[[0]], [[1]]], CLS, SEP, length)
    pair = maker.assemble(first, second, IS_NEXT, random.Random(seed))
    segments = segments_of(pair)
    room = length - 3
    while a + b > room:
        if a > b:
            a -= 1
        else:
            b -= 1
    assert (len(segments[0]), len(segments[1])) == (a, b)
    assert all(is_consecutive(segment) for segment in segments)
    assert set(segments[0]) <= set(first)
    assert set(segments[1]) <= set(second)
    assert pair.next_sentence_label == IS_NEXT
    # The caller's lists must not change.
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
        padding = T - len(ids)
        assert batch["input_ids"][b].tolist() == ids + [pad] * padding
        assert batch["attention_mask"][b].tolist() == [1] * len(ids) + [0] * padding
        assert batch["token_type_ids"][b].tolist() == [i % 2 for i in ids] + [0] * padding
    assert {values.dtype for values in batch.values()} == {torch.int64}


@given(logits_and_labels(5, st.just(2)))
@example((torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64)))
@example((torch.zeros(2, 2), torch.tensor([IGNORE, IGNORE])))
def test_the_next_sentence_loss_matches_a_loop(case: tuple[Tensor, Tensor]) -> None:
    logits, labels = case
    labeled = [m for m, label in enumerate(labels.tolist()) if label != IGNORE]
    expected = sum(cross_entropy_by_hand(logits[m].tolist(), int(labels[m])) for m in labeled) / max(
        1, len(labeled)
    )
    loss = next_sentence_loss(logits, labels)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected, rel=1e-5, abs=1e-4)


@given(st.sampled_from(DTYPES), st.integers(-3, 8))
def test_labels_are_classes_or_rejected(dtype: torch.dtype, label: int) -> None:
    """-1 is not an ignored label, and a fraction is not a label at all. PyTorch raises the errors."""
    labels = torch.tensor([label]).to(dtype)
    if dtype in (torch.int64, torch.uint8) and 0 <= labels.item() < 2:
        assert next_sentence_loss(torch.zeros(1, 2), labels).item() == pytest.approx(math.log(2))
    else:
        with pytest.raises((RuntimeError, IndexError)):
            next_sentence_loss(torch.zeros(1, 2), labels)


@given(st.integers(0, 3), st.integers(1, 3), st.integers(0, 99))
def test_the_nsp_head_matches_a_loop(B: int, D: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    head = randomize_weights(BertOnlyNSPHead(D), generator)
    pooled = torch.randn((B, D), generator=generator, dtype=torch.float64)
    assert is_close(head(pooled), [linear(head.seq_relationship, x) for x in pooled.tolist()])
