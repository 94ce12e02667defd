"""
# Steps: embeddings and attention

From token ids to context vectors: the first steps in `bert.py`.
"""

from labml_bert.course.step import Mistake, Step

STEPS = (
    Step(
        name="bert.py:BertEmbeddings.forward",
        title="Three embeddings and their sum",
        task="LayerNorm of the sum of token, position and segment embeddings, then dropout",
        chapter="embeddings",
        hints=(
            "Look up each kind of id in its table, and add the three results. The docstring has the formula.",
            "Default positions are `torch.arange(T)[None]`, shape `(1, T)`. Default token types are zeros. "
            "Both are broadcast over the batch.",
            "The last line is `self.dropout(self.LayerNorm(x))`, where x is the sum, `(B, T, D)`.",
        ),
        mistakes=(
            Mistake(
                "positions all 0",
                "torch.arange(input_ids.size(1), device=input_ids.device)[None]",
                "torch.zeros_like(input_ids[:1])",
                "All tokens get position 0 by default, so the model can't tell their order. The default "
                "positions are 0, 1, 2, …",
            ),
            Mistake(
                "positions from 1",
                "torch.arange(input_ids.size(1), device=input_ids.device)",
                "torch.arange(1, input_ids.size(1) + 1, device=input_ids.device)",
                "Your default positions begin at 1. They begin at 0.",
            ),
            Mistake(
                "position_ids ignored",
                "if position_ids is None:",
                "if True:",
                "You ignore `position_ids`. Use 0, 1, 2, … only if it's `None`.",
            ),
            Mistake(
                "token types missing",
                "position_and_type = position_and_type + self.token_type_embeddings(token_type_ids)",
                "pass",
                "The segment embeddings are missing from your sum. They count even if all token types are 0.",
            ),
            Mistake(
                "token_type_ids ignored",
                "if token_type_ids is None:",
                "if True:",
                "You ignore `token_type_ids`. Use 0 only if it's `None`.",
            ),
            Mistake(
                "no LayerNorm",
                "self.dropout(self.LayerNorm(x))",
                "self.dropout(x)",
                "The LayerNorm is missing.",
            ),
            Mistake(
                "dropout before the LayerNorm",
                "self.dropout(self.LayerNorm(x))",
                "self.LayerNorm(self.dropout(x))",
                "You apply dropout before the LayerNorm. It comes last.",
            ),
            Mistake(
                "no dropout",
                "self.dropout(self.LayerNorm(x))",
                "self.LayerNorm(x)",
                "The dropout is missing. It comes last, after the LayerNorm.",
            ),
        ),
    ),
    Step(
        name="bert.py:BertSelfAttention.project",
        title="Attention: splitting into heads",
        task="the output of each layer, split into heads: a list of (B, H, T, D/H)",
        chapter="attention",
        hints=(
            "`apply_all(layers, x)` at the end of the file computes the output of every layer. Each is "
            "`(B, T, D)`.",
            "A head is a slice of D/H neighboring numbers of each token's vector. `unflatten` splits the "
            "last dimension into `(H, D/H)`.",
            "After `y.unflatten(-1, (H, -1))`, the shape is `(B, T, H, D/H)`. Swap the middle dimensions.",
        ),
        mistakes=(
            Mistake(
                "dimensions not swapped",
                ".transpose(1, 2)",
                "",
                "Your shape is (B, T, H, D/H). Swap tokens and heads, because attention is computed for each "
                "head separately.",
            ),
            Mistake(
                "tokens mixed into heads",
                "y.unflatten(-1, (self.num_attention_heads, -1)).transpose(1, 2)",
                "y.reshape(y.size(0), self.num_attention_heads, y.size(1), -1)",
                "The shape is right, but the numbers of different tokens are mixed up. A reshape to (B, H, "
                "T, D/H) doesn't move any number. Split the last dimension, and then swap two dimensions.",
            ),
            Mistake(
                "heads and widths swapped",
                "unflatten(-1, (self.num_attention_heads, -1))",
                "unflatten(-1, (-1, self.num_attention_heads)).transpose(2, 3)",
                "The shape is right, but your heads take every H-th number. A head is a slice of D/H "
                "neighboring numbers, so the number of heads comes first when you split.",
            ),
        ),
    ),
    Step(
        name="bert.py:BertSelfAttention.forward",
        title="Attention: scores, scaling, mask",
        task="the context vectors (B, P, D), and the attention weights if asked for",
        chapter="attention",
        hints=(
            "Project `query_states` with `self.query`, and `hidden_states` with `self.key` and `self.value`. "
            "Then follow the formula, head by head: scores, softmax, weighted sum of the values.",
            "Divide by the square root of the width of one head. Before the softmax, set the scores of "
            "masked keys to `torch.finfo(scores.dtype).min`. Apply `self.dropout` to the weights.",
            "`q @ k.transpose(-1, -2)` gives the scores of all heads, `(B, H, P, T)`. Join the heads with "
            "`context.transpose(1, 2).flatten(2)`. Return a pair; its second part is `None` without "
            "`output_attentions`. Skip `written_out_is_faster` and the fused kernel: they only save time.",
        ),
        mistakes=(
            Mistake(
                "no scaling",
                "(q / math.sqrt(q.size(-1)))",
                "q",
                "The scores aren't divided by the square root of the head width, so the softmax saturates.",
            ),
            Mistake(
                "scaled by the hidden size",
                "math.sqrt(q.size(-1))",
                "math.sqrt(hidden_states.size(-1))",
                "You divide by the square root of the hidden size D. A score is a sum over one head, so use "
                "the width of a head, D/H.",
            ),
            Mistake(
                "divided by d without the root",
                "math.sqrt(q.size(-1))",
                "q.size(-1)",
                "You divide by the width of a head. Divide by its square root.",
            ),
            Mistake(
                "softmax over queries",
                "scores.softmax(dim=-1)",
                "scores.softmax(dim=-2)",
                "Your weights add up to 1 over the queries. For each query, they must add up to 1 over the "
                "keys, the last dimension.",
            ),
            Mistake(
                "softmax over heads",
                "scores.softmax(dim=-1)",
                "scores.softmax(dim=1)",
                "Your weights add up to 1 over the heads. For each head and query, they must add up to 1 "
                "over the keys, the last dimension.",
            ),
            Mistake(
                "mask added as ones and zeros",
                "scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)",
                "scores + attention_mask",
                "You add a mask of ones and zeros to the scores, so padding still gets some weight. It "
                "must get none.",
            ),
            Mistake(
                "mask multiplied",
                "scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)",
                "scores * attention_mask",
                "You multiply the scores by the mask, so masked keys have the score 0, which the softmax "
                "turns into a positive weight. The weight of a masked key must be 0.",
            ),
            Mistake(
                "mask inverted",
                "masked_fill(~attention_mask",
                "masked_fill(attention_mask",
                "Your mask is inverted: the queries attend to padding only. The mask is true for the keys to "
                "attend to.",
            ),
            Mistake(
                "minus infinity",
                "torch.finfo(scores.dtype).min",
                'float("-inf")',
                "In a row that is all padding, every score is minus infinity, and the softmax is 0/0. Use "
                "the most negative finite number.",
            ),
            Mistake(
                "no dropout of the weights",
                "self.dropout(weights) @ v",
                "weights @ v",
                "The attention weights have no dropout. Apply `self.dropout` to them before you multiply "
                "them by the values.",
            ),
            Mistake(
                "weights detached",
                "self.dropout(weights) @ v",
                "self.dropout(weights.detach()) @ v",
                "You detach the attention weights, so queries and keys learn nothing.",
            ),
            Mistake(
                "weights returned after dropout",
                "weights = scores.softmax(dim=-1)",
                "weights = self.dropout(scores.softmax(dim=-1))",
                "You return the attention weights after dropout. Return the result of the softmax.",
            ),
            Mistake(
                "heads not joined in order",
                "context.transpose(1, 2).flatten(2)",
                "context.reshape(context.size(0), context.size(2), -1)",
                "The shape is right, but the numbers of different tokens are mixed up. Swap heads and tokens "
                "back before you join the heads.",
            ),
            Mistake(
                "queries from the hidden states",
                "self.project(query_states, self.query)",
                "self.project(hidden_states, self.query)",
                "Your queries come from `hidden_states`. They must come from `query_states`, which can have "
                "fewer positions.",
            ),
        ),
    ),
)
