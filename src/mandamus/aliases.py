"""Names as the specification spells them, for those who come from it. Each is another name of something here, never another behaviour.

createTool, tool, defineTool -> tool      createAgent, defineAgent -> Agent      registerRule -> rule
resumeFromCheckpoint -> Agent.resume      verifyChain -> proof.verify_chain
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mandamus.agent import Agent, RunResult
from mandamus.drivers.policy_python import rule
from mandamus.proof.chain import verify_chain
from mandamus.tool import tool

create_agent = define_agent = Agent
create_tool = define_tool = tool
register_rule = rule


async def resume_from_checkpoint(agent: Agent[Any], checkpoint_id: str, approvals: Sequence[Any] = (), **options: Any) -> RunResult[Any]:
    """`agent.resume(checkpoint_id, approvals)`."""
    return await agent.resume(checkpoint_id, approvals, **options)


__all__ = ["create_agent", "create_tool", "define_agent", "define_tool", "register_rule", "resume_from_checkpoint", "verify_chain"]
