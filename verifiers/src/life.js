// Which record may stand where: the life of a run and of its actions, as a table of rules by type.
//
// The rule a newcomer would break: an intent stands directly behind its own ALLOW, for every attempt. A rule answers with a sentence when
// the record may not stand there, and with "" when it may. Types without a rule may stand anywhere in a chain of their kind.

const MOVES = {
  proposed: ["judged", "denied", "cancelled"],
  judged: ["started", "denied", "judged", "cancelled"],
  started: ["doubted", "done", "failed"],
  doubted: ["started", "done", "failed", "unknown", "cancelled", "doubted"],
  unknown: ["started", "done", "settled"],
  done: [],
  failed: ["judged", "denied", "cancelled"],
  denied: [],
  cancelled: [],
  settled: [],
};
const CLOSED = ["done", "failed", "denied", "cancelled", "settled"];

// What the rules remember of one chain.
class Life {
  actions = new Map(); // action -> its state in MOVES
  attempts = new Map();
  effects = new Map();
  children = new Set();
  final = new Set(); // what is over
  calls = false; // a model call is open
  ended = "";
  refused = false; // by a person's no that ends the run
  sealed = false;
  erasures = new Map(); // erasure -> not before this instant
  holds = new Map(); // hold -> as it was placed; null when lifted

  constructor(count) {
    this.count = count;
  }

  get inFlight() {
    if (this.calls) return true;
    for (const state of this.actions.values()) if (state === "started" || state === "doubted") return true;
    return false;
  }

  // Actions whose outcome nobody knows and nobody has settled.
  get unsettled() {
    return [...this.actions].filter(([, state]) => state === "unknown").map(([action]) => action);
  }

  // "" when the table allows it; the action stands there now.
  move(action, state) {
    const before = this.actions.get(action);
    if (before === undefined) return `action ${action.slice(0, 40)} was never proposed`;
    if (!MOVES[before].includes(state) || this.final.has(action)) {
      if (CLOSED.includes(before)) return `action ${action.slice(0, 40)} is ${before}, it cannot be ${state} any more`;
      return before === "started" ? `an attempt is still in flight, it cannot be ${state}` : `what is ${before} cannot be ${state}`;
    }
    this.actions.set(action, state);
    return "";
  }
}

// A person said no, and meant the run: once nothing is in the air any more, it can only fail.
function endsByNo(fact) {
  return fact.cause === "people" && fact.code === "rejected";
}

function opens(life, record, previous) {
  return previous === null ? "" : "a chain has one genesis";
}

function voted(life, record) {
  const { fact } = record, standing = fact.scope === "standing";
  if ((record.run === LOG) !== standing) return "a standing vote belongs to chain log, any other to its run";
  if (standing !== (fact.action === undefined)) return "only a standing vote names no action";
  return record.run === LOG || life.actions.has(fact.action) ? "" : `action ${fact.action.slice(0, 40)} was never proposed`;
}

function onlyLog(life, record) {
  return `${record.type} belongs to chain log`;
}

function onlyRun(life, record) {
  return `${record.type} belongs to a run, not to chain log`;
}

function answered(life, record) {
  const open = life.calls;
  life.calls = false;
  if (record.type === "ModelFailed" && record.fact.category === "bad_output") return ""; // says that the reply before it was of no use
  return open ? "" : "no model call is open";
}

function started(life, record, previous) {
  const { fact } = record, before = previous?.type === "ActionJudged" ? previous.fact : null;
  if (!before || before.verdict !== "allow" || before.action !== fact.action || before.attempt !== fact.attempt) {
    return "an intent without the ALLOW of this action and attempt directly before it";
  }
  const state = life.actions.get(fact.action);
  if (state === "started" || fact.attempt <= (life.attempts.get(fact.action) ?? 0)) return "this attempt was started before, or an earlier one is still in flight";
  if (state === "doubted" && life.effects.get(fact.action) === "irreversible") return "what cannot be taken back is tried again while nobody knows whether it happened";
  const what = life.move(fact.action, "started");
  if (what) return what;
  if (fact.child !== undefined) life.children.add(fact.action);
  life.attempts.set(fact.action, fact.attempt);
  if (life.refused) return "an action starts after a person's no had ended the run";
  return life.ended ? "an action starts after the run ended" : "";
}

const RUN_RULES = {
  __proto__: null,
  RunOpened: opens,
  RunOwned(life, record, previous) {
    if (previous === null || record.epoch !== previous.epoch + 1) return "a new owner raises the epoch by one";
    for (const [action, state] of life.actions) {
      if (state === "started" && !life.children.has(action)) life.actions.set(action, "doubted"); // a child's own chain answers, not doubt
    }
    return "";
  },
  RunEnded(life, { fact }) {
    if (life.ended) return "a run ends once";
    life.ended = fact.state;
    return "";
  },
  RunHalted(life, { fact }) {
    life.refused ||= endsByNo(fact);
    return "";
  },
  RunSealed(life, record) {
    const { fact } = record;
    life.sealed = true;
    if (record.seq !== life.count - 1) return "a record stands behind the seal";
    if (!life.ended || fact.closed !== life.ended) return "the seal does not say how the run ended";
    if (fact.head !== record.prev || fact.count !== record.seq) return "the seal counts other records than those before it";
    return life.inFlight || life.unsettled.length ? "sealed while an action is in flight or unsettled" : "";
  },
  ModelCalled(life) {
    life.calls = true;
    if (life.refused) return "a model is called after a person's no had ended the run";
    return life.ended ? "a model is called after the run ended" : "";
  },
  ModelPriced: (life, record) => (record.seq === 1 ? "" : "a price stands right behind the genesis"),
  ModelReplied: answered,
  ModelFailed: answered,
  ActionProposed(life, { fact }) {
    if (life.actions.has(fact.action)) return `action ${fact.action.slice(0, 40)} is proposed twice`;
    life.actions.set(fact.action, "proposed");
    life.effects.set(fact.action, fact.effect);
    return life.ended ? "an action is proposed after the run ended" : "";
  },
  ActionJudged(life, { fact }) {
    const state = life.actions.get(fact.action);
    if (state === "doubted" || state === "unknown") return ""; // what is in doubt stays so while it is judged
    return life.move(fact.action, fact.verdict === "deny" ? "denied" : "judged");
  },
  ActionStarted: started,
  ActionDoubted(life, { fact }) {
    const state = life.actions.get(fact.action);
    return state === "started" || state === "doubted" ? life.move(fact.action, "doubted") : "only a started action can be doubted";
  },
  ActionEnded(life, { fact }) {
    const before = life.actions.get(fact.action);
    if (fact.result === "done" && (before === "proposed" || before === "judged")) return "an action that never started is done";
    if (fact.result === "cancelled" && before === "doubted" && life.effects.get(fact.action) === "irreversible") return "nobody knows whether it happened, and it is called cancelled";
    const what = life.move(fact.action, fact.result === "unknown" && fact.via === "people" ? "settled" : fact.result);
    if (!what && fact.result === "failed" && fact.retry_at === undefined) life.final.add(fact.action); // the last word
    return what;
  },
  Voted: voted,
  EvidenceReached(life, { fact, seq }) {
    if (fact.seq < 0 || fact.seq >= seq) return "evidence was reached for an event that is not there yet";
    return fact.size > fact.seq ? "" : "a checkpoint of fewer leaves than the run has events";
  },
};
for (const name of ["LogOpened", "RunRefused", "PolicyChanged", "KeyChanged", "HoldPlaced", "HoldLifted", "ErasureRequested", "ErasureBlocked", "Erased", "Exported", "VoteWithdrawn"]) {
  RUN_RULES[name] = onlyLog;
}

// What is forgotten, and what is kept.
const KEEPING = {
  HoldPlaced(life, { fact }) {
    if (life.holds.has(fact.hold)) return `hold ${fact.hold.slice(0, 40)} is placed twice`;
    life.holds.set(fact.hold, fact);
    return "";
  },
  HoldLifted(life, { fact }) {
    if (!life.holds.get(fact.hold)) return `hold ${fact.hold.slice(0, 40)} is not in force`;
    life.holds.set(fact.hold, null);
    return "";
  },
  ErasureRequested(life, { fact }) {
    if (life.erasures.has(fact.erasure)) return `erasure ${fact.erasure.slice(0, 40)} is requested twice`;
    life.erasures.set(fact.erasure, fact.after);
    return "";
  },
  ErasureBlocked(life, { fact }) {
    if (!life.erasures.has(fact.erasure)) return `erasure ${fact.erasure.slice(0, 40)} was never requested`;
    return fact.hold === undefined || life.holds.get(fact.hold) ? "" : `hold ${fact.hold.slice(0, 40)}, which is said to keep it, is not in force`;
  },
  Erased(life, { fact }) {
    if (!life.erasures.has(fact.erasure)) return "something was destroyed that nobody had asked to erase";
    if (fact.clock.now < life.erasures.get(fact.erasure)) return "it was destroyed before its time";
    for (const hold of life.holds.values()) {
      if (hold && hold.run === undefined && (hold.subject === undefined || hold.subject === fact.subject)) return `it was destroyed while hold ${hold.hold.slice(0, 40)} was in force`;
    }
    return "";
  },
};
const IN_LOG = { __proto__: null, LogOpened: opens, Voted: voted, ...KEEPING };
for (const name of ["RunRefused", "PolicyChanged", "KeyChanged", "StopRequested", "VoteWithdrawn", "Exported"]) IN_LOG[name] = null;
const LOG_RULES = { __proto__: null };
for (const name of Object.keys(TABLE.facts)) LOG_RULES[name] = name in IN_LOG ? IN_LOG[name] : onlyRun;
