r"""
# Short sequences first

Why does a small BERT stay near the loss of the unigram baseline for so long? One reason is [how BERT encodes
positions](../../stuck.md#the-cause). Another may be that long sequences contain too many candidates: in a
sequence of 128 tokens, any of the 127 others could help to predict a masked token, and the model has to find
out which do. In a sequence of 16 tokens, there are only 15 candidates. So we start with short sequences and
make them longer during training. The number of tokens per step stays nearly the same: with $N$ tokens per
step and length $T$, a batch has $\lfloor N / T \rfloor$ sequences.

The positions of a short window start at a [random offset](windows.md), so training reaches all position
embeddings from the beginning. The positions of a pair of texts always start at 0.
"""

from dataclasses import dataclass
from itertools import accumulate, pairwise


@dataclass(frozen=True)
class Stage:
    """A sequence length, and the fraction of the training budget to spend on it."""

    length: int
    fraction: float


def parse_schedule(text: str) -> list[Stage]:
    """
    ## A schedule as text

    `"16,32,64,128"` splits the budget equally, and `"16:1,32:1,64:2,128:4"` gives each length a weight.

    Raises `ValueError` if the lengths aren't increasing integers of at least 3, or if a weight isn't positive
    and finite.
    """
    lengths, weights = [], []
    for part in text.split(","):
        length, _, weight = part.partition(":")
        try:
            lengths.append(int(length))
            weights.append(float(weight or 1))
        except ValueError:
            raise ValueError(f"bad schedule {text!r}: write lengths like 16,32,64,128") from None
    # Two of the tokens can be `[CLS]` and `[SEP]`, and then a third is needed to predict something.
    if min(lengths) < 3:
        raise ValueError(f"bad schedule {text!r}: a sequence needs at least 3 tokens")
    if any(a >= b for a, b in pairwise(lengths)):
        raise ValueError(f"bad schedule {text!r}: lengths must increase, like 16,32,64,128")
    if not all(weight > 0 for weight in weights) or not sum(weights) < float("inf"):
        raise ValueError(f"bad schedule {text!r}: every weight must be above 0, and their sum finite")
    return [Stage(a, b / sum(weights)) for a, b in zip(lengths, weights, strict=True)]


def tokens_per_step(batch_tokens: int, length: int) -> int:
    """Returns the number of tokens in a batch, which has as many whole sequences as fit in `batch_tokens`."""
    return batch_tokens // length * length


def length_at(stages: list[Stage], progress: float) -> int:
    """Returns the sequence length once a fraction `progress`, from 0 to 1, of the budget has been spent."""
    ends = accumulate(stage.fraction for stage in stages)
    return next((s.length for s, end in zip(stages, ends, strict=True) if progress < end), stages[-1].length)


def stage_ends(stages: list[Stage]) -> list[float]:
    """Returns the fractions of the budget, from 0 to 1, at which the stages end."""
    return [min(end, 1.0) for end in accumulate(stage.fraction for stage in stages)]
