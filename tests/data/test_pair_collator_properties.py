"""Properties of the batch built from any rows of sentence pairs."""

from functools import cache

import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from labml_bert.data.pair_collator import MaskingArguments, PairCollator, pad_lists
from labml_bert.data.tokenizers import wordpiece_tokenizer
from labml_bert.mlm import IGNORE
from tests.support.strategies import PROBABILITY


@cache
def wordpiece() -> Tokenizer:
    return wordpiece_tokenizer(["ab abc abcd b. bcd"], 30)


@given(st.lists(st.lists(st.lists(st.integers(0, 300), max_size=4), max_size=3), max_size=3), st.data())
def test_padding_of_columns(chunks: list[list[list[int]]], data: st.DataObject) -> None:
    """Columns of any number of chunks are padded correctly, also after slicing."""
    column = pa.chunked_array(
        [pa.array(chunk, pa.list_(pa.uint16())) for chunk in chunks], pa.list_(pa.uint16())
    )
    rows = [row for chunk in chunks for row in chunk]
    start = data.draw(st.integers(0, len(rows)))
    count = data.draw(st.integers(0, len(rows) - start))
    rows, column = rows[start : start + count], column.slice(start, count)
    T = data.draw(st.integers(max(map(len, rows), default=0), 6))
    result = pad_lists(column, T, 7)
    assert result.shape == (len(rows), T)
    assert result.tolist() == [row + [7] * (T - len(row)) for row in rows]


@given(st.data())
def test_rows_become_batches(data: st.DataObject) -> None:
    draw, vocab = data.draw, wordpiece().get_vocab()
    V, special = len(vocab), range(5)
    tokens = draw(st.lists(st.lists(st.integers(0, V - 1), max_size=6), max_size=3))
    rows = {
        "tokens": pa.array(tokens, pa.list_(pa.uint16())),
        "segment_ids": pa.array([[i % 2 for i in row] for row in tokens], pa.list_(pa.uint8())),
        "is_random_next": pa.array(draw(st.lists(st.booleans(), min_size=len(tokens), max_size=len(tokens)))),
    }
    static = draw(st.booleans())
    positions = [sorted(draw(st.sets(st.sampled_from(range(len(r)))))) if r else [] for r in tokens]
    if static:
        rows["masked_positions"] = pa.array(positions, pa.list_(pa.uint16()))
        originals = [[(at + 1) % V for at in row] for row in positions]
        rows["masked_labels"] = pa.array(originals, pa.list_(pa.uint16()))
    arguments = MaskingArguments(draw(PROBABILITY), draw(st.none() | st.integers(1, 3)), True)
    masking = draw(st.sampled_from([None, arguments]))
    length = draw(st.none() | st.integers(1, 8))
    collator = PairCollator(wordpiece(), masking, length, torch.Generator().manual_seed(0))
    longest = max(map(len, tokens), default=0)
    table = pa.table(rows)
    if not tokens or (static and masking) or (length is not None and longest > length):
        with pytest.raises(ValueError, match="row"):
            collator(table)
        return
    batch = collator(table)
    T = length or longest
    labels = batch["labels"]
    assert batch["next_sentence_label"].tolist() == [int(x) for x in rows["is_random_next"].to_pylist()]
    assert {values.dtype for values in batch.values()} == {torch.int64}
    for b, row in enumerate(tokens):
        padding = T - len(row)
        assert batch["attention_mask"][b].tolist() == [1] * len(row) + [0] * padding
        assert batch["token_type_ids"][b].tolist() == [i % 2 for i in row] + [0] * padding
        labeled_positions = [t for t in range(T) if labels[b, t] != IGNORE]
        if static:
            assert batch["input_ids"][b].tolist() == row + [0] * padding
            assert labeled_positions == positions[b]
            assert labels[b, labeled_positions].tolist() == [(at + 1) % V for at in labeled_positions]
            continue
        for t in range(T):
            assert t in labeled_positions or batch["input_ids"][b, t] == (row + [0] * padding)[t]
        assert all(
            t < len(row) and row[t] not in special and labels[b, t] == row[t] for t in labeled_positions
        )
        word_id, word_ids = -1, []
        for token in batch["input_ids"][b].tolist():
            word_id += not wordpiece().id_to_token(token).startswith("##")
            word_ids.append(max(0, word_id))
        assert collator.word_ids(batch["input_ids"])[b].tolist() == word_ids
        if masking:
            names = [wordpiece().id_to_token(i) for i in row]
            words: list[list[int]] = []
            for t, token in enumerate(names):
                # A subword continues the token before it, unless that token is special.
                if token.startswith("##") and words and row[words[-1][0]] not in special:
                    words[-1].append(t)
                else:
                    words.append([t])
            for word in words:
                assert set(word) <= set(labeled_positions) or not set(word) & set(labeled_positions)
