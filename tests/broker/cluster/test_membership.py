"""Who belongs to a cluster: what a node says of itself counts, the newest of it, whoever passes it on."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from pollux.cluster.membership import MAXIMUM_CONTRADICTIONS, MAXIMUM_MEMBERS, Member, Members

A, B, C = (bytes([at]) * 16 for at in (1, 2, 3))
HERE = (("a.example", 61616, False),)


def member(node: bytes = B, incarnation: int = 1, counter: int = 0, **more: object) -> Member:
    return Member(node, incarnation, counter, "b", HERE, **more)  # type: ignore[arg-type]


def test_what_is_newer_of_a_node_counts_and_is_passed_on_once() -> None:
    members = Members(A, "a", 1)
    assert members.hear([member()]) == [member()]
    assert members.hear([member()]) == []
    later = replace(member(counter=1), places=(("b.example", 1, True),))
    assert members.hear([later]) == [later]
    assert members.hear([member()]) == [], "older than what is known"
    restarted = member(incarnation=2)
    assert members.hear([restarted]) == [restarted]
    assert members.others == [restarted]


def test_a_node_says_where_it_is_reached_in_a_new_version() -> None:
    members = Members(A, "a", 7)
    assert members.reached_at(HERE)
    assert not members.reached_at(HERE)
    assert (members.mine.incarnation, members.mine.counter) == (7, 1)


def test_who_was_removed_is_gone_until_it_says_something_itself() -> None:
    members, other = Members(A, "a", 1), Members(B, "b", 4)
    members.hear([other.mine])
    gone = members.remove(B)
    assert gone is not None
    assert members.others == []
    assert members.get(B) is None
    assert members.hear([replace(gone, gone=False)]) == [], "somebody who has not heard of it yet"
    (again,) = other.hear([gone])
    assert again.incarnation == 5
    assert members.hear([again]) == [again]
    assert members.get(B) == again
    assert members.remove(C) is None


def test_a_restored_store_takes_a_higher_incarnation_than_was_heard_of_it() -> None:
    members = Members(A, "a", 3)
    members.reached_at(HERE)
    (said,) = members.hear([Member(A, 9, 2, "a", (("old.example", 1, False),))])
    assert (said.incarnation, said.places) == (10, HERE)
    assert members.hear([said]) == [], "its own words"
    assert members.contradictions == 1


def test_two_nodes_of_one_id_do_not_contradict_each_other_for_ever() -> None:
    one, two = Members(A, "a", 1), Members(A, "other", 1)
    one.reached_at(HERE)
    said = [one.mine]
    rounds = 0
    while said:
        rounds += 1
        said = (two if rounds % 2 else one).hear(said)
    assert rounds <= 2 * MAXIMUM_CONTRADICTIONS + 2


@pytest.mark.parametrize(
    "bad",
    [
        replace(member(), node=b"short"),
        member(incarnation=-1),
        replace(member(), name="x" * 256),
        replace(member(), places=HERE * 17),
        replace(member(), places=(("bad host", 1, False),)),
        replace(member(), places=(("host", 0, False),)),
    ],
)
def test_what_cannot_be_is_left_out(bad: Member) -> None:
    members = Members(A, "a", 1)
    assert members.hear([bad]) == []
    assert members.others == []


def test_nodes_beyond_the_limit_are_not_remembered() -> None:
    members = Members(A, "a", 1)
    many = [member(node=number.to_bytes(16, "big")) for number in range(MAXIMUM_MEMBERS + 5)]
    assert len(members.hear(many)) == MAXIMUM_MEMBERS


def test_nodes_that_tell_each_other_in_any_order_know_the_same_in_the_end() -> None:
    for seed in range(20):
        choice = random.Random(seed)  # noqa: S311  (a reproducible order)
        nodes = [bytes([at]) * 16 for at in range(1, 9)]
        all_of_them = {node: Members(node, node.hex()[:2], choice.randint(1, 5)) for node in nodes}
        on_their_way: list[tuple[bytes, list[Member]]] = []
        for node in nodes:
            all_of_them[node].reached_at([(f"host{choice.randint(1, 3)}", 1, False)])
        for at, node in enumerate(nodes[1:]):  # a tree: each knows one that was there before it
            other = nodes[choice.randint(0, at)]
            on_their_way += [(other, [all_of_them[node].mine]), (node, [all_of_them[other].mine])]
        while on_their_way:
            sink, told = on_their_way.pop(choice.randrange(len(on_their_way)))
            news = all_of_them[sink].hear(told)
            if news:
                # Whoever was told of tells back all it knows, as a link that is made does.
                on_their_way += [(one.node, all_of_them[sink].all) for one in all_of_them[sink].others]
        for node in nodes:
            assert {one.node: one for one in all_of_them[node].all} == {
                each: all_of_them[each].mine for each in nodes
            }, f"order {seed}"
