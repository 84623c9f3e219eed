"""An active-passive cluster in simulated time: the product's judgements, on the model's disks, clocks and networks.

What decides is the product: :func:`promotion.judge`, :func:`policy.decide`, the table of statuses, :class:`ReadyLease`,
:class:`Granted` and :class:`Grant`. What is simulated is what carries it out: processes that die or stand still, links
that are cut, the copy of the data, and a resource manager that promotes whom it likes once the old primary is gone.
That it is gone is its promise; everything else it may get wrong. With a ``grant`` it promises less: it says to the one
that it promoted last that it serves, and to no other; it kills nobody. A message is a number; a member's data is a set
of them. Not a test module.
"""

from __future__ import annotations

from pollux.ha.active_passive import policy, promotion
from pollux.ha.active_passive.grant import Grant
from pollux.ha.active_passive.policy import Action, PrimarySnapshot, PromotedSnapshot, StandbySnapshot
from pollux.ha.active_passive.promotion import Answer, Candidate, Number, Proof, Record, Verdict
from pollux.ha.active_passive.ready import Granted, ReadyLease
from pollux.ha.active_passive.statuses import PRIMARY, Status, change

NODE = "0b" * 16
NAMES = ("a", "b", "c")
TURN = 0.25
#: Seconds: of ready, of a primary's patience with a silent backup, and with one that it expects.
LEASE, PATIENCE, BACKUP_TIMEOUT = 2.0, 1.0, 4.0
#: The resource manager's name among the ends of links, and how long its word is worth something, seconds.
MANAGER, GRANT = "rm", 3.0


class BrokenError(Exception):
    """An invariant does not hold."""


class World:
    """Time, the members, and what clients were promised. ``without`` names a rule that is taken out."""

    def __init__(self, without: str = "", *, min_in_sync: int = 0, grant: float = 0.0) -> None:
        self.without = without
        self.min_in_sync = min_in_sync
        self.grant = grant
        self.now = 1000.0
        self.cut: set[frozenset[str]] = set()
        self.confirmed: set[int] = set()
        self.sent = self.promoted = self.refused = self.evicted = 0
        self.members = {name: Member(self, name) for name in NAMES}
        #: Who was promoted last, and words on their way: to whom, and for when they were asked.
        self.chosen = ""
        self.words: list[tuple[str, float]] = []

    def reaches(self, one: str, other: str) -> bool:
        return frozenset((one, other)) not in self.cut

    def pass_time(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += TURN
            self.grant_on()
            for member in self.members.values():
                member.turn()
            if len(serving := [one.name for one in self.members.values() if one.serves]) > 1:
                raise BrokenError(f"two lives: {', '.join(serving)}")

    def grant_on(self) -> None:
        """The resource manager's word, which is under way for a turn, or as long as nobody takes it."""
        left = []
        for name, asked_at in self.words:
            member = self.members[name]
            if member.status in PRIMARY and not member.paused and self.reaches(MANAGER, name):
                member.grant.given(asked_at, self.now)
            elif member.alive:
                left.append((name, asked_at))
        self.words = left
        if self.chosen and self.reaches(MANAGER, self.chosen):
            self.words.append((self.chosen, self.now))

    @property
    def primaries(self) -> list[Member]:
        return [one for one in self.members.values() if one.alive and one.status in PRIMARY]

    @property
    def primary(self) -> Member | None:
        """Who serves by the resource manager's last word."""
        return next((one for one in self.primaries if not self.grant or one.name == self.chosen), None)

    def promote(self, name: str, proof: Proof = Proof()) -> Verdict | None:  # noqa: B008  (a value)
        """Make certain that no other one serves, then promote, as the resource manager does. None: it is not there.

        With a grant it only says to the old one no more that it serves.
        """
        member = self.members[name]
        if not member.alive or member.paused or not self.reaches(MANAGER, name):
            return None
        if self.grant and member.status in PRIMARY and name != self.chosen:
            member.kill()  # it was replaced: it is demoted, and is not chosen again as it is
            return None
        for old in self.primaries:
            if old is not member and not self.grant:
                old.kill()
        before, self.chosen = self.chosen, name
        verdict = member.promote(proof)
        if not verdict.promoted:
            self.chosen = before
        return verdict

    def ask_slowly(self, name: str) -> None:
        """Ask the others for a promotion, and wait for a silent machine: it is judged by ``promote`` of the member."""
        member = self.members[name]
        member.asked, member.told = (self.now, member.answers()), {}

    def recover(self) -> Verdict | None:
        """Nothing is broken any more: one of them can be promoted, if none serves."""
        self.cut.clear()
        for member in self.members.values():
            member.paused = False
        self.pass_time(2 * self.grant)
        for member in self.members.values():
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
        """Forget all that a process knows and a disk does not."""
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
        #: Whose end is still to be seen; since when a lost backup is certainly ready no more.
        self.left = ""
        self.noticed: dict[str, float] = {}
        self.grant = Grant(self.world.grant)
        self.opens: float | None = None
        #: When the others were asked for a promotion that is not judged yet, and what they said; who serves since.
        self.asked: tuple[float, list[Answer]] | None = None
        self.told: dict[str, int] = {}

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
        if self.opens is not None:
            self.open()
        elif self.status in PRIMARY:
            self.serve()
        else:
            self.wait()

    # -- while it waits

    def wait(self) -> None:
        world, now = self.world, self.world.now
        primary = world.members[self.follows] if self.follows else None
        if primary is None:
            if self.asked is None:  # else the silent machine is who it tries to follow
                self.look_for_a_primary()
        elif (
            not primary.alive
            or primary.status not in PRIMARY
            or not world.reaches(self.name, primary.name)
            or self.name not in (primary.in_sync | primary.copying)
        ):
            self.left, self.follows, self.asked_at = self.follows, "", None
        elif self.asked_at is None:
            self.asked_at = now
        # Its machine says that nobody listens there, when it can be asked.
        told = self.left and world.reaches(self.name, self.left) and not world.members[self.left].alive
        if told and not self.follows and self.lease.held(now):
            self.end_seen(now)
            self.left = ""
        complete = self.record is not None and self.record.complete
        decided = policy.decide(StandbySnapshot(self.status, bool(self.follows), complete, self.ready), now)
        if decided.status is not None:
            self.become(decided.status)

    def end_seen(self, now: float) -> None:
        if self.world.without == "last answer":
            self.lease.handed_over(now, BACKUP_TIMEOUT)
        else:
            self.lease.primary_ended(now, BACKUP_TIMEOUT)

    def look_for_a_primary(self) -> None:
        """Follow the first one that takes us."""
        mine = self.record.number.epoch if self.record is not None else 0
        for one in self.world.primaries:
            newer = one.record is not None and one.record.number.epoch >= mine
            if one.serves and not one.paused and self.world.reaches(self.name, one.name) and newer:
                self.begin(one)
                return

    @property
    def serves(self) -> bool:
        """Whether clients are answered."""
        until = self.grant.word.until if self.world.without != "grant" else None
        return (
            self.alive and self.status in PRIMARY and self.opens is None and (until is None or self.world.now < until)
        )

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
        self.left = ""
        self.follows = primary.name
        primary.copying[self.name] = self.world.now

    # -- while it serves

    def promote(self, proof: Proof) -> Verdict:
        world = self.world
        (asked_at, answers), told = self.asked or (world.now, self.answers()), self.told if self.asked else {}
        self.asked = None
        told = {} if world.without == "told" else told
        candidate = Candidate(self.name, self.status, self.record, self.ready, world.min_in_sync, told)
        verdict = promotion.judge(candidate, answers, proof)
        if verdict.why is promotion.Why.PROMOTED:
            world.promoted += 1
            if not world.confirmed <= self.data:
                raise BrokenError(f"{self.name} is promoted without {sorted(world.confirmed - self.data)}")
            self.become(Status.RECOVERING)
            self.follows, self.in_sync, self.waiting = "", {}, set()
            self.copying.clear()
            self.granted = Granted(LEASE)
            self.noticed.clear()
            self.grant.given(asked_at, world.now)
            self.opens = world.now
            if verdict.unfenced and world.without != "outlasting":
                self.opens += self.grant.outlasts
            self.expected = dict.fromkeys(verdict.expected if world.without != "expected" else (), world.now)
            sequence = self.record.number.sequence + 1 if self.record is not None else 1
            self.write(Number(verdict.epoch, sequence), frozenset(self.expected))
            self.open()
        elif not verdict.promoted:
            world.refused += 1
        return verdict

    def open(self) -> None:
        """Serve, once nobody else does any more."""
        assert self.opens is not None
        decided = policy.decide(PromotedSnapshot(self.opens, GRANT, self.grant.word), self.world.now)
        if decided.action is Action.OPEN:
            self.opens = None
            self.expected = dict.fromkeys(self.expected, self.world.now)
            assert self.record is not None
            for other in self.world.members.values():
                if other.alive and not other.paused and self.world.reaches(self.name, other.name):
                    other.told[self.name] = self.record.number.epoch
        elif decided.action is Action.FENCE:
            self.kill()

    def answers(self) -> list[Answer]:
        return [self.ask(other) for other in self.world.members.values() if other is not self]

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
        if (decided := self.decided()).action is Action.FENCE:
            self.kill()
            return
        self.look_after_backups()
        if (decided := self.decided()).action is Action.GIVE_UP:
            for name in decided.members:
                self.lose(name)
        elif decided.status is not None:
            self.become(decided.status)
        world.sent += 1
        self.data.add(world.sent)
        self.waiting.add(world.sent)
        for name in list(self.in_sync):
            if self.hears(name):
                # A new record is in the stream before what comes after it, for one that stood still, too.
                world.members[name].record = self.record
                world.members[name].data |= self.waiting
                self.in_sync[name] = now
                self.noticed.pop(name, None)
            elif now >= self.in_sync[name] + PATIENCE and self.may_lose(name):
                self.lose(name)
        told = all(seen == now for seen in self.in_sync.values())
        if told and self.status is Status.ACTIVE and len(self.in_sync) >= world.min_in_sync:
            self.confirm()

    def decided(self) -> policy.Decision:
        word = self.grant.word if self.world.without != "grant" else policy.FOR_EVER
        return policy.decide(PrimarySnapshot(self.status, self.expected, BACKUP_TIMEOUT, word), self.world.now)

    def may_lose(self, name: str) -> bool:
        """Whether a backup that is silent is certainly ready no more, and was not promoted while it was."""
        world, now = self.world, self.world.now
        if world.without != "wait" and self.granted.left(name, now) > 0:
            return False
        return world.without in ("word", "grant") or self.grant.renewed_since(self.noticed.setdefault(name, now))

    def confirm(self) -> None:
        world = self.world
        chosen = world.members[world.chosen] if world.chosen else self
        if chosen is not self and not self.waiting <= chosen.data:
            raise BrokenError(f"{self.name} confirms what {chosen.name}, which was promoted later, does not have")
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
