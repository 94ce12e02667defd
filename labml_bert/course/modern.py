"""
# Steps: a modern encoder

What changed since 2018: rotary positions, a gated feed-forward network and pre-norm, the steps in
`modern.py`.
"""

from labml_bert.course.step import Mistake, Step

STEPS = (
    Step(
        name="modern.py:rotary_angles",
        title="RoPE: the angles",
        task="cosines and signed sines of all angles, each (B, 1, 1, T, d)",
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
                "torch.arange(0, head_dim, 2, device=position_ids.device) / head_dim",
                "torch.arange(0, head_dim, 2, device=position_ids.device)",
                "The exponent isn't divided by d, so all pairs but the first hardly rotate.",
            ),
            Mistake(
                "half of the exponent",
                "torch.arange(0, head_dim, 2, device=position_ids.device) / head_dim",
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
                "not rotated",
                "q, k = rotate(qk, cos, sin).unbind(1)",
                "q, k = qk.unbind(1)",
                "You don't rotate queries and keys, so the model can't tell positions apart.",
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
    Step(
        name="modern.py:ModernBertMLP.forward",
        title="GeGLU",
        task="the gated feed-forward network",
        chapter="ladder",
        hints=(
            "`self.Wi` computes both projections at once. `chunk` splits the result into two halves.",
            "Apply the GELU to the first half, multiply by the second, and then apply `self.drop` and "
            "`self.Wo`.",
        ),
        mistakes=(
            Mistake(
                "GELU of the second half",
                "F.gelu(value) * gate",
                "value * F.gelu(gate)",
                "You apply the GELU to the second half. It belongs to the first.",
            ),
            Mistake(
                "no gate",
                "F.gelu(value) * gate",
                "F.gelu(value)",
                "You don't multiply by the second half.",
            ),
            Mistake(
                "no GELU",
                "F.gelu(value) * gate",
                "value * gate",
                "The GELU is missing.",
            ),
            Mistake(
                "dropout at the end",
                "self.Wo(self.drop(F.gelu(value) * gate))",
                "self.drop(self.Wo(F.gelu(value) * gate))",
                "You apply dropout to the output. It comes before the last projection.",
            ),
        ),
    ),
    Step(
        name="modern.py:ModernBertEncoderLayer.forward",
        title="Pre-norm",
        task="two sublayers, each with a LayerNorm in front and a residual connection",
        chapter="ladder",
        hints=(
            "The two equations are at the top of the file. The parts are in `__init__`.",
            "With `output_positions`, the attention returns only these positions. Select the same ones of x "
            "before you add.",
        ),
        mistakes=(
            Mistake(
                "post-norm",
                "return x + self.mlp(self.mlp_norm(x))",
                "return self.mlp_norm(x + self.mlp(x))",
                "You normalize after the addition, as in BERT. In pre-norm, nothing normalizes the sum.",
            ),
            Mistake(
                "residual is normalized",
                "return x + self.mlp(self.mlp_norm(x))",
                "x = self.mlp_norm(x)\n        return x + self.mlp(x)",
                "You add the normalized vectors. The residual must be the vectors before the LayerNorm.",
            ),
            Mistake(
                "no LayerNorm before the attention",
                "self.attn(self.attn_norm(x),",
                "self.attn(x,",
                "The LayerNorm before the attention is missing.",
            ),
            Mistake(
                "no residual around the attention",
                "x = x + context",
                "x = context",
                "You don't add the input of the attention to its output.",
            ),
            Mistake(
                "mask dropped",
                "rotary, attention_mask, output_positions)",
                "rotary, None, output_positions)",
                "You don't pass the attention mask on.",
            ),
        ),
    ),
    Step(
        name="modern.py:ModernBertModel.forward",
        title="The whole modern encoder",
        task="the vectors (B, T, D), or (B, P, D) at the output positions",
        chapter="ladder",
        hints=(
            "Check the mask and give it the shape `(B, 1, 1, T)`, as in `BertModel.forward`. Embed the ids, "
            "call the layers one after the other, and normalize at the end with `self.final_norm`.",
            "Layer i is global if `config.is_global(i)`. Global layers use the angles for "
            "`config.global_rope_theta` and the mask; local layers use those for `config.local_rope_theta`, "
            "and a mask that also hides distant tokens. Compute the angles of both kinds before the loop.",
            "A local layer sees `config.local_attention // 2` tokens on each side: "
            "`(indices[:, None] - indices).abs() <= reach`, combined with the mask by `&`. The width of a "
            "head is `hidden_size // num_attention_heads`. Only the last layer gets the output positions.",
        ),
        mistakes=(
            Mistake(
                "no final LayerNorm",
                "return self.final_norm(x)",
                "return x",
                "The LayerNorm at the end is missing. Without it, nothing bounds the residual stream.",
            ),
            Mistake(
                "all layers global",
                "masks[is_global]",
                "masks[True]",
                "All your layers see the whole sequence. In local layers, distant tokens are masked.",
            ),
            Mistake(
                "one theta for all layers",
                "rotary[is_global]",
                "rotary[True]",
                "All your layers use the same theta. Local layers have their own, `local_rope_theta`.",
            ),
            Mistake(
                "twice the reach",
                "config.local_attention // 2",
                "config.local_attention",
                "Your local layers see `local_attention` tokens on each side. That's the number for both "
                "sides together.",
            ),
            Mistake(
                "window too narrow by one",
                "<= reach",
                "< reach",
                "Your local window is too narrow by one token on each side. A token that is exactly "
                "`local_attention // 2` positions away is visible, too.",
            ),
            Mistake(
                "window of position_ids",
                "(indices[:, None] - indices).abs() <= reach  # (T, T)\n"
                "            masks[False] = is_near[None, None]",
                "(positions[:, :, None] - positions[:, None]).abs()[:, None] <= reach\n"
                "            masks[False] = is_near",
                "Your local window compares `position_ids`. It must count the tokens of the row, whatever "
                "their `position_ids`.",
            ),
            Mistake(
                "padding visible in local layers",
                "is_near[None, None] if attention_mask is None else is_near & attention_mask",
                "is_near[None, None]",
                "In local layers, your tokens attend to padding.",
            ),
            Mistake(
                "position_ids ignored",
                "indices[None] if position_ids is None else position_ids",
                "indices[None]",
                "You ignore `position_ids`.",
            ),
            Mistake(
                "additive mask accepted",
                "if is_additive or attention_mask.shape",
                "if attention_mask.shape",
                "You accept an additive mask, which means the opposite as a boolean. Raise `ValueError`.",
            ),
        ),
    ),
    Step(
        name="modern.py:ModernBertPredictionHead.forward",
        title="The modern head",
        task="dense layer, GELU, LayerNorm",
        chapter="decoder",
        hints=("It's the same as in BERT's head.", "`self.norm` of `F.gelu` of `self.dense`."),
        mistakes=(
            Mistake(
                "no GELU",
                "F.gelu(self.dense(x))",
                "self.dense(x)",
                "There is no GELU between the dense layer and the LayerNorm.",
            ),
            Mistake(
                "no LayerNorm",
                "self.norm(F.gelu(self.dense(x)))",
                "F.gelu(self.dense(x))",
                "The LayerNorm at the end is missing.",
            ),
            Mistake(
                "GELU after the LayerNorm",
                "self.norm(F.gelu(self.dense(x)))",
                "F.gelu(self.norm(self.dense(x)))",
                "You apply the GELU after the LayerNorm. The LayerNorm comes last.",
            ),
        ),
    ),
    Step(
        name="modern.py:ModernBertForMaskedLM.forward",
        title="A modern masked LM",
        task="MaskedLMOutput(loss, logits, labels)",
        chapter="decoder",
        hints=(
            "Without labels, apply encoder, head and decoder to all positions, and return no loss.",
            "With labels, `labeled_positions(labels)` says which positions the last layer must compute. Ask "
            "the encoder for these, and gather the labels at the same positions.",
            "A row with few labels also has unlabeled positions among them. Keep only positions whose label "
            "isn't -100. The loss is that of your first step.",
        ),
        mistakes=(
            Mistake(
                "inputs dropped",
                "self.model(input_ids, output_positions=positions, **inputs)",
                "self.model(input_ids, output_positions=positions)",
                "You don't pass `inputs` to the encoder if there are labels.",
            ),
            Mistake(
                "inputs dropped without labels",
                "self.model(input_ids, **inputs)",
                "self.model(input_ids)",
                "You don't pass `inputs` to the encoder if there are no labels.",
            ),
            Mistake(
                "number of labels of the batch unused",
                "if num_items_in_batch is None else num_items_in_batch",
                "",
                "You ignore `num_items_in_batch`, so micro-batches get wrong weights.",
            ),
            Mistake(
                "0/0 without labels",
                "count.clamp(min=1)",
                "count",
                "Without any label, your loss is 0/0, which is NaN. It must be 0.",
            ),
            Mistake(
                "encoder detached",
                "self.head(x[is_labeled])",
                "self.head(x[is_labeled].detach())",
                "You detach the hidden states, so the encoder learns nothing from the loss.",
            ),
            Mistake(
                "no head",
                "self.decoder(self.head(x[is_labeled]))",
                "self.decoder(x[is_labeled])",
                "You apply the decoder to the hidden states. `self.head` comes first.",
            ),
        ),
    ),
)
