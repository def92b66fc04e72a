"""Limits per counterparty (ADR 0016): each is counted by itself, under a name that tells nothing."""

from __future__ import annotations

from mandamus import Budget, wiring
from mandamus.runtime import replay
from tests.attack.red_votes import PAY, agent, env_of, facts, payer, pays
from tests.attack.test_red_votes import story


@story
async def test_a_limit_per_counterparty_counts_each_by_itself_and_names_none() -> None:
    paid: list[str] = []
    env = await env_of()
    each = {"id": "each", "maxDailyLimit": {"limit": "100.00 USD", "per": "counterparty"}}
    names = ("Jane Doe", "jane  DOE", "Jane Doe", "Acme")
    bot = agent([payer(paid)], [PAY, each], *(pays(n) for n in names), budget=Budget(denials=9))
    result = await bot.run("x", ledger=env)
    assert paid == ["Jane Doe", "jane  DOE", "Acme"]  # the third is over her limit, whichever way she is written
    accounts = [a for a in env.ledger._store.accounts if a.startswith("limit/")]
    assert len(accounts) == 2
    stored = b"".join([raw async for raw in env.ledger.read(result.run_id)]).lower() + "".join(accounts).lower().encode()
    assert b"jane" not in stored
    assert max(len(a) for a in accounts) < 100
    assert (await replay.replay(env, bot._bound, result.run_id)).ok
    other = await wiring.open_env("memory:")
    assert other.pseudonym("Acme") != env.pseudonym("Acme")  # another ledger's number says nothing here


@story
async def test_two_at_once_cannot_both_pass_under_one_counterpartys_limit() -> None:
    """The reservation stands in the intent's append, on the version that was judged."""
    paid: list[str] = []
    env = await env_of()
    each = {"id": "each", "maxDailyLimit": {"limit": "100.00 USD", "per": "counterparty"}}
    bot = agent([payer(paid)], [PAY, each], pays("Acme", "Acme ", "ACME", "Other"), budget=Budget(denials=9))
    result = await bot.run("x", ledger=env)
    assert sorted(paid) == ["Acme", "Acme ", "Other"]
    assert [x.verdict for x in await facts(env, result.run_id, "ActionJudged")] == ["allow", "allow", "deny", "allow"]
