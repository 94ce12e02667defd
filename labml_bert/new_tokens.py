r"""
# New tokens for a trained model

A tokenizer that was trained on other text cuts the words of your field into pieces. It may turn `kwargs` into
`k`, `##war`, `##gs`. You can add such a word to the vocabulary. Then the word is one token with a vector of
its own, and sequences get shorter.

A random vector would say nothing about the word. But the pieces already have vectors and biases, so the new
vector $e$ and its output bias $b$ start as the means over the $K$ pieces:

$$e = \frac{1}{K} \sum_{k=1}^{K} e_k, \qquad b = \frac{1}{K} \sum_{k=1}^{K} b_k$$

Which words are worth a token? This program lists the most frequent words that the tokenizer splits. It leaves
out the part of your text that training holds out:

    python -m labml_bert.new_tokens --run MODEL --corpus my_texts --count 300 > words.txt

Edit the list, and continue pretraining with it: `experiments/continue_pretraining.py --new-tokens words.txt`.

Letters for sizes: `V` vocabulary, `D` hidden size, `N` new tokens.
"""

if __name__ == "__main__":
    from labml_bert.run import preflight  # noqa: F401

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models
from torch import nn

from labml_bert.data.corpora import load_corpus, read_utf8
from labml_bert.data.tokenizers import encode_texts
from labml_bert.fill_mask import load_model, newest_run
from labml_bert.models import BertForMaskedLM
from labml_bert.modern import ModernBertForMaskedLM
from labml_bert.run.record import check_range
from labml_bert.run.terminal import exit_on_bad_input
from labml_bert.stdout import OneLineParser, console, without_controls


def frequent_split_words(tokenizer: Tokenizer, texts: Iterable[str], count: int) -> list[str]:
    """
    ## Which words?

    Returns the most frequent words of `texts` that the tokenizer splits, up to `count`, in decreasing order.
    The tokenizer decides what a word is: a BERT tokenizer reads `os.path` as `os`, `.` and `path`. Words with
    control characters are left out.

    Raises `ValueError` if the tokenizer isn't WordPiece or splits no word, or if `texts` is a single text.
    """
    if isinstance(texts, str):
        raise ValueError("texts is a single text; pass a list of texts")
    check_wordpiece(tokenizer)
    counts: Counter[str] = Counter()
    for text in texts:
        normal = tokenizer.normalizer.normalize_str(text) if tokenizer.normalizer else text
        counts.update(word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normal))
    # Sort equally frequent words alphabetically, so that the list doesn't depend on their order in the text.
    words = sorted(counts, key=lambda word: (-counts[word], word))
    pieces = encode_texts(tokenizer, words)
    # A word with control characters, some of which are invisible, can't be printed as it is.
    split_words = [
        word
        for word, ids in zip(words, pieces, strict=True)
        if len(ids) > 1 and word == without_controls(word)
    ]
    # A token that another library has added may cut even a word that is in the vocabulary.
    bad_words = {*not_one_token(enlarge(tokenizer, split_words), split_words)}
    split_words = [word for word in split_words if word not in bad_words]
    if not split_words:
        raise ValueError(
            "the tokenizer splits no word of this text, so there is nothing to add; use another text"
        )
    return split_words[:count]


def check_wordpiece(tokenizer: Tokenizer) -> None:
    """Raises `ValueError` if the tokenizer isn't WordPiece, or if it doesn't split a text into words."""
    if not isinstance(tokenizer.model, models.WordPiece):
        kind = type(tokenizer.model).__name__
        raise ValueError(f"new tokens need a WordPiece tokenizer, and this one is {kind}; use its own tokens")
    if tokenizer.pre_tokenizer is None:
        raise ValueError("the tokenizer has no pre-tokenizer that splits a text into words; use another")


def read_words(path: Path) -> list[str]:
    """Reads a list with one word on each line. Raises `ValueError` if it can't be read or has no words."""
    words = [line.strip() for line in read_utf8(path).splitlines() if line.strip()]
    if not words:
        raise ValueError(f"{path} has no words; put one on each line")
    return words


def add_tokens(tokenizer: Tokenizer, words: list[str]) -> Tokenizer:
    """
    ## A larger tokenizer

    Returns a copy of the tokenizer with `words` at the end of its vocabulary. Other tokens keep their ids.

    The method `add_tokens` of `transformers` and `tokenizers` does something else: by default, it looks for
    the new token before it cuts the text into words. So a new token `art` would also cut `party` into `p`,
    `art` and `y`. Here, a new token is a word like any other. It can still become the first piece of a longer
    word, because WordPiece always takes the longest piece that fits.

    Raises `ValueError` if the tokenizer isn't WordPiece, if the list is empty, or if a word is in the list
    twice, is in the vocabulary already, or isn't a single word for the tokenizer.
    """
    check_wordpiece(tokenizer)
    if not words:
        raise ValueError("the list of new tokens is empty; put at least one word into it")
    vocab = tokenizer.get_vocab()
    problems = {
        "in the list twice": [word for word, n in Counter(words).items() if n > 1],
        "in the vocabulary already": [word for word in words if word in vocab],
    }
    larger = enlarge(tokenizer, words)
    name = "not a single word for this tokenizer, which may also change case or accents"
    problems[name] = not_one_token(larger, words)
    for problem, bad_words in problems.items():
        if bad_words:
            raise ValueError(f"the new token {bad_words[0]!r} is {problem}; remove it from the list")
    return larger


def enlarge(tokenizer: Tokenizer, words: list[str]) -> Tokenizer:
    """Returns a copy of a WordPiece tokenizer with `words` at the end of its vocabulary."""
    content = json.loads(tokenizer.to_str())
    # This includes the tokens that other libraries have added. Without them, the ids would have gaps.
    vocab = tokenizer.get_vocab()
    content["model"]["vocab"] = vocab | {word: len(vocab) + i for i, word in enumerate(words)}
    return Tokenizer.from_str(json.dumps(content))


def not_one_token(tokenizer: Tokenizer, words: list[str]) -> list[str]:
    """Returns those `words` that aren't one token of the same name."""
    ids = encode_texts(tokenizer, words)
    return [word for word, i in zip(words, ids, strict=True) if i != [tokenizer.token_to_id(word)]]


@torch.no_grad()
def add_embeddings(
    model: BertForMaskedLM | ModernBertForMaskedLM, pieces: list[list[int]], tokenizer: Tokenizer
) -> None:
    """
    ## A larger model

    Adds a token to `model` for each entry of `pieces`. An entry contains the ids of the pieces that the token
    replaces. `tokenizer` is the larger tokenizer, with the new tokens. The embedding of a new token is the
    mean of the embeddings of its pieces, and its output bias is the mean of their biases. The old rows don't
    change, so in a text of old tokens, the logits of the old tokens stay the same.

    By default, `resize_token_embeddings` in `transformers` draws the new vectors around the mean of *all*
    vectors. That method doesn't know which pieces a token replaces.

    Raises `ValueError` if an entry is empty or has an id that isn't in the model, or if the model would have
    more or fewer rows than the tokenizer has tokens. Some published models have extra rows at the end. Remove
    these rows first. Otherwise, the ids of the new tokens would belong to them.
    """
    encoder: Any
    head: Any
    if isinstance(model, ModernBertForMaskedLM):
        encoder, embedding, head = model.model, model.model.embeddings.tok_embeddings, model.decoder
    else:
        encoder, embedding, head = model.bert, model.bert.embeddings.word_embeddings, model.cls.predictions
    rows, tokens = len(embedding.weight) + len(pieces), tokenizer.get_vocab_size()
    if rows != tokens:
        raise ValueError(
            f"the model would have {rows} tokens, and the tokenizer has {tokens}; "
            "give both the same number before adding any"
        )
    if not all(ids and min(ids) >= 0 and max(ids) < len(embedding.weight) for ids in pieces):
        raise ValueError(f"each new token needs pieces with ids from 0 to {len(embedding.weight) - 1}")
    if not pieces:
        return
    means = torch.stack([embedding.weight[ids].mean(0) for ids in pieces])  # (N, D)
    bias_means = torch.stack([head.bias[ids].mean() for ids in pieces])  # (N)
    # Frozen parameters stay frozen.
    weight, bias = torch.cat([embedding.weight, means]), torch.cat([head.bias, bias_means])
    embedding.weight = nn.Parameter(weight, embedding.weight.requires_grad)  # (V + N, D)
    head.bias = nn.Parameter(bias, head.bias.requires_grad)  # (V + N)
    embedding.num_embeddings = len(weight)
    # Another model may use the same configuration, so make a new one.
    model.config = encoder.config = replace(encoder.config, vocab_size=len(weight))
    if isinstance(model, ModernBertForMaskedLM):
        # Here, the embedding is also a parameter of the output layer. A BERT's head gets it as an argument.
        model.decoder.weight, model.decoder.out_features = embedding.weight, len(embedding.weight)


def main(argv: list[str] | None = None) -> None:
    """Reads the command line and prints the words, one per line."""
    parser = OneLineParser(
        prog="python -m labml_bert.new_tokens",
        description="List the most frequent words of a text that a model's tokenizer splits into pieces.",
    )
    parser.add_argument("--run", type=Path, help="folder of a run or a model (default: newest trained run)")
    parser.add_argument(
        "--corpus", required=True, help="your text: a UTF-8 file, a folder, or a corpus by name"
    )
    parser.add_argument("--count", type=int, default=300, help="number of words (default: 300)")
    options = parser.parse_args(argv)
    with exit_on_bad_input():
        check_range(options, "count")
        _, tokenizer = load_model(options.run or newest_run(Path("logs")))
        words = frequent_split_words(tokenizer, load_corpus(options.corpus).train, options.count)
        # Elsewhere, a character that the output can't show becomes a `?`. Here, it would change a word.
        try:
            "\n".join(words).encode(console.encoding)
        except UnicodeEncodeError as error:
            raise ValueError(
                f"the output is in {error.encoding}, which has no {error.object[error.start]!a}; "
                "set PYTHONIOENCODING=utf-8"
            ) from None
        console.print(*words, sep="\n")


if __name__ == "__main__":
    main()
