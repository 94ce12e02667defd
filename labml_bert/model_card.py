"""
# A model card for every saved model

On what text was a model trained, how good is it, and what is it not good for? A model card answers these
questions. Each command that trains and saves a model also writes the model's card, as `README.md` in the same
folder. A model hub shows this file as the model's page, and reads the metadata between the `---` lines at its
top.

Source: [Mitchell et al., 2019](https://arxiv.org/abs/1810.03993), who proposed model cards.
"""

import contextlib
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labml_bert.files import write_whole
from labml_bert.stdout import is_visible

# A pretraining loss above this fraction of the unigram baseline's loss is hardly better than counting tokens.
HARDLY_BETTER = 0.95


def inline_code(value: object) -> str:
    """Formats a value as inline code in Markdown. Replaces characters that can't be printed with `?`."""
    text = "".join(c if is_visible(c) else "?" for c in str(value))
    # The code is between two equal rows of backticks, longer than any in the text. If the text starts or ends
    # with a backtick, Markdown needs a space in between.
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{space}{text}{space}{fence}"


def escape(text: str) -> str:
    """Escapes common special characters of Markdown and HTML. Replaces what can't be printed with `?`."""
    return "".join(f"\\{c}" if c in "\\`*_[]<>#" else c if is_visible(c) else "?" for c in text)


def quote(word: str) -> str:
    """Quotes a word for the shell if it needs quotes. A shortened path, `…/name`, stays as it is."""
    return word if word.startswith("…/") else shlex.quote(word)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a Markdown table. A `|` in a cell is escaped, because it would start a new cell."""
    cells = [[cell.replace("|", r"\|") for cell in row] for row in (header, *rows)]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return "\n".join([lines[0], "|" + "---|" * len(header), *lines[1:]])


def write_card(
    folder: Path,
    title: str,
    pipeline: str,
    call: str,
    sections: dict[str, str],
    limits: str,
    command: Sequence[str],
) -> None:
    """
    Writes `README.md` to `folder`. `pipeline` is the task for `transformers.pipeline`, `call` is code that
    calls the resulting `model`, `sections` maps each heading to its text, `limits` says what the model isn't
    good for, and `command` is the command line that trains the model again.

    Raises `OSError` if the file can't be written.
    """
    parts = [
        f"---\nlibrary_name: transformers\npipeline_tag: {pipeline}\ntags:\n- labml-bert\n---",
        f"# {title}",
        *(f"## {heading}\n\n{text}" for heading, text in sections.items()),
        f"## Limits\n\n{limits}",
        "## Use it\n\nHere, `FOLDER` is the folder of this file:\n\n"
        "```python\nfrom transformers import pipeline\n\n"
        f'model = pipeline("{pipeline}", "FOLDER")\n{call}\n```',
        f"## Train it again\n\n{inline_code(' '.join(quote(without_folders(word)) for word in command))}",
    ]
    write_whole(folder / "README.md", "\n\n".join(parts))


def without_folders(value: Any) -> Any:
    """
    Shortens an absolute path to its last part, as in `…/name`: the folders above may be private, and don't
    help on another machine. Any other value is returned unchanged.
    """
    return f"…/{Path(value).name}" if isinstance(value, str) and Path(value).is_absolute() else value


def write_pretraining_card(folder: Path, command: Sequence[str], facts: dict[str, Any]) -> None:
    """
    Writes the card of a masked language model. `facts` must have these entries of the run's record:
    `configuration`, `corpus`, `parameters`, `baselines` and `result`.
    """
    corpus, result, sizes = facts["corpus"], facts["result"], facts["configuration"]["model"]
    options = {k: v for k, v in facts["configuration"].items() if k != "model" and v is not None}
    baselines = [(b["name"], f"{b['loss']:.3f}", f"{b['accuracy']:.1%}") for b in facts["baselines"]]
    sections = {
        "Data": f"{inline_code(corpus['name'])}: {corpus['train_characters']:,} characters for training, "
        f"{corpus['valid_characters']:,} held out, sha256 {inline_code(corpus['sha256'])}.",
        "Recipe": f"{facts['parameters']:,} parameters, {result['steps']:,} steps, "
        f"{result['training_seconds']:,.0f} seconds.\n\n"
        + table(
            ("option", "value"),
            [(inline_code(k), inline_code(without_folders(v))) for k, v in {**options, **sizes}.items()],
        ),
        "Results": "On the held-out text: this model on its masked tokens, the others on all tokens.\n\n"
        + table(
            ("model", "loss (nats)", "accuracy"),
            [*baselines, ("this model", f"{result['loss']:.3f}", f"{result['accuracy']:.1%}")],
        ),
    }
    limits = (
        f"The model can read at most {sizes['max_position_embeddings']} tokens at a time. It was evaluated "
        "only on text of the same kind, and not for bias. What it predicts is likely in such text, but may "
        "be false."
    )
    title = f"A masked language model trained on {inline_code(corpus['name'])}"
    write_card(folder, title, "fill-mask", 'model("… [MASK] …")', sections, limits, command)


def write_classifier_card(
    folder: Path,
    command: Sequence[str],
    facts: dict[str, str],
    labels: Sequence[str],
    has_pairs: bool,
    scores: dict[str, Any],
) -> None:
    """
    Writes the card of a classifier. `facts` are properties of the file of labels and of the training, by
    name. `scores` maps each method to its accuracy and macro F1 on the test rows, or to `None` if the method
    couldn't run.
    """
    rows = [
        (name, *(f"{value:.1%}" for value in score or ("", "")))
        for name, score in scores.items()
        if score is not None
    ]
    sections = {
        "Data": table(
            ("property", "value"),
            [(name, escape(without_folders(value))) for name, value in facts.items()],
        ),
        "Labels": ", ".join(map(inline_code, labels)),
        "Results": "On rows that played no part in training or in any choice:\n\n"
        + table(("method", "accuracy", "macro F1"), rows),
    }
    limits = (
        "The classifier always chooses one of its labels, even for a text that fits none of them. It was "
        "evaluated only on rows of the same file, and not for bias."
    )
    title = f"A classifier with {len(labels)} labels"
    call = '{"text": "…", "text_pair": "…"}' if has_pairs else '"your text"'
    write_card(
        folder, title, "text-classification", f"model({call}, truncation=True)", sections, limits, command
    )


def describe_pretraining(folder: Path) -> dict[str, str]:
    """Returns a warning if the loss in the model card isn't clearly below that of the unigram baseline."""
    for path in (folder / "model" / "README.md", folder / "README.md"):
        if not path.is_file():
            continue
        with contextlib.suppress(OSError, ValueError, KeyError):
            card = path.read_text(encoding="utf-8")
            losses = dict(re.findall(r"^\| (unigram|this model) \| (\d+\.\d+) \|", card, re.M))
            if float(losses["this model"]) > HARDLY_BETTER * float(losses["unigram"]):
                numbers = f"loss {losses['this model']}, unigram baseline {losses['unigram']}"
                return {"pretrained": f"hardly ({numbers}); pretrain longer"}
    return {}
