r"""
# What a pretrained model is good for

The held-out loss says how well a model fills in masks. Some claims are about what the model is good for
afterwards. So at the end of a run on pairs, we measure the scores that the claim needs:

- `seen_loss`: the loss of predicting tokens that the model can see;
- `probe`: the test accuracy of a linear layer on the frozen model, in the task *package*;
- `package` and `summary`: the test accuracy after fine-tuning on 1,000 labeled examples of the task;
- `package 100` and `package 1000`: the test accuracy after fine-tuning on as many labeled examples, at a
  learning rate chosen on a fifth of them.

Letters for sizes: `N` texts, `B` of them in a batch, `T` tokens in the longest, `D` hidden size, `K` classes.
"""

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor, nn

from experiments.claims.options import PairOptions
from experiments.claims.training import Run
from labml_bert.data.docstring_tasks import Task, distinct_docstrings, package_task, summary_task
from labml_bert.data.paired_text import PairedText
from labml_bert.finetuning import (
    Row,
    choose_learning_rate,
    collate_rows,
    encode_examples,
    fine_tune,
    predict,
)
from labml_bert.heads import BertForSequenceClassification
from labml_bert.labeled_text import Example, score
from labml_bert.mlm import IGNORE
from labml_bert.models import BertForPreTraining
from labml_bert.training.evaluation import evaluate_pretraining

# Fine-tuning and the probe use this many labeled texts.
LABELS = 1000
# Fine-tuning takes at least this many steps. Four epochs of 1,000 texts would be only 128.
FEWEST_STEPS = 200
# Each task has a learning rate and a maximum number of tokens. With 1,000 labels, these learning rates were
# the best for a pretrained model in the first record of `finetune_docstrings.py`.
FINE_TUNING = {"package": (1e-3, 48), "summary": (1e-4, 64)}
# `tuned_accuracy` tries these learning rates. Its runs are longer, because a network from scratch needs more
# steps.
LEARNING_RATES, TUNED_STEPS = (3e-4, 1e-3, 3e-3), 300


def measure_scores(run: Run, names: Sequence[str], seed: int) -> dict[str, float]:
    """Measures the scores in `names`, and returns them by name."""
    scores = {}
    for name in names:
        if name == "seen_loss":
            scores[name] = seen_loss(run)
        elif name == "probe":
            scores[name] = probe(run, seed)
        elif " " in name:
            task, labels = name.split()
            scores[name] = tuned_accuracy(run, task, int(labels), seed)
        else:
            scores[name] = fine_tuned_accuracy(run, name, seed)
    return scores


def seen_loss(run: Run) -> float:
    """
    ## Tokens that the model sees

    Returns the held-out loss if nothing is masked: at each labeled position, the model sees the true token.
    """
    assert isinstance(run.text, PairedText), "only runs on pairs have this score"
    unmasked = [
        {**batch, "input_ids": torch.where(batch["labels"] == IGNORE, batch["input_ids"], batch["labels"])}
        for batch in run.text.held_out
    ]
    return evaluate_pretraining(run.trainer, unmasked)["loss"]


@cache
def labeled_texts(name: str) -> Task:
    """Returns the task `package` or `summary`."""
    return (package_task if name == "package" else summary_task)(docstrings())


docstrings = cache(distinct_docstrings)


def fine_tuned_accuracy(run: Run, name: str, seed: int) -> float:
    """
    ## Fine-tuning

    Returns the test accuracy in the task `name`, after training the encoder and a new classifier on `LABELS`
    of its texts.
    """
    task = labeled_texts(name)
    return test_accuracy(run, task, task.draw(LABELS, seed), FINE_TUNING[name][0], seed, FEWEST_STEPS)


def tuned_accuracy(run: Run, name: str, labels: int, seed: int) -> float:
    """
    Returns the test accuracy in the task `name` after fine-tuning on `labels` of its texts. The learning rate
    is the one of `LEARNING_RATES` that is best on a fifth of these texts. So a pretrained model and one from
    scratch can each have the learning rate that suits them.
    """
    task = labeled_texts(name)
    examples = task.draw(labels, seed)

    def attempt(learning_rate: float, train: list[Example], validation: list[Example]) -> Tensor:
        return train_and_predict(run, task, train, validation, learning_rate, seed, TUNED_STEPS)

    best = choose_learning_rate(LEARNING_RATES, examples, len(task.labels), attempt)
    return test_accuracy(run, task, examples, best, seed, TUNED_STEPS)


def test_accuracy(
    run: Run, task: Task, examples: list[Example], learning_rate: float, seed: int, min_steps: int
) -> float:
    """Fine-tunes on `examples`, and returns the accuracy on the task's test texts."""
    logits = train_and_predict(run, task, examples, task.test, learning_rate, seed, min_steps)  # (N, K)
    return score(logits, torch.tensor([example.label for example in task.test])).accuracy


def train_and_predict(
    run: Run,
    task: Task,
    train: list[Example],
    test: list[Example],
    learning_rate: float,
    seed: int,
    min_steps: int,
) -> Tensor:
    """
    Trains the run's encoder and a new classifier on `train`, for at least four epochs and `min_steps` steps.
    With the option `from_scratch`, the encoder starts from random weights instead. Returns the logits for
    `test`, `(N, K)`.
    """
    assert isinstance(run.model, BertForPreTraining), "only runs on pairs have this score"
    assert isinstance(run.options, PairOptions)
    config, tokenizer = run.model.config, run.text.tokenizer
    length = min(FINE_TUNING[task.name][1], config.max_position_embeddings)
    torch.manual_seed(seed)
    model = BertForSequenceClassification(config, task.labels).to(run.trainer.device)
    if not run.options.from_scratch:
        model.bert.load_state_dict(run.model.bert.state_dict())
    fine_tune(model, encode_examples(tokenizer, train, length), learning_rate, 4, min_steps, seed=seed)
    return predict(model, encode_examples(tokenizer, test, length))


def probe(run: Run, seed: int) -> float:
    r"""
    ## A linear probe

    Returns the test accuracy in the task *package* of a linear layer on the frozen model. The layer's weights
    are the solution of a ridge regression on the one-hot classes $Y$: $(X^\top X + \lambda I)^{-1} X^\top Y$.
    The rows of $X$ are the mean vectors of the training texts, with each column scaled to mean 0 and standard
    deviation 1, and a 1 for the bias. $\lambda$ is a hundredth of the number of texts.
    """
    assert isinstance(run.model, BertForPreTraining), "only runs on pairs have this score"
    task = labeled_texts("package")
    length = min(FINE_TUNING["package"][1], run.model.config.max_position_embeddings)
    examples = task.draw(LABELS, seed)
    train, test = (
        mean_vectors(run, encode_examples(run.text.tokenizer, e, length)) for e in (examples, task.test)
    )  # (N, D)
    mean, std = train.mean(0), train.std(0) + 1e-6  # (D)
    # The column of ones adds a bias to the layer.
    train, test = (nn.functional.pad((x - mean) / std, (0, 1), value=1.0).double() for x in (train, test))
    classes = nn.functional.one_hot(torch.tensor([e.label for e in examples]), len(task.labels)).double()
    ridge = len(train) / 100 * torch.eye(train.size(1), dtype=torch.double)
    weight = torch.linalg.solve(train.T @ train + ridge, train.T @ classes)  # (D + 1, K)
    return score(test @ weight, torch.tensor([e.label for e in task.test])).accuracy


@torch.no_grad()
def mean_vectors(run: Run, rows: list[Row]) -> Tensor:
    """Returns the encoder's mean output over all tokens of each text, special tokens included, `(N, D)`."""
    run.model.eval()
    means = []
    for start in range(0, len(rows), 64):
        inputs = collate_rows(rows[start : start + 64], run.trainer.device)
        del inputs["labels"]
        hidden = run.model.bert(**inputs).last_hidden_state.float()  # (B, T, D)
        is_token = inputs["attention_mask"][..., None]  # (B, T, 1)
        means.append(((hidden * is_token).sum(1) / is_token.sum(1)).cpu())  # (B, D)
    return torch.cat(means)
