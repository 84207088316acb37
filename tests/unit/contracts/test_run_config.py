"""A run config has the keys of its kind, and no others."""

from typing import Any

import pytest

from tiltyard.contracts.document import Document, InvalidDocument, parse
from tiltyard.contracts.run_config import EvaluationRun, SftRun, TrainRun

TRAIN: dict[str, Any] = {"kind": "train", "name": "rl", "taskset": "t", "policy": "warm@latest"}
EVALUATION: dict[str, Any] = {"kind": "evaluation", "name": "e", "taskset": "t", "policy": "rl@3"}
SFT: dict[str, Any] = {"kind": "sft", "name": "warm", "dataset": "sha256:" + "0" * 64}


def _faults(model: type[Document], document: object) -> dict[str, str]:
    with pytest.raises(InvalidDocument) as caught:
        parse(model, document, what="run config")
    return {fault.path: fault.message for fault in caught.value.faults}


@pytest.mark.parametrize(
    ("model", "document"), [(TrainRun, TRAIN), (EvaluationRun, EVALUATION), (SftRun, SFT)]
)
def test_the_smallest_config_of_each_kind_is_valid(model: type[Document], document: dict[str, Any]) -> None:
    assert parse(model, document, what="run config").model_dump()["kind"] == document["kind"]


@pytest.mark.parametrize(
    ("model", "document", "path", "near"),
    [
        (TrainRun, {**TRAIN, "group_sise": 8}, "group_sise", "group_size"),
        (TrainRun, {**TRAIN, "loss": {"clip_hig": 0.3}}, "loss.clip_hig", "clip_high"),
        (TrainRun, {**TRAIN, "optimizer": {"lerning_rate": 1}}, "optimizer.lerning_rate", "learning_rate"),
        (TrainRun, {**TRAIN, "rollouts": {"grader_retrys": 1}}, "rollouts.grader_retrys", "grader_retries"),
        (EvaluationRun, {**EVALUATION, "sample": 4}, "sample", "samples"),
        (SftRun, {**SFT, "stop_liklihood": 0.5}, "stop_liklihood", "stop_likelihood"),
        (SftRun, {**SFT, "optimizer": {"decai": "constant"}}, "optimizer.decai", "decay"),
    ],
)
def test_a_misspelt_key_is_an_error_that_names_the_nearest_one(
    model: type[Document], document: dict[str, Any], path: str, near: str
) -> None:
    key = path.rsplit(".", 1)[-1]

    assert _faults(model, document) == {path: f"unknown key {key!r}; did you mean {near!r}?"}


def test_a_misspelt_key_inside_of_a_union_is_suggested_too() -> None:
    faults = _faults(TrainRun, {**TRAIN, "policy": {"hiden_size": 64}})

    assert faults["policy.FreshPolicy.hiden_size"] == "unknown key 'hiden_size'; did you mean 'hidden_size'?"


@pytest.mark.parametrize(
    ("model", "document", "key"),
    [
        (EvaluationRun, {**EVALUATION, "loss": {}}, "loss"),
        (EvaluationRun, {**EVALUATION, "group_size": 8}, "group_size"),
        (SftRun, {**SFT, "taskset": "t"}, "taskset"),
        (TrainRun, {**TRAIN, "dataset": SFT["dataset"]}, "dataset"),
    ],
)
def test_a_key_that_has_no_effect_for_the_kind_is_an_error(
    model: type[Document], document: dict[str, Any], key: str
) -> None:
    assert _faults(model, document)[key].startswith(f"unknown key {key!r}")


@pytest.mark.parametrize("policy", ["", "rl", "rl@", "rl@newest", "@3", "rl@-1", "rl@3\n", "a b@1"])
def test_a_policy_is_named_with_its_version(policy: str) -> None:
    assert "policy" in _faults(EvaluationRun, {**EVALUATION, "policy": policy})


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_is_not_finite_is_refused(value: float) -> None:
    assert "optimizer.learning_rate" in _faults(TrainRun, {**TRAIN, "optimizer": {"learning_rate": value}})


@pytest.mark.parametrize("size", [0, 1, 1_025])
def test_a_training_group_has_somebody_to_be_compared_with(size: int) -> None:
    assert "group_size" in _faults(TrainRun, {**TRAIN, "group_size": size})


def test_a_group_cannot_ask_for_more_valid_members_than_it_has() -> None:
    (message,) = _faults(TrainRun, {**TRAIN, "group_size": 4, "min_valid": 5}).values()

    assert message == "min_valid is 5, more than group_size 4: every group would be filtered"


@pytest.mark.parametrize("heads", [5, 64])
def test_heads_divide_the_hidden_size_evenly(heads: int) -> None:
    faults = _faults(TrainRun, {**TRAIN, "policy": {"hidden_size": 64, "heads": heads}})

    assert "hidden_size 64 must be an even multiple of heads" in faults["policy.FreshPolicy.heads"]
