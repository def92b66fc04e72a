"""The tenant log: every record of a ledger is a leaf of one tree (C2SP tlog-tiles), stored as objects of a `Store`, signed, cosigned.

    env.tlog                            # service.TenantLog, or None: a ledger in memory has none unless it is asked for one
    reached = await env.tlog.reach(run, seq, "sealed")      # the record lies under a stored, signed checkpoint
    text = await env.tlog.prove(run, seq)                   # a C2SP tlog-proof

tiles.py     what is stored for a tree that grows, and how a stored tile is read back
objects.py   names and contents of the other objects: pending, signed, cosigned, checkpoint, minimum, pruned
reader.py    whoever has the store alone: checkpoints, proofs, records
sequencer.py the one writer: feed, tiles, pending, signature
spans.py     which leaves are a run's: a projection that may be lost
service.py   what the rest of the runtime asks
The rule a newcomer would break: the order pending, stored, signed, published. What is signed before it is stored can be signed a second
time with another root after a crash, and then no witness will ever believe this log again.
"""
