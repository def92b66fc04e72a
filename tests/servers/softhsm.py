"""A real PKCS#11 token without hardware: SoftHSM2. `Token()` -> environment and address of its keys.

SOFTHSM2_CONF is read when the library is loaded, so all tests of one process share the tokens that the first of them made: labels of keys
must be a test's own.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.servers.needs import needs

MODULES = ("/usr/lib/softhsm/libsofthsm2.so", "/usr/lib/x86_64-linux-gnu/softhsm/libsofthsm2.so", "/usr/local/lib/softhsm/libsofthsm2.so")
PIN = "1234"


class Token:
    """`uri("bundle")` names a key of it. `environment` is what another process needs."""

    _first: Token | None = None

    def __init__(self) -> None:
        needs("softhsm2-util", "pkcs11")
        if Token._first is None:
            self._make()
            Token._first = self
        self.module, self.environment = Token._first.module, Token._first.environment
        os.environ.update(self.environment)

    def _make(self) -> None:
        """Not in the folder of the test that happens to be the first, which may go before the others."""
        folder = Path(tempfile.mkdtemp(prefix="mandamus-hsm-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        self.module = next(path for path in MODULES if Path(path).exists())
        (folder / "tokens").mkdir()
        config = folder / "softhsm2.conf"
        config.write_text(f"directories.tokendir = {folder}/tokens\nobjectstore.backend = file\nlog.level = ERROR\n")
        self.environment = {"SOFTHSM2_CONF": str(config), "HSM_PIN": PIN}
        for label in ("ops", "second", "third"):  # before the library is loaded: it looks for tokens once
            self._add(label)

    def _add(self, label: str) -> None:
        command = ["softhsm2-util", "--init-token", "--free", "--label", label, "--so-pin", "5678", "--pin", PIN]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, **self.environment})

    def uri(self, key: str, token: str = "ops", pin: str = "env:HSM_PIN") -> str:
        return f"pkcs11:token={token};object={key}?module-path={self.module}&pin-source={pin}"
