// The log's tree (RFC 6962), its checkpoints and cosignatures (C2SP signed-note, tlog-checkpoint, tlog-cosignature) and proofs (tlog-proof).
//
// The rule a newcomer would break: a signature line whose name and id are those of a known key must hold, or the whole note is refused; a
// quorum counts public keys, never names or lines; nothing signs `extra` or an index.

const NOTE_BYTES_MAX = 1 << 18;
const PROOF_HEAD = "c2sp.org/tlog-proof@v1";
const PATH_MAX = 63;
const SKEW_S = 300; // a clock of a witness may go wrong by so much

class BadProof extends Error {
  constructor(what, more = {}) {
    super(what);
    this.more = more;
  }
}

function leafHash(record) {
  return sha256(new Uint8Array([0]), record);
}

function nodeHash(left, right) {
  return sha256(new Uint8Array([1]), left, right);
}

// Is `leaf` number `index` of the `size` leaves under `root`? RFC 9162, 2.1.3.2. Numbers go beyond 32 bits.
function included(leaf, index, size, path, root) {
  if (index < 0 || index >= size || leaf.length !== 32) return false;
  let at = BigInt(index), last = BigInt(size) - 1n, out = leaf;
  for (const side of path) {
    if (last === 0n) return false;
    if (at & 1n || at === last) {
      out = nodeHash(side, out);
      while (at && !(at & 1n)) [at, last] = [at >> 1n, last >> 1n];
    } else out = nodeHash(out, side);
    [at, last] = [at >> 1n, last >> 1n];
  }
  return last === 0n && sameBytes(out, root);
}

// {index, path, note, extra} of a tlog-proof.
function parseLogProof(raw) {
  const text = latin1Long(raw), cut = text.indexOf("\n\n"), no = (why) => new BadProof(`this is no proof of a log: ${why}`, { code: "MDM-0904" });
  const lines = (cut < 0 ? text : text.slice(0, cut)).split("\n");
  if (lines.some((line) => /[^\x00-\x7f]/.test(line))) throw no("it is not ASCII");
  if (cut < 0 || lines.shift() !== PROOF_HEAD) throw no("it does not begin as one");
  let extra = new Uint8Array(0);
  if (lines.length && lines[0].startsWith("extra ")) extra = unb64(lines.shift().slice(6));
  if (extra === null) throw no("its extra is not standard base64");
  const match = lines.length ? /^index (0|[1-9][0-9]{0,15})$/.exec(lines.shift()) : null;
  if (!match || !Number.isSafeInteger(Number(match[1]))) throw no("it names no index below 2^53");
  if (lines.length > PATH_MAX) throw no(`it has more than ${PATH_MAX} hashes`);
  const path = lines.map(unb64);
  if (path.some((hash) => hash?.length !== 32)) throw no("a hash is not one of 32 bytes");
  return { index: Number(match[1]), path, note: raw.subarray(cut + 2), extra };
}

function latin1Long(raw) {
  let text = "";
  for (let at = 0; at < raw.length; at += 8192) text += latin1(raw.subarray(at, at + 8192));
  return text;
}

// -- notes ---------------------------------------------------------------------------------------------------------------------
function noNote(why) {
  return new BadProof(`this is no signed checkpoint: ${why}`, { code: "MDM-0900" });
}

const NOTE_LINE = /^\u2014 ([^\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000+]{1,200}) ([A-Za-z0-9+/]+={0,2})$/u;

// {text, lines: [{name, id, signature}]}; nothing of it is believed before somebody checked a line.
function parseNote(raw) {
  if (raw.length > NOTE_BYTES_MAX) throw noNote(`it is larger than ${NOTE_BYTES_MAX} bytes`);
  const text = textOf(raw);
  if (text === null) throw noNote("it is not text");
  if (/[\x00-\x09\x0b-\x1f]/.test(text)) throw noNote("a control character stands in it");
  const cut = text.lastIndexOf("\n\n"), block = text.slice(cut + 2);
  if (cut < 0 || !block.endsWith("\n")) throw noNote("no signature lines stand behind it");
  const lines = block.slice(0, -1).split("\n");
  if (lines.length > SIGNATURES_MAX) throw noNote(`more than ${SIGNATURES_MAX} signatures stand behind it`);
  return { text: text.slice(0, cut + 1), lines: lines.map(readNoteLine) };
}

function readNoteLine(text) {
  const match = NOTE_LINE.exec(text);
  if (!match) throw noNote("a signature line is malformed");
  const raw = unb64(match[2]);
  if (raw === null) throw noNote("a signature is not standard base64");
  if (raw.length < 5) throw noNote("a signature is too short");
  return { name: match[1], id: hex(raw.subarray(0, 4)), signature: raw.subarray(4) };
}

function parseCheckpoint(text) {
  const lines = text.split("\n");
  if (lines.length !== 4 || lines[3]) throw noNote("a checkpoint is three lines; further ones are seen by no auditor");
  if (!/^[!-*,-~]{1,200}$/.test(lines[0])) throw noNote("its origin is not printable ASCII without spaces");
  if (!/^(0|[1-9][0-9]{0,15})$/.test(lines[1]) || !Number.isSafeInteger(Number(lines[1]))) throw noNote("its size is not a plain number below 2^53");
  const root = unb64(lines[2]);
  if (root === null) throw noNote("its root is not standard base64");
  if (root.length !== 32 || (lines[1] === "0" && hex(root) !== EMPTY_ROOT)) throw noNote("its root is not one of 32 bytes, or not that of an empty log");
  return { origin: lines[0], size: Number(lines[1]), root, text };
}

// Which of `keys` signed, each public key once: [{key, time}]. Lines of others are passed over.
async function signersOf(note, keys) {
  const known = new Map(keys.map((key) => [`${key.name} ${key.id}`, key])), out = new Map();
  for (const line of note.lines) {
    const key = known.get(`${line.name} ${line.id}`);
    if (!key) continue;
    const time = await signedNote(note.text, line.signature, key);
    if (time === false) throw new BadProof(`the signature of ${key.name}+${key.id} does not hold`, { code: "MDM-0901", why: "a known key must verify, or nothing does" });
    if (!out.has(key.hexed)) out.set(key.hexed, { key, time });
  }
  return [...out.values()];
}

// The time of a cosignature, null for a log's signature, false when it does not hold.
async function signedNote(text, signature, key) {
  if (key.kind !== COSIGNER && key.kind !== COSIGNER_PQ) return (await verifies(key, utf8(text), signature)) ? null : false;
  if (signature.length < 8) return false;
  const time = new DataView(signature.buffer, signature.byteOffset).getBigUint64(0);
  if (time <= 0n || time >= 2n ** 63n) return false;
  return (await verifies(key, cosigned(key, text, time), signature.subarray(8))) ? time : false;
}

// Ed25519 signs the text behind two lines, and no name; ML-DSA-44 a structure with the cosigner's name in it.
function cosigned(key, text, time) {
  if (key.kind === COSIGNER) return utf8(`cosignature/v1\ntime ${time}\n${text}`);
  const { origin, size, root } = parseCheckpoint(text);
  return joined("subtree/v1\n\0", new Uint8Array([key.name.length]), key.name, eightBytes(time), new Uint8Array([origin.length]), origin, eightBytes(0n), eightBytes(BigInt(size)), root);
}

function eightBytes(number) {
  const out = new Uint8Array(8);
  new DataView(out.buffer).setBigUint64(0, number);
  return out;
}

// {checkpoint, log, signed, cosigners, met}: of the log `origin`, signed by one of its keys in the trust file.
async function checkNote(raw, trust, origin, now) {
  const note = parseNote(raw), checkpoint = parseCheckpoint(note.text);
  if (checkpoint.origin !== origin) throw new BadProof("the checkpoint is of another log", { code: "MDM-0902", expected: origin, found: checkpoint.origin });
  const logs = trust.logKeys(origin), signers = await signersOf(note, [...logs, ...trust.witnesses.values()]);
  const signed = signers.filter(({ key, time }) => time === null && logs.includes(key)).map(({ key }) => key), [log] = signed;
  if (!log) throw new BadProof("no trusted key of the log signed the checkpoint", { code: "MDM-0902", expected: logs.map((key) => `${key.name}+${key.id}`).join(", ") });
  const cosigners = signers.filter(({ time }) => time !== null);
  for (const { key, time } of cosigners) {
    if (now !== null && time > BigInt(now + SKEW_S)) throw new BadProof(`the cosignature of ${key.name} is from the future`, { code: "MDM-0903", expected: `at most ${now + SKEW_S}`, found: `${time}` });
  }
  return { checkpoint, log, signed, cosigners, met: quorumMet(trust, new Set(cosigners.map(({ key }) => key.hexed))) };
}

// Are these public keys the quorum of the trust file? Without a quorum line, or with `none`, nobody is asked for.
function quorumMet(trust, have) {
  const of = (name) => {
    if (trust.witnesses.has(name)) return have.has(trust.witnesses.get(name).hexed);
    const group = trust.groups.get(name);
    return group.members.filter(of).length >= group.k;
  };
  return !demandsQuorum(trust) || of(trust.quorum);
}

function demandsQuorum(trust) {
  return trust.quorum !== null && trust.quorum !== "none";
}
