"""When a run of the load client is over."""

from __future__ import annotations

from harness.loadclient.traffic import Goal


def test_what_waited_before_is_received_too() -> None:
    """Else a consumer of a backlog leaves with its first message, and nothing more of the backlog moves to it."""
    goal = Goal(messages=1, seconds=0.0, sent=1, producers_done=1, producers=1, consumers=1, waiting=3)
    for received, over in ((0, False), (3, False), (4, True)):
        goal.received = received
        assert goal.consumed is over
