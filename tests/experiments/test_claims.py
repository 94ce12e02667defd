"""The ledger of claims: its runs, its record, and that each arm is what it says."""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from experiments.claims.variants import UntiedMaskedLM, build
from labml_bert.mlm import IGNORE
from labml_bert.models import BertForMaskedLM
from labml_bert.run import mlm_run
from tests.support.runs import small_text

path = Path(__file__).parents[2] / "experiments" / "claims" / "claims.py"
spec = importlib.util.spec_from_file_location("claims", path)
assert spec is not None and spec.loader is not None
claims = importlib.util.module_from_spec(spec)
# A dataclass looks its module up by name.
sys.modules["claims"] = claims
spec.loader.exec_module(claims)
Claim, Ledger, train = claims.Claim, claims.Ledger, claims.train

CPU = torch.device("cpu")
CLAIMS = claims.read_claims()
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
    """Options of a job on windows of a text of a few thousand characters."""
    (tmp_path / "text.txt").write_text(small_text(150))
    return {**SMALL, "corpus": str(tmp_path / "text.txt")}


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Options of a job on pairs, with a cache of its own: the pairs are made once."""
    folder = tmp_path_factory.mktemp("documents")
    for i in range(30):
        (folder / f"{i:02}.txt").write_text(small_text(12, seed=i))
    small = {key: value for key, value in SMALL.items() if key != "max_position_embeddings"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield {**small, "corpus": str(folder), "schedule": "16", "vocab_size": 120}


def test_the_claims_are_twelve_and_take_less_than_eight_hours() -> None:
    assert len(CLAIMS) == 12
    assert sum(claim.minutes for claim in CLAIMS.values()) < 480
    assert all(claim.seeds >= 3 for claim in CLAIMS.values())
    assert CLAIMS["short-to-long"].seeds >= 5


@pytest.mark.parametrize("name", [name for name, claim in CLAIMS.items() if claim.job])
def test_every_option_of_a_claim_is_known(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`build` refuses an unknown one; the jobs themselves are not built."""
    built: list[tuple[Any, Any]] = []
    for job in ("WindowJob", "TextPairJob"):
        monkeypatch.setattr(f"experiments.claims.variants.{job}", lambda *parts: built.append(parts))
    claim = CLAIMS[name]
    for arm in claim.arms:
        for point in claim.points():
            build(claim.job, Ledger.options(type("L", (), {"claim": claim}), arm, point), 0, CPU)
    assert len({repr(parts[:2]) for parts in built}) == len(claim.arms) * len(claim.points())


def test_a_causal_model_does_not_see_the_future(options: dict[str, Any]) -> None:
    job = build("masked", {**options, "causal": True, "mlm_probability": 1.0}, 0, CPU)
    input_ids = job.windows[:2].clone()
    changed = input_ids.clone()
    changed[:, 20] = (changed[:, 20] + 1) % job.config.vocab_size
    for model_job, sees in ((job, False), (build("masked", options, 0, CPU), True)):
        model = model_job.model.eval()
        before, after = (model.bert(ids).last_hidden_state for ids in (input_ids, changed))
        assert torch.equal(before[:, :20], after[:, :20]) is not sees
        assert not torch.equal(before[:, 20:], after[:, 20:])


def test_a_causal_model_at_some_places_is_the_same_as_at_all(options: dict[str, Any]) -> None:
    job = build("masked", {**options, "causal": True, "mlm_probability": 0.5}, 0, CPU)
    batch = job.next_batch(0.0)
    model = job.model.eval()
    some = model(batch["input_ids"], batch["labels"], position_ids=batch["position_ids"])
    all_of_them = model(batch["input_ids"], position_ids=batch["position_ids"]).logits
    assert torch.allclose(some.logits, all_of_them[batch["labels"] != IGNORE], atol=1e-5)


def test_the_next_token_is_asked_for_and_nothing_is_covered(options: dict[str, Any]) -> None:
    job = build("masked", {**options, "causal": True, "mlm_probability": 1.0}, 0, CPU)
    batch = job.next_batch(0.0)
    assert (batch["labels"][:, :-1] == batch["input_ids"][:, 1:]).all()
    assert (batch["labels"][:, -1] == IGNORE).all()
    asked = build("masked", {**options, "causal": True, "mlm_probability": 0.15}, 0, CPU)
    labels = torch.stack([asked.next_batch(0.0)["labels"] for _ in range(60)])
    assert (labels != IGNORE).float().mean().item() == pytest.approx(0.15 * 7 / 8, abs=0.03)


def test_positions_from_zero(options: dict[str, Any]) -> None:
    plain, varied = (build("masked", {**options, "offsets": on}, 0, CPU) for on in (True, False))
    a, b = plain.next_batch(0.0), varied.next_batch(0.0)
    assert torch.equal(a["input_ids"], b["input_ids"])
    assert (b["position_ids"] == torch.arange(8)).all()
    assert not torch.equal(a["position_ids"], b["position_ids"])


def test_lengths_that_grow_evenly(options: dict[str, Any]) -> None:
    job = build("masked", {**options, "growth": "linear"}, 0, CPU)
    lengths = [job.length(i / 16) for i in range(17)]
    assert lengths == sorted(lengths) and {*lengths} == {8, 16, 24, 32}
    assert lengths.count(32) >= 9, "as long at the end as the stages"


def test_lengths_that_grow_on_a_plateau(options: dict[str, Any]) -> None:
    curriculum = build("masked", {**options, "growth": "plateau"}, 0, CPU).curriculum
    for i in range(400):
        curriculum.saw(5.0 - 0.01 * i)
    assert curriculum.length(0.1) == 8, "it was getting better"
    for _ in range(400):
        curriculum.saw(1.0)
    assert curriculum.length(0.1) == 16
    assert curriculum.length(0.6) == 32, "whatever the loss"


def test_an_untied_model_has_a_matrix_of_its_own(options: dict[str, Any]) -> None:
    tied, untied = (build("masked", {**options, "tied": tied}, 0, CPU).model for tied in (True, False))
    count = [sum(p.numel() for p in model.parameters()) for model in (tied, untied)]
    embedding = untied.bert.embeddings.word_embeddings.weight
    assert count[1] - count[0] == embedding.numel()
    batch = torch.randint(5, 20, (2, 8))
    before = untied(batch).logits
    with torch.no_grad():
        untied.decoder.mul_(2)
    assert not torch.equal(untied(batch).logits, before)


def test_the_untied_model_of_the_claim_has_as_many_parameters() -> None:
    claim = CLAIMS["tying"]
    counts = []
    for arm in ("tied", "untied, as many parameters"):
        wide = {**claim.options, **claim.arms[arm]}
        config = mlm_run.Options("x", hidden_size=wide.get("hidden_size", 128)).model_config(4096, 128)
        kind = UntiedMaskedLM if "untied" in arm else BertForMaskedLM
        with torch.device("meta"):
            counts.append(sum(p.numel() for p in kind(config).parameters()))
    assert counts[0] == pytest.approx(counts[1], rel=0.03)


@pytest.mark.parametrize(
    ("dense", "norm", "kinds"),
    [(False, True, [nn.LayerNorm]), (True, False, [nn.Linear, nn.GELU]), (False, False, [])],
)
def test_heads_without_their_parts(
    options: dict[str, Any], dense: bool, norm: bool, kinds: list[type]
) -> None:
    job = build("masked", {**options, "head_dense": dense, "head_norm": norm}, 0, CPU)
    assert [type(part) for part in job.model.cls.predictions.transform] == kinds
    assert train(job)[1]["result"]["loss"] is not None


def test_the_spread_of_the_embeddings(options: dict[str, Any]) -> None:
    job = build("masked", {**options, "embedding_std": 1.0}, 0, CPU)
    assert job.model.bert.embeddings.word_embeddings.weight.std().item() == pytest.approx(1, abs=0.1)
    assert job.model.bert.encoder.layer[0].intermediate.dense.weight.std().item() < 0.1
    first = [train(one)[1]["curve"][0][1] for one in (job, build("masked", options, 0, CPU))]
    assert first[0] > first[1] + 1


def test_adam_as_published(options: dict[str, Any]) -> None:
    job = build("masked", {**options, "adam": "published"}, 0, CPU)
    assert not job.arguments.adam_bias_correction
    assert build("masked", options, 0, CPU).arguments.adam_bias_correction


def test_shares_of_the_chosen_tokens(documents: dict[str, Any]) -> None:
    def shares(**varied: float) -> tuple[float, float]:
        """Of the chosen: hidden, and as they are; the share that is chosen goes with them."""
        job = build("pairs", {**documents, **varied}, 0, CPU)
        mask = job.tokenizer.token_to_id("[MASK]")
        batches = [job.next_batch(0.0) for _ in range(60)]
        ids, labels = (torch.cat([b[key].flatten() for b in batches]) for key in ("input_ids", "labels"))
        chosen = labels != IGNORE
        return (ids == mask)[chosen].float().mean().item(), (ids == labels)[chosen].float().mean().item()

    assert shares(mask_replace_prob=1.0, random_replace_prob=0.0) == (1.0, 0.0)
    hidden, kept = shares(mask_replace_prob=0.8, random_replace_prob=0.0)
    assert hidden + kept == pytest.approx(1.0) and hidden == pytest.approx(0.8, abs=0.1)
    few, many = (build("pairs", {**documents, "mlm_probability": p}, 0, CPU) for p in (0.15, 0.4))
    counts = [
        sum((j.next_batch(0.0)["labels"] != IGNORE).sum().item() for _ in range(20)) for j in (few, many)
    ]
    assert counts[1] > 1.8 * counts[0]


def test_without_the_second_task_the_pooler_learns_nothing(documents: dict[str, Any]) -> None:
    for on in (True, False):
        job = build("pairs", {**documents, "next_sentence": on}, 0, CPU)
        before = job.model.cls.seq_relationship.weight.detach().clone()
        result = train(job)[1]
        assert torch.equal(job.model.cls.seq_relationship.weight, before) is not on
        assert result["curve"][-1][0] == 8


def test_scores(documents: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [("red apple tree", 0), ("blue river stone", 1)] * 10
    examples = [claims.Example(text, label) for text, label in texts]
    task = claims.Task("package", ["a", "b"], examples, examples, [True] * 20)
    monkeypatch.setattr(claims, "labelled", lambda name: task)
    monkeypatch.setattr(claims, "LABELS", 20)
    monkeypatch.setattr(claims, "FEWEST_STEPS", 4)
    job = build("pairs", documents, 0, CPU)
    trainer, found = train(job)
    covered = job.held_out
    names = ["seen_loss", "probe", "package"]
    first, second = (claims.scores(job, trainer, names, 0) for _ in range(2))
    assert first == second and job.held_out is covered
    assert first["probe"] == 1.0, "the two texts share no word"
    assert first["seen_loss"] != found["result"]["loss"]


def test_an_unknown_option(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no option 'colour' on 'masked'"):
        build("masked", {**options, "colour": 1}, 0, CPU)


def test_a_run_that_diverges_ends_and_says_so(options: dict[str, Any]) -> None:
    job = build("masked", {**options, "tokens": 64 * 200}, 0, CPU)
    with torch.no_grad():
        job.model.cls.predictions.bias.fill_(float("nan"))
    _, found = train(job)
    assert found["result"] == {"loss": None, "failed": 1.0}
    assert len(found["curve"]) == 1
    json.dumps(found, allow_nan=False)


def test_a_run_whose_step_goes_wrong_ends_and_says_so(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From that step on the weights would no longer change, and their loss would look like a result."""
    job = build("masked", {**options, "tokens": 64 * 400}, 0, CPU)
    draw, step = job.next_batch, 0

    def poisoned(progress: float) -> Any:
        nonlocal step
        step += 1
        if step == 250:
            with torch.no_grad():
                job.model.cls.predictions.bias.fill_(float("inf"))
        return draw(progress)

    monkeypatch.setattr(job, "next_batch", poisoned)
    _, found = train(job)
    assert found["result"] == {"loss": None, "failed": 1.0}
    assert found["curve"][-1] == [250, None] and all(loss for _, loss in found["curve"][:-1])


def test_a_loss_that_begins_high_is_no_failure(options: dict[str, Any]) -> None:
    options = {**options, "tokens": 64 * 40, "embedding_std": 30.0}
    _, found = train(build("masked", options, 0, CPU))
    assert found["curve"][0][1] > 100 and found["result"]["loss"] is not None


def small_claim(options: dict[str, Any], seeds: int = 2) -> Any:
    arms = {"short": {}, "long": {"schedule": "32"}, "zero": {"rate_of": "short", "offsets": False}}
    return Claim("small", "A small claim", seeds, 1, arms, "masked", options, {"learning_rate": [1e-3, 3e-3]})


def results(folder: Path) -> list[Any]:
    table = json.loads((folder / "claims" / "small.json").read_text())["table"]
    return [{key: value for key, value in row.items() if key != "core_seconds"} for row in table]


def test_a_stopped_claim_goes_on_and_ends_the_same(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = Ledger.measure
    monkeypatch.setattr(Ledger, "measure", lambda self: measure(self, rounds=1, repeats=1))
    claim = small_claim(options, seeds=1)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    Ledger(claim, whole, CPU).run()
    assert len(results(whole)) == claim.runs() == 2 * 2 + 3

    one, done = Ledger.one, 0

    def killed(self: Any, options: Any, seed: int) -> Any:
        nonlocal done
        if done == 2:
            raise KeyboardInterrupt
        done += 1
        return one(self, options, seed)

    monkeypatch.setattr(Ledger, "one", killed)
    for there in (2, 4, 6):
        done = 0
        with pytest.raises(KeyboardInterrupt):
            Ledger(claim, parts, CPU).run()
        assert len(results(parts)) == there
    done = 0
    Ledger(claim, parts, CPU).run()
    assert done == 1
    assert results(parts) == results(whole)
    record = json.loads((parts / "claims" / "small.json").read_text())
    assert {arm: {*times} for arm, times in record["step_seconds"].items()} == {
        "short": {"8", "16", "32"},
        "long": {"32"},
        "zero": {"8", "16", "32"},
    }


def test_a_changed_arm_is_run_again_and_the_others_stay(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again: list[dict[str, Any]] = []

    def one(self: Any, options: Any, seed: int) -> Any:
        again.append(options)
        return {"result": {"loss": 2.0}, "curve": [], "lengths": [], "core_seconds": 0.0}

    claim = small_claim(options)
    monkeypatch.setattr(Ledger, "one", one)
    monkeypatch.setattr(Ledger, "measure", lambda self: self.write())
    Ledger(claim, tmp_path, CPU).run()
    before = results(tmp_path)
    claim.arms["zero"]["offsets"] = True
    again.clear()
    Ledger(claim, tmp_path, CPU).run()
    assert len(again) == 2 and all(options["offsets"] for options in again)
    assert results(tmp_path)[:-2] == before[:-2]
    assert len(results(tmp_path)) == len(before)


def test_the_best_of_the_grid_is_taken_by_those_who_share_it(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def one(self: Any, options: Any, seed: int) -> Any:
        best = 3e-3 if options["schedule"] == "32" else 1e-3
        loss = None if options["learning_rate"] != best else 2.0
        return {"result": {"loss": loss}, "curve": [], "lengths": [[0, 32]], "core_seconds": 0.0}

    monkeypatch.setattr(Ledger, "one", one)
    monkeypatch.setattr(Ledger, "measure", lambda self: self.write())
    Ledger(small_claim(options), tmp_path, CPU).run()
    finals = [row for row in results(tmp_path) if row["seed"] != claims.TUNING_SEED]
    taken = {row["arm"]: row["point"]["learning_rate"] for row in finals}
    assert taken == {"short": 1e-3, "long": 3e-3, "zero": 1e-3}
    searched = {row["arm"] for row in results(tmp_path) if row["seed"] == claims.TUNING_SEED}
    assert searched == {"short", "long"}


def test_a_baseline_is_trained_once_for_all_claims(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only where the job, the options and the seed are the same, and the scores are there."""
    ran: list[tuple[str, int]] = []

    def one(self: Any, options: Any, seed: int) -> Any:
        ran.append((self.claim.name, seed))
        result = {"loss": 2.0, **dict.fromkeys(self.claim.scores or (), 0.5)}
        return {"result": result, "curve": [], "lengths": [[0, 32]], "core_seconds": 1.0}

    monkeypatch.setattr(Ledger, "one", one)
    monkeypatch.setattr(Ledger, "measure", lambda self: self.write())
    grid = {"learning_rate": [1e-3, 2e-3]}

    def claim(name: str, arm: str, scores: list[str], job: str = "pairs") -> Any:
        return Claim(name, "A claim", 2, 1, {arm: {}}, job, options, grid, scores=scores)

    Ledger(claim("first", "plain", ["probe", "package"]), tmp_path, CPU).run()
    assert ran == [("first", 100), ("first", 100), ("first", 0), ("first", 1)]
    ran.clear()
    Ledger(claim("second", "as it is", ["probe"]), tmp_path, CPU).run()
    assert ran == []
    (tmp_path / "claims" / "broken.json").write_text("[")
    table = json.loads((tmp_path / "claims" / "second.json").read_text())["table"]
    assert {(row["arm"], row["from"]) for row in table} == {("as it is", "first")}
    Ledger(claim("third", "plain", ["summary"]), tmp_path, CPU).run()
    assert ran == [("third", 0), ("third", 1)]
    ran.clear()
    Ledger(claim("fourth", "plain", [], job="masked"), tmp_path, CPU).run()
    assert len(ran) == 4


def test_a_row_is_repeated_to_the_digit(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Ledger, "measure", lambda self: self.write())
    claim = Claim("small", "A small claim", 1, 1, {"short": {}}, "masked", options)
    Ledger(claim, tmp_path, CPU).run()
    text = (tmp_path / "claims" / "small.json").read_text()
    ((before, now),) = Ledger(claim, tmp_path, CPU).repeat("short", 0)
    assert before["curve"] == now["curve"] and before["result"] == now["result"]
    assert (tmp_path / "claims" / "small.json").read_text() == text
    with pytest.raises(ValueError, match="has no run of 'short' with seed 7"):
        list(Ledger(claim, tmp_path, CPU).repeat("short", 7))


ROW = ["pretraining-pays", "--arm", "pretrained", "--seed", "0"]


@pytest.mark.parametrize(
    "words", [[], ["no-such-claim"], ["head", "--arm", "both"], ["head", "--device", "x"], ROW]
)
def test_bad_options(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        claims.main(words)
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


WHOLE = """{"claim": {}, "step_seconds": {}, "commit": "", "versions": {}, "hardware": {}, "table": [
{"arm": "both", "seed": 0, "options": {}, "result": {"loss": 1.0}, "core_seconds": 1.0, "curve": [],
"lengths": []}
]}"""
DAMAGES = [
    ('{"loss": 1.0}', "null"),
    ('{"loss": 1.0}', "{}"),
    ('"loss": 1.0', '"loss": "low"'),
    ('"core_seconds": 1.0', '"core_seconds": null'),
    ('"step_seconds": {}', '"step_seconds": null'),
]


def test_the_record_that_is_damaged_below_is_whole(tmp_path: Path) -> None:
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims" / "head.json").write_text(WHOLE)
    assert len(Ledger(CLAIMS["head"], tmp_path, CPU).before) == 1


def test_one_process_a_claim(options: dict[str, Any], tmp_path: Path) -> None:
    held = Ledger(small_claim(options), tmp_path, CPU)
    with pytest.raises(ValueError, match="another process runs this claim"):
        Ledger(small_claim(options), tmp_path, CPU)
    Ledger(CLAIMS["head"], tmp_path, CPU)
    held.held.close()
    Ledger(small_claim(options), tmp_path, CPU)


@pytest.mark.parametrize(
    "text",
    [
        '{"table": []}',
        '{"table": [{"arm": "both", "seed": 0, "options": {}}]}',
        "[]",
        "[" * 100_000,
        *(WHOLE.replace(*change) for change in DAMAGES),
    ],
)
def test_a_record_without_its_parts_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims" / "head.json").write_text(text)
    with pytest.raises(ValueError, match="is no record of a claim"):
        Ledger(CLAIMS["head"], tmp_path, CPU)
    assert (tmp_path / "claims" / "head.json").read_text() == text


def test_a_damaged_record_is_named_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims" / "head.json").write_text("[")
    with pytest.raises(SystemExit) as ended:
        claims.main(["head", "--record", str(tmp_path)])
    assert ended.value.code == 2
    assert "head.json is no record of a claim" in " ".join(capsys.readouterr().err.split())
    assert (tmp_path / "claims" / "head.json").read_text() == "["


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    claims.main(["--list"])
    said = capsys.readouterr().out
    assert all(name in said for name in CLAIMS) and "hours" in said
    assert max(map(len, said.splitlines())) <= 80


def test_a_claim_of_other_experiments_runs_them_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, ran = tmp_path / "finetune_docstrings.json", []

    def run(command: list[str], check: bool) -> Any:
        ran.append([Path(command[1]).name, *command[2:]])
        if "--record" in command:
            path.write_text("{}")
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)
    for _ in range(2):
        claims.main(["pretraining-pays", "--record", str(tmp_path)])
    assert ran == [["bert_tiny.py"], ["finetune_docstrings.py", "--record", str(path)]]
    path.unlink()
    monkeypatch.setattr(subprocess, "run", lambda command, check: subprocess.CompletedProcess(command, 2))
    with pytest.raises(SystemExit) as ended:
        claims.main(["pretraining-pays", "--record", str(tmp_path)])
    assert ended.value.code == 2
