"""Object stores that run on this machine (S3 by moto, Google's by its emulator), and a bad network before them."""

import contextlib
import http.client
import http.server
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from everstep.testing.servers.proxy import Proxy, free_port

BUCKET = "everstep-test"
_START_SECONDS = 300.0
_HOP = {"connection", "transfer-encoding", "content-length", "keep-alive", "te", "upgrade", "expect"}


class Server:
    """A store that runs as a separate process.

    Attributes:
      scheme: `s3` or `gs`.
      uri: The address that it listens on.
    """

    def __init__(self, scheme: str, log: Path) -> None:
        self.scheme, self._log = scheme, log
        self.port = free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with open(self._log, "ab") as log:
            # In a session of its own: else the end of the shell that started the tests would wake a paused server.
            self._process = subprocess.Popen(
                _command(self.scheme, self.port), stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + _START_SECONDS
        while not _listens(self.port):
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise RuntimeError(f"the store did not start: {self._log.read_text()}")
            time.sleep(0.05)
        _make_bucket(self.scheme, self.port)

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def environment(scheme: str, uri: str) -> dict[str, str]:
    """Returns the environment variables with the endpoint and the credentials of a store."""
    if scheme == "gs":
        return {"STORAGE_EMULATOR_HOST": uri, "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}
    keys = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": "us-east-1"}
    return {"AWS_ENDPOINT_URL": uri, **keys}


@contextlib.contextmanager
def running(scheme: str, folder: Path) -> Iterator[Server]:
    server = Server(scheme, folder / f"{scheme}.log")
    try:
        server.start()
        yield server
    finally:
        server.kill()


def _command(scheme: str, port: int) -> list[str]:
    programs = Path(sys.executable).parent
    if scheme == "s3":
        return [str(programs / "moto_server"), "-H", "127.0.0.1", "-p", str(port)]
    return [str(programs / "gcp-storage-emulator"), "start", "--host=127.0.0.1", f"--port={port}", "--in-memory"]


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _make_bucket(scheme: str, port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    if scheme == "s3":
        host = {"Host": "s3.amazonaws.com", "Authorization": "AWS4-HMAC-SHA256 Credential=A/20260101/us-east-1/s3/aws4"}
        connection.request("PUT", f"/{BUCKET}", headers=host)
    else:
        body = f'{{"name": "{BUCKET}"}}'
        connection.request("POST", "/storage/v1/b?project=test", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    assert answer.status < 300, answer.read()
    connection.close()


class BadNetwork(Proxy):
    """A proxy for object stores: passes on every header and HEAD, and has more ways to fail.

    Attributes:
      trouble: `truncate` cuts uploads in half; `reset` breaks the connection; `stall` never answers; `garble` answers
        something that is not HTTP.
      trouble_at: Limits the trouble to uploads whose path contains this text.
      trouble_left: How many more requests fail.
      troubles: Kinds of trouble in turn, one for every `often`-th request.
      met: How many requests have failed.
    """

    def __init__(self, target: str) -> None:
        self.trouble, self.trouble_at, self.trouble_left = "", "", 1 << 30
        self.troubles: list[str] = []
        self.often, self.met, self._counted = 13, 0, 0
        super().__init__(target)

    def _start(self) -> None:
        handler = type("Handler", (_Handler,), {"proxy": self})
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", self.port), handler)
        self._server.block_on_close = False
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def meets(self, method: str, path: str, body: bytes) -> str:
        """Returns how a request fails, empty if it does not; with `trouble_at`, only uploads to that path fail."""
        uploads = method in ("PUT", "POST")
        if self.troubles:
            return self._in_turn(uploads)
        place = self.trouble_at.encode()
        fits = self.trouble and self.trouble_left > 0 and (place in path.encode() or place in body[:2000])
        if not fits or ((self.trouble == "truncate" or place) and not uploads):
            return ""
        self.trouble_left -= 1
        self.met += 1
        return self.trouble

    def _in_turn(self, uploads: bool) -> str:
        self._counted += 1
        if self._counted % self.often:
            return ""
        trouble = self.troubles[self._counted // self.often % len(self.troubles)]
        self.met += 1
        return "error" if trouble == "truncate" and not uploads else trouble

    def wait(self) -> bool:
        return self._closed.wait(self.delay)


class _Handler(http.server.BaseHTTPRequestHandler):
    proxy: BadNetwork
    protocol_version = "HTTP/1.1"  # clients send `Expect: 100-continue`

    def _serve(self) -> None:
        body = self._body()
        self.proxy.requests += 1
        trouble = self.proxy.meets(self.command, self.path, body)
        if self.proxy.wait() or trouble == "reset":
            return self._reset()
        if trouble == "stall":
            self.proxy._closed.wait(3600)
            return self._reset()
        if trouble == "garble":
            self.wfile.write(b"\x00 nonsense\r\n\r\n")
            self.close_connection = True
            return None
        if self.proxy.fault == "error" or trouble == "error":
            return self._send(500, {}, b"broken on purpose")
        self._send(*self._forward(body[: len(body) // 2] if trouble == "truncate" else body))

    def _body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _forward(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(self.proxy._target, timeout=60)
        headers = {
            k: v for k, v in self.headers.items() if k.lower() not in (_HOP - {"host"}) and k.lower() != "expect"
        }
        try:
            connection.request(self.command, self.path, body, {**headers, "Content-Length": str(len(body))})
            response = connection.getresponse()
            content = response.read()
            kept = {k: v for k, v in response.getheaders() if k.lower() not in _HOP or self.command == "HEAD"}
            return response.status, kept, content
        except OSError:
            return 502, {}, b""
        finally:
            connection.close()

    def _send(self, status: int, headers: dict[str, str], content: bytes) -> None:
        with contextlib.suppress(OSError):
            self.send_response_only(status)
            for name, value in headers.items():
                if name.lower() not in ("connection", "transfer-encoding"):
                    self.send_header(name, value)
            if "content-length" not in {name.lower() for name in headers}:
                self.send_header("Content-Length", str(len(content)))
            self.send_header("Connection", "close")  # a fault then affects the very next request
            self.end_headers()
            self.wfile.write(content if self.command != "HEAD" else b"")

    def _reset(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = _serve

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing."""


def fresh_url(scheme: str, folder: Path, name: str) -> str:
    """Returns a URL that no other test uses."""
    unique = f"{name}-{os.urandom(4).hex()}"
    places = {"file": f"file://{folder}/store/{unique}", "memory": f"memory://{unique}/run"}
    return places.get(scheme, f"{scheme}://{BUCKET}/{unique}")
