"""
# The same with words

What changes when a token is a word? The sequences get short and the vocabulary large. Most words are
rare: a text of a few megabytes shows each of them a handful of times. So in three minutes this model
leaves the plateau, but it stays above the table of the two neighbours, which its sibling `mlm_tiny.py`
leaves far behind. A table needs to see a pair of words once to use it; a model has to learn each word's
vector first. More text helps here, and so do word pieces.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # A clone runs without being installed.
from labml_bert.run import script  # noqa: F401  # isort: skip

from labml_bert.run.mlm_run import Options, main

# A word says more than a character, so 64 of them are a long context. At the rate that suits characters,
# 3e-3, this model did not leave the plateau in three minutes: with thousands of answers to choose from, a
# step's gradient is mostly noise.
DEFAULTS = Options(
    experiment="mlm_words",
    tokenizer="word",
    schedule="8:3,16:1,32:1,64:3",
    max_position_embeddings=64,
    learning_rate=1e-3,
)

if __name__ == "__main__":
    main(DEFAULTS, "Train a masked language model of words in three minutes.")
