r"""
# What a pretrained model is good for

The held-out loss says how well a model fills in masks. Some claims are about what the model is good for
afterwards. So at the end of a run on pairs, we measure the scores that the claim needs:

- `seen_loss`: the loss of predicting tokens that the model can see;
- `probe`: the test accuracy of a linear layer on the frozen model, in the task *package*;
- `package` and `summary`: the test accuracy after fine-tuning on 1,000 labeled examples of the task.

Letters for sizes: `N` texts, `B` of them in a batch, `T` tokens in the longest, `D` hidden size, `K` classes.
"""

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor, nn

from experiments.claims.training import Run
from labml_bert.data.docstring_tasks import Task, distinct_docstrings, package_task, summary_task
from labml_bert.data.paired_text import PairedText
from labml_bert.finetuning import Row, collate_rows, encode_examples, fine_tune, predict
from labml_bert.heads import BertForSequenceClassification
from labml_bert.labeled_text import score
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


def measure_scores(run: Run, names: Sequence[str], seed: int) -> dict[str, float]:
    """Measures the scores in `names`, and returns them by name."""
    scores = {}
    for name in names:
        if name == "seen_loss":
            scores[name] = seen_loss(run)
        elif name == "probe":
            scores[name] = probe(run, seed)
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
    assert isinstance(run.model, BertForPreTraining), "only runs on pairs have this score"
    config, tokenizer = run.model.config, run.text.tokenizer
    task, (learning_rate, length) = labeled_texts(name), FINE_TUNING[name]
    length = min(length, config.max_position_embeddings)
    torch.manual_seed(seed)
    model = BertForSequenceClassification(config, task.labels).to(run.trainer.device)
    model.bert.load_state_dict(run.model.bert.state_dict())
    rows = encode_examples(tokenizer, task.draw(LABELS, seed), length)
    fine_tune(model, rows, learning_rate, 4, FEWEST_STEPS, seed=seed)
    logits = predict(model, encode_examples(tokenizer, task.test, length))  # (N, K)
    return score(logits, torch.tensor([example.label for example in task.test])).accuracy


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
