"""The scores of texts: equal to a plain loop over `transformers`, and bad input."""

import io
import math
import random
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models
from torch import Tensor, nn

from labml_bert import score
from labml_bert.bert import BertConfig
from labml_bert.data.tokenizers import (
    character_tokenizer,
    save_tokenizer,
    word_tokenizer,
)
from labml_bert.mlm import IGNORE
from labml_bert.models import BertForMaskedLM
from labml_bert.modern import ModernBertConfig, ModernBertForMaskedLM
from labml_bert.score import pseudo_log_likelihood, pseudo_perplexity, token_log_probs
from tests.support.parity import TOLERANCE
from tests.support.small_models import TEXT, Model, random_model, subword_tokenizer

KINDS = ["bert", "modern"]


def in_transformers(model: Model) -> nn.Module:
    """The model of `transformers` with the same weights."""
    transformers = pytest.importorskip("transformers", reason="transformers is what this is compared with")
    name = type(model).__name__
    config = getattr(transformers, name.replace("ForMaskedLM", "Config"))(**vars(model.config))
    theirs = getattr(transformers, name)(config)
    theirs.load_state_dict(model.state_dict())
    return theirs.eval()


@torch.no_grad()
def slow_log_probs(model: nn.Module, tokenizer: Tokenizer, text: str, mask_rest_of_word: bool) -> list[float]:
    """Log probabilities, computed for one token after the other, without batches."""
    encoding = tokenizer.encode(text)
    log_probs = []
    for i, token in enumerate(encoding.tokens):
        if token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"):
            continue
        ids = list(encoding.ids)
        for j in range(i, len(ids)):
            if j == i or (mask_rest_of_word and encoding.word_ids[j] == encoding.word_ids[i]):
                ids[j] = tokenizer.token_to_id("[MASK]")
        logits = model(torch.tensor([ids])).logits[0, i]
        log_probs.append(logits.log_softmax(-1)[encoding.ids[i]].item())
    return log_probs


@pytest.mark.parametrize("mask_rest_of_word", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(6))
def test_scores_equal_a_plain_loop_over_transformers(kind: str, seed: int, mask_rest_of_word: bool) -> None:
    tokenizer = subword_tokenizer()
    model = random_model(kind, tokenizer.get_vocab_size(), seed)
    r = random.Random(seed)
    text = " ".join(r.choices([*TEXT.split(), "z", "[MASK]", "nudes"], k=8)) + " unusual"
    assert "[CLS]" in tokenizer.encode(text).tokens
    ours = token_log_probs(model, tokenizer, text, mask_rest_of_word, batch_size=r.randint(1, 9))
    expected = slow_log_probs(in_transformers(model), tokenizer, text, mask_rest_of_word)
    assert ours.shape == (len(expected),)
    assert (ours - torch.tensor(expected)).abs().max() < TOLERANCE
    # Masking the rest of the word changes the scores, so the two settings can't agree by accident.
    assert ours.tolist() != pytest.approx(
        slow_log_probs(model, tokenizer, text, not mask_rest_of_word), abs=TOLERANCE
    )


@pytest.mark.parametrize("text", ["unusual", "unusual z [MASK] [SEP]", "[CLS] z z z unusual"])
def test_special_tokens_are_never_scored(text: str) -> None:
    tokenizer = subword_tokenizer()
    model = random_model("bert", tokenizer.get_vocab_size(), 0)
    pieces = tokenizer.encode("unusual", add_special_tokens=False).ids
    assert 1 < len(pieces) == len(token_log_probs(model, tokenizer, text))


@pytest.mark.parametrize("kind", KINDS)
def test_without_knowledge_every_token_has_the_same_probability(kind: str) -> None:
    tokenizer = character_tokenizer(["abcdef"])
    V = tokenizer.get_vocab_size()
    model = random_model(kind, V, 0)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    assert token_log_probs(model, tokenizer, "fade").tolist() == pytest.approx([-math.log(V)] * 4)
    assert pseudo_log_likelihood(model, tokenizer, "fade") == pytest.approx(-4 * math.log(V))
    assert pseudo_perplexity(model, tokenizer, ["a", "decaf"]) == pytest.approx(V)


def test_in_pseudo_perplexity_every_token_counts_the_same() -> None:
    tokenizer = character_tokenizer(["abcdef"])
    model = random_model("bert", tokenizer.get_vocab_size(), 1)
    short, long = (token_log_probs(model, tokenizer, text).double() for text in ("ab", "faded"))
    expected = math.exp(-(short.sum() + long.sum()) / 7)
    assert pseudo_perplexity(model, tokenizer, ["ab", "faded"]) == pytest.approx(expected)
    for wrong in ([], "ab"):
        with pytest.raises(ValueError, match="there are no texts; pass a list"):
            pseudo_perplexity(model, tokenizer, wrong)  # type: ignore[arg-type]


def test_a_tokenizer_that_does_not_split_words_masks_one_token_at_a_time() -> None:
    tokenizer = subword_tokenizer()
    model = random_model("bert", tokenizer.get_vocab_size(), 1)
    text = "the unusual dog"
    expected = token_log_probs(model, tokenizer, text)
    assert not torch.equal(token_log_probs(model, tokenizer, text, mask_rest_of_word=True), expected)
    vocab = tokenizer.get_vocab()
    pieces = [(token, -float(len(token) < 3)) for token in sorted(vocab, key=vocab.__getitem__)]
    whole = Tokenizer(models.Unigram(pieces, tokenizer.token_to_id("[UNK]")))
    expected = token_log_probs(model, whole, text)
    assert len(expected) > 2
    assert torch.equal(token_log_probs(model, whole, text, mask_rest_of_word=True), expected)
    whole.enable_padding(length=16)
    assert torch.equal(token_log_probs(model, whole, text, mask_rest_of_word=True), expected)
    whole.no_padding()
    # Chinese, Japanese and Thai texts have no spaces.
    text = "theunusualdog"
    expected = token_log_probs(model, whole, text)
    assert torch.equal(token_log_probs(model, whole, text, mask_rest_of_word=True), expected)


def test_the_last_piece_and_whole_words_keep_their_scores() -> None:
    tokenizer = subword_tokenizer()
    model = random_model("modern", tokenizer.get_vocab_size(), 3)
    encoding = tokenizer.encode(TEXT, add_special_tokens=False)
    words = [*encoding.word_ids, None]
    is_last = torch.tensor([word != after for word, after in pairwise(words)])
    assert 0 < is_last.sum() < len(is_last)
    plain, strict = (token_log_probs(model, tokenizer, TEXT, option) for option in (False, True))
    assert torch.allclose(plain[is_last], strict[is_last], atol=TOLERANCE)
    assert not torch.isclose(plain[~is_last], strict[~is_last], atol=1e-3).any()


@pytest.mark.slow("trains a model")
@pytest.mark.parametrize("kind", KINDS)
def test_a_memorized_text_scores_higher_than_its_shuffled_tokens(kind: str) -> None:
    text = "every good model knows which word belongs at which position of this text"
    tokenizer = word_tokenizer([text] * 2)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    V = tokenizer.get_vocab_size()
    model: Model
    if kind == "bert":
        model = BertForMaskedLM(BertConfig(V, **sizes, max_position_embeddings=16))
    else:
        model = ModernBertForMaskedLM(ModernBertConfig(V, **sizes, pad_token_id=0))
    ids = torch.tensor(tokenizer.encode(text).ids)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    mask_id = tokenizer.token_to_id("[MASK]")
    for _ in range(150):
        is_masked = torch.rand(8, len(ids)) < 0.3
        is_masked[:, 0] = True
        labels = torch.where(is_masked, ids, IGNORE)
        model(ids.masked_fill(is_masked, mask_id), labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    score_of_text = pseudo_log_likelihood(model, tokenizer, text)
    for seed in range(5):
        order = random.Random(seed).sample(text.split(), 13)
        assert pseudo_log_likelihood(model, tokenizer, " ".join(order)) < score_of_text - 1


def save_model(folder: Path, tokenizer: Tokenizer, **sizes: int) -> None:
    """Writes a model folder as `transformers` would."""
    model = random_model("bert", tokenizer.get_vocab_size(), 0, **sizes)
    assert isinstance(model, BertForMaskedLM)
    model.save_pretrained(folder)
    save_tokenizer(tokenizer, folder)


Pipe = Callable[[bytes], None]


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Pipe:
    """Returns a function that sets the contents of standard input."""
    return lambda data: monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), "utf-8"))


def rows_of(output: str) -> list[tuple[float, float, str]]:
    """The rows of the table: score, score per token, text."""
    lines = output.partition("text")[2].splitlines()[1:]
    cells = [line.split(maxsplit=2) for line in lines if line.strip()]
    return [(float(total), float(mean), text.rstrip()) for total, mean, text in cells]


def test_the_table_has_the_best_text_first(tmp_path: Path, pipe: Pipe, capsys) -> None:
    tokenizer = subword_tokenizer()
    save_model(tmp_path, tokenizer)
    texts = ["the unusual dog", "an unusual cat", "cats saw", "the the the dog"]
    score.main([*texts, "--run", str(tmp_path)])
    stdout = capsys.readouterr().out
    rows = rows_of(stdout)
    assert sorted(text for *_, text in rows) == sorted(texts)
    assert [mean for _, mean, _ in rows] == sorted((mean for _, mean, _ in rows), reverse=True)
    model, _ = score.load_model(tmp_path)
    for total, mean, text in rows:
        log_probs: Tensor = token_log_probs(model, tokenizer, text)
        assert total == pytest.approx(log_probs.sum().item(), abs=0.006)
        assert mean == pytest.approx(log_probs.mean().item(), abs=0.0006)

    pipe("\ufeff{}\n \n{}\r\n\n{}\n{}".format(*texts).encode())
    score.main(["--run", str(tmp_path)])
    assert capsys.readouterr().out == stdout
    score.main([*texts, "--mask-rest-of-word", "--run", str(tmp_path)])
    assert capsys.readouterr().out != stdout


def test_the_table_fits_80_columns_and_counts_unknown_words(tmp_path: Path, capsys) -> None:
    save_model(tmp_path, subword_tokenizer())
    score.main(["the unusual z cats saw an unusual dog " + "the " * 20, "z cat z", "--run", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    # The path of the model can be any length.
    assert max(len(line) for line in lines if "  model " not in line) <= 80
    assert "  tokens outside the vocabulary, which have no score: 3" in lines


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["the dog", "a" * 41], "text 2: 41 tokens but max_position_embeddings is 40"),
        ([""], "text 1: there is no token to score"),
        (["[MASK]zz"], "text 1: there is no token to score"),
        (["the dog", "a" * 100_001], "text 2: the text has 100,001 characters; use at most 100,000"),
        (["\udcff"], "text 1: the text has bytes that are not UTF-8"),
        (["the dog", "--run", "nowhere"], "there is no run at nowhere"),
        (["the dog", "--top-k", "3"], "unrecognized arguments: --top-k 3"),
    ],
)
def test_bad_input_gives_a_one_line_error(
    tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save_model(tmp_path, character_tokenizer(["the dog"]))
    assert_fails(["--run", str(tmp_path), *arguments], message, capsys)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "there is no text;"),
        (b" \n\n", "there is no text;"),
        ("dog".encode("utf-16-le"), "the input has NUL characters, so it is not plain text"),
        (b"dog\n\xff\xfe\n", "text 2: the text has bytes that are not UTF-8"),
    ],
)
def test_bad_standard_input_gives_a_one_line_error(
    tmp_path: Path, data: bytes, message: str, pipe: Pipe, capsys: pytest.CaptureFixture[str]
) -> None:
    save_model(tmp_path, character_tokenizer(["the dog"]))
    pipe(data)
    assert_fails(["--run", str(tmp_path)], message, capsys)


def test_without_a_run_the_error_suggests_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_fails(["the dog"], "experiments/mlm_tiny.py", capsys)


def assert_fails(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        score.main(arguments)
    assert exit_info.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("error: ") and captured.err.count("\n") == 1
    assert message in captured.err
