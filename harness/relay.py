"""A way between two programs on loopback that can be cut and healed."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class Relay:
    """A port that leads to another one, until it is cut: then nothing arrives any more, and nobody is told."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._open = threading.Event()
        self._open.set()
        self._ended = False
        self._sockets: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Let nothing through."""
        self._open.clear()

    def heal(self) -> None:
        """Let everything through, and what waited too."""
        self._open.set()

    def close(self) -> None:
        """End it, with its connections."""
        self._ended = True
        self._open.set()
        for one in (self._listening, *self._sockets):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while not self._ended:
                near, _ = self._listening.accept()
                self._sockets.append(near)
                self._open.wait()
                if self._ended:
                    return
                try:
                    far = socket.create_connection(("127.0.0.1", self._target))
                except OSError:
                    near.close()
                    continue
                self._sockets.append(far)
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=(source, target), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self._open.wait()
                target.sendall(data)
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
