r"""
# Does the model notice a scrambled sentence?

A good model gives a higher score to a sentence that somebody wrote than to a scrambled version of it. This
script takes held-out sentences of a corpus, and scrambles each of them in three ways:

| scramble | what is wrong with the result |
|---|---|
| neighbors | two neighboring words have changed places |
| shuffle | all words after the first are in a new, random order |
| replacement | one word is replaced by a different word from the sentences |

Then the script scores all versions with `score.py`, per token, and counts how often the original has a higher
score than a scramble. Guessing would be right half of the time. The baseline only counts: it's the
two-neighbor n-gram model of `ngrams.py`, which predicts each token from the tokens directly before and after
it. The counts come from the training part of the corpus.

Only the choice and order of the words may give the answer away. So the sentences have no punctuation except
the period at their end, which stays there. The first word also stays in place, because of its capital letter.
The more frequent a word is in these sentences, the more often we draw it as a replacement. If all words were
equally likely, most replacements would be rare words.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # Find the package without installing it.
from labml_bert.run import preflight  # noqa: F401  # isort: skip

import math
import time
from collections.abc import Callable, Iterable
from random import Random
from statistics import NormalDist, mean
from typing import Any, NamedTuple

import torch
from rich.table import Table
from tokenizers import Tokenizer

from labml_bert.backbone import load_model_and_state, text_has_changed
from labml_bert.baselines.ngrams import NgramModel
from labml_bert.data.corpora import Corpus, load_corpus
from labml_bert.data.sentences import split_sentences
from labml_bert.data.tokenizers import encode_corpus, encode_texts, special_token_ids
from labml_bert.fill_mask import newest_run
from labml_bert.run.record import check_range, check_record, describe_run, describe_training, finish
from labml_bert.run.terminal import exit_on_bad_input
from labml_bert.score import token_log_probs
from labml_bert.stdout import OneLineParser, console, display_path, print_note, printable

# We use sentences of at least `FEWEST_WORDS` and at most `MOST_WORDS` words. In a shorter sentence, there's
# too little to scramble.
FEWEST_WORDS, MOST_WORDS = 6, 16


def plain_sentences(documents: Iterable[str]) -> list[list[str]]:
    """
    ## Sentences

    Returns each usable sentence of the documents once, as a list of words, without the period at the end. A
    usable sentence ends with a period, and is neither too short nor too long. All its words consist of
    letters, so sentences with numbers, commas or most kinds of code are left out.
    """
    sentences: dict[tuple[str, ...], None] = {}
    for document in documents:
        for sentence in split_sentences(document):
            words = tuple(sentence.removesuffix(".").split())
            is_plain = sentence.endswith(".") and all(word.isalpha() for word in words)
            # At least two of the words after the first must differ, or no swap of neighbors changes anything.
            if is_plain and FEWEST_WORDS <= len(words) <= MOST_WORDS and len(set(words[1:])) > 1:
                sentences[words] = None
    return [list(words) for words in sentences]


def swap_neighbors(words: list[str], others: list[str], random: Random) -> list[str]:
    """
    ## Three ways to scramble

    Each of the three functions takes all words of a sentence except the first, and a list of words to choose
    a replacement from. This function swaps a random pair of neighbors that are different words.
    """
    i = random.choice([i for i in range(len(words) - 1) if words[i] != words[i + 1]])
    return [*words[:i], words[i + 1], words[i], *words[i + 2 :]]


def shuffle_all(words: list[str], others: list[str], random: Random) -> list[str]:
    """Shuffles the words until the result differs from the original."""
    order = words
    while order == words:
        order = random.sample(words, len(words))
    return order


def replace_one(words: list[str], others: list[str], random: Random) -> list[str]:
    """Replaces a random word with a different word from `others`."""
    i = random.randrange(len(words))
    word = words[i]
    while word == words[i]:
        word = random.choice(others)
    return [*words[:i], word, *words[i + 1 :]]


SCRAMBLES: dict[str, Callable[[list[str], list[str], Random], list[str]]] = {
    "neighbors": swap_neighbors,
    "shuffle": shuffle_all,
    "replacement": replace_one,
}


def scramble(sentences: list[list[str]], random: Random) -> Iterable[dict[str, str]]:
    """Yields the sentences in random order, each as a dictionary with the `original` and its scrambles."""
    others = [word for words in sentences for word in words[1:]]
    for first, *words in random.sample(sentences, len(sentences)):
        versions = {name: change(words, others, random) for name, change in SCRAMBLES.items()}
        yield {
            name: " ".join([first, *rest]) + "." for name, rest in ({"original": words} | versions).items()
        }


def choose_items(
    items: Iterable[dict[str, str]], tokenizer: Tokenizer, longest: int, count: int
) -> list[dict[str, str]]:
    """
    Returns the first `count` items that we can compare: no text contains an `[UNK]` or has more than
    `longest` tokens, and the tokens of each scramble differ from those of the original.

    Raises `ValueError` if there are fewer than `count` such items.
    """
    unknown, usable = tokenizer.token_to_id("[UNK]"), []
    for item in items:
        ids = {name: tokenizer.encode(text).ids for name, text in item.items()}
        fits = max(map(len, ids.values())) <= longest and not any(unknown in row for row in ids.values())
        if fits and all(ids[name] != ids["original"] for name in SCRAMBLES):
            usable.append(item)
        if len(usable) == count:
            return usable
    raise ValueError(
        f"the held-out text has {len(usable)} plain sentences that fit the model, but sentences is "
        f"{count}; use {'fewer sentences, or ' * bool(usable)}more text"
    )


def ngram_score(ngrams: NgramModel, tokenizer: Tokenizer, text: str) -> float:
    """
    ## The baseline

    Returns the mean log-probability of the tokens, in nats, each predicted from its two neighbors. The n-gram
    model has counted no `[CLS]` and no `[SEP]`, so it backs off for the first and the last token.
    """
    cls, sep = (tokenizer.token_to_id(name) for name in ("[CLS]", "[SEP]"))
    ids = torch.tensor([cls, *encode_texts(tokenizer, [text])[0], sep])
    return ngrams.probabilities(ids[:-2], ids[1:-1], ids[2:]).log().mean().item()


class Wins(NamedTuple):
    """How often the original wins, with the ends of the 95% confidence interval."""

    fraction: float
    low: float
    high: float


def count_wins(originals: list[float], scrambles: list[float]) -> Wins:
    """
    ## Counting

    Returns the fraction of pairs in which the original has the higher score, with Wilson's interval. A tie
    counts as half a win. The n-gram model has ties: if it has never seen the reordered tokens together, their
    order doesn't change its score.

    Source: [Wilson, 1927](https://doi.org/10.1080/01621459.1927.10502953).
    """
    p = mean(0.5 if math.isclose(a, b) else float(a > b) for a, b in zip(originals, scrambles, strict=True))
    n, z = len(originals), NormalDist().inv_cdf(0.975)
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return Wins(p, middle - half, middle + half)


def compare(
    items: list[dict[str, str]], scorers: dict[str, Callable[[str], float]]
) -> dict[str, dict[str, Wins]]:
    """Returns how often the original wins, for each kind of scramble and each scorer."""
    scores = {
        scorer: {name: [score(item[name]) for item in items] for name in ("original", *SCRAMBLES)}
        for scorer, score in scorers.items()
    }
    return {
        name: {scorer: count_wins(columns["original"], columns[name]) for scorer, columns in scores.items()}
        for name in SCRAMBLES
    }


def print_results(results: dict[str, dict[str, Wins]], item: dict[str, str]) -> None:
    """Prints one sentence with its scrambles, and how often the original wins."""
    for name, text in item.items():
        console.print(f"  {name:<12} {printable(text)}", soft_wrap=False)
    console.print("\n  The original has the higher score per token, with a 95% interval:\n")
    table = Table(box=None, padding=(0, 2), header_style="dim")
    table.add_column("scramble")
    for scorer in next(iter(results.values())):
        table.add_column(scorer, justify="right")
    for name, row in results.items():
        table.add_row(
            name, *(f"{wins.fraction:.1%} ({wins.low:.1%} to {wins.high:.1%})" for wins in row.values())
        )
    console.print(table)
    console.print()


def make_record(
    result: dict[str, Any], words: list[str], run_state: dict[str, Any], corpus: Corpus
) -> dict[str, Any]:
    """Returns a record of `result` on a text, with the configuration of the run that trained the model."""
    return {
        **describe_run("acceptability", words, torch.device("cpu"), "float32"),
        **describe_training(run_state),
        "text": {"name": corpus.name, "sha256": corpus.sha256},
        "result": result,
    }


@exit_on_bad_input()
def main(argv: list[str] | None = None) -> None:
    """Parses the command line, compares the scores and, with `--record`, writes a record."""
    start_time = time.monotonic()
    parser = OneLineParser(description="Ask a model which sentence is scrambled.")
    parser.add_argument("--run", type=Path, help="folder of a run or a model (default: newest trained run)")
    parser.add_argument("--corpus", help="held-out text to use (default: that of the run, else python-docs)")
    parser.add_argument("--sentences", type=int, default=400, help="number of sentences (default: 400)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the scrambles (default: 0)")
    parser.add_argument("--mask-rest-of-word", action="store_true", help="see labml_bert.score")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write the result as JSON")
    options = parser.parse_args(argv)
    check_range(options, "sentences")
    # Python's generator ignores the sign of its seed.
    if options.seed < 0:
        raise ValueError(f"seed is {options.seed}; it must be at least 0")
    run_path = options.run or newest_run(Path("logs"))
    if options.record is not None:
        check_record(options.record, "acceptability")
    # A record has to say how the model was trained, and only the checkpoint of a run says so.
    model, tokenizer, run_state = load_model_and_state(run_path, is_required=options.record is not None)
    name = options.corpus
    configuration = run_state["configuration"] if run_state else {}
    if name is None:
        name = configuration.get("corpus") or "python-docs"
    corpus = load_corpus(name)
    if options.corpus is None and text_has_changed(configuration, name, corpus.sha256):
        raise ValueError(f"the run was trained on another text than {name} is now; name a text with --corpus")
    if configuration.get("corpus_sha256", corpus.sha256) != corpus.sha256:
        print_note("the run was trained on another text, so it may have seen some of these sentences")
    candidates = scramble(plain_sentences(corpus.valid), Random(options.seed))
    longest = model.config.max_position_embeddings
    items = choose_items(candidates, tokenizer, longest, options.sentences)
    console.print(f"\n  model {display_path(run_path)}", style="dim")
    console.print(f"  {len(items)} held-out sentences of {printable(corpus.name)}\n", style="dim")
    train_ids = encode_corpus(tokenizer, corpus.train)
    ngrams = NgramModel(train_ids, tokenizer.get_vocab_size(), special_token_ids(tokenizer))

    def model_score(text: str) -> float:
        return token_log_probs(model, tokenizer, text, options.mask_rest_of_word).mean().item()

    scorers = {"model": model_score, "two-neighbor n-gram": lambda text: ngram_score(ngrams, tokenizer, text)}
    results = compare(items, scorers)
    print_results(results, items[0])
    record = {}
    if run_state is not None:
        wins = {name: {scorer: w._asdict() for scorer, w in row.items()} for name, row in results.items()}
        words = [f"--corpus={corpus.name}", f"--sentences={len(items)}", f"--seed={options.seed}"]
        words += ["--mask-rest-of-word"] if options.mask_rest_of_word else []
        result = {"sentences": len(items), "example": items[0], "wins": wins}
        record = make_record(result, words, run_state, corpus)
    finish(options.record, record, start_time)


if __name__ == "__main__":
    main()
