"""A system call fails while a broker starts, takes over, serves or stops, any one, once or for a while: it serves.

Or its process is gone, and the next one serves: that is what a service manager begins. What must not be is a broker
that neither serves nor ends. The calls are those on its own files, from the first look at the store to the last.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import shutil
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from harness import system_calls
from harness.ports import free_port
from harness.system_calls import Faults
from pollux.config import loads
from pollux.config.users import load_users
from pollux.errors import PolluxError
from pollux.ha.active_passive.managed import Managed
from pollux.ha.machine import STANDBY, Phase
from pollux.process import broker as broker_module
from pollux.process.broker import Broker
from pollux.process.resources import SWITCH

if TYPE_CHECKING:
    from pathlib import Path

XML = """
<configuration xmlns="urn:activemq" xmlns:px="urn:pollux:1">
  <core xmlns="urn:activemq:core">
    <name>castor</name>
    <journal-directory>data/journal</journal-directory>
    <bindings-directory>data/bindings</bindings-directory>
    <large-messages-directory>data/large</large-messages-directory>
    <paging-directory>data/paging</paging-directory>
    <journal-file-size>100K</journal-file-size>
    <journal-min-files>2</journal-min-files>
    <acceptors><acceptor name="all">tcp://127.0.0.1:{port}</acceptor></acceptors>
    <security-enabled>false</security-enabled>
    <addresses><address name="orders"><anycast><queue name="orders"/></anycast></address></addresses>
    {policy}
  </core>
  <px:management><px:enabled>false</px:enabled></px:management>
  {passive}
</configuration>
"""
#: Nobody listens on either port: it has no backup.
REPLICATED = """
    <connectors><connector name="own">tcp://127.0.0.1:1</connector><connector name="o">tcp://127.0.0.1:2</connector></connectors>
    <cluster-user>twins</cluster-user>
    <cluster-password>the password of the cluster</cluster-password>
    <cluster-connections>
      <cluster-connection name="c">
        <connector-ref>own</connector-ref>
        <static-connectors><connector-ref>o</connector-ref></static-connectors>
      </cluster-connection>
    </cluster-connections>
    <ha-policy><replication><primary><manager>
      <class-name>file</class-name>
      <properties><property key="locks-folder" value="{locks}"/></properties>
    </manager></primary></replication></ha-policy>
"""
#: A cluster of one: whoever promotes it is here, too.
PASSIVE = """
  <px:high-availability><px:active-passive>
    <px:ha-brokers-url>127.0.0.1:{port}</px:ha-brokers-url>
    <px:ha-replicate>all</px:ha-replicate>
    <px:link-heartbeat-interval>5</px:link-heartbeat-interval>
  </px:active-passive></px:high-availability>
"""
OF_A_CLUSTER = "<cluster-user>twins</cluster-user><cluster-password>the password of the cluster</cluster-password>"
POLICIES = {
    "active-passive": OF_A_CLUSTER,
    "replicated": REPLICATED,
    "single": "",
    "primary": "<ha-policy><shared-store><primary/></shared-store></ha-policy>",
    "backup": "<ha-policy><shared-store><backup/></shared-store></ha-policy>",
}
A_WHILE = 2.0
#: Nothing takes this long on a busy machine, seconds.
BOUND = 30.0
#: A service manager waits before it starts a process again, seconds.
AGAIN = 0.1
AT_A_TIME = 12
#: So many calls of each scene fail once, and for a while, each in a play of its own; which ones is up to the seed. All
#: of them (150 of a scene) were played when this was written, and take minutes.
ONCE, FOR_A_WHILE = 20, 10
SEED = int(os.environ.get("POLLUX_CALL_SEED", "18"))
_RANDOM = re.compile(r"[0-9a-f]{6,}|[0-9]+")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    system_calls.install(monkeypatch)
    # Whoever is fenced ends its process soon, whatever hangs; here that would be the tests'.
    ended = SimpleNamespace(start=lambda: None, daemon=True)
    monkeypatch.setattr(broker_module, "tune_garbage_collector", lambda: None)
    monkeypatch.setattr(broker_module, "threading", SimpleNamespace(Timer=lambda *_: ended))


class Service:
    """A broker's lives, one after the other. ``directory`` holds its store."""

    def __init__(self, directory: Path, policy: str) -> None:
        self.directory = directory
        self.policy = policy
        self.broker: Broker
        self.ends: list[str] = []
        self.passive = policy == "active-passive"
        self.port = free_port() if self.passive else 0

    async def live(self) -> None:
        """Begin a life; again for as long as it ends before it serves, and is proven to."""
        while True:
            policy = POLICIES[self.policy].format(locks=self.directory / "data" / "locks")
            passive = PASSIVE.format(port=self.port) if self.passive else ""
            text = XML.format(policy=policy, port=self.port, passive=passive)
            configuration = loads(text, file=str(self.directory / "broker.xml"))
            self.broker = broker = Broker(configuration, load_users(self.directory / "users", self.directory / "roles"))
            promoting = asyncio.ensure_future(self._promote(broker))
            try:
                await broker.start()
            except (PolluxError, OSError) as error:  # as the process does: its exit code, and its end
                self.ends.append(repr(error))
                await asyncio.sleep(AGAIN)
                continue
            finally:
                promoting.cancel()
            if await self._serves():
                return
            await broker.run()
            self.ends.append(f"exit {broker.exit_code}")
            await asyncio.sleep(AGAIN)

    async def _serves(self) -> bool:
        """Whether it confirms; else it is about to end."""
        broker = self.broker
        stopped = asyncio.ensure_future(broker.stop_wanted())
        confirmed = asyncio.ensure_future(self._confirmed())
        await asyncio.wait((stopped, confirmed), return_when=asyncio.FIRST_COMPLETED)
        for task in (stopped, confirmed):
            task.cancel()
        await asyncio.gather(stopped, confirmed, return_exceptions=True)
        return not broker._stop_wanted.is_set()

    async def _promote(self, broker: Broker) -> None:
        """Do as a resource manager does: promote it, as often as it takes."""
        while self.passive:
            await asyncio.sleep(AGAIN)
            activation = broker.node.activation
            if isinstance(activation, Managed) and activation.machine.phase in (*STANDBY, Phase.LIVE):
                with suppress(PolluxError):
                    await activation.promote((), ())

    async def _confirmed(self) -> None:
        node = self.broker.node
        assert node.engine is not None
        for number in range(3):
            node.engine.storage.put("test", f"{number}", b"x")
            with suppress(PolluxError):
                await node.engine.stable()
        if node.activation is not None:
            lease = node.activation.lease
            before = lease.left()
            while lease.left() <= before or not lease.held():
                await asyncio.sleep(0.02)
                before = min(before, lease.left())

    async def stop(self) -> None:
        """In order. Nothing is said of how well that went, but that it is over."""
        self.broker.request_stop("the test says so")
        await self.broker.run()


async def starts(service: Service, faults: Faults) -> None:
    """On an empty store."""
    faults.arm()
    await service.live()


async def takes_over(service: Service, faults: Faults) -> None:
    """Take over what a killed one has left."""
    taking, service.policy = service.policy, "primary" if service.policy == "backup" else service.policy
    await service.live()
    left = service.directory.with_name("left")
    shutil.copytree(service.directory / "data", left)
    await service.stop()
    shutil.rmtree(service.directory / "data")
    left.rename(service.directory / "data")
    service.policy = taking
    faults.arm()
    await service.live()


async def stops(service: Service, faults: Faults) -> None:
    """And the next one starts."""
    await service.live()
    faults.arm()
    await service.stop()
    await service.live()


Scene = Callable[[Service, Faults], Awaitable[None]]
SCENES: list[tuple[str, Scene]] = [
    ("single", starts),
    ("single", stops),
    ("primary", starts),
    ("primary", stops),
    ("backup", takes_over),
    ("replicated", starts),
    ("replicated", stops),
    ("active-passive", starts),
    ("active-passive", stops),
]


async def play(path: Path, policy: str, scene: Scene, first: int | None, seconds: float) -> list[str]:
    """The calls that were made. Raises AssertionError when nobody serves, or does not end."""
    (path / "home").mkdir(parents=True)
    service = Service(path / "home", policy)
    with Faults(path / "home" / "data", first, seconds) as faults:
        try:
            async with asyncio.timeout(BOUND):
                await scene(service, faults)
                await service.stop()
        except TimeoutError:
            raise AssertionError(
                f"{service.broker.node.state} after the failure of {faults.failed[:3]}: {service.ends[:3]}"
            ) from None
        except Exception as error:
            raise AssertionError(f"the process breaks after the failure of {faults.failed[:3]}: {error!r}") from error
    shutil.rmtree(path)
    return faults.calls


async def all_of(path: Path, policy: str, scene: Scene, numbers: list[int], seconds: float) -> None:
    room = asyncio.Semaphore(AT_A_TIME)

    async def one(number: int) -> None:
        async with room:
            await play(path / str(number), policy, scene, number, seconds)

    played = await asyncio.gather(*(one(number) for number in numbers), return_exceptions=True)
    problems = [error for error in played if error is not None]
    assert not problems, f"{len(problems)} of {len(numbers)}: {problems[:5]}"


def different(calls: list[str]) -> list[int]:
    """The numbers of calls that are not those before them again; names that are random count as one."""
    seen: set[str] = set()
    found = []
    for number, call in enumerate(calls):
        name = _RANDOM.sub("*", call)
        if name not in seen:
            seen.add(name)
            found.append(number)
    return found


@pytest.mark.parametrize(("policy", "scene"), SCENES, ids=[f"{policy} {scene.__name__}" for policy, scene in SCENES])
@pytest.mark.parametrize(("seconds", "most"), [(0.0, ONCE), (A_WHILE, FOR_A_WHILE)], ids=["once", "for a while"])
async def test_a_call_that_fails_leaves_a_broker_that_serves_or_ends(
    policy: str, scene: Scene, seconds: float, most: int, tmp_path: Path
) -> None:
    numbers = different(await play(tmp_path / "none", policy, scene, None, 0.0))
    chosen = random.Random(SEED).sample(numbers, min(most, len(numbers)))  # noqa: S311
    await all_of(tmp_path / "some", policy, scene, chosen, seconds)


@pytest.mark.parametrize("policy", ["single", "primary"])
async def test_threads_that_come_back_from_the_disk_go_on_soon(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks when, with or without a policy, the loop's thread goes on for as long as Python lets it: confirms wait."""
    said: list[float] = []
    monkeypatch.setattr(sys, "setswitchinterval", said.append)
    await play(tmp_path, policy, starts, None, 0.0)
    assert said == [SWITCH]
