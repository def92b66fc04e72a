// The proof lines of a bundle: that its records are leaves of the log, under checkpoints that the log signed and others saw.
//
// The rule a newcomer would break: a leaf is made of the record that was checked, never of what the proof says, and a proof without a
// checkpoint of the trust file's log proves nothing.

const ANCHORS_MAX = 8;
const LAST_SECOND = 253_402_300_000n; // of the year 9999: behind it nothing is earlier
const INSTANT = /^(19[7-9][0-9]|[2-9][0-9]{3})-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3]):[0-5][0-9]:([0-5][0-9]|60)\.[0-9]{6}Z$/;
const JOBS = { run: "run's last record", log: "last record of chain log", child: "seal of the child", level: "event that reached a level" };

class Proofs {
  lines = []; // {number, job, proof, leaf, newest, ...}
  seen = null; // the largest checkpoint of the bundle
  notes = new Map(); // a note, as text -> what was checked of it

  // `run`: {origin, records, raws, logRecords, logRaws}; `now`: seconds since 1970, null where nobody asks; `maxAge`: seconds.
  constructor(raws, first, run, trust, { now, maxAge }) {
    Object.assign(this, { raws, first, run, trust, now, maxAge });
    this.rested = restsOn(run.records);
    this.reached = run.records.filter(({ type }) => type === "EvidenceReached");
  }

  get own() {
    return this.lines.filter(({ job }) => job !== "anchor");
  }

  get anchored() {
    return this.lines.some(({ job }) => job === "anchor");
  }

  // -- claim: checkpoint ---------------------------------------------------------------------------------------------------------
  async checkpoint() {
    const demanded = demandsQuorum(this.trust);
    if (!this.raws.length) {
      if (demanded) return claim("checkpoint", ABSENT, `the trust file demands quorum ${this.trust.quorum}, and there is no proof of the log`, 3);
      return claim("checkpoint", ABSENT, "no proof that the log holds this run; nobody is asked to have witnessed it");
    }
    const lines = this.sorted(), roots = new Map();
    this.lines = lines;
    for (const line of this.own) {
      const held = await this.note(line), { size, root } = held.checkpoint;
      if (!roots.has(size)) roots.set(size, hex(root));
      if (roots.get(size) !== hex(root)) throw noProof("two checkpoints of one size have different roots: a split view", line.number, { code: "MDM-0670" });
      this.inTime(line, held);
    }
    const all = this.own.map((line) => this.held(line)), head = all[0];
    const { checkpoint: largest } = all.reduce((a, b) => (b.checkpoint.size > a.checkpoint.size ? b : a));
    const time = head.cosigners.reduce((most, seen) => (seen.time > most ? seen.time : most), 0n);
    this.seen = { origin: largest.origin, size: largest.size, root: hex(largest.root), time: Number(time) };
    return this.enough(head, demanded, Number(time));
  }

  enough(head, demanded, time) {
    const names = [...this.trust.witnesses].filter(([, key]) => head.cosigners.some((seen) => seen.key.hexed === key.hexed)).map(([name]) => name).sort();
    const told = `size ${head.checkpoint.size}, signed by ${head.log.name}+${head.log.id}, cosigned by ${names.join(", ") || "nobody of the trust file"}`;
    if (this.own.some((line) => line.job !== "level" && !this.held(line).met)) return claim("checkpoint", ABSENT, `${told}; that is not the quorum ${this.trust.quorum}`, 3);
    if (!this.isYoung(head)) {
      const age = !time || this.now === null ? "nobody says when" : this.now - time > this.maxAge ? `the youngest cosignature is ${this.now - time} seconds old` : "too few cosignatures are as young";
      return claim("checkpoint", ABSENT, `${told}; ${age}, and ${this.maxAge} is allowed`, 3);
    }
    return claim("checkpoint", PROVEN, told + (demanded ? `: quorum ${this.trust.quorum}` : "; no quorum is demanded"));
  }

  // One witness's clock makes nothing young: as many as are demanded have cosigned it lately.
  isYoung({ cosigners }) {
    const { maxAge, now, trust } = this;
    if (maxAge === null || now === null) return maxAge === null || cosigners.length > 0;
    const lately = new Set(cosigners.filter(({ time }) => BigInt(now) - time <= BigInt(maxAge)).map(({ key }) => key.hexed));
    return lately.size > 0 && quorumMet(trust, lately);
  }

  held(line) {
    return this.notes.get(latin1Long(line.proof.note));
  }

  async note(line) {
    const name = latin1Long(line.proof.note);
    if (!this.notes.has(name)) this.notes.set(name, await passedOn(line.number, () => checkNote(line.proof.note, this.trust, this.run.origin, this.now)));
    return this.notes.get(name);
  }

  // A witness cannot have seen what was written later, but for what a clock may go wrong by.
  inTime(line, held) {
    for (const { key, time } of held.cosigners) {
      if (time < LAST_SECOND && line.newest > rfc3339(Number(time) + SKEW_S)) {
        throw noProof(`the cosignature of ${key.name} is older than a record that it covers`, line.number, { expected: line.newest, found: rfc3339(Number(time)), code: "MDM-0666" });
      }
    }
  }

  // A checkpoint over all of chain log that is shown is signed by a key that this chain has not retired.
  checkRetired(retired) {
    const covered = this.lines.find(({ job }) => job === "log")?.proof.index;
    if (!this.seen || covered === undefined) return;
    for (const line of this.own) {
      const { checkpoint, signed } = this.held(line);
      if (checkpoint.size > covered && signed.every(retired)) {
        throw noProof("the checkpoint is signed by a key of the log that had been retired before", line.number, { found: signed.map((key) => `${key.name}+${key.id}`).join(", "), code: "MDM-0656" });
      }
    }
  }

  // -- claim: inclusion ----------------------------------------------------------------------------------------------------------
  inclusion() {
    if (!this.raws.length) return claim("inclusion", ABSENT, "no record is shown to be in the log");
    if (!this.seen) return claim("inclusion", CANNOT, "there is no checkpoint that holds", 5);
    for (const line of this.own) {
      const { size, root } = this.held(line).checkpoint;
      if (!included(line.leaf, line.proof.index, size, line.proof.path, root)) {
        throw noProof(`the ${JOBS[line.job]} is not in the log at index ${line.proof.index}`, line.number, { expected: `root ${hex(root)}`, found: "another", code: "MDM-0664" });
      }
    }
    this.room();
    const children = this.lines.filter(({ job }) => job === "child").length;
    let told = `the run's last record is leaf ${this.lines[0].proof.index}`;
    if (this.run.logRaws.length) told += `, that of chain log ${this.lines[1].proof.index}`;
    return claim("inclusion", PROVEN, told + (children ? `; ${some(children, "seal")} of children` : ""));
  }

  // What names a checkpoint was written after it, so it stands behind all of its leaves.
  room() {
    const { records } = this.run, [line] = this.lines;
    const held = new Map([...this.notes.values()].map(({ checkpoint }) => [checkpoint.size, hex(checkpoint.root)]));
    for (const { type, fact, seq } of records) {
      const named = type === "RunOpened" ? fact.anchor : type === "EvidenceReached" ? fact : null;
      if (!named?.size) continue;
      const least = plus(named.size, records.length - 1 - seq);
      if (line.proof.index < least) {
        throw noProof(`event ${seq} names a checkpoint that is newer than itself`, line.number, { expected: `index ${least} or more`, found: `${line.proof.index}`, code: "MDM-0664" });
      }
      if ((held.get(named.size) ?? named.root) !== named.root) {
        throw noProof(`event ${seq} names another root for a log of ${named.size} leaves: a split view`, line.number, { expected: held.get(named.size), found: named.root.slice(0, 64), code: "MDM-0670" });
      }
    }
  }

  // -- claim: children, only where the run rests on one ----------------------------------------------------------------------------
  children() {
    const lines = new Map(this.lines.filter(({ job }) => job === "child").map((line) => [line.record.run, line]));
    for (const { run, action, closed: wanted, operation } of this.rested) {
      const named = operation.slice(0, 26).toUpperCase(), line = lines.get(run);
      if (run !== named) throw noProof(`child ${run.slice(0, 26)} is not the one of its intent`, null, { expected: named, found: run, code: "MDM-0667" });
      if (line && line.record.fact.closed !== wanted) {
        throw noProof(`action ${action.slice(0, 40)} says something else than the seal of its child`, line.number, { expected: line.record.fact.closed, found: wanted, code: "MDM-0667" });
      }
    }
    if (this.raws.length && !this.seen) return claim("children", CANNOT, "there is no checkpoint that holds", 5);
    const absent = this.rested.map(({ run }) => run).filter((run) => !lines.has(run));
    if (absent.length) return claim("children", ABSENT, `the seal of child ${absent.slice(0, 5).join(", ")}`, this.raws.length || demandsQuorum(this.trust) ? 3 : 0);
    return claim("children", PROVEN, `${some(lines.size, "seal")} of children in the log, each as its action says`);
  }

  // -- claim: anchors, only where there is one: our checkpoint is an entry of a public log -------------------------------------------
  async anchors() {
    const unknown = [], known = [], texts = [...this.notes.values()].map(({ checkpoint }) => checkpoint.text);
    for (const line of this.lines.filter(({ job }) => job === "anchor")) {
      const note = parseNote(line.proof.note), held = parseCheckpoint(note.text), keys = this.trust.anchors.filter((key) => key.name === held.origin);
      if (!keys.length) {
        unknown.push(held.origin);
        continue;
      }
      const signers = await passedOn(line.number, () => signersOf(note, keys));
      if (!signers.length || !included(line.leaf, line.proof.index, held.size, line.proof.path, held.root)) {
        throw noProof(`the entry is not in the public log ${held.origin}`, line.number, { code: "MDM-0668" });
      }
      if (!texts.some((text) => isEntryOver(line.proof.extra, text))) throw noProof(`the entry in ${held.origin} is not about a checkpoint of this bundle`, line.number, { code: "MDM-0668" });
      known.push(`${held.origin} at ${line.proof.index}`);
    }
    if (!this.seen) return claim("anchors", CANNOT, "there is no checkpoint that holds", 5);
    if (!known.length) return claim("anchors", CANNOT, `the trust file holds no key (\`anchor NAME VKEY\`) for ${unknown.slice(0, 5).join(", ")}`);
    return claim("anchors", PROVEN, `the checkpoint is an entry of ${known.join(", ")}${unknown.length ? `; not checked: ${unknown.join(", ")}` : ""}`);
  }

  // -- claim: stamps, only where section tsr has a line: their signatures are for the library ------------------------------------------
  stamps(raws, first) {
    const known = new Set(this.own.map((line) => sha256hex(line.proof.note)));
    if (raws.length > 8) throw noProof(`section tsr has ${raws.length} lines`, first, { expected: "at most 8", code: "MDM-0669" });
    const names = raws.map((raw, i) => {
      const value = objectOf(raw, ["note", "reply"], first + i), reply = unb64(value.reply);
      if (typeof value.note !== "string" || !reply?.length || reply.length > 1 << 16) throw noProof("this is no stamp line", first + i, { code: "MDM-0646" });
      return value.note;
    });
    names.forEach((name, i) => {
      if (!known.has(name)) throw noProof("the stamp is over no checkpoint of this bundle", first + i, { expected: [...known].join(", "), found: name.slice(0, 80), code: "MDM-0669" });
    });
    return claim("stamps", CANNOT, `${some(raws.length, "stamp")} over the checkpoint; the root certificate of its authority was not given (--tsa ROOT.pem)`);
  }

  // -- claim: continuity, only where it is given what was seen last: a single bundle cannot show that somebody else was told another story --
  continuity(last) {
    const { seen } = this;
    if (!seen) return claim("continuity", ABSENT, "no checkpoint to compare with the one seen last", 3);
    const before = Object.hasOwn(last, seen.origin) ? last[seen.origin] : null, no = (what, code, expected, found) => new Broken(what, { code, expected, found });
    if (!before) return claim("continuity", PROVEN, `the first look at ${seen.origin}: size ${seen.size}`);
    if (seen.size < before.size) throw no("the log is smaller than it was: rolled back", "MDM-0671", `${before.size} or more`, `${seen.size}`);
    if (seen.size > before.size) return claim("continuity", CANNOT, `size ${seen.size}, seen last ${before.size}: whether the one begins with the other needs the log's tiles (--log DIR)`, 5);
    if (seen.root !== before.root) throw no("the log shows another root for a size seen before: a split view", "MDM-0670", before.root, seen.root);
    return claim("continuity", PROVEN, `the head seen last: size ${seen.size}`);
  }

  // -- claim: levels ---------------------------------------------------------------------------------------------------------------
  // Of which EvidenceReached the checkpoint is shown, and whether the quorum of the trust file cosigned it.
  levelsMet() {
    return new Map(this.seen ? this.own.filter(({ job }) => job === "level").map((line) => [line.reached, this.held(line).met]) : []);
  }

  // -- the lines, sorted -----------------------------------------------------------------------------------------------------------
  sorted() {
    const most = 2 + this.rested.length + this.reached.length + ANCHORS_MAX, { raws, first, run } = this;
    if (raws.length > most) throw noProof(`section proof has ${raws.length} lines`, first, { expected: `at most ${most}` });
    const read = raws.map((raw, i) => readProofLine(raw, first + i)), left = [...this.rested], reached = [...this.reached];
    const out = [{ ...bare(read.shift()), job: "run", leaf: leafHash(run.raws.at(-1)), newest: newestOf(run.records) }];
    if (run.logRaws.length) {
      if (!read.length) throw noProof("there is no proof for chain log", first);
      out.push({ ...bare(read.shift()), job: "log", leaf: leafHash(run.logRaws.at(-1)), newest: newestOf(run.logRecords) });
    }
    for (const line of read) {
      const { job } = out.at(-1), { number, proof } = line;
      if (line.origin !== run.origin) {
        out.push({ ...line, job: "anchor", leaf: leafHash(proof.extra) });
        continue;
      }
      if (job === "anchor") throw noProof("proofs of the log stand behind its anchors", number);
      if (proof.extra.length && job === "level") throw noProof("proofs of children stand behind those of levels", number);
      out.push(proof.extra.length ? childLine(line, left) : this.levelLine(line, reached));
    }
    if (out.filter(({ job }) => job === "anchor").length > ANCHORS_MAX) throw noProof("there are too many anchors", first, { expected: `at most ${ANCHORS_MAX}` });
    return out;
  }

  // The latest `at` of the records up to this one.
  newestUpTo(seq) {
    if (!this.upTo) {
      let newest = "";
      this.upTo = this.run.records.map(({ at }) => (newest = at > newest && INSTANT.test(at) ? at : newest));
    }
    return this.upTo[seq];
  }

  // The event that a level was reached for, under the checkpoint that its EvidenceReached names.
  levelLine(line, left) {
    while (left.length) {
      const { fact, seq } = left.shift();
      if (fact.size === line.checkpoint.size && fact.root === hex(line.checkpoint.root)) {
        return { ...line, job: "level", leaf: leafHash(this.run.raws.at(fact.seq)), newest: this.newestUpTo(fact.seq), reached: seq };
      }
    }
    throw noProof("this proof is of no level that the run reached, or not in its turn", line.number);
  }
}

// The file of what was seen last: {origin: {root, size}}. Throws Misuse: a file that cannot be read must not be taken for a first look.
function readLast(raw) {
  let value = null;
  try {
    if (raw.at(-1) === 10) value = accept(raw.subarray(0, -1));
  } catch {
    // said below
  }
  const isHead = (head) => hasFields(head, ["root", "size"]) && isWhole(head.size) && head.size >= 0 && isText(head.root) && /^[0-9a-f]{64}$/i.test(head.root);
  if (!hasFields(value, ["mandamus", "origins"]) || value.mandamus !== "last-seen/1" || !isObject(value.origins) || !Object.values(value.origins).every(isHead)) {
    throw new Misuse("this is no file of what was seen last", { code: "MDM-0678", fix: "name the file that --state wrote, or none: then this is the first look" });
  }
  return value.origins;
}

function noProof(what, line, more = {}) {
  return new Broken(what, { code: "MDM-0665", line, ...more });
}

// What a note or proof says of itself, at the line it stands on.
async function passedOn(line, check) {
  try {
    return await check();
  } catch (error) {
    if (error instanceof BadProof) throw new Broken(error.message, { ...error.more, line });
    throw error;
  }
}

function readProofLine(raw, number) {
  let text;
  try {
    text = accept(raw);
  } catch (error) {
    throw noProof(`this line is not canonical JSON: ${error.message}`, number, { code: "MDM-0646" });
  }
  if (typeof text !== "string") throw noProof("a proof line is a JSON string", number, { code: "MDM-0646" });
  try {
    const proof = parseLogProof(utf8(text)), checkpoint = parseCheckpoint(parseNote(proof.note).text);
    return { number, proof, checkpoint, origin: checkpoint.origin };
  } catch (error) {
    if (error instanceof BadProof) throw new Broken(error.message, { ...error.more, line: number });
    throw error;
  }
}

function bare(line) {
  if (line.proof.extra.length) throw noProof("the proof carries a record that this bundle holds already", line.number);
  return line;
}

// The seal in `extra`, of the next child that has one. Takes it, and those that were left out, from `left`.
function childLine(line, left) {
  const { record, fault } = readRecord(textOf(line.proof.extra), line.proof.extra.length), no = (what) => noProof(what, line.number, { code: "MDM-0667" });
  if (fault) throw no(`this proof carries no record: ${fault.what}`);
  if (record.type !== "RunSealed" || record.fact.count !== record.seq || record.fact.head !== record.prev) throw no("this proof carries no seal of a run");
  while (left.length) if (left.shift().run === record.run) return { ...line, job: "child", leaf: leafHash(line.proof.extra), newest: newestOf([record]), record };
  throw noProof("this proof is of no run that this one rests on, or not in its turn", line.number, { found: record.run.slice(0, 40) });
}

// Children whose seal the run's outcomes rest on, in order, each once.
function restsOn(records) {
  const started = new Map(), out = new Map();
  for (const { type, fact } of records) {
    if (type === "ActionStarted" && fact.child !== undefined) started.set(fact.action, fact);
    else if (type === "ActionEnded" && fact.via === "child" && started.has(fact.action)) {
      const intent = started.get(fact.action), code = fact.code ?? "";
      if (fact.result !== "done" && !code.startsWith("child_")) continue;
      const how = fact.result === "done" ? "completed" : code.slice(6);
      if (!out.has(intent.child)) out.set(intent.child, { action: fact.action, run: intent.child, closed: how, operation: intent.operation });
    }
  }
  return [...out.values()];
}

// The latest `at` among those that are written as instants; fixed width, so the order of texts is that of time.
function newestOf(records) {
  let newest = "";
  for (const { at } of records) if (at > newest && INSTANT.test(at)) newest = at;
  return newest;
}

function rfc3339(seconds) {
  return new Date(seconds * 1000).toISOString().replace(/\.000Z$/, ".000000Z");
}

// Is a public log's entry our checkpoint itself, or a Rekor v2 `hashedrekord` over its SHA-256?
function isEntryOver(entry, text) {
  const bytes = utf8(text);
  if (sameBytes(entry, bytes)) return true;
  try {
    const value = JSON.parse(textOf(entry) ?? ""), { data } = value.spec.hashedRekordV002;
    return value.kind === "hashedrekord" && value.apiVersion === "0.0.2" && data.algorithm === "SHA2_256" && data.digest === b64(sha256(bytes));
  } catch {
    return false;
  }
}

// -- claim: levels: what policy wanted sealed or witnessed before its effect, was so -----------------------------------------------------
function askedLevels(fact) {
  return (fact.asks ?? []).filter((ask) => ask.to === "log" && LEVELS.includes(ask.chain)).map((ask) => ask.chain);
}

function anyLevel(records) {
  return records.some(({ type, fact }) => type === "EvidenceReached" || (type === "ActionJudged" && askedLevels(fact).length > 0));
}

function checkLevels(records, shown, proven, needed, quorum) {
  const proposed = new Map(), asked = new Map(), policy = new Map(), upto = { sealed: -1, witnessed: -1 };
  const has = (action, level) => upto[level] >= (proposed.get(action) ?? 0);
  const early = (record, what) => new Broken(`${what}, and no record before it says so`, { code: "MDM-0673", chain: "run", event: record.seq, type: record.type });
  let intents = 0;
  for (const record of records) {
    const { type, fact } = record;
    if (type === "ActionProposed") proposed.set(fact.action, record.seq);
    else if (type === "EvidenceReached") {
      for (const level of LEVELS.slice(0, LEVELS.indexOf(fact.level) + 1)) upto[level] = Math.max(upto[level], fact.seq);
    } else if (type === "ActionJudged") {
      policy.set(fact.action, fact.bundle);
      if (!asked.has(fact.action)) asked.set(fact.action, new Set());
      for (const level of askedLevels(fact)) asked.get(fact.action).add(`${level}\n${fact.bundle}`);
      const met = shown(record, "facts")?.value?.people?.met;
      for (const level of LEVELS) {
        if (Array.isArray(met) && met.includes(level) && !has(fact.action, level)) throw early(record, `policy was told that action ${fact.action.slice(0, 40)} is ${level}`);
      }
    } else if (type === "ActionStarted") {
      const wanted = LEVELS.filter((level) => asked.get(fact.action)?.has(`${level}\n${policy.get(fact.action)}`));
      for (const level of wanted) if (!has(fact.action, level)) throw early(record, `policy wanted action ${fact.action.slice(0, 40)} to be ${level} before it starts`);
      if (wanted.length) intents++;
    }
  }
  const reached = records.filter(({ type }) => type === "EvidenceReached"), told = `${some(intents, "intent")} with the evidence that policy asked for`;
  const names = (list) => list.slice(0, 5).map(({ seq }) => `event ${seq}`).join(", ");
  const below = reached.filter(({ fact, seq }) => fact.level === "witnessed" && proven.get(seq) === false), absent = reached.filter(({ seq }) => !proven.has(seq));
  if (below.length) return claim("levels", ABSENT, `${told}; not the quorum of the trust file: ${names(below)}`, 3);
  if (absent.length) return claim("levels", ABSENT, `${told}; the checkpoint is not shown: ${names(absent)}`, needed ? 3 : 0);
  if (!quorum && reached.some(({ fact }) => fact.level === "witnessed")) return claim("levels", CANNOT, `${told}; the trust file demands no quorum, so it does not say who are witnesses`);
  return claim("levels", PROVEN, `${told}; ${some(reached.length, "checkpoint")} shown`);
}
