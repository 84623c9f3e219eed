"""A life's part in colocation: it tells its supervisor how it is, and other hosts of this one; it gets its backup.

The words between hosts go by the connections of the cluster, as channels of a purpose of their own: each a question,
whose answer is in the ACCEPT (docs/core-protocol.md). Any life that serves on a host answers for the host.
"""

from __future__ import annotations

import asyncio
import logging
import re
from typing import TYPE_CHECKING, Any

from pollux.cluster.link import Idle
from pollux.config.colocated_ports import colocated_of, group_of
from pollux.errors import InvalidRequestError
from pollux.ha.colocated.life import DIRECTORIES, directories_of
from pollux.ha.colocated.placement import BackupRequest, Host, Next, decide, unfit
from pollux.logs import event
from pollux.supervisor.line import Line, LineError
from pollux.supervisor.questions import PURPOSE, Questions, ask
from pollux.supervisor.views import host_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pollux.cluster.link import Conversation, Handler
    from pollux.ha.colocated.life import Life
    from pollux.process.broker import Broker

logger = logging.getLogger("pollux.supervisor")

#: Seconds between two looks.
PERIOD = 1.0
_NODE = re.compile(r"[0-9a-f]{32}", re.ASCII)


class Agent:
    """A component of a life's process (:class:`pollux.process.broker.Component`). All is in the loop's thread."""

    def __init__(self, broker: Broker, life: Life) -> None:
        self._broker = broker
        self.life = life
        self._line = Line()
        self._task: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._questions = Questions()
        #: What the supervisor told last.
        self._told: dict[str, Any] = {}
        self._offered: object = None
        # -- this life's backup
        self._at = b""
        self._moving = b""
        self._asked, self._last = 0, 0.0
        #: Since when its backup's host is not reached.
        self._lost: float | None = None
        self._alone = False
        self._next = Next("", "")

    # -- the component

    async def start(self) -> None:
        """Talk with the supervisor from now on."""
        await self._line.open()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def reload(self) -> None:
        """Do nothing: the policy is read when a life starts."""

    async def stop(self) -> None:
        """Say nothing more."""
        for task in (self._task, *self._tasks):
            if task is not None:
                task.cancel()
        self._questions.stop()
        self._line.close()

    def ports(self) -> dict[str, int]:
        """Return nothing: it listens nowhere."""
        return {}

    @property
    def lives(self) -> list[dict[str, Any]]:
        """Return every life of this host, as the supervisor told."""
        found: list[dict[str, Any]] = self._told.get("lives", [])
        return found

    # -- the work

    async def _run(self) -> None:
        while True:
            try:
                await self._look()
            except LineError as error:
                event(logger, logging.WARNING, "the supervisor is not reached", reason=error)
            except Exception:
                logger.exception("a look at the other hosts failed")
            await asyncio.sleep(PERIOD)

    async def _look(self) -> None:
        node = self._broker.node
        serves = node.state == "live" and node.links.cluster is not None
        said, heard = await self._questions.answers(self._reached() if serves else (), what="tell")
        hosts = _hosts(one for _, one in said)
        ready = {(host["node"], each) for _, one in said if (host := one.get("host")) for each in one.get("ready", ())}
        told = await self._line.ask(
            "tell",
            name=node.configuration.name,
            state=node.state,
            node=node.node_id.hex(),
            ports=self._broker.ports(),
            alone=self._alone,
            elsewhere=_elsewhere(said),
            heard=heard,
            backup=self._shown(hosts, ready) if serves else None,
        )
        if "error" in told:
            raise LineError(told["error"])
        self._told = told
        if serves:
            self._offer()
            own = host_of(self._told["host"])
            if own is not None:
                hosts[own.node] = own
            await self._seek(list(hosts.values()), ready, said)

    def _shown(self, hosts: dict[bytes, Host], ready: set[tuple[str, str]]) -> dict[str, Any]:
        at = hosts.get(self._at)
        return {
            "at": at.machine if at is not None else None,
            "node": self._at.hex(),
            "ready": (self._at.hex(), self._broker.node.node_id.hex()) in ready,
            "what": self._next.what,
            "reason": self._next.reason,
        }

    def _offer(self) -> None:
        cluster = self._broker.node.links.cluster
        if cluster is not None and self._offered is not cluster:
            self._offered = cluster
            cluster.hub.purposes[PURPOSE] = self._opened

    def _reached(self) -> list[Conversation]:
        """Return the connections to all nodes that are reached."""
        cluster = self._broker.node.links.cluster
        links = cluster.all[0].peers.links if cluster is not None else []
        return [link.conversation for link in links if link.conversation is not None]

    async def _seek(
        self,
        hosts: list[Host],
        ready: set[tuple[str, str]],
        said: list[tuple[Conversation, dict[str, Any]]],
    ) -> None:
        """Get a backup, or keep it."""
        node = self._broker.node.node_id
        given = colocated_of(self._broker.node.configuration)
        if given is None or not given.request_backup:
            return
        now = asyncio.get_running_loop().time()
        interval = given.backup_request_retry_interval / 1000
        machine = self._told["machine"]
        having = [host for host in hosts if node in host.backups and host.machine != machine]
        at = {host.node for host in having}
        if self._moving and (self._moving not in at or (self._moving.hex(), node.hex()) in ready):
            self._at, self._moving = (self._moving if self._moving in at else self._at), b""
        if self._at not in at and having:
            # It is known again, of a life before this one.
            self._at = min(having, key=lambda host: ((host.node.hex(), node.hex()) not in ready, host.node)).node
        if self._at in at:
            self._lost, self._asked = None, 0
        elif await self._somebody_waits():
            # Its host is not reached, as nobody serves there now; or the preferred live is there again.
            self._lost, self._alone = None, False
            return
        elif self._at or self.life.slot:
            self._lost = self._lost or now
            if now - self._lost < interval:
                return  # who is gone may be back at once
        request = BackupRequest(
            node,
            machine,
            self._told["domain"],
            group_of(given.primary),
            self._at,
            self._asked,
            given.backup_request_retries,
            self._last,
            interval,
        )
        found = decide(request, hosts, now)
        others = [host for host in hosts if host.machine != machine]
        self._alone = not self.life.slot and bool(others) and all(unfit(request, host) for host in others)
        if found[:2] != self._next[:2] and found.what != "keep" and "just now" not in found.reason:
            level = logging.WARNING if found.what in ("give up", "wait") else logging.INFO
            event(logger, level, f"backup: {found.what}", reason=found.reason)
        self._next = found
        if found.what in ("ask", "move") and not self._moving:
            await self._ask(request, found, hosts, said)

    async def _somebody_waits(self) -> bool:
        """Whether somebody could take this life's node over, wherever it is."""
        activation = self._broker.node.activation
        return activation is not None and any(one.alive for one in await activation.others())

    async def _ask(
        self, request: BackupRequest, found: Next, hosts: list[Host], said: list[tuple[Conversation, dict[str, Any]]]
    ) -> None:
        host = next(one for one in hosts if one.node == found.host)
        way = next((one for one, answer in said if (answer.get("host") or {}).get("node") == host.node.hex()), None)
        self._asked += 1
        self._last = asyncio.get_running_loop().time()
        if way is None:
            return
        node = self._broker.node
        answer = await ask(
            way,
            what="host",
            node=node.node_id.hex(),
            name=node.configuration.name.partition("@")[0],
            machine=self._told["machine"],
            domain=self._told["domain"],
            group=request.group,
            home=not self.life.slot,
            directories=directories_of(node.configuration),
        )
        if not answer.get("slot"):
            reason = answer.get("error") or answer.get("reason")
            event(logger, logging.WARNING, "backup refused", host=host.machine, reason=reason)
            return
        event(logger, logging.INFO, "backup is hosted", host=host.machine, slot=answer["slot"])
        if found.what == "move":
            self._moving = host.node
        else:
            self._at = host.node

    async def remove(self, node: str) -> dict[str, Any]:
        """Have the supervisor give up the backup of a node that is removed. Raises InvalidRequestError."""
        try:
            answer = await self._line.ask("remove", node=node)
        except LineError as error:
            raise InvalidRequestError(str(error)) from error
        if "node" not in answer:
            raise InvalidRequestError(answer.get("refused") or answer["error"])
        return answer

    # -- what others ask

    def _opened(self, conversation: Conversation, channel: int, content: dict[str, Any]) -> Handler | None:
        what = content.get("what")
        if what == "tell":
            conversation.accept(
                channel,
                host=self._told.get("host"),
                ready=self._told.get("ready", []),
                at=self._at.hex(),
            )
            return Idle()
        if what == "host":
            task = asyncio.get_running_loop().create_task(self._host(conversation, channel, content))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return Idle()
        conversation.refuse(channel, f"{str(what)[:50]!r} is not asked for here")
        return None

    async def _host(self, conversation: Conversation, channel: int, content: dict[str, Any]) -> None:
        """Ask the supervisor for another host's live."""
        try:
            directories = {
                name: str(content["directories"][name]) for name in DIRECTORIES if name in content["directories"]
            }
            node, name = _itself(conversation, content["node"]), str(content["name"])[:255]
            machine, domain = str(content["machine"])[:255], str(content["domain"])[:255]
            group = str(content.get("group", ""))[:255]
            answer = await self._line.ask(
                "host",
                node=node,
                name=name,
                machine=machine,
                domain=domain,
                group=group,
                home=content.get("home") is True,
                directories=directories,
            )
        except (LookupError, AttributeError, TypeError, ValueError, LineError) as error:
            answer = {"slot": 0, "reason": str(error) or repr(error)}
        if not conversation.ended:
            conversation.accept(channel, slot=answer.get("slot", 0), reason=answer.get("reason", ""))
            conversation.flush()


def _itself(conversation: Conversation, node: str) -> str:
    """Return the node id that asks. Raises ValueError when it asks for another one."""
    if conversation.peer is None or conversation.peer.node_id.hex() != node:
        raise ValueError("a live asks for itself alone")
    return node


def _elsewhere(said: Iterable[tuple[Conversation, dict[str, Any]]]) -> dict[str, str]:
    """Return where lives have their backups: nodes by node, as each says of itself."""
    found = {}
    for conversation, one in said:
        at = str(one.get("at") or "")
        if conversation.peer is not None and _NODE.fullmatch(at):
            found[conversation.peer.node_id.hex()] = at
    return found


def _hosts(said: Iterable[dict[str, Any]]) -> dict[bytes, Host]:
    """Return the hosts that are told of, each once."""
    found = [host_of(one.get("host")) for one in said]
    return {host.node: host for host in found if host is not None}
