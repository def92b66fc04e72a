// Records: canonical bytes of a closed type, and the chain that they make (docs/concepts/record-format.md).
//
// The rule a newcomer would break: a broken link says nothing about what stands before it. So a chain is read backwards from the *signed*
// head: the first record whose hash is not the one demanded is named, everything behind it is attested, and no more is claimed.

/* global TABLE */
const LOG = "log";
const RECORD_BYTES_MAX = 65535;
const TAIL = '","v":1}';
const NEWER = "MDM-0602";
const NEWEST = "again with the newest mandamus; if this is the newest, somebody changed the record: keep the file as evidence";
const EMPTY_ROOT = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

// -- the closed table, as functions --------------------------------------------------------------------------------------------
// A checker answers whether a value is of its kind. Fields stand in sorted order and are met in that order: one pass sees an unknown
// field, a missing one and a wrong type.
const PARTS = new Map();

function checkerOf(kind) {
  if (kind === "text") return (v) => typeof v === "string";
  if (kind === "flag") return (v) => typeof v === "boolean";
  const [name, ...more] = kind;
  if (name === "whole") return (v) => Number.isSafeInteger(v) && v >= more[0] && v <= more[1];
  if (name === "one of") return (v) => more.includes(v);
  if (name === "part") return (v) => partChecker(more[0])(v);
  const item = checkerOf(more[0]);
  return (v) => Array.isArray(v) && v.every(item);
}

function partChecker(name) {
  if (!PARTS.has(name)) PARTS.set(name, fieldsChecker(TABLE.parts[name]));
  return PARTS.get(name);
}

function fieldsChecker(fields, fact = null) {
  const names = fields.map(([name]) => name), optional = fields.map(([, may]) => may);
  const checks = fields.map(([, , kind]) => (kind === "fact" ? fact : checkerOf(kind)));
  return (value) => {
    if (typeof value !== "object" || value === null || Array.isArray(value)) return false;
    let at = 0;
    for (const key in value) {
      while (at < names.length && names[at] !== key && optional[at]) at++;
      if (at === names.length || names[at] !== key || !checks[at](value[key])) return false;
      at++;
    }
    while (at < names.length && optional[at]) at++;
    return at === names.length;
  };
}

const READERS = new Map(); // type -> checker of a whole record

function readerOf(type) {
  if (!READERS.has(type)) READERS.set(type, fieldsChecker(TABLE.envelope, fieldsChecker(TABLE.facts[type])));
  return READERS.get(type);
}

// The record in a text of so many bytes, or the fault {what, code}. `type` and `v` close every canonical record.
function readRecord(text, bytes) {
  if (bytes > RECORD_BYTES_MAX) return { fault: { what: `a record of ${bytes} bytes is too large`, code: "MDM-0601" } };
  if (text === null || !text.endsWith(TAIL)) return { fault: badTail(text) };
  const start = text.lastIndexOf('"type":"');
  if (start < 0) return { fault: badTail(text) };
  const type = text.slice(start + 8, -TAIL.length);
  if (!Object.hasOwn(TABLE.facts, type)) {
    return { fault: { what: `record type '${type.slice(0, 40)}' is not known`, code: NEWER, why: "a newer mandamus wrote it, or somebody changed the record", fix: NEWEST } };
  }
  let record;
  try {
    record = JSON.parse(text);
  } catch {
    return { fault: { what: "record does not parse: it is no JSON", code: "MDM-0601" } };
  }
  if (!readerOf(type)(record)) return { fault: { what: `record does not parse: its fields are not those of ${type}`, code: "MDM-0601" } };
  if (text.length !== bytes || record.type !== type || !exactly(record, text)) {
    return { fault: { what: "record is not in canonical form", code: "MDM-0601", why: "two readers could read it differently" } };
  }
  return { record };
}

// Fields stand in order already, so what JSON.stringify writes is the canonical form.
function exactly(record, text) {
  if (JSON.stringify(record) !== text) return false;
  if (!text.includes("\\ud")) return true;
  try {
    wellFormed(record);
    return true;
  } catch {
    return false;
  }
}

function badTail(text) {
  const match = text === null ? null : /,"v":([1-9][0-9]*)\}$/.exec(text);
  if (match && BigInt(match[1]) > 1n && text.lastIndexOf(',"v":') === match.index) {
    return { what: "record has a version newer than this verifier", code: NEWER, fix: NEWEST };
  }
  return { what: "record does not end in its type and version", code: "MDM-0601" };
}

// The type that a record claims, for naming a damaged one. Never believed.
function claimedType(raw) {
  const match = /"type":"([A-Za-z]{1,40})","v":/.exec(latin1(raw.subarray(Math.max(0, raw.length - 80))));
  return match ? match[1] : "";
}

function latin1(bytes) {
  return String.fromCharCode(...bytes);
}

// -- one chain -----------------------------------------------------------------------------------------------------------------
class Walk {
  records = [];
  count = 0;
  head = "";
  run = "";
  fault = null;

  constructor(run, count) {
    this.run = run;
    this.life = new Life(count);
  }
}

// Forward: every record strict, of this run, in its place, linked, and legal where it stands. `pause` is awaited now and then.
async function walkChain(raws, run, pause) {
  const out = new Walk(run, raws.length);
  let prev = null, epoch = -1, previous = null;
  const rules = run === LOG ? LOG_RULES : RUN_RULES;
  for (let index = 0; index < raws.length; index++) {
    if ((index & 2047) === 2047) await pause(index, raws.length);
    const raw = raws.at(index), { record, fault } = readRecord(raws.text(index), raw.length);
    if (fault) {
      out.fault = finding(fault.what, { ...fault, chain: chainName(run), event: index, type: claimedType(raw) });
      break;
    }
    if (previous === null) [prev, epoch] = [genesisOf(record), record.epoch];
    if (record.seq !== index || record.prev !== prev || record.run !== run || (record.epoch !== epoch && record.type !== "RunOwned")) {
      out.fault = misplaced(record, index, run, prev, epoch);
      break;
    }
    epoch = record.epoch;
    const rule = rules[record.type], what = rule ? rule(out.life, record, previous) : "";
    if (what) {
      out.fault = finding(what, { code: "MDM-0643", chain: chainName(run), event: index, type: record.type });
      break;
    }
    prev = eventHash(raw);
    previous = record;
    out.records.push(record);
  }
  out.count = out.records.length;
  out.head = out.count ? prev : "";
  return out;
}

// What `prev` of the first record must be. Only an opening has one; nothing equals null.
function genesisOf(record) {
  const { fact, type } = record;
  if (type !== (record.run === LOG ? "LogOpened" : "RunOpened")) return null;
  const anchor = type === "LogOpened" ? { root: EMPTY_ROOT, size: 0 } : { root: fact.anchor.root, size: fact.anchor.size };
  const manifest = type === "LogOpened" ? "" : fact.manifest;
  return digest("genesis", canon({ anchor, manifest, nonce: fact.nonce, origin: fact.origin, run: record.run }));
}

function chainName(run) {
  return run === LOG ? LOG : "run";
}

function misplaced(record, index, run, prev, epoch) {
  const made = (what, expected, found, code = "MDM-0641") => finding(what, { code, chain: chainName(run), event: index, type: record.type, expected, found });
  if (record.seq !== index) return made("its number is not the next one", `seq ${index}`, `seq ${record.seq}`);
  if (record.run !== run) return made("it belongs to another run", run, record.run);
  if (record.prev !== prev && index === 0) return made("the chain does not begin with its genesis", prev ?? "RunOpened, on chain log LogOpened", record.prev);
  if (record.prev !== prev) return made(`it does not name event ${index - 1} as the one before it`, prev, record.prev);
  return made("the epoch changed without RunOwned", `epoch ${epoch}`, `epoch ${record.epoch}`, "MDM-0643");
}

// From the signed head: the first record whose hash is not the one demanded, or null when all bytes are attested.
function backward(raws, head, chain) {
  let demanded = head, by = "the signed head";
  for (let index = raws.length - 1; index >= 0; index--) {
    const raw = raws.at(index), found = eventHash(raw);
    if (found !== demanded) {
      return finding(`hash is not the one ${by} names`, { code: "MDM-0642", chain, event: index, type: claimedType(raw), expected: demanded, found });
    }
    demanded = linkOf(raw);
    by = `event ${index}`;
  }
  return null;
}

// The link of a record whose bytes are attested but cannot be decoded here. `prev` stands behind `fact`, so the last one is meant.
function linkOf(raw) {
  let text = "";
  for (let at = 0; at < raw.length; at += 8192) text += latin1(raw.subarray(at, at + 8192));
  const at = text.lastIndexOf(',"prev":"');
  return at < 0 ? "" : text.slice(at + 9, at + 73);
}

// What a backward walk may claim, in words.
function attestedBy(fault, count) {
  if (fault.event === undefined) return "";
  const behind = fault.event + 1 < count ? `events ${fault.event + 1} to ${count - 1} are proven` : "no event is proven";
  return behind + (fault.event ? `, 0 to ${fault.event - 1} are not attested` : "");
}

// sealed, open (may go on) or interrupted (stopped between an intent and its outcome).
function stateOf(walk) {
  if (walk.fault || !walk.count) return "unknown";
  return walk.life.sealed ? "sealed" : walk.life.inFlight ? "interrupted" : "open";
}
