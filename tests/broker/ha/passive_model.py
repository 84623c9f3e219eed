"""An active-passive cluster in simulated time: the product's judgements, on the model's disks, clocks and networks.

What decides is the product: :func:`promotion.judge`, :func:`policy.decide`, the table of statuses, :class:`ReadyLease`
and :class:`Granted`. What is simulated is what carries it out: processes that die or stand still, links that are cut,
the copy of the data, and a resource manager that promotes whom it likes once the old primary is gone (that it is gone
is its promise; everything else it may get wrong). A message is a number; a member's data is a set of them. Not a test
module.
"""

from __future__ import annotations

from pollux.ha.active_passive import policy, promotion
from pollux.ha.active_passive.policy import Action, Serving, Waiting
from pollux.ha.active_passive.promotion import Answer, Candidate, Number, Proof, Record, Verdict
from pollux.ha.active_passive.ready import Granted, ReadyLease
from pollux.ha.active_passive.statuses import PRIMARY, Status, change

NODE = "0b" * 16
NAMES = ("a", "b", "c")
TURN = 0.25
#: Seconds: of ready, of a primary's patience with a silent backup, and with one that it expects.
LEASE, PATIENCE, BACKUP_TIMEOUT = 2.0, 1.0, 4.0


class BrokenError(Exception):
    """An invariant does not hold."""


class World:
    """Time, the members, and what clients were promised. ``without`` names a rule that is taken out."""

    def __init__(self, without: str = "", *, min_in_sync: int = 0) -> None:
        self.without = without
        self.min_in_sync = min_in_sync
        self.now = 1000.0
        self.cut: set[frozenset[str]] = set()
        self.confirmed: set[int] = set()
        self.sent = self.promoted = self.refused = self.evicted = 0
        self.members = {name: Member(self, name) for name in NAMES}

    def reaches(self, one: str, other: str) -> bool:
        return frozenset((one, other)) not in self.cut

    def pass_time(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += TURN
            for member in self.members.values():
                member.turn()

    @property
    def primary(self) -> Member | None:
        return next((one for one in self.members.values() if one.alive and one.status in PRIMARY), None)

    def promote(self, name: str, proof: Proof = Proof()) -> Verdict | None:  # noqa: B008  (a value)
        """Make certain that no other one serves, then promote, as the resource manager does. None: it is not there."""
        member, old = self.members[name], self.primary
        if not member.alive or member.paused:
            return None
        if old is not None and old is not member:
            old.kill()
        return member.promote(proof)

    def recover(self) -> Verdict | None:
        """Nothing is broken any more: one of them can be promoted, if none serves."""
        self.cut.clear()
        for member in self.members.values():
            member.paused = False
            member.start()
        self.pass_time(LEASE)
        if self.primary is not None:
            return Verdict(promotion.Why.ALREADY, "")
        verdicts = [verdict for name in NAMES if (verdict := self.promote(name)) is not None]
        return next((one for one in verdicts if one.promoted), None)


class Member:
    """A broker: its disk stays, its process comes and goes."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.data: set[int] = set()
        self.record: Record | None = None
        self.alive = self.paused = False
        self.forget()

    def forget(self) -> None:
        """What a process knows and a disk does not."""
        self.status = Status.STANDALONE
        self.follows = ""
        self.lease = ReadyLease(LEASE)
        self.asked_at: float | None = None
        self.granted = Granted(LEASE)
        #: Backups whose word is waited for, with the time since which each has been silent; and the expected ones.
        self.in_sync: dict[str, float] = {}
        self.copying: dict[str, float] = {}
        self.expected: dict[str, float] = {}
        self.waiting: set[int] = set()

    def become(self, status: Status) -> None:
        change(self.status, status)
        self.status = status

    def start(self) -> None:
        if not self.alive:
            self.alive = True
            self.become(Status.JOINING)

    def kill(self) -> None:
        self.alive = self.paused = False
        self.forget()

    def turn(self) -> None:
        if not self.alive or self.paused:
            return
        if self.status in PRIMARY:
            self.serve()
        else:
            self.wait()

    # -- while it waits

    def wait(self) -> None:
        world, now = self.world, self.world.now
        primary = world.members[self.follows] if self.follows else None
        if primary is None:
            found = world.primary
            if found is not None and not found.paused and world.reaches(self.name, found.name):
                self.begin(found)
        elif not primary.alive or primary.status not in PRIMARY:
            # Its machine says that nobody listens there, when it can be asked.
            if world.reaches(self.name, primary.name):
                self.lease.primary_ended(now, BACKUP_TIMEOUT)
            self.follows, self.asked_at = "", None
        elif not world.reaches(self.name, primary.name) or self.name not in (primary.in_sync | primary.copying):
            self.follows, self.asked_at = "", None
        elif self.asked_at is None:
            self.asked_at = now
        complete = self.record is not None and self.record.complete
        decided = policy.decide(Waiting(self.status, bool(self.follows), complete, self.ready), now)
        if decided.status is not None:
            self.become(decided.status)

    @property
    def ready(self) -> bool:
        if self.world.without == "lease":
            return self.lease._until > 0
        return self.lease.held(self.world.now)

    def begin(self, primary: Member) -> None:
        """The primary takes it; its data is no whole copy from here on."""
        mine = self.record.number if self.record is not None else Number(0, 0)
        heirs = self.record.heirs if self.record is not None else frozenset[str]()
        assert primary.record is not None
        number = Number(primary.record.number.epoch, mine.sequence)
        self.record = Record(NODE, number, complete=False, primary=primary.name, heirs=heirs)
        self.lease.drop()
        self.follows = primary.name
        primary.copying[self.name] = self.world.now

    # -- while it serves

    def promote(self, proof: Proof) -> Verdict:
        world = self.world
        answers = [self.ask(other) for other in world.members.values() if other is not self]
        candidate = Candidate(self.name, self.status, self.record, self.ready, world.min_in_sync)
        verdict = promotion.judge(candidate, answers, proof)
        if verdict.why is promotion.Why.PROMOTED:
            world.promoted += 1
            if not world.confirmed <= self.data:
                raise BrokenError(f"{self.name} is promoted without {sorted(world.confirmed - self.data)}")
            self.become(Status.RECOVERING)
            self.follows, self.in_sync, self.waiting = "", {}, set()
            self.copying.clear()
            self.granted = Granted(LEASE)
            self.expected = dict.fromkeys(verdict.expected if world.without != "expected" else (), world.now)
            sequence = self.record.number.sequence + 1 if self.record is not None else 1
            self.write(Number(verdict.epoch, sequence), frozenset(self.expected))
        elif not verdict.promoted:
            world.refused += 1
        return verdict

    def ask(self, other: Member) -> Answer:
        if not self.world.reaches(self.name, other.name) or other.paused:
            return Answer(other.name)
        if not other.alive:
            return Answer(other.name, absent=True)
        return Answer(other.name, other.status, other.record)

    def write(self, number: Number, heirs: frozenset[str]) -> None:
        """The new record, here and with everybody who is in sync."""
        self.record = Record(NODE, number, complete=True, primary=self.name, heirs=heirs)
        for name in self.in_sync:
            if self.hears(name):
                self.world.members[name].record = self.record

    def hears(self, name: str) -> bool:
        other = self.world.members[name]
        return other.alive and not other.paused and other.follows == self.name and self.world.reaches(self.name, name)

    def serve(self) -> None:
        world, now = self.world, self.world.now
        self.look_after_backups()
        decided = policy.decide(Serving(self.status, self.expected, BACKUP_TIMEOUT), now)
        if decided.action is Action.GIVE_UP:
            for name in decided.members:
                self.lose(name)
        elif decided.status is not None:
            self.become(decided.status)
        world.sent += 1
        self.data.add(world.sent)
        self.waiting.add(world.sent)
        for name in list(self.in_sync):
            if self.hears(name):
                world.members[name].data |= self.waiting
                self.in_sync[name] = now
            elif now >= self.in_sync[name] + PATIENCE and (
                world.without == "wait" or self.granted.left(name, now) == 0
            ):
                self.lose(name)
        told = all(seen == now for seen in self.in_sync.values())
        if told and self.status is Status.ACTIVE and len(self.in_sync) >= world.min_in_sync:
            world.confirmed |= self.waiting
            self.waiting.clear()

    def look_after_backups(self) -> None:
        world, now = self.world, self.world.now
        for name, since in list(self.copying.items()):
            if not self.hears(name):
                del self.copying[name]
            elif now > since:
                del self.copying[name]
                self.admit(name)
        for name in self.in_sync:
            backup = world.members[name]
            if self.hears(name) and backup.asked_at is not None:
                self.granted.answer(name, now)
                backup.lease.answered(backup.asked_at)
                backup.asked_at = None

    def admit(self, name: str) -> None:
        """A copy is complete: it is an heir before it is told so."""
        assert self.record is not None
        backup = self.world.members[name]
        backup.data = set(self.data)
        self.in_sync[name] = self.world.now
        self.expected.pop(name, None)
        self.write(self.record.number, self.record.heirs | {name})

    def lose(self, name: str) -> None:
        """Go on without a backup, once that is on record."""
        assert self.record is not None
        self.world.evicted += 1
        self.in_sync.pop(name, None)
        self.expected.pop(name, None)
        if self.world.without == "durable set":
            return
        number = Number(self.record.number.epoch, self.record.number.sequence + 1)
        self.write(number, self.record.heirs - {name})
