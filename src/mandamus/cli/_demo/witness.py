"""The witness's own process: the witness server of `mandamus witness serve`, behind the demo's socket guard.

Prints where it answers as one line of JSON, and ends when its stdin is closed or its parent is gone. The rule a newcomer would break: in
the demo it stands on the same machine, which shows how it works and protects from nobody; a real one is somebody else's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path

from mandamus.cli._demo import guard

NAME = "witness.demo/w1"


async def _serve(folder: Path, log: str) -> None:
    from mandamus.drivers.sign_file import FileSigner
    from mandamus.proof.keys import COSIGNER
    from mandamus.proof.witnessing import logs_of
    from mandamus.server.http import serve
    from mandamus.server.memory import Memory
    from mandamus.server.witness import LIMITS, Witness

    folder.mkdir(mode=0o700)
    signer = FileSigner.create(folder / "witness.pem", NAME, kind=COSIGNER)
    core = Witness(signer, Memory.open(folder / "witness.db", signer.vkey, new=True), logs_of([log]))
    server = await serve(core.answer, "127.0.0.1", 0, LIMITS)
    sys.stdout.write(json.dumps({"uri": f"witness+http://127.0.0.1:{server.port}#{signer.vkey}", "vkey": signer.vkey}) + "\n")
    sys.stdout.flush()
    try:
        await asyncio.to_thread(sys.stdin.read)
    finally:
        await server.close()
        core.close()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--log", required=True)
    given = parser.parse_args()
    asyncio.run(_serve(given.folder, given.log))
    return 0


if __name__ == "__main__":
    guard.install()
    sys.exit(main())
