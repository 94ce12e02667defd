"""The experiment that looks for the summary of each description."""

import json
import runpy
import shutil
from pathlib import Path

import pytest
import torch

from labml_bert import backbone
from labml_bert.data.docstring_tasks import Docstring
from labml_bert.embed import cosines
from labml_bert.fill_mask import load_model
from tests.support.runs import small_text
from tests.support.tiny_run import assert_fails, train_tiny

SCRIPT = Path(__file__).parents[2] / "experiments" / "retrieval.py"
script = runpy.run_path(str(SCRIPT))
main = script["main"]
METHODS = ["TF-IDF", "mean pooling", "mean pooling, whitened", "SimCSE", "SimCSE on pairs"]


def docstrings(start: int, count: int, unseen: bool) -> list[Docstring]:
    # The model knows no digits, so write numbers in letters.
    names = ["".join("abcdefghij"[int(digit)] for digit in str(i)) for i in range(start, start + count)]
    return [
        Docstring(f"the {x} of this house.\n\nthere is {x}\nin the house.", "house.py", unseen) for x in names
    ]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_tiny(tmp_path_factory.mktemp("retrieval"), small_text(400), layers=1, positions=64)


@pytest.fixture
def few_docstrings(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [*docstrings(0, 80, False), *docstrings(80, 12, True)]
    monkeypatch.setitem(script["split_pairs"].__globals__, "distinct_docstrings", lambda: texts)


def test_pairs_that_give_the_answer_away_are_left_out() -> None:
    good = Docstring("Return the first word.\n\nThe rest is\nignored.", "a.py", True)
    same_summary = Docstring("Return the first word.\n\nAnother description.", "b.py", False)
    same_description = Docstring("Return the last word.\n\nThe rest is ignored.", "b.py", False)
    repeated = Docstring("Open the old door.\n\nIt is slow. Open the  old\nDOOR, then wait.", "c.py", True)
    short = Docstring("Constructor.\n\nIt takes two arguments.", "d.py", True)
    only_summary = Docstring("Close the old door.", "e.py", True)
    other = Docstring("Count all the words.\n\nBlank lines count too.", "f.py", False)
    texts = [same_summary, same_description, repeated, short, only_summary, other, good]
    split = script["split_pairs"](texts)
    assert split.test == [("The rest is ignored.", "Return the first word.")]
    assert split.train == [("Blank lines count too.", "Count all the words.")]


def test_no_test_text_is_a_training_text() -> None:
    split = script["split_pairs"]([*docstrings(0, 9, False), *docstrings(5, 9, True)])
    assert len(split.test) == 9 and len(split.train) == 5
    assert not {text for pair in split.train for text in pair} & {
        text for pair in split.test for text in pair
    }
    again = script["hold_out"](split.train, 2)
    assert len(again.test) == 2 and sorted(again.train + again.test) == sorted(split.train)


def test_tfidf_finds_the_text_with_the_rare_word() -> None:
    documents = ["the cat of the house", "the dog of the house", "the house of the house"]
    queries, vectors = script["tfidf_vectors"](documents, ["a dog in the house"])
    assert queries.shape == (1, vectors.size(1)) and len(vectors) == 3
    assert cosines(queries, vectors)[0].argmax() == 1
    assert vectors.norm(dim=1).tolist() == pytest.approx([1, 1, 1])


def test_the_result_of_perfect_vectors() -> None:
    result = script["evaluate"](torch.eye(12), torch.eye(12))
    assert (result.mrr, result.recall) == (1, 1) and result.mean_cosine == pytest.approx(0)


def test_the_interval_of_a_difference() -> None:
    perfect, middling = ([script["evaluate"](x, torch.eye(12))] for x in (torch.eye(12), torch.ones(12, 12)))
    gap = script["difference"](perfect, middling)
    # All candidates tie, so each rank is 12.
    assert gap == pytest.approx({"mean": 11 / 12, "low": 11 / 12, "high": 11 / 12})
    mixed = [result[0]._replace(ranks=torch.tensor([1, 2])) for result in (perfect, middling)]
    gap = script["difference"](mixed, [mixed[0]._replace(ranks=torch.tensor([1, 1]))])
    half = 1.96 * (0.5 / 2**0.5) / 2**0.5
    assert gap == pytest.approx({"mean": -0.25, "low": -0.25 - half, "high": -0.25 + half})


@pytest.mark.processes
@pytest.mark.usefixtures("few_docstrings")
def test_the_record(run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "record.json"
    main(["--run", str(run_folder), "--seeds", "2", "--steps", "2", "--record", str(path)])
    out = capsys.readouterr().out
    # The paths of the model and of the record can be any length.
    lines = [line for line in out.splitlines() if not line.startswith(("  model ", "  record "))]
    assert max(map(len, lines)) <= 80 and all(f"  {method}" in out for method in METHODS)
    record = json.loads(path.read_text())
    assert record["experiment"] == "retrieval" and record["configuration"]["experiment"] == "mlm_tiny"
    assert record["command"].endswith("retrieval.py --seeds=2 --steps=2 --learning-rate=0.001")
    result = record["result"]
    assert (result["test_pairs"], result["train_pairs"]) == (12, 80)
    assert list(result["retrieval"]) == METHODS
    for method, columns in result["retrieval"].items():
        assert list(columns) == ["mrr", "recall", "mean_cosine"]
        assert {len(values) for values in columns.values()} == {2 if method.startswith("SimCSE") else 1}
        assert all(0 < value <= 1 for value in columns["mrr"])
    # The number in a description occurs only there and in its summary.
    assert result["retrieval"]["TF-IDF"]["mrr"] == [1]
    assert list(result["simcse_minus"]) == [method for method in METHODS if method != "SimCSE"]
    assert str(run_folder) not in path.read_text()


def test_each_seed_starts_from_the_same_model(run_folder: Path) -> None:
    """The checkpoint of a run that is still training would be another model each time."""
    model, tokenizer = load_model(run_folder)
    split = script["split_pairs"]([*docstrings(0, 80, False), *docstrings(80, 12, True)])
    results = script["compare"](model, tokenizer, split, 2, 1, 1e-9)
    (mean,) = results["mean pooling"]
    for name in ("SimCSE", "SimCSE on pairs"):
        assert [r.mean_cosine for r in results[name]] == pytest.approx([mean.mean_cosine] * 2, abs=1e-3)
    expected = load_model(run_folder)[0].state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in model.state_dict().items())


@pytest.mark.processes
@pytest.mark.usefixtures("few_docstrings")
def test_validation_needs_no_record_and_uses_training_pairs(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["--run", str(run_folder / "model"), "--validate", "--seeds", "1", "--steps", "1"])
    out = capsys.readouterr().out
    assert "  12 descriptions" in out and "  68 pairs to train on" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seeds", "0"], "seeds is 0; it must be at least 1"),
        (["--steps", "0"], "steps is 0; it must be at least 1"),
        (["--learning-rate", "0"], "learning_rate is 0; it must be between 0 and 1"),
        (["--run", "nowhere"], "there is no run at nowhere"),
        (["--record", "no/folder/record.json"], "cannot write"),
    ],
)
def test_bad_input_gets_one_line_and_exit_code_2(
    run_folder: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_fails(main, ["--run", str(run_folder), *arguments], message, capsys)


@pytest.mark.long
@pytest.mark.slow("reads all docstrings of the standard library")
def test_a_run_on_the_docstrings_of_another_python_is_refused(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state = {"configuration": {"corpus": "python-docs", "corpus_sha256": "0"}}
    monkeypatch.setattr(backbone, "load_checkpoint", lambda path: (state, {}))
    for folder in (run_folder, run_folder / "model"):
        assert_fails(main, ["--run", str(folder)], "the docstrings of another Python", capsys)


def test_a_record_needs_a_run(run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(run_folder / "model", tmp_path / "model")
    arguments = ["--run", str(tmp_path / "model"), "--record", str(tmp_path / "record.json")]
    assert_fails(main, arguments, "there is no run at", capsys)
    assert list(tmp_path.iterdir()) == [tmp_path / "model"]
