r"""
# Text to numbers

A model reads ids, not text. What should one id stand for: a character, a word, or part of a word? With
characters, the vocabulary of an English text has about a hundred tokens, and sequences are long. With words,
the vocabulary has thousands of tokens and sequences are short, but a new word has no id of its own. Subwords
are in between, and BERT uses them.

For each choice, a function here makes a `Tokenizer` of Hugging Face
[tokenizers](https://huggingface.co/docs/tokenizers) from a text. `save_tokenizer` writes any of these
tokenizers to files that `transformers` can read too.
"""

import json
import re
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor

from labml_bert.checks import LARGEST_VALUES
from labml_bert.checksums import parse_json, read_checked, read_sums, text_sha256, write_checked
from labml_bert.files import make_folder, unreadable
from labml_bert.stdout import hide_stderr

# These names are from the original code. `[PAD]` has id 0, the default of `BertConfig.pad_token_id`.
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# The files that `save_tokenizer` writes. Only a WordPiece tokenizer has `vocab.txt`.
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt")
# The special tokens of `[CLS] A [SEP] B [SEP]`, with their token types.
CLS_SEP_SEP = [("[CLS]", 0), ("[SEP]", 0), ("[SEP]", 1)]
# A word with more characters than this is split before a subword vocabulary is learned.
LONGEST_WORD = 1000


def character_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """
    ## Characters

    Every character of `texts` is a token, spaces and line ends included, so decoding restores these texts
    exactly. A character that isn't in `texts` becomes `[UNK]`.
    """
    characters = sorted(set().union(*texts))
    vocab = {token: i for i, token in enumerate([*SPECIAL_TOKENS, *characters])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    # A dot in the pattern would not match line ends.
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer


def word_tokenizer(texts: Iterable[str], vocab_size: int = 8192) -> Tokenizer:
    """
    ## Words

    A token is a lower-case word or a run of punctuation. The vocabulary has at most `vocab_size` tokens: the
    special tokens, and the most frequent of the other tokens that occur at least twice. Everything else
    becomes `[UNK]`. Spaces and line ends are lost. Decoding puts a space between any two tokens.

    Raises `ValueError` if `texts` is a single text, or if `vocab_size` leaves no room for a word.
    """
    if isinstance(texts, str):
        raise ValueError("texts is a single text; pass a list of texts")
    if vocab_size <= len(SPECIAL_TOKENS):
        raise ValueError(
            f"vocab_size {vocab_size} has no room beside the {len(SPECIAL_TOKENS)} special tokens; raise it"
        )
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(
        vocab_size=vocab_size, min_frequency=2, special_tokens=list(SPECIAL_TOKENS), show_progress=False
    )
    train(tokenizer, trainer, texts)
    return tokenizer


def train(tokenizer: Tokenizer, trainer: trainers.Trainer, texts: Iterable[str]) -> None:
    """Trains the tokenizer in another thread, because the library ignores Ctrl-C while it trains."""
    is_stopped = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        rest = takewhile(lambda text: not is_stopped.is_set(), texts)
        try:
            pool.submit(tokenizer.train_from_iterator, rest, trainer).result()
        finally:
            is_stopped.set()


def wordpiece_tokenizer(texts: Iterable[str], vocab_size: int = 8192, lowercase: bool = True) -> Tokenizer:
    """
    ## Subwords

    A frequent word is one token, and a rare word is several: `un`, `##usual`. The `##` marks a subword that
    continues a word. Each single character of the text is a subword too: without `##` if it starts a word
    anywhere, and with `##` if it continues one. So `[UNK]` is rare.

    `lowercase` also strips accents, as the uncased BERT does. It turns `für` into `fur`, and damages scripts
    that write vowels as marks. Without `lowercase`, all marks are kept. In both cases, as in the original
    code, each Chinese character is a word of its own. Zero-width joiners and non-joiners, which Persian and
    some Indic scripts use, are dropped. All of `texts` is held in memory, so pass a sample of a large corpus.

    The tokenizer adds `[CLS]` and `[SEP]` to a text that it encodes, unless you pass
    `add_special_tokens=False`.

    Raises `ValueError` if `texts` is a single text or empty, or if `vocab_size` is above ten million or too
    small for the special tokens and the alphabet: each character that starts a word and, with its `##`, each
    character that continues one.

    Source: [Japanese and Korean voice search](https://research.google/pubs/japanese-and-korean-voice-search/)
    for the idea; `BasicTokenizer` in `tokenization.py` of
    [google-research/bert](https://github.com/google-research/bert) for what a word is.
    """
    if isinstance(texts, str):
        raise ValueError("texts is a single text; pass a list of texts")
    if vocab_size > (most := LARGEST_VALUES["vocab_size"]):
        raise ValueError(f"vocab_size is {vocab_size}; it must be at most {most:,}")
    # Python would split words at these control characters. The tokenizer deletes them, so delete them first.
    texts = [re.sub("[\x0b\x0c\x1c-\x1f\x85]", "", text) for text in texts]
    # The library's training time grows with the square of the longest word's length.
    long_word = re.compile(rf"\S{{{LONGEST_WORD}}}")
    texts = [
        long_word.sub(r"\g<0> ", text) if max(map(len, text.split()), default=0) > LONGEST_WORD else text
        for text in texts
    ]
    specials = list(SPECIAL_TOKENS)
    pieces = train_wordpiece(texts, 0, lowercase, specials)
    # The library numbers the `##` characters in a different order in each run, and breaks ties between merges
    # by these numbers. So we learn the alphabet first, sort it, and give each character a fixed number.
    alphabet = sorted(pieces.keys() - {*specials})
    if not alphabet:
        raise ValueError("there is no text to train a tokenizer on; use a file with text")
    if vocab_size < len(specials) + len(alphabet):
        raise ValueError(
            f"vocab_size {vocab_size} is too small for the alphabet of this text, {len(alphabet)} pieces and "
            f"{len(specials)} special tokens; raise it to at least {len(specials) + len(alphabet)}"
        )
    vocab = train_wordpiece(texts, vocab_size, lowercase, specials + alphabet)
    tokenizer = untrained_wordpiece(vocab, lowercase)
    tokenizer.add_special_tokens(specials)
    add_cls_sep(tokenizer)
    return tokenizer


def add_cls_sep(tokenizer: Tokenizer) -> None:
    """Makes the tokenizer turn a text into `[CLS] A [SEP]`, and a pair into `[CLS] A [SEP] B [SEP]`."""
    cls_id, sep_id = (tokenizer.token_to_id(token) for token in ("[CLS]", "[SEP]"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", cls_id), ("[SEP]", sep_id)],
    )


def untrained_wordpiece(vocab: dict[str, int], lowercase: bool) -> Tokenizer:
    """
    Returns a WordPiece tokenizer with this vocabulary. It splits text into words as the original code does.
    """
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=lowercase, lowercase=lowercase
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    return tokenizer


def train_wordpiece(texts: list[str], vocab_size: int, lowercase: bool, first: list[str]) -> dict[str, int]:
    """Learns a vocabulary that starts with `first`. If `vocab_size` is 0, only the alphabet is added."""
    tokenizer = untrained_wordpiece({}, lowercase)
    trainer = trainers.WordPieceTrainer(vocab_size=vocab_size, special_tokens=first, show_progress=False)
    # A cut is at a line end or before a space, because no word is longer than `LONGEST_WORD`.
    train(tokenizer, trainer, (piece for text in texts for piece in split_lines(text)))
    return tokenizer.get_vocab(with_added_tokens=False)


def special_token_ids(tokenizer: Tokenizer) -> list[int]:
    """Returns the ids of those `SPECIAL_TOKENS` that the tokenizer has, in that order."""
    ids = (tokenizer.token_to_id(token) for token in SPECIAL_TOKENS)
    return [i for i in ids if i is not None]


def cls_sep_ids(tokenizer: Tokenizer) -> tuple[int, int]:
    """Returns the ids of `[CLS]` and `[SEP]`. Raises `ValueError` if the tokenizer lacks one of them."""
    cls_id, sep_id = (tokenizer.token_to_id(token) for token in ("[CLS]", "[SEP]"))
    if cls_id is None or sep_id is None:
        raise ValueError("the tokenizer has no [CLS] or no [SEP]; add both with add_special_tokens")
    return cls_id, sep_id


def template(tokenizer: Tokenizer, is_pair: bool = False) -> list[tuple[str, int]]:
    """Returns the special tokens that the tokenizer adds to a text or a pair, each with its token type."""
    encoding = plain_tokenizer(tokenizer).encode("", "" if is_pair else None)
    return [*zip(encoding.tokens, encoding.type_ids, strict=True)]


def adds_cls_sep(tokenizer: Tokenizer) -> bool:
    """Whether the tokenizer adds `[CLS]` and `[SEP]`. Raises `ValueError` if it adds something else."""
    added = template(tokenizer)
    if added not in ([], CLS_SEP_SEP[:2]):
        tokens = " ".join(token for token, _ in added)
        raise ValueError(
            f"the tokenizer adds {tokens} to a text; use one that adds [CLS] and [SEP], or nothing"
        )
    return bool(added)


def encode_corpus(tokenizer: Tokenizer, documents: list[str]) -> Tensor:
    """
    ## A corpus as one row of ids

    Returns the ids of all documents, each followed by an empty line, as a one-dimensional int64 tensor.
    """
    # Pieces of about 10,000 characters let the library use all cores, and keep its bookkeeping small.
    pieces = [piece for text in documents for piece in split_lines(text + "\n\n")]
    return torch.tensor([i for ids in encode_texts(tokenizer, pieces) for i in ids], dtype=torch.int64)


def count_unknown(tokenizer: Tokenizer, token_ids: list[int]) -> int:
    """Counts the ids of `[UNK]`. Their tokens in an `Encoding` may be the original text instead."""
    return sum(i == tokenizer.token_to_id("[UNK]") for i in token_ids)


def unknown_fraction(tokenizer: Tokenizer, input_ids: Tensor, texts: Iterable[str] = ()) -> float:
    """The fraction of `[UNK]` in the ids, or of `texts` in words too long for WordPiece if that's larger."""
    unknown_id = tokenizer.token_to_id("[UNK]")
    fraction = 0.0 if unknown_id is None else (input_ids == unknown_id).float().mean().item()
    if not isinstance(tokenizer.model, models.WordPiece):
        return fraction
    longest, total, too_long = tokenizer.model.max_input_chars_per_word, 0, 0
    for word in (word for text in texts for word in text.split()):
        total += len(word)
        if len(word) > longest:
            text = tokenizer.normalizer.normalize_str(word) if tokenizer.normalizer else word
            parts = (
                tokenizer.pre_tokenizer.pre_tokenize_str(text) if tokenizer.pre_tokenizer else [(text, ())]
            )
            too_long += sum(len(part) for part, _ in parts if len(part) > longest)
    return max(fraction, too_long / max(total, 1))


def encode_texts(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    """
    Returns the ids of each whole text, without adding special tokens. If a text contains the characters
    `[MASK]`, they are text, not a mask, provided that the tokenizer splits such words into parts.
    """
    tokenizer = plain_tokenizer(tokenizer)
    setting = tokenizer.encode_special_tokens
    tokenizer.encode_special_tokens = True
    try:
        # Ctrl-C is handled only between two calls of the library, so don't encode all texts in one call.
        return [
            encoding.ids
            for start in range(0, len(texts), 100)
            for encoding in tokenizer.encode_batch_fast(texts[start : start + 100], add_special_tokens=False)
        ]
    finally:
        tokenizer.encode_special_tokens = setting


def plain_tokenizer(tokenizer: Tokenizer) -> Tokenizer:
    """Returns the tokenizer. If it pads or truncates texts, returns a copy that does neither."""
    if tokenizer.padding is None and tokenizer.truncation is None:
        return tokenizer
    tokenizer = Tokenizer.from_str(tokenizer.to_str())
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def joins_with_spaces(tokenizer: Tokenizer) -> bool:
    """Whether no token contains a space, as in WordPiece, so that decoding puts spaces between words."""
    return isinstance(tokenizer.decoder, decoders.WordPiece | decoders.BPEDecoder | None)


def token_text(tokenizer: Tokenizer, token_id: int) -> str:
    """
    Returns the text of a token, or `?` if there is no such token. A byte-level vocabulary spells each byte as
    a letter, for example a space as `Ġ`, and SentencePiece spells a space as `▁`, so their tokens have to be
    decoded. A token that is only part of a character becomes `�`. A token of WordPiece keeps its `##`, which
    says that it continues a word.
    """
    token = tokenizer.id_to_token(token_id)
    if token is None or isinstance(tokenizer.decoder, decoders.WordPiece | None):
        return token or "?"
    text = tokenizer.decode([token_id], skip_special_tokens=False)
    # Decoding drops a space at the start of a text.
    return " " + text if token.startswith("▁") and not text.startswith(" ") else text


def split_lines(text: str, size: int = 10_000) -> list[str]:
    """
    Splits `text` into pieces of about `size` characters, and at most twice as many. Cuts at a line end, at a
    space if no line end is near, or else anywhere. Joined, the pieces give `text` again.
    """
    pieces, start = [], 0
    while start < len(text):
        limit = start + 2 * size
        end = text.find("\n", start + size, limit) + 1
        if not end:
            # Some tokenizers read a space as the start of the next word, so cut before it.
            space = text.find(" ", start + size, limit)
            end = len(text) if len(text) <= limit else space if space > 0 else limit
        pieces.append(text[start:end])
        start = end
    return pieces


def load_tokenizer(path: Path, vocab_size: int | None = None) -> Tokenizer:
    """
    Reads a `tokenizer.json`. `vocab_size`, if set, is the vocabulary size of the tokenizer's model.

    Raises `ValueError` if the file is missing or damaged, if it isn't a tokenizer or lacks one of
    `SPECIAL_TOKENS`, if the ids have gaps, or if there aren't `vocab_size` tokens.
    """
    try:
        data = read_checked(path)
    except FileNotFoundError:
        raise ValueError(
            f"no tokenizer at {path}; use the folder of a finished run, or save the model's fast tokenizer "
            "there with transformers"
        ) from None
    except OSError as error:
        raise unreadable(error.filename, error.strerror) from None
    try:
        # The Rust code of the library prints a message before it turns a panic into an exception.
        with hide_stderr():
            tokenizer = Tokenizer.from_buffer(data)
            # `transformers` saves how it last truncated and padded. We never want the tokenizer to do either.
            tokenizer.no_truncation()
            tokenizer.no_padding()
            # A special token that is only an entry of the vocabulary would be split like any other text.
            names = {t.content for t in tokenizer.get_added_tokens_decoder().values() if t.special}
            entries = [t for t in SPECIAL_TOKENS if tokenizer.token_to_id(t) is not None]
            tokenizer.add_special_tokens([t for t in entries if t not in names])
            # Some defects show up only when the tokenizer encodes an unknown character or word, or a pair.
            text = "a \ue000 \ua66e " + "x" * 200
            ids = [*tokenizer.encode(text).ids, *tokenizer.encode(text, "b").ids]
        if max(ids, default=0) >= tokenizer.get_vocab_size():
            raise ValueError(
                f"it gives a text the id {max(ids)}, and has {tokenizer.get_vocab_size()} tokens"
            )
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # A panic of the library is not an `Exception`.
        raise ValueError(f"{path} is not a tokenizer ({error}); put the model's tokenizer there") from None
    missing = [token for token in SPECIAL_TOKENS if tokenizer.token_to_id(token) is None]
    if missing:
        raise ValueError(f"the tokenizer {path} has no {', '.join(missing)}; use one with BERT's tokens")
    if sorted(tokenizer.get_vocab().values()) != list(range(tokenizer.get_vocab_size())):
        raise ValueError(f"the ids of the tokenizer {path} are not 0, 1, 2, …; train it again")
    if vocab_size is not None and (size := tokenizer.get_vocab_size()) != vocab_size:
        # Some models have more embeddings than tokens, for example a multiple of 64.
        resize = f", or call the model's resize_token_embeddings({size}) and save it" * (size < vocab_size)
        raise ValueError(
            f"the tokenizer in {path.parent} has {size} tokens, the model {vocab_size}; use the tokenizer "
            f"that was saved with the model{resize}"
        )
    return tokenizer


def check_same_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """
    Raises `ValueError` if the run in `folder` was started with a different tokenizer. Accepts a damaged or
    missing `tokenizer.json` if `SHA256SUMS` lists the same tokenizer, because the file will be written again.
    """
    text = plain_tokenizer(tokenizer).to_str(pretty=True)
    try:
        is_same = parse_json(read_checked(folder / "tokenizer.json")) == parse_json(text)
    except (OSError, ValueError):
        digest = text_sha256(text)
        is_same = read_sums(folder).get("tokenizer.json", digest) == digest
    if not is_same:
        raise ValueError(
            f"the tokenizer has changed since {folder} was started; use the text, the model and the new "
            "tokens as they were, or start a new run"
        )


def save_tokenizer(tokenizer: Tokenizer, folder: Path, **settings: object) -> None:
    """
    ## For `transformers` too

    Writes `tokenizer.json` and `tokenizer_config.json`. For BERT's WordPiece, also writes `vocab.txt`, with
    one token per line. `AutoTokenizer.from_pretrained(folder)` then gives the same ids as `tokenizer`. For
    BERT's WordPiece, it returns a `BertTokenizer`, rebuilt from the vocabulary and from the settings in
    `tokenizer_config.json`. The arguments in `settings` are added to this file.
    """
    make_folder(folder)
    write_checked(folder / "tokenizer.json", plain_tokenizer(tokenizer).to_str(pretty=True))
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    config: dict[str, object] = dict(zip(names, SPECIAL_TOKENS, strict=True))
    config |= {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    if is_bert_wordpiece(tokenizer):
        config |= {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": tokenizer.normalizer.lowercase,
            "strip_accents": tokenizer.normalizer.strip_accents,
            "tokenize_chinese_chars": tokenizer.normalizer.handle_chinese_chars,
        }
        pieces = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
        write_checked(folder / "vocab.txt", "\n".join(piece for piece, _ in pieces))
    write_checked(folder / "tokenizer_config.json", json.dumps(config | settings, indent=2))


def is_bert_wordpiece(tokenizer: Tokenizer) -> bool:
    """Whether `BertTokenizer`, with the settings that `save_tokenizer` saves, gives the same ids."""
    settings = json.loads(tokenizer.to_str())
    expected = json.loads(untrained_wordpiece({}, False).to_str())
    for parts in (settings, expected):
        parts["model"]["vocab"] = None
        for name in ("lowercase", "strip_accents", "handle_chinese_chars"):
            (parts["normalizer"] or {}).pop(name, None)
    has_template = template(tokenizer, is_pair=True) == CLS_SEP_SEP
    return has_template and all(settings[p] == expected[p] for p in ("normalizer", "pre_tokenizer", "model"))


def read_settings(folder: Path) -> dict[str, Any]:
    """
    Returns the settings in `tokenizer_config.json`, or an empty dictionary if there is no such file.

    Raises `ValueError` if the file is damaged, has been deleted, or isn't a JSON object, and `OSError` if it
    can't be read.
    """
    path = folder / "tokenizer_config.json"
    try:
        data = read_checked(path)
    except FileNotFoundError:
        return {}
    try:
        return dict(parse_json(data))
    except (ValueError, TypeError):
        raise ValueError(f"{path} is not a JSON object; remove it or save the classifier again") from None
