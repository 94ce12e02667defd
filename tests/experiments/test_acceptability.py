"""The experiment that compares sentences with their scrambles."""

import json
import math
import random
import runpy
import shutil
from pathlib import Path

import pytest
import torch
from scipy import stats

from labml_bert import backbone
from labml_bert.baselines.ngrams import NgramModel, ngram_baselines
from labml_bert.data.corpora import load_corpus
from labml_bert.data.tokenizers import character_tokenizer, special_token_ids, word_tokenizer
from labml_bert.training.checkpoint import load_checkpoint
from tests.support.runs import small_text
from tests.support.tiny_run import assert_fails, train_tiny

SCRIPT = Path(__file__).parents[2] / "experiments" / "acceptability.py"
script = runpy.run_path(str(SCRIPT))
main = script["main"]
NAMES = ["neighbors", "shuffle", "replacement"]


def grammar(sentences: int) -> str:
    """Sentences of six to eight words, with a period at the end."""
    lines = small_text(2 * sentences).splitlines()
    return "\n".join(f"Now {line}" for line in lines if "morning" in line or "house" in line)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_tiny(tmp_path_factory.mktemp("acceptability"), grammar(600), layers=1, positions=64)


def test_plain_sentences_have_words_of_letters_and_one_period() -> None:
    document = (
        "Return the first of many words. Return the first of many words. Too short here.\n\n"
        "This one, with a comma, is left out. Nor do we want numbers like 15 here. Is this a\nquestion or "
        "not really? Line breaks inside of a\n   sentence become spaces.\n\nThe end of this has no period"
    )
    plain = ["Return the first of many words", "Line breaks inside of a sentence become spaces"]
    assert script["plain_sentences"]([document, document]) == [sentence.split() for sentence in plain]
    assert script["plain_sentences"](["Now the the the the the."]) == []


@pytest.mark.parametrize("seed", range(20))
def test_each_scramble_changes_what_it_says(seed: int) -> None:
    r = random.Random(seed)
    words = [*r.choices("abcd", k=r.randint(2, 8)), "e"]
    others = [*"abcdefg"]
    swap, shuffle, replace = (script["SCRAMBLES"][name](words, others, r) for name in NAMES)
    changes = [i for i, (before, after) in enumerate(zip(words, swap, strict=True)) if before != after]
    assert len(changes) == 2 and changes[1] == changes[0] + 1
    assert sorted(swap) == sorted(shuffle) == sorted(words) and words not in (swap, shuffle)
    assert [a == b for a, b in zip(words, replace, strict=True)].count(False) == 1
    assert set(replace) <= {*words, *others}


def test_the_first_word_and_the_period_stay() -> None:
    sentences = [f"First {i} one two three four".split() for i in "abcdefgh"]
    items = list(script["scramble"](sentences, random.Random(0)))
    assert sorted(item["original"] for item in items) == [" ".join(words) + "." for words in sentences]
    assert [item["original"] for item in items] != sorted(item["original"] for item in items)
    for item in items:
        assert list(item) == ["original", *NAMES]
        assert all(text.startswith("First ") and text.count(".") == 1 for text in item.values())
        assert all(text.endswith(".") and text.count(" ") == 5 for text in item.values())


def test_items_that_a_model_cannot_tell_apart_are_left_out() -> None:
    tokenizer = word_tokenizer(["good and better words ."] * 2)
    good = {"original": "good words", "neighbors": "words good", "shuffle": "and", "replacement": "better"}
    long = good | {"shuffle": "good and better words"}
    unknown = good | {"replacement": "strange words"}
    # The tokenizer doesn't tell upper case from lower case, so this scramble equals the original.
    equal = good | {"neighbors": "Good Words"}
    items = [long, good, unknown, equal, good]
    assert script["choose_items"](items, tokenizer, 3, 2) == [good, good]
    with pytest.raises(ValueError, match="has 2 plain sentences that fit the model, but sentences is 3"):
        script["choose_items"](items, tokenizer, 3, 3)


def test_the_baseline_scores_every_token_of_a_sentence() -> None:
    text = grammar(200)
    tokenizer = character_tokenizer([text])
    specials, V = special_token_ids(tokenizer), tokenizer.get_vocab_size()
    train = torch.tensor(tokenizer.encode(text).ids)
    ngrams = NgramModel(train, V, specials)
    sentence = "now the dog"
    ids = torch.tensor(tokenizer.encode(f"[CLS]{sentence}[SEP]").ids)
    *_, expected = ngram_baselines(train, ids, V, specials)
    score = script["ngram_score"](ngrams, tokenizer, sentence)
    assert score == pytest.approx(-expected.loss)
    # Next to `[CLS]`, the n-gram model only knows how often the token occurs.
    first = ngrams.p_w[ids[1]]
    assert script["ngram_score"](ngrams, tokenizer, "n") == pytest.approx(math.log(first))
    assert score > script["ngram_score"](ngrams, tokenizer, "wno eth dgo")


@pytest.mark.parametrize(("wins", "n"), [(0, 5), (5, 5), (3, 8), (250, 400)])
def test_the_interval_is_wilsons(wins: int, n: int) -> None:
    fraction, low, high = script["count_wins"]([1.0] * n, [0.0] * wins + [2.0] * (n - wins))
    expected = stats.binomtest(wins, n).proportion_ci(0.95, "wilson")
    assert (fraction, low, high) == pytest.approx((wins / n, expected.low, expected.high))


def test_a_tie_is_half_a_win() -> None:
    tie = -1.5 * (1 + 1e-12)
    assert script["count_wins"]([-1.5, -1.5, -1.0, -1.0], [tie, -1.5, -2.0, 0.0]).fraction == 0.5


def test_every_scorer_meets_every_scramble() -> None:
    items = [dict.fromkeys(["original", *NAMES], "aa") | {"shuffle": "a", "replacement": "aaa"}] * 3
    results = script["compare"](items, {"long": len, "short": lambda text: -len(text)})
    fractions = {name: {key: wins.fraction for key, wins in row.items()} for name, row in results.items()}
    assert fractions == {
        "neighbors": {"long": 0.5, "short": 0.5},
        "shuffle": {"long": 1.0, "short": 0.0},
        "replacement": {"long": 0.0, "short": 1.0},
    }


@pytest.mark.processes
def test_the_record(run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record_path = tmp_path / "record.json"
    main(["--run", str(run_folder), "--sentences", "10", "--record", str(record_path)])
    out = capsys.readouterr().out
    # The paths of the model and of the record can be any length.
    lines = [line for line in out.splitlines() if not line.startswith(("  model ", "  record "))]
    assert max(map(len, lines)) <= 80 and "10 held-out sentences of text.txt" in out
    record = json.loads(record_path.read_text())
    assert record["experiment"] == "acceptability" and record["configuration"]["experiment"] == "mlm_tiny"
    assert record["command"].endswith("--corpus=text.txt --sentences=10 --seed=0")
    # The text may be another one than the run was trained on.
    sha256 = load_corpus(str(run_folder.parents[2] / "text.txt")).sha256
    assert record["text"] == {"name": "text.txt", "sha256": sha256}
    result = record["result"]
    assert result["sentences"] == 10 and list(result["wins"]) == NAMES
    assert all(text in " ".join(out.split()) for text in result["example"].values())
    for row in result["wins"].values():
        assert list(row) == ["model", "two-neighbor n-gram"]
        assert all(0 <= wins["low"] <= wins["fraction"] <= wins["high"] <= 1 for wins in row.values())
    # The n-gram model has read the text, and hardly any sentence is as likely in another order.
    assert result["wins"]["shuffle"]["two-neighbor n-gram"]["fraction"] > 0.9
    assert str(run_folder) not in record_path.read_text()

    main(["--run", str(run_folder / "model"), "--corpus", str(run_folder.parents[2] / "text.txt"),
          "--sentences", "10"])  # fmt: skip
    table = out.partition("The original")[2].partition("took")[0]
    assert table and table in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sentences", "0"], "sentences is 0; it must be at least 1"),
        (["--seed", "-1"], "seed is -1; it must be at least 0"),
        (["extra"], "unrecognized arguments: extra; see --help"),
        (["--sentences", "100000"], "plain sentences that fit the model, but sentences is 100000"),
        (["--run", "nowhere"], "there is no run at nowhere"),
        (["--corpus", "nothing"], "no corpus or file is called 'nothing'"),
        (["--record", "no/folder/record.json"], "cannot write"),
    ],
)
def test_bad_input_gets_one_line_and_exit_code_2(
    run_folder: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_fails(main, ["--run", str(run_folder), *arguments], message, capsys)


@pytest.mark.processes
def test_a_text_that_has_changed_is_not_held_out(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The new held-out part could be text that the model was trained on."""
    state = load_checkpoint(run_folder)[0]
    state["configuration"]["corpus_sha256"] = "0"
    monkeypatch.setattr(backbone, "load_checkpoint", lambda path: (state, {}))
    for folder in (run_folder, run_folder / "model"):
        assert_fails(main, ["--run", str(folder)], "was trained on another text than", capsys)
    # The checkpoint of another program may not name its text.
    del state["configuration"]["corpus"], state["configuration"]["corpus_sha256"]
    words = ["--sentences", "10", "--corpus", str(run_folder.parents[2] / "text.txt")]
    main(["--run", str(run_folder), *words, "--record", str(tmp_path / "record.json")])
    assert json.loads((tmp_path / "record.json").read_text())["configuration"]["corpus"] == ""
    assert not capsys.readouterr().err
    state["configuration"]["corpus_sha256"] = "0"
    main(["--run", str(run_folder), *words])
    assert "it may have seen some of these sentences" in capsys.readouterr().err


def test_a_record_needs_a_run(run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(run_folder / "model", tmp_path / "model")
    arguments = ["--run", str(tmp_path / "model"), "--record", str(tmp_path / "record.json")]
    assert_fails(main, arguments, "there is no run at", capsys)
    assert list(tmp_path.iterdir()) == [tmp_path / "model"]
