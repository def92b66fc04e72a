"""Forgetting, by the law: `forget` (a request and how it is carried out), `holds` (what keeps it), `cancelling` (runs that must end
first), `retention` (what expires by itself). The keys are used by runtime/sealing.py; what the log says was erased is read by
runtime/erased.py.

The rule a newcomer would break: nothing is destroyed before chain `log` says that it is wanted, and nothing is told before it is gone.
"""
