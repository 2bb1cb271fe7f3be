"""An HTTP proxy on loopback between an S3 client and a server, which fails requests by a seeded rule.

The Host header goes on unchanged, so signatures stay as the client made them. A fault that hides the answer
(``timeout``, ``reset_get``) lets the request take effect first, as a lost answer does; one that cuts the
request (``reset_put``) keeps it from the server, and so do the statuses 500 and 503.
"""

import http.client
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

# Fault -> what the server would say, with S3's own words in the body.
STATUSES = {"500": (500, "InternalError"), "503": (503, "SlowDown")}
FAULTS = (*STATUSES, "timeout", "reset_get", "reset_put", "slow")
# Longer than the client waits, see _TIMEOUT_S in raycomp/data/stores.py.
_SILENCE_S = 60.0
_SLOW_BYTES_PER_S = 200_000
_CHUNK_BYTES = 10_000


@dataclass(frozen=True)
class Request:
    """One request as the proxy saw it; ``fault`` is what was done to it, empty for nothing."""

    method: str
    kind: str
    key: str
    fault: str


@dataclass
class Plan:
    """Which requests fail: from number ``start`` on, each fault with its probability, by one generator."""

    shares: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0
    start: int = 0

    def __post_init__(self) -> None:
        assert set(self.shares) <= set(FAULTS), self.shares
        self.generator = random.Random(self.seed)

    def draw(self, number: int, method: str) -> str:
        """Return the fault of the next request, empty for none; a fault that cannot befall it is none."""
        if number < self.start:
            return ""
        point = self.generator.random()
        for fault, share in self.shares.items():
            if point < share:
                fits = {"reset_get": ("GET",), "reset_put": ("PUT", "POST")}.get(fault, (method,))
                return fault if method in fits else ""
            point -= share
        return ""


class Proxy(ThreadingHTTPServer):
    """Forwards to ``upstream`` (host:port) and keeps a record of every request."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, upstream: str):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream = upstream
        self.plan = Plan()
        self.seen: list[Request] = []
        self.closing = threading.Event()
        self._lock = threading.Lock()

    @property
    def endpoint(self) -> str:
        """What clients take for the server."""
        return f"http://127.0.0.1:{self.server_port}"

    def start(self, shares: Mapping[str, float], seed: int = 0, start: int = 0) -> None:
        """Forget what was seen and follow another plan."""
        with self._lock:
            self.seen.clear()
            self.plan = Plan(shares, seed, start)

    def note(self, method: str, path: str) -> str:
        """Record a request and return its fault."""
        url = urlsplit(path)
        kind = name_kind(method, url.path, parse_qs(url.query, keep_blank_values=True))
        with self._lock:
            fault = self.plan.draw(len(self.seen), method)
            self.seen.append(Request(method, kind, url.path, fault))
        return fault

    def faults(self) -> Counter:
        """Return how many requests met which fault."""
        return Counter(request.fault for request in self.seen if request.fault)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that went away are what this is about; they need no traceback."""


def name_kind(method: str, path: str, query: Mapping[str, Any]) -> str:
    """Return which of S3's operations a request is."""
    is_bucket = path.strip("/").count("/") == 0
    if method == "GET":
        return "list" if is_bucket else "get"
    if method == "POST":
        return next((name for name in ("uploads", "delete") if name in query), "complete")
    if method == "PUT" and "partNumber" in query:
        return "part"
    return {"PUT": "put", "HEAD": "head", "DELETE": "abort" if "uploadId" in query else "delete"}[method]


@contextmanager
def run_proxy(upstream: str) -> Iterator[Proxy]:
    """Run a proxy before ``upstream`` (an http:// endpoint) while the block runs."""
    proxy = Proxy(urlsplit(upstream).netloc)
    thread = threading.Thread(target=proxy.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.closing.set()
        proxy.shutdown()
        thread.join()
        proxy.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Proxy

    def serve(self) -> None:
        """Answer one request, or do to it what the plan says."""
        fault = self.server.note(self.command, self.path)
        if fault == "reset_put":
            self._read_body(0.5)
            self._reset()
            return
        body = self._read_body(1.0, fault == "slow")
        if fault in STATUSES:
            self._answer(STATUSES[fault][0], [("Content-Type", "application/xml")], _error_body(fault))
            return
        status, headers, data = self._forward(body)
        if fault == "timeout":
            self.server.closing.wait(_SILENCE_S)
            self._reset()
        elif fault == "reset_get":
            self._answer(status, headers, data, half=True)
            self._reset()
        else:
            self._answer(status, headers, data, is_slow=fault == "slow")

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = serve

    def _read_body(self, share: float, is_slow: bool = False) -> bytes:
        """Return the first share of the request's body, without the framing of chunks."""
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
                if share < 1:
                    return b"".join(parts)
            while self.rfile.readline().strip():
                pass
            return b"".join(parts)
        length = int(int(self.headers.get("Content-Length", 0)) * share)
        if not is_slow:
            return self.rfile.read(length)
        parts = []
        for at in range(0, length, _CHUNK_BYTES):
            parts.append(self.rfile.read(min(_CHUNK_BYTES, length - at)))
            time.sleep(_CHUNK_BYTES / _SLOW_BYTES_PER_S)
        return b"".join(parts)

    def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(self.server.upstream, timeout=120)
        connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in ("transfer-encoding", "content-length", "connection", "expect"):
                connection.putheader(name, value)
        if body or self.command in ("PUT", "POST"):
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        answer = connection.getresponse()
        data = answer.read()
        headers = [(n, v) for n, v in answer.getheaders() if n.lower() not in _HOP_BY_HOP]
        if self.command == "HEAD":
            headers.append(("Content-Length", answer.getheader("Content-Length", "0")))
        connection.close()
        return answer.status, headers, data

    def _answer(
        self,
        status: int,
        headers: list[tuple[str, str]],
        data: bytes,
        half: bool = False,
        is_slow: bool = False,
    ) -> None:
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(data)))
        elif not headers or headers[-1][0] != "Content-Length":
            self.send_header("Content-Length", "0")
        self.end_headers()
        if self.command == "HEAD":
            return
        if not is_slow:
            self.wfile.write(data[: len(data) // 2] if half else data)
            return
        for at in range(0, len(data), _CHUNK_BYTES):
            self.wfile.write(data[at : at + _CHUNK_BYTES])
            time.sleep(_CHUNK_BYTES / _SLOW_BYTES_PER_S)

    def _reset(self) -> None:
        """Close so that the client gets a reset, no orderly end."""
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


_HOP_BY_HOP = ("transfer-encoding", "content-length", "connection", "keep-alive")


def _error_body(fault: str) -> bytes:
    code = STATUSES[fault][1]
    head = '<?xml version="1.0" encoding="UTF-8"?>'
    return f"{head}<Error><Code>{code}</Code><Message>injected</Message></Error>".encode()
