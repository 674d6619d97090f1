"""One search with one rule for when to stop, which counts ascents."""

import pytest
from formulas import refused

from curlnb.theory.climb import climb
from curlnb.theory.finite_worlds import pair_losses

SIZE = (3, 4, 2)


def ratio(world, f):
    return pair_losses(world, f, "hinge").ratio()


def test_it_goes_on_until_a_larger_budget_gains_nothing_and_counts_ascents():
    options = dict(restarts=3, seed=0)
    flat = climb(lambda world, f: 0 * f.sum((-2, -1)) + 1, SIZE, [1, 2, 3, 4, 5], **options)
    assert (list(flat.curve), flat.cases, flat.settled) == ([1, 2, 3], 9, True)
    rising = climb(ratio, SIZE, [1, 20, 40], **options)
    assert rising.cases == 9
    assert list(rising.curve.values()) == sorted(rising.curve.values())
    assert float(ratio(rising.world, rising.f)) == pytest.approx(rising.value, abs=1e-9)
    steep = climb(ratio, SIZE, [1, 2, 3, 4], **options)
    assert (len(steep.curve), steep.settled) == (4, False)
    two = climb(ratio, SIZE, [1, 2], **options)
    assert not two.settled, "two budgets cannot show that more gains nothing"
    with refused("no budget is given"):
        climb(ratio, SIZE, [], **options)


def test_it_finds_a_planted_violation_and_keeps_a_true_bound():
    false = climb(lambda w, f: ratio(w, f) - 0.9, SIZE, [20, 40, 80], restarts=8, seed=1)
    assert 0 < false.value <= 0.1 + 1e-9
