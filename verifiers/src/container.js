// The container: one canonical JSONL file, cut into its sections, and the statement that was signed (docs/concepts/bundle-format.md).
//
// The rule a newcomer would break: every limit is checked before anything is parsed, and nothing of the file is believed yet.

const FORMAT = "mandamus/1";
const PAYLOAD_TYPE = "application/vnd.in-toto+json";
const STATEMENT_TYPE = "https://in-toto.io/Statement/v1";
const PREDICATE_TYPE = "urn:mandamus:run-bundle:1";
const SECTIONS = ["dsse", "manifest", "policy", "record", "log", "account", "payload", "proof", "key", "tsr"];
const BUNDLE_BYTES_MAX = 2 ** 30;
const LINES_MAX = 4_000_000;
const HEADER_BYTES_MAX = 1024;
const NO_HEADER = "the first line is no bundle header: the file is no bundle (mandamus bundle RUN writes one), or its beginning was changed";

function noBox(what, line, expected = "", found = "") {
  return new Broken(what, { code: "MDM-0645", line, expected, found });
}

// {header, sections: name -> lines (bytes), first: name -> number of its first line, spans: name -> its bytes, lines}.
function readContainer(raw) {
  if (raw.length > BUNDLE_BYTES_MAX) throw noBox(`the file has ${raw.length} bytes`);
  const end = raw.subarray(0, HEADER_BYTES_MAX).indexOf(10);
  if (end < 0) throw noBox(NO_HEADER, 1);
  const counts = countsOf(raw.subarray(0, end));
  const total = 1 + counts.reduce((sum, [, count]) => sum + count, 0);
  const ends = lineEnds(raw);
  for (let i = 0; i < ends.length; i++) {
    const length = ends[i] - (i ? ends[i - 1] + 1 : 0);
    if (length > LINE_BYTES_MAX) throw noBox(`a line of ${length} bytes`, i + 1, `at most ${LINE_BYTES_MAX}`);
  }
  const all = new Lines(raw, ends, 0, ends.length);
  if (ends.length !== total) throw firstBad(all, total);
  const box = { header: all.at(0), sections: {}, first: {}, spans: {}, lines: ends.length };
  let at = 1;
  for (const [name, count] of counts) {
    const lines = new Lines(raw, ends, at, count);
    box.first[name] = at + 1;
    box.sections[name] = LONG.includes(name) ? lines : Array.from({ length: count }, (_, i) => lines.at(i));
    box.spans[name] = raw.subarray(ends[at - 1] + 1, ends[at + count - 1] + 1);
    at += count;
  }
  return box;
}

// Some lines of the file, by their number among them: `at(i)` the bytes, `text(i)` the text, null when it is no UTF-8. Texts are made many
// at a time: to decode each by itself costs more than to parse it.
const LONG = ["record", "log", "payload"];
const PIECE_BYTES = 1 << 18;

class Lines {
  texts = [];
  from = 0; // the number of texts[0]

  constructor(raw, ends, first, length) {
    Object.assign(this, { raw, ends, first, length });
  }

  start(i) {
    const number = this.first + i;
    return number ? this.ends[number - 1] + 1 : 0;
  }

  at(i) {
    const index = i < 0 ? this.length + i : i;
    return this.raw.subarray(this.start(index), this.ends[this.first + index]);
  }

  text(i) {
    if (i < this.from || i >= this.from + this.texts.length) this.decode(i);
    return this.texts[i - this.from];
  }

  decode(i) {
    let last = i;
    while (last + 1 < this.length && this.ends[this.first + last + 1] - this.start(i) < PIECE_BYTES) last++;
    const whole = textOf(this.raw.subarray(this.start(i), this.ends[this.first + last]));
    this.from = i;
    this.texts = whole === null ? [textOf(this.at(i))] : whole.split("\n");
  }
}

function lineEnds(raw) {
  const ends = [];
  for (let at = raw.indexOf(10); at >= 0; at = raw.indexOf(10, at + 1)) {
    ends.push(at);
    if (ends.length > LINES_MAX) throw noBox("the file has too many lines", null, `at most ${LINES_MAX}`);
  }
  if (raw[raw.length - 1] !== 10) throw noBox("the last line has no end: the file is cut off or something stands behind it", ends.length + 1);
  return ends;
}

function countsOf(line) {
  let value;
  try {
    value = accept(line);
  } catch {
    throw noBox(NO_HEADER, 1);
  }
  const why = headerFault(value);
  if (why) throw noBox(`the first line is no bundle header: ${why}`, 1);
  return value.sections;
}

function headerFault(value) {
  if (!hasFields(value, ["bundle", "run", "sections"]) || value.bundle !== FORMAT) return `this is not the header of a ${FORMAT} file; mandamus bundle RUN writes one`;
  const { sections } = value;
  if (!Array.isArray(sections) || !sections.every((pair) => Array.isArray(pair) && pair.length === 2)) return "its sections are no pairs";
  if (sections.length !== SECTIONS.length || sections.some(([name, n], i) => name !== SECTIONS[i] || !Number.isInteger(n) || n < 0 || n > LINES_MAX)) {
    return `its sections are not ${SECTIONS.join(", ")}`;
  }
  const counts = Object.fromEntries(sections);
  return counts.dsse !== 1 || counts.manifest !== 1 || counts.record < 1 ? "dsse and manifest have one line, record at least one" : "";
}

// The number of lines is wrong: a broken line explains it, if there is one; else lines were added or taken away.
function firstBad(lines, total) {
  for (let i = 0; i < lines.length; i++) {
    try {
      acceptText(lines.text(i));
    } catch {
      return noBox("this line is not canonical JSON", i + 1);
    }
  }
  return noBox("the file has another number of lines than its header says", Math.min(lines.length, total) + 1, `${total}`, `${lines.length}`);
}

// -- what is signed ------------------------------------------------------------------------------------------------------------
// The predicate, from *verified* bytes.
function readStatement(raw) {
  let value;
  try {
    value = accept(raw);
  } catch (error) {
    throw badStatement(`is of another form: ${error.message}`);
  }
  const said = value?.predicate;
  if (!isPredicate(said)) throw badStatement("is of another form");
  const whole = { _type: STATEMENT_TYPE, predicate: said, predicateType: PREDICATE_TYPE, subject: [{ digest: { sha256: said.head }, name: `run/${said.run}` }] };
  const names = said.sections.map(({ name }) => name), countOf = (wanted) => said.sections.find(({ name }) => name === wanted).count;
  const sound = canon(whole) === textOf(raw) && names.join() === SECTIONS.slice(1).join();
  if (!sound || countOf("record") !== said.count || countOf("log") !== said.log.count) throw badStatement("contradicts itself");
  return said;
}

function badStatement(why) {
  return new Broken(`the signed statement ${why}`, { code: "MDM-0647", line: 2 });
}

function isPredicate(said) {
  const text = (v) => typeof v === "string", whole = Number.isInteger;
  return (
    hasFields(said, ["count", "head", "log", "manifest", "origin", "policies", "run", "sections", "state"]) &&
    whole(said.count) && [said.head, said.manifest, said.origin, said.run, said.state].every(text) &&
    hasFields(said.log, ["count", "head"]) && whole(said.log.count) && text(said.log.head) &&
    Array.isArray(said.policies) && said.policies.every(text) && Array.isArray(said.sections) &&
    said.sections.every((s) => hasFields(s, ["count", "digest", "name"]) && whole(s.count) && text(s.digest) && text(s.name))
  );
}

// Line 1, as it must be for this predicate.
function headerOf(said) {
  const counts = { dsse: 1 };
  for (const section of said.sections) counts[section.name] = section.count;
  return canon({ bundle: FORMAT, run: said.run, sections: SECTIONS.map((name) => [name, counts[name] ?? 0]) });
}

// The value of a line with exactly these fields.
function objectOf(raw, fields, number) {
  let value;
  try {
    value = accept(raw);
  } catch (error) {
    throw new Broken(`this line is not canonical JSON: ${error.message}`, { code: "MDM-0646", line: number });
  }
  if (!hasFields(value, fields)) throw new Broken("this line has other fields than its section", { code: "MDM-0646", line: number, expected: fields.join(", ") });
  return value;
}
