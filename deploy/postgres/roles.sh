#!/bin/sh
# For the image `postgres`, which runs it once, when its volume is new: the roles, with the passwords of mounted secrets.
set -eu
psql -v ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname postgres \
    -v owner_password="$(cat /run/secrets/owner_password)" -v worker_password="$(cat /run/secrets/worker_password)" -f /etc/mandamus/roles.sql
