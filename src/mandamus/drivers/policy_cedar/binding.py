"""The one call into Cedar: `ask(request, policies, entities, schema)` is its decision, read strictly.

cedarpy's own wrapper reads an answer without `errors` as one that has none, and costs half as much again as Cedar itself; so its
extension is called directly and its answer decoded as the closed struct below. The rule a newcomer would break: an answer of any
other form is a fault of the engine, and `check` (engine.py) asks the same way as `decide`, so that another build is found out.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from cedarpy import _internal


class Diagnostics(msgspec.Struct, frozen=True):
    """`errors`: the policies that failed, and were skipped. `reason`: those that determined the decision; where there is none, absent."""

    errors: list[str]
    reason: list[str] = []


class Answer(msgspec.Struct, frozen=True):
    decision: Literal["Allow", "Deny", "NoDecision"]
    diagnostics: Diagnostics


_read = msgspec.json.Decoder(Answer).decode


def entities(text: str, schema: Any) -> Any:
    """A parsed slice of entities from JSON text. Raises ValueError."""
    return _internal.Entities.from_json_str(text, schema)


def ask(request: dict[str, Any], policies: Any, entities: Any, schema: Any) -> Answer:
    """`request["context"]` is JSON text, or absent for the empty one. Raises ValueError and msgspec.DecodeError."""
    return _read(_internal.is_authorized_batch([request], policies, entities, schema, False)[0])
