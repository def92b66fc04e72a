"""Agents act only under a writ, and every act leaves proof.

from mandamus import Agent, Budget, Ctx, Money, Receipt, Retry, tool, rule
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import mandamus._interrupt  # noqa: F401  first of all: from here on Ctrl-C shows no traceback of ours

if TYPE_CHECKING:
    from mandamus._budget import Budget, Price
    from mandamus.agent import Agent, Plugin, RunResult, guardrail
    from mandamus.aliases import create_agent, create_tool, define_agent, define_tool, register_rule, resume_from_checkpoint, verify_chain
    from mandamus.core.money import Money
    from mandamus.core.verdicts import allow, deny, escalate, evidence
    from mandamus.drivers.policy_python import rule
    from mandamus.errors import Conflict, EngineFault, MandamusError, Misuse, NotDone, ProofError, Refused, RunRefused
    from mandamus.runtime.context import Ctx
    from mandamus.runtime.guard import Annotate, Block, Pass
    from mandamus.tool import Absent, Found, Receipt, Retry, Tool, Unclear, tool

# Every name comes at first use: the command line and a verifier need hardly any of them.
_NAMES = {
    "mandamus._budget": ("Budget", "Price"),
    "mandamus.agent": ("Agent", "Plugin", "RunResult", "guardrail"),
    "mandamus.aliases": (
        "create_agent", "create_tool", "define_agent", "define_tool", "register_rule", "resume_from_checkpoint", "verify_chain",
    ),
    "mandamus.core.money": ("Money",),
    "mandamus.core.verdicts": ("allow", "deny", "escalate", "evidence"),
    "mandamus.drivers.policy_python": ("rule",),
    "mandamus.errors": ("Conflict", "EngineFault", "MandamusError", "Misuse", "NotDone", "ProofError", "Refused", "RunRefused"),
    "mandamus.runtime.context": ("Ctx",),
    "mandamus.runtime.guard": ("Annotate", "Block", "Pass"),
    "mandamus.tool": ("Absent", "Found", "Receipt", "Retry", "Tool", "Unclear", "tool"),
}  # fmt: skip
_LATER = {name: module for module, names in _NAMES.items() for name in names}

__version__ = "0.1.0"
__all__ = [
    "Absent", "Agent", "Annotate", "Block", "Budget", "Conflict", "Ctx", "EngineFault", "Found", "MandamusError", "Misuse", "Money",
    "NotDone", "Pass", "Plugin", "Price", "ProofError", "Receipt", "Refused", "Retry", "RunRefused", "RunResult", "Tool", "Unclear",
    "allow", "create_agent", "create_tool", "define_agent", "define_tool", "deny", "escalate", "evidence", "guardrail", "register_rule",
    "resume_from_checkpoint", "rule", "tool", "verify_chain",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'mandamus' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LATER[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """`mandamus.tool` is the decorator, whoever imported the module of that name first: Python would bind it here."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _LATER or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
