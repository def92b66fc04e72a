"""Pages of wrapping keys: where a key store on a server has what makes forgetting final.

The rule a newcomer would break: a wrapping key that is missing is never made anew. What it wrapped would be lost, and nobody would know.
"""

from __future__ import annotations

from mandamus.cli._codes import Pages

WRAPPING: Pages = {
    "MDM-0978": (
        "Wrapping keys",
        "MANDAMUS_KEK of a key store on Postgres names where its wrapping keys are: "
        "pkcs11:token=LABEL?module-path=FILE&pin-source=env:NAME, awskms:?region=REGION&days=7, "
        "or folder:///PATH (mode 0700) that all hosts share. The place must answer, and be theirs to write.",
    ),
    "MDM-0979": (
        "A wrapping key is not there",
        "Either MANDAMUS_KEK names another place than the other hosts do: name theirs. Or the key store's database is older than the "
        "last erasure, which destroyed that key on purpose: restore a newer backup, or promote a standby that was not behind. What was "
        "wrapped by it opens nowhere else.",
    ),
}
