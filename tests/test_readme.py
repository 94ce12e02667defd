"""What the README says is true: its code runs, its commands exist, and its numbers match the records."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


@pytest.mark.processes
def test_the_python_example_runs(tmp_path: Path) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    for name in ("bert.py", "mlm.py"):
        (tmp_path / name).write_text((ROOT / "labml_bert" / name).read_text())
    subprocess.run([sys.executable, "-c", block], cwd=tmp_path, check=True)


def test_commands_and_files_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\S+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    for link in re.findall(r"\]\(([^)]+)\)", README):
        if "://" not in link:
            assert (ROOT / link).exists(), link


def test_results_match_the_records() -> None:
    rows = re.findall(r"^\| .*docs/runs/.*$", README, re.MULTILINE)
    assert rows
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        records = [
            json.loads((ROOT / path).read_text()) for path in re.findall(r"\((docs/runs/\S+?\.json)\)", row)
        ]
        for baseline, cell in zip(records[0]["baselines"][1:], cells[1:3], strict=True):
            assert cell == f"{baseline['loss']:.2f}"
        losses = [record["result"]["loss"] for record in records]
        accuracies = [record["result"]["accuracy"] for record in records]
        assert cells[3] == ", ".join(f"{loss:.2f}" for loss in losses)
        assert cells[4] == ", ".join(f"{accuracy:.0%}" for accuracy in accuracies)


def test_speedups_match_the_record() -> None:
    record = json.loads((ROOT / "docs" / "runs" / "speed.json").read_text())
    (table,) = re.findall(r"^\| model \|.*\n\|[-|]+\n((?:\|.*\n)+)", README, re.MULTILINE)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    assert len(rows) == len(record["speed"])
    sdpa, eager = [], []
    for cells, measurement in zip(rows, record["speed"], strict=True):
        steps = {row["arm"]: row["step"]["median"] for row in measurement["rows"]}
        name = measurement["shape"]["name"]
        assert cells[0] == f"{name}, dropout {measurement['dropout']:g}"
        ratios = [
            steps[f"transformers sdpa, {theirs}"] / steps[f"ours, {ours}"]
            for theirs, ours in (("float32", "bfloat16"), ("bfloat16", "bfloat16"), ("float32", "float32"))
        ]
        assert cells[1:] == [f"{ratio:.1f} ×" for ratio in ratios]
        sdpa.append(steps["transformers sdpa, bfloat16"] / steps["ours, bfloat16"])
        eager.append(steps["transformers eager, bfloat16"] / steps["ours, bfloat16"])
    words = " ".join(README.split())
    fast_sdpa, fast_eager = (
        f"{min(ratios):.1f} to {max(ratios):.1f} times as fast" for ratios in (sdpa, eager)
    )
    assert (
        f"our step is {fast_sdpa} as a step with SDPA, but only {fast_eager} as a step with eager attention"
        in words
    )
