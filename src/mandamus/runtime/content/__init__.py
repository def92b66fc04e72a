"""Blobs under their SHA-256: `blobs` for callers, over `shelf` (one store), `segments` (many in one object) and `compact` (what goes).

The rule a newcomer would break: what is read is hashed again, wherever it came from.
"""
