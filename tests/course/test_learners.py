"""Code of the first learners: correct code passes, and only an exception from the code is reported as one."""

import pytest
import torch

from labml_bert.course.compare import describe_difference
from labml_bert.course.run_probes import run_probe
from labml_bert.course.source import read_reference, restore_others
from labml_bert.course.track import STEPS
from tests.support.course import check_body

RIGHT = {
    "bert.py:init_weights": """
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
        if isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
        if getattr(module, "bias", None) is not None:
            nn.init.zeros_(module.bias)
    """,
    "training/optimization.py:set_learning_rate": """
        learning_rate = arguments.learning_rate_at(progress)
        c = math.sqrt(1 - arguments.adam_beta2**step)
        scale = (1 - arguments.adam_beta1**step) / c
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["learning_rate"] = learning_rate
                if isinstance(optimizer, torch.optim.AdamW) and not arguments.adam_bias_correction:
                    group["lr"] *= scale
                    group["eps"] = arguments.adam_epsilon / c
                    group["weight_decay"] = arguments.weight_decay / scale * group["has_decay"]
    """,
    "training/trainer.py:Step.backward": """
        if loss is None:
            raise ValueError("no loss")
        self.trainer.scaler.scale(loss * world_size()).backward()
        for key, value in [("loss", loss), *metrics.items()]:
            self.metrics[key] = self.metrics.get(key, 0) + value.detach()
    """,
    "nsp.py:PairMaker.assemble": """
        a, b = list(a), list(b)
        while len(a) + len(b) > self.max_length - 3:
            (a if len(a) >= len(b) else b).pop(0 if generator.random() < 0.5 else -1)
        a, b = [self.cls_token_id, *a, self.sep_token_id], [*b, self.sep_token_id]
        return SentencePair(a + b, [0] * len(a) + [1] * len(b), label)
    """,
}

EVALUATION = """
    trainer.model.eval()
    N, T = held_out.input_ids.shape
    N = N if tokens is None else min(N, max(1, tokens // T))
    losses, right = [], []
    for i in range(0, N, {rows}):
        _, logits, labels = trainer.model(*[part[:N][i : i + {rows}] for part in held_out])
        losses.append(torch.nn.functional.cross_entropy(logits, labels))
        right.append(masked_accuracy(logits, labels))
    trainer.model.train()
    return {{"loss": (sum(losses) / len(losses)).item(), "accuracy": (sum(right) / len(right)).item()}}
"""


@pytest.mark.parametrize("name", RIGHT)
def test_right_code_of_a_learner_passes(name: str) -> None:
    verdict = check_body(name, RIGHT[name])
    assert verdict.passed, verdict


@pytest.mark.parametrize(
    ("name", "line", "changed_line", "observation"),
    [
        # The training reads `windows.input_ids`.
        ("data/windows.py:random_windows", "return Batch(", "return (", "the names of the two tensors"),
        # The reports read `group["learning_rate"]`.
        (
            "training/optimization.py:set_learning_rate",
            'group["learning_rate"] = learning_rate',
            "pass",
            "learning_rate of the group",
        ),
    ],
)
def test_what_the_training_reads_is_checked(
    name: str, line: str, changed_line: str, observation: str
) -> None:
    (step,) = [step for step in STEPS if step.name == name]
    text = read_reference(step.file)
    assert text.count(line) == 1
    verdict = run_probe(step, restore_others(text.replace(line, changed_line), step, STEPS))
    assert not verdict.passed
    assert observation in " ".join([verdict.message, *verdict.details]), verdict


@pytest.mark.slow("64 batch sizes")
@pytest.mark.parametrize("rows", range(1, 65))
def test_a_mean_over_batches_is_found_with_any_batch_size(rows: int) -> None:
    verdict = check_body("training/evaluation.py:evaluate_masked_lm", EVALUATION.format(rows=rows))
    assert verdict.mistake == "mean over batches", verdict


@pytest.mark.parametrize("rows", [1, 7, 64])
@pytest.mark.parametrize("total", ["sum(losses)", "sum(losses) / (held_out.labels[:N] != -100).sum()"])
def test_a_sum_over_batches_is_found_with_any_batch_size(rows: int, total: str) -> None:
    body = EVALUATION.format(rows=rows).replace("(sum(losses) / len(losses))", f"({total})")
    verdict = check_body("training/evaluation.py:evaluate_masked_lm", body)
    assert verdict.mistake == "means added up", verdict


@pytest.mark.parametrize(
    ("name", "body", "message"),
    [
        ("mlm.py:select_labeled", "return [hidden_states]", "Something is wrong with the selected hidden"),
        (
            "mlm.py:masked_accuracy",
            "raise EOFError",
            "Your code raises EOFError. A check has no keyboard; use print.",
        ),
        ("mlm.py:TokenMasker.choose", "pass", "Your result is None, or a part of it is."),
        ("mlm.py:TokenMasker.__call__", "return [input_ids]", "The check can't call your function, or can't"),
        ("mlm.py:TokenMasker.__call__", "return input_ids, None", "Your result is None, or a part of it is."),
        ("mlm.py:TokenMasker.__post_init__", "pass", "Your result lacks an attribute that the check reads."),
        (
            "training/optimization.py:parameter_groups",
            "return [{}, {}]",
            "Your result lacks the key 'params'.",
        ),
        ("training/evaluation.py:evaluate_masked_lm", "return {}", "Your result lacks the key 'loss'."),
        (
            "training/optimization.py:set_learning_rate",
            "optimizers[0].param_groups[0].pop('lr', None)",
            "Your result lacks the key 'lr'.",
        ),
        (
            "training/optimization.py:set_learning_rate",
            "optimizers[1].param_groups[0]['has_decay']",
            "Your code raises KeyError.",
        ),
    ],
)
def test_only_an_exception_of_the_code_is_called_one(name: str, body: str, message: str) -> None:
    verdict = check_body(name, body)
    assert not verdict.passed
    assert verdict.message.startswith(message), verdict
    assert verdict.line is None or message.startswith("Your code raises")


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("bert.py:BertSelfAttention.forward", "self.dropout.p if self.dropout.training else 0.0", "0.0"),
        ("modern.py:ModernBertAttention.forward", "self.attention_dropout if self.training else 0.0", "0.0"),
        ("bert.py:BertModel.forward", "(x, None, attentions)", "(x, attentions, None)"),
    ],
)
def test_a_change_of_the_original_that_matters_is_noticed(name: str, old: str, new: str) -> None:
    (step,) = [step for step in STEPS if step.name == name]
    text = read_reference(step.file)
    assert text.count(old) == 1 and run_probe(step, restore_others(text, step, STEPS)).passed
    assert not run_probe(step, restore_others(text.replace(old, new), step, STEPS)).passed


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        (
            "mlm.py:TokenMasker.__call__",
            "random_ids = ordinary_ids[index]",
            "random_ids = torch.randint(5, self.vocab_size, draw.shape, generator=self.generator)",
        ),
        (
            "mlm.py:TokenMasker.__call__",
            "self.is_special.to(input_ids.device)[input_ids]",
            "(input_ids <= self.mask_token_id)",
        ),
        (
            "bert.py:init_weights",
            "nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)",
            "nn.init.uniform_(module.weight, -1.524 * std, 1.524 * std)",
        ),
        (
            "bert.py:init_weights",
            "nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)",
            "nn.init.trunc_normal_(module.weight, mean=0.2 * std, std=std, a=-2 * std, b=2 * std)",
        ),
        (
            "training/optimization.py:set_learning_rate",
            'group["learning_rate"] = learning_rate',
            'optimizers[0].param_groups[0]["learning_rate"] = learning_rate',
        ),
    ],
)
def test_a_change_that_only_unusual_inputs_show_is_noticed(name: str, old: str, new: str) -> None:
    """The special ids needn't be the first ones, and a distribution is more than its deviation."""
    (step,) = [step for step in STEPS if step.name == name]
    text = read_reference(step.file)
    assert text.count(old) == 1
    assert not run_probe(step, restore_others(text.replace(old, new), step, STEPS)).passed


@pytest.mark.parametrize(
    ("name", "body"),
    [
        (
            "mlm.py:masked_lm_loss",
            """
            n = (labels != IGNORE).sum() if num_items_in_batch is None else num_items_in_batch
            p = logits.float().softmax(-1).gather(-1, labels.clamp(min=0)[:, None])[:, 0]
            return -torch.where(labels != IGNORE, p.log(), 0 * p).sum() / n.clamp(min=1)
            """,
        ),
        (
            "training/optimization.py:block_matrices",
            "return [p for b in model.layers for p in b.parameters() if p.dim() == 2 and p.requires_grad]",
        ),
        (
            "training/optimization.py:block_matrices",
            """
            lists = [m for m in model.modules() if isinstance(m, nn.ModuleList)]
            return [p for m in lists for p in m.parameters() if p.dim() == 2 and p.requires_grad]
            """,
        ),
    ],
)
def test_code_that_fails_with_unusual_models_or_logits_is_noticed(name: str, body: str) -> None:
    assert not check_body(name, body).passed


def test_a_file_may_postpone_its_annotations() -> None:
    """Dataclasses then look up their annotations in the module."""
    (step,) = [step for step in STEPS if step.name == "data/curriculum.py:length_at"]
    text = read_reference(step.file)
    code = text.replace("\nfrom ", "\nfrom __future__ import annotations\nfrom ", 1)
    assert code != text
    verdict = run_probe(step, restore_others(code, step, STEPS))
    assert verdict.passed, verdict


@pytest.mark.parametrize(
    ("expected", "actual", "lines"),
    [
        (1.5, torch.tensor(1.5), ["1.5 (float)", "1.5 (Tensor)"]),
        ([True, False], [1.0, 0.0], ["[True, False]", "[1.0, 0.0]"]),
        (True, 1.0, ["True (bool)", "1 (float)"]),
        (False, None, ["False", "None"]),
        ((5, 9), (9,), ["(5, 9)", "(9,)"]),
        ((1, 1, 8), (1, 1, 16), ["(1, 1, 8)", "(1, 1, 16)"]),
        (["a"], ["a", "b"], ["['a']", "['a', 'b']"]),
        ([*range(99)], [], ["list of length 99", "list of length 0"]),
        ([1], [*range(99)], ["list of length 1", "list of length 99"]),
        (
            torch.ones(2, requires_grad=True),
            torch.ones(2),
            ["a tensor with a gradient", "a tensor without a gradient"],
        ),
        ({"lr": 1}, {"lr": 1, "eps": 2}, ["the keys lr", "lr, eps"]),
    ],
)
def test_a_difference_in_words(expected: object, actual: object, lines: list[str]) -> None:
    assert describe_difference(expected, actual) == [f"  expected  {lines[0]}", f"  found     {lines[1]}"]
