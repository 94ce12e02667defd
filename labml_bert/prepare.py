r"""
# Tokenize a large text once

Is your text larger than memory, or does reading it take minutes each time? Then tokenize it once, and train
on the token ids:

    python -m labml_bert.prepare my_texts more.txt.gz --output tokens
    python experiments/own_language.py --corpus tokens

The first command trains a subword vocabulary on a sample of the text, and then writes the token ids of the
whole text to the folder `tokens`. If you stop it, run the same command again, and it picks up where it left
off. To prepare text for continued pretraining of a model, use the model's tokenizer:

    python -m labml_bert.prepare my_texts --tokenizer MODEL --output tokens
    python experiments/continue_pretraining.py --from MODEL --corpus tokens

[`token_files.py`](data/token_files.md) describes the folder.
"""

if __name__ == "__main__":
    from labml_bert.run import preflight  # noqa: F401

import argparse
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path

from tokenizers import Tokenizer

from labml_bert.checks import LARGEST_VALUES
from labml_bert.checksums import file_sha256, file_state, is_list_of_blocks
from labml_bert.data.corpora import BLOCKS, NAMES
from labml_bert.data.text_files import (
    Chunk,
    check_not_among,
    explain_unreadable,
    find_files,
    read_files,
    sample_text,
)
from labml_bert.data.token_files import (
    HELD_OUT_SIZE,
    Block,
    read_progress,
    read_token_files,
    read_tokenizer,
    write_token_files,
)
from labml_bert.data.tokenizers import adds_cls_sep, load_tokenizer, unknown_fraction, wordpiece_tokenizer
from labml_bert.files import check_utf8
from labml_bert.model_folder import read_json
from labml_bert.run.terminal import command, describe_unknown, exit_on_bad_input, header
from labml_bert.stdout import OneLineParser, console, display_path
from labml_bert.training.checkpoint import CHECKPOINT

VOCAB_SIZE = 30_000
# At most about this fraction of the text is held out.
MAX_HELD_OUT = 0.1


def choose_tokenizer(options: argparse.Namespace, files: list[Path]) -> Tokenizer:
    """
    Returns the tokenizer in `--tokenizer` if you set this option. Otherwise, if an earlier run has written
    tokens to the output folder, returns the tokenizer in that folder. Otherwise, trains a tokenizer on a
    sample of the files.

    Raises `ValueError` if `--tokenizer` or the output folder has no valid tokenizer, if the sample has no
    text, or if `--vocab-size` is too small for it.
    """
    progress = read_progress(options.output)
    if options.tokenizer is not None:
        folder: Path = options.tokenizer
        tokenizer = load_tokenizer(folder if folder.is_file() else folder / "tokenizer.json")
        adds_cls_sep(tokenizer)  # If it adds anything else, no script could train on the tokens.
        return tokenizer
    # If an earlier run wrote no tokens, its tokenizer may be for a different text.
    if progress is not None and (progress.blocks or progress.is_finished):
        return read_tokenizer(options.output, progress)
    with console.status("training the vocabulary"):
        return wordpiece_tokenizer(sample_text(files), options.vocab_size, lowercase=options.lowercase)


def read_sha256(path: Path) -> str:
    """The sha256 of a file. Raises `ValueError` if it can't be read."""
    with explain_unreadable(path):
        return file_sha256(path)


def read_unchanged(states: dict[Path, object], position: tuple[int, int] = (0, 0)) -> Iterator[Chunk]:
    """
    Yields the text of the files in `states` from `position` on, but no chunk of a file whose `file_state` has
    changed. Otherwise, if you stopped this run and restored the file, the next run would accept the file, and
    keep the ids of the changed text.

    Raises `ValueError` if a file has changed or can't be read.
    """
    files, number = [*states], position[0]
    for chunk in read_files(files, position):
        file, number = files[number], chunk.next[0]
        if file_state(file) != states[file]:
            raise ValueError(f"{file} has changed while it was read; run this again with another --output")
        yield chunk


def report_progress(files: list[Path]) -> Callable[[Block], None]:
    """Returns a callback that prints, at most every ten seconds, how much has been tokenized and how fast."""
    sizes = [file.stat().st_size for file in files]
    start = last = time.monotonic()
    characters = 0

    def report(block: Block) -> None:
        nonlocal last, characters
        characters += block.train_characters + block.valid_characters
        if time.monotonic() - last >= 10:
            last = time.monotonic()
            number, offset = block.next
            # For a compressed file, the offset counts decompressed bytes, so it can exceed the file's size.
            part = sum(sizes[:number]) + min(offset, sizes[number] if number < len(sizes) else 0)
            read, speed = characters / 1e6, characters / 1e6 / (last - start)
            console.print(
                f"  {part / sum(sizes):4.0%}  {read:,.0f} million characters, {speed:.1f} million per second"
            )

    return report


def main(argv: list[str] | None = None) -> None:
    """Reads the command line and tokenizes the text."""
    parser = OneLineParser(
        prog="python -m labml_bert.prepare", description="Tokenize a large text once, for many training runs."
    )
    parser.add_argument(
        "text", nargs="+", type=Path, help="a UTF-8 file (.gz, .bz2 and .xz too), or a folder"
    )
    parser.add_argument("--output", type=Path, required=True, help="folder for the token ids")
    parser.add_argument(
        "--tokenizer", metavar="FOLDER", type=Path, help="use this model's tokenizer (default: train one)"
    )
    parser.add_argument("--vocab-size", type=int, help=f"(default: {VOCAB_SIZE:,})")
    parser.add_argument("--lowercase", action="store_true", help="lower-case the text and strip accents")
    options = parser.parse_args(argv)
    with exit_on_bad_input():
        if options.tokenizer and (options.vocab_size is not None or options.lowercase):
            raise ValueError("--tokenizer has its vocabulary already; leave out --vocab-size and --lowercase")
        if options.vocab_size is None:
            options.vocab_size = VOCAB_SIZE
        if options.vocab_size > (most := LARGEST_VALUES["vocab_size"]):
            raise ValueError(f"--vocab-size is {options.vocab_size}; it must be at most {most:,}")
        check_utf8(options.output.absolute())
        for path in options.text:
            if is_list_of_blocks(path / BLOCKS):
                raise ValueError(f"{path} has text that is tokenized already; name the text itself")
            check_not_among(path, options.output, "--output")
        files = find_files(options.text)
        if not is_list_of_blocks(options.output / BLOCKS):
            # Fixing an unreadable file changes the text and makes all ids written so far useless, so read all
            # files before writing the first ids.
            with console.status("checking the text"):
                for _ in read_files(files):
                    pass
        tokenizer = choose_tokenizer(options, files)
        states: dict[Path, object] = {file: file_state(file) for file in files}
        hashes = {file: read_sha256(file) for file in files}
        total = sum(file.stat().st_size for file in files)
        held_out = min(MAX_HELD_OUT, HELD_OUT_SIZE / max(total, 1))
        progress = read_progress(options.output)
        typed = [[str(file), sha256] for file, sha256 in hashes.items()]
        settings = {
            "files": [[os.path.abspath(file), sha256] for file, sha256 in hashes.items()],
            "held_out": held_out,
            # `--vocab-size` and `--lowercase` matter only without `--tokenizer`.
            "vocabulary": None if options.tokenizer else [options.vocab_size, options.lowercase],
        }
        # Earlier versions listed relative paths.
        if progress and progress.settings.get("files") == typed:
            settings["files"] = typed
        details = {
            "text": f"{len(files):,} file{'s' * (len(files) > 1)}, {total / 1e6:,.1f} MB",
            "vocabulary": f"{tokenizer.get_vocab_size():,} tokens",
            "held out": f"about {held_out * 100:.2g}% of the text",
            "output": display_path(options.output),
        }
        header("prepare: tokenize a large text once", details)
        try:
            with console.status("tokenizing"):
                write_token_files(
                    options.output,
                    tokenizer,
                    partial(read_unchanged, states),
                    settings,
                    report_progress(files),
                )
        except KeyboardInterrupt:
            console.print("\nstopped; run the same command to continue")
            raise
        progress = read_progress(options.output)
        if progress is None:
            raise ValueError(f"{options.output} was deleted meanwhile; run the same command again")
        train, valid = (sum(tokens) for tokens in zip(*(block[:2] for block in progress.blocks), strict=True))
        unknown = ""
        if min(train, valid):
            # This also checks that all files are still there, and as they were written.
            valid_ids = read_token_files(options.output).valid_ids
            # The text itself isn't in the output folder, so look at the beginning of the files.
            start = (chunk.text for chunk in islice(read_files(files), 10))
            unknown = describe_unknown(unknown_fraction(tokenizer, valid_ids, start))
    console.print(f"  {train:,} training tokens, {valid:,} held out\n")
    if unknown:
        console.print(f"  {unknown}\n")
    if min(train, valid) == 0:
        console.print("  The text is too short for these files. Train on the text itself.\n")
        return
    console.print("  Train on them:\n")
    path = display_path(options.output)
    # If the folder has the name of a built-in text, `--corpus` would choose that text.
    path = f"./{path}" if path in NAMES else path
    words = ["-m", "experiments.own_language"]
    if options.tokenizer is not None and has_masked_lm(options.tokenizer):
        words = ["-m", "experiments.continue_pretraining", "--from", display_path(options.tokenizer)]
    example = command(*words, "--corpus", path)
    console.print(f"  {example}\n")


def has_masked_lm(folder: Path) -> bool:
    """Whether the folder is a run, or has a model that predicts masked tokens. A classifier does not."""
    if (folder / CHECKPOINT).is_file():
        return True
    try:
        (kind,) = read_json(folder).get("architectures", [""])
    except (ValueError, TypeError):
        return False
    is_masked_lm = kind in ("BertForMaskedLM", "BertForPreTraining", "ModernBertForMaskedLM")
    return is_masked_lm and (folder / "model.safetensors").is_file()


if __name__ == "__main__":
    main()
