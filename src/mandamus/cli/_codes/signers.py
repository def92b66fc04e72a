"""Pages of keys that lie elsewhere: ssh, tokens, a cloud's key service (0194, 0196, 0980 to 0988).

The rule a newcomer would break: what a key may sign is said by its role; a key that serves two roles serves neither.
"""

from __future__ import annotations

from mandamus.cli._codes import Pages

SIGNERS: Pages = {
    "MDM-0187": (
        "Administrators who can never agree",
        "MANDAMUS_ADMINISTRATORS_QUORUM counts this ledger's own administrator and those of MANDAMUS_ADMINISTRATORS. It is fixed when "
        "the log "
        "is opened.",
    ),
    "MDM-0342": (
        "Administrators have not agreed yet",
        "The statement waits in the file that is named. Each administrator reads and signs it with mandamus key sign FILE --key KEY; "
        "then run "
        "the command again.",
    ),
    "MDM-0343": ("Nothing was signed", "You were asked, and did not say yes. Run it again when you agree; --yes asks nothing."),
    "MDM-0189": (
        "This key cannot take the other's place",
        "A log keeps its name (its origin) for ever, whatever key signs it; keys in memory end with their process.",
    ),
    "MDM-0194": (
        "This ssh key cannot vote",
        "Name the public half of an ssh-ed25519 key (id_ed25519.pub). RSA, ECDSA and security keys (sk-…) sign by other rules, which no "
        "verifier of ours follows: ssh-keygen -t ed25519 makes one that can, mandamus key new makes another kind of file.",
    ),
    "MDM-0196": (
        "OpenSSH did not sign",
        "The private key must be in ssh-agent (ssh-add) or lie beside the .pub file; ssh-keygen must be installed. It says itself "
        "what is wrong.",
    ),
    "MDM-0980": (
        "No usable key in a token",
        "The address is pkcs11:token=LABEL;object=LABEL?module-path=FILE&pin-source=env:NAME. pkcs11-tool --list-objects shows what "
        "is there; "
        "mandamus key new URI --name NAME makes a key. A PIN is never written into the address.",
    ),
    "MDM-0981": (
        "The token does not sign",
        "Look at the token and its service: pkcs11-tool --test. Nothing was signed, so nothing is lost.",
    ),
    "MDM-0982": (
        "A key that can be copied",
        "The token would give the private key away, so nobody knows who else has it. Make one in the token: mandamus key new URI "
        "--name NAME.",
    ),
    "MDM-0983": (
        "No usable KMS key",
        "The address is awskms:KEY?region=REGION. The key must sign with ECC_NIST_P256; its alias, id or ARN must be right.",
    ),
    "MDM-0984": (
        "KMS refuses, or signs something else",
        "Look at the key's state (enabled?), at its policy, and at who answers at that endpoint. Nothing was signed.",
    ),
    "MDM-0985": (
        "KMS does not answer",
        "Nothing was signed. Look at the network, the region and the credentials, then run the command again.",
    ),
    "MDM-0986": (
        "No such signer",
        "Keys lie in files (file:///FILE), in tokens (pkcs11:…) or in AWS KMS (awskms:…). MANDAMUS_SIGN_BUNDLE and the like name one "
        "for a role.",
    ),
    "MDM-0987": (
        "A log is signed with Ed25519",
        "Checkpoints are read by witnesses and auditors of others (C2SP), who take Ed25519 only. Use a P-256 key for bundles.",
    ),
    "MDM-0989": (
        "The log key was retired",
        "Chain log says that another key took its place, and that key is not here. Put it into the folder keys as log.pem; nothing "
        "that the "
        "old one signs is believed.",
    ),
    "MDM-0341": ("No such key in force", "mandamus key list shows who votes with which key, and which were revoked."),
    "MDM-0988": (
        "Two roles would share a key",
        "Make a key for each role: what is signed in one could be shown as signed in the other.",
    ),
}
