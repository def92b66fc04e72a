"""Retention clocks: keys that have had their days are destroyed, with a record; and erasures that waited are carried out. A duty.

    report = await expire(env)          # None: nothing has had its days

The rule a newcomer would break: expiry is the weakest of all reasons. A hold, a run that is not over, an erasure that is under way come
first; and what is destroyed by a clock is told like what a person asked for, on the ground `expired`.
"""

from __future__ import annotations

from mandamus.core.erasures import EXPIRED
from mandamus.core.retention import KeyName
from mandamus.ports import KeyStore
from mandamus.runtime import erased, sealing
from mandamus.runtime.env import Env
from mandamus.runtime.forgetting import forget

PRINCIPAL = "p-retention"  # who asks, where a clock does


class Forgetting:
    """The duty: what is asked for is carried on, what has had its days goes. On a ledger that seals nothing it does nothing."""

    def __init__(self) -> None:
        self._later: dict[str, int] = {}  # erasures whose time is known: not before this instant

    async def __call__(self, env: Env) -> None:
        if sealing.put_on(env, make=False) is None:
            return
        now = env.time.now()
        self._later = {id: at for id, at in self._later.items() if at > now}
        for report in await forget.resume(env, but=self._later):
            if report.state in ("partly", "waits"):
                self._later[report.erasure] = min([end for _, _, end in report.kept], default=report.after)
        await expire(env)


async def expire(env: Env) -> forget.Report | None:
    """One erasure for all that may go now."""
    keys = forget.store(env)
    names = await keys.expired(env.time.now())
    if not names:
        return None
    told = await erased.read(env.ledger, env.trust())
    pending = {k.owner for one in await keys.erasings() if one.state != "done" for k in one.keys}
    going: list[KeyName] = []
    runs: set[str] = set()
    over: dict[str, bool] = {}
    for name in names:
        concerned = await _runs(keys, name)
        subject = name.owner.removeprefix("subject/") if name.owner.startswith("subject/") else ""
        held = told.hold_on({*([subject] if subject else []), *await keys.subjects_of(concerned)}, concerned)
        for run in concerned:
            over[run] = over.get(run) or await forget.over(env, run)
        if held is None and name.owner not in pending and all(over[run] for run in concerned):
            going.append(name)
            runs.update(concerned)
    if not going:
        return None
    found = forget.Found("", tuple(sorted(runs)), tuple(going), 0, (), ())
    id = await forget.request(env, found, EXPIRED, after=0, principal=PRINCIPAL)
    return await forget.carry(env, id)


async def _runs(keys: KeyStore, name: KeyName) -> tuple[str, ...]:
    """Those that hold something under this key."""
    kind, _, whose = name.owner.partition("/")
    return (whose,) if kind == "run" else await keys.runs_of(whose)
