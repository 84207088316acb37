"""What waits to be published: coalesced, in order, in bounded memory."""

from hypothesis import given
from hypothesis import strategies as st

from tiltyard.queue.outgoing import MOST_IDS, MOST_TOPICS, Outgoing

names = st.lists(st.sampled_from("abcdef"))


def test_what_waits_already_is_not_taken_twice() -> None:
    outgoing = Outgoing()
    assert outgoing.announce(["policy", "dispatch", "policy"]) == 0
    outgoing.enqueue("grade", ["1", "2"])
    outgoing.enqueue("grade", ["2", "3"])
    assert list(outgoing.topics) == ["policy", "dispatch"]
    assert list(outgoing.jobs["grade"]) == ["1", "2", "3"]


def test_no_ids_at_all_still_ask_for_a_look() -> None:
    outgoing = Outgoing()
    assert not outgoing
    outgoing.enqueue("grade", [])
    assert outgoing


def test_the_oldest_give_way_and_are_counted() -> None:
    outgoing = Outgoing()
    assert outgoing.announce(str(number) for number in range(MOST_TOPICS + 5)) == 5
    assert len(outgoing.topics) == MOST_TOPICS
    assert "4" not in outgoing.topics
    assert str(MOST_TOPICS + 4) in outgoing.topics
    ids = [str(number) for number in range(MOST_IDS + 1)]
    assert outgoing.enqueue("grade", ids) == 1


@given(names, names, names, names)
def test_taking_back_keeps_everything_and_puts_the_unsent_first(
    sent: list[str], later: list[str], ids: list[str], later_ids: list[str]
) -> None:
    unsent, outgoing = Outgoing(), Outgoing()
    unsent.announce(sent)
    unsent.enqueue("grade", ids)
    outgoing.announce(later)
    outgoing.enqueue("grade", later_ids)
    assert outgoing.take_back(unsent) == 0
    assert list(outgoing.topics) == list(dict.fromkeys(sent + later))
    assert list(outgoing.jobs["grade"]) == list(dict.fromkeys(ids + later_ids))
