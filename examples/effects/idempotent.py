"""Effect class *idempotent*: the same call leaves the same world, however often. The certifier runs it twice and compares."""

from mandamus import Agent, tool
from mandamus.data import Business, none
from mandamus.drivers.model_scripted import ScriptedModel, Step

SETTINGS: dict[str, str] = {}
PROMPT = "Close the shop."


@tool(safety="write", effect="idempotent", data=Business(subject=none("settings of a shop"), retention="standard"))
def set_setting(name: str, value: str) -> str:
    """Set a setting to a value; what it was before does not matter."""
    SETTINGS[name] = value
    return f"{name} is {value}"


agent = Agent(
    name="shop-bot",
    model=ScriptedModel([Step(calls=(("set_setting", {"name": "open", "value": "no"}),)), "The shop is closed."]),
    tools=[set_setting],
    policies=[{"id": "write", "permit": {"safety": "write"}}],
)
