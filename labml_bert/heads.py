r"""
# Heads for your own task

How do you get from the vectors of an encoder to the answer that you need? You put a linear layer on top of
them. The tasks differ only in which vectors the layer reads, and in what the softmax is over:

| class | vectors that the layer reads | one softmax for each | over |
|---|---|---|---|
| `BertForSequenceClassification` | `[CLS]`, pooled | text or pair of texts | `K` classes |
| `BertForTokenClassification` | all tokens | token | `K` classes |
| `BertForQuestionAnswering` | all tokens | start and end of an answer | `T` positions |
| `BertForMultipleChoice` | `[CLS]`, pooled | question | `C` choices |

The linear layer is new, while the encoder starts from what it learned from plain text. `finetuning.py` has
the recipe. Every parameter has the same name and shape as in `transformers`, so each library can read a
folder that the other wrote.

Letters for sizes: `B` texts in the batch, `T` tokens in the longest of them, `D` hidden size, `K` classes,
`C` choices per question.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch.nn.functional as F
from torch import Tensor, nn

from labml_bert.bert import BertConfig, init_weights
from labml_bert.checksums import reading
from labml_bert.mlm import IGNORE, masked_lm_loss
from labml_bert.model_folder import MODEL_FILES, read_json
from labml_bert.models import BertPreTrainedModel

# Parameters with these prefixes start with new values, even if the folder has a head with the same names. The
# pooler is an exception: it's new only if the model was pretrained without next sentence prediction.
NEW_PARAMETERS = ("classifier.", "qa_outputs.", "bert.pooler.")


class BertForFineTuning(BertPreTrainedModel):
    """
    ## Starting from a pretrained model

    This is the base class of the models below. `self.bert` is the encoder. Load each of them from a
    pretrained folder like this:

        BertForTokenClassification.from_pretrained(
            folder, new_parameters=NEW_PARAMETERS, labels=["other", "name"]
        )

    A model that we pretrained on masked LM alone has no pooler, and has never seen a token of the second
    segment. The pooler and the embedding of that segment then start untrained, so your labeled examples have
    to train them too.
    """

    @classmethod
    def from_pretrained(
        cls, folder: Path | str, new_parameters: Sequence[str] = (), **arguments: Any
    ) -> Self:
        """
        Works like `BertPreTrainedModel.from_pretrained`. Also raises `ValueError` if the folder has a model
        with another head and you pass no `new_parameters`, or if its `classifier_dropout` isn't from 0 to 1.
        The layers of two heads can have the same name and shape, so the tensors don't tell the heads apart.
        """
        with reading(Path(folder), *MODEL_FILES) as path:
            if not new_parameters:
                check_head(path, cls)
            model = super().from_pretrained(path, new_parameters, **arguments)
            p = read_json(path).get("classifier_dropout")
        if p is not None and isinstance(dropout := getattr(model, "dropout", None), nn.Dropout):
            if type(p) not in (int, float) or not 0 <= p <= 1:
                raise ValueError(f"{folder} has classifier_dropout = {p!r}; use a number from 0 to 1")
            dropout.p = p
        return model

    @property
    def extra_config(self) -> dict[str, Any]:
        """The dropout probability, if it isn't the encoder's."""
        p = getattr(getattr(self, "dropout", None), "p", self.config.hidden_dropout_prob)
        return {} if p == self.config.hidden_dropout_prob else {"classifier_dropout": p}


class BertClassifier(BertForFineTuning):
    """
    ## Classes with names

    This is the base class of the models that choose one of several classes. `labels` are the names of the
    classes, in the order of the logits. They are saved in `config.json`, so whoever loads the folder knows
    what each logit means.

    Raises `ValueError` if there are fewer than two labels, if two are the same, or if one isn't a string.
    """

    def __init__(self, config: BertConfig, labels: Sequence[str], add_pooling_layer: bool):
        super().__init__(config, add_pooling_layer)
        if isinstance(labels, str) or not all(isinstance(label, str) for label in labels):
            raise ValueError(f"the labels are {labels!r}; each must be a string in a list")
        if len(labels) < 2 or len({*labels}) < len(labels):
            raise ValueError(f"the labels are {list(labels)}; use two or more, all different")
        self.labels = list(labels)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, len(labels))
        init_weights(self.classifier, config.initializer_range)

    @property
    def extra_config(self) -> dict[str, Any]:
        """The labels in the two forms that `transformers` reads, and the kind of classification."""
        outputs, K = getattr(self.classifier, "out_features", None), len(self.labels)
        if outputs not in (None, K):
            raise ValueError(f"the classifier has {outputs} outputs, and there are {K} labels; set `labels`")
        return super().extra_config | {
            "id2label": {str(i): label for i, label in enumerate(self.labels)},
            "label2id": {label: i for i, label in enumerate(self.labels)},
            "problem_type": "single_label_classification",
        }

    @classmethod
    def from_pretrained(
        cls, folder: Path | str, new_parameters: Sequence[str] = (), **arguments: Any
    ) -> Self:
        """Works like `BertForFineTuning.from_pretrained`. By default, reads `labels` from the folder."""
        with reading(Path(folder), *MODEL_FILES) as path:
            is_run = not (path / "config.json").exists() and (path / "model" / "config.json").exists()
            if is_run and not new_parameters:
                raise ValueError(f"{folder} is a run, not a classifier; train a classifier from it")
            if "labels" not in arguments:
                arguments["labels"] = read_labels(path)
            return super().from_pretrained(path, new_parameters, **arguments)


class ClassifierOutput(NamedTuple):
    """The output of all models in this file, except for `BertForQuestionAnswering`."""

    loss: Tensor | None
    """The mean cross-entropy in nats. `None` without labels."""
    logits: Tensor
    """`(B, K)`, `(B, T, K)` for the classes of tokens, or `(B, C)` for choices. They are float32, even under
    autocast."""


class BertForSequenceClassification(BertClassifier):
    r"""
    ## A class for a text

    $$p(y \mid \text{text}) = \operatorname{softmax}(W h + b)_y$$

    Here $h$ is the pooled vector of `[CLS]`. $W$ and $b$ are new: $KD + K$ parameters for `K` classes.

    Some tasks ask about two texts: does the second follow from the first, or answer it? The two texts form
    one input, as in next sentence prediction: `[CLS] A [SEP] B [SEP]`. The segment embeddings tell the texts
    apart. The head is the same as for a single text.

    Source: [paper](https://arxiv.org/abs/1810.04805), section 4.1; `run_classifier.py` of
    [google-research/bert](https://github.com/google-research/bert).
    """

    def __init__(self, config: BertConfig, labels: Sequence[str]):
        super().__init__(config, labels, add_pooling_layer=True)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None, **inputs: Tensor) -> ClassifierOutput:
        """
        `input_ids` is `(B, T)`, and `labels` is `(B)`. `inputs` are other arguments of `BertModel.forward`.
        The loss is the mean over the batch.
        """
        pooled = self.bert(input_ids, **inputs).pooler_output  # (B, D)
        logits = self.classifier(self.dropout(pooled)).float()  # (B, K)
        loss = None if labels is None else F.cross_entropy(logits, labels)
        return ClassifierOutput(loss, logits)


class BertForTokenClassification(BertClassifier):
    """
    ## A class for each token

    Which words are names of people or places? To answer, the model gives every token a class, based on the
    token's own vector. All tokens share one linear layer. There is no pooler.

    If a word has several subwords, the paper labels only the first of them. The other subwords, the special
    tokens and padding get the label -100, which doesn't count in the loss.

    Source: [paper](https://arxiv.org/abs/1810.04805), section 5.3.
    """

    def __init__(self, config: BertConfig, labels: Sequence[str]):
        super().__init__(config, labels, add_pooling_layer=False)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None, **inputs: Tensor) -> ClassifierOutput:
        """
        `input_ids` and `labels` are `(B, T)`. `inputs` are other arguments of `BertModel.forward`. The loss
        is that of masked LM, with classes instead of the vocabulary: the mean over the labeled tokens of the
        batch, or 0 if no token is labeled.
        """
        hidden = self.bert(input_ids, **inputs).last_hidden_state  # (B, T, D)
        logits = self.classifier(self.dropout(hidden)).float()  # (B, T, K)
        loss = None if labels is None else masked_lm_loss(logits.flatten(0, 1), labels.flatten())
        return ClassifierOutput(loss, logits)


class QuestionAnsweringOutput(NamedTuple):
    """The output of `BertForQuestionAnswering`."""

    loss: Tensor | None
    """The mean cross-entropy of the answer's first and last token, in nats. `None` without positions."""
    start_logits: Tensor
    """`(B, T)`, float32, for the first token of the answer. Padding and the question have logits too. Leave
    these logits out when you pick an answer."""
    end_logits: Tensor
    """`(B, T)`, float32, for the last token of the answer."""


class BertForQuestionAnswering(BertForFineTuning):
    """
    ## A span of the text

    Where in a text is the answer to a question? The input is `[CLS] question [SEP] text [SEP]`, and the
    answer is a span of the text. The head gives every token two scores: one for being the first token of the
    answer, one for being the last. A softmax over the `T` positions turns the scores for the first token into
    probabilities, and another softmax does the same for the last token. There is no pooler, and no dropout
    before the head. If the text contains no answer, both positions are 0, the position of `[CLS]`.

    Source: [paper](https://arxiv.org/abs/1810.04805), sections 4.2 and 4.3; `run_squad.py` of
    [google-research/bert](https://github.com/google-research/bert).
    """

    def __init__(self, config: BertConfig):
        super().__init__(config, add_pooling_layer=False)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        init_weights(self.qa_outputs, config.initializer_range)

    def forward(
        self,
        input_ids: Tensor,  # (B, T)
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        **inputs: Tensor,
    ) -> QuestionAnsweringOutput:
        """
        `start_positions` and `end_positions`, `(B)`, are the positions of the answer's first and last token.
        `inputs` are other arguments of `BertModel.forward`. As in `transformers`, a position of `T` or more
        doesn't count, and a negative position stands for 0. If no position counts, the loss is 0.
        """
        hidden = self.bert(input_ids, **inputs).last_hidden_state  # (B, T, D)
        start_logits, end_logits = self.qa_outputs(hidden).float().unbind(-1)  # (B, T)
        loss = None
        if start_positions is not None and end_positions is not None:
            losses = [
                masked_lm_loss(
                    logits, positions.clamp(min=0).masked_fill(positions >= logits.size(1), IGNORE)
                )
                for logits, positions in ((start_logits, start_positions), (end_logits, end_positions))
            ]
            loss = (losses[0] + losses[1]) / 2
        return QuestionAnsweringOutput(loss, start_logits, end_logits)


class BertForMultipleChoice(BertForFineTuning):
    """
    ## One of several choices

    Which of four sentences continues a story? Each choice becomes a pair, `[CLS] story [SEP] choice [SEP]`.
    The head gives the pair a single score, and the softmax compares the scores of the choices. So the number
    of choices isn't part of the model.

    Source: [paper](https://arxiv.org/abs/1810.04805), section 4.4.
    """

    def __init__(self, config: BertConfig):
        super().__init__(config)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, 1)
        init_weights(self.classifier, config.initializer_range)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None, **inputs: Tensor) -> ClassifierOutput:
        """
        `input_ids` and `inputs`, the other arguments of `BertModel.forward`, are `(B, C, T)`. `labels`,
        `(B)`, are the indices of the right choices. The loss is the mean over the batch.
        """
        rows = {name: x.flatten(0, 1) if isinstance(x, Tensor) else x for name, x in inputs.items()}
        pooled = self.bert(input_ids.flatten(0, 1), **rows).pooler_output  # (B * C, D)
        scores = self.classifier(self.dropout(pooled)).float()  # (B * C, 1)
        logits = scores.view(input_ids.shape[:2])  # (B, C)
        loss = None if labels is None else F.cross_entropy(logits, labels)
        return ClassifierOutput(loss, logits)


def read_labels(folder: Path) -> list[str]:
    """
    ## What is in the folder

    Returns the names of the classes in `config.json`. For a model with two classes called `LABEL_0` and
    `LABEL_1`, `transformers` omits the names, so these two are the default.

    Raises `ValueError` if the ids are not 0, 1, 2, …, if there are fewer than two names, if two names are the
    same, or if the model doesn't choose exactly one class.
    """
    path, content = folder / "config.json", read_json(folder)
    problem = content.get("problem_type") or "single_label_classification"
    if problem != "single_label_classification":
        raise ValueError(
            f"{path} says problem_type = {problem!r}; only one label per text or token is supported"
        )
    names = content.get("id2label")
    if names is None:
        names = {"0": "LABEL_0", "1": "LABEL_1"}
    try:
        labels = [names[str(i)] for i in range(len(names))]
        if not all(isinstance(label, str) for label in labels):
            raise TypeError
    except (KeyError, TypeError):
        raise ValueError(f"{path} has no id2label that names 0, 1, 2, …; save the model again") from None
    if len(labels) < 2 or len({*labels}) < len(labels):
        remedy = "save a model with such labels (one with a single label predicts a number)"
        raise ValueError(f"{path} must have two or more labels, all different; {remedy}")
    return labels


def check_head(folder: Path, kind: type[BertForFineTuning]) -> None:
    """Raises `ValueError` if `config.json` says that the model has a head other than that of `kind`."""
    path, architectures = folder / "config.json", read_json(folder).get("architectures")
    classifiers = (BertForSequenceClassification, BertForTokenClassification)
    for head in (*classifiers, BertForQuestionAnswering, BertForMultipleChoice):
        if architectures == [head.__name__] and not issubclass(kind, head):
            raise ValueError(f"{path} is of a {head.__name__}; load it as one, not as a {kind.__name__}")
