"""`python -m tests.e2e.byte_story`: tell a few stories and print one digest each of records, payloads, bundle and prompts."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from typing import Any

import msgspec

from mandamus.drivers.model_scripted import ScriptedModel
from mandamus.runtime.evidence import build
from tests.e2e.stories import STORIES, World

TOLD = ("one_payment", "two_people", "batch", "reconciled", "tools_within", "thread_of_two", "child_run", "guarded")
_prompts = hashlib.sha256()
_generate = ScriptedModel.generate


async def _heard(self: Any, prompt: Any, settings: Any, on_delta: Any = None) -> Any:
    _prompts.update(msgspec.json.encode(prompt))
    return await _generate(self, prompt, settings, on_delta)


async def digests() -> dict[str, str]:
    records, payloads, bundles = hashlib.sha256(), hashlib.sha256(), hashlib.sha256()
    for name in TOLD:
        runner = await STORIES[name](World())
        env = await runner.env()
        for head in [h async for h in env.ledger.runs()]:
            async for raw in env.ledger.read(head.run):
                records.update(raw)
            async for payload in env.ledger.payloads(head.run):
                payloads.update(payload.bytes)
            if head.run != "log":
                bundles.update(await build(env, head.run, {}, ""))
    return {
        "records": records.hexdigest(),
        "payloads": payloads.hexdigest(),
        "bundles": bundles.hexdigest(),
        "prompts": _prompts.hexdigest(),
    }


if __name__ == "__main__":
    ScriptedModel.generate = _heard  # type: ignore[method-assign]
    json.dump(asyncio.run(digests()), sys.stdout)
