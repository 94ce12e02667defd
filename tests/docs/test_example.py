"""The figures of the running example agree with the complete model, and readers can redo each step."""

import math
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from bs4 import BeautifulSoup
from torch import Tensor

from docs.figures.example import FIGURES, example, example_value
from docs.figures.quotable import quotable
from docs.figures.trace import LEARNING_RATE, MASKED, trace
from docs.literate.expressions import evaluate
from docs.literate.rows import PageError
from labml_bert.bert import BertConfig
from labml_bert.data.tokenizers import word_tokenizer
from labml_bert.models import BertForMaskedLM

IDS = [2, 5, 6, 11, 9, 5, 8, 3]
INPUT_IDS = torch.tensor([[2, 5, 6, 4, 9, 5, 8, 3]])
LABELS = torch.tensor([[-100, -100, -100, 11, -100, -100, -100, -100]])
SAT, CAT = 11, 6


class Table(NamedTuple):
    head: list[str]
    rows: list[tuple[str, list[str]]]

    def numbers(self, row: int) -> list[float]:
        """The numbers in a row, without empty cells and bars."""
        return [number(cell) for cell in self.rows[row][1] if cell]

    def column(self, name: str) -> list[float]:
        """The numbers in a column, without empty cells."""
        index = self.head.index(name) - 1
        return [number(row[index]) for _, row in self.rows if row[index]]


def number(cell: str) -> float:
    cell = cell.replace("−", "-")
    return float(cell[:-1]) / 100 if cell.endswith("%") else float(cell)


def tables(name: str) -> list[Table]:
    """The tables of a figure, as readers see them."""
    parsed_tables = []
    for table in BeautifulSoup(example(name), "html.parser").select("figure table"):
        head = [cell.get_text().replace("\N{NO-BREAK SPACE}", " ") for cell in table.select("thead th")]
        rows = [
            (row.th.get_text(), [cell.get_text() for cell in row.select("td")])
            for row in table.select("tbody tr")
        ]
        parsed_tables.append(Table(head, rows))
    return parsed_tables


def fresh_model() -> BertForMaskedLM:
    """The model of the chapters, built independently."""
    torch.manual_seed(3)
    config = BertConfig(13, 4, 1, 2, 8, 0.0, 0.0, max_position_embeddings=8, initializer_range=0.5)
    return BertForMaskedLM(config).eval()


def assert_cells(cells: list[float], values: Tensor, decimals: int = 2) -> None:
    """Checks that the cells are the rounded values."""
    assert cells == pytest.approx(values.flatten().tolist(), abs=0.51 * 10**-decimals)


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_accessible(name: str) -> None:
    page = BeautifulSoup(example(name), "html.parser")
    assert "\n" not in example(name) and len(page.select("figure")) == 1 and not page.select("script")
    assert page.figcaption.get_text().endswith(".")
    for table in page.select("table"):
        assert table.find_parent(class_="wide") and table.caption.get_text()
        assert all(cell["scope"] == "col" and cell.get_text() for cell in table.select("thead th"))
        for row in table.select("tbody tr"):
            assert row.th["scope"] == "row" and row.th.get_text()
            assert len(row.select("th, td")) == len(table.select("thead th"))


def test_ids_and_masking() -> None:
    tokenizer = word_tokenizer(["the cat sat on the mat", "the dog ran to the cat"] * 2)
    (ids,) = tables("ids")
    (masking,) = tables("masking")
    assert ids.column("id") == masking.column("id") == IDS
    tokens = [f"{i} {tokenizer.id_to_token(token)}" for i, token in enumerate(IDS)]
    assert [name for name, _ in ids.rows] == tokens
    assert masking.column("input_ids") == INPUT_IDS[0].tolist()
    assert masking.column("labels") == LABELS[0].tolist()


def test_the_vectors_match_the_complete_model() -> None:
    model = fresh_model()
    with torch.no_grad():
        x = model.bert.embeddings(INPUT_IDS)[0]
        output, _, attentions = model.bert(INPUT_IDS, output_attentions=True)
        logits = model(INPUT_IDS).logits[0, MASKED]
    t = trace()
    torch.testing.assert_close(t.x, x)
    torch.testing.assert_close(t.weights, attentions[0][0, 0, MASKED])
    torch.testing.assert_close(t.output, output[0, MASKED])
    torch.testing.assert_close(t.logits, logits)

    for table, position in zip(tables("embeddings"), (1, MASKED), strict=True):
        assert_cells(table.numbers(-1), x[position])
    attention = tables("attention")
    assert_cells(attention[0].numbers(0), x[MASKED])
    assert_cells(attention[1].column("weight"), attentions[0][0, 0, MASKED], 3)
    assert_cells(tables("feed_forward")[-1].numbers(-1), output[0, MASKED])
    assert_cells(tables("head")[-1].column("logit"), logits[[SAT, CAT]])
    (table,) = tables("logits")
    assert_cells(table.column("logit z"), logits)
    assert_cells(table.column("probability")[:-1], logits.softmax(-1), 4)


def test_each_figure_starts_with_the_result_of_the_one_before() -> None:
    embeddings, attention, feed_forward = (
        tables(name) for name in ("embeddings", "attention", "feed_forward")
    )
    assert embeddings[1].numbers(-1) == attention[0].numbers(0)
    assert attention[-1].numbers(-1) == feed_forward[0].numbers(0)
    assert feed_forward[-1].numbers(-1) == tables("head")[0].numbers(0)


def test_the_loss_and_the_gradient_step() -> None:
    model = fresh_model()
    loss = model(INPUT_IDS, LABELS).loss
    p = model(INPUT_IDS).logits[0, MASKED].softmax(-1)[SAT]
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter -= LEARNING_RATE * parameter.grad
        loss_after = model(INPUT_IDS, LABELS).loss
        p_after = model(INPUT_IDS).logits[0, MASKED].softmax(-1)[SAT]

    assert example_value("loss") == pytest.approx(loss.item(), abs=1e-5)
    assert example_value("loss") == pytest.approx(-math.log(p.item()), abs=1e-5)
    assert example_value("probability") == pytest.approx(p.item(), abs=1e-6)
    assert example_value("loss_after") == pytest.approx(loss_after.item(), abs=1e-5)
    assert example_value("probability_after") == pytest.approx(p_after.item(), abs=1e-6)
    assert example_value("uniform_loss") == math.log(13)
    assert loss_after < loss and p_after > p

    (table,) = tables("loss")
    for row, q in enumerate((p.item(), 1 / 13)):
        cells = [f"{q:.2%}", f"{-math.log(q):.2f}", f"{1 / q:.1f}"]
        assert table.rows[row][1] == cells
    result, updates = tables("gradient_step")
    assert result.rows[0][1] == [f"{loss:.2f}", f"{loss_after:.2f}"]
    assert result.rows[1][1] == [f"{p:.2%}", f"{p_after:.2%}"]
    gradients = model.cls.predictions.bias.grad
    assert_cells(updates.column("gradient"), gradients[[SAT, CAT]], 3)
    assert_cells(updates.column("new"), model.cls.predictions.bias.detach()[[SAT, CAT]], 3)


def test_attention_weight_and_score() -> None:
    _, scores, *_ = tables("attention")
    assert round(example_value("attention_weight"), 3) == max(scores.column("weight"))
    assert round(example_value("score"), 2) == max(scores.column("score"))
    assert example_value("scaled_score") == pytest.approx(example_value("score") / math.sqrt(2))
    assert example_value("learning_rate") == LEARNING_RATE


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def softmax(scores: list[float]) -> list[float]:
    return [math.exp(score) / sum(map(math.exp, scores)) for score in scores]


def redo_steps() -> dict[str, tuple[list[float], list[float]]]:
    """
    Redoes each step with the rounded numbers on the page. Returns the new results and those on the page.
    """
    steps = {}

    def redo_dense(name: str, table: Table, result: str) -> None:
        x = table.numbers(0)
        rows = [table.numbers(i)[: len(x)] for i in range(1, len(table.rows))]
        steps[name] = [dot(x, row) for row in rows], table.column(result)

    def redo_layer_norm(name: str, table: Table) -> None:
        *parts, centered, result = [table.numbers(i) for i in range(len(table.rows))]
        mean, std = (number(table.rows[i][0].rpartition(" ")[2]) for i in (-2, -1))
        if len(parts) > 1:
            steps[f"{name}: sum"] = [sum(column) for column in zip(*parts[:-1], strict=True)], parts[-1]
        steps[f"{name}: minus the mean"] = [x - mean for x in parts[-1]], centered
        steps[f"{name}: divided by the std"] = [x / std for x in centered], result

    for i, table in enumerate(tables("embeddings")):
        redo_layer_norm(f"embeddings {i}", table)
    query, scores, values, merged_heads, normed = tables("attention")
    redo_dense("query", query, "query")
    keys = [scores.numbers(i)[:2] for i in range(1, 9)]
    steps["scores"] = [dot(scores.numbers(0), key) for key in keys], scores.column("score")
    steps["scaled"] = [s / math.sqrt(2) for s in scores.column("score")], scores.column("score / √2")
    steps["softmax"] = softmax(scores.column("score / √2")), scores.column("weight")
    for i in (1, 2):
        *column, result = values.column(f"value {i}")
        steps[f"values {i}"] = [dot(values.column("weight"), column)], [result]
    redo_dense("joined", merged_heads, "sum")
    redo_layer_norm("after attention", normed)

    intermediate, back, normed = tables("feed_forward")
    redo_dense("intermediate", intermediate, "sum")
    for name, table in (("intermediate", intermediate), ("head", tables("head")[0])):
        sums, gelu = (torch.tensor(table.column(column)) for column in ("sum", "GELU"))
        steps[f"{name}: GELU"] = F.gelu(sums).tolist(), gelu.tolist()
    for i in range(1, 5):
        *column, result = back.column(f"weight {i}")
        steps[f"back {i}"] = [dot(back.column("GELU"), column)], [result]
    redo_layer_norm("after the feed-forward network", normed)

    transformed, normed, scores = tables("head")
    redo_dense("head", transformed, "sum")
    redo_layer_norm("head", normed)
    h = scores.numbers(0)
    rows = [scores.numbers(i) for i in (1, 2)]
    steps["logit"] = [dot(h, row[: len(h)]) + row[-2] for row in rows], scores.column("logit")

    (distribution,) = tables("logits")
    *exponentials, total = distribution.column("exp(z)")
    steps["exp"] = [math.exp(z) for z in distribution.column("logit z")], exponentials
    steps["total"] = [sum(exponentials)], [total]
    steps["probability"] = [e / total for e in exponentials], distribution.column("probability")[:-1]
    (losses,) = tables("loss")
    steps["loss"] = (
        [-math.log(p) for p in losses.column("probability p of sat")],
        losses.column("loss, −ln p"),
    )
    updates = tables("gradient_step")[1]
    p, target, gradient, old = (updates.column(c) for c in ("probability", "target", "gradient", "old"))
    steps["gradient"] = [a - b for a, b in zip(p, target, strict=True)], gradient
    steps["new"] = [a - LEARNING_RATE * b for a, b in zip(old, gradient, strict=True)], updates.column("new")
    return steps


# How far a redone result may differ from the page, for the steps with more than two decimals.
TOLERANCES = {
    "softmax": 0.0015,
    "head: minus the mean": 0.0015,
    "probability": 0.0005,
    "gradient": 0.0015,
    "new": 0.0015,
}


def test_a_reader_can_redo_each_step() -> None:
    """Computed from rounded numbers, each result agrees with the page up to its last digit."""
    for step, (results, on_the_page) in redo_steps().items():
        assert results == pytest.approx(on_the_page, rel=0, abs=TOLERANCES.get(step, 0.015)), step


def test_an_untrained_model_has_plain_layer_norms_and_biases() -> None:
    for name, parameter in fresh_model().named_parameters():
        if name.endswith("LayerNorm.weight"):
            assert (parameter == 1).all()
        elif name.endswith("bias"):
            assert (parameter == 0).all()


def test_the_captions_are_true() -> None:
    captions = {name: BeautifulSoup(example(name), "html.parser").figcaption.get_text() for name in FIGURES}
    weights = trace().weights
    largest, token = f"{weights.max():.3f}", trace().read(int(weights.argmax()))
    assert f"largest weight is {largest}, for {token}; equal weights would be 0.125" in captions["attention"]
    assert "cat gets the most" in captions["logits"] and trace().logits.argmax() == CAT
    assert "higher than ln 13" in captions["loss"] and example_value("loss") > example_value("uniform_loss")
    parameters = sum(parameter.numel() for parameter in fresh_model().parameters())
    assert f"two of the {parameters} parameters" in captions["gradient_step"]


def test_the_pair_of_sentences() -> None:
    (table,) = tables("pair")
    second = [5, 7, 10, 12, 5, 6]
    assert table.column("input_ids") == [*IDS, *second, 3, 0]
    assert table.column("token_type_ids") == [0] * 8 + [1] * 7 + [0]
    assert table.column("attention_mask") == [1] * 15 + [0]


def test_an_unknown_name_is_a_page_error() -> None:
    with pytest.raises(PageError, match="no figure 'keys'; it has ids, masking"):
        example("keys")
    with pytest.raises(PageError, match="no value 'accuracy'; it has loss"):
        example_value("accuracy")


def test_chapters_can_use_figures_and_values() -> None:
    names = quotable({}, {}, "idea")
    assert evaluate('example("loss")', names) == example("loss")
    assert evaluate('example_value("uniform_loss"):.2f', names) == "2.56"
    with pytest.raises(PageError, match="no figure"):
        evaluate('example("keys")', names)


def test_the_trace_does_not_change_the_random_state() -> None:
    state = torch.get_rng_state()
    trace.__wrapped__()
    assert torch.equal(torch.get_rng_state(), state)
