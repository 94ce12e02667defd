"""The speed comparison as a user runs it, with models small enough to take no time."""

import json
import os
import runpy
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from labml_bert.run.record import clean_arguments
from tests.support.runs import command

SCRIPT = Path(__file__).parents[2] / "experiments" / "speed" / "speed.py"
PEERS = ["transformers sdpa", "transformers eager"]


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> dict:
    """The script with small models, made-up peak speeds, and without the third peer."""
    names_in_script = runpy.run_path(str(SCRIPT))
    names = names_in_script["main"].__globals__
    shapes = [replace(shape, vocab_size=60, num_hidden_layers=1) for shape in names["CPU_SHAPES"]]
    small = {"hidden_size": 16, "num_attention_heads": 2, "repeats": 1}
    names["CPU_SHAPES"] = [replace(shape, **small) for shape in shapes]
    names["measure_matmul_flops"] = lambda device, dtype: 1e9 if dtype == torch.float32 else 4e9
    names["measure_memory_bandwidth"] = lambda device: 1e9
    find_spec = names["find_spec"]
    names["find_spec"] = lambda name: None if name == "labml_nn" else find_spec(name)
    return names


SIZES = ["--batch-size", "2", "--length", "8", "--rounds", "2", "--device", "cpu"]


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.parametrize("nobody_reads", [True, False])
def test_the_record_is_written_even_if_the_output_cannot_be(nobody_reads: bool, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    words = command("speed", *SIZES, "--shapes=characters", "--dropout=0", "--record=speed.json")
    with open("/dev/full", "w") as full:
        stdout = writer if nobody_reads else full
        process = subprocess.run(words, cwd=tmp_path, stdout=stdout, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert process.returncode == 0, process.stderr
    assert process.stderr == ("" if nobody_reads else "error: cannot print: No space left on device\n")
    assert json.loads((tmp_path / "speed.json").read_text())["experiment"] == "speed"


@pytest.mark.long
@pytest.mark.processes
def test_from_the_command_to_the_record(
    module: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    module["main"](["--shapes", "characters", "BERT base", *SIZES, "--record", "speed.json"])
    output = capsys.readouterr().out
    assert "missing    labml_nn; install with make peers" in output
    assert max(map(len, output.splitlines())) <= 80
    text = Path("speed.json").read_text()
    assert str(tmp_path) not in text
    record = json.loads(text)
    assert record["command"].startswith(
        "python experiments/speed/speed.py --shapes characters 'BERT base' --batch"
    )
    assert "--record" not in record["command"]
    assert set(record["configuration"]["peers"]) == {"transformers"}
    tables = record["speed"]
    # The large model runs with the first dropout only.
    expected = [("characters", 0.1), ("characters", 0.0), ("BERT base", 0.1)]
    assert [(table["shape"]["name"], table["dropout"]) for table in tables] == expected
    arms = [f"{name}, {precision}" for name in ["ours", *PEERS] for precision in ("float32", "bfloat16")]
    for table in tables:
        assert [row["arm"] for row in table["rows"]] == arms
        assert table["loss_difference"] < 1e-4
        assert sum(table["profile"]["fractions"].values()) == pytest.approx(1)
        ours, theirs = table["rows"][0], table["rows"][2]
        assert ours["flops"] < theirs["flops"], "ours computes the labeled positions only"
        for row in table["rows"]:
            assert row["step"]["min"] <= row["step"]["median"] <= row["step"]["max"]
            assert row["tokens_per_second"] == pytest.approx(16 / row["step"]["median"])
            assert row["flops_per_second"] == pytest.approx(row["flops"] / row["step"]["median"])
    assert [table["shape"] for table in record["pieces"]] == ["characters", "BERT base"]
    for one in record["pieces"]:
        assert len(one["rows"]) == 2 * 6
        assert all(min(row["flops"], row["bytes"], row["seconds"]) > 0 for row in one["rows"])


def test_a_different_model_fails_the_comparison(module: dict) -> None:
    shape = replace(module["CPU_SHAPES"][0], batch_size=2, length=8)
    names = ["ours", *PEERS]
    torch.manual_seed(0)
    models = {name: module["build_model"](name, shape, 0.0) for name in names}
    batch = module["draw_batch"](shape.vocab_size, 2, 8, torch.device("cpu"))
    assert module["check_losses"](models, batch) < 1e-5
    layer = models["transformers sdpa"].bert.encoder.layer[0]
    layer.intermediate.intermediate_act_fn = torch.nn.ReLU()
    with pytest.raises(AssertionError, match="transformers sdpa"):
        module["check_losses"](models, batch)


def test_the_third_peer_computes_a_different_model(module: dict) -> None:
    pytest.importorskip("labml_nn", reason="make peers installs it")
    shape = replace(module["CPU_SHAPES"][0], batch_size=2, length=8)
    models = {name: module["build_model"](name, shape, 0.0) for name in ("ours", "labml_nn")}
    batch = module["draw_batch"](shape.vocab_size, 2, 8, torch.device("cpu"))
    before = {name: p.clone() for name, p in models["labml_nn"].named_parameters()}
    # The weights of `labml_nn` aren't replaced, and its loss isn't compared.
    assert module["check_losses"](models, batch) == 0
    assert all(torch.equal(p, before[name]) for name, p in models["labml_nn"].named_parameters())
    with FlopCounterMode(display=False) as counter:
        assert models["labml_nn"](*batch).loss.item() > 0
    # A backward pass takes twice as many FLOPs as a forward pass.
    counted = module["variant_flops"]("labml_nn, float32", shape.config(0.0), batch.labels)
    assert 3 * counter.get_total_flops() == counted


BAD_INPUT = {
    "no rounds": (["--rounds", "0"], "rounds is 0; it must be at least 1"),
    "batch too large": (["--batch-size", "9" * 20], "it must be at most 2,147,483,647"),
    "no batch": (["--batch-size", "0"], "batch_size is 0"),
    "no length": (["--length", "-3"], "length is -3"),
    "dropout of one": (["--dropout", "0.1", "1"], "dropout is 1.0; it must be in [0, 1)"),
    "a shape for GPUs": (
        ["--device", "cpu", "--shapes", "characters", "BERT base, 512"],
        "'BERT base, 512' is for a GPU; for this device there are characters, words, BERT small, BERT base",
    ),
    "record in a missing folder": (["--record", "no/r.json"], "cannot write 'no/r.json'"),
    "GPU that does not exist": (["--device", "cuda:99"], "device 'cuda:99' is not available"),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_gets_one_line_and_exit_code_2(
    case: str, module: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    arguments, words = BAD_INPUT[case]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exit_info:
        module["main"](arguments)
    assert exit_info.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and words in error
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--rounds", "1", "--record", "a.json"], ["--rounds", "1"]),
        (["--record=./a.json", "--rounds=1"], ["--rounds=1"]),
        (["--record", "./a.json", "--rounds", "1"], ["--rounds", "1"]),
        (["--shapes", "words", "--record", "words"], ["--shapes", "words"]),
        (["--record", "a", "--record=b"], []),
        (["--corpus", "/home/somebody/texts/", "--rounds", "1"], ["--corpus", "texts", "--rounds", "1"]),
        (["--corpus=../wikitext-2"], ["--corpus", "wikitext-2"]),
    ],
)
def test_a_recorded_command_contains_no_private_paths(argv: list[str], expected: list[str]) -> None:
    assert clean_arguments(argv) == expected
