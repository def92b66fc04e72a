"""`doctor [AGENT]`: is this machine, ledger and agent fit to run? Each line is ok, degraded or broken, with its fix.

The rule a newcomer would break: nothing is started and nothing is made. With AGENT every reason why it may not start is told at once.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import platform
import stat
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import click
from msgspec import Struct

from mandamus.cli import agents, read
from mandamus.cli.chains import AT_MOST, walk_all
from mandamus.cli.common import Cli, verb
from mandamus.cli.progress import Progress
from mandamus.cli.say import paint, shown
from mandamus.cli.whom import Whom
from mandamus.core.strict import did_you_mean
from mandamus.errors import MandamusError, Misuse, ProofError, Unavailable
from mandamus.ports import Head, Ledger

CLOCK_BACK_US = 60_000_000
PACKAGES = ("msgspec", "orjson", "apsw", "cedarpy", "cryptography", "click", "httpx")
EXTRAS = ("psycopg", "nats-py")  # of ledgers on servers: named when they are there


class Line(Struct, frozen=True):
    """`state`: ok, degraded or broken."""

    check: str
    state: str
    says: str
    fix: str = ""


@verb("doctor", exits={0: "fit, perhaps degraded", 1: "something is broken", 3: "the agent may not start"})
@click.argument("agent", metavar="[AGENT]", required=False)
@click.option("--quick", is_flag=True, help="Leave out the walk of every chain.")
@click.option("--walk", "at_most", type=click.IntRange(0), default=AT_MOST, metavar="N", show_default=True, help="Events walked; 0: all.")
def doctor(cli: Cli, agent: str | None, quick: bool, at_most: int) -> int:
    """Check ledger, chains, keys, policies, clock and isolation; with AGENT also why it may not start. Nothing is started."""
    return cli.run(_doctor(cli, agent, -1 if quick else at_most))


async def _doctor(cli: Cli, reference: str | None, at_most: int) -> int:
    """`at_most`: events of the chains; 0 all, -1 none."""
    lines = [_versions(), _isolation(), _console(cli)]
    checks: dict[str, Callable[[Cli], Awaitable[list[Line]]]] = {
        "ledger": _ledger,
        "log": _chain_log,
        "chains": functools.partial(_chains, at_most),
        "clock": _clock,
        "heads": _heads,
        "tlog": _tlog,
    }
    for name, check in checks.items():
        found, silent = await _tried(name, check, cli)
        lines += found
        if silent:  # who does not answer is not asked again and again
            break
    lines += _keys(cli) + _trust(cli)
    refused = False
    if reference:
        with contextlib.redirect_stdout(sys.stderr):
            found, refused = await _agent(cli, reference)
        lines += found
    code = 1 if any(x.state == "broken" for x in lines) else 3 if refused else 0
    cli.tell(
        {"exit_code": code, "lines": [{"check": x.check, "fix": x.fix, "says": x.says, "state": x.state} for x in lines]},
        lambda: _words(cli, lines),
    )
    return code


def _words(cli: Cli, lines: list[Line]) -> str:
    styles = {"ok": "green", "degraded": "yellow", "broken": "red", "refused": "red"}
    rows = []
    for x in lines:
        rows.append(f"{paint(x.state.ljust(8), styles[x.state], cli.stdout)}  {x.check.ljust(10)}  {shown(x.says)}")
        if x.fix:
            rows.append(f"          {'fix'.ljust(10)}  {shown(x.fix)}")
    return "\n".join(rows)


async def _tried(name: str, check: Callable[[Cli], Awaitable[list[Line]]], cli: Cli) -> tuple[list[Line], bool]:
    """(what was found, whether the ledger does not answer at all). A check that raises is a finding, not an end."""
    try:
        return await check(cli), False
    except MandamusError as error:
        d = error.diagnosis
        state = "degraded" if d.code == "MDM-0010" else "broken"
        found = f", found: {d.found}" if isinstance(error, Unavailable) and d.found else ""
        line = Line(name, state, f"{d.code} {d.what}" + (f" ({d.where})" if d.where else "") + found, d.fix)
        return [line] if name == "ledger" or state == "broken" else [], isinstance(error, Unavailable)


# -- the machine ---------------------------------------------------------------------------------------------------------------
def _versions() -> Line:
    from importlib.metadata import PackageNotFoundError, version

    from mandamus import __version__

    found, missing = [], []
    for name in (*PACKAGES, *EXTRAS):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing += [name] if name in PACKAGES else []
    says = f"mandamus {__version__}, Python {platform.python_version()}, {', '.join(found)}"
    return (
        Line("versions", "broken", f"missing: {', '.join(missing)}", "install mandamus again") if missing else Line("versions", "ok", says)
    )


def _isolation() -> Line:
    from mandamus.runtime.recover import ISOLATION

    return Line("isolation", "degraded", f"tools run {ISOLATION}: tier dev only", "give the process no right that its tools must not have")


def _console(cli: Cli) -> Line:
    encoding = getattr(cli.stdout, "encoding", None) or "ascii"
    try:
        "…→✓".encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return Line("console", "degraded", f"{encoding} cannot show every character; plain ones stand in", "PYTHONUTF8=1")
    return Line("console", "ok", encoding)


# -- the ledger ----------------------------------------------------------------------------------------------------------------
async def _ledger(cli: Cli) -> list[Line]:
    async with cli.reading() as ledger:
        driver = getattr(ledger, "inner", ledger)  # below what seals
        check, told = getattr(driver, "check", None), await _asked(driver)
        runs = [h async for h in ledger.runs()]
    path = _path(cli)
    checked = "every page and setting checked" if path else "every setting checked" if check else "no check of its own"
    held = sum(h.run != "log" for h in runs)
    lines = [Line("ledger", "ok", f"{path or cli.place}: {held} run{'' if held == 1 else 's'}, {checked}"), *told]
    if path is None:  # what lies behind it is not this machine's disk
        return lines
    took = _fsync_ms(path.parent)
    state = "ok" if took < 50 else "degraded"
    fix = "" if state == "ok" else "put the ledger on a local disk: two flushes a turn wait for it"
    return [*lines, Line("flush", state, f"fsync takes {took:.1f} ms", fix)]


async def _asked(ledger: Any) -> list[Line]:
    """The driver's own check, which raises for what is unsafe, and what it has to tell: settings by name, findings with their fix."""
    driver: Any = getattr(ledger, "inner", ledger)  # below what seals its payloads
    facts = await driver.check() if hasattr(driver, "check") else None
    findings = await driver.findings() if hasattr(driver, "findings") else ()
    lines = [Line("ledger", state, says, fix) for state, says, fix in findings]
    if isinstance(facts, Mapping) and facts:
        lines.insert(0, Line("ledger", "ok", ", ".join(f"{name} {value or 'none'}" for name, value in facts.items())))
    return lines


def _path(cli: Cli) -> Path | None:
    from mandamus import wiring

    return wiring.ledger_file(cli.uri)


def _fsync_ms(folder: Path) -> float:
    """Median of five small flushes beside the ledger."""
    probe = folder / f".fsync-{os.getpid()}"
    took = []
    try:
        with open(probe, "xb") as file:
            for _ in range(5):
                began = time.perf_counter_ns()
                file.write(b"x" * 4096)
                file.flush()
                os.fsync(file.fileno())
                took.append((time.perf_counter_ns() - began) / 1e6)
    except OSError as error:
        fix = "free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "make it writable"
        raise Misuse(f"the ledger's folder cannot be written: {error.strerror}", code="MDM-0024", where=str(folder), fix=fix) from None
    finally:
        probe.unlink(missing_ok=True)
    return sorted(took)[2]


async def _chain_log(cli: Cli) -> list[Line]:
    """Chain `log` holds, and every allowance on it counts."""
    from mandamus.cli.allowance import allowances
    from mandamus.core.records import LOG
    from mandamus.proof.chain import walk
    from mandamus.proof.report import Broken

    async with cli.reading() as ledger:
        raws = [raw async for raw in ledger.read(LOG)]
        walked = walk(raws, LOG)
        if walked.fault is not None:
            raise Broken(walked.fault)
        ignored = [a for a in await allowances(cli, ledger) if a.state not in ("in force", "over", "withdrawn")]
    lines = [
        Line("log", "ok", f"chain log: {len(raws)} record{'' if len(raws) == 1 else 's'}, each linked to the one before"),
        *_owned(cli, raws),
    ]
    if ignored:
        lines.append(
            Line("log", "degraded", f"{len(ignored)} standing votes count for nothing: {ignored[0].state}", "mandamus allowance list")
        )
    return lines


def _owned(cli: Cli, raws: list[bytes]) -> list[Line]:
    """Whether the log's key beside us is this ledger's: with another one nothing goes on, and only then would it be noticed."""
    from mandamus import wiring
    from mandamus.core.records import LogOpened, decode
    from mandamus.drivers.sign_file import FileSigner

    path = (wiring.home_of(cli.uri).folder or Path(".")) / "keys" / "log.pem"
    opened = decode(raws[0]).fact if raws else None
    if not isinstance(opened, LogOpened):
        return []
    if not path.exists():
        return [Line("log", "ok", f"no {path} here: this machine can look at the ledger, and drives nothing of it")]
    try:
        origin = FileSigner.open(path).vkey.partition("+")[0]
    except MandamusError:
        return []  # the keys' own line says so
    if origin == opened.origin:
        return []
    return [
        Line(
            "log",
            "broken",
            f"MDM-0240 this ledger belongs to {opened.origin}, and {path} is the key of {origin}",
            "put the ledger's own log.pem there",
        )
    ]


async def _chains(at_most: int, cli: Cli) -> list[Line]:
    """Every record, link and payload: a file that was edited by hand is found here, not on the day of the audit."""
    if at_most < 0:
        return [Line("chains", "degraded", "not walked: an edited record would not be seen", cli.command("doctor"))]
    async with cli.reading() as ledger:
        total = sum([head.seq + 1 async for head in ledger.runs()])
        progress = Progress(cli, "chains", min(total, at_most) if at_most else total)
        done = await walk_all(ledger, at_most, progress.at)
        progress.end()
    lines = [Line("chains", "broken", fault.says(), fault.fix) for fault in done.faults]
    if done.left:
        left = f"{done.left} chain{'s' if done.left > 1 else ''} of {done.left + done.chains} not walked: {total} events are many"
        lines.append(Line("chains", "degraded", left, cli.command("doctor --walk 0")))
    whole = Line("chains", "ok", f"{done.chains} chains, {done.events} events: linked, in order, each payload as committed")
    return lines if done.faults else [whole, *lines]


async def _clock(cli: Cli) -> list[Line]:
    """Behind what the log has seen: every time recorded from now on would be the old one."""
    newest = 0
    async with cli.reading() as ledger:
        async for head in ledger.runs():
            newest = max(newest, await _last_claim(ledger, head))
    now = time.time_ns() // 1000
    if newest > now + CLOCK_BACK_US:
        behind = f"it is behind the ledger: {read.when(now)} after {read.when(newest)}"
        return [Line("clock", "broken", behind, "set the clock; deadlines would never pass")]
    return [Line("clock", "ok", f"{read.when(now)}, not behind the ledger")]


async def _heads(cli: Cli) -> list[Line]:
    """The witness of heads, where there is one."""
    from mandamus.cli.heads import findings

    return [Line("heads", state, says, fix) for state, says, fix in await findings(cli)]


async def _tlog(cli: Cli) -> list[Line]:
    """The transparency log, where there is one."""
    from mandamus.cli.log_state import findings

    return [Line("tlog", state, says, fix) for state, says, fix in await findings(cli)]


async def _last_claim(ledger: Ledger, head: Head) -> int:
    """When the last record of a chain says that it was written; one that cannot be read is told by the walk."""
    import datetime

    from mandamus.core.records import decode

    try:
        raws = [raw async for raw in ledger.read(head.run, head.seq - 1)]
        return max((int(datetime.datetime.fromisoformat(decode(raw).at).timestamp() * 1e6) for raw in raws), default=0)
    except (ProofError, ValueError):
        return 0


# -- keys ----------------------------------------------------------------------------------------------------------------------
def _keys(cli: Cli) -> list[Line]:
    from mandamus import wiring
    from mandamus.drivers.sign_file import FileSigner

    folder = wiring.home_of(cli.uri).folder
    out = []
    for role in wiring.ROLES:
        path = Path(folder or ".") / "keys" / f"{role}.pem"
        if not path.exists():
            continue
        try:
            FileSigner.open(path)
            out.append(Line("keys", "ok", f"{path} (mode {stat.S_IMODE(path.stat().st_mode):04o})"))
        except MandamusError as error:
            d = error.diagnosis
            out.append(Line("keys", "broken", f"{d.code} {path}: {d.what}", d.fix))
    return out


def _trust(cli: Cli) -> list[Line]:
    from mandamus import wiring
    from mandamus.proof.trust import Trust

    path = wiring.home_of(cli.uri).trust_file
    if path is None or not path.exists():
        return []
    try:
        trust = Trust.parse(path.read_bytes(), str(path))
    except MandamusError as error:
        d = error.diagnosis
        return [Line("trust", "broken", f"{d.code} {d.where}: {d.what}", d.fix)]
    people = sorted({p for p, _ in trust.approvers.values()})
    named = Whom(wiring.home_of(cli.uri).folder).roles()
    empty = sorted(role for role in named if not trust.roles.get(role))
    if not people:
        return [
            Line(
                "trust",
                "degraded",
                "nobody may vote: what asks for people waits until it expires",
                "mandamus key enroll --principal p-... --role ROLE --key FILE",
            )
        ]
    lines = [Line("trust", "ok", f"{len(people)} approver{'' if len(people) == 1 else 's'}: {', '.join(people)}")]
    if empty:
        fix = f"mandamus key enroll --principal p-... --role {empty[0]} --key FILE"
        lines.append(Line("trust", "degraded", f"nobody has role {', '.join(empty)}, which a chain names", fix))
    for role in sorted(set(trust.roles) - named) if named else ():
        fix = f"take its line out of {path}, or let a chain name it"
        lines.append(Line("trust", "degraded", f"no chain here names role {role}: {did_you_mean(role, named)}", fix))
    return lines


# -- the agent -----------------------------------------------------------------------------------------------------------------
async def _agent(cli: Cli, reference: str) -> tuple[list[Line], bool]:
    from mandamus.cli import fit

    try:
        agent = agents.load(reference)
        bound, found = await fit.reasons_of(cli, agent)
    except MandamusError as error:
        d = error.diagnosis
        return [Line("agent", "broken", f"{d.code} {d.where} {d.what}".replace("  ", " "), d.fix)], False
    out = [
        Line("agent", "ok", f"{agent.spec.name}: {len(agent.tools)} tools, model {agent.spec.model}"),
        *_model_key(agent),
        Line("policy", "ok", f"compiles, digest {bound.book.digest}"),
    ]
    for tool in agent.tools.values():
        if not tool.said_effect:
            out.append(
                Line(
                    "agent",
                    "degraded",
                    f"tool {tool.name} names no effect and counts as irreversible",
                    'effect="keyed", or another, in @tool(...)',
                )
            )
    out += [Line("start", "refused", f"{r.code}: {r.what}" + (f" ({r.articles})" if r.articles else ""), r.fix) for r in found]
    return out, bool(found)


def _model_key(agent: Any) -> list[Line]:
    """The variable that a model named by URI takes its key from; what else a driver may need, only its provider can say."""
    import importlib
    import re

    from mandamus import wiring

    scheme = agent.model.partition(":")[0] if isinstance(agent.model, str) else ""
    named = re.search(r"[?&]key=env:([A-Za-z_][A-Za-z0-9_]*)", agent.model) if scheme else None
    home = getattr(importlib.import_module(wiring.MODELS[scheme].partition(":")[0]), "HOME_KEY", "") if scheme and "+" not in scheme else ""
    variable = named[1] if named else str(home).removeprefix("env:")
    if not variable:
        return []
    if os.environ.get(variable, "").strip():
        return [Line("model", "ok", f"{variable} is set")]
    return [Line("model", "broken", f"{variable} is not set: the model would refuse every call (model_auth)", f"export {variable}=...")]
