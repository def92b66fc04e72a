"""What drivers of AWS KMS share: its address, a client, and what its answers mean.

    id, options = read("awskms:alias/bundle?region=eu-central-1", FORM, {"region", "endpoint"})
    told = asked(id, lambda: kms(options).describe_key(KeyId=id))

The rule a newcomer would break: the client's retries are the SDK's own, and credentials come from where the SDK looks for them; none of
either is written here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from mandamus.errors import EngineFault, Misuse, Unavailable


def kms(options: dict[str, str]) -> Any:
    return boto3.client(
        "kms", region_name=options.get("region"), endpoint_url=options.get("endpoint"),
        config=Config(connect_timeout=5, read_timeout=10, retries={"total_max_attempts": 3, "mode": "standard"}),
    )  # fmt: skip


def read(uri: str, form: str, known: set[str], *, key: bool = True) -> tuple[str, dict[str, str]]:
    scheme, _, rest = uri.partition(":")
    id, _, query = rest.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    unknown = options.keys() - known
    if scheme != "awskms" or key != bool(id) or unknown:
        raise Misuse("this is no address of a KMS key", code="MDM-0983", expected=form, found=", ".join(sorted(unknown))[:80])
    if not options.get("region") and ":kms:" in id:
        options["region"] = id.split(":")[3]  # an ARN names it
    if not options.get("region"):
        raise Misuse("which region?", code="MDM-0983", expected=form, why="a key lies in one region, and so does what it signs")
    return id, options


def asked(id: str, ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except ClientError as error:
        said = error.response.get("Error", {})
        code, text = str(said.get("Code", "")), str(said.get("Message", ""))[:160]
        if code == "NotFoundException":
            raise Misuse("no such KMS key", code="MDM-0983", where=id, found=text) from None
        if code in ("ThrottlingException", "KMSInternalException", "DependencyTimeoutException", "KeyUnavailableException"):
            raise Unavailable(f"KMS does not answer now: {code}", code="MDM-0985", where=id, found=text, outcome="none") from None
        raise EngineFault(f"KMS refuses: {code}", code="MDM-0984", where=id, found=text, fix="look at the key's state and policy") from None
    except BotoCoreError as error:
        raise Unavailable("KMS does not answer", code="MDM-0985", where=id, found=type(error).__name__, outcome="none") from None
