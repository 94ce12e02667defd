"""
# Steps: a modern encoder

What else changed since 2018: a gated feed-forward network and pre-norm, the other steps in `modern.py`.
"""

from labml_bert.course.step import Mistake, Step

STEPS = (
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
                "sigmoid instead of the GELU",
                "F.gelu(value) * gate",
                "value * gate.sigmoid()",
                "You use a sigmoid, as in the GLU of 2016. GeGLU has a GELU, and it's of the first half.",
            ),
            Mistake(
                "sigmoid of the second half",
                "F.gelu(value) * gate",
                "F.gelu(value) * gate.sigmoid()",
                "You apply a sigmoid to the second half. It stays as it is; only the first half has a "
                "nonlinearity.",
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
                "no LayerNorm before the feed-forward network",
                "self.mlp(self.mlp_norm(x))",
                "self.mlp(x)",
                "The LayerNorm before the feed-forward network is missing.",
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
                "layers detached",
                "x = layer(x,",
                "x = layer(x.detach(),",
                "You detach the input of each layer, so only the last layer learns from the loss.",
            ),
            Mistake(
                "additive mask accepted",
                "if is_additive or attention_mask.shape",
                "if attention_mask.shape",
                "You accept an additive mask, which means the opposite as a boolean. Raise `ValueError`.",
            ),
            Mistake(
                "additive mask for the layers",
                "attention_mask.bool()[:, None, None, :]",
                "(1.0 - attention_mask[:, None, None, :].float()) * -10000.0",
                "Your attention mask is additive. The layers take a boolean mask, true for the keys to "
                "attend to.",
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
                "loss in bfloat16",
                "logits.float()",
                "logits",
                "Your loss has the type of the logits, and bfloat16 would round it to a multiple of 1/64. "
                "Convert the logits to float32 first.",
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
