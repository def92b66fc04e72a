"""The bank of the crash matrix: a process of its own that forgives nothing. It stands outside, so it knows what really happened.

    python bench/bank.py FOLDER KIND        prints its port, then serves until its input is closed

KIND is what the other side of an effect can do for us, from the least to the most:

    blind      pays whenever it is told to, and answers no question
    askable    pays whenever it is told to, and tells whether a key was paid
    keyed      pays a key once

One request per connection, one line each way: `pay KEY` -> `paid N`; `find KEY` -> `found N`, `absent` or `refused`; `all` -> every
payment's key.
"""

from __future__ import annotations

import itertools
import os
import socket
import sys
import threading

CALLS = itertools.count(1)


def ask(line: str) -> str:
    """One request to the bank whose port is in BENCH_BANK."""
    with socket.create_connection(("127.0.0.1", int(os.environ["BENCH_BANK"])), timeout=10) as s:
        s.sendall(line.encode() + b"\n")
        return s.makefile().readline().strip()


def pay(key: str) -> str:
    """The effect of the matrix. Dies before or after it when CRASH_MODE says so, at this process's payment number CRASH_AT."""
    dies = os.environ.get("CRASH_MODE") if next(CALLS) == int(os.environ.get("CRASH_AT", "1")) else None
    if dies == "pre":
        os._exit(9)
    answer = ask(f"pay {key}")
    if dies == "post":
        os._exit(9)
    return answer


def find(key: str) -> str:
    """`found N`, `absent`, or `refused` by a blind bank."""
    return ask(f"find {key}")


def answer(line: str, paid: list[str], kind: str) -> str:
    """The bank's rules."""
    verb, _, key = line.partition(" ")
    if verb == "all":
        return " ".join(paid)
    if verb == "find":
        return "refused" if kind == "blind" else f"found {paid.index(key) + 1}" if key in paid else "absent"
    if kind != "keyed" or key not in paid:
        paid.append(key)
    return f"paid {len(paid) - paid[::-1].index(key)}"


def serve(folder: str, kind: str) -> None:
    """Takes one request at a time. A payment is on disk before it is answered."""
    paid: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as door, open(os.path.join(folder, "bank"), "a") as book:
        print(door.getsockname()[1], flush=True)
        threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
        while True:
            client, _ = door.accept()
            with client, client.makefile("rw") as line:
                before = len(paid)
                said = answer(line.readline().strip(), paid, kind)
                if len(paid) > before:
                    book.write(paid[-1] + "\n")
                    book.flush()
                    os.fsync(book.fileno())
                line.write(said + "\n")


if __name__ == "__main__":
    serve(*sys.argv[1:])
