"""The agent of agent.yaml, for programs and for `mandamus certify agent.py`."""

from pathlib import Path

from mandamus import Agent

PROMPT = "Pay 50,000.00 USD to Acme Suppliers"

agent = Agent.load(Path(__file__).with_name("agent.yaml"))
