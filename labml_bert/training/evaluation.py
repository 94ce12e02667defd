"""
# Evaluation

How good is the model on text that it never trained on? Both functions in this file run the model in eval mode
on held-out text. The masks of this text never change, so you can compare evaluations of the same text. We
average over masked tokens, not over batches, because batches can have different numbers of masked tokens."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from labml_bert.mlm import IGNORE, MaskedLMOutput, MaskedTokens, masked_accuracy
from labml_bert.models import PreTrainingOutput
from labml_bert.training.trainer import Trainer


@torch.no_grad()
def evaluate_masked_lm(
    trainer: Trainer, held_out: MaskedTokens, tokens: int | None = None
) -> dict[str, float]:
    """
    ## A masked language model

    Returns the `loss`, in nats per masked token, and the `accuracy`. `held_out` contains `N` windows of `T`
    tokens. Evaluates all of them, or with `tokens`, the first `tokens // T`. If these windows have no labels,
    continues to the first window that has some. Puts the model back in train mode."""
    model, device = trainer.model, trainer.device
    model.eval()
    loss = correct = count = 0.0
    N, T = held_out.input_ids.shape
    windows = N if tokens is None else min(N, max(1, tokens // T))
    # We never mask `[UNK]`, so a window that consists only of `[UNK]` has no labels.
    windows = max(windows, int((held_out.labels != IGNORE).any(1).byte().argmax()) + 1)
    rows = max(1, 8192 // T)
    for start in range(0, windows, rows):
        end = min(start + rows, windows)
        input_ids, labels = (part[start:end].to(device) for part in held_out)
        with trainer.autocast():
            output: MaskedLMOutput = model(input_ids, labels)
        assert output.loss is not None and output.labels is not None
        number = len(output.labels)
        loss += output.loss.item() * number
        correct += masked_accuracy(output.logits, output.labels).item() * number
        count += number
    model.train()
    return {"loss": loss / max(count, 1), "accuracy": correct / max(count, 1)}


@torch.no_grad()
def evaluate_pretraining(
    trainer: Trainer, held_out: Sequence[dict[str, Tensor]], batches: int | None = None
) -> dict[str, float]:
    """
    ## Both tasks of BERT

    Returns the `loss` and `accuracy` on masked tokens, which you can compare with the baselines. For the
    sentence pairs, returns their number, the loss, the accuracy, the accuracy of always choosing the majority
    class (`next_sentence_chance`), and the standard error that an accuracy at that level has with this number
    of pairs. Evaluates all batches, or only the first `batches`. If these batches have no labels, continues
    to the first batch that has some. Puts the model back in train mode."""
    model = trainer.model
    model.eval()
    loss = correct = count = pairs = pairs_correct = random = pair_loss = 0.0
    first = next((i for i, batch in enumerate(held_out) if (batch["labels"] != IGNORE).any()), 0)
    for batch in held_out[: None if batches is None else max(batches, first + 1)]:
        batch = {key: value.to(trainer.device) for key, value in batch.items()}
        with trainer.autocast():
            output: PreTrainingOutput = model(**batch)
        assert output.masked_lm_loss is not None and output.labels is not None
        assert output.next_sentence_loss is not None
        is_random = batch["next_sentence_label"]
        number, rows = len(output.labels), int((is_random != IGNORE).sum())
        loss += output.masked_lm_loss.item() * number
        correct += masked_accuracy(output.prediction_logits, output.labels).item() * number
        count += number
        pairs_correct += (output.seq_relationship_logits.argmax(-1) == is_random).sum().item()
        random += (is_random == 1).sum().item()
        pair_loss += output.next_sentence_loss.item() * rows
        pairs += rows
    model.train()
    divisor = max(pairs, 1)
    chance = max(random, divisor - random) / divisor
    return {
        "loss": loss / max(count, 1),
        "accuracy": correct / max(count, 1),
        "next_sentence_loss": pair_loss / divisor,
        "next_sentence_accuracy": pairs_correct / divisor,
        "next_sentence_chance": chance,
        "next_sentence_standard_error": math.sqrt(chance * (1 - chance) / divisor),
        "pairs": pairs,
    }
