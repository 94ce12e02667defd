r"""
# A bag-of-words baseline

Does a classifier need to read at all? For many tasks it's enough to know which words occur. A linear model on
word counts knows nothing about order or meaning, but it can be hard to beat. So it is the baseline for
`finetuning.py`. It gets a fair chance: its one hyperparameter is tuned, like the network's learning rate.

Two things decide how much a word counts. A word counts less if many texts contain it. It counts more if a
text repeats it, but only logarithmically. For a word that occurs `tf` times in a text, and in `df` of `N`
texts:

$$x_w = (1 + \ln tf_w) \left(1 + \ln \frac{1 + N}{1 + df_w}\right), \qquad x \leftarrow x / \lVert x \rVert$$

This is TF-IDF. On top of it comes a multinomial logistic regression with a penalty on the size of its
weights:

$$
\min_{W, b} \; -\frac1N \sum_i \log \operatorname{softmax}(W x_i + b)_{y_i}
  + \frac{\lambda}{2} \lVert W \rVert^2
$$

Both come from [scikit-learn](https://scikit-learn.org), the first thing to try on a new task. Only the
treatment of text *pairs* is our own.

Letters for sizes: `N` texts, `K` classes.
"""

import re
import shlex
import sys
import unicodedata
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec

import torch
from tokenizers.normalizers import BertNormalizer
from torch import Tensor

from labml_bert.labeled_text import Example, choose_hyperparameter

SPACES_AROUND_CHINESE = BertNormalizer(clean_text=False, strip_accents=False, lowercase=False)
PENALTIES = (1e-6, 1e-5, 1e-4, 1e-3)


def check_scikit_learn_is_here() -> None:
    """Raises `ValueError` if scikit-learn isn't installed."""
    if find_spec("sklearn") is None:
        python = shlex.quote(sys.executable)
        raise ValueError(
            f"a bag of words needs scikit-learn; install it with: {python} -m pip install scikit-learn"
        )


def split_words(text: str) -> list[str]:
    """
    ## The words

    Words are runs of letters, accents, digits and underscores, in lower case. A Chinese character is a word.
    """
    if text.isascii():
        return re.findall(r"\w+", text.lower())
    text = SPACES_AROUND_CHINESE.normalize_str(text).lower()
    accents = "".join(c for c in {*text} if unicodedata.category(c)[0] == "M")
    return re.findall(rf"[\w{accents}]+", text)


def words(example: Example) -> list[str]:
    """
    Returns the words of an example. In a pair, each word is marked as from the first or second text. A
    word that both texts contain is counted a third time, because the words in common are all that two bags of
    words say about how their texts are related.
    """
    first = split_words(example.text)
    if example.pair is None:
        return first
    second = split_words(example.pair)
    both = Counter(first) & Counter(second)
    return [f"1 {w}" for w in first] + [f"2 {w}" for w in second] + [f"both {w}" for w in both.elements()]


class BagOfWords:
    r"""
    ## The model

    Fits a model of `classes` classes to `examples`; `penalty` is the $\lambda$ above. Words that no example
    contains are ignored in predictions.
    """

    def __init__(self, examples: Sequence[Example], classes: int, penalty: float):
        from sklearn.dummy import DummyClassifier
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline

        self.classes = classes
        labels = [int(example.label) for example in examples]
        # scikit-learn multiplies the *sum* of the losses by `C`, so C = 1 / (λN). For two classes it fits
        # only the difference of the two rows of W. That difference has twice the squared norm of W.
        kinds = len(set(labels))
        C = (2 if kinds == 2 else 1) / (penalty * len(examples))
        self.pipeline = make_pipeline(
            TfidfVectorizer(analyzer=words, sublinear_tf=True),
            # With one class there is nothing to learn, and `LogisticRegression` raises an error.
            LogisticRegression(C=C, tol=1e-6, max_iter=1000) if kinds > 1 else DummyClassifier(),
        )
        self.pipeline.fit(examples, labels)

    def predict(self, examples: Sequence[Example]) -> Tensor:
        """
        Returns the log-probability of each class for each example, `(N, K)`. A class without any training
        example gets the logarithm of 1e-12.
        """
        probabilities = torch.full((len(examples), self.classes), 1e-12, dtype=torch.float32)  # (N, K)
        predictions = torch.from_numpy(self.pipeline.predict_proba(examples)).float()
        probabilities[:, self.pipeline.classes_] = predictions.clamp(min=1e-12)
        return probabilities.log()


def tune(examples: Sequence[Example], classes: int, seed: int = 0) -> BagOfWords:
    """Chooses the penalty on a fifth of the examples, then fits a bag of words to all of the examples."""

    def attempt(penalty: float, rest: list[Example], fifth: list[Example]) -> Tensor:
        return BagOfWords(rest, classes, penalty).predict(fifth)

    return BagOfWords(examples, classes, choose_hyperparameter(PENALTIES, examples, attempt, seed))
