"""A bad network: a proxy on this machine that can be made slow, failing and absent while it runs."""

import contextlib
import http.client
import http.server
import socket
import threading
from typing import Any, Literal

Fault = Literal["none", "refuse", "error", "lose_answers"]


class Proxy:
    """A loopback proxy whose network can be made bad while it runs.

    Attributes:
      uri: Where clients connect.
      fault: What goes wrong: `error` answers everything with HTTP 500; `lose_answers` carries out the request and
        then answers 500; `refuse` accepts no connection.
      delay: Seconds until a request is passed on to the server.
      requests: How many requests have come in.
    """

    def __init__(self, target: str) -> None:
        self.port = free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self.delay = 0.0
        self.requests = 0
        self._target = target.removeprefix("http://")
        self._closed = threading.Event()
        self._server: http.server.ThreadingHTTPServer | None = None
        self._fault: Fault = "refuse"
        self.fault = "none"

    @property
    def fault(self) -> Fault:
        """What goes wrong now."""
        return self._fault

    @fault.setter
    def fault(self, fault: Fault) -> None:
        self._fault = fault
        if fault == "refuse":
            self._stop()
        elif self._server is None:
            self._start()

    def close(self) -> None:
        """Ends it, and every request that it holds back."""
        self._closed.set()
        self._stop()

    def __enter__(self) -> "Proxy":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _start(self) -> None:
        handler = type("Handler", (_Handler,), {"proxy": self})
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", self.port), handler)
        self._server.block_on_close = False
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def _stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        """Returns what the server answers to a request, or what becomes of it on the way."""
        self.requests += 1
        if self._closed.wait(self.delay):
            return 503, b""
        if self._fault == "error":
            return 500, b"broken on purpose"
        connection = http.client.HTTPConnection(self._target, timeout=300)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            content = response.read()
        except OSError:
            return 502, b""
        finally:
            connection.close()
        return (500, b"the answer is lost") if self._fault == "lose_answers" else (response.status, content)


class _Handler(http.server.BaseHTTPRequestHandler):
    proxy: Proxy

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status, content = self.proxy.answer(self.command, self.path, dict(self.headers.items()), body)
        with contextlib.suppress(OSError):  # the client may have given up
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""


def free_port() -> int:
    """Returns a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
