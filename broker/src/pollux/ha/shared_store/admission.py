"""May this member use this store? Everything that is checked at a start, before the first byte is written."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from pollux.errors import PolluxError
from pollux.ha import members, peers
from pollux.ha.node_state import ForeignStateError, NodeState, StateFileError, StoreState, read_state
from pollux.ha.shared_store.filesystem import StoreDirectoryError
from pollux.ha.shared_store.policy import Role
from pollux.logs import event
from pollux.store.journal_facts import ForeignJournalError, JournalFacts, bindings_node, read_facts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pollux.ha.shared_store.group_store import GroupStore
    from pollux.ha.store_layout import SharedStoreLayout

logger = logging.getLogger("pollux.ha")


class Admission(NamedTuple):
    """The store as it was found. ``problem``: why a backup must wait although it may stay; empty: nothing is wrong."""

    #: Type of the file system of the lock directory, or that it is a database.
    kind: str
    facts: JournalFacts
    state: NodeState | None
    problem: str


def admit(
    layout: SharedStoreLayout, store: GroupStore, role: Role, me: str, addresses: Sequence[str] = ()
) -> Admission:
    """Read what is there. Raises StoreDirectoryError with thing, place and remedy, OSError; nothing was written then.

    ``me`` is this member's id, ``addresses`` are those of other members' management ports.
    """
    kind = store.check()
    try:
        facts = read_facts(layout.journal, layout.bindings, store.files)
    except ForeignJournalError as error:
        raise StoreDirectoryError(str(error)) from error
    state, problem = _read_state(layout, store)
    _check_node(layout, store, facts, state)
    check_shared(layout, store, me, addresses)
    if problem and role is not Role.BACKUP:
        if facts.node_id is None:
            raise PolluxError(
                f"{problem}; the journal is empty and cannot prove the node id; remove the file if this store is new"
            )
        event(
            logger,
            logging.WARNING,
            "state file recovered from the journal",
            problem=problem,
            node=facts.node_id.hex(),
            epoch=facts.epoch,
        )
        # PAUSED: others may not take over before this broker has the store.
        state = NodeState(facts.node_id, StoreState.PAUSED, facts.epoch)
        problem = ""
    store.probe()
    return Admission(kind, facts, state, problem)


def _read_state(layout: SharedStoreLayout, store: GroupStore) -> tuple[NodeState | None, str]:
    try:
        return read_state(layout.node, store.files), ""
    except ForeignStateError as error:
        raise StoreDirectoryError(str(error)) from error
    except StateFileError as error:
        return None, str(error)


def _check_node(layout: SharedStoreLayout, store: GroupStore, facts: JournalFacts, state: NodeState | None) -> None:
    """Journal, bindings and state are those of one node."""
    found = {
        layout.node: state.node_id if state is not None else None,
        layout.journal: facts.node_id,
        layout.bindings: bindings_node(layout.bindings, store.files),
    }
    nodes = [(where, node) for where, node in found.items() if node is not None]
    for where, node in nodes[1:]:
        first, expected = nodes[0]
        if node != expected:
            raise StoreDirectoryError(
                f"{store.name(where)}: belongs to node {node.hex()}, but {store.name(first)} to node {expected.hex()};"
                " all parts of one broker's store must stay together: name those of one node in broker.xml"
            )


def check_shared(layout: SharedStoreLayout, store: GroupStore, me: str, addresses: Sequence[str]) -> None:
    """Compare with the members that answer. Raises StoreDirectoryError when one of them sees another store."""
    found = [one for one in members.members(layout.node, store.files, store.locks) if one.id != me]
    # A member whose lock is seen here shares the directory: its process holds that very file.
    near = {one.id for one in found if one.alive}
    answers = [one for one in peers.ask_all(addresses, found) if one.id != me and one.id not in near]
    mine = store.identity()  # after the answers: what they have seen before must be here now
    for view in answers:
        reason = peers.difference(mine, view, store.name(layout.node))
        if reason and not members.is_alive(store.locks, view.id):
            raise StoreDirectoryError(reason)
