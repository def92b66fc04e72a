"""One file, one port, one dependency. A driver is named by a URI in `wiring.py` and imported when the URI is; no driver knows another."""
