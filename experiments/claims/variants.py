"""
# The same run with one thing changed

A claim compares two runs that differ in one point. Most points are options of the two jobs, for sequences and
for pairs. The others stand here, because nobody who trains a model wants them: each is how somebody else does
it, or how one should not.
"""

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from labml_bert.bert import BertConfig, BertEncoder
from labml_bert.data.curriculum import Curriculum, Stage
from labml_bert.mlm import IGNORE, MaskedLMOutput, MaskedTokens, TokenMasker, masked_lm_output
from labml_bert.models import BertForMaskedLM
from labml_bert.run import mlm_run, pair_run
from labml_bert.run.mlm_run import MaskedLMJob
from labml_bert.run.pair_run import PairJob

Options = dict[str, Any]


@dataclass(frozen=True)
class Variations:
    """
    ## What an arm can change

    Beside the options of the two jobs. The values here change nothing.
    """

    # Whether a window is put at a random place among the positions, or always at the first.
    offsets: bool = True
    # How the length grows: by the stages of the schedule, evenly, or when the loss stands still.
    growth: str = "stages"
    # Each token sees those before it, and the question is the next one.
    causal: bool = False
    # Shares of the chosen tokens; the rest is kept as it is.
    mask_replace_prob: float = 0.8
    random_replace_prob: float = 0.1
    # The share that is chosen on pairs; the other job has an option for it.
    mlm_probability: float = 0.15
    next_sentence: bool = True
    tied: bool = True
    head_dense: bool = True
    head_norm: bool = True
    # Spread of the three embeddings, where it is not that of all other weights.
    embedding_std: float | None = None
    # The other job has an option for this one.
    adam: str = "corrected"


class Growing(Curriculum):
    """
    ## How the length grows

    `stages` as in the schedule. `linear` in steps of eight, for as long as the stages would grow. `plateau`
    goes to the next length when 200 steps were not better by 0.02 nats than the 200 before. In all three the
    last length has the same share of the run at least.
    """

    def __init__(self, plain: Curriculum, growth: str, offsets: bool):
        super().__init__(
            plain.token_ids,
            plain.stages,
            plain.batch_tokens,
            plain.max_position_embeddings,
            plain.generator,
            plain.frame,
        )
        if growth not in ("stages", "linear", "plateau"):
            raise ValueError(f"growth is {growth!r}; it must be stages, linear or plateau")
        self.growth, self.offsets = growth, offsets
        self.at, self.losses = 0, list[float]()

    def length(self, progress: float) -> int:
        """The length in force when the share `progress` of the budget is spent."""
        grows_until = 1 - self.stages[-1].share
        if self.growth == "stages":
            return super().length(progress)
        first, last = self.stages[0].length, self.stages[-1].length
        if progress >= grows_until:
            return last
        if self.growth == "linear":
            return first + int((last - first) * progress / grows_until) // 8 * 8
        return self.stages[self.at].length

    def saw(self, loss: float) -> None:
        """The training loss of a step."""
        self.losses.append(loss)
        if len(self.losses) == 400:
            before, after = sum(self.losses[:200]) / 200, sum(self.losses[200:]) / 200
            if before - after < 0.02:
                self.at = min(self.at + 1, len(self.stages) - 1)
                self.losses = []
            else:
                self.losses = self.losses[200:]

    def batch(self, progress: float) -> Any:
        """The next random windows."""
        batch = super().batch(progress)
        if self.offsets:
            return batch
        return batch._replace(position_ids=batch.position_ids - batch.position_ids[:, :1])


class NextToken(TokenMasker):
    """
    ## The question of a left-to-right model

    Nothing is covered, and the label of a place is the token after it.
    """

    def __call__(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, word_ids: Tensor | None = None
    ) -> MaskedTokens:
        """`(B, T)`. At a share `mlm_probability` of the places, drawn by lot; the last has no next token."""
        labels = torch.full_like(input_ids, IGNORE)  # (B, T)
        following = input_ids[:, 1:]
        asked = (self.rand(following) < self.mlm_probability) & ~self.is_special[following]
        labels[:, :-1] = following.masked_fill(~asked, IGNORE)
        return MaskedTokens(input_ids, labels)


class CausalEncoder(BertEncoder):
    """
    ## The same encoder, looking back only
    """

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None,
        output_attentions: bool,
        output_positions: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Tensor, ...] | None]:
        """As `BertEncoder.forward`, without padding."""
        T = hidden_states.size(1)
        back = torch.ones(T, T, dtype=torch.bool, device=hidden_states.device).tril()  # (T, T)
        x, attentions = super().forward(hidden_states, back[None, None], output_attentions)
        if output_positions is not None:
            x = x.gather(1, output_positions[..., None].expand(-1, -1, x.size(-1)))
        return x, attentions


class UntiedMaskedLM(BertForMaskedLM):
    """
    ## An output matrix of its own
    """

    def __init__(self, config: BertConfig):
        super().__init__(config)
        self.decoder = nn.Parameter(torch.empty(config.vocab_size, config.hidden_size))
        spread = config.initializer_range
        nn.init.trunc_normal_(self.decoder, std=spread, a=-2 * spread, b=2 * spread)

    def forward(
        self,
        input_ids: Tensor,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | None = None,
        **inputs: Tensor,
    ) -> MaskedLMOutput:
        """As `BertForMaskedLM.forward`."""
        encoded, labels = self.encode(input_ids, labels, inputs)
        hidden = encoded.last_hidden_state
        return masked_lm_output(self.cls.predictions, hidden, self.decoder, labels, num_items_in_batch)


class WindowJob(MaskedLMJob):
    """
    ## Windows of a text, varied
    """

    def __init__(self, options: mlm_run.Options, variations: Variations, device: torch.device):
        self.variations = variations
        super().__init__(options, device)
        self.curriculum: Curriculum = Growing(self.curriculum, variations.growth, variations.offsets)
        self.arguments = replace(self.arguments, adam_bias_correction=variations.adam == "corrected")
        if not variations.tied:
            self.model = UntiedMaskedLM(self.config)
        if variations.causal:
            encoder = CausalEncoder(self.config)
            encoder.load_state_dict(self.model.bert.encoder.state_dict())
            self.model.bert.encoder = encoder
        head = self.model.cls.predictions
        parts: list[nn.Module] = [head.transform.dense, nn.GELU()] if variations.head_dense else []
        if variations.head_norm:
            parts.append(head.transform.LayerNorm)
        if not (variations.head_dense and variations.head_norm):
            head.transform = nn.Sequential(*parts)  # type: ignore[assignment]
        if variations.embedding_std is not None:
            for module in self.model.bert.embeddings.modules():
                if isinstance(module, nn.Embedding):
                    nn.init.normal_(module.weight, std=variations.embedding_std)

    def make_masker(
        self,
        generator: torch.Generator,
        mlm_probability: float = 0.15,
        mask_replace_prob: float = 0.8,
        most: int | None = None,
    ) -> TokenMasker:
        """As `MaskedLMJob.make_masker`, or what asks for the next token."""
        if self.variations.causal:
            specials = self.special_ids
            return NextToken(
                self.config.vocab_size, specials[0], specials, mlm_probability, generator=generator
            )
        return super().make_masker(generator, mlm_probability, mask_replace_prob, most)

    def only(self, length: int) -> None:
        """From now on all batches have this length."""
        self.curriculum.stages = [Stage(length, 1.0)]


class TextPairJob(PairJob):
    """
    ## Pairs of texts, varied
    """

    def __init__(self, options: pair_run.Options, variations: Variations, device: torch.device):
        super().__init__(options, device)
        self.next_sentence = variations.next_sentence
        for batches in self.batches.values():
            masker = batches.collator.masker
            masker.mlm_probability = variations.mlm_probability
            masker.mask_replace_prob = variations.mask_replace_prob
            masker.random_replace_prob = variations.random_replace_prob

    def next_batch(self, progress: float) -> dict[str, Tensor]:
        """The next pairs; without the second task nobody says which belong together."""
        batch = super().next_batch(progress)
        if not self.next_sentence:
            del batch["next_sentence_label"]
        return batch

    def only(self, length: int) -> None:
        """From now on all batches have this length."""
        self.stages = [Stage(length, 1.0)]


def build(kind: str, options: Options, seed: int, device: torch.device) -> WindowJob | TextPairJob:
    """
    The parts of a run. `kind` is `masked` or `pairs`, `options` as in `experiments/claims/claims.toml`.

    Raises `ValueError` for an option that neither a job nor `Variations` has, or one that makes no sense.
    """
    options = dict(options)
    tokens = options.pop("tokens")
    defaults: mlm_run.Options | pair_run.Options = (
        mlm_run.Options("claims", minutes=None, steps=1, seed=seed)
        if kind == "masked"
        else pair_run.Options("claims", minutes=None, steps=1, seed=seed)
    )
    names = {field.name for field in fields(defaults)}
    varied = {key: value for key, value in options.items() if key not in names}
    unknown = varied.keys() - {field.name for field in fields(Variations)}
    if unknown:
        raise ValueError(f"no option {min(unknown)!r} on {kind!r}; take one of the job or of `Variations`")
    chosen = replace(defaults, **{key: value for key, value in options.items() if key in names})
    chosen = replace(chosen, steps=max(1, tokens // chosen.batch_tokens))
    torch.manual_seed(seed)
    if isinstance(chosen, mlm_run.Options):
        return WindowJob(chosen, Variations(**varied), device)
    return TextPairJob(chosen, Variations(**varied), device)
