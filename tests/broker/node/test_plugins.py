"""Finding plugins among what is installed: the example's package, and each way in which one is refused."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from pollux.config import loads
from pollux.errors import SendError
from pollux.message import Encoding, Message
from pollux.node import plugins
from pollux.plugins import API_VERSION, Plugin
from pollux.process.judgement import unprovided

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pollux.config.model import Configuration

EXAMPLE = Path(__file__).resolve().parents[3] / "examples/plugin-tenants"
XML = """
<configuration xmlns="urn:activemq" xmlns:px="urn:pollux:1"><core xmlns="urn:activemq:core">
  <security-enabled>false</security-enabled><acceptors><acceptor name="a">tcp://127.0.0.1:1</acceptor></acceptors>
</core><px:plugins>{plugins}</px:plugins></configuration>
"""


def configuration(text: str) -> Configuration:
    return loads(XML.format(plugins=text), {})


def install(directory: Path, name: str, points: dict[str, str]) -> None:
    """Write what an installation of a package leaves."""
    information = directory / f"{name}-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = "".join(f"{point} = {target}\n" for point, target in points.items())
    (information / "entry_points.txt").write_text(f"[pollux.plugins]\n{lines}")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory of installed packages."""
    monkeypatch.syspath_prepend(str(tmp_path))
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        del sys.modules[name]


def example(site: Path) -> None:
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())
    for module in project["tool"]["setuptools"]["py-modules"]:
        (site / f"{module}.py").write_text((EXAMPLE / f"{module}.py").read_text())
    install(site, project["project"]["name"], project["project"]["entry-points"]["pollux.plugins"])


def test_the_example_does_what_its_page_says(site: Path) -> None:
    example(site)
    given = configuration(
        '<px:plugin name="tenants" on-error="refuse"><px:property key="addresses" value="orders."/>'
        '<px:property key="tenants" value="north,south"/></px:plugin>'
    )
    assert not [problem for problem in unprovided(given) if "plugin" in problem.message]
    running = plugins.make_plugins(given)
    with pytest.raises(SendError, match="give it the property 'tenant'"):
        running.sent(Message(Encoding.STOMP, "orders.new", b"\n\nbody"))
    running.sent(Message(Encoding.STOMP, "news", b"\n\nbody"))
    assert running.describe()[0] == {
        **running.describe()[0],
        "name": "tenants",
        "running": True,
        "onError": "refuse",
        "refused": 1,
        "failures": 0,
    }
    wrong = configuration('<px:plugin name="tenants"><px:property key="tenant" value="x"/></px:plugin>')
    assert [problem.message for problem in plugins.problems(wrong)] == [
        "plugin 'tenants': unknown property 'tenant': use addresses or tenants (see docs/plugins.md)"
    ]


class Newer(Plugin):
    api_version = API_VERSION + 1


class Unsure(Plugin):
    @classmethod
    def problems(cls, properties: object) -> list[str]:  # noqa: ARG003
        raise SystemExit


REFUSED = {
    "unknown": ("installed are", "install its package there"),
    "missing": ("it cannot be imported: ModuleNotFoundError",),
    "exits": ("it cannot be imported: SystemExit",),
    "function": ("is no class derived from pollux.plugins.Plugin",),
    "newer": (f"it is written for version {API_VERSION + 1} of the interface, this broker has {API_VERSION}",),
    "unsure": ("it cannot tell whether its properties are right",),
    "twice": ("2 packages have a plugin of that name",),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_plugin_that_cannot_be_used_is_refused_in_words(name: str, site: Path) -> None:
    module = ModuleType("some_plugins")
    vars(module).update(Newer=Newer, Unsure=Unsure, function=len)
    sys.modules["some_plugins"] = module
    (site / "exits.py").write_text("raise SystemExit(1)\n")
    install(
        site,
        "some",
        {
            "missing": "no_such_module:Plugin",
            "exits": "exits:Plugin",
            "function": "some_plugins:function",
            "newer": "some_plugins:Newer",
            "unsure": "some_plugins:Unsure",
            "twice": "some_plugins:Newer",
        },
    )
    install(site, "another", {"twice": "some_plugins:Unsure"})
    (problem,) = plugins.problems(configuration(f'<px:plugin name="{name}"/>'))
    assert all(text in problem.message for text in REFUSED[name]), problem.message
    assert problem.line


def test_without_any_the_remedy_is_to_install_one() -> None:
    (problem,) = plugins.problems(configuration('<px:plugin name="x"/>'))
    assert "no plugin is installed" in problem.message


def test_interceptors_are_plugins_that_have_the_method(site: Path) -> None:
    """Named where Artemis names its classes; one that is named twice is at work once."""
    example(site)
    named = """<broker-plugins><broker-plugin class-name="tenants"><property key="tenants" value="north"/>
    </broker-plugin></broker-plugins><remoting-incoming-interceptors><class-name>tenants</class-name></remoting-incoming-interceptors>"""
    text = XML.format(plugins="").replace("<acceptors>", f"{named}<acceptors>")
    given = loads(text, {})
    assert list(plugins.problems(given)) == []
    (running,) = plugins.make_plugins(given).running
    assert (running.name, running.wants_messages, running.wants_deliveries) == ("tenants", True, False)
    outgoing = text.replace("incoming", "outgoing")
    assert [problem.message for problem in plugins.problems(loads(outgoing, {}))] == [
        "plugin 'tenants': it has no method on_deliver, which an interceptor at that place needs (see docs/plugins.md)"
    ]
