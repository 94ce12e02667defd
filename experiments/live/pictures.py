"""
# Four pictures of one model

What has a model learned, besides reaching a low loss? These functions measure four things: what each head
attends to in one sentence, which positions have similar embeddings, what the dense layer of the masked LM
head does to a hidden state, and which tokens have similar embeddings. The site draws the results. Everything
is computed in float32 on the CPU.
"""

from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from labml_bert.attention_map import attention_map, round_to_list
from labml_bert.data.masked_text import MaskedText
from labml_bert.mlm import IGNORE, MaskedTokens
from labml_bert.models import BertForMaskedLM

TEXT = "Return a copy of the [MASK]ist."
# Find the nearest neighbors of these tokens: two vowels, a consonant, a capital, a digit, a bracket, a space.
NEIGHBORS_OF = "aetT7( "
# The first and the last rank of each group of ranks.
RANKS = [[1, 1], [2, 3], [4, 10], [11, 10**6]]


@torch.no_grad()
def compare_positions(model: BertForMaskedLM, most: int = 40) -> dict[str, Any]:
    """
    ## Which positions are alike

    Returns cosine similarities of position embeddings: between all pairs of the first `most`, and averaged
    over all pairs with the same distance.
    """
    vectors = F.normalize(model.bert.embeddings.position_embeddings.weight, dim=-1)
    cosines = vectors @ vectors.T
    by_distance = [cosines.diagonal(distance).mean() for distance in range(len(vectors))]
    return {
        "cosines": round_to_list(cosines[:most, :most], 2),
        "by_distance": round_to_list(torch.stack(by_distance), 3),
    }


@torch.no_grad()
def compare_dense_layer(model: BertForMaskedLM, held_out: MaskedTokens, most: int = 4096) -> dict[str, Any]:
    r"""
    ## What the dense layer does

    The hidden state $h$ of a masked position goes through a dense layer and a LayerNorm before it is compared
    with the embeddings. What if it didn't? This function computes the logits both ways, as $E h + b$ and as
    $E\, t(h) + b$, where $t$ is the dense layer and the LayerNorm. It does so at `most` masked positions of
    the held-out text. For each way it returns the accuracy, how often the rank of the true token is in each
    group, the median rank, and the entropy of the prediction in nats. It also returns two cosines: between
    the vector and the true token's embedding, and the mean over all embeddings.
    """
    input_ids, labels = (part[: most // 16] for part in held_out)
    hidden = model.bert(input_ids).last_hidden_state[labels != IGNORE][:most]
    labels = labels[labels != IGNORE][:most]
    head, E = model.cls.predictions, model.bert.embeddings.word_embeddings.weight
    results: dict[str, Any] = {"positions": len(labels), "rank_bounds": RANKS}
    for name, vectors in (("without", hidden), ("with", head.transform(hidden))):
        logits = F.linear(vectors, E, head.bias)
        log_probabilities = logits.log_softmax(-1)
        ranks = (logits > logits.gather(1, labels[:, None])).sum(1) + 1
        cosines = F.normalize(vectors, dim=-1) @ F.normalize(E, dim=-1).T
        results[name] = {
            "accuracy": round((ranks == 1).double().mean().item(), 4),
            "ranks": [int(((first <= ranks) & (ranks <= last)).sum()) for first, last in RANKS],
            "median_rank": ranks.median().item(),
            "entropy": round(-(log_probabilities.exp() * log_probabilities).sum(-1).mean().item(), 3),
            "cosine_correct": round(cosines.gather(1, labels[:, None]).mean().item(), 3),
            "cosine_all": round(cosines.mean().item(), 3),
        }
    return results


@torch.no_grad()
def find_neighbors(
    model: BertForMaskedLM, tokenizer: Tokenizer, special_ids: list[int], count: int = 6
) -> list[dict[str, Any]]:
    """
    ## Nearest neighbors of a token

    For each token in `NEIGHBORS_OF`, returns the `count` tokens whose embeddings have the largest cosine with
    its own embedding. Special tokens are left out.
    """
    E = F.normalize(model.bert.embeddings.word_embeddings.weight, dim=-1)
    rows = []
    for token in NEIGHBORS_OF:
        token_id = tokenizer.token_to_id(token)
        if token_id is None:
            continue
        cosines = E @ E[token_id]
        cosines[[*special_ids, token_id]] = -1.0
        best = cosines.topk(min(count, len(E) - len(special_ids) - 1))
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        rows.append({"token": token, "nearest": [[tokenizer.id_to_token(i), round(c, 3)] for i, c in pairs]})
    return rows


def make_pictures(model: BertForMaskedLM, text: MaskedText) -> dict[str, Any]:
    """Returns all four results in the format of the record."""
    model.eval()
    attention = attention_map(model, text.tokenizer, TEXT)
    return {
        # The sentence has one mask.
        "attention": attention | {"guesses": attention["guesses"][0]},
        "positions": compare_positions(model),
        "dense_layer": compare_dense_layer(model, text.held_out),
        "neighbors": find_neighbors(model, text.tokenizer, text.special_ids),
    }
