"""The command line: against a real broker, and what it refuses."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from pollux.cli.app import app
from pollux.cli.output import size
from pollux.config.users import load_users
from pollux.process import exits
from pollux.version import VERSION

if TYPE_CHECKING:
    from broker.conftest import Instance

DOCS = Path(__file__).parents[3] / "docs"


def run(shared: Instance, *arguments: str, code: int = 0, stdin: str = "") -> str:
    done = shared.pollux(*arguments, stdin=stdin)
    assert done.returncode == code, (done.stdout, done.stderr)
    return done.stdout if code == 0 else done.stderr


def ask(shared: Instance, *arguments: str) -> Any:
    return json.loads(run(shared, *arguments, "--data", "data", "--json"))


# -- finding the broker, exit codes


def test_status(shared: Instance) -> None:
    found = ask(shared, "status")
    assert found["ready"] is True
    assert found["version"] == VERSION
    assert found["pid"] == (shared.process.pid if shared.process else 0)
    table = run(shared, "status", "--data", "data")
    assert "live" in table
    assert "\x1b" not in table  # no colours into a pipe


def test_the_ways_to_a_broker(shared: Instance) -> None:
    url = f"http://127.0.0.1:{shared.ports['management']}"
    (shared.directory / "password").write_text("castor\n")
    run(shared, "status", "--config", "broker.xml")
    run(shared, "status")  # broker.xml lies in the directory
    run(shared, "status", "--url", url, "--user", "ada", "--password-file", "password")
    run(shared, "status", "--url", url, "--user", "ada", "--password-file", "-", stdin="castor")
    run(shared, "status", "--data", "data", "--user", "ada", "--password-file", "password")


def test_exit_codes_of_refusals(shared: Instance) -> None:
    url = f"http://127.0.0.1:{shared.ports['management']}"
    wrong = ("--user", "ada", "--password-file", "-")
    assert "wrong" in run(shared, "status", "--url", url, *wrong, stdin="nonsense", code=exits.EXIT_DENIED)
    assert "log-in" in run(shared, "status", "--url", url, code=exits.EXIT_DENIED)
    (shared.directory / "bob").write_text("pollux")
    text = run(shared, "status", "--url", url, "--user", "bob", "--password-file", "bob", code=exits.EXIT_DENIED)
    assert "manage" in text
    assert "no broker answers" in run(shared, "status", "--url", "http://127.0.0.1:1", code=exits.EXIT_UNAVAILABLE)
    assert "no running broker" in run(shared, "status", "--data", "nowhere", code=exits.EXIT_UNAVAILABLE)
    assert "expected http" in run(shared, "status", "--url", "ftp://x", code=exits.EXIT_USAGE)
    text = run(shared, "queue", "show", "none", "--data", "data", code=exits.EXIT_FAILED)
    assert text == f"pollux: there is no queue 'none' at {url}; pollux queue list shows which there are\n"
    assert "pollux address list" in run(shared, "address", "show", "none", "--data", "data", code=exits.EXIT_FAILED)
    assert "pollux connection list" in run(shared, "connection", "close", "1", "--data", "data", code=exits.EXIT_FAILED)
    assert "--user needs" in run(shared, "status", "--url", url, "--user", "ada", code=exits.EXIT_USAGE)


def test_a_broker_that_was_killed_is_told_from_a_live_one(instance: Instance) -> None:
    instance.start()
    instance.kill()
    assert "is gone" in run(instance, "status", "--data", "data", code=exits.EXIT_UNAVAILABLE)


def test_an_empty_list_says_so(shared: Instance) -> None:
    assert run(shared, "queue", "list", "--filter", "nothing-of-this-name", "--data", "data") == "none\n"
    assert ask(shared, "queue", "list", "--filter", "nothing-of-this-name") == []


@pytest.mark.parametrize(
    ("count", "expected"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (12638251008, "11.8 GiB"), (2**50, "1024.0 TiB")],
)
def test_sizes_are_readable(count: int, expected: str) -> None:
    assert size(count) == expected


# -- queues, addresses, connections


def test_queues(shared: Instance) -> None:
    assert "queue work created" in run(shared, "queue", "create", "work", "--max-consumers", "3", "--data", "data")
    assert ask(shared, "queue", "show", "work")["maxConsumers"] == 3
    with shared.stomp() as client:
        client.publish("work", "one", color="red")
        client.publish("work", "two", color="blue")
    found = ask(shared, "queue", "list", "--filter", "wor")
    assert [(each["name"], each["messages"]) for each in found] == [("work", 2)]
    assert re.search(r"work .* 2 ", run(shared, "queue", "list", "--data", "data"))
    shown = ask(shared, "queue", "browse", "work", "--body", "--selector", "color = 'blue'")
    assert [each["body"] for each in shown] == ["two"]
    assert "red" in run(shared, "queue", "browse", "work", "--data", "data")
    moved = ask(shared, "queue", "move", "work", "orders", "--id", str(shown[0]["id"]))
    assert moved == {"count": 1, "stayed": 0, "more": False}
    assert ask(shared, "queue", "pause", "work")["paused"] is True
    assert ask(shared, "queue", "resume", "work")["paused"] is False
    assert ask(shared, "queue", "remove", "work", "--all")["count"] == 1
    with shared.stomp() as client:
        for body in ("one", "two", "three"):
            client.publish("work", body, AMQ_SCHEDULED_TIME="4102444800000")
    shown = ask(shared, "queue", "scheduled", "work", "--body", "--offset", "1")
    assert [(each["body"], each["deliverAt"]) for each in shown] == [("two", 4102444800000), ("three", 4102444800000)]
    assert re.search(r"deliverAt[^Z]* 4102444800000 ", run(shared, "queue", "scheduled", "work", "--data", "data"))
    assert ask(shared, "queue", "deliver", "work", "--id", str(shown[0]["id"]))["count"] == 1
    assert [each["body"] for each in ask(shared, "queue", "browse", "work", "--body")] == ["two"]
    told = run(shared, "queue", "remove", "work", "--scheduled", "--all", "--data", "data")
    assert told == "2 messages removed\n"
    assert ask(shared, "queue", "remove", "work", "--all")["count"] == 1
    assert ask(shared, "queue", "purge", "orders")["count"] == 1
    assert ask(shared, "queue", "retry", "DLQ", "--all")["count"] == 0
    assert "queue work deleted" in run(shared, "queue", "delete", "work", "--if-empty", "--data", "data")


@pytest.mark.parametrize("given", [(), ("--all", "--id", "1"), ("--selector", "a = 1", "--all"), ("--selector", " ")])
def test_saying_nothing_does_not_mean_everything(shared: Instance, given: tuple[str, ...]) -> None:
    text = run(shared, "queue", "remove", "orders", *given, "--data", "data", code=exits.EXIT_USAGE)
    assert "say which messages" in text


def test_addresses(shared: Instance) -> None:
    run(shared, "address", "create", "weather", "--anycast", "--multicast", "--data", "data")
    assert ask(shared, "address", "show", "weather")["routingTypes"] == ["ANYCAST", "MULTICAST"]
    assert "dead" not in run(shared, "address", "list", "--filter", "weath", "--data", "data")
    assert "deadLetterAddress" in run(shared, "address", "show", "weather", "--data", "data")
    run(shared, "address", "delete", "weather", "--data", "data")
    assert "weather" in run(shared, "address", "show", "weather", "--data", "data", code=exits.EXIT_FAILED)


def test_connections(shared: Instance) -> None:
    with shared.stomp() as client:
        port = client.socket.getsockname()[1]
        number = next(each["id"] for each in ask(shared, "connection", "list") if each["port"] == port)
        run(shared, "connection", "close", str(number), "--data", "data")
        assert client.receive()[0] == "ERROR"
    assert "STOMP" not in run(shared, "connection", "list", "--filter", "nobody", "--data", "data")


def test_reload(shared: Instance) -> None:
    assert run(shared, "reload", "--data", "data") == "reloaded\n"


# -- users


def test_users(instance: Instance) -> None:
    text = run(instance, "user", "add", "zoe", "--role", "amq", "--role", "ops", "-c", "broker.xml", stdin="first\n")
    assert "user zoe added" in text
    assert "first" not in (instance.directory / "artemis-users.properties").read_text()
    (instance.directory / "pw").write_text("second\nignored")
    assert "changed" in run(instance, "user", "add", "zoe", "--password-file", "pw", "-c", "broker.xml")
    users = load_users(instance.users.users, instance.users.roles)
    assert users.verifiers["zoe"].verify("second")
    listed = json.loads(run(instance, "user", "list", "--json"))
    assert {"name": "zoe", "roles": ["amq", "ops"]} in listed
    assert "zoe" in run(instance, "user", "list")
    done = json.loads(run(instance, "user", "remove", "zoe", "--json"))
    assert (done["user"], done["done"]) == ("zoe", "removed")
    assert "no user 'zoe'" in run(instance, "user", "remove", "zoe", code=exits.EXIT_FAILED)


@pytest.mark.parametrize("stdin", ["", "\n", "tab\there\n"])
def test_bad_passwords(instance: Instance, stdin: str) -> None:
    run(instance, "user", "add", "zoe", stdin=stdin, code=exits.EXIT_USAGE)
    assert "zoe" not in instance.users.users.read_text()


def test_a_password_is_never_an_argument(instance: Instance) -> None:
    done = instance.pollux("user", "add", "zoe", "secret")
    assert done.returncode == exits.EXIT_USAGE
    done = instance.pollux("user", "add", "zoe", "--password", "secret")
    assert done.returncode == exits.EXIT_USAGE


def test_on_a_terminal_the_password_is_asked_for_twice_and_not_shown(instance: Instance) -> None:
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "pollux.cli", "user", "add", "zoe", "-c", "broker.xml"],
        stdin=child,
        stdout=child,
        stderr=child,
        cwd=instance.directory,
        start_new_session=True,
    )
    os.close(child)
    shown = b""
    answers = 0
    deadline = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < deadline:
        if select.select([parent], [], [], 0.1)[0]:
            try:
                shown += os.read(parent, 4096)
            except OSError:
                break
            if shown.count(b": ") > answers:
                answers += 1
                os.write(parent, b"hidden-secret\n")
    assert process.wait(30) == 0, shown
    os.close(parent)
    assert answers == 2
    assert b"hidden-secret" not in shown
    assert load_users(instance.users.users, instance.users.roles).verifiers["zoe"].verify("hidden-secret")


# -- check, mask, journal


def test_check(instance: Instance) -> None:
    assert "no problems" in run(instance, "check", "broker.xml")
    instance.configure(core="<nam>x</nam>")
    done = instance.pollux("check", "broker.xml")
    assert done.returncode == exits.EXIT_USAGE
    assert re.search(r"^broker\.xml:\d+(:\d+)?: .*<nam>.*name", done.stdout)
    done = instance.pollux("check", "--json", "broker.xml")
    assert done.returncode == exits.EXIT_USAGE
    found = json.loads(done.stdout)
    assert found["valid"] is False
    assert found["problems"][0]["line"] > 0
    assert found["problems"][0]["column"] > 0


def test_check_reads_selectors(instance: Instance) -> None:
    queue = '<address name="a"><anycast><queue name="filtered"><filter string="{}"/></queue></anycast></address>'
    instance.configure(addresses=queue.format("size &gt; 3"))
    assert "no problems" in run(instance, "check", "broker.xml")
    instance.configure(addresses=queue.format("size &gt; &gt; 3"))
    done = instance.pollux("check", "broker.xml")
    assert done.returncode == exits.EXIT_USAGE
    assert re.search(r"^broker\.xml:\d+: queue 'filtered': selector 'size > > 3', character 8", done.stdout)
    assert "queue 'filtered': selector" in instance.pollux("run", "broker.xml").stderr


def test_definitions(instance: Instance) -> None:
    instance.configure(core="<journal-pool-files>${pool}</journal-pool-files>")
    assert instance.pollux("check", "broker.xml").returncode == exits.EXIT_USAGE
    run(instance, "check", "broker.xml", "-D", "pool=7")
    assert "expected NAME=VALUE" in run(instance, "check", "broker.xml", "-D", "pool", code=exits.EXIT_USAGE)


def test_mask(instance: Instance) -> None:
    masked = run(instance, "mask", "--key-file", "key", "--create-key", stdin="secret\n").strip()
    assert re.fullmatch(r"ENC\(.+\)", masked)
    assert "secret" not in masked
    assert (instance.directory / "key").stat().st_mode & 0o077 == 0


def test_journal(instance: Instance) -> None:
    instance.start()
    with instance.stomp() as client:
        client.publish("orders", "kept")
    instance.stop()
    journal = "data/journal"
    records = [json.loads(line) for line in run(instance, "journal", "dump", "--json", journal).splitlines()]
    assert "MESSAGE" in {record["type"] for record in records}
    puts = [json.loads(line) for line in run(instance, "journal", "dump", "--json", "data/bindings").splitlines()]
    (queue,) = [record for record in puts if record.get("kind") == "queue" and record["key"] == "orders"]
    assert queue["spec"].items() >= {"name": "orders", "durable": True, "no_local": False}.items()
    assert '"no_local":false' in run(instance, "journal", "dump", "--type", "put", "data/bindings")
    assert len(run(instance, "journal", "dump", "-n", "1", journal).splitlines()) == 1
    assert "sound" in run(instance, "journal", "verify", journal)
    assert json.loads(run(instance, "journal", "stat", "--json", "-c", "broker.xml"))["checkpoint"]["epoch"] == 1
    assert "epochs" in run(instance, "journal", "stat", journal)
    assert "is not a directory" in run(instance, "journal", "verify", "nowhere", code=exits.EXIT_FAILED)
    assert "not a store" in run(instance, "journal", "verify", "/etc", code=exits.EXIT_NOT_A_STORE)
    covered = ["journal", "bindings", "large", "paging"]
    for given in ("data", journal, "-cbroker.xml"):
        assert json.loads(run(instance, "journal", "verify", "--json", given))["covered"] == covered
    for segment in (instance.directory / journal).iterdir():
        data = bytearray(segment.read_bytes())
        place = data.find(b"kept")
        if place >= 0:
            data[place] ^= 1
            segment.write_bytes(data)
    done = instance.pollux("journal", "verify", "--json", journal)
    assert done.returncode == exits.EXIT_DAMAGED
    assert json.loads(done.stdout)["damage"]


def test_what_is_missing_is_in_the_log_the_status_and_the_metrics(instance: Instance) -> None:
    instance.start()
    with instance.stomp() as client:
        client.publish("orders", "x" * 300_000)
        client.publish("orders", "kept")
    instance.stop()
    (body,) = (instance.directory / "data").rglob("*.msg")
    body.unlink()
    done = instance.pollux("journal", "verify", "-c", "broker.xml")
    assert done.returncode == exits.EXIT_DAMAGED
    assert str(body) in done.stdout
    instance.start()
    (told,) = ask(instance, "status")["damage"]
    assert str(body) in told
    assert "pollux_store_damage 1.0" in instance.request("GET", "/metrics")[1]
    assert ask(instance, "queue", "show", "orders")["messages"] == 1
    assert str(body) in instance.log.read_text()


# -- help and documentation


def commands() -> list[list[str]]:
    found: list[list[str]] = []

    def walk(group: Any, path: list[str]) -> None:
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                walk(command, [*path, name])
            else:
                found.append([*path, name])

    import typer

    walk(typer.main.get_command(app), [])
    return found


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_every_command_has_help_with_an_example(command: list[str]) -> None:
    shown = CliRunner().invoke(app, [*command, "--help"])
    assert shown.exit_code == 0
    assert f"Example: pollux {' '.join(command)}" in shown.output
    assert "--json" in shown.output or command in (["run"], ["mask"]), "it prints something"
    assert "pollux " + " ".join(command) in (DOCS / "cli.md").read_text()


def test_every_exit_code_is_documented() -> None:
    text = (DOCS / "cli.md").read_text()
    codes = {value for name, value in vars(exits).items() if name.startswith("EXIT_")}
    assert codes == {int(number) for number in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}


def test_the_command_line_imports_little() -> None:
    code = "import sys, pollux.cli.app; print(' '.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    heavy = {"aiohttp", "rich", "lxml", "uvloop", "asyncio", "cryptography", "prometheus_client", "cproton_ffi"}
    assert heavy & set(loaded) == set()


@pytest.mark.parametrize("command", sorted({tuple(path[:-1]) for path in commands()}), ids=" ".join)
def test_no_summary_is_cut_in_a_list_of_commands(command: tuple[str, ...]) -> None:
    _, *lines = CliRunner().invoke(app, [*command, "--help"]).output.splitlines()
    assert [line for line in lines if line.endswith("...")] == []


def test_the_version_is_the_package_s() -> None:
    assert CliRunner().invoke(app, ["--version"]).output == f"pollux {VERSION}\n"
    from importlib.metadata import version

    assert version("pollux-broker") == VERSION
