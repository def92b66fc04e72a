"""The ledger on NATS JetStream: `from_uri("nats://HOST:PORT,HOST:PORT/NAME?tenant=…")`.

`ledger` implements the port. Below it: `append` writes, `strand` reads back, `rows` puts a run's row together, `mail` knows the newest
message, `own` and `lease` say who drives what, `work` is the queue. `layout` holds every name and form, `check` what is refused at opening,
`order` reads all runs as they were written, `wire`, `connect` and `uri` are the way to the servers. Names for users are gathered here.
"""

from mandamus.drivers.ledger_nats.ledger import NatsLedger, from_uri

__all__ = ["NatsLedger", "from_uri"]
