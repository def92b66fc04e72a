"""The entry point: a lazy table of verbs, one way for errors, one table of exit codes.

The rule a newcomer would break: no verb prints an error or exits by itself. It raises; here the diagnosis is printed, once, with the
exit code of its class, and a traceback only with --debug.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mandamus import _interrupt
from mandamus.cli.say import Closed, as_json, say
from mandamus.cli.table import ALIASES, EXITS, NOUNS, VERBS, page, words
from mandamus.errors import Diagnosis, MandamusError, Misuse

if TYPE_CHECKING:
    import click

USAGE, INTERRUPTED = 2, 130
_COMPLETE = "_MANDAMUS_COMPLETE"


def run(argv: Sequence[str] | None = None) -> None:
    """The program. Ends the process with its exit code."""
    code = INTERRUPTED
    try:
        _interrupt.hear()
        code = main(argv)
        _interrupt.hush()
    except KeyboardInterrupt:  # it came when the verb had done its work
        _interrupt.hush()
    try:
        sys.stdout.flush()
    except (OSError, ValueError, AttributeError):
        _deafen()
    sys.exit(code)


def main(argv: Sequence[str] | None = None) -> int:
    """The program as a function: the exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        return _quick(args) if _is_quick(args) else _click(args)
    except Closed:
        _deafen()
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except MandamusError as error:
        return _told(error, args)
    except Exception as error:  # a bug of ours; the person still gets a sentence and a way on
        return _told(_internal(error), args, error)


def _is_quick(args: list[str]) -> bool:
    return _COMPLETE not in os.environ and (not args or args[0] in ("--help", "-h", "--version"))


def _quick(args: list[str]) -> int:
    """What needs the table alone."""
    if args and args[0] == "--version":
        from mandamus import __version__

        say(f"mandamus {__version__}")
        return 0
    say(page())
    return 0 if args else USAGE


def _click(args: list[str]) -> int:
    import click

    try:
        code = root().main(_aliased(args), prog_name="mandamus", standalone_mode=False, complete_var=_COMPLETE)
        return int(code or 0)
    except click.exceptions.Exit as done:
        return int(done.exit_code)
    except SystemExit as done:
        if _COMPLETE in os.environ:  # completion has answered
            return int(done.code or 0)
        what = "the agent's code ended the process by sys.exit"
        return _told(MandamusError(what, code="MDM-0027", why="the log is safe", fix="take that call out; --debug shows where"), args, done)
    except click.Abort:
        return INTERRUPTED
    except click.UsageError as error:
        return _told(_usage(error), args)
    except click.ClickException as error:
        return _told(Misuse(error.format_message(), code="MDM-0003"), args)


def _aliased(args: list[str]) -> list[str]:
    """Other words for ours; the longest match wins."""
    for n in (2, 1):
        ours = ALIASES.get(" ".join(args[:n])) if len(args) >= n else None
        if ours:
            return [*ours.split(), *args[n:]]
    return args


# -- the table as commands -------------------------------------------------------------------------------------------------------
def root() -> click.Group:
    """The click group over the table; a command is imported when it is called."""
    import click

    class Lazy(click.Group):
        def __init__(self, name: str, table: dict[str, tuple[str, str]], nouns: bool = False, **more: Any) -> None:
            super().__init__(name, **more)
            self.table, self.nouns = table, nouns

        def list_commands(self, ctx: click.Context) -> list[str]:
            return [*self.table, *(NOUNS if self.nouns else ())]

        def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
            if self.nouns and cmd_name in NOUNS:
                line, verbs = NOUNS[cmd_name]
                return Lazy(cmd_name, verbs, help=line, context_settings=_SETTINGS)
            return _load(self.table[cmd_name]) if cmd_name in self.table else None

        def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
            with formatter.section("Commands"):
                formatter.write_dl([(name, line) for name, (_, line) in self.table.items()])

        def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
            known = self.list_commands(ctx)
            if args and args[0] not in known and not args[0].startswith("-"):
                raise _no_such(self.name or "", args[0], [*known, *(words() if self.nouns else ())])
            return super().resolve_command(ctx, args)

    return Lazy("mandamus", VERBS, nouns=True, help="Let an agent act, and prove what it did.", context_settings=_SETTINGS)


_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


def _load(entry: tuple[str, str]) -> Any:
    import importlib

    module, _, name = entry[0].partition(":")
    command = getattr(importlib.import_module(f"mandamus.cli.{module}"), name)
    known = {word for param in command.params for word in param.opts}
    command.params += [made for word, made in _options().items() if word not in known and not command.ignore_unknown_options]
    return command


def _options() -> dict[str, click.Option]:
    """Options of every verb that a command need not do anything about; --debug is read by `_told`."""
    import click

    flags = {"--debug": "The only way to a traceback.", "--no-input": "Never ask.", "--quiet": "Only the answer."}
    return {
        word: click.Option([word, *(["-q"] if word == "--quiet" else [])], is_flag=True, expose_value=False, help=text)
        for word, text in flags.items()
    }


def _no_such(group: str, word: str, known: list[str]) -> Misuse:
    import difflib

    near = difflib.get_close_matches(word, known, n=1)
    if word in known:  # the first word of an alias of two
        near = [" or ".join(alias for alias in ALIASES if alias.startswith(f"{word} "))]
    before = "mandamus" if group == "mandamus" else f"mandamus {group}"
    fix = f"did you mean: {before} {near[0]}" if near else f"{before} --help"
    return Misuse(f"there is no command {word[:40]!a}", code="MDM-0002", fix=fix)


# -- errors ----------------------------------------------------------------------------------------------------------------------
def _usage(error: click.UsageError) -> Misuse:
    where = error.ctx.command_path if error.ctx else "mandamus"
    return Misuse(error.format_message().rstrip("."), code="MDM-0003", where=where, fix=f"{where} --help")


def _internal(error: Exception) -> MandamusError:
    import traceback

    last = traceback.extract_tb(error.__traceback__)[-1:] or None
    at = f"{os.path.basename(last[0].filename)}:{last[0].lineno}" if last else ""
    return MandamusError(
        f"a fault of the program itself ({type(error).__name__})", code="MDM-0001", where=at,
        why="what is in the ledger is safe: it is written before anything is done", fix="again with --debug, and report what it prints",
    )  # fmt: skip


def _told(error: MandamusError, args: Sequence[str], cause: BaseException | None = None) -> int:
    """The diagnosis on stderr, or with --json as one object on stdout."""
    if "--debug" in args:
        import traceback

        say("".join(traceback.format_exception(cause or error)).rstrip(), sys.stderr)
    try:
        if "--json" in args:
            say(as_json({"error": fields(error), "exit_code": error.exit_code}))
        else:
            say(text(error), sys.stderr)
    except (Closed, Misuse):
        _deafen()
    return error.exit_code


def fields(error: MandamusError) -> dict[str, Any]:
    """The diagnosis, and every reason of a refused start."""
    out: dict[str, Any] = {"class": type(error).__name__, **error.diagnosis.as_json()}
    reasons = getattr(error, "reasons", ())
    if reasons:
        out["reasons"] = [{"code": r.code, "articles": r.articles, "what": r.what, "fix": r.fix} for r in reasons]
    return out


ROWS_MAX = 12


def text(error: MandamusError) -> str:
    """At most twelve rows; of a refused start each reason with its fix."""
    from mandamus.cli.say import hides

    reasons = getattr(error, "reasons", ())
    if reasons:
        rows = [f"{error.diagnosis.code}  the run may not start: {len(reasons)} reason{'s' if len(reasons) > 1 else ''}"]
        for r in reasons[:5]:
            rows += [f"  {r.code}  {r.what}" + (f" ({r.articles})" if r.articles else ""), f"    fix     {r.fix}"]
        if len(reasons) > 5:
            rows.append(f"  and {len(reasons) - 5} more: again with --json")
    else:
        rows = _rows(error.diagnosis)
    rows = ["".join(c if not hides(c) else c.encode("unicode_escape").decode() for c in row) for row in rows]
    return "\n".join(rows[:ROWS_MAX])


def _rows(d: Diagnosis) -> list[str]:
    rows = str(d).split("\n")
    return rows if len(rows) <= ROWS_MAX else [*rows[: ROWS_MAX - 2], *rows[-2:]]


def _deafen() -> None:
    """Nobody reads any more: what Python still flushes at its end goes nowhere."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
    except (OSError, ValueError, AttributeError):
        pass


__all__ = ["EXITS", "main", "run"]

if __name__ == "__main__":
    run()
