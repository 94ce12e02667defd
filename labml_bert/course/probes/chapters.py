"""
# Checks: the exercises of the chapters

The numbers of each exercise, and others.
"""

from collections.abc import Iterator
from typing import Any

from labml_bert.course.compare import Probe


def probe_loss_from_perplexity(m: Any) -> Iterator[tuple[str, Any]]:
    yield "the nats and bits of a perplexity of 4", m.loss_from_perplexity(4.0)
    yield "the nats and bits of a perplexity of 1", m.loss_from_perplexity(1.0)
    yield "the nats and bits of a perplexity of 30,000", m.loss_from_perplexity(30_000)


def probe_fractions_drawn_twice(m: Any) -> Iterator[tuple[str, Any]]:
    yield "the fractions with probabilities of 0.8 and 0.1", m.fractions_drawn_twice(0.8, 0.1)
    yield "the fractions with probabilities of 0.5 and 0.4", m.fractions_drawn_twice(0.5, 0.4)


def probe_fractions_if_the_mask_wins(m: Any) -> Iterator[tuple[str, Any]]:
    yield "the fractions with probabilities of 0.8 and 0.1", m.fractions_if_the_mask_wins(0.8, 0.1)
    yield "the fractions with probabilities of 0.5 and 0.4", m.fractions_if_the_mask_wins(0.5, 0.4)


def probe_fractions_counted(m: Any) -> Iterator[tuple[str, Any]]:
    yield "the fractions of 80/10/10 with 8 ordinary tokens", m.fractions_counted(0.8, 0.1, 8)
    yield "the fractions of 50/30/20 with 100 ordinary tokens", m.fractions_counted(0.5, 0.3, 100)


def probe_word_ids_of(m: Any) -> Iterator[tuple[str, Any]]:
    tokens = ["[CLS]", "the", "un", "##mask", "##ed", "[SEP]", "the", "text", "[SEP]", "[PAD]"]
    for part in (tokens, tokens[1:5], ["[UNK]", "[", "#", "c##", "##h"], ["[CLS]", "[SEP]"], []):
        yield f"the word ids of {' '.join(part) or 'no tokens'}", m.word_ids_of(part)


def probe_attention_fraction(m: Any) -> Iterator[tuple[str, Any]]:
    for length in (128, 512, 4608):
        yield f"the fraction at length {length} with 768 numbers", m.attention_fraction(length, 768)
    yield "the fraction at length 50 with 10 numbers", m.attention_fraction(50, 10)


def probe_untied_parameters(m: Any) -> Iterator[tuple[str, Any]]:
    yield "the parameters of BERT base", m.untied_parameters(109_514_298, 30_522, 768)
    yield "the parameters of a small model", m.untied_parameters(10_000, 50, 7)


def probe_factored_parameters(m: Any) -> Iterator[tuple[str, Any]]:
    yield "the parameters with 20,000 tokens and rows of 128 numbers", m.factored_parameters(20_000, 768, 128)
    yield "the parameters with 50 tokens and rows of 3 numbers", m.factored_parameters(50, 7, 3)


def probe_new_parameters(m: Any) -> Iterator[tuple[str, Any]]:
    yield "the new parameters with three classes", m.new_parameters(768, 3)
    yield "the new parameters of a small model with two classes", m.new_parameters(7, 2)


def probe_training_hours(m: Any) -> Iterator[tuple[str, Any]]:
    yield "the hours of the exercise", m.training_hours(35e9, 128, 1e9, 165e12, 0.35)
    yield "the hours for one sequence that takes an hour", m.training_hours(1.8e15, 512, 512, 1e12, 0.5)


def probe_masked_positions(m: Any) -> Iterator[tuple[str, Any]]:
    labels = [[-100] * 9 for _ in range(2)]
    labels[0][3], labels[0][7], labels[1][5] = 11, 12, 13
    yield "the rows, columns and labels of the exercise", m.masked_positions(labels)
    yield "the rows, columns and labels with the label 0", m.masked_positions([[-100, 0], [4, -100]])
    labels = [[-100, 9, -100, 9], [3, -100, 2, -100], [3, -100, 2, -100]]
    yield "the rows, columns and labels of equal rows", m.masked_positions(labels)
    yield "the rows, columns and labels if nothing is masked", m.masked_positions([[-100, -100]])


def probe_uniform_scores(m: Any) -> Iterator[tuple[str, Any]]:
    yield "the scores of six tokens, with a vocabulary of 13", m.uniform_scores(6, 13)
    yield "the scores of one token, with a vocabulary of 100", m.uniform_scores(1, 100)


def probe_shifted_cosine(m: Any) -> Iterator[tuple[str, Any]]:
    for cosine in (0.6, 1.0, -1.0, 0.0):
        yield f"the cosine after the shift, if it was {cosine}", m.shifted_cosine(cosine)


def probe_chance_loss(m: Any) -> Iterator[tuple[str, Any]]:
    yield "the loss with 64 sentences", m.chance_loss(64)
    yield "the loss with 2 sentences", m.chance_loss(2)


PROBES: dict[str, Probe] = {
    "course/exercises.py:loss_from_perplexity": probe_loss_from_perplexity,
    "course/exercises.py:fractions_drawn_twice": probe_fractions_drawn_twice,
    "course/exercises.py:fractions_if_the_mask_wins": probe_fractions_if_the_mask_wins,
    "course/exercises.py:fractions_counted": probe_fractions_counted,
    "course/exercises.py:word_ids_of": probe_word_ids_of,
    "course/exercises.py:attention_fraction": probe_attention_fraction,
    "course/exercises.py:untied_parameters": probe_untied_parameters,
    "course/exercises.py:factored_parameters": probe_factored_parameters,
    "course/exercises.py:new_parameters": probe_new_parameters,
    "course/exercises.py:training_hours": probe_training_hours,
    "course/exercises.py:masked_positions": probe_masked_positions,
    "course/exercises.py:uniform_scores": probe_uniform_scores,
    "course/exercises.py:shifted_cosine": probe_shifted_cosine,
    "course/exercises.py:chance_loss": probe_chance_loss,
}
