"""
# Checks: pairs and heads

What the steps in `nsp.py` and `heads.py` must do. The pairs are random, and a solution may draw in another
order, so the checks observe which pairs occur, how often, and whether any sentence is lost.
"""

import random
from collections.abc import Callable, Iterator
from typing import Any

import torch

from labml_bert.bert import BertConfig
from labml_bert.course.compare import Near, Probe
from labml_bert.course.probes.tools import FixedDropout, gradients, numbers, raises, set_weights

# Token 100 * d + 10 * s + i is the i-th token of sentence s of document d.
DOCUMENTS = [
    [[100 * d + 10 * s + i for i in range(size)] for s, size in enumerate(sizes)]
    for d, sizes in enumerate([(3, 4, 2, 5, 3, 4), (2, 6, 3), (4,), (3, 3, 3, 3)], 1)
]
CLS, SEP = 1, 2


def maker(m: Any, **options: Any) -> Any:
    """Pairs of the documents above, of at most 20 tokens."""
    return m.PairMaker(DOCUMENTS, CLS, SEP, **{"max_length": 20, "short_seq_prob": 0.0, **options})


def repeats(draw: Callable[[random.Random], Any]) -> tuple[str, bool]:
    """Observes whether `draw(generator)` gives the same results for generators with the same seed."""
    first, second = (
        [draw(generator) for _ in range(50)] for generator in (random.Random(1), random.Random(1))
    )
    return "whether a generator with the same seed leads to the same results", first == second


def probe_elsewhere(m: Any) -> Iterator[tuple[str, Any]]:
    generator, pairs = random.Random(0), maker(m)
    results = [(index, pairs.elsewhere(index, 5, generator)) for _ in range(300) for index in range(4)]
    yield "the type of the result", type(results[0][1]).__name__
    yield (
        "the number of results from the document of the first text",
        sum(tokens[0] // 100 == index + 1 for index, tokens in results),
    )
    for index in (0, 1):
        documents = [tokens[0] // 100 for i, tokens in results if i == index]
        words = f"if the first text is from document {index + 1} of 4"
        yield f"the documents of the results, {words}", sorted({*documents})
        fractions = {number: Near(documents.count(number) / 300, 0.15) for number in sorted({*documents})}
        yield f"the fraction of the results from each document, {words}", fractions
    yield "the first tokens that occur", sorted({tokens[0] for _, tokens in results})
    yield "the results that occur", sorted({tuple(tokens) for _, tokens in results})
    short = [pairs.elsewhere(0, length, generator) for length in (0, -3) for _ in range(9)]
    yield "whether the result has at least one sentence if length is 0 or less", all(map(len, short))
    yield repeats(lambda generator: pairs.elsewhere(0, 5, generator))


def probe_pairs(m: Any) -> Iterator[tuple[str, Any]]:
    def collect(maker: Any, index: int, count: int = 300) -> list[tuple[list[int], list[int], int]]:
        """A, B and the label of each pair, before the pair is cut to length."""
        generator = random.Random(0)
        maker.assemble = lambda a, b, label, generator: (list(a), list(b), label)
        return [pair for _ in range(count) for pair in maker.pairs_of(index, generator)]

    ordered = [token for sentence in DOCUMENTS[0] for token in sentence]
    pairs = collect(maker(m, random_next_prob=0.0, max_length=12), 0)
    following = [(a, b) for a, b, label in pairs if label == 0]
    yield (
        "the number of pairs labeled 0 in which B doesn't follow A, with random_next_prob=0",
        sum(ordered.index(a[-1]) + 1 != ordered.index(b[0]) for a, b in following),
    )
    yield "the pairs labeled 0 that occur in document 1", sorted({(*a, SEP, *b) for a, b in following})
    pairs = collect(maker(m, random_next_prob=1.0, max_length=12), 0)
    yield "the labels that occur, with random_next_prob=1", sorted({label for *_, label in pairs})
    yield "the documents of B, with random_next_prob=1", sorted({b[0] // 100 for _, b, _ in pairs})
    yield "the first texts that occur, with random_next_prob=1", sorted({tuple(a) for a, *_ in pairs})
    fake = maker(m, random_next_prob=1.0, max_length=12)
    requests: list[tuple[int, int]] = []

    def record_request(index: int, length: int, generator: random.Random) -> list[int]:
        requests.append((index, length))
        return []

    fake.elsewhere = record_request
    firsts = [a for a, *_ in collect(fake, 0)]
    yield "the document that elsewhere must avoid", sorted({index for index, _ in requests})
    totals = {len(a) + length for a, (_, length) in zip(firsts, requests, strict=True)}
    yield "the length of A and the length asked of elsewhere, together, if the target is 9", sorted(totals)
    requests.clear()
    fake.short_seq_prob = 1.0
    firsts = [a for a, *_ in collect(fake, 0)]
    totals = {len(a) + length for a, (_, length) in zip(firsts, requests, strict=True)}
    yield "these lengths together if short_seq_prob is 1", sorted(totals)
    fake.short_seq_prob = 0.5
    lengths = []
    for seed in range(200):
        requests.clear()
        firsts = [a for a, *_ in fake.pairs_of(0, random.Random(seed))]
        lengths.append(len({len(a) + length for a, (_, length) in zip(firsts, requests, strict=True)}))
    yield "the largest number of target lengths in one document", max(lengths)
    short = maker(m, random_next_prob=0.0, max_length=5, lone_sentence_is_random=False)
    yield "the pairs of three long sentences, unless lone_sentence_is_random", collect(short, 1, 1)
    yield "the pairs of four long sentences, unless lone_sentence_is_random", collect(short, 3, 1)
    pairs = collect(maker(m), 0, 1000)
    yield "the fraction of pairs labeled 1", Near(sum(label for *_, label in pairs) / len(pairs), 0.04)
    for name, options in (("if", {}), ("unless", {"lone_sentence_is_random": False})):
        labels = [label for *_, label in collect(maker(m, **options), 2, 3)]
        yield f"the labels of a document with one sentence, {name} lone_sentence_is_random", labels
    fake = maker(m, max_length=12)
    fake.elsewhere = lambda index, length, generator: [100]
    fake.assemble = lambda a, b, label, generator: (list(a), list(b), label)
    yield repeats(lambda generator: list(fake.pairs_of(0, generator)))


def probe_assemble(m: Any) -> Iterator[tuple[str, Any]]:
    generator, pairs = random.Random(0), maker(m, max_length=10)
    short = pairs.assemble([11, 12], [21, 22, 23], 1, generator)
    yield "the input ids of a short pair", short.input_ids
    yield "the token types of a short pair", short.token_type_ids
    yield "the label", short.next_sentence_label
    a, b = [11, 12, 13, 14, 15, 16], [21, 22, 23]
    results = [tuple(pairs.assemble(a, b, 0, generator).input_ids) for _ in range(200)]
    yield "whether the lists of the caller stay as they are", (len(a), len(b)) == (6, 3)
    yield "the pairs that occur if 6 + 3 tokens have to become 7", sorted(set(results))
    many = [pairs.assemble(a, b, 0, generator).input_ids for _ in range(2000)]
    cut = sum(ids[1] - a[0] for ids in many) / (2 * len(many))
    yield "the fraction of tokens that are cut at the front", Near(cut, 0.06)
    balanced = [tuple(pairs.assemble(b, a, 0, generator).input_ids) for _ in range(200)]
    yield "the pairs that occur if 3 + 6 tokens have to become 7", sorted(set(balanced))
    equal = [tuple(pairs.assemble(a, [x + 10 for x in a], 0, generator).input_ids) for _ in range(500)]
    longer = {max(ids.index(SEP) - 1, 8 - ids.index(SEP)) for ids in equal}
    yield "the length of the longer text if 6 + 6 tokens have to become 7", sorted(longer)
    yield repeats(lambda generator: pairs.assemble(a, b, 0, generator).input_ids)


def probe_collate(m: Any) -> Iterator[tuple[str, Any]]:
    rows = [m.SentencePair([1, 5, 2, 6, 2], [0, 0, 0, 1, 1], 1), m.SentencePair([1, 5, 2], [0, 0, 0], 0)]
    batch = m.collate(rows, 9)
    yield "the names of the tensors", sorted(batch)
    for name in ("input_ids", "attention_mask", "token_type_ids", "next_sentence_label"):
        yield name, batch[name]
    rows = [m.SentencePair([0, 5, 2, 0, 2], [0, 0, 0, 1, 1], 1), m.SentencePair([0, 5, 2], [0, 0, 0], 0)]
    yield "the attention mask if the texts contain pad_token_id", m.collate(rows)["attention_mask"]


def probe_loss(m: Any) -> Iterator[tuple[str, Any]]:
    logits, labels = numbers(4, 2), torch.tensor([0, 1, 0, -100])
    yield "the loss of a uniform guess", m.next_sentence_loss(torch.zeros(2, 2), torch.tensor([0, 1]))
    yield "the loss of four pairs, of which one is labeled -100", m.next_sentence_loss(logits, labels)
    yield "the loss of a single pair", m.next_sentence_loss(logits[:1], labels[:1])
    yield "the loss without any label", m.next_sentence_loss(logits, torch.full((4,), -100))
    empty = m.next_sentence_loss(logits.clone().requires_grad_(), torch.full((4,), -100))
    yield "whether the loss without any label has a gradient", empty.requires_grad
    inputs = logits.clone().requires_grad_()
    loss = m.next_sentence_loss(inputs, torch.full((4,), -100))
    yield "the gradient of the loss without any label", gradients(loss, {"logits": inputs})
    yield "the loss of a micro-batch", m.next_sentence_loss(logits, labels, torch.tensor(12))
    yield "the loss of bfloat16 logits", m.next_sentence_loss(logits.bfloat16(), labels)


IDS = torch.tensor([[1, 2, 3, 4, 5], [5, 6, 1, 0, 0]])
MASK = (IDS != 0).long()
CONFIG = BertConfig(
    vocab_size=11,
    hidden_size=12,
    num_hidden_layers=1,
    num_attention_heads=3,
    intermediate_size=20,
    max_position_embeddings=9,
)


def probe_texts(m: Any) -> Iterator[tuple[str, Any]]:
    model = set_weights(m.BertForSequenceClassification(CONFIG, ["a", "b", "c"]))
    yield "the output without labels", model(IDS)
    yield "the output with labels", model(IDS, torch.tensor([2, 0]))
    yield "the output with a mask", model(IDS, torch.tensor([2, 0]), attention_mask=MASK)
    with torch.autocast("cpu", torch.bfloat16):
        yield "the type of the logits under autocast", str(model(IDS).logits.dtype)
    yield "the gradients", gradients(model(IDS).logits, dict(model.named_parameters()))
    model.dropout = FixedDropout()
    yield "the output with dropout", model(IDS)


def probe_tokens(m: Any) -> Iterator[tuple[str, Any]]:
    model = set_weights(m.BertForTokenClassification(CONFIG, ["a", "b", "c"]))
    labels = torch.tensor([[-100, 0, 1, 2, -100], [-100, 2, 2, -100, -100]])
    yield "the output without labels", model(IDS)
    yield "the output with labels", model(IDS, labels)
    yield "the output with a mask", model(IDS, labels, attention_mask=MASK)
    yield "the loss if no token has a label", model(IDS, torch.full_like(IDS, -100)).loss
    is_refused = raises(model, IDS, torch.tensor([1, 2])) != "no error"
    yield "whether labels of texts, (B,), are refused", is_refused
    with torch.autocast("cpu", torch.bfloat16):
        yield "the type of the logits under autocast", str(model(IDS).logits.dtype)
    yield "the gradients", gradients(model(IDS).logits, dict(model.named_parameters()))
    model.dropout = FixedDropout()
    yield "the output with dropout", model(IDS)


PROBES: dict[str, Probe] = {
    "nsp.py:PairMaker.elsewhere": probe_elsewhere,
    "nsp.py:PairMaker.pairs_of": probe_pairs,
    "nsp.py:PairMaker.assemble": probe_assemble,
    "nsp.py:collate": probe_collate,
    "nsp.py:next_sentence_loss": probe_loss,
    "heads.py:BertForSequenceClassification.forward": probe_texts,
    "heads.py:BertForTokenClassification.forward": probe_tokens,
}
