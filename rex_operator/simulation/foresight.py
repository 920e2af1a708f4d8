"""Is the search as sure as it may be? Each row of a published table predicted from the others.

A search that is too sure stops before it has found anything; one that is not sure enough tries everything. So its own
belief (curve, process and what they leave open) is asked for each row that it was not shown, and the error is counted
in the standard deviations that it gave. Were it right, 95 % of these would be within two.
"""

from __future__ import annotations

import math

from rex_operator.planning.candidates import Candidate
from rex_operator.planning.curves import Point, StepTimeCurve
from rex_operator.planning.memory import Limits
from rex_operator.planning.search import Measured, SearchRequest, prospect_of
from rex_operator.planning.split import WorkerModel
from rex_operator.simulation.published.table import Table

_VARIANCE = 0.003**2
"""Of the log of a measured time: a window's median."""


def standardised_errors(table: Table) -> list[float]:
    """Return, for each row but the first, the error of its predicted gain over the row before, in deviations.

    The other rows are what ran; one worker stands for all.
    """
    errors = []
    rows = table.rows
    for i in range(1, len(rows)):
        known = [row for row in rows if row is not rows[i]]
        curve = StepTimeCurve.fit([Point(r.local_batch, r.step_s - r.sync_s or r.step_s, _VARIANCE) for r in known])
        before, left_out = rows[i - 1], rows[i]
        request = SearchRequest(
            number=1,
            models=(WorkerModel("w0", curve),),
            memory=(Limits(float(rows[-1].local_batch)),),
            overhead_s=before.sync_s,
            batch_min=1,
            batch_max=rows[-1].local_batch,
            batch_initial=rows[0].local_batch,
            current=(before.local_batch, 1),
            noise_scale=None,
            measured=tuple(Measured(r.local_batch, 1, r.step_s, _VARIANCE) for r in known),
            low=1,
            high=rows[-1].local_batch,
            other_passes=True,
            min_effect=0.02,
        )
        prospect = prospect_of(request, [Candidate(left_out.local_batch, 1)])
        if prospect is None:
            continue
        belief = prospect.belief
        mean = float(belief.expected()[0])
        spread = belief.weights @ (belief.deviations[:, 0] ** 2 + (belief.means[:, 0] - mean) ** 2)
        gain = math.log(left_out.local_batch / before.local_batch) - math.log(left_out.step_s / before.step_s)
        errors.append((gain - mean) / math.sqrt(float(spread)))
    return errors
