"""An own language, from a folder of text to a model that `transformers` opens."""

import random
import sys
from pathlib import Path

import pytest
import transformers

from labml_bert import fill_mask
from tests.support.runs import ROOT, SIZES, run


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
        *("--corpus", "text", *SIZES, "--steps=1200", "--schedule=8,16", "--hidden-size=64"),
        cwd=tmp_path,
    )
    assert "What suits this text" in out
    (folder,) = tmp_path.glob("logs/*/*/")
    model, tokenizer = fill_mask.load_model(folder)
    text = "সেই নদী আবার পাখি দেখে।"
    assert tokenizer.decode(tokenizer.encode(text).ids).replace(" ।", "।") == text
    question = text.replace("দেখে", "[MASK]")
    best = fill_mask.fill_mask(model, tokenizer, question, 1)[0][0]
    assert best.token in {"দেখে", "খোঁজে", "আঁকে"}, "only a verb can stand there"
    answer = transformers.pipeline("fill-mask", model=str(folder / "model"), top_k=1)(question)[0]
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
