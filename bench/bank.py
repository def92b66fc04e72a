"""The bank of the crash matrix: a process of its own that forgives nothing. It stands outside, so it knows what really happened.

    python bench/bank.py FOLDER KIND        prints its port, then serves until its input is closed

KIND is what the other side of an effect can do for us, from the least to the most:

    blind      pays whenever it is told to, and answers no question
    askable    pays whenever it is told to, and tells whether a key was paid
    keyed      pays a key once

One request per connection, one line each way: `pay KEY [WHAT]` -> `paid N`; `find KEY` -> `found N`, `absent` or `refused`; `all` ->
what every payment was for. Only a keyed bank compares keys; what a payment is for (its number; without one the key) is for those who count.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

CALLS = itertools.count(1)


def ask(line: str) -> str:
    """One request to the bank whose port is in BENCH_BANK."""
    with socket.create_connection(("127.0.0.1", int(os.environ["BENCH_BANK"])), timeout=10) as s:
        s.sendall(line.encode() + b"\n")
        return s.makefile().readline().strip()


def pay(key: str, what: str = "") -> str:
    """The effect of the matrix. Dies before or after it when CRASH_MODE says so, at this process's payment number CRASH_AT."""
    dies = os.environ.get("CRASH_MODE") if next(CALLS) == int(os.environ.get("CRASH_AT", "1")) else None
    if dies == "pre":
        os._exit(9)
    answer = ask(f"pay {key} {what or key}")
    if dies == "post":
        os._exit(9)
    return answer


def find(key: str) -> str:
    """`found N`, `absent`, or `refused` by a blind bank."""
    return ask(f"find {key}")


@contextlib.contextmanager
def opened(folder: str, kind: str) -> Iterator[str]:
    """A bank of its own, open for business: its port."""
    with subprocess.Popen((sys.executable, __file__, folder, kind), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as bank:
        try:
            yield bank.stdout.readline().strip()
        finally:
            bank.stdin.close()


def paid(port: str) -> list[str]:
    """What every payment was for, in order."""
    os.environ["BENCH_BANK"] = port
    return ask("all").split()


def answer(line: str, book: dict[str, list[int]], whats: list[str], kind: str) -> str:
    """The bank's rules. `book`: the places of a key's payments among all of them."""
    verb, _, rest = line.partition(" ")
    key, _, what = rest.partition(" ")
    if verb == "all":
        return " ".join(whats)
    if verb == "find":
        return "refused" if kind == "blind" else f"found {book[key][0] + 1}" if key in book else "absent"
    if kind != "keyed" or key not in book:
        book.setdefault(key, []).append(len(whats))
        whats.append(what or key)
    return f"paid {book[key][-1] + 1}"


def serve(folder: str, kind: str) -> None:
    """Takes one request at a time. A payment is on disk before it is answered."""
    book: dict[str, list[int]] = {}
    whats: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as door, open(os.path.join(folder, "bank"), "a") as file:
        print(door.getsockname()[1], flush=True)
        threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
        while True:
            client, _ = door.accept()
            with client, client.makefile("rw") as line:
                before = len(whats)
                said = answer(line.readline().strip(), book, whats, kind)
                if len(whats) > before:
                    file.write(whats[-1] + "\n")
                    file.flush()
                    os.fsync(file.fileno())
                line.write(said + "\n")


if __name__ == "__main__":
    serve(*sys.argv[1:])
