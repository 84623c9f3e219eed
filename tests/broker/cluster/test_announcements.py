"""The table of who was heard of: silence, new lives, old words, and its bound. The clock is the test's."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from pollux.cluster.announcements import GUESSES_OF_ONE, GUESSES_OF_STRANGERS, Guesses, endpoints
from pollux.config.acceptors import ConnectorSettings, Endpoint
from pollux.wire.core.announced import MAXIMUM_MEMBERS, Table
from pollux.wire.core.datagram import Announcement, Reached

SILENCE = 10.0


def table() -> Table:
    return Table("me", silence=SILENCE)


def said(
    member: str = "castor", number: int = 1, *, began: int = 1, port: int = 61616, leaving: bool = False
) -> Announcement:
    life = began.to_bytes(16, "little")
    return Announcement(member, began, life, number, (Reached("host", port, tls=False),), leaving)


def ports(found: Table) -> dict[str, int]:
    return {name: one.port for name, (one,) in found.members().items()}


def test_a_member_is_there_until_it_was_silent_for_the_refresh_timeout() -> None:
    found = table()
    assert found.due() is None
    assert found.heard(said(), 0.0) == ""
    assert found.heard(said(number=2), 6.0) == ""
    assert found.due() == 16.0
    assert found.expire(15.9) == []
    assert ports(found) == {"castor": 61616}
    assert found.expire(16.0) == ["castor"]
    assert ports(found) == {}
    assert found.heard(said(number=3), 17.0) == "", "it is back"
    assert ports(found) == {"castor": 61616}


def test_our_own_words_come_back_by_multicast() -> None:
    found = table()
    assert found.heard(said("me"), 0.0) == "own"
    assert ports(found) == {}


def test_words_that_were_said_before_count_no_more() -> None:
    found = table()
    assert found.heard(said(number=5, port=1), 0.0) == ""
    assert found.heard(said(number=5, port=2), 1.0) == "old"
    assert found.heard(said(number=4, port=2), 1.0) == "old"
    assert found.due() == 10.0, "and do not keep it alive"
    assert found.heard(said(number=1, began=2, port=3), 1.0) == "", "a later life counts anew"
    assert found.heard(said(number=99, began=1, port=4), 1.0) == "old"
    assert ports(found) == {"castor": 3}


def test_one_that_leaves_is_gone_and_not_brought_back_by_its_earlier_words() -> None:
    found = table()
    found.heard(said(number=1), 0.0)
    assert found.heard(said(number=2, leaving=True), 1.0) == ""
    assert ports(found) == {}
    assert found.heard(said(number=1), 2.0) == "old"
    assert found.heard(said(number=1, began=2), 3.0) == ""
    assert ports(found) == {"castor": 61616}


def test_who_was_never_there_does_not_leave() -> None:
    found = table()
    assert found.heard(said(leaving=True), 0.0) == ""
    assert found.due() is None


def test_the_table_is_bounded_and_who_is_in_it_stays() -> None:
    found = table()
    for number in range(MAXIMUM_MEMBERS):
        assert found.heard(said(f"m{number}"), 0.0) == ""
    assert found.heard(said("one more"), 1.0) == "full"
    assert found.heard(said("m0", number=2), 1.0) == ""
    assert found.heard(said("one more", leaving=True), 1.0) == ""
    assert len(found.members()) == MAXIMUM_MEMBERS
    assert len(found.expire(10.0)) == MAXIMUM_MEMBERS - 1
    assert found.heard(said("one more"), 10.0) == ""


EVENTS = st.tuples(
    st.sampled_from(["me", "a", "b", "c"]), st.integers(0, 3), st.integers(0, 5), st.booleans(), st.integers(0, 8)
)


@given(st.lists(EVENTS, max_size=40))
def test_who_is_in_it_spoke_within_the_refresh_timeout_and_its_newest_words_count(
    events: list[tuple[str, int, int, bool, int]],
) -> None:
    found, now = table(), 0.0
    last: dict[str, tuple[float, int, int]] = {}
    for member, began, number, leaving, pause in events:
        now += pause
        for gone in found.expire(now):
            assert now - last.pop(gone)[0] >= SILENCE
        outcome = found.heard(said(member, number, began=began, leaving=leaving), now)
        if outcome == "old":
            assert (began, number) <= last[member][1:]
        elif outcome == "" and (member in last or not leaving):
            assert member not in last or (began, number) > last[member][1:]
            last[member] = (now, began, number)
        assert set(found.members()) <= set(last) - {"me"}


def test_members_are_reached_as_our_own_connector_says() -> None:
    plain, secure = Reached("a", 1, tls=False), Reached("b", 2, tls=True)
    own = ConnectorSettings(tcp_no_delay=False)
    found, refused = endpoints({"a": (plain,), "b": (secure, secure)}, own)
    encrypted = ConnectorSettings(ssl_enabled=True, tcp_no_delay=False)
    assert found == (Endpoint("tcp", "a", 1, own), Endpoint("tcp", "b", 2, encrypted))
    assert refused == []


def test_with_tls_nobody_is_reached_without() -> None:
    own = ConnectorSettings(ssl_enabled=True, trust_store_path=Path("ca.pem"))
    found, refused = endpoints({"a": (Reached("a", 1, tls=False),), "b": (Reached("b", 2, tls=True),)}, own)
    assert found == (Endpoint("tcp", "b", 2, own),)
    assert refused == ["a"]


def looked_at(guesses: Guesses, sources: list[str], now: float) -> int:
    """How many wrong ones of these are looked at."""
    looked = 0
    for source in sources:
        if guesses.may_look(source, now):
            looked += 1
            guesses.wrong(source, now)
    return looked


def test_guesses_of_the_password_by_datagram_are_few() -> None:
    guesses = Guesses()
    assert looked_at(guesses, ["stranger"] * 1000, 0.0) == GUESSES_OF_ONE
    # Who sends from invented addresses guesses no faster.
    assert looked_at(guesses, [f"stranger {number}" for number in range(1000)], 0.5) == (
        GUESSES_OF_STRANGERS - GUESSES_OF_ONE
    )
    assert looked_at(guesses, ["stranger"] * 1000, 1.0) == GUESSES_OF_ONE


def test_a_member_is_heard_while_strangers_guess() -> None:
    guesses = Guesses()
    guesses.right("castor")
    looked_at(guesses, [f"stranger {number}" for number in range(1000)], 0.0)
    assert guesses.may_look("castor", 0.0)
    # Its address proves nothing: whoever uses it does not guess faster either.
    assert looked_at(guesses, ["castor"] * 1000, 0.0) == GUESSES_OF_ONE


def test_what_is_remembered_of_guesses_is_bounded() -> None:
    guesses = Guesses()
    for number in range(5000):
        guesses.right(f"member {number}")
        looked_at(guesses, [f"stranger {number}"], float(number))
    assert len(guesses) <= 1000
