"""What `--json` answers, verb by verb, as types: `mandamus schema VERB` prints the JSON Schema that is made of them.

The rule a newcomer would break: a published field keeps its name and its meaning; fields are added, never taken away. A test holds what
every verb really prints against this page.
"""

from __future__ import annotations

from typing import Any

import msgspec

from mandamus.cli._shapes import Failed
from mandamus.cli._shapes.keys import Enrolled, Key, NewKey, Revoked, Rotated, Statement, Trusted
from mandamus.cli._shapes.log import Leaf, LogCompacted, LogConsistent, LogExported, LogHead, LogProved, Served, WitnessStatus
from mandamus.cli._shapes.people import Asking, Cancelled, Unreadable, Voted
from mandamus.cli._shapes.proof import Bundled, Certified, CertifiedFolder, ExportedFile, Verified
from mandamus.cli._shapes.rest import Bound, Codes, Completion, Granted, Help, Looked, Made, Moved, Schema, Schemas, Signed, Told, Withdrawn
from mandamus.cli._shapes.runs import Carried, Diffed, Ended, Event, Followed, Opened, Rehearsed, Replayed, Row, Shown, Top, Why
from mandamus.cli.allowance import Stands
from mandamus.cli.forget import Forgot
from mandamus.cli.hold import Held

# verb: what one line of its answer may be. Every verb may answer Failed.
SHAPES: dict[str, tuple[type, ...]] = {
    "demo": (Told,), "init": (Made,), "run": (Ended, Rehearsed, Followed, Opened),
    "worker": (Carried,), "top": (Top,), "resume": (Ended, Followed), "cancel": (Cancelled,),
    "runs": (Row,), "show": (Shown, Event), "why": (Why,), "replay": (Replayed,), "fork": (Ended,), "diff": (Diffed,),
    "inbox": (Asking, Unreadable), "approve": (Voted,), "reject": (Voted,), "settle": (Voted,), "bundle": (Bundled,),
    "verify": (Verified,), "export": (ExportedFile,), "certify": (Certified, CertifiedFolder), "doctor": (Looked,), "help": (Help, Codes),
    "forget": (Forgot,), "hold place": (Held,), "hold lift": (Held,), "hold list": (Held,),
    "completion": (Completion,), "allowance grant": (Granted,), "allowance list": (Stands,), "allowance withdraw": (Withdrawn,),
    "key new": (NewKey,), "key enroll": (Enrolled,), "key trust": (Trusted,), "key list": (Key,), "key rotate": (Rotated,),
    "key revoke": (Revoked,), "key sign": (Statement,),
    "ledger copy": (Moved,),
    "witness serve": (Served,), "witness status": (WitnessStatus,),
    "log head": (LogHead,), "log query": (Leaf,), "log prove": (LogProved,), "log consistency": (LogConsistent,),
    "log export": (LogExported,), "log compact": (LogCompacted,), "manifest show": (Bound,),
    "manifest sign": (Signed,), "schema": (Schemas, Schema),
}  # fmt: skip
# verbs that answer one object a line
STREAMS = ("runs", "worker", "log query", "witness serve", "inbox", "key list", "allowance list", "hold list")


def schema(verb: str) -> dict[str, Any]:
    """The JSON Schema (2020-12) of one line of `mandamus VERB --json`."""
    kinds = (*SHAPES[verb], Failed)
    parts, defs = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    title = f"mandamus {verb} --json" + (", one object a line" if verb in STREAMS else "")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "anyOf": list(parts), "title": title, "$defs": defs}
