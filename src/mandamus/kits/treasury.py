"""The treasury kit: look at the balance, screen a counterparty, pay; and the thin rules that ask two people above a threshold.

`kit(app_id, agent_id, …) -> Kit(tools, plugin)`. The rule a newcomer would break: the kit keeps no store of its own. What was already
paid is known by the ledger and by the other side, asked by operation id; a store beside them would forget at the wrong moment.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, Protocol, TypeVar

import msgspec
from msgspec import Struct

from mandamus.agent import Plugin
from mandamus.core.canonical import canon
from mandamus.core.data import Business, Confidential, none
from mandamus.core.money import Money, exponent, minor
from mandamus.core.verdicts import deny
from mandamus.drivers.policy_python import rule
from mandamus.errors import Misuse, NotDone
from mandamus.runtime.context import Ctx
from mandamus.tool import Found, Retry, Tool, tool

VERSION = "1"
_LABEL = "not evidence"  # who can check a shared-key tag can also make one
_SECRET_MIN = 32
T = TypeVar("T")


# -- what the kit is given -------------------------------------------------------------------------------------------------------
class Order(Struct, frozen=True, kw_only=True):
    """What an executor is asked to do, once per `key`."""

    app_id: str
    agent_id: str
    to: str
    amount: Money
    memo: str = ""


class TransferReceipt(Struct, frozen=True, kw_only=True):
    """The other side's answer: its own reference, and the key that it was given."""

    ref: str
    key: str
    chain: str = ""
    confirmed_at: int = 0


class Screening(Struct, frozen=True, kw_only=True):
    """`result` of one screening against one version of one list."""

    result: Literal["clear", "possible", "hit"]
    list_id: str
    list_version: str = ""


class Executor(Protocol):
    """Pays. With `find(operation_id) -> Found | Absent | Unclear` the tool is reconcilable; without it the key must be honoured."""

    async def transfer(self, order: Order, key: str) -> TransferReceipt: ...


class Screener(Protocol):
    """Answers for one party. An exception is a fault, and never means clear."""

    async def screen(self, party: str) -> Screening: ...


class Balances(Protocol):
    async def get_balance(self) -> Money: ...


class NoopSanctionScreener:
    """Consults no list and says so. Tier dev only."""

    async def screen(self, party: str) -> Screening:
        return Screening(result="clear", list_id="none: no list was consulted")


class HmacEvidenceSigner:
    """A tag under a shared key, labelled `not evidence`: whoever can check it can forge it. Tier dev only."""

    def __init__(self, key_id: str, secret: bytes) -> None:
        if len(secret) < _SECRET_MIN:
            raise Misuse("the secret of an evidence signer is too short", code="MDM-0811", expected=f"{_SECRET_MIN} bytes or more")
        self.key_id, self._secret = key_id, secret

    def __repr__(self) -> str:
        return f"HmacEvidenceSigner({self.key_id})"

    def tag(self, value: Any) -> str:
        return hmac.new(self._secret, canon(msgspec.to_builtins(value)), hashlib.sha256).hexdigest()


class Tag(Struct, frozen=True, kw_only=True):
    key_id: str
    tag: str
    label: str = _LABEL
    algorithm: str = "hmac-sha256"


class Paid(Struct, frozen=True, kw_only=True):
    """What `send_payment` answers."""

    receipt: TransferReceipt
    screening: Screening | None = None
    tag: Tag | None = None


class Kit(Struct, frozen=True):
    """`tools` for the agent, `plugin` with their rules; `notes` is what a person should know before going live."""

    tools: tuple[Tool, ...]
    plugin: Plugin
    notes: tuple[str, ...] = ()


# -- the kit ---------------------------------------------------------------------------------------------------------------------
def kit(
    app_id: str,
    agent_id: str,
    *,
    sanctions: Screener,
    balance: Balances | Callable[[], Any],
    transfer: Executor | Callable[[Order, str], Any],
    dual_approval: Mapping[str, Money],
    idempotency: str = "ledger",
    evidence_signer: HmacEvidenceSigner | None = None,
    chain: str = "default",
    tier: str = "dev",
) -> Kit:
    """Tools and rules of a treasury. `dual_approval`: per currency the amount above which two people of `chain` must sign.

    `evidence_signer` None: the bundle is signed by the ledger's key, which is the evidence. Raises Misuse.
    """
    if idempotency != "ledger":
        raise Misuse(
            "the treasury kit keeps no store of its own",
            code="MDM-0810",
            expected='idempotency="ledger"',
            found=type(idempotency).__name__,
            why="a store beside the ledger forgets at a crash, when it is needed",
            fix="leave idempotency out",
        )
    weak = _weak(sanctions, evidence_signer)
    if weak and tier != "dev":
        fix = "a real screener, and no evidence_signer"
        raise Misuse(f"tier {tier!r}: " + "; ".join(weak), code="MDM-0812", why="a control that cannot fail is none", fix=fix)
    desk = _Desk(app_id, agent_id, sanctions, balance, transfer, evidence_signer)
    rules: list[Any] = _rules(dual_approval, chain)
    if weak:
        rules.append(_dev_only)
    plugin = Plugin(name=f"treasury/{app_id}/{agent_id}", version=VERSION, policies=tuple(rules))
    return Kit(desk.tools(), plugin, tuple(weak))


def _weak(sanctions: Any, signer: Any) -> list[str]:
    out = ["sanctions: no list is consulted (NoopSanctionScreener)"] if isinstance(sanctions, NoopSanctionScreener) else []
    return out + ([f"evidence_signer: HMAC tags are {_LABEL}"] if isinstance(signer, HmacEvidenceSigner) else [])


@rule("treasury.dev-only", "A kit without screening or with shared-key tags serves tier dev only")
def _dev_only(facts: Any) -> Any:
    return None if facts.context.tier == "dev" else deny("treasury kit for tier dev", halt=True)


def _rules(thresholds: Mapping[str, Money], chain: str) -> list[dict[str, Any]]:
    if not thresholds:
        raise Misuse("dual_approval names no currency", code="MDM-0813", fix='dual_approval={"USD": Money.parse("10000.00 USD")}')
    rules: list[dict[str, Any]] = [{"id": "treasury.tools", "permit": {"tool": ["get_balance", "screen_counterparty", "send_payment"]}}]
    for currency, over in sorted(thresholds.items()):
        settings = {"over": _threshold(currency, over), "chain": chain, "tools": ["send_payment"]}
        rules.append({"id": f"treasury.dual-approval.{currency}", "dualApproval": settings})
    return rules


def _threshold(currency: str, money: Money) -> str:
    """As policy counts it. A finer one is refused: rounding would move the line."""
    exact = Money(str(minor(money)), money.currency, exponent(money.currency)) if money.currency == currency else None
    if exact is None or int(money.amount) * 10**exact.decimals != int(exact.amount) * 10**money.decimals:
        expected = f"an amount in {currency} with {exponent(currency)} decimals"
        raise Misuse(f"dual_approval[{currency!r}]", code="MDM-0813", expected=expected, found=str(money))
    return str(exact)


class _Desk:
    """The callables behind the tools."""

    def __init__(self, app_id: str, agent_id: str, sanctions: Any, balance: Any, transfer: Any, signer: HmacEvidenceSigner | None) -> None:
        self.app_id, self.agent_id, self.signer = app_id, agent_id, signer
        self.executor = transfer
        self.screen = _port("sanctions", sanctions, "screen")
        self.balance = _port("balance", balance, "get_balance")
        self.transfer = _port("transfer", transfer, "transfer")

    def tools(self) -> tuple[Tool, ...]:
        desk = self
        companies = none("counterparties are companies")

        @tool(safety="read", effect="read", data=Business(subject=none("the company's own account"), retention="books"))
        async def get_balance() -> Money:
            """The balance of the company's account."""
            return _typed(await _called(desk.balance), Money)

        @tool(safety="read", effect="read", data=Confidential(subject=companies, retention="books"))
        async def screen_counterparty(party: str) -> Screening:
            """Screen a counterparty against the sanctions list in force."""
            return _typed(await _called(desk.screen, party), Screening)

        async def send_payment(ctx: Ctx, to: str, amount: Money, memo: str = "") -> Paid:
            """Pay a counterparty from the company's account."""
            screening = await desk._cleared(to, amount)
            order = Order(app_id=desk.app_id, agent_id=desk.agent_id, to=to, amount=amount, memo=memo)
            receipt = _typed(await _called(desk.transfer, order, ctx.operation_id), TransferReceipt)
            return Paid(receipt=receipt, screening=screening, tag=desk._tag(order, receipt))

        reconcile = _Answers(self.executor) if hasattr(self.executor, "find") else None
        effect: Literal["reconcilable", "keyed"] = "reconcilable" if reconcile else "keyed"
        pays = tool(
            safety="financial",
            effect=effect,
            data=Confidential(subject=companies, retention="books"),
            retry=Retry(3, backoff_ms=200),
            timeout="30s",
            reconcile=_with_forbid(reconcile),
            key_life=getattr(self.executor, "key_life", "24h"),
        )
        return get_balance, screen_counterparty, pays(send_payment)

    async def _cleared(self, to: str, amount: Money) -> Screening:
        """Asked again right before money moves: the list may have changed while people were thinking. Anything but clear pays nothing."""
        if amount.amount == "0":
            raise NotDone("an amount of zero is no payment")
        try:
            screening = _typed(await _called(self.screen, to), Screening)
        except Exception as error:
            raise NotDone(f"the screener did not answer ({type(error).__name__}): nothing was paid") from error
        if screening.result != "clear":
            raise NotDone(f"screening: {screening.result}; nothing was paid, compliance must look at it")
        return screening

    def _tag(self, order: Order, receipt: TransferReceipt) -> Tag | None:
        return Tag(key_id=self.signer.key_id, tag=self.signer.tag([order, receipt])) if self.signer else None


class _Answers:
    """The executor's own answer about one operation, as what the tool would have returned."""

    def __init__(self, executor: Any) -> None:
        self.executor = executor

    async def find(self, operation_id: str) -> Any:
        finding = await _called(self.executor.find, operation_id)
        if isinstance(finding, Found):
            return Found(Paid(receipt=_typed(finding.outcome, TransferReceipt)))
        return finding


class _AnswersAndForbids(_Answers):
    async def forbid(self, operation_id: str) -> None:
        await _called(self.executor.forbid, operation_id)


def _with_forbid(answers: _Answers | None) -> _Answers | None:
    return _AnswersAndForbids(answers.executor) if answers is not None and hasattr(answers.executor, "forbid") else answers


def _port(name: str, given: Any, method: str) -> Callable[..., Any]:
    fn = getattr(given, method, given)
    if not callable(fn):
        expected = f"an object with {method}(), or a function"
        raise Misuse(f"treasury kit: {name}", code="MDM-0814", expected=expected, found=type(given).__name__)
    return fn  # type: ignore[no-any-return]


async def _called(fn: Callable[..., Any], *args: Any) -> Any:
    """A port may be async or not; one that is not runs beside the loop."""
    if inspect.iscoroutinefunction(fn):
        return await fn(*args)
    made = await asyncio.to_thread(fn, *args)
    return await made if isinstance(made, Awaitable) else made


def _typed(value: Any, kind: type[T]) -> T:
    """What a port answered, as its type; a mapping of the same shape will do. Raises msgspec.ValidationError."""
    return value if isinstance(value, kind) else msgspec.convert(value, kind, strict=True)
