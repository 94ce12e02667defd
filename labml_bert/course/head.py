"""
# Steps: the masked LM head

From hidden states to the loss of a model with any encoder: the other steps in `mlm.py`.
"""

from labml_bert.course.step import Mistake, Step

STEPS = (
    Step(
        name="mlm.py:select_labeled",
        title="Only the labeled positions",
        task="the hidden states and the labels at the labeled positions",
        chapter="decoder",
        hints=(
            "Without labels, return the hidden states as they are.",
            "A boolean tensor `(B, T)` as an index into a tensor `(B, T, D)` gives `(M, D)`.",
            "Compare the labels with `IGNORE`, and index both tensors with the result.",
        ),
        mistakes=(
            Mistake(
                "token 0 left out",
                "labels != IGNORE",
                "labels > 0",
                "You leave out the label 0, but token 0 is a token like any other. Only -100 is ignored.",
            ),
            Mistake(
                "all hidden states kept",
                "hidden_states[is_labeled]",
                "hidden_states.flatten(0, 1)",
                "You keep the hidden states of all positions. The head should only see the labeled ones.",
            ),
            Mistake(
                "all labels kept",
                "labels[is_labeled]",
                "labels",
                "You return all labels. Return those at the same positions as the hidden states.",
            ),
            Mistake(
                "hidden states detached",
                "hidden_states[is_labeled]",
                "hidden_states[is_labeled].detach()",
                "You detach the hidden states, so the encoder learns nothing from the loss.",
            ),
        ),
    ),
    Step(
        name="mlm.py:BertPredictionHeadTransform.forward",
        title="The head's dense layer",
        task="dense layer, GELU, LayerNorm",
        chapter="decoder",
        hints=(
            "Three calls, one inside the other. The formula is in the docstring of `BertLMPredictionHead`.",
            "The innermost is `self.dense`; the outermost is `self.LayerNorm`. Between them is `F.gelu`.",
        ),
        mistakes=(
            Mistake(
                "no GELU",
                "F.gelu(self.dense(hidden_states))",
                "self.dense(hidden_states)",
                "There is no GELU between the dense layer and the LayerNorm.",
            ),
            Mistake(
                "GELU after the LayerNorm",
                "self.LayerNorm(F.gelu(self.dense(hidden_states)))",
                "F.gelu(self.LayerNorm(self.dense(hidden_states)))",
                "You apply the GELU after the LayerNorm. The LayerNorm comes last.",
            ),
            Mistake(
                "tanh approximation",
                "F.gelu(self.dense(hidden_states))",
                'F.gelu(self.dense(hidden_states), approximate="tanh")',
                "You use the tanh approximation of the GELU. With it, your outputs differ from those of BERT "
                "in `transformers`, which computes the GELU exactly.",
            ),
            Mistake(
                "residual connection",
                "self.LayerNorm(F.gelu(self.dense(hidden_states)))",
                "self.LayerNorm(hidden_states + F.gelu(self.dense(hidden_states)))",
                "You add the input to the output. The head has no residual connection, unlike the blocks.",
            ),
        ),
    ),
    Step(
        name="mlm.py:BertLMPredictionHead.forward",
        title="The tied head",
        task="logits from the transformed hidden states, the embedding and the bias",
        chapter="decoder",
        hints=(
            "First transform the hidden states. The score of a token is the dot product of its row in "
            "`embedding` and the transformed state, plus the token's bias.",
            "All dot products at once are a matmul with the transposed embedding. `F.linear` does that, and "
            "adds the bias.",
        ),
        mistakes=(
            Mistake(
                "no bias",
                "embedding, self.bias)",
                "embedding)",
                "The bias is missing. Each token has one, the parameter `self.bias`.",
            ),
            Mistake(
                "no transform",
                "self.transform(hidden_states)",
                "hidden_states",
                "You compare the embeddings with the hidden states themselves. Call `self.transform` first.",
            ),
            Mistake(
                "embedding detached",
                "embedding, self.bias)",
                "embedding.detach(), self.bias)",
                "You detach the embedding, so it learns nothing from its use as the output matrix.",
            ),
            Mistake(
                "log-probabilities",
                "F.linear(self.transform(hidden_states), embedding, self.bias)",
                "F.linear(self.transform(hidden_states), embedding, self.bias).log_softmax(-1)",
                "You return log-probabilities. Return the logits: the loss applies the softmax.",
            ),
        ),
    ),
    Step(
        name="mlm.py:MaskedLM.forward",
        title="Encoder, head and loss",
        task="MaskedLMOutput(loss, logits, labels)",
        chapter="decoder",
        hints=(
            "Call the encoder. It returns a tensor or a tuple that begins with one. Then select the labeled "
            "positions, apply the head, and compute the loss if there are labels.",
            "`select_labeled` and `masked_lm_loss` are your own functions. The head needs the weight of "
            "`self._embedding[0]`.",
            "Pass `encoder_inputs` on to the encoder, and `num_items_in_batch` to the loss. The labels of "
            "the output are those that `select_labeled` returned.",
        ),
        mistakes=(
            Mistake(
                "encoder inputs dropped",
                "self.encoder(input_ids, **encoder_inputs)",
                "self.encoder(input_ids)",
                "You don't pass `encoder_inputs` to the encoder, so it never sees the attention mask.",
            ),
            Mistake(
                "number of labels of the batch dropped",
                "masked_lm_loss(logits, labels, num_items_in_batch)",
                "masked_lm_loss(logits, labels)",
                "You don't pass `num_items_in_batch` to the loss, so micro-batches get wrong weights.",
            ),
            Mistake(
                "tuples not unpacked",
                "output if isinstance(output, Tensor) else output[0]",
                "output",
                "The encoder may return a tuple. Its first element holds the hidden states.",
            ),
            Mistake(
                "last element of the tuple",
                "output[0]",
                "output[-1]",
                "You take the last element of the tuple that the encoder returns. Its first element holds "
                "the hidden states.",
            ),
            Mistake(
                "embedding detached",
                "self._embedding[0].weight",
                "self._embedding[0].weight.detach()",
                "You detach the embedding, so it learns nothing from its use as the output matrix.",
            ),
            Mistake(
                "encoder detached",
                "self.head(hidden_states,",
                "self.head(hidden_states.detach(),",
                "You detach the hidden states, so the encoder learns nothing from the loss.",
            ),
            Mistake(
                "no loss in the output",
                "MaskedLMOutput(loss, logits, labels)",
                "MaskedLMOutput(None, logits, labels)",
                "The loss is missing from your output, although there are labels.",
            ),
        ),
    ),
)
