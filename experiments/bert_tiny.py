r"""
# All of BERT in ten minutes

Does the recipe of the paper work on a laptop? Both tasks at once, words in pieces, pairs of texts, short
sequences for nine tenths of the time and long ones for the rest. It is the original with every size scaled
down:

| what | BERT base | here |
|---|---|---|
| layers, width, heads | 12, 768, 12 | 4, 128, 4 |
| vocabulary | 30,522 | 4,096 |
| length, for how long | 128 for 90%, then 512 | 32 for 90%, then 128 |
| tokens in a step | 32,768, then 131,072 | 2,048 |
| text | 3.3 billion words | 2 million characters |
| copies of the text, with other pairs | 10 | 10 |
| peak of the learning rate | 1e-4 | 2e-3 |

A narrow model takes a higher rate, and a short run needs one. All else is as published: 15% masked, dropout
0.1, the two losses added, weights decayed but for biases and norms, gradients clipped at 1, the rate up and
then down to zero.

The pairs are judged on documents that the model never saw. So there is one more number to read than in a
masked run: the share of pairs told apart, beside the share of the larger class.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # A clone runs without being installed.
from labml_bert.run import script  # noqa: F401  # isort: skip

from labml_bert.run.pair_run import Options, main

DEFAULTS = Options(experiment="bert_tiny")

if __name__ == "__main__":
    main(DEFAULTS, "Pretrain a small BERT on both tasks, from text to a model that transformers loads.")
