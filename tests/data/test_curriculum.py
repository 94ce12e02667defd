"""Lengths, offsets, and schedules that make no sense."""

import pytest
import torch

from labml_bert.data.curriculum import Curriculum, parse_schedule


def curriculum(
    text: str = "4,8,16", positions: int = 16, batch_tokens: int = 64, n: int = 1000
) -> Curriculum:
    generator = torch.Generator().manual_seed(0)
    return Curriculum(torch.arange(n), parse_schedule(text), batch_tokens, positions, generator)


def test_equal_and_weighted_shares() -> None:
    assert [s.share for s in parse_schedule("16,32")] == [0.5, 0.5]
    assert [(s.length, s.share) for s in parse_schedule("16:1, 128:3")] == [(16, 0.25), (128, 0.75)]


def test_length_follows_progress() -> None:
    c = curriculum("4:1,8:1,16:2")
    assert [c.length(p) for p in (0, 0.24, 0.25, 0.49, 0.5, 0.99, 1)] == [4, 4, 8, 8, 16, 16, 16]


def test_tokens_a_step_stay_the_same_and_windows_are_runs_of_text() -> None:
    c = curriculum()
    for progress, T in ((0, 4), (0.5, 8), (0.9, 16)):
        ids, positions = c.batch(progress)
        assert ids.shape == positions.shape == (64 // T, T)
        assert (ids.diff(dim=1) == 1).all()
        assert (positions.diff(dim=1) == 1).all()


def test_every_position_and_every_token_is_met_from_the_first_stage() -> None:
    c = curriculum(n=50)
    positions, tokens = torch.zeros(16), torch.zeros(50)
    for _ in range(200):
        batch = c.batch(0.0)
        positions += torch.bincount(batch.position_ids.flatten(), minlength=16)
        tokens += torch.bincount(batch.input_ids.flatten(), minlength=50)
    assert (positions > 0).all()
    assert (tokens > 0).all()
    assert positions.sum() == 200 * 64


def test_at_full_length_positions_start_at_zero() -> None:
    assert (curriculum().batch(0.9).position_ids == torch.arange(16)).all()


def test_the_state_of_the_generator_is_the_position_in_the_data() -> None:
    c = curriculum()
    c.batch(0.0)
    state = c.generator.get_state()
    first = [c.batch(p) for p in (0.1, 0.5, 0.9)]
    c.generator.set_state(state)
    for a, b in zip(first, [c.batch(p) for p in (0.1, 0.5, 0.9)], strict=True):
        assert torch.equal(a.input_ids, b.input_ids)
        assert torch.equal(a.position_ids, b.position_ids)


@pytest.mark.parametrize(
    "text", ["", "a", "16,,32", "32,16", "16,16", "1,2", "16:0", "16:-1", "16:x", "16:nan"]
)
def test_bad_schedules_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="bad schedule"):
        parse_schedule(text)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"positions": 15}, "max_position_embeddings is 15"),
        ({"n": 15}, "shorter than one sequence of 16"),
        ({"batch_tokens": 15}, "do not hold one sequence"),
    ],
)
def test_what_does_not_fit_is_refused(arguments: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        curriculum(**arguments)


def test_a_frame_stands_at_both_ends_of_each_row_and_changes_no_text() -> None:
    text = torch.arange(100, 200)
    plain = Curriculum(text, parse_schedule("8"), 32, 16, torch.Generator().manual_seed(0))
    inside = Curriculum(text, parse_schedule("8"), 32, 16, torch.Generator().manual_seed(0), (2, 3))
    without, with_frame = plain.batch(0.5).input_ids, inside.batch(0.5).input_ids
    assert (with_frame[:, 0] == 2).all()
    assert (with_frame[:, -1] == 3).all()
    assert torch.equal(without[:, 1:-1], with_frame[:, 1:-1])
    assert torch.equal(text, torch.arange(100, 200))
