"""Effect class *irreversible*: no key, nobody to ask. After a crash nobody knows: people are asked, and nothing is repeated blindly."""

from mandamus import Agent, tool
from mandamus.data import Business, none
from mandamus.drivers.model_scripted import ScriptedModel, Step

LETTERS: list[str] = []  # the other side: what the postman took
PROMPT = "Write to the landlord."


@tool(safety="write", effect="irreversible", data=Business(subject=none("the office lease"), retention="standard"))
def post_letter(to: str, text: str) -> str:
    """Hand a letter to the postman."""
    LETTERS.append(to)
    return f"letter {len(LETTERS)} is on its way"


agent = Agent(
    name="letter-bot",
    model=ScriptedModel([Step(calls=(("post_letter", {"to": "landlord", "text": "The window is broken."}),)), "The letter is posted."]),
    tools=[post_letter],
    policies=[{"id": "write", "permit": {"safety": "write"}}],
)
