// What is said: one verdict first, then each claim with one of four outcomes, then the first thing that is broken.
//
// The rule a newcomer would break: a claim says only what was checked. Nothing is "ok"; grey is not green.

const PROVEN = "proven", BROKEN = "broken", CANNOT = "cannot check now", ABSENT = "not in this bundle";
const ORDER = [2, 1, 5, 4, 3]; // where several apply, the first of these
const MEANS = {
  0: "complete and valid",
  1: "broken",
  2: "nothing to verify, or no trust root",
  3: "valid, but a part is not shown",
  4: "valid so far, the run is not finished",
  5: "cannot tell yet",
};

// A check that stops at its first finding.
class Broken extends Error {
  constructor(what, more = {}) {
    super(what);
    this.finding = finding(what, more);
  }
}

// A check that this browser, or this version, cannot do.
class Cannot extends Error {}

// A mistake of whoever asks: a trust file that cannot be read.
class Misuse extends Error {
  constructor(what, more = {}) {
    super(what);
    this.finding = finding(what, { code: "MDM-0181", ...more });
  }
}

function finding(what, more = {}) {
  const out = { what, code: "MDM-0640" };
  for (const name of ["code", "chain", "event", "line", "type", "expected", "found", "why", "fix"]) {
    const value = more[name];
    if (value !== undefined && value !== null && value !== "") out[name] = value;
  }
  out.where = whereOf(out);
  return out;
}

function whereOf(f) {
  const parts = [];
  if (f.event !== undefined) parts.push(`event ${f.event} ${f.type ?? ""}`.trim());
  if (f.line !== undefined) parts.push(`line ${f.line}`);
  const text = parts.join(", ");
  return f.chain === "log" ? `chain log, ${text}` : text;
}

function claim(name, outcome, says, code = 0) {
  return { name, outcome, says, exit_code: code };
}

function exitCode(codes) {
  return ORDER.find((code) => codes.has(code)) ?? 0;
}

function verdictOf(code) {
  return code === 0 ? "PROVEN" : code === 1 || code === 2 ? "NOT PROVEN" : "NOT FULLY CHECKED";
}

// `1 vote`, `2 votes`.
function some(count, one, many = `${one}s`) {
  return `${count} ${count === 1 ? one : many}`;
}

// As `mandamus verify --json` prints it: what is empty is absent.
function asJson(report) {
  const out = {};
  for (const [name, value] of Object.entries(report)) if (value !== "" && value !== null && value !== undefined) out[name] = value;
  return out;
}
