"""Users and roles files: what is read, what is refused with its place, and that writing keeps the rest."""

from __future__ import annotations

import base64
import os
import stat
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollux.config.properties import escape_key, escape_value, parse_properties
from pollux.config.users import UsersError, load_users, normalise_dn
from pollux.config.users_editor import UsersEditor, check_user_name
from pollux.config.verifiers import DEFAULT_ITERATIONS, MINIMUM_ITERATIONS, Verifier

if TYPE_CHECKING:
    from pathlib import Path


def verifier(password: str | None = None) -> Verifier:
    return Verifier.create(password or "castor", iterations=MINIMUM_ITERATIONS)


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_verifier_of_rfc_7677() -> None:
    # RFC 7677 section 3: user "user", password "pencil", salt and iterations as given there.
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    made = Verifier.create("pencil", iterations=4096, salt=salt)
    assert base64.b64encode(made.server_key) == b"wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
    assert base64.b64encode(made.stored_key) == b"WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY="


def test_verifier_survives_writing_and_reading() -> None:
    made = verifier("tëst pass")
    assert Verifier.parse(str(made)) == made
    assert made.verify("tëst pass")
    assert not made.verify("test pass")


def test_repr_shows_no_key() -> None:
    made = verifier()
    assert base64.b64encode(made.stored_key).decode() not in repr(made)
    assert repr(made.stored_key) not in repr(made)


@pytest.mark.parametrize(
    "text",
    [
        "admin",
        "ENC(-1234abcd)",
        "SCRAM-SHA-256$4096:c2FsdA==$AAAA:AAAA",
        f"SCRAM-SHA-256$1:{'A' * 24}${'A' * 43}=:{'A' * 43}=",
        f"SCRAM-SHA-256$999999999:{'A' * 24}${'A' * 43}=:{'A' * 43}=",
        "SCRAM-SHA-256$4096:@@@$x:y",
    ],
)
def test_what_is_no_verifier(text: str) -> None:
    with pytest.raises(ValueError, match=r"verifier|iterations"):
        Verifier.parse(text)


@pytest.mark.parametrize("password", ["admin", "ENC(abc)", "guest", ""])
def test_clear_text_is_refused_with_place_and_remedy(tmp_path: Path, password: str) -> None:
    users = write(tmp_path / "users", f"# who\nada = {verifier()}\n\ncastor = {password}\n")
    with pytest.raises(UsersError) as caught:
        load_users(users, tmp_path / "roles")
    text = str(caught.value)
    assert text.startswith(f"{users}:4: user 'castor'")
    assert "pollux user add castor" in text
    if password:
        assert password not in text.replace("pollux user add castor", "").replace(str(users), "")


def test_a_file_others_can_read_is_refused(tmp_path: Path) -> None:
    users = write(tmp_path / "users", f"ada = {verifier()}\n", 0o640)
    with pytest.raises(UsersError, match=r"mode 640 .*chmod 600"):
        load_users(users, tmp_path / "roles")


def test_a_roles_file_others_can_write_is_refused(tmp_path: Path) -> None:
    users = write(tmp_path / "users", f"ada = {verifier()}\n")
    roles = write(tmp_path / "roles", "amq = ada\n", 0o666)
    with pytest.raises(UsersError, match="writable by others"):
        load_users(users, roles)


def test_missing_files_mean_nobody(tmp_path: Path) -> None:
    users = load_users(tmp_path / "users", tmp_path / "roles", tmp_path / "certs")
    assert users.verifiers == {}
    assert users.roles_of("admin") == frozenset()
    assert users.certificate_user("CN=x") is None


def test_a_user_listed_twice_is_refused(tmp_path: Path) -> None:
    users = write(tmp_path / "users", f"ada = {verifier()}\nada = {verifier()}\n")
    with pytest.raises(UsersError, match=":2: user 'ada' is listed twice"):
        load_users(users, tmp_path / "roles")


def test_roles_are_members(tmp_path: Path) -> None:
    users = write(tmp_path / "users", f"ada = {verifier()}\nbob = {verifier()}\n")
    roles = write(tmp_path / "roles", "amq = ada, bob\nreaders=\\\n  bob\n")
    loaded = load_users(users, roles)
    assert loaded.roles_of("ada") == {"amq"}
    assert loaded.roles_of("bob") == {"amq", "readers"}


def test_adding_keeps_comments_order_and_other_users(tmp_path: Path) -> None:
    ada, bob = verifier("a"), verifier("b")
    users = write(tmp_path / "users", f"# the twins\nada = {ada}\n\n! old style comment\nbob={bob}")
    write(tmp_path / "roles", "# roles\namq = ada\n", 0o640)
    editor = UsersEditor(users, tmp_path / "roles")
    fresh = verifier("c")
    assert editor.add("ada", fresh, frozenset({"ops"})) is False
    lines = users.read_text().splitlines()
    assert "# the twins" in lines
    assert "! old style comment" in lines
    assert f"bob={bob}" in lines
    assert [line for line in lines if line.startswith("ada")] == [f"ada = {fresh}"]
    assert (tmp_path / "roles").read_text() == "# roles\nops = ada\n"
    assert editor.add("zoe", verifier("z")) is True
    assert set(editor.everyone()) == {"ada", "bob", "zoe"}


def test_a_new_file_is_private_and_complete(tmp_path: Path) -> None:
    editor = UsersEditor(tmp_path / "etc" / "users", tmp_path / "etc" / "roles")
    previous = os.umask(0)
    try:
        editor.add("ada", verifier(), frozenset({"amq", "ops"}))
    finally:
        os.umask(previous)
    assert stat.S_IMODE((tmp_path / "etc" / "users").stat().st_mode) == 0o600
    assert editor.everyone() == {"ada": frozenset({"amq", "ops"})}
    assert [path.name for path in sorted((tmp_path / "etc").iterdir())] == ["roles", "users"]


def test_removing(tmp_path: Path) -> None:
    editor = UsersEditor(tmp_path / "users", tmp_path / "roles")
    editor.add("ada", verifier(), frozenset({"amq"}))
    editor.add("bob", verifier(), frozenset({"amq"}))
    editor.remove("ada")
    assert editor.everyone() == {"bob": frozenset({"amq"})}
    with pytest.raises(UsersError, match="no user 'ada'"):
        editor.remove("ada")


def test_the_decoy_key_survives_a_restart(tmp_path: Path) -> None:
    UsersEditor(tmp_path / "users", tmp_path / "roles").add("ada", verifier())
    first = load_users(tmp_path / "users", tmp_path / "roles")
    again = load_users(tmp_path / "users", tmp_path / "roles")
    assert first.decoy_key == again.decoy_key
    assert len(first.decoy_key) == 32


@pytest.mark.parametrize("name", ["", " ada", "a,b", "a\nb", "ada "])
def test_bad_user_names(name: str) -> None:
    with pytest.raises(UsersError, match="user name"):
        check_user_name(name)


def test_names_are_saslprepped() -> None:
    assert check_user_name("I\u00adX") == "IX"  # RFC 4013 section 3, example 1
    assert check_user_name("\u2168") == "IX"  # example 5


_KEYS = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1).filter(lambda key: key.strip() == key)


@given(st.dictionaries(_KEYS, st.text(st.characters(exclude_categories=("Cs", "Cc"))).map(str.strip), max_size=8))
def test_properties_survive_writing_and_reading(entries: dict[str, str]) -> None:
    text = "".join(f"{escape_key(key)} = {escape_value(value)}\n" for key, value in entries.items())
    expected = {key: value.rstrip() for key, value in entries.items()}
    assert {entry.key: entry.value for entry in parse_properties(text)} == expected


@given(st.text(max_size=300))
def test_reading_properties_never_fails(text: str) -> None:
    for entry in parse_properties(text):
        assert 0 <= entry.start < entry.end


def test_certificate_mapping(tmp_path: Path) -> None:
    certificates = write(
        tmp_path / "certs", "ada = CN=Ada, OU=Ops, O=Twins\nsensor = /CN=sensor-\\\\d+,O=Twins/\n", 0o640
    )
    users = load_users(tmp_path / "users", tmp_path / "roles", certificates)
    assert users.certificate_user("cn=Ada,OU=Ops,O=Twins") == "ada"
    assert users.certificate_user("CN=sensor-12,O=Twins") == "sensor"
    assert users.certificate_user("CN=sensor-12,O=Twins,CN=evil") is None
    assert users.certificate_user("CN=ada,OU=Ops,O=Twins") is None


def test_a_bad_certificate_pattern_is_refused(tmp_path: Path) -> None:
    certificates = write(tmp_path / "certs", "ada = /CN=(/\n", 0o640)
    with pytest.raises(UsersError, match=":1: the regular expression"):
        load_users(tmp_path / "users", tmp_path / "roles", certificates)


def test_distinguished_names() -> None:
    assert normalise_dn("cn=A\\, B , o = X") == "CN=A\\, B,O=X"
    assert normalise_dn("CN=b+OU=a") == normalise_dn("OU=a+CN=b")


def test_default_iterations_are_strong_enough() -> None:
    assert DEFAULT_ITERATIONS >= 4 * MINIMUM_ITERATIONS
