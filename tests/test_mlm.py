"""Masking as a distribution, the head on encoders of others, and the loss in its corners."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labml_bert.mlm import (
    IGNORE,
    BertLMPredictionHead,
    BertPredictionHeadTransform,
    MaskedLM,
    TokenMasker,
    masked_accuracy,
    masked_lm_loss,
)

V, MASK = 40, 4
SPECIALS = [0, 1, 2, 3, MASK]


def masker(**options) -> TokenMasker:
    return TokenMasker(V, MASK, SPECIALS, generator=torch.Generator().manual_seed(0), **options)


def within(count: int, trials: int, p: float) -> bool:
    """Whether a count is within five standard errors of a coin's expectation."""
    return abs(count - trials * p) < 5 * math.sqrt(trials * p * (1 - p))


@pytest.mark.parametrize("p", [0.15, 0.4])
def test_rates_on_a_million_tokens(p: float) -> None:
    ids = torch.randint(0, V, (1000, 1000), generator=torch.Generator().manual_seed(1))
    before = ids.clone()
    seen, labels = masker(mlm_probability=p)(ids)
    assert torch.equal(ids, before)
    special = ids < 5
    chosen = labels != IGNORE
    assert not (chosen & special).any()
    assert torch.equal(labels[chosen], ids[chosen])
    assert torch.equal(seen[~chosen], ids[~chosen])
    assert within(int(chosen.sum()), int((~special).sum()), p)

    n = int(chosen.sum())
    masked = chosen & (seen == MASK)
    assert within(int(masked.sum()), n, 0.8)
    drawn = seen[chosen & ~masked]
    assert (drawn >= 5).all()
    # A random token is the token itself once in 35, so it looks kept.
    other = int((drawn != ids[chosen & ~masked]).sum())
    assert within(other, n, 0.1 * 34 / 35)
    # All 35 ordinary tokens are drawn, each as often as the next.
    replaced = drawn[drawn != ids[chosen & ~masked]]
    counts = torch.bincount(replaced, minlength=V)[5:]
    assert all(within(int(count), len(replaced), 1 / 35) for count in counts)


def test_the_three_fates_are_disjoint() -> None:
    """With no `[MASK]` left over, exactly a half may be random; a second draw would give fewer."""
    ids = torch.full((1000, 1000), 7)
    seen, labels = masker(mlm_probability=1.0, mask_replace_prob=0.5, random_replace_prob=0.5)(ids)
    assert (labels == 7).all()
    kept = int((seen == 7).sum())
    assert within(int((seen == MASK).sum()), 10**6, 0.5)
    assert within(kept, 10**6, 0.5 / 35)


def test_the_values_of_the_original() -> None:
    """15, 80 and 10%, unless told, and labels that `F.cross_entropy` passes over."""
    seen, labels = TokenMasker(V, MASK, SPECIALS)(torch.full((1000, 1000), 7))
    chosen = labels != -100
    assert set(labels.flatten().tolist()) == {-100, 7}
    assert within(int(chosen.sum()), 10**6, 0.15)
    n = int(chosen.sum())
    assert within(int((seen[chosen] == MASK).sum()), n, 0.8)
    assert within(int((seen[chosen] == 7).sum()), n, 0.1 + 0.1 / 35)


@pytest.mark.parametrize("value", [0.0, 1 - 2**-24])
def test_never_and_always_hold_for_the_smallest_and_the_largest_number(value: float) -> None:
    class Fixed(TokenMasker):
        def rand(self, like: Tensor) -> Tensor:
            return torch.full(like.shape, value)

    ids = torch.full((2, 3), 7)
    assert (Fixed(V, MASK, SPECIALS, 0.0)(ids).labels == IGNORE).all()
    assert (Fixed(V, MASK, SPECIALS, 1.0)(ids).labels == 7).all()
    for masked, drawn, expected in ((0.0, 0.0, {7}), (1.0, 0.0, {MASK}), (0.0, 1.0, set(range(5, V)))):
        seen = Fixed(V, MASK, SPECIALS, 1.0, masked, drawn)(ids).input_ids
        assert set(seen.flatten().tolist()) <= expected


def test_padding_is_never_chosen() -> None:
    ids = torch.randint(5, V, (50, 40))
    attention_mask = torch.arange(40) < torch.randint(0, 41, (50, 1))
    seen, labels = masker(mlm_probability=1.0)(ids, attention_mask)
    assert torch.equal(labels != IGNORE, attention_mask)
    assert torch.equal(seen[~attention_mask], ids[~attention_mask])


@pytest.mark.parametrize("cap", [3, 20])
def test_a_fixed_count(cap: int) -> None:
    ids = torch.randint(5, V, (200, 64))
    ids[:50, 10:] = 0
    ids[50:60] = 0
    labels = masker(max_predictions_per_seq=cap)(ids).labels
    count = (labels != IGNORE).sum(1)
    available = (ids >= 5).sum(1)
    expected = [min(n, cap, max(1, round(0.15 * n))) for n in available.tolist()]
    assert count.tolist() == expected
    # Every place is as likely as the next.
    places = (labels[60:] != IGNORE).sum(0)
    assert all(within(int(n), 140, min(10, cap) / 64) for n in places)


def random_words(rows: int, T: int, seed: int) -> Tensor:
    """Word numbers with words of one to four tokens, and -1 at both ends."""
    g = torch.Generator().manual_seed(seed)
    word_ids = torch.full((rows, T), -1)
    for row in word_ids:
        t, word = 1, 0
        while t < T - 1:
            size = int(torch.randint(1, 5, (), generator=g))
            row[t : min(t + size, T - 1)] = word
            t, word = t + size, word + 1
    return word_ids


@pytest.mark.parametrize("cap", [None, 9])
def test_whole_words_stand_or_fall_together(cap: int | None) -> None:
    word_ids = random_words(400, 64, 0)
    ids = torch.randint(5, V, (400, 64))
    labels = masker(max_predictions_per_seq=cap)(ids, word_ids=word_ids).labels
    chosen = labels != IGNORE
    assert not chosen[word_ids < 0].any()
    words = 0
    for row in range(400):
        for word in range(int(word_ids[row].max()) + 1):
            tokens = chosen[row, word_ids[row] == word]
            assert tokens.all() or not tokens.any()
            words += bool(tokens.all())
    if cap is None:
        assert within(words, int((word_ids.max(1).values + 1).sum()), 0.15)
    else:
        count = chosen.sum(1)
        assert count.max() == 9
        # A word of at most four tokens leaves at most three places unused while shorter ones remain.
        assert count.min() >= 6


def test_whole_words_fill_the_count_as_the_original_does() -> None:
    """Against the loop of the original: words in random order, each taken if it still fits."""
    word_ids = random_words(100, 40, 1)
    ids = torch.randint(5, V, (100, 40))
    m = masker(max_predictions_per_seq=6)
    candidates = (word_ids >= 0) & (ids >= 5)
    state = m.generator.get_state()
    chosen = m.choose(candidates, word_ids)
    m.generator.set_state(state)
    draw = m.rand(candidates)
    for row in range(100):
        words = sorted(range(int(word_ids[row].max()) + 1), key=lambda w: draw[row, w].item())
        expected: set[int] = set()
        for word in words:
            places = (word_ids[row] == word).nonzero().flatten().tolist()
            if len(expected) + len(places) <= min(6, round(0.15 * int(candidates[row].sum()))):
                expected |= set(places)
        assert set(chosen[row].nonzero().flatten().tolist()) == expected


def test_each_word_is_as_likely_as_the_next() -> None:
    """Special tokens that bear the number of a word, or none, lend no chance to any other."""
    ids = torch.tensor([[7, 8, 9, 10] + [0] * 8]).expand(2000, 12)
    word_ids = torch.arange(12).expand(2000, 12)
    for numbers in (word_ids, word_ids.masked_fill(ids == 0, -1)):
        chosen = masker(max_predictions_per_seq=1)(ids, word_ids=numbers).labels != IGNORE
        assert all(within(int(n), 2000, 1 / 4) for n in chosen.sum(0)[:4])
        assert not chosen[:, 4:].any()


def test_one_token_that_is_no_word() -> None:
    seen, labels = masker(max_predictions_per_seq=1)(torch.tensor([[0]]), word_ids=torch.tensor([[-1]]))
    assert seen.tolist() == [[0]]
    assert labels.tolist() == [[IGNORE]]


def test_the_same_generator_gives_the_same_masks() -> None:
    ids = torch.randint(0, V, (8, 32))
    torch.manual_seed(0)
    first = masker()(ids)
    torch.manual_seed(1)
    second = masker()(ids)
    assert torch.equal(first.input_ids, second.input_ids)
    assert torch.equal(first.labels, second.labels)


def test_the_loss_is_the_mean_over_labeled_places() -> None:
    logits, labels = torch.randn(6, V), torch.tensor([3, IGNORE, 7, IGNORE, 0, 39])
    by_hand = [-math.log(logits[i].softmax(0)[labels[i]]) for i in (0, 2, 4, 5)]
    assert abs(masked_lm_loss(logits, labels) - sum(by_hand) / 4) < 1e-5
    guessed = logits.clone()
    guessed[0, 3] = guessed[4, 0] = 100.0
    guessed[2, 8] = guessed[5, 8] = 100.0
    # An ignored place that looks right must not count.
    assert masked_accuracy(guessed, labels) == 0.5


def test_the_head_starts_as_all_of_bert() -> None:
    """A normal cut at two sigma, which has 0.8796 of its spread, and the eps of the original."""
    torch.manual_seed(0)
    dense = BertLMPredictionHead(256, 9).transform.dense
    assert 0.0399 < dense.weight.max() <= 0.04
    assert -0.04 <= dense.weight.min() < -0.0399
    assert abs(dense.weight.std() / 0.02 - 0.8796) < 0.02
    assert not dense.bias.any()
    for transform in (
        BertPredictionHeadTransform(8),
        BertLMPredictionHead(8, 9).transform,
        MaskedLM(nn.Identity(), nn.Embedding(9, 8)).head.transform,
    ):
        assert transform.LayerNorm.eps == 1e-12


class Stranger(nn.Module):
    """An encoder as `labml_nn` has it: sequence first, a layer and a count, a tensor out."""

    def __init__(self, d: int = 16):
        super().__init__()
        self.embedding = nn.Embedding(V, d)
        layer = nn.TransformerEncoderLayer(d, 2, 32, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(d), enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(self.embedding(x.T)).transpose(0, 1)


def test_any_encoder_will_do() -> None:
    """One that is not ours learns under our head, and its tied embedding takes part."""
    torch.manual_seed(0)
    encoder = Stranger()
    model = MaskedLM(encoder, encoder.embedding)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    ids = (torch.arange(12) + torch.randint(5, 20, (32, 1))).clamp(max=V - 1)
    m = masker()
    losses = []
    for _ in range(60):
        loss = model(*m(ids)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2
    # Every row gets a gradient from the softmax; from the lookup alone only the tokens present would.
    assert (encoder.embedding.weight.grad.abs().sum(1) > 0).all()


def test_nothing_chosen_gives_zero_and_finite_gradients() -> None:
    encoder = Stranger()
    model = MaskedLM(encoder, encoder.embedding)
    output = model(*masker()(torch.zeros(3, 5, dtype=torch.long)))
    assert output.loss == 0
    assert output.logits.shape == (0, V)
    assert masked_accuracy(output.logits, output.labels) == 0
    output.loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    assert any(p.grad is not None for p in model.parameters())


def test_logits_at_masked_places_are_those_of_the_full_output() -> None:
    encoder = Stranger()
    model = MaskedLM(encoder, encoder.embedding).eval()
    seen, labels = masker()(torch.randint(5, V, (4, 20)))
    some, every = model(seen, labels), model(seen)
    assert every.loss is None
    assert every.logits.shape == (4, 20, V)
    assert (some.logits - every.logits[labels != IGNORE]).abs().max() < 1e-6
    assert torch.equal(some.labels, labels[labels != IGNORE])


def test_the_tie_survives_a_copy() -> None:
    encoder = Stranger()
    model = copy.deepcopy(MaskedLM(encoder, encoder.embedding))
    seen = torch.randint(5, V, (2, 6))
    before = model(seen).logits
    with torch.no_grad():
        model.encoder.embedding.weight.mul_(2)
        hidden = model.encoder(seen)
    after = model(seen).logits
    assert not torch.allclose(before, after)
    x = model.head.transform.LayerNorm(F.gelu(model.head.transform.dense(hidden)))
    assert torch.allclose(after, x @ model.encoder.embedding.weight.T + model.head.bias, atol=1e-5)


@pytest.mark.parametrize(
    ("hidden", "vocab", "count"), [(768, 21_128, 590_592 + 1_536 + 21_128), (32, 7, 1_127)]
)
def test_what_the_head_adds(hidden: int, vocab: int, count: int) -> None:
    head = BertLMPredictionHead(hidden, vocab)
    assert sum(p.numel() for p in head.parameters()) == count
    assert hidden * hidden + hidden + 2 * hidden + vocab == count
