"""The rule for claims: its intervals, its error rates, and the number of seeds that it asks for."""

import math
import random
import statistics
from collections import Counter
from functools import cache
from itertools import combinations, product

import numpy
import pytest
from scipy import stats

from experiments.claims.analysis import Analysis
from experiments.claims.decision import (
    LOOKS,
    RULE_LEVEL,
    Interval,
    count_orders,
    decide,
    difference,
    proportion_difference,
    ratio_lower_bound,
    seeds_needed,
)

DELTA = 0.03


def test_the_interval_is_the_one_of_the_textbook() -> None:
    """Both samples have three values and a variance of 1, so there are 4 degrees of freedom."""
    interval = difference([4.0, 5.0, 6.0], [1.0, 2.0, 3.0])
    assert interval.middle == 3.0
    assert interval.high - interval.middle == pytest.approx(2.77645 * math.sqrt(2 / 3), rel=1e-5)
    assert difference([1.0], [2.0]).low == -math.inf


def test_the_interval_agrees_with_scipy() -> None:
    x, y = [1.0, 1.5, 1.2, 1.9], [0.8, 0.4, 1.1]
    theirs = stats.ttest_ind(x, y, equal_var=False).confidence_interval(RULE_LEVEL)
    assert difference(x, y, RULE_LEVEL)[1:] == pytest.approx((theirs.low, theirs.high))


@pytest.mark.slow("draws thousands of samples")
def test_the_interval_holds_the_truth_nineteen_times_in_twenty() -> None:
    r = random.Random(0)
    samples = [([r.gauss(1, 1) for _ in range(3)], [r.gauss(0, 2) for _ in range(3)]) for _ in range(4000)]
    hits = sum(interval.low < 1 < interval.high for interval in (difference(*pair) for pair in samples))
    assert 0.93 < hits / len(samples) < 0.98


def test_a_bound_by_ranks_is_below_the_truth_nineteen_times_in_twenty() -> None:
    """The true factor is e. The test's exact level is 5.0% with 3 runs each, and 4.8% with 5 runs each."""
    r = random.Random(0)
    for runs in (3, 5):
        samples = [[[math.exp(r.gauss(mu, 1)) for _ in range(runs)] for mu in (1, 0)] for _ in range(4000)]
        below = sum(ratio_lower_bound(worse, better) < math.e for worse, better in samples)
        assert 0.94 < below / len(samples) < 0.96
    assert ratio_lower_bound([10.0, 20.0, 30.0], [1.0, 2.0, 3.0]) == 10 / 3, "the smallest of 3 times 3"
    assert ratio_lower_bound([1.0, 2.0], [3.0, 4.0]) == 0, "too few for a bound"
    assert ratio_lower_bound([10.0, 20.0, 30.0], [1.0, 2.0, 3.0], 0.991) == 0, "too few at this level"


def test_the_number_of_orders_is_that_of_counting_them_one_by_one() -> None:
    for n, m in product(range(6), range(6)):
        orders = combinations(range(n + m), n)
        counts = Counter(sum(ranks) - n * (n - 1) // 2 for ranks in orders)
        assert [count_orders(n, m, below) for below in range(n * m + 1)] == [
            counts[below] for below in range(n * m + 1)
        ]
    assert sum(count_orders(12, 12, below) for below in range(145)) == math.comb(24, 12)


def test_a_bound_does_not_fall_when_a_run_lasts_longer() -> None:
    worse, better = [20.0, 20.0, 14.0, 15.0, 16.0], [2.0, 2.1, 1.9, 2.0, 2.2]
    bound = ratio_lower_bound(worse, better)
    assert all(ratio_lower_bound([20.0 * times, *worse[1:]], better) >= bound for times in (2, 20, 1e6))


def test_the_interval_of_two_proportions_is_the_published_one() -> None:
    """Newcombe 1998, table II, comparison (a): 56 of 70 against 48 of 80, method 10."""
    ours = proportion_difference([1.0] * 56 + [0.0] * 14, [1.0] * 48 + [0.0] * 32)
    assert [round(value, 4) for value in ours] == [0.2, 0.0524, 0.3339]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.01, 0.5, "holds"),
        (-0.5, -0.01, "fails"),
        (-0.02, 0.02, "no difference"),
        (0.01, 0.02, "no difference"),
        (-0.02, 0.04, "inconclusive"),
        (-0.5, 0.5, "inconclusive"),
    ],
)
def test_the_rule(low: float, high: float, expected: str) -> None:
    assert decide(Interval((low + high) / 2, low, high), DELTA) == expected


def simulate(effect: float, std: float, claims: int = 20_000, ratio: float = 1.0) -> dict[str, float]:
    """
    How often each decision is reached, with looks after 3, 5, 8 and 12 seeds. A decision is final. `ratio` is
    the standard deviation of the first variant's results over that of the second variant's.
    """
    r = numpy.random.default_rng(0)
    x = r.normal(effect, std * ratio, (claims, LOOKS[-1]))
    y = r.normal(0, std, (claims, LOOKS[-1]))
    low, high = numpy.zeros(claims), numpy.zeros(claims)
    decisions = numpy.full(claims, "inconclusive", dtype=object)
    for n in LOOKS:
        parts = [part[:, :n].var(1, ddof=1) / n for part in (x, y)]
        square = parts[0] + parts[1]
        freedom = square**2 / ((parts[0] ** 2 + parts[1] ** 2) / (n - 1))
        half = stats.t.ppf((1 + RULE_LEVEL) / 2, freedom) * numpy.sqrt(square)
        middle = x[:, :n].mean(1) - y[:, :n].mean(1)
        low, high = middle - half, middle + half
        is_open = decisions == "inconclusive"
        is_null = (low > -DELTA) & (high < DELTA)
        decisions[is_open & (low > 0)] = "holds"
        decisions[is_open & (high < 0)] = "fails"
        decisions[is_open & is_null] = "no difference"
    names = ("holds", "fails", "no difference", "inconclusive")
    return {name: float((decisions == name).mean()) for name in names}


@pytest.mark.parametrize("std", [0.003, 0.01, 0.03, 0.1])
def test_without_an_effect_at_most_one_claim_in_twenty_is_decided_wrongly(std: float) -> None:
    """Without an effect, `fails` is as wrong as `holds`."""
    fractions = simulate(0.0, std)
    assert fractions["holds"] + fractions["fails"] <= 0.05


@pytest.mark.parametrize("ratio", [2.0, 4.0, 10.0])
def test_if_one_variant_varies_more_at_most_seven_in_a_hundred_are_decided_wrongly(ratio: float) -> None:
    fractions = simulate(0.0, 0.1, ratio=ratio)
    assert fractions["holds"] + fractions["fails"] <= 0.07


def reached(better: int, worse: int, seeds: int) -> Analysis:
    """A claim about the fraction of runs whose loss gets to 2.0. The numbers say how many of them do."""
    rows = [
        {
            "arm": arm,
            "seed": seed,
            "unigram_loss": 3.0,
            "curve": [[0, 3.0], [10, 1.9 if seed < count else 2.1]],
            "batch_tokens": 1,
        }
        for arm, count in (("better", better), ("worse", worse))
        for seed in range(seeds)
    ]
    test = {"says": "x", "better": "better", "worse": "worse", "metric": "reached", "below": 1.0}
    return Analysis({"tests": [test], "primary": "x", "delta": 0.1}, rows, {})


def wrong_verdicts(fraction: float) -> float:
    """
    The exact probability of *holds* or *fails* if runs of both variants reach the loss with this probability.
    """
    open_states, wrong, before = {(0, 0): 1.0}, 0.0, 0
    for n in LOOKS:
        new_runs = [float(stats.binom.pmf(k, n - before, fraction)) for k in range(n - before + 1)]
        states: dict[tuple[int, int], float] = {}
        for (x, y), probability in open_states.items():
            for (i, p), (j, q) in product(enumerate(new_runs), repeat=2):
                states[x + i, y + j] = states.get((x + i, y + j), 0.0) + probability * p * q
        open_states = {state: p for state, p in states.items() if verdict_on(*state, n) == "inconclusive"}
        wrong += sum(p for state, p in states.items() if verdict_on(*state, n) in ("holds", "fails"))
        before = n
    return wrong


@cache
def verdict_on(better: int, worse: int, seeds: int) -> str:
    return reached(better, worse, seeds).decision()


def test_the_fraction_of_runs_that_reach_a_loss() -> None:
    analysis = reached(4, 0, 5)
    effect = analysis.effect(analysis.primary(), RULE_LEVEL)
    assert effect.gain == proportion_difference([1.0] * 4 + [0.0], [0.0] * 5, RULE_LEVEL)
    assert analysis.decision() == "holds" and reached(0, 4, 5).decision() == "fails"
    assert reached(3, 3, 5).decision() == "inconclusive" and reached(3, 3, 5).needed_seeds() is None
    assert reached(3, 0, 3).decision() == "inconclusive", "three seeds are too few for fractions"


@pytest.mark.slow("goes through all outcomes of twelve seeds")
def test_equal_fractions_are_called_different_at_most_one_time_in_twenty() -> None:
    assert 0.04 < max(wrong_verdicts(fraction / 20) for fraction in range(21)) <= 0.05


GRID = (1.4e-3, 2e-3, 2.8e-3, 4e-3, 5.6e-3)


def verdict_on_limits(better: list[float], worse: list[float]) -> str:
    """The verdict on variants whose runs fail above a limit of the learning rate, one limit for each seed."""
    rows = [
        {"arm": arm, "seed": seed, "point": {"learning_rate": value}, "result": {"failed": value > limit}}
        for arm, limits in (("better", better), ("worse", worse))
        for seed, limit in enumerate(limits)
        for value in GRID
    ]
    test = {"says": "x", "better": "better", "worse": "worse", "metric": "stable_learning_rate"}
    return Analysis({"tests": [test], "primary": "x", "delta": 1.5}, rows, {}).decision()


def test_a_limit_that_is_four_times_as_high_is_found() -> None:
    better, worse = [5e-3, 4.9e-3, 5.2e-3], [1.5e-3, 1.6e-3, 1.5e-3]
    assert verdict_on_limits(better, worse) == "holds" and verdict_on_limits(worse, better) == "fails"
    assert verdict_on_limits(better, [6e-3] * 3) == "inconclusive"


@pytest.mark.slow("analyzes thousands of simulated claims")
@pytest.mark.parametrize(
    "middle", [1.6e-3, *(pytest.param(value, marks=pytest.mark.long) for value in (2.8e-3, 5e-3))]
)
@pytest.mark.parametrize("stds", [(0.1, 0.1), (0.4, 0.4), (0.8, 0.8), (0.1, 0.8)])
def test_equal_limits_of_the_learning_rate_are_called_different_at_most_one_time_in_twenty(
    middle: float, stds: tuple[float, float]
) -> None:
    """
    The logs of both variants' limits have the same mean. `stds` are their standard deviations. The limits can
    be outside the grid.
    """
    r = numpy.random.default_rng(0)
    wrong, claims = 0, 400
    for _ in range(claims):
        better, worse = (list(middle * numpy.exp(r.normal(0, std, LOOKS[-1]))) for std in stds)
        verdicts = (verdict_on_limits(better[:n], worse[:n]) for n in LOOKS)
        final = next((verdict for verdict in verdicts if verdict != "inconclusive"), "inconclusive")
        wrong += final in ("holds", "fails")
    assert wrong <= 0.05 * claims


@pytest.mark.parametrize("std", [0.003, 0.01, 0.03, 0.1])
def test_an_effect_as_large_as_delta_is_seldom_called_none(std: float) -> None:
    assert simulate(DELTA, std)["no difference"] <= 0.05


def test_the_power_at_the_effects_that_we_found() -> None:
    """The first case is the mask rate: 0.2 nats with a standard deviation of 0.013. Accuracies vary more."""
    assert simulate(0.2, 0.013)["holds"] > 0.99
    assert simulate(0.1, 0.025)["holds"] > 0.99
    assert 0.5 < simulate(0.05, 0.04)["holds"] < 0.95
    assert simulate(0.0, 0.005)["no difference"] > 0.95


def test_how_many_seeds_are_needed() -> None:
    x, y = [1.0, 1.1, 1.2], [0.9, 1.0, 1.1]
    n = seeds_needed(x, y, DELTA)
    assert n is not None and n > 3
    half = stats.t.ppf((1 + RULE_LEVEL) / 2, 2 * n - 2) * math.sqrt(
        (statistics.variance(x) + statistics.variance(y)) / n
    )
    assert half < 0.1, "with so many, the interval leaves out zero"
    assert seeds_needed([1.0, 1.5, 0.5], [1.0, 1.5, 0.5], DELTA) is None


def stability(better: list[list[float]], worse: list[list[float]]) -> Analysis:
    """For each seed, the arguments list the learning rates (of 1, 2, 4 and 8) at which a run failed."""
    rows = [
        {"arm": arm, "seed": seed, "point": {"learning_rate": value}, "result": {"failed": value in failed}}
        for arm, seeds in (("better", better), ("worse", worse))
        for seed, failed in enumerate(seeds)
        for value in (1.0, 2.0, 4.0, 8.0)
    ]
    test = {"says": "x", "better": "better", "worse": "worse", "metric": "stable_learning_rate"}
    return Analysis({"tests": [test], "primary": "x", "delta": 1.5}, rows, {})


@pytest.mark.parametrize(
    ("better", "worse", "ends", "decision"),
    [
        # The same point of the grid: the true values can still differ by up to a factor of two.
        ([[8.0]] * 3, [[8.0]] * 3, (0.5, 2.0), "inconclusive"),
        # One point apart may be almost no difference; two points apart are at least a factor of two.
        ([[8.0]] * 3, [[4.0, 8.0]] * 3, (1.0, 4.0), "inconclusive"),
        ([[8.0]] * 3, [[2.0, 4.0, 8.0]] * 3, (2.0, 8.0), "holds"),
        ([[2.0, 4.0, 8.0]] * 3, [[8.0]] * 3, (0.125, 0.5), "fails"),
        # Stable runs at learning rates above the first failure don't count.
        ([[2.0]] * 3, [[8.0]] * 3, (0.125, 0.5), "fails"),
        # If a variant is stable at all points of the grid or at none, the interval has no end on that side.
        ([[]] * 3, [[4.0, 8.0]] * 3, (2.0, math.inf), "holds"),
        ([[8.0]] * 3, [[1.0, 2.0, 4.0, 8.0]] * 3, (4.0, math.inf), "holds"),
        ([[]] * 3, [[]] * 3, (0.0, math.inf), "inconclusive"),
    ],
)
def test_the_largest_stable_learning_rate(
    better: list[list[float]], worse: list[list[float]], ends: tuple[float, float], decision: str
) -> None:
    analysis = stability(better, worse)
    gain = analysis.effect(analysis.primary()).gain
    assert gain is not None and gain[1:] == pytest.approx(ends)
    assert analysis.decision() == decision
    is_too_coarse = decision == "inconclusive" and ends != (0.0, math.inf)
    assert analysis.needed_seeds() == (math.inf if is_too_coarse else None)


def test_if_the_grid_is_too_coarse_even_infinitely_many_seeds_are_not_enough() -> None:
    # On average, the largest stable learning rate is 1.6 times as high, but the grid's gaps are 2.
    undecidable = stability([[8.0], [4.0, 8.0], [8.0]], [[4.0, 8.0]] * 3)
    assert undecidable.needed_seeds() == math.inf
    # One variant is stable at every point, so the ratio is only bounded below: by 1.6 / 2.
    bounded = stability([[], [8.0], []], [[8.0]] * 3)
    assert bounded.effect(bounded.primary()).at_least and bounded.needed_seeds() == math.inf
    # On average, the ratio is 3.2, so enough seeds would decide it. We don't estimate how many.
    decidable = stability([[8.0], [8.0], [4.0, 8.0]], [[2.0, 4.0, 8.0]] * 3)
    assert decidable.decision() == "inconclusive" and decidable.needed_seeds() is None
    # Both variants are stable at every point, so the ratio is unknown.
    assert stability([[]] * 3, [[]] * 3).needed_seeds() is None
