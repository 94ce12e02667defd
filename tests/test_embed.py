"""Sentence vectors: equal to plain loops, and bad input."""

import copy
import io
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from labml_bert import embed as module
from labml_bert.data.tokenizers import character_tokenizer, save_tokenizer
from labml_bert.embed import (
    cosines,
    embed,
    fit_whitening,
    mean_cosine,
    mrr_and_recall,
    pool_texts,
    ranks,
    simcse_loss,
    train_simcse,
)
from labml_bert.models import BertForMaskedLM
from labml_bert.training.trainer import NonFiniteLossError
from tests.support.parity import TOLERANCE
from tests.support.small_models import TEXT, Model, random_model, subword_tokenizer

KINDS = ["bert", "modern"]
TEXTS = ["the unusual cats saw an unusual dog", "z", "an old dog", "cats", "the the z dog saw"]


def model_of(kind: str, tokenizer: Tokenizer, seed: int = 0) -> Model:
    return random_model(kind, tokenizer.get_vocab_size(), seed)


def vectors_of_tokens(model: Model, text: str, tokenizer: Tokenizer) -> tuple[list[str], Tensor]:
    encoding = tokenizer.encode(text)
    ids = torch.tensor([encoding.ids])
    with torch.no_grad():
        hidden = model.bert(ids)[0] if isinstance(model, BertForMaskedLM) else model.model(ids)
    return encoding.tokens, hidden[0]


def test_a_zero_vector_is_orthogonal_in_float16_too() -> None:
    vectors = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    assert cosines(vectors.half(), vectors.half()).tolist() == [[0, 0], [0, pytest.approx(1)]]
    assert torch.equal(cosines(vectors.half(), vectors.half()), cosines(vectors, vectors))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_default_type_changes_no_vector(dtype: torch.dtype) -> None:
    tokenizer = subword_tokenizer()
    model = model_of("bert", tokenizer)
    expected = embed(model, tokenizer, TEXTS)
    torch.set_default_dtype(dtype)
    try:
        assert torch.equal(embed(model, tokenizer, TEXTS), expected)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_mean_pooling_equals_a_plain_loop(kind: str, seed: int) -> None:
    tokenizer = subword_tokenizer()
    model = model_of(kind, tokenizer, seed)
    ours = embed(model, tokenizer, TEXTS, batch_size=2)
    assert ours.shape == (len(TEXTS), model.config.hidden_size)
    for text, vector in zip(TEXTS, ours, strict=True):
        tokens, hidden = vectors_of_tokens(model, text, tokenizer)
        assert tokens[0] == "[CLS]" and tokens[-1] == "[SEP]"
        expected = sum(hidden[1:-1]) / (len(tokens) - 2)
        assert (vector - expected).abs().max() < TOLERANCE
    cls = embed(model, tokenizer, TEXTS, "cls")
    expected_cls = torch.stack([vectors_of_tokens(model, text, tokenizer)[1][0] for text in TEXTS])
    assert (cls - expected_cls).abs().max() < TOLERANCE


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_padding_does_not_matter(kind: str, pooling: module.Pooling) -> None:
    tokenizer = subword_tokenizer()
    model = model_of(kind, tokenizer)
    alone = torch.cat([embed(model, tokenizer, [text], pooling) for text in TEXTS])
    assert (embed(model, tokenizer, TEXTS, pooling) - alone).abs().max() < TOLERANCE


def test_padding_by_the_tokenizer_does_not_matter_either() -> None:
    tokenizer = subword_tokenizer()
    model = model_of("bert", tokenizer)
    expected = pool_texts(model, tokenizer, TEXTS)
    tokenizer.enable_padding(pad_id=2, length=16)
    assert torch.equal(pool_texts(model, tokenizer, TEXTS), expected)


def test_special_tokens_that_somebody_typed_are_not_part_of_the_mean() -> None:
    tokenizer = character_tokenizer(["dog"])
    model = model_of("bert", tokenizer)
    text = "d[MASK]og[PAD]"
    _, hidden = vectors_of_tokens(model, text, tokenizer)
    expected = hidden[[0, 2, 3]].mean(0)
    assert (embed(model, tokenizer, [text])[0] - expected).abs().max() < TOLERANCE


def test_a_long_text_loses_its_end() -> None:
    tokenizer = subword_tokenizer()
    model = model_of("bert", tokenizer)
    words = ["dog", "cat", "saw", "the"]
    assert len(tokenizer.encode(" ".join(words)).ids) == 6
    short = embed(model, tokenizer, ["dog cat"])
    assert torch.allclose(embed(model, tokenizer, [" ".join(words)], max_length=4), short, atol=TOLERANCE)
    # The model has 40 positions: 38 words and two special tokens.
    longest = embed(model, tokenizer, ["dog " * 38])
    assert torch.allclose(embed(model, tokenizer, ["dog " * 50]), longest, atol=TOLERANCE)
    # Truncation isn't left on in the caller's tokenizer.
    assert tokenizer.truncation is None


@pytest.mark.parametrize(
    ("texts", "arguments", "message"),
    [
        ([], {}, "there are no texts"),
        (["a"], {"batch_size": -1}, "batch_size is -1; it must be at least 1"),
        (["dog", "[SEP]"], {}, r"the text '\[SEP\]' has no tokens"),
        ([""], {}, "the text '' has no tokens"),
        (["dog", "dog " * 25_001], {}, "text 2 has 100,004 characters; use at most 100,000"),
        (["\udcff"], {}, "not UTF-8"),
        (["dog"], {"max_length": 2}, "max_length is 2"),
        (["dog"], {"pooling": "cls"}, r"trained without \[CLS\]"),
        (["dog"], {"pooling": "max"}, "pooling is 'max'; choose from mean, cls"),
        ("dog", {}, "pass a list"),
    ],
)
def test_bad_texts_are_refused(texts: Sequence[str], arguments: dict, message: str) -> None:
    tokenizer = character_tokenizer(["the dog"])
    with pytest.raises(ValueError, match=message):
        embed(model_of("bert", tokenizer), tokenizer, texts, **arguments)


def test_the_mean_cosine_is_that_of_all_pairs() -> None:
    vectors = torch.randn(7, 5, generator=torch.Generator().manual_seed(0)) + 1
    pairs = [(a, b) for i, a in enumerate(vectors) for b in vectors[i + 1 :]]
    expected = [(a @ b / (a.norm() * b.norm())).item() for a, b in pairs]
    assert mean_cosine(vectors) == pytest.approx(sum(expected) / 21)
    assert cosines(vectors, vectors)[2, 4] == pytest.approx(
        F.cosine_similarity(vectors[2], vectors[4], dim=0)
    )
    with pytest.raises(ValueError, match="a pair needs two texts"):
        mean_cosine(vectors[:1])
    vectors[3] = 0
    assert mean_cosine(vectors) == pytest.approx(cosines(vectors, vectors).triu(1).sum().item() / 21)


def correlated_vectors(N: int = 200) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(N, 6, generator=generator) @ torch.randn(6, 6, generator=generator) + 3


@pytest.mark.parametrize("dimensions", [None, 6, 2])
def test_whitened_vectors_have_mean_zero_and_the_identity_as_covariance(dimensions: int | None) -> None:
    vectors = correlated_vectors()
    whitened = fit_whitening(vectors, dimensions)(vectors)
    K = dimensions or 6
    assert whitened.shape == (200, K)
    assert whitened.mean(0).abs().max() < 1e-4
    assert (torch.cov(whitened.T) - torch.eye(K)).abs().max() < 1e-3


def test_the_direction_with_the_largest_variance_comes_first() -> None:
    vectors = correlated_vectors() * torch.tensor([1, 1, 1, 100, 1, 1])
    assert fit_whitening(vectors, 1).matrix.abs().argmax() == 3


def test_a_direction_without_variance_is_left_out() -> None:
    vectors = F.layer_norm(correlated_vectors(), (6,))
    assert fit_whitening(vectors).matrix.shape == (6, 5)
    with pytest.raises(ValueError, match="all 3 vectors are equal"):
        fit_whitening(torch.ones(3, 4))
    with pytest.raises(ValueError, match="all 1 vectors are equal"):
        fit_whitening(torch.randn(1, 4))
    for dimensions in (0, -1):
        with pytest.raises(ValueError, match=f"dimensions is {dimensions}; it must be at least 1"):
            fit_whitening(vectors, dimensions)


def test_the_loss_is_the_formula() -> None:
    generator = torch.Generator().manual_seed(2)
    a, b = (torch.randn(4, 3, generator=generator) for _ in range(2))
    expected = 0.0
    for i in range(4):
        scores = [math.exp(F.cosine_similarity(a[i], b[j], dim=0).item() / 0.1) for j in range(4)]
        expected -= math.log(scores[i] / sum(scores)) / 4
    assert simcse_loss(a, b, 0.1).item() == pytest.approx(expected, rel=1e-4)
    # If all texts look the same, each is as probable as any other.
    assert simcse_loss(torch.ones(8, 3), torch.ones(8, 3)).item() == pytest.approx(math.log(8))


@pytest.mark.slow("trains a model")
@pytest.mark.parametrize("kind", KINDS)
def test_training_pulls_the_views_of_a_text_together(kind: str) -> None:
    tokenizer = subword_tokenizer()
    model = model_of(kind, tokenizer)
    twin = copy.deepcopy(model)
    texts = [*TEXTS, "dog saw cats", "unusual", "old old cat"]
    before = mean_cosine(embed(model, tokenizer, texts))
    pairs = [(text, text) for text in texts]
    losses = train_simcse(model, tokenizer, pairs, 1e-3, 40, batch_size=8)
    assert len(losses) == 40 and sum(losses[-5:]) < sum(losses[:5]) and not model.training
    assert mean_cosine(embed(model, tokenizer, texts)) < before
    assert train_simcse(twin, tokenizer, pairs, 1e-3, 40, batch_size=8) == losses


def test_without_dropout_both_views_are_equal() -> None:
    tokenizer = subword_tokenizer()
    model = model_of("modern", tokenizer)
    model.train()
    assert torch.equal(pool_texts(model, tokenizer, TEXTS), pool_texts(model, tokenizer, TEXTS))
    train_simcse(model, tokenizer, [(text, text) for text in TEXTS], 1e-9, 1, batch_size=5)
    model.train()
    a, b = (pool_texts(model, tokenizer, TEXTS) for _ in range(2))
    assert (cosines(a, b).diagonal() < 0.999).all()


def test_texts_that_cannot_be_encoded_are_refused_before_training() -> None:
    tokenizer = subword_tokenizer()
    with pytest.raises(ValueError, match="a text of pair 2 has bytes that are not UTF-8"):
        train_simcse(model_of("bert", tokenizer), tokenizer, [("dog", "cat"), ("dog", "\udcff")], 1e-3, 1, 2)


@pytest.mark.parametrize(("pairs", "batch_size", "steps"), [(3, 4, 1), (3, 1, 1), (3, 2, 0)])
def test_impossible_trainings_are_refused(pairs: int, batch_size: int, steps: int) -> None:
    tokenizer = subword_tokenizer()
    with pytest.raises(ValueError, match=f"{pairs} pairs, batch_size {batch_size}, {steps} steps"):
        train_simcse(model_of("bert", tokenizer), tokenizer, [(TEXT, TEXT)] * pairs, 1e-3, steps, batch_size)


def test_a_learning_rate_at_which_the_loss_explodes_is_refused() -> None:
    tokenizer = subword_tokenizer()
    with pytest.raises(NonFiniteLossError, match="the loss exploded at the learning rate inf"):
        train_simcse(model_of("bert", tokenizer), tokenizer, [(TEXT, TEXT)] * 2, math.inf, 9, 2)


def test_gradients_from_before_the_contrastive_training_do_not_count() -> None:
    tokenizer, losses = subword_tokenizer(), []
    for gradient in (None, math.nan):
        model = model_of("bert", tokenizer)
        for parameter in model.parameters():
            parameter.grad = None if gradient is None else torch.full_like(parameter, gradient)
        losses.append(train_simcse(model, tokenizer, [(TEXT, TEXT), ("dog", "cat")], 1e-3, 2, 2))
    assert losses[0] == losses[1]


def test_an_infinite_gradient_in_the_last_step_leaves_the_weights_alone() -> None:
    tokenizer = subword_tokenizer()
    model = model_of("bert", tokenizer)
    weight = next(model.parameters())
    before = weight.detach().clone()
    weight.register_hook(lambda gradient: gradient * math.inf)
    with pytest.raises(NonFiniteLossError, match=r"exploded at the learning rate 0\.001; try a lower one"):
        train_simcse(model, tokenizer, [(TEXT, TEXT)] * 2, 1e-3, 1, 2)
    assert torch.equal(weight, before)


def test_a_model_with_two_positions_is_refused() -> None:
    tokenizer = subword_tokenizer()
    model = model_of("bert", tokenizer)
    model.config.max_position_embeddings = 2
    with pytest.raises(ValueError, match="max_length is 2; one token between two special tokens needs 3"):
        embed(model, tokenizer, [TEXT])


def test_ranks_by_hand() -> None:
    similarities = torch.tensor([[0.9, 0.1, 0.2], [0.5, 0.5, 0.1], [0.7, 0.6, 0.3]])
    # A tie counts against the second query.
    assert ranks(similarities).tolist() == [1, 2, 3]
    mrr, recall = mrr_and_recall(ranks(similarities), 2)
    assert mrr == pytest.approx((1 + 1 / 2 + 1 / 3) / 3) and recall == pytest.approx(2 / 3)
    assert ranks(torch.full((2, 2), math.nan)).tolist() == [2, 2]
    with pytest.raises(ValueError, match=r"shape \(3, 1\); each query needs a candidate of its own"):
        ranks(torch.ones(3, 1))


def save_model(folder: Path) -> Model:
    tokenizer = subword_tokenizer()
    model = model_of("bert", tokenizer)
    assert isinstance(model, BertForMaskedLM)
    model.save_pretrained(folder)
    save_tokenizer(tokenizer, folder)
    return model


def test_the_table_has_the_most_similar_text_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = save_model(tmp_path)
    query, *texts = ["the dog", "an old dog", "the dog", "cats saw " * 30]
    module.main([query, *texts, "--run", str(tmp_path)])
    out = capsys.readouterr().out
    # The path of the model can be any length.
    assert max(len(line) for line in out.splitlines() if "  model " not in line) <= 80
    vectors = embed(model, subword_tokenizer(), [query, *texts])
    expected = dict(zip(texts, cosines(vectors[:1], vectors[1:])[0].tolist(), strict=True))
    rows = out.partition("text")[2].splitlines()[1:]
    values = [float(row.split()[0]) for row in rows if row.strip().startswith(("0.", "1.", "-0."))]
    assert values == [pytest.approx(value, abs=0.0006) for value in sorted(expected.values(), reverse=True)]
    assert values[0] == 1 and "the dog" in rows[0]
    assert f"mean cosine of any two of these texts: {mean_cosine(vectors):.3f}" in out
    data = "\n\n".join(texts).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), "utf-8"))
    module.main([query, "--run", str(tmp_path)])
    assert capsys.readouterr().out == out and "outside the vocabulary" not in out
    module.main(["the ꙮ", "ꙮꙮ", "--run", str(tmp_path)])
    assert "outside the vocabulary, which all look the same: 2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["the dog"], "there is no text; pass texts as arguments"),
        (["", "dog"], "the text '' has no tokens"),
        (["dog", "\udcff"], "text 2 has bytes that are not UTF-8"),
        (["dog", "dog", "--run", "nowhere"], "there is no run at nowhere"),
        ([], "the following arguments are required: query"),
    ],
)
def test_bad_input_gives_a_one_line_error(
    tmp_path: Path,
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    save_model(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b""), "utf-8"))
    with pytest.raises(SystemExit) as exit_info:
        module.main(["--run", str(tmp_path), *arguments])
    assert exit_info.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("error: ") and captured.err.count("\n") == 1
    assert message in captured.err


@pytest.mark.parametrize("dropout", [-0.1, 1.0, 2.0, math.nan])
def test_a_dropout_that_is_no_probability_is_rejected(dropout: float) -> None:
    """With a dropout of 1, all vectors would be equal, and nothing would be learned."""
    tokenizer = subword_tokenizer()
    with pytest.raises(ValueError, match=r"dropout is .*; it must be in \[0, 1\)"):
        train_simcse(model_of("bert", tokenizer), tokenizer, [(TEXT, TEXT)] * 2, 1e-3, 1, 2, dropout=dropout)


def test_numbers_can_be_whitened() -> None:
    whitened = fit_whitening(torch.arange(5.0)[:, None])(torch.arange(5.0)[:, None])
    assert whitened.shape == (5, 1) and whitened.var().item() == pytest.approx(1)


def test_a_vector_that_is_not_finite_is_refused_and_a_small_one_is_not() -> None:
    vectors = torch.randn(9, 4, generator=torch.Generator().manual_seed(0))
    for number in (math.nan, math.inf):
        wrong = vectors.clone()
        wrong[3, 2] = number
        with pytest.raises(ValueError, match="a vector has a number that is NaN or infinite"):
            fit_whitening(wrong)
    assert fit_whitening(vectors * 1e-20).matrix.shape == (4, 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_direction_of_rounding_noise_is_left_out(dtype: torch.dtype) -> None:
    vectors = torch.randn(500, 16, generator=torch.Generator().manual_seed(0))
    vectors = vectors - vectors.mean(1, keepdim=True)
    assert fit_whitening(vectors.to(dtype)).matrix.shape == (16, 15)


def test_a_whitening_that_16_bits_cannot_hold_is_refused() -> None:
    vectors = 1 + 1e-2 * torch.randn(99, 4, generator=torch.Generator().manual_seed(0))
    vectors = (vectors * 1e-4).half()
    with pytest.raises(ValueError, match=r"too small for torch\.float16; call float\(\) on the"):
        fit_whitening(vectors)
    assert fit_whitening(vectors.float()).matrix.isfinite().all()


def test_the_whitening_of_integers_has_fractions() -> None:
    vectors = torch.tensor([[1, 2], [3, 5], [0, 7]])
    assert torch.equal(fit_whitening(vectors).matrix, fit_whitening(vectors.float()).matrix)
