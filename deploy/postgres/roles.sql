-- Who may do what in a Postgres that holds a ledger. Once, as a superuser of the server:
--   psql -v ON_ERROR_STOP=1 -v owner_password="$OWNER" -v worker_password="$WORKER" -f roles.sql
-- `mandamus_owner` owns the database and makes the tables: the first verb that the operator runs under that login does, and each one after
-- an upgrade. `mandamus` is the group of those who may write, and has the ledger's schema as its name; its rights come with the tables:
-- add and read evidence, change or delete none. Each worker's login is a member, and can do no more.
-- Roles belong to the server, not to a database: a second ledger on this server gets a schema, and so a group, of another name
-- (?schema=books). Under one name the workers of each could read and write the other.
CREATE ROLE mandamus_owner LOGIN PASSWORD :'owner_password';
CREATE ROLE mandamus NOLOGIN;
CREATE ROLE worker LOGIN PASSWORD :'worker_password' IN ROLE mandamus;
CREATE DATABASE ledger OWNER mandamus_owner;
REVOKE ALL ON DATABASE ledger FROM PUBLIC;
GRANT CONNECT ON DATABASE ledger TO mandamus;
