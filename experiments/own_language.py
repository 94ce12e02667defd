r"""
# Pretrain your own language

You have text in a language, and no model that speaks it. What do you need? A folder of UTF-8 files and one
command:

    python experiments/own_language.py --corpus my_texts

It trains a vocabulary of word pieces, chooses sizes that suit the amount of text, pretrains a masked
language model, and fills a mask in a line that was held out. The folder `model` of the run opens in
`transformers`.

Nothing here knows the language. The pieces come from the text itself, with case and accents kept, because in
many languages they tell words apart.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # A clone runs without being installed.
from labml_bert.run import script  # noqa: F401  # isort: skip

from dataclasses import replace
from typing import Any

from labml_bert.data.corpora import Corpus, load_corpus
from labml_bert.run.job import parse, run
from labml_bert.run.mlm_run import HELP, UNITS, MaskedLMJob, Options
from labml_bert.run.terminal import OneLineParser, bad_input_ends_here, header
from labml_bert.training.distributed import only_first_speaks

DEFAULTS = Options(experiment="own_language", tokenizer="wordpiece", schedule="16:3,32:1,64:1,128:3")

# From how many characters of text, a width and a number of blocks. A model with far more parameters than the
# text has pieces learns it by heart. The last row is BERT base, which was trained on about 16 billion.
SIZES = [(0, 128, 4), (20_000_000, 256, 6), (200_000_000, 512, 8), (2_000_000_000, 768, 12)]
# A piece must be met often before its vector means anything: about a hundred times on average, at four
# characters a piece.
CHARACTERS_A_PIECE = 400
# The original read its text 40 times. A small text is read 40 times before the model leaves the plateau.
PASSES, FEWEST_STEPS, MOST_STEPS = 40, 6_000, 1_000_000


def choose(corpus: Corpus) -> dict[str, Any]:
    r"""
    ## What suits the text

    The options that depend on the amount of text, by name. The alphabet must fit into the vocabulary twice,
    since a character can begin a word or continue one; a script with thousands of characters so gets a
    larger vocabulary. The spread of the first weights follows the width $D$, as $0.02\sqrt{768 / D}$, so that
    a sum over $D$ of them starts as large as in BERT base.
    """
    characters = sum(map(len, corpus.train))
    alphabet = len(set().union(*corpus.train))
    pieces = min(30_000, max(1_000, characters // CHARACTERS_A_PIECE))
    vocab_size = max(pieces, 2 * alphabet + 500)
    width, layers = [(width, layers) for least, width, layers in SIZES if characters >= least][-1]
    steps = PASSES * characters // 4 // DEFAULTS.batch_tokens
    return {
        "vocab_size": vocab_size,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": width // 32 if width < 512 else width // 64,
        "initializer_range": round(0.02 * (768 / width) ** 0.5, 3),
        "learning_rate": {128: 2e-3, 256: 1e-3, 512: 5e-4, 768: 1e-4}[width],
        "steps": min(max(steps, FEWEST_STEPS), MOST_STEPS),
        "minutes": None,
    }


def main(argv: list[str] | None = None) -> None:
    """
    Chooses, says what it chose and why, and runs. An option on the command line goes before the choice; a run
    that is resumed keeps what it was started with.
    """
    argv = sys.argv[1:] if argv is None else argv
    first = OneLineParser(add_help=False)
    first.add_argument("--corpus", default=DEFAULTS.corpus)
    first.add_argument("--resume")
    with only_first_speaks():
        known = first.parse_known_args(argv)[0]
    defaults = DEFAULTS
    asks_for_help = {"-h", "--help"} & {*argv}
    if known.resume is None and not asks_for_help:
        with bad_input_ends_here():
            defaults = replace(DEFAULTS, **choose(load_corpus(known.corpus)))
    description = "Pretrain a masked language model on text in any language."
    options, given = parse(defaults, description, argv, HELP, {"tokenizer": [*UNITS]})
    steps = f"{options.steps:,} steps" if options.minutes is None else f"{options.minutes:g} minutes"
    chosen = given.resume is None and options.steps == defaults.steps
    why = f": {PASSES} passes over the text, but at least {FEWEST_STEPS:,} steps" if chosen else ", as asked"
    header(
        "What suits this text",
        {
            "vocabulary": f"{options.vocab_size:,}, a piece for {CHARACTERS_A_PIECE} characters or more",
            "model": f"{options.num_hidden_layers} layers, {options.hidden_size} wide, growing with the text",
            "training": steps + why,
        },
    )
    run(defaults, MaskedLMJob, options, given)


if __name__ == "__main__":
    main()
