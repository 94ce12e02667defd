"""The distribution of sentence pairs, the same pairs as the original's loop, and the NSP head."""

import math
import random
from collections import Counter

import pytest
import torch
import transformers

from labml_bert.nsp import (
    IS_NEXT,
    IS_RANDOM,
    BertOnlyNSPHead,
    PairMaker,
    SentencePair,
    collate,
    next_sentence_loss,
)

CLS, SEP = 1, 2


def documents(count: int, seed: int = 0, max_sentences: int = 12) -> list[list[list[int]]]:
    """Documents whose tokens tell where they are from: each has 10,000 increasing ids of its own."""
    r = random.Random(seed)
    result = []
    for d in range(count):
        token, document = 10_000 * (d + 1), []
        for _ in range(r.randint(1, max_sentences)):
            size = r.randint(1, 15)
            document.append([*range(token, token + size)])
            token += size
        result.append(document)
    return result


def segments_of(pair: SentencePair) -> tuple[list[int], list[int]]:
    ids, types = pair.input_ids, pair.token_type_ids
    assert ids[0] == CLS
    assert ids[-1] == SEP
    cut = types.index(1)
    assert ids[cut - 1] == SEP
    assert types == [0] * cut + [1] * (len(ids) - cut)
    first, second = ids[1 : cut - 1], ids[cut:-1]
    assert first
    assert second
    assert not {CLS, SEP} & {*first, *second}
    return first, second


def is_consecutive(tokens: list[int]) -> bool:
    return tokens == [*range(tokens[0], tokens[0] + len(tokens))]


@pytest.mark.parametrize("lone_sentence_is_random", [True, False])
def test_the_segments_and_labels_of_thousands_of_pairs(lone_sentence_is_random: bool) -> None:
    maker = PairMaker(documents(1500), CLS, SEP, 48, lone_sentence_is_random=lone_sentence_is_random)
    pairs = list(maker(random.Random(0)))
    assert len(pairs) > 2000
    lengths = Counter(len(pair.input_ids) for pair in pairs)
    assert max(lengths) == 48
    random_pairs = 0
    for pair in pairs:
        first, second = segments_of(pair)
        # Truncation removes tokens from the ends, never from the middle.
        assert is_consecutive(first)
        assert is_consecutive(second)
        same = first[0] // 10_000 == second[0] // 10_000
        assert pair.next_sentence_label == (IS_NEXT if same else IS_RANDOM)
        if same:
            assert first[-1] < second[0]
        random_pairs += pair.next_sentence_label
    random_fraction = random_pairs / len(pairs)
    if lone_sentence_is_random:
        # As in the original, documents that end in a single sentence add to the random pairs.
        assert 0.55 < random_fraction < 0.85
    else:
        assert abs(random_fraction - 0.5) < 5 * math.sqrt(0.25 / len(pairs))


def test_random_segments_come_from_all_other_documents() -> None:
    maker = PairMaker(documents(20, max_sentences=1), CLS, SEP, 48)
    generator = random.Random(0)
    document_counts = Counter()
    for _ in range(400):
        for pair in maker.pairs_of(7, generator):
            document_counts[segments_of(pair)[1][0] // 10_000 - 1] += 1
    assert set(document_counts) == set(range(20)) - {7}
    assert all(abs(n - 400 / 19) < 5 * math.sqrt(400 / 19) for n in document_counts.values())


def test_every_token_is_used_exactly_once() -> None:
    """If nothing is truncated, each token of a document is in exactly one A or one true B."""
    texts = documents(200)
    maker = PairMaker(texts, CLS, SEP, 512, short_seq_prob=0)
    generator = random.Random(0)
    for index, document in enumerate(texts):
        used: list[int] = []
        for pair in maker.pairs_of(index, generator):
            first, second = segments_of(pair)
            used += first if pair.next_sentence_label == IS_RANDOM else first + second
        assert used == [token for sentence in document for token in sentence]


def original_pairs(maker: PairMaker, index: int, rng: random.Random) -> list[tuple[list[int], bool, int]]:
    """
    The original's control flow for one document. Returns A, the label, and where the next chunk starts.
    Random numbers are drawn in the original's order; to draw another document, it calls our method.
    """
    document = maker.documents[index]
    max_tokens = maker.max_length - 3
    target = rng.randint(2, max_tokens) if rng.random() < maker.short_seq_prob else max_tokens
    pairs, chunk, length, i = [], [], 0, 0
    while i < len(document):
        chunk.append(document[i])
        length += len(document[i])
        if i == len(document) - 1 or length >= target:
            a_end = 1
            if len(chunk) >= 2:
                a_end = rng.randint(1, len(chunk) - 1)
            a = [t for s in chunk[:a_end] for t in s]
            is_random = len(chunk) == 1 or rng.random() < 0.5
            if is_random:
                b = maker.elsewhere(index, target - len(a), rng)
                i -= len(chunk) - a_end
            else:
                b = [t for s in chunk[a_end:] for t in s]
            while len(a) + len(b) > max_tokens:
                longer = a if len(a) > len(b) else b
                if rng.random() < 0.5:
                    del longer[0]
                else:
                    longer.pop()
            pairs.append((a, is_random, i))
            chunk, length = [], 0
        i += 1
    return pairs


def test_the_control_flow_matches_the_original() -> None:
    """The same random numbers give the same chunks, the same cuts and the same labels."""
    maker = PairMaker(documents(300), CLS, SEP, 40)

    class SkipTrivialDraws(random.Random):
        """Returns `a` without drawing if `a == b`, because the original draws no random number then."""

        def randint(self, a: int, b: int) -> int:
            return a if a == b else super().randint(a, b)

    for index in range(300):
        ours = list(maker.pairs_of(index, SkipTrivialDraws(index)))
        theirs = original_pairs(maker, index, SkipTrivialDraws(index))
        assert [(segments_of(p)[0], p.next_sentence_label) for p in ours] == [
            (a, label) for a, label, _ in theirs
        ]


def test_truncation_takes_from_both_ends_of_the_longer_segment() -> None:
    maker = PairMaker([[[1]], [[2]]], CLS, SEP, 23)
    starts, ends = Counter(), Counter()
    for seed in range(500):
        pair = maker.assemble([*range(100, 130)], [*range(200, 208)], IS_NEXT, random.Random(seed))
        first, second = segments_of(pair)
        assert len(first) + len(second) == 20
        assert second == [*range(200, 208)]
        starts[first[0]] += 1
        ends[first[-1]] += 1
    # For each of the 18 removed tokens, a coin decides whether it's the first or the last token left.
    mean = sum((start - 100) * n for start, n in starts.items()) / 500
    assert abs(mean - 9) < 5 * math.sqrt(18 * 0.25 / 500)
    assert len(ends) > 5


@pytest.mark.parametrize("short_seq_prob", [0.0, 0.1, 1.0])
def test_short_sequences(short_seq_prob: float) -> None:
    maker = PairMaker(documents(2000), CLS, SEP, 100, short_seq_prob=short_seq_prob)
    generator = random.Random(0)
    short_fraction = sum(maker.target_length(generator) < 97 for _ in range(2000)) / 2000
    # One in 96 of the short target lengths happens to be the full length.
    assert abs(short_fraction - short_seq_prob * 95 / 96) < 5 * math.sqrt(0.25 / 2000)


def test_a_random_segment_fills_only_the_rest_of_the_target_length(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [[[100 * d + i] for i in range(60)] for d in range(1, 4)]  # Each sentence is a single token.
    monkeypatch.setattr(PairMaker, "target_length", lambda self, generator: 6)
    pairs = list(PairMaker(texts, CLS, SEP, 30)(random.Random(0)))
    lengths = [len(pair.input_ids) - 3 for pair in pairs if pair.next_sentence_label == IS_RANDOM]
    assert len(lengths) > 5 and max(lengths) == 6


def test_the_defaults_are_those_of_the_original() -> None:
    """By default, pairs have up to 128 tokens, a tenth of them are short, and half of them are random."""
    texts = [[[7] * 60] * 40] * 2
    maker = PairMaker(texts, CLS, SEP, lone_sentence_is_random=False)
    generator = random.Random(0)
    assert max(len(pair.input_ids) for pair in maker(generator)) == 128
    short_fraction = sum(maker.target_length(generator) < 125 for _ in range(20_000)) / 20_000
    assert abs(short_fraction - 0.1 * 123 / 124) < 5 * math.sqrt(0.09 / 20_000)
    labels = [pair.next_sentence_label for _ in range(50) for pair in maker(generator)]
    assert abs(sum(labels) / len(labels) - 0.5) < 5 * math.sqrt(0.25 / len(labels))


def test_a_probability_of_zero_means_never() -> None:
    """A random number of exactly 0 makes no difference."""

    class Zero(random.Random):
        def random(self) -> float:
            return 0.0

    maker = PairMaker([[[1], [2]], [[3], [4]]], CLS, SEP, 20, short_seq_prob=0, random_next_prob=0)
    assert maker.target_length(Zero(0)) == 17
    assert [pair.next_sentence_label for pair in maker(Zero(0))] == [IS_NEXT, IS_NEXT]


@pytest.mark.parametrize(
    ("texts", "length", "words"),
    [
        ([], 20, "needs at least two documents, not 0"),
        ([[[1, 2], [3]]], 20, "needs at least two documents, not 1"),
        ([[[1]], [[], []], []], 20, "needs at least two documents, not 1"),
    ],
)
def test_documents_that_make_no_pairs_are_rejected(texts: list, length: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        PairMaker(texts, CLS, SEP, length)


def test_empty_sentences_and_the_shortest_length() -> None:
    maker = PairMaker([[[], [5], []], [[6, 7, 8]], [[9], [10]]], CLS, SEP, 5)
    for pair in maker(random.Random(0)):
        assert len(pair.input_ids) == 5


def test_collate_pads() -> None:
    batch = collate([SentencePair([1, 5, 2, 6, 2], [0, 0, 0, 1, 1], 0), SentencePair([1, 2], [0, 1], 1)], 9)
    assert batch["input_ids"].tolist() == [[1, 5, 2, 6, 2], [1, 2, 9, 9, 9]]
    assert batch["attention_mask"].tolist() == [[1] * 5, [1, 1, 0, 0, 0]]
    assert batch["token_type_ids"].tolist() == [[0, 0, 0, 1, 1], [0, 1, 0, 0, 0]]
    assert batch["next_sentence_label"].tolist() == [0, 1]
    assert collate([SentencePair([5], [0], 0), SentencePair([], [], 1)])["input_ids"].tolist() == [[5], [0]]


def test_the_head_is_initialized_like_bert() -> None:
    """The weights are normal, truncated at two sigma (0.8796 of the standard deviation)."""
    torch.manual_seed(0)
    layer = BertOnlyNSPHead(20_000).seq_relationship
    assert 0.0399 < layer.weight.max() <= 0.04
    assert -0.04 <= layer.weight.min() < -0.0399
    assert abs(layer.weight.std() / 0.02 - 0.8796) < 0.02
    assert not layer.bias.any()


def test_the_head_matches_transformers() -> None:
    """The labels 0 and 1 count alike."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    reference = transformers.BertForNextSentencePrediction(config).eval()
    head = BertOnlyNSPHead(8)
    head.load_state_dict(reference.cls.state_dict())
    ids, labels = torch.randint(1, 20, (6, 5)), torch.tensor([0, 1, 0, 0, 1, 0])
    theirs = reference(ids, labels=labels)
    logits = head(reference.bert(ids).pooler_output)
    assert (logits - theirs.logits).abs().max() < 1e-6
    assert abs(next_sentence_loss(logits, labels) - theirs.loss) < 1e-6
    assert next_sentence_loss(logits, torch.zeros(6, dtype=torch.long)) > 0
    # The loss of a single pair is its own mean.
    single = -logits[0].log_softmax(0)[labels[0]]
    assert abs(next_sentence_loss(logits[:1], labels[:1]) - single) < 1e-6
