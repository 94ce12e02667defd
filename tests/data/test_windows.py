"""Random windows of a text, at random positions."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from labml_bert.data.windows import Batch, put_cls_sep, random_windows
from tests.support.strategies import is_consecutive


def windows(T: int, generator: torch.Generator, n: int = 1000) -> Batch:
    """64 tokens in windows of length `T`, at any of 16 positions."""
    return random_windows(torch.arange(n), 64 // T, T, 16, generator)


def new_generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


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


@given(st.data())
def test_windows_are_contiguous_text_at_consecutive_positions(data: st.DataObject) -> None:
    draw = data.draw
    T = draw(st.integers(1, 8))
    n, positions = draw(st.integers(T, 20)), draw(st.integers(T, 12))
    B = draw(st.integers(0, 5))
    ids = torch.arange(100, 100 + n)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    batch = random_windows(ids, B, T, positions, generator)
    assert batch.input_ids.shape == batch.position_ids.shape == (B, T)
    for row, row_positions in zip(batch.input_ids.tolist(), batch.position_ids.tolist(), strict=True):
        assert is_consecutive(row)
        assert is_consecutive(row_positions)
        assert set(row) <= set(ids.tolist())
        assert row_positions[0] >= 0
        assert row_positions[-1] < positions
    assert ids.tolist() == [*range(100, 100 + n)]


@given(st.integers(0, 3), st.integers(2, 5), st.none() | st.tuples(st.integers(0, 9), st.integers(0, 9)))
def test_cls_and_sep_replace_the_ends_of_any_row(B: int, T: int, cls_sep: tuple[int, int] | None) -> None:
    rows = torch.arange(B * T).view(B, T)
    expected = [row if cls_sep is None else [cls_sep[0], *row[1:-1], cls_sep[1]] for row in rows.tolist()]
    assert put_cls_sep(rows, cls_sep).tolist() == expected
    assert rows.flatten().tolist() == [*range(B * T)]
