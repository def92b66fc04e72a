# What an agent may not be made of, and what its results are. Each line that says `refused` stands beside its twin, which passes.
import msgspec

from mandamus import Agent, Budget, RunResult, guardrail
from mandamus.agent import ActionView

MODEL = "openai:gpt-4o"


class Answer(msgspec.Struct):
    total: int


Agent(model=MODEL)  # refused: name is missing
Agent(name="desk", model=MODEL)

Agent(name="desk")  # refused: model is missing
Agent(name="desk", model=MODEL, purpose="answer")

Agent(name="desk", model=MODEL, lawful_basis="convenience")  # refused: no basis of Art. 6
Agent(name="desk", model=MODEL, lawful_basis="contract")

Agent(name="desk", model=MODEL, annex_iii="hiring")  # refused: no domain of Annex III
Agent(name="desk", model=MODEL, annex_iii="employment")

Agent(name="desk", model=MODEL, budget=20)  # refused: a budget has units
Agent(name="desk", model=MODEL, budget=Budget(turns=20))

Agent(name="desk", model=MODEL, tools=[print])  # refused: a function without a contract
Agent(name="desk", model=MODEL, tools=[])


async def untyped(agent: Agent) -> str | None:
    result = await agent.run("hello")
    return result.output


async def typed() -> int:
    agent = Agent(name="desk", model=MODEL, output=Answer)
    result: RunResult[Answer] = await agent.run("add")
    if result.output is None:
        return 0
    result.output.sum  # refused: it has a total
    return result.output.total


async def guarded(agent: Agent[str]) -> tuple[ActionView, ...]:
    await agent.resume("01JD9Z@3", "p-alice")  # refused: a name is no sequence of votes
    result = await agent.resume("01JD9Z@3", [b"..."])
    result.state = "completed"  # refused: a result is frozen
    return result.actions


guardrail("between")  # refused: no such point
guardrail("input")
