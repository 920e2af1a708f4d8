from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from rex_worker.protocol import MAX_MESSAGE_BYTES, StepReport, encode
from rex_worker.telemetry import BATCH, TelemetryQueue


def report(step: int) -> StepReport:
    return StepReport(
        step=step, plan_version=1, samples=step, local_batch=1, compute_s=0.1, wait_s=0.0, step_s=0.1, loss=0.1
    )


@given(capacity=st.integers(2, 50), count=st.integers(0, 300), generations=st.integers(1, 4))
@settings(deadline=None)
def test_it_is_bounded_keeps_the_order_and_counts_what_it_drops(capacity: int, count: int, generations: int) -> None:
    queue = TelemetryQueue(capacity)
    for step in range(1, count + 1):
        queue.add(1 + step * generations // (count + 1), report(step))
    kept: list[int] = []
    dropped = 0
    while (message := queue.take()) is not None:
        kept += [entry.step for entry in message.steps]
        dropped += message.dropped
    assert kept == sorted(set(kept))
    assert len(kept) <= capacity + 1
    assert len(kept) + dropped == count
    assert count == 0 or kept[-1] == count, "the newest is never dropped"


def test_a_message_that_could_not_be_sent_is_counted() -> None:
    queue = TelemetryQueue()
    for step in range(1, 6):
        queue.add(1, report(step))
    message = queue.take()
    assert message is not None
    queue.lost(message)
    queue.add(1, report(6))
    again = queue.take()
    assert again is not None and again.dropped == 5


def test_a_full_message_of_long_numbers_fits_the_channel() -> None:
    queue = TelemetryQueue()
    for step in range(2**53 - BATCH, 2**53):
        queue.add(
            2**53,
            StepReport(
                step=step,
                plan_version=2**53,
                samples=2**53,
                epoch=2**53,
                local_batch=2**53,
                compute_s=1234567.1234567,
                wait_s=1234567.1234567,
                comm_s=1234567.1234567,
                peak_bytes=2**53,
                data_s=1234567.1234567,
                step_s=1234567.1234567,
                loss=-1.2345678901234567e-29,
                diverged=True,
                local_grad_sq=1.2345678901234567e-299,
                global_grad_sq=1.2345678901234567e-299,
                marks=["first", "after-change", "checkpoint", "evaluation"],
            ),
        )
    message = queue.take()
    assert message is not None and len(message.steps) == BATCH
    assert len(encode(message)) < MAX_MESSAGE_BYTES
