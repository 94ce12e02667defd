"""
# A trace of the running example

Every chapter follows the same sentence through the same tiny model. This file runs that model module by
module and keeps what each step returns, for the figures in `example.py`.
"""

import copy
import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from labml_bert.bert import BertConfig
from labml_bert.data.tokenizers import special_token_ids, word_tokenizer
from labml_bert.mlm import TokenMasker
from labml_bert.models import BertForMaskedLM

SENTENCE, SECOND = "the cat sat on the mat", "the dog ran to the cat"
MASKED, OTHER = 3, 1  # positions: the masked token, and one to compare it with
HEAD = 0
SEED = 3
LEARNING_RATE = 0.1


def example_tokenizer() -> Tokenizer:
    """Learned from both sentences twice, because a word has to occur twice to be in the vocabulary."""
    return word_tokenizer([SENTENCE, SECOND] * 2)


def example_model(vocab_size: int) -> BertForMaskedLM:
    """The tiny model, untrained. With the usual standard deviation of 0.02, two decimals would show zeros."""
    config = BertConfig(
        vocab_size=vocab_size,
        hidden_size=4,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        max_position_embeddings=8,
        initializer_range=0.5,
    )
    # Don't change the random numbers of the rest of the build.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return BertForMaskedLM(config).eval()


def only_block(model: BertForMaskedLM) -> Any:
    """The only block of the model, as `Any`: PyTorch has no types for the attributes of a module."""
    return model.bert.encoder.layer[0]


@dataclass(frozen=True)
class Trace:
    """
    ## One forward pass and one training step

    Vectors without a `T` in their shape belong to the masked position.
    """

    tokenizer: Tokenizer
    model: BertForMaskedLM
    """Before the step."""
    ids: Tensor  # (T)
    input_ids: Tensor  # (T)
    labels: Tensor  # (T)
    embeddings: tuple[Tensor, Tensor, Tensor]
    """Token, position and segment embeddings, each `(T, D)`."""
    x: Tensor  # (T, D)
    query: Tensor  # (D/H)
    keys: Tensor  # (T, D/H)
    values: Tensor  # (T, D/H)
    scores: Tensor  # (T)
    scaled: Tensor  # (T)
    weights: Tensor  # (T)
    context: Tensor  # (D)
    attention_dense: Tensor  # (D)
    attention_output: Tensor  # (D)
    intermediate_dense: Tensor  # (I)
    intermediate: Tensor  # (I)
    output_dense: Tensor  # (D)
    output: Tensor  # (D)
    head_dense: Tensor  # (D)
    head_gelu: Tensor  # (D)
    head_output: Tensor  # (D)
    logits: Tensor  # (V)
    bias_gradient: Tensor  # (V)
    bias_after: Tensor  # (V)
    logits_after: Tensor  # (V)

    @property
    def target(self) -> int:
        """The id of the masked word."""
        return int(self.ids[MASKED])

    @property
    def best(self) -> int:
        """The id of the most probable token."""
        return int(self.logits.argmax())

    def token(self, token_id: int | Tensor) -> str:
        """The token with this id."""
        return str(self.tokenizer.id_to_token(int(token_id)))

    def read(self, position: int) -> str:
        """The token that the model sees at a position."""
        return self.token(self.input_ids[position])


@cache
def trace() -> Trace:
    """Runs the model once, module by module, and takes one SGD step with a copy of it."""
    tokenizer = example_tokenizer()
    vocab = tokenizer.get_vocab()
    words = tokenizer.encode(SENTENCE).ids
    ids = torch.tensor([[vocab["[CLS]"], *words, vocab["[SEP]"]]])  # (1, T)
    model = example_model(len(vocab))

    # A token with the word id -1 is never chosen, so the masker has only one word to choose.
    masker = TokenMasker(
        len(vocab),
        vocab["[MASK]"],
        special_token_ids(tokenizer),
        mlm_probability=1.0,
        mask_replace_prob=1.0,
        generator=torch.Generator(),
    )
    word_ids = torch.full_like(ids, -1)
    word_ids[0, MASKED] = MASKED
    input_ids, labels = masker(ids, word_ids=word_ids)

    with torch.no_grad():
        embeddings, layer, cls = model.bert.embeddings, only_block(model), model.cls.predictions
        T, D = ids.size(1), model.config.hidden_size
        rows = (
            embeddings.word_embeddings(input_ids[0]),
            embeddings.position_embeddings(torch.arange(T)),
            embeddings.token_type_embeddings(torch.zeros(T, dtype=torch.long)),
        )
        x = embeddings(input_ids)  # (1, T, D)

        attention = layer.attention["self"]
        q, k, v = attention.project(x, attention.query, attention.key, attention.value)  # (1, H, T, D/H)
        scores = q @ k.transpose(-1, -2)  # (1, H, T, T)
        scaled = scores / math.sqrt(q.size(-1))
        weights = scaled.softmax(-1)
        context = (weights @ v).transpose(1, 2).reshape(T, D)[MASKED]

        output = layer.attention["output"]
        attention_output = output(context, x[0, MASKED])
        intermediate = layer.intermediate(attention_output)
        block_output = layer.output(intermediate, attention_output)
        attention_dense = output.dense(context)
        intermediate_dense = layer.intermediate.dense(attention_output)
        output_dense = layer.output.dense(intermediate)
        head_dense = cls.transform.dense(block_output)
        head_output = cls.transform(block_output)
        logits = cls(block_output, embeddings.word_embeddings.weight)

    updated_model = copy.deepcopy(model)
    optimizer = torch.optim.SGD(updated_model.parameters(), lr=LEARNING_RATE)
    loss = updated_model(input_ids, labels).loss
    assert loss is not None
    loss.backward()
    gradient = updated_model.cls.predictions.bias.grad
    assert gradient is not None
    optimizer.step()
    with torch.no_grad():
        logits_after = updated_model(input_ids).logits[0, MASKED]

    return Trace(
        tokenizer=tokenizer,
        model=model,
        ids=ids[0],
        input_ids=input_ids[0],
        labels=labels[0],
        embeddings=rows,
        x=x[0],
        query=q[0, HEAD, MASKED],
        keys=k[0, HEAD],
        values=v[0, HEAD],
        scores=scores[0, HEAD, MASKED],
        scaled=scaled[0, HEAD, MASKED],
        weights=weights[0, HEAD, MASKED],
        context=context,
        attention_dense=attention_dense,
        attention_output=attention_output,
        intermediate_dense=intermediate_dense,
        intermediate=intermediate,
        output_dense=output_dense,
        output=block_output,
        head_dense=head_dense,
        head_gelu=F.gelu(head_dense),
        head_output=head_output,
        logits=logits,
        bias_gradient=gradient,
        bias_after=updated_model.cls.predictions.bias.detach(),
        logits_after=logits_after,
    )
