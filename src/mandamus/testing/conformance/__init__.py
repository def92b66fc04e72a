"""Suites that every driver of a port must pass, ours and yours. One module per port: `ledger`, `model`, `policy`."""
