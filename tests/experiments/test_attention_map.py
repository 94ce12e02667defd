"""The experiment that records where a masked position attends."""

import json
import runpy
from pathlib import Path

import pytest
import torch

from tests.support.runs import small_text
from tests.support.tiny_run import train_tiny

SCRIPT = Path(__file__).parents[2] / "experiments" / "attention_map.py"
main = runpy.run_path(str(SCRIPT))["main"]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_tiny(tmp_path_factory.mktemp("attention"), small_text(400), layers=2, positions=32)


@pytest.mark.processes
def test_the_record(run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["a[MASK]c", "--run", str(run_folder), "--record", str(tmp_path / "map.json")])
    out = capsys.readouterr().out
    # The path of the model can be any length.
    lines = [line for line in out.splitlines() if "  model " not in line]
    assert "predictions" in out and max(map(len, lines)) <= 80
    record = json.loads((tmp_path / "map.json").read_text())
    result = record["result"]
    assert record["command"] == "python experiments/attention_map.py 'a[MASK]c'"
    assert record["experiment"] == "attention_map" and result["tokens"] == ["a", "[MASK]", "c"]
    assert result["masks"] == [1] and len(result["guesses"][0]) == 5
    weights = torch.tensor(result["attentions"])  # (L, H, T, T)
    assert weights.shape == (2, 2, 3, 3)
    assert torch.allclose(weights.sum(-1), torch.ones(2, 2, 3), atol=2e-3)
    assert str(run_folder) not in json.dumps(record)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no mask"], "no [MASK] in the text"),
        (["a" * 40 + "[MASK]"], "max_position_embeddings"),
        (["[MASK]", "--run", "nowhere"], "there is no run at nowhere"),
        (["[MASK]", "--record", "no/folder/map.json"], "cannot write"),
    ],
)
def test_bad_input_gets_one_line_and_exit_code_2(
    run_folder: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(["--run", str(run_folder), *arguments])
    assert exit_info.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and message in error
