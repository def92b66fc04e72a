// One JSON object a line in, one report a line out, driven by tests/verifiers/html.py: {bundle, trust, views, blobs, last, now, maxAge}, files
// as base64 or null.
import { createInterface } from "node:readline";
import { core } from "./core.mjs";

const { verify } = core();
const bytes = (text) => (text === null ? null : new Uint8Array(Buffer.from(text, "base64")));
const files = (given) => new Map(Object.entries(given).map(([name, text]) => [name, bytes(text)]));

for await (const line of createInterface({ input: process.stdin, crlfDelay: Infinity })) {
  const { bundle, trust, views, blobs, last, ...rest } = JSON.parse(line);
  const report = await verify({ bundle: bytes(bundle), trust: bytes(trust), views: files(views), blobs: files(blobs), last: bytes(last), ...rest });
  process.stdout.write(`${JSON.stringify(report)}\n`);
}
