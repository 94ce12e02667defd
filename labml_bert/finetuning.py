"""
# Fine-tuning a pretrained encoder

What is a pretrained encoder good for? You can put one of the heads in `heads.py` on it and train the whole
model on labeled texts, often in minutes. Only the head is new, and the pooler if the encoder has none. All
other parameters start from what the encoder learned from plain text, so a few hundred labels can be enough.

Letters for sizes: `B` texts in the batch, `T` tokens in the longest of them, `K` classes, `N` texts in total.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from numbers import Integral
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer
from torch import Tensor

from labml_bert.data.tokenizers import cls_sep_ids, encode_texts
from labml_bert.heads import (
    BertClassifier,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)
from labml_bert.labeled_text import Example, choose_hyperparameter, quality
from labml_bert.mlm import IGNORE
from labml_bert.models import BertPreTrainedModel
from labml_bert.nsp import SentencePair, collate
from labml_bert.training.checkpoint import load_named_weights, named_weights
from labml_bert.training.device import Precision
from labml_bert.training.optimization import TrainingArguments
from labml_bert.training.trainer import NonFiniteLossError, Trainer


class Row(NamedTuple):
    """The ids of a text or of a pair of texts, before padding, and what the model should predict for them."""

    input_ids: list[int]
    token_type_ids: list[int]
    """0 up to and including the first `[SEP]`, 1 after it."""
    targets: dict[str, int | list[int]]
    """The arguments that say what to predict, by name. `labels` is the class of the text, or a list with the
    class of each token and -100 for tokens that don't count. A model that answers questions needs
    `start_positions` and `end_positions` instead."""


def encode_examples(tokenizer: Tokenizer, examples: Sequence[Example], max_length: int = 128) -> list[Row]:
    """
    ## From texts to ids

    A text becomes `[CLS] A [SEP]`, and a pair becomes `[CLS] A [SEP] B [SEP]`, with at most `max_length`
    tokens, special tokens included. A text that is too long loses its last tokens. In a pair, the longer text
    is shortened first, as in `_truncate_seq_pair` of the original `run_classifier.py`. If a text contains the
    characters `[MASK]`, they are text, not a mask.

    Raises `ValueError` if a text has no tokens, if the tokenizer has no `[CLS]` or `[SEP]`, or if
    `max_length` is below 5. Even a pair of texts with one token each needs 5, because of the special tokens.
    """
    if max_length < 5:
        raise ValueError(f"max_length is {max_length}; two tokens and three special tokens need 5")
    cls_id, sep_id = cls_sep_ids(tokenizer)
    texts = encode_texts(tokenizer, [example.text for example in examples])
    pairs = encode_texts(tokenizer, [example.pair or "" for example in examples])
    rows = []
    for example, a, b in zip(examples, texts, pairs, strict=True):
        if not a or (example.pair is not None and not b):
            text = example.text if not a else example.pair
            raise ValueError(f"the text {text!a:.60} has no tokens; change it, or leave it out")
        if example.pair is None:
            ids = [cls_id, *a[: max_length - 2], sep_id]
            rows.append(Row(ids, [0] * len(ids), {"labels": example.label}))
            continue
        room = max_length - 3
        # This has the same effect as removing the last token of the longer text until the pair fits. A text
        # that needs at most half of the room stays whole, and two longer ones get half each.
        a = a[: max(room - len(b), (room + 1) // 2)]
        b = b[: room - len(a)]
        ids = [cls_id, *a, sep_id, *b, sep_id]
        token_type_ids = [0] * (len(a) + 2) + [1] * (len(b) + 1)
        rows.append(Row(ids, token_type_ids, {"labels": example.label}))
    return rows


def encode_as_saved(
    tokenizer: Tokenizer, texts: Sequence[str], pair: str | None, max_length: int, settings: dict[str, Any]
) -> list[Row]:
    """
    Encodes texts, each followed by `pair` if there is one, as `transformers` does for a saved classifier. The
    tokenizer adds its own special tokens. `settings`, the content of `tokenizer_config.json`, says whether
    the tokens of a second text have type 1, whether a text that is too long loses its start or its end, and
    whether the characters `[MASK]` are text.

    Raises `ValueError` if a text has no tokens.
    """
    is_bert = settings.get("tokenizer_class") in (None, "BertTokenizer", "BertTokenizerFast")
    inputs = settings.get("model_input_names")
    has_types = "token_type_ids" in inputs if isinstance(inputs, list) else is_bert
    # The settings below would change the caller's tokenizer, so work on a copy.
    tokenizer = Tokenizer.from_str(tokenizer.to_str())
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = settings.get("split_special_tokens") is True
    side = "left" if settings.get("truncation_side") == "left" else "right"
    tokenizer.enable_truncation(max_length, direction=side)
    rows = []
    for text in texts:
        encoding = tokenizer.encode(text, pair)
        for number, part in enumerate([text] if pair is None else [text, pair]):
            if number not in encoding.sequence_ids:
                raise ValueError(f"the text {part!a:.60} has no tokens; change it, or leave it out")
        token_type_ids = encoding.type_ids if has_types else [0] * len(encoding.ids)
        rows.append(Row(encoding.ids, token_type_ids, {}))
    return rows


def shuffle_batches(rows: Sequence[Row], batch_size: int, generator: torch.Generator) -> Iterator[list[int]]:
    """
    ## Batches of similar length

    Yields the random batches of one epoch, each a list of row indices. All rows of a batch are padded to the
    length of its longest row, and a padding token takes the model about as much time as a token of text. So
    we draw the rows of eight batches at a time and sort them by length before we split them into batches.
    Sorting all rows at once would save more padding, but nearly the same texts would share a batch in every
    epoch.
    """
    order = torch.randperm(len(rows), generator=generator).tolist()
    batches = []
    for start in range(0, len(order), 8 * batch_size):
        group = sorted(order[start : start + 8 * batch_size], key=lambda i: len(rows[i].input_ids))
        batches += [group[i : i + batch_size] for i in range(0, len(group), batch_size)]
    for i in torch.randperm(len(batches), generator=generator).tolist():
        yield batches[i]


def collate_rows(rows: Sequence[Row], device: torch.device, pad_token_id: int = 0) -> dict[str, Tensor]:
    """
    Returns the model's arguments for `rows`, padded to the longest row, on `device`. Token labels are padded
    with -100, so padding doesn't count in the loss.
    """
    pairs = [SentencePair(row.input_ids, row.token_type_ids, 0) for row in rows]
    batch = collate(pairs, pad_token_id)
    del batch["next_sentence_label"]
    T = batch["input_ids"].size(1)
    for name in rows[0].targets:
        targets = [row.targets[name] for row in rows]
        padded = [x + [IGNORE] * (T - len(x)) if isinstance(x, list) else x for x in targets]
        batch[name] = torch.tensor(padded, dtype=torch.long)
    return {name: tensor.to(device) for name, tensor in batch.items()}


def check_rows(model: BertPreTrainedModel, rows: Sequence[Row]) -> None:
    """Raises `ValueError` if a row has no tokens, too many, other token types, or an id out of range."""
    config = model.config
    sizes = {"input_ids": config.vocab_size, "token_type_ids": config.type_vocab_size}
    for i, row in enumerate(rows):
        T, positions = len(row.input_ids), config.max_position_embeddings
        if positions < T:
            raise ValueError(f"row {i} has {T} tokens; the model has {positions} positions, so shorten it")
        if not T or len(row.token_type_ids) != T:
            types = len(row.token_type_ids)
            raise ValueError(f"row {i} has {T} tokens and {types} token types; use at least one, and as many")
        for name, size in sizes.items():
            if wrong := [number for number in getattr(row, name) if not 0 <= number < size]:
                raise ValueError(f"{name} of row {i} has {wrong[0]}; the model needs numbers below {size}")


def check_targets(model: BertClassifier | BertForQuestionAnswering, rows: Sequence[Row]) -> None:
    """
    Raises `ValueError` if a row has targets for a different head, a label that isn't the number of a class,
    or a position outside the row, or if the head is of another kind. A token's label can also be -100.
    """
    kind, is_tagger = type(model).__name__, isinstance(model, BertForTokenClassification)
    if not isinstance(model, BertClassifier | BertForQuestionAnswering):
        raise ValueError(f"fine_tune can't train a {kind}; write a training loop for it")
    names = ["labels"] if isinstance(model, BertClassifier) else ["start_positions", "end_positions"]
    for i, row in enumerate(rows):
        T = len(row.input_ids)
        if sorted(row.targets) != sorted(names):
            targets = " and ".join(row.targets) or "no targets"
            raise ValueError(f"row {i} has {targets}; a {kind} needs {' and '.join(names)}")
        for name, target in row.targets.items():
            length = len(target) if isinstance(target, list) else None
            if length != (T if is_tagger else None):
                expected = f"a list of {T} numbers, one per token" if is_tagger else "a single number"
                raise ValueError(f"{name} of row {i} must be {expected}, because the model is a {kind}")
            count = len(model.labels) if isinstance(model, BertClassifier) else T
            for number in target if isinstance(target, list) else [target]:
                is_integer = isinstance(number, Integral)  # of Python or of NumPy
                if not (is_integer and 0 <= number < count) and not (is_tagger and number == IGNORE):
                    raise ValueError(f"{name} of row {i} has {number}; use a number from 0 to {count - 1}")


def choose_learning_rate(
    learning_rates: Sequence[float],
    examples: Sequence[Example],
    classes: int,
    train_and_predict: Callable[[float, list[Example], list[Example]], Tensor],
) -> float:
    """
    Returns the learning rate that `choose_hyperparameter` chooses for a classifier with `classes` classes. If
    `train_and_predict` raises `NonFiniteLossError`, the learning rate is too high, and it gets the lowest
    possible score.

    Raises `ValueError` if there are fewer than five examples, or no learning rates.
    """

    def attempt(learning_rate: float, train: list[Example], validation: list[Example]) -> Tensor:
        try:
            return train_and_predict(learning_rate, train, validation)
        except NonFiniteLossError:
            # Each text gets the wrong class, and an infinite loss.
            labels = torch.tensor([example.label for example in validation], dtype=torch.long)  # (N)
            return torch.zeros(len(validation), classes).scatter(1, labels[:, None], -torch.inf)  # (N, K)

    return choose_hyperparameter(learning_rates, examples, attempt)


def fine_tune(
    model: BertClassifier | BertForQuestionAnswering,
    rows: Sequence[Row],
    learning_rate: float,
    epochs: int = 3,
    min_steps: int = 0,
    batch_size: int = 32,
    seed: int = 0,
    precision: Precision = "auto",
    should_stop: Callable[[], bool] = lambda: False,
) -> list[float]:
    """
    ## The recipe

    The paper (appendix A.3) uses Adam for 2 to 4 epochs, with batches of 16 or 32 and a dropout of 0.1. The
    dropout is a setting of the model. In the original code, the learning rate warms up over the first tenth
    of the steps and then decays linearly to zero. We do three things differently:

    - The learning rate has no default. The paper recommends 2e-5 to 5e-5 for BERT base and BERT large.
      Smaller models usually need a higher learning rate: the [compact
      BERTs](https://arxiv.org/abs/1908.08962) were fine-tuned with up to 3e-4. Our models are smaller than
      all of these, and we pretrained most of them at 1e-3 or more. Let `choose_hyperparameter` pick a
      learning rate.
    - Training takes at least `min_steps` steps. With 100 texts in batches of 32, three epochs are only 12
      steps. Training longer makes fine-tuning on few texts [more stable](https://arxiv.org/abs/2006.04884).
    - We use Adam with bias correction, which the original code omits. [Leaving it
      out](https://arxiv.org/abs/2006.05987) is another cause of instability.

    This function trains any head except that of `BertForMultipleChoice`, which needs a loop of its own.
    `encode_examples` makes rows for `BertForSequenceClassification`. For the other heads, make the rows
    yourself. If truncation removes the answer from a row, set the row's start and end positions to 0, as the
    original code does.

    `should_stop` is called up to `epochs` times at equal intervals: after each epoch, unless `min_steps`
    makes the training longer. When it returns true, training ends. You can pass an `EarlyStopping` object.

    Returns the loss of each step, in nats, and leaves the model in eval mode. If `precision` is `auto`, the
    hardware determines the precision.

    Raises `ValueError` if there are no rows, if `epochs` or `batch_size` is below 1, if `learning_rate` is 0
    or less, or if the rows don't fit the head, and `NonFiniteLossError` if the loss or its gradient explodes.
    """
    if not rows or batch_size < 1 or epochs < 1:
        raise ValueError(
            f"{len(rows)} texts, batch_size {batch_size}, epochs {epochs}; each must be at least 1"
        )
    check_rows(model, rows)
    check_targets(model, rows)
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(seed)
    steps = max(epochs * -(-len(rows) // batch_size), min_steps)
    # As in the original code, there is no warm-up if it would be shorter than a step.
    warmup_ratio = 0.1 if steps >= 10 else 0.0
    arguments = TrainingArguments(
        steps=steps, learning_rate=learning_rate, warmup_ratio=warmup_ratio, evaluations=epochs
    )
    # Fine-tuning usually takes only minutes, so it saves no checkpoints.
    trainer = Trainer(model, arguments, generator, device, precision)
    epoch_batches = (shuffle_batches(rows, batch_size, generator) for _ in itertools.count())
    batches = itertools.chain.from_iterable(epoch_batches)
    losses: list[Tensor] = []
    model.train()
    try:
        for step in trainer.steps():
            batch = collate_rows([rows[i] for i in next(batches)], device, model.config.pad_token_id)
            for part in step.micro_batches(batch):
                with step.autocast():
                    output = trainer.parallel(**part)
                step.backward(output.loss)
            step.update()
            losses.append(step.loss)
            if step.evaluation_due and should_stop():
                break
    except NonFiniteLossError:
        raise NonFiniteLossError(
            f"the loss or its gradient exploded at the learning rate {learning_rate:g}; try a lower one"
        ) from None
    model.eval()
    return torch.stack(losses).tolist()


class EarlyStopping:
    """
    ## When to stop

    With more steps, a model gets better at first. Later, it may memorize its few training texts and get worse
    on other texts. So evaluate the model now and then on `rows` that it doesn't train on. Each call of this
    object evaluates the model, keeps a copy of the best weights so far, and returns true after `patience`
    evaluations in a row without an improvement. Call `restore_best` to put the best weights into the model.

    The best evaluation is the one with the highest accuracy or, in a tie, with the lowest loss. The weights
    are chosen on `rows`, so a score on `rows` is too good on average. Measure the final score on other rows.
    """

    def __init__(self, model: BertForSequenceClassification, rows: Sequence[Row], patience: int):
        self.model, self.rows, self.patience = model, rows, patience
        self.labels = torch.tensor([row.targets["labels"] for row in rows], dtype=torch.long)  # (N)
        self.qualities: list[tuple[float, float]] = []
        """The accuracy and the negative loss of each evaluation."""
        self.best = 0
        """The number of the best evaluation, counted from 1. Before the first evaluation, it's 0."""
        self.best_weights: dict[str, Tensor] = {}

    def __call__(self) -> bool:
        """Evaluates the model, keeps its weights if they're the best so far, and returns whether to stop."""
        self.qualities.append(quality(predict(self.model, self.rows), self.labels))
        number = len(self.qualities)
        if self.best == 0 or self.qualities[-1] > self.qualities[self.best - 1]:
            self.best = number
            self.best_weights = {name: w.detach().clone() for name, w in named_weights(self.model).items()}
        return number - self.best >= self.patience

    def restore_best(self) -> tuple[float, float]:
        """
        Copies the best weights back into the model, and returns their accuracy and negative loss.

        Raises `ValueError` before the first evaluation.
        """
        if not self.qualities:
            raise ValueError("the model hasn't been evaluated yet; pass this object to fine_tune first")
        load_named_weights(self.model, self.best_weights)
        return self.qualities[self.best - 1]


@torch.no_grad()
def predict(model: BertForSequenceClassification, rows: Sequence[Row], batch_size: int = 64) -> Tensor:
    """
    Returns the logits of each row, `(N, K)`, on the CPU. Rows of similar length share a batch, so little time
    goes to padding.

    Raises `ValueError` if `batch_size` is below 1, or if the model can't read a row.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}; it must be at least 1")
    check_rows(model, rows)
    was_training = {module: module.training for module in model.modules()}
    model.eval()
    device = next(model.parameters()).device
    logits = torch.zeros(len(rows), len(model.labels), dtype=torch.float32)  # (N, K)
    order = sorted(range(len(rows)), key=lambda i: len(rows[i].input_ids))
    for start in range(0, len(order), batch_size):
        indices = order[start : start + batch_size]
        # A prediction doesn't need targets, so a row may have none.
        inputs = [rows[i]._replace(targets={}) for i in indices]
        batch = collate_rows(inputs, device, model.config.pad_token_id)
        logits[indices] = model(**batch).logits.cpu()
    for module, mode in was_training.items():
        module.training = mode
    return logits  # (N, K)
