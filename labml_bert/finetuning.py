r"""
# Fine-tuning: a classifier on a pretrained encoder

What is a pretrained encoder good for? You can add a linear layer on the pooled vector of `[CLS]` and train
the whole model on a few labeled texts. It takes minutes:

$$p(y \mid \text{text}) = \operatorname{softmax}(W h + b)_y$$

Here $h$ is the pooled vector. Only $W$ and $b$ are new: $KD + K$ parameters for `K` classes. All other
parameters start from what the encoder learned from plain text, which is why a few labels can be enough.

Some tasks ask about two texts: does the second follow from the first, or answer it? Both go in as in
pretraining, `[CLS] A [SEP] B [SEP]`, and the segment embeddings tell them apart. The classifier is the same.

Letters for sizes: `B` texts in the batch, `T` tokens in the longest of them, `D` hidden size, `K` classes,
`N` texts in total.
"""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from labml_bert.bert import BertConfig, init_weights
from labml_bert.data.tokenizers import SPECIAL_TOKENS, encode_texts, special_token_ids
from labml_bert.labeled_text import Example
from labml_bert.model_folder import read_json
from labml_bert.models import BertPreTrainedModel
from labml_bert.nsp import SentencePair, collate
from labml_bert.training.optimization import TrainingArguments
from labml_bert.training.trainer import NonFiniteLossError, Trainer

# Prefixes of the parameters that a pretrained folder may lack. No pretrained model has this classifier, and
# one pretrained without next sentence prediction has no pooler.
NEW_PARAMETERS = ("classifier.", "bert.pooler.")


class ClassifierOutput(NamedTuple):
    """What `BertForSequenceClassification` returns."""

    loss: Tensor | None
    """Mean cross-entropy in nats; `None` without labels."""
    logits: Tensor
    """`(B, K)`."""


class BertForSequenceClassification(BertPreTrainedModel):
    """
    ## Encoder and classifier

    `labels` are the names of the classes, in the order of the logits. They are saved in `config.json`, so
    whoever loads the folder knows what each logit means.

    Start from a pretrained folder with

        BertForSequenceClassification.from_pretrained(
            folder, new_parameters=NEW_PARAMETERS, labels=["bad", "good"]
        )

    A model that was pretrained on masked LM alone has no pooler, and has never seen a token of the second
    segment. The pooler and the embedding of that segment then start untrained, so the few labels have to
    train them too.

    Raises `ValueError` if there are fewer than two labels, or if two are the same.

    Source: [paper](https://arxiv.org/abs/1810.04805), section 4.1; `run_classifier.py` of
    [google-research/bert](https://github.com/google-research/bert).
    """

    def __init__(self, config: BertConfig, labels: Sequence[str]):
        super().__init__(config)
        if not all(isinstance(label, str) for label in labels):
            raise ValueError(f"the labels are {list(labels)}; each must be a string")
        if len(labels) < 2 or len({*labels}) < len(labels):
            raise ValueError(f"the labels are {list(labels)}; use two or more, all different")
        self.labels = list(labels)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, len(labels))
        init_weights(self.classifier, config.initializer_range)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None, **inputs: Tensor) -> ClassifierOutput:
        """
        `input_ids` is `(B, T)`, `labels` `(B)`; `inputs` are those of `BertModel.forward`. The loss is
        the mean over the batch. The logits are float32, even under autocast.
        """
        pooled = self.bert(input_ids, **inputs).pooler_output  # (B, D)
        logits = self.classifier(self.dropout(pooled)).float()  # (B, K)
        loss = None if labels is None else F.cross_entropy(logits, labels)
        return ClassifierOutput(loss, logits)

    @property
    def extra_config(self) -> dict[str, Any]:
        """The labels, in the two forms that `transformers` reads."""
        return {
            "id2label": {str(i): label for i, label in enumerate(self.labels)},
            "label2id": {label: i for i, label in enumerate(self.labels)},
            "problem_type": "single_label_classification",
        }

    @classmethod
    def from_pretrained(
        cls, folder: Path | str, new_parameters: Sequence[str] = (), **arguments: Any
    ) -> Self:
        """As `BertPreTrainedModel.from_pretrained`. By default, `labels` are those saved in the folder."""
        if "labels" not in arguments:
            arguments["labels"] = read_labels(Path(folder))
        return super().from_pretrained(folder, new_parameters, **arguments)


def read_labels(folder: Path) -> list[str]:
    """
    Returns the names of the classes in `config.json`. For a model with two classes called `LABEL_0` and
    `LABEL_1`, `transformers` omits the names, so these two are the default.

    Raises `ValueError` if the ids are not 0, 1, 2, …, or if the model doesn't choose one of several classes.
    """
    path, content = folder / "config.json", read_json(folder)
    problem = content.get("problem_type") or "single_label_classification"
    if problem != "single_label_classification":
        raise ValueError(f"{path} says problem_type = {problem!r}; only one label per text is supported")
    names = content.get("id2label", {"0": "LABEL_0", "1": "LABEL_1"})
    try:
        return [str(names[str(i)]) for i in range(len(names))]
    except (KeyError, TypeError):
        raise ValueError(f"{path} has no id2label that names 0, 1, 2, …; save the model again") from None


def encode_examples(
    tokenizer: Tokenizer, examples: Sequence[Example], max_length: int = 128
) -> list[SentencePair]:
    """
    ## From texts to ids

    A text becomes `[CLS] A [SEP]`, and a pair becomes `[CLS] A [SEP] B [SEP]`, with at most `max_length`
    tokens, special tokens included. A text that is too long loses its end. In a pair, the longer text is
    shortened first. The label goes to the field where pretraining stores *is next*.

    Raises `ValueError` if `max_length` leaves no room for text.
    """
    if max_length < 5:
        raise ValueError(f"max_length is {max_length}; two tokens and three special tokens need 5")
    special_ids = special_token_ids(tokenizer)
    cls_id, sep_id = (special_ids[SPECIAL_TOKENS.index(name)] for name in ("[CLS]", "[SEP]"))
    texts = encode_texts(tokenizer, [example.text for example in examples])
    pairs = encode_texts(tokenizer, [example.pair or "" for example in examples])
    rows = []
    for example, a, b in zip(examples, texts, pairs, strict=True):
        if example.pair is None:
            ids = [cls_id, *a[: max_length - 2], sep_id]
            rows.append(SentencePair(ids, [0] * len(ids), example.label))
            continue
        room = max_length - 3
        # This has the same effect as removing one token at a time from the longer text: a short text stays
        # whole, and two long ones get half of the room each.
        a = a[: max(room - len(b), (room + 1) // 2)]
        b = b[: room - len(a)]
        ids = [cls_id, *a, sep_id, *b, sep_id]
        rows.append(SentencePair(ids, [0] * (len(a) + 2) + [1] * (len(b) + 1), example.label))
    return rows


def shuffle_batches(
    rows: Sequence[SentencePair], batch_size: int, generator: torch.Generator
) -> Iterator[list[int]]:
    """
    ## Batches of similar length

    Yields one epoch: the indices of all rows, each once, in random batches. Every row of a batch is padded to
    the length of the longest, and padding costs as much time as tokens. So we draw the rows of eight batches
    at a time and sort them by length before we split them into batches. Sorting all rows at once would save a
    little more padding, but nearly the same texts would be in a batch together in every epoch.
    """
    order = torch.randperm(len(rows), generator=generator).tolist()
    batches = []
    for start in range(0, len(order), 8 * batch_size):
        group = sorted(order[start : start + 8 * batch_size], key=lambda i: len(rows[i].input_ids))
        batches += [group[i : i + batch_size] for i in range(0, len(group), batch_size)]
    for i in torch.randperm(len(batches), generator=generator).tolist():
        yield batches[i]


def collate_rows(rows: Sequence[SentencePair], device: torch.device) -> dict[str, Tensor]:
    """Returns the model's arguments for `rows`, padded to the longest row."""
    batch = {key: value.to(device) for key, value in collate(rows).items()}
    batch["labels"] = batch.pop("next_sentence_label")  # (B)
    return batch


def fine_tune(
    model: BertForSequenceClassification,
    rows: Sequence[SentencePair],
    learning_rate: float,
    epochs: int = 3,
    min_steps: int = 0,
    batch_size: int = 32,
    seed: int = 0,
    bfloat16: bool | None = None,
) -> list[float]:
    """
    ## The recipe

    The recipe in appendix A.3 of the paper is 2 to 4 epochs with Adam, in batches of 16 or 32, with dropout
    0.1, which is part of the model. The learning rate warms up over the first tenth of the steps and then
    decays to zero. Three things are different here:

    - The learning rate has no default. 2e-5 to 5e-5 suits the 110 million parameters of BERT base. Smaller
      models need a higher one: the [compact BERTs](https://arxiv.org/abs/1908.08962) were fine-tuned with up
      to 3e-4. The models of this project are smaller still, and were pretrained at 1e-3 and above. Let
      `choose_hyperparameter` pick one.
    - Training takes at least `min_steps` steps. Three epochs of 100 texts are only a dozen steps, too few to
      learn anything. Training longer makes fine-tuning on few texts
      [stable](https://arxiv.org/abs/2006.04884).
    - Adam has its bias correction, which the original omits. [Leaving it
      out](https://arxiv.org/abs/2006.05987) is another cause of instability.

    Returns the loss of each step, in nats, and leaves the model in eval mode. If `bfloat16` is `None`, the
    hardware decides.

    Raises `ValueError` if there are no rows or a number is below 1, and `NonFiniteLossError` if the loss or
    its gradient explodes.
    """
    if not rows or batch_size < 1 or epochs < 1:
        raise ValueError(
            f"{len(rows)} texts, batch_size {batch_size}, epochs {epochs}; each must be at least 1"
        )
    device = model.classifier.weight.device
    generator = torch.Generator().manual_seed(seed)
    steps = max(epochs * -(-len(rows) // batch_size), min_steps)
    arguments = TrainingArguments(steps=steps, learning_rate=learning_rate, warmup_ratio=0.1)
    # Fine-tuning takes only a minute, so it has no run folder and no checkpoints.
    trainer = Trainer(model, arguments, generator, device, bfloat16)
    epoch_batches = (shuffle_batches(rows, batch_size, generator) for _ in itertools.count())
    batches = itertools.chain.from_iterable(epoch_batches)
    losses: list[Tensor] = []
    model.train()
    try:
        for step in trainer.steps():
            batch = collate_rows([rows[i] for i in next(batches)], device)
            for part in step.micro_batches(batch):
                with step.autocast():
                    output = trainer.parallel(**part)
                step.backward(output.loss)
            step.update()
            losses.append(step.loss)
    except NonFiniteLossError:
        raise NonFiniteLossError(
            f"the loss or its gradient exploded at the learning rate {learning_rate:g}; try a lower one"
        ) from None
    model.eval()
    return torch.stack(losses).tolist()


@torch.no_grad()
def predict(
    model: BertForSequenceClassification, rows: Sequence[SentencePair], batch_size: int = 64
) -> Tensor:
    """
    Returns the logits of each row, `(N, K)`, on the CPU. Rows of similar length share a batch, so little time
    goes to padding.
    """
    was_training = model.training
    model.eval()
    device = model.classifier.weight.device
    logits = torch.zeros(len(rows), len(model.labels))  # (N, K)
    order = sorted(range(len(rows)), key=lambda i: len(rows[i].input_ids))
    for start in range(0, len(order), batch_size):
        indices = order[start : start + batch_size]
        batch = collate_rows([rows[i] for i in indices], device)
        logits[indices] = model(**batch).logits.cpu()
    model.train(was_training)
    return logits  # (N, K)
