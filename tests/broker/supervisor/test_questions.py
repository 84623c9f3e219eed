"""A life asks the other hosts again and again; one that lost its power is connected for a while and says nothing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from pollux.supervisor.questions import Questions

if TYPE_CHECKING:
    from pollux.cluster.link import Conversation


class Other:
    """The connection to another host: keeps what was asked by it, and answers when it is told to."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.refused: list[int] = []

    def open(self, handler: Any, purpose: str, **content: object) -> int:
        assert (purpose, content) == ("colocated", {"what": "tell"})
        self.asked.append(handler)
        return len(self.asked)

    def refuse(self, channel: int, *_: str) -> None:
        self.refused.append(channel)

    async def answer(self, **content: object) -> None:
        while not self.asked:  # noqa: ASYNC110  (the loop's next turn)
            await asyncio.sleep(0)
        self.asked.pop(0).accepted(content)


def conversations(*others: Other) -> list[Conversation]:
    return [cast("Conversation", other) for other in others]


async def test_a_host_that_is_silent_holds_up_no_look() -> None:
    questions = Questions(patience=0.05)
    alive, silent = Other(), Other()
    both = conversations(alive, silent)
    for number in range(3):
        answering = asyncio.create_task(alive.answer(number=number))
        found, _ = await questions.answers(both, what="tell")
        await answering
        assert found == [(both[0], {"number": number})]
    assert len(silent.asked) == 1, "it is asked once, until it answers"
    questions.stop()


async def test_a_late_answer_counts_and_is_as_old_as_its_question() -> None:
    questions = Questions(patience=0.05)
    slow = Other()
    both = conversations(slow)
    before = asyncio.get_running_loop().time()
    assert (await questions.answers(both, what="tell"))[0] == []
    between = asyncio.get_running_loop().time()
    await slow.answer(at="b")
    found, since = await questions.answers(both, what="tell")
    assert found == [(both[0], {"at": "b"})]
    assert before <= since < between
    assert slow.refused, "the channel is closed"


async def test_who_is_reached_no_more_is_waited_for_no_more() -> None:
    questions = Questions(patience=60)
    gone = Other()
    look = asyncio.create_task(questions.answers(conversations(gone), what="tell"))
    while not gone.asked:  # noqa: ASYNC110  (the loop's next turn)
        await asyncio.sleep(0)
    look.cancel()
    assert (await questions.answers([], what="tell"))[0] == []
    assert not questions._asked
