"""A checkpoint that could not be written is a Warning event, once per failure."""

from __future__ import annotations

from dataclasses import replace

from rex_operator.controller.decide import decide
from rex_operator.controller.events import Recorder
from rex_operator.controller.observe import Memory
from rex_operator.controller.storyteller import Storyteller
from tests.controller.pictures import OWNER, pod, seen, training
from tests.controller.recording import RecordingKube
from tests.controller.virtual import in_virtual_time


@in_virtual_time
async def test_it_is_a_warning_and_not_repeated_with_each_pass() -> None:
    kube = RecordingKube()
    recorder = Recorder(kube.as_kube(), "me")
    story, memory, pods = Storyteller(recorder), Memory(OWNER.uid), [pod("w0"), pod("w1")]
    for trouble in ("", "step 10 failed: no space", "step 10 failed: no space", "step 20 failed: no space", ""):
        observation = seen(pods, view=replace(training(*pods), checkpoint_trouble=trouble))
        story.tell(observation, decide(observation), memory)
    await recorder.flush()
    told = [(event["type"], event["note"]) for event in kube.created if event["reason"] == "CheckpointFailed"]
    assert told == [("Warning", "step 10 failed: no space"), ("Warning", "step 20 failed: no space")]
