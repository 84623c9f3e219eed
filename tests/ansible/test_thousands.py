"""1,000 addresses and 1,000 users are one file each: right in every line, and no task more than for one of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest
import stomp
import yaml

from harness.bundle import MEMBERS

if TYPE_CHECKING:
    from harness.deployment import Deployment

pytestmark = [pytest.mark.timeout(1200), pytest.mark.processes]
COUNT = 1000


def objects(pair: Deployment, count: int) -> dict[str, Any]:
    """Variables with that many addresses and users, beside the users there are."""
    users = [{"name": f"user-{number:04}", "roles": ["amq"]} for number in range(count)]
    addresses = [{"name": f"orders.{number:04}", "anycast": [f"orders.{number:04}"]} for number in range(count)]
    return {"broker_addresses": addresses, "broker_users": [*pair.variables["broker_users"], *users]}


def test_thousands_cost_no_task_more_and_are_all_there(pair: Deployment) -> None:
    one = pair.reconfigure(objects(pair, 1))
    many = pair.reconfigure(objects(pair, COUNT))
    print(f"1 address and 1 user: {one.seconds:.0f} s; {COUNT} of each: {many.seconds:.0f} s")
    assert many.done == one.done
    assert sum(result.items for result in many.results) == sum(result.items for result in one.results)

    for member in MEMBERS:
        etc = pair.site.local / member / "etc"
        root = ET.parse(etc / "broker.xml").getroot()  # noqa: S314  (our own file)
        names = [element.get("name", "") for element in root.iter("{urn:activemq:core}address")]
        assert [name for name in names if name.startswith("orders.")] == [f"orders.{n:04}" for n in range(COUNT)]
        lines = (etc / "artemis-users.properties").read_text().splitlines()
        users = [line.partition(" = ")[0] for line in lines if not line.startswith("#") and line]
        assert users == [user["name"] for user in objects(pair, COUNT)["broker_users"]]
        roles = (etc / "artemis-roles.properties").read_text()
        assert roles.partition("amq = ")[2].splitlines()[0].split(",")[-COUNT:] == users[-COUNT:]
    first, second = ((pair.site.local / member / "etc" / "artemis-users.properties").read_text() for member in MEMBERS)
    assert first == second, "whoever is live, the same users log in"

    live = pair.site.live()
    assert pair.site.pollux(live, "status")["addresses"] >= COUNT, "the live took them without a restart"
    log_in(pair, live, f"user-{COUNT - 1:04}")

    again = pair.reconfigure(objects(pair, COUNT))
    print(f"a second run with {COUNT} of each: {again.seconds:.0f} s")
    assert again.changed == []
    assert set(again.done) <= set(many.done)


def log_in(pair: Deployment, member: str, user: str) -> None:
    """Log in with the password that was generated; fails when the broker refuses."""
    password = yaml.safe_load((pair.site.local / "secrets.yml").read_text())["users"][user]
    port = pair.site.pollux(member, "status")["ports"]["all"]
    connection = stomp.Connection12([("127.0.0.1", port)])
    connection.connect(user, password, wait=True)
    connection.disconnect()
