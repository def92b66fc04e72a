// Bytes: SHA-256, hexadecimal, base64, UTF-8, and canonical JSON (RFC 8785). Everything else rests on this file.
//
// The rule a newcomer would break: JSON.parse forgives. It keeps the last of two equal keys and rounds 9007199254740993, so a text is
// believed only if what it parses to is written back as the very same text.

const INT_MAX = Number.MAX_SAFE_INTEGER; // 2^53 - 1
const DEPTH_MAX = 64;

// -- SHA-256, at once: an awaited digest costs ten times as much for the few hundred bytes of a record ------------------------
const ROUND = new Int32Array(64);
const FIRST = new Int32Array(8);
(() => {
  // FIPS 180-4: the fractional parts of the cube and square roots of the first primes.
  let n = 0;
  for (let p = 2; n < 64; p++) {
    let prime = true;
    for (let q = 2; q * q <= p; q++) if (p % q === 0) prime = false;
    if (!prime) continue;
    if (n < 8) FIRST[n] = (Math.sqrt(p) % 1) * 2 ** 32;
    ROUND[n++] = (Math.cbrt(p) % 1) * 2 ** 32;
  }
})();
const SCHEDULE = new Int32Array(64);
const STATE = new Int32Array(8);
let scratch = new Uint8Array(1 << 17);
let scratchView = new DataView(scratch.buffer);

function compress(view, from, to) {
  const w = SCHEDULE;
  let h0 = FIRST[0], h1 = FIRST[1], h2 = FIRST[2], h3 = FIRST[3], h4 = FIRST[4], h5 = FIRST[5], h6 = FIRST[6], h7 = FIRST[7];
  for (let at = from; at < to; at += 64) {
    for (let i = 0; i < 16; i++) w[i] = view.getInt32(at + (i << 2), false);
    for (let i = 16; i < 64; i++) {
      const x = w[i - 15], y = w[i - 2];
      const s0 = ((x >>> 7) | (x << 25)) ^ ((x >>> 18) | (x << 14)) ^ (x >>> 3);
      const s1 = ((y >>> 17) | (y << 15)) ^ ((y >>> 19) | (y << 13)) ^ (y >>> 10);
      w[i] = (w[i - 16] + s0 + w[i - 7] + s1) | 0;
    }
    let a = h0, b = h1, c = h2, d = h3, e = h4, f = h5, g = h6, h = h7;
    for (let i = 0; i < 64; i++) {
      const s1 = ((e >>> 6) | (e << 26)) ^ ((e >>> 11) | (e << 21)) ^ ((e >>> 25) | (e << 7));
      const t1 = (h + s1 + (g ^ (e & (f ^ g))) + ROUND[i] + w[i]) | 0;
      const s0 = ((a >>> 2) | (a << 30)) ^ ((a >>> 13) | (a << 19)) ^ ((a >>> 22) | (a << 10));
      const t2 = (s0 + ((a & b) | (c & (a | b)))) | 0;
      h = g; g = f; f = e; e = (d + t1) | 0;
      d = c; c = b; b = a; a = (t1 + t2) | 0;
    }
    h0 = (h0 + a) | 0; h1 = (h1 + b) | 0; h2 = (h2 + c) | 0; h3 = (h3 + d) | 0;
    h4 = (h4 + e) | 0; h5 = (h5 + f) | 0; h6 = (h6 + g) | 0; h7 = (h7 + h) | 0;
  }
  const out = STATE;
  out[0] = h0; out[1] = h1; out[2] = h2; out[3] = h3; out[4] = h4; out[5] = h5; out[6] = h6; out[7] = h7;
}

function room(length) {
  if (length + 128 <= scratch.length) return;
  const larger = new Uint8Array(2 * length + 256);
  larger.set(scratch);
  scratch = larger;
  scratchView = new DataView(larger.buffer);
}

// Over the first `length` bytes of the scratch; the hash stands in STATE then.
function hashScratch(length) {
  const end = ((length + 72) >>> 6) << 6;
  room(end);
  scratch[length] = 0x80;
  scratch.fill(0, length + 1, end - 8);
  scratchView.setUint32(end - 8, Math.floor(length / 2 ** 29), false);
  scratchView.setUint32(end - 4, length << 3, false);
  compress(scratchView, 0, end);
}

// Bytes and texts (as UTF-8), one behind the other, into the scratch. Their length.
function gather(parts) {
  let length = 0;
  for (const part of parts) length = typeof part === "string" ? putText(part, length) : putBytes(part, length);
  return length;
}

function putBytes(bytes, at) {
  room(at + bytes.length);
  scratch.set(bytes, at);
  return at + bytes.length;
}

// Letter by letter while they are ASCII: the encoder costs more than the few hundred of them that are hashed at a time.
function putText(text, at) {
  const { length } = text;
  room(at + 3 * length);
  for (let i = 0; i < length; i++) {
    const code = text.charCodeAt(i);
    if (code > 127) return at + ENCODER.encodeInto(text, scratch.subarray(at)).written;
    scratch[at + i] = code;
  }
  return at + length;
}

const ENCODER = new TextEncoder();
const DECODER = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
const HEX = Array.from({ length: 65536 }, (_, i) => i.toString(16).padStart(4, "0"));

function stateHex() {
  let text = "";
  for (let i = 0; i < 8; i++) text += HEX[STATE[i] >>> 16] + HEX[STATE[i] & 0xffff];
  return text;
}

function sha256(...parts) {
  hashScratch(gather(parts));
  const out = new Uint8Array(32), view = new DataView(out.buffer);
  for (let i = 0; i < 8; i++) view.setInt32(4 * i, STATE[i], false);
  return out;
}

function sha256hex(...parts) {
  hashScratch(gather(parts));
  return stateHex();
}

// Each kind of thing has a domain of its own: a digest of one kind can never be passed off as one of another.
function digest(domain, ...parts) {
  return sha256hex(`mandamus/v1/${domain}\0`, ...parts);
}

function eventHash(raw) {
  hashScratch(putBytes(raw, putText("mandamus/v1/event\0", 0)));
  return stateHex();
}

// Large parts of the file: natively, where the browser can; the same bytes either way.
async function digestOfMany(domain, prefix, raw) {
  const head = `mandamus/v1/${domain}\0${prefix}`;
  if (!globalThis.crypto?.subtle || raw.length < 1 << 16) return sha256hex(head, raw);
  const whole = new Uint8Array(head.length + raw.length);
  ENCODER.encodeInto(head, whole);
  whole.set(raw, head.length);
  return hex(new Uint8Array(await crypto.subtle.digest("SHA-256", whole)));
}

// -- texts of bytes ------------------------------------------------------------------------------------------------------------
function hex(bytes) {
  let text = "";
  for (const byte of bytes) text += (byte < 16 ? "0" : "") + byte.toString(16);
  return text;
}

function utf8(text) {
  return ENCODER.encode(text);
}

// The text, or null when the bytes are no UTF-8.
function textOf(bytes) {
  try {
    return DECODER.decode(bytes);
  } catch {
    return null;
  }
}

function b64(bytes) {
  let text = "";
  for (let i = 0; i < bytes.length; i += 8192) text += String.fromCharCode(...bytes.subarray(i, i + 8192));
  return btoa(text);
}

// Strict: standard alphabet, padded, zero trailing bits. Null for anything else.
const SIX = new Int8Array(128).fill(-1);
[..."ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"].forEach((letter, i) => (SIX[letter.charCodeAt(0)] = i));

function unb64(text) {
  if (typeof text !== "string" || text.length % 4) return null;
  const padding = text.endsWith("==") ? 2 : text.endsWith("=") ? 1 : 0, letters = text.length - padding;
  const out = new Uint8Array((text.length / 4) * 3 - padding);
  let bits = 0, held = 0, at = 0;
  for (let i = 0; i < letters; i++) {
    const code = text.charCodeAt(i), six = code < 128 ? SIX[code] : -1;
    if (six < 0) return null;
    held = (held << 6) | six;
    bits += 6;
    if (bits < 8) continue;
    bits -= 8;
    out[at++] = held >>> bits;
    held &= (1 << bits) - 1;
  }
  return held === 0 ? out : null;
}

function sameBytes(a, b) {
  if (a.length !== b.length) return false;
  for (let i = 0; i < a.length; i++) if (a[i] !== b[i]) return false;
  return true;
}

// -- sums: exact, also where somebody wrote numbers into a record that nobody means ---------------------------------------------
// A number while it is exact, a BigInt beyond. What a double holds as a safe integer is the sum or product itself.
function exact(big) {
  return big >= -BigInt(INT_MAX) && big <= BigInt(INT_MAX) ? Number(big) : big;
}

function plus(...values) {
  let sum = 0;
  for (const value of values) sum = typeof value === "number" ? sum + value : NaN;
  return Number.isSafeInteger(sum) && values.every(Number.isSafeInteger) ? sum : exact(values.reduce((total, value) => total + BigInt(value), 0n));
}

function times(a, b) {
  const product = typeof a === "number" && typeof b === "number" ? a * b : NaN;
  return Number.isSafeInteger(product) ? product : exact(BigInt(a) * BigInt(b));
}

// -- canonical JSON ------------------------------------------------------------------------------------------------------------
class NotCanonical extends Error {}

// What a value is written as; throws NotCanonical for what has no canonical form here (wide numbers, lone surrogates, depth).
function canon(value) {
  const written = inOrder(value, 0) ? JSON.stringify(value) : pure(value, 0);
  if (written.includes("\\ud")) wellFormed(value);
  return written;
}

// True when JSON.stringify writes the canonical form: every object's keys stand in UTF-16 order already.
function inOrder(value, depth) {
  if (typeof value === "number") return safe(value);
  if (typeof value !== "object" || value === null) return true;
  if (depth >= DEPTH_MAX) throw new NotCanonical(`more than ${DEPTH_MAX} nested containers`);
  let ordered = true;
  if (Array.isArray(value)) {
    for (const item of value) if (!inOrder(item, depth + 1)) ordered = false;
    return ordered;
  }
  let before = null;
  for (const key of Object.keys(value)) {
    if (before !== null && !(before < key)) ordered = false;
    before = key;
    if (!inOrder(value[key], depth + 1)) ordered = false;
  }
  return ordered;
}

function safe(number) {
  if (!(Math.abs(number) <= INT_MAX)) throw new NotCanonical("a number outside +-(2^53-1): send it as a string");
  return true;
}

function pure(value, depth) {
  if (typeof value !== "object" || value === null) return JSON.stringify(value);
  if (Array.isArray(value)) return `[${value.map((item) => pure(item, depth + 1)).join(",")}]`;
  const keys = Object.keys(value).sort(); // by UTF-16 code units: RFC 8785, section 3.2.3
  return `{${keys.map((key) => `${JSON.stringify(key)}:${pure(value[key], depth + 1)}`).join(",")}}`;
}

function wellFormed(value) {
  if (typeof value === "string") {
    if (/[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/.test(value)) throw new NotCanonical("half a character");
  } else if (value !== null && typeof value === "object") {
    for (const key of Object.keys(value)) {
      wellFormed(key);
      wellFormed(value[key]);
    }
  }
}

// The value of a canonical text. Throws NotCanonical, with the reason.
function acceptText(text) {
  let value;
  if (text === null) throw new NotCanonical("not UTF-8");
  try {
    value = JSON.parse(text);
  } catch {
    throw new NotCanonical("not JSON");
  }
  if (canon(value) !== text) throw new NotCanonical("not canonical");
  return value;
}

function accept(bytes) {
  return acceptText(textOf(bytes));
}

// Any JSON text without a key twice in one object and without a wide integer: for texts that are hashed as they stand.
function parseStrict(text) {
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    throw new NotCanonical("not JSON");
  }
  const open = []; // of each container: the keys seen, or null for a list
  let key = false;
  for (const [token] of text.matchAll(/"(?:[^"\\]|\\.)*"|[{}[\],:]|-?[0-9][0-9.eE+-]*/g)) {
    if (token === "{" || token === "[") open.push(token === "{" ? new Set() : null);
    else if (token === "}" || token === "]") open.pop();
    else if (token[0] === '"' && key && open.at(-1)) {
      const name = JSON.parse(token), seen = open.at(-1);
      if (seen.has(name)) throw new NotCanonical("duplicate key");
      seen.add(name);
    } else if (/^-?[0-9]+$/.test(token) && !Number.isSafeInteger(Number(token))) throw new NotCanonical("integer outside +-(2^53-1)");
    key = token === "{" || token === ",";
    if (open.length > DEPTH_MAX) throw new NotCanonical(`more than ${DEPTH_MAX} nested containers`);
  }
  return value;
}

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

// Does this object have exactly these fields?
function hasFields(value, fields) {
  return isObject(value) && Object.keys(value).length === fields.length && fields.every((name) => Object.hasOwn(value, name));
}

function sameValue(a, b) {
  if (a === b) return true;
  try {
    return typeof a === "object" && typeof b === "object" && a !== null && b !== null && canon(a) === canon(b);
  } catch {
    return false;
  }
}
