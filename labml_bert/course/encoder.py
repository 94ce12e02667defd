"""
# Steps: the encoder

From context vectors to one vector per token: the other steps in `bert.py`.
"""

from labml_bert.course.step import Mistake, Step

STEPS = (
    Step(
        name="bert.py:BertOutput.forward",
        title="Dense, dropout, add, norm",
        task="LayerNorm of the residual plus the projected input with dropout",
        chapter="attention",
        hints=(
            "There are four steps, in the order of the docstring's heading.",
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
        chapter="attention",
        hints=("The docstring's formula is what `F.gelu` computes by default.", "Apply `self.dense` first."),
        mistakes=(
            Mistake(
                "tanh approximation",
                "F.gelu(self.dense(hidden_states))",
                'F.gelu(self.dense(hidden_states), approximate="tanh")',
                "You use the tanh approximation of the GELU, as in GPT-2. We use the exact one, like BERT in "
                "`transformers`.",
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
                "first residual from the hidden states",
                '["output"](context, x)',
                '["output"](context, hidden_states)',
                "Your first residual is `hidden_states`. It must be `query_states` if they are given, "
                "because the attention computes only their positions.",
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
                "(x, x, attention_mask, output_attentions)",
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
                "always the first block",
                "hidden_states, weights = layer(hidden_states",
                "hidden_states, weights = self.layer[0](hidden_states",
                "You call the first block each time. Every block has weights of its own.",
            ),
            Mistake(
                "positions selected in the first block",
                "i == len(self.layer)",
                "i == 1",
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
                "input detached",
                "hidden_states[:, 0]",
                "hidden_states[:, 0].detach()",
                "You detach the vector of `[CLS]`, so the encoder learns nothing from losses of the pooled "
                "vector.",
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
                "additive mask for the blocks",
                "attention_mask.bool()[:, None, None, :]",
                "(1.0 - attention_mask[:, None, None, :].float()) * -10000.0",
                "Your attention mask is additive. The blocks take a boolean mask, true for the keys to "
                "attend to.",
            ),
            Mistake(
                "mask of integers for the blocks",
                "attention_mask.bool()[:, None, None, :]",
                "attention_mask[:, None, None, :]",
                "The blocks get a mask of integers. They take a boolean mask, true for the keys to attend "
                "to.",
            ),
            Mistake(
                "mask ignored",
                "cast_once(x), attention_mask,",
                "cast_once(x), None,",
                "Your encoder ignores the attention mask, so tokens attend to padding.",
            ),
            Mistake(
                "mask of the queries",
                "attention_mask.bool()[:, None, None, :]",
                "attention_mask.bool()[:, None, :, None]",
                "You mask the queries. The mask says which keys to attend to, and keys are the last "
                "dimension of the scores.",
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
                "embeddings detached",
                "cast_once(x),",
                "cast_once(x.detach()),",
                "You detach the output of the embeddings, so they learn nothing.",
            ),
            Mistake(
                "pooler reads the wrong token",
                "output_positions = F.pad(output_positions, (1, 0))",
                "output_positions = F.pad(output_positions, (1, 0), value=1)",
                "With `output_positions`, your pooler doesn't read `[CLS]`, the token at position 0.",
            ),
            Mistake(
                "pooler reads the selected vectors",
                "x[:, 1:], self.pooler(x)",
                "x[:, 1:], self.pooler(x if output_positions is None else x[:, 1:])",
                "With `output_positions`, your pooler reads the first of the selected vectors. It needs the "
                "vector of `[CLS]`, even if `output_positions` doesn't contain position 0.",
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
        chapter="idea",
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
                "LayerNorm weights drawn",
                "(nn.Linear, nn.Embedding)",
                "(nn.Linear, nn.Embedding, nn.LayerNorm)",
                "You draw the weights of LayerNorms, too. They must stay 1.",
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
