"""A bank that forgives nothing: a real process, a real HTTP server, payments in a SQLite file. `python -m mandamus.testing.bank`.

    POST /payments {operation?, to, amount}   books; an `Idempotency-Key` counts only with --honour-keys
    GET  /payments[?operation=ID]             what was booked, by the newest commit
    POST /forbid {operation}                  refuse this operation id from now on
    POST /behave {next: cut | hold | late | refuse | ok, ms?}    what happens to the next payment, once

`cut` books and drops the connection; `hold` books and never answers; `late` waits before it books; `refuse` books nothing and says so.
The rule a newcomer would break: two equal requests are two payments. A bank that merges them would hide every double payment.
"""

from __future__ import annotations

import argparse
import json
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

_BODY_MAX = 64 * 1024
_MODES = ("cut", "hold", "late", "ok", "refuse")


class Books:
    """The payments, durable before anybody hears of them."""

    def __init__(self, file: str) -> None:
        self._lock = threading.Lock()
        self._db = sqlite3.connect(file, check_same_thread=False, isolation_level=None)
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS payment(id INTEGER PRIMARY KEY, operation TEXT, key TEXT, recipient TEXT, amount TEXT)"
        )
        self._db.execute("CREATE TABLE IF NOT EXISTS forbidden(operation TEXT PRIMARY KEY)")

    def book(self, operation: str, key: str, to: str, amount: str) -> int | None:
        """Its number; the earlier one's when `key` is honoured and known; None when the operation is forbidden."""
        with self._lock:
            if self._db.execute("SELECT 1 FROM forbidden WHERE operation=?", (operation,)).fetchone():
                return None
            known = self._db.execute("SELECT id FROM payment WHERE key=? AND key<>''", (key,)).fetchone()
            if known:
                return int(known[0])
            row = self._db.execute("INSERT INTO payment(operation, key, recipient, amount) VALUES (?,?,?,?)", (operation, key, to, amount))
            return int(row.lastrowid or 0)

    def forbid(self, operation: str) -> None:
        with self._lock:
            self._db.execute("INSERT OR IGNORE INTO forbidden VALUES (?)", (operation,))

    def payments(self, operation: str | None = None) -> list[dict[str, Any]]:
        where, values = ("", ()) if operation is None else (" WHERE operation=?", (operation,))
        with self._lock:
            rows = self._db.execute("SELECT id, operation, recipient, amount FROM payment" + where + " ORDER BY id", values).fetchall()
        return [{"id": f"bank-{n}", "operation": op, "to": to, "amount": amount} for n, op, to, amount in rows]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, books: Books, honour_keys: bool, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.books, self.honour_keys = books, honour_keys
        self.next: tuple[str, int] = ("ok", 0)
        self.closing = threading.Event()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hung up or was killed is nothing to talk about."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
        self._say(200, {"payments": self.server.books.payments(query.get("operation", [None])[0])})

    def do_POST(self) -> None:
        try:
            said = json.loads(self.rfile.read(min(int(self.headers.get("Content-Length", "0")), _BODY_MAX)) or b"{}")
            path = urllib.parse.urlsplit(self.path).path
            if path == "/behave" and said.get("next") in _MODES:
                self.server.next = (said["next"], int(said.get("ms", 0)))
                self._say(200, {})
            elif path == "/forbid" and isinstance(said.get("operation"), str):
                self.server.books.forbid(said["operation"])
                self._say(200, {})
            elif path == "/payments" and isinstance(said.get("to"), str):
                self._pay(said)
            else:
                self._say(400, {"error": "not understood"})
        except (ValueError, AttributeError):
            self._say(400, {"error": "not understood"})

    def _pay(self, said: dict[str, Any]) -> None:
        (mode, ms), self.server.next = self.server.next, ("ok", 0)
        if mode == "refuse":
            return self._say(409, {"error": "refused, nothing was booked"})
        if mode == "late":
            self.server.closing.wait(ms / 1000)
        key = self.headers.get("Idempotency-Key", "") if self.server.honour_keys else ""
        number = self.server.books.book(str(said.get("operation", "")), key, said["to"], json.dumps(said.get("amount")))
        if number is None:
            return self._say(409, {"error": "forbidden, nothing was booked"})
        if mode == "hold":
            self.server.closing.wait(ms / 1000 if ms else None)
        if mode in ("cut", "hold"):
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return None
        return self._say(201, {"id": f"bank-{number}"})

    def _say(self, status: int, body: dict[str, Any]) -> None:
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, format: str, *args: Any) -> None:
        """The books are the log."""


class Refusal(Exception):
    """The bank said that nothing was booked."""


class Bank:
    """A client. `pay` raises Refusal when nothing was booked, and whatever the wire raises when nobody can know."""

    def __init__(self, url: str, timeout_s: float = 20.0) -> None:
        self.url, self.timeout_s = url, timeout_s

    def pay(self, to: str, amount: Any, *, operation: str = "", key: str = "") -> str:
        return str(
            self._post("/payments", {"amount": amount, "operation": operation, "to": to}, {"Idempotency-Key": key} if key else {})["id"]
        )

    def payments(self, operation: str | None = None) -> list[dict[str, Any]]:
        query = "" if operation is None else "?" + urllib.parse.urlencode({"operation": operation})
        with urllib.request.urlopen(self.url + "/payments" + query, timeout=self.timeout_s) as answer:
            found: list[dict[str, Any]] = json.load(answer)["payments"]
            return found

    def forbid(self, operation: str) -> None:
        self._post("/forbid", {"operation": operation}, {})

    def behave(self, next: str, ms: int = 0) -> None:
        self._post("/behave", {"ms": ms, "next": next}, {})

    def _post(self, path: str, body: dict[str, Any], headers: dict[str, str]) -> dict[str, Any]:
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json", **headers})
        try:
            with urllib.request.urlopen(request, timeout=self.timeout_s) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 409:
                    raise Refusal("nothing was booked") from None
                raise


@contextmanager
def bank_process(file: str | Path | None = None, *, honour_keys: bool = False) -> Iterator[Bank]:
    """A bank in a process of its own, ended with the block. Without `file` its books lie in a folder that goes with it."""
    with tempfile.TemporaryDirectory(prefix="mandamus-bank-") as folder:
        command = [sys.executable, "-m", "mandamus.testing.bank", "--file", str(file or Path(folder) / "bank.db")]
        process = subprocess.Popen(
            [*command, *(["--honour-keys"] if honour_keys else [])], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            yield Bank(json.loads(process.stdout.readline())["url"])
        finally:
            process.kill()
            process.communicate()


def main(argv: list[str] | None = None) -> int:
    """Prints one line {"url": …}, then serves until its standard input ends or it is killed."""
    parser = argparse.ArgumentParser(prog="python -m mandamus.testing.bank", description="A bank for tests that forgives nothing.")
    parser.add_argument("--file", required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--honour-keys", action="store_true")
    asked = parser.parse_args(argv)
    server = _Server(Books(asked.file), asked.honour_keys, asked.port)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(json.dumps({"url": f"http://127.0.0.1:{server.server_address[1]}"}), flush=True)
    try:
        while sys.stdin.read(4096):
            pass
    except KeyboardInterrupt:
        pass
    server.closing.set()
    time.sleep(0.05)
    server.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
