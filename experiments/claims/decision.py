r"""
# How a claim is decided

Each claim has one primary endpoint: a comparison of two variants by one metric. Its effect has a confidence
interval, and the interval decides:

- there is *no difference larger than $\delta$* if the whole interval is between $-\delta$ and $\delta$. This
  is an equivalence test (two one-sided tests);
- otherwise, the claim *holds* if the whole interval is on the claim's side of zero;
- the claim *fails* if the whole interval is on the other side;
- otherwise, the claim is *inconclusive*, and if possible, we estimate how many seeds would decide it.

Seeds are expensive, so we look at the results after 3, 5, 8 and 12 of them, and stop at a decision. Every
look is another chance to be wrong. So the intervals of the rule have a level of 98.2% instead of 95%. A test
simulates the whole procedure with normally distributed results and Welch's intervals: without an effect, at
most 5% of the claims come out as *holds* or *fails*, or up to 7% if one variant varies much more than the
other. Another test simulates claims about stable learning rates. A third one computes exactly how often a
claim about fractions of runs gets a wrong verdict. For both, the limit is 5% again. (A claim about fractions
needs at least five seeds.) No test simulates rank bounds.

Effects on times, numbers of tokens and stable learning rates are ratios. The rule uses their logarithms.
"""

import math
import statistics
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from scipy import stats

LOOKS = (3, 5, 8, 12)
# The seeds that decide start here. Lower seeds are pilots: when we chose the primary endpoints, we knew the
# results of the pilots.
FIRST_SEED = 10
# The rule uses intervals at `RULE_LEVEL`. The claims page shows these, and others at `LEVEL`.
LEVEL, RULE_LEVEL = 0.95, 0.982
# If a decision would need more seeds than this, we give no estimate.
MOST_SEEDS = 100


def is_fresh(seed: int, first: int = FIRST_SEED) -> bool:
    """Whether a run with this seed is one of those that decide. `first` is the lowest of these seeds."""
    return first <= seed < first + LOOKS[-1]


class Interval(NamedTuple):
    """An estimate, such as the difference of two means, and the ends of its confidence interval."""

    middle: float
    low: float
    high: float


def student(freedom: float, level: float = LEVEL) -> float:
    """Returns the quantile of Student's t with `freedom` degrees of freedom for a two-sided interval."""
    return float(stats.t.ppf((1 + level) / 2, freedom))


def mean(values: Sequence[float], level: float = LEVEL) -> Interval:
    """Returns the mean of `values` with its interval, which is infinite if there is only one value."""
    middle = statistics.mean(values)
    if len(values) < 2:
        return Interval(middle, -math.inf, math.inf)
    half = student(len(values) - 1, level) * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(middle, middle - half, middle + half)


def difference(x: Sequence[float], y: Sequence[float], level: float = LEVEL) -> Interval:
    """Returns the difference of two means and Welch's interval, infinite if a sample has only one value."""
    middle = statistics.mean(x) - statistics.mean(y)
    if min(len(x), len(y)) < 2:
        return Interval(middle, -math.inf, math.inf)
    parts = [(statistics.variance(values) / len(values), len(values) - 1) for values in (x, y)]
    square = sum(part for part, _ in parts)
    if square == 0:
        return Interval(middle, middle, middle)
    half = student(square**2 / sum(part**2 / n for part, n in parts), level) * math.sqrt(square)
    return Interval(middle, middle - half, middle + half)


def ratio_lower_bound(worse: Sequence[float], better: Sequence[float], level: float = LEVEL) -> float:
    """
    Returns a one-sided lower confidence bound for the ratio of the times in `worse` to those in `better`, or
    0 if there are too few runs for a bound.

    The bound is one of the observed ratios, and the Mann-Whitney rank test says which. At 95%, it's the
    smallest of 3 x 3 ratios, or the fifth smallest of 5 x 5. A run that never reached the loss counts with
    the time that it lasted. If such a run is in `worse`, a longer run could only raise the bound.
    """
    n, m = len(worse), len(better)
    rank, orders = 0, count_orders(n, m, 0)
    while orders <= (1 - level) * math.comb(n + m, n) * (1 + 1e-9):
        rank += 1
        orders += count_orders(n, m, rank)
    ratios = sorted(x / y for x in worse for y in better)
    return ratios[rank - 1] if rank else 0.0


@cache
def count_orders(n: int, m: int, below: int) -> int:
    """Counts the orders of `n` and `m` runs by time in which `below` of the `n * m` ratios are below 1."""
    if n == 0 or m == 0:
        return int(below == 0)
    # Either the shortest run is one of the `n`, so that its `m` ratios are below 1, or one of the `m`.
    return count_orders(n - 1, m, below - m) + count_orders(n, m - 1, below)


def proportion_difference(x: Sequence[float], y: Sequence[float], level: float = LEVEL) -> Interval:
    """
    Returns the difference between two proportions; each run is 0 or 1. Newcombe's interval combines the two
    Wilson intervals (Newcombe 1998, method 10). Its width isn't zero even if each variant's runs end alike.
    """
    p, q = statistics.mean(x), statistics.mean(y)
    (p_low, p_high), (q_low, q_high) = (
        stats.binomtest(round(sum(runs)), len(runs)).proportion_ci(level, "wilson") for runs in (x, y)
    )
    low = p - q - math.hypot(p - p_low, q_high - q)
    return Interval(p - q, low, p - q + math.hypot(p_high - p, q - q_low))


def decide(effect: Interval, delta: float) -> str:
    """
    ## The rule

    `effect` has its interval at `RULE_LEVEL`. Positive values support the claim. Returns `holds`, `fails`,
    `no difference` or `inconclusive`.
    """
    if -delta < effect.low and effect.high < delta:
        return "no difference"
    if effect.low > 0:
        return "holds"
    return "fails" if effect.high < 0 else "inconclusive"


def seeds_needed(x: Sequence[float], y: Sequence[float], delta: float) -> int | None:
    """
    Estimates how many seeds each variant needs for a decision, if the means and standard deviations stay as
    they are in the samples `x` and `y`. Returns `None` if the number is above `MOST_SEEDS`.
    """
    middle = statistics.mean(x) - statistics.mean(y)
    variance = statistics.variance(x) + statistics.variance(y)
    for n in range(2, MOST_SEEDS + 1):
        half = student(2 * n - 2, RULE_LEVEL) * math.sqrt(variance / n)
        if decide(Interval(middle, middle - half, middle + half), delta) != "inconclusive":
            return n
    return None
