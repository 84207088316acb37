"""A network that a task or an order asks for is read strictly, and means in the engine what it says here."""

from dataclasses import fields
from typing import Any

import pytest

from tiltyard.contracts.document import InvalidDocument, parse
from tiltyard.contracts.network import NetworkAccess, NetworkShape, told
from tiltyard.contracts.task_spec import Environment
from tiltyard.sandbox import Shape


@pytest.mark.parametrize(
    ("asked", "fault"),
    [
        ("host", "environment.network: give 'none', or hosts as"),
        (None, "give 'none', or hosts as"),
        ({"allow": []}, "network.hosts.allow: Tuple should have at least 1 item"),
        ({"allow": ["example.org"]}, "'example.org' is no rule; write HOST:PORT"),
        ({"allow": ["example.org:0"]}, "is no rule"),
        ({"allow": ["http://example.org:80"]}, "is no rule"),
        ({"allow": ["a@example.org:80"]}, "is no rule"),
        ({"allow": ["example.org:443"], "shap": {}}, "unknown key 'shap'; did you mean 'shape'?"),
        ({"allow": ["example.org:443"], "shape": {"latency_ms": -1}}, "shape.latency_ms"),
    ],
)
def test_what_makes_no_network_is_told(asked: Any, fault: str) -> None:
    with pytest.raises(InvalidDocument) as refused:
        parse(Environment, {"network": asked}, what="environment.network")
    assert fault.removeprefix("environment.") in str(refused.value)


def test_the_shapes_of_contracts_and_engine_are_one() -> None:
    assert NetworkShape().model_dump() == {each.name: getattr(Shape(), each.name) for each in fields(Shape)}


def test_a_network_is_told_in_a_line() -> None:
    access = NetworkAccess(allow=("a.test:1", "b.test:2"), shape=NetworkShape(latency_ms=300))
    assert told(access) == "a.test:1, b.test:2 (latency_ms 300)"
    assert told("none") == "none"
