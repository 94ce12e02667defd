"""
# What each head attends to

When a model fills in a mask, which tokens does each attention head look at? The function below runs a text
with a `[MASK]` through a model. It returns the model's predictions and the attention weights of every head,
as plain numbers that you can draw.

An attention weight says how much a head takes from a position. The weight doesn't say how useful that is,
because the head takes the position's value vector, which the weight doesn't show.
"""

from typing import Any

import torch
from tokenizers import Tokenizer

from labml_bert.fill_mask import encode_text, fill_mask
from labml_bert.models import BertForMaskedLM


@torch.no_grad()
def attention_map(model: BertForMaskedLM, tokenizer: Tokenizer, text: str) -> dict[str, Any]:
    """
    ## One forward pass

    Returns a dictionary with the `text`, its `tokens`, the positions of its `masks`, the five most probable
    tokens for each mask with their probabilities (`guesses`), and the weights (`attentions`). The weights are
    indexed by layer, head, attending position and attended position. The model has to be in eval mode.

    Raises `ValueError` if there is no mask, or if the text has more tokens than the model has positions.
    """
    predictions = fill_mask(model, tokenizer, text)
    encoding = encode_text(model, tokenizer, text)
    input_ids = torch.tensor([encoding.ids], device=next(model.parameters()).device)  # (1, T)
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
    """Converts a tensor to nested lists for JSON, rounded to `digits` decimals, enough for a picture."""
    factor = 10.0**digits
    return (tensor.double() * factor).round().div(factor).tolist()
