"""The n-gram baselines against slow, straightforward implementations."""

import math
import random
from collections import Counter, defaultdict

import pytest
import torch

from labml_bert.baselines.ngrams import NgramModel, ngram_baselines


def slow_baselines(
    train: list[int], valid: list[int], V: int, specials: list[int]
) -> list[tuple[float, float]]:
    frequency = Counter(w for w in train if w not in specials)
    total = sum(frequency.values()) + 1e-3 * V
    after, between = defaultdict(Counter), defaultdict(Counter)
    left_seen = Counter()
    for a, b, c in zip(train, train[1:], train[2:], strict=False):
        if b not in specials:
            left_seen[a] += 1
            after[a][b] += 1
            between[a, c][b] += 1
    losses, correct = [0.0, 0.0], [0, 0]
    scored = [t for t in range(1, len(valid) - 1) if valid[t] not in specials]

    def probabilities(a: int, w: int, c: int) -> tuple[float, float]:
        p0 = (frequency[w] + 1e-3) / total
        kinds = max(1, len(after[a]))
        p1 = (after[a].get(w, 0) + kinds * p0) / (left_seen[a] + kinds)
        kinds = max(1, len(between[a, c]))
        return p0, (between[a, c].get(w, 0) + kinds * p1) / (between[a, c].total() + kinds)

    for t in scored:
        a, true, c = valid[t - 1 : t + 2]
        table = [probabilities(a, w, c) for w in range(V)]
        for i in range(2):
            losses[i] -= math.log(table[true][i])
            correct[i] += true == max(range(V), key=lambda w: table[w][i])
    n = len(scored)
    return [(losses[0] / n, correct[0] / n), (losses[1] / n, correct[1] / n)]


@pytest.mark.parametrize("seed", range(4))
def test_losses_and_accuracies_match_the_slow_version(seed: int) -> None:
    r = random.Random(seed)
    V = 9
    weights = [0.2] + [r.random() for _ in range(V - 1)]
    text = r.choices(range(V), weights, k=3000)
    train, valid = text[:2500], text[2500:]
    uniform, unigram, table = ngram_baselines(torch.tensor(train), torch.tensor(valid), V, [0])
    expected = slow_baselines(train, valid, V, [0])
    assert uniform.loss == math.log(V)
    assert unigram.loss == pytest.approx(expected[0][0], abs=1e-9)
    assert unigram.accuracy == pytest.approx(expected[0][1])
    assert table.loss == pytest.approx(expected[1][0], abs=1e-9)
    assert table.accuracy == pytest.approx(expected[1][1])


def test_in_new_contexts_the_prediction_is_the_most_probable_token() -> None:
    """Of 100 tokens, few occur twice between the same neighbors."""
    generator = torch.Generator().manual_seed(0)
    train = torch.multinomial(torch.arange(100.0), 2000, replacement=True, generator=generator)
    left, right = torch.randint(100, (2, 50), generator=generator)
    model = NgramModel(train, 100, [0])
    words = torch.arange(100).repeat(50)
    p = model.probabilities(left.repeat_interleave(100), words, right.repeat_interleave(100)).view(50, 100)
    predicted = p.gather(1, model.predict(left, right)[:, None])[:, 0]
    torch.testing.assert_close(predicted, p.amax(1), rtol=1e-12, atol=0)
    assert torch.allclose(p.sum(1), torch.ones(50).double())


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint16])
def test_the_type_of_the_ids_does_not_matter(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    train = torch.randint(3000, (5000,), generator=generator)
    left, word, right = train[:-2], train[1:-1], train[2:]
    expected = NgramModel(train, 3000, [0]).probabilities(left, word, right)
    assert torch.equal(NgramModel(train.to(dtype), 3000, [0]).probabilities(left, word, right), expected)
    baselines = ngram_baselines(train, train[:500], 3000, [0])
    assert ngram_baselines(train.to(dtype), train[:500].to(dtype), 3000, [0]) == baselines


def test_after_an_unknown_pair_the_left_neighbor_decides() -> None:
    train = torch.tensor([5] * 50 + [7, 8, 5] * 20 + [9])
    *_, table = ngram_baselines(train, torch.tensor([7, 8, 9]), 10, [0])
    assert table.accuracy == 1


def test_a_text_whose_tokens_follow_from_their_neighbors() -> None:
    train = torch.arange(20).repeat(50) + 1
    _, unigram, table = ngram_baselines(train, train[:101], 21, [0])
    assert unigram.loss == pytest.approx(math.log(20), abs=0.01)
    assert table.loss < 0.1
    assert table.accuracy == 1


def test_a_special_token_between_two_others_is_never_the_prediction() -> None:
    """Id 0 is the most frequent token between two 1s, but only ordinary tokens count."""
    train = torch.tensor([1, 0, 1, 0, 1, 0, 1, 2, 1])
    *_, table = ngram_baselines(train, torch.tensor([1, 2, 1]), 3, [0])
    assert table.accuracy == 1


def test_unseen_tokens_have_a_finite_loss() -> None:
    *_, table = ngram_baselines(torch.tensor([1, 2, 1, 2, 1, 2]), torch.tensor([3, 4, 3, 4]), 5, [0])
    assert math.isfinite(table.loss)


def test_a_vocabulary_whose_triples_have_no_int64_is_rejected() -> None:
    with pytest.raises(ValueError, match="the vocabulary has 2,097,153 tokens; use at most 2,097,152"):
        NgramModel(torch.arange(9), 2**21 + 1, [])
    NgramModel(torch.tensor([0, 1, 2**21 - 1, 2]), 2**21, [])


@pytest.mark.parametrize(("text", "reason"), [([1, 2], "shorter than three"), ([0] * 9, "special tokens")])
def test_a_text_without_ordinary_tokens_between_others_is_rejected(text: list[int], reason: str) -> None:
    with pytest.raises(ValueError, match=f"held-out text is .*{reason}"):
        ngram_baselines(torch.arange(10), torch.tensor(text), 10, [0])
    with pytest.raises(ValueError, match=f"training text is .*{reason}"):
        ngram_baselines(torch.tensor(text), torch.arange(10), 10, [0])
