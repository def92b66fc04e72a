// `verify({bundle, trust, ...})`: does this file prove what it says, to somebody who trusts only his own trust file?
//
// Order: container, signature, every record, chain log, payloads; then what rests on them. The rule a newcomer would break: nothing from the
// bundle is ever a reason to believe the bundle, and a claim that was not checked is not made.

const PERIOD = '{"bundle":"mandamus-log/1",';
const MISUSE_FIX = "--trust FILE, with a `log` and a `bundle` line that reached you another way than this bundle";

function nothing(what, fix, code = "MDM-0648") {
  return { verdict: "NOT PROVEN", exit_code: 2, state: "unknown", events: 0, claims: [], broken: finding(what, { code, fix }) };
}

// The report, as `mandamus verify --json` prints it. All are bytes: `bundle`, `trust`, `views` and `blobs` by name, `last` (the file of what
// was seen last of each log). `now`: seconds since 1970, null: nobody asks. `progress(done, all, what)` is awaited: time to draw.
const BESIDE_NOTHING = { views: new Map(), blobs: new Map(), last: null, maxAge: null, progress: async () => {} };

async function verify({ bundle, trust = null, ...given }) {
  const beside = { ...BESIDE_NOTHING, now: Math.floor(Date.now() / 1000), ...given };
  let roots = null;
  try {
    if (trust !== null) roots = parseTrust(trust);
    if (beside.last !== null) beside.last = readLast(beside.last);
  } catch (error) {
    if (!(error instanceof Misuse)) throw error;
    return { verdict: "NOT PROVEN", exit_code: 2, error: asJson(error.finding) };
  }
  if (!bundle.length) return asJson(nothing("the file is empty: there is nothing to verify", "name a bundle that `mandamus bundle RUN` wrote"));
  if (!roots || !roots.logs.length || !roots.bundles.length) return asJson(nothing("no trust root was given", MISUSE_FIX, "MDM-0649"));
  return new Case(roots, beside).report(bundle);
}

// Records that are legal one by one, and that no run makes in this order: never a reason to fall over.
const STRAYS = [CannotFollow, TypeError, RangeError, SyntaxError];

// One bundle under examination. Each check answers with a claim, or throws Broken with the first finding.
class Case {
  claims = [];
  broken = null;
  attested = "";
  state = "unknown";
  said = null;
  lines = new Map();
  proofs = null;

  constructor(trust, beside) {
    Object.assign(this, { trust, ...beside });
    this.shown = (record, part) => {
      const line = this.lines.get(keyOf(record.run, record.seq, part));
      return line?.show === "whole" ? line : null;
    };
  }

  async report(raw) {
    const ground = [
      ["container", () => this.container(raw)],
      ["signature", () => this.signature()],
      ["chain", () => this.chain()],
      ["log", () => this.logChain()],
      ["payloads", () => this.payloads()],
    ];
    if (await this.all(ground)) {
      const { box, run, log } = this;
      const about = { origin: this.said.origin, records: run.records, raws: box.sections.record, logRecords: log.records, logRaws: box.sections.log };
      this.proofs = new Proofs(box.sections.proof, box.first.proof, about, this.trust, this);
      await this.all([["state", () => this.seal()], ["checkpoint", () => this.proofs.checkpoint()]], true);
      await this.all(this.rest(), true);
    }
    const code = exitCode(new Set(this.claims.map((one) => one.exit_code)));
    return asJson({
      verdict: verdictOf(code), exit_code: code, run: this.said?.run, state: this.state, events: this.said?.count ?? 0, head: this.said?.head,
      checkpoint: this.proofs?.seen, claims: this.claims, broken: this.broken, attested: this.attested,
    });
  }

  rest() {
    const { box, run, proofs } = this, { records } = run;
    return [
      ["inclusion", () => proofs.inclusion(), true],
      ["children", () => proofs.children(), proofs.rested.length],
      ["anchors", () => proofs.anchors(), proofs.anchored],
      ["stamps", () => proofs.stamps(box.sections.tsr, box.first.tsr), box.sections.tsr.length],
      ["continuity", () => proofs.continuity(this.last), this.last !== null],
      ["authority", () => this.authorityClaim(), true],
      ["owners", () => this.owners(), true],
      ["operations", () => this.operations(), true],
      ["votes", () => this.votes(), true],
      ["accounts", () => this.accounts(), true],
      ["policies", () => checkPolicies(box.sections.policy, box.first.policy, records), true],
      ["manifest", () => checkManifest(box.sections.manifest[0], box.first.manifest, this.said.manifest), true],
      ["key hints", () => checkKeyHints(box.sections.key, box.first.key), true],
      ["views", () => this.viewsClaim(), true],
      ["sections", () => this.sections(), true],
      ["budget", () => this.budget(), anyBudget(records)],
      ["mail", () => this.mail(), anyMail(records)],
      ["levels", () => this.levels(), anyLevel(records)],
    ].filter(([, , due]) => due);
  }

  // False when something does not hold (or, without it, nothing further can be said).
  async all(checks, goOn = false) {
    for (const [name, check] of checks) {
      await this.progress(0, 0, name);
      const made = await this.claimOf(name, check);
      this.claims.push(made);
      if ([1, 5].includes(made.exit_code) && !goOn) return false;
    }
    return true;
  }

  async claimOf(name, check) {
    try {
      return await check();
    } catch (error) {
      if (error instanceof Broken) {
        this.broken ??= error.finding;
        return claim(name, BROKEN, error.message, 1);
      }
      if (STRAYS.some((kind) => error instanceof kind)) {
        const what = "the records are not ones that a run can make";
        this.broken ??= finding(what, { code: "MDM-0643", why: error instanceof CannotFollow ? "" : `${error}` });
        return claim(name, BROKEN, what, 1);
      }
      if (error instanceof Cannot) return claim(name, CANNOT, error.message, 5);
      return claim(name, CANNOT, `the verifier itself failed here (${error}): believe nothing of it`, 5);
    }
  }

  // -- ground: container, signature, chains, payloads ------------------------------------------------------------------------------
  container(raw) {
    if (textOf(raw.subarray(0, PERIOD.length)) === PERIOD) return claim("container", CANNOT, "this is the bundle of a period, not of a run: `mandamus verify` reads it", 5);
    this.box = readContainer(raw);
    return claim("container", PROVEN, `${this.box.lines} lines, canonical, in ${SECTIONS.length} sections`);
  }

  // The DSSE line, by a bundle key of the trust file, for a log of the trust file; then line 1 as it must be.
  async signature() {
    const { box, trust } = this, keys = trust.bundles.map(([, key]) => key);
    let done, said;
    try {
      done = await checkEnvelope(box.sections.dsse[0], PAYLOAD_TYPE, keys);
      said = readStatement(done.payload);
    } catch (error) {
      if (!(error instanceof NoEnvelope)) throw error;
      throw new Broken(error.message, { ...error.more, line: 2, fix: "check that the trust file is the one meant" });
    }
    if (!trust.logKeys(said.origin).length) {
      throw new Broken("the run belongs to a log that is not trusted", { code: "MDM-0650", line: 2, expected: [...new Set(trust.logs.map((key) => key.name))].sort().join(", "), found: said.origin });
    }
    if (!trust.bundleKeys(said.origin).includes(done.keys[0])) {
      throw new Broken("the signer may not sign bundles of this log", { code: "MDM-0650", line: 2, expected: said.origin, found: done.keys[0].name });
    }
    const header = headerOf(said);
    if (header !== textOf(box.header)) {
      throw new Broken("the header is not the one that the signed statement demands", { code: "MDM-0645", line: 1, expected: header, found: (textOf(box.header) ?? "").slice(0, 400) });
    }
    [this.said, this.signer] = [said, done.keys[0]];
    return claim("signature", PROVEN, `by ${done.keys[0].name}+${done.keys[0].id}, origin ${said.origin}`);
  }

  async chain() {
    const { box, said } = this, raws = box.sections.record;
    this.run = await this.walk(raws, said.run, said.head);
    if (this.run.fault) return this.tooNew(this.run.fault, "chain");
    const { fact } = this.run.records[0];
    if (fact.origin !== said.origin || fact.manifest !== said.manifest) {
      throw new Broken("the genesis belongs to another log or manifest than the signed statement says", { code: "MDM-0650", chain: "run", event: 0, type: "RunOpened", expected: said.origin, found: fact.origin });
    }
    this.state = stateOf(this.run);
    if (this.state !== said.state) {
      throw new Broken("the run is in another state than the signed statement says", { code: "MDM-0647", line: 2, expected: this.state, found: said.state });
    }
    return claim("chain", PROVEN, `${raws.length} records from genesis to the signed head: canonical, linked, in order, each step legal`);
  }

  // Bytes first (backwards from the signed head), then what they say.
  async walk(raws, run, head) {
    const walked = await walkChain(raws, run, (done, all) => this.progress(done, all, run === LOG ? "chain log" : "records"));
    if (!walked.fault && walked.head === head) return walked;
    const name = chainName(run), torn = backward(raws, head, name);
    if (torn) {
      this.attested = name === "run" ? attestedBy(torn, raws.length) : "";
      throw new Broken(torn.what, torn);
    }
    if (walked.fault && walked.fault.code !== NEWER) throw new Broken(walked.fault.what, walked.fault);
    return walked;
  }

  tooNew(fault, name) {
    return claim(name, CANNOT, `${fault.where}: ${fault.what}; its bytes are attested, a newer verifier can read them`, 5);
  }

  async logChain() {
    const raws = this.box.sections.log;
    if (!raws.length) {
      this.log = new Walk(LOG, 0);
      if (this.said.log.head) throw new Broken("chain log is missing", { code: "MDM-0642", chain: LOG, expected: this.said.log.head, found: "no record" });
      return claim("log", ABSENT, "no record of chain log: nothing had been enrolled, revoked or changed");
    }
    this.log = await this.walk(raws, LOG, this.said.log.head);
    if (this.log.fault) return this.tooNew(this.log.fault, "log");
    return claim("log", PROVEN, `${some(raws.length, "record")} of chain log to the signed head`);
  }

  async payloads() {
    const { box, run, log, blobs } = this, raws = box.sections.payload;
    this.lines = await matchShown(raws, box.first.payload, [...run.records, ...log.records], blobs, (done, all) => this.progress(done, all, "payloads"));
    const erased = checkErased([...this.lines.values()], log.records, this.said.run), hidden = [...this.lines.values()].filter((line) => line.show !== "whole");
    if (!hidden.length) return claim("payloads", PROVEN, `${some(raws.length, "payload")}, each what its record committed to`);
    const names = hidden.slice(0, 5).map((line) => `${line.part} of event ${line.seq} (${line.show})`).join(", ");
    const told = `${raws.length - hidden.length} of ${raws.length} shown and as committed; not shown: ${names}`;
    return claim("payloads", ABSENT, told + (erased ? `; ${erased} erased, with record` : ""), 3);
  }

  // -- what the run claims -----------------------------------------------------------------------------------------------------------
  seal() {
    const { records, life } = this.run, last = records.at(-1);
    if (last.type === "RunSealed") {
      const found = stateDigest(records.slice(0, -1));
      if (found !== last.fact.state) throw at(last, "the seal names another state than the records lead to", "MDM-0658", last.fact.state, found);
      return claim("state", PROVEN, `sealed: ${last.fact.closed}, ${last.fact.count} records, state recomputed`);
    }
    if (life.unsettled.length) return claim("state", CANNOT, `in doubt: nobody knows whether ${life.unsettled.join(", ")} happened`, 5);
    return claim("state", PROVEN, this.state === "open" ? "open: the run may go on" : "interrupted: an action or a model call has no outcome yet", 4);
  }

  // Chain log reaches as far as any judgement saw; everything in it that widens authority is signed by its administrators.
  async authorityClaim() {
    const { run, log, trust } = this, envelope = (record, part) => (this.shown(record, part) ? envelopeOf(this.shown(record, part).value) : null);
    let seen = 0;
    for (const { type, fact } of run.records) if (type === "ActionJudged") seen = Math.max(seen, fact.authority);
    const { version, widened, stops, revoked, signed } = this.authority, retired = (key) => this.authority.retired(key);
    if (retired(this.signer)) throw new Broken("the signer of the bundle had been retired", { code: "MDM-0656", line: 2, found: `${this.signer.name}+${this.signer.id}` });
    this.proofs.checkRetired(retired);
    if (version < seen) {
      throw new Broken("chain log ends before the newest change of authority that a judgement saw", { code: "MDM-0651", chain: LOG, expected: `version ${seen}`, found: `version ${version}` });
    }
    if (!log.records.length) return claim("authority", PROVEN, "no judgement saw any change of authority");
    if (widened.length && !trust.admins.length) return claim("authority", CANNOT, "the trust file names no administrator (`admin VKEY`), so changes of authority cannot be checked", 5);
    const hidden = signed.find((record) => this.lines.has(keyOf(LOG, record.seq, carrierOf(record))) && !this.shown(record, carrierOf(record)));
    if (hidden) return claim("authority", ABSENT, `the ${carrierOf(hidden)} of log event ${hidden.seq} is not shown`, 3);
    await checkAuthority(log.records, this.authority, this.said.origin, trust, envelope);
    this.notStopped();
    const told = `version ${version}, ${some(widened.length, "signed change")} to what it allows, ${some(revoked.size, "key")} revoked`;
    return claim("authority", PROVEN, told + (stops.length ? `, ${some(stops.length, "signed stop")}, none passed over` : ""));
  }

  get authority() {
    this.read ??= new Authority(this.log.records);
    return this.read;
  }

  // No intent stands on a judgement that saw the stop of its agent or tenant.
  notStopped() {
    if (!this.authority.stops.length) return;
    const { agent, tenant } = this.run.records[0].fact;
    let judged = null;
    for (const record of this.run.records) {
      if (record.type === "ActionJudged") judged = record.fact;
      const stop = record.type === "ActionStarted" ? this.authority.stopped(agent, tenant, judged.authority) : null;
      if (stop) throw at(record, `it started although log event ${stop.seq} had stopped it`, "MDM-0651");
    }
  }

  async owners() {
    let keys = this.trust.logKeys(this.said.origin), count = 0, version = 0;
    for (const record of this.run.records) {
      if (record.type === "ActionJudged") version = Math.max(version, record.fact.authority);
      if (record.type !== "RunOwned") continue;
      count++; // whoever takes over after a judgement has no key that was retired before it
      keys = keys.filter((key) => !this.authority.wasRevoked(key, version));
      const { nonce, worker, signature } = record.fact, bytes = unb64(signature), { epoch, prev, run } = record;
      const message = utf8(canon({ domain: "mandamus/owned/v1", epoch, nonce, origin: this.said.origin, prev, run, worker }));
      let signed = false;
      for (const key of bytes ? keys : []) signed ||= await verifies(key, message, bytes);
      if (!signed) throw at(record, "no trusted log key signed this takeover", "MDM-0659", keys.map((key) => `${key.name}+${key.id}`).join(", "));
    }
    return claim("owners", PROVEN, count ? `${some(count, "takeover")} signed by the log's key` : "one owner from genesis to the head");
  }

  // The idempotency key of every intent is the one of its call: the same for every attempt, another for every other action.
  operations() {
    const proposed = new Map();
    let count = 0;
    for (const record of this.run.records) {
      const { type, fact, run } = record;
      if (type === "ActionProposed") proposed.set(fact.action, digest("operation", canon({ args: record.body?.length ? record.body[0].commit : "", call: fact.call, run, tool: fact.tool })));
      else if (type === "ActionStarted") {
        count++;
        const wanted = proposed.get(fact.action);
        if (fact.operation !== wanted) throw at(record, "its operation id is not the one of this call", "MDM-0661", wanted, fact.operation);
      }
    }
    return claim("operations", PROVEN, `${some(count, "intent")}, each with the operation id of its call`);
  }

  async votes() {
    const { box, run, log, trust, authority, shown } = this, chains = new Chains(policySources(box.sections.policy, box.first.policy, false));
    const totals = totalsOf(box.sections.account, box.first.account);
    const tally = await new Votes({ records: run.records, log: log.records, trust, authority, line: shown, chains, totals }).check();
    const later = checkTiers(run.records, chains);
    if (tally.hidden.size) return claim("votes", ABSENT, `${some(tally.votes, "vote")} checked; not shown: ${[...tally.hidden].slice(0, 5).join(", ")}`, 3);
    return claim("votes", PROVEN, tallyWords(tally) + (later ? `; ${later} later tiers asked when their time came` : ""));
  }

  async mail() {
    const { stops, messages, hidden, unknown } = await checkMail(this.run.records, this.trust, this.shown);
    const told = `${some(stops, "stop")} and ${some(messages, "message")}, each signed by who is named`;
    if (unknown.length) return claim("mail", CANNOT, `${told}; the trust file holds no key (\`frontend NAME VKEY\`) for ${unknown.slice(0, 5).join(", ")}`, 5);
    if (hidden.length) return claim("mail", ABSENT, `${told}; not shown: ${hidden.slice(0, 5).join(", ")}`, 3);
    return claim("mail", PROVEN, told);
  }

  accounts() {
    const { count, missing } = checkAccounts(this.box.sections.account, this.box.first.account, this.run.records);
    if (missing.length) return claim("accounts", ABSENT, `${some(count, "delta")} as the records say; not settled yet: ${missing.slice(0, 5).join(", ")}`, 3);
    return claim("accounts", PROVEN, `${some(count, "delta")}, as reservations and spends say`);
  }

  budget() {
    const { calls, handoffs } = checkBudget(this.run.records);
    return claim("budget", PROVEN, `${calls} model calls${handoffs ? ` and ${some(handoffs, "task")} handed down` : ""} within what the genesis allows`);
  }

  levels() {
    const needed = demandsQuorum(this.trust) || this.box.sections.proof.length > 0;
    return checkLevels(this.run.records, this.shown, this.proofs.levelsMet(), needed, demandsQuorum(this.trust));
  }

  viewsClaim() {
    const values = new Map([...this.lines].filter(([, line]) => line.show === "whole").map(([key, line]) => [key, line.value]));
    return checkViews(this.views, this.run.records, values);
  }

  // The net under everything: no byte of any section is another one than was signed.
  async sections() {
    const { box } = this;
    for (const { name, digest: signed, count } of this.said.sections) {
      const found = await digestOfMany("section", `${name}\n`, box.spans[name]), first = box.first[name];
      if (found !== signed) {
        throw new Broken(`section ${name} (lines ${first} to ${first + count - 1}) is not the one that was signed`, { code: "MDM-0645", line: first, expected: signed, found });
      }
    }
    return claim("sections", PROVEN, "every section has the digest that was signed");
  }
}

function at(record, what, code, expected = "", found = "") {
  return new Broken(what, { code, chain: "run", event: record.seq, type: record.type, expected, found });
}
