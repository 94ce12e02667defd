"""Schedules, window lengths, and schedules that make no sense."""

import pytest
import torch

from labml_bert.data.curriculum import (
    Batch,
    length_at,
    parse_schedule,
    put_cls_sep,
    random_windows,
    stage_ends,
)


def windows(T: int, generator: torch.Generator, n: int = 1000) -> Batch:
    """64 tokens in windows of length `T`, at any of 16 positions."""
    return random_windows(torch.arange(n), 64 // T, T, 16, generator)


def new_generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_equal_and_weighted_fractions() -> None:
    assert [s.fraction for s in parse_schedule("16,32")] == [0.5, 0.5]
    assert [(s.length, s.fraction) for s in parse_schedule("16:1, 128:3")] == [(16, 0.25), (128, 0.75)]


def test_the_length_follows_the_progress() -> None:
    stages = parse_schedule("4:1,8:1,16:2")
    lengths = [length_at(stages, progress) for progress in (0, 0.24, 0.25, 0.49, 0.5, 0.99, 1)]
    assert lengths == [4, 4, 8, 8, 16, 16, 16]
    assert stage_ends(stages) == [0.25, 0.5, 1]


def test_every_batch_has_64_tokens_in_contiguous_windows() -> None:
    generator = new_generator()
    for T in (4, 8, 16):
        ids, positions = windows(T, generator)
        assert ids.shape == positions.shape == (64 // T, T)
        assert (ids.diff(dim=1) == 1).all()
        assert (positions.diff(dim=1) == 1).all()


def test_the_first_stage_already_uses_every_position_and_token() -> None:
    generator = new_generator()
    positions, tokens = torch.zeros(16), torch.zeros(50)
    for _ in range(200):
        batch = windows(4, generator, n=50)
        positions += torch.bincount(batch.position_ids.flatten(), minlength=16)
        tokens += torch.bincount(batch.input_ids.flatten(), minlength=50)
    assert (positions > 0).all()
    assert (tokens > 0).all()
    assert positions.sum() == 200 * 64


def test_at_full_length_positions_start_at_zero() -> None:
    assert (windows(16, new_generator()).position_ids == torch.arange(16)).all()


def test_the_generator_state_determines_the_windows() -> None:
    generator = new_generator()
    windows(4, generator)
    state = generator.get_state()
    first = [windows(T, generator) for T in (4, 8, 16)]
    generator.set_state(state)
    for a, b in zip(first, [windows(T, generator) for T in (4, 8, 16)], strict=True):
        assert torch.equal(a.input_ids, b.input_ids)
        assert torch.equal(a.position_ids, b.position_ids)


@pytest.mark.parametrize(
    "text", ["", "a", "16,,32", "32,16", "16,16", "1,2", "16:0", "16:-1", "16:x", "16:nan"]
)
def test_bad_schedules_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="bad schedule"):
        parse_schedule(text)


def test_cls_and_sep_replace_the_ends_of_each_row() -> None:
    text = torch.arange(100, 200)
    without = random_windows(text, 4, 8, 16, new_generator()).input_ids
    original = without.clone()
    with_specials = put_cls_sep(without, (2, 3))
    assert (with_specials[:, 0] == 2).all()
    assert (with_specials[:, -1] == 3).all()
    assert torch.equal(without[:, 1:-1], with_specials[:, 1:-1])
    assert torch.equal(without, original)
    assert put_cls_sep(without, None) is without
    assert torch.equal(text, torch.arange(100, 200))
