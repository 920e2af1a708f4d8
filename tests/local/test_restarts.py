"""What follows when a worker of this machine ends."""

from __future__ import annotations

from typing import Any

from rex_operator.api.spec import Failure
from rex_operator.local.restarts import Next, Restarts


def after(restarts: Restarts, state: Any = "gone", code: int = 1, **changes: Any) -> Next:
    values: dict[str, Any] = {"connected": True, "error": "", "step": 0}
    return restarts.after("w0", state, code, **(values | changes))


def test_a_script_that_ends_without_rex_is_no_success() -> None:
    then = after(Restarts(Failure(), 2, 0, 0), code=0, connected=False)
    assert then.fail == "NeverCalledRex"


def test_the_error_of_the_script_is_told() -> None:
    then = after(Restarts(Failure(max_restarts=0), 2, 0, 0), error="ValueError: no such column")
    assert then.fail == "RestartsUsedUp"
    assert "no such column" in then.message


def test_one_that_was_asked_to_go_is_not_charged() -> None:
    restarts = Restarts(Failure(max_restarts=0), 2, 0, 0)
    assert after(restarts, "drained", 0).fail == ""
    assert (restarts.charged, restarts.uncharged) == (0, 1)


def test_the_budget_counts_all_parts_of_a_run() -> None:
    assert after(Restarts(Failure(max_restarts=3), 2, 3, 0)).fail == "RestartsUsedUp"


def test_restarts_slow_down_while_no_step_is_made_and_not_otherwise() -> None:
    restarts = Restarts(Failure(max_restarts=100), 2, 0, 0)
    stuck = [after(restarts).delay_s for _ in range(12)]
    assert stuck[:3] == [0.0, 0.0, 0.5], "each worker may fail once at once"
    assert stuck == sorted(stuck)
    assert after(restarts, step=10).delay_s == 0.0
