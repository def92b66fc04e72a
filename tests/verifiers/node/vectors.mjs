// Foreign vectors, through the functions that the page checks with: node vectors.mjs FOLDER prints {ed25519, jcs, merkle} as JSON.
import { readFileSync, readdirSync } from "node:fs";
import { core } from "./core.mjs";

const { verifies, pointOk, canon, included, unhex, utf8, unb64, sha256hex } = core(["verifies", "pointOk", "canon", "included", "unhex", "utf8", "unb64", "sha256hex"]);
const folder = process.argv[2], json = (name) => JSON.parse(readFileSync(`${folder}/${name}`, "utf8"));

const ed25519 = [];
for (const { key, sig, msg } of json("ed25519/ed25519vectors.json")) {
  const publicKey = unhex(key);
  ed25519.push(pointOk(publicKey) && (await verifies({ kind: 1, public: publicKey, hexed: key }, utf8(msg), unhex(sig))));
}

const jcs = {};
for (const name of readdirSync(`${folder}/jcs/input`)) {
  try {
    jcs[name] = sha256hex(canon(json(`jcs/input/${name}`)));
  } catch (error) {
    jcs[name] = error.message; // a number beyond 2^53: refused by choice
  }
}

const merkle = json("merkle/proofs.json").inclusion
  .map((one) => included(unb64(one.leafHash ?? "") ?? utf8(""), one.leafIdx, one.treeSize, (one.proof ?? []).map(unb64), unb64(one.root ?? "") ?? utf8("")));

process.stdout.write(JSON.stringify({ ed25519, jcs, merkle }));
