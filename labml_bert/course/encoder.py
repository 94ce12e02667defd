"""
# Steps: the encoder

From token ids to one vector per token: the steps in `bert.py`, in the order of the file.
"""

from labml_bert.course.step import Mistake, Step

STEPS = (
    Step(
        name="bert.py:BertEmbeddings.forward",
        title="Three embeddings and their sum",
        task="LayerNorm of the sum of token, position and segment embeddings, then dropout",
        chapter="embeddings",
        hints=(
            "Look up each kind of id in its table, and add the three results. The formula is above.",
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
                "mask added as ones and zeros",
                "scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)",
                "scores + attention_mask",
                "You add a mask of ones and zeros to the scores, so padding is only slightly less likely. "
                "The weight of a masked key must be 0.",
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
    Step(
        name="bert.py:BertOutput.forward",
        title="Dense, dropout, add, norm",
        task="LayerNorm of the residual plus the projected input with dropout",
        chapter="before-and-after",
        hints=(
            "There are four steps, in the order of the heading above.",
            "Apply dropout to the output of `self.dense`, not to the sum, and add `residual`.",
        ),
        mistakes=(
            Mistake(
                "no residual",
                "residual + self.dropout(",
                "self.dropout(",
                "You don't add `residual`, so gradients can't bypass the sublayer.",
            ),
            Mistake(
                "norm before the sum",
                "self.LayerNorm(residual + self.dropout(self.dense(hidden_states)))",
                "residual + self.LayerNorm(self.dropout(self.dense(hidden_states)))",
                "You normalize before you add the residual. BERT normalizes the sum (post-norm).",
            ),
            Mistake(
                "dropout on the sum",
                "residual + self.dropout(self.dense(hidden_states))",
                "self.dropout(residual + self.dense(hidden_states))",
                "You apply dropout to the sum. The residual must pass unchanged.",
            ),
            Mistake(
                "no dropout",
                "self.dropout(self.dense(hidden_states))",
                "self.dense(hidden_states)",
                "The dropout is missing. It applies to the output of the dense layer.",
            ),
        ),
    ),
    Step(
        name="bert.py:BertIntermediate.forward",
        title="The feed-forward network",
        task="GELU of the dense layer",
        chapter="before-and-after",
        hints=("The formula above is what `F.gelu` computes by default.", "Apply `self.dense` first."),
        mistakes=(
            Mistake(
                "tanh approximation",
                "F.gelu(self.dense(hidden_states))",
                'F.gelu(self.dense(hidden_states), approximate="tanh")',
                "You use the tanh approximation of the GELU, as in GPT-2. BERT uses the exact one.",
            ),
            Mistake(
                "ReLU",
                "F.gelu(self.dense(hidden_states))",
                "F.relu(self.dense(hidden_states))",
                "You use a ReLU. BERT uses a GELU, which lets small negative numbers through.",
            ),
            Mistake(
                "no nonlinearity",
                "F.gelu(self.dense(hidden_states))",
                "self.dense(hidden_states)",
                "There is no GELU. Without a nonlinearity, two dense layers are no better than one.",
            ),
            Mistake(
                "GELU before the dense layer",
                "F.gelu(self.dense(hidden_states))",
                "self.dense(F.gelu(hidden_states))",
                "You apply the GELU to the input. Apply it to the output of the dense layer.",
            ),
        ),
    ),
    Step(
        name="bert.py:BertLayer.forward",
        title="One block",
        task="attention and the feed-forward network, each with its output layer",
        chapter="attention",
        hints=(
            "The two equations at the top of the file say what happens. The parts are in `__init__`: "
            '`self.attention["self"]`, `self.attention["output"]`, `self.intermediate`, `self.output`.',
            "The queries and the first residual are `query_states`, or `hidden_states` if there are none. "
            "Keys and values always come from `hidden_states`.",
            "The second residual is the output of the attention part, a in the equations. Return the result "
            "and the attention weights.",
        ),
        mistakes=(
            Mistake(
                "second residual is the input",
                "self.output(self.intermediate(a), a)",
                "self.output(self.intermediate(a), x)",
                "Your second residual is the input of the block. It must be the output of the attention "
                "part, as in the second equation.",
            ),
            Mistake(
                "mask dropped",
                "(x, hidden_states, attention_mask, output_attentions)",
                "(x, hidden_states, None, output_attentions)",
                "You don't pass the attention mask on, so tokens attend to padding.",
            ),
            Mistake(
                "keys from the queries",
                "(x, hidden_states, attention_mask, output_attentions)",
                "(x, x, None, output_attentions)",
                "Your keys and values come from `query_states`. They must come from `hidden_states`, because "
                "every query can attend to all positions.",
            ),
            Mistake(
                "query_states ignored",
                "hidden_states if query_states is None else query_states",
                "hidden_states",
                "You ignore `query_states`. If they are given, the block computes only their positions.",
            ),
            Mistake(
                "no feed-forward network",
                "self.output(self.intermediate(a), a)",
                "a",
                "The feed-forward network is missing.",
            ),
        ),
    ),
    Step(
        name="bert.py:BertEncoder.forward",
        title="The stack",
        task="the vectors after the last block, and a tuple of all attention weights if asked for",
        chapter="attention",
        hints=(
            "Call the blocks one after the other. Each returns its vectors and its attention weights.",
            "Only in the last block, the query states are `select_positions(hidden_states, "
            "output_positions)`, if there are output positions. In all others, they are the hidden states.",
            "Collect the weights in a list. Return `tuple(...)` of it with `output_attentions`, else `None`.",
        ),
        mistakes=(
            Mistake(
                "every block gets the same input",
                "hidden_states, weights = layer(hidden_states",
                "result, weights = layer(hidden_states",
                "The output of a block isn't the input of the next one.",
            ),
            Mistake(
                "positions selected in the first block",
                "layer is self.layer[-1]",
                "layer is self.layer[0]",
                "You select the output positions in the first block. All later blocks then see only these "
                "tokens. Select them in the last block.",
            ),
            Mistake(
                "output positions ignored",
                "query_states = select_positions(hidden_states, output_positions)  # (B, P, D)",
                "pass",
                "You ignore `output_positions`. The last block must compute only these positions.",
            ),
            Mistake(
                "attention weights dropped",
                "tuple(attentions) if output_attentions else None",
                "None",
                "You don't return the attention weights, although `output_attentions` is set.",
            ),
            Mistake(
                "mask dropped",
                "layer(hidden_states, attention_mask,",
                "layer(hidden_states, None,",
                "You don't pass the attention mask to the blocks.",
            ),
        ),
    ),
    Step(
        name="bert.py:BertPooler.forward",
        title="The pooler",
        task="tanh of the dense layer at the first token",
        chapter="heads",
        hints=(
            "The vector of the first token of each sequence is `hidden_states[:, 0]`, `(B, D)`.",
            "Apply `self.dense` to it, and then `torch.tanh`.",
        ),
        mistakes=(
            Mistake(
                "mean of all tokens",
                "hidden_states[:, 0]",
                "hidden_states.mean(1)",
                "You pool with the mean of all tokens. BERT takes the vector of the first, `[CLS]`.",
            ),
            Mistake(
                "first sequence instead of the first token",
                "hidden_states[:, 0]",
                "hidden_states[0]",
                "You take all tokens of the first sequence. Take the first token of each sequence.",
            ),
            Mistake(
                "no tanh",
                "torch.tanh(self.dense(hidden_states[:, 0]))",
                "self.dense(hidden_states[:, 0])",
                "The tanh is missing.",
            ),
        ),
    ),
    Step(
        name="bert.py:BertModel.forward",
        title="The whole encoder",
        task="BertModelOutput(last_hidden_state, pooler_output, attentions)",
        chapter="attention",
        hints=(
            "Refuse an additive mask and a mask of the wrong shape with `ValueError`. Then turn the mask "
            "into a boolean, `(B, 1, 1, T)`, so that it's broadcast over heads and queries.",
            "The embeddings need the ids, the token types and the positions. The encoder needs "
            "`cast_once(x)`, the mask, `output_attentions` and `output_positions`.",
            "The pooler needs the vector of `[CLS]`. If there's a pooler, put position 0 in front of "
            "`output_positions` with `F.pad(output_positions, (1, 0))`, and remove that vector from the "
            "result again.",
        ),
        mistakes=(
            Mistake(
                "additive mask accepted",
                "if is_additive or attention_mask.shape",
                "if attention_mask.shape",
                "You accept an additive mask: 0 for a token, a large negative number for padding. Turned "
                "into a boolean, it means the opposite. Raise `ValueError`.",
            ),
            Mistake(
                "mask of a wrong shape accepted",
                "if is_additive or attention_mask.shape != input_ids.shape:",
                "if is_additive:",
                "You accept a mask with another shape than `input_ids`. Raise `ValueError`.",
            ),
            Mistake(
                "mask ignored",
                "cast_once(x), attention_mask,",
                "cast_once(x), None,",
                "Your encoder ignores the attention mask, so tokens attend to padding.",
            ),
            Mistake(
                "positions dropped",
                "self.embeddings(input_ids, token_type_ids, position_ids)",
                "self.embeddings(input_ids, token_type_ids)",
                "You don't pass `position_ids` to the embeddings.",
            ),
            Mistake(
                "token types dropped",
                "self.embeddings(input_ids, token_type_ids, position_ids)",
                "self.embeddings(input_ids, None, position_ids)",
                "You don't pass `token_type_ids` to the embeddings.",
            ),
            Mistake(
                "pooler reads the wrong token",
                "output_positions = F.pad(output_positions, (1, 0))",
                "output_positions = F.pad(output_positions, (1, 0), value=1)",
                "With `output_positions`, your pooler doesn't read `[CLS]`, the token at position 0.",
            ),
            Mistake(
                "[CLS] left in the result",
                "x if output_positions is None else x[:, 1:]",
                "x",
                "With `output_positions`, your result has the vector of `[CLS]` in front. It was only for "
                "the pooler.",
            ),
        ),
    ),
    Step(
        name="bert.py:init_weights",
        title="Initialization",
        task="truncated normal weights and zero biases, for linear layers and embeddings",
        chapter="stuck",
        hints=(
            "The function is called once for every module. It changes linear layers and embeddings, and "
            "leaves all others alone. Use `isinstance`.",
            "`nn.init.trunc_normal_` draws from a truncated normal distribution. Its limits `a` and `b` are "
            "numbers, not multiples of the standard deviation.",
            "The limits are -2 * std and 2 * std. A linear layer may have no bias; embeddings have none.",
        ),
        mistakes=(
            Mistake(
                "not truncated",
                "nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)",
                "nn.init.normal_(module.weight, std=std)",
                "Some weights are more than two standard deviations from 0. The limits `a` and `b` of "
                "`trunc_normal_` are numbers; their defaults, -2 and 2, truncate next to nothing.",
            ),
            Mistake(
                "embeddings left alone",
                "(nn.Linear, nn.Embedding)",
                "nn.Linear",
                "Your embeddings keep PyTorch's standard deviation of 1. The embedding is also the output "
                "layer, so an untrained model would have a loss far above ln V.",
            ),
            Mistake(
                "linear layers left alone",
                "isinstance(module, (nn.Linear, nn.Embedding))",
                "isinstance(module, nn.Embedding)",
                "You don't initialize the weights of linear layers.",
            ),
            Mistake(
                "biases left alone",
                "nn.init.zeros_(module.bias)",
                "pass",
                "Your biases keep PyTorch's random values. They start at 0.",
            ),
            Mistake(
                "std ignored",
                "nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)",
                "nn.init.trunc_normal_(module.weight, std=0.02, a=-0.04, b=0.04)",
                "You always use a standard deviation of 0.02. Use the argument `std`: a narrow model needs "
                "larger weights.",
            ),
        ),
    ),
)
