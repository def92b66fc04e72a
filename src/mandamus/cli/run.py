"""`run` and `resume`: carry a run as far as it goes, and say whose turn it is when it stops.

The rule a newcomer would break: the first Ctrl-C starts nothing new and lets an open action end, because an action that is cut off is
an action nobody knows about. Only the second one leaves at once; the log is safe either way.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mandamus.cli import agents
from mandamus.cli import once as requests
from mandamus.cli.common import Cli, run_ids, verb
from mandamus.cli.keys import principal_id
from mandamus.cli.say import paint, shown, shown_json
from mandamus.cli.whom import Whom, named
from mandamus.core.run import ENDED
from mandamus.errors import Misuse, RunRefused

if TYPE_CHECKING:
    from mandamus.agent import Agent, RunResult
    from mandamus.cli.read import Story
    from mandamus.runtime.env import Env

EXITS = {
    0: "completed",
    1: "failed",
    3: "refused: a start condition, or a rejected action",
    4: "suspended",
    5: "halted, or an action is unknown",
    130: "interrupted",
    143: "ended by SIGTERM",
}
INPUT_MAX = 1 << 20
_STATES = {"completed": 0, "failed": 1, "cancelled": 1, "refused": 3, "suspended": 4, "halted": 5}


@verb("run", exits=EXITS)
@click.argument("agent", metavar="AGENT")
@click.argument("prompt", required=False)
@click.option("--input", "file", metavar="FILE", help="The prompt from a file; - is the standard input.")
@click.option("--thread", metavar="RUN", help="Continue the conversation of an earlier run.")
@click.option("--user", metavar="PRINCIPAL", help="On whose behalf, as an opaque id such as p-7f3a.")
@click.option("--deadline", metavar="TIME", help="End after this long, such as 10m.")
@click.option("--follow", is_flag=True, help="Each event as it is committed.")
@click.option("--detach", is_flag=True, help="Open the run and leave it to a worker: mandamus worker AGENT.")
@click.option("--pool", metavar="NAME", help="With --detach: whose workers take it; default: default.")
@click.option("--prio", type=click.IntRange(0, 9), metavar="N", help="With --detach: 0 to 9, the higher goes first; default: 0.")
@requests.options
def run(
    cli: Cli, agent: str, prompt: str | None, file: str | None, thread: str | None, user: str | None, deadline: str | None, follow: bool,
    detach: bool, pool: str | None, prio: int | None, once: str | None, dry_run: bool,
) -> int:  # fmt: skip
    """Start AGENT (agent.yaml, FILE.py:attr or module:attr) with PROMPT and carry its run as far as it goes."""
    words = _prompt(prompt, file)
    if user is not None:
        principal_id(user)
    if dry_run:
        return cli.run(_rehearse(cli, agent))
    if detach and not follow:
        return cli.run(_detach(cli, agent, words, once, pool or "default", prio or 0, thread=thread, user=user, deadline=deadline))
    if detach or pool is not None or prio is not None:
        what = "--follow tells of a run that this process carries" if detach else "--pool and --prio place a detached run"
        raise Misuse(what, code="MDM-0581", fix="mandamus run AGENT PROMPT --detach --pool NAME --prio N")
    return cli.run(_run(cli, agent, words, follow, once, thread=thread, user=user, deadline=deadline))


@verb("resume", exits=EXITS)
@click.argument("run_id", metavar="RUN", shell_complete=run_ids)
@click.option("--agent", "reference", metavar="AGENT", help="Where its agent is now; default: where `run` found it.")
@click.option("--follow", is_flag=True, help="Each event as it is committed.")
def resume(cli: Cli, run_id: str, reference: str | None, follow: bool) -> int:
    """Take RUN over (an id, the beginning of one, or last) and carry it on. A halt is lifted by it."""
    return cli.run(_resume(cli, run_id, reference, follow))


def _prompt(prompt: str | None, file: str | None) -> str:
    if (prompt is None) == (file is None):
        raise Misuse(
            "the prompt is missing" if prompt is None else "two prompts",
            code="MDM-0003",
            expected="PROMPT or --input FILE",
            fix='mandamus run AGENT "what to do"',
        )
    if prompt is not None:
        return prompt
    try:
        raw = sys.stdin.buffer.read(INPUT_MAX + 1) if file == "-" else Path(str(file)).read_bytes()
    except OSError as error:
        raise Misuse(f"the input cannot be read: {error.strerror}", code="MDM-0017", where=str(file)) from None
    if len(raw) > INPUT_MAX:
        raise Misuse("the input is too long", code="MDM-0017", where=str(file), expected=f"at most {INPUT_MAX} bytes")
    try:
        return raw.decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError:
        raise Misuse("the input is not UTF-8", code="MDM-0017", where=str(file)) from None


async def _rehearse(cli: Cli, reference: str) -> int:
    """Everything that is asked before a run opens. Nothing is opened, recorded or made. Raises RunRefused with every reason."""
    from mandamus.cli import fit

    with contextlib.redirect_stdout(sys.stderr):
        agent = agents.load(reference)
        bound, reasons = await fit.reasons_of(cli, agent)
    if reasons:
        fix = "; ".join(r.fix for r in reasons)
        raise RunRefused("the run may not start: " + "; ".join(f"{r.code}: {r.what}" for r in reasons), reasons, fix=fix)
    tools = {name: {"effect": t.spec.effect, "pin": t.spec.pin, "safety": t.spec.safety} for name, t in agent.tools.items()}
    data = {"agent": agent.spec.name, "definition": bound.definition, "dry_run": True, "ledger": cli.place, "manifest": agent.manifest}
    rows = [f"{shown(agent.spec.name)}  may start; nothing was started (--dry-run)", f"  model   {shown(agent.spec.model)}"]
    rows += [f"  tool    {shown(name)}  {t['safety']}, {t['effect']}" for name, t in tools.items()]
    data |= {"model": agent.spec.model, "policy": bound.book.digest, "tools": tools}
    cli.tell(data, "\n".join([*rows, f"  policy  {bound.book.digest}", f"  ledger  {shown(cli.place)}"]))
    return 0


async def _run(cli: Cli, reference: str, prompt: str, follow: bool, once: str | None, **options: Any) -> int:
    from mandamus.runtime.env import ulid

    with contextlib.redirect_stdout(sys.stderr):  # what an agent's code prints is no answer of ours
        agent = agents.load(reference)
        async with cli.env(make=True) as env:
            if options["thread"]:
                options["thread"] = await _id(env, options["thread"])
            _follow(cli, agent, follow)
            id = requests.run_id(env.home.signer("frontend"), env.origin, once) if once else ulid(env.time)
            with leaving(env) as left:
                if once and await env.ledger.head(id):
                    return await ended(cli, env, await _found(cli, env, agent, id, prompt, **options), left)
                with noted(env, id, reference):
                    result = await agent.run(prompt, ledger=env, run_id=id, **options)
            return await ended(cli, env, result, left)


async def _detach(cli: Cli, reference: str, prompt: str, once: str | None, pool: str, prio: int, **options: Any) -> int:
    """Open the run, and leave it where a worker finds it."""
    from mandamus.runtime.env import ulid

    _may_detach(cli, pool)
    with contextlib.redirect_stdout(sys.stderr):
        agent = agents.load(reference)
        async with cli.env(make=True) as env:
            if options["thread"]:
                options["thread"] = await _id(env, options["thread"])
            id = requests.run_id(env.home.signer("frontend"), env.origin, once) if once else ulid(env.time)
            head = await env.ledger.head(id) if once else None
            if head is not None:
                await _same(cli, env, agent, id, prompt, options["user"], options["thread"])
                pool, prio = head.pool, head.prio
            else:
                with noted(env, id, reference):
                    await agent.open(prompt, ledger=env, run_id=id, pool=pool, prio=prio, **options)
    step = cli.command(f"worker {shlex.quote(reference)}" + ("" if pool == "default" else f" --pool {pool}"))
    data = {"detached": True, "next": step, "pool": pool, "prio": prio, "repeated": head is not None, "run_id": id}
    cli.tell(data, f"run {id}  waits in pool {pool} for a worker: {step}")
    return 0


def _may_detach(cli: Cli, pool: str) -> None:
    from mandamus import _legal, wiring

    _legal.pool(pool)
    if not wiring.ledger_store(cli.uri).lasts:
        raise Misuse("no worker can find a run in memory", code="MDM-0582", where=cli.uri, fix="--ledger sqlite:///FILE")


async def _same(cli: Cli, env: Env, agent: Agent[Any], run: str, prompt: str, user: str | None, thread: str | None) -> Story:
    """The run that the same idempotency key opened. Raises Misuse when it is of another request."""
    from mandamus.cli import read

    story = await read.story(env.ledger, run)
    await requests.same_run(env.ledger, story, agent.spec.name, prompt, user, thread)
    cli.note(f"this idempotency key opened run {run} before: it is that one")
    return story


async def _found(
    cli: Cli, env: Env, agent: Agent[Any], run: str, prompt: str, user: str | None, thread: str | None, **_: Any
) -> RunResult[Any]:
    """The run that the same idempotency key opened: carried on when nobody does, else told as it stands. A retry lifts no halt."""
    from mandamus import wiring
    from mandamus.result import result_of
    from mandamus.runtime import recover

    story = await _same(cli, env, agent, run, prompt, user, thread)
    if story.run.life not in ENDED and story.run.life != "halted":
        return await agent.resume(run, ledger=env)
    return await result_of(await recover.read_run(env, await wiring.bind(agent), run), True)


@contextlib.contextmanager
def noted(env: Env, run: str, reference: str) -> Iterator[str]:
    """Where the agent of `run` stands is noted before the run opens, so that a crash right behind loses nothing."""
    agents.remember(env.home.folder, run, reference)
    try:
        yield run
    except RunRefused:  # it was never opened
        agents.forget(env.home.folder, run)
        raise


async def _resume(cli: Cli, text: str, reference: str | None, follow: bool) -> int:
    with contextlib.redirect_stdout(sys.stderr):
        async with cli.env() as env:
            run = await _id(env, text.partition("@")[0])
            agent = await agent_of(cli, env, run, reference)
            _follow(cli, agent, follow)
            before = await env.ledger.head(run)
            env.warn = lambda text: None  # `run` said it
            with leaving(env) as left:
                result = await agent.resume(run, ledger=env)
            return await ended(cli, env, result, left, before.seq if before else -1)


async def _id(env: Env, text: str) -> str:
    from mandamus.cli import read

    return await read.run_id(env.ledger, text)


async def agent_of(cli: Cli, env: Env, run: str, reference: str | None) -> Agent[Any]:
    """The agent of a run: as named now, else where `run` found it."""
    from mandamus._drift import differences
    from mandamus.cli import read

    story = await read.story(env.ledger, run)
    genesis, named = story.run.genesis, reference
    reference = reference or agents.recalled(env.home.folder, run)
    if not reference:
        raise Misuse(
            "nobody noted where the agent of this run stands",
            code="MDM-0018",
            where=f"run {run}",
            fix=f"mandamus resume {run} --agent FILE.py:attr",
        )
    agent = agents.load(reference)
    if agent.spec.name != genesis.agent:
        raise Misuse(
            "this is another agent than the run's",
            code="MDM-0019",
            where=f"run {run}",
            expected=shown(genesis.agent),
            found=shown(agent.spec.name),
            fix=f"mandamus resume {run} --agent FILE.py:attr",
        )
    if not genesis.manifest and (changed := differences(agent.spec, genesis.definition, env.home)):
        what = "; ".join(f"{name}: - {then} + {now}" for name, then, now in changed)
        cli.note(f"note: the agent's definition changed since this run began; every action is judged on what it is now ({shown(what)})")
    if named:
        agents.remember(env.home.folder, run, named)
    return agent


def _follow(cli: Cli, agent: Agent[Any], follow: bool) -> None:
    if follow:
        from mandamus.cli.events import event_line, event_object

        agent.subscribe(lambda record: cli.line({"event": event_object(record)}, event_line(record)))


# -- leaving -----------------------------------------------------------------------------------------------------------------
class Left:
    """Whether somebody asked us to go, and by which signal."""

    signal: int = 0


@contextlib.contextmanager
def leaving(env: Env) -> Iterator[Left]:
    """First signal: nothing new is started, an open action may end. Second: out, at once."""
    left = Left()

    def asked(number: int, _frame: Any) -> None:
        if left.signal:
            os._exit(128 + number)
        left.signal = number
        env.leaving = True
        sys.stderr.write("\nstopping: nothing new is started; again to leave at once\n")

    before: list[tuple[signal.Signals, Any]] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            before.append((number, signal.signal(number, asked)))
        except ValueError:  # not the main thread: whoever embeds us keeps its own handlers
            pass
    try:
        yield left
    finally:
        for number, handler in before:
            signal.signal(number, handler)


# -- the end -----------------------------------------------------------------------------------------------------------------
async def ended(cli: Cli, env: Env, result: RunResult[Any], left: Left, before: int = -1) -> int:
    """Tell how a run stands. What stood in it up to event `before` was told before."""
    from mandamus.cli import read, stuck

    code = exit_code(result)
    interrupted = bool(left.signal) and result.state == "suspended" and not result.waiting
    if interrupted:
        code = 128 + left.signal
    story = await read.story(env.ledger, result.run_id)
    refused = await stuck.refused(env.ledger, story, before)
    facts = {"invalid": invalid(story), "refused": refused}
    cli.tell(as_object(result, code) | facts, lambda: words(cli, result, story, Whom(env.home.folder), refused))
    if interrupted and not cli.json:
        cli.note("interrupted; the log is safe")
    return code


def invalid(story: Story) -> list[str]:
    """Actions that were done and whose output is not what their contract says."""
    from mandamus.core.records import ActionEnded

    facts = [x.fact for x in story.records]
    return [f.action for f in facts if isinstance(f, ActionEnded) and f.result == "done" and f.output == "invalid"]


def exit_code(result: RunResult[Any]) -> int:
    """0 completed · 3 a refusal ended it · 4 suspended · 5 halted or something is unknown · 1 failed."""
    if any(a.state in ("doubted", "unknown", "started") and a.code != "child_waits" for a in result.actions):
        return 5
    if result.state == "failed" and result.cause == "rejected":
        return 3
    return _STATES[result.state]


def as_object(result: RunResult[Any], code: int) -> dict[str, Any]:
    import msgspec

    return {
        "actions": [msgspec.to_builtins(a) for a in result.actions],
        "cause": result.cause,
        "checkpoint_id": result.checkpoint_id,
        "cost": None if result.cost is None else str(result.cost),
        "exit_code": code,
        "output": None if result.output is None else msgspec.to_builtins(result.output),
        "run_id": result.run_id,
        "state": result.state,
        "thread": result.thread,
        "tokens_used": result.tokens_used,
        "waiting": [msgspec.to_builtins(w) for w in result.waiting],
    }


def words(cli: Cli, result: RunResult[Any], story: Story, whom: Whom, refused: list[dict[str, Any]]) -> str:
    """State first, then the answer, then why it stands, then who must do what."""
    import time

    from mandamus.cli import stuck

    style = {"completed": "green", "suspended": "yellow"}.get(result.state, "red")
    cause = f" ({result.cause})" if result.cause and result.state != "completed" else ""
    rows = [f"run {result.run_id}  {paint(result.state, style, cli.stdout)}{cause}"]
    if result.output is not None:
        rows.append(shown_text(result.output))
    asking, wrong = {w.action.rpartition("/")[2] for w in result.waiting}, invalid(story)
    rows += [f"  {a.id}  {shown(a.tool)}  {standing(a, a.id in asking, a.id in wrong)}" for a in result.actions]
    rows += [stuck.refused_row(told) for told in refused]
    rows += stuck.rows(story, time.time_ns() // 1000)
    rows += next_steps(cli, result, story, whom)
    return "\n".join(rows)


def standing(action: Any, asking: bool, wrong: bool) -> str:
    """The state of an action for people: one that is judged and asked about waits."""
    state = "waits for people" if asking and action.state == "judged" else action.state
    return state + (f" ({action.code})" if action.code else "") + (", output invalid" if wrong else "")


def next_steps(cli: Cli, result: RunResult[Any], story: Story, whom: Whom) -> list[str]:
    rows = []
    for w in result.waiting:
        request = story.run.actions[w.action.rpartition("/")[2]].request
        tier = whom.tier(request) if request else None
        of = f", of {named(tier.of)}" if tier else ""
        verb = "settle" if w.about == "outcome" else "approve"
        option = " --done|--again|--abandon" if w.about == "outcome" else ""
        rows.append(
            f"waits for {w.needed} vote{'s' if w.needed != 1 else ''} of chain {w.chain}{of}: "
            + cli.command(f"{verb} {w.action}{option} --key FILE")
        )
    if result.state == "halted" or (result.state == "suspended" and not result.waiting):
        rows.append("go on with: " + cli.command(f"resume {result.run_id}"))
    return rows


def shown_text(value: Any) -> str:
    """An answer of a model: its lines stay lines, what hides is shown."""
    if isinstance(value, str):
        return "\n".join(shown(line) for line in value.split("\n"))
    import msgspec

    return shown_json(msgspec.to_builtins(value))
