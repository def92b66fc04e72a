// Every vote of a run: signed by a trusted key of somebody whom the rules ask, for exactly this action, in time; and by enough people.
//
// The rule a newcomer would break: a `Voted` record proves nothing by itself, whether an intent lists it or not. Its ballot is opened from the
// payload, verified against the trust file, and compared with the request that it answers; two keys of one person are one voter.

const OUTCOME = "outcome.unknown"; // the rule by which people are asked what became of an action
const ART_22 = "ask.art22"; // the rule by which a deed waits for the oversight chain whatever policy says
const SETTLES = { __proto__: null, done: "done", unknown: "abandon" }; // result of an outcome that people gave -> what they voted

class Votes {
  tally = { intents: 0, votes: 0, allowances: 0, alone: 0, hidden: new Set() };
  proposed = new Map();
  judged = new Map(); // action -> record of its newest judgement
  guarded = new Set(); // actions that wait for a person each time, by the law
  asked = new Map(); // action -> chain -> {quorum, policy}
  opened = new Map(); // seq of a vote -> {principal, ballot, key}
  modified = new Map();
  rejections = new Map();
  authors = new Map(); // action -> who wrote its arguments anew
  unknown = new Map();
  withdrawn = new Set();
  now = 0;

  constructor({ records, log, trust, authority, line, chains, totals }) {
    Object.assign(this, { records, trust, authority, line, chains, totals });
    const { fact } = records[0];
    this.opening = log.length && log[0].type === "LogOpened" ? log[0].fact : null;
    this.origin = fact.origin;
    this.run = records[0].run;
    this.clock = fact.clock;
    this.requester = fact.user?.principal ?? "";
    this.tenant = fact.tenant;
    this.forked = fact.parent?.kind === "fork";
    this.lending = new Lending(this);
    this.requests = new Requests(this);
  }

  async check() {
    for (const record of this.records) {
      const { fact, type } = record;
      if (type === "ActionStarted") await this.started(record, fact);
      else if (type === "ActionEnded" && fact.via === "people" && this.judged.has(fact.action)) this.settled(record, fact);
      this.tick(fact);
      if (type === "ApprovalRequested") await this.requests.made(record);
      else this.note(record, fact, type);
      if (type === "Voted") await this.cast(record, fact);
    }
    return this.tally;
  }

  tick({ clock }) {
    if (clock === undefined) return;
    this.clock = clock;
    this.now = Math.max(this.now, clock.now);
  }

  note(record, fact, type) {
    if (type === "ActionProposed") this.noteProposal(record, fact);
    else if (type === "ActionEnded" && fact.result === "unknown" && fact.via !== "people") this.unknown.set(fact.action, record.seq);
    else if (type === "ActionEnded") this.lending.freed(fact.action);
    else if (type === "ActionJudged") this.noteJudgement(record, fact);
    else if (type === "VoteWithdrawn") this.withdrawn.add(fact.ballot);
  }

  noteJudgement(record, fact) {
    this.judged.set(fact.action, record);
    if (fact.determining.includes(ART_22)) this.guarded.add(fact.action);
    if (fact.determining.includes(OUTCOME)) return; // those asks are about what happened, not about a start
    if (!this.asked.has(fact.action)) this.asked.set(fact.action, new Map());
    for (const ask of fact.asks ?? []) if (ask.to === "people") this.asked.get(fact.action).set(ask.chain, { quorum: ask.quorum, policy: fact.bundle });
  }

  // -- each vote, whatever became of it ------------------------------------------------------------------------------------------
  // Somebody whom the chain asks has signed exactly this, in time.
  async cast(record, fact) {
    const request = this.requests.of(record, `${fact.request}`);
    if (fact.action !== request.action || fact.scope !== "once") throw this.broken(record, "it is for another action than its request");
    if (fact.clock.now >= request.expires) throw this.broken(record, "its request had expired", { code: "MDM-0655" });
    this.allowedTo(record, fact, request);
    this.requests.card(record, request.action, request.card);
    const line = this.line(record, "ballot");
    if (!line) this.hide(`ballot of event ${record.seq}`);
    else {
      const opened = await this.signed(record, line, this.judged.get(request.action)?.fact.authority ?? 0);
      const why = this.unlike(opened.ballot, fact, request);
      if (why) throw this.broken(record, `the signed ballot names another ${why}`);
      this.opened.set(record.seq, opened);
      this.tally.votes++;
    }
    if (fact.decision === "reject") this.rejections.set(request.request, [...(this.rejections.get(request.request) ?? []), record]);
    if (fact.decision === "modify") this.modified.set(request.action, record);
  }

  allowedTo(record, fact, request) {
    const tier = this.requests.tier(request), no = (what, expected) => this.broken(record, what, { expected, found: fact.principal, code: "MDM-0652" });
    if (!tier) return; // said already: the rules of the chain are not shown
    if (!this.mayVote(tier, fact.principal)) throw no("it was cast by somebody whom the chain does not ask", tier.of.join(", "));
    if (fact.veto && !this.trust.holds(tier.veto, fact.principal)) throw no("it is called a veto of somebody who has none", tier.veto.join(", "));
    if (this.own(tier, request.action, fact.principal)) throw no("it was cast by the person whose own request it is", "another person");
  }

  // Counts for the quorum. A tier that names nobody means every approver of the trust file.
  mayDecide(tier, principal) {
    return !tier.of.length || this.trust.holds(tier.of, principal);
  }

  mayVote(tier, principal) {
    return this.mayDecide(tier, principal) || this.trust.holds(tier.veto, principal);
  }

  // Whoever asked for it or wrote its arguments anew does not approve it.
  own(tier, action, principal) {
    const names = { requester: this.requester, author: this.authors.get(action) ?? "" };
    return tier.sod.some((duty) => names[duty] === principal);
  }

  // Which field of what was signed is not the one of what was asked; "" when none.
  unlike(ballot, vote, request) {
    const pairs = {
      origin: [ballot.origin, this.origin], run: [ballot.run, this.run], request: [ballot.request, request.request],
      action: [ballot.action, request.digest], card: [ballot.card, request.card], policy: [ballot.policy, request.policy],
      expiry: [ballot.expires, request.expires], decision: [ballot.decision, vote.decision], scope: [ballot.scope, vote.scope],
      subject: [request.about, vote.about],
    };
    return Object.keys(pairs).find((name) => pairs[name][0] !== pairs[name][1]) ?? "";
  }

  // What people write is what one of them signed: the commitment of the new arguments stands in the ballot.
  noteProposal(record, fact) {
    this.proposed.set(fact.action, record);
    if (fact.by !== "person") return;
    const vote = this.modified.get(fact.replaces);
    this.modified.delete(fact.replaces);
    if (!vote) throw this.broken(record, "people wrote it, but nobody voted for it");
    this.authors.set(fact.action, vote.fact.principal);
    const opened = this.opened.get(vote.seq), found = record.body?.length ? record.body[0].commit : "";
    if (opened && opened.ballot.args !== found) throw this.broken(record, "its arguments are not those that were signed", { expected: `${opened.ballot.args}`, found });
  }

  // -- what rests on votes -------------------------------------------------------------------------------------------------------
  async started(record, fact) {
    const votes = [];
    for (const seq of fact.votes) {
      const vote = seq >= 0 && seq < record.seq ? this.records[seq] : null;
      if (vote?.type !== "Voted") throw this.broken(record, `it lists event ${seq} as a vote, which is none before it`);
      if (vote.fact.decision === "approve") votes.push(vote);
    }
    const lent = await this.lending.under(record), rules = this.lending.asking(fact.action);
    const answered = this.quorum(record, fact.action, votes, lent, rules);
    for (const chain of [...lent.keys()].filter((name) => !answered.has(name)).sort()) {
      this.lending.enough(record, fact.action, chain, lent.get(chain), this.asked.get(fact.action)?.get(chain)?.quorum ?? 0, rules.get(chain) ?? []);
    }
    this.asksMet(record, fact, new Set([...answered, ...lent.keys()]), new Set(rules.keys()));
    this.again(record, fact.action);
    if (fact.votes.length || lent.size) this.tally.intents++;
  }

  // Whoever was asked, or had to be by the rules, has answered or lent a standing vote (of this or an earlier attempt).
  asksMet(record, fact, answered, rules) {
    const policy = this.judged.get(fact.action).fact.bundle;
    const asked = new Set([...(this.asked.get(fact.action) ?? [])].filter(([, ask]) => ask.policy === policy).map(([chain]) => chain));
    let wanted = new Set([...asked, ...rules]);
    if (this.forked && [...rules].some((chain) => !asked.has(chain) && !answered.has(chain))) {
      this.hide("votes of the run that it was forked from"); // told again: whoever answered, answered the run that it was forked from
      wanted = asked;
    }
    if (this.lending.unseen.has(fact.action)) return;
    for (const chain of [...wanted].filter((name) => !answered.has(name)).sort()) {
      if (this.lending.lapsed(fact.action, chain)) throw this.broken(record, "it rests on an allowance that was not in force", { code: "MDM-0655" });
      throw this.broken(record, "policy asked people, and the intent rests on no vote of theirs", { expected: `chain ${chain}`, code: "MDM-0654" });
    }
  }

  // What nobody knew the outcome of is tried again only when enough people said so, after that became known.
  again(record, action) {
    const since = this.unknown.get(action);
    this.unknown.delete(action);
    if (since === undefined) return;
    for (const { seq, fact: request } of this.requests.known.values()) {
      if (seq <= since || request.action !== action || request.about !== "outcome") continue;
      const tier = this.requests.tier(request), voters = new Set();
      for (const vote of this.records.slice(since, record.seq)) if (says(vote, request.request, "again")) voters.add(vote.fact.principal);
      if ([...voters].filter((name) => !tier || this.mayDecide(tier, name)).length >= request.quorum) return;
    }
    throw this.broken(record, "nobody knew its outcome, and people did not say to try again", { code: "MDM-0654" });
  }

  // An outcome that people gave rests on their votes about it, under the newest request.
  settled(record, fact) {
    const said = SETTLES[fact.result];
    if (!said) return;
    const request = [...this.requests.known.values()].reverse().find(({ fact: r }) => r.action === fact.action && r.about === "outcome")?.fact;
    if (!request) throw this.broken(record, "people settled it, but were never asked");
    const votes = this.records.slice(0, record.seq).filter((vote) => says(vote, request.request, said));
    if (!votes.length) throw this.broken(record, "people settled it without a vote", { code: "MDM-0654" });
    this.quorum(record, fact.action, votes, new Map(), new Map());
    this.tally.intents++;
  }

  // Enough people answered each request. The chains that were asked about a start.
  quorum(record, action, votes, lent, rules) {
    const people = new Map(), answered = new Set();
    for (const vote of votes) this.counted(record, action, vote, people);
    for (const [name, voters] of people) {
      const request = this.requests.of(record, name), needed = this.requests.needs.get(name);
      this.unopposed(record, request);
      if (request.about === "start") answered.add(request.chain);
      if (request.tier === 0 && request.about === "start") {
        this.lending.enough(record, action, request.chain, new Set([...voters, ...(lent.get(request.chain) ?? [])]), needed, rules.get(request.chain) ?? []);
      } else if (voters.size < needed) {
        throw this.broken(record, "too few different people approved", { expected: `${needed} of chain ${request.chain}`, found: `${voters.size}`, code: "MDM-0654" });
      }
    }
    return answered;
  }

  // One rejection by somebody whom the tier asks decides, whoever approved.
  unopposed(record, request) {
    const tier = this.requests.tier(request);
    for (const other of this.rejections.get(request.request) ?? []) {
      if (!tier || this.mayVote(tier, other.fact.principal)) throw this.broken(record, `it had been rejected at event ${other.seq}`, { code: "MDM-0654" });
    }
  }

  counted(record, action, voted, people) {
    const vote = voted.fact;
    if (vote.action !== action || vote.scope !== "once" || vote.request === undefined) throw this.broken(record, `the vote of event ${voted.seq} is for another action`);
    const request = this.requests.of(voted, vote.request), judged = this.judged.get(action).fact;
    if (!people.has(vote.request)) people.set(vote.request, new Set());
    if (judged.bundle !== request.policy) throw this.broken(record, `the vote of event ${voted.seq} was given under another policy`, { expected: judged.bundle, found: request.policy });
    if (Math.max(vote.clock.now, this.now) >= request.expires) throw this.broken(record, `the vote of event ${voted.seq} had expired`, { code: "MDM-0655" });
    if (this.withdrawn.has(vote.ballot)) throw this.broken(record, `the vote of event ${voted.seq} was withdrawn`, { code: "MDM-0655" });
    const opened = this.opened.get(voted.seq), tier = this.requests.tier(request);
    if (opened && this.authority.wasRevoked(opened.key, judged.authority)) throw this.broken(voted, "the key that signed its ballot had been revoked", { code: "MDM-0656" });
    if (!tier || this.mayDecide(tier, vote.principal)) people.get(vote.request).add(vote.principal);
  }

  // The ballot of a vote, by an approver's key that was in force at `version`.
  async signed(voted, line, version) {
    const vote = voted.fact, envelope = envelopeOf(line.value), standing = vote.scope === "standing";
    const admins = standing && this.opening ? adminsOf(this.opening, this.trust, this.authority.before(version + 1)) : [];
    const found = standing ? await examineStanding(envelope, this.trust, admins, this.opening?.quorum ?? 1) : await examineBallot(envelope, this.trust);
    const no = (what, more = {}) => this.broken(voted, what, { code: "MDM-0652", line: line.number, ...more });
    if (typeof found === "string") throw no(`its ballot does not count: ${found.replaceAll("_", " ")}`);
    if (found.principal !== vote.principal) throw no("its ballot was signed by somebody else", { expected: vote.principal, found: found.principal });
    if (ballotDigest(found.ballot) !== vote.ballot) throw no("its ballot is another one", { expected: vote.ballot, found: ballotDigest(found.ballot) });
    if (this.authority.wasRevoked(found.key, version)) throw no("the key that signed its ballot had been revoked", { code: "MDM-0656" });
    return found;
  }

  judgedOf(at, action) {
    const judged = this.judged.get(action);
    if (!judged) throw this.broken(at, "it asks about an action that was never judged");
    return judged;
  }

  hide(what) {
    this.tally.hidden.add(what);
  }

  broken(at, what, more = {}) {
    return new Broken(what, { code: "MDM-0653", chain: chainName(at.run), event: at.seq, type: at.type, ...more });
  }
}

function says(record, request, decision) {
  return record.type === "Voted" && record.fact.request === request && record.fact.decision === decision;
}

// Exactly what held.
function tallyWords({ votes, intents, alone, allowances }) {
  if (!votes) return "no intent of this run rests on a vote";
  let said = `${some(votes, "signed vote")} for ${some(intents, "intent")}: distinct approvers, this action, in time`;
  if (alone < intents) said += ", quorum reached";
  if (allowances) said += `; ${allowances} of them standing votes, each one vote of its approver in its chain`;
  if (alone) said += `; ${some(alone, "intent rests", "intents rest")} on an allowance alone, which the rules call enough: no quorum was asked for`;
  return said;
}

// -- tiers: where a recorded time ended a tier, the next one was asked at once ----------------------------------------------------
const EXPIRED = "ask.expired";

// How many times a next tier was due and asked. Throws Broken at the first one that was passed over.
function checkTiers(records, chains) {
  if (!records.some(({ type }) => type === "ApprovalRequested")) return 0;
  const last = new Map(), fold = new Fold(); // policy -> where it judged last
  for (const { type, fact, seq } of records) if (type === "ActionJudged") last.set(fact.bundle, seq);
  let asked = 0;
  for (const record of records) {
    if (record.type === "TimePassed") asked += tiersPassed(fold.run, record, records, chains, last);
    else if (record.type === "ActionJudged" && record.fact.determining.includes(EXPIRED)) ranOut(fold.run.actions.get(record.fact.action), record, chains);
    try {
      fold.step(record);
    } catch (error) {
      if (error instanceof CannotFollow) return asked; // that is found where the seal is checked
      throw error;
    }
  }
  return asked;
}

// The requests right behind this time are those of the tiers that begin with it.
function tiersPassed(run, record, records, chains, last) {
  const { now } = record.fact.clock, found = new Set();
  let count = 0;
  for (let at = record.seq + 1; records[at]?.type === "ApprovalRequested"; at++) found.add(`${records[at].fact.tier} ${records[at].fact.request}`);
  for (const { request: q, retry_at, state } of run.actions.values()) {
    if ((!retry_at && CLOSED.includes(state)) || !q || q.over || decisionOf(q) !== "" || now < q.until) continue;
    if ([...last].some(([policy, seq]) => policy !== q.policy && seq > record.seq)) continue; // another policy's chain may have other tiers
    const chain = chains.of(q.policy, q.chain);
    if (!chain || q.tier + 1 >= chain.tiers.length) continue;
    if (!found.has(`${q.tier + 1} ${q.id}`)) throw noTier(record, "the time of a tier was over, and the next one was not asked", `tier ${q.tier + 1} of chain ${q.chain}`, `still tier ${q.tier}`);
    count++;
  }
  return count;
}

function ranOut(action, record, chains) {
  const q = action?.request, chain = q && chains.of(q.policy, q.chain);
  if (chain && q.policy === record.fact.bundle && q.tier + 1 < chain.tiers.length) {
    throw noTier(record, "it expired before every tier of its chain was asked", `${chain.tiers.length} tiers`, `tier ${q.tier} was the last`);
  }
}

function noTier(record, what, expected, found) {
  return new Broken(what, { code: "MDM-0654", chain: "run", event: record.seq, type: record.type, expected, found });
}
