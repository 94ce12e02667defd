"""
# What each head attends to

Every head of every layer computes attention weights: how much each position takes from every position of the
text. This file runs a text with a `[MASK]` through a model once. It returns the attention weights and the
model's predictions as plain numbers, ready for a picture.

The weights say what is mixed, not why. A head can give a position a large weight and still take nothing
useful from it. What it takes is the position's value, and the weights don't show that.
"""

from typing import Any

import torch
from tokenizers import Tokenizer

from labml_bert.fill_mask import fill_mask
from labml_bert.models import BertForMaskedLM


@torch.no_grad()
def attention_map(model: BertForMaskedLM, tokenizer: Tokenizer, text: str) -> dict[str, Any]:
    """
    ## One forward pass

    Returns the `tokens` of `text`, the positions of its `masks`, the five most probable tokens for each mask
    (`guesses`), and the weights (`attentions`). Those are indexed by layer, head, attending position and
    attended position.

    Raises `ValueError` if there is no mask, or if the text has more tokens than the model has positions.
    """
    predictions = fill_mask(model, tokenizer, text)
    encoding = tokenizer.encode(text)
    input_ids = torch.tensor([encoding.ids])  # (1, T)
    attentions = model.bert(input_ids, output_attentions=True).attentions
    weights = torch.stack(attentions)[:, 0]  # (L, H, T, T)
    mask_id = tokenizer.token_to_id("[MASK]")
    return {
        "text": text,
        "tokens": encoding.tokens,
        "masks": [position for position, token in enumerate(encoding.ids) if token == mask_id],
        "guesses": [[[guess.token, round(guess.probability, 4)] for guess in row] for row in predictions],
        "attentions": round_to_list(weights, 3),
    }


def round_to_list(tensor: torch.Tensor, digits: int) -> Any:
    """Converts a tensor to nested lists for JSON, with no more digits than a picture needs."""
    factor = 10.0**digits
    return (tensor.double() * factor).round().div(factor).tolist()
