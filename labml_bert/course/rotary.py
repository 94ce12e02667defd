"""
# Steps: rotary positions

What changed in the attention since 2018: the first steps in `modern.py`.
"""

from labml_bert.course.step import Mistake, Step

STEPS = (
    Step(
        name="modern.py:rotary_angles",
        title="RoPE: the angles",
        task="cosines of all angles, and sines whose first half is negated, each (B, 1, 1, T, d)",
        chapter="embeddings",
        hints=(
            "The angle of pair i at position p is p times theta to the power of -2i/d. There are d/2 pairs.",
            "`torch.arange(0, head_dim, 2) / head_dim` holds the numbers 2i/d. Reshape the positions to "
            "`(B, 1, 1, T, 1)`, as floats, so the product has the shape `(B, 1, 1, T, d/2)`.",
            "Element i is paired with element i + d/2, so both have the same cosine: concatenate it with "
            "itself. The sines of the first half are negative, because the rotated x is x cos - y sin.",
        ),
        mistakes=(
            Mistake(
                "first half of the sines positive",
                "torch.cat((-sin, sin), dim=-1)",
                "torch.cat((sin, sin), dim=-1)",
                "The sines of your first half have the wrong sign. A rotation takes (x, y) to (x cos - y "
                "sin, y cos + x sin).",
            ),
            Mistake(
                "opposite direction",
                "torch.cat((-sin, sin), dim=-1)",
                "torch.cat((sin, -sin), dim=-1)",
                "You rotate in the opposite direction. A model could still learn from that, but published "
                "checkpoints give other scores.",
            ),
            Mistake(
                "neighbors paired",
                "torch.cat((cos, cos), dim=-1)",
                "cos.repeat_interleave(2, dim=-1)",
                "Your cosines belong to pairs of neighbors. Element i is paired with element i + d/2.",
            ),
            Mistake(
                "angles grow",
                "theta**-pairs",
                "theta**pairs",
                "Your angles grow from pair to pair. The exponent is negative.",
            ),
            Mistake(
                "exponent not divided by d",
                "torch.arange(0, head_dim, 2, dtype=torch.float32, device=position_ids.device) / head_dim",
                "torch.arange(0, head_dim, 2, dtype=torch.float32, device=position_ids.device)",
                "The exponent isn't divided by d, so all pairs but the first hardly rotate.",
            ),
            Mistake(
                "half of the exponent",
                "torch.arange(0, head_dim, 2, dtype=torch.float32, device=position_ids.device) / head_dim",
                "torch.arange(head_dim // 2, device=position_ids.device) / head_dim",
                "Your exponent is i/d. It must be 2i/d.",
            ),
        ),
    ),
    Step(
        name="modern.py:rotate",
        title="RoPE: the rotation",
        task="the rotated queries and keys",
        chapter="embeddings",
        hints=(
            "Each element becomes itself times the cosine, plus its partner times the signed sine.",
            "`x.roll(d // 2, dims=-1)` puts each element's partner in its position.",
        ),
        mistakes=(
            Mistake(
                "no partner",
                "x.roll(x.size(-1) // 2, dims=-1) * sin",
                "x * sin",
                "You multiply each element by both cosine and sine. The sine belongs to its partner.",
            ),
            Mistake(
                "rolled by one",
                "x.roll(x.size(-1) // 2, dims=-1)",
                "x.roll(1, dims=-1)",
                "You pair each element with its neighbor. Its partner is d/2 elements away.",
            ),
            Mistake(
                "reversed",
                "x.roll(x.size(-1) // 2, dims=-1)",
                "x.flip(-1)",
                "You reverse the elements, so the first is paired with the last. The partner of an element "
                "is d/2 elements away.",
            ),
            Mistake(
                "rolled over the positions",
                "x.roll(x.size(-1) // 2, dims=-1)",
                "x.roll(x.size(-1) // 2, dims=-2)",
                "You pair each element with that of another position. Roll the last dimension.",
            ),
            Mistake(
                "sign of the second half changed",
                "x.roll(x.size(-1) // 2, dims=-1) * sin",
                "torch.cat((-x[..., x.size(-1) // 2 :], x[..., : x.size(-1) // 2]), dim=-1) * sin",
                "You change the sign of the second half, as `rotate_half` in `transformers` does. Here, the "
                "sines have their signs already.",
            ),
            Mistake(
                "sign changed twice",
                "x * cos + x.roll",
                "x * cos - x.roll",
                "You subtract the second term. The sines have their signs already.",
            ),
        ),
    ),
    Step(
        name="modern.py:attend",
        title="Attention, once more",
        task="the context vectors (B, H, P, d) from queries, keys and values",
        chapter="attention",
        hints=(
            "It's the same computation as in `BertSelfAttention.forward`: scores, scaling, mask, softmax, "
            "dropout, values.",
            "`F.scaled_dot_product_attention` does all of this in one call. Its mask is true for the keys to "
            "attend to, as ours.",
        ),
        mistakes=(
            Mistake(
                "mask dropped",
                "F.scaled_dot_product_attention(q, k, v, attention_mask, dropout_prob)",
                "F.scaled_dot_product_attention(q, k, v, None, dropout_prob)",
                "You ignore the attention mask.",
            ),
            Mistake(
                "causal",
                "F.scaled_dot_product_attention(q, k, v, attention_mask, dropout_prob)",
                "F.scaled_dot_product_attention(q, k, v, is_causal=True)",
                "Your attention is causal: a token doesn't see what comes after it. In an encoder, every "
                "token sees both sides.",
            ),
            Mistake(
                "no dropout",
                "F.dropout(scores.softmax(dim=-1), dropout_prob)",
                "scores.softmax(dim=-1)",
                "The attention weights have no dropout.",
            ),
            Mistake(
                "dropout of the result",
                "F.dropout(scores.softmax(dim=-1), dropout_prob) @ v",
                "F.dropout(scores.softmax(dim=-1) @ v, dropout_prob)",
                "You apply dropout to the result. Apply it to the attention weights, before you multiply "
                "them by the values.",
            ),
            Mistake(
                "no scaling",
                "F.scaled_dot_product_attention(q, k, v, attention_mask, dropout_prob)",
                "F.scaled_dot_product_attention(q, k, v, attention_mask, dropout_prob, scale=1.0)",
                "The scores aren't divided by the square root of the head width.",
            ),
        ),
    ),
    Step(
        name="modern.py:ModernBertAttention.forward",
        title="Attention with rotary positions",
        task="project, rotate queries and keys, attend, and project again",
        chapter="ladder",
        hints=(
            "`self.Wqkv(x)` has the width 3D. Split it into `(3, H, d)` and move the dimensions to "
            "`(B, 3, H, T, d)`. `rotate` takes only queries and keys, `(B, 2, H, T, d)`.",
            "With `output_positions`, `(B, P)`, keep only these queries: `q.take_along_dim("
            "output_positions[:, None, :, None], dim=2)`. A mask with a row for each query must lose the "
            "same rows; `select_positions` does that for `(B, T, T)`.",
            "Call `attend` with the dropout probability `self.attention_dropout` in train mode and 0 "
            "otherwise. Join the heads as in BERT, then apply `self.Wo` and `self.out_drop`.",
        ),
        mistakes=(
            Mistake(
                "heads before queries, keys and values",
                "unflatten(-1, (3, self.num_attention_heads, -1))",
                "unflatten(-1, (self.num_attention_heads, 3, -1)).transpose(2, 3)",
                "You split the width 3D into heads first. The first D numbers are all queries, so split it "
                "into `(3, H, d)`.",
            ),
            Mistake(
                "not rotated",
                "q, k = rotate(qk, cos, sin).unbind(1)",
                "q, k = qk.unbind(1)",
                "You don't rotate queries and keys, so the model can't tell positions apart.",
            ),
            Mistake(
                "only keys rotated",
                "q, k = rotate(qk, cos, sin).unbind(1)",
                "q, k = qk[:, 0], rotate(qk, cos, sin)[:, 1]",
                "You rotate only the keys. Then a score depends on the position of the key, and not on its "
                "distance from the query.",
            ),
            Mistake(
                "only queries rotated",
                "q, k = rotate(qk, cos, sin).unbind(1)",
                "q, k = rotate(qk, cos, sin)[:, 0], qk[:, 1]",
                "You rotate only the queries. Then a score depends on the position of the query, and not on "
                "its distance from the key.",
            ),
            Mistake(
                "dropout in eval mode",
                "self.attention_dropout if self.training else 0.0",
                "self.attention_dropout",
                "You apply dropout to the attention weights in eval mode, too. `self.training` says which "
                "mode it is.",
            ),
            Mistake(
                "values rotated",
                "attend(q, k, v.squeeze(1),",
                "attend(q, k, rotate(v, cos, sin).squeeze(1),",
                "You rotate the values, too. Only queries and keys are rotated.",
            ),
            Mistake(
                "mask dropped",
                "v.squeeze(1), attention_mask,",
                "v.squeeze(1), None,",
                "You don't pass the mask to `attend`.",
            ),
            Mistake(
                "no output projection",
                "self.out_drop(self.Wo(context.transpose(1, 2).flatten(2)))",
                "self.out_drop(context.transpose(1, 2).flatten(2))",
                "The output projection `Wo` is missing.",
            ),
            Mistake(
                "output positions ignored",
                "if output_positions is not None:",
                "if False:",
                "You ignore `output_positions`. Keep only the queries at these positions.",
            ),
            Mistake(
                "heads not joined in order",
                "context.transpose(1, 2).flatten(2)",
                "context.reshape(context.size(0), context.size(2), -1)",
                "The numbers of different tokens are mixed up. Swap heads and tokens before you join heads.",
            ),
        ),
    ),
)
