"""`python -m release.make [--out dist] [--commit HEAD]`: both wheels built twice and compared, an SBOM for each, a signed provenance.

    MANDAMUS_RELEASE_KEY=FILE    the release key (as `mandamus key new` makes one); its passphrase in MANDAMUS_KEY_PASSPHRASE
    MANDAMUS_BUILDER=URI         who builds; without it: urn:mandamus:builder:ci where CI=true and a release key is given, else :local

Without a key an ephemeral one signs: its provenance can be checked for form, and proves nothing to anybody. Its name and the builder say
so.

The rule a newcomer would break: the output is checked by the same code that a stranger uses, before anybody calls it a release.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import tomllib
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from mandamus.cli.verify_release import PROVENANCE
from mandamus.drivers.sign_file import FileSigner
from mandamus.errors import MandamusError
from mandamus.proof import dsse, provenance
from mandamus.proof.keys import ED25519, vkey
from release import build, sbom

ROOT = Path(__file__).resolve().parents[1]
CI, LOCAL = "urn:mandamus:builder:ci", "urn:mandamus:builder:local"
EPHEMERAL = "mandamus.local/ephemeral-release"
LOCK = "requirements.lock"


def make(repository: Path, commit: str, epoch: int, out: Path, signer: FileSigner, builder: str) -> list[Path]:
    """Everything that is released, in `out`. Raises ValueError when two builds differ, or `out` holds something else."""
    started = _now()
    _emptied(out)
    with tempfile.TemporaryDirectory(prefix="mandamus-release-") as held:
        checkout = _built_twice(repository, commit, epoch, Path(held), out)
        lock = (checkout / LOCK).read_text(encoding="utf-8")
        for package in build.PACKAGES:
            _bill(checkout / package, lock, epoch, out)
        for name in (*build.BESIDE, LOCK):
            if (checkout / name).is_file():
                shutil.copyfile(checkout / name, out / Path(name).name)
    subjects = {path.name: build.sha256(path) for path in sorted(out.iterdir())}
    signed = dsse.sign(
        provenance.PAYLOAD_TYPE,
        provenance.statement(
            subjects, builder=builder, version={"hatchling": version("hatchling"), "python": platform.python_version()},
            source=_source(repository), commit=commit, parameters={"command": "make release"},
            materials=[{"digest": {"sha256": subjects[LOCK]}, "name": LOCK}], invocation=f"urn:uuid:{uuid.uuid4()}", started=started,
            finished=_now(),
        ),
        [(signer.keyid, signer.sign)],
    )  # fmt: skip
    (out / PROVENANCE).write_bytes(signed + b"\n")
    provenance.check(signed, [signer.key], builder=builder, artifacts=subjects, commit=commit)
    return sorted(out.iterdir())


def _emptied(out: Path) -> None:
    if out.exists() and any(out.iterdir()) and not (out / PROVENANCE).exists():
        raise ValueError(f"{out} holds something that is no release: name an empty folder")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)


def _built_twice(repository: Path, commit: str, epoch: int, held: Path, out: Path) -> Path:
    first = build.export(repository, commit, held / "one")
    second = build.export(repository, commit, held / "a longer name")
    made = build.wheels(first, out, epoch)
    if differs := build.same(made, build.wheels(second, held / "again", epoch)):
        raise ValueError(f"two builds of one commit gave other bytes: {differs}")
    return first


def _bill(package: Path, lock: str, epoch: int, out: Path) -> None:
    project = tomllib.loads((package / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wheel = next(out.glob(f"{project['name'].replace('-', '_')}-*.whl"))
    raw = sbom.of(project["name"], project["version"], project["dependencies"], sbom.locked(lock), epoch, build.sha256(wheel))
    (out / f"{project['name']}-{project['version']}.cdx.json").write_bytes(raw)


def _source(repository: Path) -> str:
    """Where the commit can be fetched, as the checkout knows it; what stands before an @ may be a credential."""
    try:
        said = build.git(repository, "config", "--get", "remote.origin.url").decode().strip()
    except subprocess.CalledProcessError:  # there is none
        said = ""
    scheme, mark, rest = said.partition("://")
    return f"git+{scheme}://{rest.rpartition('@')[2]}" if mark else "urn:mandamus:source"


def release_key() -> tuple[FileSigner, str]:
    """(signer, builder)."""
    where, builder = os.environ.get("MANDAMUS_RELEASE_KEY", ""), os.environ.get("MANDAMUS_BUILDER", "")
    if where:
        secret = os.environ.get("MANDAMUS_KEY_PASSPHRASE")
        ci = os.environ.get("CI") == "true"
        return FileSigner.open(where, secret.encode() if secret else None), builder or (CI if ci else LOCAL)
    private = Ed25519PrivateKey.generate()
    return FileSigner(private, vkey(EPHEMERAL, private.public_key().public_bytes_raw(), ED25519)), LOCAL


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m release.make", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--commit", default="HEAD")
    options = parser.parse_args(argv)
    try:
        commit, epoch = build.commit_of(ROOT, options.commit)
        signer, builder = release_key()
        made = make(ROOT, commit, epoch, options.out, signer, builder)
    except (MandamusError, OSError, ValueError, subprocess.CalledProcessError) as error:
        print(f"NOT RELEASED\n{error}", file=sys.stderr)
        return 1
    print(f"commit   {commit}\nbuilder  {builder}\nkey      {signer.vkey}")
    for path in made:
        print(f"{build.sha256(path)}  {path.name}")
    if signer.key.name == EPHEMERAL:
        print("signed by a key that was made for this run: it proves nothing to anybody; set MANDAMUS_RELEASE_KEY")
    return 0


if __name__ == "__main__":
    sys.exit(main())
