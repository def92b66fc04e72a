"""Servers of our own, each small and for one job. This ring stands above wiring and under the command line.

The rule a newcomer would break: what a server decides stands in a pure module (`proof.witnessing` for the witness); here are only sockets,
limits and what is stored.
"""
