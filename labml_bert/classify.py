r"""
# A classifier from your own labels

How good a classifier do you get from a few hundred labeled texts? Put them into a CSV or JSONL file with
`text` and `label` in each row, fine-tune a pretrained encoder on this file, and use the classifier:

    python -m labml_bert.classify train labels.csv --from logs/bert_tiny/20261122-133823 --output classifier
    python -m labml_bert.classify predict classifier "Send the mail again."

From a fresh clone, `make classifier` does everything: it installs the packages, pretrains an encoder if there
is none yet, and trains the classifier.

`train` compares the classifier with simple baselines on held-out rows. It saves the classifier in a folder
that `transformers` can load too:

    from transformers import pipeline

    classify = pipeline("text-classification", "classifier")
    classify("Send the mail again.", truncation=True)

Letters for sizes: `N` texts, `K` classes.
"""

if __name__ == "__main__":
    from labml_bert.run import preflight  # noqa: F401

import argparse
import contextlib
import copy
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from tokenizers import Tokenizer

from labml_bert.bert import BertConfig
from labml_bert.checks import check_config
from labml_bert.checksums import SUMS, reading
from labml_bert.classification_report import measure_scores, print_report
from labml_bert.data.tokenizers import (
    TOKENIZER_FILES,
    add_cls_sep,
    count_unknown,
    load_tokenizer,
    read_settings,
    save_tokenizer,
)
from labml_bert.export import prepare_folder
from labml_bert.files import check_utf8, is_empty_file, is_leftover, lock_output, read_lines
from labml_bert.fill_mask import check_text, newest_run
from labml_bert.finetuning import EarlyStopping, Row, encode_as_saved, encode_examples, fine_tune, predict
from labml_bert.heads import NEW_PARAMETERS, BertForSequenceClassification
from labml_bert.labeled_file import SHORT_LIST, LabeledTexts, fold, quote_label, read_labeled_texts, some
from labml_bert.labeled_text import split_by_label
from labml_bert.model_card import describe_pretraining, write_classifier_card
from labml_bert.model_folder import (
    MODEL_FILES,
    check_sizes,
    check_tensors,
    load_weights,
    read_config,
    read_json,
    read_tensors,
)
from labml_bert.run.terminal import (
    command,
    exit_on_bad_input,
    header,
    print_caveats,
    read_standard_input,
)
from labml_bert.stdout import OneLineParser, as_operand, console, display_path, printable
from labml_bert.training.checkpoint import CHECKPOINT, load_checkpoint, with_prefix
from labml_bert.training.device import choose_device
from labml_bert.training.trainer import NonFiniteLossError

# About this fraction of all rows becomes the test set, and of the remaining rows the validation set.
HELD_OUT = 0.2
# The paper recommends `PAPER_LEARNING_RATES` for its models, which have 110 and 340 million parameters. For
# models with fewer than `SMALL` parameters, we try `SMALL_LEARNING_RATES`.
PAPER_LEARNING_RATES: tuple[float, ...] = (2e-5, 3e-5, 5e-5)
SMALL_LEARNING_RATES = (1e-4, 3e-4, 1e-3)
SMALL = 30_000_000
# Training stops after this many evaluations in a row without an improvement.
PATIENCE = 3
# By default, training lasts at most ten epochs or `MIN_STEPS` steps, whichever is longer. With 100 training
# texts in batches of 32, ten epochs are only 40 steps.
EPOCHS, MIN_STEPS = 10, 200
MAX_LENGTH = 128
# In `tokenizer_config.json`, this key says whether the classifier was trained with pairs of texts.
PAIRS = "trained_with_pairs"
# The files of a saved classifier. The card is written last.
FILES = (*TOKENIZER_FILES, "model.safetensors", "config.json", SUMS)
SAVING = ".saving"  # this file exists while the others are written
SAVED_FILES = (*FILES, "README.md", SAVING)


def load_pretrained(folder: Path, labels: list[str]) -> tuple[BertForSequenceClassification, Tokenizer]:
    """
    ## The pretrained encoder

    Returns a classifier whose head has random weights, and its tokenizer. `folder` is the folder of a run, or
    of a model in the format of `transformers`. Dropout is 0.1, as in the paper, even if the model was
    pretrained without dropout. If the folder has a classifier, the head of that classifier isn't used,
    because it may have been trained for other labels.

    Raises `ValueError` if there is no such folder, if it contains no BERT, or if its files are damaged.
    """
    if not folder.is_dir():
        raise ValueError(
            f"there is no folder {folder}; name that of a run, or that of a BERT saved by transformers"
        )
    path = folder / "model.safetensors"
    if (folder / "config.json").is_file() or path.is_file():
        check_architecture(folder, read_json(folder).get("model_type") == "modernbert")
        config, tensors = read_config(folder), read_tensors(folder)
        check_sizes(config, tensors, path)
    else:
        metadata, state = load_checkpoint(folder)
        path, tensors = folder / CHECKPOINT, with_prefix(state, "model.")
        try:
            sizes = metadata["configuration"]["model"]
            check_architecture(folder, "global_rope_theta" in sizes)
            config = BertConfig(**sizes)
        except (KeyError, TypeError):
            raise ValueError(f"{folder} is not a run of a masked language model; use another run") from None
        try:
            check_config(config)
        except ValueError as error:
            raise ValueError(f"{path} does not describe a BERT: {error}") from None
    check_tensors(config, tensors, path)
    tokenizer = load_tokenizer(folder / "tokenizer.json", config.vocab_size)
    # `transformers` relies on the tokenizer to add `[CLS]` and `[SEP]`, but some of ours don't.
    add_cls_sep(tokenizer)
    config = replace(config, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    model = BertForSequenceClassification(config, labels)
    load_weights(model, tensors, path, NEW_PARAMETERS)
    return model, tokenizer


def check_architecture(folder: Path, is_modern: bool) -> None:
    """Raises `ValueError` if `is_modern` is true, because a ModernBERT has no classification head here."""
    if is_modern:
        raise ValueError(
            f"{folder} has a ModernBERT, and only a BERT has a classification head here; use a run of "
            "bert_tiny.py, or the folder of a BERT"
        )


def train_classifier(
    pretrained: BertForSequenceClassification,
    train: Sequence[Row],
    validation: Sequence[Row],
    learning_rates: Sequence[float],
    epochs: int | None = None,
    seed: int = 0,
) -> BertForSequenceClassification:
    """
    ## Several learning rates, with early stopping

    Trains a copy of the model with each learning rate, and prints a line for each. Without `epochs`, the
    limit is ten epochs or `MIN_STEPS` steps, whichever is longer. `EarlyStopping` evaluates the copy on
    `validation` after each epoch or, if the limit is `MIN_STEPS`, at ten equal intervals. Returns the copy
    with the best evaluation, with the weights from that evaluation.

    Raises `NonFiniteLossError` if the loss or its gradient explodes at every learning rate.
    """
    attempts: list[tuple[tuple[float, float], BertForSequenceClassification]] = []
    for learning_rate in learning_rates:
        model = copy.deepcopy(pretrained)
        stopping = EarlyStopping(model, validation, PATIENCE)
        torch.manual_seed(seed)
        try:
            with console.status(f"learning rate {learning_rate:g}"):
                steps = MIN_STEPS if epochs is None else 0
                fine_tune(
                    model, train, learning_rate, epochs or EPOCHS, steps, seed=seed, should_stop=stopping
                )
        except NonFiniteLossError as error:
            if not attempts and learning_rate == learning_rates[-1]:
                raise
            console.print(f"  {error}")
            continue
        attempts.append((stopping.restore_best(), model))
        console.print(
            f"  learning rate {learning_rate:g}: validation accuracy {attempts[-1][0][0]:.1%}, "
            f"at evaluation {stopping.best} of {len(stopping.qualities)}"
        )
    return max(attempts, key=lambda attempt: attempt[0])[1]


def check_numbers(options: argparse.Namespace) -> None:
    """Raises `ValueError` if `--epochs`, `--seed` or `--learning-rate` is out of range."""
    for name, least, most in (("epochs", 1, 10_000), ("seed", 0, 2**63 - 1), ("learning_rate", 1e-9, 1.0)):
        value = getattr(options, name)
        if value is not None and not least <= value <= most:
            raise ValueError(f"--{name.replace('_', '-')} is {value}; it must be from {least:g} to {most:g}")


def describe_texts(path: Path, texts: LabeledTexts) -> dict[str, str]:
    """Returns the lines that describe the file in the terminal and on the model card, by name."""
    repeats = f" (repeats left out: {texts.repeats:,})" if texts.repeats else ""
    return {
        "file": display_path(path),
        "rows": f"{len(texts.examples):,} with {len(texts.labels)} labels{repeats}",
        **({"warning": texts.conflict_warning} if texts.conflicts else {}),
    }


def check_command(options: argparse.Namespace) -> None:
    """Prints what a file of labels contains. Raises `ValueError` if `train` would refuse the file."""
    texts = read_labeled_texts(options.file)
    counts = Counter(example.label for example in texts.examples).most_common()
    names = some(
        [f"{quote_label(texts.labels[label])} ({count:,})" for label, count in counts], longest=SHORT_LIST
    )
    header("classify: this file is fine", {**describe_texts(options.file, texts), "labels": names})


def check_output(folder: Path) -> None:
    """
    Raises `ValueError` unless `folder` doesn't exist yet, is empty, or has only files that a killed `train`
    has left: its lock, temporary files, and a classifier that was only partly saved. A link isn't accepted.
    """
    check_utf8(folder)
    paths = folder.iterdir() if folder.is_dir() else ()
    files = {path.name for path in paths if not is_leftover(path.name)}
    are_remains = not files or (is_empty_file(folder / SAVING) and files <= {SAVING, *FILES})
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()) or not are_remains:
        raise ValueError(
            f"{folder} exists and is not an empty folder; choose another with --output, or with make: "
            'ARGS="--output another"'
        )


@contextlib.contextmanager
def output_folder(folder: Path) -> Iterator[None]:
    """
    Creates and locks the folder, and deletes what a killed `train` has left in it.

    Raises `ValueError` if the folder can't be created, or if another program has locked it or written to it.
    """
    with lock_output(prepare_folder(folder)):
        check_output(folder)
        delete_saved_files(folder)
        yield


@contextlib.contextmanager
def saving(folder: Path) -> Iterator[None]:
    """If the block fails to save the classifier, deletes its files. After a kill, the file `SAVING` stays."""
    # Another program may have written files meanwhile.
    if folder.is_symlink() or any(os.path.lexists(folder / name) for name in SAVED_FILES):
        check_output(folder)
    (folder / SAVING).touch()
    try:
        yield
    except BaseException:
        delete_saved_files(folder)
        raise
    with contextlib.suppress(OSError):
        (folder / SAVING).unlink()


def delete_saved_files(folder: Path) -> None:
    """Deletes those files of a classifier that are in `folder`."""
    for name in SAVED_FILES:
        (folder / name).unlink(missing_ok=True)


def train_command(options: argparse.Namespace) -> None:
    """
    ## Training

    Splits the rows, trains and saves the classifier, and prints its scores on the test rows. Writes nothing
    until the rows and the arguments have passed their checks. With `--check-only`, stops after these checks.
    A check without `--from` leaves out the model and `--max-length`.

    Raises `ValueError` if an argument or a row is invalid.
    """
    output: Path = options.output
    check_output(output)
    check_numbers(options)
    device = choose_device(options.device)
    texts = read_labeled_texts(options.file)
    if options.check_only and options.source is None:
        return
    folder = options.source or newest_run(Path("logs"))
    # The seed determines the head's initial weights.
    torch.manual_seed(options.seed)
    with reading(folder, *MODEL_FILES) as path:
        model, tokenizer = load_pretrained(path, texts.labels)
    positions = model.config.max_position_embeddings
    max_length = min(MAX_LENGTH, positions) if options.max_length is None else options.max_length
    if not 5 <= max_length <= positions:
        raise ValueError(f"--max-length is {max_length}; for this model, it must be from 5 to {positions}")
    if texts.has_pairs and model.config.type_vocab_size < 2:
        raise ValueError(f"the model in {folder} has one token type, so it can't read pairs; use another")
    rest, test = split_by_label(texts.examples, HELD_OUT, options.seed)
    parts = (*split_by_label(rest, HELD_OUT, options.seed), test)
    try:
        rows = [encode_examples(tokenizer, part, max_length) for part in parts]
    except ValueError as error:
        raise ValueError(f"{options.file}: {error}") from None
    if options.check_only:
        return
    is_small = sum(p.numel() for p in model.parameters()) < SMALL
    learning_rates = SMALL_LEARNING_RATES if is_small else PAPER_LEARNING_RATES
    if options.learning_rate is not None:
        learning_rates = (options.learning_rate,)
    full = sum(len(row.input_ids) == max_length for part in rows for row in part)
    longer = f"{full:,} of the texts fill that, or lose their end" if full else "no text is longer"
    details = {
        **describe_texts(options.file, texts),
        "parts": "{:,} to train, {:,} for validation, {:,} to test".format(*map(len, parts)),
        "length": f"at most {max_length} tokens; {longer}",
        "model": display_path(folder),
        **describe_pretraining(folder),
    }
    with output_folder(output):
        header("classify: a classifier from your own labels", details)
        model = model.to(device)
        training, validation, held_out = rows
        model = train_classifier(model, training, validation, learning_rates, options.epochs, options.seed)
        # With a character or word tokenizer, `transformers` omits the token types of a pair unless they're in
        # `model_input_names`.
        inputs = ["input_ids", "token_type_ids", "attention_mask"]
        settings = {
            "model_max_length": max_length,
            "model_input_names": inputs,
            # The words `[MASK]` in a text of yours are words, as in the training.
            "split_special_tokens": True,
            PAIRS: texts.has_pairs,
        }
        predictions = predict(model, held_out)
        scores = measure_scores(predictions, texts.labels, rest, test)
        file = as_operand(str(options.file))
        script = ["python", "-m", "labml_bert.classify", "train", file, "--output", "NEW_FOLDER"]
        for name in ("learning_rate", "epochs", "max_length", "seed"):
            if (value := getattr(options, name)) is not None:
                script += [f"--{name.replace('_', '-')}", str(value)]
        script += ["--from", as_operand(str(folder))]
        facts = {**details, "file": options.file.name, "model": str(folder)}
        with saving(output):
            save_tokenizer(tokenizer, output, **settings)
            model.save_pretrained(output)
            write_classifier_card(output, script, facts, texts.labels, texts.has_pairs, scores)
    print_report(scores, predictions, texts.labels, test)
    pair = ["--pair", "second text"] if texts.has_pairs else []
    again = command("-m", "labml_bert.classify", "predict", display_path(output), "your text", *pair)
    console.print(f"\n  saved in {display_path(output)}; try it:\n  {again}\n")


def read_max_length(settings: dict[str, Any], positions: int) -> int:
    """The maximum length in training, at least 5 and at most `positions`, which is the default."""
    try:
        return min(max(5, int(settings["model_max_length"])), positions)
    except (ValueError, KeyError, TypeError, OverflowError):
        return positions


def predict_command(options: argparse.Namespace) -> None:
    """
    ## Predicting

    Prints the most probable label, with its probability, for each text in the arguments. Without texts in the
    arguments, each line of standard input is a text. A blank line is an error: if we skipped it, the rows
    of the printed table wouldn't match the lines of the input.

    Raises `ValueError` if the folder has no classifier, if a text is empty or not UTF-8, or if a classifier
    trained with single texts gets a pair or one trained with pairs gets a single text.
    """
    with reading(options.model, *MODEL_FILES, "tokenizer_config.json") as path:
        model = BertForSequenceClassification.from_pretrained(path)
        tokenizer = load_tokenizer(path / "tokenizer.json", model.config.vocab_size)
        settings = read_settings(path)
    has_pair = options.pair is not None
    if settings.get(PAIRS, has_pair) is not has_pair:
        remedy = "leave out --pair" if has_pair else "add the second text with --pair"
        kind = "single texts" if has_pair else "pairs of texts"
        raise ValueError(f"the classifier in {options.model} was trained with {kind}; {remedy}")
    texts = options.texts or read_lines(read_standard_input())
    kind = "text" if options.texts else "line"
    for number, text in enumerate([*texts, *([options.pair] if options.pair is not None else [])], 1):
        name = f"{kind} {number:,}" if number <= len(texts) else "--pair"
        check_text(text, name)
        if not fold(text):
            raise ValueError(f"{name} is empty; write some text" + ", or leave it out" * (name != "--pair"))
    max_length = read_max_length(settings, model.config.max_position_embeddings)
    rows = encode_as_saved(tokenizer, texts, options.pair, max_length, settings)
    if model.config.type_vocab_size < 2 and any(1 in row.token_type_ids for row in rows):
        raise ValueError(f"the model in {options.model} has one token type; leave out --pair, or use another")
    probabilities = predict(model, rows).softmax(-1)  # (N, K)
    table = Table(box=None, padding=(0, 2), header_style="dim")
    table.add_column("label", overflow="fold", max_width=30)
    table.add_column("probability", justify="right", no_wrap=True)
    table.add_column("text", overflow="fold")
    for text, row in zip(texts, probabilities, strict=True):
        best = int(row.argmax())
        table.add_row(printable(model.labels[best]), f"{row[best]:.1%}", printable(text))
    console.print()
    console.print(table, soft_wrap=False)
    console.print()
    full = sum(len(row.input_ids) == max_length for row in rows)
    unknown = sum(count_unknown(tokenizer, row.input_ids) for row in rows)
    print_caveats(unknown, full, f"that fill the model's {max_length} tokens or lose their end")


def main(argv: list[str] | None = None) -> None:
    """Reads the command line, and trains a classifier, uses one, or checks a file of labels."""
    description = "Fine-tune a pretrained encoder on your own labels, and predict labels."
    parser = OneLineParser(prog="python -m labml_bert.classify", description=description)
    commands = parser.add_subparsers(dest="command", required=True, metavar="train|predict|check")
    train = commands.add_parser("train", help="train a classifier and save it")
    train.set_defaults(run=train_command)
    train.add_argument("file", type=Path, help="CSV or JSONL with text, label and perhaps pair")
    train.add_argument("--output", type=Path, required=True, help="new folder for the classifier")
    source = "folder of a run or of a BERT (default: newest trained run)"
    train.add_argument("--from", dest="source", metavar="FOLDER", type=Path, help=source)
    train.add_argument("--learning-rate", type=float, help="(default: the best of three)")
    epochs = f"maximum number of epochs (default: {EPOCHS}, or {MIN_STEPS} steps, whichever is longer)"
    train.add_argument("--epochs", type=int, help=epochs)
    train.add_argument("--max-length", type=int, help="tokens per text or pair (default: 128 or fewer)")
    train.add_argument("--seed", type=int, default=0, help="seed of the split and the training (default: 0)")
    train.add_argument("--device", default="auto", help="cpu, cuda or auto (default: auto)")
    check_only = "check the file and the arguments, and with --from the model; don't train"
    train.add_argument("--check-only", action="store_true", help=check_only)
    use = commands.add_parser("predict", help="predict the labels of texts")
    use.set_defaults(run=predict_command)
    use.add_argument("model", type=Path, help="folder of a classifier")
    texts = "a text (default: lines of standard input)"
    use.add_argument("texts", nargs="*", metavar="text", default=[], help=texts)
    use.add_argument("--pair", help="second text, if the classifier was trained with pairs")
    check = commands.add_parser("check", help="check a file of labels without training")
    check.set_defaults(run=check_command)
    check.add_argument("file", type=Path, help="CSV or JSONL with text, label and perhaps pair")
    options = parser.parse_args(argv)
    with exit_on_bad_input():
        options.run(options)


if __name__ == "__main__":
    main()
