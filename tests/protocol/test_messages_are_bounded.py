"""Whatever a peer sends, a message is either well-formed and within its bounds, or refused as a ValueError."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rex_worker import protocol
from rex_worker.protocol import Hello, Left, Member, Membership, Plan, StepReport, Steps, encode, parse_down, parse_up

STEP = {"step": 1, "plan_version": 1, "samples": 8, "local_batch": 8, "compute_s": 0.1, "wait_s": 0.0, "step_s": 0.1}


def plan(**changes: object) -> Plan:
    fields = {"generation": 1, "version": 1, "global_batch": 4, "local_batches": {"w0": 1, "w1": 3}} | changes
    return Plan.model_validate(fields)


def test_down_messages_survive_the_wire() -> None:
    members = [Member(worker_id=f"w{i}", incarnation=f"u{i}", address="10.0.0.1", store_port=4000) for i in range(2)]
    membership = Membership(generation=1, members=members, plan=plan())
    for message in (plan(), membership, protocol.Drain(reason="spot"), protocol.Stop(checkpoint=False)):
        assert parse_down(encode(message)) == message


def test_up_messages_survive_the_wire() -> None:
    hello = Hello(job="ns/j", worker_id="w0", incarnation="u", device="a100", address="::1", store_port=1)
    steps = Steps(generation=1, steps=[StepReport.model_validate(STEP)])
    for message in (hello, steps, Left(reason="finished", step=3, samples=9)):
        assert parse_up(encode(message)) == message


@pytest.mark.parametrize(
    "value",
    [
        "NaN",
        "Infinity",
        "-Infinity",
        "1e400",
        "-1",
        "1" + "0" * 400,
        '"x"',
        '"12"',
        "true",
        '"12"',
        "true",
        "null",
        "{}",
    ],
)
def test_c_135_a_number_that_is_none_is_refused(value: str) -> None:
    fields = json.dumps(STEP).replace('"compute_s": 0.1', f'"compute_s": {value}')
    with pytest.raises(ValueError, match=r"compute_s|JSON"):
        parse_up(f'{{"kind": "Steps", "generation": 1, "steps": [{fields}]}}')


def test_a_plan_must_sum_to_its_global_batch() -> None:
    with pytest.raises(ValueError, match="sum to 4"):
        plan(global_batch=5)


@pytest.mark.parametrize(
    "passes",
    [
        '{"w0": 0}',
        '{"w0": 5}',
        '{"w9": 1}',
        '{"w0": 1.5}',
        '{"w0": true}',
        '{"w0": "1"}',
        '{"w0": null}',
        '{"w0": 1e400}',
        '{"../w": 1}',
        "[]",
        "null",
        "1",
    ],
)
def test_passes_are_of_the_plans_workers_and_at_most_accumulation(passes: str) -> None:
    text = encode(plan(accumulation=4))
    assert parse_down(text.replace('"passes":{}', '"passes":{"w0":4}')) == plan(accumulation=4, passes={"w0": 4})
    with pytest.raises(ValueError, match="passes"):
        parse_down(text.replace('"passes":{}', f'"passes":{passes}'))


def test_a_plan_of_an_older_operator_has_equal_passes() -> None:
    text = encode(plan(accumulation=4)).replace('"passes":{},', "")
    assert "passes" not in text
    assert [parse_down(text).passes_of(worker) for worker in ("w0", "w1")] == [4, 4]  # type: ignore[union-attr]
    own = plan(accumulation=4, passes={"w1": 1})
    assert [own.passes_of(worker) for worker in ("w0", "w1")] == [4, 1]


def test_a_membership_names_the_workers_of_its_plan() -> None:
    member = Member(worker_id="w0", incarnation="u", address="10.0.0.1", store_port=4000)
    with pytest.raises(ValueError, match="different workers"):
        Membership(generation=1, members=[member], plan=plan())
    with pytest.raises(ValueError, match="listed twice"):
        Membership(generation=1, members=[member, member], plan=plan(global_batch=1, local_batches={"w0": 1}))


@pytest.mark.parametrize(
    "text",
    ["", "null", "[]", "{}", '{"kind": "Exec"}', '{"kind": "Left", "reason": "finished", "x": 1}', "[" * 60_000],
    ids=["empty", "null", "list", "no-kind", "unknown-kind", "unknown-field", "deep"],
)
def test_an_operator_refuses_what_is_no_message(text: str) -> None:
    with pytest.raises(ValueError):
        parse_up(text)


def test_c_203_a_message_over_the_limit_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(ValueError, match="the channel takes less"):
        parse_up('{"kind": "Failed", "error": "' + "x" * protocol.MAX_MESSAGE_BYTES + '"}')


def test_a_worker_ignores_fields_of_a_newer_operator() -> None:
    assert parse_down('{"kind": "Drain", "reason": "r", "from_the_future": 1}') == protocol.Drain(reason="r")


@given(st.binary(max_size=400))
def test_no_bytes_raise_anything_but_a_value_error(data: bytes) -> None:
    try:
        parse_up(data)
    except ValueError:
        return
    raise AssertionError("random bytes were taken for a message")


def test_the_protocol_needs_neither_torch_nor_the_operator() -> None:
    code = "import sys, rex_worker.protocol; print(sorted({'torch', 'rex_operator', 'aiohttp'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_largest_group_with_the_longest_names_fits_one_message() -> None:
    ids = [f"{i:04d}" + "w" * 59 for i in range(protocol.MAX_WORKERS)]
    members = [Member(worker_id=w, incarnation="u" * 64, address="a" * 253, store_port=65535) for w in ids]
    shares = dict.fromkeys(ids, protocol.MAX_SAMPLES // protocol.MAX_WORKERS)
    generation = version = protocol.MAX_SAMPLES
    plan = Plan(
        generation=generation,
        version=version,
        global_batch=sum(shares.values()),
        accumulation=1024,
        local_batches=shares,
        passes=dict.fromkeys(ids, 1000),
    )
    membership = Membership(generation=generation, members=members, plan=plan)
    assert parse_down(encode(membership)) == membership
