"""What a tool gets: `Ctx`. It can ask for more actions (they re-enter the loop), for recorded time and randomness, for opaque secrets.

The rule a newcomer would break: there is no `.tools` and no `.model` here, and whatever is handed out was recorded and saved first.
"""

from __future__ import annotations

import asyncio
import importlib
import os
from typing import Any

from mandamus.core import effects as e
from mandamus.core.data import SubjectRef
from mandamus.core.payload import INLINE_MAX
from mandamus.core.run import Action
from mandamus.errors import Misuse, Refused
from mandamus.runtime import ask, secrecy, storable
from mandamus.runtime.session import Session

RANDOM_MAX = 65_536  # bytes: what is recorded has a size


class SecretRef:
    """An opaque reference: printing it shows its name. `reveal()` is for the call that needs it, inside the tool."""

    __slots__ = ("_source", "name")

    def __init__(self, name: str, source: str) -> None:
        self.name, self._source = name, source

    def __repr__(self) -> str:
        return f"SecretRef({self.name})"

    def reveal(self) -> str:
        value = os.environ.get(self._source)
        if value is None:
            raise Misuse(f"secret {self.name!r} is not set", code="MDM-0230", fix=f"export {self._source}=…")
        return secrecy.revealed(self.name, value)


class Secrets:
    """Knows no context: one that led back to it would keep the run's session until a full collection, and the whole prompt with it."""

    def __getitem__(self, name: str) -> SecretRef:
        return SecretRef(name, f"MANDAMUS_SECRET_{name.upper()}")


class Ctx:
    """`operation_id` is the idempotency key to send along; `run_id`, `deps`, `subject_ref` say where the call belongs."""

    def __init__(self, session: Session, action: Action, values: Any) -> None:
        self._s, self._action, self._n = session, action, 0
        self.operation_id, self.run_id, self.epoch = action.operation, session.run.id, session.run.epoch
        self.secrets = Secrets()
        tool = session.bound.tools[action.tool]
        ref = getattr(tool.spec.data, "subject", None)
        self.subject_ref: Any = getattr(values, ref.argument) if isinstance(ref, SubjectRef) else None

    @property
    def deps(self) -> Any:
        """Built by the agent's factory `module:function`, once per process."""
        return _deps(self._s.bound.deps)

    async def clock(self) -> int:
        """Microseconds since 1970, recorded before it is handed out."""
        return int(await self._recorded("clock.read", lambda: self._s.env.time.now()))

    async def random(self, n: int = 16) -> bytes:
        """`n` random bytes, at most 65,536, recorded before they are handed out."""
        if type(n) is not int or not 0 <= n <= RANDOM_MAX:
            raise Misuse("ctx.random", code="MDM-0234", expected=f"a whole number, 0 to {RANDOM_MAX}", found=repr(n)[:40])
        return bytes.fromhex(await self._recorded("random.read", lambda: self._s.env.time.entropy(n).hex()))

    async def invoke(self, name: str, input: dict[str, Any] | None = None) -> Any:
        """Propose a sibling tool's call; it is judged like any other. Returns its output; raises Refused when it did not happen."""
        secrecy.refuse(input, f"ctx.invoke({name!a})")
        proposal = await ask.proposal(self._s, name, input or {})
        return await self._proposed(proposal)

    async def handoff(self, agent: str, input: str) -> Any:
        """Hand a task to another agent: a child run of its own. Returns its output."""
        secrecy.refuse(input, f"ctx.handoff({agent!a})")
        proposal = await ask.proposal(self._s, f"handoff_{agent}", {"task": input})
        return await self._proposed(proposal)

    def progress(self, text: str, part: float | None = None) -> None:
        """Shown to people who watch; never recorded, never state."""
        for watch in self._s.watching:
            watch(self._action.id, secrecy.masked(text), part)

    async def note(self, key: str, value: Any) -> None:
        """Recorded beside the run, as payload: JSON of at most 256 KiB. Raises Misuse for anything else."""
        secrecy.refuse([key, value], "ctx.note")
        said = {"key": key, "value": value}
        if why := storable.unfit(said):
            raise Misuse("ctx.note: this cannot be recorded", code="MDM-0234", expected=f"JSON of at most {INLINE_MAX} bytes", found=why)
        await self._recorded("note", lambda: said)

    async def _proposed(self, proposal: e.Proposal) -> Any:
        self._n += 1
        id = f"{self._action.id}.{self._n}"
        known = self._s.run.actions.get(id)
        if known is None:
            await self._hand_in(e.Steps(parent=self._action.id, first=self._n, proposals=(proposal,)))
        elif known.tool != proposal.tool or await self._s.value(known.seq, "args") != proposal.args:
            raise Misuse(
                f"call {id} differs from the recorded one",
                code="MDM-0231",
                why="on a repeat, a tool must ask for the same things in the same order",
            )
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._s.watchers[id] = future
        self._s.tell_watchers()
        await future
        action = self._s.run.actions.get(id)
        if action is None or not action.closed:
            raise self._over()
        if action.withheld:
            raise Refused(f"{proposal.tool}: a guardrail withheld its result", code="MDM-0320")
        if action.state == "done":
            return await self._s.value(action.out, "output") if action.out >= 0 else None
        raise Refused(f"{proposal.tool}: {action.state} ({action.code or action.verdict})", code="MDM-0320")

    async def _recorded(self, capability: str, read: Any) -> Any:
        value = read()
        await self._hand_in(e.Use(action=self._action.id, capability=capability, result="granted", value=value))
        return value

    async def _hand_in(self, given: e.Input) -> None:
        """Into the loop: decided, sealed and saved before this returns."""
        heard: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._s.hand_in(given, heard)
        if not await heard:
            raise self._over()

    def _over(self) -> Refused:
        where = f"run {self.run_id} ({self._action.id})"
        return Refused("this call is over: nothing more is recorded for it", code="MDM-0321", where=where)


_built: dict[str, Any] = {}


def _deps(factory: str) -> Any:
    if factory and factory not in _built:
        module, _, name = factory.partition(":")
        _built[factory] = getattr(importlib.import_module(module), name)()
    return _built.get(factory)
