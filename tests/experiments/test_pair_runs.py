"""Sentence pairs and own languages, from a folder of text to a model that `transformers` opens."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import transformers

from labml_bert import fill_mask
from labml_bert.run.job import example
from labml_bert.training.checkpoint import CHECKPOINT, load_checkpoint
from tests.support.runs import main_in_process, small_text

ROOT = Path(__file__).parents[2]
SMALL = ["--hidden-size=32", "--num-attention-heads=2", "--num-hidden-layers=2", "--batch-tokens=512"]
PAIRS = [*SMALL, "--schedule=16:3,32:1", "--vocab-size=120"]


def start(experiment: str, *arguments: object, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(ROOT / "experiments" / f"{experiment}.py"), *map(str, arguments)],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "XDG_CACHE_HOME": str(cwd / "cache")},
    )


def run(experiment: str, *arguments: object, cwd: Path) -> str:
    process = start(experiment, *arguments, cwd=cwd)
    out, errors = process.communicate()
    assert process.returncode == 0, errors
    assert errors == ""
    assert max(map(len, out.splitlines())) <= 80
    return out


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with thirty documents."""
    path = tmp_path_factory.mktemp("documents")
    for i in range(30):
        (path / f"{i:02}.txt").write_text(small_text(60, seed=i))
    return path


@pytest.fixture(scope="module")
def trained(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of `bert_tiny.py`, its output, and its record."""
    path = tmp_path_factory.mktemp("pairs")
    record = path / "record.json"
    out = run("bert_tiny", "--corpus", folder, *PAIRS, "--steps=60", "--record", record, cwd=path)
    (path / "out.txt").write_text(out)
    return path


def newest(path: Path) -> Path:
    return next(iter(path.glob("logs/*/*/")))


def test_pairs_from_text_to_a_result(trained: Path) -> None:
    out = (trained / "out.txt").read_text()
    for words in (
        "pairs told apart",
        "standard errors",
        "two-neighbour table",
        "after length 32",
        "word pieces",
    ):
        assert words in out
    record = json.loads((trained / "record.json").read_text())
    result = record["result"]
    assert 0 <= result["next_sentence_accuracy"] <= 1
    assert 0.5 <= result["next_sentence_chance"] < 0.7
    chance = result["next_sentence_chance"]
    expected = (chance * (1 - chance) / result["pairs"]) ** 0.5
    assert result["next_sentence_standard_error"] == pytest.approx(expected)
    assert {"masked_lm_loss", "next_sentence_loss", "accuracy", "valid.loss"} <= set(record["history"])
    # The first reports hold the losses of an untrained model: ln 2 for the pairs.
    assert record["history"]["next_sentence_loss"][0][1] == pytest.approx(0.693, abs=0.1)


def test_transformers_opens_the_model_and_fills_a_mask(trained: Path) -> None:
    model = str(newest(trained) / "model")
    both = transformers.BertForPreTraining.from_pretrained(model)
    ours, tokenizer = fill_mask.load_model(newest(trained))
    theirs = transformers.AutoTokenizer.from_pretrained(model)
    text = "the cat [MASK] the dog today."
    ids = theirs(text, return_tensors="pt")
    assert ids["input_ids"][0].tolist() == tokenizer.encode(text).ids
    with torch.no_grad():
        logits = both.eval()(**ids).prediction_logits
        assert (logits - ours(ids["input_ids"]).logits).abs().max() < 1e-5
    pipe = transformers.pipeline("fill-mask", model=model, top_k=3)
    answers = {answer["token_str"]: answer["score"] for answer in pipe(text)}
    mine = {g.token: g.probability for g in fill_mask.fill_mask(ours, tokenizer, text, 10)[0]}
    assert all(mine[token] == pytest.approx(score, abs=1e-5) for token, score in answers.items())
    again, _ = fill_mask.load_model(newest(trained) / "model")
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize("options", [["--masking=static"], ["--masking=whole-word", "--adam=published"]])
def test_other_masks_and_the_published_adam(options: list[str], folder: Path, tmp_path: Path) -> None:
    out = run("bert_tiny", "--corpus", folder, *PAIRS, *options, "--steps=5", cwd=tmp_path)
    assert f"masks {options[0].partition('=')[2]}" in out


def test_pairs_killed_and_resumed_are_as_if_nothing_happened(folder: Path, tmp_path: Path) -> None:
    """Across the change of length, with dropout on, to the bit."""
    common = ["--corpus", folder, *PAIRS, "--steps=60", "--checkpoint-seconds=0"]
    run("bert_tiny", *common, cwd=tmp_path)
    whole = newest(tmp_path) / CHECKPOINT
    process = start("bert_tiny", *common, "--runs", tmp_path / "killed", cwd=tmp_path)
    for _ in range(600):
        found = list((tmp_path / "killed").glob(f"*/*/{CHECKPOINT}"))
        if found and load_checkpoint(found[0].parent)[0]["step"] > 0:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    path = found[0].parent
    assert 0 < load_checkpoint(path)[0]["step"] < 60
    run("bert_tiny", "--resume", path, "--checkpoint-seconds=0", cwd=tmp_path)
    one, other = load_checkpoint(whole.parent)[1], load_checkpoint(path)[1]
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def made_language(sentences: int) -> str:
    """Sentences of a small grammar in a script whose vowels are marks."""
    r = random.Random(0)
    nouns, verbs = ["কদম", "নদী", "বাগান", "মানুষ", "পাখি"], ["দেখে", "খোঁজে", "আঁকে"]
    lines = []
    for _ in range(sentences):
        ending = r.choice(["", "রা"])
        lines.append(f"সেই {r.choice(nouns)}{ending} আবার {r.choice(nouns)}{ending} {r.choice(verbs)}।")
    return "\n".join(lines)


def test_a_language_of_its_own_from_text_to_a_filled_mask(tmp_path: Path) -> None:
    """Vowel signs survive, and the model has learned which word can stand in a gap."""
    (tmp_path / "text").mkdir()
    for part in range(2):
        (tmp_path / "text" / f"{part}.txt").write_text(made_language(1500), encoding="utf-8")
    out = run(
        "own_language",
        *("--corpus", "text", *SMALL, "--steps=1200", "--schedule=8,16", "--hidden-size=64"),
        cwd=tmp_path,
    )
    assert "What suits this text" in out
    model, tokenizer = fill_mask.load_model(newest(tmp_path))
    text = "সেই নদী আবার পাখি দেখে।"
    assert tokenizer.decode(tokenizer.encode(text).ids).replace(" ।", "।") == text
    question = text.replace("দেখে", "[MASK]")
    best = fill_mask.fill_mask(model, tokenizer, question, 1)[0][0]
    assert best.token in {"দেখে", "খোঁজে", "আঁকে"}, "only a verb can stand there"
    answer = transformers.pipeline("fill-mask", model=str(newest(tmp_path) / "model"), top_k=1)(question)[0]
    assert answer["token_str"] == best.token


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "6,000 steps: 40 passes over the text, but at least 6,000 steps"),
        (["--steps", "1"], "1 steps, as asked"),
        (["--minutes", "0.5"], "0.5 minutes, as asked"),
    ],
)
def test_what_it_says_of_the_training(
    words: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "experiments"))
    import own_language

    monkeypatch.setattr(own_language, "run", lambda *_: None)
    (tmp_path / "text.txt").write_text("some words here. " * 100)
    own_language.main(["--corpus", str(tmp_path / "text.txt"), *words])
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "training" in line)
    assert line.split(maxsplit=1)[1] == says


def test_sizes_grow_with_the_text() -> None:
    sys.path.insert(0, str(ROOT / "experiments"))
    from own_language import choose

    from labml_bert.data.corpora import Corpus

    small, middle, large = (
        choose(Corpus("", ["abcdefghij " * (n // 11)], [])) for n in (100_000, 30_000_000, 300_000_000)
    )
    for name in ("hidden_size", "num_hidden_layers", "steps"):
        assert small[name] < middle[name] < large[name]
    assert small["vocab_size"] < middle["vocab_size"] <= large["vocab_size"]
    assert all(o["hidden_size"] % o["num_attention_heads"] == 0 for o in (small, middle, large))
    # A script with thousands of characters.
    many = choose(Corpus("", ["".join(map(chr, range(0x4E00, 0x4E00 + 3000))) * 10], []))
    assert many["vocab_size"] > 6000


@pytest.mark.parametrize("longest", [3, 8, 32, 512])
@pytest.mark.parametrize(
    "text",
    ["the cat sees the dog in the morning", "x", "一二三四五六七八九十" * 20, "\n\n a b\n" + "word " * 99],
)
def test_the_example_fits_the_model(text: str, longest: int) -> None:
    for letters in (True, False):
        asked = example([text], letters, longest)
        assert asked.count("[MASK]") == 1
        assert len(asked.replace("[MASK]", "?")) <= max(longest - 2, len(asked.split()[0]))


BAD_INPUT = {
    "no sentence breaks": ("bert_tiny", ["--corpus", "unbroken"], "no sentence breaks"),
    "one document": ("bert_tiny", ["--corpus", "one.txt"], "two documents to learn from and two held out"),
    "vocabulary below the alphabet": ("bert_tiny", ["--corpus", "good", "--vocab-size", "12"], "alphabet"),
    "vocabulary of another language below the alphabet": (
        "own_language",
        ["--corpus", "good", "--vocab-size", "12"],
        "alphabet",
    ),
    "pairs longer than a step": (
        "bert_tiny",
        ["--corpus", "good", "--batch-tokens", "64"],
        "do not hold one pair of 128",
    ),
    "more tokens than positions": (
        "own_language",
        ["--corpus", "good", "--schedule", "16,256"],
        "max_position_embeddings is 128",
    ),
    "a pair without room": ("bert_tiny", ["--corpus", "good", "--schedule", "3"], "max_length is 3"),
    "masks of a fourth kind": ("bert_tiny", ["--masking", "often"], "invalid choice: 'often'"),
    "no such corpus": ("own_language", ["--corpus", "nowhere"], "no corpus or file is called 'nowhere'"),
    "a run of another experiment": ("bert_tiny", ["--resume", "other"], "there is no run at other"),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_gets_one_line_and_exit_code_2(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment, arguments, words = BAD_INPUT[case]
    for name in ("unbroken", "good"):
        (tmp_path / name).mkdir()
        for i in range(30):
            text = small_text(40, seed=i)
            text = text.replace(".", "").replace("\n", " ") if name == "unbroken" else text
            (tmp_path / name / f"{i}.txt").write_text(text)
    (tmp_path / "one.txt").write_text("\n\n".join(["One sentence here. Another one there."] * 20))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(SystemExit) as stopped:
        main_in_process(monkeypatch, tmp_path, *arguments, experiment=experiment)
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and words in error
    assert not (tmp_path / "logs").exists()
