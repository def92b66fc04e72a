"""Cases about payloads: replaced, shifted, missing, shown in part, erased with and without a record, and text that lies to the eye."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from typing import Any

import msgspec

from mandamus.core import records as r
from mandamus.core.canonical import canon, parse
from mandamus.core.payload import SALT
from mandamus.proof import views
from mandamus.proof.keys import b64
from tests.attack.test_bundle_shown import HOLD, LIFT, changed, forgetting, only, told, without
from tests.samples import ADMIN, ADMIN_2, RUN, Story, clock, insider, sections, statement, story
from tests.verifiers.corpus import Builder, Case

replace = msgspec.structs.replace
EYES = "\u202egro.live\u202c \u2028 \u200b<script>alert(1)</script>\u0430lice\x7f \ufeff\U0001f600 \u0000"


def made() -> list[Case]:
    b = Builder("shown")
    _replaced(b)
    _parts(b)
    _erased(b)
    _views(b)
    return b.made


def edited(part: str, change: Callable[[Any], object]) -> bytes:
    """The payload lines of this part after `change`, signed by an insider."""
    lines = sections(story().bundle())
    for number, raw in enumerate(lines["payload"]):
        value = parse(raw)
        if value["part"] == part:
            change(value)
            lines["payload"][number] = canon(value)
    return insider(lines)


def _replaced(b: Builder) -> None:
    whole = story().bundle()
    lines = sections(whole)
    b.attack(25, "replaced", whole.replace(b'"to":"Acme Suppliers"', b'"to":"Evil Suppliers"'))
    b.attack(25, "replaced_and_signed", edited("args", lambda v: v["value"].update(to="Evil Suppliers")))
    b.attack(25, "another_secret", edited("args", lambda v: v.update(secret=b64(bytes(32)))))
    b.attack(26, "shorter_salt", edited("args", lambda v: v.update(secret=b64(base64.b64decode(v["secret"])[:31]))))
    b.attack(26, "longer_salt", edited("args", lambda v: v.update(secret=b64(base64.b64decode(v["secret"]) + b"x"))))
    b.attack(66, "card_and_arguments_swapped", insider({**lines, "payload": [x.replace(b"Acme", b"Evil") for x in lines["payload"]]}))
    b.attack(66, "another_card", edited("card", lambda v: v["value"].update(needed=1)))
    b.attack(52, "one_missing", insider({**lines, "payload": lines["payload"][:-1]}))
    b.attack(52, "first_missing", insider({**lines, "payload": lines["payload"][1:]}))
    b.attack(52, "one_twice", insider({**lines, "payload": [*lines["payload"], lines["payload"][-1]]}))
    b.attack(52, "two_exchanged", insider({**lines, "payload": [lines["payload"][1], lines["payload"][0], *lines["payload"][2:]]}))
    b.attack(23, "a_field_more", edited("input", lambda v: v.update(note="x")))
    b.attack(23, "another_show", edited("input", lambda v: v.update(show="somehow")))
    tale = Story()
    tale.opened()
    add = tale.chain.add
    add(r.RunEnded(state="completed"), 1, output={EYES: [EYES, 1.5, -0.25, 1e-7, 123456789012345.0, None, True]})
    odd = Story(chain=tale.chain, deltas=tale.deltas)
    b.honest("text_that_lies_to_the_eye", odd.bundle(), 4)
    b.attack(19, "float_written_long", odd.bundle().replace(b"1.5,", b"1.50,"))
    b.attack(20, "minus_zero_in_a_payload", edited("input", lambda v: v.update(value=0)).replace(b'"value":0', b'"value":-0'))


def _parts(b: Builder) -> None:
    tale = story()
    for part in ("output", "ballot", "args", "card", "facts", "statement", "input"):
        b.honest(f"withheld_{part}", tale.bundle(withheld=lambda key, part=part: key[2] == part), 3)
    b.honest("withheld_all", tale.bundle(withheld=lambda key: True), 3)
    stored = [p if p.part != "output" else replace(p, bytes=bytes(61), form="sealed") for p in tale.chain.payloads]
    cipher = tale.bundle(payloads=[*stored, *tale.log.payloads])
    b.honest("as_it_is_stored", cipher, 3)
    key = next((p.run, p.seq, p.part) for p in stored if p.form == "sealed")
    b.attack(26, "cipher_too_short", changed(cipher, key, cipher=b64(bytes(60))))
    members = told()
    at = (RUN, members.seq, "output")
    b.honest("members_whole", members.bundle())
    b.honest("members_in_part", only(members, ["name", "\uffff"]), 3)
    b.honest("no_member_shown", only(members, []), 3)
    part = only(members, ["name", "paid"])
    line = next(parse(x) for x in sections(part)["payload"] if parse(x)["run"] == RUN and parse(x).get("fields"))
    shown, hidden = line["fields"], line["hidden"]
    lies: dict[str, dict[str, Any]] = {
        "altered": {"fields": [[*shown[0][:3], "Eve"], *shown[1:]]},
        "renamed": {"fields": [[*shown[0][:2], "nom", shown[0][3]], *shown[1:]]},
        "another_salt": {"fields": [[shown[0][0], b64(bytes(16)), *shown[0][2:]], *shown[1:]]},
        "one_hidden_less": {"hidden": hidden[1:]},
        "short_salt": {"fields": [[shown[0][0], b64(bytes(15)), *shown[0][2:]], *shown[1:]]},
        "twice": {"fields": [shown[0], *shown]},
        "hidden_unsorted": {"hidden": hidden[::-1]},
        "none_hidden": {"hidden": []},
        "number_beyond": {"fields": [*shown[:1], [31, *shown[1][1:]]]},
        "no_list": {"fields": {}},
        "forty_hidden": {"hidden": sorted(hashlib.sha256(bytes([n])).hexdigest() for n in range(40))},
    }
    for name, change in lies.items():
        b.attack(25, f"member_{name}", changed(part, at, **change))
    inputs = (RUN, 0, "input")
    forged = {"fields": [[0, b64(bytes(16)), "a", 1]], "hidden": hidden[:1], "show": "fields", "secret": None, "value": None}
    b.attack(25, "members_of_what_has_none", changed(part, inputs, **forged))
    payload = next(p for p in tale.chain.payloads if p.part == "args")
    name = hashlib.sha256(payload.bytes).hexdigest()
    commit = next(x.commit for rec in tale.chain.records for x in rec.body or () if (rec.seq, x.part) == (payload.seq, "args"))
    rest = [p for p in tale.chain.payloads if p is not payload]
    beside = tale.bundle(payloads=[*rest, *tale.log.payloads], blobs={commit: name})
    b.honest("blob_not_given", beside, 3)
    b.honest("blob_given", beside, 0, blobs={name: payload.bytes})
    b.attack(25, "blob_of_another_name", beside, blobs={name: payload.bytes + b"x"})
    other = payload.bytes[:SALT] + canon({"to": "Mallory"})
    renamed = tale.bundle(payloads=[*rest, *tale.log.payloads], blobs={commit: hashlib.sha256(other).hexdigest()})
    b.attack(25, "blob_with_another_value", renamed, blobs={hashlib.sha256(other).hexdigest(): other})
    b.honest("blob_named_otherwise_and_absent", renamed, 3)


def _erased(b: Builder) -> None:
    gone = without(forgetting(story()))
    b.honest("erased_with_record", gone, 3)
    tale = story()
    payload = next(p for p in tale.chain.payloads if p.part == "output")
    key = (payload.run, payload.seq, "output")
    b.attack(52, "erased_without_record", changed(tale.bundle(), key, show="erased", secret=None, value=None))
    whole = {"show": "whole", "secret": b64(payload.bytes[:SALT]), "value": parse(payload.bytes[SALT:])}
    b.attack(52, "shown_although_erased", changed(gone, key, **whole))
    b.attack(52, "withheld_although_erased", changed(gone, key, show="withheld"), 3)

    def held(name: str, code: int, *before: Any, **hold: Any) -> None:
        placed = r.HoldPlaced(clock=clock(10), ground="lawsuit", hold="H1", principal="p-alice", **hold)
        raw = without(forgetting(story(), (placed, {}), *before))
        if code == 3:
            b.honest(name, raw, 3)
        else:
            b.attack(60, name, raw)

    held("hold_on_another_subject", 3, subject="s-2")
    held("hold_on_another_run", 3, run="ANOTHER")
    held("hold_on_this_run", 1, run=RUN)
    lift = {"statement": statement(LIFT, ADMIN, ADMIN_2, nonce="lift")}
    b.honest("hold_lifted", without(forgetting(story(), (HOLD, {}), (LIFT, lift))), 3)
    b.attack(63, "hold_lifted_by_nobody", without(forgetting(story(), (HOLD, {}), (LIFT, {}))))
    b.attack(63, "hold_lifted_by_one", without(forgetting(story(), (HOLD, {}), (LIFT, {"statement": statement(LIFT, ADMIN, nonce="l")}))))
    for name, facts in _bad_logs().items():
        tale = story()
        lines = sections(tale.bundle())
        for fact in facts:
            tale.log.add(fact)
        b.attack(67 if "action" in name else 60, name, insider({**lines, "log": tale.log.raws}))


def _bad_logs() -> dict[str, tuple[r.Fact, ...]]:
    """What may not stand on chain log, whoever signs the bundle."""
    ask = r.ErasureRequested(after=clock(20).now, clock=clock(18), erasure="E1", ground="request", principal="p-bob", subject="s-1")
    gone = r.Erased(clock=clock(21), commits=("c" * 64,), erasure="E1", ground="request", principal="p-bob", subject="s-1")
    about = replace(HOLD, subject="s-1")
    return {
        "erased_unasked": (gone,),
        "erased_too_early": (ask, replace(gone, clock=clock(19))),
        "erased_during_a_hold_on_all": (HOLD, ask, gone),
        "erased_during_a_hold_on_the_subject": (about, ask, gone),
        "asked_twice": (ask, ask),
        "held_twice": (HOLD, HOLD),
        "lifted_unheld": (LIFT,),
        "blocked_unasked": (r.ErasureBlocked(clock=clock(1), erasure="E9", ground="floor"),),
        "open_action_blocked_by_no_hold": (ask, r.ErasureBlocked(clock=clock(19), erasure="E1", ground="open_action", hold="H9")),
        "a_run_fact": (r.TurnStarted(clock=clock(1)),),
    }


def _views(b: Builder) -> None:
    tale = story()
    values = {(p.run, p.seq, p.part): parse(p.bytes[SALT:]) for p in tale.chain.payloads}
    made_ = views.render(tale.chain.records, values)
    b.honest("with_its_views", tale.bundle(), views=made_)
    hidden = views.render(tale.chain.records, {k: v for k, v in values.items() if k[2] != "output"})
    b.honest("views_of_what_is_shown", tale.bundle(withheld=lambda key: key[2] == "output"), 3, views=hidden)
    for name in made_:
        b.attack(25, f"view_{name[:-5]}_altered", tale.bundle(), views={**made_, name: made_[name].replace(b"1", b"2", 1)})
    b.attack(25, "view_of_another_name", tale.bundle(), views={"session.json": b"{}\n"})
    members = told()
    full = {(p.run, p.seq, p.part): parse(p.bytes[SALT:]) for p in members.chain.payloads}
    b.honest("views_with_members", members.bundle(), views=views.render(members.chain.records, full))
