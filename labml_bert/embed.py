r"""
# One vector for a whole text

How similar are two texts? An encoder gives each *token* a vector. To compare texts, you need one vector for
each text. A simple text vector $s$ is the mean of the vectors $h_t$ of the text's $M$ tokens:

$$s = \frac{1}{M} \sum_{t=1}^{M} h_t, \qquad
\cos(s, s') = \frac{s \cdot s'}{\lVert s \rVert \, \lVert s' \rVert}$$

Two vectors that point in the same direction have a cosine of 1. But masked language modeling never compares
texts, so nothing moves the vectors of different texts apart. In many models, the vectors of all texts point
in roughly the same direction, and even two unrelated texts have a high cosine. People call such vectors
*anisotropic*. This file has two remedies: whitening, which needs no training, and SimCSE, which does.

    python -m labml_bert.embed "Return a copy." "Copies the list." "Closes the file."

The command ranks the other texts by their similarity to the first. Look at the order, not at the numbers: a
cosine means something only in comparison with the same model's cosines of other texts.

Letters for sizes: `N` texts, `B` texts in the batch, `T` tokens in the longest of them, `D` hidden size, `K`
dimensions after whitening, `Q` queries, `C` candidates.
"""

if __name__ == "__main__":
    from labml_bert.run import preflight  # noqa: F401

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from rich.table import Table
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from labml_bert.data.tokenizers import count_unknown
from labml_bert.fill_mask import check_text, load_model, newest_run, special_ids
from labml_bert.models import BertForMaskedLM
from labml_bert.modern import ModernBertAttention, ModernBertForMaskedLM
from labml_bert.run.terminal import exit_on_bad_input, print_caveats, read_standard_input
from labml_bert.score import read_texts
from labml_bert.stdout import OneLineParser, console, display_path, printable
from labml_bert.training.device import Precision, autocast, choose_precision
from labml_bert.training.trainer import NonFiniteLossError

Model = BertForMaskedLM | ModernBertForMaskedLM
Pooling = Literal["mean", "cls"]
# By default, a text with more tokens than this loses its end.
MAX_LENGTH = 128


def pool_texts(
    model: Model,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    pooling: Pooling = "mean",
    max_length: int = MAX_LENGTH,
) -> Tensor:
    """
    ## From token vectors to a text vector

    Returns the vectors of one batch, `(B, D)`: with `mean`, the mean over the last hidden states of the
    tokens, and with `cls`, the last hidden state of `[CLS]`. A text loses its end if it has more than
    `max_length` tokens, special tokens included, or more tokens than the model has positions.

    **Special tokens aren't part of the mean.** Many tokenizers add `[CLS]` and `[SEP]` to every text. If the
    vectors of these tokens counted, the means of all texts would probably be more alike. `[UNK]` stands for a
    word or character, so it counts.

    Raises `ValueError` if a text has no tokens that count, if `max_length` or the number of positions is
    below 3, if `pooling` isn't one of the two, or if it's `cls` and the tokenizer adds no `[CLS]`.
    """
    if pooling not in get_args(Pooling):
        raise ValueError(f"pooling is {pooling!r}; choose from {', '.join(get_args(Pooling))}")
    max_length = min(max_length, model.config.max_position_embeddings)
    if max_length < 3:
        raise ValueError(f"max_length is {max_length}; one token between two special tokens needs 3")
    # Truncation and padding are settings of the tokenizer, so change them only in a copy.
    tokenizer = Tokenizer.from_str(tokenizer.to_str())
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_length)
    rows = [torch.tensor(encoding.ids) for encoding in tokenizer.encode_batch(list(texts))]
    device = next(model.parameters()).device
    input_ids = pad_sequence(rows, True, model.config.pad_token_id).to(device)  # (B, T)
    lengths = torch.tensor([len(row) for row in rows], device=device)  # (B)
    attention_mask = torch.arange(input_ids.size(1), device=device) < lengths[:, None]  # (B, T)
    ignored = torch.tensor([i for i in special_ids(tokenizer) if i != tokenizer.token_to_id("[UNK]")])
    is_word = attention_mask & ~torch.isin(input_ids, ignored.to(device))  # (B, T)
    for text, count in zip(texts, is_word.sum(1).tolist(), strict=True):
        if count == 0:
            raise ValueError(f"the text {text!r} has no tokens; use a text with at least one word")
    if isinstance(model, ModernBertForMaskedLM):
        hidden = model.model(input_ids, attention_mask)  # (B, T, D)
    else:
        hidden = model.bert(input_ids, attention_mask).last_hidden_state  # (B, T, D)
    if pooling == "cls":
        if any(row[0] != tokenizer.token_to_id("[CLS]") for row in rows):
            raise ValueError("the model was trained without [CLS]; use the mean instead")
        return hidden[:, 0]  # (B, D)
    weights = is_word.float() / is_word.sum(1, keepdim=True)  # (B, T)
    return (weights[:, :, None] * hidden).sum(1)  # (B, D)


@torch.no_grad()
def embed(
    model: Model,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    pooling: Pooling = "mean",
    max_length: int = MAX_LENGTH,
    batch_size: int = 64,
) -> Tensor:
    """
    Returns the vectors of all texts, `(N, D)`, in the order of the texts. The model has to be in eval mode.
    Texts of similar length share a batch, so little time goes to padding.

    Raises `ValueError` if `texts` is empty or a single string, or if `batch_size` is below 1. Also raises the
    errors of `check_text` and of `pool_texts`.
    """
    if not texts or isinstance(texts, str):
        raise ValueError("there are no texts; pass a list with at least one")
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}; it must be at least 1")
    for number, text in enumerate(texts, 1):
        check_text(text, f"text {number:,}" if len(texts) > 1 else "the text")
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    groups = [order[i : i + batch_size] for i in range(0, len(order), batch_size)]
    vectors = [
        pool_texts(model, tokenizer, [texts[i] for i in group], pooling, max_length) for group in groups
    ]
    inverse = torch.tensor(order).argsort()  # (N)
    return torch.cat(vectors)[inverse]  # (N, D)


def cosines(a: Tensor, b: Tensor) -> Tensor:
    """
    Returns the cosines, `(Q, C)`, of each row of `a`, `(Q, D)`, with each row of `b`, `(C, D)`. A zero vector
    counts as orthogonal to every other. The result of 16-bit vectors is float32.
    """
    a, b = (F.normalize(x.to(torch.promote_types(x.dtype, torch.float32)), dim=-1) for x in (a, b))
    return a @ b.T


def mean_cosine(vectors: Tensor) -> float:
    r"""
    ## How anisotropic are the vectors?

    Returns the mean cosine over all pairs of different rows of `vectors`, `(N, D)`. For independent random
    directions, the mean is close to 0. The cosines of all ordered pairs, including each vector with itself,
    sum to the squared length of the sum of the normalized vectors. That sum is fast to compute. A zero vector
    counts as orthogonal to every other.

    Raises `ValueError` if there are fewer than two vectors.

    Source: [Ethayarajh, 2019](https://arxiv.org/abs/1909.00512), for the measure.
    """
    N = len(vectors)
    if N < 2:
        raise ValueError(f"a pair needs two texts, but there are {N}")
    normalized = F.normalize(vectors.double(), dim=-1)  # (N, D)
    total = normalized.sum(0)  # (D)
    return ((total @ total - normalized.square().sum()) / (N * (N - 1))).item()


class Whitening(NamedTuple):
    r"""
    ## Whitening

    Subtracting the mean $\mu$ removes what the vectors have in common. Rescaling each direction to a variance
    of 1 keeps directions with a large variance from dominating the cosines. With the covariance matrix $U
    \Lambda U^\top$, whitening is:

    $$\tilde s = (s - \mu) \, U \Lambda^{-1/2}$$

    No training is needed: you compute $\mu$ and the matrix from the vectors of some texts, and can then
    whiten the vectors of any text.

    Source: [Su et al., 2021](https://arxiv.org/abs/2103.15316), section 3.
    """

    mean: Tensor
    """The mean of the fitted vectors, `(D)`."""
    matrix: Tensor
    """The scaled directions, one in each column, `(D, K)`."""

    def __call__(self, vectors: Tensor) -> Tensor:
        """Whitens `vectors`, `(N, D)`, and returns `(N, K)`."""
        return (vectors - self.mean) @ self.matrix


def fit_whitening(vectors: Tensor, dimensions: int | None = None) -> Whitening:
    """
    Fits a whitening to `vectors`, `(N, D)`. Leaves out directions with almost no variance. With our encoders,
    there's always such a direction, because the LayerNorm at the end subtracts the mean over the dimensions.
    `dimensions` limits the number of directions, and those with the largest variances are kept. The paper
    tries 256 of BERT base's 768.

    Raises `ValueError` if all vectors are equal, if a number in them or in the result isn't finite, or if
    `dimensions` is below 1.
    """
    if dimensions is not None and dimensions < 1:
        raise ValueError(f"dimensions is {dimensions}; it must be at least 1")
    vectors = vectors if vectors.is_floating_point() else vectors.float()
    x = vectors.double()
    if not x.isfinite().all():
        raise ValueError("a vector has a number that is NaN or infinite; leave this vector out")
    if (x == x[:1]).all():
        raise ValueError(f"all {len(x)} vectors are equal, so no direction has any variance")
    variances, directions = torch.linalg.eigh(
        torch.cov(x.T).reshape(x.size(1), -1)
    )  # variances in ascending order
    variances, directions = variances.flip(0)[:dimensions], directions.flip(1)[:, :dimensions]
    # The rounding of 16-bit numbers gives even an empty direction some variance.
    least = max(1e-9, torch.finfo(vectors.dtype).eps ** 2 / 10)
    K = int((variances > least * variances[0]).sum())
    matrix = (directions[:, :K] / variances[:K].sqrt()).to(vectors)  # (D, K)
    if not matrix.isfinite().all():
        raise ValueError(
            f"the variances are too small for {vectors.dtype}; call float() on the vectors first"
        )
    return Whitening(x.mean(0).to(vectors), matrix)


def simcse_loss(a: Tensor, b: Tensor, temperature: float = 0.05) -> Tensor:
    r"""
    ## SimCSE

    Whitening can't learn what makes two texts similar. A contrastive loss can. Give the encoder text $i$
    twice. Dropout removes different activations each time, so the two vectors $a_i$ and $b_i$ differ a
    little. The model learns to find $b_i$, the partner of $a_i$, among the $b_j$ of all texts in the batch:

    $$\mathcal L = -\frac{1}{B} \sum_{i=1}^{B}
    \log \frac{e^{\cos(a_i, b_i) / \tau}}{\sum_{j=1}^{B} e^{\cos(a_i, b_j) / \tau}}$$

    Cosines are from -1 to 1. So with a temperature $\tau$ of 1 and 64 texts, the softmax could give $b_i$ a
    probability of at most 0.105. A low temperature allows confident predictions.

    `a` and `b` are `(B, D)`. Returns the loss in nats.

    Source: [Gao et al., 2021](https://arxiv.org/abs/2104.08821), equation 4, with $\tau = 0.05$.
    """
    similarities = cosines(a, b) / temperature  # (B, B)
    return F.cross_entropy(similarities, torch.arange(len(a), device=a.device))


def train_simcse(
    model: Model,
    tokenizer: Tokenizer,
    pairs: Sequence[tuple[str, str]],
    learning_rate: float,
    steps: int,
    batch_size: int = 64,
    dropout: float = 0.1,
    max_length: int = 32,
    seed: int = 0,
) -> list[float]:
    """
    Trains `model` in place, leaves it in eval mode, and returns the loss of each step, in nats. The two texts
    of a pair are equal, or they belong together, such as a question and its answer. The learning rate decays
    linearly to zero. Without dropout, equal texts would get equal vectors, and many small models are
    pretrained without dropout. So this function sets the probability of all dropout layers to `dropout`. It
    seeds PyTorch's random generator with `seed`.

    Raises `ValueError` if `batch_size` is below 2, if there are fewer than `batch_size` pairs, if `steps` is
    below 1, or if `dropout` isn't in [0, 1), and `NonFiniteLossError` if the loss or its gradient explodes.
    Also raises the errors of `check_text` and of `pool_texts`.
    """
    if not 2 <= batch_size <= len(pairs) or steps < 1:
        sizes = f"{len(pairs)} pairs, batch_size {batch_size}, {steps} steps"
        raise ValueError(f"{sizes}; use at least 1 step, and a batch_size from 2 to the number of pairs")
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout is {dropout}; it must be in [0, 1)")
    for number, pair in enumerate(pairs, 1):
        for text in pair:
            check_text(text, f"a text of pair {number:,}")
    torch.manual_seed(seed)
    model.train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = dropout
        elif isinstance(module, ModernBertAttention):
            module.attention_dropout = dropout
    device = next(model.parameters()).device
    # Without a gradient scaler, small float16 gradients would underflow to zero.
    precision: Precision = "float32" if choose_precision(device) == "float16" else "auto"
    model.zero_grad()
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    decay = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    losses = []
    for _ in range(steps):
        batch = [pairs[i] for i in torch.randperm(len(pairs))[:batch_size].tolist()]
        with autocast(device, choose_precision(device, precision)):
            a, b = (pool_texts(model, tokenizer, [*t], "mean", max_length) for t in zip(*batch, strict=True))
        loss = simcse_loss(a, b)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        losses.append(loss.item())
        if not math.isfinite(losses[-1] + norm.item()):
            raise NonFiniteLossError(
                f"the loss exploded at the learning rate {learning_rate:g}; try a lower one"
            )
        optimizer.step()
        optimizer.zero_grad()
        decay.step()
    model.eval()
    return losses


def ranks(similarities: Tensor) -> Tensor:
    """
    ## How good is a ranking?

    Query `i` asks for candidate `i`. From the similarities of all queries and candidates, `(Q, C)`, this
    returns the rank of each query's candidate, `(Q)`. Rank 1 is the best. Any other candidate with an equal
    similarity counts as better. So if a model finds all candidates equally similar, every rank is the worst.

    Raises `ValueError` if there are more queries than candidates.
    """
    if similarities.size(0) > similarities.size(1):
        shape = tuple(similarities.shape)
        raise ValueError(f"the similarities have the shape {shape}; each query needs a candidate of its own")
    targets = similarities.diagonal()[:, None]  # (Q, 1)
    return similarities.size(1) - (similarities < targets).sum(1)  # (Q)


def mrr_and_recall(ranks: Tensor, k: int = 10) -> tuple[float, float]:
    """
    Returns the mean reciprocal rank and the recall at `k`, the fraction of queries with rank `k` or better.
    """
    return (1 / ranks.double()).mean().item(), (ranks <= k).double().mean().item()


def main(argv: list[str] | None = None) -> None:
    """Reads the command line and prints the texts and their cosines with the query, most similar first."""
    description = "Rank texts by the cosine of their mean-pooled vectors with that of a query."
    parser = OneLineParser(prog="python -m labml_bert.embed", description=description)
    parser.add_argument("query", help="the text to compare with; a long text loses its end")
    parser.add_argument(
        "texts", nargs="*", metavar="text", default=[], help="a text (default: lines of standard input)"
    )
    parser.add_argument("--run", type=Path, help="folder of a run or a model (default: newest trained run)")
    options = parser.parse_args(argv)
    with exit_on_bad_input():
        run_path = options.run or newest_run(Path("logs"))
        model, tokenizer = load_model(run_path)
        texts = options.texts or read_texts(read_standard_input())
        vectors = embed(model, tokenizer, [options.query, *texts])
    encodings = [tokenizer.encode(text).ids for text in (options.query, *texts)]
    longest = min(MAX_LENGTH, model.config.max_position_embeddings)
    unknown = sum(count_unknown(tokenizer, ids[:longest]) for ids in encodings)
    cut = sum(len(ids) > longest for ids in encodings)
    console.print(f"\n  model {display_path(run_path)}\n", style="dim")
    table = Table(box=None, padding=(0, 2), header_style="dim")
    table.add_column("cosine", justify="right", no_wrap=True)
    table.add_column("text", overflow="fold")
    for cosine, text in sorted(zip(cosines(vectors[:1], vectors[1:])[0].tolist(), texts, strict=True))[::-1]:
        table.add_row(f"{cosine:.3f}", printable(text))
    console.print(table, soft_wrap=False)
    console.print(f"\n  mean cosine of any two of these texts: {mean_cosine(vectors):.3f}", style="dim")
    print_caveats(unknown, cut, f"with more than {longest} tokens, which lose their end")
    console.print()


if __name__ == "__main__":
    main()
