"""
# Filling a mask

What does a trained model say to a sentence that it never saw? Write `[MASK]` for each token that it
should guess:

    python -m labml_bert.fill_mask "The function ret[MASK]rns a list."

Each mask is answered by itself, given all the rest. With two masks side by side the model does not
weigh pairs of answers; it gives for each place the chance of every token there.
"""

import argparse
from pathlib import Path
from typing import NamedTuple

import torch
from rich.table import Table
from tokenizers import Tokenizer

from labml_bert.bert import BertConfig, BertModel
from labml_bert.mlm import MaskedLM
from labml_bert.report import bad_input_ends_here, console, printable, shown
from labml_bert.tokenizers import load_tokenizer
from labml_bert.training import CHECKPOINT, load_checkpoint, part_of


class Guess(NamedTuple):
    """One answer for one mask."""

    token: str
    probability: float
    sequence: str
    """The whole text with this answer in its place and every other mask left as it was."""


def build_model(config: BertConfig) -> MaskedLM:
    """A masked language model on our own encoder, without a pooler, which no part of the loss would train."""
    encoder = BertModel(config, add_pooling_layer=False)
    return MaskedLM(encoder, encoder.embeddings.word_embeddings, config.layer_norm_eps)


def load_model(run_path: Path) -> tuple[MaskedLM, Tokenizer]:
    """
    The model and the tokenizer of a run, in eval mode, on the CPU.

    Raises `ValueError` where the folder holds no run, or one that does not fit together.
    """
    about, tensors = load_checkpoint(run_path)
    tokenizer = load_tokenizer(run_path / "tokenizer.json")
    try:
        config = BertConfig(**about["configuration"]["model"])
        model = build_model(config)
        model.load_state_dict(part_of(tensors, "model."))
    except (KeyError, TypeError, RuntimeError):
        raise ValueError(f"{run_path} is not a run of a masked language model; give another run") from None
    if tokenizer.get_vocab_size() != config.vocab_size:
        raise ValueError(
            f"the tokenizer in {run_path} has {tokenizer.get_vocab_size()} tokens, the model "
            f"{config.vocab_size}; they are from two runs"
        )
    return model.eval(), tokenizer


@torch.no_grad()
def fill_mask(model: MaskedLM, tokenizer: Tokenizer, text: str, top_k: int = 5) -> list[list[Guess]]:
    """
    For each `[MASK]` in `text`, in order, the `top_k` most probable tokens, best first. Special tokens
    are no answers; the probabilities are those of the whole vocabulary and need not sum to 1.

    Raises `ValueError` where there is no mask, or more text than the model has positions.
    """
    if top_k < 1:
        raise ValueError(f"top_k is {top_k}; it must be at least 1")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("the text has bytes that are not UTF-8; write it in UTF-8")
    encoding = tokenizer.encode(text, add_special_tokens=False)
    input_ids = torch.tensor([encoding.ids])  # (1, T)
    mask = tokenizer.token_to_id("[MASK]")
    places = [place for place, token in enumerate(encoding.ids) if token == mask]
    if not places:
        raise ValueError("no [MASK] in the text; write [MASK] for each token to guess")
    logits = model(input_ids).logits[0]  # (T, V)
    probabilities = logits.float().softmax(-1)  # (T, V)
    special = [i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special]
    answers = probabilities.clone()  # (T, V)
    answers[:, special] = 0
    guesses: list[list[Guess]] = []
    for place in places:
        guesses.append([])
        # Where in the text this mask stands, so that the answer is shown in the user's own spelling.
        start, end = encoding.offsets[place]
        best = answers[place].topk(min(top_k, answers.size(-1) - len(special)))
        for i, probability in zip(best.indices.tolist(), best.values.tolist(), strict=True):
            token = tokenizer.id_to_token(i) or "?"
            guesses[-1].append(Guess(token, probability, text[:start] + token + text[end:]))
    return guesses


def newest_run(runs: Path) -> Path:
    """
    The folder of the run under `runs` that was saved last.

    Raises `ValueError` where there is none.
    """
    found = sorted(runs.glob(f"*/*/{CHECKPOINT}"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise ValueError(f"no run under {runs}; train one with: make train")
    return found[-1].parent


def main(argv: list[str] | None = None) -> None:
    """Reads the command line and prints a table for each mask."""
    parser = argparse.ArgumentParser(
        prog="python -m labml_bert.fill_mask", description="Guess the [MASK]s in a text."
    )
    parser.add_argument("text", help="text with one [MASK] or more")
    parser.add_argument("--run", type=Path, help="folder of a run (default: the newest under logs/)")
    parser.add_argument("--top-k", type=int, default=5, help="answers for each mask (default: 5)")
    options = parser.parse_args(argv)
    with bad_input_ends_here():
        run_path = options.run or newest_run(Path("logs"))
        model, tokenizer = load_model(run_path)
        answers = fill_mask(model, tokenizer, options.text, options.top_k)
    console.print(f"\n  model {shown(run_path)}\n", style="dim", markup=False)
    for number, guesses in enumerate(answers, 1):
        table = Table(box=None, padding=(0, 2), header_style="dim")
        table.add_column(f"mask {number}" if len(answers) > 1 else "token")
        table.add_column("probability", justify="right")
        table.add_column("in its place", overflow="fold")
        for guess in guesses:
            token = repr(guess.token) if not guess.token.strip() else printable(guess.token)
            table.add_row(token, f"{guess.probability:.1%}", printable(guess.sequence))
        console.print(table, markup=False, soft_wrap=False)
        console.print()
    pieces = options.text.split("[MASK]")
    best = [guesses[0].token for guesses in answers] + [""]
    filled = "".join(piece + token for piece, token in zip(pieces, best, strict=True))
    console.print(f"  all in place: {printable(filled)}\n", markup=False, soft_wrap=False)


if __name__ == "__main__":
    main()
