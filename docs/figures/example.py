"""
# The running example in figures

What happens to a sentence on its way through BERT? Each figure here shows one step of the trace in
`trace.py`, as tables of real numbers that you can check by hand. They come from the project's own modules, so
the tables change when the model does.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pyarrow as pa
import torch
from markupsafe import Markup
from torch import Tensor, nn

from docs.figures.trace import HEAD, LEARNING_RATE, MASKED, OTHER, SECOND, SENTENCE, Trace, only_block, trace
from docs.literate.rows import PageError
from docs.literate.templates import renderer
from labml_bert.data.pair_collator import PairCollator
from labml_bert.nsp import IS_NEXT, PairMaker

render = renderer(Path(__file__).parent / "templates")


@dataclass
class Row:
    """A row of a table. Its kind is a CSS class: `here` is shaded, `total` has a line above it."""

    name: str
    cells: Sequence[str]
    kind: str = ""


@dataclass
class Table:
    """One step. `head` begins with the header of the column of row names."""

    title: str
    head: Sequence[str]
    rows: list[Row]


ROUNDED = "Numbers are rounded for display, so if you redo a step with them, the last digit can differ."
UNTRAINED = f"The model is untrained: every bias is 0, and every LayerNorm has scale 1 and shift 0. {ROUNDED}"


def figure(caption: str, *tables: Table, note: str = "") -> Markup:
    """A caption and its tables, as HTML on one line."""
    return render("example.html", caption=caption, tables=tables, note=note)


def format_number(value: float | Tensor, decimals: int = 2) -> str:
    """A number with a real minus sign. What rounds to zero has no sign."""
    text = f"{float(value):.{decimals}f}"
    return (text.lstrip("-") if float(text) == 0 else text).replace("-", "−")


def format_percent(probability: float | Tensor) -> str:
    """A probability, with enough digits to compute the loss from it."""
    return f"{float(probability):.2%}"


def cells(vector: Tensor, decimals: int = 2) -> list[str]:
    """The numbers of a vector."""
    return [format_number(value, decimals) for value in vector]


def code(name: str) -> Markup:
    """A token or a name in code, which may wrap at its underscores."""
    return Markup("<code>{}</code>").format(Markup("_<wbr>").join(name.split("_")))


def token_label(position: int, token: str) -> Markup:
    """A position and its token, as the name of a row."""
    return Markup("<small>{}</small> {}").format(position, code(token))


def vector_head(size: int, *more: str) -> list[str]:
    """The names of the columns of a vector, and of further ones."""
    return ["dimension", *(str(i + 1) for i in range(size)), *more]


def norm_table(title: str, parts: dict[str, Tensor], norm: nn.Module, decimals: int = 2) -> Table:
    """The sum of some vectors, and its LayerNorm in two steps."""
    total = torch.stack([*parts.values()]).sum(0)
    mean, std = total.mean(), total.std(correction=0)
    rows = [Row(name, cells(part, decimals)) for name, part in parts.items()]
    if len(parts) > 1:
        rows.append(Row("sum", cells(total, decimals), "total"))
    rows.append(Row(f"minus the mean, {format_number(mean, decimals)}", cells(total - mean, decimals)))
    rows.append(
        Row(f"divided by the std, {format_number(std, decimals)}", cells(norm(total).detach()), "here")
    )
    return Table(title, vector_head(len(total)), rows)


def dense_table(title: str, name: str, x: Tensor, weight: Tensor, outputs: dict[str, Tensor]) -> Table:
    """A dense layer: its input `x`, and for each output its row of weights and its value."""
    rows = [Row(name, [*cells(x), *("" for _ in outputs)], "here")]
    rows += [
        Row(f"weights {i + 1}", [*cells(row), *(format_number(output[i]) for output in outputs.values())])
        for i, row in enumerate(weight.detach())
    ]
    return Table(title, vector_head(len(x), *outputs), rows)


def ids(t: Trace) -> Markup:
    """Text to tokens to ids."""
    rows = [Row(token_label(i, t.token(token)), [format_number(token, 0)]) for i, token in enumerate(t.ids)]
    caption = Markup(
        "The tokenizer splits the text into words and looks up the id of each word in its vocabulary of {} "
        "tokens. {} goes in front and {} at the end."
    ).format(len(t.logits), code("[CLS]"), code("[SEP]"))
    return figure(caption, Table(f"The tokens of “{SENTENCE}”", ["position, token", "id"], rows))


def masking(t: Trace) -> Markup:
    """What the model reads, and what it has to predict."""
    columns = (t.ids, t.input_ids, t.labels)
    rows = [
        Row(
            token_label(i, t.token(t.ids[i])),
            [format_number(column[i], 0) for column in columns],
            "here" if i == MASKED else "",
        )
        for i in range(len(t.ids))
    ]
    caption = Markup(
        "The masker replaces {} at position {} with {} and keeps its id as the label. Every other label is "
        "{}, which the loss ignores."
    ).format(code(t.token(t.target)), MASKED, code("[MASK]"), format_number(t.labels[0], 0))
    head = ["position, token", "id", code("input_ids"), code("labels")]
    return figure(caption, Table("Before and after masking", head, rows))


def embeddings(t: Trace) -> Markup:
    """Three rows, their sum and its LayerNorm, at two positions."""
    norm = t.model.bert.embeddings.LayerNorm
    tables = []
    for position in (OTHER, MASKED):
        token_row, position_row, segment_row = (row[position] for row in t.embeddings)
        parts = {
            Markup("token {}").format(code(t.read(position))): token_row,
            f"position {position}": position_row,
            "segment 0": segment_row,
        }
        title = Markup("Position {}, {}").format(position, code(t.read(position)))
        tables.append(norm_table(title, parts, norm))
    caption = (
        "Each vector is the sum of three rows, one from each embedding table. LayerNorm then gives it mean 0 "
        "and standard deviation 1; the shaded rows are what the first block reads."
    )
    return figure(caption, *tables, note=UNTRAINED)


def attention(t: Trace) -> Markup:
    """One head at the masked position."""
    layer = only_block(t.model).attention
    width, most = len(t.query), int(t.weights.argmax())
    names = [token_label(i, t.read(i)) for i in range(len(t.ids))]
    query = dense_table(
        "1. The query: vector × weight matrix",
        f"vector at position {MASKED}",
        t.x[MASKED],
        layer["self"].query.weight[HEAD * width : (HEAD + 1) * width],
        {"query": t.query},
    )
    scores = [Row("query", [*cells(t.query), "", "", ""], "here")]
    scores += [
        Row(name, [*cells(key), format_number(score), format_number(scaled), format_number(weight, 3)])
        for name, key, score, scaled, weight in zip(names, t.keys, t.scores, t.scaled, t.weights, strict=True)
    ]
    values = [
        Row(name, [format_number(weight, 3), *cells(value)])
        for name, weight, value in zip(names, t.weights, t.values, strict=True)
    ]
    context = t.context[HEAD * width : (HEAD + 1) * width]
    values.append(Row("weighted sum", ["", *cells(context)], "here total"))
    parts = {"joined heads": t.attention_dense, f"vector at position {MASKED}": t.x[MASKED]}
    caption = Markup(
        "Head {} at position {} compares its query with the key of every position and returns a weighted sum "
        "of the values. The largest weight is {}, for {}; equal weights would be {}."
    ).format(
        HEAD + 1,
        MASKED,
        format_number(t.weights[most], 3),
        code(t.read(most)),
        format_number(1 / len(t.ids), 3),
    )
    axes = [f"{name} {i + 1}" for name in ("key", "value") for i in range(width)]
    return figure(
        caption,
        query,
        Table(
            f"2. The attention weights: score = query · key, divide by √{width}, softmax",
            [
                "position, token",
                *axes[:width],
                "score",
                f"score\N{NO-BREAK SPACE}/\N{NO-BREAK SPACE}√{width}",
                "weight",
            ],
            scores,
        ),
        Table(
            "3. The result: weight × value, summed over positions",
            ["position, token", "weight", *axes[width:]],
            values,
        ),
        dense_table(
            "4. The results of heads 1 and 2 through a dense layer",
            "results",
            t.context,
            layer["output"].dense.weight,
            {"sum": t.attention_dense},
        ),
        norm_table("5. Add the vector, LayerNorm", parts, layer["output"].LayerNorm),
        note=UNTRAINED,
    )


def feed_forward(t: Trace) -> Markup:
    """From D to I and back."""
    layer = only_block(t.model)
    D, inner = len(t.output), len(t.intermediate)
    wide = dense_table(
        f"1. From {D} numbers to {inner}: multiply, sum, GELU",
        "input",
        t.attention_output,
        layer.intermediate.dense.weight,
        {"sum": t.intermediate_dense, "GELU": t.intermediate},
    )
    back = [
        Row(f"unit {i + 1}", [format_number(gelu), *cells(weights)])
        for i, (gelu, weights) in enumerate(
            zip(t.intermediate, layer.output.dense.weight.detach().T, strict=True)
        )
    ]
    back.append(Row("weighted sum", ["", *cells(t.output_dense)], "here total"))
    parts = {"weighted sum": t.output_dense, "input": t.attention_output}
    caption = (
        f"The feed-forward network takes the vector at position {MASKED} from {D} numbers to {inner}, "
        f"applies GELU, and goes back to {D}. The last row is the output of the block."
    )
    return figure(
        caption,
        wide,
        Table(
            f"2. Back to {D}: GELU × weight, summed over units",
            ["unit", "GELU", *(f"weight {i + 1}" for i in range(D))],
            back,
        ),
        norm_table("3. Add the input, LayerNorm", parts, layer.output.LayerNorm),
        note=UNTRAINED,
    )


def head(t: Trace) -> Markup:
    """The masked LM head, up to the logits of two tokens."""
    predictions = t.model.cls.predictions
    table = t.model.bert.embeddings.word_embeddings.weight.detach()
    transform_table = dense_table(
        "1. Dense layer and GELU",
        "input",
        t.output,
        predictions.transform.dense.weight,
        {"sum": t.head_dense, "GELU": t.head_gelu},
    )
    # GELU of these numbers is small, so two decimals wouldn't be enough to divide by the standard deviation.
    norm = norm_table("2. LayerNorm", {"GELU": t.head_gelu}, predictions.transform.LayerNorm, 3)
    scores = [Row("LayerNorm", [*cells(t.head_output), "", ""], "here")]
    for token in (t.target, t.best):
        numbers = [*cells(table[token]), format_number(predictions.bias[token].detach())]
        scores.append(Row(code(t.token(token)), [*numbers, format_number(t.logits[token])]))
    caption = Markup(
        "The head transforms the vector at position {} and compares it with each row of the token embedding "
        "table. Here are the logits of {}, the masked token, and {}, the most probable one."
    ).format(MASKED, code(t.token(t.target)), code(t.token(t.best)))
    return figure(
        caption,
        transform_table,
        norm,
        Table(
            "3. Multiply by a token’s embedding, sum, add the bias",
            vector_head(len(t.head_output), "bias", "logit"),
            scores,
        ),
        note=UNTRAINED,
    )


def logits(t: Trace) -> Markup:
    """The distribution over the vocabulary at the masked position."""
    probabilities, exponentials = t.logits.softmax(-1), t.logits.exp()
    rows = [
        Row(
            token_label(token, t.token(token)),
            [
                format_number(t.logits[token]),
                format_number(exponentials[token]),
                format_percent(probability),
                Markup('<i style="width:{:.0%}"></i>').format(float(probability / probabilities.max())),
            ],
            "here" if token == t.target else "",
        )
        for token, probability in enumerate(probabilities)
    ]
    rows.append(
        Row("sum", ["", format_number(exponentials.sum()), format_percent(probabilities.sum()), ""], "total")
    )
    caption = Markup(
        "The model gives each token of the vocabulary a logit z. The softmax turns it into a probability, "
        "exp(z) divided by the sum of all exp(z): {} gets {}, and {} gets the most, {}."
    ).format(
        code(t.token(t.target)),
        format_percent(probabilities[t.target]),
        code(t.token(t.best)),
        format_percent(probabilities[t.best]),
    )
    head = ["id, token", "logit z", "exp(z)", "probability", Markup('<span class="sr">bar</span>')]
    return figure(caption, Table(f"The prediction at position {MASKED}", head, rows), note=ROUNDED)


def loss(t: Trace) -> Markup:
    """The loss of the model beside that of a uniform guess."""
    untrained, uniform = example_value("loss"), example_value("uniform_loss")
    rows = [
        Row(name, [format_percent(math.exp(-nats)), format_number(nats), f"{math.exp(nats):.1f}"], kind)
        for name, nats, kind in (("the model", untrained, "here"), ("uniform guess", uniform, ""))
    ]
    caption = Markup(
        "The loss is minus the natural logarithm of the probability of {}, in nats. The loss of this "
        "untrained model is {} than ln {}, the loss of a uniform guess."
    ).format(code(t.token(t.target)), "higher" if untrained > uniform else "lower", len(t.logits))
    head = [
        "prediction",
        Markup("probability p of {}").format(code(t.token(t.target))),
        "loss, −ln\N{NO-BREAK SPACE}p",
        "perplexity, 1/p",
    ]
    return figure(caption, Table(f"The loss at position {MASKED}", head, rows))


def rank(logits: Tensor, token: int) -> str:
    """The rank of a token: how many tokens have a logit at least as high as its own."""
    return str(int((logits >= logits[token]).sum()))


def gradient_step(t: Trace) -> Markup:
    """The prediction before and after one step, and one of the gradients."""
    before, after = t.logits.softmax(-1), t.logits_after.softmax(-1)
    name = code(t.token(t.target))
    results = [
        Row("loss, nats", [format_number(-before[t.target].log()), format_number(-after[t.target].log())]),
        Row(
            Markup("probability of {}").format(name),
            [format_percent(before[t.target]), format_percent(after[t.target])],
        ),
        Row(Markup("rank of {}").format(name), [rank(t.logits, t.target), rank(t.logits_after, t.target)]),
    ]
    bias = t.model.cls.predictions.bias.detach()
    updates = [
        Row(
            code(t.token(token)),
            [
                format_number(before[token], 3),
                str(int(token == t.target)),
                format_number(t.bias_gradient[token], 3),
                format_number(bias[token], 3),
                format_number(t.bias_after[token], 3),
            ],
            "here" if token == t.target else "",
        )
        for token in (t.target, t.best)
    ]
    caption = Markup(
        "One step of SGD with learning rate {:g} on this one masked token lowers the loss from {} to {} "
        "nats. The second table shows the update of two of the {} parameters, the head's biases for {} and "
        "{}. The gradient of such a bias is the token's probability minus the target, 1 for {} and 0 "
        "for all other tokens."
    ).format(
        LEARNING_RATE,
        *results[0].cells,
        sum(parameter.numel() for parameter in t.model.parameters()),
        *(code(t.token(token)) for token in (t.target, t.best, t.target)),
    )
    return figure(
        caption,
        Table("The prediction", ["measure", "before", "after"], results),
        Table(
            f"The biases: new = old − {LEARNING_RATE:g} × gradient",
            ["bias of", "probability", "target", "gradient", "old", "new"],
            updates,
        ),
        note=ROUNDED,
    )


def pair(t: Trace) -> Markup:
    """Two sentences as one input, with a padding token so that the attention mask has something to mask."""
    vocab = t.tokenizer.get_vocab()
    first, second = (t.tokenizer.encode(text).ids for text in (SENTENCE, SECOND))
    maker = PairMaker([[first], [second]], vocab["[CLS]"], vocab["[SEP]"])
    sentences = maker.assemble(first, second, IS_NEXT, Random(0))
    no_masks = pa.array([[]], pa.list_(pa.int32()))
    columns = {
        "tokens": [sentences.input_ids],
        "segment_ids": [sentences.token_type_ids],
        "is_random_next": [bool(sentences.next_sentence_label)],
        "masked_positions": no_masks,
        "masked_labels": no_masks,
    }
    batch = PairCollator(t.tokenizer, length=len(sentences.input_ids) + 1)(pa.table(columns))
    names = ("input_ids", "token_type_ids", "attention_mask")
    rows = [
        Row(
            token_label(i, t.token(token)),
            [format_number(batch[name][0, i], 0) for name in names],
            "here" if batch["token_type_ids"][0, i] else "",
        )
        for i, token in enumerate(batch["input_ids"][0])
    ]
    caption = Markup(
        "Two sentences share one input. {} is 1 for the second sentence (shaded), and {} is 0 for padding."
    ).format(code("token_type_ids"), code("attention_mask"))
    title = f"“{SENTENCE}” and “{SECOND}”"
    return figure(caption, Table(title, ["position, token", *map(code, names)], rows))


FIGURES: dict[str, Callable[[Trace], Markup]] = {
    picture.__name__: picture
    for picture in (
        ids,
        masking,
        embeddings,
        attention,
        feed_forward,
        head,
        logits,
        loss,
        gradient_step,
        pair,
    )
}


def example(name: str) -> Markup:
    """
    ## The figures by name

    A figure, `{{ example("attention") }}`. Raises `PageError` if there is none of this name.
    """
    if name not in FIGURES:
        raise PageError(f"the running example has no figure {name!r}; it has {', '.join(FIGURES)}")
    return FIGURES[name](trace())


def example_value(name: str) -> float:
    """
    A number, `{{ example_value("loss"):.2f }}`. `score` and `attention_weight` belong to the token with the
    largest attention weight in `example("attention")`. Raises `PageError` if there is none of this name.
    """
    t = trace()
    before, after = (float(logits.softmax(-1)[t.target]) for logits in (t.logits, t.logits_after))
    most = int(t.weights.argmax())
    values = {
        "loss": -math.log(before),
        "loss_after": -math.log(after),
        "probability": before,
        "probability_after": after,
        "uniform_loss": math.log(len(t.logits)),
        "score": float(t.scores[most]),
        "scaled_score": float(t.scaled[most]),
        "attention_weight": float(t.weights[most]),
        "learning_rate": LEARNING_RATE,
    }
    if name not in values:
        raise PageError(f"the running example has no value {name!r}; it has {', '.join(values)}")
    return values[name]
