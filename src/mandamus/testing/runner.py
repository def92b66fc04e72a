"""`Runner(agent)`: drive an agent turn by turn in a test, on a ledger in memory, a virtual clock and keys made from a seed.

    r = Runner(agent)
    r.approver("p-alice", "treasurer")
    result = await r.turn("Pay Acme")             # suspended
    result = await r.approve("p-alice")           # a real ballot, through the mailbox
    assert_trace(r.events, "payout")

The rule a newcomer would break: nothing here is a shortcut. Votes are signed and verified, policies judge, intents are committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET

from mandamus import wiring
from mandamus.agent import Agent, RunResult
from mandamus.core.canonical import canon
from mandamus.core.payload import SALT, commit
from mandamus.core.records import ApprovalRequested
from mandamus.core.run import Run, ripe
from mandamus.errors import Misuse
from mandamus.proof import ballot as ballots
from mandamus.proof import mail as post
from mandamus.proof.ballot import Ballot
from mandamus.proof.keys import b64
from mandamus.runtime.diff import Diff, diff
from mandamus.runtime.env import Env
from mandamus.runtime.recording import Recording
from mandamus.runtime.recover import read_run
from mandamus.runtime.replay import ReplayReport
from mandamus.testing.golden import Event
from mandamus.testing.virtual import VirtualTime, home, signer


class Runner:
    """`events` are all events of all turns so far; `result` is the newest result."""

    def __init__(
        self, agent: Agent[Any], *, clock: VirtualTime | None = None, ledger: Any = None, seed: str = "0", trust: Sequence[str] = ()
    ) -> None:
        self.agent, self.clock, self.seed = agent, clock or VirtualTime(seed=seed), seed
        self.result: RunResult[Any] | None = None
        self.events: list[Event] = []
        self._ledger, self._keys = ledger, dict[str, Any]()
        self._env: Env | None = None
        self._lines = list(trust)
        self._seen: dict[str, int] = {}

    async def env(self) -> Env:
        """The environment that every turn runs in."""
        if self._env is None:
            kept = home(self.seed)
            kept.trust()
            self._env = await wiring.open_env("memory:", time=self.clock, ledger=self._ledger, home=kept, worker="w-test")
            for line in self._lines:
                kept.add_trust(line)
        return self._env

    def approver(self, principal: str, *roles: str) -> None:
        """Enrol a person with a key made from the name. Before the first turn."""
        if self._env is not None:
            raise Misuse("approvers are enrolled before the first turn", code="MDM-0271", fix="r.approver(...) right behind Runner(agent)")
        key = self._keys[principal] = signer(f"test/{principal}", self.seed)
        self._lines += [f"approver {principal} {key.vkey}", *(f"role {role} {principal}" for role in roles)]

    # -- turns ---------------------------------------------------------------------------------------------------------------
    async def turn(self, prompt: str, **options: Any) -> RunResult[Any]:
        """Say something: a new run, and from the second turn on one whose history is the last one."""
        if self.result is not None:
            options.setdefault("thread", self.result.thread)
        return await self._took(await self.agent.run(prompt, ledger=await self.env(), **options))

    async def resume(self, approvals: Sequence[bytes] = ()) -> RunResult[Any]:
        """Carry the newest run on, as another process would."""
        return await self._took(await self.agent.resume(self._last().checkpoint_id, approvals, ledger=await self.env()))

    async def approve(self, *principals: str) -> RunResult[Any]:
        """These people approve everything that waits; then the run is carried on."""
        return await self.decide("approve", *principals)

    async def reject(self, *principals: str) -> RunResult[Any]:
        """These people say no to everything that waits; then the run is carried on."""
        return await self.decide("reject", *principals)

    async def decide(self, decision: Any, *principals: str) -> RunResult[Any]:
        """The same with any word of a ballot (docs/concepts/ballot-format.md). Raises Misuse when nothing waits."""
        run = await self.run()
        votes = [
            self.vote(run, principal, decision, a.id)
            for a in run.open_actions
            if a.request and not ripe(a.request)
            for principal in principals
        ]
        if not votes:
            raise Misuse("nobody is asked anything", code="MDM-0272", found=self._last().state)
        return await self.resume(votes)

    def vote(self, run: Run, principal: str, decision: Any, action: str, args: dict[str, Any] | None = None) -> bytes:
        """The mailbox message of one person about one waiting action. `args`, with "modify": what shall stand instead."""
        request = run.actions[action].request
        if request is None or principal not in self._keys:
            raise Misuse(
                f"{principal} cannot vote on {action}", code="MDM-0272", fix="r.approver(NAME) before the first turn; the action must wait"
            )
        secret = self.clock.entropy(SALT) if args is not None else b""
        ballot = Ballot(
            action=request.digest,
            args=UNSET if args is None else commit(secret, canon(args)),
            card=request.card,
            decision=decision,
            expires=request.expires,
            origin=run.genesis.origin,
            policy=request.policy,
            request=request.id,
            run=run.id,
            scope="once",
        )
        key = self._keys[principal]
        envelope = ballots.sign(ballot, key.sign, key.keyid).decode("ascii")
        return post.encode(post.Vote(envelope) if args is None else post.Vote(envelope, args=args, secret=b64(secret)))

    # -- looking -------------------------------------------------------------------------------------------------------------
    async def run(self) -> Run:
        """The newest run, folded from the ledger."""
        return (await read_run(await self.env(), await self._bound(), self._last().run_id)).run

    async def requests(self) -> list[ApprovalRequested]:
        return [x.fact for x in self.events if isinstance(x.fact, ApprovalRequested)]

    async def replay(self, run: str = "") -> ReplayReport:
        return await self.agent.replay(run or self._last().run_id, ledger=await self.env())

    async def fork(self, at: int, **changes: Any) -> RunResult[Any]:
        """Fork the newest run. The runner stays with its parent."""
        return await self.agent.fork(self._last().run_id, at, ledger=await self.env(), **changes)

    async def diff(self, left: str, right: str) -> Diff:
        return await diff(await self.env(), left, right)

    async def events_of(self, run: str) -> list[Event]:
        recording = await Recording.load(await self.env(), run)
        return [Event(x, recording.values(x.seq)) for x in recording.records]

    async def _bound(self) -> Any:
        return await wiring.bind(self.agent)

    async def _took(self, result: RunResult[Any]) -> RunResult[Any]:
        self.result = result
        events = await self.events_of(result.run_id)
        self.events += events[self._seen.get(result.run_id, 0) :]
        self._seen[result.run_id] = len(events)
        return result

    def _last(self) -> RunResult[Any]:
        if self.result is None:
            raise Misuse("there was no turn yet", code="MDM-0273", fix='await r.turn("…")')
        return self.result
