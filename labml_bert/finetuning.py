r"""
# A classifier on top

What is a pretrained encoder good for? Put one linear layer on the vector of `[CLS]`, and train everything
together, for a few minutes, on a few labelled texts:

$$p(y \mid \text{text}) = \operatorname{softmax}(W h + b)_y$$

with $h$ the pooled vector. Only $W$ and $b$ are new: with `K` classes, $KD + K$ numbers. All else starts
from what the encoder learned of plain text, and that is why few labels can do.

A text may have two parts. They go in as in pretraining, `[CLS] A [SEP] B [SEP]`, and the token types tell
them apart. Whatever a task asks of two texts, the same layer answers.

Letters for sizes: `B` texts in the batch, `T` tokens in the longest, `D` hidden size, `K` classes, `N`
texts in all.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from labml_bert.bert import BertConfig, init_weights
from labml_bert.data.tokenizers import SPECIAL_TOKENS, encode_texts, special_token_ids
from labml_bert.models import BertPreTrainedModel, read_json
from labml_bert.nsp import SentencePair, collate
from labml_bert.training.optimization import TrainingArguments
from labml_bert.training.trainer import NonFiniteLossError, Trainer

# What a backbone may lack. Next sentence prediction trains the pooler; a masked language model has none.
FRESH = ("classifier.", "bert.pooler.")


class ClassifierOutput(NamedTuple):
    """What `BertForSequenceClassification` returns."""

    loss: Tensor | None
    """In nats; `None` without labels."""
    logits: Tensor
    """`(B, K)`."""


class BertForSequenceClassification(BertPreTrainedModel):
    """
    ## Encoder and classifier

    `labels` are the names of the classes, in the order of the scores. They stand in `config.json`, so a
    folder says by itself what its answers mean.

    Put on a pretrained folder with

        BertForSequenceClassification.from_pretrained(folder, fresh=FRESH, labels=["bad", "good"])

    A backbone that only ever filled masks comes without a pooler and has met no token of type 1. Both start
    untrained then, and the few labels have to teach them too.

    Raises `ValueError` where there are fewer than two labels, or two of the same name.

    Source: [paper](https://arxiv.org/abs/1810.04805), section 4.1; `run_classifier.py` of
    [google-research/bert](https://github.com/google-research/bert).
    """

    def __init__(self, config: BertConfig, labels: Sequence[str]):
        super().__init__(config)
        if not all(isinstance(label, str) for label in labels):
            raise ValueError(f"the labels are {list(labels)}; each must be a text")
        if len(labels) < 2 or len({*labels}) < len(labels):
            raise ValueError(f"the labels are {list(labels)}; give two or more, each of another name")
        self.labels = list(labels)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, len(labels))
        init_weights(self.classifier, config.initializer_range)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None, **inputs: Tensor) -> ClassifierOutput:
        """
        `input_ids` is `(B, T)`, `labels` `(B)`; `inputs` are those of `BertModel.forward`. The loss is
        the mean over the batch.
        """
        pooled = self.bert(input_ids, **inputs).pooler_output  # (B, D)
        logits = self.classifier(self.dropout(pooled)).float()  # (B, K)
        loss = None if labels is None else F.cross_entropy(logits, labels)
        return ClassifierOutput(loss, logits)

    def more_config(self) -> dict[str, Any]:
        """The labels, in the two forms that `transformers` reads."""
        return {
            "id2label": {str(i): label for i, label in enumerate(self.labels)},
            "label2id": {label: i for i, label in enumerate(self.labels)},
            "problem_type": "single_label_classification",
        }

    @classmethod
    def from_pretrained(cls, folder: Path | str, fresh: Sequence[str] = (), **arguments: Any) -> Self:
        """As `BertPreTrainedModel.from_pretrained`; without `labels` those of the folder hold."""
        if "labels" not in arguments:
            arguments["labels"] = read_labels(Path(folder))
        return super().from_pretrained(folder, fresh, **arguments)


def read_labels(folder: Path) -> list[str]:
    """
    The names of the classes in `config.json`. `transformers` leaves two classes without names out; they
    are called `LABEL_0` and `LABEL_1`.

    Raises `ValueError` where the ids are not 0, 1, 2, …, or the model does not choose one of several classes.
    """
    path, found = folder / "config.json", read_json(folder)
    problem = found.get("problem_type") or "single_label_classification"
    if problem != "single_label_classification":
        raise ValueError(f"{path} says problem_type = {problem!r}; only one label for a text is built here")
    names = found.get("id2label", {"0": "LABEL_0", "1": "LABEL_1"})
    try:
        return [str(names[str(i)]) for i in range(len(names))]
    except (KeyError, TypeError):
        raise ValueError(f"{path} has no id2label that names 0, 1, 2, …; save the model again") from None


class Example(NamedTuple):
    """A labelled text, or two. `label` is an index into the names of the classes."""

    text: str
    label: int
    pair: str | None = None


def encode_examples(
    tokenizer: Tokenizer, examples: Sequence[Example], max_length: int = 128
) -> list[SentencePair]:
    """
    ## Texts to ids

    `[CLS] A [SEP]`, or `[CLS] A [SEP] B [SEP]`, of at most `max_length` tokens, the special ones
    counted. What is too long loses its end, of two parts always the longer one. The label takes the
    place of *is next*.

    Raises `ValueError` where `max_length` leaves no room.
    """
    if max_length < 5:
        raise ValueError(f"max_length is {max_length}; two tokens and three special ones need 5")
    special = special_token_ids(tokenizer)
    first, last = (special[SPECIAL_TOKENS.index(name)] for name in ("[CLS]", "[SEP]"))
    texts = encode_texts(tokenizer, [example.text for example in examples])
    pairs = encode_texts(tokenizer, [example.pair or "" for example in examples])
    rows = []
    for example, a, b in zip(examples, texts, pairs, strict=True):
        if example.pair is None:
            ids = [first, *a[: max_length - 2], last]
            rows.append(SentencePair(ids, [0] * len(ids), example.label))
            continue
        room = max_length - 3
        # Cutting the longer part token by token ends here: a short part stays whole, two long ones share.
        a = a[: max(room - len(b), (room + 1) // 2)]
        b = b[: room - len(a)]
        ids = [first, *a, last, *b, last]
        rows.append(SentencePair(ids, [0] * (len(a) + 2) + [1] * (len(b) + 1), example.label))
    return rows


def batches(rows: Sequence[SentencePair], batch_size: int, generator: torch.Generator) -> Iterator[list[int]]:
    """
    ## Batches of similar length

    The indices of all rows, each once, in random batches. A batch is padded to its longest row, and a
    padded place costs as much as a token. So of every eight batches the rows are sorted by length before
    they are cut. Sorting all of them would put the same texts together in every epoch.
    """
    order = torch.randperm(len(rows), generator=generator).tolist()
    cut = []
    for start in range(0, len(order), 8 * batch_size):
        pool = sorted(order[start : start + 8 * batch_size], key=lambda i: len(rows[i].input_ids))
        cut += [pool[at : at + batch_size] for at in range(0, len(pool), batch_size)]
    for i in torch.randperm(len(cut), generator=generator).tolist():
        yield cut[i]


def batch_of(rows: Sequence[SentencePair], device: torch.device) -> dict[str, Tensor]:
    """The rows as arguments of the model, padded to the longest."""
    batch = {key: value.to(device) for key, value in collate(rows).items()}
    batch["labels"] = batch.pop("next_sentence_label")  # (B)
    return batch


def fine_tune(
    model: BertForSequenceClassification,
    rows: Sequence[SentencePair],
    learning_rate: float,
    epochs: int = 3,
    fewest_steps: int = 0,
    batch_size: int = 32,
    seed: int = 0,
) -> list[float]:
    """
    ## The recipe

    That of the paper, appendix A.3: 2 to 4 epochs of batches of 16 or 32, the rate rising over the first
    tenth of the steps and falling after, Adam, dropout 0.1 (which the model brings). Three things are ours:

    - The rate. 2e-5 to 5e-5 suits the 110 million parameters of BERT base. A model of a few millions needs
      more: the [compact BERTs](https://arxiv.org/abs/1908.08962) were tuned with up to 3e-4, and ours are
      smaller still and were pretrained at 1e-3 and above. So there is no default; choose it with `choose`.
    - `fewest_steps`. Three epochs of 100 texts are a dozen steps, in which nothing can be learned. Going
      on for longer makes fine-tuning on few texts [stable](https://arxiv.org/abs/2006.04884).
    - Adam corrects its bias. That the original left it out is the other half of the same finding.

    Returns the loss of each step, in nats. The model is in eval mode after.

    Raises `ValueError` where there are no rows or a number makes no sense, and `NonFiniteLossError` where the
    loss explodes.
    """
    if not rows or batch_size < 1 or epochs < 1:
        raise ValueError(
            f"{len(rows)} texts, batch_size {batch_size}, epochs {epochs}; each must be at least 1"
        )
    device = model.classifier.weight.device
    generator = torch.Generator().manual_seed(seed)
    steps = max(epochs * -(-len(rows) // batch_size), fewest_steps)
    arguments = TrainingArguments(steps=steps, learning_rate=learning_rate, warmup_ratio=0.1)
    # Of the one loop of this project only its step: a minute of work needs no checkpoint and no folder.
    trainer = Trainer(model, arguments, Path(), {}, generator, device)
    losses: list[Tensor] = []
    model.train()
    while len(losses) < steps:
        for batch in batches(rows, batch_size, generator):
            trainer.set_rate()
            losses.append(
                trainer.train_step(batch_of([rows[i] for i in batch], device), lambda *_: {})["loss"]
            )
            trainer.step += 1
            if trainer.step == steps:
                break
    model.eval()
    if trainer.failed:
        raise NonFiniteLossError(
            f"the loss or its gradient exploded at the learning rate {learning_rate:g}; try a lower one"
        )
    return torch.stack(losses).tolist()


@torch.no_grad()
def predict(
    model: BertForSequenceClassification, rows: Sequence[SentencePair], batch_size: int = 64
) -> Tensor:
    """The scores of each row, `(N, K)`, on the CPU. They are computed by length: little is padding then."""
    was_training = model.training
    model.eval()
    device = model.classifier.weight.device
    logits = torch.zeros(len(rows), len(model.labels))  # (N, K)
    order = sorted(range(len(rows)), key=lambda i: len(rows[i].input_ids))
    for start in range(0, len(order), batch_size):
        batch = order[start : start + batch_size]
        inputs = batch_of([rows[i] for i in batch], device)
        logits[batch] = model(**inputs).logits.cpu()
    model.train(was_training)
    return logits  # (N, K)


class Score(NamedTuple):
    """How good scores are, by the guess that each row's largest one is."""

    accuracy: float
    macro_f1: float
    """The mean over the classes that occur, so that a rare class counts as much as a frequent one."""


def score(logits: Tensor, labels: Tensor) -> Score:
    r"""
    ## Right, and right in each class

    `logits` is `(N, K)`, `labels` `(N)`. For one class, with `tp` its hits, `fp` its false alarms and
    `fn` what it missed, $F_1 = 2\,tp / (2\,tp + fp + fn)$.
    """
    guesses = logits.argmax(-1)  # (N)
    f1 = []
    for label in labels.unique():
        hits = ((guesses == label) & (labels == label)).sum()
        f1.append(2 * hits / ((guesses == label).sum() + (labels == label).sum()))
    return Score((guesses == labels).double().mean().item(), torch.stack(f1).double().mean().item())


def choose(
    candidates: Sequence[float],
    examples: Sequence[Example],
    attempt: Callable[[float, list[Example], list[Example]], Tensor],
    seed: int = 0,
) -> float:
    """
    ## Choosing a number without looking at the test

    A fifth of the labelled texts is set aside. `attempt(candidate, rest, fifth)` trains on the rest and
    returns the scores of the fifth, `(N, K)`. The candidate with the most right answers wins; of equals, the
    one with the lower loss.

    Raises `ValueError` where there are fewer than five examples.
    """
    if len(examples) < 5:
        raise ValueError(f"{len(examples)} labelled texts cannot be split into four fifths and one; give 5")
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(examples), generator=generator).tolist()
    aside = len(examples) // 5
    fifth, rest = ([examples[i] for i in part] for part in (order[:aside], order[aside:]))
    labels = torch.tensor([example.label for example in fifth])  # (N)

    def quality(candidate: float) -> tuple[float, float]:
        logits = attempt(candidate, rest, fifth)
        return score(logits, labels).accuracy, -F.cross_entropy(logits, labels).item()

    return max(candidates, key=quality)
