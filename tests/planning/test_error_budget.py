"""The trials of a job share one budget: few of the changes that are kept are false, and no level ever passes alpha."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rex_operator.planning.budget import MAX_KEPT, BudgetState, ErrorBudget

ALPHA = 0.05


def levels(kept: list[bool]) -> tuple[list[float], ErrorBudget]:
    budget, found = ErrorBudget(ALPHA), []
    for good in kept:
        found.append(budget.spend())
        if good:
            budget.earn()
    return found, budget


def test_in_vain_it_grows_strict_and_never_spends_more_than_half_of_alpha() -> None:
    found, budget = levels([False] * 1000)
    assert found[0] == pytest.approx(0.0109, abs=1e-4)
    assert found == sorted(found, reverse=True)
    assert budget.spent == pytest.approx(sum(found)) and budget.spent <= ALPHA / 2


def test_a_change_that_is_kept_makes_it_bold_again() -> None:
    found, budget = levels([False] * 9 + [True])
    assert budget.level > 10 * found[-1]


@given(st.lists(st.booleans(), max_size=300))
def test_c_158_no_trial_passes_alpha_and_what_is_spent_is_covered_by_what_was_kept(kept: list[bool]) -> None:
    found, budget = levels(kept)
    assert all(0 < level <= ALPHA for level in found)
    assert budget.spent <= ALPHA * max(1, sum(kept)) + ALPHA, "LORD++: spending stays within alpha x discoveries"
    state = BudgetState.model_validate_json(budget.state().model_dump_json())
    assert len(state.kept) <= MAX_KEPT
    assert ErrorBudget(ALPHA, state).level == pytest.approx(budget.level)


@pytest.mark.parametrize("useful", [0.0, 0.1, 0.5])
def test_among_the_changes_that_are_kept_few_are_false(useful: float) -> None:
    rng = np.random.default_rng(0)
    share = []
    for _ in range(600):
        budget, false, all_kept = ErrorBudget(ALPHA), 0, 0
        for _ in range(40):
            helps = rng.random() < useful
            p = rng.random() ** (8 if helps else 1)
            if p <= budget.spend():
                budget.earn()
                all_kept += 1
                false += not helps
        share.append(false / max(1, all_kept))
    assert np.mean(share) <= ALPHA
