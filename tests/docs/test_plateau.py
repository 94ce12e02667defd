"""
Why the plateau is below the unigram baseline: a tenth of the chosen characters stay visible. The chapter
`stuck.md` quotes these numbers.
"""

import json
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from labml_bert.bert import BertConfig
from labml_bert.data.corpora import load_corpus
from labml_bert.data.masked_text import MaskedText
from labml_bert.data.tokenizers import SPECIAL_TOKENS, character_tokenizer, encode_corpus
from labml_bert.mlm import IGNORE
from labml_bert.models import BertForMaskedLM

ROOT = Path(__file__).parents[2]
PAGE = " ".join((ROOT / "docs" / "pages" / "stuck.md").read_text("utf-8").split())


def lowest_loss_without_context(p: Tensor, q: Tensor) -> float:
    """
    The expected loss of the best model that reads only the token at the chosen position. `p` has the
    frequencies that the model knows and `q` those of the evaluated text, both `(V,)`, without special tokens.
    The model sees `[MASK]` in 80% of the cases, the true token in 10%, and one of the `V` tokens in 10%.
    """
    u = 1 / len(p)
    # The probability that the true token is `w` (row) if `c` (column) is visible, (V, V).
    posterior = u * p[:, None] / (p + u)
    posterior += torch.diag(p / (p + u))
    masked, kept = -(q * p.log()).sum(), -(q * posterior.diagonal().log()).sum()
    random = -(u * q[:, None] * posterior.log()).sum()
    return float(0.8 * masked + 0.1 * kept + 0.1 * random)


def test_the_lowest_loss_without_context() -> None:
    corpus = load_corpus("python-docs")
    tokenizer = character_tokenizer(corpus.train)
    p, q = (
        torch.bincount(encode_corpus(tokenizer, texts), minlength=tokenizer.get_vocab_size()).double()
        for texts in (corpus.train, corpus.valid)
    )
    p, q = ((counts + 1e-3)[len(SPECIAL_TOKENS) :] for counts in (p, q))
    p, q = p / p.sum(), q / q.sum()
    lowest, unigram = lowest_loss_without_context(p, q), float(-(q * p.log()).sum())
    # The text changes a little with each version of Python.
    assert abs(lowest - 2.98) < 0.03 and abs(unigram - 3.23) < 0.03
    assert "this lowest loss is 2.98 nats, and the unigram baseline is 3.23 nats" in PAGE


def test_on_the_plateau_only_the_visible_characters_are_easy() -> None:
    folder = ROOT / "docs" / "live" / "model"
    card = json.loads((folder / "model.json").read_text("utf-8"))
    (checkpoint,) = (one for one in card["checkpoints"] if one["file"] == "fixed-length-3.bin")
    arm = card["arms"][checkpoint["arm"]]
    config = {name: arm["config"][name] for name in BertConfig.__dataclass_fields__}
    model = BertForMaskedLM(BertConfig(**config)).eval()
    data, weights = np.fromfile(folder / checkpoint["file"], "<f2"), dict(model.named_parameters())
    parts = np.split(data, np.cumsum([np.prod(one["shape"]) for one in arm["tensors"]])[:-1])
    corpus = load_corpus("python-docs")
    tokenizer = character_tokenizer(corpus.train)
    assert [tokenizer.id_to_token(i) for i in range(tokenizer.get_vocab_size())] == card["tokens"]
    text = MaskedText(corpus, tokenizer, 128, 2048, 128, 0.3, torch.Generator().manual_seed(0))
    ids, labels = text.held_out.input_ids[:96], text.held_out.labels[:96]  # (B, T)
    with torch.no_grad():
        for tensor, part in zip(arm["tensors"], parts, strict=True):
            weights[tensor["name"]].copy_(torch.tensor(part.astype(np.float32)).view(tensor["shape"]))
        # Every position is labeled, so the head computes all logits.
        logits = model(ids).logits  # (B, T, V)
    losses = F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=IGNORE, reduction="none")
    masked = losses[(labels != IGNORE) & (ids == card["mask_id"])].mean().item()
    kept = losses[(labels != IGNORE) & (ids == labels)].mean().item()
    assert abs(masked - 3.07) < 0.05 and abs(kept - 0.35) < 0.05
    assert "it's 3.07 nats where the model sees `[MASK]`, and 0.35 nats where" in PAGE
    counts = torch.bincount(text.train_ids, minlength=len(card["tokens"])).double()
    unigram = -(counts / counts.sum()).log()[labels.clamp(min=0)]  # (B, T)
    for is_kind, expected in ((ids == card["mask_id"], 3.20), (ids == labels, 3.24)):
        assert abs(unigram[(labels != IGNORE) & is_kind].mean().item() - expected) < 0.05
    assert "baseline is 3.20 nats where the model sees `[MASK]`, and 3.24 nats where" in PAGE
