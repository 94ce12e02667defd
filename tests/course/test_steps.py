"""Each step of the course, empty, solved and with each known mistake. Nothing gives a solution away."""

import ast
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from labml_bert.course import folder as folders
from labml_bert.course.check import read_problem
from labml_bert.course.compare import describe_difference, first_difference, observe
from labml_bert.course.probes import masking as masking_probes
from labml_bert.course.probes import pairs as pairs_probes
from labml_bert.course.probes.track import PROBES
from labml_bert.course.run_probes import load, run_probe
from labml_bert.course.source import (
    first_line,
    function_lines,
    is_empty,
    make_mistake,
    read_reference,
    remove_bodies,
    restore_others,
)
from labml_bert.course.step import Mistake, Step
from labml_bert.course.track import STEPS, STEPS_TO_TRAIN
from tests.support.runs import ROOT

MISTAKES = [(step, mistake) for step in STEPS for mistake in step.mistakes]
steps = pytest.mark.parametrize("step", STEPS, ids=[step.name for step in STEPS])


def empty(file: str) -> str:
    """A file as `start` writes it."""
    return remove_bodies(read_reference(file), [step for step in STEPS if step.file == file])


@pytest.fixture(autouse=True)
def random_state() -> Iterator[None]:
    state = torch.get_rng_state()
    yield
    torch.set_rng_state(state)


def test_every_step_has_a_check_and_a_chapter() -> None:
    assert list(PROBES) == [step.name for step in STEPS]
    assert {step.chapter for step in STEPS} <= {path.stem for path in (ROOT / "docs/pages").glob("*.md")}
    assert STEPS[: len(STEPS_TO_TRAIN)] == STEPS_TO_TRAIN


def test_there_are_three_mistakes_per_step_on_average_and_no_step_has_fewer() -> None:
    assert all(len(step.mistakes) >= 3 for step in STEPS)
    assert all(1 <= len(step.hints) <= 3 for step in STEPS)


def test_code_above_the_line_that_was_given_counts() -> None:
    error = 'raise NotImplementedError("write this: the mean")'
    for docstring in ("", '    """Adds."""\n'):
        assert is_empty(f"def add(a, b):\n{docstring}    {error}\n", "add")
        assert not is_empty(f"def add(a, b):\n{docstring}    return a + b\n    {error}\n", "add")
        assert not is_empty(f"def add(a, b):\n{docstring}    raise ValueError\n", "add")
    assert not is_empty('def add(a, b):\n    """Adds."""\n', "add")


def test_a_function_on_one_line_has_that_line() -> None:
    for text, lines in (
        ("x = 1\ndef f(a: int) -> int: return a\ny = 2\n", ["def f(a: int) -> int: return a"]),
        ("x = 1\ndef f(a: int) -> int:\n    return a\ny = 2\n", ["    return a"]),
    ):
        assert function_lines(text, "f") == lines
        line = first_line(text, "f")
        assert line is not None and text.split("\n")[line - 1] == lines[0]


@steps
def test_an_empty_body_fails_with_its_own_message(step: Step) -> None:
    problem = read_problem(step, empty(step.file))
    assert problem is not None
    assert (problem.passed, problem.message) == (False, f"Not written yet: {step.task}.")
    with pytest.raises(NotImplementedError, match=re.escape(f"write this: {step.task}")):
        [*PROBES[step.name](load(restore_others(empty(step.file), step, STEPS), step, step.file))]


@steps
def test_the_reference_passes_also_in_a_file_whose_other_steps_are_empty(step: Step) -> None:
    others = [other for other in STEPS if other.file == step.file and other != step]
    for text in (read_reference(step.file), remove_bodies(read_reference(step.file), others)):
        assert read_problem(step, text) is None
        verdict = run_probe(step, restore_others(text, step, STEPS))
        assert verdict.passed, verdict
    observations = observe(PROBES[step.name], load(read_reference(step.file), step, step.file))
    assert "error" not in [observation.name for observation in observations], observations[-1]


@pytest.mark.slow("checks each mistake")
@pytest.mark.parametrize(("step", "mistake"), MISTAKES, ids=[f"{s.name} {m.name}" for s, m in MISTAKES])
def test_each_known_mistake_gets_its_own_diagnosis(step: Step, mistake: Mistake) -> None:
    verdict = run_probe(step, restore_others(make_mistake(step, mistake), step, STEPS))
    assert (verdict.passed, verdict.mistake) == (False, mistake.name)
    assert verdict.message == mistake.message
    assert len({m.name for m in step.mistakes}) == len(step.mistakes)
    assert len({m.message for m in step.mistakes}) == len(step.mistakes)


RANDOM = "index = torch.randint(len(ordinary_ids), draw.shape, generator=self.generator, device=draw.device)"
FIXED = "torch.Generator().manual_seed(0)"
# Wrong code that isn't among the known mistakes: the step, the text to replace and its replacement.
WRONG = [
    ("mlm.py:TokenMasker.__call__", RANDOM, f"{RANDOM}[:, :1].expand_as(draw)"),
    ("mlm.py:TokenMasker.__call__", RANDOM, f"{RANDOM}[:1].expand_as(draw)"),
    ("mlm.py:TokenMasker.__call__", RANDOM, RANDOM.replace("self.generator", FIXED)),
    (
        "mlm.py:TokenMasker.__call__",
        "self.rand(input_ids)",
        f"torch.rand(input_ids.shape, generator={FIXED})",
    ),
    (
        "mlm.py:TokenMasker.choose",
        "self.rand(is_candidate)",
        f"torch.rand(is_candidate.shape, generator={FIXED})",
    ),
    *(
        (
            "data/windows.py:random_windows",
            f"{size} - T + 1, (B, 1), generator=generator",
            f"{size} - T + 1, (B, 1), generator={FIXED}",
        )
        for size in ("len(token_ids)", "max_position_embeddings")
    ),
    ("training/evaluation.py:evaluate_masked_lm", "trainer.autocast()", "torch.no_grad()"),
    ("mlm.py:TokenMasker.__call__", "(input_ids >= 0)", "(input_ids >= -1)"),
    ("mlm.py:TokenMasker.__call__", "input_ids.dim() != 2 or ", ""),
    ("mlm.py:TokenMasker.__call__", "attention_mask.shape != input_ids.shape or ", ""),
    ("modern.py:ModernBertForMaskedLM.forward", "labels.shape != input_ids.shape", "False"),
    ("nsp.py:PairMaker.pairs_of", "or end - start < fewest)", "or end < fewest)"),
    ("bert.py:BertSelfAttention.forward", "weights if output_attentions else None", "weights"),
    (
        "bert.py:BertSelfAttention.forward",
        "self.dropout.p if self.dropout.training else 0.0",
        "self.dropout.p or 1.0",
    ),
    ("bert.py:BertSelfAttention.forward", "self.dropout.p if self", "0.1 if self"),
    (
        "bert.py:BertSelfAttention.forward",
        "self.dropout.p if self.dropout.training else 0.0",
        "self.dropout.p",
    ),
    ("training/optimization.py:block_matrices", "p.dim() == 2", "p.dim() >= 2"),
    (
        "training/optimization.py:parameter_groups",
        """p.dim() <= 1]
    assert {id(p) for p in matrices} | {id(p) for p in vectors} == {id(p) for p in parameters}
    assert len(matrices) + len(vectors) == len(parameters)
""",
        "p.dim() == 1]\n",
    ),
    ("bert.py:BertSelfAttention.forward", "self.dropout.p if self", "1 - self.dropout.p if self"),
    (
        "bert.py:BertSelfAttention.forward",
        "context = F.scaled_dot_product_attention(q, k, v, attention_mask, dropout_prob)",
        "context = self.dropout(F.scaled_dot_product_attention(q, k, v, attention_mask))",
    ),
    ("modern.py:ModernBertAttention.forward", "self.attention_dropout if self", "0.1 if self"),
    (
        "modern.py:ModernBertAttention.forward",
        "cos, sin = (angles.to(qkv.dtype) for angles in rotary)",
        "cos, sin = rotary",
    ),
    ("course/exercises.py:attention_fraction", "6 * hidden_size", "4608"),
    ("course/exercises.py:untied_parameters", "vocab_size * hidden_size", "30_522 * 768"),
    (
        "course/exercises.py:new_parameters",
        "hidden_size * hidden_size + hidden_size + num_labels * hidden_size + num_labels",
        "592_899",
    ),
    ("course/exercises.py:training_hours", "tokens / length", "tokens / 128"),
    (
        "nsp.py:PairMaker.pairs_of",
        "end, length = start, 0\n",
        "end, length, target = start, 0, self.target_length(generator)\n",
    ),
]


@pytest.mark.parametrize(("name", "old", "new"), WRONG)
def test_other_wrong_code_is_refused_too(name: str, old: str, new: str) -> None:
    (step,) = [step for step in STEPS if step.name == name]
    text = make_mistake(step, Mistake("", old, new, ""))
    if "scaled_dot_product_attention" in new:
        # A solution may use the fused kernel in all cases.
        text = text.replace(
            "output_attentions or written_out_is_faster(q, dropout_prob)", "output_attentions"
        )
    verdict = run_probe(step, restore_others(text, step, STEPS))
    assert not verdict.passed and "error" not in verdict.message


def test_a_mistake_whose_text_is_gone_is_an_error() -> None:
    with pytest.raises(ValueError, match="'gone' occurs 0 times in the body"):
        make_mistake(STEPS[0], Mistake("x", "gone", "", ""))


@steps
def test_other_random_numbers_pass_too(step: Step, monkeypatch: pytest.MonkeyPatch) -> None:
    """A correct solution may draw its random numbers in another order."""
    module = load(read_reference(step.file), step, step.file)
    expected = observe(PROBES[step.name], module)
    make_random, masker = random.Random, masking_probes.masker
    for seed in (111, 222, 333):
        monkeypatch.setattr(pairs_probes.random, "Random", lambda x, seed=seed: make_random(x + seed))
        monkeypatch.setattr(
            masking_probes,
            "masker",
            lambda m, seed=seed, **options: reseed(masker(m, **options), seed),
        )
        actual = observe(PROBES[step.name], module)
        i = first_difference(expected, actual)
        assert i is None, (expected[i].name, describe_difference(expected[i].value, actual[i].value))


def reseed(masker: masking_probes.Any, seed: int) -> masking_probes.Any:
    masker.generator.manual_seed(seed)
    return masker


def test_no_solution_is_in_the_folder(tmp_path: Path) -> None:
    """No long line of a solution is anywhere in the folder, with or without its comment."""
    folders.write_exercises(tmp_path / "course")
    files = {path: path.read_text("utf-8") for path in (tmp_path / "course").rglob("*") if path.is_file()}
    assert {path.suffix for path in files} == {".py", ".md"}
    leaks = []
    for step in STEPS:
        for line in function_lines(read_reference(step.file), step.function):
            code = line.partition("  # ")[0].strip()
            if len(code) > 25 and code not in COMMON:
                leaks += [(step.name, code, path.name) for path, text in files.items() if code in text]
    assert leaks == []


# Lines of a solution that other functions share and that don't give anything away.
COMMON = {"is_labeled = labels != IGNORE", "is_labeled = labels != -100"}


def test_the_exercises_keep_signatures_docstrings_and_everything_else() -> None:
    for file in folders.FILES:
        functions = {name for s in STEPS if s.file == file for name in (s.function, *s.twins)}
        names = {function.rpartition(".")[2] for function in functions}
        original, exercise = ast.parse(read_reference(file)), ast.parse(empty(file))
        for tree in (original, exercise):
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef) and node.name in names:
                    node.body = node.body[:1] if ast.get_docstring(node) else []
        if not any(step.function.endswith("__post_init__") for step in STEPS if step.file == file):
            assert ast.dump(original) == ast.dump(exercise)


def test_messages_hints_and_tasks_are_sentences() -> None:
    for step in STEPS:
        assert not step.task.endswith(".")
        for text in (*step.hints, *(mistake.message for mistake in step.mistakes)):
            assert text[0].isupper() or text.startswith("`"), text
            assert text.endswith((".", "?", "…")), text
            assert "  " not in text, text
