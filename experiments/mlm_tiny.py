"""
# A masked language model in three minutes

Does a BERT learn anything on a laptop while you wait? Type `make train` and watch: four layers, one
token a character, text that every Python installation carries.

The curve has a story. For the first part the model sits at the loss of a frequency table, the
plateau on which many people give up. It leaves it early because training starts with sequences of
16 characters and ends with 128.
"""

from labml_bert.mlm_run import Options, main

# The values were chosen on tiny Shakespeare, within three minutes on two cores.
DEFAULTS = Options(experiment="mlm_tiny")

if __name__ == "__main__":
    main(DEFAULTS, "Train a masked language model of characters in three minutes.")
