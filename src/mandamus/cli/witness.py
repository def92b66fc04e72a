"""`witness serve|status`: cosign the checkpoints of other people's logs, and ask those who cosign ours.

The rule a newcomer would break: a witness is of use only where somebody else runs it, on another machine, with a key that does nothing
else. One that stands beside the log it watches proves that the log has a friend.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from mandamus.cli.common import Cli, verb
from mandamus.cli.say import Closed, shown, table
from mandamus.errors import MandamusError, Misuse

if TYPE_CHECKING:
    from mandamus.ports import Signer, Witness
    from mandamus.runtime.env import Env

NEW_KEY = "mandamus key new witness.pem --name witness.example/w1 --kind cosigner"
_ENDS = {0: "asked to end, by SIGTERM or Ctrl-C", 5: "its memory cannot be used"}


@verb("serve", exits=_ENDS)
@click.option("--key", "named", metavar="FILE|URI", help="The witness's own key: a file of kind cosigner, or pkcs11:… in a token.")
@click.option("--db", "database", metavar="FILE", default="witness.db", help="What it has seen; default: witness.db.")
@click.option("--log", "logs", metavar="VKEY", multiple=True, required=True, help="A log it watches (its `log` line); again for each.")
@click.option(
    "--listen", metavar="HOST:PORT", default="127.0.0.1:7380", help="Where it answers; default: 127.0.0.1:7380. TLS is for a proxy."
)
@click.option("--init", is_flag=True, help="Make the file of --db: only for a key that has never cosigned.")
def serve(cli: Cli, named: str | None, database: str, logs: tuple[str, ...], listen: str, init: bool) -> int:
    """Cosign checkpoints of the logs that are named, as long as they only grow (C2SP tlog-witness: POST /add-checkpoint)."""
    from mandamus.proof.witnessing import logs_of
    from mandamus.server.memory import Memory
    from mandamus.server.witness import Witness, cosigner

    host, port = _address(listen)
    signer = _signer(cli, named)
    watched, own = logs_of(logs), cosigner(signer)
    for key in (key for keys in watched.values() for key in keys):
        if key.public == own.public:
            raise Misuse("the witness's key is the log's own", code="MDM-0946", where=key.name, fix=NEW_KEY)
    core = Witness(signer, Memory.open(database, signer.vkey, new=init), watched, tell=lambda said: _told(cli, said))
    try:
        cli.run(_served(cli, core, host, port))
    finally:
        core.close()
    return 0


def _signer(cli: Cli, named: str | None) -> Signer:
    from mandamus import wiring
    from mandamus.cli.keys import open_key
    from mandamus.server.witness import Cosigner

    if named and ":" in named and named.partition(":")[0] in wiring.SIGNERS:
        return Cosigner(wiring.signer(named, "cosigner"))
    return open_key(cli, named, NEW_KEY)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise Misuse("this is no address to listen at", code="MDM-0958", expected="HOST:PORT, such as 127.0.0.1:7380", found=text[:80])
    return host, int(port)


async def _served(cli: Cli, core: Any, host: str, port: int) -> None:
    from mandamus.server import http
    from mandamus.server.witness import LIMITS

    loop, ends = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ends.set)
    try:
        server = await http.serve(core.answer, host, port, LIMITS)
    except OSError as error:
        raise Misuse(
            f"nothing can listen there: {error.strerror or error}", code="MDM-0958", where=f"{host}:{port}", fix="--listen HOST:PORT"
        ) from None
    _told(cli, {"event": "listening", "address": f"{host}:{server.port}", "logs": sorted(core.logs), "vkey": str(core.key)})
    try:
        await ends.wait()
    finally:
        await server.close()
    _told(cli, {"event": "ended"})


def _told(cli: Cli, said: dict[str, Any]) -> None:
    """One line for each thing that happened. It may come from the thread that writes: a line is one write."""
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    with contextlib.suppress(Closed):  # nobody reads any more; whoever asks is answered all the same
        cli.line({"at": at, **said}, f"{at}  {_WORDS[said['event']](said)}")


_WORDS: dict[str, Callable[[dict[str, Any]], str]] = {
    "listening": lambda s: f"witness {s['vkey']}\n  at {s['address']}, for {', '.join(s['logs'])}",
    "asked": lambda s: f"{s['status']}  {shown(s['origin'])}  {s['old']} -> {s['size']}  (knows {s['known']})",
    "turned": lambda s: f"{s['status']}  {shown(s['why'])}",
    "fault": lambda s: f"500  {s['code']} {s['what']}: {shown(s['found'])}",
    "ended": lambda s: "ended",
}


# -- the other side --------------------------------------------------------------------------------------------------------------
@verb(
    "status",
    exits={0: "the newest checkpoint is witnessed, or nobody is asked for", 1: "a witness contradicts the log", 4: "not witnessed yet"},
)
def status(cli: Cli) -> int:
    """What the witnesses of MANDAMUS_WITNESSES know of this ledger's log, and whether their quorum has cosigned it."""
    return cli.run(_status(cli))


async def _status(cli: Cli) -> int:
    from mandamus import wiring

    asked = wiring.witnesses()
    try:
        async with cli.env() as env:
            found = await _found(env, asked)
    finally:
        for one in asked:
            await one.close()
    cli.tell(found, lambda: _page(found))
    return 0 if found["met"] or found["quorum"] == "none" else 4


async def _found(env: Env, asked: Sequence[Witness]) -> dict[str, Any]:
    """Raises ProofError when a witness knows more than there is."""
    from mandamus.proof.keys import parse_vkey
    from mandamus.proof.note import Checkpoint, sign_line, write
    from mandamus.proof.tree import EMPTY_ROOT
    from mandamus.runtime.witnesses import ask, refuse_rollback

    empty = Checkpoint(env.origin, 0, EMPTY_ROOT).text  # may be shown to anybody: every log begins with it
    known = await ask(asked, write(empty, [sign_line(empty, parse_vkey(env.signer.vkey), env.signer.sign)]))
    newest, witnessed = await _sizes(env)
    refuse_rollback(known, await env.tlog.size() if env.tlog else newest, env.origin)
    believed = env.trust().witnesses
    rows = [_row(one, known.get(one.name), newest, believed) for one in asked]
    quorum = env.trust().quorum or "none"
    met = quorum != "none" and newest > 0 and witnessed >= newest
    return {"met": met, "origin": env.origin, "quorum": quorum, "size": newest, "witnessed": witnessed, "witnesses": rows}


async def _sizes(env: Env) -> tuple[int, int]:
    """(size of the newest signed checkpoint, of the newest that the quorum cosigned); 0 where there is none."""
    if env.tlog is None:
        return 0, 0
    signed, cosigned = await env.tlog.newest("sealed"), await env.tlog.newest("witnessed")
    return tuple(shown.checkpoint.size if shown else 0 for shown in (signed, cosigned))  # type: ignore[return-value]


def _row(one: Witness, said: int | MandamusError | None, newest: int, believed: dict[str, Any]) -> dict[str, Any]:
    knows = said if isinstance(said, int) else None
    fault = f"{said.diagnosis.code} {said.diagnosis.what}" if isinstance(said, MandamusError) else ""
    key = getattr(one, "key", None)
    return {
        "anchor": bool(getattr(one, "anchors", False)), "fault": fault, "knows": knows, "lag": None if knows is None else newest - knows,
        "name": one.name, "residency": getattr(one, "residency", "any"), "trusted": key in believed.values(),
    }  # fmt: skip


def _page(found: dict[str, Any]) -> str:
    rows = [f"log {shown(found['origin'])}  size {found['size']}"]
    if found["quorum"] == "none":
        rows.append("the trust file asks for no quorum of witnesses (`witness`, `group` and `quorum` lines)")
    else:
        state = "met" if found["met"] else "not met"
        rows.append(f"quorum {shown(found['quorum'])}: {state}, cosigned up to {found['witnessed']}")
    if not found["witnesses"]:
        return "\n".join([*rows, "no witness is asked: MANDAMUS_WITNESSES names them"])
    lines = [
        (w["name"], "anchor" if w["anchor"] else str(w["knows"]) if w["knows"] is not None else w["fault"], _lag(w),
         "yes" if w["trusted"] else "anchor line" if w["anchor"] else "no: not in the trust file")
        for w in found["witnesses"]
    ]  # fmt: skip
    return "\n".join([*rows, table(("witness", "knows", "lag", "counts"), lines)])


def _lag(row: dict[str, Any]) -> str:
    return "" if row["lag"] is None else str(row["lag"])
