"""Messages carry ids alone."""

import pytest

from tiltyard.contracts.document import InvalidDocument, parse
from tiltyard.contracts.messages import JobBatch, runner_topic


def test_a_batch_holds_at_most_256_ids() -> None:
    ids = [str(i) for i in range(256)]

    assert len(parse(JobBatch, {"kind": "admit", "ids": ids}, what="job").ids) == 256
    with pytest.raises(InvalidDocument, match="ids"):
        parse(JobBatch, {"kind": "admit", "ids": [*ids, "one more"]}, what="job")


def test_a_batch_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(InvalidDocument, match="kind"):
        parse(JobBatch, {"kind": "train", "ids": []}, what="job")


def test_each_incarnation_has_a_topic_of_its_own() -> None:
    assert runner_topic("a") != runner_topic("b")
