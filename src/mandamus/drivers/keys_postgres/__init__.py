"""Port `KeyStore`, in a Postgres that workers on several hosts share: `from_uri("postgres://keys@host/db?schema=mandamus_keys", wraps)`.

The rule a newcomer would break: deleting a row of a Postgres destroys nothing. Only the wrapping key, which lies elsewhere, does.
"""

from mandamus.drivers.keys_postgres.store import PostgresKeys as PostgresKeys
