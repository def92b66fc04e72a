"""Pages of workers: what a worker is asked for that it cannot do, and what a wake-up of a serverless call must say.

The rule a newcomer would break: a run that one worker cannot carry is no fault of the run. It is given back, and said once.
"""

from __future__ import annotations

from mandamus.cli._codes import Pages

WORKERS: Pages = {
    "MDM-0580": (
        "The name of a pool",
        "A pool names the workers that share runs; it has 1 to 64 letters, digits, _ or -. `run --detach --pool P` places a run there, "
        "`worker AGENT --pool P` serves it.",
    ),
    "MDM-0581": (
        "Only a detached run is placed",
        "--pool and --prio say which workers take a run, so they go with --detach. Without it this process carries the run itself; "
        "--follow needs that.",
    ),
    "MDM-0582": (
        "A ledger that dies with its process",
        "A worker takes runs that another process opened: name a ledger that lasts, such as --ledger sqlite:///FILE.",
    ),
    "MDM-0583": (
        "A wake-up that cannot be read",
        'serverless.handle takes {"run": ID}, {"run": ID, "mail": TEXT} or {"pool": NAME}, as a mapping or as JSON. Nothing was done.',
    ),
    "MDM-0584": ("No agent to serve", "A handler names the agents whose runs it carries: agents=[agent]."),
}
