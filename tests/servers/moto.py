"""A real moto server (S3, KMS and more of AWS in memory) in a process of its own, on a free loopback port.

    with Moto() as aws:                 # aws.endpoint == "http://127.0.0.1:PORT"; credentials for it: aws.environment
        ...

It ends with its standard input, so it never outlives the test that began it. Not AWS: what it is known to do wrong is marked where it
is tested.
"""

from __future__ import annotations

import subprocess
import sys
from types import TracebackType

from tests.servers.needs import needs

_SERVER = """
import logging, sys
logging.getLogger("werkzeug").setLevel(logging.ERROR)
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print("%s:%d" % server.get_host_and_port(), flush=True)
sys.stdin.read()
server.stop()
"""


class Moto:
    """A context manager; `pid` is the server's process."""

    region = "eu-central-1"
    environment = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_REGION": region, "AWS_DEFAULT_REGION": region}

    def __init__(self) -> None:
        needs("moto", "flask", "boto3")
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", _SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.pid = self._process.pid
        assert self._process.stdout is not None
        address = self._process.stdout.readline().strip()
        assert address, "the moto server did not start"
        self.endpoint = f"http://{address}"

    def __enter__(self) -> Moto:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
