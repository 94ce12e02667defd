"""Small tokenizers and random models of both kinds."""

import random
from dataclasses import replace

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from labml_bert.data.tokenizers import SPECIAL_TOKENS, wordpiece_tokenizer
from labml_bert.models import BertForMaskedLM
from labml_bert.modern import ModernBertConfig, ModernBertForMaskedLM
from tests.support.parity import perturb_weights, random_config

TEXT = "the unusual cats saw an unusual dog"
Model = BertForMaskedLM | ModernBertForMaskedLM


def subword_tokenizer() -> Tokenizer:
    """A tokenizer that splits *unusual* into several pieces, and doesn't know the letter z."""
    return wordpiece_tokenizer(["the cat saw an old dog " * 9, TEXT], 45)


def byte_level_tokenizer() -> Tokenizer:
    """A tokenizer like that of the published ModernBERT, but with the special tokens of BERT first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=list(SPECIAL_TOKENS), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(["the cat saw an old dog " * 9, TEXT], trainer)
    tokenizer.add_special_tokens([AddedToken("[MASK]", lstrip=True, special=True)])
    ends = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=ends)
    return tokenizer


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
        defaults = {
            "hidden_size": heads * r.choice([4, 8]),
            "num_hidden_layers": r.randint(1, 4),
            "num_attention_heads": heads,
            "intermediate_size": r.randint(3, 40),
            "global_attn_every_n_layers": r.randint(1, 3),
            "local_attention": r.choice([2, 6]),
        }
        config = ModernBertConfig(vocab_size, **defaults | sizes, initializer_range=0.2, pad_token_id=0)
        torch.manual_seed(seed)
        model = ModernBertForMaskedLM(config)
    return model.eval()
