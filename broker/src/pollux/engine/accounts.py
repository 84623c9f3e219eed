"""How much memory each address uses, and whether its producers may go on.

An address is charged for each message it holds in memory, once, however many queues hold it. What a full
address means is decided by :mod:`pollux.routing.paging`; this module keeps the gauges and calls those who wait.
It stores and routes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.config.address_settings import AddressFullPolicy, DiskFullPolicy
from pollux.engine.memory import DUPLICATE_ID
from pollux.formats.forwards import parse_away
from pollux.routing.duplicates import DuplicateCache
from pollux.routing.paging import Gauge, PageUsage, Verdict, admit, share_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pollux.config.address_settings import AddressSettings
    from pollux.engine.diverts import Rule
    from pollux.engine.memory import User
    from pollux.message import Message


#: Duplicate ids are accounted for as many at a time as there are, and at first so many.
_FIRST_IDS = 32


class Account:
    """One address: what it holds in memory and in pages, its settings, who waits for it.

    ``careful``: a message for it needs more than its route (a limit is near, pages, expiry settings, diverts).
    """

    __slots__ = (
        "careful",
        "counted_ids",
        "diverts",
        "duplicates",
        "gauge",
        "name",
        "pages",
        "settings",
        "special",
        "stamped",
        "waiters",
    )

    def __init__(self, name: str, settings: AddressSettings) -> None:
        self.name = name
        self.gauge = Gauge()
        self.pages = PageUsage()
        self.careful = False
        #: What takes messages from here to elsewhere.
        self.diverts: tuple[Rule, ...] = ()
        #: In the order in which they came (a dict for quick removal).
        self.waiters: dict[Callable[[], None], None] = {}
        self.duplicates: DuplicateCache | None = None
        #: So many of its duplicate ids are accounted for.
        self.counted_ids = 0
        self.apply(settings)

    def apply(self, settings: AddressSettings) -> None:
        """Take new settings (at first, and on a reload)."""
        self.settings = settings
        self.gauge.limit(settings.max_size_bytes, settings.max_size_messages)
        if self.duplicates is not None and self.duplicates.limit != settings.id_cache_size:
            self.duplicates.resize(settings.id_cache_size)
        #: Messages get the time they came in.
        self.stamped = settings.enable_ingress_timestamp
        #: The settings change the expiration of messages.
        self.special = (
            settings.no_expiry
            or settings.expiry_delay >= 0
            or settings.min_expiry_delay >= 0
            or settings.max_expiry_delay >= 0
        )
        self.reconsider()

    def reconsider(self) -> None:
        """Decide anew whether the short way of a message is enough."""
        self.careful = self.special or self.pages.active or self.gauge.full or bool(self.diverts)

    def divert(self, rules: tuple[Rule, ...]) -> None:
        """Let these diverts look at messages for it."""
        if rules != self.diverts:
            self.diverts = rules
            self.reconsider()

    def is_new(self, duplicate_id: bytes, holder: User) -> bool:
        """Remember a duplicate id, for which ``holder`` accounts; False when the address has seen it.

        Raises LimitError when there is no room for more ids.
        """
        duplicates = self.duplicates
        if duplicates is None:
            duplicates = self.duplicates = DuplicateCache(self.settings.id_cache_size)
        if len(duplicates) >= self.counted_ids and duplicate_id not in duplicates:
            more = min(max(len(duplicates), _FIRST_IDS), max(duplicates.limit - self.counted_ids, 0))
            holder.take(DUPLICATE_ID * more)
            self.counted_ids += more
        return duplicates.add(duplicate_id)

    def restore_ids(self, ids: Iterable[bytes], holder: User) -> None:
        """Remember the duplicate ids of before this start, oldest first."""
        self.duplicates = DuplicateCache(self.settings.id_cache_size)
        self.duplicates.restore(ids)
        self.counted_ids = len(self.duplicates)
        holder.take(DUPLICATE_ID * self.counted_ids, already=True)

    def forget_all(self, holder: User) -> None:
        """Forget the duplicate ids of an address that is gone."""
        holder.give(DUPLICATE_ID * self.counted_ids)
        self.counted_ids = 0
        self.duplicates = None

    def send_away(self, duplicate_id: bytes, node: bytes) -> None:
        """Note that a node alone has the message of an id."""
        if self.duplicates is not None:
            self.duplicates.send_away(duplicate_id, node)

    def forget(self, duplicate_id: bytes | None) -> None:
        """Forget the id of a message that was not accepted after all."""
        if duplicate_id is not None and self.duplicates is not None:
            self.duplicates.remove(duplicate_id)


_NO_LIMIT = Gauge()


class Accounts:
    """All accounts, what they hold together, and the disk.

    ``limit`` (bytes) and ``limit_messages`` are global-max-size and global-max-messages, ``page_above`` the bytes above
    which addresses with more than their share page, -1 for none. Whoever waits for an address (:meth:`on_writable`) is
    called once when it opens.
    """

    def __init__(
        self, settings: Callable[[str], AddressSettings], limit: int, limit_messages: int = -1, page_above: int = -1
    ) -> None:
        self._settings = settings
        self.total = Gauge(limit, limit_messages)
        self._page_above = page_above
        #: An address with more than this is looked at more closely (see :meth:`crowding`).
        self._share = share_of(page_above, 1)
        self.disk_full = False
        #: No message takes the short way: the disk or all the memory is full.
        self.pressure = False
        self._accounts: dict[str, Account] = {}
        self._waiting: set[str] = set()

    def __iter__(self) -> Iterator[Account]:
        return iter(self._accounts.values())

    def get(self, address: str) -> Account:
        """The account of an address, opened when it has none."""
        account = self._accounts.get(address)
        if account is None:
            account = self._accounts[address] = Account(address, self._settings(address))
            self._share = share_of(self._page_above, len(self._accounts))
        return account

    def of(self, name: str) -> Account:
        """Return the account that messages for a name, perhaps an FQQN, are charged to."""
        return self.get(name.partition("::")[0] if "::" in name else name)

    def drop(self, address: str, holder: User) -> None:
        """Forget the duplicate ids of an address that is gone, for ``holder`` too.

        Its account goes with them once nothing of it is left in memory.
        """
        account = self._accounts.get(address)
        if account is None:
            return
        account.forget_all(holder)
        if account.gauge.messages == 0 and not account.pages.active:
            del self._accounts[address]
            self._share = share_of(self._page_above, len(self._accounts))
        self._call(account)

    def restore_ids(self, found: Mapping[str, Iterable[bytes]], holder: User) -> None:
        """Remember the duplicate ids of before this start, of each address oldest first, and which went away."""
        away: list[tuple[bytes, str, Iterable[bytes]]] = []
        for name, ids in found.items():
            parsed = parse_away(name)
            if parsed is None:
                self.of(name).restore_ids(ids, holder)
            else:
                away.append((*parsed, ids))
        for node, address, ids in away:
            for each in ids:
                self.get(address).send_away(each, node)

    def sent_to(self, message: Message) -> bytes | None:
        """Return the node that alone has the message of this duplicate id; None: it was here, or is not known."""
        account = self._accounts.get(message.address.partition("::")[0])
        if account is None or account.duplicates is None or message.duplicate_id is None:
            return None
        return account.duplicates.node_of(message.duplicate_id)

    def remembers_duplicates(self, address: str) -> bool:
        """Whether duplicate ids of this address are known."""
        account = self._accounts.get(address)
        return account is not None and bool(account.duplicates)

    def reload(self) -> None:
        """Take the settings anew: limits may be other ones now."""
        for account in self._accounts.values():
            account.apply(self._settings(account.name))
        self.reconsider()

    # -- what is held

    def charge(self, account: Account, size: int, messages: int = 1) -> None:
        """Count ``size`` bytes of so many messages that are now in memory."""
        gauge = account.gauge
        gauge.bytes += size
        gauge.messages += messages
        total = self.total
        total.bytes += size
        total.messages += messages
        if 0 <= gauge.max_bytes <= gauge.bytes or 0 <= gauge.max_messages <= gauge.messages:
            account.careful = True
        if 0 <= total.max_bytes <= total.bytes or 0 <= total.max_messages <= total.messages:
            self.pressure = True
        if gauge.bytes > self._share and self.crowding(account):
            account.careful = True

    def roomy(self, account: Account, size: int, messages: int) -> bool:
        """Return whether so much more takes the short way, to the last message and after it."""
        gauge, total = account.gauge, self.total
        if account.careful or self.pressure or not (gauge.has_room(size, messages) and total.has_room(size, messages)):
            return False
        return total.bytes + size <= self._page_above or gauge.bytes + size <= self._share

    def crowding(self, account: Account) -> bool:
        """Return whether much is in memory, and more than its share of this address: then it pages, if so told."""
        return self._page_above < self.total.bytes and account.gauge.bytes > self._share

    def credit(self, account: Account, size: int, messages: int) -> None:
        """Give back ``size`` bytes of so many ``messages`` that left memory."""
        account.gauge.remove(size, messages)
        self.total.remove(size, messages)
        if self.pressure or account.careful:
            account.reconsider()
            self.reconsider()

    def change(self, size: int) -> None:
        """Count ``size`` more bytes (negative: fewer) of what clients make the broker hold beside messages."""
        total = self.total
        total.bytes += size
        if size > 0:
            if 0 <= total.max_bytes <= total.bytes:
                self.pressure = True
        elif self.pressure:
            self.reconsider()

    # -- producers

    def writable(self, address: str) -> bool:
        """Return whether a producer of this address, or FQQN, may send now; if not, see :meth:`on_writable`."""
        account = self._accounts.get(address.partition("::")[0])
        return account is None or self._open(account)

    def _open(self, account: Account) -> bool:
        settings = account.settings
        if self.disk_full and settings.disk_full_policy is DiskFullPolicy.BLOCK:
            return False
        if settings.address_full_policy is not AddressFullPolicy.BLOCK:
            return True
        pages = account.pages
        if pages.active and not account.gauge.has_room(pages.bytes, pages.messages):
            return False
        return not account.gauge.full and not self.total.full

    def has_room(self, address: str) -> bool:
        """Return whether another node may send more for an address: where producers are refused it waits, too."""
        account = self._accounts.get(address.partition("::")[0])
        if account is None:
            return True
        verdict = admit(account.settings, account.gauge, self.total, account.pages)
        return self._open(account) and verdict not in (Verdict.BLOCK, Verdict.FAIL)

    def full_alone(self, address: str) -> bool:
        """Return whether another node is to send no more for an address because of what that has, not the broker."""
        account = self._accounts.get(address)
        if account is None:
            return False
        return admit(account.settings, account.gauge, _NO_LIMIT, account.pages) in (Verdict.BLOCK, Verdict.FAIL)

    def on_writable(self, address: str, callback: Callable[[], None]) -> None:
        """Call ``callback`` once, when the address is writable again, unless :meth:`off_writable` takes it back."""
        account = self.of(address)
        account.waiters[callback] = None
        self._waiting.add(account.name)

    def off_writable(self, address: str, callback: Callable[[], None]) -> None:
        """Forget ``callback``, if it still waits: who waited is gone."""
        account = self._accounts.get(address.partition("::")[0])
        if account is None:
            return
        account.waiters.pop(callback, None)
        if not account.waiters:
            self._waiting.discard(account.name)

    def set_disk_full(self, full: bool) -> None:
        """Keep what the store says of its room for new messages."""
        self.disk_full = full
        self.reconsider()

    def reconsider(self) -> None:
        """Open what may be opened, and call who waits."""
        self.pressure = self.disk_full or self.total.full
        for address in list(self._waiting):
            account = self._accounts.get(address)
            if account is None or self._open(account):
                self._waiting.discard(address)
                if account is not None:
                    self._call(account)

    @staticmethod
    def _call(account: Account) -> None:
        waiters, account.waiters = account.waiters, {}
        for waiter in waiters:
            waiter()
