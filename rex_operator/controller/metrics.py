"""The operator's figures for Prometheus.

Counts of what the operator does are counters and one histogram. Figures of jobs are read at the moment of scraping from
the running coordinators, so that a job that is gone leaves no series behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rex_operator.jobs import JobView

REGISTRY = CollectorRegistry()

PASSES = Counter("rex_reconcile_total", "Passes over jobs, by result", ["result"], registry=REGISTRY)
PASS_SECONDS = Histogram("rex_reconcile_seconds", "Duration of a pass over one job", registry=REGISTRY)
LEADING = Gauge("rex_leading", "1 while this process leads", registry=REGISTRY)
SCHEMA_DIFFERS = Gauge(
    "rex_schema_differs", "1 if the installed CRD is not the one this operator was built with", registry=REGISTRY
)

_WORKING = frozenset({"ready", "running", "stale"})


_FIGURES: dict[str, tuple[str, Callable[[JobView], float | None]]] = {
    "rex_job_workers": ("Workers that are ready or train", lambda v: sum(r.state in _WORKING for r in v.workers)),
    "rex_job_generation": ("Generation of the running group", lambda view: view.generation),
    "rex_job_plan_version": ("Version of the newest plan", lambda view: view.plan.version if view.plan else None),
    "rex_job_global_batch": ("Samples per step", lambda view: view.plan.global_batch if view.plan else None),
    "rex_job_step": ("Applied optimiser steps", lambda view: view.step),
    "rex_job_samples": ("Samples trained on", lambda view: view.samples),
    "rex_job_progress_ratio": ("Share of the run that is done", lambda view: view.progress),
    "rex_job_samples_per_second": ("Throughput", lambda view: view.samples_per_s),
    "rex_job_goodput": ("Throughput times statistical efficiency", lambda view: view.goodput),
    "rex_job_noise_scale": ("Gradient noise scale in samples", lambda view: view.planner.noise_scale),
    "rex_job_trials": ("Trials of other batches so far", lambda view: view.planner.trials),
    "rex_job_converged": ("1 while no batch is likely enough to be better", lambda view: view.converged),
    "rex_job_price_per_hour": ("Price of the present workers for an hour", lambda view: view.planner.price_per_hour),
    "rex_job_watts": ("Modelled draw of the workers' devices", lambda view: view.planner.watts),
    "rex_job_joules_per_sample": (
        "Modelled energy of a useful sample",
        lambda view: view.planner.joules_per_sample,
    ),
    "rex_job_error_budget_spent": (
        "Most changes by chance alone to be expected of all trials so far",
        lambda view: view.planner.budget_spent,
    ),
    "rex_job_expectation_bias_ratio": (
        "Median of measured less expected gain over the newest judged trials; negative: too much was promised",
        lambda view: view.calibration.bias if view.calibration else None,
    ),
}


class JobFigures(Collector):
    """Figures of the running jobs, made when asked for."""

    def __init__(self, views: Callable[[], Iterable[JobView]], channel: Callable[[], Mapping[str, int]]) -> None:
        self._views, self._channel = views, channel

    def collect(self) -> Iterable[Metric]:
        """Read the views once and make a family per figure."""
        views = list(self._views())
        for name, (text, read) in _FIGURES.items():
            family = GaugeMetricFamily(name, text, labels=["namespace", "job"])
            for view in views:
                value = read(view)
                if value is not None:
                    family.add_metric(view.name.split("/", 1), float(value))
            yield family
        channel = CounterMetricFamily("rex_channel", "What the worker channel refused or set aside", labels=["cause"])
        for cause, count in sorted(self._channel().items()):
            channel.add_metric([cause], count)
        yield channel
