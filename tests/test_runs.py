"""The list of runs and the page with their curves."""

import errno
import os
import re
import tempfile
import webbrowser
import xml.etree.ElementTree as ET
from dataclasses import asdict
from html.parser import HTMLParser
from pathlib import Path

import pytest

from labml_bert import runs
from labml_bert.bert import BertConfig
from labml_bert.export import read_history
from labml_bert.models import BertForMaskedLM
from labml_bert.runs import RunFolder, differences, draw_chart, draw_page, find_runs, main
from labml_bert.training.checkpoint import CHECKPOINT, load_checkpoint
from labml_bert.training.tracking import METRICS, append_metrics, read_metrics
from tests.support.labels import save_run
from tests.support.runs import SMALL, main_in_process, small_text
from tests.support.tiny_run import assert_fails

CONFIG = BertConfig(
    vocab_size=9, hidden_size=4, num_hidden_layers=1, num_attention_heads=1, intermediate_size=4
)


def make_run(folder: Path, age: int, loss: float, **options: object) -> Path:
    """Writes a run with two evaluations. A run with a larger `age` is older."""
    configuration = {"model": asdict(CONFIG), "corpus_sha256": "x", "steps": 10, **options}
    save_run(folder, BertForMaskedLM(CONFIG), configuration)
    append_metrics(folder, 1, {"seconds": 1.0, "loss": 9.0, "valid.loss": 8.0})
    append_metrics(folder, 2, {"seconds": 2.0, "loss": 7.0, "valid.loss": loss, "valid.accuracy": 0.125})
    for file in folder.iterdir():
        os.utime(file, (2_000_000_000 - age, 2_000_000_000 - age))
    return folder


@pytest.fixture()
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "logs" / "mlm_tiny" / "old", 300, 3.5, seed=0, learning_rate=0.001, corpus="a")
    make_run(tmp_path / "logs" / "mlm_tiny" / "new", 100, 2.5, seed=1, learning_rate=0.001, corpus="a")
    make_run(tmp_path / "logs" / "own_language" / "other", 200, 1.5, seed=7, experiment="own_language")
    (tmp_path / "logs" / "mlm_tiny" / "new" / "model").mkdir()
    (tmp_path / "logs" / "mlm_tiny" / "new" / "model" / "config.json").write_text("{}")
    return tmp_path / "logs"


def test_runs_are_found_newest_first(logs: Path) -> None:
    assert [run.path.name for run in find_runs([logs])] == ["new", "other", "old"]
    assert [run.path.name for run in find_runs([logs / "mlm_tiny"])] == ["new", "old"]
    assert [run.path.name for run in find_runs([logs / "mlm_tiny" / "old", logs])] == ["new", "other", "old"]


def test_a_link_to_a_run_is_not_another_run(logs: Path) -> None:
    before = [run.path for run in find_runs([logs])]
    (logs / "latest").symlink_to(before[-1])
    assert sorted(run.path.resolve() for run in find_runs([logs])) == sorted(
        path.resolve() for path in before
    )


def test_only_options_that_differ_within_an_experiment_are_listed(logs: Path) -> None:
    assert differences(find_runs([logs])) == [{"seed": 1}, {}, {"seed": 0}]


def test_another_text_at_the_same_path_is_listed(tmp_path: Path) -> None:
    for name, corpus, digest in (("1", "a", "1" * 64), ("2", "a", "2" * 64), ("3", "b", "3" * 64)):
        make_run(tmp_path / name, int(name), 3.5, corpus=corpus, corpus_sha256=digest)
    assert differences(find_runs([tmp_path])) == [
        {"corpus": "a", "corpus_sha256": "11111111"},
        {"corpus": "a", "corpus_sha256": "22222222"},
        {"corpus": "b"},
    ]


def test_the_list(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[2:] if line.strip()] == [
        ["mlm_tiny/new", "3", "0.0", "min", "2.500", "12.5%"],
        ["seed", "1"],
        ["own_language/other", "3", "0.0", "min", "1.500", "12.5%"],
        ["not", "finished"],
        ["mlm_tiny/old", "3", "0.0", "min", "3.500", "12.5%"],
        ["seed", "0,", "not", "finished"],
    ]
    assert max(map(len, lines)) <= 80
    # Once there is a result on all of the held-out text, it's listed instead.
    append_metrics(logs / "mlm_tiny" / "new", 2, {"result.loss": 2.25, "result.accuracy": 0.25})
    main([])
    assert ["2.250", "25.0%"] in [line.split()[-2:] for line in capsys.readouterr().out.splitlines()]


class Tags(HTMLParser):
    """Collects the tags of a page with their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_the_page(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["logs/mlm_tiny", "--html", "curves.html"])
    assert "curves in curves.html" in capsys.readouterr().out
    page = (logs.parent / "curves.html").read_text(encoding="utf-8")
    parser = Tags()
    parser.feed(page)
    # The charts show held-out loss, held-out accuracy and training loss, each for both runs.
    assert [tag for tag, _ in parser.tags].count("svg") == 3
    classes = [attributes["class"] for tag, attributes in parser.tags if tag == "polyline"]
    assert classes == ["run0", "run1"] * 3
    # The page loads no other files.
    assert not any({"src", "href"} & attributes.keys() for _, attributes in parser.tags)


@pytest.mark.parametrize("has_browser", [True, False])
def test_open_shows_the_page(
    logs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, has_browser: bool
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(logs.parent))
    addresses: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: addresses.append(address) or has_browser)
    main(["--open"])
    (page,) = logs.parent.glob("labml_bert-*/runs.html")
    assert addresses == [page.as_uri()] and "<svg" in page.read_text(encoding="utf-8")
    main(["--open", "--html", "curves.html"])
    assert addresses[1] == (logs.parent / "curves.html").as_uri()
    assert ("open it in a browser" in capsys.readouterr().out) is not has_browser


def test_a_killed_run_has_the_results_of_its_checkpoint(tmp_path: Path) -> None:
    """The metrics of the steps after the checkpoint belong to weights that are lost."""
    run = make_run(tmp_path / "run", 0, loss=2.5)
    assert load_checkpoint(run)[0]["step"] == 3
    append_metrics(run, 4, {"seconds": 4.0, "loss": 1.0, "valid.loss": 0.5})
    assert find_runs([run])[0].result("loss") == 2.5
    checkpoint, curve = read_history(run)
    assert (checkpoint["steps"], checkpoint["loss"], curve) == (3, 2.5, [[1, 8.0], [2, 2.5]])


def test_names_are_escaped() -> None:
    run = RunFolder(Path("a<b>&"), {"experiment": "x"}, 1, 1.0, True, {"loss": [(1, 2.0), (2, 1.0)]})
    page = draw_page([run])
    assert "a&lt;b&gt;&amp;" in page and "<b>" not in page
    assert "\x1b" not in draw_page([run._replace(path=Path("a\x1b[31m"))])


def test_values_that_are_not_finite_are_not_drawn() -> None:
    metrics = {"loss": [(1, 2.0), (2, float("nan")), (3, 1.0)], "valid.loss": [(1, float("inf"))]}
    page = draw_page([RunFolder(Path("run"), {"experiment": "x"}, 3, 1.0, True, metrics)])
    assert page.count("<figure>") == 1 and "step 1" in page and ">3<" in page
    assert not re.search(r"\b(nan|inf)\b", page)


def test_a_curve_spans_the_chart() -> None:
    figure = ET.fromstring(draw_chart("loss", [(0, [(10, 4.0), (20, 1.0), (30, 2.5)]), (3, [(10, 2.0)])]))
    first, second = figure.iter("polyline")
    points = [tuple(map(float, point.split(","))) for point in first.attrib["points"].split()]
    assert points == [(64.0, 24.0), (268.0, 216.0), (472.0, 120.0)]
    assert second.attrib["class"] == "run3"
    assert [text.text for text in figure.iter("text")] == ["1", "4", "step 10", "30"]
    # The range of a single value is zero.
    assert "64.0,216.0" in draw_chart("loss", [(0, [(1, 2.0)])])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["empty"], "no run in empty; train a model"),
        (["missing"], "no run in missing"),
        (["logs", "missing"], "there is no folder missing; check the name"),
        (["logs", "notes.txt"], "notes.txt is not a folder; name the folder of a run"),
        (["logs", "--html", "notes.txt"], "notes.txt exists and is not a page of curves"),
        (["logs", "--html", "notes.html"], "notes.html exists and is not a page of curves"),
        (["logs", "--html", "dangling.html"], "dangling.html exists and is not a page of curves"),
        (["logs", "--html", "gone/curves.html"], "gone"),
        (["damaged"], "is damaged"),
        (["lost"], "rename previous.safetensors to checkpoint.safetensors"),
        (["parent"], "rename previous.safetensors to checkpoint.safetensors"),
    ],
)
def test_bad_input(
    logs: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    (logs.parent / "empty").mkdir()
    for name in ("notes.txt", "notes.html"):
        (logs.parent / name).write_text("my notes")
    for name in ("damaged", "lost"):
        (logs.parent / name).mkdir()
    for name in ("lost", "parent/lost"):
        (logs.parent / name).mkdir(parents=True, exist_ok=True)
        (logs.parent / name / "previous.safetensors").write_bytes(b"12345678")
    (logs.parent / "damaged" / "checkpoint.safetensors").write_bytes(b"12345678")
    (logs.parent / "dangling.html").symlink_to("nowhere.html")
    assert_fails(main, arguments, message, capsys)
    assert (logs.parent / "dangling.html").is_symlink()
    for name in ("notes.txt", "notes.html"):
        assert (logs.parent / name).read_text() == "my notes"


def test_a_run_that_cannot_be_read_is_left_out(
    logs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A damaged run doesn't hide the others. If the user names the damaged run, that's an error."""
    (logs / "mlm_tiny" / "old" / CHECKPOINT).write_bytes(b"12345678")
    main([])
    out, errors = capsys.readouterr()
    assert "mlm_tiny/new" in out and "own_language/other" in out and "old" not in out
    (line,) = errors.splitlines()
    assert line.startswith("left out: ") and "old/checkpoint.safetensors is damaged" in line
    assert_fails(main, ["logs/mlm_tiny/old", "logs"], "is damaged", capsys)

    def read_metrics(*arguments: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(runs, "read_metrics", read_metrics)
    with pytest.raises(SystemExit) as exit_info:
        main([])
    assert exit_info.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert f"cannot read logs/mlm_tiny/new/{METRICS}: Permission denied; make it readable" in lines[-3]
    assert lines[-1] == "error: none of the 3 runs can be read; see the notes above"


def test_a_run_whose_model_is_unreadable_is_left_out(
    logs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def is_file(path: Path) -> bool:
        if path.name == "config.json" and "old" in path.parts:
            # The superuser can read every folder, so pretend.
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return os.path.isfile(path)

    monkeypatch.setattr(Path, "is_file", is_file)
    main(["logs"])
    out, err = capsys.readouterr()
    assert "new" in out and "old/model/config.json: Permission denied" in " ".join(err.split())


def test_an_unreadable_folder_is_not_empty(
    logs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # The superuser can read every folder, so pretend.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert_fails(main, ["logs"], "cannot read logs: Permission denied; make it readable", capsys)


def test_a_run_logs_its_learning_rate_length_gradient_norm_and_speed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text.txt").write_text(small_text(500))
    main_in_process(monkeypatch, tmp_path, "--corpus=text.txt", *SMALL, "--steps=40", "--learning-rate=1e-3")
    (folder,) = tmp_path.glob("logs/mlm_tiny/*")
    metrics = read_metrics(folder)
    learning_rates = [value for _, value in metrics["learning_rate"]]
    assert 0 < learning_rates[-1] < max(learning_rates) <= 1e-3
    assert metrics["length"][0][1] == 8 and metrics["length"][-1][1] == 32
    assert all(value > 0 for name in ("gradient_norm", "tokens_per_second") for _, value in metrics[name])
