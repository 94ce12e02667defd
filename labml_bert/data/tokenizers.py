r"""
# Text to numbers

A model reads ids, not text. What one id stands for is a choice: a character, a word, or a piece of
a word. Characters give a vocabulary of about a hundred and long sequences; words give thousands of
ids and short sequences, and no id at all for a word that was never seen. Pieces of words are between
the two, and are what BERT used.

Each function here returns a `Tokenizer` of Hugging Face
[tokenizers](https://huggingface.co/docs/tokenizers), fitted to the text that it is given. It is saved
as one JSON file, `tokenizer.json`, that `transformers` also reads.
"""

import json
from collections.abc import Iterable
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor

from labml_bert.files import write_whole

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
    """
    ## Pieces of words

    Frequent words are one token, a rare one is several: `un`, `##usual`. `##` marks a piece that goes on
    with a word. Each character is a piece too, in the places where it was seen, so `[UNK]` is rare.

    `lowercase` also takes the accents off, as the uncased BERT does; it turns `für` into `fur` and damages
    scripts that write vowels as marks. Without it all marks stay. In both cases, as in every BERT, the
    invisible joiners of Persian and of some scripts of India are dropped. Chinese characters are words of
    their own. All of `texts` is held in memory; give a sample of a large corpus.

    The result puts `[CLS]` and `[SEP]` around a text that it encodes, unless told
    `add_special_tokens=False`.

    Raises `ValueError` where there is no text, or `vocab_size` does not hold the alphabet: the special
    tokens, each character that begins a word and, with its `##`, each that goes on with one.

    Source: [Japanese and Korean voice search](https://research.google/pubs/japanese-and-korean-voice-search/)
    for the method; `BasicTokenizer` in `tokenization.py` of
    [google-research/bert](https://github.com/google-research/bert) for what a word is.
    """
    texts = list(texts)
    specials = list(SPECIAL_TOKENS)
    pieces = train_wordpiece(texts, 0, lowercase, specials)
    # The library numbers `##` characters in an order that changes from run to run, and equally good
    # merges go by number. So the alphabet is learned first, sorted, and given fixed numbers.
    alphabet = sorted(pieces.keys() - {*specials})
    if not alphabet:
        raise ValueError("there is no text to learn a vocabulary from; give text")
    if vocab_size < len(specials) + len(alphabet):
        raise ValueError(
            f"vocab_size {vocab_size} does not hold the alphabet of this text, {len(alphabet)} pieces and "
            f"{len(specials)} special tokens; raise it to {len(specials) + len(alphabet)} at least"
        )
    vocab = train_wordpiece(texts, vocab_size, lowercase, specials + alphabet)
    tokenizer = untrained_wordpiece(vocab, lowercase)
    tokenizer.add_special_tokens(specials)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, vocab[token]) for token in ("[CLS]", "[SEP]")],
    )
    return tokenizer


def untrained_wordpiece(vocab: dict[str, int], lowercase: bool) -> Tokenizer:
    """The parts around a WordPiece model, as the original has them."""
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=lowercase, lowercase=lowercase
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    return tokenizer


def train_wordpiece(texts: list[str], vocab_size: int, lowercase: bool, first: list[str]) -> dict[str, int]:
    """A vocabulary that begins with `first`. With `vocab_size` 0 only the alphabet is added to them."""
    tokenizer = untrained_wordpiece({}, lowercase)
    trainer = trainers.WordPieceTrainer(vocab_size=vocab_size, special_tokens=first, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer.get_vocab(with_added_tokens=False)


def special_token_ids(tokenizer: Tokenizer) -> list[int]:
    """The ids of `SPECIAL_TOKENS`, in that order."""
    ids = (tokenizer.token_to_id(token) for token in SPECIAL_TOKENS)
    return [i for i in ids if i is not None]


def encode_corpus(tokenizer: Tokenizer, documents: list[str]) -> Tensor:
    """
    ## A corpus as one row of ids

    The documents one after another, with an empty line between two; one-dimensional, int64.
    """
    # Pieces of a few thousand characters let the library use all cores, and keep its bookkeeping of
    # offsets small. A piece ends at a line end, so no word is cut.
    pieces = [piece for text in documents for piece in split_lines(text + "\n\n")]
    return torch.tensor([i for ids in encode_texts(tokenizer, pieces) for i in ids], dtype=torch.int64)


def encode_texts(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    """
    The ids of each text, nothing added. A text that happens to contain the seven signs `[MASK]` is text
    here, not a mask.
    """
    was = tokenizer.encode_special_tokens
    tokenizer.encode_special_tokens = True
    encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    tokenizer.encode_special_tokens = was
    return [encoding.ids for encoding in encodings]


def split_lines(text: str, size: int = 10_000) -> list[str]:
    """Cuts `text` at line ends into pieces of about `size` characters; joined, they are the text."""
    pieces, start = [], 0
    while start < len(text):
        end = text.find("\n", start + size) + 1 or len(text)
        pieces.append(text[start:end])
        start = end
    return pieces


def load_tokenizer(path: Path, vocab_size: int | None = None) -> Tokenizer:
    """
    Reads a `tokenizer.json`. `vocab_size` is that of the model which it should belong to.

    Raises `ValueError` where the file is missing, is no tokenizer, lacks one of `SPECIAL_TOKENS`, or has
    another number of tokens than the model.
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
    if sorted(tokenizer.get_vocab().values()) != list(range(tokenizer.get_vocab_size())):
        raise ValueError(f"the ids of the tokenizer {path} are not 0, 1, 2, …; train it again")
    # `transformers` saves how its last batch was cut and padded. A text that is given here is whole.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if vocab_size is not None and tokenizer.get_vocab_size() != vocab_size:
        raise ValueError(
            f"the tokenizer in {path.parent} has {tokenizer.get_vocab_size()} tokens, the model "
            f"{vocab_size}; they do not belong together"
        )
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """
    ## For `transformers` too

    Writes `tokenizer.json` and `tokenizer_config.json`, and for WordPiece `vocab.txt`, one piece a line.
    `AutoTokenizer.from_pretrained(folder)` then gives the same ids. A WordPiece tokenizer loads as
    `BertTokenizer`, which builds itself anew from the vocabulary and the settings in the second file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "tokenizer.json", tokenizer.to_str(pretty=True))
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    config: dict[str, object] = dict(zip(names, SPECIAL_TOKENS, strict=True))
    config |= {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    if isinstance(tokenizer.model, models.WordPiece):
        normalizer = json.loads(tokenizer.to_str())["normalizer"]
        config |= {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": normalizer["lowercase"],
            "strip_accents": normalizer["strip_accents"],
            "tokenize_chinese_chars": normalizer["handle_chinese_chars"],
        }
        pieces = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
        write_whole(folder / "vocab.txt", "\n".join(piece for piece, _ in pieces))
    write_whole(folder / "tokenizer_config.json", json.dumps(config, indent=2))
