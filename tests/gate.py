"""A way to the server that can be closed: then connections break, and new ones are refused, as if it were stopped."""

import socket
import threading
from contextlib import suppress
from urllib.parse import urlsplit


class Gate:
    """Open at first; hands bytes to and fro."""

    def __init__(self, url: str) -> None:
        target = urlsplit(url)
        self._target, self._address = (target.hostname, target.port), ("127.0.0.1", 0)
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self.open()
        self.url = "http://{}:{}".format(*self._address)

    def open(self) -> None:
        self._listener = socket.create_server(self._address, backlog=128)
        self._address = self._listener.getsockname()
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def close(self) -> None:
        with self._lock:
            with suppress(OSError):  # closed already
                self._listener.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread
            self._listener.close()
            for connection in self._connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            self._connections.clear()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
                far = socket.create_connection(self._target)
            except OSError:
                return
            with self._lock:
                self._connections |= {near, far}
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=_pump, args=(source, sink), daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    for end in (source, sink):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
