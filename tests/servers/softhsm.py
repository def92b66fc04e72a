"""A real PKCS#11 token without hardware: SoftHSM2 in a folder of the test's own. `token(folder)` -> environment and address of its keys.

SOFTHSM2_CONF is read when the library is loaded, so a test that uses the token in its own process sets it before, once for all tests.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.servers.needs import needs

MODULES = ("/usr/lib/softhsm/libsofthsm2.so", "/usr/lib/x86_64-linux-gnu/softhsm/libsofthsm2.so", "/usr/local/lib/softhsm/libsofthsm2.so")
PIN = "1234"


class Token:
    """`uri("bundle")` names a key of it. `environment` is what another process needs."""

    def __init__(self, folder: Path) -> None:
        needs("softhsm2-util", "pkcs11")
        self.module = next(path for path in MODULES if Path(path).exists())
        (folder / "tokens").mkdir(parents=True)
        config = folder / "softhsm2.conf"
        config.write_text(f"directories.tokendir = {folder}/tokens\nobjectstore.backend = file\nlog.level = ERROR\n")
        self.environment = {"SOFTHSM2_CONF": str(config), "HSM_PIN": PIN}
        os.environ.update(self.environment)
        for label in ("ops", "second", "third"):  # before the library is loaded: it looks for tokens once
            self._add(label)

    def _add(self, label: str) -> None:
        command = ["softhsm2-util", "--init-token", "--free", "--label", label, "--so-pin", "5678", "--pin", PIN]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, **self.environment})

    def uri(self, key: str, token: str = "ops", pin: str = "env:HSM_PIN") -> str:
        return f"pkcs11:token={token};object={key}?module-path={self.module}&pin-source={pin}"
