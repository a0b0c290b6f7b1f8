"""A stand-in for W&B's server on this machine: as much of its interface as a run needs, and what it has recorded.

It answers the requests of W&B's own service: who a user is, what is known of a run that is resumed, a run to be created
or changed, the stream of its rows, and files. It is no more than that: the real server may do otherwise where nothing
here depends on it.
"""

import gzip
import http.server
import json
import re
import threading
import time
from typing import Any

from everstep.testing.servers.proxy import free_port

KEY = "0123456789abcdef" * 2 + "01234567"
"""An API key of the right length."""


class WandbServer:
    """A server on a free port of 127.0.0.1.

    Attributes:
      uri: Where W&B is to connect: `WANDB_BASE_URL`.
      runs: What is known of each run, by its id.
      down: Whether every request is answered with an error.
      requests: The names of the requests so far.
    """

    def __init__(self) -> None:
        self._port = free_port()
        self.uri = f"http://127.0.0.1:{self._port}"
        self.runs: dict[str, dict[str, Any]] = {}
        self.down = False
        self.requests: list[str] = []
        self._lock = threading.Lock()

    def __enter__(self) -> "WandbServer":
        handler = type("Handler", (_Handler,), {"fake": self})
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", self._port), handler)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._server.shutdown()
        self._server.server_close()

    def rows(self, run_id: str) -> list[dict[str, Any]]:
        """Returns the rows of a run as they stand, without what W&B adds to them."""
        lines = self.runs.get(run_id, {}).get("rows", {})
        rows = [json.loads(lines[number]) for number in sorted(lines)]
        return [{name: value for name, value in row.items() if not name.startswith("_")} for row in rows]

    # ---- answers -----------------------------------------------------------------------------------------------------

    def graphql(self, body: dict[str, Any]) -> dict[str, Any]:
        """Answers a query by its name; one that is not known is answered by nothing."""
        found = re.search(r"(?:query|mutation)\s+(\w+)", body["query"])
        name, variables = found[1] if found else "", body.get("variables") or {}
        with self._lock:
            self.requests.append(name)
            answer = {"Viewer": self._viewer, "RunResumeStatus": self._resume, "UpsertBucket": self._upsert}
            if name in answer:
                return {"data": answer[name](variables)}
            if "createRunFiles" in body["query"]:
                return {"data": self._files(variables)}
        return {"data": {"serverInfo": {"features": []}}}

    def _viewer(self, variables: dict[str, Any]) -> dict[str, Any]:
        return {
            "viewer": {"id": "u", "entity": "somebody", "username": "somebody", "teams": {"edges": []}, "flags": "{}"}
        }

    def _resume(self, variables: dict[str, Any]) -> dict[str, Any]:
        run = self.runs.get(variables["name"])
        bucket = None
        if run is not None:
            rows = [run["rows"][number] for number in sorted(run["rows"])]
            bucket = {
                "id": run["id"],
                "name": run["id"],
                "displayName": run["displayName"],
                "summaryMetrics": run["summary"],
                "logLineCount": 0,
                "historyLineCount": len(rows),
                "eventsLineCount": 0,
                "historyTail": json.dumps(rows[-1:]),
                "eventsTail": "[]",
                "config": run["config"],
                "tags": run["tags"],
                "notes": None,
                "wandbConfig": json.dumps({"t": int(time.time())}),
            }
        return {
            "model": {
                "id": "p",
                "name": variables["project"],
                "entity": {"id": "e", "name": "somebody"},
                "bucket": bucket,
            }
        }

    def _upsert(self, variables: dict[str, Any]) -> dict[str, Any]:
        name = variables["name"]
        new = name not in self.runs
        blank = {"id": name, "rows": {}, "files": {}, "summary": "{}", "exit": None, "displayName": "", "config": "{}"}
        run = self.runs.setdefault(name, {**blank, "tags": []})
        for key in ("displayName", "config", "tags"):
            run[key] = variables.get(key) or run[key]
        run["project"] = variables["project"]
        project = {"id": "p", "name": variables["project"], "entity": {"id": "e", "name": "somebody"}}
        bucket = {
            "id": name,
            "name": name,
            "displayName": run["displayName"],
            "description": "",
            "config": run["config"],
        }
        bucket |= {"sweepName": None, "project": project, "historyLineCount": len(run["rows"]), "tags": run["tags"]}
        return {"upsertBucket": {"bucket": bucket, "inserted": new}}

    def _files(self, variables: dict[str, Any]) -> dict[str, Any]:
        url = f"{self.uri}/storage/{variables['run']}"
        files = [{"name": name, "uploadUrl": f"{url}/{name}"} for name in variables["files"]]
        return {"createRunFiles": {"runID": variables["run"], "uploadHeaders": [], "files": files}}

    def stream(self, run_id: str, body: dict[str, Any]) -> dict[str, Any]:
        """Takes rows at the place that they say, the summary, and how the run ended."""
        with self._lock:
            run = self.runs[run_id]
            history = (body.get("files") or {}).get("wandb-history.jsonl", {"offset": 0, "content": []})
            for place, line in enumerate(history["content"], history["offset"]):
                run["rows"][place] = line
            summary = (body.get("files") or {}).get("wandb-summary.json", {"content": []})
            run["summary"] = (summary["content"] or [run["summary"]])[-1]
            if body.get("complete"):
                run["exit"] = body.get("exitcode")
        return {}

    def keep(self, run_id: str, name: str, data: bytes) -> None:
        """Takes a file."""
        with self._lock:
            self.runs[run_id]["files"][name] = data


def _project(variables: dict[str, Any]) -> dict[str, Any]:
    return {"id": "p", "name": variables["project"], "entity": {"id": "e", "name": "somebody"}}


class _Handler(http.server.BaseHTTPRequestHandler):
    fake: WandbServer
    protocol_version = "HTTP/1.1"

    def _body(self) -> bytes:
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return gzip.decompress(data) if self.headers.get("Content-Encoding") == "gzip" else data

    def do_POST(self) -> None:
        """GraphQL, and the stream of a run's rows."""
        body = json.loads(self._body() or b"{}")
        if self.fake.down:
            self._answer(500, {})
        elif self.path.endswith("/graphql"):
            self._answer(200, self.fake.graphql(body))
        elif found := re.search(r"/files/[^/]+/[^/]+/([^/]+)/file_stream", self.path):
            self._answer(200, self.fake.stream(found[1], body))
        else:
            self._answer(200, {})

    def do_PUT(self) -> None:
        """A file."""
        data = self._body()
        _, _, run_id, name = self.path.split("/", 3)
        if not self.fake.down:
            self.fake.keep(run_id, name, data)
        self._answer(500 if self.fake.down else 200, {})

    def do_GET(self) -> None:
        """Nothing is read from here."""
        self._answer(404, {})

    def _answer(self, status: int, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode("utf-8")
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""
