"""C-024: the rate of writes does not follow the rate of telemetry; what matters is written at once."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from rex_operator.api import JobStatus
from rex_operator.controller.act import Actor
from rex_operator.controller.events import BURST, Recorder
from rex_operator.controller.kube import Object
from rex_operator.controller.observe import Memory, Observer
from rex_operator.controller.picture import picture
from tests.controller.pictures import OWNER, pod, seen, training
from tests.controller.recording import RecordingKube
from tests.controller.virtual import in_virtual_time


def actor(kube: RecordingKube) -> Actor:
    return Actor(kube.as_kube(), Observer(kube.as_kube(), [], None, ""), Recorder(kube.as_kube(), "me"), "CA")  # type: ignore[arg-type]


@in_virtual_time
async def test_c_024_progress_alone_is_written_at_most_six_times_a_minute() -> None:
    kube, memory = RecordingKube(), Memory(OWNER.uid)
    writer, held = actor(kube), {"status": JobStatus().dump()}
    pods = [pod("w0"), pod("w1")]
    for tick in range(600):
        view = replace(training(*pods), step=tick, samples=256 * tick, steps_per_s=10 + tick / 7)
        status = picture(seen(pods, view=view, status=JobStatus.read(held["status"]))).dump()
        await writer.write_status(held, OWNER, status, memory)
        if kube.applied:
            held = {"status": kube.applied[-1]["status"]}
        await asyncio.sleep(0.1)
    assert 2 <= len(kube.applied) <= 8


@in_virtual_time
async def test_a_change_of_phase_is_written_at_once_and_nothing_new_not_at_all() -> None:
    kube, memory = RecordingKube(), Memory(OWNER.uid)
    writer = actor(kube)
    first = JobStatus(phase="Starting").dump()
    item: Object = {"status": None}
    await writer.write_status(item, OWNER, first, memory)
    await writer.write_status({"status": first}, OWNER, first, memory)
    await writer.write_status({"status": first}, OWNER, JobStatus(phase="Running").dump(), memory)
    assert [body["status"]["phase"] for body in kube.applied] == ["Starting", "Running"]
    assert kube.applied[0]["metadata"]["uid"] == OWNER.uid


@in_virtual_time
async def test_c_214_events_are_not_repeated_and_have_a_budget() -> None:
    kube = RecordingKube()
    recorder = Recorder(kube.as_kube(), "me")
    for _ in range(50):
        recorder.tell(OWNER, "Normal", "Same", "again")
    for number in range(100):
        recorder.tell(OWNER, "Normal", "Other", str(number))
    await recorder.flush()
    assert sum(event["reason"] == "Same" for event in kube.created) == 1
    assert len(kube.created) <= BURST
    assert len({event["metadata"]["name"] for event in kube.created}) == len(kube.created)
