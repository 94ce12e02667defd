r"""
# Text to numbers

A model reads ids, not text. What one id stands for is a choice: a character, a word, or a piece of
a word. Characters give a vocabulary of about a hundred and long sequences; words give thousands of
ids and short sequences, and no id at all for a word that was never seen.

Each function here returns a `Tokenizer` of Hugging Face
[tokenizers](https://huggingface.co/docs/tokenizers), fitted to the text that it is given. It is saved
as one JSON file, `tokenizer.json`, that `transformers` also reads.
"""

from collections.abc import Iterable
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch import Tensor

# The names of the original. `[PAD]` is 0, as `BertConfig.pad_token_id` expects.
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def character_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """
    ## Characters

    Every character of `texts` is a token, blanks and line ends included, so decoding gives back the
    text to the letter. A character that was not in `texts` becomes `[UNK]`.
    """
    characters = sorted(set().union(*texts))
    vocab = {token: i for i, token in enumerate([*SPECIAL_TOKENS, *characters])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    # Not the dot: it matches no line end.
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer


def word_tokenizer(texts: Iterable[str], vocab_size: int = 8192) -> Tokenizer:
    """
    ## Words

    Lower-case words and runs of punctuation, the `vocab_size` most frequent of those seen at least
    twice. All others are `[UNK]`. Blanks are lost, so decoding puts one between any two tokens.

    Raises `ValueError` where `vocab_size` leaves no place for a word.
    """
    if vocab_size <= len(SPECIAL_TOKENS):
        raise ValueError(
            f"vocab_size {vocab_size} leaves no word beside {len(SPECIAL_TOKENS)} special tokens; raise it"
        )
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(
        vocab_size=vocab_size, min_frequency=2, special_tokens=list(SPECIAL_TOKENS), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def wordpiece_tokenizer(texts: Iterable[str], vocab_size: int = 8192, lowercase: bool = True) -> Tokenizer:
    """Word pieces, trained on `texts`."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size, special_tokens=list(SPECIAL_TOKENS), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Writes `tokenizer.json`."""
    tokenizer.save(str(folder / "tokenizer.json"))


def special_token_ids(tokenizer: Tokenizer) -> list[int]:
    """The ids of `SPECIAL_TOKENS`, in that order."""
    ids = (tokenizer.token_to_id(token) for token in SPECIAL_TOKENS)
    return [i for i in ids if i is not None]


def encode_corpus(tokenizer: Tokenizer, documents: list[str]) -> Tensor:
    """
    ## A corpus as one row of ids

    The documents one after another, with an empty line between two; one-dimensional, int64. A text
    that happens to contain the seven signs `[MASK]` is text here, not a mask.
    """
    was = tokenizer.encode_special_tokens
    tokenizer.encode_special_tokens = True
    # Pieces of a few thousand characters let the library use all cores, and keep its bookkeeping of
    # offsets small. A piece ends at a line end, so no word is cut.
    pieces = [piece for text in documents for piece in split_lines(text + "\n\n")]
    ids = [i for encoding in tokenizer.encode_batch_fast(pieces) for i in encoding.ids]
    tokenizer.encode_special_tokens = was
    return torch.tensor(ids, dtype=torch.int64)


def split_lines(text: str, size: int = 10_000) -> list[str]:
    """Cuts `text` at line ends into pieces of about `size` characters; joined, they are the text."""
    pieces, start = [], 0
    while start < len(text):
        end = text.find("\n", start + size) + 1 or len(text)
        pieces.append(text[start:end])
        start = end
    return pieces


def load_tokenizer(path: Path) -> Tokenizer:
    """
    Reads a `tokenizer.json`.

    Raises `ValueError` where the file is missing, is no tokenizer, or lacks one of `SPECIAL_TOKENS`.
    """
    if not path.is_file():
        raise ValueError(f"no tokenizer at {path}; give the folder of a finished run")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # The library raises bare `Exception`.
        raise ValueError(f"{path} is not a tokenizer: {error}") from None
    missing = [token for token in SPECIAL_TOKENS if tokenizer.token_to_id(token) is None]
    if missing:
        raise ValueError(f"the tokenizer {path} has no {', '.join(missing)}")
    return tokenizer
