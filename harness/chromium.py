"""Chromium without a screen: opens one page of ours, which runs JavaScript clients and tells what they got."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import queue
import shutil
import signal
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from harness.programs import NODE_CLIENTS

if TYPE_CHECKING:
    from pathlib import Path

#: Seconds for the browser to start, and for all scenarios, on a busy machine.
LIMIT = 100.0
#: The libraries as they are made for browsers, and how they are called in node.
LIBRARIES = {
    "mqtt": "mqtt/dist/mqtt.min.js",
    "rhea": "rhea/dist/rhea.min.js",
    "@stomp/stompjs": "@stomp/stompjs/bundles/stomp.umd.min.js",
}
SCRIPT = "websocket_clients.js"
#: Runs the script that node runs, once for each scenario, with the libraries and what it tells node of.
PAGE = """<!doctype html><meta charset="utf-8"><title>clients</title>
<script src="/mqtt"></script><script src="/rhea"></script><script src="/@stomp/stompjs"></script>
<script>
const libraries = {mqtt: window.mqtt, rhea: window.require('rhea'), '@stomp/stompjs': window.StompJs};
const tell = (name, told) => fetch('/told', {method: 'POST', body: JSON.stringify([name, told])});
window.addEventListener('error', (event) => tell('', {error: String(event.message)}));
(async () => {
  const script = await (await fetch('/script')).text();
  for (const [name, scenario, given] of await (await fetch('/given')).json()) {
    let error = 'it ended without a word';
    const process = {
      argv: ['', '', scenario, JSON.stringify(given)],
      stdout: {write: (text, then) => { tell(name, {found: JSON.parse(text)}); then(); }},
      exit: (code) => { if (code) tell(name, {error}); },
    };
    const said = (word) => String(word && word.stack || word);
    const console = {error: (...words) => { error = words.map(said).join(' '); }};
    try {
      new Function('require', 'process', 'console', script)((library) => libraries[library], process, console);
    } catch (raised) {
      tell(name, {error: String(raised.stack)});
    }
  }
})();
</script>
"""


def run(
    given: dict[str, tuple[str, dict[str, Any]]], directory: Path, *, trusted: tuple[Path, ...]
) -> dict[str, dict[str, Any]]:
    """Run scenarios of websocket_clients.js (name -> scenario, what it is told) in one browser, all at the same time.

    The browser trusts the certificates in the PEM files ``trusted``, beside those that its system knows.

    Returns by name {"found": what came back} or {"error": words}. AssertionError when the browser does not answer.
    """
    program = shutil.which("chromium")
    assert program is not None, "chromium is missing: run `make test` as root, which installs it, or install it"
    told: queue.SimpleQueue[tuple[str, dict[str, Any]]] = queue.SimpleQueue()
    keys = ",".join(map(_key_of, trusted))
    listed = json.dumps([[name, scenario, words] for name, (scenario, words) in given.items()])
    pages = {"/": PAGE.encode(), "/given": listed.encode(), "/script": (NODE_CLIENTS / SCRIPT).read_bytes()}
    pages |= {f"/{name}": (NODE_CLIENTS / "node_modules" / path).read_bytes() for name, path in LIBRARIES.items()}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = pages.get(self.path)
            self.send_response(200 if body is not None else 404)
            self.send_header("Content-Type", "text/html" if self.path == "/" else "text/javascript")
            self.end_headers()
            self.wfile.write(body or b"")

        def do_POST(self) -> None:
            name, found = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            told.put((name, found))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *words: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    log = directory / "chromium.log"
    with log.open("wb") as output:
        browser = subprocess.Popen(
            [
                *(program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
                *("--no-first-run", "--disable-extensions", "--disable-background-networking", "--disable-sync"),
                f"--ignore-certificate-errors-spki-list={keys}",
                *(f"--user-data-dir={directory / 'profile'}", f"http://127.0.0.1:{server.server_port}/"),
            ],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "HOME": str(directory)},
            start_new_session=True,
        )
    found: dict[str, dict[str, Any]] = {}
    try:
        while found.keys() < given.keys():
            name, what = told.get(timeout=LIMIT)
            found.setdefault(name, what)
            assert "" not in found, found[""]
    except queue.Empty:
        raise AssertionError(f"chromium did not answer; {found}\n{log.read_text(errors='replace')[-3000:]}") from None
    finally:
        os.killpg(browser.pid, signal.SIGKILL)
        browser.wait(10)
        server.shutdown()
        server.server_close()
        serving.join(10)
    return found


def _key_of(certificate: Path) -> str:
    """Return what Chromium knows a certificate's key by."""
    key = x509.load_pem_x509_certificate(certificate.read_bytes()).public_key()
    return base64.b64encode(
        hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).digest()
    ).decode()
