"""The ledger in Postgres: `from_uri("postgres://USER@HOST/DATABASE")`.

`ledger` implements the port, `link` is the way to the server and what its faults mean, `schema` makes and checks the tables, `rows` and
`statements` turn an append into one statement, `bell` hears notifications. Names for users are gathered here.
"""

from mandamus.drivers.ledger_postgres.ledger import PostgresLedger, from_uri

__all__ = ["PostgresLedger", "from_uri"]
