"""What a task may reach while it is graded: the hosts that it names and its deployment allows, and no other.

Every connection is a span of the grading too: `test_process.py` looks at those."""

from collections.abc import Iterator

import pytest

from services.evaluator.admission import Unjudged, judge
from services.evaluator.boxes import Boxes
from services.evaluator.grading import Measured, grade
from services.evaluator.lint import faults
from tests.integration.evaluator.conftest import Bench
from tests.integration.evaluator.outside import METADATA, NET, Outside
from tiltyard.contracts.network import NetworkAccess, NetworkShape
from tiltyard.contracts.task_spec import Oracle, PythonTestsComponent, TaskSpec, Verifier
from tiltyard.core.outcome import Outcome
from tiltyard.sandbox import DockerBackend
from tiltyard.testing.rows import addition

pytestmark = pytest.mark.sandbox
CLOSED = "127.0.0.9:1"


@pytest.fixture(scope="module")
def boxes(bench: Bench, outside: Outside) -> Iterator[Boxes]:
    made = Boxes(2, permission=outside.granted(outside.open, CLOSED, METADATA))
    yield made
    bench.run(made.close())


def _graded(bench: Bench, boxes: Boxes, spec: TaskSpec, answer: str) -> Measured:
    return bench.run(grade(spec.public(), spec.hidden().verifier, answer, boxes))


def test_without_a_network_an_answer_reaches_nobody(bench: Bench, boxes: Boxes, outside: Outside) -> None:
    graded = _graded(bench, boxes, outside.task(), f"return x + net.get({outside.open!r})")
    assert (graded.outcome, graded.reward, graded.connections) == (Outcome.GRADED, 0.0, ())


def test_an_answer_reaches_what_its_task_names_and_nothing_else(
    bench: Bench, boxes: Boxes, outside: Outside
) -> None:
    spec = outside.task(outside.open)
    assert _graded(bench, boxes, spec, f"return x + net.get({outside.open!r})").reward == 1.0
    for host in (outside.shut, METADATA, "10.0.0.1:80", "localhost:80", CLOSED):
        graded = _graded(bench, boxes, spec, f"return x + net.get({host!r})")
        (first, *_) = graded.connections or (None,)
        assert graded.reward == 0.0
        assert first is None or first.verdict == "refused"  # none: the box's own loopback
    direct = "return x + net.urllib.request.socket.create_connection(('1.1.1.1', 53), 1).fileno()"
    assert _graded(bench, boxes, spec, direct).connections == ()


def test_the_shape_that_a_task_names_is_imposed(bench: Bench, boxes: Boxes, outside: Outside) -> None:
    spec = outside.task(outside.open, shape=NetworkShape(resets_per_mib=1e6))
    graded = _graded(bench, boxes, spec, f"return x + net.get({outside.open!r})")
    assert graded.reward == 0.0
    assert {each.reason for each in graded.connections} == {"shaped"}


def test_a_host_that_is_away_is_no_fault_of_the_answers(bench: Bench, boxes: Boxes, outside: Outside) -> None:
    spec = outside.task(CLOSED)
    lost = _graded(bench, boxes, spec, f"return x + net.get({CLOSED!r})")
    assert (lost.outcome, lost.reward) == (Outcome.SANDBOX_FAILED, None)
    assert CLOSED in lost.reason
    assert _graded(bench, boxes, spec, f"net.get({CLOSED!r}); return x + 1").reward == 1.0


def test_tests_have_a_network_of_their_own(bench: Bench, boxes: Boxes, outside: Outside) -> None:
    tests = (
        NET + f"import solution\ndef test_both():\n    assert get({outside.open!r}) + solution.f(1) == 3\n"
    )
    component = PythonTestsComponent(
        kind="python_tests", files={"test_net.py": tests}, expected=("test_net.test_both",)
    )
    access = NetworkAccess(allow=(outside.open,))
    spec = outside.task().model_copy(update={"verifier": Verifier(components=(component,), network=access)})
    assert _graded(bench, boxes, spec, "return x + 1").reward == 1.0
    hidden = spec.model_copy(update={"verifier": Verifier(components=(component,))})
    assert _graded(bench, boxes, hidden, "return x + 1").reward == 0.0
    reaching = f"return x + net.get({outside.open!r})"
    assert _graded(bench, boxes, spec, reaching).reward == 0.0


def test_admission_tells_what_a_task_may_reach_and_what_was_refused(
    bench: Bench, boxes: Boxes, outside: Outside
) -> None:
    reaching = Oracle(answer=f"return x + net.get({outside.open!r})")
    spec = outside.task(outside.open).model_copy(update={"oracle": reaching})
    verdict = bench.run(judge(spec.public(), spec.hidden(), 1, boxes))
    assert verdict.admitted, verdict.report
    assert f"Network: the policy's code may reach {outside.open}." in verdict.report
    astray = spec.model_copy(update={"oracle": Oracle(answer=f"return x + net.get({outside.shut!r})")})
    verdict = bench.run(judge(astray.public(), astray.hidden(), 1, boxes))
    assert not verdict.admitted
    assert f"connection refused: {outside.shut} is not allowed" in verdict.report


def test_what_a_deployment_or_its_backend_does_not_have_is_refused_before_anything_runs(
    bench: Bench, boxes: Boxes, outside: Outside
) -> None:
    spec = outside.task(outside.open)
    gvisor = Boxes(2, permission=outside.granted(outside.open), backend=DockerBackend("runsc"))
    for other, why in ((Boxes(2), "TILTYARD_NETWORK_ALLOW"), (gvisor, "descriptors into gVisor")):
        with pytest.raises(Unjudged, match=why) as refused:
            bench.run(judge(spec.public(), spec.hidden(), 1, other))
        assert refused.value.hopeless
    graded = _graded(bench, boxes, outside.task(outside.shut), "return x + 1")
    assert (graded.outcome, graded.reward) == (Outcome.SANDBOX_FAILED, None)


def test_a_network_that_nothing_would_use_or_read_is_a_fault() -> None:
    access = NetworkAccess(allow=("*.test:443",))
    spec = addition()
    by_cases = spec.model_copy(
        update={"verifier": Verifier(components=spec.verifier.components, network=access)}
    )
    assert any("verifier.network names hosts" in f for f in faults(by_cases.public(), by_cases.hidden()))
    environment = spec.environment.model_copy(update={"network": access})
    odd = spec.model_copy(update={"environment": environment})
    assert any("environment.network: rule '*.test:443'" in f for f in faults(odd.public(), odd.hidden()))
