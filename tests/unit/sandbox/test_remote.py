"""Envelopes, verdicts and refusals of remote backends, without a provider."""

import asyncio
import base64
import itertools
import json
import shlex
from collections.abc import AsyncIterator, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiltyard.sandbox import CapabilityRefused, ExecOutcome, Limits, NativeBackend, SandboxUnavailable
from tiltyard.sandbox.capability import OF_EVERY_BOX, Capability, Demand
from tiltyard.sandbox.docker.runtime import capabilities as docker_capabilities
from tiltyard.sandbox.remote import AgentSandboxBackend, E2BBackend
from tiltyard.sandbox.remote.agent_sandbox.runtime import _command, _read_end
from tiltyard.sandbox.remote.e2b.connect import Malformed, Message, envelope, messages
from tiltyard.sandbox.remote.fleet import Order, Owner


def heard(chunks: list[bytes]) -> list[Message]:
    async def source() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    async def listen() -> list[Message]:
        return [message async for message in messages(source())]

    return asyncio.run(listen())


@settings(deadline=None)
@given(st.lists(st.dictionaries(st.text(), st.integers() | st.text()), max_size=5), st.data())
def test_messages_come_out_whole_however_they_arrive(documents: list[dict], data: st.DataObject) -> None:
    stream = b"".join(envelope(document) for document in documents)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    edges = [0, *cuts, len(stream)]
    chunks = [stream[start:end] for start, end in itertools.pairwise(edges)]
    assert [message.document for message in heard(chunks)] == documents


def test_the_last_message_is_known_and_half_a_one_is_none() -> None:
    last = b"\x02\x00\x00\x00\x02{}"
    assert heard([envelope({"a": 1}) + last]) == [Message({"a": 1}, False), Message({}, True)]
    assert heard([last[:-1]]) == []


@pytest.mark.parametrize(
    "stream",
    [b"\x01\x00\x00\x00\x02{}", b"\x00\xff\xff\xff\xff", b"\x00\x00\x00\x00\x01{", b"\x00\x00\x00\x00\x02[]"],
)
def test_what_is_not_the_protocol_is_told(stream: bytes) -> None:
    with pytest.raises(Malformed):
        heard([stream])


def order(**options: object) -> Order:
    told = {"argv": ["true"], "env": {}, "cwd": "/app", "stdin": b"", "on_output": None, "limits": Limits(),
            "cpu_seconds": 1.0, "wall_seconds": 5.0, "output_bytes": 10} | options  # fmt: skip
    return Order(**told)  # type: ignore[arg-type]


def said(
    code: int, took: int, out: bytes = b"", err: bytes = b"", sizes: tuple[int, int] | None = None
) -> dict:
    """What the program beneath which a command runs prints."""
    first, second = sizes or (len(out), len(err))
    texts = [base64.b64encode(part).decode() for part in (out, err)]
    return {"stdout": f"tiltyard {code} {took}\n{first}\n{texts[0]}\n{second}\n{texts[1]}\n", "exit_code": 0}


@pytest.mark.parametrize(
    ("answer", "outcome", "exit_code", "number"),
    [
        (said(0, 10), ExecOutcome.ok, 0, None),
        (said(3, 10), ExecOutcome.nonzero, 3, None),
        (said(127, 10), ExecOutcome.nonzero, 127, None),
        (said(137, 4999), ExecOutcome.signalled, None, 9),
        (said(137, 5000), ExecOutcome.timeout_wall, None, 9),
        (said(152, 10), ExecOutcome.timeout_cpu, None, 24),
        (said(153, 10), ExecOutcome.disk_limit, None, 25),
        (said(153, 10, out=b"x" * 10, sizes=(500, 0)), ExecOutcome.output_limit, None, None),
        (said(255, 10), ExecOutcome.nonzero, 255, None),
        ({"stdout": "", "stderr": "Failed to execute command: x"}, ExecOutcome.infra_error, None, None),
        ({"stdout": "tiltyard 0 1\n0\n\nnot a number\n\n"}, ExecOutcome.infra_error, None, None),
        ({"stdout": "tiltyard 0 1\n1\n!!!\n0\n\n"}, ExecOutcome.infra_error, None, None),
        ({}, ExecOutcome.infra_error, None, None),
    ],
)  # fmt: skip
def test_an_end_is_read_as_it_was_told_and_never_guessed(
    answer: dict, outcome: ExecOutcome, exit_code: int | None, number: int | None
) -> None:
    ended = _read_end(order(), answer, 1.0)
    assert (ended.outcome, ended.exit_code, ended.signal) == (outcome, exit_code, number)
    assert bool(ended.spoiled) is (outcome in (ExecOutcome.infra_error, ExecOutcome.timeout_wall))


@settings(deadline=None)
@given(st.lists(st.text().filter(lambda text: "\0" not in text), min_size=1))
def test_arguments_survive_the_runtimes_splitting(words: list[str]) -> None:
    line = json.loads(json.dumps(_command(order(argv=words, env={"A": "b c'\"$"}), "/app/x")))
    parts = shlex.split(line)
    assert parts[-len(words) :] == words
    assert parts[:2] == ["env", "A=b c'\"$"]


@pytest.mark.parametrize("name", ["", "-x", "a b", "x" * 64, "ü", "a/b", "x-"])
def test_an_owner_that_is_no_label_is_refused(name: str) -> None:
    with pytest.raises(CapabilityRefused, match="label"):
        Owner.new(name)


def test_two_incarnations_of_an_owner_differ() -> None:
    assert Owner.new("me").name == Owner.new("me").name
    assert Owner.new("me").incarnation != Owner.new("me").incarnation


def test_what_is_needed_and_absent_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("E2B_API_KEY", "AGENT_SANDBOX_ROUTER_URL", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SandboxUnavailable, match="E2B_API_KEY"):
        E2BBackend(accept=OF_EVERY_BOX)
    with pytest.raises(SandboxUnavailable, match="KUBERNETES_SERVICE_HOST"):
        AgentSandboxBackend(router_url="http://router", accept=OF_EVERY_BOX)
    with pytest.raises(SandboxUnavailable, match="AGENT_SANDBOX_ROUTER_URL"):
        AgentSandboxBackend(api_url="http://api", token="t", accept=OF_EVERY_BOX)


@pytest.mark.parametrize(
    "able",
    [
        E2BBackend(api_key="k", accept=tuple(Demand)).capabilities(),
        AgentSandboxBackend(api_url="http://k", router_url="http://r", accept=tuple(Demand)).capabilities(),
        NativeBackend().capabilities(),
        docker_capabilities("runc"),
        docker_capabilities("runsc"),
    ],
)
def test_a_backend_says_of_every_demand_whether_it_holds(able: Mapping[Demand, Capability]) -> None:
    assert set(able) == set(Demand)
    assert all(capability.detail for capability in able.values())
