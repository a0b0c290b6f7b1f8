"""The live page of runs: `everstep ui` serves it on this machine. It only reads, and needs nothing but Python.

    with RunsServer(RunsFolder(Path("runs")), "127.0.0.1", 7878) as server:
        print(server.address)
        server.run(until)

| path | is |
|---|---|
| `/` | the page; it asks for the others, again and again |
| `/runs.json` | the table, and links to other pages |
| `/curves.json?run=a&run=b` | the learning curves of runs |
| `/comparison.json?run=a&run=b` | what differs between runs |
| `/report?run=a` | the report of a run, or of several |

What the runs hold may come from elsewhere, and the page may be open beside any other: everything is inserted as text,
the page's policy allows nothing but its own script and this server, only GET is answered, and only requests that name
this machine, so that no other page can read along under a name that it lets point here (DNS rebinding).
"""

import functools
import hashlib
import html as markup
import http
import http.server
import ipaddress
import json
import socket
import threading
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from everstep.errors import UsageError
from everstep.report.html_page import html
from everstep.report.runs_folder import RunsFolder

MOST_RUNS = 50
"""How many runs one request may name."""

SCRIPTS = ("dom.js", "format.js", "charts.js", "lines.js", "curves.js", "runs_table.js", "runs_chosen.js", "runs.js")
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class RunsServer:
    """Serves the page while its block runs, in threads of its own.

    Args:
      folder: The runs.
      host: Where to listen.
      port: The port; 0 for any that is free.
    """

    def __init__(self, folder: RunsFolder, host: str, port: int) -> None:
        self.links: dict[str, str] = {}
        handler = functools.partial(_Handler, folder, self.links, functools.partial(_is_this_machine, host))
        kind = _Server6 if ":" in host else _Server
        self._server = kind((host, port), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="everstep-ui", daemon=True)

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return int(self._server.server_address[1])

    def __enter__(self) -> "RunsServer":
        self._thread.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(http.server.ThreadingHTTPServer):
    block_on_close = False  # one who does not read his answer must not delay the end


class _Server6(_Server):
    address_family = socket.AF_INET6


def _is_this_machine(listens_on: str, host: str) -> bool:
    """Whether the header Host of a request names this machine: by the given name, its own, or an address.

    Args:
      listens_on: What the server was told to listen on.
      host: The header, with a port or without.
    """
    try:
        name = urllib.parse.urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    if name in ("localhost", listens_on):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return not _is_loopback(listens_on) and name in (socket.gethostname().lower(), socket.getfqdn().lower())
    return address.is_loopback or not _is_loopback(listens_on)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _Handler(http.server.BaseHTTPRequestHandler):
    """Answers one request."""

    server_version, sys_version = "everstep", ""
    timeout = 60

    def __init__(
        self, folder: RunsFolder, links: Mapping[str, str], is_allowed: Callable[[str], bool], *args: Any
    ) -> None:
        self._folder, self._links, self._is_allowed = folder, links, is_allowed
        super().__init__(*args)

    def do_GET(self) -> None:
        """Sends what a path names."""
        if not self._is_allowed(self.headers.get("Host", "")):
            self._send_text(http.HTTPStatus.FORBIDDEN, "This page is only reached by this machine's own names.")
            return
        url = urllib.parse.urlsplit(self.path)
        runs = urllib.parse.parse_qs(url.query).get("run", [])
        try:
            self._answer(url.path, list(dict.fromkeys(runs)))
        except UsageError as error:
            self._send_text(http.HTTPStatus.NOT_FOUND, str(error))
        except (OSError, ValueError, KeyError, TypeError) as error:  # of a run that is damaged, or being removed
            self._send_text(http.HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}")

    def _answer(self, path: str, runs: Sequence[str]) -> None:
        if len(runs) > MOST_RUNS:
            raise UsageError(f"expected at most {MOST_RUNS} runs", key="run", received=len(runs))
        if path == "/":
            self._send(page(str(self._folder.root)), "text/html; charset=utf-8")
        elif path == "/runs.json":
            self._send_json({"runs": self._folder.rows(), "links": dict(self._links)})
        elif path == "/curves.json":
            self._send_json({"runs": self._folder.curves(runs)})
        elif path == "/comparison.json":
            self._send_json(self._folder.comparison(runs))
        elif path == "/report":
            self._send(self._folder.report(runs), "text/html; charset=utf-8")
        else:
            self._send_text(http.HTTPStatus.NOT_FOUND, "There is no such page.")

    def _send_json(self, value: Any) -> None:
        self._send(json.dumps(value, allow_nan=False), "application/json")

    def _send_text(self, status: http.HTTPStatus, text: str) -> None:
        self._send(f"{markup.escape(text)}\n", "text/plain; charset=utf-8", status)

    def _send(self, text: str, kind: str, status: http.HTTPStatus = http.HTTPStatus.OK) -> None:
        """Sends a text; to a browser that has it already, only that it is the same."""
        body = text.encode("utf-8", errors="replace")
        tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        if status is http.HTTPStatus.OK and self.headers.get("If-None-Match") == tag:
            status, body = http.HTTPStatus.NOT_MODIFIED, b""
        self.send_response(status)
        for name, value in {**_HEADERS, "ETag": tag, "Content-Type": kind, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Prints nothing: the page asks every few seconds."""


@functools.cache
def page(root: str) -> str:
    """Returns the page."""
    return html("Runs", {"root": root}, SCRIPTS, ("page.css", "runs.css"), connects=True)
