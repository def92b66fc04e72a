"""URI → driver, in tables. The only module that knows both sides; a driver is imported when its URI is named.

    ledger   sqlite:///relative.db  sqlite:////absolute.db  memory:  postgres://USER@HOST/DB  nats://HOST:PORT/NAME
    store    folder:///absolute  folder://relative  s3://BUCKET/PREFIX?region=…  memory:
    witness  witness+https://HOST/PREFIX#VKEY  rekor+https://HOST?residency=eu#VKEY
    model    openai:gpt-4o  openai+http://127.0.0.1:8080/v1#name  anthropic:NAME  scripted:FILE.json
Register your own by one line: `wiring.MODELS["my"] = "my_module:from_uri"`, `wiring.LEDGERS["my"] = wiring.Store("my_module:from_uri", "my://HOST")`.
The rule a newcomer would break: nothing outside these tables asks which scheme a URI has.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mandamus import _files
from mandamus._home import NAMED, administrators
from mandamus._home import ROLES as ROLES
from mandamus._home import SIGNERS as SIGNERS
from mandamus._home import Home as Home
from mandamus._home import make_signer as make_signer
from mandamus._home import signer as signer
from mandamus._home import unshared as unshared
from mandamus._loading import load, not_installed
from mandamus.core.digests import policy_digest
from mandamus.core.facts import RuleBook
from mandamus.core.messages import Settings
from mandamus.core.records import LOG, NamedKey
from mandamus.errors import Misuse
from mandamus.ports import Head, Heads, KeyStore, Ledger, Model, PolicyEngine, Signer, Witness, Wraps
from mandamus.ports import Store as ObjectStore
from mandamus.proof.keys import named
from mandamus.runtime import heads as witness
from mandamus.runtime import lease, threads
from mandamus.runtime.env import Bound, Env, SystemTime
from mandamus.runtime.log import LogBook
from mandamus.runtime.sealing import SealedLedger

if TYPE_CHECKING:
    from mandamus.runtime.content.blobs import Blobs


class Store(NamedTuple):
    """One scheme of ledgers. `driver` is called with the URI (a `file`'s: with its path) and a clock when there is one."""

    driver: str  # module:name
    form: str  # how such a URI is written, for people
    file: bool = False  # scheme:///PATH names a file here; keys and the trust file stand beside it
    held: str = ""  # module:name, called with (path, run): who drives it now, by a lock that dies with its process
    lasts: bool = True  # another process finds it again; without a file its keys stand in .mandamus/
    server: bool = False  # of several machines: the driver is told the tier, and that whatever it gets of runs is sealed


LEDGERS: dict[str, Store] = {
    "sqlite": Store(
        "mandamus.drivers.ledger_sqlite:SqliteLedger.open",
        "sqlite:///relative/file.db or sqlite:////absolute/file.db",
        file=True,
        held="mandamus.drivers._sqlite_own:held_by",
    ),
    "memory": Store("mandamus.drivers.ledger_memory:from_uri", "memory:", lasts=False),
    "postgres": Store("mandamus.drivers.ledger_postgres:from_uri", "postgres://USER@HOST:PORT/DATABASE", server=True),
    "postgresql": Store("mandamus.drivers.ledger_postgres:from_uri", "postgresql://USER@HOST:PORT/DATABASE", server=True),
    "nats": Store("mandamus.drivers.ledger_nats:from_uri", "nats://HOST:PORT/NAME", server=True),
    "tls+nats": Store("mandamus.drivers.ledger_nats:from_uri", "tls+nats://HOST:PORT/NAME", server=True),
}
MODELS: dict[str, str] = {
    "openai": "mandamus.drivers.model_openai:from_uri",
    "openai+http": "mandamus.drivers.model_openai:from_uri",
    "openai+https": "mandamus.drivers.model_openai:from_uri",
    "anthropic": "mandamus.drivers.model_anthropic:from_uri",
    "anthropic+http": "mandamus.drivers.model_anthropic:from_uri",
    "anthropic+https": "mandamus.drivers.model_anthropic:from_uri",
    "scripted": "mandamus.drivers.model_scripted:from_uri",
}
PACKING = "mandamus.drivers.pack_zstd:Zstd"
STORES: dict[str, str] = {
    "memory": "mandamus.drivers.store_memory:MemoryStore.open",
    "folder": "mandamus.drivers.store_folder:FolderStore.open",
    "s3": "mandamus.drivers.store_s3:S3Store.open",
}
WITNESSES: dict[str, str] = {
    "witness+https": "mandamus.drivers.witness_http:HttpWitness.open",
    "witness+http": "mandamus.drivers.witness_http:HttpWitness.open",
    "rekor+https": "mandamus.drivers.anchor_rekor:RekorAnchor.open",
    "rekor+http": "mandamus.drivers.anchor_rekor:RekorAnchor.open",
}
KEYS: dict[str, str] = {
    "postgres": "mandamus.drivers.keys_postgres:PostgresKeys",
    "postgresql": "mandamus.drivers.keys_postgres:PostgresKeys",
}
WRAPS: dict[str, str] = {
    "folder": "mandamus.drivers.wraps_folder:FolderWraps.open",
    "pkcs11": "mandamus.drivers.wraps_pkcs11:Pkcs11Wraps.open",
    "awskms": "mandamus.drivers.wraps_awskms:KmsWraps.open",
}
HEADS: dict[str, str] = {
    "file": "mandamus.drivers.heads_file:FileHeads.open",
    "postgres": "mandamus.drivers.heads_postgres:PostgresHeads.open",
    "postgresql": "mandamus.drivers.heads_postgres:PostgresHeads.open",
}
DEFAULT_LEDGER = "sqlite:///.mandamus/run.db"
FILE = "run.db"  # of the default ledger
HOME = Path(".mandamus")  # of a ledger that lasts and has no file here


def model(uri: str) -> tuple[Model, str]:
    """(driver, model name). Raises Misuse for an unknown scheme."""
    scheme = uri.partition(":")[0]
    if scheme not in MODELS:
        raise Misuse(f"model {uri!r}", code="MDM-0110", expected=" ".join(f"{s}:…" for s in MODELS), fix='model="openai:gpt-4o"')
    made: tuple[Model, str] = load(MODELS[scheme])(uri)
    return made


def ledger_uri(uri: str | None = None) -> str:
    return uri or os.environ.get("MANDAMUS_LEDGER") or DEFAULT_LEDGER


def ledger_store(uri: str) -> Store:
    """What the scheme of a ledger URI means. Raises Misuse for an unknown one."""
    store = LEDGERS.get(uri.partition(":")[0])
    if store is None or (store.file and not uri.partition(":")[2].startswith("///")):
        forms = [store] if store else LEDGERS.values()
        shown = uri if "@" not in uri and "?" not in uri else f"{uri.partition(':')[0]}:…"  # a password in it is somebody's secret
        raise Misuse(f"ledger {shown!r}", code="MDM-0111", expected=" or ".join(x.form for x in forms), fix="--ledger sqlite:///FILE")
    return store


def ledger_file(uri: str) -> Path | None:
    """The file behind a ledger URI, or None when it has none."""
    return Path(uri.partition(":///")[2]) if ledger_store(uri).file else None


def driver_of(uri: str, head: Head) -> str:
    """The living process that drives a run. What its row says may be of one that died; a lock, where there is one, knows better, and
    a lease that ran out is nobody's."""
    if ledger_store(uri).server:
        return head.owner if head.lease_until > SystemTime().now() else ""
    path, held = ledger_file(uri), ledger_store(uri).held
    return str(load(held)(path, head.run)) if held and path and head.owner else head.owner


async def _log_key(home: Home, ledger: Ledger) -> Signer:
    """A chain `log` that has begun names its keys: on a machine that lacks them none is made, or it would be taken for the ledger's own."""
    made = home.folder is None or "log" in home.keys or (home.folder / "keys" / "log.pem").exists()
    if not made and await ledger.head(LOG) is not None:
        home.stands = True
    return home.signer("log")


def home_of(uri: str) -> Home:
    """Keys, trust file and kept texts of a ledger: in a folder `.mandamus`, where no file of the user's own can be in the way."""
    path = ledger_file(uri)
    return Home(_folder(path.parent) if path else HOME if ledger_store(uri).lasts else None)


def _folder(folder: Path) -> Path:
    """The ledger's own folder when it is one (or was made one by an earlier version), else `.mandamus` in it."""
    own = folder.name == HOME.name or (folder / "keys" / "log.pem").exists()
    return folder if own else folder / HOME.name


def open_ledger(uri: str, clock: Callable[[], int] | None = None, *, tier: str = "dev", keys: KeyStore | None = None) -> Ledger:
    """Opens or makes the ledger; a server's is asked at the first use. Raises Misuse, EngineFault or ProofError with the way out.

    Its payloads are sealed under `keys`; else under the key store that is beside it, and on a server under one in any case.
    """
    path, store = ledger_file(uri), ledger_store(uri)
    if path is not None:
        _files.folder(path.parent)
    try:
        driver = load(store.driver)
    except ModuleNotFoundError as error:
        raise not_installed(uri, str(error.name)) from None
    told: dict[str, Any] = {"tier": tier, "sealed_only": True} if store.server else {}
    opened: Ledger = driver(path or uri, clock, **told) if clock else driver(path or uri, **told)
    keys = keys or keys_of(uri, make=store.server)
    return opened if keys is None else SealedLedger(opened, keys, everything=store.server)


KEYSTORE, ELSEWHERE = "keystore.db", "keystore.at"


def keys_file(uri: str, home: Home | None = None) -> Path | None:
    """Where the keys of a ledger's sealed payloads lie: what `MANDAMUS_KEYS` names, else beside its own keys. None: it does not last,
    or they lie on a server."""
    if not ledger_store(uri).lasts:
        return None
    named = os.environ.get("MANDAMUS_KEYS", "")
    if named.partition(":")[0] in KEYS:
        return None
    if named and not named.startswith("sqlite:///"):
        found = f"{named.partition(':')[0][:20]}:"
        expected = "sqlite:///FILE, or postgres://USER@HOST/DB for several hosts"
        raise Misuse("MANDAMUS_KEYS names no key store", code="MDM-0961", expected=expected, found=found)
    folder = (home.folder if home is not None else None) or home_of(uri).folder
    assert folder is not None, "a ledger that lasts has a home"
    if not named and (folder / ELSEWHERE).exists():  # this ledger was copied, and its keys were not
        named = (folder / ELSEWHERE).read_text("utf-8").strip()
    return Path(named.removeprefix("sqlite:///")) if named else folder / KEYSTORE


def keys_of(uri: str, *, make: bool, home: Home | None = None) -> KeyStore | None:
    """The key store of a ledger. Without `make`, None where there is none yet; its file is made with the first key in any case."""
    path, kek, named = keys_file(uri, home), os.environ.get("MANDAMUS_KEK", ""), os.environ.get("MANDAMUS_KEYS", "")
    if ledger_store(uri).lasts and path is None:
        shared: KeyStore = load(KEYS[named.partition(":")[0]])(named, wraps_of(kek))
        return shared
    if path is None or not (make or path.exists()):
        return None
    wrap = load("mandamus.drivers.wrap_file:FileWrap.open")(kek) if kek else None
    made: KeyStore = load("mandamus.drivers.keys_sqlite:SqliteKeys")(path, wrap)
    return made


def wraps_of(uri: str) -> Wraps:
    """The wrapping keys of a key store on a server: outside of it. Raises Misuse for a place that cannot be."""
    scheme = uri.partition(":")[0]
    if scheme not in WRAPS:
        raise Misuse(
            "a key store on a server needs wrapping keys outside of it", code="MDM-0978", where="MANDAMUS_KEK",
            expected="pkcs11:token=LABEL?…, awskms:?region=…, or folder:///PATH of all hosts", found=f"{scheme[:20]}:" if uri else "none",
            why="a database keeps old rows: only where a wrapping key can be destroyed can anything be forgotten",
        )  # fmt: skip
    try:
        made: Wraps = load(WRAPS[scheme])(uri)
    except ModuleNotFoundError as error:
        raise not_installed(uri, str(error.name)) from None
    return made


def _in_force(env: Env, home: Home) -> None:
    """The log's key is the one that its chain names. A rotation that broke off behind its record is finished first."""
    gone = {change.old for change in env.log.changes if change.old}
    if env.signer.vkey in gone:
        home.finish(env.log.changes)
        env.signer = env.log.signer = home.signer("log")
    if env.signer.vkey in gone:
        raise Misuse(
            "the log key was retired", code="MDM-0989", found=named(env.signer.vkey),
            why="what it signs from now on is believed by nobody", fix="put the key that took its place into the folder keys, as log.pem",
        )  # fmt: skip


def heads_of(ledger: str, uri: str | None = None) -> Heads | None:
    """The witness that `MANDAMUS_HEADS` names, for a ledger that lasts. Raises Misuse for one that cannot be."""
    uri = uri or os.environ.get("MANDAMUS_HEADS", "")
    if not uri or not ledger_store(ledger).lasts:
        return None
    scheme = uri.partition(":")[0]
    if scheme not in HEADS:
        expected = "file:///FOLDER/heads.jsonl or postgres://USER@HOST/DB"
        raise Misuse("MANDAMUS_HEADS names no store", code="MDM-0290", expected=expected, found=f"{scheme[:20]}:")
    try:
        made: Heads = load(HEADS[scheme])(uri)
    except ModuleNotFoundError as error:
        raise not_installed(uri, str(error.name)) from None
    return made


def open_store(uri: str) -> ObjectStore:
    """The store of objects that a URI names. Raises Misuse for one that cannot be, EngineFault or Unavailable when it cannot be used."""
    scheme = uri.partition(":")[0]
    if scheme not in STORES:
        raise Misuse("no such store", code="MDM-0916", expected="folder:///PATH, s3://BUCKET/PREFIX or memory:", found=f"{scheme[:20]}:")
    try:
        made: ObjectStore = load(STORES[scheme])(uri)
    except ModuleNotFoundError as error:
        raise not_installed(uri, str(error.name)) from None
    return made


def open_blobs(primary: str, *replicas: str) -> Blobs:
    """The content store on these stores. Without Zstandard (extra `s3`) a segment is refused when one is met."""
    from mandamus.runtime.content.blobs import Blobs
    from mandamus.runtime.content.shelf import Shelf

    try:
        codec = load(PACKING)()
    except ModuleNotFoundError:
        codec = None
    return Blobs(*(Shelf(open_store(uri), codec) for uri in (primary, *replicas)))


def witnesses(uris: str | None = None, residency: str | None = None) -> tuple[Witness, ...]:
    """Who is asked to cosign checkpoints: URIs separated by spaces, by default those of `MANDAMUS_WITNESSES`; none is none. What they
    declare must lie within `residency`, by default `MANDAMUS_RESIDENCY`. Raises Misuse."""
    within = residency or os.environ.get("MANDAMUS_RESIDENCY") or "any"
    made: list[Witness] = []
    for uri in (os.environ.get("MANDAMUS_WITNESSES", "") if uris is None else uris).split():
        scheme = uri.partition(":")[0]
        if scheme not in WITNESSES:
            expected = " ".join(f"{s}:…" for s in WITNESSES)
            raise Misuse("no such witness", code="MDM-0949", where="MANDAMUS_WITNESSES", expected=expected, found=f"{scheme[:20]}:")
        one: Witness = load(WITNESSES[scheme])(uri)
        if one.name in [other.name for other in made]:
            raise Misuse("a witness is named twice", code="MDM-0949", where="MANDAMUS_WITNESSES", found=one.name)
        _within(one.name, getattr(one, "residency", "any"), within)
        made.append(one)
    return tuple(made)


def _within(name: str, declared: str, demanded: str) -> None:
    """eu lies within eu_approved, and that within any; what declares nothing may be anywhere."""
    order = ("eu", "eu_approved", "any")
    if demanded not in order:
        raise Misuse("MANDAMUS_RESIDENCY is none", code="MDM-0955", expected=", ".join(order), found=demanded[:20])
    if order.index(declared) > order.index(demanded):
        raise Misuse(
            f"{name} is outside of the demanded residency", code="MDM-0955", where="MANDAMUS_WITNESSES", expected=demanded, found=declared,
            why="roots and sizes of the log would leave it", fix=f"declare it (?residency={demanded}) if it lies there, or take it out",
        )  # fmt: skip


async def open_env(
    uri: str | None = None, *, tenant: str = "default", tier: str = "dev", time: Any = None, ledger: Ledger | None = None,
    home: Home | None = None, warn: Callable[[str], None] = lambda text: None, worker: str = "", heads: Heads | None = None,
    log: str | ObjectStore | None = None,
) -> Env:  # fmt: skip
    """Everything a process needs to run agents on one ledger. Close it with `close_env`.

    `heads`: who witnesses where its chains stand; for a ledger that lasts, by default what `MANDAMUS_HEADS` names, if anything.
    `log`: where its transparency log lies; else what `log_uri` says. Raises ProofError when the log knows more than the ledger.
    """
    where = ledger_uri(uri)
    clock = time or SystemTime()
    stands = home or home_of(where)
    opened = ledger
    if opened is None:
        opened = open_ledger(where, clock.now, tier=tier, keys=keys_of(where, make=ledger_store(where).server, home=home))
    sealing = opened if isinstance(opened, SealedLedger) else None
    try:
        signer = await _log_key(stands, opened)
        origin = signer.vkey.partition("+")[0]
        if heads or (heads := heads_of(where)):
            opened = await witness.watched(opened, heads, origin, warn)
        env = Env(
            opened, clock, signer, stands.trust, origin, tenant=tenant, tier=tier, worker=worker, uri=where, warn=warn,
            lease_ms=lease.from_environment(), sealing=sealing,
            open_keys=None if ledger else lambda make: keys_of(where, make=make, home=home),
        )  # fmt: skip
        env.log = LogBook(opened, clock, signer)
        env.home = stands
        env.trust = lambda: env.log.believed(stands.trust())
        others, quorum = administrators()
        own = lambda: [*(NamedKey(key=stands.signer(role).vkey, role=role) for role in NAMED), *others]  # noqa: E731 - keys are made when asked
        await env.log.open(origin, own, env.clock("UTC"), quorum)
        _in_force(env, stands)
        env.tlog = _tlog(env, log_uri(where, stands) if log is None else log)
        if env.tlog is not None:
            env.tlog.frozen = bool(env.log.away)  # its log goes on where the ledger does
            await env.tlog.begin()
    except BaseException:
        if ledger is None:
            await opened.close()
        raise
    stands.stands = True
    return env


def log_uri(ledger: str, home: Home | None = None) -> str:
    """Where the transparency log of a ledger lies: what `MANDAMUS_LOG` names ("none": nowhere), else for a file the folder `log` beside
    its keys. A ledger in memory has none, and one on servers only the one that is named: its processes must all name the same."""
    named = os.environ.get("MANDAMUS_LOG", "")
    if not ledger_store(ledger).lasts or named == "none":
        return ""
    folder = (home or home_of(ledger)).folder
    file = ledger_file(ledger)
    if named or folder is None or file is None:
        return named
    return f"folder://{folder / _of_file(file, 'log')}"


def _of_file(file: Path, what: str) -> str:
    """A second ledger file in a folder has a log of its own. (They share a key, so witnesses take only one of the two.)"""
    return what if file.name == FILE else f"{file.stem}-{what}"


def log_index(home: Home, ledger: str = "") -> Any:
    """Which leaves are a run's: beside the keys, outside of the log's folder, which may be served to anybody."""
    if home.folder is not None:
        _files.folder(home.folder)
    return load("mandamus.drivers.spans_sqlite:Spans.open")(_log_index(home, ledger))


def log_known(home: Home, ledger: str) -> int:
    """How large that index knows the log to be; 0 where there is none. Makes no file."""
    path = _log_index(home, ledger)
    if path is None or not path.exists():
        return 0
    spans = log_index(home, ledger)
    try:
        return int(spans.state[0])
    finally:
        spans.close()


def _log_index(home: Home, ledger: str) -> Path | None:
    file = ledger_file(ledger) if ledger else None
    return home.folder / (_of_file(file, "log-index.db") if file else "log-index.db") if home.folder else None


def _tlog(env: Env, log: str | ObjectStore) -> Any:
    if not log:
        return None
    store = open_store(log) if isinstance(log, str) else log
    service = load("mandamus.runtime.tlog.service:TenantLog")
    return service(
        env.ledger,
        store,
        log_index(env.home, env.uri),
        env.signer,
        env.trust,
        env.time.now,
        witnesses=witnesses(),
        holder=env.worker,
        warn=env.warn,
    )


async def close_env(env: Env) -> None:
    """Closes the ledger, which gives its locks back: later, while threads of tools still act for a run of it."""
    for task in env.lingering.values():
        task.cancel()
    if env.tlog is not None:
        await env.tlog.close()
    if not env.lingering or not threads.close_when_quiet(env.lingering, env.ledger.close):
        await env.ledger.close()


async def bind(agent: Any) -> Bound:
    """Load policies, open the model driver. Raises Misuse for a policy that does not validate: nothing starts on half a policy."""
    driver, name = model(agent.model) if isinstance(agent.model, str) else (agent.model, getattr(agent.model, "name", agent.spec.model))
    engines = engines_of(agent)
    for _, engine in engines:
        await engine.check()
    children = {child: await bind(a) for child, a in agent.children.items()}
    return Bound(
        spec=agent.spec, definition=agent.spec.digest(), tools=agent.tools, engines=engines,
        book=_book([e for _, e in engines], agent.default), model=driver,
        settings=Settings(name, max_output=agent.max_output, timeout_ms=agent.timeout_ms, stream=agent.stream), output=agent.output,
        guards=agent.guards, deps=agent.deps, manifest=agent.manifest, trusted_code=tuple(g.source for g in agent.guards),
        children=children,
    )  # fmt: skip


def engines_of(agent: Any) -> list[tuple[str, PolicyEngine]]:
    """Folders, files and thin rules together make the Cedar engine; rules in code are an engine of their own."""
    texts = [p for p in agent.policies if not callable(p) and not isinstance(p, PolicyEngine)]
    codes = [p for p in agent.policies if callable(p) and not isinstance(p, PolicyEngine)]
    out: list[tuple[str, PolicyEngine]] = []
    if texts or agent.default == "allow":
        cedar = importlib.import_module("mandamus.drivers.policy_cedar")
        yaml = importlib.import_module("mandamus.drivers.yaml_strict")
        out.append(("agent", cedar.CedarEngine.load(texts, agent.spec.tools, default=agent.default, read_yaml=yaml.load)))
    if codes:
        python = importlib.import_module("mandamus.drivers.policy_python")
        chains = {k: v for _, e in out for k, v in e.book.chains.items()}
        out.append(("code", python.PythonRules.of(codes, chains=chains)))
    return out + [("agent", p) for p in agent.policies if isinstance(p, PolicyEngine)]


def _book(engines: Sequence[PolicyEngine], default: Any) -> RuleBook:
    """One book of all engines; its digest covers every text of them."""
    texts: dict[str, str] = {}
    for n, engine in enumerate(engines):
        texts |= {(k if k not in texts else f"{n}/{k}"): v for k, v in engine.book.texts.items()}
        texts[f"engine/{n}"] = engine.digest()
    limits = tuple(x for e in engines for x in e.book.limits)
    return RuleBook(
        digest=policy_digest(texts), limits=limits, chains={k: v for e in engines for k, v in e.book.chains.items()},
        on_deny="halt" if any(e.book.on_deny == "halt" for e in engines) else "feedback", texts=texts, default=default,
    )  # fmt: skip
