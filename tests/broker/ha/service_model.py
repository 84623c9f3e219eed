"""The pair of :mod:`broker.ha.pair_model` with a coordination service: one lock and one number. Not a test module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.ha.pair_model import SESSION, Node, World
from pollux.ha.replication.coordination import CoordinationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux.ha.replication.coordination import Coordinator


class ServiceWorld(World):
    """Equals and a coordination service with one lock and one number."""

    def __init__(self, without: str = "", members: int = 2) -> None:
        self.members: dict[str, ServiceNode] = {}
        super().__init__(without, members)
        self.sequence = 0
        self.holder: Service | None = None

    def make_nodes(self) -> dict[str, Node]:
        self.members = {name: ServiceNode(self, name) for name in self.names}
        return {**self.members}

    def tick(self) -> None:
        """The client library keeps a session while the process runs and reaches the service."""
        for node in self.members.values():
            if node.session is not None:
                node.session.beat()
        if self.holder is not None and self.now - self.holder.heard > SESSION:
            self.holder = None

    def heal(self) -> None:
        for node in self.members.values():
            node.reaches = True


class Service:
    """One session. Implements :class:`Coordinator`."""

    session = SESSION

    def __init__(self, world: ServiceWorld, node: ServiceNode) -> None:
        self.world = world
        self.node = node
        self.process = node.process
        self.heard = world.now

    def beat(self) -> None:
        if self.node.reaches and not self.node.paused and self.node.process == self.process:
            self.heard = self.world.now

    def connect(self, on_change: object) -> None:
        """Nothing: whoever is there is connected at once."""

    def _ask(self, work: Callable[[], Any]) -> Any:
        self.beat()
        return self.node.ask(self.process, work, reaches=self.node.reaches)

    def sequence(self) -> int:
        found: int = self._ask(lambda: self.world.sequence)
        return found

    def catch_up(self) -> None:
        self._ask(lambda: None)

    def acquire(self) -> bool:
        def take() -> bool:
            if self.world.holder is None:
                self.world.holder = self
            return self.world.holder is self

        found: bool = self._ask(take)
        return found

    def prove(self) -> None:
        if not self._ask(lambda: self.world.holder is self):
            raise CoordinationError("the lock is not ours any more")

    def change(self, expected: int, new: int) -> None:
        def put() -> None:
            if self.world.holder is not self or self.world.sequence != expected:
                raise CoordinationError("not ours, or not the number")
            self.world.sequence = new

        self._ask(put)

    def register(self, _group: str, node_id: str) -> str:
        return node_id

    def release(self) -> None:
        if self.world.holder is self and self.node.reaches:
            self.world.holder = None

    def close(self) -> None:
        self.release()


class ServiceNode(Node):
    """A member with a session of the coordination service."""

    def __init__(self, world: ServiceWorld, name: str) -> None:
        super().__init__(world, name)
        self.service_world = world
        self.reaches = True
        self.session: Service | None = None

    def make_coordinator(self, _identity: str) -> Coordinator:
        self.session = Service(self.service_world, self)
        return self.session

    def before_start(self) -> None:
        """The session of the process before is closed."""
        if self.session is not None and self.reaches:
            self.session.release()
        self.session = None
