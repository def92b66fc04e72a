"""URI → driver, in tables. The only module that knows both sides; a driver is imported when its URI is named.

    ledger   sqlite:///relative.db  sqlite:////absolute.db  memory:  postgres://USER@HOST/DB  nats://HOST:PORT/NAME
    model    openai:gpt-4o  openai+http://127.0.0.1:8080/v1#name  anthropic:NAME  scripted:FILE.json
Register your own by one line: `wiring.MODELS["my"] = "my_module:from_uri"`, `wiring.LEDGERS["my"] = wiring.Store("my_module:from_uri", "my://HOST")`.
The rule a newcomer would break: nothing outside these tables asks which scheme a URI has.
"""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mandamus import _files
from mandamus.core.canonical import canon
from mandamus.core.digests import policy_digest
from mandamus.core.facts import RuleBook
from mandamus.core.messages import Settings
from mandamus.core.records import LOG, NamedKey
from mandamus.errors import Misuse
from mandamus.ports import Head, Heads, Ledger, Model, PolicyEngine, Signer
from mandamus.proof.trust import Trust
from mandamus.runtime import heads as witness
from mandamus.runtime import lease, threads
from mandamus.runtime.env import Bound, Env, SystemTime
from mandamus.runtime.log import LogBook


class Store(NamedTuple):
    """One scheme of ledgers. `driver` is called with the URI (a `file`'s: with its path) and a clock when there is one."""

    driver: str  # module:name
    form: str  # how such a URI is written, for people
    file: bool = False  # scheme:///PATH names a file here; keys and the trust file stand beside it
    held: str = ""  # module:name, called with (path, run): who drives it now, by a lock that dies with its process
    lasts: bool = True  # another process finds it again; without a file its keys stand in .mandamus/
    server: bool = False  # of several machines: the driver is told the tier


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
HEADS: dict[str, str] = {
    "file": "mandamus.drivers.heads_file:FileHeads.open",
    "postgres": "mandamus.drivers.heads_postgres:PostgresHeads.open",
    "postgresql": "mandamus.drivers.heads_postgres:PostgresHeads.open",
}
DEFAULT_LEDGER = "sqlite:///.mandamus/run.db"
HOME = Path(".mandamus")  # of a ledger that lasts and has no file here
ROLES = ("log", "bundle", "administrator", "frontend")
NAMED = ("administrator", "bundle", "log")  # the keys that chain `log` begins with


def _load(target: str) -> Any:
    module, _, name = target.partition(":")
    found: Any = importlib.import_module(module)
    for step in name.split("."):
        found = getattr(found, step)
    return found


def model(uri: str) -> tuple[Model, str]:
    """(driver, model name). Raises Misuse for an unknown scheme."""
    scheme = uri.partition(":")[0]
    if scheme not in MODELS:
        raise Misuse(f"model {uri!r}", code="MDM-0110", expected=" ".join(f"{s}:…" for s in MODELS), fix='model="openai:gpt-4o"')
    made: tuple[Model, str] = _load(MODELS[scheme])(uri)
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
    return str(_load(held)(path, head.run)) if held and path and head.owner else head.owner


class Home:
    """The folder `.mandamus` of a ledger file: keys, trust file, kept texts. In memory for ledgers without a file."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.keys: dict[str, Signer] = {}  # by role, as far as they were used
        self.stands = False  # chain `log` has begun and names its keys: none of those is made any more
        self._trust: tuple[Any, Trust] | None = None
        self.policies: dict[str, dict[str, str]] = {}
        self.manifests: dict[str, str] = {}
        self.definitions: dict[str, bytes] = {}
        self._memory = ""

    def keep_policy(self, digest: str, texts: dict[str, str]) -> None:
        """Policy texts stay readable beside the ledger, under their digest: a bundle carries them."""
        if digest in self.policies:
            return
        self.policies[digest] = texts
        if self.folder:
            path = self.folder / "policies" / f"{digest}.json"
            if not path.exists():
                _files.write(path, canon(texts))

    def keep_manifest(self, digest: str, text: str) -> None:
        """So does the text of agent.yaml, as it was when a run began."""
        self.manifests[digest] = text
        if self.folder:
            path = self.folder / "manifests" / f"{digest}.yaml"
            if not path.exists():
                _files.write(path, text.encode("utf-8"))

    def keep_definition(self, digest: str, raw: bytes) -> None:
        """And what the agent was then, field by field: a run that is carried on by another one is refused with the difference."""
        self.definitions[digest] = raw
        if self.folder:
            path = self.folder / "definitions" / f"{digest}.json"
            if not path.exists():
                _files.write(path, raw)

    def definition(self, digest: str) -> bytes:
        """The definition of a digest, or b"" when it is not here. Not believed: whoever reads it computes the digest again."""
        path = self.folder / "definitions" / f"{digest}.json" if self.folder else None
        return self.definitions.get(digest) or (path.read_bytes() if path and path.exists() else b"")

    def manifest(self, digest: str) -> str:
        """The text of a digest, or "" when it is not here."""
        path = self.folder / "manifests" / f"{digest}.yaml" if self.folder and digest else None
        return self.manifests.get(digest) or (path.read_bytes().decode("utf-8") if path and path.exists() else "")

    @property
    def trust_file(self) -> Path | None:
        return self.folder / "trust" if self.folder else None

    def signer(self, role: str) -> Signer:
        """The key of one role, made at first use (tier dev)."""
        if role not in self.keys:
            if self.stands and role in NAMED and self.folder and not (self.folder / "keys" / f"{role}.pem").exists():
                raise _no_key(self.folder / "keys" / f"{role}.pem", role)
            self.keys[role] = self._ephemeral(role) if self.folder is None else self._file(self.folder / "keys" / f"{role}.pem", role)
        return self.keys[role]

    def _file(self, path: Path, role: str) -> Signer:
        from mandamus.drivers.sign_file import FileSigner

        return FileSigner.open(path) if path.exists() else FileSigner.create(path, _origin if role == "log" else f"mandamus.local/{role}")

    def _ephemeral(self, role: str) -> Signer:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        from mandamus.drivers.sign_file import FileSigner
        from mandamus.proof.keys import vkey

        private = Ed25519PrivateKey.generate()
        public = private.public_key().public_bytes_raw()
        return FileSigner(private, vkey(_origin(public) if role == "log" else f"mandamus.local/{role}", public))

    def trust(self) -> Trust:
        """The trust file as it stands now; written at first use with this ledger's own keys."""
        path = self.trust_file
        if path is None:
            if self._trust is None:
                self._trust = (0, Trust.parse(self.own_lines()))
            return self._trust[1]
        if not path.exists():
            _files.write(path, self.own_lines().encode("utf-8"))
        seen = path.stat()
        changed = (seen.st_mtime_ns, seen.st_ctime_ns, seen.st_size, seen.st_ino)  # a copy that keeps its date is another file all the same
        if self._trust is None or self._trust[0] != changed:
            self._trust = (changed, Trust.parse(path.read_bytes(), str(path)))
        return self._trust[1]

    def known(self) -> Trust:
        """The same for verbs that only read: where no trust file stands nobody is known, and neither a file nor a key is made."""
        path = self.trust_file
        return self.trust() if path is None or path.exists() else Trust.parse("quorum none\n")

    def add_trust(self, line: str) -> None:
        """One more line. In memory it lives as long as this object."""
        path = self.trust_file
        if path is None:
            text = (self._memory or self.own_lines()) + line + "\n"
            self._memory = text
            self._trust = (0, Trust.parse(text))
            return
        self.trust()
        text = path.read_text() + line + "\n"
        Trust.parse(text, str(path))
        _files.write(path, text.encode("utf-8"))

    def own_lines(self) -> str:
        lines = [
            f"log {self.signer('log').vkey}",
            f"bundle local {self.signer('bundle').vkey}",
            f"admin {self.signer('administrator').vkey}",
        ]
        self._memory = "\n".join([*lines, f"frontend local {self.signer('frontend').vkey}", "quorum none"]) + "\n"
        return self._memory


def _origin(public: bytes) -> str:
    """dev: never the host's name. An origin stands in every genesis and goes wherever a bundle goes."""
    return "mandamus.local/" + hashlib.sha256(public).hexdigest()[:16]


def _no_key(path: Path, role: str) -> Misuse:
    return Misuse(
        f"the {role} key of this ledger is not here", code="MDM-0242", where=str(path),
        why="its log names the keys that it began with, and a new one would be a stranger's",
        fix=f"do this where {path.name} lies, or put it there",
    )  # fmt: skip


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


def open_ledger(uri: str, clock: Callable[[], int] | None = None, *, tier: str = "dev") -> Ledger:
    """Opens or makes the ledger; a server's is asked at the first use. Raises Misuse, EngineFault or ProofError with the way out."""
    path, store = ledger_file(uri), ledger_store(uri)
    if path is not None:
        _files.folder(path.parent)
    try:
        driver = _load(store.driver)
    except ModuleNotFoundError as error:
        raise _not_installed(uri, str(error.name)) from None
    told: dict[str, Any] = {"tier": tier} if store.server else {}
    opened: Ledger = driver(path or uri, clock, **told) if clock else driver(path or uri, **told)
    return opened


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
        made: Heads = _load(HEADS[scheme])(uri)
    except ModuleNotFoundError as error:
        raise _not_installed(uri, str(error.name)) from None
    return made


def _not_installed(uri: str, module: str) -> Misuse:
    extra = "nats" if "nats" in uri.partition(":")[0] else "postgres"
    return Misuse(
        "the driver of this store is not installed", code="MDM-0112", where=uri.partition(":")[0] + ":", found=f"no module {module}",
        fix=f"pip install 'mandamus[{extra}]'",
    )  # fmt: skip


async def open_env(
    uri: str | None = None, *, tenant: str = "default", tier: str = "dev", time: Any = None, ledger: Ledger | None = None,
    home: Home | None = None, warn: Callable[[str], None] = lambda text: None, worker: str = "", heads: Heads | None = None,
) -> Env:  # fmt: skip
    """Everything a process needs to run agents on one ledger. Close it with `close_env`.

    `heads`: who witnesses where its chains stand; for a ledger that lasts, by default what `MANDAMUS_HEADS` names, if anything.
    """
    where = ledger_uri(uri)
    clock = time or SystemTime()
    stands = home or home_of(where)
    opened = ledger or open_ledger(where, clock.now, tier=tier)
    try:
        signer = await _log_key(stands, opened)
        origin = signer.vkey.partition("+")[0]
        if heads or (heads := heads_of(where)):
            opened = await witness.watched(opened, heads, origin, warn)
        env = Env(
            opened, clock, signer, stands.trust, origin, tenant=tenant, tier=tier, worker=worker, uri=where, warn=warn,
            lease_ms=lease.from_environment(),
        )  # fmt: skip
        env.log = LogBook(opened, clock, signer)
        env.home = stands
        await env.log.open(origin, lambda: [NamedKey(key=stands.signer(role).vkey, role=role) for role in NAMED], env.clock("UTC"))
    except BaseException:
        if ledger is None:
            await opened.close()
        raise
    stands.stands = True
    return env


async def close_env(env: Env) -> None:
    """Closes the ledger, which gives its locks back: later, while threads of tools still act for a run of it."""
    for task in env.lingering.values():
        task.cancel()
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
