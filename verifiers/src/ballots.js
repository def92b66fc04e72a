// What people sign: ballots, stops, messages, and what administrators sign to widen authority (docs/concepts/ballot-format.md).
//
// The rule a newcomer would break: who voted is said by the trust file, from the key that signed, never by the ballot. Each function answers
// with what was said, or with a word: "malformed", "forged", "not_an_approver".

const BALLOT_TYPE = "application/vnd.mandamus.ballot+json";
const STOP_TYPE = "application/vnd.mandamus.stop+json";
const SAY_TYPE = "application/vnd.mandamus.message+json";
const AUTHORITY_TYPE = "application/vnd.mandamus.authority+json";
const ADMINISTRATOR = "p-administrator"; // who a log's administrator is called in records
const BALLOT_BYTES_MAX = 16 * 1024;
const DECISIONS = ["approve", "reject", "modify", "halt", "done", "again", "abandon"];

// A value of closed form: every field is there, or optional and absent; none is filled in that was not signed. Null when it is not.
function closed(raw, required, optional = {}) {
  let value;
  try {
    value = accept(raw);
  } catch {
    return null;
  }
  return isClosed(value, required, optional) ? value : null;
}

function isClosed(value, required, optional = {}) {
  if (!isObject(value)) return false;
  const names = Object.keys(value);
  if (names.some((name) => !Object.hasOwn(required, name) && !Object.hasOwn(optional, name))) return false;
  return (
    Object.keys(required).every((name) => Object.hasOwn(value, name) && required[name](value[name])) &&
    Object.keys(optional).every((name) => !Object.hasOwn(value, name) || optional[name](value[name]))
  );
}

// A DSSE payload is stored as the object it is, or as its text.
function envelopeOf(value) {
  return utf8(typeof value === "string" ? value : canon(value));
}

// {principal, payload, key}: one signature, by an approver's key.
async function signedByApprover(envelope, type, trust) {
  let parts;
  try {
    parts = readEnvelope(envelope);
  } catch (error) {
    if (error instanceof NoEnvelope) return "malformed";
    throw error;
  }
  if (parts.type !== type || parts.signatures.length !== 1) return "malformed";
  const keys = [...trust.approvers.values()].map(([, key]) => key).filter((key) => key.id === parts.signatures[0].keyid);
  if (!keys.length) return "not_an_approver";
  const done = await attempt(() => checkEnvelope(envelope, type, keys, { ssh: true }));
  return done ? { principal: trust.approvers.get(done.keys[0].hexed)[0], payload: done.payload, key: done.keys[0] } : "forged";
}

// Null where an envelope does not hold.
async function attempt(check) {
  try {
    return await check();
  } catch (error) {
    if (error instanceof NoEnvelope) return null;
    throw error;
  }
}

// -- ballots --------------------------------------------------------------------------------------------------------------------
const STANDING = { chain: isText, count: isWhole, pattern: isObject, until: isWhole, window: among("day", "run", "until") };

function isMoneyStruct(value) {
  return isClosed(value, { amount: isText, currency: isText, decimals: isWhole }) && moneyOf(value) !== null;
}

function isScope(scope) {
  return scope === "once" || isClosed(scope, { standing: (v) => isClosed(v, STANDING, { amount: isMoneyStruct, salt: isText }) });
}

function decodeBallot(raw) {
  if (raw.length > BALLOT_BYTES_MAX) return null;
  const ballot = closed(
    raw,
    { decision: among(...DECISIONS), domain: among("mandamus/approval/v1"), expires: isWhole, origin: isText, policy: isText, run: isText, scope: isScope },
    { action: isText, args: isText, card: isText, request: isText },
  );
  return ballot && consistent(ballot) ? ballot : null;
}

function consistent(ballot) {
  const { standing } = ballot.scope === "once" ? {} : ballot.scope;
  if (!standing) {
    if (ballot.action === undefined || ballot.request === undefined || ballot.card === undefined || ballot.run === LOG) return false;
  } else {
    if (ballot.run !== LOG || ballot.action !== undefined || ballot.request !== undefined || ballot.decision !== "approve") return false;
    const { args } = standing.pattern, some = isObject(args) || Array.isArray(args) ? Object.keys(args).length > 0 : Boolean(args);
    if (some && standing.salt === undefined) return false;
    if (standing.salt !== undefined && !/^[0-9a-f]{64}$/.test(standing.salt)) return false;
    if (standing.count < 1 || standing.until < 0) return false;
  }
  return (ballot.args !== undefined) === (ballot.decision === "modify") && ballot.expires >= 0;
}

function ballotDigest(ballot) {
  return digest("ballot", canon(ballot));
}

// {principal, ballot, key}
async function examineBallot(envelope, trust) {
  const found = await signedByApprover(envelope, BALLOT_TYPE, trust);
  if (typeof found === "string") return found;
  const ballot = decodeBallot(found.payload);
  return ballot ? { principal: found.principal, ballot, key: found.key } : "malformed";
}

// An allowance widens authority: one approver and `quorum` administrators have signed the same envelope.
async function examineStanding(envelope, trust, admins, quorum) {
  let done;
  try {
    done = await checkEnvelope(envelope, BALLOT_TYPE, [...[...trust.approvers.values()].map(([, key]) => key), ...admins], { ssh: true });
  } catch (error) {
    if (!(error instanceof NoEnvelope)) throw error;
    return error.code === "MDM-0620" ? "malformed" : "forged";
  }
  const ballot = decodeBallot(done.payload);
  if (!ballot) return "malformed";
  const voters = done.keys.filter((key) => trust.approvers.has(key.hexed)), ruling = done.keys.filter((key) => admins.some((admin) => admin.hexed === key.hexed));
  if (ballot.scope === "once" || voters.length !== 1 || ruling.length < Math.max(1, quorum)) return "not_an_approver";
  return { principal: trust.approvers.get(voters[0].hexed)[0], ballot, key: voters[0] };
}

// -- stops and messages ---------------------------------------------------------------------------------------------------------
function decodeStop(payload) {
  return closed(payload, { domain: among("mandamus/stop/v1"), mode: among("cancel", "halt"), nonce: isText, origin: isText, run: isText }, { agent: isText, tenant: isText });
}

// {principal, said}: approvers may stop a run.
async function examineStop(envelope, trust) {
  const found = await signedByApprover(envelope, STOP_TYPE, trust);
  if (typeof found === "string") return found;
  const said = decodeStop(found.payload);
  return said ? { principal: found.principal, said } : "malformed";
}

// A stop of an agent or a tenant, on chain `log`: an approver signs it, or an administrator of the log.
async function examineLogStop(envelope, trust, admins) {
  let found = await signedByApprover(envelope, STOP_TYPE, trust);
  if (found === "not_an_approver") {
    const done = admins.length ? await attempt(() => checkEnvelope(envelope, STOP_TYPE, admins)) : null;
    if (!done) return "not_an_approver";
    found = { principal: ADMINISTRATOR, payload: done.payload };
  }
  if (typeof found === "string") return found;
  const said = decodeStop(found.payload);
  const sound = said && said.run === LOG && (said.agent === undefined) !== (said.tenant === undefined);
  return sound ? { principal: found.principal, said } : "malformed";
}

// The statement, signed by a front end (for any principal) or by a person (for that principal), and true of this text.
async function examineSay(envelope, secret, text, trust) {
  const speaker = await signedByApprover(envelope, SAY_TYPE, trust);
  let payload = null, only = "";
  if (typeof speaker !== "string") [payload, only] = [speaker.payload, speaker.principal];
  else if (speaker !== "not_an_approver") return speaker;
  else {
    const frontends = trust.frontends.map(([, key]) => key), done = await attempt(() => checkEnvelope(envelope, SAY_TYPE, frontends));
    payload = done?.payload;
    if (!payload?.length) {
      const ids = readEnvelope(envelope).signatures.map(({ keyid }) => keyid);
      return frontends.some((key) => ids.includes(key.id)) ? "forged" : "not_an_approver";
    }
  }
  const said = closed(payload, { commit: isText, domain: among("mandamus/message/v1"), nonce: isText, origin: isText, principal: isText, run: isText });
  if (!said) return "malformed";
  if (secret.length !== 32 || (only && only !== said.principal) || commitWhole(secret, canon(text)) !== said.commit) return "forged";
  return said;
}

// -- who may widen authority ----------------------------------------------------------------------------------------------------
// A key by itself, as a line of text ends with it: by which name the log or the trust file calls it does not matter.
function keyPart(line) {
  const pieces = line.split("+");
  return pieces.length > 2 ? pieces.slice(2).join("+") : pieces.at(-1);
}

// Keys of administrators that the log names, at its opening or by `changes` up to then, *and* that the trust file holds.
function adminsOf(opened, trust, changes) {
  const named = new Set(opened.keys.filter((key) => key.role === "administrator").map((key) => keyPart(key.key)));
  for (const change of changes.filter(({ role }) => role === "administrator")) {
    named.delete(keyPart(change.old ?? ""));
    if (change.new) named.add(keyPart(change.new));
  }
  return trust.admins.filter((key) => named.has(keyPart(key.text)));
}

function raisesAuthority({ type, fact }) {
  return ["StopRequested", "PolicyChanged", "KeyChanged", "VoteWithdrawn", "HoldPlaced", "HoldLifted"].includes(type) || (type === "Voted" && fact.scope === "standing");
}

function widensAuthority({ type, fact }) {
  return type === "KeyChanged" ? fact.new !== undefined : type === "PolicyChanged" || type === "HoldLifted" || (type === "Voted" && fact.scope === "standing");
}

// Chain `log`, read: the n-th record that raises authority made version n.
class Authority {
  version = 0;
  revoked = new Map(); // key -> version
  granted = new Map(); // ballot -> {version, record}
  withdrawn = new Map(); // ballot -> version
  keys = []; // {version, fact} of each change of a key
  widened = []; // {version, record}
  stops = []; // {version, record}

  constructor(records) {
    for (const record of records) if (raisesAuthority(record)) this.add(record);
  }

  add(record) {
    const { type, fact } = record, version = ++this.version, first = (map, name, value) => map.has(name) || map.set(name, value);
    if (widensAuthority(record)) this.widened.push({ version, record });
    if (type === "KeyChanged") this.keys.push({ version, fact });
    if (type === "KeyChanged" && fact.old !== undefined) first(this.revoked, keyPart(fact.old), version);
    else if (type === "StopRequested") this.stops.push({ version, record });
    else if (type === "VoteWithdrawn") first(this.withdrawn, fact.ballot, version);
    else if (type === "Voted") first(this.granted, fact.ballot, { version, record });
  }

  // Records that count only with somebody's signature.
  get signed() {
    return [...this.widened, ...this.stops].map(({ record }) => record);
  }

  // Does this chain say that the key is none any more? What is signed with it over this chain was signed too late.
  retired(key) {
    return this.revoked.has(keyPart(key.text));
  }

  // The changes of keys that stood when `version` was made.
  before(version) {
    return this.keys.filter((change) => change.version < version).map(({ fact }) => fact);
  }

  stopped(agent, tenant, version) {
    return this.stops.find(({ version: since, record: { fact } }) => since <= version && (fact.agent === agent || fact.tenant === tenant))?.record;
  }

  wasRevoked(key, version) {
    return (this.revoked.get(keyPart(key.text)) ?? version + 1) <= version;
  }
}

function carrierOf(record) {
  return record.type === "Voted" ? "ballot" : "statement";
}

// Every widening of the log is signed by its administrators, every stop by somebody who may. Throws Broken.
async function checkAuthority(records, authority, origin, trust, payload) {
  const opened = records[0].fact;
  if (opened.origin !== origin) throw new Broken("chain log belongs to another log", { code: "MDM-0650", chain: LOG, event: 0, type: "LogOpened", expected: origin, found: opened.origin });
  const seen = new Set();
  for (const { version, record } of authority.widened) {
    const keys = adminsOf(opened, trust, authority.before(version));
    const envelope = payload(record, carrierOf(record));
    const why = record.type === "Voted" ? await whyNoAllowance(envelope, record.fact, opened, trust, keys) : await whyNoStatement(envelope, record, opened, keys, seen);
    if (why) throw new Broken(`it widens authority, but ${why}`, { code: "MDM-0651", chain: LOG, event: record.seq, type: record.type });
  }
  for (const { version, record } of authority.stops) {
    const why = await whyNoStop(payload(record, "statement"), record.fact, opened, trust, adminsOf(opened, trust, authority.before(version)));
    if (why) throw new Broken(`it stops runs, but ${why}`, { code: "MDM-0651", chain: LOG, event: record.seq, type: record.type });
  }
}

// A key that takes another's place has signed so too, and so has the other.
async function whyNoStatement(envelope, record, opened, keys, seen) {
  if (!envelope) return "it carries no statement";
  if (!keys.length) return "no administrator that the log names stands in the trust file";
  let done;
  try {
    const { old, new: next } = record.fact, pair = record.type === "KeyChanged" && old !== undefined && next !== undefined ? [parseVKey(old), parseVKey(next)] : [];
    done = await checkEnvelope(envelope, AUTHORITY_TYPE, [...keys, ...pair.filter((key) => !keys.some(({ text }) => text === key.text))]);
    const signers = done.keys.map(({ text }) => text), missing = pair.find(({ text }) => !signers.includes(text));
    if (keys.filter(({ text }) => signers.includes(text)).length < Math.max(1, opened.quorum)) return `fewer than ${opened.quorum} administrators signed it`;
    if (missing) return `${missing.name}+${missing.id} did not sign that one takes the other's place`;
  } catch (error) {
    if (error instanceof NoEnvelope || error instanceof Misuse) return error.message;
    throw error;
  }
  const said = closed(done.payload, { domain: isText, expires: isWhole, fact: isObject, nonce: isText, origin: isText, type: isText });
  if (!said) return "the statement is of another form";
  const { clock, mail, ...fact } = record.fact;
  if (said.domain !== "mandamus/authority/v1" || said.origin !== opened.origin || said.type !== record.type || canon(said.fact) !== canon(fact)) return "the statement is about something else";
  if (seen.has(said.nonce)) return "the statement was used before";
  seen.add(said.nonce);
  return clock && clock.now >= said.expires ? "the statement had expired" : "";
}

async function whyNoAllowance(envelope, fact, opened, trust, keys) {
  if (!envelope) return "it carries no ballot";
  if (!keys.length) return "no administrator that the log names stands in the trust file";
  const found = await examineStanding(envelope, trust, keys, opened.quorum);
  if (typeof found === "string") return `its ballot does not count: ${found.replaceAll("_", " ")}`;
  return found.principal === fact.principal && ballotDigest(found.ballot) === fact.ballot && found.ballot.origin === opened.origin ? "" : "its ballot is another one";
}

async function whyNoStop(envelope, fact, opened, trust, keys) {
  if (!envelope) return "nobody signed it: it carries no statement";
  const found = await examineLogStop(envelope, trust, keys);
  if (typeof found === "string") return `its statement does not count: ${found.replaceAll("_", " ")}`;
  const { principal, said } = found, same = [principal, said.origin, said.mode, said.agent, said.tenant], recorded = [fact.principal, opened.origin, fact.mode, fact.agent, fact.tenant];
  return same.every((value, i) => value === recorded[i]) ? "" : "its statement says something else";
}
