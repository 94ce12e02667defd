"""Invalid input to `fill_mask`."""

from pathlib import Path

import pytest

from labml_bert import fill_mask
from tests.support.runs import SMALL, run, small_text


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a few steps."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "text.txt").write_text(small_text(1000))
    run("mlm_tiny", *SMALL, "--corpus", "text.txt", "--steps", 3, cwd=folder)
    return next((folder / "logs" / "mlm_tiny").iterdir())


@pytest.mark.processes
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["no mask here"], "no [MASK] in the text"),
        (["[MASK]" + "a" * 40], "41 tokens but max_position_embeddings is 32"),
        (["[MASK]", "--top-k", "0"], "top_k is 0"),
        (["\udcff[MASK]"], "not UTF-8"),
        (["[MASK]", "--run", "nowhere"], "there is no run at nowhere"),
    ],
)
def test_bad_input_gives_a_one_line_error(
    run_folder: Path, arguments: list[str], words: str, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(run_folder.parent.parent.parent)
    with pytest.raises(SystemExit) as exit_info:
        fill_mask.main(arguments)
    assert exit_info.value.code == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_without_a_run_the_error_suggests_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exit_info:
        fill_mask.main(["[MASK]"])
    assert exit_info.value.code == 2
    assert "make train" in capsys.readouterr().err
