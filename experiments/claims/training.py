r"""
# One run of a claim

How is one variant of a claim trained? As in the other experiments, but the loop records what claims are
about: the held-out loss at evenly spaced steps, forty by default, and the step at which each sequence length
starts.

    run = prepare("masked", {"tokens": 409_600, "schedule": "16"}, seed=0, device=torch.device("cpu"))
    results = train(run)

The budget of a run is a number of tokens, not of minutes. So the result doesn't depend on how busy the
machine is.
"""

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from experiments.claims.heads import neighbor_attention, order_gain
from experiments.claims.options import OptionValues, PairOptions, WindowOptions, read_options
from experiments.claims.variants import (
    GROWTHS,
    UntiedMaskedLM,
    build_masked_lm,
    next_token_batch,
    next_token_labels,
    sequence_length,
)
from labml_bert.data.corpora import Corpus, load_corpus
from labml_bert.data.curriculum import Stage, parse_schedule
from labml_bert.data.held_out import HELD_OUT_MLM_PROBABILITY, held_out_generator
from labml_bert.data.masked_text import MaskedText
from labml_bert.data.paired_text import PairedText
from labml_bert.data.tokenizers import character_tokenizer, word_tokenizer, wordpiece_tokenizer
from labml_bert.mlm import MaskedTokens
from labml_bert.models import BertForMaskedLM, BertForPreTraining
from labml_bert.training.evaluation import evaluate_masked_lm, evaluate_pretraining
from labml_bert.training.trainer import NonFiniteLossError, Step, Trainer

# By default, a run is evaluated this many times after its start, at regular intervals.
EVALUATIONS = 40
# The losses of the curve use only about this much of the held-out text. The final loss uses all of it.
QUICK_TOKENS = 16_384
QUICK_BATCHES = 4
# A run has failed if its final loss isn't at least this much below the unigram baseline, in nats.
LEAST_GAIN = 0.1


@dataclass
class Run:
    """The parts of one run. For left-to-right models, `held_out` is unmasked, with next tokens as labels."""

    options: WindowOptions | PairOptions
    text: MaskedText | PairedText
    held_out: MaskedTokens | list[dict[str, Tensor]]
    stages: list[Stage]
    model: BertForMaskedLM | UntiedMaskedLM | BertForPreTraining
    trainer: Trainer


def prepare(kind: str, values: OptionValues, seed: int, device: torch.device) -> Run:
    """
    ## The parts of a run

    Prepares a run. `kind` is `masked` (windows of a text) or `pairs`. `values` are options from `claims.toml`
    or from a record.

    Raises `ValueError` if an option is unknown or out of range, or if the text is too short.
    """
    options = read_options(kind, values)
    arguments = options.training_arguments()
    stages = parse_schedule(options.schedule)
    corpus = load_corpus(options.corpus)
    torch.manual_seed(seed)
    # This generator draws windows, pairs and masks.
    generator = torch.Generator().manual_seed(seed)
    text: MaskedText | PairedText
    held_out: MaskedTokens | list[dict[str, Tensor]]
    model: BertForMaskedLM | UntiedMaskedLM | BertForPreTraining
    if isinstance(options, WindowOptions):
        text = read_windows(options, corpus, stages[-1].length, generator)
        held_out = text.held_out
        if options.causal:
            held_out = next_token_labels(
                text.windows, text.special_ids, HELD_OUT_MLM_PROBABILITY, held_out_generator()
            )
        model = build_masked_lm(
            options, options.model_config(text.vocab_size, options.max_position_embeddings)
        )
    else:
        text = read_pairs(options, corpus, [stage.length for stage in stages], generator)
        held_out = text.held_out
        model = BertForPreTraining(options.model_config(text.vocab_size, stages[-1].length))
    # An arm may be meant to go wrong, so a step fails only if its loss or its gradient isn't finite.
    trainer = Trainer(model, arguments, generator, device, options.precision, largest_loss=math.inf)
    return Run(options, text, held_out, stages, model, trainer)


def read_windows(
    options: WindowOptions, corpus: Corpus, longest: int, generator: torch.Generator
) -> MaskedText:
    """Returns the text as windows of up to `longest` tokens."""
    if options.growth not in GROWTHS:
        raise ValueError(f"growth is {options.growth!r}; choose from {', '.join(GROWTHS)}")
    tokenizer: Tokenizer
    if options.tokenizer == "word":
        tokenizer = word_tokenizer(corpus.train, options.vocab_size)
    elif options.tokenizer == "wordpiece":
        tokenizer = wordpiece_tokenizer(corpus.train, options.vocab_size, lowercase=False)
    else:
        tokenizer = character_tokenizer(corpus.train)
    return MaskedText(
        corpus,
        tokenizer,
        longest,
        options.batch_tokens,
        options.max_position_embeddings,
        options.mlm_probability,
        generator,
        with_cls_sep=options.tokenizer == "wordpiece",
    )


def read_pairs(
    options: PairOptions, corpus: Corpus, lengths: list[int], generator: torch.Generator
) -> PairedText:
    """Returns the text as pairs of these lengths. The masking options apply only to the training pairs."""
    tokenizer = wordpiece_tokenizer(corpus.train, options.vocab_size)
    text = PairedText(corpus, tokenizer, lengths, options.batch_tokens, options.masking, generator)
    for batches in text.batches.values():
        masker = batches.collator.masker
        masker.mlm_probability = options.mlm_probability
        masker.mask_replace_prob = options.mask_replace_prob
        masker.random_replace_prob = options.random_replace_prob
    return text


def draw_batch(run: Run, length: int) -> dict[str, Tensor]:
    """Draws a batch of sequences of this length, and returns it as the arguments of the model."""
    options, text = run.options, run.text
    if isinstance(options, PairOptions):
        batch = text.batch(length)
        if not options.next_sentence:
            # Without these labels, the loss is only that of the masked tokens.
            del batch["next_sentence_label"]
        return batch
    assert isinstance(text, MaskedText)
    batch = next_token_batch(text, length, options.mlm_probability) if options.causal else text.batch(length)
    if not options.offsets:
        batch["position_ids"] = batch["position_ids"] - batch["position_ids"][:, :1]  # (B, T)
    return batch


def held_out_loss(run: Run, is_quick: bool = False) -> float:
    """Returns the held-out loss in nats per labeled token. If `is_quick`, uses only the first part."""
    if isinstance(run.held_out, MaskedTokens):
        result = evaluate_masked_lm(run.trainer, run.held_out, QUICK_TOKENS if is_quick else None)
    else:
        result = evaluate_pretraining(run.trainer, run.held_out, QUICK_BATCHES if is_quick else None)
    return result["loss"]


def probe_order(run: Run) -> list[float]:
    """
    Returns the results of `neighbor_attention` and `order_gain` if the option `probe_order` is set, and
    otherwise an empty list.
    """
    if not (isinstance(run.options, WindowOptions) and run.options.probe_order):
        return []
    assert isinstance(run.model, BertForMaskedLM) and isinstance(run.held_out, MaskedTokens)
    attention = neighbor_attention(run.model, run.held_out.input_ids)
    return [round(attention, 4), round(order_gain(run.trainer, run.held_out, QUICK_TOKENS), 4)]


def train(
    run: Run, on_step: Callable[[int, Tensor], None] | None = None, evaluations: int = EVALUATIONS
) -> dict[str, Any]:
    """
    ## The loop

    Returns entries for the run's row in the record. Among them are the held-out loss by step (`curve`), the
    tokens up to each of these steps (`curve_tokens`), the results of `probe_order` (`probes`, if there are
    any), the step at which each length starts (`lengths`), and the final loss and whether the run failed
    (`result`). If a loss or a gradient isn't finite, the run ends at the next evaluation. `on_step` is called
    after each step with its number and its loss, a scalar on the device.
    """
    trainer, options = run.trainer, run.options
    growth = options.growth if isinstance(options, WindowOptions) else "stages"
    steps = trainer.arguments.steps
    assert steps is not None
    evaluation_steps = {round(steps * i / evaluations) for i in range(1, evaluations + 1)}
    curve = [[0, rounded(held_out_loss(run, is_quick=True))]]
    lengths: list[list[int]] = []
    tokens, curve_tokens, probes = 0, [0], [probe_order(run)]
    for step in trainer.steps() if curve[0][1] is not None else ():
        length = sequence_length(growth, run.stages, step.progress)
        if not lengths or lengths[-1][1] != length:
            lengths.append([step.number, length])
        batch_tokens = options.batch_tokens
        if isinstance(options, WindowOptions) and isinstance(run.text, MaskedText):
            batch_tokens = run.text.batch_tokens = options.batch_tokens_at(step.progress)
            run.text.masker.mlm_probability = options.mlm_probability_at(step.progress)
        take_step(run, step, length)
        tokens += batch_tokens
        if on_step is not None:
            on_step(step.number, step.loss)
        if step.number in evaluation_steps:
            # After a failed step, the weights no longer change, so their loss would mean nothing.
            loss = math.nan if trainer.has_failed else held_out_loss(run, is_quick=True)
            curve.append([step.number, rounded(loss)])
            curve_tokens.append(tokens)
            probes.append(probe_order(run))
            if curve[-1][1] is None:
                break
    final_loss = None if trainer.has_failed else rounded(held_out_loss(run))
    unigram = next(baseline.loss for baseline in run.text.baselines if baseline.name == "unigram")
    has_failed = final_loss is None or final_loss > unigram - LEAST_GAIN
    return {
        "curve": curve,
        "curve_tokens": curve_tokens,
        **({"probes": probes} if any(probes) else {}),
        "lengths": lengths,
        "unigram_loss": unigram,
        "batch_tokens": options.batch_tokens,
        "parameters": sum(p.numel() for p in run.model.parameters()),
        "result": {"loss": final_loss, "failed": float(has_failed)},
    }


def take_step(run: Run, step: Step, length: int) -> None:
    """Takes one step on a new batch of sequences of this length."""
    for part in step.micro_batches(draw_batch(run, length)):
        with step.autocast():
            output = run.trainer.parallel(**part)
        step.backward(output.loss)
    # About once a second, the trainer checks for failed steps and raises an error if there was one. A record
    # must not depend on the clock, so a failed run continues until its next evaluation with fixed weights.
    with contextlib.suppress(NonFiniteLossError):
        step.update()


def rounded(value: float) -> float | None:
    """Rounds `value` to six decimals. JSON has no NaN and no infinity, so these become `None`."""
    return round(value, 6) if math.isfinite(value) else None
