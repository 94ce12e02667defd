"""
# Filling a mask

What does a trained model predict in a sentence that it has never seen? Write `[MASK]` in place of each token
that the model should predict:

    python -m labml_bert.fill_mask "The function ret[MASK]rns a list."

The model fills each mask independently, given the rest of the text. With two masks, the model doesn't compare
pairs of answers: it predicts each of the two tokens while the other is masked too.
"""

if __name__ == "__main__":
    from labml_bert.run import preflight  # noqa: F401

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.table import Table
from tokenizers import Encoding, Tokenizer
from torch import Tensor

from labml_bert import modern_folder
from labml_bert.bert import BertConfig
from labml_bert.checks import check_config, check_length, check_modern_config
from labml_bert.checksums import reading
from labml_bert.data.tokenizers import (
    count_unknown,
    joins_with_spaces,
    load_tokenizer,
    plain_tokenizer,
    token_text,
)
from labml_bert.files import is_utf8
from labml_bert.model_folder import MODEL_FILES, check_tensors, load_weights, read_json
from labml_bert.models import BertForMaskedLM
from labml_bert.modern import ModernBertConfig, ModernBertForMaskedLM
from labml_bert.run.terminal import exit_on_bad_input, print_caveats
from labml_bert.stdout import OneLineParser, console, display_path, printable
from labml_bert.training.checkpoint import CHECKPOINT, find_run_folders, load_checkpoint, with_prefix

# Encoding a longer text can take many seconds, and no model here reads more than a small part of it.
MAX_CHARACTERS = 100_000


class Guess(NamedTuple):
    """One of the tokens that the model predicts for a mask."""

    token: str
    probability: float
    sequence: str
    """The whole text with this token in place of the mask. The other masks stay."""


def load_model(folder: Path) -> tuple[BertForMaskedLM | ModernBertForMaskedLM, Tokenizer]:
    """
    Loads the model and the tokenizer of a run, or of a folder in the format of `transformers`: a BERT or a
    ModernBERT. The model is on the CPU, in eval mode.

    Raises `ValueError` if there is no such model, if its tokenizer is missing, damaged or of another size, or
    if one of its files is replaced meanwhile.
    """
    with reading(folder, *MODEL_FILES) as path:
        if (path / "config.json").is_file() or (path / "model.safetensors").is_file():
            is_modern = read_json(path).get("model_type") == "modernbert"
            model = (
                modern_folder.from_pretrained(path) if is_modern else BertForMaskedLM.from_pretrained(path)
            )
        else:
            metadata, tensors = load_checkpoint(path)
            weights = with_prefix(tensors, "model.")
            try:
                model = build_model(metadata["configuration"]["model"], weights, path / CHECKPOINT)
            except (KeyError, TypeError):
                raise ValueError(f"{path} is not a run of a masked language model; use another run") from None
            load_weights(model, weights, path / CHECKPOINT)
        return model.eval(), load_tokenizer(path / "tokenizer.json", model.config.vocab_size)


def build_model(
    sizes: dict[str, Any], weights: dict[str, Tensor], path: Path
) -> BertForMaskedLM | ModernBertForMaskedLM:
    """
    Builds an untrained model with the `sizes` from the checkpoint `path`. Only the sizes of a ModernBERT
    contain `global_rope_theta`.

    Raises `ValueError` or `TypeError` if no model can have these sizes, or if `check_tensors` refuses the
    checkpoint's `weights`.
    """
    config = ModernBertConfig(**sizes) if "global_rope_theta" in sizes else BertConfig(**sizes)
    try:
        if isinstance(config, ModernBertConfig):
            check_modern_config(config)
        else:
            check_config(config)
    except ValueError as error:
        raise ValueError(f"{path} does not describe a model: {error}") from None
    check_tensors(config, weights, path)
    return ModernBertForMaskedLM(config) if isinstance(config, ModernBertConfig) else BertForMaskedLM(config)


def encode_text(model: BertForMaskedLM | ModernBertForMaskedLM, tokenizer: Tokenizer, text: str) -> Encoding:
    """
    Encodes a text that somebody typed. The tokenizer adds `[CLS]` and `[SEP]` if the model was trained with
    them, and a `[MASK]` in the text becomes the mask token.

    Raises `ValueError` if the text isn't UTF-8, has more characters than `MAX_CHARACTERS`, or has more tokens
    than the model has positions.
    """
    check_text(text)
    encoding = plain_tokenizer(tokenizer).encode(text)
    check_length(len(encoding.ids), model.config)
    return encoding


def check_text(text: str, name: str = "the text") -> None:
    """
    Raises `ValueError` if `text` has more characters than `MAX_CHARACTERS`, or has surrogates, which stand
    for bytes that aren't UTF-8. `name` says in the message which text it is.
    """
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"{name} has {len(text):,} characters; use at most {MAX_CHARACTERS:,}")
    if not is_utf8(text):
        raise ValueError(f"{name} has bytes that are not UTF-8; write it in UTF-8, and use a UTF-8 locale")


def special_ids(tokenizer: Tokenizer) -> list[int]:
    """The ids of all special tokens, including those that other libraries have added."""
    return [i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special]


@torch.no_grad()
def fill_mask(
    model: BertForMaskedLM | ModernBertForMaskedLM, tokenizer: Tokenizer, text: str, top_k: int = 5
) -> list[list[Guess]]:
    """
    For each `[MASK]` in `text`, in order, returns the `top_k` most probable tokens, best first. The model
    must be in eval mode. Special tokens are left out. The softmax is over the whole vocabulary, so the
    returned probabilities sum to less than 1.

    Raises `ValueError` if the text has no mask, if `top_k` is below 1, or if the vocabulary has only special
    tokens. Also raises the errors of `encode_text`.
    """
    if top_k < 1:
        raise ValueError(f"top_k is {top_k}; it must be at least 1")
    encoding = encode_text(model, tokenizer, text)
    input_ids = torch.tensor([encoding.ids], device=next(model.parameters()).device)  # (1, T)
    masks = find_masks(tokenizer, encoding, text)
    if not masks:
        raise ValueError("no [MASK] in the text; write [MASK] for each token to predict")
    special = special_ids(tokenizer)
    if len(special) == model.config.vocab_size:
        raise ValueError("the vocabulary has only special tokens; train a model on text")
    logits = model(input_ids).logits[0]  # (T, V)
    probabilities = logits.float().softmax(-1)  # (T, V)
    probabilities[:, special] = -1  # A probability is at least 0, even if it underflows.
    guesses: list[list[Guess]] = []
    for position, span in masks.items():
        guesses.append([])
        best = probabilities[position].topk(min(top_k, probabilities.size(-1) - len(special)))
        for i, probability in zip(best.indices.tolist(), best.values.tolist(), strict=True):
            token = token_text(tokenizer, i)
            guesses[-1].append(Guess(token, probability, replace_spans(text, [span], [token])))
    return guesses


def find_masks(tokenizer: Tokenizer, encoding: Encoding, text: str) -> dict[int, tuple[int, int]]:
    """
    Maps the position of each mask token to the start and end of the mask in `text`. ModernBERT's tokenizer
    counts the spaces before a mask as part of the mask, because the token that replaces the mask can start
    with a space. In WordPiece, no token contains a space, so a mask doesn't include the spaces around it.
    """
    mask_id, keeps_spaces = tokenizer.token_to_id("[MASK]"), joins_with_spaces(tokenizer)
    masks = {}
    for position, (token_id, (start, end)) in enumerate(zip(encoding.ids, encoding.offsets, strict=True)):
        if token_id == mask_id:
            if keeps_spaces:
                start, end = end - len(text[start:end].lstrip()), start + len(text[start:end].rstrip())
            masks[position] = start, end
    return masks


def replace_spans(text: str, spans: Iterable[tuple[int, int]], tokens: list[str]) -> str:
    """Replaces each span of `text` with a token. Decoding all ids could change the rest of the text."""
    for (start, end), token in reversed([*zip(spans, tokens, strict=True)]):
        text = text[:start] + token + text[end:]
    return text


def newest_run(runs: Path) -> Path:
    """
    Returns the folder of the run under `runs` with the newest checkpoint. A run that hasn't trained yet
    doesn't count, because it has only its initial weights.

    Raises `ValueError` if no run has trained, or if the search meets a damaged checkpoint first.
    """
    folders = find_run_folders([runs], ["*/*/"])
    if not folders:
        raise ValueError(
            f"no run under {runs}; train a model, for example with experiments/mlm_tiny.py, or name a folder"
        )
    for folder in folders:
        if load_checkpoint(folder)[0]["step"] > 0:
            return folder
    raise ValueError(f"no run under {runs} has saved a trained model yet; wait, or name another run")


def main(argv: list[str] | None = None) -> None:
    """Reads the command line, prints a table for each mask, and fills in the best tokens."""
    description = "Predict the [MASK] tokens in a text."
    parser = OneLineParser(prog="python -m labml_bert.fill_mask", description=description)
    parser.add_argument("text", help="a text with at least one [MASK]")
    parser.add_argument("--run", type=Path, help="folder of a run or a model (default: newest trained run)")
    parser.add_argument("--top-k", type=int, default=5, help="predictions for each mask (default: 5)")
    options = parser.parse_args(argv)
    with exit_on_bad_input():
        run_path = options.run or newest_run(Path("logs"))
        model, tokenizer = load_model(run_path)
        answers = fill_mask(model, tokenizer, options.text, options.top_k)
        console.print(f"\n  model {display_path(run_path)}\n", style="dim")
        for number, guesses in enumerate(answers, 1):
            table = Table(box=None, padding=(0, 2), header_style="dim")
            table.add_column(f"mask {number}" if len(answers) > 1 else "token")
            table.add_column("probability", justify="right")
            table.add_column("text", overflow="fold")
            for guess in guesses:
                token = repr(guess.token) if not guess.token.strip() else printable(guess.token)
                table.add_row(token, f"{guess.probability:.1%}", printable(guess.sequence))
            console.print(table, soft_wrap=False)
            console.print()
        encoding = tokenizer.encode(options.text)
        spans = find_masks(tokenizer, encoding, options.text).values()
        sentence = replace_spans(options.text, spans, [guesses[0].token for guesses in answers])
        console.print(f"  all filled in: {printable(sentence)}\n", soft_wrap=False)
        print_caveats(count_unknown(tokenizer, encoding.ids))


if __name__ == "__main__":
    main()
