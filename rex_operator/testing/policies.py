"""Does a planning policy keep what every policy promises?

A policy of one's own meets groups, ceilings and reports that nobody thought of while writing it. These checks drive the
operator's own planner in virtual time, with the policy in it, through such situations: `check_policy(MyPolicy)` runs
all of them; `checks(MyPolicy)` gives them one by one, for a test runner::

    @pytest.mark.parametrize("check", checks(MyPolicy), ids=str)
    def test_my_policy(check):
        check()

A published rival may break a check by its paper's own rule. It then says so, with the reason, in ``About.exempt``, and
`rex policies` shows it. Checks about shares are only for policies whose ``About.changes`` names them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rex_operator.testing import conduct, plans
from rex_operator.testing.scenes import Make

ALL: dict[str, Callable[[Make], None]] = {
    "says-what-it-is": conduct.says_what_it_is,
    "sums-and-bounds": plans.sums_and_bounds,
    "any-batch": plans.any_batch,
    "least-share": plans.least_share,
    "declared-ceilings": plans.declared_ceilings,
    "hidden-ceilings": plans.hidden_ceilings,
    "one-worker": plans.one_worker,
    "team-changes": plans.team_changes,
    "absent-figures": plans.absent_figures,
    "deterministic": conduct.deterministic,
    "only-looks": conduct.only_looks,
    "saved-state": conduct.saved_state,
    "keeps-shares-on-noise": conduct.keeps_shares_on_noise,
    "keeps-batch-on-noise": conduct.keeps_batch_on_noise,
    "follows-a-slow-worker": conduct.follows_a_slow_worker,
}
"""All checks by name; the docstring of each says what it demands."""
OF_SHARES = frozenset({"follows-a-slow-worker"})
"""These only concern policies that move shares."""


@dataclass(frozen=True)
class Check:
    """One check of one policy; a call runs it and raises ``AssertionError`` where it fails."""

    name: str
    policy: str
    demand: str
    """What it asks for, in a sentence."""
    make: Make
    run: Callable[[Make], None]

    def __call__(self) -> None:
        """Run the check. Raises ``AssertionError``."""
        try:
            self.run(self.make)
        except AssertionError as error:
            raise AssertionError(f"policy {self.policy!r} fails {self.name}: {error}") from error
        except Exception as error:
            raise AssertionError(f"policy {self.policy!r} fails {self.name} with {error!r}") from error

    def __str__(self) -> str:
        return f"{self.policy}-{self.name}"


def checks(make: Make) -> list[Check]:
    """Return the checks that concern a policy, but for those that it is exempt from.

    ``make`` returns a new policy object: its class, or a function where that wants arguments.
    """
    about = make().about
    unknown = set(about.exempt) - set(ALL)
    if unknown:
        raise AssertionError(f"policy {about.name!r} is exempt from {sorted(unknown)}; there are {', '.join(ALL)}")
    skipped = set(about.exempt) | (set() if "shares" in about.changes else OF_SHARES)
    return [
        Check(name, about.name, " ".join((run.__doc__ or "").split()), make, run)
        for name, run in ALL.items()
        if name not in skipped
    ]


def check_policy(make: Make) -> None:
    """Run all checks that concern a policy. Raises ``AssertionError``, with a sentence, at the first that fails."""
    for check in checks(make):
        check()
