"""
# Docstrings and signatures

How do you get labels for tokens, or questions whose answer is a span, without a download? The signature of a
function says which words of its docstring are names of parameters. From these words, this file makes the two
tasks that [`finetune_parameters.py`](finetune_parameters.md) describes.
"""

import ast
import re
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tokenizers import Tokenizer

from labml_bert.data.docstring_tasks import distinct_docstrings
from labml_bert.data.tokenizers import cls_sep_ids, encode_texts
from labml_bert.finetuning import Row
from labml_bert.mlm import IGNORE

TOKENS, SPAN = TASKS = ("tokens", "span")


class Function(NamedTuple):
    """The docstring of a function as words and punctuation, and which of them name a parameter."""

    words: list[str]
    is_parameter: list[bool]

    @property
    def parameters(self) -> list[str]:
        """The parameters that the docstring names, in the order of their first mention."""
        return [*dict.fromkeys(w for w, yes in zip(self.words, self.is_parameter, strict=True) if yes)]


def read_signatures() -> dict[str, set[str]]:
    """The parameters of each function of the standard library, by docstring. `self` and `cls` don't count."""
    signatures: dict[str, set[str]] = {}
    root = Path(sysconfig.get_path("stdlib"))
    for file in sorted(root.rglob("*.py")):
        if {"site-packages", "dist-packages"} & {*file.relative_to(root).parts}:
            continue
        try:
            tree = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError):
            # The library contains files that are broken on purpose.
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (text := ast.get_docstring(node)):
                a = node.args
                arguments = [*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg))]
                signatures.setdefault(text, set()).update({x.arg for x in arguments} - {"self", "cls"})
    return signatures


def read_functions() -> tuple[list[Function], list[Function]]:
    """
    ## Docstrings that name a parameter

    Returns the functions whose docstring names a parameter, as a training set and a test set. A model that
    was pretrained on `python-docs` hasn't seen the docstrings of the test set. `distinct_docstrings` leaves
    out near copies.
    """
    signatures = read_signatures()
    parts: tuple[list[Function], list[Function]] = ([], [])
    for docstring in distinct_docstrings():
        parameters = signatures.get(docstring.text, set())
        words = re.findall(r"\w+|[^\w\s]", docstring.text)
        is_parameter = [word in parameters for word in words]
        if any(is_parameter):
            parts[docstring.unseen].append(Function(words, is_parameter))
    return parts


class Question(NamedTuple):
    """A word to classify, or a gap that may be the answer."""

    features: dict[str, float]
    """For the logistic regression."""
    label: bool


class Item(NamedTuple):
    """What a method gets to see of a docstring: the row for a network, and the questions about it."""

    row: Row
    questions: list[Question]
    positions: list[int]
    """The index of each question's token in the row."""


def describe_word(words: Sequence[str], i: int, name: str = "") -> dict[str, float]:
    """
    The features of a word: the word itself and the two words on each side of it. If there is a `name`, also
    each of these words together with the name.
    """
    around = [f"{d}={words[i + d].lower()}" for d in range(-2, 3) if 0 <= i + d < len(words)]
    return dict.fromkeys([*around, *(f"{name}|{x}" for x in around if name)], 1.0)


def make_items(task: str, tokenizer: Tokenizer, functions: Sequence[Function], longest: int) -> list[Item]:
    """
    ## From docstrings to rows

    Each word is tokenized on its own, so we know which tokens belong to it. In the task *tokens*, the first
    subword of a word has the word's label, as in the BERT paper, and the other subwords have -100. In the
    task *span*, a docstring needs at least two parameters. It gives one item for each of them, and the answer
    is the first gap of that parameter. A docstring that is too long loses its end.
    """
    cls_id, sep_id = cls_sep_ids(tokenizer)
    items = []
    for words, is_parameter in functions:
        names = Function(words, is_parameter).parameters if task == SPAN else [""]
        if task == SPAN and len(names) < 2:
            continue
        visible_words = [
            "_" if yes and task == SPAN else word for word, yes in zip(words, is_parameter, strict=True)
        ]
        pieces = encode_texts(tokenizer, visible_words)
        for name in names:
            start = [cls_id, *encode_texts(tokenizer, [name])[0], sep_id] if name else [cls_id]
            input_ids, labels = [*start], [IGNORE] * len(start)
            questions: list[Question] = []
            positions: list[int] = []
            for i, word in enumerate(pieces):
                if len(input_ids) + len(word) >= longest:
                    break
                if word and (is_parameter[i] or (task == TOKENS and words[i].isidentifier())):
                    label = words[i] == name if name else is_parameter[i]
                    features = describe_word(visible_words, i, name.lower())
                    if name:
                        features[f"gap {len(questions)}"] = 1.0
                    questions.append(Question(features, label))
                    positions.append(len(input_ids))
                    labels += [int(label)] + [IGNORE] * (len(word) - 1)
                else:
                    labels += [IGNORE] * len(word)
                input_ids += word
            input_ids.append(sep_id)
            types = [0] * len(start) + [1] * (len(input_ids) - len(start)) if name else [0] * len(input_ids)
            answers = [p for p, question in zip(positions, questions, strict=True) if question.label]
            if name and (not answers or len(questions) < 2):
                continue
            targets: dict[str, int | list[int]] = {"labels": [*labels, IGNORE]}
            if name:
                targets = {"start_positions": answers[0], "end_positions": answers[0]}
            items.append(Item(Row(input_ids, types, targets), questions, positions))
    return items
