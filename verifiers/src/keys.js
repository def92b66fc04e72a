// Public keys as a line of text (C2SP signed-note), DSSE envelopes, and the only place where signatures are checked.
//
// The rule a newcomer would break: the browser's `verify` alone is not enough. Verifiers disagree on keys and R values of small order or
// with a non-canonical y, and a small-order key verifies anything. So both are guarded here, at parsing and at every verification.

const ED25519 = 1, P256 = 2, COSIGNER = 4, COSIGNER_PQ = 6; // as C2SP numbers them; the last is ML-DSA-44
const ML_DSA_KEY = 1312, ML_DSA_SIGNATURE = 2420;
const P25519 = 2n ** 255n - 19n;
const ORDER_8 = 0x05fc536d880238b13933c6d305acdfd5f098eff289f4c345b027b2c28f95e826n;
const SMALL_ORDER = new Set([0n, 1n, P25519 - 1n, ORDER_8, P25519 - ORDER_8]);
const PRIME256 = 0xffffffff00000001000000000000000000000000ffffffffffffffffffffffffn;
const B256 = 0x5ac635d8aa3a93e7b3ebbd55769886bc651d06b0cc53b0f63bce3c3e27d2604bn;

function bigOf(bytes) {
  return bytes.length ? BigInt(`0x${hex(bytes)}`) : 0n;
}

// 32 bytes, canonical y, not of small order. That the point lies on the curve is said by the equation.
function pointOk(encoded) {
  if (encoded.length !== 32) return false;
  const y = bigOf(Uint8Array.from(encoded).reverse()) & (2n ** 255n - 1n);
  return y < P25519 && !SMALL_ORDER.has(y);
}

// 0x04, x, y, on the curve.
function p256Ok(encoded) {
  if (encoded.length !== 65 || encoded[0] !== 4) return false;
  const x = bigOf(encoded.subarray(1, 33)), y = bigOf(encoded.subarray(33));
  return x < PRIME256 && y < PRIME256 && (y * y - x * x * x + 3n * x - B256) % PRIME256 === 0n;
}

// `{name, kind, public, id, text}`. Throws Misuse, which says what is wrong with the line.
function parseVKey(text) {
  const [name, id, ...rest] = text.split("+");
  const encoded = rest.join("+");
  if (!name || !id || !encoded) throw noKey("it is not name+id+key");
  const raw = unb64(encoded);
  if (raw === null) throw noKey("not standard base64");
  const kind = raw.length ? raw[0] : 0, publicKey = raw.subarray(1);
  if (!/^[!-*,-~]{1,200}$/.test(name)) throw noKey("its name is not 1 to 200 printable ASCII characters without space and +");
  if (![ED25519, P256, COSIGNER, COSIGNER_PQ].includes(kind)) throw noKey(`signature type 0x${kind.toString(16).padStart(2, "0")} is not known`);
  if (kind === P256 && !p256Ok(publicKey)) throw noKey("it is not a point of the curve P-256, uncompressed");
  if (kind === COSIGNER_PQ && publicKey.length !== ML_DSA_KEY) throw noKey("it is no ML-DSA-44 key");
  if ((kind === ED25519 || kind === COSIGNER) && !pointOk(publicKey)) throw noKey("it is not a strong Ed25519 key");
  const found = sha256hex(name, "\n", raw).slice(0, 8);
  if (found !== id) throw noKey("its id does not belong to the key", { expected: found, found: id.slice(0, 16) });
  return { name, kind, public: publicKey, hexed: hex(publicKey), id, text };
}

function noKey(what, more = {}) {
  return new Misuse(`this is not a usable key: ${what}`, { code: "MDM-0180", ...more });
}

// -- signatures ----------------------------------------------------------------------------------------------------------------
const NO_CRYPTO = "this browser cannot check signatures of this kind: take a newer one, or mandamus-verify.py";
const imported = new Map();
// How a key is brought in, and how its signatures are checked.
const ALGORITHMS = {
  [ED25519]: { form: "raw", key: { name: "Ed25519" }, how: { name: "Ed25519" } },
  [P256]: { form: "raw", key: { name: "ECDSA", namedCurve: "P-256" }, how: { name: "ECDSA", hash: "SHA-256" } },
  [COSIGNER_PQ]: { form: "raw-public", key: { name: "ML-DSA-44" }, how: { name: "ML-DSA-44" } },
};
ALGORITHMS[COSIGNER] = ALGORITHMS[ED25519];

// True only for a signature on which strict verifiers agree. Throws Cannot where the browser lacks the algorithm.
async function verifies(key, message, signature) {
  const edwards = key.kind === ED25519 || key.kind === COSIGNER;
  if (signature.length !== (key.kind === COSIGNER_PQ ? ML_DSA_SIGNATURE : 64)) return false;
  if (edwards && (!pointOk(signature.subarray(0, 32)) || !pointOk(key.public))) return false;
  await able(edwards ? ED25519 : key.kind);
  const algorithm = ALGORITHMS[key.kind], name = `${key.kind}:${key.hexed}`;
  try {
    if (!imported.has(name)) imported.set(name, await crypto.subtle.importKey(algorithm.form, key.public, algorithm.key, false, ["verify"]));
    return await crypto.subtle.verify(algorithm.how, imported.get(name), signature, message);
  } catch {
    return false; // a key that is no point: whatever it signed does not hold
  }
}

// Ed25519 of "" by the first key of RFC 8032, section 7.1, and ECDSA over "sample" of RFC 6979, A.2.5: known to hold, so a browser
// that says no, or throws, cannot check anything of that kind.
const KNOWN = {
  [ED25519]: [
    "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
    "",
    "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
  ],
  [P256]: [
    "0460fed4ba255a9d31c961eb74c6356d68c049b8923b61fa6ce669622e60f29fb67903fe1008b8bc99a41ae9e95628bc64f2f1b20c2d7e9f5177a3c294d4462299",
    "sample",
    "efd48b2aacb6a8fd1140dd9cd45e81d69d2c877b56aaf991c34d0ea84eaf3716f7cb1c942d657c41d436c7a1b6e29f65f3e900dbb9aff4064dc4ab2f843acda8",
  ],
};
const ability = new Map();

async function able(kind) {
  if (!ability.has(kind)) ability.set(kind, tried(kind));
  if (!(await ability.get(kind))) throw new Cannot(NO_CRYPTO);
}

async function tried(kind) {
  const { form, key: keyKind, how } = ALGORITHMS[kind];
  try {
    let key, signature, message = utf8("sample");
    if (kind in KNOWN) {
      [signature, message] = [unhex(KNOWN[kind][2]), utf8(KNOWN[kind][1])];
      key = await crypto.subtle.importKey(form, unhex(KNOWN[kind][0]), keyKind, false, ["verify"]);
    } else {
      const pair = await crypto.subtle.generateKey(keyKind, false, ["sign", "verify"]);
      [key, signature] = [pair.publicKey, new Uint8Array(await crypto.subtle.sign(how, pair.privateKey, message))];
    }
    const bad = signature.slice();
    bad[40] ^= 1;
    return (await crypto.subtle.verify(how, key, signature, message)) && !(await crypto.subtle.verify(how, key, bad, message));
  } catch {
    return false;
  }
}

function unhex(text) {
  return Uint8Array.from(text.match(/../g) ?? [], (pair) => parseInt(pair, 16));
}

// -- SSHSIG (OpenSSH, PROTOCOL.sshsig): the blob must be the one that this key and this signature make, byte for byte ---------------
const SSH_NAMESPACE = "mandamus-approval"; // a signature made for another purpose (a commit, a login) is no vote

function sshText(...parts) {
  const bytes = joined(...parts), out = new Uint8Array(4 + bytes.length);
  new DataView(out.buffer).setUint32(0, bytes.length);
  out.set(bytes, 4);
  return out;
}

function joined(...parts) {
  const list = parts.map((part) => (typeof part === "string" ? utf8(part) : part)), out = new Uint8Array(list.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of list) {
    out.set(part, at);
    at += part.length;
  }
  return out;
}

async function verifiesSsh(key, message, given) {
  const kind = sshText("ssh-ed25519"), purpose = [sshText(SSH_NAMESPACE), sshText(""), sshText("sha512")], raw = given.subarray(-64);
  const blob = joined("SSHSIG\0\0\0\x01", sshText(kind, sshText(key.public)), ...purpose, sshText(kind, sshText(raw)));
  if (!sameBytes(blob, given)) return false;
  await able(ED25519);
  const hashed = new Uint8Array(await crypto.subtle.digest("SHA-512", message));
  return verifies(key, joined("SSHSIG", ...purpose, sshText(hashed)), raw);
}

// -- DSSE ----------------------------------------------------------------------------------------------------------------------
const SIGNATURES_MAX = 32;
const LINE_BYTES_MAX = 1 << 20;

class NoEnvelope extends Error {
  constructor(what, code, more = {}) {
    super(what);
    this.code = code;
    this.more = { code, ...more };
  }
}

// The parts of an envelope, as parsed and not as believed. Throws NoEnvelope when it is not exactly in the one form.
function readEnvelope(raw) {
  if (raw.length > LINE_BYTES_MAX) throw malformed(`it has ${raw.length} bytes`);
  let value;
  try {
    value = accept(raw);
  } catch (error) {
    throw malformed(error.message);
  }
  if (!hasFields(value, ["payload", "payloadType", "signatures"])) throw malformed("its fields are not payload, payloadType and signatures");
  const payload = unb64(value.payload);
  if (typeof value.payloadType !== "string" || !Array.isArray(value.signatures)) throw malformed("a field has another type");
  const count = value.signatures.length;
  if (count < 1 || count > SIGNATURES_MAX) throw malformed(`it has ${count} signatures, not 1 to ${SIGNATURES_MAX}`);
  if (payload === null) throw malformed("not standard base64");
  const signatures = value.signatures.map((one) => {
    if (!hasFields(one, ["keyid", "sig"]) || typeof one.keyid !== "string") throw malformed("a signature is not {keyid, sig}");
    const sig = unb64(one.sig);
    if (sig === null) throw malformed("not standard base64");
    return { keyid: one.keyid, sig };
  });
  return { type: value.payloadType, payload, signatures };
}

function malformed(why) {
  return new NoEnvelope(`this is no canonical DSSE envelope: ${why}`, "MDM-0620");
}

// Lengths stand before what they count, so nothing can move across the boundary.
function preAuth(type, payload) {
  return joined(`DSSEv1 ${utf8(type).length} ${type} ${payload.length} `, payload);
}

// {payload, keys}, once `threshold` different keys have signed it and no signature is anybody else's. `keyid` never decides which key.
// `ssh`: a signature may also be one that `ssh-keygen -Y sign` made, as people's are.
async function checkEnvelope(raw, type, keys, { threshold = 1, ssh = false } = {}) {
  const envelope = readEnvelope(raw);
  if (envelope.type !== type) {
    throw new NoEnvelope("the envelope is of another type", "MDM-0622", { expected: type, found: envelope.type.slice(0, 80) });
  }
  const message = preAuth(type, envelope.payload), signed = [];
  for (const { keyid, sig } of envelope.signatures) signed.push(await whoSigned(keyid, sig, message, keys, ssh));
  const distinct = new Set(signed.map((key) => key.hexed)).size;
  if (distinct !== signed.length) throw new NoEnvelope("one key signed twice", "MDM-0623", { why: "a key counts once, whatever it calls itself" });
  if (threshold < 1 || distinct < threshold) {
    throw new NoEnvelope("too few signatures", "MDM-0624", { expected: `${threshold} different keys`, found: `${distinct}` });
  }
  return { payload: envelope.payload, keys: signed };
}

async function whoSigned(keyid, sig, message, keys, ssh) {
  const known = keys.filter((key) => key.id === keyid);
  for (const key of known) {
    const check = ssh && key.kind === ED25519 && sig.length !== 64 && textOf(sig.subarray(0, 6)) === "SSHSIG" ? verifiesSsh : verifies;
    if (await check(key, message, sig)) return key;
  }
  const what = known.length ? "a signature does not hold" : "a signature is by a key that is not trusted for this";
  const names = keys.slice(0, 4).map((key) => `${key.name}+${key.id}`).join(", ");
  throw new NoEnvelope(what, known.length ? "MDM-0621" : "MDM-0625", {
    expected: `a signature by ${names || "a key of the trust file"}`, found: `keyid '${keyid.slice(0, 16)}'`,
  });
}
