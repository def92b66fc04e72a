"""`key rotate`, `key revoke`: one key takes another's place, or is none any more. Chain `log` says so, and every verifier reads it there.

The rule a newcomer would break: a record that puts a new key in force is signed by the old one, the new one and the administrators, and
nothing is signed with the old one behind it. A revocation needs no signature: it only ever narrows what may be done.
"""

from __future__ import annotations

from typing import Any

import click

from mandamus.cli.common import Cli, verb
from mandamus.cli.keys import open_key, principal_id
from mandamus.errors import Misuse, Refused

OWN = ("log", "bundle", "administrator")
NOBODY = "p-administrator"  # in records, of keys that no person votes with


@verb("rotate", exits={0: "rotated"})
@click.option("--role", type=click.Choice([*OWN, "approver"]), required=True, help="Whose place it is.")
@click.option("--new", "new", metavar="FILE|URI", help="The new key: a file, or an address (pkcs11:…). Own roles make a file without it.")
@click.option("--key", "key_file", metavar="FILE", help="With --role approver: the key that goes.")
def rotate(cli: Cli, role: str, new: str | None, key_file: str | None) -> int:
    """Let a new key take the place of one of this ledger's keys, or of an approver's."""
    if role == "approver" and not (key_file and new):
        raise Misuse("which keys?", code="MDM-0003", expected="--key OLD --new NEW")
    if role != "approver" and key_file:
        raise Misuse("the key of an own role lies in this ledger's folder", code="MDM-0003", fix="leave --key out")
    return cli.run(_rotate(cli, role, new or "", key_file or ""))


async def _rotate(cli: Cli, role: str, new: str, key_file: str) -> int:
    from mandamus import wiring
    from mandamus.core.records import KeyChanged
    from mandamus.proof.keys import named
    from mandamus.runtime.statements import widen

    async with cli.env() as env:
        old: Any = open_key(cli, key_file) if role == "approver" else env.home.signer(role)
        principal = _voter(env, old.key) if role == "approver" else NOBODY
        name = old.vkey.partition("+")[0]
        made: Any = _opened(cli, new, name) if new else env.home.next_signer(role, name)
        if role == "log" and made.vkey.partition("+")[0] != name:
            raise Misuse("a log keeps its name", code="MDM-0189", expected=name, found=made.vkey.partition("+")[0], fix=f"&name={name}")
        wiring.unshared(made, env.trust())
        fact = KeyChanged(clock=env.clock("UTC"), new=made.vkey, old=old.vkey, principal=principal, role=role)
        line = {"log": "log", "bundle": f"bundle {env.origin}", "administrator": "admin"}.get(role, f"approver {principal}")
        env.home.add_trust(f"{line} {made.vkey}")
        await widen(env, fact, (old, made))
        stays = env.home.promote(role) if role != "approver" and not new else ""
        trust = str(env.home.trust_file or "")
    told = {"new": made.vkey, "old": old.vkey, "role": role, "trust": trust}
    words = [made.vkey, f"  role    {role}; {named(old.vkey)} signs nothing any more"]
    words += [f"  kept    {stays}"] if stays else []
    words += [f"  next    name it from now on: MANDAMUS_SIGN_{role.upper()}={new}"] if new and role in OWN else []
    cli.tell(told, "\n".join([*words, f"  trust   {trust}: hand it to your auditors again"]))
    return 0


def _opened(cli: Cli, new: str, name: str) -> Any:
    from mandamus import wiring

    return wiring.signer(new) if ":" in new.partition("/")[0] else open_key(cli, new)


def _voter(env: Any, key: Any) -> str:
    held = env.trust().approvers.get(key.public)
    if held is None:
        raise Refused("this key is no approver of the ledger", code="MDM-0333", found=f"{key.name}+{key.id}", fix="mandamus key list")
    return str(held[0])


@verb("revoke", exits={0: "revoked", 3: "refused: it is none of this ledger's people, or was revoked already"})
@click.option("--key", "key_file", metavar="FILE", help="The key file, or an ssh public key, when it lies here.")
@click.option("--vkey", metavar="VKEY", help="The public line, as `key list` shows it.")
@click.option("--principal", metavar="ID", help="All keys of this person.")
def revoke(cli: Cli, key_file: str | None, vkey: str | None, principal: str | None) -> int:
    """Take a key, or all of a person's, out of force, at once. Votes that it gave before keep counting for what they allowed."""
    if sum(x is not None for x in (key_file, vkey, principal)) != 1:
        raise Misuse("which key?", code="MDM-0003", expected="one of --key FILE, --vkey VKEY and --principal ID")
    return cli.run(_revoke(cli, key_file, vkey, principal))


async def _revoke(cli: Cli, key_file: str | None, vkey: str | None, principal: str | None) -> int:
    from mandamus.core.records import KeyChanged
    from mandamus.core.seal import Draft
    from mandamus.proof.keys import parse_vkey

    async with cli.env() as env:
        held = list(env.trust().approvers.values())
        if principal is not None:
            found = [key for who, key in held if who == principal_id(principal)]
        else:
            wanted: Any = parse_vkey(vkey.strip()) if vkey is not None else open_key(cli, key_file, ssh=True).key
            found = [key for _, key in held if key == wanted]
        if not found:
            raise Refused(
                "no key in force is meant", code="MDM-0341", found=(principal or vkey or key_file or "")[:80], fix="mandamus key list"
            )
        for key in found:
            who = next(name for name, other in held if other == key)
            fact = KeyChanged(clock=env.clock("UTC"), old=str(key), principal=who, role="approver")
            await env.log.append([Draft(fact, 0)], raises=True)
    lines = [f"{key.name}+{key.id} votes no more" for key in found]
    cli.tell({"revoked": [str(key) for key in found]}, "\n".join(lines))
    return 0
