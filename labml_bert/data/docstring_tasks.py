"""
# Labelled texts that every Python carries

Where do labels come from without a download? A docstring of the standard library has an address. Two
tasks are made of that:

- **package**: from which of 20 packages is this docstring? One text, 20 classes of unequal size.
- **summary**: does this first line belong to that description? Two texts, two classes, half of each. By
  convention a docstring opens with a line that sums up the rest. The wrong descriptions are from the same
  package, so the subject gives little away, and one part has to be read in the light of the other. In
  next sentence prediction a wrong second part comes from anywhere, which is far easier.

A task made this easily leaks easily. What is done against it:

- The name of a package in a text answers the question. Wherever one of the 20 stands as a word, in any
  text, or opens a name like `XMLParser`, there is a `_` instead.
- A docstring that repeats more than half of an earlier one is left out, so that none of the test has a
  near copy in training, and none two answers.
- Pretraining on `python-docs` reads the held-in documents of the same library, without labels. The
  texts of **summary**'s test come from the held-out documents only. Those are too few for 20 packages, so
  **package** tests on them first and fills up with texts that pretraining has seen; each says which it is.
"""

import random
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from labml_bert.data.corpora import load_corpus, module_docstrings
from labml_bert.labeled_text import Example


class Docstring(NamedTuple):
    """One text and its address."""

    text: str
    module: str
    """As `corpora.module_docstrings` names it: `email/message.py`, `compiled _socket`."""
    unseen: bool
    """Whether no paragraph of it is in the part of `python-docs` that models are trained on."""

    @property
    def package(self) -> str:
        """The package or, outside of one, the module; `_pydecimal` and `_decimal` are both `decimal`."""
        name = self.module.split("/")[0].removesuffix(".py").removeprefix("compiled ")
        return re.sub("^_(py)?", "", name)


class Task(NamedTuple):
    """Examples to learn from and examples to be tested on."""

    name: str
    labels: list[str]
    train: list[Example]
    test: list[Example]
    unseen: list[bool]
    """For each of the test: whether pretraining on `python-docs` has not seen its text."""

    @property
    def chance(self) -> float:
        """The share of the test that the class most frequent in training gets right."""
        most = Counter(example.label for example in self.train).most_common(1)[0][0]
        return sum(example.label == most for example in self.test) / len(self.test)

    def draw(self, count: int, seed: int) -> list[Example]:
        """`count` random training examples of a seed. A smaller set is the beginning of a larger one."""
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(self.train), generator=generator)
        return [self.train[i] for i in order[:count].tolist()]

    def describe(self) -> dict[str, Any]:
        """What a reader needs to judge a score: how many texts there are, and what chance achieves."""
        counts = Counter(example.label for example in self.train)
        return {
            "train": len(self.train),
            "test": len(self.test),
            "test_unseen": sum(self.unseen),
            "chance": self.chance,
            "train_texts_by_label": {label: counts[i] for i, label in enumerate(self.labels)},
        }


def distinct_docstrings(fewest_words: int = 5) -> list[Docstring]:
    """
    ## Each text once

    All docstrings of at least `fewest_words` words, but those that repeat an earlier one: of all the
    runs of three words that the two have, more than half are in both.
    """
    corpus = load_corpus("python-docs")
    trained_on = {part.strip() for document in corpus.train for part in document.split("\n\n")}
    kept: list[Docstring] = []
    sizes: list[int] = []
    # Which texts have a run of three words. Most runs are rare, so a text is compared with few others.
    holders: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for module, docstrings in module_docstrings():
        for text in docstrings:
            words = re.findall(r"\w+", text.lower())
            if len(words) < fewest_words:
                continue
            runs = {*zip(words, words[1:], words[2:], strict=False)}
            shared = Counter(other for run in runs for other in holders[run])
            if any(2 * n > len(runs) + sizes[other] - n for other, n in shared.items()):
                continue
            for run in runs:
                holders[run].append(len(kept))
            sizes.append(len(runs))
            unseen = not any(part.strip() in trained_on for part in text.split("\n\n"))
            kept.append(Docstring(text, module, unseen))
    return kept


def without_names(text: str, names: Sequence[str]) -> str:
    """`text` with a `_` for each of `names` that is a word or opens one: `email.`, `Email`, `XMLParser`."""
    spelled = {spelling for name in names for spelling in (name, name.capitalize(), name.upper())}
    longest_first = "|".join(sorted(map(re.escape, spelled), key=lambda word: (-len(word), word)))
    return re.sub(f"(?<![A-Za-z])(?:{longest_first})(?![a-z])", "_", text)


def package_task(docstrings: Sequence[Docstring], classes: int = 20) -> Task:
    """
    ## Which package?

    The `classes` packages with the most docstrings. Of each a quarter is the test, unseen texts first.
    Both parts are in an order that is random and always the same.
    """
    generator = random.Random(0)
    by_package: dict[str, list[Docstring]] = defaultdict(list)
    for docstring in docstrings:
        by_package[docstring.package].append(docstring)
    labels = sorted(sorted(by_package, key=lambda name: (-len(by_package[name]), name))[:classes])
    train: list[Example] = []
    test: list[tuple[Example, bool]] = []
    for label, name in enumerate(labels):
        texts = by_package[name]
        generator.shuffle(texts)
        texts.sort(key=lambda docstring: not docstring.unseen)
        examples = [(Example(without_names(d.text, labels), label), d.unseen) for d in texts]
        test += examples[: len(texts) // 4]
        train += [example for example, _ in examples[len(texts) // 4 :]]
    generator.shuffle(train)
    generator.shuffle(test)
    return Task("package", labels, train, [e for e, _ in test], [unseen for _, unseen in test])


def summary_task(docstrings: Sequence[Docstring]) -> Task:
    """
    ## Does the summary fit?

    The first paragraph of a docstring and the rest of it. In each package half of them, by lot, pass
    their rests around among themselves. So each part occurs once, and neither says anything alone. The
    test is all unseen.
    """
    generator = random.Random(0)
    by_package: dict[tuple[str, bool], list[list[str]]] = defaultdict(list)
    met: set[str] = set()
    for docstring in docstrings:
        parts = docstring.text.strip().split("\n\n", 1)
        # A line that opens several, such as "Constructor.", sums up none.
        if len(parts) == 2 and parts[1].strip() and not met & {*parts}:
            met.update(parts)
            by_package[docstring.package, docstring.unseen].append(parts)
    train: list[Example] = []
    test: list[Example] = []
    for (_, unseen), pairs in sorted(by_package.items()):
        if len(pairs) < 4:
            continue
        generator.shuffle(pairs)
        swapped = pairs[: len(pairs) // 2]
        examples = [Example(a, 0, b) for a, b in pairs[len(pairs) // 2 :]]
        rests = [b for _, b in swapped]
        examples += [Example(a, 1, b) for (a, _), b in zip(swapped, rests[1:] + rests[:1], strict=True)]
        (test if unseen else train).extend(examples)
    generator.shuffle(train)
    generator.shuffle(test)
    return Task("summary", ["fits", "another"], train, test, [True] * len(test))
