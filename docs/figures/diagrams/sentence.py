"""
# The sentence in the diagrams

All chapters use it, with the same tokens, ids and masked token.
"""

from labml_bert.data.tokenizers import word_tokenizer

SENTENCES = ["the cat sat on the mat", "the dog ran to the cat"]
IDS = word_tokenizer(SENTENCES * 2).get_vocab()
VOCAB = sorted(IDS, key=lambda token: IDS[token])
FIRST, SECOND = (sentence.split() for sentence in SENTENCES)
TOKENS = ["[CLS]", *FIRST, "[SEP]"]
TARGET = "sat"
POSITION = TOKENS.index(TARGET)


def replace_target(token: str) -> list[str]:
    """The tokens of the sentence, with another one at the chosen position."""
    return [*TOKENS[:POSITION], token, *TOKENS[POSITION + 1 :]]


MASKED = replace_target("[MASK]")
