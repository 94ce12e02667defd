"""The answers to the exercises of the chapters: each formula against a model, a library or a simulation."""

import re

import pytest
import torch
from torch.nn import functional as F

from labml_bert.bert import BertConfig
from labml_bert.course import exercises
from labml_bert.course.chapters import STEPS
from labml_bert.data.tokenizers import wordpiece_tokenizer
from labml_bert.embed import simcse_loss
from labml_bert.heads import NEW_PARAMETERS, BertForSequenceClassification
from labml_bert.models import BertForMaskedLM
from labml_bert.score import pseudo_log_likelihood, pseudo_perplexity
from tests.support.runs import ROOT

DRAWS = torch.rand(2, 1_000_000, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("step", STEPS, ids=[step.function for step in STEPS])
def test_each_step_is_an_exercise_of_its_chapter(step) -> None:
    chapter = (ROOT / f"docs/pages/{step.chapter}.md").read_text("utf-8")
    text = chapter.partition(f'!!! exercise "{step.title}"\n')[2].partition("??? answer")[0]
    assert re.findall(r'course_exercise\("(\w+)"', text) == [step.function]


def test_the_perplexity_is_the_exponential_of_the_loss() -> None:
    nats, bits = exercises.loss_from_perplexity(4.0)
    assert torch.tensor(nats).exp().item() == pytest.approx(4.0) and bits == pytest.approx(2.0)


@pytest.mark.parametrize(("mask", "random"), [(0.8, 0.1), (0.5, 0.4)])
def test_two_draws(mask: float, random: float) -> None:
    is_masked, is_random = DRAWS[0] < mask, DRAWS[1] < random
    for function, masked, replaced in (
        (exercises.fractions_drawn_twice, is_masked & ~is_random, is_random),
        (exercises.fractions_if_the_mask_wins, is_masked, is_random & ~is_masked),
    ):
        counted = [part.float().mean().item() for part in (masked, replaced, ~masked & ~replaced)]
        assert function(mask, random) == pytest.approx(counted, abs=2e-3)


def test_coincidences() -> None:
    token = (DRAWS[1] * 8).long()
    replaced = (DRAWS[0] >= 0.8) & (DRAWS[0] < 0.9) & (token != 3)
    counted = [0.8, replaced.float().mean().item(), 0.2 - replaced.float().mean().item()]
    assert exercises.fractions_counted(0.8, 0.1, 8) == pytest.approx(counted, abs=2e-3)


def test_word_ids_are_those_of_the_library() -> None:
    tokenizer = wordpiece_tokenizer(["the cat sat on the mat", "the chats on the oats"] * 20, vocab_size=40)
    encoding = tokenizer.encode("the cats on the hat", "oats")
    assert any(token.startswith("##") for token in encoding.tokens)
    first = encoding.tokens.index("[SEP]") + 1
    for part in (slice(0, first), slice(first, None)):
        expected = [-1 if word is None else word for word in encoding.word_ids[part]]
        assert exercises.word_ids_of(encoding.tokens[part]) == expected


def test_counts_of_parameters() -> None:
    config = BertConfig(50, 12, 1, 3, 24)
    tied = sum(parameter.numel() for parameter in BertForMaskedLM(config).parameters())
    assert (
        exercises.untied_parameters(tied, 50, 12) == tied + torch.nn.Linear(12, 50, bias=False).weight.numel()
    )
    layers = torch.nn.Sequential(torch.nn.Embedding(50, 3), torch.nn.Linear(3, 12))
    assert exercises.factored_parameters(50, 12, 3) == sum(p.numel() for p in layers.parameters())
    classifier = BertForSequenceClassification(config, [*"abcde"]).named_parameters()
    new = sum(parameter.numel() for name, parameter in classifier if name.startswith(NEW_PARAMETERS))
    assert exercises.new_parameters(12, 5) == new


def test_attention_costs_as_much_as_the_dense_layers_at_six_times_the_hidden_size() -> None:
    assert exercises.attention_fraction(6 * 768, 768) == 0.5
    assert exercises.attention_fraction(512, 768) == pytest.approx(2 * 512 / (2 * 512 + 12 * 768))


def test_an_hour_of_training() -> None:
    assert exercises.training_hours(1.8e15, 128, 128, 1e12, 0.5) == pytest.approx(1.0)
    assert exercises.training_hours(35e9, 128, 1e9, 165e12, 0.35) == pytest.approx(1.3, abs=0.05)


def test_masked_positions_are_those_of_nonzero() -> None:
    labels = torch.full((3, 9), -100)
    labels[0, 3], labels[0, 7], labels[2, 5] = 11, 0, 13
    rows, columns, ids = exercises.masked_positions(labels.tolist())
    assert [rows, columns] == [index.tolist() for index in (labels != -100).nonzero(as_tuple=True)]
    assert ids == labels[labels != -100].tolist()


def test_a_model_that_knows_nothing() -> None:
    text = "the cat sat on the mat"
    tokenizer = wordpiece_tokenizer([text] * 20, vocab_size=40)
    V = tokenizer.get_vocab_size()
    blank = BertForMaskedLM(BertConfig(V, 32, 2, 2, 64, max_position_embeddings=8)).eval()
    for parameter in blank.parameters():
        torch.nn.init.zeros_(parameter)
    scores = pseudo_log_likelihood(blank, tokenizer, text), pseudo_perplexity(blank, tokenizer, [text])
    assert exercises.uniform_scores(6, V) == pytest.approx(scores, rel=1e-4)


def test_a_shift_and_chance_level() -> None:
    x, y, c = torch.tensor([1.0, 0, 0]), torch.tensor([0.3, 0.91**0.5, 0]), torch.tensor([0, 0, 1.0])
    assert exercises.shifted_cosine(0.3) == pytest.approx(F.cosine_similarity(x + c, y + c, dim=0).item())
    same = torch.ones(64, 32)
    assert exercises.chance_loss(64) == pytest.approx(simcse_loss(same, same).item(), rel=1e-4)
