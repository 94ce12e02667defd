"""The experiments on claims: their runs, their records, and whether each arm does what it says."""

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from experiments.claims import claims, scores
from experiments.claims.analysis import Analysis
from experiments.claims.options import WindowOptions, read_options
from experiments.claims.results import TUNING_SEED, Claim, Results, read_claims
from experiments.claims.training import Run, draw_batch, prepare, train
from experiments.claims.variants import UntiedMaskedLM, sequence_length
from labml_bert.checksums import parse_sealed, seal
from labml_bert.data.curriculum import parse_schedule
from labml_bert.data.docstring_tasks import Task
from labml_bert.data.masked_text import MaskedText
from labml_bert.labeled_text import Example
from labml_bert.mlm import IGNORE
from labml_bert.models import BertForMaskedLM
from labml_bert.run.fingerprint import difference, fingerprints_of
from labml_bert.training.trainer import NonFiniteLossError
from tests.support.runs import ROOT, small_text

CPU = torch.device("cpu")
CLAIMS = read_claims(claims.CLAIMS)
STUDIES = read_claims(claims.STUDIES)
SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
    "schedule": "8:3,16:1,32:4",
    "batch_tokens": 64,
    "tokens": 64 * 8,
    "precision": "float32",
}


@pytest.fixture()
def options(tmp_path: Path) -> dict[str, Any]:
    """Options for a run on windows of a text of a few thousand characters."""
    (tmp_path / "text.txt").write_text(small_text(150))
    return {**SMALL, "corpus": str(tmp_path / "text.txt")}


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Options for a run on sentence pairs. The tests share a cache, so the pairs are built only once."""
    folder = tmp_path_factory.mktemp("documents")
    for i in range(30):
        (folder / f"{i:02}.txt").write_text(small_text(12, seed=i))
    small = {key: value for key, value in SMALL.items() if key != "max_position_embeddings"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield {**small, "corpus": str(folder), "schedule": "16", "vocab_size": 120}


def test_all_claims_take_less_than_twelve_hours() -> None:
    assert len(CLAIMS) == 20
    assert sum(claim.minutes for claim in CLAIMS.values()) < 720
    assert all(len(claim.first_seeds()) >= 3 for claim in CLAIMS.values())
    assert CLAIMS["short-to-long"].seeds >= 5


@pytest.mark.parametrize("name", [*(name for name, claim in CLAIMS.items() if claim.job), *STUDIES])
def test_every_option_of_a_claim_is_valid(name: str) -> None:
    """`read_options` rejects unknown options. Nothing is trained."""
    claim = (CLAIMS | STUDIES)[name]
    options = [
        read_options(claim.job, claim.options_of(arm, point))
        for arm in claim.arms
        for point in claim.grid_points()
    ]
    assert len({repr(parsed) for parsed in options}) == len(claim.arms) * len(claim.grid_points())


def test_a_causal_model_does_not_see_the_future(options: dict[str, Any]) -> None:
    run = prepare("masked", {**options, "causal": True, "mlm_probability": 1.0}, 0, CPU)
    input_ids = run.text.windows[:2].clone()
    new_ids = input_ids.clone()
    new_ids[:, 20] = (new_ids[:, 20] + 1) % run.text.vocab_size
    for causal_or_not, sees_the_future in ((run, False), (prepare("masked", options, 0, CPU), True)):
        model = causal_or_not.model.eval()
        before, after = (model.bert(ids).last_hidden_state for ids in (input_ids, new_ids))
        assert torch.equal(before[:, :20], after[:, :20]) is not sees_the_future
        assert not torch.equal(before[:, 20:], after[:, 20:])


def test_a_causal_model_gives_the_same_logits_at_some_positions_as_at_all(options: dict[str, Any]) -> None:
    run = prepare("masked", {**options, "causal": True, "mlm_probability": 0.5}, 0, CPU)
    batch = draw_batch(run, 8)
    model = run.model.eval()
    partial = model(batch["input_ids"], batch["labels"], position_ids=batch["position_ids"])
    full = model(batch["input_ids"], position_ids=batch["position_ids"]).logits
    assert torch.allclose(partial.logits, full[batch["labels"] != IGNORE], atol=1e-5)


def test_causal_labels_are_the_next_tokens_and_nothing_is_masked(options: dict[str, Any]) -> None:
    run = prepare("masked", {**options, "causal": True, "mlm_probability": 1.0}, 0, CPU)
    batch = draw_batch(run, 8)
    assert (batch["labels"][:, :-1] == batch["input_ids"][:, 1:]).all()
    assert (batch["labels"][:, -1] == IGNORE).all()
    sparse = prepare("masked", {**options, "causal": True, "mlm_probability": 0.15}, 0, CPU)
    labels = torch.stack([draw_batch(sparse, 8)["labels"] for _ in range(60)])
    assert (labels != IGNORE).float().mean().item() == pytest.approx(0.15 * 7 / 8, abs=0.03)


def test_the_held_out_labels_of_a_causal_model(options: dict[str, Any]) -> None:
    """These labels are next tokens too, at 15% of the positions, which are the same in every run."""
    runs = [
        prepare("masked", {**options, "causal": True, "mlm_probability": p}, seed, CPU)
        for seed, p in ((0, 1.0), (1, 0.15))
    ]
    for run in runs:
        input_ids, labels = run.held_out
        has_label = labels[:, :-1] != IGNORE
        assert torch.equal(input_ids, run.text.windows)
        assert torch.equal(labels[:, :-1][has_label], input_ids[:, 1:][has_label])
        assert has_label.float().mean().item() == pytest.approx(0.15, abs=0.05)
        assert torch.equal(labels, runs[0].held_out.labels)


def test_without_offsets_positions_start_at_zero(options: dict[str, Any]) -> None:
    with_offsets, without_offsets = (
        prepare("masked", {**options, "offsets": offsets}, 0, CPU) for offsets in (True, False)
    )
    a, b = draw_batch(with_offsets, 8), draw_batch(without_offsets, 8)
    assert torch.equal(a["input_ids"], b["input_ids"])
    assert (b["position_ids"] == torch.arange(8)).all()
    assert not torch.equal(a["position_ids"], b["position_ids"])


def test_linear_growth_of_the_length() -> None:
    stages = parse_schedule(SMALL["schedule"])
    lengths = [sequence_length("linear", stages, i / 16) for i in range(17)]
    assert lengths == sorted(lengths) and {*lengths} == {8, 16, 24, 32}
    assert lengths.count(32) >= 9, "the last length lasts as long as in the stages"


def test_an_unknown_growth_is_rejected(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="growth is 'fast'; choose from stages, linear"):
        prepare("masked", {**options, "growth": "fast"}, 0, CPU)


def test_each_growth_gives_its_lengths(options: dict[str, Any]) -> None:
    lengths = {
        growth: train(prepare("masked", {**options, "tokens": 64 * 16, "growth": growth}, 0, CPU))["lengths"]
        for growth in ("stages", "linear")
    }
    assert lengths == {
        "stages": [[0, 8], [6, 16], [8, 32]],
        "linear": [[0, 8], [3, 16], [6, 24], [8, 32]],
    }


def test_a_batch_that_grows_sees_as_many_tokens(options: dict[str, Any]) -> None:
    """The growing batch is a quarter, a half and all of the batch, for a third of the steps each."""
    tokens = 64 * 21
    fixed, growing = (
        train(
            prepare("masked", {**options, "schedule": "8", "tokens": tokens, "batch_ramp": ramp}, 0, CPU),
            evaluations=3,
        )
        for ramp in (False, True)
    )
    assert [step for step, _ in fixed["curve"]] == [0, 7, 14, 21]
    assert fixed["curve_tokens"] == [0, 7 * 64, 14 * 64, tokens]
    assert [step for step, _ in growing["curve"]] == [0, 12, 24, 36]
    assert growing["curve_tokens"] == [0, 12 * 16, 12 * 16 + 12 * 32, tokens]


def test_the_mask_rate_falls_during_training(options: dict[str, Any]) -> None:
    """It falls from 0.5 toward 0.125: windows of 16 tokens have 8 labels at first and 3 in the last step."""
    changes = {"schedule": "16", "tokens": 64 * 8, "mlm_probability": 0.5, "final_mlm_probability": 0.125}
    run = prepare("masked", {**options, **changes}, 0, CPU)
    assert isinstance(run.text, MaskedText)
    counts = []

    def count_labels(number: int, loss: Tensor) -> None:
        counts.append(int((run.text.batch(16)["labels"] != IGNORE).sum()) // 4)

    train(run, on_step=count_labels, evaluations=1)
    assert counts[0] == 8 and counts[-1] == 3 and counts == sorted(counts, reverse=True)


def test_muon_trains_the_matrices_of_the_blocks(options: dict[str, Any]) -> None:
    for changes in ({}, {"positions": "rotary", "pre_norm": True, "gated": True, "local_attention": 4}):
        run = prepare("masked", {**options, **changes, "optimizer": "muon"}, 0, CPU)
        _, muon = run.trainer.optimizers
        muon_ids = {id(p) for group in muon.param_groups for p in group["params"]}
        blocks = [m for m in run.model.modules() if isinstance(m, nn.ModuleList)]
        expected = {id(p) for block in blocks for p in block.parameters() if p.dim() == 2}
        assert muon_ids == expected and len(muon_ids) == 2 * 6


def test_an_untied_model_has_a_separate_output_matrix(options: dict[str, Any]) -> None:
    tied, untied = (prepare("masked", {**options, "tied": tied}, 0, CPU).model for tied in (True, False))
    count = [sum(p.numel() for p in model.parameters()) for model in (tied, untied)]
    embedding = untied.bert.embeddings.word_embeddings.weight
    assert count[1] - count[0] == embedding.numel()
    batch = torch.randint(5, 20, (2, 8))
    logits_before = untied(batch).logits
    with torch.no_grad():
        untied.decoder.mul_(2)
    assert not torch.equal(untied(batch).logits, logits_before)


def test_an_untied_model_gives_the_same_logits_at_some_positions_as_at_all(options: dict[str, Any]) -> None:
    run = prepare("masked", {**options, "tied": False}, 0, CPU)
    batch = draw_batch(run, 8)
    model = run.model.eval()
    partial = model(batch["input_ids"], batch["labels"]).logits
    assert torch.allclose(partial, model(batch["input_ids"]).logits[batch["labels"] != IGNORE], atol=1e-5)


def test_the_small_untied_model_has_as_many_parameters_as_the_tied_one() -> None:
    claim = CLAIMS["tying"]
    counts = []
    for arm in ("tied", "untied, as many parameters"):
        options = {**claim.options, **claim.arms[arm]}
        config = WindowOptions(0, hidden_size=options.get("hidden_size", 128)).model_config(4096, 128)
        kind = UntiedMaskedLM if "untied" in arm else BertForMaskedLM
        with torch.device("meta"):
            counts.append(sum(p.numel() for p in kind(config).parameters()))
    assert counts[0] == pytest.approx(counts[1], rel=0.03)


@pytest.mark.parametrize(
    ("dense", "norm", "kinds"),
    [(False, True, [nn.LayerNorm]), (True, False, [nn.Linear, nn.GELU]), (False, False, [])],
)
def test_heads_with_parts_removed(
    options: dict[str, Any], dense: bool, norm: bool, kinds: list[type]
) -> None:
    run = prepare("masked", {**options, "head_dense": dense, "head_norm": norm}, 0, CPU)
    assert [type(part) for part in run.model.cls.predictions.transform] == kinds
    assert train(run)["result"]["loss"] is not None


def test_the_standard_deviation_of_the_embeddings(options: dict[str, Any]) -> None:
    run = prepare("masked", {**options, "embedding_std": 1.0}, 0, CPU)
    assert run.model.bert.embeddings.word_embeddings.weight.std().item() == pytest.approx(1, abs=0.1)
    assert run.model.bert.encoder.layer[0].intermediate.dense.weight.std().item() < 0.1
    first_losses = [train(one)["curve"][0][1] for one in (run, prepare("masked", options, 0, CPU))]
    assert first_losses[0] > first_losses[1] + 1


def test_adam_as_published(options: dict[str, Any]) -> None:
    run = prepare("masked", {**options, "adam": "published"}, 0, CPU)
    assert not run.trainer.arguments.adam_bias_correction
    assert prepare("masked", options, 0, CPU).trainer.arguments.adam_bias_correction


def test_what_replaces_the_chosen_tokens(documents: dict[str, Any]) -> None:
    def fractions(**changes: float) -> tuple[float, float]:
        """The fractions of the chosen tokens that become [MASK] and that stay as they are."""
        run = prepare("pairs", {**documents, **changes}, 0, CPU)
        mask = run.text.tokenizer.token_to_id("[MASK]")
        batches = [draw_batch(run, 16) for _ in range(60)]
        ids, labels = (torch.cat([b[key].flatten() for b in batches]) for key in ("input_ids", "labels"))
        is_chosen = labels != IGNORE
        return (ids == mask)[is_chosen].float().mean().item(), (ids == labels)[
            is_chosen
        ].float().mean().item()

    assert fractions(mask_replace_prob=1.0, random_replace_prob=0.0) == (1.0, 0.0)
    masked, unchanged = fractions(mask_replace_prob=0.8, random_replace_prob=0.0)
    assert masked + unchanged == pytest.approx(1.0) and masked == pytest.approx(0.8, abs=0.1)
    few, many = (prepare("pairs", {**documents, "mlm_probability": p}, 0, CPU) for p in (0.15, 0.4))
    counts = [
        sum((draw_batch(run, 16)["labels"] != IGNORE).sum().item() for _ in range(20)) for run in (few, many)
    ]
    assert counts[1] > 1.8 * counts[0]


def test_the_masking_of_the_held_out_pairs_never_changes(documents: dict[str, Any]) -> None:
    other_masking = {"mlm_probability": 0.4, "mask_replace_prob": 1.0, "random_replace_prob": 0.0}
    first, second = (
        prepare("pairs", {**documents, **masking}, 0, CPU).held_out for masking in ({}, other_masking)
    )
    for a, b in zip(first, second, strict=True):
        assert all(torch.equal(a[key], b[key]) for key in a)


def test_without_next_sentence_prediction_its_head_is_not_trained(documents: dict[str, Any]) -> None:
    for enabled in (True, False):
        run = prepare("pairs", {**documents, "next_sentence": enabled}, 0, CPU)
        weight_before = run.model.cls.seq_relationship.weight.detach().clone()
        result = train(run)
        assert torch.equal(run.model.cls.seq_relationship.weight, weight_before) is not enabled
        assert result["curve"][-1][0] == 8


@pytest.fixture
def small_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task of two classes whose texts share no word."""
    texts = [("red apple tree", 0), ("blue river stone", 1)] * 10
    examples = [Example(text, label) for text, label in texts]
    task = Task("package", ["a", "b"], examples, examples, [True] * 20)
    monkeypatch.setattr(scores, "labeled_texts", lambda name: task)
    monkeypatch.setattr(scores, "LABELS", 20)
    monkeypatch.setattr(scores, "FEWEST_STEPS", 4)
    monkeypatch.setattr(scores, "TUNED_STEPS", 2)


@pytest.mark.usefixtures("small_task")
def test_scores(documents: dict[str, Any]) -> None:
    run = prepare("pairs", documents, 0, CPU)
    result = train(run)
    held_out = run.held_out
    names = ["seen_loss", "probe", "package"]
    first, second = (scores.measure_scores(run, names, 0) for _ in range(2))
    assert first == second and run.held_out is held_out
    assert first["probe"] == 1.0, "the texts of the two classes share no word"
    assert first["seen_loss"] != result["result"]["loss"]


@pytest.mark.usefixtures("small_task")
@pytest.mark.parametrize("from_scratch", [False, True])
def test_fine_tuning_starts_from_the_run_or_from_scratch(
    documents: dict[str, Any], monkeypatch: pytest.MonkeyPatch, from_scratch: bool
) -> None:
    """The score tries every learning rate on a fifth of the labels, and then trains once on all of them."""
    calls: list[tuple[float, int]] = []
    starts: list[bool] = []
    run = prepare("pairs", {**documents, "from_scratch": from_scratch}, 0, CPU)
    embedding = run.model.bert.embeddings.word_embeddings.weight
    nn.init.ones_(embedding)  # random weights with the same seed would equal those of the untrained run

    def fine_tune(model: Any, rows: list[Any], learning_rate: float, *arguments: int, seed: int) -> None:
        calls.append((learning_rate, len(rows)))
        starts.append(torch.equal(model.bert.embeddings.word_embeddings.weight, embedding))
        if len(calls) == 1:
            raise NonFiniteLossError("the loss is NaN")

    monkeypatch.setattr(scores, "fine_tune", fine_tune)
    accuracy = scores.measure_scores(run, ["package 10"], 0)["package 10"]
    assert 0 <= accuracy <= 1
    assert calls[:-1] == [(learning_rate, 8) for learning_rate in scores.LEARNING_RATES]
    assert calls[-1][0] in scores.LEARNING_RATES and calls[-1][1] == 10
    assert set(starts) == {not from_scratch}


@pytest.mark.parametrize(
    ("kind", "name"), [("masked", "color"), ("masked", "next_sentence"), ("pairs", "causal")]
)
def test_an_unknown_option_is_rejected(options: dict[str, Any], kind: str, name: str) -> None:
    """An option of the other kind of run would silently change nothing, so it's rejected as well."""
    del options["max_position_embeddings"]
    with pytest.raises(ValueError, match=f"no option '{name}' for '{kind}'"):
        prepare(kind, {**options, name: 1}, 0, CPU)


@pytest.mark.parametrize(
    "values",
    [{"tokens": "64"}, {"hidden_size": "128"}, {"causal": 1}, {"learning_rate": True}, {"schedule": 32},
     {"final_mlm_probability": "0.3"}, {"batch_tokens": [64]}],
)  # fmt: skip
def test_an_option_of_the_wrong_type_is_rejected(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(values))} is .*, which has the wrong type"):
        read_options("masked", {"tokens": 1, **values})


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("masked", {"causal": True, "positions": "rotary"}),
        ("masked", {"causal": True, "pre_norm": True}),
        ("masked", {"causal": True, "biases": False}),
        ("masked", {"causal": True, "local_attention": 8}),
        ("masked", {"positions": "sinusoidal", "embedding_std": 1.0}),
        ("masked", {"causal": True, "final_mlm_probability": 0.3}),
        ("masked", {"tied": False, "positions": "rotary"}),
        ("masked", {"tied": False, "pre_norm": True}),
        ("masked", {"tied": False, "neighbor_heads": 0}),
        ("masked", {"tied": False, "probe_order": True}),
        ("masked", {"neighbor_heads": 1, "embedding_std": 1.0}),
        ("masked", {"neighbor_heads": 1, "positions": "rotary"}),
        ("pairs", {"masking": "static", "mlm_probability": 0.4}),
        ("pairs", {"masking": "static", "mask_replace_prob": 1.0}),
    ],
)
def test_options_that_do_not_work_together_are_rejected(kind: str, values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"works only with|does not work with"):
        read_options(kind, {"tokens": 1, **values})
    first = next(iter(values))
    read_options(kind, {"tokens": 1, first: values[first]})


def test_a_hidden_size_that_the_heads_do_not_divide_is_rejected(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="hidden_size 16 is not divisible by num_attention_heads 3"):
        prepare("masked", {**options, "num_attention_heads": 3}, 0, CPU)


def test_the_callback_runs_after_every_step(options: dict[str, Any]) -> None:
    steps: list[tuple[int, float]] = []
    run = prepare("masked", options, 0, CPU)
    train(run, lambda number, loss: steps.append((number, loss.item())))
    assert [number for number, _ in steps] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert all(2 < loss < 5 for _, loss in steps)


def test_a_run_that_starts_with_nan_is_recorded_as_failed(options: dict[str, Any]) -> None:
    run = prepare("masked", {**options, "tokens": 64 * 200}, 0, CPU)
    with torch.no_grad():
        run.model.cls.predictions.bias.fill_(float("nan"))
    result = train(run)
    assert result["result"] == {"loss": None, "failed": 1.0}
    assert len(result["curve"]) == 1
    assert run.trainer.step == 0
    json.dumps(result, allow_nan=False)


def poison(run: Run, last_good_step: int) -> Callable[[int, Any], None]:
    """Makes the loss infinite in the step after `last_good_step`."""

    def on_step(number: int, loss: Any) -> None:
        if number == last_good_step:
            with torch.no_grad():
                run.model.cls.predictions.bias.fill_(float("inf"))

    return on_step


@pytest.mark.slow("trains a model")
def test_a_run_that_diverges_is_recorded_as_failed(options: dict[str, Any]) -> None:
    """Once a run diverges, its weights stay the same, so a later held-out loss would look like a result."""
    run = prepare("masked", {**options, "tokens": 64 * 400}, 0, CPU)
    result = train(run, poison(run, 249))
    assert result["result"] == {"loss": None, "failed": 1.0}
    assert result["curve"][-1] == [250, None] and all(loss for _, loss in result["curve"][:-1])


@pytest.mark.slow("trains a model")
def test_a_failed_run_ends_at_the_next_evaluation(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer checks for NaN once a second; here the clock advances a second with every call."""
    now = iter(range(1_000_000))
    monkeypatch.setattr("labml_bert.training.trainer.time.monotonic", lambda: float(next(now)))
    for last_good_step, end in ((43, 45), (199, 200)):
        run = prepare("masked", {**options, "tokens": 64 * 200}, 0, CPU)
        result = train(run, poison(run, last_good_step))
        assert result["curve"][-1] == [end, None] and len(result["curve"]) == 1 + end // 5


def test_a_high_initial_loss_is_not_a_failure(options: dict[str, Any]) -> None:
    options = {**options, "tokens": 64 * 40, "embedding_std": 30.0}
    result = train(prepare("masked", options, 0, CPU))
    assert result["curve"][0][1] > 100 and result["result"]["loss"] is not None


@pytest.fixture()
def git_outputs(monkeypatch: pytest.MonkeyPatch) -> dict[str, str | None]:
    """What git answers: that all code is committed, unless a test changes this dictionary."""
    outputs: dict[str, str | None] = {"ls-files": "record.py", "status": "", "rev-parse": "1" * 40}
    monkeypatch.setattr("labml_bert.run.record.git", lambda command, *_: outputs[command])
    return outputs


# A new record stores its commit, which starts git: hence the marker `processes` on the tests below.
PARTS = {
    "curve": [[0, 3.0]],
    "unigram_loss": 3.0,
    "lengths": [[0, 32]],
    "batch_tokens": 64,
    "core_seconds": 1.0,
}
NO_FAILURE = {"failed": 0.0}


def small_claim(options: dict[str, Any], seeds: int = 2) -> Any:
    arms = {"short": {}, "long": {"schedule": "32"}, "zero": {"tuned_values_of": "short", "offsets": False}}
    return Claim("small", "A small claim", seeds, 1, arms, "masked", options, {"learning_rate": [1e-3, 3e-3]})


def rows_of(folder: Path) -> list[Any]:
    table = json.loads((folder / "claims" / "small.json").read_text())["table"]
    return [{key: value for key, value in row.items() if key != "core_seconds"} for row in table]


@pytest.mark.processes
def test_an_interrupted_claim_continues_and_gives_the_same_rows(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    time_steps = Results.time_steps
    monkeypatch.setattr(Results, "time_steps", lambda self: time_steps(self, rounds=1, repeats=1))
    claim = small_claim(options, seeds=1)
    whole, in_parts = tmp_path / "whole", tmp_path / "parts"
    Results(claim, whole, CPU).complete()
    assert len(rows_of(whole)) == claim.count_runs() == 2 * 2 + 3

    run_once, run_count = Results.run_once, 0

    def run_or_interrupt(self: Any, options: Any, seed: int) -> Any:
        nonlocal run_count
        if run_count == 2:
            raise KeyboardInterrupt
        run_count += 1
        return run_once(self, options, seed)

    monkeypatch.setattr(Results, "run_once", run_or_interrupt)
    for row_count in (2, 4, 6):
        run_count = 0
        with pytest.raises(KeyboardInterrupt):
            Results(claim, in_parts, CPU).complete()
        assert len(rows_of(in_parts)) == row_count
    run_count = 0
    Results(claim, in_parts, CPU).complete()
    assert run_count == 1
    assert rows_of(in_parts) == rows_of(whole)
    record = json.loads((in_parts / "claims" / "small.json").read_text())
    assert {arm: {*times} for arm, times in record["step_seconds"].items()} == {
        "short": {"8", "16", "32"},
        "long": {"32"},
        "zero": {"8", "16", "32"},
    }


@pytest.mark.processes
def test_a_claim_does_not_continue_with_another_text(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text of the claims comes with Python, so another version has another text."""
    monkeypatch.setattr(Results, "run_once", lambda *_: {"result": {"loss": 1.0, **NO_FAILURE}, **PARTS})
    claim = small_claim({**options, "corpus": "python-docs"})
    results = Results(claim, tmp_path, CPU)
    results.get_row("short", 0, {"learning_rate": 1e-3})
    del results
    monkeypatch.setattr("platform.python_version", lambda: "3.99.0")
    results = Results(claim, tmp_path, CPU)
    results.get_row("short", 0, {"learning_rate": 1e-3})
    with pytest.raises(ValueError, match=r"text of Python .*, and this is 3\.99\.0; use"):
        results.get_row("long", 0, {"learning_rate": 1e-3})
    results.check_python("tiny-shakespeare")


@pytest.mark.long
@pytest.mark.processes
def test_the_fingerprint_of_an_arm(options: dict[str, Any], tmp_path: Path) -> None:
    """Two measurements agree bit for bit, and the fingerprints of the two arms differ."""
    arms: dict[str, Any] = {"plain": {}, "varied": {"embedding_std": 0.1}}
    claim = Claim("small", "A small claim", 1, 1, arms, "masked", options)
    Results(claim, tmp_path, CPU).complete()
    path = tmp_path / "claims" / "small.json"
    record = parse_sealed(path.read_text())
    first, second = ({arm: take() for arm, take in fingerprints_of(record).items()} for _ in range(2))
    assert {*first} == {*arms}
    assert all(len(print["losses"]) == print["steps"] for print in first.values())
    assert all(difference(first[arm], second[arm]) == "" for arm in arms)
    assert difference(first["plain"], second["varied"]).startswith("the loss of step 1 was")

    path.write_text(json.dumps({**record, "fingerprints": first}))
    Results(claim, tmp_path, CPU).complete()
    assert json.loads(path.read_text())["fingerprints"] == first
    claim.arms["varied"] = {"embedding_std": 0.2}
    Results(claim, tmp_path, CPU).complete()
    assert "fingerprints" not in json.loads(path.read_text()), "one of the fingerprints is outdated"


@pytest.mark.processes
def test_only_a_changed_arm_runs_again(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[dict[str, Any]] = []

    def fake_run(self: Any, options: Any, seed: int) -> Any:
        runs.append(options)
        return {"result": {"loss": 2.0, **NO_FAILURE}, **PARTS}

    claim = small_claim(options)
    monkeypatch.setattr(Results, "run_once", fake_run)
    monkeypatch.setattr(Results, "time_steps", lambda self: self.write())
    Results(claim, tmp_path, CPU).complete()
    rows_before = rows_of(tmp_path)
    claim.arms["zero"]["offsets"] = True
    runs.clear()
    Results(claim, tmp_path, CPU).complete()
    assert len(runs) == 2 and all(options["offsets"] for options in runs)
    assert rows_of(tmp_path)[:-2] == rows_before[:-2]
    assert len(rows_of(tmp_path)) == len(rows_before)


@pytest.mark.processes
def test_an_edited_claim_can_be_interrupted_in_its_search(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new runs reach lengths whose steps nobody has timed yet."""

    def fake_run(self: Results, options: dict[str, Any], seed: int) -> dict[str, Any]:
        if len(runs) == most:
            raise KeyboardInterrupt
        runs.append(options)
        lengths = [[0, int(options["schedule"])]]
        return {"result": {"loss": 2.0, **NO_FAILURE}, **PARTS, "lengths": lengths}

    def read_record() -> dict[str, Any]:
        return json.loads((tmp_path / "claims" / "small.json").read_text())

    runs: list[dict[str, Any]] = []
    monkeypatch.setattr(Results, "run_once", fake_run)
    monkeypatch.setattr("experiments.claims.results.timed_step", lambda run, length: None)
    grid = {"learning_rate": [1e-3, 3e-3]}
    for schedule, most in (("16", 99), ("32", 5)):
        claim = Claim("small", "A claim", 1, 1, {"a": {}}, "masked", options | {"schedule": schedule}, grid)
        if most == 5:
            runs[3:] = []
            with pytest.raises(KeyboardInterrupt):
                Results(claim, tmp_path, CPU).complete()
            assert not read_record()["is_finished"], "there are runs with the old and the new options"
            most = 99
        Results(claim, tmp_path, CPU).complete()
        record = read_record()
        assert record["is_finished"] and len(record["table"]) == 3
        assert {*record["step_seconds"]["a"]} == {schedule}


@pytest.mark.processes
def test_a_fresh_seed_that_gets_further_than_the_pilots_is_timed(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fake_run(self: Results, options: dict[str, Any], seed: int) -> dict[str, Any]:
        lengths = [[0, 8], [2, 16]] if seed >= 10 else [[0, 8]]
        curve = [[0, 3.0], [4, 2.0]]
        return {"result": {"loss": 2.0, **NO_FAILURE}, **PARTS, "lengths": lengths, "curve": curve}

    monkeypatch.setattr(Results, "run_once", fake_run)
    monkeypatch.setattr("experiments.claims.results.timed_step", lambda run, length: None)
    arms: dict[str, Any] = {"a": {}, "b": {"weight_decay": 0.1}}
    test = {"says": "faster", "better": "a", "worse": "b", "metric": "seconds", "below": 0.5}
    claim = Claim(
        "small", "A claim", 1, 1, arms, "masked", options, tests=[test], primary="faster", delta=1.1
    )
    Results(claim, tmp_path, CPU).complete()
    record = json.loads((tmp_path / "claims" / "small.json").read_text())
    assert {arm: {*times} for arm, times in record["step_seconds"].items()} == {
        "a": {"8", "16"},
        "b": {"8", "16"},
    }


@pytest.mark.processes
def test_runs_of_another_kind_or_without_the_scores_are_not_reused(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[int] = []

    def fake_run(self: Results, options: dict[str, Any], seed: int) -> dict[str, Any]:
        runs.append(seed)
        scores = dict.fromkeys(self.claim.scores or (), 0.5)
        return {"result": {"loss": 2.0, **NO_FAILURE, **scores}, **PARTS}

    def complete(scores: list[str], job: str = "masked", evaluations: int = 40) -> int:
        runs.clear()
        arms: dict[str, Any] = {"a": {}}
        claim = Claim("small", "A", 2, 1, arms, job, options, scores=scores, evaluations=evaluations)
        Results(claim, tmp_path, CPU).complete()
        assert len(rows_of(tmp_path)) == 2
        return len(runs)

    monkeypatch.setattr(Results, "run_once", fake_run)
    monkeypatch.setattr(Results, "time_steps", lambda self: self.write())
    assert complete([]) == 2
    assert complete(["probe"]) == 2 and complete(["probe"]) == 0 and complete([]) == 0
    assert complete([], evaluations=20) == 2 and complete([], evaluations=20) == 0
    assert complete([], "pairs", 20) == 2 and complete([], "pairs", 20) == 0


def test_a_run_that_starts_with_nan_is_in_a_valid_record(tmp_path: Path) -> None:
    text = WHOLE.replace('"loss": 1.0', '"loss": null').replace("[[0, 3.0]]", "[[0, null]]")
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims" / "head.json").write_text(text.replace("[[0, 16]]", "[]"))
    (row,) = Results(CLAIMS["head"], tmp_path, CPU).recorded_rows.values()
    analysis = Analysis({}, [row], {"both": {}})
    assert analysis.arrival(row, 2.0, "seconds") == (1e-9, False)


@pytest.mark.processes
def test_each_arm_uses_the_best_point_of_its_grid(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fake_run(self: Any, options: Any, seed: int) -> Any:
        best = 3e-3 if options["schedule"] == "32" else 1e-3
        loss = None if options["learning_rate"] != best else 2.0
        return {"result": {"loss": loss, **NO_FAILURE}, **PARTS}

    monkeypatch.setattr(Results, "run_once", fake_run)
    monkeypatch.setattr(Results, "time_steps", lambda self: self.write())
    Results(small_claim(options), tmp_path, CPU).complete()
    finals = [row for row in rows_of(tmp_path) if row["seed"] != TUNING_SEED]
    learning_rates = {row["arm"]: row["point"]["learning_rate"] for row in finals}
    assert learning_rates == {"short": 1e-3, "long": 3e-3, "zero": 1e-3}
    tuned_arms = {row["arm"] for row in rows_of(tmp_path) if row["seed"] == TUNING_SEED}
    assert tuned_arms == {"short", "long"}


@pytest.mark.processes
def test_a_baseline_is_trained_once_for_all_claims(
    options: dict[str, Any],
    git_outputs: dict[str, str | None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    Runs are shared only if their kind, options, seed and commit agree, and the record has all the scores.
    """
    runs: list[tuple[str, int]] = []

    def fake_run(self: Any, options: Any, seed: int) -> Any:
        runs.append((self.claim.name, seed))
        result = {"loss": 2.0, **NO_FAILURE, **dict.fromkeys(self.claim.scores or (), 0.5)}
        return {"result": result, **PARTS}

    monkeypatch.setattr(Results, "run_once", fake_run)
    monkeypatch.setattr(Results, "time_steps", lambda self: self.write())
    grid = {"learning_rate": [1e-3, 2e-3]}

    def claim(name: str, arm: str, scores: list[str], job: str = "pairs") -> Any:
        return Claim(name, "A claim", 2, 1, {arm: {}}, job, options, grid, scores=scores)

    Results(claim("first", "plain", ["probe", "package"]), tmp_path, CPU).complete()
    assert runs == [("first", 100), ("first", 100), ("first", 0), ("first", 1)]
    runs.clear()
    Results(claim("second", "as it is", ["probe"]), tmp_path, CPU).complete()
    assert runs == []
    (tmp_path / "claims" / "broken.json").write_text("[")
    (tmp_path / "claims" / "deep.json").write_text("[" * 100_000)
    (tmp_path / "claims" / "odd.json").write_text('{"claim": {"job": "pairs"}, "table": ["x"]}')
    os.mkfifo(tmp_path / "claims" / "pipe.json")
    table = json.loads((tmp_path / "claims" / "second.json").read_text())["table"]
    assert {(row["arm"], row["from"]) for row in table} == {("as it is", "first")}
    Results(claim("third", "plain", ["summary"]), tmp_path, CPU).complete()
    assert runs == [("third", 0), ("third", 1)]
    runs.clear()
    Results(claim("fourth", "plain", [], job="masked"), tmp_path, CPU).complete()
    assert len(runs) == 4
    # Without a commit, nobody knows which code the other run had.
    for name, status in (("fifth", " M labml_bert/bert.py"), ("sixth", None)):
        git_outputs["status"] = status
        runs.clear()
        Results(claim(name, "plain", []), tmp_path, CPU).complete()
        assert len(runs) == 4


@pytest.mark.processes
@pytest.mark.parametrize(
    ("gap", "std", "seeds", "decision"),
    [(1.0, 0.01, 3, "holds"), (-1.0, 0.01, 3, "fails"), (0.0, 0.001, 3, "no difference"), (0.0, 5.0, 12, "")],
)
def test_fresh_seeds_are_run_until_the_rule_decides(
    gap: float,
    std: float,
    seeds: int,
    decision: str,
    git_outputs: dict[str, str | None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The effect and the noise are made up. Only the two arms of the primary endpoint get fresh seeds."""

    def fake_run(self: Results, options: dict[str, Any], seed: int) -> dict[str, Any]:
        noise = random.Random(f"{options} {seed}").gauss(0, std)
        loss = 2.0 + noise + (gap if options.get("tied") is False else 0.0)
        return {"result": {"loss": loss, **NO_FAILURE}, **PARTS}

    monkeypatch.setattr(Results, "run_once", fake_run)
    monkeypatch.setattr(Results, "time_steps", lambda self: self.write())
    arms: dict[str, Any] = {"tied": {}, "untied": {"tied": False}, "other": {"head_norm": False}}
    test = {"says": "lower", "better": "tied", "worse": "untied", "metric": "loss"}
    claim = Claim(
        "small", "A claim", 2, 1, arms, "masked", {"tokens": 1}, tests=[test], primary="lower", delta=0.03
    )
    Results(claim, tmp_path, CPU).complete()
    path = tmp_path / "claims" / "small.json"
    table = json.loads(path.read_text())["table"]
    by_arm = {arm: [row["seed"] for row in table if row["arm"] == arm] for arm in arms}
    fresh = [*range(10, 10 + seeds)]
    assert by_arm == {"tied": [0, 1, *fresh], "untied": [0, 1, *fresh], "other": [0, 1]}
    assert all(row["commit"] and row["hardware"]["name"] for row in table)
    assert f"after {seeds} fresh seeds: {decision or 'inconclusive'}" in capsys.readouterr().out
    text = path.read_text()
    Results(claim, tmp_path, CPU).complete()
    assert path.read_text() == text, "nothing is run twice, and nothing is lost"


@pytest.mark.processes
def test_a_claim_without_pilots_begins_with_fresh_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All arms run the seeds of the first look. The times are taken before the rule looks at them."""

    def fake_run(self: Results, options: dict[str, Any], seed: int) -> dict[str, Any]:
        loss = 2.0 + seed / 1000 + (1.0 if options.get("tied") is False else 0.0)
        return {"result": {"loss": loss, **NO_FAILURE}, **PARTS}

    def fake_times(self: Results) -> None:
        looks.append(len(self.rows))
        self.record["step_seconds"] = {arm: {"32": 1.0} for arm in self.claim.arms}
        self.write()

    looks: list[int] = []
    monkeypatch.setattr(Results, "run_once", fake_run)
    monkeypatch.setattr(Results, "time_steps", fake_times)
    test = {"says": "lower", "better": "tied", "worse": "untied", "metric": "loss"}
    arms: dict[str, Any] = {"tied": {}, "untied": {"tied": False}, "other": {"head_norm": False}}
    claim = Claim(
        "small", "A claim", 0, 1, arms, "masked", {"tokens": 1}, tests=[test], primary="lower", delta=0.03
    )
    assert claim.count_runs() == 9
    Results(claim, tmp_path, CPU).complete()
    table = json.loads((tmp_path / "claims" / "small.json").read_text())["table"]
    assert [(row["arm"], row["seed"]) for row in table] == [
        (arm, seed) for arm in arms for seed in (10, 11, 12)
    ]
    assert looks == [9]
    Results(claim, tmp_path, CPU).complete()
    assert looks == [9]
    # With other options, a step can take another time.
    arms["untied"] = {"tied": False, "hidden_size": 64}
    Results(claim, tmp_path, CPU).complete()
    assert looks == [9, 9]


@pytest.mark.processes
def test_steps_are_timed_at_the_lengths_of_all_seeds(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run may have failed before the sequences grew."""
    claim = Claim("small", "A small claim", 2, 1, {"short": {}}, "masked", options)
    results = Results(claim, tmp_path, CPU)
    rows = [{"arm": "short", "seed": seed, "options": options} for seed in (0, 1)]
    results.rows = {"a": {**rows[0], "lengths": [[0, 8]]}, "b": {**rows[1], "lengths": [[0, 8], [4, 16]]}}
    monkeypatch.setattr("experiments.claims.results.timed_step", lambda run, length: None)
    results.time_steps(rounds=1, repeats=1)
    assert results.record["step_seconds"]["short"].keys() == {"8", "16"}


@pytest.mark.processes
def test_repeating_a_run_gives_the_same_row(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Results, "time_steps", lambda self: self.write())
    claim = Claim("small", "A small claim", 1, 1, {"short": {}}, "masked", options)
    Results(claim, tmp_path, CPU).complete()
    text = (tmp_path / "claims" / "small.json").read_text()
    ((row, new_row),) = Results(claim, tmp_path, CPU).repeat(["short"], 0)
    assert row["curve"] == new_row["curve"] and row["result"] == new_row["result"]
    assert (tmp_path / "claims" / "small.json").read_text() == text
    message = "has no run of 'short' with seed 7; choose an arm from 'short' and a seed from 0$"
    with pytest.raises(ValueError, match=message):
        list(Results(claim, tmp_path, CPU).repeat(["short"], 7))
    with pytest.raises(ValueError, match="; run the claim first"):
        list(Results(claim, tmp_path / "empty", CPU, is_read_only=True).repeat(["short"], 7))
    assert not (tmp_path / "empty").exists()


@pytest.mark.parametrize(
    "words", [[], ["no-such-claim"], ["head", "--arm", "both"], ["head", "--device", "x"]]
)
def test_bad_options_give_a_one_line_error(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        claims.main(words)
    assert exit_info.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


WHOLE = """{"claim": {}, "step_seconds": {}, "commit": "", "versions": {"python": "3"}, "hardware": {},
"table": [{"arm": "both", "seed": 0, "options": {}, "point": {}, "result": {"loss": 1.0, "failed": 0.0},
"core_seconds": 1.0, "curve": [[0, 3.0]], "unigram_loss": 3.0, "batch_tokens": 64, "lengths": [[0, 16]]}
]}"""
DAMAGES = [
    ('{"loss": 1.0, "failed": 0.0}', "null"),
    ('{"loss": 1.0, "failed": 0.0}', "{}"),
    (', "failed": 0.0', ""),
    ('"failed": 0.0', '"failed": null'),
    ('"failed": 0.0', '"failed": 0.0, "package": "high"'),
    ('"options": {}', '"options": []'),
    ('"point": {}, ', ""),
    ('"point": {}', '"point": 1'),
    ('"batch_tokens": 64, ', ""),
    ('"batch_tokens": 64', '"batch_tokens": "64"'),
    ('"unigram_loss": 3.0', '"unigram_loss": null'),
    ('"unigram_loss": 3.0', f'"unigram_loss": {10**400}'),
    ('"core_seconds": 1.0', '"core_seconds": Infinity'),
    ('"loss": 1.0', '"loss": "low"'),
    ('"core_seconds": 1.0', '"core_seconds": null'),
    ('"step_seconds": {}', '"step_seconds": null'),
    ('"seed": 0', '"seed": {}'),
    ('"claim": {}', '"claim": []'),
    ('{"python": "3"}', "{}"),
    ('{"python": "3"}', "null"),
    ('"seed": 0', '"seed": 0, "versions": {}'),
    ("[[0, 16]]", "null"),
    ("[[0, 16]]", "[]"),
    ("16", "null"),
    ("[[0, 3.0]]", "[]"),
    ("[[0, 3.0]]", '[[0, "low"]]'),
    ("[[0, 3.0]]", '"abc"'),
    ('"unigram_loss": 3.0,', ""),
    ('"unigram_loss": 3.0', '"unigram_loss": "low"'),
    ('"step_seconds": {}', '"step_seconds": {"both": {"16": null}}'),
    ('"step_seconds": {}', '"step_seconds": {"both": {"16": "short"}}'),
]


def test_the_record_that_the_tests_below_damage_is_valid(tmp_path: Path) -> None:
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims" / "head.json").write_text(WHOLE)
    assert len(Results(CLAIMS["head"], tmp_path, CPU).recorded_rows) == 1


@pytest.mark.parametrize("name", [*CLAIMS, *STUDIES])
def test_our_own_records_are_valid(name: str, tmp_path: Path) -> None:
    (tmp_path / "claims").mkdir()
    shutil.copy(ROOT / "docs" / "runs" / "claims" / f"{name}.json", tmp_path / "claims")
    Results({**CLAIMS, **STUDIES}[name], tmp_path, CPU)


@pytest.mark.processes
def test_only_one_process_runs_a_claim(options: dict[str, Any], tmp_path: Path) -> None:
    first = Results(small_claim(options), tmp_path, CPU)
    with pytest.raises(ValueError, match="another process is running this claim"):
        Results(small_claim(options), tmp_path, CPU)
    Results(CLAIMS["head"], tmp_path, CPU)
    del first
    Results(small_claim(options), tmp_path, CPU)


@pytest.mark.parametrize(
    "text",
    [
        '{"table": []}',
        '{"claim": {}, "step_seconds": {}, "commit": "", "versions": {}, "hardware": {}, "table": {}}',
        '{"table": [{"arm": "both", "seed": 0, "options": {}}]}',
        "[]",
        "[" * 100_000,
        *(WHOLE.replace(*change) for change in DAMAGES),
        seal(WHOLE).replace('"seed": 0', '"seed": 1'),
    ],
)
def test_an_incomplete_record_is_rejected(text: str, tmp_path: Path) -> None:
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims" / "head.json").write_text(text)
    with pytest.raises(ValueError, match="is not a record of a claim"):
        Results(CLAIMS["head"], tmp_path, CPU)
    assert (tmp_path / "claims" / "head.json").read_text() == text


def test_the_record_of_another_claim_is_kept(tmp_path: Path) -> None:
    """Otherwise the runs of the other claim would count as outdated, and would be lost."""
    (tmp_path / "claims").mkdir()
    text = WHOLE.replace('"claim": {}', '"claim": {"name": "warm-up"}')
    (tmp_path / "claims" / "head.json").write_text(text)
    with pytest.raises(ValueError, match=r"head\.json is the record of warm-up, not of head; choose"):
        Results(CLAIMS["head"], tmp_path, CPU)
    assert (tmp_path / "claims" / "head.json").read_text() == text


def test_an_installed_package_has_no_folder_for_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(claims, "RECORDS", tmp_path / "docs" / "runs")
    with pytest.raises(SystemExit) as exit_info:
        claims.main(["head"])
    assert exit_info.value.code == 2 and "isn't a clone of the repository" in capsys.readouterr().err
    claims.main(["--list"])
    assert not [*tmp_path.iterdir()]


def test_a_damaged_record_is_reported_and_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims" / "head.json").write_text("[")
    with pytest.raises(SystemExit) as exit_info:
        claims.main(["head", "--record", str(tmp_path)])
    assert exit_info.value.code == 2
    assert "head.json is not a record of a claim" in " ".join(capsys.readouterr().err.split())
    assert (tmp_path / "claims" / "head.json").read_text() == "["
    (tmp_path / "claims" / "head.json").unlink()
    os.mkfifo(tmp_path / "claims" / "head.json")
    with pytest.raises(SystemExit):
        claims.main(["head", "--record", str(tmp_path)])
    assert "head.json" in capsys.readouterr().err


def test_the_list_of_claims(capsys: pytest.CaptureFixture[str]) -> None:
    claims.main(["--list"])
    output = capsys.readouterr().out
    assert all(name in output for name in CLAIMS) and "hours" in output
    assert max(map(len, output.splitlines())) <= 80
