"""The scene: a folder of its own, what is asked, the policy, and the people who may approve.

The rule a newcomer would break: the demo wipes a folder only when it finds its own marker in it; any other folder is left as it is.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from msgspec import Struct

from mandamus import wiring
from mandamus.errors import Misuse

MARKER = ".mandamus-demo"
_MARK = "This folder was made by `mandamus demo`, which wipes it when it runs again.\n"

PROMPT = "Pay 50,000.00 USD to Acme Suppliers"
PAYEE = "Acme Suppliers"
AMOUNT = {"amount": "5000000", "currency": "USD", "decimals": 2}
POLICY_FILE = "treasury.yaml"
BANK_FILE = "bank.db"
WITNESS_FOLDER = "witness"
POLICY = """\
# What the payout agent may do. Whatever no rule permits is denied.
chains:
  treasurers:
    tiers: [{quorum: 2, roles: [treasurer], deadline: 1h}]
rules:
  - id: payments
    permit: {tool: [send_payment]}
  - id: dual-approval
    dualApproval: {over: 10000.00 USD, chain: treasurers}
  - id: daily-limit
    maxDailyLimit: {limit: 100000.00 USD}
"""
# Alice has a key on her desk and one in her pocket: two keys, one voter.
PEOPLE = {"alice": "p-alice", "alice-phone": "p-alice", "bob": "p-bob"}


class Step(Struct, frozen=True):
    """One step as it happened. `facts` are what its lines are made of."""

    n: int
    name: str
    facts: dict[str, Any]


class Ground(Struct, frozen=True):
    """Where the ledger stands. `lease_ms` 0: a kernel's lock tells of a dead owner at once; else its lease must run out first."""

    uri: str
    lease_ms: int = 0
    says: str = ""
    pids: tuple[int, ...] = ()


# -- the folder ------------------------------------------------------------------------------------------------------------------
def clear(folder: Path) -> None:
    """An empty folder with the marker in it. Raises Misuse for a folder that is there and is not the demo's."""
    if folder.is_symlink() or (folder.exists() and not (folder / MARKER).is_file()):
        raise Misuse(
            "this folder is not the demo's", code="MDM-0801", where=str(folder), expected=f"no folder, or one with {MARKER} in it",
            why="the demo empties its folder before it begins", fix="mandamus demo --dir ANOTHER",
        )  # fmt: skip
    try:
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        (folder / MARKER).write_text(_MARK)
        (folder / POLICY_FILE).write_text(POLICY)
    except OSError as error:
        raise Misuse(f"the folder cannot be written: {error.strerror}", code="MDM-0802", where=str(folder), fix="--dir FOLDER") from None


def ledger_uri(folder: Path) -> str:
    """Tier dev: a file in the folder."""
    return f"sqlite:///{folder / 'run.db'}"


def home(folder: Path) -> wiring.Home:
    """Keys, trust file and kept texts: in the folder, wherever the ledger stands."""
    return wiring.home_of(ledger_uri(folder))


def log_key(folder: Path) -> str:
    """The public line of the ledger's log, which its witness must know before the first record."""
    return home(folder).signer("log").vkey


def believe(folder: Path, name: str, vkey: str) -> None:
    """The trust file demands this witness: what it has not cosigned is not witnessed."""
    kept = home(folder)
    kept.trust()
    path = kept.trust_file
    assert path is not None
    path.write_text(path.read_text().replace("quorum none", f"witness {name} {vkey}\nquorum {name}"))


def surroundings(folder: Path, witness: str) -> dict[str, str]:
    """Where the log lies, and who cosigns it: the actors inherit it."""
    return {"MANDAMUS_LOG": f"folder://{(folder / '.mandamus' / 'log').absolute()}", "MANDAMUS_WITNESSES": witness}


def key_file(folder: Path, name: str) -> Path:
    return folder / "people" / f"{name}.pem"
