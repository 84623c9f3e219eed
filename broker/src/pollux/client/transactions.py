"""The local transactions of a session (AMQP 1.0 part 4), one after the other, and what a failover makes of them.

There is always one declared over the connection there is; the broker forgets it with the connection. One that had
anything in it is then *rollback-only*: sending in it raises, committing it raises, and nothing of it happened.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pollux.client import frames
from pollux.client.errors import (
    FailoverError,
    SendRefusedError,
    TransactionInDoubtError,
    TransactionRolledBackError,
)
from pollux.wire.amqp.codec import Described, encode_described, encode_fields
from pollux.wire.amqp.sections import VALUE

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux.client.links import SenderLink


class Transactions:
    """One transaction after the other. `coordinator` is the link to the broker's; `declared` is called for each."""

    def __init__(self, coordinator: SenderLink, declared: Callable[[], None]) -> None:
        self._coordinator = coordinator
        self._declared = declared
        self._identifier: bytes | None = None
        self._dirty = False
        self._rollback_only: str | None = None
        self._sends: list[asyncio.Future[object]] = []

    @property
    def is_open(self) -> bool:
        """Whether one is declared over the connection there is."""
        return self._identifier is not None

    def check(self) -> None:
        """Raise when it is rollback-only."""
        if self._rollback_only is not None:
            raise TransactionRolledBackError(
                f"the transaction is rollback-only: {self._rollback_only}; call rollback() and do all of it again"
            )

    def add(self, send: asyncio.Future[object]) -> None:
        """Add a send to it: commit waits for that."""
        self._dirty = True
        self._sends.append(send)

    def state(self, outcome: object) -> object:
        """Return the delivery state of something done in it."""
        self._dirty = True
        fields: list[object] = [self._identifier] if outcome is None else [self._identifier, outcome]
        return Described(frames.TRANSACTIONAL, fields)

    def undone(self, reason: str) -> None:
        """Note that the broker forgot it, with the connection."""
        if self._dirty:
            self._rollback_only = reason
            self._dirty = False
        self._identifier = None

    # -- what users call

    async def commit(self) -> None:
        """Commit the open one and declare the next. Raises as :meth:`pollux.client.session.Session.commit`."""
        results = await asyncio.gather(*self._sends, return_exceptions=True)
        self._sends.clear()
        if self._rollback_only is not None:
            reason = self._rollback_only
            await self._again()
            raise TransactionRolledBackError(f"the transaction was rolled back: {reason}; do all of it again")
        refused = next((each for each in results if isinstance(each, BaseException)), None)
        if refused is not None:
            await self.rollback()
            raise TransactionRolledBackError(f"the transaction was rolled back, because of a send: {refused}")
        dirty, self._dirty = self._dirty, False
        try:
            await self._discharge(fail=False)
        except FailoverError as error:
            self._rollback_only = None
            if dirty:
                raise TransactionInDoubtError(
                    f"whether it was committed is not known: {error}; repeat it with the same duplicate ids"
                ) from None
        except SendRefusedError as error:
            await self.declare()
            raise TransactionRolledBackError(f"the broker rolled the transaction back: {error}") from None

    async def rollback(self) -> None:
        """Roll the open one back and declare the next."""
        self._sends.clear()
        self._dirty = False
        if self._rollback_only is not None:
            await self._again()
            return
        try:
            await self._discharge(fail=True)
        except SendRefusedError:
            await self.declare()  # the broker undid it before it was asked to, as it does before it stops
        except FailoverError:
            self._rollback_only = None  # the broker forgot it with the connection

    async def _again(self) -> None:
        """Leave one that is rollback-only behind."""
        self._rollback_only = None
        await self._coordinator.session.answers.wait_until_ready()

    # -- with the broker

    async def declare(self) -> None:
        """Declare one over the connection there is. Raises FailoverError, or SendRefusedError."""
        outcome = await self._control(encode_described(frames.DECLARE, encode_fields([])))
        identifier = outcome.value[0] if isinstance(outcome, Described) and isinstance(outcome.value, list) else None
        if not isinstance(identifier, bytes):
            raise SendRefusedError("the broker declared no transaction")
        self._identifier = identifier
        self._declared()

    async def _discharge(self, *, fail: bool) -> None:
        identifier = self._identifier
        if identifier is None:
            await self._coordinator.session.answers.wait_until_ready()
            return
        await self._control(encode_described(frames.DISCHARGE, encode_fields([identifier, fail])))
        self._identifier = None
        await self.declare()

    async def _control(self, request: bytes) -> object:
        link, session = self._coordinator, self._coordinator.session
        if link.failure is not None:
            raise link.failure
        generation = session.generation
        future = link.put(encode_described(VALUE, request))
        outcome = await session.answers.answer(future)
        if generation != session.generation:
            raise FailoverError("the connection failed during the call")
        return outcome
