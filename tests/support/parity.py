"""Random models and batches to compare with `transformers`."""

import json
import random
from pathlib import Path

import torch

from labml_bert.bert import BertConfig
from labml_bert.mlm import IGNORE

TOLERANCE = 1e-5


def random_config(seed: int) -> BertConfig:
    r = random.Random(seed)
    heads = r.choice([1, 2, 3, 5])
    return BertConfig(
        vocab_size=r.randint(20, 300),
        hidden_size=heads * r.choice([4, 8, 12]),
        num_hidden_layers=r.randint(1, 3),
        num_attention_heads=heads,
        intermediate_size=r.randint(5, 90),
        max_position_embeddings=r.randint(16, 40),
        type_vocab_size=2,
        layer_norm_eps=r.choice([1e-12, 1e-5]),
    )


def perturb_weights(model: torch.nn.Module, seed: int) -> None:
    """
    Moves all weights, biases and norms included, far from their initial values, so that no error hides behind
    a zero.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
            if name.endswith("LayerNorm.weight"):
                parameter.add_(1)


def random_batch(config: BertConfig, seed: int, pairs: bool) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    B, T = 6, config.max_position_embeddings - 2
    input_ids = torch.randint(1, config.vocab_size, (B, T), generator=g)
    lengths = torch.randint(2, T + 1, (B,), generator=g)
    attention_mask = (torch.arange(T) < lengths[:, None]).long()
    input_ids[attention_mask == 0] = 0
    labels = torch.randint(0, config.vocab_size, (B, T), generator=g)
    unlabeled = (torch.rand((B, T), generator=g) > 0.4) | (attention_mask == 0)
    unlabeled[0, 0] = False
    batch = {
        "input_ids": input_ids,
        "attention_mask": attention_mask,
        "token_type_ids": torch.randint(0, 2, (B, T), generator=g),
        "labels": labels.masked_fill(unlabeled, IGNORE),
    }
    return batch | ({"next_sentence_label": torch.randint(0, 2, (B,), generator=g)} if pairs else {})


def assert_same_gradients(ours, theirs) -> None:
    """Checks, after `backward` of both models, that their parameters have the same names and gradients."""
    grads = {name: p.grad for name, p in theirs.named_parameters()}
    assert {name for name, _ in ours.named_parameters()} == set(grads)
    for name, parameter in ours.named_parameters():
        assert (parameter.grad - grads[name]).abs().max() < TOLERANCE, name


def write_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, **changes}))
