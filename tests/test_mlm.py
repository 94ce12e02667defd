"""The distribution of masks, the head on foreign encoders, and edge cases of the loss."""

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


def new_masker(**options) -> TokenMasker:
    return TokenMasker(V, MASK, SPECIALS, generator=torch.Generator().manual_seed(0), **options)


def within(count: int, trials: int, p: float) -> bool:
    """Whether a count is within five standard errors of the expectation for probability `p`."""
    return abs(count - trials * p) < 5 * math.sqrt(trials * p * (1 - p))


@pytest.mark.parametrize("p", [0.15, 0.4])
def test_masking_probabilities_on_a_million_tokens(p: float) -> None:
    ids = torch.randint(0, V, (1000, 1000), generator=torch.Generator().manual_seed(1))
    original = ids.clone()
    masked_ids, labels = new_masker(mlm_probability=p)(ids)
    assert torch.equal(ids, original)
    special = ids < 5
    is_chosen = labels != IGNORE
    assert not (is_chosen & special).any()
    assert torch.equal(labels[is_chosen], ids[is_chosen])
    assert torch.equal(masked_ids[~is_chosen], ids[~is_chosen])
    assert within(int(is_chosen.sum()), int((~special).sum()), p)

    n = int(is_chosen.sum())
    is_mask = is_chosen & (masked_ids == MASK)
    assert within(int(is_mask.sum()), n, 0.8)
    random_ids = masked_ids[is_chosen & ~is_mask]
    assert (random_ids >= 5).all()
    # One replacement in 35 is the original token itself and looks unchanged.
    replacement_count = int((random_ids != ids[is_chosen & ~is_mask]).sum())
    assert within(replacement_count, n, 0.1 * 34 / 35)
    # All 35 ordinary tokens are equally likely as replacements.
    replaced = random_ids[random_ids != ids[is_chosen & ~is_mask]]
    counts = torch.bincount(replaced, minlength=V)[5:]
    assert all(within(int(count), len(replaced), 1 / 35) for count in counts)


def test_masked_random_and_unchanged_tokens_are_disjoint() -> None:
    """
    Half are masked and half random, so none is left unchanged on purpose. Separate draws would leave some.
    """
    ids = torch.full((1000, 1000), 7)
    masked_ids, labels = new_masker(mlm_probability=1.0, mask_replace_prob=0.5, random_replace_prob=0.5)(ids)
    assert (labels == 7).all()
    unchanged = int((masked_ids == 7).sum())
    assert within(int((masked_ids == MASK).sum()), 10**6, 0.5)
    assert within(unchanged, 10**6, 0.5 / 35)


def test_the_defaults_are_those_of_the_original() -> None:
    """15% are chosen, 80% of these masked and 10% random, and `F.cross_entropy` ignores all other labels."""
    masked_ids, labels = TokenMasker(V, MASK, SPECIALS)(torch.full((1000, 1000), 7))
    is_chosen = labels != -100
    assert set(labels.flatten().tolist()) == {-100, 7}
    assert within(int(is_chosen.sum()), 10**6, 0.15)
    n = int(is_chosen.sum())
    assert within(int((masked_ids[is_chosen] == MASK).sum()), n, 0.8)
    assert within(int((masked_ids[is_chosen] == 7).sum()), n, 0.1 + 0.1 / 35)


@pytest.mark.parametrize("value", [0.0, 1 - 2**-24])
def test_probabilities_of_zero_and_one_hold_for_extreme_random_numbers(value: float) -> None:
    class FixedMasker(TokenMasker):
        def rand(self, like: Tensor) -> Tensor:
            return torch.full(like.shape, value)

    ids = torch.full((2, 3), 7)
    assert (FixedMasker(V, MASK, SPECIALS, 0.0)(ids).labels == IGNORE).all()
    assert (FixedMasker(V, MASK, SPECIALS, 1.0)(ids).labels == 7).all()
    for mask_prob, random_prob, expected in (
        (0.0, 0.0, {7}),
        (1.0, 0.0, {MASK}),
        (0.0, 1.0, set(range(5, V))),
    ):
        masked_ids = FixedMasker(V, MASK, SPECIALS, 1.0, mask_prob, random_prob)(ids).input_ids
        assert set(masked_ids.flatten().tolist()) <= expected


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("most", [None, 2000])
def test_the_default_dtype_changes_no_choice(dtype: torch.dtype, most: int | None) -> None:
    """Random numbers of 8 bits would choose 15.24% instead of 15%, and 1,352 instead of 1,350 tokens."""
    ids = torch.randint(5, V, (2, 9000))
    expected = new_masker(max_predictions_per_seq=most)(ids)
    logits, labels = torch.eye(3)[[0, 1, 2, 0]], torch.tensor([0, 1, 1, IGNORE])
    accuracy = masked_accuracy(logits, labels)
    torch.set_default_dtype(dtype)
    try:
        masked = new_masker(max_predictions_per_seq=most)(ids)
        assert masked_accuracy(logits, labels) == accuracy
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(torch.equal(a, b) for a, b in zip(masked, expected, strict=True))


def test_padding_is_never_chosen() -> None:
    ids = torch.randint(5, V, (50, 40))
    attention_mask = torch.arange(40) < torch.randint(0, 41, (50, 1))
    masked_ids, labels = new_masker(mlm_probability=1.0)(ids, attention_mask)
    assert torch.equal(labels != IGNORE, attention_mask)
    assert torch.equal(masked_ids[~attention_mask], ids[~attention_mask])


@pytest.mark.parametrize("cap", [3, 20])
def test_a_fixed_count(cap: int) -> None:
    ids = torch.randint(5, V, (200, 64))
    ids[:50, 10:] = 0
    ids[50:60] = 0
    labels = new_masker(max_predictions_per_seq=cap)(ids).labels
    count = (labels != IGNORE).sum(1)
    available = (ids >= 5).sum(1)
    expected = [min(n, cap, max(1, round(0.15 * n))) for n in available.tolist()]
    assert count.tolist() == expected
    # Every position is equally likely.
    counts = (labels[60:] != IGNORE).sum(0)
    assert all(within(int(n), 140, min(10, cap) / 64) for n in counts)


def random_words(rows: int, T: int, seed: int) -> Tensor:
    """Word ids of words with one to four tokens, and -1 at both ends."""
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
def test_a_word_is_masked_completely_or_not_at_all(cap: int | None) -> None:
    word_ids = random_words(400, 64, 0)
    ids = torch.randint(5, V, (400, 64))
    labels = new_masker(max_predictions_per_seq=cap)(ids, word_ids=word_ids).labels
    is_chosen = labels != IGNORE
    assert not is_chosen[word_ids < 0].any()
    words = 0
    for row in range(400):
        for word in range(int(word_ids[row].max()) + 1):
            tokens = is_chosen[row, word_ids[row] == word]
            assert tokens.all() or not tokens.any()
            words += bool(tokens.all())
    if cap is None:
        assert within(words, int((word_ids.max(1).values + 1).sum()), 0.15)
    else:
        count = is_chosen.sum(1)
        assert count.max() == 9
        # Words have at most four tokens, so at most three of the positions to choose remain unused.
        assert count.min() >= 6


def test_whole_words_are_chosen_as_in_the_original() -> None:
    """Compares with the original loop, which takes words in random order if they still fit."""
    word_ids = random_words(100, 40, 1)
    ids = torch.randint(5, V, (100, 40))
    token_masker = new_masker(max_predictions_per_seq=6)
    candidates = (word_ids >= 0) & (ids >= 5)
    state = token_masker.generator.get_state()
    is_chosen = token_masker.choose(candidates, word_ids)
    token_masker.generator.set_state(state)
    draw = token_masker.rand(candidates)
    for row in range(100):
        words = sorted(range(int(word_ids[row].max()) + 1), key=lambda w: draw[row, w].item())
        expected: set[int] = set()
        for word in words:
            positions = (word_ids[row] == word).nonzero().flatten().tolist()
            if len(expected) + len(positions) <= min(6, round(0.15 * int(candidates[row].sum()))):
                expected |= set(positions)
        assert set(is_chosen[row].nonzero().flatten().tolist()) == expected


def test_every_word_is_equally_likely() -> None:
    """Special tokens don't change the probabilities of other words, with or without a word id."""
    ids = torch.tensor([[7, 8, 9, 10] + [0] * 8]).expand(2000, 12)
    word_ids = torch.arange(12).expand(2000, 12)
    for ids_of_words in (word_ids, word_ids.masked_fill(ids == 0, -1)):
        is_chosen = new_masker(max_predictions_per_seq=1)(ids, word_ids=ids_of_words).labels != IGNORE
        assert all(within(int(n), 2000, 1 / 4) for n in is_chosen.sum(0)[:4])
        assert not is_chosen[:, 4:].any()


def test_a_single_token_outside_any_word_is_not_masked() -> None:
    masked_ids, labels = new_masker(max_predictions_per_seq=1)(
        torch.tensor([[0]]), word_ids=torch.tensor([[-1]])
    )
    assert masked_ids.tolist() == [[0]]
    assert labels.tolist() == [[IGNORE]]


def test_the_same_generator_gives_the_same_masks() -> None:
    ids = torch.randint(0, V, (8, 32))
    torch.manual_seed(0)
    first = new_masker()(ids)
    torch.manual_seed(1)
    second = new_masker()(ids)
    assert torch.equal(first.input_ids, second.input_ids)
    assert torch.equal(first.labels, second.labels)


def test_the_loss_is_the_mean_over_labeled_positions() -> None:
    logits, labels = torch.randn(6, V), torch.tensor([3, IGNORE, 7, IGNORE, 0, 39])
    expected_losses = [-math.log(logits[i].softmax(0)[labels[i]]) for i in (0, 2, 4, 5)]
    assert abs(masked_lm_loss(logits, labels) - sum(expected_losses) / 4) < 1e-5
    confident_logits = logits.clone()
    confident_logits[0, 3] = confident_logits[4, 0] = 100.0
    confident_logits[2, 8] = confident_logits[5, 8] = 100.0
    # Ignored positions must not count.
    assert masked_accuracy(confident_logits, labels) == 0.5
    # In a micro-batch, both are fractions of the whole batch.
    whole = torch.tensor(8)
    assert masked_accuracy(confident_logits, labels, whole) == 0.25
    assert abs(masked_lm_loss(logits, labels, whole) - sum(expected_losses) / 8) < 1e-5
    # A single label is its own mean.
    assert abs(masked_lm_loss(logits[:1], labels[:1]) - expected_losses[0]) < 1e-5
    assert masked_accuracy(confident_logits[:1], labels[:1]) == 1


def test_the_head_is_initialized_like_bert() -> None:
    """
    The weights are normal, truncated at two sigma (0.8796 of the standard deviation). eps is the original.
    """
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


class ForeignEncoder(nn.Module):
    """An encoder with the interface of `labml_nn`: sequence first, and a plain tensor as output."""

    def __init__(self, d: int = 16):
        super().__init__()
        self.embedding = nn.Embedding(V, d)
        layer = nn.TransformerEncoderLayer(d, 2, 32, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(d), enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(self.embedding(x.T)).transpose(0, 1)


def test_a_foreign_encoder_learns() -> None:
    """An encoder that isn't ours learns under our head, and the output layer trains its tied embedding."""
    torch.manual_seed(0)
    encoder = ForeignEncoder()
    model = MaskedLM(encoder, encoder.embedding)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    ids = (torch.arange(12) + torch.randint(5, 20, (32, 1))).clamp(max=V - 1)
    token_masker = new_masker()
    losses = []
    for _ in range(60):
        loss = model(*token_masker(ids)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2
    # The softmax gives every row a gradient; the input lookup alone would reach only the tokens in the batch.
    assert (encoder.embedding.weight.grad.abs().sum(1) > 0).all()


def test_without_labels_the_loss_is_zero_and_the_gradients_finite() -> None:
    encoder = ForeignEncoder()
    model = MaskedLM(encoder, encoder.embedding)
    output = model(*new_masker()(torch.zeros(3, 5, dtype=torch.long)))
    assert output.loss == 0
    assert output.logits.shape == (0, V)
    assert masked_accuracy(output.logits, output.labels) == 0
    output.loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    assert any(p.grad is not None for p in model.parameters())


def test_logits_at_masked_positions_match_the_full_output() -> None:
    encoder = ForeignEncoder()
    model = MaskedLM(encoder, encoder.embedding).eval()
    masked_ids, labels = new_masker()(torch.randint(5, V, (4, 20)))
    partial, full = model(masked_ids, labels), model(masked_ids)
    assert full.loss is None
    assert full.logits.shape == (4, 20, V)
    assert (partial.logits - full.logits[labels != IGNORE]).abs().max() < 1e-6
    assert torch.equal(partial.labels, labels[labels != IGNORE])


def test_the_weights_stay_tied_in_a_copy() -> None:
    encoder = ForeignEncoder()
    model = copy.deepcopy(MaskedLM(encoder, encoder.embedding))
    input_ids = torch.randint(5, V, (2, 6))
    logits_before = model(input_ids).logits
    with torch.no_grad():
        model.encoder.embedding.weight.mul_(2)
        hidden_states = model.encoder(input_ids)
    logits_after = model(input_ids).logits
    assert not torch.allclose(logits_before, logits_after)
    x = model.head.transform.LayerNorm(F.gelu(model.head.transform.dense(hidden_states)))
    assert torch.allclose(logits_after, x @ model.encoder.embedding.weight.T + model.head.bias, atol=1e-5)


@pytest.mark.parametrize(
    ("hidden_size", "vocab_size", "count"), [(768, 21_128, 590_592 + 1_536 + 21_128), (32, 7, 1_127)]
)
def test_the_parameter_count_of_the_head(hidden_size: int, vocab_size: int, count: int) -> None:
    head = BertLMPredictionHead(hidden_size, vocab_size)
    assert sum(p.numel() for p in head.parameters()) == count
    assert hidden_size * hidden_size + hidden_size + 2 * hidden_size + vocab_size == count


def test_the_losses_and_accuracies_of_micro_batches_add_up() -> None:
    """Each micro-batch divides by the number of labels in the whole batch."""
    torch.manual_seed(0)
    encoder = ForeignEncoder()
    model = MaskedLM(encoder, encoder.embedding).eval()
    ids, labels = new_masker()(torch.randint(5, V, (6, 20)))
    whole, count = model(ids, labels), (labels != IGNORE).sum()
    parts = [
        model(*part, num_items_in_batch=count) for part in ((ids[:2], labels[:2]), (ids[2:], labels[2:]))
    ]
    assert sum(part.loss.item() for part in parts) == pytest.approx(whole.loss.item(), rel=1e-5)
    accuracies = [masked_accuracy(part.logits, part.labels, count).item() for part in parts]
    assert sum(accuracies) == pytest.approx(masked_accuracy(whole.logits, whole.labels).item())


def test_the_accuracy_of_a_single_position() -> None:
    """Logits may have more than two dimensions, of which the last is the vocabulary."""
    logits = torch.zeros(1, 3, 2)
    logits[0, 1, 1] = 1.0
    assert masked_accuracy(logits, torch.tensor([[IGNORE, 1, IGNORE]])) == 1


def test_the_head_uses_the_epsilon_of_the_encoder() -> None:
    encoder = ForeignEncoder()
    assert MaskedLM(encoder, encoder.embedding).head.transform.LayerNorm.eps == 1e-12
    assert MaskedLM(encoder, encoder.embedding, 1e-5).head.transform.LayerNorm.eps == 1e-5
