r"""
# A masked language model in three minutes

Does a BERT learn anything on a laptop while you wait? Type `make train` and watch: four layers, one
token a character, text that every Python installation carries.

The curve has a story. At first the loss falls to that of a frequency table and stays there. This is
the plateau on which many people give up. Then the model finds that a character depends on its
neighbours, passes the table that counts neighbours, and goes on. How long the plateau lasts is a
matter of a few choices, and each default here is one:

- **Sequences of 16 first**, for more than a third of the time. With 15 suspects instead of 127 it is
  soon clear which neighbour is to blame.
- **30% masked** in training instead of the paper's 15%. Each step then has twice the signal. The
  held-out loss is always measured at 15%.
- **Weights that start at a spread of 0.04.** The published 0.02 goes with a width of 768. A sum over
  $D$ terms grows with $\sqrt D$, so a narrow model needs more to let its heads differ from each other.
- **No dropout.** In three minutes the model reads the text a few times, too few to learn it by heart.
- **A width of 128.** A wider model learns more from a token, but sees fewer of them in three minutes.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # A clone runs without being installed.
from labml_bert.run import script  # noqa: F401  # isort: skip

from labml_bert.run.mlm_run import Options, main

# The values were chosen on tiny Shakespeare, within three minutes on two cores, but for the length of
# the first stage: there 16 characters need half as long as on the Python documentation.
DEFAULTS = Options(experiment="mlm_tiny")

if __name__ == "__main__":
    main(DEFAULTS, "Train a masked language model of characters in three minutes.")
