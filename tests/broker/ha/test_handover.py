"""Who hands over to whom, why, and what is left behind: every branch of the decisions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from pollux.errors import InvalidRequestError
from pollux.ha.copies.replicas import Backup, role_heard
from pollux.ha.machine import Phase
from pollux.ha.members import Member
from pollux.ha.replication.handover import (
    SUCCESSION,
    HandOver,
    Legacy,
    Live,
    cut_off,
    failback,
    heirs,
    legacy,
    preferred,
    switchover,
    synced,
)
from pollux.ha.replication.replicas import Replicas
from pollux.ha.replication.settings import Role

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PROBLEM = "cut off from the network: no answer within 1 s from 10.0.0.1"
SWITCHOVER = HandOver("switchover asked for by an administrator", restart=True, stay=True)


def backup(
    name: str, role: str = "backup", *, phase: Phase = Phase.READY, alive: bool = True, stay: bool = False
) -> Backup:
    return Backup(Member(name, name, "host", 1, role, phase.value, f"http://{name}", alive=alive), stay)


PREFERRED, EQUAL, SPARE = backup("castor", "live"), backup("helena", "symmetric"), backup("pollux")
STAYS = backup("castor", "live", stay=True)
COPYING, LOST = backup("pollux", phase=Phase.CATCHING_UP), backup("pollux", alive=False)


def live(*backups: Backup, phase: Phase = Phase.LIVE, role: Role = Role.BACKUP, handing_over: bool = False) -> Live:
    return Live(phase, role, handing_over, backups)


@pytest.mark.parametrize("restart", [True, False])
def test_the_preferred_broker_that_is_in_sync_again_gets_the_right(*, restart: bool) -> None:
    decided = synced(PREFERRED, allow_failback=True, restart_backup=restart)
    assert decided == HandOver("failback: castor, the preferred broker, is in sync again", restart)
    assert not decided.stay, "it may ask again if it is lost"


@pytest.mark.parametrize(
    ("one", "allowed"),
    [(PREFERRED, False), (SPARE, True), (EQUAL, True), (STAYS, True)],
    ids=["not allowed", "another backup", "an equal", "it handed over on request"],
)
def test_others_just_follow(one: Backup, *, allowed: bool) -> None:
    assert synced(one, allow_failback=allowed, restart_backup=True) is None


@pytest.mark.parametrize("phase", Phase)
def test_a_live_that_is_cut_off_hands_over_and_waits_again(phase: Phase) -> None:
    assert cut_off(phase, PROBLEM) == (HandOver(PROBLEM, restart=True) if phase is Phase.LIVE else None)
    assert cut_off(phase, "") is None, "it is over"


@pytest.mark.parametrize("role", Role)
def test_a_switchover_goes_to_who_is_in_sync_and_holds(role: Role) -> None:
    decided = switchover(live(COPYING, PREFERRED, LOST, SPARE, role=role))
    assert decided == SWITCHOVER._replace(to=(PREFERRED.member, SPARE.member))


def test_a_failback_goes_to_the_preferred_broker_even_after_a_switchover() -> None:
    decided = failback(live(SPARE, STAYS))
    assert decided == HandOver("failback asked for by an administrator", restart=True, to=(STAYS.member,))


@pytest.mark.parametrize(
    ("ask", "given", "reason"),
    [
        (switchover, live(), "no backup is in sync"),
        (switchover, live(COPYING, LOST), "no backup is in sync"),
        (switchover, live(SPARE, phase=Phase.READY), "is ready, only a live one can hand over"),
        (switchover, live(SPARE, phase=Phase.STOPPING), "is stopping, only a live one can hand over"),
        (switchover, live(SPARE, handing_over=True), "is stopping already"),
        (failback, live(PREFERRED, role=Role.SYMMETRIC), "are equals: use a switchover"),
        (failback, live(PREFERRED, role=Role.LIVE), "there is nothing to fail back"),
        (failback, live(PREFERRED, phase=Phase.ACTIVATING), "is activating, only a live one can hand over"),
        (failback, live(PREFERRED, handing_over=True), "is stopping already"),
        (failback, live(SPARE), "the preferred broker is not in sync"),
        (failback, live(PREFERRED._replace(member=COPYING.member)), "the preferred broker is not in sync"),
    ],
)
def test_what_an_operator_is_refused(ask: Callable[[Live], HandOver], given: Live, reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=reason):
        ask(given)


@pytest.mark.parametrize(
    ("backups", "order"),
    [
        ((), []),
        ((COPYING, LOST), []),
        ((SPARE, EQUAL, PREFERRED), [2, 0, 1]),
        ((SPARE, STAYS), [0, 1]),
        ((COPYING, SPARE), [1]),
    ],
    ids=["nobody", "nobody has everything", "the preferred broker first", "unless it shall stay", "who is in sync"],
)
def test_who_takes_over_first(backups: tuple[Backup, ...], order: list[int]) -> None:
    assert heirs(dict(enumerate(backups))) == order


@pytest.mark.parametrize(
    ("complete", "decided", "restart", "votes", "left"),
    [
        (False, None, False, False, Legacy(False, False, 0.0, False)),
        (False, SWITCHOVER, True, False, Legacy(False, False, 0.0, False)),
        (True, None, False, False, Legacy(True, False, 0.0, False)),
        (True, SWITCHOVER, True, False, Legacy(True, True, SUCCESSION, False)),
        (True, HandOver(PROBLEM, True), True, False, Legacy(True, False, SUCCESSION, False)),
        (True, SWITCHOVER, True, True, Legacy(True, True, 0.0, True)),
        (False, SWITCHOVER, True, True, Legacy(False, False, 0.0, False)),
    ],
    ids=["alone", "alone, though asked", "stopped", "switchover", "cut off", "with votes", "votes, alone"],
)
def test_what_is_left_behind(
    complete: bool, decided: HandOver | None, restart: bool, votes: bool, left: Legacy
) -> None:
    assert legacy(complete=complete, decided=decided, restart=restart, votes=votes) == left


def test_a_backup_that_cannot_say_who_it_is_does_not_follow(tmp_path: Path) -> None:
    """Else nothing that looks at the backups would work as long as it is there, a hand-over among it."""
    state = SimpleNamespace(sequence=1)
    member: Any = SimpleNamespace(
        right=SimpleNamespace(node_id=bytes(16), epoch=1), state=state, lease=SimpleNamespace(held=lambda: True)
    )
    settings: Any = SimpleNamespace(patience=1.0, group="", role=Role.BACKUP, synchronisation=1.0)
    roots = dict.fromkeys(("journal", "bindings", "large", "paging"), tmp_path)
    replicas = Replicas(roots, settings, member, about=dict, on_synced=lambda _: None, on_following=lambda _: None)
    replicas.loop = SimpleNamespace()  # type: ignore[assignment]  # nothing is sent
    refusals: list[str] = []
    conversation: Any = SimpleNamespace(
        accept=lambda *_, **__: None,
        grant=lambda *_: None,
        refuse=lambda _channel, text, _code: refusals.append(text),
    )
    for pid in ("none", None, [1]):
        assert replicas.open(conversation, 1, {"id": "x", "name": "pollux", "pid": pid}) is None
    assert [text.startswith("it asked in a way that cannot be read") for text in refusals] == [True] * 3
    assert replicas.backups() == {}
    assert replicas.open(conversation, 1, {"id": "x", "name": "pollux", "pid": 7, "role": "primary"}) is not None
    (told,) = replicas.backups().values()
    assert (told.member.role, preferred(told), told.ready) == ("live", True, False)


def test_members_of_all_versions_understand_each_others_roles() -> None:
    """The words between brokers do not change with the words that operators read."""
    assert [role.told for role in Role] == ["primary", "backup", "peer"]
    assert [role_heard(role.told) for role in Role] == [*Role]
    assert role_heard("something new") == "something new"
