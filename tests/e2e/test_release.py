"""A release: the same bytes from two builds, a bill of materials that the schema accepts, a provenance that holds for these files only,
and the auditor's own wheel, which says of a bundle what the whole one says."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest

from mandamus.cli import verify_release
from mandamus.core.canonical import accept, canon
from mandamus.errors import ProofError
from mandamus.proof import dsse, provenance
from release import build, make, sbom
from tests.e2e.released import BUILDER, ROOT, Release, release, signer
from tests.samples import TRUST_TEXT, Story, story
from tests.servers.needs import needs

AUDITOR = ("msgspec", "cryptography", "cffi", "pycparser")  # all that its environment holds


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Release:
    needs("git", "hatchling", "packaging")
    if not (ROOT / ".git").exists():
        pytest.skip("this is no git checkout: a release is made of a commit")
    return release(tmp_path_factory.mktemp("release"))


def wheel(made: Release, name: str) -> Path:
    return next(made.folder.glob(f"{name}-*.whl"))


# -- the same bytes --------------------------------------------------------------------------------------------------------------
def test_the_same_bytes_in_other_surroundings(made: Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another folder, umask, time zone, language, hash seed, and files of another day: the wheels are the same."""
    checkout = build.export(made.repository, made.commit, tmp_path / "somewhere" / "else" / "entirely")
    for path in checkout.rglob("*"):
        os.utime(path, (1, 1))
    for name, value in {"TZ": "Pacific/Auckland", "LC_ALL": "C", "PYTHONHASHSEED": "4711", "HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    old = os.umask(0o077)
    try:
        again = build.wheels(checkout, tmp_path / "out", made.epoch)
    finally:
        os.umask(old)
    first = sorted(made.folder.glob("*.whl"))
    assert len(first) == 2
    assert build.same(first, again) == ""


def test_two_builds_that_differ_are_no_release(made: Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail: a build that writes the time of day into a file is refused."""
    plain = build.wheels

    def careless(checkout: Path, out: Path, epoch: int) -> list[Path]:
        (checkout / "src" / "mandamus" / "built_at.txt").write_text(f"{time.time_ns()}\n")
        return plain(checkout, out, epoch)

    monkeypatch.setattr(build, "wheels", careless)
    with pytest.raises(ValueError, match="other bytes: mandamus-"):
        make.make(made.repository, made.commit, made.epoch, tmp_path / "dist", signer(), BUILDER)


def test_every_file_in_a_wheel_is_dated_by_the_commit(made: Release) -> None:
    day = time.gmtime(made.epoch - made.epoch % 2)[:6]
    for path in made.folder.glob("*.whl"):
        with zipfile.ZipFile(path) as archive:
            assert {info.date_time for info in archive.infolist()} == {day}
            names = archive.namelist()
        assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc") or name.startswith(("tests", "release"))]


def test_a_release_never_empties_a_folder_that_is_none(made: Release, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("x")
    with pytest.raises(ValueError, match="no release"):
        make.make(made.repository, made.commit, made.epoch, tmp_path, signer(), BUILDER)
    assert (tmp_path / "thesis.txt").read_text() == "x"


# -- the bill of materials -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["mandamus", "mandamus-verify"])
def test_the_bill_of_materials_follows_the_schema(made: Release, name: str) -> None:
    needs("cyclonedx", "jsonschema")
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    raw = next(made.folder.glob(f"{name}-0*.cdx.json")).read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(raw) is None
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(raw.replace('"library"', '"livery"')) is not None


def test_the_bill_of_materials_is_the_lock(made: Release) -> None:
    """Every package of the lock that the wheel needs, in its version, with the digests that an installer accepts."""
    lock = sbom.locked((ROOT / "requirements.lock").read_text())
    whole = json.loads(next(made.folder.glob("mandamus-0*.cdx.json")).read_bytes())
    small = json.loads(next(made.folder.glob("mandamus-verify-*.cdx.json")).read_bytes())
    for bill in (whole, small):
        for one in bill["components"]:
            assert one["version"] == lock[one["name"]].version
            assert {p["value"] for p in one["properties"] if p["name"] == "lock:sha256"} == set(lock[one["name"]].hashes) != set()
        refs = {one["bom-ref"] for one in bill["components"]} | {bill["metadata"]["component"]["bom-ref"]}
        assert {edge["ref"] for edge in bill["dependencies"]} == refs
        assert {ref for edge in bill["dependencies"] for ref in edge["dependsOn"]} <= refs
    assert {one["name"] for one in small["components"]} == set(AUDITOR)
    assert {"apsw", "cedarpy", "click", "cryptography", "httpx", "msgspec", "orjson", "rich", "h11"} <= {
        o["name"] for o in whole["components"]
    }
    for bill, name in ((whole, "mandamus"), (small, "mandamus_verify")):
        assert bill["metadata"]["component"]["hashes"] == [{"alg": "SHA-256", "content": build.sha256(wheel(made, name))}]


def test_nothing_is_guessed() -> None:
    lock = sbom.locked("msgspec==0.0.1 \\\n    --hash=sha256:" + "0" * 64 + "\n")
    with pytest.raises(ValueError, match=r"the lock says 0\.0\.1"):
        sbom.of("x", "1", ["msgspec"], lock, 0, "0" * 64)
    for bad in ("msgspec>=1\n", "-e .\n", "    --hash=sha256:" + "0" * 64):
        with pytest.raises(ValueError, match="not understood"):
            sbom.locked(bad)


# -- the provenance --------------------------------------------------------------------------------------------------------------
def envelope(made: Release) -> bytes:
    return (made.folder / make.PROVENANCE).read_bytes().removesuffix(b"\n")


def artifacts(folder: Path) -> dict[str, str]:
    return {path.name: build.sha256(path) for path in folder.iterdir() if path.name != make.PROVENANCE}


def checked(made: Release, raw: bytes, files: dict[str, str], **more: Any) -> provenance.Provenance:
    asked: dict[str, Any] = {"keys": [made.signer.key], "builder": BUILDER, "artifacts": files, **more}
    return provenance.check(raw, **asked)


def resigned(made: Release, change: Any) -> bytes:
    """The statement after `change`, signed by the real key: what is refused then is refused for what it says."""
    said = accept(dsse.read(envelope(made)).payload)
    change(said)
    return dsse.sign(provenance.PAYLOAD_TYPE, canon(said), [(made.signer.keyid, made.signer.sign)])


def test_the_provenance_names_every_file(made: Release) -> None:
    proved = checked(made, envelope(made), artifacts(made.folder), commit=made.commit)
    assert (proved.builder, proved.commit, proved.absent) == (BUILDER, made.commit, ())
    assert set(proved.subjects) == set(artifacts(made.folder))
    one = wheel(made, "mandamus_verify")
    assert set(checked(made, envelope(made), {one.name: build.sha256(one)}).absent) == set(artifacts(made.folder)) - {one.name}


def test_it_is_a_statement_that_others_read(made: Release) -> None:
    """in-toto Statement v1 and SLSA provenance v1, member by member."""
    said = json.loads(dsse.read(envelope(made)).payload)
    assert (said["_type"], said["predicateType"]) == ("https://in-toto.io/Statement/v1", "https://slsa.dev/provenance/v1")
    definition, details = said["predicate"]["buildDefinition"], said["predicate"]["runDetails"]
    assert set(definition) == {"buildType", "externalParameters", "internalParameters", "resolvedDependencies"}
    assert definition["resolvedDependencies"][0]["digest"] == {"gitCommit": made.commit}
    assert details["builder"]["id"] == BUILDER
    assert set(details["metadata"]) == {"invocationId", "startedOn", "finishedOn"}


def test_a_changed_byte_of_a_wheel_is_refused(made: Release, tmp_path: Path) -> None:
    """Any of sampled positions, also one that changes no file inside."""
    for path in (wheel(made, "mandamus"), wheel(made, "mandamus_verify")):
        raw = path.read_bytes()
        for at in range(0, len(raw), max(1, len(raw) // 20)):
            changed = tmp_path / path.name
            changed.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
            with pytest.raises(ProofError) as refused:
                checked(made, envelope(made), {path.name: build.sha256(changed)})
            assert refused.value.diagnosis.where == path.name


def test_swapped_subjects_are_refused(made: Release) -> None:
    """One wheel under the name of the other, in the folder or in a statement that the real key signed."""
    files = artifacts(made.folder)
    one, other = wheel(made, "mandamus").name, wheel(made, "mandamus_verify").name
    with pytest.raises(ProofError):
        checked(made, envelope(made), files | {one: files[other], other: files[one]})

    def swap(said: Any) -> None:
        first, second = (next(s for s in said["subject"] if s["name"] == name) for name in (one, other))
        first["name"], second["name"] = second["name"], first["name"]

    with pytest.raises(ProofError):
        checked(made, resigned(made, swap), files)


def test_a_file_that_is_not_named_is_refused(made: Release) -> None:
    with pytest.raises(ProofError):
        checked(made, envelope(made), artifacts(made.folder) | {"mandamus-9.9.9-py3-none-any.whl": "0" * 64})
    with pytest.raises(ProofError):
        checked(made, envelope(made), {})


def test_another_builder_key_or_commit_is_refused(made: Release) -> None:
    files = artifacts(made.folder)
    for more in ({"builder": "urn:mandamus:builder:ci"}, {"keys": [signer().key]}, {"keys": []}, {"commit": "0" * 40}, {"threshold": 2}):
        with pytest.raises(ProofError):
            checked(made, envelope(made), files, **more)
    other = signer()
    said = dsse.read(envelope(made)).payload
    with pytest.raises(ProofError):
        checked(made, dsse.sign(provenance.PAYLOAD_TYPE, said, [(other.keyid, other.sign)]), files)


CHANGES: dict[str, Any] = {
    "builder": lambda s: s["predicate"]["runDetails"]["builder"].update(id="urn:mandamus:builder:ci"),
    "build type": lambda s: s["predicate"]["buildDefinition"].update(buildType="urn:other:1"),
    "statement": lambda s: s.update(_type="https://in-toto.io/Statement/v0.1"),
    "predicate type": lambda s: s.update(predicateType="https://slsa.dev/provenance/v0.2"),
    "a name twice": lambda s: s["subject"].append(dict(s["subject"][0])),
    "no subject": lambda s: s.update(subject=[]),
    "another digest besides": lambda s: s["subject"][0].update(uri="x"),
    "no commit": lambda s: s["predicate"]["buildDefinition"]["externalParameters"]["source"].pop("digest"),
    "no predicate": lambda s: s.pop("predicate"),
    "a list": lambda s: s.update(predicate=[]),
    "builder is no text": lambda s: s["predicate"]["runDetails"]["builder"].update(id=[BUILDER]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_signed_statement_must_say(made: Release, change: str) -> None:
    with pytest.raises(ProofError) as refused:
        checked(made, resigned(made, CHANGES[change]), artifacts(made.folder))
    assert refused.value.diagnosis.code == "MDM-0929"


def test_every_byte_of_the_envelope_counts(made: Release) -> None:
    raw, files = envelope(made), artifacts(made.folder)
    for at in range(0, len(raw), 7):
        with pytest.raises(ProofError):
            checked(made, raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :], files)


def test_the_check_as_a_command(made: Release, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "dist"
    shutil.copytree(made.folder, folder)
    asked = [str(folder), "--key", made.signer.vkey, "--builder", BUILDER]
    assert verify_release.main(asked) == 0
    assert capsys.readouterr().out.startswith("PROVEN")
    assert verify_release.main([*asked, "--commit", "0" * 40]) == 1
    (folder / "extra.whl").write_bytes(b"x")
    assert verify_release.main(asked) == 1
    (folder / make.PROVENANCE).unlink()
    assert verify_release.main(asked) == 2


def test_without_a_key_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An ephemeral key never speaks for CI, whatever the environment says; a key file does."""
    from mandamus.drivers.sign_file import FileSigner

    for name in ("MANDAMUS_RELEASE_KEY", "MANDAMUS_BUILDER", "MANDAMUS_KEY_PASSPHRASE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CI", "true")
    key, builder = make.release_key()
    assert (key.key.name, builder) == (make.EPHEMERAL, make.LOCAL)
    FileSigner.create(tmp_path / "release.pem", "example.org/release")
    monkeypatch.setenv("MANDAMUS_RELEASE_KEY", str(tmp_path / "release.pem"))
    assert make.release_key()[1] == make.CI
    monkeypatch.setenv("CI", "")
    assert make.release_key()[1] == make.LOCAL


# -- the auditor's wheel -------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def auditor(made: Release, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and the four packages of AUDITOR, and nothing else: no pip, no runtime."""
    place = tmp_path_factory.mktemp("auditor") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    site = next((place / "lib").glob("python3*/site-packages"))
    for name in AUDITOR:
        found = distribution(name)
        for file in found.files or ():
            if ".." not in file.parts and "__pycache__" not in file.parts:
                target = site / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(str(found.locate_file(file)), target)
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(place / "bin" / "python"), "install", "-q", "--disable-pip-version-check",
         "--no-index", "--no-compile", str(wheel(made, "mandamus_verify"))],
        check=True,
    )  # fmt: skip
    return place


def run(auditor: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(auditor / "bin" / "mandamus-verify"), *words], capture_output=True, text=True, env={"PATH": ""}, check=False)


def test_its_environment_holds_nothing_else(auditor: Path) -> None:
    """pip took it without any index: what it asks for is there, and is four packages with it."""
    python = str(auditor / "bin" / "python")
    asked = "import importlib.metadata as m; print(*sorted(d.name for d in m.distributions()))"
    told = subprocess.run([python, "-I", "-c", asked], capture_output=True, text=True, check=True).stdout.split()
    assert told == sorted([*AUDITOR, "mandamus-verify"])
    assert subprocess.run([python, "-I", "-c", "import mandamus"], capture_output=True, check=False).returncode == 1


def test_it_says_what_the_whole_one_says(auditor: Path, tmp_path: Path) -> None:
    """Sound and spoiled bundles: the same report, member by member, and the same exit code."""
    from mandamus.cli import verify

    sound = story().bundle()
    trust = tmp_path / "trust"
    trust.write_text(TRUST_TEXT)
    cut, changed = b"\n".join([*sound.split(b"\n")[:-3], b""]), sound.replace(b"Acme", b"Evil", 1)
    spoiled = {"sound": sound, "open": Story(seal=False).tell().bundle(), "cut": cut, "changed": changed, "empty": b""}
    for name, raw in spoiled.items():
        path = tmp_path / f"{name}.mandamus"
        path.write_bytes(raw)
        theirs = run(auditor, str(path), "--trust", str(trust), "--json")
        ours = subprocess.run(
            [sys.executable, "-m", verify.__name__, str(path), "--trust", str(trust), "--json"], capture_output=True, text=True, check=False
        )
        assert json.loads(theirs.stdout) == json.loads(ours.stdout), name
        assert theirs.returncode == ours.returncode, name
        assert (theirs.returncode == 0) == (name == "sound")
    assert run(auditor, "--help").returncode == 0


def test_it_checks_a_release_too(auditor: Path, made: Release) -> None:
    command = [str(auditor / "bin" / "mandamus-verify-release"), str(made.folder), "--key", made.signer.vkey, "--builder"]
    for builder, code in ((BUILDER, 0), ("urn:mandamus:builder:ci", 1)):
        told = subprocess.run([*command, builder], capture_output=True, text=True, env={"PATH": ""}, check=False)
        assert (told.returncode, told.stdout.startswith("PROVEN")) == (code, code == 0)


def test_both_wheels_can_be_installed_side_by_side(made: Release) -> None:
    names = []
    for name in ("mandamus", "mandamus_verify"):
        with zipfile.ZipFile(wheel(made, name)) as archive:
            names.append(set(archive.namelist()))
            scripts = archive.read(next(n for n in archive.namelist() if n.endswith("entry_points.txt"))).decode()
        assert ("mandamus-verify =" in scripts) == (name == "mandamus_verify")
    assert not names[0] & names[1]


def test_its_source_is_ours(made: Release) -> None:
    """File by file the text of src/, but for the package's name in imports; and nothing of it leads into the runtime."""
    with zipfile.ZipFile(wheel(made, "mandamus_verify")) as archive:
        files = {name: archive.read(name).decode() for name in archive.namelist() if name.startswith("mandamus_verify/")}
    src = made.repository / "src" / "mandamus"
    own = ("__init__.py", "__main__.py", "LICENSE", "py.typed")
    known = [name.partition("/")[2] for name in files if not name.endswith(own)]
    assert len(known) > 40
    for name in known:
        assert files[f"mandamus_verify/{name}"].replace("from mandamus_verify", "from mandamus") == (src / name).read_text()
    assert not [name for name in files if "/runtime" in name or "/drivers" in name or "/ports" in name or "/wiring" in name]


def test_it_does_not_grow_into_the_runtime(tmp_path: Path) -> None:
    """A verifier that imports a driver, also inside a function, is not built."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "packages" / "mandamus-verify" / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    for line in ("from mandamus.drivers import sign_file", "import mandamus.proof.dsse", "import httpx"):
        place = tmp_path / str(len(list(tmp_path.iterdir())))
        shutil.copytree(ROOT / "src" / "mandamus", place / "mandamus", ignore=shutil.ignore_patterns("__pycache__"))
        with open(place / "mandamus" / "cli" / "verify.py", "a") as file:
            file.write(f"\n\ndef later() -> None:\n    {line}\n")
        with pytest.raises(ValueError, match=r"needs|cannot be renamed"):
            hook.taken(place)


def test_both_have_one_version() -> None:
    import tomllib

    versions = {tomllib.loads((ROOT / path / "pyproject.toml").read_text())["project"]["version"] for path in build.PACKAGES}
    assert len(versions) == 1
