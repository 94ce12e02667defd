"""The examples at the end of the stand-alone files print what their text says, and learn what it says."""

import math
import re
from types import ModuleType

import pytest

from labml_bert import bert, mlm, modern, nsp

STEP = r"step +(?P<step>\d+)  loss (?P<loss>\d\.\d{3})  accuracy (?P<accuracy>\d\.\d\d)"
AT_64 = r" at length 16, (?P<long>\d\.\d\d) at 64"


@pytest.mark.slow("trains a small model")
@pytest.mark.parametrize(
    ("module", "first_line", "pattern", "steps", "first_loss"),
    [
        (bert, "18,848 parameters", STEP, range(0, 401, 100), math.log(2)),
        (mlm, None, STEP, range(0, 401, 100), math.log(50)),
        (nsp, None, STEP.replace("step", "epoch", 1), range(0, 41, 10), math.log(2)),
        (modern, "19,284 parameters", f"{STEP}{AT_64}", range(0, 201, 50), math.log(20)),
    ],
    ids=["bert.py", "mlm.py", "nsp.py", "modern.py"],
)
def test_it_starts_with_a_uniform_guess_and_learns(
    module: ModuleType,
    first_line: str | None,
    pattern: str,
    steps: range,
    first_loss: float,
    capsys: pytest.CaptureFixture[str],
) -> None:
    module.main()
    lines = capsys.readouterr().out.splitlines()
    if first_line is not None:
        assert lines.pop(0) == first_line
    rows = [re.fullmatch(pattern, line) for line in lines]
    assert all(rows), lines
    assert [int(row["step"]) for row in rows] == [*steps]
    losses, accuracies = ([float(row[name]) for row in rows] for name in ("loss", "accuracy"))
    assert losses[0] == pytest.approx(first_loss, abs=0.15)
    assert losses == sorted(losses, reverse=True) and losses[-1] < 0.2
    assert accuracies[0] < 0.5 and accuracies[-1] >= 0.93
    if module is modern:
        assert float(rows[-1]["long"]) >= 0.93
