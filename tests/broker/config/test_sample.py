"""The shipped broker.xml, and the reference page."""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path

import pytest
from msgspec.structs import replace

from pollux.config import AddressSettingsResolver, Configuration, PermissionsResolver, check, load
from pollux.config.address_settings import AddressFullPolicy
from pollux.config.model import PermissionType
from pollux.config.reference import BEGIN, main, render, updated

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    etc = tmp_path / "etc"
    etc.mkdir()
    with as_file(files("pollux") / "etc" / "broker.xml") as shipped:
        (etc / "broker.xml").write_bytes(shipped.read_bytes())
    return etc / "broker.xml"


def test_the_sample_has_no_problem_at_all(sample: Path) -> None:
    assert check(sample, {}) == []


def test_the_sample_is_what_operators_expect(sample: Path, tmp_path: Path) -> None:
    loaded = load(sample, {})
    assert {(acceptor.port, acceptor.settings.protocols) for acceptor in loaded.acceptors} == {
        (61616, ("AMQP", "STOMP", "MQTT")),
        (5672, ("AMQP",)),
        (61613, ("STOMP",)),
        (1883, ("MQTT",)),
    }
    assert (loaded.management.host, loaded.management.port) == ("127.0.0.1", 8161)
    assert loaded.journal_directory == tmp_path / "data" / "journal"
    assert {address.name for address in loaded.addresses} == {"DLQ", "ExpiryQueue"}
    settings = AddressSettingsResolver(loaded).of("anything")
    assert (settings.dead_letter_address, settings.expiry_address) == ("DLQ", "ExpiryQueue")
    assert settings.address_full_policy is AddressFullPolicy.PAGE
    permissions = PermissionsResolver(loaded, loaded.security_settings).of("anything")
    assert permissions.keys() == {str(permission) for permission in PermissionType}
    assert loaded.unsupported_features() == []


def test_the_sample_has_no_anonymous_user_and_no_password(sample: Path) -> None:
    loaded = load(sample, {})
    assert loaded.security_enabled
    assert loaded.security.anonymous_user is None
    assert "password" not in sample.read_text().replace("no default passwords", "")


def test_the_samples_properties(sample: Path) -> None:
    loaded = load(
        sample,
        {
            "data.dir": "/srv/pollux",
            "PORT": "0",
            "amqp.port": "1",
            "STOMP_PORT": "2",
            "mqtt.port": "3",
            "management.port": "4",
        },
    )
    assert [acceptor.port for acceptor in loaded.acceptors] == [0, 1, 2, 3]
    assert loaded.management.port == 4
    assert loaded.paging_directory == Path("/srv/pollux/paging")


def test_loading_twice_gives_the_same(sample: Path) -> None:
    assert load(sample, {}) == load(sample, {})


def test_a_configuration_can_be_changed_only_by_replacing_it(sample: Path) -> None:
    loaded = load(sample, {})
    with pytest.raises(AttributeError, match="immutable"):
        loaded.name = "other"  # type: ignore[misc]  # that it is refused is what is tested
    assert replace(loaded, name="other").name == "other"
    assert isinstance(loaded, Configuration)
    assert not hasattr(loaded, "__dict__")


def test_the_reference_page_is_current() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert updated(page) == page, "run: python -m pollux.config.reference docs/configuration.md"


def test_the_reference_command(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.read_text(encoding="utf-8").replace(render(), "old"), encoding="utf-8")
    assert main([str(page)]) == 0
    assert page.read_text(encoding="utf-8") == PAGE.read_text(encoding="utf-8")
    assert main([]) == 2
    with pytest.raises(ValueError, match="lacks the line"):
        updated(BEGIN)
