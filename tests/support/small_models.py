"""A small tokenizer and random models of both kinds."""

import random
from dataclasses import replace

import torch
from tokenizers import Tokenizer

from labml_bert.data.tokenizers import wordpiece_tokenizer
from labml_bert.models import BertForMaskedLM
from labml_bert.modern import ModernBertConfig, ModernBertForMaskedLM
from tests.support.parity import perturb_weights, random_config

TEXT = "the unusual cats saw an unusual dog"
Model = BertForMaskedLM | ModernBertForMaskedLM


def subword_tokenizer() -> Tokenizer:
    """A tokenizer that splits *unusual* into several pieces, and doesn't know the letter z."""
    return wordpiece_tokenizer(["the cat saw an old dog " * 9, TEXT], 45)


def random_model(kind: str, vocab_size: int, seed: int, **sizes: int) -> Model:
    r = random.Random(seed)
    model: Model
    if kind == "bert":
        config = replace(
            random_config(seed), vocab_size=vocab_size, **{"max_position_embeddings": 40} | sizes
        )
        model = BertForMaskedLM(config)
        perturb_weights(model, seed)
    else:
        heads = r.choice([1, 2, 3])
        config = ModernBertConfig(
            vocab_size=vocab_size,
            hidden_size=heads * r.choice([4, 8]),
            num_hidden_layers=r.randint(1, 4),
            num_attention_heads=heads,
            intermediate_size=r.randint(3, 40),
            global_attn_every_n_layers=r.randint(1, 3),
            local_attention=r.choice([2, 6]),
            initializer_range=0.2,
            pad_token_id=0,
            **sizes,
        )
        torch.manual_seed(seed)
        model = ModernBertForMaskedLM(config)
    return model.eval()
