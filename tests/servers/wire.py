"""The part of a scripted model server that both wire formats share: steps, faults, and a log of every request.

A step answers one request; the last one repeats. Nothing here is clever: a server that guesses would hide a driver's mistake.
"""

from __future__ import annotations

import gzip
import http.server
import itertools
import json
import socket
import threading
from dataclasses import dataclass, field
from typing import Any

HUGE = 64 * 1024 * 1024 + 1


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one request.

    status  answer with `status`, `headers` and `body`        raw   answer 200 with `body` as `media`, whatever was asked
    gone    close before a byte is sent                        cut   send half of the right answer, then close
    early   end the right answer early, but cleanly            slow  send the right answer byte by byte, without end in sight
    silent  never answer                                       huge  send more than 64 MiB     bomb  the same, compressed to 64 KiB
    """

    kind: str
    status: int = 500
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b"{}"
    media: str = "application/json"


@dataclass(frozen=True)
class Step:
    """`calls`: (tool, arguments); arguments as text go out as they are. `ids` replaces the call ids, `usage` None leaves it out."""

    text: str = ""
    calls: tuple[tuple[str, Any], ...] = ()
    ids: tuple[str, ...] = ()
    usage: dict[str, Any] | None = field(default_factory=lambda: {"input": 11, "output": 7})
    stop: str = ""
    refusal: str = ""
    fault: Fault | None = None

    def id(self, n: int, place: int) -> str:
        return self.ids[place] if place < len(self.ids) else f"call_{n}_{place}"


@dataclass(frozen=True)
class Request:
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


def pieces(text: str, size: int = 5) -> list[str]:
    return [text[i : i + size] for i in range(0, len(text), size)]


def written(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # the default of 5 resets a crowd that comes at once

    def handle_error(self, *_: object) -> None:
        """Clients that hang up are the point of half the tests."""


class WireServer:
    """Base: a subclass says what a step is in its format, whole and as events."""

    def __init__(self, steps: list[Step | Fault]) -> None:
        self.steps = [Step(fault=s) if isinstance(s, Fault) else s for s in steps]
        self.log: list[Request] = []
        self._lock, self._over = threading.Lock(), threading.Event()
        self._server = _Server(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.005}, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def whole(self, n: int, step: Step, request: Request) -> bytes:
        raise NotImplementedError

    def events(self, n: int, step: Step, request: Request) -> list[bytes]:
        raise NotImplementedError

    def refuses(self, request: Request) -> bytes:
        """Why the real server would answer 400, or nothing."""
        return b""

    def close(self) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> WireServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take(self, request: Request) -> tuple[int, Step]:
        with self._lock:
            self.log.append(request)
            n = len(self.log)
            return n, self.steps[min(n, len(self.steps)) - 1]

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers["content-length"]))
                request = Request(self.path, {k.lower(): v for k, v in self.headers.items()}, json.loads(raw))
                n, step = server._take(request)
                server._answer(self, n, step, request)

            do_GET = do_POST

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    def _answer(self, out: http.server.BaseHTTPRequestHandler, n: int, step: Step, request: Request) -> None:
        fault = step.fault
        unlawful = self.refuses(request)
        if unlawful:
            _send(out, 400, {"content-type": "application/json"}, [unlawful])
            return
        if request.body.get("stream"):
            media, parts = "text/event-stream", self.events(n, step, request)
        else:
            media, parts = "application/json", [self.whole(n, step, request)]
        if fault is None:
            _send(out, 200, {"content-type": media}, parts)
        elif fault.kind == "status":
            _send(out, fault.status, {"content-type": "application/json"} | fault.headers, [fault.body])
        elif fault.kind == "raw":
            _send(out, 200, {"content-type": fault.media} | fault.headers, [fault.body])
        elif fault.kind == "early":
            _send(out, 200, {"content-type": media}, parts[: max(1, len(parts) // 2)])
        else:
            self._break(out, fault, media, parts)

    def _break(self, out: http.server.BaseHTTPRequestHandler, fault: Fault, media: str, parts: list[bytes]) -> None:
        out.close_connection = True
        if fault.kind == "cut":
            _head(out, {"content-type": media, "transfer-encoding": "chunked"})
            body = b"".join(parts)
            _chunk(out, body[: len(body) // 2])
        elif fault.kind == "slow":
            _head(out, {"content-type": media, "transfer-encoding": "chunked"})
            body = b"".join(parts)
            for byte in itertools.cycle(body):
                _chunk(out, bytes([byte]))
                if self._over.wait(0.002):
                    return
        elif fault.kind == "silent":
            self._over.wait()
        elif fault.kind == "huge":
            _head(out, {"content-type": media, "transfer-encoding": "chunked"})
            block = b"data: " + b"x" * (1 << 20)
            for _ in range(HUGE // len(block) + 2):
                _chunk(out, block)
        elif fault.kind == "bomb":
            bomb = gzip.compress(b" " * HUGE, 1)
            _send(out, 200, {"content-type": media, "content-encoding": "gzip"}, [bomb])
        elif fault.kind != "gone":
            raise ValueError(fault.kind)
        out.connection.shutdown(socket.SHUT_RDWR)


def _head(out: http.server.BaseHTTPRequestHandler, headers: dict[str, str], status: int = 200) -> None:
    out.send_response(status)
    for name, value in headers.items():
        out.send_header(name, value)
    out.end_headers()


def _chunk(out: http.server.BaseHTTPRequestHandler, data: bytes) -> None:
    out.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))


def _send(out: http.server.BaseHTTPRequestHandler, status: int, headers: dict[str, str], parts: list[bytes]) -> None:
    """A stream goes out part by part, anything else with its length."""
    if headers["content-type"] == "text/event-stream" and len(parts) > 1:
        _head(out, headers | {"transfer-encoding": "chunked"}, status)
        for part in parts:
            _chunk(out, part)
        out.wfile.write(b"0\r\n\r\n")
        return
    body = b"".join(parts)
    _head(out, headers | {"content-length": str(len(body))}, status)
    out.wfile.write(body)


def error_body(code: str, words: str = "an error", **more: Any) -> bytes:
    return json.dumps({"type": "error", "error": {"type": code, "code": code, "message": words} | more}).encode()
