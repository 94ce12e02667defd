"""
# Diagrams

Code draws the diagrams, so each size in them comes from the model's code or from a record. A color means the
same in all diagrams: blue is an embedding, purple attention, green the feed-forward network, gray LayerNorm,
red a head and the token that it has to predict.
"""

from collections.abc import Callable
from pathlib import Path

from markupsafe import Markup

from docs.figures.diagrams import architecture, attention, course, inputs, training
from docs.figures.diagrams.drawing import COLUMN, PHONE, Drawing, Words
from docs.literate.chart import IDS
from docs.literate.rows import PageError
from docs.literate.templates import renderer

render = renderer(Path(__file__).parents[1] / "templates")
DIAGRAMS: dict[str, Callable[[Drawing], Words]] = {
    "model": architecture.model,
    "embeddings": architecture.embeddings,
    "block": architecture.block,
    "attention": attention.attention,
    "tied_head": architecture.tied_head,
    "masking": inputs.masking,
    "score": inputs.score,
    "mean_pooling": inputs.mean_pooling,
    "pair": inputs.pair,
    "pretrain_finetune": training.pretrain_finetune,
    "curriculum": training.curriculum,
    "two_processes": training.two_processes,
    "check": course.check,
}


# The diagrams next to the code, by the name of a definition. An empty name is the first row of the file.
BESIDE = {
    "labml_bert/bert.py": {
        "": "model",
        "BertEmbeddings": "embeddings",
        "BertSelfAttention": "attention",
        "BertLayer": "block",
    },
    "labml_bert/mlm.py": {"TokenMasker": "masking", "BertLMPredictionHead": "tied_head"},
    "labml_bert/nsp.py": {"PairMaker": "pair"},
    "labml_bert/modern.py": {"ModernBertEncoderLayer": "block"},
    "labml_bert/data/curriculum.py": {"": "curriculum"},
    "labml_bert/embed.py": {"": "mean_pooling"},
    "labml_bert/finetuning.py": {"": "pretrain_finetune"},
    "labml_bert/score.py": {"": "score"},
    "labml_bert/training/distributed.py": {"": "two_processes"},
}


def diagrams_beside(path: str) -> dict[str, Markup]:
    """The diagrams next to the code of a file."""
    return {definition: diagram(name) for definition, name in BESIDE.get(path, {}).items()}


def diagram(name: str) -> Markup:
    """
    A diagram as a `figure`, HTML on one line. It holds a drawing for a column of text and one for a phone;
    the style sheet hides one of them. Raises `PageError` for an unknown name.
    """
    if name not in DIAGRAMS:
        raise PageError(f"there is no diagram {name!r}; known are {', '.join(DIAGRAMS)}")
    broad, narrow = Drawing(COLUMN), Drawing(PHONE)
    words, _ = DIAGRAMS[name](broad), DIAGRAMS[name](narrow)
    return render(
        "diagram.html", id=f"d{next(IDS)}", drawings={"broad": broad, "narrow": narrow}, words=words
    )
