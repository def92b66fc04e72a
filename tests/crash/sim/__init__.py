"""A seeded simulation of the real loop, recovery, workers, mail and leases: `Sim(seed, plan).run()` answers what it found.

Time is virtual, workers die, stall and come back, the store lies. The rule a newcomer would break: what is simulated is the world
around the code; of the code itself nothing may be copied or stubbed here.
"""

from tests.crash.sim.faults import FAULTS, HARSH, KINDS, Plan, mixture, pairs, singles, storm
from tests.crash.sim.sim import Sim

__all__ = ["FAULTS", "HARSH", "KINDS", "Plan", "Sim", "mixture", "pairs", "singles", "storm"]
