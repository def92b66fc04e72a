// Accounts, mail, policies, manifest, key hints and views: what stands in a bundle beside its records, and what they say of it.
//
// The rule a newcomer would break: a reservation is made by the intent's own commit, so its delta may never be missing; a settlement may
// follow later, so its absence is a gap that is named. And a view is never evidence: it is made anew and compared.

// -- accounts ---------------------------------------------------------------------------------------------------------------------
// (seq, account) -> [change of reserved, of spent], as intents and outcomes say.
function expectedMoves(records) {
  const out = new Map(), held = new Map();
  const add = (seq, account, reserved, spent) => {
    const key = `${seq}\n${account}`, [r, s] = out.get(key) ?? [0, 0];
    out.set(key, [plus(r, reserved), plus(s, spent)]);
  };
  for (const { type, fact, seq } of records) {
    if (type === "ActionStarted") {
      for (const { account, amount } of fact.reserves) {
        add(seq, account, amount, 0);
        if (!held.has(fact.action)) held.set(fact.action, new Map());
        held.get(fact.action).set(account, plus(held.get(fact.action).get(account) ?? 0, amount));
      }
    } else if (type === "ActionEnded" && (fact.result !== "unknown" || fact.via === "people")) {
      for (const [account, amount] of held.get(fact.action) ?? []) add(seq, account, -amount, 0);
      held.delete(fact.action);
      for (const { account, amount } of fact.spends) add(seq, account, 0, amount);
    }
  }
  for (const [key, [r, s]] of out) if (r === 0 && s === 0) out.delete(key);
  return out;
}

function badDelta(what, line, expected = "", found = "") {
  return new Broken(what, { code: "MDM-0657", line, expected, found: `${found}`.slice(0, 80) });
}

function readDelta(raw, number) {
  let delta = null;
  try {
    delta = accept(raw);
  } catch {
    // said below
  }
  const names = ["account", "change", "prev", "reserved", "run", "seq", "spent", "version"];
  const sound =
    hasFields(delta, names) && hasFields(delta.change, ["reserved", "spent"]) && [delta.account, delta.prev, delta.run].every(isText) &&
    [delta.reserved, delta.spent, delta.seq, delta.version, delta.change.reserved, delta.change.spent].every(isWhole);
  if (!sound) throw badDelta("this is no account delta", number);
  return delta;
}

// {count, missing}. Throws Broken at a delta that no record explains, or a reservation without one.
function checkAccounts(raws, first, records) {
  const wanted = expectedMoves(records), found = new Map(), lines = new Map(), heads = new Map();
  raws.forEach((raw, i) => {
    const delta = readDelta(raw, first + i), record = records[delta.seq], key = `${delta.seq}\n${delta.account}`;
    if (delta.run !== records[0].run || !record) throw badDelta("this delta was caused by another run", first + i, records[0].run, delta.run);
    checkLink(delta, heads.get(delta.account), first + i);
    heads.set(delta.account, { delta, hash: digest("delta", raw) });
    lines.set(key, first + i);
    const [r, s] = found.get(key) ?? [0, 0];
    found.set(key, [plus(r, delta.change.reserved), plus(s, delta.change.spent)]);
    if (!wanted.has(key) && !isSilent(delta, record)) throw badDelta(`event ${delta.seq} explains no change of this account`, first + i);
  });
  const missing = [];
  for (const [key, move] of wanted) {
    const [seq, account] = key.split("\n", 1).concat(key.slice(key.indexOf("\n") + 1)), record = records[Number(seq)], where = { code: "MDM-0657", chain: "run", event: record.seq, type: record.type };
    if (found.has(key) && found.get(key).join() !== move.join()) {
      throw new Broken("the account was moved by another amount than it says", { ...where, line: lines.get(key), expected: `(${move.join(", ")})`, found: `(${found.get(key).join(", ")})` });
    }
    if (!found.has(key) && record.type === "ActionStarted") throw new Broken("its reservation stands in no account", { ...where, expected: account, found: "nothing" });
    if (!found.has(key)) missing.push(`settlement of event ${seq}`);
  }
  return { count: raws.length, missing };
}

// Accounts that only count versions: the register at genesis, `authority` and those of children.
function isSilent({ account, change }, { seq, type }) {
  const zero = change.reserved === 0 && change.spent === 0;
  return (account === "register" && seq === 0) || account.startsWith("authority") || (zero && (type === "ActionStarted" || type === "ActionEnded"));
}

// Deltas of one account that stand side by side link, and their totals add up.
function checkLink(delta, before, number) {
  const sums = (r, s) => delta.reserved === plus(r, delta.change.reserved) && delta.spent === plus(s, delta.change.spent);
  if (delta.version < 1 || (delta.version === 1 && delta.prev)) throw badDelta("an account's first delta has version 1 and no predecessor", number);
  if (!before) {
    if (delta.version === 1 && !sums(0, 0)) throw badDelta("its totals are not the sum of its changes", number);
    return;
  }
  const { version, reserved, spent } = before.delta;
  if (delta.version <= version) throw badDelta("the versions of an account rise", number, `more than ${version}`, delta.version);
  if (delta.version !== version + 1) return;
  if (delta.prev !== before.hash) throw badDelta("it does not link to the delta before it", number, before.hash, delta.prev);
  if (!sums(reserved, spent)) throw badDelta("its totals are not the sum of its changes", number);
}

// (seq, account) -> reserved + spent after that event.
function totalsOf(raws, first) {
  return new Map(raws.map((raw, i) => readDelta(raw, first + i)).map((delta) => [`${delta.seq}\n${delta.account}`, plus(delta.reserved, delta.spent)]));
}

// -- stops and messages of a run ----------------------------------------------------------------------------------------------------
function anyMail(records) {
  return records.some(({ type }) => type === "StopRequested" || type === "MessageReceived");
}

async function checkMail(records, trust, line) {
  const out = { stops: 0, messages: 0, hidden: [], unknown: [] }, { origin } = records[0].fact;
  for (const record of records) {
    const { type, fact } = record;
    if (type !== "StopRequested" && type !== "MessageReceived") continue;
    const no = (what, number) => new Broken(what, { code: "MDM-0652", chain: "run", event: record.seq, type, line: number });
    if (!record.body?.some((part) => part.part === "statement")) throw no("nobody signed it: it holds no statement");
    const signed = line(record, "statement"), text = type === "MessageReceived" ? line(record, "text") : null;
    if (!signed) {
      out.hidden.push(`statement of event ${record.seq}`);
      continue;
    }
    if (type === "MessageReceived" && !text) {
      out.hidden.push(`text of event ${record.seq}`);
      continue;
    }
    const envelope = envelopeOf(signed.value);
    const found = text ? await examineSay(envelope, text.secret, isText(text.value) ? text.value : "", trust) : await examineStop(envelope, trust);
    if (text && found === "not_an_approver") {
      out.unknown.push(`event ${record.seq}`);
      continue;
    }
    if (typeof found === "string") throw no(`its statement does not count: ${found.replaceAll("_", " ")}`, signed.number);
    const said = text ? found : found.said, principal = text ? found.principal : found.principal;
    if (principal !== fact.principal || said.run !== record.run || said.origin !== origin || (!text && said.mode !== fact.mode)) throw no("its statement says something else", signed.number);
    if (text) out.messages++;
    else out.stops++;
  }
  return out;
}

// -- policies, manifest, key hints -----------------------------------------------------------------------------------------------------
// digest -> source, of those that have the digest they stand under.
function policySources(raws, first, strict) {
  const out = new Map();
  raws.forEach((raw, i) => {
    const value = objectOf(raw, ["digest", "source"], first + i), found = isObject(value.source) ? digest("policy", canon(value.source)) : "no object";
    if (found === value.digest) out.set(found, value.source);
    else if (strict) throw new Broken("this policy has another digest", { code: "MDM-0646", line: first + i, expected: `${value.digest}`.slice(0, 80), found });
  });
  return out;
}

function checkPolicies(raws, first, records) {
  const sources = policySources(raws, first, true), named = new Set([records[0].fact.policy]);
  for (const { type, fact } of records) if (type === "ActionJudged") named.add(fact.bundle);
  const absent = [...named].filter((name) => name && !sources.has(name)).sort();
  if (absent.length) return claim("policies", ABSENT, `the source of policy ${absent[0].slice(0, 12)} are not shown`, 3);
  return claim("policies", PROVEN, `${some(sources.size, "policy", "policies")} with the digests that judged the run`);
}

function checkManifest(raw, number, named) {
  const { text } = objectOf(raw, ["text"], number);
  if (!isText(text)) throw new Broken("the manifest is no text", { code: "MDM-0646", line: number });
  if (!named && !text) return claim("manifest", PROVEN, "the genesis names none: the agent is defined in code (see `definition`)");
  const found = digest("manifest", text);
  if (found !== named) throw new Broken("this is not the manifest that the genesis names", { code: "MDM-0646", line: number, expected: named, found });
  return claim("manifest", PROVEN, "the manifest is the one that the genesis names");
}

// Hints for people: well-formed, never used.
function checkKeyHints(raws, first) {
  raws.forEach((raw, i) => {
    const { key } = objectOf(raw, ["key", "role"], first + i);
    try {
      parseVKey(`${key}`);
    } catch (error) {
      if (!(error instanceof Misuse)) throw error;
      throw new Broken(error.message, { code: "MDM-0646", line: first + i });
    }
  });
  return claim("key hints", PROVEN, `${raws.length} keys named in the bundle; none of them is a reason to trust it`);
}

// -- views --------------------------------------------------------------------------------------------------------------------------
function checkViews(given, records, values) {
  if (!given.size) return claim("views", ABSENT, "no views were given to compare");
  const made = { "agent_run.json": runView, "decision.json": decisionView, "tool_trace.json": traceView };
  for (const name of [...given.keys()].sort()) {
    const text = Object.hasOwn(made, name) ? `${canon(made[name](records, values))}\n` : null;
    if (text === null || textOf(given.get(name)) !== text) throw new Broken(`view ${name.slice(0, 80)} is not what the records say`, { code: "MDM-0660", fix: "mandamus bundle RUN --views DIR writes it anew" });
  }
  return claim("views", PROVEN, `${some(given.size, "view")}, as the records say`);
}

function committed(record, part) {
  return record.body?.find((p) => p.part === part)?.commit ?? null;
}

// The value where it is shown, its commitment where it is not, null where there is none.
function partOf(record, part, values) {
  const key = keyOf(record.run, record.seq, part), commit = committed(record, part);
  return values.has(key) ? values.get(key) : commit === null ? null : { commit };
}

function runView(records, values) {
  const opened = records[0].fact, of = (type) => records.filter((record) => record.type === type), [ended] = of("RunEnded"), replies = of("ModelReplied").map(({ fact }) => fact);
  const sum = (name) => plus(...replies.map(({ usage }) => usage[name]));
  return {
    agent: opened.agent, claimed_begin: records[0].at, claimed_end: records.at(-1).at, definition: opened.definition, events: records.length,
    input: partOf(records[0], "input", values), manifest: opened.manifest, model_calls: of("ModelCalled").length,
    models: [...new Set(replies.map(({ model }) => model))].sort(), origin: opened.origin, output: ended ? partOf(ended, "output", values) : null,
    policy: opened.policy, run: records[0].run, state: ended ? ended.fact.state : "open", tenant: opened.tenant, tier: opened.tier,
    tokens: { input: sum("input"), output: sum("output") }, turns: records.reduce((most, { turn }) => Math.max(most, turn), records[0].turn), view: "mandamus.agent_run/1",
  };
}

function decisionView(records, values) {
  const decisions = records.filter(({ type }) => type === "ActionJudged").map((record) => {
    const { fact } = record;
    return {
      action: fact.action, attempt: fact.attempt, decision: partOf(record, "decision", values), engine: fact.engine, event: record.seq,
      facts: committed(record, "facts"), policy: fact.bundle, result: fact.verdict, rule_trace: { determining: fact.determining, layers: fact.layers },
      asks: fact.asks ?? [], code: fact.code ?? null,
    };
  });
  return { decisions, run: records[0].run, view: "mandamus.decision/1" };
}

function traceView(records, values) {
  const actions = new Map();
  for (const record of records) {
    const { type, fact, seq: event } = record, action = actions.get(fact.action);
    if (type === "ActionProposed") {
      actions.set(fact.action, {
        action: fact.action, attempts: [], effect: fact.effect, event, input: partOf(record, "args", values), outcomes: [], pin: fact.pin ?? null,
        safety: fact.safety, tool: fact.tool, votes: [],
      });
    } else if (type === "ActionStarted") action.attempts.push({ attempt: fact.attempt, event, operation: fact.operation, votes: fact.votes });
    else if (type === "Voted" && fact.action !== undefined) action.votes.push({ decision: fact.decision, event, principal: fact.principal });
    else if (type === "ActionEnded") action.outcomes.push({ event, output: partOf(record, "output", values), result: fact.result, via: fact.via });
  }
  return { actions: [...actions.values()], run: records[0].run, view: "mandamus.tool_trace/1" };
}
