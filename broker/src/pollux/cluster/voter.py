"""A member answers the others that ask for its vote, and remembers what they said before it does."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

from pollux.cluster import vote_log
from pollux.cluster.vote_channels import Given
from pollux.cluster.votes import SERVES, TAKE, Question
from pollux.logs import event

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pollux.cluster.link import Conversation
    from pollux.cluster.votes import OwnVote, Register

logger = logging.getLogger("pollux.ha")

_SEQUENCES = 1 << 62


class Voter:
    """Opens the channels of who asks. ``member`` names this one, of the pair ``group``."""

    def __init__(
        self, register: Register, journal: Path, own_vote: Callable[[], OwnVote], *, member: str, group: str
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._register = register
        self._journal = journal
        self._own_vote = own_vote
        self._member = member
        self._group = group
        #: How many channels of one holder there are: it is gone with the last one.
        self._holding: Counter[tuple[str, str]] = Counter()
        self._answering: set[asyncio.Task[None]] = set()
        self._writing = asyncio.Lock()

    def open(self, conversation: Conversation, channel: int, content: dict[str, Any]) -> Given | None:
        """Answer a question (the purpose ``quorum`` of the core protocol)."""
        try:
            asked = _question(content)
        except (KeyError, TypeError, ValueError) as error:
            conversation.refuse(channel, f"a vote was asked for in a way that cannot be read: {str(error)[:100]}")
            return None
        register, own = self._register, self._own_vote()
        before = register.sequences.get(asked.node_id)
        ruling = register.judge(asked, own, self._member, self._group, self._loop.time())
        holder = (asked.node_id, asked.member) if ruling.yes and asked.kind in (SERVES, TAKE) else None
        if holder is not None:
            self._holding[holder] += 1
        given = Given(self._let_go, holder)
        now = register.sequences.get(asked.node_id)
        answer: dict[str, Any] = {
            "member": self._member,
            "voter": own.node_id if own.serves else "",
            **ruling._asdict(),
            "sequence": now or 0,
            "size": register.largest,
            "topology": sorted(register.topology - register.removed),
            "removed": sorted(register.removed),
        }
        if now == before:
            conversation.accept(channel, **answer)
        else:
            # What was recorded is on disk before it is answered.
            task = self._loop.create_task(self._answer(conversation, channel, answer, given))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
        return given

    def _let_go(self, holder: tuple[str, str]) -> None:
        self._holding[holder] -= 1
        if self._holding[holder] <= 0:
            del self._holding[holder]
            self._register.gone(*holder)

    async def _answer(self, conversation: Conversation, channel: int, answer: dict[str, Any], given: Given) -> None:
        try:
            async with self._writing:
                await asyncio.to_thread(vote_log.write, self._journal, self._register.sequences)
        except OSError as error:
            event(logger, logging.ERROR, "what another pair said could not be remembered", reason=error)
            answer |= {"yes": False, "reason": f"{self._member} cannot remember it: {error}"}
        if not given.ended:
            conversation.accept(channel, **answer)
            conversation.flush()


def _question(content: dict[str, Any]) -> Question:
    """Return what was asked. Raises KeyError, TypeError, ValueError."""
    asked = Question(
        str(content["ask"]),
        str(content["node_id"]),
        str(content["member"])[:255],
        int(content["sequence"]),
        str(content.get("group", "")),
    )
    if len(bytes.fromhex(asked.node_id)) != 16 or not asked.member or abs(asked.sequence) > _SEQUENCES:
        raise ValueError(asked.kind)
    return asked
