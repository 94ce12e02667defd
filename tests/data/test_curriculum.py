"""Schedules of sequence lengths, valid and invalid."""

import pytest

from labml_bert.data.curriculum import (
    length_at,
    parse_schedule,
    stage_ends,
    tokens_per_step,
)


def test_equal_and_weighted_fractions() -> None:
    assert [s.fraction for s in parse_schedule("16,32")] == [0.5, 0.5]
    assert [(s.length, s.fraction) for s in parse_schedule("16:1, 128:3")] == [(16, 0.25), (128, 0.75)]


def test_the_length_follows_the_progress() -> None:
    stages = parse_schedule("4:1,8:1,16:2")
    lengths = [length_at(stages, progress) for progress in (0, 0.24, 0.25, 0.49, 0.5, 0.99, 1)]
    assert lengths == [4, 4, 8, 8, 16, 16, 16]
    assert stage_ends(stages) == [0.25, 0.5, 1]


def test_a_batch_has_whole_sequences() -> None:
    assert [tokens_per_step(100, length) for length in (1, 16, 100, 101)] == [100, 96, 100, 0]


@pytest.mark.parametrize(
    "text", ["", "a", "16,,32", "32,16", "16,16", "2,3", "16:0", "16:-1", "16:x", "16:nan"]
)
def test_bad_schedules_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="bad schedule"):
        parse_schedule(text)
