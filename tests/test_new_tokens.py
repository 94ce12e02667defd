"""New tokens: their embeddings, the larger tokenizer, and folders that `transformers` opens."""

import copy
import io
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from labml_bert import modern_folder, new_tokens
from labml_bert.bert import BertConfig
from labml_bert.data.tokenizers import (
    character_tokenizer,
    encode_texts,
    load_tokenizer,
    save_tokenizer,
    wordpiece_tokenizer,
)
from labml_bert.fill_mask import fill_mask, load_model
from labml_bert.models import BertForMaskedLM
from labml_bert.modern import ModernBertConfig, ModernBertForMaskedLM
from labml_bert.new_tokens import add_embeddings, add_tokens, frequent_split_words, read_words
from labml_bert.stdout import console
from tests.support.parity import TOLERANCE
from tests.support.tiny_run import assert_fails

TEXT = ["the cat sat on the mat", "the party sat on the art", "the hat of the cat"]
WORDS = ["cats", "hat"]


def small_tokenizer() -> Tokenizer:
    """A vocabulary that splits `cats` and `hat`."""
    tokenizer = wordpiece_tokenizer(["the cat sat on the mat", "art is a party"] * 9, 48)
    assert all(len(ids) > 1 for ids in encode_texts(tokenizer, WORDS))
    return tokenizer


def small_model(kind: str, vocab_size: int) -> BertForMaskedLM | ModernBertForMaskedLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    model: BertForMaskedLM | ModernBertForMaskedLM
    if kind == "bert":
        model = BertForMaskedLM(BertConfig(vocab_size, **sizes, max_position_embeddings=16))
    else:
        model = ModernBertForMaskedLM(ModernBertConfig(vocab_size, **sizes, pad_token_id=0))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model.eval()


def save(model: BertForMaskedLM | ModernBertForMaskedLM, tokenizer: Tokenizer, folder: Path) -> None:
    if isinstance(model, ModernBertForMaskedLM):
        modern_folder.save_pretrained(model, folder)
    else:
        model.save_pretrained(folder)
    save_tokenizer(tokenizer, folder)


def embedding_and_bias(model: BertForMaskedLM | ModernBertForMaskedLM) -> tuple[torch.Tensor, torch.Tensor]:
    if isinstance(model, ModernBertForMaskedLM):
        assert model.decoder.weight is model.model.embeddings.tok_embeddings.weight
        return model.decoder.weight, model.decoder.bias
    return model.bert.embeddings.word_embeddings.weight, model.cls.predictions.bias


@pytest.mark.parametrize("kind", ["bert", "modern"])
def test_a_new_token_starts_as_the_mean_of_its_pieces(kind: str) -> None:
    tokenizer = small_tokenizer()
    model = small_model(kind, V := tokenizer.get_vocab_size())
    pieces = encode_texts(tokenizer, WORDS)
    input_ids = torch.randint(1, V, (2, 9))
    logits = model(input_ids).logits
    before, bias_before = (tensor.clone() for tensor in embedding_and_bias(model))
    old_config = model.config
    add_embeddings(model, pieces, add_tokens(tokenizer, WORDS))
    after, bias_after = embedding_and_bias(model)
    assert model.config.vocab_size == len(after) == len(bias_after) == V + 2
    assert old_config.vocab_size == V, "another model may use the same configuration"
    assert torch.equal(after[:V], before) and torch.equal(bias_after[:V], bias_before)
    for i, ids in enumerate(pieces):
        assert torch.equal(after[V + i], before[ids].mean(0))
        assert torch.equal(bias_after[V + i], bias_before[ids].mean())
    # The logits of the old tokens haven't changed.
    assert (model(input_ids).logits[..., :V] - logits).abs().max() < 1e-6
    # A new token can be read, predicted and trained. The tied matrix gets the gradients of both uses.
    labels = torch.full((1, 3), -100)
    labels[0, 1] = V + 1
    model(torch.tensor([[V, 4, 5]]), labels).loss.backward()
    assert embedding_and_bias(model)[0].grad[V:].abs().sum(1).min() > 0
    assert sum(p.numel() for p in model.parameters()) == sum(
        p.numel() for p in small_model(kind, V + 2).parameters()
    )


@pytest.mark.parametrize("kind", ["bert", "modern"])
def test_a_model_with_more_rows_than_the_tokenizer_has_tokens_is_refused(kind: str) -> None:
    """The ids of the new tokens would belong to the extra rows, and not to the new ones."""
    tokenizer = small_tokenizer()
    model = small_model(kind, V := tokenizer.get_vocab_size() + 6)
    with pytest.raises(
        ValueError, match=f"the model would have {V + 2} tokens, and the tokenizer has {V - 4};"
    ):
        add_embeddings(model, encode_texts(tokenizer, WORDS), add_tokens(tokenizer, WORDS))
    assert len(embedding_and_bias(model)[0]) == model.config.vocab_size == V


@pytest.mark.parametrize("ids", [[], [-1], [10_000]])
def test_pieces_that_the_model_does_not_have_are_refused(ids: list[int]) -> None:
    tokenizer = small_tokenizer()
    model = small_model("bert", tokenizer.get_vocab_size())
    with pytest.raises(ValueError, match="each new token needs pieces with ids from 0 to"):
        add_embeddings(model, [ids, [5]], add_tokens(tokenizer, WORDS))


def test_no_new_token_leaves_the_model_as_it_is() -> None:
    tokenizer = small_tokenizer()
    model = small_model("bert", tokenizer.get_vocab_size())
    before = copy.deepcopy(model.state_dict())
    add_embeddings(model, [], tokenizer)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("kind", ["bert", "modern"])
def test_the_folder_opens_in_transformers_with_the_new_tokens(kind: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is what this is compared with")
    tokenizer = small_tokenizer()
    model = small_model(kind, tokenizer.get_vocab_size())
    larger = add_tokens(tokenizer, WORDS)
    add_embeddings(model, encode_texts(tokenizer, WORDS), larger)
    save(model, larger, tmp_path)
    text = "the cats sat on the [MASK]"
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs(text).input_ids == larger.encode(text).ids
    assert theirs.tokenize("cats hat party") == ["cats", "hat", "party"]
    answers = transformers.pipeline("fill-mask", model=str(tmp_path))(text, top_k=model.config.vocab_size)
    scores = {answer["token_str"]: answer["score"] for answer in answers}
    (guesses,) = fill_mask(*load_model(tmp_path), text, top_k=model.config.vocab_size)
    assert {guess.token for guess in guesses} >= {"cats", "hat"}
    for guess in guesses:
        if guess.token in WORDS:
            assert guess.probability == pytest.approx(scores[guess.token], abs=TOLERANCE)


@pytest.mark.parametrize("kind", ["bert", "modern"])
def test_a_folder_that_transformers_saved_gets_new_tokens(kind: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is what this is compared with")
    tokenizer = small_tokenizer()
    save(small_model(kind, tokenizer.get_vocab_size()), tokenizer, tmp_path / "ours")
    for part in (transformers.AutoModelForMaskedLM, transformers.AutoTokenizer):
        part.from_pretrained(tmp_path / "ours").save_pretrained(tmp_path / "theirs")
    model, tokenizer = load_model(tmp_path / "theirs")
    pieces, V = encode_texts(tokenizer, WORDS), model.config.vocab_size
    larger = add_tokens(tokenizer, WORDS)
    add_embeddings(model, pieces, larger)
    assert encode_texts(larger, ["hat cats"]) == [[V + 1, V]]
    save(model, larger, tmp_path / "grown")
    grown, tokenizer = load_model(tmp_path / "grown")
    assert grown.config.vocab_size == tokenizer.get_vocab_size() == V + 2


def test_the_larger_tokenizer_keeps_the_old_ids() -> None:
    tokenizer = small_tokenizer()
    larger = add_tokens(tokenizer, WORDS)
    assert larger.get_vocab().items() >= tokenizer.get_vocab().items()
    assert larger.encode("the mat").ids == tokenizer.encode("the mat").ids, "[CLS] and [SEP] are still added"
    assert larger.token_to_id("cats") == tokenizer.get_vocab_size()
    assert tokenizer.token_to_id("cats") is None, "the old tokenizer is unchanged"


def test_a_token_of_the_library_cuts_other_words_and_ours_does_not() -> None:
    tokenizer = wordpiece_tokenizer(["a big party for the cat"] * 9, 60)
    assert tokenizer.encode("party", add_special_tokens=False).tokens == ["party"]
    ours = add_tokens(tokenizer, ["art"])
    assert ours.encode("party art", add_special_tokens=False).tokens == ["party", "art"]
    tokenizer.add_tokens(["art"])
    assert tokenizer.encode("party", add_special_tokens=False).tokens == ["p", "art", "y"]


def test_tokens_that_transformers_added_keep_their_ids(tmp_path: Path) -> None:
    tokenizer = small_tokenizer()
    tokenizer.add_tokens(["<name>"])
    V = tokenizer.get_vocab_size()
    larger = add_tokens(tokenizer, WORDS)
    assert (larger.token_to_id("<name>"), larger.token_to_id("cats")) == (V - 1, V)
    save_tokenizer(larger, tmp_path)
    assert encode_texts(load_tokenizer(tmp_path / "tokenizer.json", V + 2), ["cats"]) == [[V]]


def test_the_most_frequent_words_that_are_split() -> None:
    texts = ["hat cats cats. the the the the", "hats, hat cats"]
    assert frequent_split_words(small_tokenizer(), texts, 2) == ["cats", "hat"]
    assert frequent_split_words(small_tokenizer(), texts, 9) == ["cats", "hat", "hats"]
    with pytest.raises(ValueError, match="splits no word"):
        frequent_split_words(small_tokenizer(), ["the cat"], 9)
    # A word that can't be printed as it is would be another word in the list.
    tokenizer = small_tokenizer()
    tokenizer.normalizer, tokenizer.pre_tokenizer = None, pre_tokenizers.WhitespaceSplit()
    assert frequent_split_words(tokenizer, ["c\u200fats " * 3 + "cats"], 9) == ["cats"]
    # A token that `transformers` has added cuts a word, even if the word is in the vocabulary.
    tokenizer = small_tokenizer()
    tokenizer.add_tokens(["at"])
    assert frequent_split_words(tokenizer, ["hats hats carts"], 9) == ["carts"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the list of new tokens is empty"),
        (["cats", "cats"], "'cats' is in the list twice"),
        (["hat", "cat"], "'cat' is in the vocabulary already"),
        (["[MASK]"], "in the vocabulary already"),
        (["Cats"], "'Cats' is not a single word"),
        (["os.path"], "'os.path' is not a single word"),
        (["two words"], "not a single word"),
        (["##zation"], "not a single word"),
        (["a" * 101], "not a single word"),
    ],
)
def test_unsuitable_tokens_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("[", r"\[")):
        add_tokens(small_tokenizer(), words)


def test_other_tokenizers_are_refused() -> None:
    for function in (lambda t: add_tokens(t, ["hat"]), lambda t: frequent_split_words(t, TEXT, 3)):
        with pytest.raises(ValueError, match="need a WordPiece tokenizer, and this one is WordLevel"):
            function(character_tokenizer(TEXT))
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}))
    with pytest.raises(ValueError, match="has no pre-tokenizer"):
        frequent_split_words(tokenizer, TEXT, 3)
    with pytest.raises(ValueError, match="texts is a single text; pass a list of texts"):
        frequent_split_words(small_tokenizer(), TEXT[0], 3)


def test_a_list_of_words(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("\ufeffhat \r\n\n  cats\n", encoding="utf-8")
    assert read_words(path) == ["hat", "cats"]
    path.write_text(" \n")
    with pytest.raises(ValueError, match="has no words; put one on each line"):
        read_words(path)


def test_the_program_lists_words_that_can_be_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = small_tokenizer()
    save(small_model("bert", tokenizer.get_vocab_size()), tokenizer, tmp_path / "model")
    (tmp_path / "text.txt").write_text("cats hat cats the mat sat\n" * 20)
    arguments = ["--run", str(tmp_path / "model"), "--corpus", str(tmp_path / "text.txt")]
    new_tokens.main(arguments)
    words = capsys.readouterr().out.split()
    assert words == ["cats", "hat"]
    # Words are neither wrapped nor taken for markup or an emoji. In a quiet process, nothing is printed.
    long_words = ["[bold]", ":cat:", "x" * 200]
    monkeypatch.setattr(new_tokens, "frequent_split_words", lambda *_: long_words)
    new_tokens.main(arguments)
    assert capsys.readouterr().out == "\n".join(long_words) + "\n"
    with monkeypatch.context() as context:
        context.setattr(console, "_file", io.TextIOWrapper(io.BytesIO(), "ascii", "replace"))
        long_words.append("naïve")
        assert_fails(new_tokens.main, arguments, r"ascii, which has no '\xef'; set PYTHONIOENCODING", capsys)
    monkeypatch.setattr(console, "quiet", True)
    new_tokens.main(arguments)
    assert capsys.readouterr().out == ""
    assert add_tokens(tokenizer, words).get_vocab_size() == tokenizer.get_vocab_size() + 2
    assert_fails(new_tokens.main, [*arguments, "--count", "0"], "count is 0; it must be at least 1", capsys)
    assert_fails(new_tokens.main, ["--run", "nowhere", "--corpus", "x"], "there is no run at nowhere", capsys)
    assert_fails(new_tokens.main, [], "required: --corpus", capsys)
