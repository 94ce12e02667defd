"""Verdicts follow from the numbers, and the page works without a record, or with a partial or whole one."""

import json
import math
import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from docs.figures import claims
from docs.figures.claims import Claim, read_claim
from docs.figures.records import Record
from docs.figures.studies import read_study
from experiments.claims.analysis import Analysis, Effect
from experiments.claims.decision import RULE_LEVEL, Interval, difference, proportion_difference

ENTRY = """
[[claim]]
name = "small"
primary = "sooner"
delta = 1.1
title = "`Short` is faster"
sentence = "It is."
source = "[Somebody](https://example.org)."
question = "Is it?"
job = "masked"
seeds = 3
minutes = 5
figure = "{figure}"
options = {{ tokens = 100_000 }}
grid = {{ learning_rate = [1e-3, 2e-3] }}
[claim.arms]
"short" = {{}}
"long" = {{ schedule = "128" }}
[claim.labels]
"long" = "length 128"
[[claim.tests]]
says = "sooner"
better = "short"
worse = "long"
metric = "seconds"
below = 1.0
[[claim.tests]]
says = "lower"
better = "short"
worse = "long"
metric = "loss"
"""


def one_row(arm: str, seed: int, tau: float, end: float = 1.0) -> dict[str, Any]:
    """A loss that decays from 3 toward 1 in 100 steps, by a factor of e every `tau` steps."""
    curve = [[step, 1 + 2 * math.exp(-step / tau)] for step in range(0, 101, 5)]
    return {
        "arm": arm,
        "seed": seed,
        "point": {"learning_rate": 1e-3},
        "curve": curve,
        "lengths": [[0, 16], [50, 128]] if arm == "short" else [[0, 128]],
        "unigram_loss": 3.0,
        "batch_tokens": 1000,
        "result": {"loss": end + seed / 100, "failed": 0.0},
        "core_seconds": 60.0,
    }


def record(short: list[float], long: list[float], **changes: Any) -> dict[str, Any]:
    rows = [one_row("short", seed, tau, 1.0) for seed, tau in enumerate(short)]
    rows += [one_row("long", seed, tau, 1.5) for seed, tau in enumerate(long)]
    entry = tomllib.loads(ENTRY.format(figure="curves"))["claim"][0]
    return {
        "experiment": "claims",
        "date": "2026-01-01",
        "commit": "0" * 40,
        "hardware": {"device": "cpu", "name": "Test", "cores": 2, "precision": "float32"},
        "claim": {
            "arms": {"short": {}, "long": {"schedule": "128"}},
            "options": {"tokens": 100_000},
            "grid": {"learning_rate": [1e-3, 2e-3]},
            "seeds": 3,
            "over_grid": False,
            **{key: entry[key] for key in ("job", "tests")},
        },
        "table": [one_row("short", 100, 1.0), *rows],
        "step_seconds": {"short": {"16": 0.5, "128": 1.0}, "long": {"128": 1.0}},
        **changes,
    }


def written(folder: Path, data: dict[str, Any] | None, figure: str = "curves") -> Claim:
    path = folder / "claims.toml"
    path.write_text(ENTRY.format(figure=figure))
    if data is not None:
        (folder / "claims").mkdir(exist_ok=True)
        (folder / "claims" / "small.json").write_text(json.dumps(data))
    return read_claim("small", path, folder)


@pytest.mark.parametrize(
    ("short", "long", "expected"),
    [
        ([10, 10.5, 11], [30, 31, 32], "holds"),
        ([30, 31, 32], [10, 10.5, 11], "fails"),
        ([10, 10.01, 10.02], [4.8, 4.81, 4.82], "no difference larger than a factor of 1.1"),
        ([10, 20, 40], [12, 30, 35], "inconclusive, about 8 fresh seeds needed"),
    ],
)
def test_verdicts_from_numbers(short: list[float], long: list[float], expected: str, tmp_path: Path) -> None:
    assert written(tmp_path, record(short, long)).verdict() == expected


def test_fresh_seeds_decide_over_pilots(tmp_path: Path) -> None:
    """The pilots say the opposite. Two fresh seeds are too few for the rule."""
    data = record([10, 10.5, 11], [30, 31, 32])
    times = {"short": [40, 41, 42], "long": [12, 12.5, 13]}
    fresh = [one_row(arm, 10 + i, times[arm][i]) for arm in times for i in range(3)]
    for count, expected in ((2, "holds"), (3, "fails")):
        rows = [row for row in fresh if row["seed"] < 10 + count]
        claim = written(tmp_path, {**data, "table": data["table"] + rows})
        assert claim.verdict() == expected
    assert claim.describe_seeds() == "3 fresh seeds"
    assert "0.62 times (95% CI 0.58 to 0.67)" in claims.describe_gain(claim)
    assert claims.describe_gain(claim, unit="as long") == "0.62 times as long (95% CI 0.58 to 0.67)"
    assert "98.2% CI" in claims.details(claim) and claims.details(claim).count("3 fresh seeds") == 2
    assert claims.describe_gain(claim, "lower").startswith("0.000"), "fresh seeds if both variants have them"
    # A third variant has only its pilots.
    test = {**claim.entry["tests"][1], "worse": "another"}
    assert claim.evidence_of(test) is claim and claim.describe_seeds(test) == "3 pilot seeds"


def test_only_the_primary_endpoint_decides(tmp_path: Path) -> None:
    """The other test would say the opposite."""
    claim = written(tmp_path, record([10, 10.5, 11], [30, 31, 32]))
    claim.entry["tests"][1] |= {"better": "long", "worse": "short"}
    effect = claim.effect(claim.entry["tests"][1])
    assert effect.gain is not None and effect.gain.high < 0
    assert claim.verdict() == "holds"


def test_directions_and_units(tmp_path: Path) -> None:
    claim = written(tmp_path, record([10, 10.5, 11], [30, 31, 32]))
    test = {"says": "sooner", "better": "short", "worse": "long", "metric": "loss"}
    assert claim.effect(test).gain == pytest.approx(difference([1.5, 1.51, 1.52], [1.0, 1.01, 1.02]))
    wide, narrow = claim.effect(test, RULE_LEVEL).gain, claim.effect(test).gain
    assert wide is not None and narrow is not None and wide.low < narrow.low
    claim.entry["tests"], claim.entry["delta"] = [test], 0.6
    assert claim.verdict() == "no difference larger than 0.6 nats"
    claim.entry["delta"] = 0.1
    assert claim.verdict() == "holds"
    for row in claim.rows:
        row["result"]["package"] = row["result"]["loss"]
    test["metric"] = "package"
    assert claim.verdict() == "fails", "a higher accuracy is better"
    assert claims.delta_with_unit(claim) == "10 points"


def test_times_are_steps_times_their_seconds(tmp_path: Path) -> None:
    claim = written(tmp_path, record([10, 10, 10], [30, 30, 30]))
    short, long = claim.of("short")[0], claim.of("long")[0]
    assert claim.cost_at(short, 60, "seconds") == 50 * 0.5 + 10 * 1.0
    assert claim.cost_at(long, 60, "seconds") == 60
    assert claim.cost_at(short, 60, "tokens") == 60_000
    # Steps 5 and 10 were evaluated; the mean of their losses is reached halfway between them.
    (_, a), (_, b) = short["curve"][1:3]
    assert claim.arrival(short, (a + b) / 2, "tokens").value == pytest.approx(7500)


def test_a_run_that_never_arrives_supports_one_side_only(tmp_path: Path) -> None:
    """At the level of the rule, three runs against three are too few for a bound; five are enough."""
    data = record([10, 10.5, 11], [900, 910, 920])
    claim = written(tmp_path, data)
    effect = claim.effect(claim.primary())
    assert effect.gain is not None and effect.at_least and effect.gain.low > 5
    assert claim.verdict() == "inconclusive"
    data = record([10, 10.5, 11, 11, 12], [900, 910, 920, 930, 940])
    claim = written(tmp_path, data)
    claim.rows = data["table"][1:]
    assert claim.verdict() == "holds"
    claim.primary().update(better="long", worse="short")
    assert claim.effect(claim.primary()).at_most and claim.verdict() == "fails"


@pytest.mark.parametrize(
    ("short", "long", "expected"),
    [
        ([10, 10, 10], [30, 30, 30], "2.9 times (95% CI 2.9 to 2.9)"),
        ([10, 10, 10], [900, 900, 900], "at least 13.8 times (95% bound; the mean ratio is at least 13.8)"),
        ([900, 900, 900], [10, 10, 10], "at most 0.1 times (95% bound; the mean ratio is at most 0.1)"),
        ([900, 900, 900], [910, 910, 910], "some runs of both never got there"),
    ],
)
def test_a_chapter_can_quote_a_factor(
    short: list[float], long: list[float], expected: str, tmp_path: Path
) -> None:
    """The runs arrive at steps 7.23 and 20.85, by interpolation. A run that never arrives bounds one side."""
    same = {"short": {"16": 1.0, "128": 1.0}, "long": {"128": 1.0}}
    claim = written(tmp_path, record(short, long, step_seconds=same))
    assert claims.describe_gain(claim, "sooner") == expected
    assert claims.describe_gain(claim, "lower").startswith("0.500 nats (95% CI 0.4")
    opposite = claims.describe_gain(claim, "lower", opposite=True)
    assert opposite.startswith("−0.500 nats (95% CI −0.5"), opposite
    for row in claim.rows:
        row["result"]["package"] = 1 - row["result"]["loss"] / 2
    claim.entry["tests"][1]["metric"] = "package"
    assert claims.describe_gain(claim, "lower").startswith("25.0 points (95% CI 23.")
    with pytest.raises(claims.PageError, match="'small' has no test 'faster'; it has sooner; lower"):
        claims.describe_gain(claim, "faster")


@pytest.mark.parametrize(
    ("value", "expected"), [(0.04, "0.0"), (-0.04, "0.0"), (0.06, "+0.1"), (-2.0, "−2.0"), (math.inf, "–")]
)
def test_zero_has_no_sign(value: float, expected: str) -> None:
    assert claims.format_signed(value, 1) == expected


def test_a_chapter_waits_for_a_number(tmp_path: Path) -> None:
    assert claims.describe_gain(written(tmp_path, None), "sooner") == "not measured yet"


def test_a_run_that_ends_in_nan_decides_nothing(tmp_path: Path) -> None:
    data = record([10, 10.5, 11], [30, 31, 32])
    data["table"][-1]["result"]["loss"] = None
    claim = written(tmp_path, data)
    claim.entry["primary"], claim.entry["delta"] = "lower", 0.03
    assert claim.effect(claim.primary()).gain is None and claim.verdict() == "inconclusive"
    assert "1 ended in NaN" in claims.details(claim)


@pytest.mark.parametrize("figure", ["curves", "loss"])
def test_a_page_without_a_record(figure: str, tmp_path: Path) -> None:
    claim = written(tmp_path, None, figure)
    assert claim.verdict() == "not run yet"
    assert claims.row(claim) == "**The claim.** It is."
    assert claims.details(claim).startswith("**Source.** [Somebody](https://example.org).")
    assert claims.drawing(claim).startswith("<!--")
    assert "0 of 3" in claims.details(claim) and "about 5 minutes" in claims.details(claim)


@pytest.mark.parametrize("figure", ["curves", "loss"])
def test_a_page_with_a_part_of_a_record(figure: str, tmp_path: Path) -> None:
    claim = written(tmp_path, record([10, 10.5, 11], [30], step_seconds={}), figure)
    assert claim.verdict() == "not finished yet"
    assert "4 of 6 runs are recorded. The verdict waits for the rest." in claims.details(claim)
    assert claims.drawing(claim).startswith("<figure") and "`" not in claims.drawing(claim)
    assert "1 of 3" in claims.details(claim)


def test_a_claim_that_is_being_run_again_has_no_results(tmp_path: Path) -> None:
    """Some of the recorded runs could have the options from before the claim was edited."""
    claim = written(tmp_path, record([10, 10.5, 11], [30, 31, 32], is_finished=False))
    assert claim.verdict() == "not run yet" and claims.drawing(claim).startswith("<!--")
    assert claims.describe_gain(claim, "lower") == "not measured yet"


def test_only_the_search_is_there(tmp_path: Path) -> None:
    claim = written(tmp_path, record([], [], step_seconds={}))
    assert claim.verdict() == "not run yet"
    assert claims.drawing(claim).startswith("<!--")


@pytest.mark.parametrize("figure", ["curves", "loss"])
def test_a_page_with_a_record(figure: str, tmp_path: Path) -> None:
    claim = written(tmp_path, record([10, 10.5, 11], [30, 31, 32]), figure)
    text = claims.details(claim)
    assert claim.verdict() == "holds" and "changed after" not in text
    tests, others = text.split("The verdict ignores these comparisons")
    assert "A gain of less than a factor of 1.1 is too small to matter." in tests and "98.2% CI" in tests
    assert "| short | length 128 | time to 1 nat below the unigram baseline | 5.7 × | 5.0 × to" in tests
    assert "| short | length 128 | held-out loss | +0.500 nats |" in others
    assert claims.drawing(claim).startswith("<figure") and "length 128" in claims.drawing(claim)
    assert "Cost: about 4 minutes on two cores (Test" in text
    assert "| short | 0.0 M, 4 s |" in text


@pytest.mark.parametrize(
    ("metric", "bound"), [("seconds", "95% bound"), ("stable_learning_rate", "end of the 95% CI")]
)
def test_the_bound_of_a_learning_rate_is_an_end_of_its_interval(metric: str, bound: str) -> None:
    effect = Effect(Interval(1.2, 0.7, math.inf), at_least=True)
    assert claims.in_words(effect, metric) == f"at least 0.7 times ({bound}; the mean ratio is at least 1.2)"


def test_the_cost_names_every_machine_date_and_commit(tmp_path: Path) -> None:
    data = record([10, 10.5, 11], [30, 31, 32], commit="a" * 40)
    one = claims.cost(written(tmp_path, data))
    assert one == "about 4 minutes on two cores (Test, 2 cores, float32, 2026-01-01, commit aaaaaaa)"
    hardware = data["hardware"] | {"name": "Other"}
    fresh = [
        row | {"seed": row["seed"] + 10, "hardware": hardware, "date": date, "commit": commit * 40}
        for date, commit in (("2026-11-21", "b"), ("2026-11-23", "c"))
        for row in data["table"][1:]
    ]
    data["table"] += fresh
    assert claims.cost(written(tmp_path, data)).endswith(
        "(pilots and search: Test, 2 cores, float32, 2026-01-01, commit aaaaaaa; "
        "fresh seeds: Other, 2 cores, float32, 2026-11-21 to 2026-11-23, commits bbbbbbb, ccccccc)"
    )


def test_the_text_of_a_record_is_text(tmp_path: Path) -> None:
    """A record may come from anybody's machine, so its text is escaped."""
    sign = "<img src=x onerror=alert(1)>"
    data = record([10, 10.5, 11], [30, 31, 32], date=sign)
    data["hardware"]["name"] = sign
    for row in data["table"][1:]:
        row |= {"from": sign, "point": {f"`{sign}`": 1.0}}
    details = claims.details(written(tmp_path, data))
    assert "<img" not in details and details.count("img") >= 4


def test_a_claim_that_was_changed_after_its_runs_says_so(tmp_path: Path) -> None:
    data = record([10, 10.5, 11], [30, 31, 32])
    data["claim"]["options"]["tokens"] = 5
    assert "changed after these runs" in claims.details(written(tmp_path, data))
    for key, value in (("primary", "lower"), ("delta", 1.2)):
        data = record([10, 10.5, 11], [30, 31, 32])
        data["claim"][key] = value
        assert "changed after these runs" in claims.details(written(tmp_path, data))


def test_a_grid_that_all_seeds_run_counts_by_its_mean(tmp_path: Path) -> None:
    data = record([10, 10.5, 11], [30, 31, 32])
    data["table"] += [{**row, "result": {"failed": 1.0}} for row in data["table"] if row["seed"] == 2]
    claim = written(tmp_path, data)
    claim.entry["over_grid"] = True
    assert claim.count_expected_runs() == 6 and not claim.is_finished()
    assert claim.values("short", "failed") == [0.0, 0.0, 0.5]
    test = {"better": "short", "worse": "long", "metric": "failed"}
    assert claim.effect(test).gain == proportion_difference([0, 0, 0, 1], [0, 0, 0, 1])
    assert claims.in_words(claim.effect(test), "failed").startswith("0.0 points (95% CI −")


def test_a_difference_of_two_metrics_is_that_of_each_seed(tmp_path: Path) -> None:
    data = record([10, 10.5, 11], [30, 31, 32])
    for row in data["table"]:
        row["result"] |= {"package 100": 0.5 + row["seed"] / 100, "package 1000": 0.4}
    values = written(tmp_path, data).values("short", "package 100 - package 1000")
    assert values == pytest.approx([0.1, 0.11, 0.12])


def test_seeds_of_an_earlier_version_of_a_claim_do_not_decide() -> None:
    rows = [one_row(arm, seed, 10) for arm in ("short", "long") for seed in (10, 11, 12, 30, 31, 32)]
    entry = tomllib.loads(ENTRY.format(figure="curves"))["claim"][0] | {"seeds": 0}
    data = {"table": rows, "step_seconds": {}}
    for first in (10, 30):
        claim = Claim(entry | {"first_fresh_seed": first}, Record("x", data))
        assert {row["seed"] for row in claim.rows} == {first, first + 1, first + 2}


PAGES = Path("docs/pages")
ENTRIES = tomllib.loads(Path("experiments/claims/claims.toml").read_text("utf-8"))["claim"]


def test_the_chapters_of_the_claims_link_to_their_sections() -> None:
    for entry in ENTRIES:
        chapter = (PAGES / f"{entry['chapter']}.md").read_text("utf-8")
        assert f"claims.md#{entry['name']})" in chapter, entry["name"]


def test_the_page_has_a_section_and_a_row_for_each_claim() -> None:
    page = (PAGES / "claims.md").read_text("utf-8")
    titles = [(entry["title"], entry["name"]) for entry in ENTRIES]
    # The section about the method has an anchor too.
    sections = re.findall(r"^## (.+) \{#(.+)\}$", page, re.M)
    assert [section for section in sections if section[1] != "how-a-verdict-is-made"] == titles
    assert re.findall(r'^\| \[(.+?)\]\(#(.+?)\) \| \{\{ verdict\("\2"\) \}\} \|', page, re.M) == titles
    for _, name in titles:
        for call in ("claim", "claim_figure", "claim_details"):
            assert f'{{{{ {call}("{name}") }}}}' in page


def test_all_claims_at_once(tmp_path: Path) -> None:
    written(tmp_path, record([10, 10.5, 11], [30, 31, 32]))
    figure = claims.overview(tmp_path / "claims.toml", tmp_path)
    assert figure.startswith("<figure") and "Short is faster: holds." in figure
    assert figure.count('class="line n1"') == 2, "an interval that ends in an arrow"
    written(tmp_path, record([900, 900, 900], [910, 910, 910]))
    figure = claims.overview(tmp_path / "claims.toml", tmp_path)
    assert "some runs of both never got there" in figure and 'class="line n1"' not in figure


def test_every_claim_has_a_primary_endpoint() -> None:
    for entry in ENTRIES:
        (test,) = (test for test in entry["tests"] if test["says"] == entry["primary"])
        assert entry["delta"] > (1 if test["metric"] in claims.RATIOS else 0)


def test_labels_are_those_of_variants() -> None:
    for entry in ENTRIES:
        assert entry.get("labels", {}).keys() <= entry["arms"].keys()


def losses(claim: Claim, arm: str, learning_rate: float) -> list[float]:
    """The final losses in the search for a learning rate."""
    assert claim.record is not None
    rows = [row for row in claim.record.data["table"] if row["arm"] == arm and row["seed"] == 100]
    return [row["result"]["loss"] for row in rows if row["point"]["learning_rate"] == learning_rate]


def failed_runs(analysis: Analysis, arm: str) -> dict[float, int]:
    """The number of failed runs of a variant, by learning rate."""
    counts: Counter[float] = Counter()
    for row in analysis.of(arm):
        counts[row["point"]["learning_rate"]] += int(row["result"]["failed"])
    return dict(counts)


def test_what_the_page_says_in_words_is_in_the_records() -> None:
    """Checks the statements in the caveats that no expression computes."""
    lengths, head = read_claim("short-to-long"), read_claim("head")
    plateau = lengths.rows[0]["unigram_loss"] - 0.5
    for learning_rate in (2e-3, 4e-3):
        assert min(losses(lengths, "length 128", learning_rate)) > plateau, "no setting of the search left it"
    for level in (0.5, 1.0, 1.5):
        goals = [(row, row["unigram_loss"] - level) for row in lengths.of("grows evenly")]
        assert not any(lengths.arrival(*goal, "tokens").has_arrived for goal in goals), "no run ever left"
    # The head without its LayerNorm: its learning rate, and its gap to the whole head at this learning rate.
    assert losses(head, "no LayerNorm", 2e-3)[0] > head.rows[0]["unigram_loss"] - 0.1
    assert {row["point"]["learning_rate"] for row in head.of("no LayerNorm")} == {1e-3}
    gap = losses(head, "no LayerNorm", 1e-3)[0] - losses(head, "both", 1e-3)[0]
    gain = head.effect(next(test for test in head.entry["tests"] if test["worse"] == "no LayerNorm")).gain
    assert gain is not None and gap < gain.middle / 2
    warm_up, correction = read_claim("warm-up"), read_study("bias-correction")
    learning_rates = (1.4e-3, 2e-3, 2.8e-3, 4e-3, 5.6e-3)
    assert failed_runs(warm_up.evidence(), "warm-up") == dict.fromkeys(learning_rates, 0)
    failures = (0, 0, 3, 5, 5)
    assert failed_runs(warm_up.evidence(), "no warm-up") == dict(zip(learning_rates, failures, strict=True))
    learning_rates = (5e-4, 7e-4, 1e-3, 1.4e-3, 2e-3)
    for arm in ("warm-up, as published", "none, as published"):
        assert failed_runs(correction, arm) == dict.fromkeys(learning_rates, 3), "every run fails"
    for arm, failed in (("warm-up, corrected", 0), ("none, corrected", 1)):
        assert failed_runs(correction, arm) == dict(zip(learning_rates, (0, 0, 0, failed, 3), strict=True))


def test_statements_about_means_agree_with_the_records() -> None:
    evidence = read_claim("next-sentence").evidence()
    means = {arm: sum(evidence.values(arm, "summary")) / 5 for arm in ("both tasks", "masks alone")}
    assert [f"{mean:.0%}" for mean in means.values()] == ["61%", "49%"]
    page = " ".join((PAGES / "next-sentence.md").read_text("utf-8").split())
    assert "with NSP gets about 61% of the pairs right. The variant without NSP gets about 49% right" in page
    steps = json.loads(Path("docs/runs/claims/mask-shares.json").read_text("utf-8"))["step_seconds"]
    ratios = [steps["80/10/10"][length] / steps["100% [MASK]"][length] for length in ("32", "128")]
    assert round(100 * (max(*ratios, *(1 / ratio for ratio in ratios)) - 1)) == 16
    table = json.loads(Path("docs/runs/finetune_docstrings.json").read_text("utf-8"))["table"]
    totals = Counter[tuple[str, int]]()
    for row in table:
        if row["task"] == "package":
            totals[row["arm"], row["labels"]] += row["accuracy"]
    is_ahead = [totals["bag of words", n] > totals["pretrained", n] for n in (100, 1000, 3202)]
    assert is_ahead == [False, True, True]


def test_a_loss_that_is_said_to_be_higher_is_higher() -> None:
    """Chapters write `increase(...)` after "higher by", so it must not be negative."""
    text = "".join(page.read_text("utf-8") for page in PAGES.glob("*.md"))
    increases = re.findall(r'increase\("([^"]+)", "([^"]+)"\)', text)
    assert increases
    for name, says in increases:
        assert not claims.describe_gain(read_claim(name), says, opposite=True).startswith("−"), (name, says)


@pytest.mark.parametrize(
    ("name", "slow", "fast", "longer"),
    [
        ("muon", "Muon", "AdamW", 24),
        ("dropout", "dropout 10%", "no dropout", 19),
        ("depth", "8 layers of 96", "2 layers of 192", 61),
    ],
)
def test_how_much_longer_a_step_takes(name: str, slow: str, fast: str, longer: int) -> None:
    record = json.loads(Path(f"docs/runs/claims/{name}.json").read_text("utf-8"))
    seconds = [record["step_seconds"][arm]["128"] for arm in (slow, fast)]
    assert round(100 * (seconds[0] / seconds[1] - 1)) == longer
    assert f"{longer}% longer" in (PAGES / "claims.md").read_text("utf-8")


def test_the_shallow_model_has_more_parameters_outside_its_blocks() -> None:
    deep, shallow = (
        read_claim("depth").of(arm)[0]["parameters"] for arm in ("8 layers of 96", "2 layers of 192")
    )
    assert round(100 * (shallow / deep - 1)) == 5


def test_no_such_claim() -> None:
    with pytest.raises(claims.PageError, match="no entry 'x'; it has short-to-long"):
        read_claim("x")
