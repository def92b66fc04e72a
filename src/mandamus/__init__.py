"""Agents act only under a writ, and every act leaves proof.

from mandamus import Agent, Budget, Ctx, Money, Receipt, Retry, tool, rule
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from mandamus.agent import Agent, Budget, Plugin, RunResult, guardrail
from mandamus.core.money import Money
from mandamus.errors import Conflict, EngineFault, MandamusError, Misuse, NotDone, ProofError, Refused, RunRefused
from mandamus.tool import Absent, Found, Receipt, Retry, Tool, Unclear, tool

if TYPE_CHECKING:
    from mandamus.aliases import create_agent, create_tool, define_agent, define_tool, register_rule, resume_from_checkpoint, verify_chain
    from mandamus.core.verdicts import allow, deny, escalate
    from mandamus.drivers.policy_python import rule
    from mandamus.runtime.context import Ctx
    from mandamus.runtime.guard import Annotate, Block, Pass

# Names whose modules load more than a definition needs; they come at first use.
_LATER = {
    "Annotate": "mandamus.runtime.guard",
    "Block": "mandamus.runtime.guard",
    "Ctx": "mandamus.runtime.context",
    "Pass": "mandamus.runtime.guard",
    "allow": "mandamus.core.verdicts",
    "deny": "mandamus.core.verdicts",
    "escalate": "mandamus.core.verdicts",
    "rule": "mandamus.drivers.policy_python",
    **dict.fromkeys(
        ("create_agent", "create_tool", "define_agent", "define_tool", "register_rule", "resume_from_checkpoint", "verify_chain"),
        "mandamus.aliases",
    ),
}

__version__ = "0.1.0"
__all__ = [
    "Absent", "Agent", "Annotate", "Block", "Budget", "Conflict", "Ctx", "EngineFault", "Found", "MandamusError", "Misuse", "Money",
    "NotDone", "Pass", "Plugin", "ProofError", "Receipt", "Refused", "Retry", "RunRefused", "RunResult", "Tool", "Unclear", "allow",
    "create_agent", "create_tool", "define_agent", "define_tool", "deny", "escalate", "guardrail", "register_rule",
    "resume_from_checkpoint", "rule", "tool", "verify_chain",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(importlib.import_module(_LATER[name]), name)
    raise AttributeError(f"module 'mandamus' has no attribute {name!r}")
