"""Effect class *read*: looking changes nothing, so it is simply done again. `mandamus certify examples/effects/read.py`"""

from mandamus import Agent, tool
from mandamus.data import Business, none
from mandamus.drivers.model_scripted import ScriptedModel, Step

RATES = {"EUR": 108, "GBP": 126}
PROMPT = "What is the pound worth?"


@tool(safety="read", effect="read", data=Business(subject=none("rates of exchange"), retention="standard"))
def rate(currency: str) -> int:
    """Look up what a currency is worth, in US cents."""
    return RATES[currency]


agent = Agent(
    name="rates-bot",
    model=ScriptedModel([Step(calls=(("rate", {"currency": "GBP"}), ("rate", {"currency": "EUR"}))), "A pound is 126 cents."]),
    tools=[rate],
    policies=[{"id": "look", "permit": {"safety": "read"}}],
)
