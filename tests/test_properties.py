"""
What holds for any input, against oracles that are slow and obvious: loops over Python lists.

A hundred examples a property, the same ones each time; `make test-long` draws ten thousand new ones.
"""

import dataclasses
import json
import math
import random
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from safetensors.torch import load_file, save
from tokenizers import Tokenizer
from torch import Tensor

from labml_bert.bert import BertConfig, BertModel, Dropout
from labml_bert.data.curriculum import Curriculum, framed, parse_schedule
from labml_bert.data.pair_collator import Masking, PairCollator, padded
from labml_bert.data.tokenizers import wordpiece_tokenizer
from labml_bert.mlm import (
    IGNORE,
    BertLMPredictionHead,
    MaskedLM,
    TokenMasker,
    masked_accuracy,
    masked_lm_loss,
    masked_lm_output,
)
from labml_bert.models import (
    BertForMaskedLM,
    BertForPreTraining,
    parameter_table,
    read_config,
    read_tensors,
)
from labml_bert.nsp import (
    IS_NEXT,
    IS_RANDOM,
    BertOnlyNSPHead,
    PairMaker,
    SentencePair,
    collate,
    next_sentence_loss,
)

WHOLE = (torch.int32, torch.int64)
DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
]
SHARE = st.sampled_from([0.0, 0.15, 1.0]) | st.floats(0, 1)


def grid(draw: st.DrawFn, B: int, T: int, values: st.SearchStrategy[int]) -> Tensor:
    """Any int64 tensor `(B, T)` of the values."""
    return torch.tensor(draw(st.lists(values, min_size=B * T, max_size=B * T)), dtype=torch.int64).view(B, T)


def rounded(x: float) -> int:
    """To the nearest whole number, as `round` of the original."""
    return round(x)


# Dropout


@given(st.floats(0, 1, exclude_max=True), st.integers(0, 2**32), st.integers(0, 5))
@example(7e-6, 0, 0)
@example(0.999995, 0, 0)
def test_dropout_keeps_or_drops_and_the_mean_stays(p: float, seed: int, dims: int) -> None:
    torch.manual_seed(seed)
    x = torch.full((4,) * dims + (4**6,), 3.0) if dims < 2 else torch.full((2,) * dims + (3,), 3.0)
    before = x.clone()
    y = Dropout(p).train()(x)
    assert y.shape == x.shape and torch.equal(x, before)
    if p == 0:
        assert torch.equal(y, x)
        return
    kept = y[y != 0].double() / 3
    if len(kept):
        # The factor is that of the share that is dropped, which is near p and is neither all nor nothing.
        share = 1 - 1 / kept[0].item()
        assert bool((kept == kept[0]).all())
        assert 0 < share < 1 and abs(share - p) < 1.1 / 2**16
    n, dropped = x.numel(), x.numel() - len(kept)
    expected = min(max(p, 2**-16), 1 - 2**-16)
    assert abs(dropped - n * expected) < 7 * math.sqrt(n * expected * (1 - expected)) + n * 2**-16 + 7


# Masking


@dataclasses.dataclass
class ToMask:
    """A masker and a batch for it."""

    vocab_size: int
    mask: int
    specials: set[int]
    given: set[int]
    p: float
    masked: float
    random: float
    most: int | None
    seed: int
    input_ids: Tensor
    attention_mask: Tensor | None
    word_ids: Tensor | None

    def run(self) -> tuple[Tensor, Tensor]:
        masker = TokenMasker(
            self.vocab_size,
            self.mask,
            self.given,
            mlm_probability=self.p,
            mask_replace_prob=self.masked,
            random_replace_prob=self.random,
            max_predictions_per_seq=self.most,
            generator=torch.Generator().manual_seed(self.seed),
        )
        return masker(self.input_ids, self.attention_mask, self.word_ids)


@st.composite
def to_mask(draw: st.DrawFn) -> ToMask:
    V = draw(st.integers(2, 9))
    specials = draw(st.sets(st.integers(0, V - 1), min_size=1, max_size=V - 1))
    mask = draw(st.sampled_from(sorted(specials)))
    B, T = draw(st.integers(0, 3)), draw(st.integers(0, 7))
    masked = draw(SHARE)
    attention_mask = word_ids = None
    if draw(st.booleans()):
        attention_mask = grid(draw, B, T, st.integers(0, 1)).to(draw(st.sampled_from(DTYPES)))
    if draw(st.booleans()):
        word_ids = grid(draw, B, T, st.integers(-2, T - 1))
    return ToMask(
        V,
        mask,
        specials,
        # `[MASK]` is special whether or not it is listed.
        draw(st.sampled_from([specials, specials - {mask}])),
        draw(SHARE),
        masked,
        (1 - masked) * draw(SHARE),
        draw(st.none() | st.integers(1, 6)),
        draw(st.integers(0, 2**32)),
        grid(draw, B, T, st.integers(0, V - 1)).to(draw(st.sampled_from(WHOLE))),
        attention_mask,
        word_ids,
    )


def candidates_of(case: ToMask, row: int) -> list[int]:
    """The places of a row that may be chosen."""
    found = []
    for t, token in enumerate(case.input_ids[row].tolist()):
        if token in case.specials:
            continue
        if case.attention_mask is not None and not case.attention_mask[row, t]:
            continue
        if case.word_ids is not None and case.word_ids[row, t] < 0:
            continue
        found.append(t)
    return found


def words_of(case: ToMask, row: int, places: list[int]) -> list[list[int]]:
    """The places by word; each its own where there are no words."""
    if case.word_ids is None:
        return [[t] for t in places]
    words: dict[int, list[int]] = {}
    for t in places:
        words.setdefault(int(case.word_ids[row, t]), []).append(t)
    return list(words.values())


@given(to_mask())
def test_masking(case: ToMask) -> None:
    """Which places may be chosen, how many must be, what may stand there then, and nothing else."""
    before = case.input_ids.clone()
    seen, labels = case.run()
    assert torch.equal(case.input_ids, before)
    assert seen.dtype == before.dtype
    assert labels.dtype == torch.int64
    assert seen.shape == labels.shape == before.shape
    for row, ids in enumerate(before.tolist()):
        candidates = candidates_of(case, row)
        chosen = [t for t, label in enumerate(labels[row].tolist()) if label != IGNORE]
        assert set(chosen) <= set(candidates)
        for t, token in enumerate(ids):
            shown = int(seen[row, t])
            if t not in chosen:
                assert shown == token
                continue
            assert labels[row, t] == token
            possible = set()
            if case.masked > 0:
                possible.add(case.mask)
            if case.random > 0:
                possible |= set(range(case.vocab_size)) - case.specials
            if case.masked + case.random < 1:
                possible.add(token)
            assert shown in possible

        words = words_of(case, row, candidates)
        left = [word for word in words if not set(word) & set(chosen)]
        assert all(set(word) <= set(chosen) for word in words if word not in left)
        if case.most is None:
            if case.p == 0:
                assert not chosen
            if case.p == 1:
                assert not left
        else:
            count = min(max(1, rounded(len(candidates) * case.p)), case.most)
            assert len(chosen) <= count
            # A word was passed over only because it did not fit any more.
            assert all(len(word) > count - len(chosen) for word in left)


@given(to_mask())
def test_the_state_of_the_generator_decides_all_of_the_masking(case: ToMask) -> None:
    (first, labels), (again, same) = case.run(), case.run()
    assert torch.equal(first, again)
    assert torch.equal(labels, same)


ANY_SHARE = st.sampled_from([0.0, 0.8, 1.0, math.nan, math.inf, -0.1]) | st.floats()


@given(
    st.integers(-1, 6),
    st.integers(-2, 6) | st.none(),
    st.lists(st.integers(-2, 6) | st.none(), max_size=7),
    st.tuples(ANY_SHARE, ANY_SHARE, ANY_SHARE),
    st.none() | st.integers(-1, 2),
)
@example(5, 4, [0], (0.15, math.nan, 0.1), None)
@example(5, 4, [0], (0.15, 0.8, math.nan), None)
@example(5, None, [0], (0.15, 0.8, 0.1), None)
def test_a_masker_is_built_or_refused(
    vocab_size: int, mask: Any, specials: Any, shares: tuple[float, float, float], most: int | None
) -> None:
    p, masked, drawn = shares
    every = {mask, *specials}
    good = (
        0 <= p <= 1
        and masked >= 0
        and drawn >= 0
        and masked + drawn <= 1
        and all(i is not None and 0 <= i < vocab_size for i in every)
        and len(every) < vocab_size
        and (most is None or most >= 1)
    )
    if good:
        TokenMasker(vocab_size, mask, specials, p, masked, drawn, most)
    else:
        with pytest.raises(ValueError, match=r"."):
            TokenMasker(vocab_size, mask, specials, p, masked, drawn, most)


@given(
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 3), max_size=3),
    st.integers(-2, 6),
    st.none() | st.integers(1, 2),
)
# PyTorch takes these for masks over the vocabulary, and this for its last token.
@example(torch.bool, [5], 1, None)
@example(torch.uint8, [5], 1, None)
@example(torch.int64, [1, 3], -1, None)
@example(torch.int64, [1, 3], 5, None)
@example(torch.int64, [2, 3, 3], 1, 2)
def test_ids_are_whole_numbers_of_the_vocabulary_in_rows_or_refused(
    dtype: torch.dtype, shape: list[int], value: int, most: int | None
) -> None:
    masker = TokenMasker(5, 4, [0], max_predictions_per_seq=most)
    ids = torch.zeros(shape).to(dtype)
    if ids.numel():
        ids.view(-1)[-1] = value
    if dtype in WHOLE and len(shape) == 2 and (0 <= value < 5 or not ids.numel()):
        assert masker(ids).labels.dtype == torch.int64
    else:
        with pytest.raises(ValueError, match="input_ids"):
            masker(ids)


@given(st.sampled_from(DTYPES), st.lists(st.integers(0, 3), max_size=3), st.sampled_from([0, 1, -1, -10_000]))
@example(torch.float32, [2, 3], -10_000)
@example(torch.float32, [2, 3], -1)
@example(torch.int64, [2, 1, 3], 1)
@example(torch.int64, [2, 1], 1)
def test_a_mask_fits_the_ids_or_is_refused(dtype: torch.dtype, shape: list[int], value: int) -> None:
    """One to be added to scores would hide all tokens and show the padding."""
    ids, attention_mask = torch.ones(2, 3, dtype=torch.long), torch.ones(shape).to(dtype)
    if attention_mask.numel() and (value >= 0 or dtype.is_floating_point):
        attention_mask.view(-1)[0] = value
    masker, model = TokenMasker(5, 4, [0]), tiny_model()
    if shape == [2, 3] and (attention_mask >= 0).all():
        masker(ids, attention_mask)
        model(ids, attention_mask)
    else:
        for refuse in (masker, model):
            with pytest.raises(ValueError, match="attention_mask"):
                refuse(ids, attention_mask)


# The losses


def minus_log_p(logits: list[float], label: int) -> float:
    top = max(logits)
    return top + math.log(sum(math.exp(x - top) for x in logits)) - logits[label]


@st.composite
def scored(draw: st.DrawFn, most: int, sizes: st.SearchStrategy[int]) -> tuple[Tensor, Tensor]:
    """Logits `(M, V)` in any precision and labels `(M)`, some or all of them -100."""
    M, V = draw(st.integers(0, most)), draw(sizes)
    numbers = st.floats(-1e4, 1e4, width=32) | st.sampled_from([0.0, 1e4, -1e4])
    logits = torch.tensor(draw(st.lists(numbers, min_size=M * V, max_size=M * V))).view(M, V)
    labels = st.sampled_from([IGNORE, 0, V - 1]) | st.integers(0, V - 1)
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float64]))
    return logits.to(dtype), grid(draw, 1, M, labels)[0]


@given(scored(5, st.integers(1, 5)))
@example((torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)))
@example((torch.zeros(2, 3), torch.tensor([IGNORE, IGNORE])))
def test_the_masked_loss_and_the_accuracy(case: tuple[Tensor, Tensor]) -> None:
    logits, labels = case
    logits.requires_grad_()
    counted = [m for m, label in enumerate(labels.tolist()) if label != IGNORE]
    rows = logits.tolist()
    expected = sum(minus_log_p(rows[m], int(labels[m])) for m in counted) / max(1, len(counted))
    loss = masked_lm_loss(logits, labels)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected, rel=1e-5, abs=1e-4)
    loss.backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    for m in range(len(rows)):
        assert m in counted or not logits.grad[m].any()

    # Among equal logits any may count as the first.
    firsts = [m for m in counted if rows[m][labels[m]] == max(rows[m])]
    sure = [m for m in firsts if rows[m].count(max(rows[m])) == 1]
    right = masked_accuracy(logits, labels).item() * max(1, len(counted))
    assert len(sure) - 1e-4 <= right <= len(firsts) + 1e-4


@given(scored(5, st.just(2)))
@example((torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64)))
@example((torch.zeros(2, 2), torch.tensor([IGNORE, IGNORE])))
def test_the_loss_of_pairs(case: tuple[Tensor, Tensor]) -> None:
    logits, labels = case
    counted = [m for m, label in enumerate(labels.tolist()) if label != IGNORE]
    expected = sum(minus_log_p(logits[m].tolist(), int(labels[m])) for m in counted) / max(1, len(counted))
    loss = next_sentence_loss(logits, labels)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected, rel=1e-5, abs=1e-4)


@given(st.sampled_from(DTYPES), st.integers(-3, 8))
def test_labels_are_classes_or_refused(dtype: torch.dtype, label: int) -> None:
    """-1 is no label to pass over, and no fraction is one. What PyTorch refuses it names itself."""
    labels = torch.tensor([label]).to(dtype)
    allowed = dtype in (torch.int64, torch.uint8)
    for loss, size in ((masked_lm_loss, 5), (next_sentence_loss, 2)):
        if allowed and 0 <= labels.item() < size:
            assert loss(torch.zeros(1, size), labels).item() == pytest.approx(math.log(size))
        else:
            with pytest.raises((RuntimeError, IndexError)):
                loss(torch.zeros(1, size), labels)


@given(st.data())
def test_the_head_works_where_there_is_a_label_and_nowhere_else(data: st.DataObject) -> None:
    B, T, D, V = (data.draw(st.integers(*bounds)) for bounds in ((0, 3), (0, 4), (1, 3), (1, 4)))
    labels = grid(data.draw, B, T, st.sampled_from([IGNORE, 0, V - 1]))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    head = shaken(BertLMPredictionHead(D, V), generator)
    hidden = torch.randn((B, T, D), generator=generator, dtype=torch.float64).requires_grad_()
    embedding = torch.randn((V, D), generator=generator, dtype=torch.float64)
    output = masked_lm_output(head, hidden, embedding, labels)
    places = [(b, t) for b in range(B) for t in range(T) if labels[b, t] != IGNORE]
    every = [[head_by_hand(head, x, embedding) for x in row] for row in hidden.tolist()]
    assert output.labels is not None
    assert output.loss is not None
    assert output.labels.tolist() == [int(labels[place]) for place in places]
    assert close(output.logits, [every[b][t] for b, t in places])
    total = sum(minus_log_p(every[b][t], int(labels[b, t])) for b, t in places)
    assert output.loss.item() == pytest.approx(total / max(1, len(places)), rel=1e-5, abs=1e-5)
    # One class has nothing to learn. Else a place is moved if and only if it has a label.
    output.loss.backward()
    assert hidden.grad is not None
    assert hidden.grad.isfinite().all()
    for b in range(B):
        for t in range(T):
            assert labels[b, t] != IGNORE or not hidden.grad[b, t].any()

    without = masked_lm_output(head, hidden, embedding, None)
    assert without.loss is None
    assert without.labels is None
    assert without.logits.shape == (B, T, V)
    assert close(without.logits, every)
    # The model hands on what the encoder gives, alone or first in a tuple.
    table = torch.nn.Embedding(V, D).double()
    for encoder in (lambda ids: hidden, lambda ids: (hidden, None)):
        model = MaskedLM(encoder, table)  # type: ignore[arg-type]
        model.head, model._embedding[0].weight.data = head, embedding
        assert torch.equal(model(torch.zeros(B, T), labels).logits, output.logits)


# The encoder


def shaken(module: Any, generator: torch.Generator) -> Any:
    """Double precision and weights of size 1, so that no error hides behind a zero."""
    module = module.double().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return module


def linear(layer: Any, x: list[float]) -> list[float]:
    rows, biases = layer.weight.tolist(), layer.bias.tolist()
    return [sum(w * v for w, v in zip(row, x, strict=True)) + b for row, b in zip(rows, biases, strict=True)]


def layer_norm(layer: Any, x: list[float]) -> list[float]:
    mean = sum(x) / len(x)
    variance = sum((v - mean) ** 2 for v in x) / len(x)
    scale, shift = layer.weight.tolist(), layer.bias.tolist()
    return [
        (v - mean) / math.sqrt(variance + layer.eps) * s + h for v, s, h in zip(x, scale, shift, strict=True)
    ]


def gelu(x: list[float]) -> list[float]:
    return [v * 0.5 * (1 + math.erf(v / math.sqrt(2))) for v in x]


def plus(*vectors: list[float]) -> list[float]:
    return [sum(values) for values in zip(*vectors, strict=True)]


def head_by_hand(head: Any, x: list[float], embedding: Tensor) -> list[float]:
    h = layer_norm(head.transform.LayerNorm, gelu(linear(head.transform.dense, x)))
    rows, biases = embedding.tolist(), head.bias.tolist()
    return [sum(e * v for e, v in zip(row, h, strict=True)) + b for row, b in zip(rows, biases, strict=True)]


def bert_by_hand(
    model: BertModel, ids: list[int], keep: list[bool], types: list[int], positions: list[int]
) -> tuple[list[list[float]], list[float], list[list[list[list[float]]]]]:
    """One sequence: its vectors, the pooled one, and the weights by layer, head, query and key."""
    e, heads = model.embeddings, model.config.num_attention_heads
    d = model.config.hidden_size // heads
    tables = [
        table.weight.tolist() for table in (e.word_embeddings, e.position_embeddings, e.token_type_embeddings)
    ]
    xs = [
        layer_norm(e.LayerNorm, plus(tables[0][i], tables[1][p], tables[2][s]))
        for i, p, s in zip(ids, positions, types, strict=True)
    ]
    attentions = []
    for layer in model.encoder.layer:
        a = layer.attention.self
        qs, ks, vs = ([linear(part, x) for x in xs] for part in (a.query, a.key, a.value))
        weights: list[list[list[float]]] = []
        contexts: list[list[float]] = [[] for _ in xs]
        for h in range(heads):
            cut = slice(h * d, (h + 1) * d)
            weights.append([])
            for t, q in enumerate(qs):
                scores = [sum(a * b for a, b in zip(q[cut], k[cut], strict=True)) / math.sqrt(d) for k in ks]
                top = max(s for s, kept in zip(scores, keep, strict=True) if kept)
                parts = [math.exp(s - top) if kept else 0.0 for s, kept in zip(scores, keep, strict=True)]
                weights[h].append([part / sum(parts) for part in parts])
                columns = zip(*(v[cut] for v in vs), strict=True)
                contexts[t] += [sum(w * v for w, v in zip(weights[h][t], c, strict=True)) for c in columns]
        attentions.append(weights)
        out = layer.attention.output
        xs = [
            layer_norm(out.LayerNorm, plus(x, linear(out.dense, c)))
            for x, c in zip(xs, contexts, strict=True)
        ]
        out = layer.output
        wide = [gelu(linear(layer.intermediate.dense, x)) for x in xs]
        xs = [layer_norm(out.LayerNorm, plus(x, linear(out.dense, w))) for x, w in zip(xs, wide, strict=True)]
    pooled = [math.tanh(v) for v in linear(model.pooler.dense, xs[0])] if model.pooler is not None else []
    return xs, pooled, attentions


def close(ours: Tensor, expected: Any) -> bool:
    """Nearly equal, or both empty."""
    other = torch.tensor(expected, dtype=torch.float64)
    return other.numel() == ours.numel() and bool(
        (ours.reshape(-1).double() - other.reshape(-1)).abs().le(1e-6).all()
    )


def tiny(**sizes: Any) -> BertConfig:
    few = {"num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 2}
    return BertConfig(**{"vocab_size": 5, "hidden_size": 2, "max_position_embeddings": 4, **few, **sizes})


@cache
def tiny_model() -> BertModel:
    return BertModel(tiny()).eval()


@given(st.data())
def test_the_encoder(data: st.DataObject) -> None:
    """Every vector, the pooled one and the weights of attention."""
    draw = data.draw
    heads = draw(st.integers(1, 2))
    config = tiny(
        vocab_size=draw(st.integers(1, 4)),
        hidden_size=heads * draw(st.integers(2, 3)),
        num_hidden_layers=draw(st.integers(1, 2)),
        num_attention_heads=heads,
        intermediate_size=draw(st.integers(1, 3)),
        max_position_embeddings=draw(st.integers(1, 5)),
        type_vocab_size=draw(st.integers(1, 3)),
        layer_norm_eps=draw(st.sampled_from([1e-12, 1e-5, 1.0])),
    )
    model = shaken(
        BertModel(config, add_pooling_layer=draw(st.booleans())),
        torch.Generator().manual_seed(draw(st.integers(0, 999))),
    )
    B, T = draw(st.integers(0, 2)), draw(st.integers(1, config.max_position_embeddings))
    ids = grid(draw, B, T, st.integers(0, config.vocab_size - 1))
    inputs: dict[str, Tensor] = {}
    if draw(st.booleans()):
        inputs["attention_mask"] = grid(draw, B, T, st.integers(0, 1)).to(draw(st.sampled_from(DTYPES)))
    if draw(st.booleans()):
        inputs["token_type_ids"] = grid(draw, B, T, st.integers(0, config.type_vocab_size - 1))
    if draw(st.booleans()):
        inputs["position_ids"] = grid(draw, B, T, st.integers(0, config.max_position_embeddings - 1))
    weights = draw(st.booleans())
    output = model(ids.to(draw(st.sampled_from(WHOLE))), **inputs, output_attentions=weights)
    assert (output.attentions is None) != weights
    assert (output.pooler_output is None) == (model.pooler is None)
    assert output.last_hidden_state.isfinite().all()
    for b, row in enumerate(ids.tolist()):
        keep = inputs["attention_mask"][b].bool().tolist() if "attention_mask" in inputs else [True] * T
        if not any(keep):
            continue
        types = inputs["token_type_ids"][b].tolist() if "token_type_ids" in inputs else [0] * T
        positions = inputs["position_ids"][b].tolist() if "position_ids" in inputs else [*range(T)]
        xs, pooled, attentions = bert_by_hand(model, row, keep, types, positions)
        assert close(output.last_hidden_state[b], xs)
        assert output.pooler_output is None or close(output.pooler_output[b], pooled)
        if weights:
            assert close(torch.stack([layer[b] for layer in output.attentions]), attentions)


@given(st.sampled_from(DTYPES), st.integers(-2, 6), st.integers(0, 6))
def test_the_encoder_takes_ids_of_its_vocabulary_and_no_more_than_its_positions(
    dtype: torch.dtype, value: int, T: int
) -> None:
    ids = torch.full((1, T), value).to(dtype)
    if T and T <= 4 and dtype in WHOLE and 0 <= value < 5:
        assert tiny_model()(ids).last_hidden_state.shape == (1, T, 2)
    elif T > 4:
        with pytest.raises(ValueError, match=f"{T} tokens"):
            tiny_model()(ids)
    else:
        with pytest.raises((IndexError, RuntimeError)):
            tiny_model()(ids)


COUNT = st.integers(-1, 4) | st.sampled_from([2.0, True, None, "2", math.nan])
FRACTION = st.sampled_from([0.0, 0.1, 1.0, math.nan, math.inf, -0.1]) | st.floats(allow_nan=True)


@given(st.data())
def test_sizes_make_a_model_or_are_refused(data: st.DataObject) -> None:
    counts = {
        field.name: data.draw(st.integers(1, 4) | COUNT if data.draw(st.booleans()) else st.integers(1, 4))
        for field in dataclasses.fields(BertConfig)
        if field.type is int
    }
    counts["pad_token_id"] = data.draw(st.integers(-1, 4))
    fractions = {
        field.name: data.draw(FRACTION if data.draw(st.booleans()) else st.just(0.01))
        for field in dataclasses.fields(BertConfig)
        if field.type is float
    }
    whole = all(type(value) is int for value in counts.values())
    good = (
        whole
        and all(value >= 1 for name, value in counts.items() if name != "pad_token_id")
        and counts["hidden_size"] % counts["num_attention_heads"] == 0
        and 0 <= counts["pad_token_id"] < counts["vocab_size"]
        and all(0 <= value < 1 for name, value in fractions.items() if name.endswith("prob"))
        and all(0 < value < math.inf for name, value in fractions.items() if not name.endswith("prob"))
    )
    if not good:
        with pytest.raises(ValueError, match=r"is|must|not"):
            BertConfig(**counts, **fractions)
        return
    config = BertConfig(**counts, **fractions)
    assume(1e-30 < config.initializer_range < 1e30)
    model = BertModel(config)
    shapes = [
        (config.vocab_size + config.max_position_embeddings + config.type_vocab_size) * config.hidden_size,
        2 * config.hidden_size,
        config.num_hidden_layers
        * (
            4 * config.hidden_size * (config.hidden_size + 1)
            + 4 * config.hidden_size
            + 2 * config.hidden_size * config.intermediate_size
            + config.intermediate_size
            + config.hidden_size
        ),
        config.hidden_size * (config.hidden_size + 1),
    ]
    assert sum(p.numel() for p in model.parameters()) == sum(shapes)
    for name, p in model.named_parameters():
        if name.endswith("LayerNorm.weight"):
            assert (p == 1).all()
        elif name.endswith("bias"):
            assert not p.any()
        else:
            assert p.abs().max() <= 2 * config.initializer_range * (1 + 1e-6)


# Pairs

CLS, SEP = -1, -2
# Numbers that say where a token stands: the document, and the place in it.
DOCUMENTS = st.lists(st.lists(st.integers(0, 6), max_size=6), max_size=4).map(
    lambda sizes: [
        [
            [*range(1000 * d + sum(document[:s]), 1000 * d + sum(document[: s + 1]))]
            for s in range(len(document))
        ]
        for d, document in enumerate(sizes)
    ]
)


def is_run(tokens: list[int]) -> bool:
    """Whether the tokens stand side by side in one document."""
    return all(b == a + 1 for a, b in pairwise(tokens))


def sides(pair: SentencePair) -> tuple[list[int], list[int]]:
    """A and B, and all else as it must be."""
    ids = pair.input_ids
    cut = ids.index(SEP)
    first, second = ids[1:cut], ids[cut + 1 : -1]
    assert ids == [CLS, *first, SEP, *second, SEP]
    assert pair.token_type_ids == [0] * (len(first) + 2) + [1] * (len(second) + 1)
    return first, second


@given(
    DOCUMENTS,
    st.integers(3, 20) | st.just(500),
    SHARE | st.sampled_from([-0.1, 1.1, math.nan]),
    SHARE | st.sampled_from([-0.1, 1.1, math.nan]),
    st.booleans(),
    st.integers(0, 2**32),
)
@example([[[0]], [[1000]]], 5, 1.1, 0.5, True, 0)
@example([[[0]], [[1000]]], 5, 0.1, math.nan, True, 0)
@example([[[0]], [[1000]]], 5, -0.1, 0.5, True, 0)
@example([[[0]], [[1000]]], 5, 0.1, -0.1, True, 0)
def test_pairs(
    documents: list[list[list[int]]], length: int, short: float, share: float, lone: bool, seed: int
) -> None:
    kept = [[token for sentence in document for token in sentence] for document in documents]
    kept = [tokens for tokens in kept if tokens]
    arguments = (documents, CLS, SEP, length, short, share, lone)
    if len(kept) < 2 or length < 5 or not 0 <= short <= 1 or not 0 <= share <= 1:
        with pytest.raises(ValueError, match=r"."):
            PairMaker(*arguments)
        return
    maker = PairMaker(*arguments)
    for index, tokens in enumerate(kept):
        used = []
        for pair in maker.pairs_of(index, random.Random(seed)):
            first, second = sides(pair)
            assert 5 <= len(pair.input_ids) <= length
            assert is_run(first)
            assert is_run(second)
            assert set(first) <= set(tokens)
            if pair.next_sentence_label == IS_NEXT:
                assert set(second) <= set(tokens)
                assert first[-1] < second[0]
                used += first + second
            else:
                assert pair.next_sentence_label == IS_RANDOM
                assert not set(second) & set(tokens)
                used += first
            if share == 1:
                assert pair.next_sentence_label == IS_RANDOM
            if share == 0 and not lone:
                assert pair.next_sentence_label == IS_NEXT
        # In their order, and none twice.
        assert all(a < b for a, b in pairwise(used))
    passes = list(maker(random.Random(seed)))
    assert passes == list(PairMaker(*arguments)(random.Random(seed)))
    if lone:
        assert {pair.input_ids[1] // 1000 for pair in passes} == {tokens[0] // 1000 for tokens in kept}


@given(DOCUMENTS, st.integers(2, 20), SHARE, st.booleans(), st.integers(0, 2**32))
def test_no_text_is_left_out(
    documents: list[list[list[int]]], target: int, share: float, lone: bool, seed: int
) -> None:
    """Where no pair is so long that it is cut, every token is used once, but a lone last sentence."""
    documents = [[sentence for sentence in document if sentence] for document in documents]
    documents = [document for document in documents if document]
    assume(len(documents) > 1)
    maker = PairMaker(documents, CLS, SEP, 500, 0.1, share, lone)
    maker.target_length = lambda generator: target  # type: ignore[method-assign]
    for index, document in enumerate(documents):
        used: list[int] = []
        for pair in maker.pairs_of(index, random.Random(seed)):
            first, second = sides(pair)
            used += first + (second if pair.next_sentence_label == IS_NEXT else [])
            # A pile ends with the sentence that fills it, or with the second where one is not enough.
            if pair.next_sentence_label == IS_NEXT:
                last = next(sentence for sentence in document if sentence[-1] == second[-1])
                enough = len(first) + len(second) - len(last) >= target
                assert not enough or (not lone and len(first) + len(second) - len(last) == len(first))
        tokens = [token for sentence in document for token in sentence]
        assert used == tokens or (not lone and [*used, *document[-1]] == tokens)


@given(DOCUMENTS, st.integers(-3, 20), st.integers(0, 99))
def test_text_from_elsewhere(documents: list[list[list[int]]], length: int, seed: int) -> None:
    """Whole sentences of another document, as many as fill the length or as there are."""
    documents = [[sentence for sentence in document if sentence] for document in documents]
    documents = [document for document in documents if document]
    assume(len(documents) > 1)
    maker = PairMaker(documents, CLS, SEP)
    index = seed % len(documents)
    tokens = maker.elsewhere(index, length, random.Random(seed))
    possible = []
    for document in documents[:index] + documents[index + 1 :]:
        for start in range(len(document)):
            run = [*document[start]]
            for sentence in document[start + 1 :]:
                if len(run) < length:
                    run += sentence
            possible.append(run)
    assert tokens in possible


@given(st.integers(1, 12), st.integers(1, 12), st.integers(5, 20), st.integers(0, 99))
def test_cutting_takes_from_the_longer_side_and_no_more_than_needed(
    a: int, b: int, length: int, seed: int
) -> None:
    first, second = [*range(a)], [*range(100, 100 + b)]
    maker = PairMaker([[[0]], [[1]]], CLS, SEP, length)
    pair = maker.assemble(first, second, IS_NEXT, random.Random(seed))
    kept = sides(pair)
    room = length - 3
    while a + b > room:
        if a > b:
            a -= 1
        else:
            b -= 1
    assert (len(kept[0]), len(kept[1])) == (a, b)
    assert all(is_run(side) for side in kept)
    assert set(kept[0]) <= set(first)
    assert set(kept[1]) <= set(second)
    assert pair.next_sentence_label == IS_NEXT
    # The caller's lists are the caller's.
    assert first == [*range(len(first))]
    assert second == [*range(100, 100 + len(second))]


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 9), max_size=5), st.integers(0, 1)), max_size=4),
    st.integers(0, 9),
)
@example([], 0)
def test_collate(rows: list[tuple[list[int], int]], pad: int) -> None:
    pairs = [SentencePair(ids, [i % 2 for i in ids], label) for ids, label in rows]
    if not pairs:
        with pytest.raises(ValueError, match="no pair"):
            collate(pairs, pad)
        return
    batch = collate(pairs, pad)
    T = max(len(ids) for ids, _ in rows)
    assert batch["next_sentence_label"].tolist() == [label for _, label in rows]
    for b, (ids, _) in enumerate(rows):
        left = T - len(ids)
        assert batch["input_ids"][b].tolist() == ids + [pad] * left
        assert batch["attention_mask"][b].tolist() == [1] * len(ids) + [0] * left
        assert batch["token_type_ids"][b].tolist() == [i % 2 for i in ids] + [0] * left
    assert {values.dtype for values in batch.values()} == {torch.int64}


@given(st.integers(0, 3), st.integers(1, 3), st.integers(0, 99))
def test_the_head_for_pairs(B: int, D: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    head = shaken(BertOnlyNSPHead(D), generator)
    pooled = torch.randn((B, D), generator=generator, dtype=torch.float64)
    assert close(head(pooled), [linear(head.seq_relationship, x) for x in pooled.tolist()])


# Pairs in files


@cache
def pieces() -> Tokenizer:
    return wordpiece_tokenizer(["ab abc abcd b. bcd"], 30)


@given(st.lists(st.lists(st.lists(st.integers(0, 300), max_size=4), max_size=3), max_size=3), st.data())
def test_padding_of_columns(chunks: list[list[list[int]]], data: st.DataObject) -> None:
    """In any number of chunks, and seen through any slice."""
    column = pa.chunked_array(
        [pa.array(chunk, pa.list_(pa.uint16())) for chunk in chunks], pa.list_(pa.uint16())
    )
    rows = [row for chunk in chunks for row in chunk]
    start = data.draw(st.integers(0, len(rows)))
    count = data.draw(st.integers(0, len(rows) - start))
    rows, column = rows[start : start + count], column.slice(start, count)
    T = data.draw(st.integers(max(map(len, rows), default=0), 6))
    result = padded(column, T, 7)
    assert result.shape == (len(rows), T)
    assert result.tolist() == [row + [7] * (T - len(row)) for row in rows]


@given(st.data())
def test_rows_become_batches(data: st.DataObject) -> None:
    draw, vocab = data.draw, pieces().get_vocab()
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
        covered = [[(at + 1) % V for at in row] for row in positions]
        rows["masked_labels"] = pa.array(covered, pa.list_(pa.uint16()))
    masking = draw(st.sampled_from([None, Masking(draw(SHARE), draw(st.none() | st.integers(1, 3)), True)]))
    length = draw(st.none() | st.integers(1, 8))
    collator = PairCollator(pieces(), masking, length, torch.Generator().manual_seed(0))
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
        left = T - len(row)
        assert batch["attention_mask"][b].tolist() == [1] * len(row) + [0] * left
        assert batch["token_type_ids"][b].tolist() == [i % 2 for i in row] + [0] * left
        chosen = [t for t in range(T) if labels[b, t] != IGNORE]
        if static:
            assert batch["input_ids"][b].tolist() == row + [0] * left
            assert chosen == positions[b]
            assert labels[b, chosen].tolist() == [(at + 1) % V for at in chosen]
            continue
        for t in range(T):
            assert t in chosen or batch["input_ids"][b, t] == (row + [0] * left)[t]
        assert all(t < len(row) and row[t] not in special and labels[b, t] == row[t] for t in chosen)
        number, numbers = -1, []
        for token in batch["input_ids"][b].tolist():
            number += not pieces().id_to_token(token).startswith("##")
            numbers.append(max(0, number))
        assert collator.word_ids(batch["input_ids"])[b].tolist() == numbers
        if masking:
            names = [pieces().id_to_token(i) for i in row]
            words: list[list[int]] = []
            for t, token in enumerate(names):
                # A piece goes on with the word before it, where that is a word.
                if token.startswith("##") and words and row[words[-1][0]] not in special:
                    words[-1].append(t)
                else:
                    words.append([t])
            for word in words:
                assert set(word) <= set(chosen) or not set(word) & set(chosen)


# Short sequences first


@given(st.text("0123456789:,. -einfa", max_size=12))
@example("16:nan")
def test_a_schedule_is_read_or_refused(text: str) -> None:
    def number(kind: Any, word: str) -> Any:
        try:
            return kind(word)
        except ValueError:
            return math.nan

    parts = [part.partition(":") for part in text.split(",")]
    lengths = [number(int, length) for length, _, _ in parts]
    weights = [number(float, weight or "1") for _, _, weight in parts]
    good = (
        all(length >= 2 for length in lengths)
        and all(a < b for a, b in pairwise(lengths))
        and all(0 < weight < math.inf for weight in weights)
    )
    if not good:
        with pytest.raises(ValueError, match="bad schedule"):
            parse_schedule(text)
        return
    stages = parse_schedule(text)
    assert [stage.length for stage in stages] == lengths
    assert [stage.share for stage in stages] == pytest.approx([w / sum(weights) for w in weights])


@given(st.data())
def test_windows_are_runs_of_text_at_runs_of_positions(data: st.DataObject) -> None:
    draw = data.draw
    lengths = sorted(draw(st.sets(st.integers(2, 8), min_size=1, max_size=3)))
    weights = [draw(st.integers(1, 4)) for _ in lengths]
    text = ",".join(f"{length}:{weight}" for length, weight in zip(lengths, weights, strict=True))
    n, batch_tokens, positions = (draw(st.integers(1, top)) for top in (20, 30, 12))
    frame = draw(st.sampled_from([None, (-1, -2)]))
    ids = torch.arange(100, 100 + n)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    arguments = (ids, parse_schedule(text), batch_tokens, positions, generator, frame)
    if lengths[-1] > min(n, batch_tokens, positions):
        with pytest.raises(ValueError, match=str(lengths[-1])):
            Curriculum(*arguments)
        return
    curriculum = Curriculum(*arguments)
    progress = draw(st.integers(0, sum(weights))) / sum(weights) + draw(st.sampled_from([0, 1e-9, -1e-9]))
    spent, expected = 0, lengths[-1]
    for length, weight in zip(lengths, weights, strict=True):
        spent += weight
        if progress * sum(weights) < spent - 1e-12:
            expected = length
            break
    T = curriculum.length(progress)
    # On the border itself the last bit of a sum decides.
    if abs(progress * sum(weights) - round(progress * sum(weights))) > 1e-12:
        assert expected == T
    batch = curriculum.batch(progress)
    assert batch.input_ids.shape == batch.position_ids.shape == (batch_tokens // T, T)
    for row, places in zip(batch.input_ids.tolist(), batch.position_ids.tolist(), strict=True):
        if frame:
            assert (row[0], row[-1]) == frame
            row = row[1:-1]
        assert is_run(row)
        assert is_run(places)
        assert set(row) <= set(ids.tolist())
        assert places[0] >= 0
        assert places[-1] < positions
    assert ids.tolist() == [*range(100, 100 + n)]


@given(st.integers(0, 3), st.integers(2, 5), st.none() | st.tuples(st.integers(0, 9), st.integers(0, 9)))
def test_a_frame(B: int, T: int, frame: tuple[int, int] | None) -> None:
    rows = torch.arange(B * T).view(B, T)
    expected = [row if frame is None else [frame[0], *row[1:-1], frame[1]] for row in rows.tolist()]
    assert framed(rows, frame).tolist() == expected
    assert rows.flatten().tolist() == [*range(B * T)]


# Whole models


@st.composite
def models(draw: st.DrawFn) -> BertForMaskedLM | BertForPreTraining:
    heads = draw(st.integers(1, 2))
    config = tiny(
        vocab_size=draw(st.integers(1, 6)),
        hidden_size=heads * draw(st.integers(1, 2)),
        num_attention_heads=heads,
        num_hidden_layers=draw(st.integers(1, 2)),
    )
    model = draw(st.sampled_from([BertForMaskedLM, BertForPreTraining]))(config)
    return shaken(model, torch.Generator().manual_seed(draw(st.integers(0, 99)))).float()


@given(models())
def test_a_model_comes_back_from_its_folder(model: BertForMaskedLM | BertForPreTraining) -> None:
    with TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        again = type(model).from_pretrained(folder)
        tensors = load_file(Path(folder) / "model.safetensors")
    assert again.config == model.config
    assert not again.training
    mine = dict(model.named_parameters())
    assert mine.keys() == tensors.keys() == dict(again.named_parameters()).keys()
    for name, p in again.named_parameters():
        assert torch.equal(p, mine[name])
    other = type(model)(model.config)
    other.load_state_dict(model.state_dict())
    assert all(torch.equal(p, mine[name]) for name, p in other.named_parameters())
    table = parameter_table(model)
    assert table[-1] == ("together", sum(p.numel() for p in model.parameters()))
    assert sum(count for _, count in table[:-1]) == table[-1][1]


@given(models(), st.integers(-1, 9))
def test_a_vocabulary_of_another_size(model: BertForMaskedLM | BertForPreTraining, size: int) -> None:
    """The tokens that stay keep row, bias and logit; new ones start small; nothing is left behind."""
    model.eval()
    if size < 1:
        with pytest.raises(ValueError, match="no room for the padding token"):
            model.resize_token_embeddings(size)
        return
    kept = min(size, model.config.vocab_size)
    ids = torch.arange(kept)[None, :4]
    before = model.bert.embeddings.word_embeddings.weight.detach().clone()
    bias = model.cls.predictions.bias.detach().clone()
    logits = model(ids).logits if isinstance(model, BertForMaskedLM) else model(ids).prediction_logits
    model.resize_token_embeddings(size)
    after = model(ids).logits if isinstance(model, BertForMaskedLM) else model(ids).prediction_logits
    table = model.bert.embeddings.word_embeddings
    assert model.config.vocab_size == table.num_embeddings == len(table.weight) == size
    assert table.padding_idx == model.config.pad_token_id
    assert torch.equal(table.weight[:kept], before[:kept])
    assert (table.weight[kept:].abs() <= 2 * model.config.initializer_range).all()
    assert torch.equal(model.cls.predictions.bias[:kept], bias[:kept])
    assert not model.cls.predictions.bias[kept:].any()
    assert after.shape == (*ids.shape, size)
    assert torch.allclose(after[..., :kept], logits[..., :kept], atol=1e-5)
    assert table.weight.requires_grad
    assert model.cls.predictions.bias.requires_grad


@given(models(), st.data())
def test_the_losses_add_up(model: BertForMaskedLM | BertForPreTraining, data: st.DataObject) -> None:
    assume(isinstance(model, BertForPreTraining))
    B, T = data.draw(st.integers(0, 3)), data.draw(st.integers(1, 4))
    V = model.config.vocab_size
    ids = grid(data.draw, B, T, st.integers(0, V - 1))
    labels = data.draw(st.sampled_from([None, grid(data.draw, B, T, st.sampled_from([IGNORE, 0, V - 1]))]))
    pairs = data.draw(st.sampled_from([None, grid(data.draw, 1, B, st.integers(0, 1))[0]]))
    output = model.eval()(ids, labels, pairs)
    assert (output.masked_lm_loss is None) == (labels is None)
    assert (output.next_sentence_loss is None) == (pairs is None)
    parts = [loss.item() for loss in (output.masked_lm_loss, output.next_sentence_loss) if loss is not None]
    assert (output.loss is None) == (not parts)
    if output.loss is not None:
        assert output.loss.item() == pytest.approx(sum(parts), abs=1e-5)
        assert output.loss.isfinite()
    assert output.seq_relationship_logits.shape == (B, 2)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 9) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
FIELDS = [field.name for field in dataclasses.fields(BertConfig)]


@given(
    JSON
    | st.dictionaries(st.sampled_from([*FIELDS, "model_type", "hidden_act"]), JSON)
    | st.binary(max_size=9)
)
def test_any_config_is_read_or_refused(content: Any) -> None:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    with TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_bytes(data)
        try:
            config = read_config(Path(folder))
        except ValueError as error:
            assert "config.json" in str(error)
        else:
            assert all(value == content[name] for name, value in vars(config).items() if content.get(name))


@given(st.binary(max_size=40), st.integers(0, 200), st.booleans())
@example(b"", 0, True)
def test_any_weights_are_read_or_refused(noise: bytes, at: int, cut: bool) -> None:
    """Noise, a whole file with some bytes put over it, and one that ends early."""
    whole = save({"bert.x": torch.ones(3), "cls.predictions.bias": torch.zeros(2)})
    with TemporaryDirectory() as folder:
        for data in (noise, whole[:at] + noise + whole[at + len(noise) :], whole[: at if cut else None]):
            (Path(folder) / "model.safetensors").write_bytes(data)
            try:
                found = read_tensors(Path(folder))
            except ValueError as error:
                assert "model.safetensors" in str(error)
            else:
                assert all(isinstance(tensor, Tensor) for tensor in found.values())
