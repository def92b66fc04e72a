"""What every verb shares: its options, the ledger it stands on, how it speaks and how it asks.

The rule a newcomer would break: data goes to stdout, everything else to stderr, and a verb that only reads never makes a ledger.
"""

from __future__ import annotations

import asyncio
import functools
import select
import shlex
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import click

from mandamus.cli import say as out
from mandamus.errors import Misuse

if TYPE_CHECKING:
    from mandamus.ports import Ledger
    from mandamus.runtime.env import Env

T = TypeVar("T")
Code = int | None


def typed() -> str:
    """A line of the person's. Ctrl-C that comes just before the wait is heard too: a blocking read would sit on it."""
    while not select.select([sys.stdin], [], [], 0.1)[0]:
        pass
    line = sys.stdin.readline()
    if not line:
        raise KeyboardInterrupt
    return line.strip()


class Cli:
    """One call of one verb."""

    def __init__(self, *, json: bool, quiet: bool, verbose: int, debug: bool, no_input: bool, ledger: str | None) -> None:
        self.json, self.quiet, self.verbose, self.debug, self.no_input = json, quiet, verbose, debug, no_input
        self.ledger_given = ledger
        self.stdout: TextIO = sys.stdout  # as it was when the verb began: an agent's own prints are sent elsewhere

    # -- speaking ----------------------------------------------------------------------------------------------------------------
    def tell(self, data: Mapping[str, Any], text: str | Callable[[], str]) -> None:
        """The answer: one JSON object with --json, else the text."""
        if self.json:
            out.say(out.as_json(data), self.stdout)
            return
        words = text if isinstance(text, str) else text()
        if words:
            out.say(words, self.stdout)

    def line(self, data: Mapping[str, Any], text: str) -> None:
        """One element of a stream."""
        out.say(out.as_json(data) if self.json else text, self.stdout)

    def note(self, text: str) -> None:
        """Said beside the answer, for people."""
        if not self.quiet:
            out.say(text, sys.stderr)

    # -- asking ------------------------------------------------------------------------------------------------------------------
    def may_ask(self) -> bool:
        return not self.no_input and not self.json and sys.stdin is not None and sys.stdin.isatty()

    def ask(self, question: str, instead: str) -> str:
        """A person's answer. Raises Misuse when nobody can be asked; `instead` is the option that says it."""
        if not self.may_ask():
            raise Misuse(
                "nobody can be asked here", code="MDM-0015", why="there is no terminal, or --no-input or --json was given", fix=instead
            )
        sys.stderr.write(question)
        sys.stderr.flush()
        return typed()

    # -- the ledger --------------------------------------------------------------------------------------------------------------
    @property
    def uri(self) -> str:
        from mandamus import wiring

        return wiring.ledger_uri(self.ledger_given)

    def command(self, words: str) -> str:
        """A command to type next, that finds this ledger: `mandamus WORDS`, with --ledger when the default is another."""
        from mandamus import wiring

        return f"mandamus {words}" + ("" if self.uri == wiring.ledger_uri() else f" --ledger {shlex.quote(self.place)}")

    @property
    def place(self) -> str:
        """The ledger's URI as it may be printed: a password in it is somebody's secret."""
        return out.without_password(self.uri)

    def must_exist(self) -> None:
        """Raises Misuse: reading must not make a ledger."""
        from mandamus import wiring

        path = wiring.ledger_file(self.uri)
        if not wiring.ledger_store(self.uri).lasts:
            raise Misuse(
                "a ledger in memory holds nothing for another process", code="MDM-0010", where=self.uri, fix="--ledger sqlite:///FILE"
            )
        if path and not path.exists():
            raise Misuse(
                "there is no ledger",
                code="MDM-0010",
                where=str(path),
                fix="mandamus run AGENT PROMPT makes one, or name it: --ledger sqlite:///FILE",
            )

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Ledger]:
        """The ledger alone: no key is needed to read."""
        from mandamus import wiring

        self.must_exist()
        ledger = wiring.open_ledger(self.uri)
        try:
            yield ledger
        finally:
            await ledger.close()

    @asynccontextmanager
    async def env(self, *, make: bool = False) -> AsyncIterator[Env]:
        """Everything: ledger, keys, trust file. `make`: a ledger that is not there is made."""
        from mandamus import wiring

        if not make:
            self.must_exist()
        env = await wiring.open_env(self.uri, warn=self.note)
        try:
            yield env
        finally:
            await wiring.close_env(env)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run(work)


def verb(
    name: str = "", *, exits: Mapping[int, str] | None = None, help: str = "", **settings: Any
) -> Callable[[Callable[..., Code]], click.Command]:
    """`@verb("runs", exits={...})` over `def runs(cli, ...) -> exit code or None`: a command with the options of every verb."""

    def make(fn: Callable[..., Code]) -> click.Command:
        @functools.wraps(fn)
        def call(as_json: bool, quiet: bool, verbose: int, debug: bool, no_input: bool, ledger: str | None, **given: Any) -> int:
            cli = Cli(json=as_json, quiet=quiet, verbose=verbose, debug=debug, no_input=no_input, ledger=ledger)
            return fn(cli, **given) or 0

        wrapped: Any = call
        for option in reversed(_common()):
            wrapped = option(wrapped)
        made: Callable[[Any], click.Command] = click.command(
            name or fn.__name__, help=help or fn.__doc__, epilog=_epilog(exits or {}), context_settings=_CONTEXT, **settings
        )
        return made(wrapped)

    return make


_CONTEXT = {"help_option_names": ["-h", "--help"]}


def _epilog(exits: Mapping[int, str]) -> str:
    """What the codes mean for this verb; the rest is the one table."""
    said = {0: "done", 1: "failed, broken", 2: "usage", **exits}
    return "Exit codes: " + " | ".join(f"{code} {what}" for code, what in sorted(said.items()))


def _common() -> list[Callable[[Any], Any]]:
    return [
        click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout (streams: one per line)."),
        click.option("-q", "--quiet", is_flag=True, help="Only the answer."),
        click.option("-v", "--verbose", count=True, help="More of it."),
        click.option("--debug", is_flag=True, help="The only way to a traceback."),
        click.option("--no-input", is_flag=True, help="Never ask."),
        click.option(
            "--ledger", metavar="URI", help="sqlite:///FILE, postgres://..., nats://...; else $MANDAMUS_LEDGER, .mandamus/run.db."
        ),
    ]


def run_ids(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Completion from the ledger, or nothing: it may never fail or make a ledger."""
    try:
        cli = Cli(json=False, quiet=True, verbose=0, debug=False, no_input=True, ledger=ctx.params.get("ledger"))
        return cli.run(_matching(cli, incomplete))
    except Exception:
        return []


async def _matching(cli: Cli, incomplete: str) -> list[str]:
    async with cli.reading() as ledger:
        return [h.run async for h in ledger.runs() if h.run != "log" and h.run.startswith(incomplete.upper())][:50]
