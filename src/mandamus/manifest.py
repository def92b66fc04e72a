"""agent.yaml: an agent as a signed file. `read(path) -> Loaded`, `parts(loaded)` imports what it names, `drift(…)` compares.

The file may bind what it describes: `pins` (tool -> pin), `instructions_sha256`, `policy_digest`, `model`. The rule a newcomer would
break: a binding that is there and not true refuses the start; nothing is repaired, and a key that is unknown is never ignored.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from mandamus import _files
from mandamus._author import Author
from mandamus._budget import Budget, Price
from mandamus.core.canonical import accept, canon
from mandamus.core.data import AnnexIII, Basis, Retention
from mandamus.core.definition import AgentSpec
from mandamus.core.digests import manifest_digest
from mandamus.core.duties import Reason, refusal
from mandamus.core.strict import shaped
from mandamus.drivers import code_import, yaml_strict
from mandamus.errors import MandamusError, Misuse, ProofError
from mandamus.ports import Signer
from mandamus.proof import dsse
from mandamus.proof.keys import parse_vkey
from mandamus.proof.trust import Trust

PAYLOAD_TYPE = "application/vnd.mandamus.manifest"
SIGNATURE = ".sig"
SHAPE, FILES, SIGNING = "MDM-0760", "MDM-0762", "MDM-0763"


class Manifest(Struct, frozen=True, kw_only=True):
    """agent.yaml, field by field. Names of code are `module:attr`; paths are relative to the file."""

    name: str
    model: str
    purpose: str = ""
    lawful_basis: Basis | None = None
    annex_iii: AnnexIII = "none"
    art22_decision: bool = False
    instructions: str = ""
    instructions_file: str = ""
    instructions_sha256: str = ""
    tools: tuple[str, ...] = ()
    output: str = "str"
    policies: tuple[str | dict[str, Any], ...] = ()
    policy_digest: str = ""
    guardrails: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()
    handoffs: tuple[str, ...] = ()
    pins: dict[str, str] = {}
    budget: Budget = Budget()
    price: Price | None = None
    deps: str = ""
    roles: tuple[str, ...] = ()
    retentions: tuple[Retention, ...] = ()
    oversight: str = ""
    environment: str = ""
    timezone: str = "UTC"
    window: int = 128_000
    max_output: int = 4096
    timeout: str = "120s"
    stream: bool = False
    profile: Literal["none", "gdpr", "ai_act"] = "none"
    default: Literal["deny", "allow"] = "deny"
    replay_mode: str = "deterministic"


class Loaded(Struct, frozen=True, kw_only=True):
    """A manifest as it was read: the text that its digest and its signature are of, and where each value stands."""

    path: Path
    text: str
    manifest: Manifest
    instructions: str
    places: Any
    signature: bytes = b""

    @property
    def digest(self) -> str:
        return manifest_digest(self.text)

    @property
    def folder(self) -> Path:
        return self.path.parent

    def where(self, *path: str | int) -> str:
        return str(self.places.where(path))


# -- reading -----------------------------------------------------------------------------------------------------------------
def read(path: str | Path) -> Loaded:
    """Raises Misuse with file:line:col for everything that is not as the schema says. Imports nothing."""
    file = Path(path)
    tree = yaml_strict.load(file)
    if not isinstance(tree.value, dict):
        raise Misuse("agent.yaml is a mapping", code=SHAPE, where=tree.where(), expected="name: …, model: …, tools: […]")
    given = _spelled(tree.value)
    manifest = shaped(given, Manifest, tree, code=SHAPE, what="agent.yaml")
    if manifest.replay_mode != "deterministic":
        raise Misuse(
            "replay_mode",
            code=SHAPE,
            where=tree.where(("replay_mode",)),
            expected="deterministic",
            why="every run is recorded for replay: it is always on",
        )
    text = file.read_bytes().decode("utf-8-sig")
    return Loaded(
        path=file, text=text, manifest=manifest, instructions=_instructions(manifest, tree, file.parent), places=tree,
        signature=_signature(file),
    )  # fmt: skip


def _spelled(value: dict[str, Any]) -> dict[str, Any]:
    """Words of the law may be written with - or _; both mean the same."""
    words = ("lawful_basis", "annex_iii")
    return {k: v.replace("-", "_") if k in words and isinstance(v, str) else v for k, v in value.items()}


def _instructions(m: Manifest, tree: yaml_strict.Tree, folder: Path) -> str:
    if not m.instructions_file:
        return m.instructions
    where = tree.where(("instructions_file",))
    if m.instructions:
        raise Misuse("instructions are there twice", code=SHAPE, where=where, expected="instructions, or instructions_file")
    try:
        return (folder / m.instructions_file).read_bytes().decode("utf-8")
    except OSError as error:
        raise Misuse(f"the instructions cannot be read: {error.strerror}", code=FILES, where=where) from None
    except UnicodeDecodeError:
        raise Misuse("the instructions are not UTF-8", code=FILES, where=where) from None


def _signature(file: Path) -> bytes:
    path = file.with_name(file.name + SIGNATURE)
    try:
        return path.read_bytes() if path.exists() else b""
    except OSError as error:
        raise Misuse(f"the signature cannot be read: {error.strerror}", code=FILES, where=str(path)) from None


# -- what it names -----------------------------------------------------------------------------------------------------------
def parts(loaded: Loaded) -> dict[str, Any]:
    """The arguments of Agent(...): names imported, paths found. Raises Misuse at the place of the name that is not there."""
    m = loaded.manifest
    out: dict[str, Any] = {f: getattr(m, f) for f in _PLAIN}
    for field in ("tools", "guardrails", "plugins"):
        out[field] = [_named(loaded, (field, i), name) for i, name in enumerate(getattr(m, field))]
    out["handoffs"] = [n if n.endswith((".yaml", ".yml")) else _named(loaded, ("handoffs", i), n) for i, n in enumerate(m.handoffs)]
    out["policies"] = [p if isinstance(p, dict) else _policy(loaded, i, p) for i, p in enumerate(m.policies)]
    out["output"] = str if m.output == "str" else _named(loaded, ("output",), m.output)
    out["deps"] = _factory(loaded) if m.deps else ""
    out["model"] = _beside(loaded, m.model)
    out["instructions"] = loaded.instructions
    return out


_PLAIN = (
    "name",
    "purpose",
    "lawful_basis",
    "annex_iii",
    "art22_decision",
    "roles",
    "retentions",
    "oversight",
    "environment",
    "timezone",
    "price",
    "window",
    "max_output",
    "timeout",
    "stream",
    "profile",
    "default",
)


def _named(loaded: Loaded, path: tuple[str | int, ...], name: str) -> Any:
    return code_import.resolve(name, loaded.folder, loaded.where(*path))[0]


def _factory(loaded: Loaded) -> str:
    """`deps` stays a name, since it is built where the tools run; that it can be built is known now."""
    found, name = code_import.resolve(loaded.manifest.deps, loaded.folder, loaded.where("deps"))
    if not callable(found):
        raise Misuse("deps is no factory", code=SHAPE, where=loaded.where("deps"), expected="module:function", found=type(found).__name__)
    return name


def _policy(loaded: Loaded, i: int, text: str) -> Any:
    """A path beside the file, or `module:attr` of a rule in code."""
    path = loaded.folder / text
    if not path.exists() and code_import.is_reference(text):
        return _named(loaded, ("policies", i), text)
    return str(path)


def _beside(loaded: Loaded, uri: str) -> str:
    """A script is named relative to agent.yaml, like every other path in it."""
    scheme, _, rest = uri.partition(":")
    return f"scripted:{loaded.folder / rest}" if scheme == "scripted" and rest else uri


# -- what it binds -----------------------------------------------------------------------------------------------------------
def instructions_digest(text: str) -> str:
    """SHA-256 of the text, as `sha256sum` prints it for a file."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def bindings(spec: AgentSpec, policy: str) -> dict[str, Any]:
    """What to write into agent.yaml, so that nothing else may start under its name."""
    return {
        "instructions_sha256": instructions_digest(spec.instructions), "pins": {t.name: t.pin for t in spec.tools}, "policy_digest": policy,
    }  # fmt: skip


def drift(loaded: Loaded, spec: AgentSpec, policy: str) -> tuple[Reason, ...]:
    """One reason per binding that is not true of what was loaded, with both sides."""
    m, out = loaded.manifest, []
    pins = {t.name: t.pin for t in spec.tools}
    for name in sorted({*m.pins, *pins}) if m.pins else ():
        if m.pins.get(name) != pins.get(name):
            out.append(_differs(loaded, ("pins", name), f"tool {name!r}", m.pins.get(name, ""), pins.get(name, "")))
    for field, bound, found in (
        ("instructions_sha256", m.instructions_sha256, instructions_digest(spec.instructions)),
        ("policy_digest", m.policy_digest, policy),
        ("model", m.model, spec.model),
    ):
        if bound and bound != found:
            out.append(_differs(loaded, (field,), field, bound, found))
    return tuple(out)


def _differs(loaded: Loaded, path: tuple[str, ...], what: str, bound: str, found: str) -> Reason:
    text = f"{loaded.where(*path)} {what} is not what agent.yaml binds: - {bound or 'nothing'} + {found or 'nothing'}"
    return refusal("manifest_drift", text, f"look at what changed; if it is meant, write the new value at {'.'.join(path)} and sign again")


# -- who signed it -----------------------------------------------------------------------------------------------------------
def sign_manifest(path: str | Path, signer: Signer) -> Path:
    """`sign_manifest("agent.yaml", FileSigner.open("author.pem"))` writes agent.yaml.sig. Raises Misuse for a file that binds nothing."""
    loaded = read(path)
    m = loaded.manifest
    wanted = {"pins": m.tools, "policy_digest": True, "instructions_sha256": m.instructions_file}
    missing = [name for name, needed in wanted.items() if needed and not getattr(m, name)]
    if missing:
        why = "the signature would hold for other tools, policies or instructions"
        raise Misuse(
            f"agent.yaml does not bind {', '.join(missing)}",
            code=SIGNING,
            where=str(path),
            why=why,
            fix=f"mandamus manifest show {path} prints the lines: write them into it, then sign again",
        )
    envelope = dsse.sign(PAYLOAD_TYPE, _signed(loaded, signer.vkey), [(parse_vkey(signer.vkey).id, signer.sign)])
    target = loaded.path.with_name(loaded.path.name + SIGNATURE)
    _files.put(target, envelope)
    return target


def check_manifest(loaded: Loaded, trust: Trust) -> Author:
    """Who signed exactly this text; Author() when nobody did. A name stands only there for an author of the trust file.

    Raises ProofError when it is signed and the signature is of another text: this is not the agent that somebody approved.
    """
    if not loaded.signature:
        return Author()
    envelope = dsse.read(loaded.signature)
    claimed = _claimed(envelope.payload)
    if envelope.payload_type != PAYLOAD_TYPE or not claimed or envelope.payload != _signed(loaded, claimed):
        fix = f"look at what changed and sign again, or (tier dev) remove {loaded.path.name}{SIGNATURE}"
        raise ProofError(
            "agent.yaml is not the text that was signed",
            code="MDM-0626",
            where=str(loaded.path),
            why="it is not the agent that was approved",
            fix=fix,
        )
    key = parse_vkey(claimed)
    dsse.check(loaded.signature, PAYLOAD_TYPE, [key])  # of the key that it names; whether anybody knows that key is another question
    return Author(next((name for name, known in trust.authors if known.public == key.public), ""), claimed)


def _claimed(payload: bytes) -> str:
    """The key that a signed payload names as its author's, or ""."""
    try:
        value = accept(payload)
        vkey = value["author"] if isinstance(value, dict) else ""
        parse_vkey(vkey)
        return str(vkey)
    except (ValueError, KeyError, TypeError, MandamusError):
        return ""


def _signed(loaded: Loaded, vkey: str) -> bytes:
    return canon({"author": vkey, "domain": "mandamus/manifest/v1", "manifest": loaded.digest, "name": loaded.manifest.name})


# -- schema ------------------------------------------------------------------------------------------------------------------
def schema() -> dict[str, Any]:
    """JSON Schema of agent.yaml, for editors; generated from the Struct that reads it."""
    made: dict[str, Any] = msgspec.json.schema(Manifest)
    _close(made)
    made["$defs"]["Manifest"]["properties"]["replay_mode"] = {"const": "deterministic", "default": "deterministic"}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "mandamus agent.yaml", **made}


def _close(node: Any) -> None:
    if isinstance(node, list):
        for inner in node:
            _close(inner)
    elif isinstance(node, dict):
        if node.get("type") == "object" and "properties" in node:
            node.setdefault("additionalProperties", False)
        for inner in node.values():
            _close(inner)
