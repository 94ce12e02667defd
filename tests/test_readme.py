"""What the README says is so: its code runs, its commands exist, its numbers are the recorded ones."""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_its_python_runs(tmp_path: Path) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    for name in ("bert.py", "mlm.py"):
        (tmp_path / name).write_text((ROOT / "labml_bert" / name).read_text())
    subprocess.run([sys.executable, "-c", block], cwd=tmp_path, check=True)


def test_its_commands_and_files_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\S+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    for link in re.findall(r"\]\(([^)]+)\)", README):
        if "://" not in link:
            assert (ROOT / link).exists(), link


def test_its_numbers_are_those_of_the_records() -> None:
    rows = re.findall(r"^\| .*\(docs/runs/(\S+)\.json\).*$", README, re.MULTILINE)
    assert rows
    for row in re.findall(r"^\| .*docs/runs/.*$", README, re.MULTILINE):
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        records = [
            json.loads((ROOT / path).read_text()) for path in re.findall(r"\((docs/runs/\S+?\.json)\)", row)
        ]
        for floor, cell in zip(records[0]["floors"][1:], cells[1:3], strict=True):
            assert cell == f"{floor['loss']:.2f}"
        losses = [record["result"]["loss"] for record in records]
        rights = [record["result"]["accuracy"] for record in records]
        assert cells[3] == ", ".join(f"{loss:.2f}" for loss in losses)
        assert cells[4] == ", ".join(f"{right:.0%}" for right in rights)
