"""Micro-batches: every sample once, within the bound, with nothing but its own tokens marked."""

from hypothesis import given, settings
from hypothesis import strategies as st

from services.trainer.batch import Sample, micro_batches

tokens = st.integers(0, 255)
samples = st.builds(
    lambda prompt, completion, advantage: Sample(
        prompt=tuple(prompt),
        completion=tuple(completion),
        behaviour=tuple(-float(c) for c in completion),
        advantage=advantage,
    ),
    st.lists(tokens, min_size=1, max_size=20),
    st.lists(tokens, min_size=1, max_size=20),
    st.floats(-1, 1),
)


@given(st.lists(samples, min_size=1, max_size=12), st.integers(1, 120))
@settings(deadline=None)
def test_every_sample_comes_once_with_its_own_numbers(given_samples: list[Sample], bound: int) -> None:
    seen: list[int] = []
    for batch in micro_batches(given_samples, range(len(given_samples)), tokens=bound, pad=256, device="cpu"):
        rows, width = batch.ids_BT.shape
        assert rows == 1 or rows * width <= bound
        for at, index in enumerate(batch.rows):
            sample, marked = given_samples[index], batch.mask_BT[at]
            length = len(sample.prompt) + len(sample.completion)
            assert tuple(batch.ids_BT[at, :length].tolist()) == sample.prompt + sample.completion
            assert batch.ids_BT[at, length:].tolist() == [256] * (width - length)
            assert tuple(batch.ids_BT[at][marked].tolist()) == sample.completion
            assert tuple(batch.behaviour_BT[at][marked].tolist()) == sample.behaviour
            assert not batch.behaviour_BT[at][~marked].any()
            assert abs(float(batch.advantage_B[at]) - sample.advantage) < 1e-6
        seen += batch.rows
    assert sorted(seen) == list(range(len(given_samples)))


def test_only_the_chosen_samples_come() -> None:
    rows = [Sample(prompt=(1,), completion=(i,)) for i in range(5)]

    batches = micro_batches(rows, [3, 1], tokens=100, pad=256, device="cpu")

    assert sorted(i for batch in batches for i in batch.rows) == [1, 3]
