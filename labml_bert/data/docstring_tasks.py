"""
# Labeled texts that come with Python

Where can you get labels without a download? Every docstring of the standard library has an address: its
package and its module. We make two tasks from these docstrings:

- **package**: which of 20 packages is this docstring from? Each example is one text, and the 20 classes have
  different sizes.
- **summary**: does this first paragraph summarize that description? Each example is two texts, and the two
  classes have nearly equal sizes. By convention, a docstring starts with a line that sums up the rest. A
  wrong description is from the same package, so the topic gives little away, and the model has to compare the
  two texts. In next sentence prediction, a wrong second text comes from another document, so its topic alone
  can give it away.

Test scores on labels this cheap can be misleadingly high. We take three precautions:

- **Package names become `_`.** A text that contains the name of its package gives the answer away. So in
  **package**, we replace the names of all 20 packages, as words and at the start of names like `XMLParser`.
- **Near copies are dropped.** We leave a docstring out if it and an earlier one have more than half of their
  text in common. So no test text has a near copy in the training texts, and no text belongs to two packages.
- **Texts from pretraining are marked.** Pretraining on `python-docs` reads the documents that aren't held
  out, though without labels. All test texts of **summary** are from held-out documents. These texts are too
  few for 20 packages, so **package** also has test texts that pretraining may have read, and marks them.
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
    """A docstring and its address."""

    text: str
    module: str
    """Named as in `corpora.module_docstrings`, such as `email/message.py` or `compiled _socket`."""
    unseen: bool
    """Whether the training documents of `python-docs` contain none of its paragraphs."""

    @property
    def package(self) -> str:
        """
        The top-level package of the module, or the module itself if it isn't in a package. A leading `_`
        or `_py` is dropped, so `_pydecimal` and `_decimal` both become `decimal`.
        """
        name = self.module.split("/")[0].removesuffix(".py").removeprefix("compiled ")
        return re.sub("^_(py)?", "", name)


class Task(NamedTuple):
    """A classification task, with training and test examples."""

    name: str
    labels: list[str]
    train: list[Example]
    test: list[Example]
    unseen: list[bool]
    """For each test example, whether its text is new to a model pretrained on `python-docs`."""

    @property
    def chance(self) -> float:
        """The test accuracy of always predicting the class that is most frequent in training."""
        most = Counter(example.label for example in self.train).most_common(1)[0][0]
        return sum(example.label == most for example in self.test) / len(self.test)

    def draw(self, count: int, seed: int) -> list[Example]:
        """Draws `count` training examples. With the same seed, a smaller set is the start of a larger one."""
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(self.train), generator=generator)
        return [self.train[i] for i in order[:count].tolist()]

    def describe(self) -> dict[str, Any]:
        """Returns what you need to judge a score: the numbers of examples, and the chance accuracy."""
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

    Returns all docstrings of at least `fewest_words` words, except near copies. A docstring is a near copy
    if, of all distinct three-word sequences in it or in an earlier docstring, more than half are in both.
    """
    corpus = load_corpus("python-docs")
    training_paragraphs = {part.strip() for document in corpus.train for part in document.split("\n\n")}
    distinct: list[Docstring] = []
    sizes: list[int] = []
    # Maps each trigram of words to the indices of the texts with it. Most of these lists are short.
    texts_with: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for module, docstrings in module_docstrings():
        for text in docstrings:
            words = re.findall(r"\w+", text.lower())
            if len(words) < fewest_words:
                continue
            trigrams = {*zip(words, words[1:], words[2:], strict=False)}
            overlaps = Counter(other for trigram in trigrams for other in texts_with[trigram])
            if any(2 * n > len(trigrams) + sizes[other] - n for other, n in overlaps.items()):
                continue
            for trigram in trigrams:
                texts_with[trigram].append(len(distinct))
            sizes.append(len(trigrams))
            unseen = not any(part.strip() in training_paragraphs for part in text.split("\n\n"))
            distinct.append(Docstring(text, module, unseen))
    return distinct


def without_names(text: str, names: Sequence[str]) -> str:
    """Replaces each name with `_` if it's a word, as in `xml.` or `Xml`, or starts one, as in `XMLParser`."""
    spellings = {spelling for name in names for spelling in (name, name.capitalize(), name.upper())}
    if not spellings:
        return text
    longest_first = "|".join(sorted(map(re.escape, spellings), key=lambda word: (-len(word), word)))
    return re.sub(f"(?<![A-Za-z])(?:{longest_first})(?![a-z])", "_", text)


def package_task(docstrings: Sequence[Docstring], classes: int = 20) -> Task:
    """
    ## Which package?

    Returns a task with the `classes` packages that have the most docstrings. A quarter of each package's
    texts, rounded down, is for testing. Unseen texts are chosen first. The examples are in a random order,
    which is always the same.
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

    Each example has a summary and a description: the first paragraph of a docstring, and the rest of that
    docstring or of a different one. In each package, a random half of the docstrings exchange their
    descriptions. So each part occurs exactly once, and neither part alone says anything about the label. The
    unseen docstrings exchange theirs among themselves, and become the test examples.
    """
    generator = random.Random(0)
    by_package: dict[tuple[str, bool], list[list[str]]] = defaultdict(list)
    seen_parts: set[str] = set()
    for docstring in docstrings:
        parts = docstring.text.strip().split("\n\n", 1)
        # Skip a docstring if one of its parts has occurred before. A repeated line such as "Constructor."
        # fits more than one description.
        if len(parts) == 2 and parts[1].strip() and not seen_parts & {*parts}:
            seen_parts.update(parts)
            by_package[docstring.package, docstring.unseen].append(parts)
    train: list[Example] = []
    test: list[Example] = []
    for (_, unseen), pairs in sorted(by_package.items()):
        if len(pairs) < 4:
            continue
        generator.shuffle(pairs)
        mismatches = pairs[: len(pairs) // 2]
        examples = [Example(a, 0, b) for a, b in pairs[len(pairs) // 2 :]]
        others = [b for _, b in mismatches[1:] + mismatches[:1]]
        examples += [Example(a, 1, b) for (a, _), b in zip(mismatches, others, strict=True)]
        (test if unseen else train).extend(examples)
    generator.shuffle(train)
    generator.shuffle(test)
    return Task("summary", ["fits", "another"], train, test, [True] * len(test))
