// The state of a run as its records make it: what a seal's digest is the digest of, and what budgets and tiers are held against.
//
// The rule a newcomer would break: the order of the fields below is part of the digest, and what is undefined is absent from it. A chain
// that the fold cannot follow has no state; `step` throws CannotFollow then, and whoever asked says so.

class CannotFollow extends Error {}

class Fold {
  run = {
    id: "", seq: -1, head: "", epoch: 0, life: "new", stage: "ready", opened: null, clock: null, turn: 0, attempt: 0, retry_at: 0,
    cursor: 0, keys: [], actions: new Map(),
    spent: { calls: 0, input: 0, output: 0, retries: 0, denials: 0, bad: 0, below: undefined, cost: undefined },
    denied: [], reserved: 0, cause: "", code: "", end: "", answer: -1, heard: 0, compiled: undefined, price: undefined, sealed: undefined, witnessed: undefined,
  };

  step(record) {
    const step = STEPS[record.type];
    if (!step) throw new CannotFollow(`no step for ${record.type}`);
    step(this.run, record.fact, record);
    this.run.seq = record.seq;
  }

  digest() {
    return digest("state", written(this.run));
  }
}

// As the library writes a state: fields as they stand, the actions by name.
function written(value) {
  if (typeof value === "bigint") return `${value}`;
  if (typeof value !== "object" || value === null) return JSON.stringify(value);
  if (Array.isArray(value)) return `[${value.map(written).join(",")}]`;
  const pairs = value instanceof Map ? [...value].sort(([a], [b]) => (a < b ? -1 : 1)) : Object.entries(value);
  return `{${pairs.filter(([, inner]) => inner !== undefined).map(([name, inner]) => `${JSON.stringify(name)}:${written(inner)}`).join(",")}}`;
}

function actionOf(run, id) {
  const action = run.actions.get(id);
  if (!action) throw new CannotFollow("an action that was never proposed");
  return action;
}

function mailed(run, mail) {
  if (mail === undefined) return;
  run.cursor = Math.max(run.cursor, mail.cursor);
  run.keys.push(mail.key);
}

function moveAction(action, state) {
  if (!MOVES[action.state].includes(state)) throw new CannotFollow(`an action that is ${action.state} cannot be ${state}`);
}

// approve, reject, done, again, abandon, or "" while it is open. One reject or veto decides; else the quorum of distinct people.
function decisionOf(request) {
  if (request.votes.some((vote) => vote.decision === "reject" || vote.veto)) return "reject";
  for (const decision of ["approve", "done", "again", "abandon"]) {
    if (new Set(request.votes.filter((vote) => vote.decision === decision).map((vote) => vote.principal)).size >= request.quorum) return decision;
  }
  return "";
}

// -- what model use costs: micro-units, each call rounded up by itself ----------------------------------------------------------
function roundedUp(amount) {
  const big = BigInt(amount);
  return exact((big > 0n ? big + 999_999n : big) / 1_000_000n);
}

function priced(price, usage) {
  const fresh = plus(usage.input, -usage.cache_read, -usage.cache_write);
  return roundedUp(plus(
    times(fresh > 0 ? fresh : 0, price.input), times(usage.cache_read, price.cache_read ?? price.input),
    times(usage.cache_write, price.cache_write ?? price.input), times(usage.output, price.output),
  ));
}

function atMost(price, input, output) {
  return roundedUp(plus(times(input, Math.max(price.input, price.cache_read ?? 0, price.cache_write ?? 0)), times(output, price.output)));
}

function reservedCost(run) {
  if (run.price === undefined || !run.reserved) return 0;
  const prompt = run.compiled ?? 0;
  return atMost(run.price, prompt, plus(run.reserved, -prompt));
}

function use(spent, { input, output }) {
  spent.input = plus(spent.input, input);
  spent.output = plus(spent.output, output);
}

function pay(run, usage) {
  if (run.price !== undefined) run.spent.cost = plus(run.spent.cost ?? 0, priced(run.price, usage));
}

const HANDED = "handoff/";

function unitOf(run, account) {
  const head = `${HANDED}${run}/`;
  return account.startsWith(head) ? account.slice(head.length) : "";
}

// The level that is asked of the log. Asked again for the same one, the time does not begin anew.
function awaited(run, action, fact) {
  const ask = (fact.asks ?? []).find(({ to }) => to === "log");
  if (!ask) return undefined;
  return action.awaits?.level === ask.chain ? action.awaits : { level: ask.chain, until: plus(run.clock?.now ?? 0, times(ask.within ?? 0, 1000)) };
}

// What a child used is used of this run's budget, with all below it.
function cameBack(run, spends) {
  const below = run.spent.below ?? { calls: 0, cost: 0, tokens: 0 }, used = {};
  for (const { account, amount } of spends) {
    const unit = unitOf(run.id, account);
    if (!unit) continue;
    if (!Object.hasOwn(below, unit)) throw new CannotFollow("a unit that no budget has");
    used[unit] = plus(below[unit], amount);
  }
  if (Object.keys(used).length) run.spent.below = { ...below, ...used };
}

// -- one step for each type of fact ---------------------------------------------------------------------------------------------
const STEPS = {
  __proto__: null,
  RunOpened(run, fact, record) {
    Object.assign(run, { id: record.run, epoch: record.epoch, life: "running", opened: fact, clock: fact.clock });
  },
  // A takeover doubts all that was started, but for what a child run answers, and lifts a halt.
  RunOwned(run, fact, record) {
    for (const action of run.actions.values()) {
      if ((action.state !== "started" && action.state !== "doubted") || action.child) continue;
      action.lands ||= plus(fact.clock.now, times(action.landing, 1000));
      if (action.state === "started") Object.assign(action, { state: "doubted", cause: "lost", retry_at: 0 });
    }
    const halted = run.life === "halted";
    if (halted && run.cause === "guardrail" && run.stage === "answered") Object.assign(run, { stage: "ready", end: "", answer: -1 });
    if (halted) run.spent.denials = 0;
    run.code = run.stage === "stopping" && run.end === "failed" ? run.code : "";
    if (run.stage === "asking") run.stage = "failed";
    Object.assign(run, { epoch: record.epoch, life: halted ? "running" : run.life, cause: "", clock: fact.clock });
  },
  StopRequested(run, fact) {
    run.clock = fact.clock;
    mailed(run, fact.mail);
    if (fact.mode === "cancel") Object.assign(run, { end: "cancelled", stage: "stopping" });
  },
  RunHalted(run, fact) {
    Object.assign(run, { life: "halted", cause: fact.cause, code: fact.code });
    if (endsByNo(fact)) Object.assign(run, { stage: "stopping", end: "failed" });
  },
  RunEnded(run, fact) {
    Object.assign(run, { life: fact.state, end: fact.state, code: fact.code ?? "" });
  },
  RunSealed(run) {
    run.life = "sealed";
  },
  TurnStarted(run, fact, record) {
    Object.assign(run, { turn: record.turn, clock: fact.clock, actions: new Map(), attempt: 0, heard: 0 });
  },
  GuardrailChecked(run, fact) {
    if (fact.result === "block" && run.actions.has(fact.action)) run.actions.get(fact.action).withheld = true;
    if (fact.usage === undefined) return;
    use(run.spent, fact.usage);
    pay(run, fact.usage);
  },
  ContextCompiled(run, fact) {
    if (run.price !== undefined) run.compiled = fact.tokens;
  },
  ModelPriced(run, fact) {
    run.price = fact.price;
  },
  ModelCalled(run, fact) {
    Object.assign(run, { stage: "asking", attempt: fact.attempt, reserved: fact.reserves, retry_at: 0 });
  },
  ModelReplied(run, fact, record) {
    use(run.spent, fact.usage);
    run.spent.calls = plus(run.spent.calls, fact.calls);
    pay(run, fact.usage);
    run.stage = run.stage === "stopping" ? "stopping" : fact.calls ? "acting" : "answered";
    run.reserved = 0;
    if (run.stage === "answered") Object.assign(run, { end: "completed", answer: record.seq });
  },
  // A lost call counts as spent in full. A bad answer is a reply already; it makes another turn due.
  ModelFailed(run, fact) {
    const { spent } = run;
    if (fact.category === "bad_output") {
      const again = spent.bad === 0 && run.stage !== "stopping";
      spent.bad += 1;
      spent.retries += 1;
      Object.assign(run, { stage: again ? "ready" : run.stage, end: again ? "" : "failed", code: again ? "" : "bad_output" });
      return;
    }
    const lost = fact.category === "lost" ? run.reserved : 0;
    spent.input = plus(spent.input, lost);
    if (fact.retry_at !== undefined) spent.retries += 1;
    if (lost && run.price !== undefined) spent.cost = plus(spent.cost ?? 0, reservedCost(run));
    Object.assign(run, { stage: run.stage === "stopping" ? "stopping" : "failed", reserved: 0, retry_at: fact.retry_at ?? 0 });
  },
  ActionProposed(run, fact, record) {
    const author = fact.replaces ? run.actions.get(fact.replaces)?.author ?? "" : "";
    if (fact.by === "tool") run.spent.calls = plus(run.spent.calls, 1); // a call that a tool makes is a call of the run's budget
    run.actions.set(fact.action, {
      id: fact.action, call: fact.call, tool: fact.tool, kind: fact.kind, safety: fact.safety, effect: fact.effect, by: fact.by,
      seq: record.seq, args: record.body?.length ? record.body[0].commit : "", pin: fact.pin ?? "", parent: fact.parent ?? "",
      fault: fact.fault ?? "", repeats: fact.repeats ?? null, state: "proposed", verdict: "", code: "", attempt: 0, absent: false, doubts: 0,
      cause: "", retry_at: 0, operation: "", child: "", reserves: [], request: null, granted: [], uses: 0, out: -1, clock: 0, author,
      withheld: false, landing: 0, lands: 0, awaits: undefined,
    });
  },
  ActionJudged(run, fact) {
    const action = actionOf(run, fact.action), { request } = action;
    if (fact.asks?.length || action.awaits) action.awaits = awaited(run, action, fact);
    if (["proposed", "judged", "failed"].includes(action.state)) action.state = fact.verdict === "deny" ? "denied" : "judged";
    if (request && decisionOf(request) === "approve") {
      action.granted.push({ chain: request.chain, votes: request.votes.map((vote) => vote.seq), tier: request.tier, asked: request.asked, by: run.clock?.now ?? 0 });
    }
    Object.assign(action, { verdict: fact.verdict, code: fact.code ?? "", request: null });
    if (fact.verdict !== "deny") return;
    action.retry_at = 0;
    run.denied = [...run.denied.slice(-15), action.seq];
    run.spent.denials += 1;
  },
  ActionStarted(run, fact) {
    const action = actionOf(run, fact.action);
    moveAction(action, "started");
    run.spent.denials = 0;
    Object.assign(action, {
      state: "started", attempt: fact.attempt, operation: fact.operation, reserves: action.reserves.length ? action.reserves : fact.reserves,
      child: fact.child ?? "", retry_at: 0, absent: false, cause: "", landing: fact.landing, lands: 0, clock: action.clock || (run.clock?.now ?? 0),
    });
  },
  CapabilityChecked(run, fact) {
    actionOf(run, fact.action).uses += 1;
  },
  ActionDoubted(run, fact) {
    const action = actionOf(run, fact.action);
    if (fact.retry_at !== undefined && fact.cause !== "unclear") run.spent.retries += 1; // to ask again is no attempt
    const cause = fact.cause === "unclear" && action.cause ? action.cause : fact.cause; // no answer says nothing about why it is in doubt
    Object.assign(action, { state: "doubted", cause, doubts: action.doubts + 1, retry_at: fact.retry_at ?? 0 });
  },
  // An unknown that people abandon is settled; a failure with `retry_at` is tried again, after a new judgement.
  ActionEnded(run, fact, record) {
    const action = actionOf(run, fact.action), unknown = fact.result === "unknown", state = unknown && fact.via === "people" ? "settled" : fact.result;
    moveAction(action, state);
    if (fact.retry_at) {
      action.absent = true;
      run.spent.retries += 1;
    }
    if (fact.spends.length && action.child) cameBack(run, fact.spends);
    if (record.body?.length) action.out = record.seq;
    if (!unknown || fact.via === "people") action.reserves = [];
    Object.assign(action, { state, code: fact.code ?? "", retry_at: fact.retry_at ?? 0, request: null });
  },
  ApprovalRequested(run, fact, record) {
    const action = actionOf(run, fact.action), again = action.request?.id === fact.request ? action.request : null;
    action.request = {
      id: fact.request, about: fact.about, chain: fact.chain, digest: fact.digest, card: fact.card, policy: fact.policy, quorum: fact.quorum,
      tier: fact.tier, until: fact.until, expires: fact.expires, seq: again ? again.seq : record.seq, asked: again ? again.asked : run.clock?.now ?? 0,
      votes: again ? again.votes.filter((vote) => fact.carries.includes(vote.seq)) : [], over: false,
    };
  },
  Voted(run, fact, record) {
    run.clock = fact.clock;
    mailed(run, fact.mail);
    const action = actionOf(run, fact.action ?? "");
    if (!action.request) return;
    action.request.votes.push({ principal: fact.principal, decision: fact.decision, seq: record.seq, veto: fact.veto });
    if (fact.decision === "modify") action.author = fact.principal;
  },
  MessageReceived(run, fact) {
    run.clock = fact.clock;
    run.heard += 1;
    mailed(run, fact.mail);
    if (run.stage === "answered" && run.end === "completed") Object.assign(run, { stage: "ready", end: "" });
  },
  MessageRefused(run, fact) {
    mailed(run, fact.mail);
  },
  TimePassed(run, fact) {
    run.clock = fact.clock;
    for (const { request } of run.actions.values()) if (request && fact.clock.now >= request.expires) request.over = true;
  },
  // A level holds for everything before it too.
  EvidenceReached(run, fact) {
    run[fact.level] = Math.max(run[fact.level] ?? 0, fact.seq);
  },
};

// The state digest in front of the last record.
function stateDigest(records) {
  const fold = new Fold();
  try {
    for (const record of records) fold.step(record);
    return fold.digest();
  } catch (error) {
    if (error instanceof CannotFollow) return "none: the fold cannot follow these records";
    throw error;
  }
}

// -- budget: what a run used against what its genesis allows ---------------------------------------------------------------------
const UNITS = ["calls", "cost", "tokens"];

function anyBudget(records) {
  return UNITS.some((unit) => records[0].fact.budget[unit] !== undefined);
}

function usedOf(spent, unit) {
  const below = spent.below ?? { calls: 0, cost: 0, tokens: 0 };
  return { calls: plus(spent.calls, below.calls), cost: plus(spent.cost ?? 0, below.cost), tokens: plus(spent.input, spent.output, below.tokens) }[unit];
}

// {calls, handoffs} that stood within the budget. A call is held against what was known at the beginning of its turn.
function checkBudget(records) {
  const fold = new Fold(), { run } = fold;
  let decided = { ...run.spent }, calls = 0, handoffs = 0;
  for (const record of records) {
    const { fact, type } = record;
    if (type === "TurnStarted") decided = { ...run.spent };
    if (type === "ModelCalled") {
      callWithin(fact.attempt === 1 ? decided : run.spent, run, record);
      calls++;
    } else if (type === "ActionStarted" && fact.child) {
      handoffWithin(run, record);
      handoffs++;
    } else if (type === "ModelPriced" && ![undefined, fact.price.currency].includes(run.opened.budget.currency)) {
      throw beyond(record, "the price is in another currency than the budget", run.opened.budget.currency, fact.price.currency);
    }
    fold.step(record);
  }
  return { calls, handoffs };
}

function callWithin(spent, run, record) {
  const limits = run.opened.budget, prompt = run.compiled ?? 0, { reserves } = record.fact;
  const asked = { calls: 1, cost: run.price === undefined ? 0 : atMost(run.price, prompt, plus(reserves, -prompt)), tokens: reserves };
  for (const unit of UNITS) {
    const total = plus(usedOf(spent, unit), asked[unit]);
    if (limits[unit] !== undefined && total > limits[unit]) throw beyond(record, `the model is called beyond the budget of ${unit}`, limits[unit], total);
  }
  if (limits.cost !== undefined && run.price === undefined) throw beyond(record, "the budget of money has no price to be counted by", "ModelPriced", "nothing");
}

// Each unit that is limited is reserved. A fork tells again what its parent reserved.
function handoffWithin(run, record) {
  const { fact } = record, { parent } = run.opened, action = actionOf(run, fact.action);
  const told = parent !== undefined && parent.kind === "fork" && !fact.reserves.length;
  if (told || action.reserves.length) return;
  const amounts = new Map(fact.reserves.map(({ account, amount }) => [account, amount]));
  for (const unit of UNITS) {
    const limit = run.opened.budget[unit], account = `${HANDED}${run.id}/${unit}`;
    if (limit === undefined) continue;
    let held = 0;
    for (const other of run.actions.values()) for (const x of other.reserves) if (x.account === account) held = plus(held, x.amount);
    const asked = { calls: 0, cost: reservedCost(run), tokens: run.reserved }[unit], free = plus(limit, -usedOf(run.spent, unit), -held, -asked);
    const amount = amounts.get(account);
    if (amount === undefined || amount > free) throw beyond(record, `a task is handed down beyond the budget of ${unit}`, free, amount ?? "nothing");
  }
}

function beyond(record, what, expected, found) {
  return new Broken(what, { code: "MDM-0657", chain: "run", event: record.seq, type: record.type, expected: `${expected}`, found: `${found}`.slice(0, 80) });
}
