"""
# What each head attends to

Every head of every layer computes attention weights: for each position, how much it takes from each
position of the text. This file runs a text with a `[MASK]` once through a model and returns those weights
with the model's predictions, as numbers that a picture can show.

The weights say what is mixed, not why. A head may give a position a large weight and take nothing useful
from it, because what it takes are the values, and the weights don't show those.
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

    Returns the `tokens` of `text`, the positions of its `masks`, for each mask the five most probable
    tokens (`guesses`), and the weights (`attentions`) by layer, head, position that attends and position
    attended to.

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
    """Nested lists for JSON, with no more digits than a picture shows."""
    factor = 10.0**digits
    return (tensor.double() * factor).round().div(factor).tolist()
