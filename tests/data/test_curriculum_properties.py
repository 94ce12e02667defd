"""Properties of any schedule of sequence lengths."""

import math
from itertools import accumulate, pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from labml_bert.data.curriculum import length_at, parse_schedule, stage_ends


@given(st.text("0123456789:,. -einfa", max_size=12))
@example("16:nan")
def test_a_schedule_is_parsed_or_rejected(text: str) -> None:
    def number(kind: Any, word: str) -> Any:
        try:
            return kind(word)
        except ValueError:
            return math.nan

    parts = [part.partition(":") for part in text.split(",")]
    lengths = [number(int, length) for length, _, _ in parts]
    weights = [number(float, weight or "1") for _, _, weight in parts]
    is_valid = (
        all(length >= 3 for length in lengths)
        and all(a < b for a, b in pairwise(lengths))
        and all(0 < weight < math.inf for weight in weights)
    )
    if not is_valid:
        with pytest.raises(ValueError, match="bad schedule"):
            parse_schedule(text)
        return
    stages = parse_schedule(text)
    assert [stage.length for stage in stages] == lengths
    assert [stage.fraction for stage in stages] == pytest.approx([w / sum(weights) for w in weights])


@given(st.data())
def test_the_length_is_that_of_the_current_stage(data: st.DataObject) -> None:
    draw = data.draw
    lengths = sorted(draw(st.sets(st.integers(3, 8), min_size=1, max_size=3)))
    weights = [draw(st.integers(1, 4)) for _ in lengths]
    text = ",".join(f"{length}:{weight}" for length, weight in zip(lengths, weights, strict=True))
    stages = parse_schedule(text)
    ends = [end / sum(weights) for end in accumulate(weights)]
    assert stage_ends(stages) == pytest.approx(ends)
    progress = draw(st.integers(0, sum(weights))) / sum(weights) + draw(st.sampled_from([0, 1e-9, -1e-9]))
    elapsed, expected = 0, lengths[-1]
    for length, weight in zip(lengths, weights, strict=True):
        elapsed += weight
        if progress * sum(weights) < elapsed - 1e-12:
            expected = length
            break
    # Exactly on a boundary, either length may result from rounding.
    if abs(progress * sum(weights) - round(progress * sum(weights))) > 1e-12:
        assert length_at(stages, progress) == expected
