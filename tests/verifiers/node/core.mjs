// The JavaScript verifier without its page: the same sources, in the same order, as one script.
import { readFileSync } from "node:fs";
import vm from "node:vm";

const root = new URL("../../../verifiers/", import.meta.url);
const read = (name) => readFileSync(new URL(name, root), "utf8");

export const ORDER = JSON.parse(read("src/order.json"));

export function core(names = ["verify"]) {
  const sources = ORDER.map((name) => read(`src/${name}`));
  const script = `(() => {\n"use strict";\nconst TABLE = ${read("records.json")};\n${sources.join("\n")}\nreturn { ${names.join(", ")} };\n})()`;
  return vm.runInThisContext(script, { filename: "verify.html" });
}
