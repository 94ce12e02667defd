"""
# What a step of the course consists of

A step is one function of this package that the learner writes. Its code and its page are in the source file;
here are only the words that a teacher adds: the task, the hints, and the mistakes that people make. The check
of a step is in `probes`, under the same name.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mistake:
    """
    A known mistake: replace `old` with `new` in the body of the step's function, and you have made it.
    `old` must occur exactly once. If the learner's code behaves like that, it gets `message`.
    """

    name: str
    """A few words, such as "no scaling"."""
    old: str
    new: str
    message: str
    """What is wrong and where to look, in at most three sentences. It doesn't contain the solution."""


@dataclass(frozen=True)
class Step:
    """One function to write."""

    name: str
    """The file inside `labml_bert`, and the function: `mlm.py:TokenMasker.choose`."""
    title: str
    task: str
    """What to write, in a sentence. It's also the text of the error that stands in for the body."""
    chapter: str
    """The chapter of the site that explains the idea, such as `masking`."""
    hints: tuple[str, ...]
    """Up to three, each stronger than the one before."""
    mistakes: tuple[Mistake, ...]
    twins: tuple[str, ...] = ()
    """Functions of the same file that would give the solution away. They are removed too, but nobody has to
    write them."""

    @property
    def file(self) -> str:
        """The path of the file inside `labml_bert`, and inside the learner's folder."""
        return self.name.partition(":")[0]

    @property
    def function(self) -> str:
        """The function, with the name of its class: `TokenMasker.choose`."""
        return self.name.partition(":")[2]


@dataclass(frozen=True)
class Verdict:
    """What the check of a step says."""

    step: str
    """The name of the step."""
    passed: bool
    message: str = ""
    """What is wrong, in plain words."""
    details: tuple[str, ...] = ()
    """Lines with what was expected and what was found."""
    line: int | None = None
    """The line of the learner's file that raised an error."""
    mistake: str = ""
    """The name of the known mistake, or an empty string."""
