"""Signs of two lives of one node, or of two that serve, are noticed: proofs, epochs and sequences that go back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from pollux.errors import StoreError
from pollux.ha.copies import local
from pollux.ha.copies.local import LocalState
from pollux.ha.lease import Lease
from pollux.ha.machine import Machine, Phase
from pollux.ha.node_state import Activation, Holder, NodeState, StateFileError, decode, encode, with_holder
from pollux.ha.replication import sequence_steps

if TYPE_CHECKING:
    from pathlib import Path

    from pollux.ha.replication.coordination import Coordinator

CASTOR = Holder("c", "castor", "host", 1, "live")


def activation(epoch: int) -> Activation:
    return Activation(epoch, "", "castor", "because", 1)


def test_a_proof_is_neither_of_the_future_nor_older_than_the_last_one() -> None:
    now = 100.0
    lease = Lease(10.0, lambda: now)
    with pytest.raises(AssertionError):
        lease.extend(100.5)
    assert not lease.held()
    assert lease.extend(100.0)
    with pytest.raises(AssertionError):
        lease.extend(99.5)
    assert lease.left() == 10.0


@pytest.mark.parametrize("phase", [Phase.ACTIVATING, Phase.LIVE, Phase.STOPPING, Phase.FENCED])
def test_the_epoch_of_who_serves_never_goes_back(phase: Phase) -> None:
    machine = Machine(lambda: 1)
    machine.position = machine.position._replace(phase=phase, epoch=5)
    with pytest.raises(AssertionError):
        machine.to(phase, "again", 4)
    machine.to(phase, "again", 5)
    assert machine.position.epoch == 5


@pytest.mark.parametrize("served", [3, 4])
def test_a_claim_is_of_a_new_epoch(served: int) -> None:
    state = NodeState(b"n" * 16, epoch=3, history=(activation(served),))
    with pytest.raises(AssertionError):
        with_holder(state, CASTOR, served, "lock", activation(served))
    assert with_holder(state, CASTOR, served + 1, "lock", activation(served + 1)).epoch == served + 1


def test_a_state_file_that_forgot_an_epoch_is_damaged() -> None:
    state = NodeState(b"n" * 16, epoch=4, history=(activation(2), activation(4)))
    assert decode(encode(state), "state.json") == state
    with pytest.raises(StateFileError, match=r"state.json: is damaged \(epoch 3, although epoch 4 was served before\)"):
        decode(encode(replace(state, epoch=3)), "state.json")


@pytest.mark.parametrize("wrong", [{"sequence": -2}, {"epoch": -1}])
def test_a_number_below_zero_is_no_sequence(tmp_path: Path, wrong: dict[str, int]) -> None:
    """A sequence that is negative means a claim where it is coordinated, and nothing beside a journal."""
    local.write(tmp_path, replace(LocalState("0b" * 16, 2, 2, complete=True, replica=False), **wrong))
    with pytest.raises(StoreError, match="begin at 0 and only grow"):
        local.read(tmp_path)


def test_the_sequence_is_raised_in_no_older_epoch(tmp_path: Path) -> None:
    class Unasked:
        """Nothing is coordinated."""

    state = LocalState("0b" * 16, 2, 7, complete=True, replica=False)
    coordinator: Coordinator = Unasked()  # type: ignore[assignment]
    with pytest.raises(AssertionError):
        sequence_steps.raise_sequence(coordinator, tmp_path, state, 6)
    assert local.read(tmp_path) is None
