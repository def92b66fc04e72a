"""Cedar, embedded, the default policy engine: `CedarEngine.load(sources, tools)`.

`engine` asks, `sources` reads. Names for users are gathered here.
"""

from mandamus.drivers.policy_cedar.engine import ENGINE, CedarEngine

__all__ = ["ENGINE", "CedarEngine"]
