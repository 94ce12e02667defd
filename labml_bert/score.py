r"""
# Scoring a text

How probable is a sentence? A masked language model can't say: it gives the probability of a masked token, not
that of a whole text. But the model can tell you how well each token fits the others. Mask one token at a
time, ask the model for the log-probability of the true token, and add up these log-probabilities:

$$\operatorname{PLL}(w) = \sum_{t=1}^{T} \log p(w_t \mid w_1, \dots, w_{t-1}, w_{t+1}, \dots, w_T)$$

The sum is called the *pseudo-log-likelihood*. It isn't the log of a probability: any two tokens help to
predict each other, so their connection counts twice. A left-to-right model predicts each token only from
earlier tokens, so there each connection counts once. Still, the sum tells you which of two texts with the
same number of tokens a model finds more natural:

    python -m labml_bert.score "Return a copy of the list." "Return of a copy the list."

A long text has more tokens, so its sum is usually lower. To compare texts of different lengths, divide each
sum by the number of tokens.

Source: [Salazar et al., 2020](https://arxiv.org/abs/1910.14659), section 2.

Letters for sizes: `S` tokens in the sequence, `T` of them to score, `B` masked copies in the batch, `V`
vocabulary.
"""

if __name__ == "__main__":
    from labml_bert.run import preflight  # noqa: F401

from pathlib import Path
from typing import NamedTuple

import torch
from rich.table import Table
from tokenizers import Tokenizer
from torch import Tensor

from labml_bert.data.tokenizers import count_unknown, plain_tokenizer
from labml_bert.files import read_lines
from labml_bert.fill_mask import encode_text, load_model, newest_run, special_ids
from labml_bert.mlm import IGNORE
from labml_bert.models import BertForMaskedLM
from labml_bert.modern import ModernBertForMaskedLM
from labml_bert.run.terminal import exit_on_bad_input, read_standard_input
from labml_bert.stdout import OneLineParser, console, display_path, printable


@torch.no_grad()
def token_log_probs(
    model: BertForMaskedLM | ModernBertForMaskedLM,
    tokenizer: Tokenizer,
    text: str,
    mask_rest_of_word: bool = False,
    batch_size: int = 32,
) -> Tensor:
    """
    ## One masked copy for each token

    Returns the log-probability of each token of `text` in nats, `(T,)`, in order. Special tokens are context:
    the model sees them, but they get no score, because training never masks them. `[UNK]` is a special token
    too, so a word outside the vocabulary adds nothing to the score of its text. The model has to be in eval
    mode. It runs on `T` copies of the text, up to `batch_size` at a time. In each copy, a different token is
    masked.

    **Words of several pieces.** With one mask at a time, a rare word can look too easy. Suppose that the
    tokenizer splits *unusual* into `un` and `##usual`. Each of the two gives the other away, so both can get
    a high probability, even if the model finds the word improbable. `mask_rest_of_word` also masks the pieces
    to the right of the token within its word. Then the model predicts `un` from the other words alone, and
    `##usual` from the other words and `un`, as if it wrote the word from left to right. A word that is a
    single token keeps its score. If tokens are characters, or if the tokenizer doesn't split a text into
    words, the option changes nothing, because we don't know which tokens belong to a word.

    Raises `ValueError` if the text has no token to score. Also raises the errors of `encode_text`.

    Source: [Kauf and Ivanova, 2023](https://arxiv.org/abs/2305.10588), for `mask_rest_of_word`, which they
    call PLL-word-l2r.
    """
    encoding = encode_text(model, tokenizer, text)
    special = special_ids(tokenizer)
    positions = torch.tensor([s for s, token in enumerate(encoding.ids) if token not in special])  # (T)
    if len(positions) == 0:
        raise ValueError("there is no token to score; use a text with words that the model knows")
    mask_id = tokenizer.token_to_id("[MASK]")
    assert mask_id is not None  # `load_tokenizer` checks that there is a mask token.
    input_ids = torch.tensor(encoding.ids)  # (S)
    words = torch.tensor([-1 if word is None else word for word in encoding.word_ids])  # (S)
    if len({*plain_tokenizer(tokenizer).encode("a b", add_special_tokens=False).word_ids}) == 1:
        words = torch.arange(len(input_ids))  # The tokenizer reads any text as one word.
    log_probs, device = [], next(model.parameters()).device
    for batch in positions.split(batch_size):
        position = batch[:, None]  # (B, 1)
        offset = torch.arange(len(input_ids)) - position  # (B, S)
        is_masked = offset == 0  # (B, S)
        # With labels, the models compute logits only at the labeled positions, here one in each copy.
        labels = torch.where(is_masked, input_ids, IGNORE)  # (B, S)
        if mask_rest_of_word:
            is_masked = is_masked | ((offset > 0) & (words == words[position]))  # (B, S)
        masked_ids = input_ids.masked_fill(is_masked, mask_id)  # (B, S)
        logits = model(masked_ids.to(device), labels.to(device)).logits  # (B, V)
        log_p = logits.float().log_softmax(-1).cpu()  # (B, V)
        log_probs.append(log_p.gather(1, input_ids[position]))
    return torch.cat(log_probs)[:, 0]  # (T)


def pseudo_log_likelihood(
    model: BertForMaskedLM | ModernBertForMaskedLM,
    tokenizer: Tokenizer,
    text: str,
    mask_rest_of_word: bool = False,
) -> float:
    """
    ## The sum, and the pseudo-perplexity

    Returns the sum of the log-probabilities of the tokens, in nats. Raises the errors of `token_log_probs`.
    """
    return token_log_probs(model, tokenizer, text, mask_rest_of_word).double().sum().item()


def pseudo_perplexity(
    model: BertForMaskedLM | ModernBertForMaskedLM,
    tokenizer: Tokenizer,
    texts: list[str],
    mask_rest_of_word: bool = False,
) -> float:
    r"""
    Returns $\exp(-\frac{1}{N} \sum_w \operatorname{PLL}(w))$, where $N$ is the number of scored tokens in all
    texts together. So each token counts the same, and a long text counts more than a short one. A model that
    finds all tokens of its vocabulary equally probable has a pseudo-perplexity of $V$. A perfect model has a
    pseudo-perplexity of 1. Two models are comparable only if they split the texts into the same tokens.

    Raises `ValueError` if there are no texts. Also raises the errors of `token_log_probs`.
    """
    if not texts or isinstance(texts, str):
        raise ValueError("there are no texts; pass a list with at least one")
    log_probs = [token_log_probs(model, tokenizer, text, mask_rest_of_word) for text in texts]
    return (-torch.cat(log_probs).double().mean()).exp().item()


class Score(NamedTuple):
    """One row of the printed table."""

    pseudo_log_likelihood: float
    """The sum of the log-probabilities, in nats."""
    per_token: float
    """The mean log-probability of the tokens that have a score, in nats."""
    text: str


def read_texts(data: bytes) -> list[str]:
    """Returns the lines of `data` that aren't blank. Raises `ValueError` as `read_lines` does."""
    return [line for line in read_lines(data) if line.strip()]


def main(argv: list[str] | None = None) -> None:
    """Reads the command line and prints the texts with their scores, the highest score per token first."""
    description = "Score texts by their pseudo-log-likelihood: higher is more natural."
    parser = OneLineParser(prog="python -m labml_bert.score", description=description)
    parser.add_argument(
        "texts", nargs="*", metavar="text", default=[], help="a text (default: lines of standard input)"
    )
    parser.add_argument("--run", type=Path, help="folder of a run or a model (default: newest trained run)")
    words = "mask the later pieces of the token's word too, so that rare words don't look too easy"
    parser.add_argument("--mask-rest-of-word", action="store_true", help=words)
    options = parser.parse_args(argv)
    with exit_on_bad_input():
        run_path = options.run or newest_run(Path("logs"))
        model, tokenizer = load_model(run_path)
        scores, unknown = [], 0
        for number, text in enumerate(options.texts or read_texts(read_standard_input()), 1):
            try:
                log_probs = token_log_probs(model, tokenizer, text, options.mask_rest_of_word).double()
            except ValueError as error:
                raise ValueError(f"text {number}: {error}") from None
            scores.append(Score(log_probs.sum().item(), log_probs.mean().item(), text))
            unknown += count_unknown(tokenizer, tokenizer.encode(text).ids)
    console.print(f"\n  model {display_path(run_path)}\n", style="dim")
    table = Table(box=None, padding=(0, 2), header_style="dim")
    table.add_column("score (nats)", justify="right", no_wrap=True)
    table.add_column("per token", justify="right", no_wrap=True)
    table.add_column("text", overflow="fold")
    for score in sorted(scores, key=lambda score: -score.per_token):
        numbers = f"{score.pseudo_log_likelihood:.2f}", f"{score.per_token:.3f}"
        table.add_row(*numbers, printable(score.text))
    console.print(table, soft_wrap=False)
    if unknown:
        console.print(f"\n  tokens outside the vocabulary, which have no score: {unknown}", style="dim")
    console.print()


if __name__ == "__main__":
    main()
