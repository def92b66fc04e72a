// Payload lines: what a record committed to, shown whole, member by member, as a file beside the bundle, or not at all.
//
// The rule a newcomer would break: a value is used only after its commitment was recomputed, and a line stands for exactly one body part of
// one record: none may be missing, doubled or added.

const FIELDS_MEDIA = "application/vnd.mandamus.fields+json";
const FIELDS_MAX = 32;
const CIPHER_MIN = 12 + 32 + 1 + 16; // nonce, S, one byte of JSON, tag
const SHOWS = {
  whole: ["commit", "part", "run", "secret", "seq", "show", "value"],
  fields: ["commit", "fields", "hidden", "part", "run", "seq", "show"],
  blob: ["commit", "name", "part", "run", "seq", "show"],
  cipher: ["cipher", "commit", "part", "run", "seq", "show"],
  withheld: ["commit", "part", "run", "seq", "show"],
  erased: ["commit", "part", "run", "seq", "show"],
};
const TEXTS = ["commit", "part", "run", "show", "secret", "name", "cipher"];

function noLine(why, number) {
  return new Broken(`this is no payload line: ${why}`, { code: "MDM-0646", line: number });
}

// {number, run, seq, part, show, commit, secret?, value?, canonical?, name?, fields?, hidden?}
function readShown(text, number) {
  let line, canonical = null;
  try {
    line = text === null ? null : JSON.parse(text);
    if (!isObject(line)) throw new NotCanonical("not an object");
    if (Object.hasOwn(line, "value")) {
      // `value` sorts last, so the line is its other fields, and then the value as it was committed to.
      const { value, ...rest } = line;
      canonical = canon(value);
      if (`${canon(rest).slice(0, -1)},"value":${canonical}}` !== text) throw new NotCanonical("not canonical");
    } else if (canon(line) !== text) throw new NotCanonical("not canonical");
  } catch (error) {
    throw noLine(error instanceof NotCanonical ? error.message : "not JSON", number);
  }
  if (typeof line.show !== "string" || !Object.hasOwn(SHOWS, line.show) || !hasFields(line, SHOWS[line.show])) throw noLine("its fields are not those of a payload line", number);
  if (!Number.isInteger(line.seq) || TEXTS.some((name) => name in line && typeof line[name] !== "string")) throw noLine("a field has another type", number);
  const out = { number, run: line.run, seq: line.seq, part: line.part, show: line.show, commit: line.commit };
  if (line.show === "whole") Object.assign(out, { secret: decoded(line.secret, number), value: line.value, canonical });
  if (line.show === "blob") out.name = line.name;
  if (line.show === "cipher" && decoded(line.cipher, number).length < CIPHER_MIN) throw noLine("its cipher is too short", number);
  if (line.show === "fields") Object.assign(out, readFields(line, number));
  return out;
}

function decoded(text, number) {
  const bytes = unb64(text);
  if (bytes === null) throw noLine("not standard base64", number);
  return bytes;
}

function readFields({ fields, hidden }, number) {
  const isDigest = (text) => typeof text === "string" && /^[0-9a-f]{64}$/.test(text);
  if (!Array.isArray(fields) || !Array.isArray(hidden)) throw noLine("a field has another type", number);
  if (!hidden.length || !hidden.every(isDigest) || hidden.some((text, i) => i && !(hidden[i - 1] < text))) throw noLine("its hidden digests are not at least one, in rising order", number);
  if (fields.length + hidden.length > FIELDS_MAX) throw noLine(`more than ${FIELDS_MAX} fields`, number);
  let before = -1;
  const names = new Set();
  const digests = fields.map((item) => {
    if (!Array.isArray(item) || item.length !== 4) throw noLine("a field is not [number, salt, name, value]", number);
    const [index, salt, name, value] = item, bytes = unb64(salt);
    if (!Number.isInteger(index) || index <= before || typeof name !== "string" || names.has(name) || bytes?.length !== 16) throw noLine("its fields are not numbered, salted and named each once", number);
    if (index >= fields.length + hidden.length) throw noLine("a field has a number that none can have", number);
    before = index;
    names.add(name);
    return digest("field", bytes, canon([name, value]));
  });
  return { fields, hidden, found: commitOfFields([...digests, ...hidden]) };
}

// -- commitments ---------------------------------------------------------------------------------------------------------------
function saltOf(secret, index) {
  const last = new Uint8Array([index >>> 24, (index >>> 16) & 255, (index >>> 8) & 255, index & 255]);
  return sha256("mandamus/v1/salt\0", secret, last).subarray(0, 16);
}

function commitWhole(secret, text) {
  return digest("payload", saltOf(secret, 0xffffffff), text);
}

function commitOfFields(digests) {
  return digest("fields", ...digests.sort().map(unhex));
}

function commitByFields(secret, value) {
  if (!isObject(value)) return "no object";
  const names = Object.keys(value).sort();
  if (names.length < 1 || names.length > FIELDS_MAX) return `${names.length} fields`;
  return commitOfFields(names.map((name, i) => digest("field", saltOf(secret, i), canon([name, value[name]]))));
}

function commitOf(part, secret, value, text) {
  if (secret.length !== 32) return "a salt of another length";
  return part.media === FIELDS_MEDIA ? commitByFields(secret, value) : commitWhole(secret, text);
}

function cardDigest(secret, card) {
  const { votes, ...rest } = card;
  return digest("card", saltOf(secret, 0xfffffffe), canon(rest));
}

// -- lines and parts -----------------------------------------------------------------------------------------------------------
function keyOf(run, seq, part) {
  return `${run}\n${seq}\n${part}`;
}

// Each line belongs to the body part whose turn it is, and is what that part committed to. key -> line.
async function matchShown(raws, first, records, files, pause) {
  const index = new Map();
  let at = 0;
  for (const record of records) {
    for (const part of record.body ?? []) {
      if (at < raws.length) {
        if ((at & 2047) === 2047) await pause(at, raws.length);
        const line = readShown(raws.text(at), first + at);
        matchOne(line, part, record, files);
        index.set(keyOf(line.run, line.seq, line.part), line);
      }
      at++;
    }
  }
  for (let rest = at; rest < raws.length; rest++) readShown(raws.text(rest), first + rest);
  if (at !== raws.length) throw new Broken("payload lines and body parts do not match", { code: "MDM-0646", expected: `${at} lines`, found: `${raws.length}` });
  return index;
}

function matchOne(line, part, record, files) {
  const where = { chain: chainName(record.run), event: record.seq, type: record.type, line: line.number, expected: part.commit };
  if (line.run !== record.run || line.seq !== record.seq || line.part !== part.part || line.commit !== part.commit) {
    throw new Broken(`this line is not payload '${part.part}' of its record`, { ...where, code: "MDM-0646", found: line.commit.slice(0, 80) });
  }
  if (line.show === "blob") openBlob(line, part, files, where);
  let found = part.commit;
  if (line.show === "whole") found = commitOf(part, line.secret, line.value, line.canonical);
  if (line.show === "fields") found = part.media === FIELDS_MEDIA ? line.found : "fields of a payload that has none";
  if (found !== part.commit) throw new Broken(`payload '${part.part}' is not the one its record commits to`, { ...where, code: "MDM-0610", found });
}

// A file beside the bundle, named by its SHA-256, holds S and then the canonical value. Where it was given the payload is shown.
function openBlob(line, part, files, where) {
  if (!/^[0-9a-f]{64}$/.test(line.name)) throw noLine("a blob is named by a SHA-256", line.number);
  const raw = files.get(line.name);
  if (!raw) return;
  const name = sha256hex(raw);
  if (name !== line.name) throw new Broken(`the blob of payload '${part.part}' has another SHA-256 than its name`, { ...where, code: "MDM-0610", expected: line.name, found: name });
  const text = textOf(raw.subarray(32));
  try {
    line.value = acceptText(text);
  } catch {
    throw new Broken(`the blob of payload '${part.part}' is not canonical`, { ...where, code: "MDM-0610" });
  }
  Object.assign(line, { show: "whole", blob: true, secret: raw.subarray(0, 32), canonical: text });
}

// -- what was forgotten ----------------------------------------------------------------------------------------------------------
// How many payloads were erased. Throws Broken for one that is gone without a record, or there although a record says it is gone.
function checkErased(lines, log, run) {
  const gone = new Map(), kept = new Map(), held = new Set();
  for (const record of log) {
    const { type, fact } = record;
    if (type === "HoldPlaced" && fact.run === run) held.add(fact.hold);
    else if (type === "HoldLifted") held.delete(fact.hold);
    else if (type === "Erased") {
      for (const commit of fact.commits) {
        gone.set(commit, record);
        if (held.size) kept.set(commit, record);
      }
    }
  }
  for (const line of lines) {
    const where = { code: "MDM-0662", chain: chainName(line.run), event: line.seq, line: line.number };
    if (line.show === "erased" && !gone.has(line.commit)) throw new Broken(`payload '${line.part}' is missing, and no record says that it was erased`, where);
    if ((line.show === "whole" || line.show === "fields") && gone.has(line.commit)) {
      throw new Broken(`payload '${line.part}' is shown, although log event ${gone.get(line.commit).seq} says that it was erased`, where);
    }
    if (line.run === run && kept.has(line.commit)) {
      throw new Broken(`payload '${line.part}' of event ${line.seq} was erased while the run was under a legal hold`, { ...where, code: "MDM-0672", chain: LOG, event: kept.get(line.commit).seq, type: "Erased" });
    }
  }
  return lines.filter((line) => line.show === "erased").length;
}
