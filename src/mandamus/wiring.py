"""URI → driver, in tables. The only module that knows both sides; a driver is imported when its URI is named.

    ledger   sqlite:///relative.db  sqlite:////absolute.db  memory:
    model    openai:gpt-4o  openai+http://127.0.0.1:8080/v1#name  anthropic:NAME  scripted:FILE.json
Register your own: `wiring.MODELS["my"] = "my_module:from_uri"`.
"""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mandamus.core.canonical import canon
from mandamus.core.digests import policy_digest
from mandamus.core.facts import RuleBook
from mandamus.core.messages import Settings
from mandamus.core.records import NamedKey
from mandamus.errors import Misuse
from mandamus.ports import Ledger, Model, PolicyEngine, Signer
from mandamus.proof.trust import Trust
from mandamus.runtime import threads
from mandamus.runtime.env import Bound, Env, SystemTime
from mandamus.runtime.log import LogBook

LEDGERS: dict[str, str] = {"sqlite": "mandamus.drivers.ledger_sqlite:SqliteLedger", "memory": "mandamus.drivers.ledger_memory:MemoryLedger"}
MODELS: dict[str, str] = {
    "openai": "mandamus.drivers.model_openai:from_uri",
    "openai+http": "mandamus.drivers.model_openai:from_uri",
    "openai+https": "mandamus.drivers.model_openai:from_uri",
    "anthropic": "mandamus.drivers.model_anthropic:from_uri",
    "anthropic+http": "mandamus.drivers.model_anthropic:from_uri",
    "anthropic+https": "mandamus.drivers.model_anthropic:from_uri",
    "scripted": "mandamus.drivers.model_scripted:from_uri",
}
DEFAULT_LEDGER = "sqlite:///.mandamus/run.db"
ROLES = ("log", "bundle", "administrator", "frontend")


def _load(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def model(uri: str) -> tuple[Model, str]:
    """(driver, model name). Raises Misuse for an unknown scheme."""
    scheme = uri.partition(":")[0]
    if scheme not in MODELS:
        raise Misuse(f"model {uri!r}", code="MDM-0110", expected=" ".join(f"{s}:…" for s in MODELS), fix='model="openai:gpt-4o"')
    made: tuple[Model, str] = _load(MODELS[scheme])(uri)
    return made


def ledger_uri(uri: str | None = None) -> str:
    return uri or os.environ.get("MANDAMUS_LEDGER") or DEFAULT_LEDGER


def ledger_file(uri: str) -> Path | None:
    """The file behind a ledger URI, or None when it has none."""
    scheme, _, rest = uri.partition(":")
    if scheme == "sqlite":
        if not rest.startswith("///"):
            raise Misuse(f"ledger {uri!r}", code="MDM-0111", expected="sqlite:///relative/file.db or sqlite:////absolute/file.db")
        return Path(rest[3:])
    if scheme == "memory":
        return None
    raise Misuse(f"ledger {uri!r}", code="MDM-0111", expected="sqlite:///file.db or memory:")


class Home:
    """The folder beside a ledger file: keys and the trust file. In memory for ledgers without a file."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._keys: dict[str, Any] = {}
        self._trust: tuple[Any, Trust] | None = None
        self.policies: dict[str, dict[str, str]] = {}
        self.manifests: dict[str, str] = {}
        self._memory = ""

    def keep_policy(self, digest: str, texts: dict[str, str]) -> None:
        """Policy texts stay readable beside the ledger, under their digest: a bundle carries them."""
        if digest in self.policies:
            return
        self.policies[digest] = texts
        if self.folder:
            path = self.folder / "policies" / f"{digest}.json"
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(canon(texts))

    def keep_manifest(self, digest: str, text: str) -> None:
        """So does the text of agent.yaml, as it was when a run began."""
        self.manifests[digest] = text
        if self.folder:
            path = self.folder / "manifests" / f"{digest}.yaml"
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8", newline="")

    def manifest(self, digest: str) -> str:
        """The text of a digest, or "" when it is not here."""
        path = self.folder / "manifests" / f"{digest}.yaml" if self.folder and digest else None
        return self.manifests.get(digest) or (path.read_bytes().decode("utf-8") if path and path.exists() else "")

    @property
    def trust_file(self) -> Path | None:
        return self.folder / "trust" if self.folder else None

    def signer(self, role: str) -> Signer:
        """The key of one role, made at first use (tier dev)."""
        if role not in self._keys:
            self._keys[role] = self._ephemeral(role) if self.folder is None else self._file(self.folder / "keys" / f"{role}.pem", role)
        signer: Signer = self._keys[role]
        return signer

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
            path.write_text(self.own_lines())
        seen = path.stat()
        changed = (seen.st_mtime_ns, seen.st_ctime_ns, seen.st_size, seen.st_ino)  # a copy that keeps its date is another file all the same
        if self._trust is None or self._trust[0] != changed:
            self._trust = (changed, Trust.parse(path.read_bytes(), str(path)))
        return self._trust[1]

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
        path.write_text(text)

    def own_lines(self) -> str:
        lines = [
            f"log {self.signer('log').vkey}",
            f"bundle local {self.signer('bundle').vkey}",
            f"admin {self.signer('administrator').vkey}",
        ]
        self._memory = "\n".join([*lines, f"frontend local {self.signer('frontend').vkey}", "quorum none"]) + "\n"
        return self._memory


def _origin(public: bytes) -> str:
    """dev: never the host's name (EVIDENCE, section 3)."""
    return "mandamus.local/" + hashlib.sha256(public).hexdigest()[:16]


def home_of(uri: str) -> Home:
    path = ledger_file(uri)
    return Home(path.parent if path else None)


def open_ledger(uri: str, clock: Callable[[], int] | None = None) -> Ledger:
    """Opens or makes the ledger. Raises Misuse, EngineFault or ProofError with the way out."""
    path = ledger_file(uri)
    driver = _load(LEDGERS[uri.partition(":")[0]])
    if path is None:
        held: Ledger = driver(clock) if clock else driver()
        return held
    path.parent.mkdir(parents=True, exist_ok=True)
    opened: Ledger = driver.open(path, clock) if clock else driver.open(path)
    return opened


async def open_env(
    uri: str | None = None, *, tenant: str = "default", tier: str = "dev", time: Any = None, ledger: Ledger | None = None,
    home: Home | None = None, warn: Callable[[str], None] = lambda text: None, worker: str = "",
) -> Env:  # fmt: skip
    """Everything a process needs to run agents on one ledger. Close it with `close_env`."""
    where = ledger_uri(uri)
    clock = time or SystemTime()
    stands = home or home_of(where)
    opened = ledger or open_ledger(where, clock.now)
    signer = stands.signer("log")
    origin = signer.vkey.partition("+")[0]
    env = Env(opened, clock, signer, stands.trust, origin, tenant=tenant, tier=tier, worker=worker, uri=where, warn=warn)
    env.log = LogBook(opened, clock, signer)
    env.home = stands
    keys = [NamedKey(key=stands.signer(role).vkey, role=role) for role in ("administrator", "bundle", "log")]
    await env.log.open(origin, keys, env.clock("UTC"))
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
    unbuilt = next((x for x in limits if x.per == "counterparty"), None)
    if unbuilt:
        raise Misuse(
            f"limit {unbuilt.id!r}: per counterparty", code="MDM-0141", expected="agent or tenant",
            why="an account named after a counterparty would put that name into the log",
        )  # fmt: skip
    return RuleBook(
        digest=policy_digest(texts), limits=limits, chains={k: v for e in engines for k, v in e.book.chains.items()},
        on_deny="halt" if any(e.book.on_deny == "halt" for e in engines) else "feedback", texts=texts, default=default,
    )  # fmt: skip
