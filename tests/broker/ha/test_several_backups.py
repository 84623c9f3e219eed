"""A live with two backups: one of them hangs or dies, or the live does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from broker.ha.replicated_group import Peer, until
from harness.ports import free_port
from pollux.ha.machine import Phase
from pollux.ha.replication.voter import Voting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from harness.zookeeper import ZooKeeperProcess

NAMES = ("castor", "pollux", "helena")
PEER = (
    "<primary><manager><class-name>{kind}</class-name><properties>{properties}</properties></manager>"
    "<coordination-id>three</coordination-id></primary>"
)
#: Repeated for as long as a busy machine may need.
VOTES = (
    "<group-name>{group}</group-name><vote-on-replication-failure>true</vote-on-replication-failure>"
    "<vote-retries>600</vote-retries><vote-retry-wait>100</vote-retry-wait><quorum-vote-wait>30</quorum-vote-wait>"
)


class Group:
    """Three members that copy each other, and who else there is to vote."""

    def __init__(self, directory: Path, policies: dict[str, str]) -> None:
        ports = dict(zip(policies, (free_port() for _ in policies), strict=True))
        self.peers = {name: Peer(directory / name, name, policy, ports) for name, policy in policies.items()}
        self.castor, self.pollux, self.helena = (self.peers[name] for name in NAMES)
        self.backups = (self.pollux, self.helena)

    async def start(self) -> None:
        """Castor serves; the other two are in sync."""
        others = [peer for name, peer in self.peers.items() if name not in NAMES]
        for peer in others:
            peer.start()
        for peer in others:
            await until(lambda: peer.phase is Phase.LIVE, f"{peer.name} votes")  # noqa: B023
        self.castor.start()
        await until(lambda: self.castor.phase is Phase.LIVE, "castor serves")
        for peer in self.backups:
            peer.start()
        await until(lambda: all(peer.in_sync for peer in self.backups), "both backups are in sync")


def properties(**values: str) -> str:
    return "".join(f'<property key="{key.replace("_", "-")}" value="{value}"/>' for key, value in values.items())


@pytest.fixture
async def make(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Callable[[str], Group]]:
    """A group of one kind: `file`, `zookeeper`, `votes`, or `alone` (votes, and nobody who has one)."""
    made: list[Group] = []

    def group(kind: str) -> Group:
        if kind in ("votes", "alone"):
            votes = VOTES.format(group="three")
            policies = {"castor": f"<primary>{votes}</primary>"}
            policies |= dict.fromkeys(("pollux", "helena"), f"<backup>{votes}</backup>")
            others = (1, 2) if kind == "votes" else ()
            policies |= {f"pair{n}": f"<primary>{VOTES.format(group=f'pair{n}')}</primary>" for n in others}
        elif kind == "zookeeper":
            server: ZooKeeperProcess = request.getfixturevalue("zookeeper")
            given = properties(connect_string=server.connect_string, namespace=tmp_path.name, session_ms="60000")
            policies = dict.fromkeys(NAMES, PEER.format(kind=kind, properties=given))
        else:
            given = properties(locks_folder=str(tmp_path / "locks"))
            policies = dict.fromkeys(NAMES, PEER.format(kind=kind, properties=given))
        made.append(Group(tmp_path, policies))
        return made[-1]

    yield group
    for one in made:
        for peer in one.peers.values():
            await peer.die()


def watch(group: Group) -> list[int]:
    """Helena's number each time that castor's last step of raising it begins."""
    found: list[int] = []
    coordinator: Any = group.castor.activation.member._coordinator
    change = coordinator.change

    def watched(expected: int, new: int) -> None:
        if new > 0:
            found.append(group.helena.state.sequence)
        change(expected, new)

    coordinator.change = watched
    return found


async def test_a_backup_that_hangs_keeps_producers_waiting_only_so_long(make: Callable[[str], Group]) -> None:
    """Then the live goes on with the other one, which knows that the first is left behind; it can come back."""
    group = make("file")
    await group.start()
    castor, pollux, helena = group.castor, group.pollux, group.helena
    await castor.confirm("1", b"by both")
    assert [one.has("1") for one in group.backups] == [b"by both"] * 2
    before = castor.state.sequence
    pollux.hang()
    await castor.confirm("2", b"by one")
    assert (helena.has("2"), pollux.has("2")) == (b"by one", b"")
    assert castor.backups() == {"helena": "in sync"}
    assert castor.state.sequence == before + 1, "raised before the producer was told"
    assert pollux.state.sequence == before
    # The other one still confirms, and is marked with the new number before anything more is.
    await castor.confirm("3", b"by one")
    assert helena.has("3") == b"by one"
    assert helena.state.sequence == before + 1
    pollux.wake()
    await until(lambda: pollux.in_sync and pollux.state.sequence == before + 1, "pollux is back")
    assert pollux.has("3") == b"by one"
    await castor.confirm("4", b"by both")
    assert [one.has("4") for one in group.backups] == [b"by both"] * 2
    assert castor.backups() == {"helena": "in sync", "pollux": "in sync"}
    assert castor.broker.fences == []


async def test_both_backups_are_lost_one_after_the_other(make: Callable[[str], Group]) -> None:
    """Each one is told apart; the live goes on alone."""
    group = make("file")
    await group.start()
    castor = group.castor
    before = castor.state.sequence
    told = watch(group)
    await group.pollux.die()
    await castor.confirm("1", b"by one")
    assert group.helena.has("1") == b"by one"
    assert told == [before + 1], "the one that is left has the number before it counts: it may be needed next"
    await group.helena.die()
    await castor.confirm("2", b"alone")
    assert castor.state.sequence == before + 2
    assert (group.pollux.state.sequence, group.helena.state.sequence) == (before, before + 1)
    assert "no backup is in sync" in castor.activation.view()["warnings"][0]
    # Whoever was left behind first, or second, does not serve when the live is gone.
    await castor.die()
    group.pollux.start()
    group.helena.start()
    for peer in group.backups:
        await until(lambda: "newer data exists" in peer.activation.machine.position.reason, "it waits")  # noqa: B023
    castor.start()
    await until(lambda: all(peer.in_sync for peer in group.backups), "both follow again")
    assert castor.phase is Phase.LIVE
    assert [peer.has("2") for peer in group.backups] == [b"alone"] * 2


@pytest.mark.parametrize(
    ("kind", "stops"), [("file", False), ("zookeeper", False), ("votes", False), ("file", True), ("votes", True)]
)
async def test_one_takes_over_and_the_other_follows_it(make: Callable[[str], Group], kind: str, *, stops: bool) -> None:
    """With a lock and a number, or with the votes of two other pairs; the old live follows too."""
    group = make(kind)
    await group.start()
    await group.castor.confirm("1", b"before")
    before = group.castor.state.sequence
    await (group.castor.stop() if stops else group.castor.die())
    if stops:
        # Without a lock the one that is given the right must be the only one that could win a vote.
        assert group.castor.state.sequence == before + (kind == "votes")
    await until(lambda: any(peer.phase is Phase.LIVE for peer in group.backups), "one of them serves")
    live, other = sorted(group.backups, key=lambda peer: peer.phase is not Phase.LIVE)
    await until(lambda: other.in_sync and other.state.sequence == live.state.sequence, "the other one follows it")
    assert live.phase is Phase.LIVE
    assert other.phase is not Phase.LIVE
    assert live.state.sequence > before
    assert live.backups() == {other.name: "in sync"}
    assert not list((other.directory / "journal").glob("oldreplica.*")), "it had a beginning: it was completed"
    await live.confirm("2", b"after")
    assert (other.has("1"), other.has("2")) == (b"before", b"after")
    group.castor.start()
    await until(lambda: group.castor.in_sync, "the old live follows")
    moved = (group.castor.directory / "journal" / "oldreplica.1").is_dir()
    assert moved is not stops, "it served with its data; stopped in order, that is a beginning of the live's"
    await live.confirm("3", b"by all")
    assert [one.has("3") for one in (group.castor, other)] == [b"by all"] * 2
    assert [peer.broker.fences for peer in group.peers.values()] == [[]] * len(group.peers)


async def test_backups_that_have_nobody_to_ask_do_not_both_serve(make: Callable[[str], Group]) -> None:
    """Two backups and no other pair: each would find that it needs no votes."""
    group = make("alone")
    await group.start()
    await group.castor.confirm("1", b"before")
    await group.castor.die()
    for peer in group.backups:
        await until(
            lambda: "0 of 1 votes needed" in peer.activation.machine.position.reason,  # noqa: B023
            f"{peer.name} has asked",
        )
    assert [peer.phase for peer in group.backups] == [Phase.CATCHING_UP] * 2
    group.castor.start()
    await until(lambda: all(peer.in_sync for peer in group.backups), "both follow the live that is back")


def test_who_was_there_once_is_not_forgotten() -> None:
    """Members that are found (discovery) come and go: the live that is gone does not make two backups a pair."""
    found: Any = SimpleNamespace(electorate=SimpleNamespace(others=1), _most_others=0)
    assert Voting.least(found) == 0, "a pair alone has nobody to ask"
    found.electorate.others = 2
    assert Voting.least(found) == 1
    found.electorate.others = 1
    assert Voting.least(found) == 1
