"""The figures of the running example agree with the model as a whole, and a reader can redo each step."""

import math
import subprocess
import sys
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from bs4 import BeautifulSoup
from torch import Tensor

from docs.figures.example import FIGURES, example, example_value
from docs.figures.quotable import quotable
from docs.figures.trace import LEARNING_RATE, MASKED, trace
from docs.literate.chapters import evaluate
from docs.literate.rows import PageError
from labml_bert.bert import BertConfig
from labml_bert.data.tokenizers import word_tokenizer
from labml_bert.models import BertForMaskedLM
from tests.support.runs import ROOT

IDS = [2, 5, 6, 11, 9, 5, 8, 3]
INPUT_IDS = torch.tensor([[2, 5, 6, 4, 9, 5, 8, 3]])
LABELS = torch.tensor([[-100, -100, -100, 11, -100, -100, -100, -100]])
SAT, CAT = 11, 6


class Table(NamedTuple):
    head: list[str]
    rows: list[tuple[str, list[str]]]

    def numbers(self, row: int) -> list[float]:
        """What a row shows, without its empty cells and bars."""
        return [number(cell) for cell in self.rows[row][1] if cell]

    def column(self, name: str) -> list[float]:
        """What a column shows, without its empty cells."""
        index = self.head.index(name) - 1
        return [number(row[index]) for _, row in self.rows if row[index]]


def number(cell: str) -> float:
    cell = cell.replace("−", "-")
    return float(cell[:-1]) / 100 if cell.endswith("%") else float(cell)


def tables(name: str) -> list[Table]:
    """The tables of a figure as a reader sees them."""
    found = []
    for table in BeautifulSoup(example(name), "html.parser").select("figure table"):
        head = [cell.get_text().replace("\N{NO-BREAK SPACE}", " ") for cell in table.select("thead th")]
        rows = [
            (row.th.get_text(), [cell.get_text() for cell in row.select("td")])
            for row in table.select("tbody tr")
        ]
        found.append(Table(head, rows))
    return found


def fresh_model() -> BertForMaskedLM:
    """The model of the chapters, built here a second time."""
    torch.manual_seed(3)
    config = BertConfig(13, 4, 1, 2, 8, 0.0, 0.0, max_position_embeddings=8, initializer_range=0.5)
    return BertForMaskedLM(config).eval()


def assert_shows(cells: list[float], values: Tensor, places: int = 2) -> None:
    """The cells are the values, rounded."""
    assert cells == pytest.approx(values.flatten().tolist(), abs=0.51 * 10**-places)


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_can_be_read_by_everybody(name: str) -> None:
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
    (masked,) = tables("masking")
    assert ids.column("id") == masked.column("id") == IDS
    tokens = [f"{i} {tokenizer.id_to_token(token)}" for i, token in enumerate(IDS)]
    assert [name for name, _ in ids.rows] == tokens
    assert masked.column("input_ids") == INPUT_IDS[0].tolist()
    assert masked.column("labels") == LABELS[0].tolist()


def test_the_vectors_are_those_of_the_whole_model() -> None:
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
        assert_shows(table.numbers(-1), x[position])
    attention = tables("attention")
    assert_shows(attention[0].numbers(0), x[MASKED])
    assert_shows(attention[1].column("weight"), attentions[0][0, 0, MASKED], 3)
    assert_shows(tables("feed_forward")[-1].numbers(-1), output[0, MASKED])
    assert_shows(tables("head")[-1].column("logit"), logits[[SAT, CAT]])
    (table,) = tables("logits")
    assert_shows(table.column("logit z"), logits)
    assert_shows(table.column("probability")[:-1], logits.softmax(-1), 4)


def test_one_figure_begins_with_what_another_ends_with() -> None:
    embedded, attention, feed_forward = (tables(name) for name in ("embeddings", "attention", "feed_forward"))
    assert embedded[1].numbers(-1) == attention[0].numbers(0)
    assert attention[-1].numbers(-1) == feed_forward[0].numbers(0)
    assert feed_forward[-1].numbers(-1) == tables("head")[0].numbers(0)


def test_the_loss_and_the_step() -> None:
    model = fresh_model()
    loss = model(INPUT_IDS, LABELS).loss
    p = model(INPUT_IDS).logits[0, MASKED].softmax(-1)[SAT]
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter -= LEARNING_RATE * parameter.grad
        after = model(INPUT_IDS, LABELS).loss
        p_after = model(INPUT_IDS).logits[0, MASKED].softmax(-1)[SAT]

    assert example_value("loss") == pytest.approx(loss.item(), abs=1e-5)
    assert example_value("loss") == pytest.approx(-math.log(p.item()), abs=1e-5)
    assert example_value("probability") == pytest.approx(p.item(), abs=1e-6)
    assert example_value("loss_after") == pytest.approx(after.item(), abs=1e-5)
    assert example_value("probability_after") == pytest.approx(p_after.item(), abs=1e-6)
    assert example_value("uniform_loss") == math.log(13)
    assert after < loss and p_after > p

    (table,) = tables("loss")
    for row, q in enumerate((p.item(), 1 / 13)):
        cells = [f"{q:.2%}", f"{-math.log(q):.2f}", f"{1 / q:.1f}"]
        assert table.rows[row][1] == cells
    result, updates = tables("gradient_step")
    assert result.rows[0][1] == [f"{loss:.2f}", f"{after:.2f}"]
    assert result.rows[1][1] == [f"{p:.2%}", f"{p_after:.2%}"]
    gradients = model.cls.predictions.bias.grad
    assert_shows(updates.column("gradient"), gradients[[SAT, CAT]], 3)
    assert_shows(updates.column("new"), model.cls.predictions.bias.detach()[[SAT, CAT]], 3)


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


def redone() -> dict[str, tuple[list[float], list[float]]]:
    """Each step with the rounded numbers on the page, beside the result on the page."""
    steps = {}

    def dense(name: str, table: Table, result: str) -> None:
        x = table.numbers(0)
        rows = [table.numbers(i)[: len(x)] for i in range(1, len(table.rows))]
        steps[name] = [dot(x, row) for row in rows], table.column(result)

    def normalized(name: str, table: Table) -> None:
        *parts, centered, result = [table.numbers(i) for i in range(len(table.rows))]
        mean, std = (number(table.rows[i][0].rpartition(" ")[2]) for i in (-2, -1))
        if len(parts) > 1:
            steps[f"{name}: sum"] = [sum(column) for column in zip(*parts[:-1], strict=True)], parts[-1]
        steps[f"{name}: minus the mean"] = [x - mean for x in parts[-1]], centered
        steps[f"{name}: divided by the std"] = [x / std for x in centered], result

    for i, table in enumerate(tables("embeddings")):
        normalized(f"embeddings {i}", table)
    query, scores, values, joined, normed = tables("attention")
    dense("query", query, "query")
    keys = [scores.numbers(i)[:2] for i in range(1, 9)]
    steps["scores"] = [dot(scores.numbers(0), key) for key in keys], scores.column("score")
    steps["scaled"] = [s / math.sqrt(2) for s in scores.column("score")], scores.column("score / √2")
    steps["softmax"] = softmax(scores.column("score / √2")), scores.column("weight")
    for i in (1, 2):
        *column, result = values.column(f"value {i}")
        steps[f"values {i}"] = [dot(values.column("weight"), column)], [result]
    dense("joined", joined, "sum")
    normalized("after attention", normed)

    wide, back, normed = tables("feed_forward")
    dense("wide", wide, "sum")
    for name, table in (("wide", wide), ("head", tables("head")[0])):
        sums, gelu = (torch.tensor(table.column(column)) for column in ("sum", "GELU"))
        steps[f"{name}: GELU"] = F.gelu(sums).tolist(), gelu.tolist()
    for i in range(1, 5):
        *column, result = back.column(f"weight {i}")
        steps[f"back {i}"] = [dot(back.column("GELU"), column)], [result]
    normalized("after the feed-forward network", normed)

    transformed, normed, products = tables("head")
    dense("head", transformed, "sum")
    normalized("head", normed)
    h = products.numbers(0)
    rows = [products.numbers(i) for i in (1, 2)]
    steps["logit"] = [dot(h, row[: len(h)]) + row[-2] for row in rows], products.column("logit")

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


# Where a step has more than two decimals: how far the redone result may be off.
FINER = {
    "softmax": 0.0015,
    "head: minus the mean": 0.0015,
    "probability": 0.0005,
    "gradient": 0.0015,
    "new": 0.0015,
}


def test_a_reader_can_redo_each_step() -> None:
    """The rounded numbers give the result on the page, up to its last digit."""
    for step, (found, on_the_page) in redone().items():
        assert found == pytest.approx(on_the_page, rel=0, abs=FINER.get(step, 0.015)), step


def test_the_note_about_the_untrained_model_is_true() -> None:
    for name, parameter in fresh_model().named_parameters():
        if name.endswith("LayerNorm.weight"):
            assert (parameter == 1).all()
        elif name.endswith("bias"):
            assert (parameter == 0).all()


def test_what_the_captions_say() -> None:
    captions = {name: BeautifulSoup(example(name), "html.parser").figcaption.get_text() for name in FIGURES}
    weights = trace().weights
    largest, most = f"{weights.max():.3f}", trace().read(int(weights.argmax()))
    assert f"largest weight is {largest}, for {most}; equal weights would be 0.125" in captions["attention"]
    assert "cat gets the most" in captions["logits"] and trace().logits.argmax() == CAT
    assert "higher than ln 13" in captions["loss"] and example_value("loss") > example_value("uniform_loss")
    parameters = sum(parameter.numel() for parameter in fresh_model().parameters())
    assert f"two of the {parameters} parameters" in captions["gradient_step"]


def test_the_pair() -> None:
    (table,) = tables("pair")
    second = [5, 7, 10, 12, 5, 6]
    assert table.column("input_ids") == [*IDS, *second, 3, 0]
    assert table.column("token_type_ids") == [0] * 8 + [1] * 7 + [0]
    assert table.column("attention_mask") == [1] * 15 + [0]


def test_an_unknown_name_is_an_error_of_the_page() -> None:
    with pytest.raises(PageError, match="no figure 'keys'; it has ids, masking"):
        example("keys")
    with pytest.raises(PageError, match="no value 'accuracy'; it has loss"):
        example_value("accuracy")


def test_a_chapter_may_quote_both() -> None:
    names = quotable({}, {}, "idea")
    assert evaluate('example("loss")', names) == example("loss")
    assert evaluate('example_value("uniform_loss"):.2f', names) == "2.56"
    with pytest.raises(PageError, match="no figure"):
        evaluate('example("keys")', names)


def test_the_trace_leaves_random_numbers_alone() -> None:
    before = torch.get_rng_state()
    trace.__wrapped__()
    assert torch.equal(torch.get_rng_state(), before)


def test_a_page_without_the_example_does_not_wait_for_it() -> None:
    code = "import sys, docs.figures.quotable; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
