"""The classification tasks made of docstrings: nothing leaks from the training set into the test set."""

import re
from collections import Counter

import pytest

from labml_bert.data import docstring_tasks
from labml_bert.data.corpora import Corpus, load_corpus
from labml_bert.data.docstring_tasks import (
    Docstring,
    distinct_docstrings,
    package_task,
    summary_task,
    without_names,
)

pytestmark = pytest.mark.slow("parses the whole standard library")


@pytest.fixture(scope="module")
def docstrings() -> list[Docstring]:
    return distinct_docstrings()


def word_trigrams(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[i : i + 3]) for i in range(len(words) - 2)}


@pytest.mark.long
def test_no_two_texts_are_near_duplicates(docstrings: list[Docstring]) -> None:
    """Compares a sample of the texts with all the others, by the definition of a near duplicate."""
    trigrams = [word_trigrams(docstring.text) for docstring in docstrings]
    for i in range(0, len(trigrams), 97):
        for j, other in enumerate(trigrams):
            assert i == j or 2 * len(trigrams[i] & other) <= len(trigrams[i] | other)


def test_unseen_docstrings_are_not_in_the_pretraining_text(docstrings: list[Docstring]) -> None:
    corpus = load_corpus("python-docs")
    pretraining_paragraphs = {part.strip() for document in corpus.train for part in document.split("\n\n")}
    unseen = [docstring for docstring in docstrings if docstring.unseen]
    assert len(unseen) > 400
    for docstring in unseen:
        assert not pretraining_paragraphs & {part.strip() for part in docstring.text.split("\n\n")}


def test_the_package_task(docstrings: list[Docstring]) -> None:
    task = package_task(docstrings)
    assert len(task.labels) == 20 == len({*task.labels})
    assert {example.label for example in task.test} == {*range(20)}
    assert len(task.unseen) == len(task.test)
    assert not {example.text for example in task.train} & {example.text for example in task.test}
    assert 0.05 < task.chance < 0.3
    for label in range(20):
        train, test = (sum(e.label == label for e in part) for part in (task.train, task.test))
        assert test == (train + test) // 4
        # The test set takes unseen texts first: the training set gets an unseen text only if the test set has
        # no other texts.
        unseen = [u for e, u in zip(task.test, task.unseen, strict=True) if e.label == label]
        available = sum(d.unseen for d in docstrings if d.package == task.labels[label])
        assert sum(unseen) == min(available, test)
    assert task == package_task(docstrings), "the task is deterministic"
    # The label is the package's name, so the name must not occur in the text.
    for example in [*task.train, *task.test]:
        assert not re.search(rf"(?<![A-Za-z])(?:{'|'.join(task.labels)})(?![a-z])", example.text)


def test_the_summary_task(docstrings: list[Docstring]) -> None:
    task = summary_task(docstrings)
    examples = [*task.train, *task.test]
    # If a half occurred twice, it could give away whether the halves belong together.
    for part in ("text", "pair"):
        assert max(Counter(getattr(example, part) for example in examples).values()) == 1
    positive_fraction = sum(example.label for example in examples) / len(examples)
    assert 0.42 < positive_fraction <= 0.5
    by_text = {docstring.text.strip(): docstring for docstring in docstrings}
    for example in examples:
        assert (f"{example.text}\n\n{example.pair}" in by_text) == (example.label == 0)
    matching = [by_text[f"{e.text}\n\n{e.pair}"] for e in task.test if e.label == 0]
    assert all(docstring.unseen for docstring in matching)
    assert len(task.test) > 200 and len(task.train) > 2000


def test_names_that_give_away_the_answer_are_removed() -> None:
    names = ["email", "xml", "io", "lib2to3"]
    for text, expected in {
        "An email.message, an EmailMessage": "An _.message, an _Message",
        "XMLParser of XML; xml.sax": "_Parser of _; _.sax",
        "emails, a function, StringIO, io.open": "emails, a function, StringIO, _.open",
        "lib2to3's Lib2to3": "_'s _",
    }.items():
        assert without_names(text, names) == expected
    assert without_names("Return the size.", []) == "Return the size."


@pytest.mark.parametrize(
    ("module", "package"),
    [
        ("email/mime/text.py", "email"),
        ("turtle.py", "turtle"),
        ("_pydecimal.py", "decimal"),
        ("compiled _decimal", "decimal"),
        ("compiled math", "math"),
    ],
)
def test_the_package_of_a_module(module: str, package: str) -> None:
    assert Docstring("", module, False).package == package


def test_near_duplicates_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {
        "a.py": ["Return the first item of the list or none.", "Too short."],
        "b.py": ["Return the first item of the list, or NONE", "Return a number that is not in any list."],
    }
    corpus = Corpus("both", ["x\n\nReturn the first item of the list or none.\n\ny"], [])
    monkeypatch.setattr(docstring_tasks, "module_docstrings", lambda: iter(texts.items()))
    monkeypatch.setattr(docstring_tasks, "load_corpus", lambda name: corpus)
    assert [(d.module, d.unseen) for d in distinct_docstrings()] == [("a.py", False), ("b.py", True)]
