"""Broker plugins and interceptors where Artemis names them: what names one in Python runs, Java classes are refused.

A Java class has a package, so its name has a full stop; an entry point of ours needs none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from pollux.config.extensions import PluginSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pollux.config.model import Configuration
    from pollux.config.report import Report

#: A plugin of Artemis that only writes log lines.
LOGGING_PLUGIN = "org.apache.activemq.artemis.core.server.plugin.impl.LoggingActiveMQServerPlugin"
#: Where interceptors are named, and the method that one has to have.
_INTERCEPTORS = {"remoting_incoming_interceptors": "on_send", "remoting_outgoing_interceptors": "on_deliver"}


def with_plugins(configuration: Configuration, report: Report) -> Configuration:
    """Return the configuration with all plugins that it names, those of px:plugins first."""
    named = {each.name for each in configuration.plugins}
    plugins = [*configuration.plugins]
    for each in _named(configuration, report):
        if each.method and each.name in named:
            # One plugin, at work once, and looked at for each place it is named at.
            plugins = [
                replace(one, method=each.method) if one.name == each.name and not one.method else one for one in plugins
            ]
            continue
        named.add(each.name)
        plugins.append(each)
    return replace(configuration, plugins=tuple(plugins)) if named else configuration


def _named(configuration: Configuration, report: Report) -> Iterator[PluginSettings]:
    for plugin in configuration.broker_plugins:
        if plugin.class_name == LOGGING_PLUGIN:
            report.warning_at(
                plugin.line,
                f"broker-plugin {plugin.class_name!r} has no effect: the log and the audit trail (px:audit) say what"
                " its lines said",
            )
        elif "." in plugin.class_name:
            _refuse(report, plugin.line, f"broker-plugin {plugin.class_name!r}")
        else:
            yield PluginSettings(plugin.class_name, properties=plugin.properties, line=plugin.line)
    for field, method in _INTERCEPTORS.items():
        line = report.line(field)
        for name in getattr(configuration, field):
            if "." in name:
                _refuse(report, line, f"interceptor {name!r}")
            else:
                yield PluginSettings(name, method=method, line=line)


def _refuse(report: Report, line: int, what: str) -> None:
    report.error_at(
        line,
        f"{what} is not supported: Java classes cannot be loaded; name a plugin in Python by its entry point"
        " (docs/plugins.md)",
    )
