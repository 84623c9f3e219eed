"""Configuration: broker.xml to frozen records. What others use is here and in ``config.model``."""

from pollux.config.loader import check, examine, load, loads
from pollux.config.model import Configuration
from pollux.config.problems import ConfigError, Problem, Severity
from pollux.config.resolve import AddressSettingsResolver, PermissionsResolver, audited

__all__ = [
    "AddressSettingsResolver",
    "ConfigError",
    "Configuration",
    "PermissionsResolver",
    "Problem",
    "Severity",
    "audited",
    "check",
    "examine",
    "load",
    "loads",
]
