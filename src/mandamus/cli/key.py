"""`key new|enroll|trust|list`: key files, and the trust file beside a ledger.

The rule a newcomer would break: the trust file says who votes, and a bundle never brings one. `key trust` prints what an auditor needs
from the owner of the ledger, by another way than the bundle.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import click

from mandamus.cli.common import Cli, verb
from mandamus.cli.keys import PASSPHRASE, principal_id, role_name
from mandamus.cli.whom import Whom
from mandamus.core.strict import did_you_mean
from mandamus.errors import Misuse, Refused

KINDS = {
    "ed25519": 0x01,
    "p256": 0x02,
    "cosigner": 0x04,
    "cosigner-ml-dsa": 0x06,
}  # as in proof/keys.py, which --help does not need


@verb("new", exits={0: "made"})
@click.argument("file", metavar="FILE|URI")
@click.option("--kind", type=click.Choice(list(KINDS)), default="ed25519", help="p256 signs bundles; a cosigner's is for a witness.")
@click.option("--name", required=True, metavar="NAME", help="A name for the key, printable and without spaces; it is public.")
@click.option("--passphrase", "protected", is_flag=True, help=f"Ask for a passphrase (or take ${PASSPHRASE}).")
def new(cli: Cli, file: str, kind: str, name: str, protected: bool) -> int:
    """Make a key in FILE (mode 0600), or in a token (pkcs11:…), and print its public line. A key that exists is never replaced."""
    if file.startswith("pkcs11:"):
        if protected:
            raise Misuse("a token has a PIN, not a passphrase", code="MDM-0003", fix="&pin-source=env:NAME in the address")
        from mandamus import wiring

        signer = wiring.make_signer(file, name, KINDS[kind])
    else:
        from mandamus.drivers.sign_file import FileSigner

        signer = FileSigner.create(file, name, _passphrase(cli) if protected else None, KINDS[kind])
    uses = {
        "p256": f"MANDAMUS_SIGN_BUNDLE={file if ':' in file else 'file://' + str(Path(file).resolve())}, and a bundle line in trust files",
        "cosigner": f"mandamus witness serve --key {file} --db witness.db --init --log LOG-VKEY",
    }
    use = uses.get(kind) or cli.command(f"key enroll --principal p-... --role ROLE --vkey '{signer.vkey}'")
    cli.tell(
        {"file": file, "id": signer.keyid, "name": signer.key.name, "vkey": signer.vkey},
        f"{signer.vkey}\n  file    {file}\n  next    {use}",
    )
    return 0


def _passphrase(cli: Cli) -> bytes:
    given = os.environ.get(PASSPHRASE)
    if given is not None:
        return given.encode()
    if not cli.may_ask():
        raise Misuse("nobody can be asked for a passphrase here", code="MDM-0015", fix=f"set {PASSPHRASE}")
    import getpass

    first, second = getpass.getpass("passphrase: "), getpass.getpass("again: ")
    if first != second:
        raise Misuse("the two passphrases differ", code="MDM-0191", fix="again")
    return first.encode()


@verb("enroll", exits={0: "enrolled", 3: "refused: the key or its principal stands there already"})
@click.option("--principal", required=True, metavar="ID", help="An opaque id such as p-alice; two keys of one principal are one voter.")
@click.option("--role", "roles", multiple=True, metavar="ROLE", help="A role in approval chains; may be given several times.")
@click.option("--key", "key_file", metavar="FILE", help="The key file, when it lies here.")
@click.option("--vkey", metavar="VKEY", help="The public line that `key new` printed.")
def enroll(cli: Cli, principal: str, roles: tuple[str, ...], key_file: str | None, vkey: str | None) -> int:
    """Let a key vote as a principal: a line of the trust file, and a record that the ledger's administrator signs."""
    if (key_file is None) == (vkey is None):
        raise Misuse("which key?", code="MDM-0003", expected="one of --key FILE and --vkey VKEY")
    lines = [f"role {role_name(role)} {principal_id(principal)}" for role in roles]
    return cli.run(_enroll(cli, principal_id(principal), roles, lines, _public(cli, key_file, vkey)))


def _public(cli: Cli, key_file: str | None, vkey: str | None) -> Any:
    """Only the public line is needed; it stands readable in the key file."""
    from mandamus.cli.keys import open_key
    from mandamus.proof.keys import parse_vkey

    return parse_vkey(vkey.strip()) if vkey is not None else open_key(cli, key_file, ssh=True).key


def _new_ledger(cli: Cli) -> None:
    """Said, since somebody may stand in another folder than the project's."""
    from mandamus import wiring

    path = wiring.ledger_file(cli.uri)
    if path and not path.exists():
        cli.note(f"note: there was no ledger here; {path} is new")


async def _enroll(cli: Cli, principal: str, roles: tuple[str, ...], lines: list[str], key: Any) -> int:
    from mandamus.core.records import KeyChanged
    from mandamus.runtime.statements import signed, widen

    _new_ledger(cli)
    async with cli.env(make=True) as env:
        trust = env.trust()
        held = trust.approvers.get(key.public)
        if held and (held[0] != principal or set(roles) <= set(trust.roles_of(principal))):
            raise Refused(f"this key votes as {held[0]} already", code="MDM-0338", found=f"{key.name}+{key.id}", fix="mandamus key list")
        if held is None:
            fact = KeyChanged(clock=env.clock("UTC"), new=str(key), principal=principal, role="approver")
            signed(env, fact)  # before anything is changed
            env.home.add_trust(f"approver {principal} {key}")
            await widen(env, fact)
        for line in lines:
            env.home.add_trust(line)
        trust_file = str(env.home.trust_file or "")
        held_roles = env.trust().roles_of(principal)
        known = Whom(env.home.folder).roles()
    _warn(cli, principal, roles, held_roles, known)
    data = {"id": key.id, "principal": principal, "roles": list(held_roles), "trust": trust_file, "vkey": str(key)}
    cli.tell(
        data,
        f"{principal} votes with {key.name}+{key.id}"
        + (f" as {', '.join(held_roles)}" if held_roles else "")
        + f"\n  trust   {trust_file}",
    )
    return 0


def _warn(cli: Cli, principal: str, given: tuple[str, ...], held: tuple[str, ...], known: frozenset[str]) -> None:
    """A role that no chain asks is most often a slip of the pen. Nothing is known before the first run."""
    for role in [x for x in given if known and x not in known]:
        cli.note(f"note: no approval chain here names role {role}: {did_you_mean(role, known)}")
    if known and not held:
        cli.note(f"note: {principal} has no role; chains here name {', '.join(sorted(known))}: key enroll again with --role")


@verb("sign", exits={0: "signed", 1: "it is no statement, or signed by this key already"})
@click.argument("file", metavar="FILE")
@click.option("--key", "key_file", metavar="KEY", required=True, help="An administrator's key.")
@click.option("--yes", is_flag=True, help="Sign without being asked.")
def sign(cli: Cli, file: str, key_file: str, yes: bool) -> int:
    """Read what is to be allowed and sign it, as one of the administrators whom the log names."""
    from mandamus.cli.bundle import write
    from mandamus.cli.keys import open_key
    from mandamus.proof.keys import named
    from mandamus.runtime.statements import joined, said

    try:
        envelope = Path(file).read_bytes()
    except OSError as error:
        raise Misuse(f"the statement cannot be read: {error.strerror}", code="MDM-0024", where=file) from None
    told = said(envelope)
    words = [f"{told.get('type')}", *(f"  {name.ljust(12)}{value}" for name, value in sorted(dict(told.get("fact", {})).items()))]
    if not yes and cli.ask("\n".join([*words, "sign this? [y/N] "]), "--yes").strip().lower() not in ("y", "yes"):
        raise Refused("nothing was signed", code="MDM-0343", fix="again, when you agree")
    signer = open_key(cli, key_file)
    write(Path(file), joined(envelope, signer))
    cli.tell({"file": file, "id": signer.keyid, "statement": told}, "\n".join([*words, f"  signed by   {named(signer.vkey)}"]))
    return 0


@verb("trust", exits={0: "printed"})
@click.option("-o", "--output", metavar="FILE", help="Write it there.")
@click.option("--add", "lines", multiple=True, metavar="LINE", help='Believe one more key, such as "author ci VKEY".')
def trust(cli: Cli, output: str | None, lines: tuple[str, ...]) -> int:
    """Print this ledger's trust file: whose signatures count, for what. Hand it over by another way than the bundles."""
    from mandamus import wiring
    from mandamus.cli.bundle import write

    cli.must_exist()
    home = wiring.home_of(cli.uri)
    for line in lines:
        home.add_trust(line)
    found = home.trust()
    text = home.trust_file.read_text(encoding="utf-8") if home.trust_file else ""
    if output:
        write(Path(output), text.encode())
    data = {"digest": found.digest, "file": output or str(home.trust_file), "lines": [x for x in text.splitlines() if x.strip()]}
    cli.tell(data, f"{output}\n  digest  {found.digest}" if output else text.rstrip("\n"))
    return 0


@verb("list", exits={0: "listed"})
def list_(cli: Cli) -> int:
    """Keys of this ledger and who may vote. With --json one object per line."""
    from mandamus import wiring

    cli.must_exist()
    home = wiring.home_of(cli.uri)
    found = home.known()
    for role in wiring.ROLES:
        path = Path(home.folder or ".") / "keys" / f"{role}.pem"
        if path.exists():
            key = home.signer(role).vkey
            mode = f"{stat.S_IMODE(path.stat().st_mode):04o}"
            cli.line(
                {"file": str(path), "kind": "own", "mode": mode, "role": role, "vkey": key},
                f"own       {role.ljust(14)} {path} (mode {mode})\n          {key}",
            )
    votes = set(cli.run(_in_force(cli, found)))
    for principal, approver in sorted(found.approvers.values(), key=lambda x: (x[0], str(x[1]))):
        roles, state = list(found.roles_of(principal)), "in force" if str(approver) in votes else "retired"
        words = (", ".join(roles) or "no role") + ("" if state == "in force" else "; retired: it votes no more")
        cli.line(
            {"kind": "approver", "principal": principal, "roles": roles, "state": state, "vkey": str(approver)},
            f"approver  {principal.ljust(14)} {words}\n          {approver}",
        )
    if not found.approvers:
        cli.note("nobody may vote yet: " + cli.command("key enroll --principal p-... --role ROLE --key FILE"))
    return 0


async def _in_force(cli: Cli, trust: Any) -> list[str]:
    """The approvers' keys that chain `log` has not retired."""
    from mandamus.cli import read

    async with cli.reading() as ledger:
        return [str(key) for _, key in (await read.in_force(ledger, trust)).approvers.values()]
