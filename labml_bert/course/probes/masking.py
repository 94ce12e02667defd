"""
# Checks: masked language modeling

What the steps in `mlm.py` must do, observed on small inputs. A solution may draw its random numbers in
another order than the reference, so the checks of the masker observe counts and fractions.
"""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from labml_bert.course.compare import Near, Probe
from labml_bert.course.probes.tools import gradients, numbers, raises, set_weights

V, MASK, SPECIAL = 40, 4, range(4)


def probe_loss(m: Any) -> Iterator[tuple[str, Any]]:
    labels = torch.tensor([7, -100, 0, -100, -100, -100])
    none, logits = torch.full((6,), -100), numbers(6, V)
    yield "the loss of a uniform guess among 100 tokens", m.masked_lm_loss(torch.zeros(4, 100), labels[:4])
    yield "the loss of six positions, of which two are labeled", m.masked_lm_loss(logits, labels)
    yield "the loss without any label", m.masked_lm_loss(logits, none)
    yield "the loss with a single label", m.masked_lm_loss(logits[:2], labels[:2])
    empty = m.masked_lm_loss(logits.clone().requires_grad_(), none)
    yield "whether the loss without any label has a gradient", empty.requires_grad
    inputs = logits.clone().requires_grad_()
    loss = m.masked_lm_loss(inputs, none)
    yield "the gradient of the loss without any label", gradients(loss, {"logits": inputs})
    whole = torch.tensor(2)
    yield (
        "the sum of the losses of two micro-batches",
        m.masked_lm_loss(logits[:1], labels[:1], whole) + m.masked_lm_loss(logits[1:], labels[1:], whole),
    )
    yield "the loss of logits in the hundreds", m.masked_lm_loss(200 * logits, labels)
    yield "the loss of bfloat16 logits", m.masked_lm_loss(logits.bfloat16(), labels)
    yield "the loss of a micro-batch without labels", m.masked_lm_loss(logits, none, whole)


def probe_accuracy(m: Any) -> Iterator[tuple[str, Any]]:
    logits, labels = numbers(6, V), torch.tensor([-100] * 6)
    labels[:4] = logits[:4].argmax(-1) + torch.tensor([0, 1, 0, 1])
    yield "the accuracy, with two of four labeled positions right", m.masked_accuracy(logits, labels)
    yield "the accuracy without any label", m.masked_accuracy(logits, torch.full((6,), -100))
    yield "the accuracy with a single label", m.masked_accuracy(logits[2:3], labels[2:3])
    yield "the accuracy of a micro-batch", m.masked_accuracy(logits, labels, torch.tensor(8))


def masker(m: Any, **options: Any) -> Any:
    """A masker of the module, with a generator of its own."""
    return m.TokenMasker(V, MASK, SPECIAL, generator=torch.Generator().manual_seed(0), **options)


def probe_ordinary_ids(m: Any) -> Iterator[tuple[str, Any]]:
    small = m.TokenMasker(8, 4, [0, 2])
    yield "is_special, with the special tokens 0 and 2 and the mask token 4", small.is_special.tolist()
    yield "ordinary_ids", small.ordinary_ids
    yield "ordinary_ids with a single ordinary token", m.TokenMasker(3, 2, [0]).ordinary_ids


def fraction(part: Tensor, whole: Tensor, tolerance: float) -> Near:
    """The fraction of true entries in `whole` that are also true in `part`."""
    return Near((part & whole).sum().item() / max(1, int(whole.sum())), tolerance)


def probe_choose(m: Any) -> Iterator[tuple[str, Any]]:
    is_candidate = numbers(200, 200, seed=4321) < 1.0
    before = torch.get_rng_state()
    result = masker(m).choose(is_candidate)
    yield "the shape and the type", (tuple(result.shape), str(result.dtype))
    yield "the number of chosen tokens that aren't candidates", int((result & ~is_candidate).sum())
    yield "the fraction of candidates that are chosen", fraction(result, is_candidate, 0.01)
    half = masker(m, mlm_probability=0.5).choose(is_candidate)
    yield "the fraction chosen if mlm_probability is 0.5", fraction(half, is_candidate, 0.02)
    yield "whether all draws are from self.generator", torch.equal(before, torch.get_rng_state())
    one = masker(m)
    is_same = torch.equal(one.choose(is_candidate), one.choose(is_candidate))
    yield "whether two calls choose the same tokens", is_same
    words = (torch.arange(200) // 2).expand(200, 200)
    all_tokens = torch.ones_like(is_candidate)
    counts = masker(m).choose(all_tokens).sum(1)
    yield "whether the number of chosen tokens varies between rows", len(counts.unique()) > 1
    result = masker(m).choose(all_tokens, words)
    yield "the number of words chosen only in part", int((result[:, ::2] != result[:, 1::2]).sum())
    yield "the fraction of words that are chosen", fraction(result, all_tokens, 0.02)
    yield "the fraction of the first words that are chosen", fraction(result[:, :2], all_tokens[:, :2], 0.1)
    both = (result[:, 0] & result[:, 2]).float().mean().item()
    yield "the fraction of rows in which the first two words are both chosen", Near(both, 0.06)
    # In every second row, the words begin one token earlier.
    result = masker(m).choose(all_tokens, (torch.arange(200) + torch.arange(200)[:, None] % 2) // 2)
    parts = result[::2], result[1::2, 1:-1]
    number = sum(int((part[:, ::2] != part[:, 1::2]).sum()) for part in parts)
    yield "the number of words chosen only in part if the rows have different words", number
    outside = torch.where(torch.arange(200) < 100, words, -1)
    result = masker(m).choose(outside >= 0, outside)
    yield "whether some tokens are chosen if others have the word id -1", bool(result.any())
    sizes = torch.tensor([200, 100, 40, 3])
    some = torch.arange(200) >= 200 - sizes[:, None]
    result = masker(m, max_predictions_per_seq=20).choose(some)
    yield "the number of chosen tokens in rows of 200, 100, 40 and 3, with a limit of 20", result.sum(1)
    yield "the number of chosen tokens that aren't candidates, with a limit", int((result & ~some).sum())
    nothing = masker(m, max_predictions_per_seq=20).choose(torch.zeros(1, 9).bool())
    yield "the number of chosen tokens in a row without candidates, with a limit", int(nothing.sum())
    half = masker(m, mlm_probability=0.5, max_predictions_per_seq=30).choose(some)
    yield "the number of chosen tokens in these rows if mlm_probability is 0.5 and the limit 30", half.sum(1)
    result = masker(m, max_predictions_per_seq=50).choose(all_tokens)
    yield (
        "the fraction chosen in the first half, with a limit",
        fraction(result[:, :100], all_tokens[:, :100], 0.01),
    )
    result = masker(m, max_predictions_per_seq=15).choose(all_tokens, words)
    yield "the number of chosen tokens, with a limit of 15 and words of 2 tokens", result.sum(1).unique()
    halves = result[:, ::2] != result[:, 1::2]
    yield "the number of words chosen only in part, with a limit", int(halves.sum())
    # Words of four tokens and of one token take turns.
    words = torch.arange(200) // 5 * 2 + (torch.arange(200) % 5 == 4)
    some = masker(m, mlm_probability=0.5, max_predictions_per_seq=100)
    result = some.choose(all_tokens, words.expand(200, 200))
    for name, index in (("four tokens", slice(0, None, 5)), ("one token", slice(4, None, 5))):
        part = fraction(result[:, index], all_tokens[:, index], 0.05)
        yield f"the fraction of words of {name} that are chosen, with a limit of half of the tokens", part


def probe_masker(m: Any) -> Iterator[tuple[str, Any]]:
    before = torch.get_rng_state()
    ids = torch.full((400, 400), 7)
    masked, labels = masker(m, mlm_probability=1.0)(ids.clone())
    everywhere = torch.ones_like(ids).bool()
    yield "the shapes", {"input_ids": tuple(masked.shape), "labels": tuple(labels.shape)}
    yield "the fraction of chosen tokens that become [MASK]", fraction(masked == MASK, everywhere, 0.004)
    yield "the fraction of chosen tokens that don't change", fraction(masked == 7, everywhere, 0.004)
    yield "whether special tokens occur as random tokens", bool((masked < MASK).any())
    options = {"mlm_probability": 1.0, "mask_replace_prob": 0.0, "random_replace_prob": 1.0}
    scattered = m.TokenMasker(V, 20, (0, 7, 33), generator=torch.Generator().manual_seed(0), **options)
    masked, labels = scattered(torch.arange(V).expand(2000, V).clone())
    with_special = "with the special tokens 0, 7 and 33 and the mask token 20"
    yield f"the tokens that are chosen, {with_special}", labels[labels != -100].unique()
    yield f"the random tokens, {with_special}", masked[:, 5].unique()
    options = {"mlm_probability": 1.0, "mask_replace_prob": 0.3, "random_replace_prob": 0.5}
    masked, _ = masker(m, **options)(ids.clone())
    name = "if mask_replace_prob is 0.3 and random_replace_prob is 0.5"
    yield f"the fraction of masks {name}", fraction(masked == MASK, everywhere, 0.01)
    yield f"the fraction of unchanged tokens {name}", fraction(masked == 7, everywhere, 0.01)
    options = {"mlm_probability": 1.0, "mask_replace_prob": 0.0, "random_replace_prob": 1.0}
    masked, _ = masker(m, **options)(ids.clone())
    for name, is_equal in (
        ("the one before it", masked[:, 1:] == masked[:, :-1]),
        ("the one above it", masked[1:] == masked[:-1]),
    ):
        yield (
            f"the fraction of random tokens that are the same as {name}",
            Near(is_equal.float().mean().item(), 0.01),
        )
    ids = torch.randint(V, (300, 100), generator=torch.Generator().manual_seed(1))
    original = ids.clone()
    masked, labels = masker(m)(ids)
    yield "whether the input stays as it was", torch.equal(ids, original)
    is_labeled = labels != -100
    is_special = original <= MASK
    yield "the number of special tokens that have a label", int((is_labeled & is_special).sum())
    yield "the fraction of ordinary tokens that have a label", fraction(is_labeled, ~is_special, 0.01)
    yield "the number of wrong labels", int((is_labeled & (labels != original)).sum())
    yield (
        "the number of tokens that changed but have no label",
        int((~is_labeled & (masked != original)).sum()),
    )
    random = masked[(masked != original) & (masked != MASK)]
    yield "the number of special tokens used as random tokens", int((random < MASK).sum())
    yield "whether all ordinary tokens occur as random tokens", len(random.unique()) == V - 5
    attention_mask = (torch.arange(100) < 60).long().expand(300, 100)
    labels = masker(m)(original, attention_mask).labels
    yield "the number of padded positions that have a label", int((labels[:, 60:] != -100).sum())
    is_labeled = labels != -100
    yield "the number of special tokens that have a label, with padding", int((is_labeled & is_special).sum())
    words = torch.where(torch.arange(100) < 50, torch.arange(100) // 2, -1).expand(300, 100)
    is_labeled = masker(m)(torch.full((300, 100), 7), None, words).labels != -100
    yield "the number of labels at tokens with the word id -1", int(is_labeled[:, 50:].sum())
    yield "the number of words labeled in part", int((is_labeled[:, ::2] != is_labeled[:, 1::2]).sum())
    yield "whether the word 0 is ever chosen", bool(is_labeled[:, 0].any())
    is_labeled = masker(m)(original, None, words).labels != -100
    yield "the number of special tokens that have a label, with words", int((is_labeled & is_special).sum())
    yield "whether all draws are from self.generator", torch.equal(before, torch.get_rng_state())
    sevens = torch.full((40, 40), 7)
    for name, options in (
        ("masks", {"mlm_probability": 1.0}),
        ("random tokens", {"mlm_probability": 1.0, "mask_replace_prob": 0.0, "random_replace_prob": 1.0}),
    ):
        one = masker(m, **options)
        first, second = (one(sevens.clone()).input_ids for _ in range(2))
        yield f"whether two calls draw the same {name}", torch.equal(first, second)
    yield "the type of the labels of int32 ids", str(masker(m)(original.int()).labels.dtype)
    yield "the answer to an id that isn't in the vocabulary", raises(masker(m), torch.tensor([[V]]))
    empty = masker(m)(original[:0])
    yield (
        "the shapes if the batch is empty",
        {"input_ids": tuple(empty[0].shape), "labels": tuple(empty[1].shape)},
    )
    yield "the answer to labels as input", raises(masker(m), torch.tensor([[-100]]))
    for name, inputs in (
        ("the id -1 is", (torch.tensor([[-1]]),)),
        ("ids of shape (T) are", (torch.tensor([7, 7]),)),
        ("a mask of another shape is", (torch.full((1, 4), 7), torch.ones(1, 1))),
    ):
        yield f"whether {name} refused", raises(masker(m), *inputs) != "no error"
    additive = torch.zeros(1, 4).index_fill(1, torch.tensor([3]), -1e9)
    yield "the answer to an additive mask", raises(masker(m), torch.full((1, 4), 7), additive)


def probe_select(m: Any) -> Iterator[tuple[str, Any]]:
    states, labels = numbers(2, 3, 4), torch.tensor([[-100, 0, -100], [5, -100, 1]])
    yield "the selected hidden states and labels", m.select_labeled(states, labels)
    states.requires_grad_()
    yield "the selected hidden states, with a gradient", m.select_labeled(states, labels)[0]
    yield "the result without labels", m.select_labeled(states, None)


def probe_transform(m: Any) -> Iterator[tuple[str, Any]]:
    yield "the result", set_weights(m.BertPredictionHeadTransform(6))(3 * numbers(2, 3, 6))


def probe_head(m: Any) -> Iterator[tuple[str, Any]]:
    head = set_weights(m.BertLMPredictionHead(6, 9))
    yield "the logits of M positions", head(numbers(4, 6), numbers(9, 6, seed=1))
    yield "the logits of (B, T) positions", head(numbers(2, 3, 6), numbers(9, 6, seed=1))
    inputs = {"hidden_states": numbers(4, 6), "embedding": numbers(9, 6, seed=1)}
    logits = head(*[x.requires_grad_() for x in inputs.values()])
    yield "the gradients", gradients(logits, inputs | dict(head.named_parameters()))


class Encoder(nn.Module):
    """An embedding, times a factor that the caller can pass."""

    def __init__(self, embedding: nn.Embedding, returns_tuple: bool):
        super().__init__()
        self.embedding, self.returns_tuple = embedding, returns_tuple

    def forward(self, input_ids: Tensor, factor: float = 1.0) -> Any:
        """Maps `(B, T)` to `(B, T, D)`, or to a tuple that begins with that tensor."""
        x = self.embedding(input_ids) * factor
        return (x, SimpleNamespace()) if self.returns_tuple else x


def probe_model(m: Any) -> Iterator[tuple[str, Any]]:
    embedding = nn.Embedding(9, 6)
    model = set_weights(m.MaskedLM(Encoder(embedding, False), embedding))
    ids, labels = torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.tensor([[-100, 2, -100], [-100, 5, 6]])
    yield "the loss, the logits and the labels", model(ids, labels)
    yield "the output without labels", model(ids)
    yield "the output for encoder inputs", model(ids, labels, factor=-3.0)
    yield "the output for a micro-batch", model(ids, labels, torch.tensor(6))
    model.encoder.returns_tuple = True
    yield "the output if the encoder returns a tuple", model(ids, labels)
    model = set_weights(m.MaskedLM(Encoder(nn.Embedding(9, 6), False), embedding))
    parameters = {"embedding": embedding.weight, **dict(model.named_parameters())}
    yield "the gradients", gradients(model(ids, labels).logits, parameters)


PROBES: dict[str, Probe] = {
    "mlm.py:masked_lm_loss": probe_loss,
    "mlm.py:masked_accuracy": probe_accuracy,
    "mlm.py:TokenMasker.__post_init__": probe_ordinary_ids,
    "mlm.py:TokenMasker.choose": probe_choose,
    "mlm.py:TokenMasker.__call__": probe_masker,
    "mlm.py:select_labeled": probe_select,
    "mlm.py:BertPredictionHeadTransform.forward": probe_transform,
    "mlm.py:BertLMPredictionHead.forward": probe_head,
    "mlm.py:MaskedLM.forward": probe_model,
}
