"""The house is light: no more lines and files than the budget allows."""

import pytest

from shared.tests import budget


def test_the_budget_is_kept():
    if not budget.files():
        pytest.skip("not a checkout of git")
    over = {row: count for row, count in budget.counts().items() if count > budget.LIMITS[row]}
    assert not over, f"over budget, who adds must delete:\n{budget.table()}"
