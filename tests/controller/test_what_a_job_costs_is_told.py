"""Price, power and advice reach the status, bounded and rounded, and only where they are known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rex_operator.api import JobStatus
from rex_operator.controller.figures import training as figures
from rex_operator.planning import PlannerView
from tests.controller.pictures import training


def told(planner: PlannerView) -> object:
    status = JobStatus().model_copy(update=figures(JobStatus(), replace(training(), planner=planner)))
    return JobStatus.read(status.dump()).dump().get("spending")


def test_nothing_known_is_nothing_said() -> None:
    assert told(PlannerView()) is None


def test_a_price_without_a_rate_yet() -> None:
    assert told(PlannerView(price_per_hour=7.0)) == {"pricePerHour": 7.0, "advice": ""}


@pytest.mark.parametrize("huge", [1e300, float("inf")])
def test_figures_are_rounded_and_bounded(huge: float) -> None:
    spending = told(
        PlannerView(
            price_per_hour=0.0,
            price_per_million=huge,
            watts=1234.567,
            joules_per_sample=0.0123456,
            advice="x" * 600,
        )
    )
    assert isinstance(spending, dict)
    assert spending["pricePerHour"] == 0
    assert 0 <= spending["pricePerMillionSamples"] <= 1e15
    assert spending["watts"] == 1230
    assert spending["joulesPerSample"] == 0.0123
    assert len(spending["advice"]) == 512
