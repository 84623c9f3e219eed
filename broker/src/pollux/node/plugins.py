"""The plugins that broker.xml names, found among what is installed beside the broker."""

from __future__ import annotations

from functools import partial
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from pollux.config.problems import Problem, Severity
from pollux.engine.plugins import Plugins, Running
from pollux.plugins import API_VERSION, GROUP, Plugin

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pollux.config.extensions import PluginSettings
    from pollux.config.model import Configuration

#: The versions of the interface that this broker speaks.
_VERSIONS = range(1, API_VERSION + 1)


class PluginError(Exception):
    """A plugin cannot be used; the text says why, and what to do."""


def _find(given: PluginSettings) -> type[Plugin]:
    """Return the class of a plugin. Raises PluginError. Its code is imported, but nothing of it is run."""
    found = entry_points(group=GROUP, name=given.name)
    if not found:
        known = sorted({each.name for each in entry_points(group=GROUP)})
        installed = f"installed are {', '.join(known)}" if known else "no plugin is installed"
        raise PluginError(f"no plugin of that name is installed beside Pollux ({installed}): install its package there")
    if len({each.value for each in found}) > 1:
        raise PluginError(f"{len(found)} packages have a plugin of that name: uninstall all but one")
    try:
        kind = next(iter(found)).load()
    except BaseException as error:
        raise PluginError(f"it cannot be imported: {error!r}"[:500]) from error
    if not isinstance(kind, type) or not issubclass(kind, Plugin):
        raise PluginError("its entry point is no class derived from pollux.plugins.Plugin")
    if kind.api_version not in _VERSIONS:
        raise PluginError(
            f"it is written for version {kind.api_version!r} of the interface, this broker has {API_VERSION}: install"
            " the version of the plugin that fits"
        )
    return kind


def problems(configuration: Configuration) -> Iterator[Problem]:
    """Name each plugin that cannot be used as broker.xml wants it."""
    file = str(configuration.path or "broker.xml")
    for given in configuration.plugins:
        try:
            kind = _find(given)
            properties = {each.key: each.value for each in given.properties}
            try:
                wrong = [str(each) for each in kind.problems(properties)]
                if given.method and getattr(kind, given.method) is getattr(Plugin, given.method):
                    wrong.append(f"it has no method {given.method}, which an interceptor at that place needs")
            except BaseException as error:
                raise PluginError(f"it cannot tell whether its properties are right: {error!r}"[:500]) from error
        except PluginError as error:
            wrong = [str(error)]
        for text in wrong:
            yield Problem(file, given.line, Severity.ERROR, f"plugin {given.name!r}: {text} (see docs/plugins.md)")


def make_plugins(configuration: Configuration) -> Plugins:
    """Return the plugins of a configuration that :func:`problems` found nothing wrong with. Never raises."""
    running = []
    for given in configuration.plugins:
        properties = {each.key: each.value for each in given.properties}
        refuses = given.on_error.value == "refuse"
        running.append(Running(given.name, partial(_make, given, properties), refuses=refuses, kind=_kind(given)))
    return Plugins(running)


def _kind(given: PluginSettings) -> type[Plugin] | None:
    try:
        return _find(given)
    except PluginError:
        return None


def _make(given: PluginSettings, properties: dict[str, str]) -> Plugin:
    return _find(given)(properties)
