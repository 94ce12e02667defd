"""
# The same with words

What changes when a token is a word? The sequences get short, the vocabulary large, and most words
are rare. A text of a few megabytes shows each of them a handful of times, so this model is further
from good English than its sibling `mlm_tiny.py`, and its guesses are whole words that one can read.
"""

from labml_bert.mlm_run import Options, main

# A word says more than a character, so 64 of them are a long context.
DEFAULTS = Options(
    experiment="mlm_words",
    tokenizer="word",
    schedule="8:3,16:1,32:1,64:3",
    max_position_embeddings=64,
)

if __name__ == "__main__":
    main(DEFAULTS, "Train a masked language model of words in three minutes.")
