"""The card that is saved with each model: its contents, and names that must not break it."""

from pathlib import Path
from typing import Any

import pytest

from labml_bert.model_card import inline_code, table, write_classifier_card, write_pretraining_card
from tests.support.runs import SMALL, main_in_process, small_text

FACTS: dict[str, Any] = {
    "corpus": {"name": "my`|\ntext", "sha256": "ab12", "train_characters": 9000, "valid_characters": 1000},
    "configuration": {
        "corpus": "my`|\ntext",
        "minutes": None,
        "from_": "/home/me/models/big",
        "model": {"hidden_size": 8, "max_position_embeddings": 16},
    },
    "parameters": 1234,
    "baselines": [{"name": "unigram", "loss": 3.25, "accuracy": 0.25}],
    "result": {"loss": 1.5, "accuracy": 0.75, "steps": 1000, "training_seconds": 60.0},
}


def sections(folder: Path) -> dict[str, str]:
    """The texts of a card by heading, without its front matter."""
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert text.startswith("---\nlibrary_name: transformers\n")
    return {part.partition("\n")[0]: part.partition("\n")[2] for part in text.split("\n## ")[1:]}


def test_the_card_of_a_masked_language_model(tmp_path: Path) -> None:
    write_pretraining_card(tmp_path, ["python", "a script.py", "--from", "/home/me/models/big"], FACTS)
    card = sections(tmp_path)
    assert "9,000 characters for training, 1,000 held out, sha256 `ab12`" in card["Data"]
    assert (
        "| `from_` | `…/big` |" in card["Recipe"]
        and "1,234 parameters, 1,000 steps, 60 seconds" in card["Recipe"]
    )
    assert "| unigram | 3.250 | 25.0% |\n| this model | 1.500 | 75.0% |" in card["Results"]
    assert "this model on its masked tokens, the others on all tokens" in card["Results"]
    assert "at most 16 tokens" in card["Limits"]
    assert 'pipeline("fill-mask", "FOLDER")' in card["Use it"]
    assert card["Train it again"].strip() == "`python 'a script.py' --from …/big`"
    text = (tmp_path / "README.md").read_text()
    assert "/home/me" not in text and "minutes" not in text
    assert "pipeline_tag: fill-mask" in text


def test_the_card_of_a_classifier(tmp_path: Path) -> None:
    facts = {"file": "labels.csv", "model": "/home/me/logs/run"}
    scores = {"most frequent label": (0.5, 0.25), "TF-IDF (pip install scikit-learn)": None}
    write_classifier_card(tmp_path, ["python"], facts, ["a|b", "c"], True, scores)
    card = sections(tmp_path)
    assert "| file | labels.csv |\n| model | …/run |" in card["Data"]
    assert 'model({"text": "…", "text_pair": "…"}, truncation=True)' in card["Use it"]
    assert card["Labels"].strip() == "`a|b`, `c`"
    assert (
        "| most frequent label | 50.0% | 25.0% |" in card["Results"] and "scikit-learn" not in card["Results"]
    )


def test_names_cannot_break_the_card(tmp_path: Path) -> None:
    assert inline_code("a\nc\x1b[0m") == "`a?c?[0m`"
    assert inline_code("می\u200cخواهم") == "`می\u200cخواهم`"
    # In Markdown, these are a`b, `a, a``b`c and ``.
    assert inline_code("a`b") == "``a`b``" and inline_code("`a") == "`` `a ``"
    assert inline_code("a``b`c") == "```a``b`c```" and inline_code("``") == "``` `` ```"
    assert table(("a|b",), [("c|d",)]) == "| a\\|b |\n|---|\n| c\\|d |"
    write_pretraining_card(tmp_path, ["python"], FACTS)
    text = (tmp_path / "README.md").read_text()
    assert "``my`|?text``" in text and "| `corpus` | ``my`\\|?text`` |" in text


def test_a_run_saves_a_card_with_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.txt").write_text(small_text(500))
    main_in_process(monkeypatch, tmp_path, "--corpus=text.txt", *SMALL, "--steps=3")
    (folder,) = tmp_path.glob("logs/mlm_tiny/*/model")
    card = sections(folder)
    assert "`text.txt`" in card["Data"] and "3 steps" in card["Recipe"] and "two-neighbor" in card["Results"]
    assert "mlm_tiny.py --corpus text.txt --steps 3" in card["Train it again"]
    assert str(tmp_path) not in (folder / "README.md").read_text()
