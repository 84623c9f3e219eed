"""The program that holds a virtual address where the broker serves, in a network namespace of its own.

One process in the namespace plays the broker and runs the program, and tells what it sees.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "roles/virtual_ip/files/pollux-address"
#: What happens inside: each step sets what the broker says, and waits until the address is there or not.
PLAY = """
import json, signal, subprocess, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
said = {"status": 503, "reasons": ["the broker is ready"], "silent": False}
class Health(BaseHTTPRequestHandler):
    def do_GET(self):
        while said["silent"]:
            time.sleep(0.02)
        self.send_response(said["status"])
        self.end_headers()
        self.wfile.write(json.dumps({"reasons": said["reasons"]}).encode())
    def log_message(self, *_):
        pass
for words in ("link set lo up", "link add one type veth peer name two", "address add 192.0.2.1/24 dev one",
              "link set one up",
              "link set two up"):
    subprocess.run(["ip", *words.split()], check=True)
server = ThreadingHTTPServer(("127.0.0.1", 0), Health)
server.daemon_threads = True
threading.Thread(target=server.serve_forever, daemon=True).start()
words = [sys.executable, sys.argv[1], "192.0.2.9/24", "", f"http://127.0.0.1:{server.server_port}/health/ready"]
def here():
    return "192.0.2.9/24" in subprocess.run(["ip", "-brief", "address"], capture_output=True, text=True).stdout
def becomes(wanted):
    end = time.monotonic() + 30
    while here() != wanted and time.monotonic() < end:
        time.sleep(0.05)
    return here()
seen = {}
program = subprocess.Popen(words, stdout=subprocess.DEVNULL)
seen["a backup"] = here()
said.update(status=200, reasons=[])
seen["live"] = becomes(True)
said.update(status=503, reasons=["disk full: no room"])
time.sleep(1)
seen["full"] = here()
said.update(reasons=["disk full: no room", "the broker is stopping"])
seen["stops"] = becomes(False)
said.update(status=200, reasons=[])
seen["live again"] = becomes(True)
said["silent"] = True
seen["silent"] = becomes(False)
said["silent"] = False
seen["answers"] = becomes(True)
program.send_signal(signal.SIGTERM)
program.wait(30)
seen["ended"] = here()
program = subprocess.Popen(words, stdout=subprocess.DEVNULL)
seen["started"] = becomes(True)
program.kill()
program.wait(30)
seen["killed"] = here()
subprocess.run([sys.executable, sys.argv[1], "--remove", "192.0.2.9/24"], check=True, stdout=subprocess.DEVNULL)
seen["removed"] = here()
print(json.dumps(seen))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a network namespace, so it needs root")
def test_the_address_is_here_as_long_as_the_broker_serves(tmp_path: Path) -> None:
    play = tmp_path / "play.py"
    play.write_text(PLAY)
    command = ["unshare", "--net", sys.executable, str(play), str(PROGRAM)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "a backup": False,
        "live": True,
        "full": True,
        "stops": False,
        "live again": True,
        "silent": False,
        "answers": True,
        "ended": False,
        "started": True,
        # What systemd does next, whatever the end was.
        "killed": True,
        "removed": False,
    }


def test_what_is_not_understood_is_usage() -> None:
    done = subprocess.run([sys.executable, PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "pollux-address --remove ADDRESS/PREFIX" in done.stderr
