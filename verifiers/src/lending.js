// Standing votes under an intent, and the requests that people answer.
//
// The rule a newcomer would break: an allowance is one vote of its approver in its own chain, never a quorum; and a request is made by the
// owner of the run, so its digest, its card and how many people it must ask are worked out anew from the proposal and the rules.

const PREFIX = "standing/"; // accounts of an allowance: standing/<its name>/...

class Lending {
  served = new Map(); // action -> name of an allowance -> {chain, principal, until}
  unseen = new Set(); // actions charged to an allowance that is not shown

  constructor(votes) {
    this.votes = votes;
  }

  // chain -> people whose standing votes count for this intent.
  async under(record) {
    const { fact } = record, reserves = fact.reserves.filter(({ account }) => account.startsWith(PREFIX));
    const names = [...new Set(reserves.map(({ account }) => account.split("/")[1]))].sort();
    if (names.length) this.served.set(fact.action, new Map());
    for (const name of names) {
      const served = await this.allowance(record, name, reserves.filter(({ account }) => account.split("/")[1] === name));
      if (served) this.served.get(fact.action).set(name, served);
      else this.unseen.add(fact.action);
    }
    const out = new Map();
    for (const [name, served] of this.served.get(fact.action) ?? []) {
      if (!this.over(name, served, fact.action)) out.set(served.chain, (out.get(served.chain) ?? new Set()).add(served.principal));
    }
    return out;
  }

  freed(action) {
    this.served.delete(action);
  }

  // Has an allowance of an earlier attempt ended since?
  over(name, served, action) {
    const { version, authority } = { version: this.votes.judged.get(action).fact.authority, authority: this.votes.authority };
    return (authority.withdrawn.get(name) ?? version + 1) <= version || this.votes.now >= served.until;
  }

  lapsed(action, chain) {
    return [...(this.served.get(action) ?? [])].some(([name, served]) => served.chain === chain && this.over(name, served, action));
  }

  // Whoever had a standing vote in this chain at this version of the authority.
  async inChain(chain, version) {
    const { votes } = this, out = new Set();
    for (const [name, { version: since, record }] of votes.authority.granted) {
      if (since > version || (votes.authority.withdrawn.get(name) ?? version + 1) <= version) continue;
      const line = votes.line(record, "ballot");
      if (!line) {
        votes.hide(`allowance of log event ${record.seq}`);
        continue;
      }
      try {
        const opened = await votes.signed(record, line, version);
        if (opened.ballot.scope.standing?.chain === chain) out.add(opened.principal);
      } catch (error) {
        if (!(error instanceof Broken)) throw error; // such as of a key that was revoked: it lends nothing
      }
    }
    return out;
  }

  // chain -> the thin rules that ask it about this call. What rules in another language ask is not known.
  asking(action) {
    const { votes } = this, call = votes.proposed.get(action).fact, about = (rule, amount) => asksAbout(rule, call.tool, call.safety, votes.tenant, amount);
    let rules = votes.chains.rules(votes.judged.get(action).fact.bundle).filter((rule) => about(rule, null));
    if (rules.some((rule) => rule.over)) {
      const { known, amount } = this.amount(action);
      rules = rules.filter((rule) => !rule.over || (known && about(rule, amount)));
    }
    const out = new Map();
    for (const rule of rules) out.set(rule.chain, [...(out.get(rule.chain) ?? []), rule]);
    return out;
  }

  // Are these people, with their standing votes, as many as the rules ask for? `needed`: as was asked, or 0.
  enough(record, action, chain, people, needed, rules) {
    const { votes } = this, declared = votes.chains.of(votes.judged.get(action).fact.bundle, chain);
    if (!declared) return votes.hide(`rules of chain ${chain}`);
    const most = Math.max(needed, declared.tiers[0].quorum, ...rules.map((rule) => rule.quorum), 1);
    if (people.size >= most) return;
    if (rules.length && rules.every((rule) => rule.enough) && this.served.has(action)) votes.tally.alone++;
    else if (!rules.length && this.served.has(action)) votes.hide(`rules of chain ${chain}`); // another language may call an allowance enough
    else {
      const found = people.size + (this.served.has(action) ? ", a standing vote being one" : "");
      throw votes.broken(record, "too few different people approved", { expected: `${most} of chain ${chain}`, found, code: "MDM-0654" });
    }
  }

  // {known, amount: [currency, minor units]} that the judgement looked at: one that the arguments name.
  amount(action) {
    const { votes } = this, judged = votes.judged.get(action), facts = votes.line(judged, "facts"), args = votes.line(votes.proposed.get(action), "args");
    if (!facts || !args) {
      votes.hide(`facts of event ${judged.seq}`);
      return { known: false, amount: null };
    }
    const said = isObject(facts.value) ? facts.value.amount : null;
    if (!isObject(said)) return { known: true, amount: null };
    const amount = [`${said.currency}`, said.minor], named = isObject(args.value) ? moneysOf(args.value) : [];
    if (!named.some((money) => money.currency === amount[0] && minorOf(money) === amount[1])) throw votes.broken(judged, "its facts name an amount that the arguments do not");
    return { known: true, amount };
  }

  // A standing vote of chain `log`, in force at the version of the judgement, under the same policy, for this call, not used up.
  async allowance(record, name, reserves) {
    const { votes } = this, { action } = record.fact, judged = votes.judged.get(action).fact, version = judged.authority;
    const granted = votes.authority.granted.get(name);
    if (!granted || granted.version > version || (votes.authority.withdrawn.get(name) ?? version + 1) <= version) {
      throw votes.broken(record, "it rests on an allowance that was not in force", { code: "MDM-0655" });
    }
    const line = votes.line(granted.record, "ballot"), proposal = votes.proposed.get(action), args = votes.line(proposal, "args");
    if (!line || !args) {
      votes.hide(`allowance of log event ${granted.record.seq}`);
      return null;
    }
    const { ballot, principal } = await votes.signed(granted.record, line, version), { standing } = ballot.scope;
    const until = standing ? Math.min(standing.until, ballot.expires) : 0;
    if (!standing || ballot.origin !== votes.origin || votes.now >= until) throw votes.broken(record, "its allowance is over or of another log", { code: "MDM-0655" });
    if (ballot.policy !== judged.bundle) throw votes.broken(record, "its allowance is for another tool or policy", { code: "MDM-0653" });
    const why = whyNotCovered(standing, proposal.fact, args.value);
    if (why) throw votes.broken(record, why, { code: "MDM-0653" });
    this.mayServe(record, action, standing.chain, principal, judged.bundle);
    this.charge(record, reserves, limitsOf(name, standing, votes.run, localDate(votes.clock)), standing, args.value);
    votes.tally.votes++;
    votes.tally.allowances++;
    return { chain: standing.chain, principal, until };
  }

  // Of somebody whom the chain's first tier asks, and not about his own request.
  mayServe(record, action, chain, principal, policy) {
    const { votes } = this;
    if (votes.guarded.has(action)) throw votes.broken(record, "an allowance serves what a person must look at each time (GDPR, Art. 22)", { code: "MDM-0652" });
    const declared = votes.chains.of(policy, chain);
    if (!declared) return votes.hide(`rules of chain ${chain}`);
    const [tier] = declared.tiers;
    if (!votes.mayDecide(tier, principal)) throw votes.broken(record, "its allowance is of somebody whom the chain does not ask", { expected: tier.of.join(", "), found: principal, code: "MDM-0652" });
    if (votes.own(tier, action, principal)) throw votes.broken(record, "its allowance is of the person whose own request it is", { expected: "another person", found: principal, code: "MDM-0652" });
  }

  // Exactly what the ballot says one call costs, and never more in all than it grants.
  charge(record, reserves, limits, standing, args) {
    const accounts = reserves.map(({ account }) => account).sort(), wanted = [...limits.keys()].sort(), { votes } = this;
    if (accounts.join("\n") !== wanted.join("\n")) throw votes.broken(record, "its allowance is charged to other accounts", { expected: wanted.join(", "), found: accounts.join(", "), code: "MDM-0657" });
    for (const { account, amount } of reserves) {
      if (!isCharged(account, amount, standing, args)) throw votes.broken(record, "its allowance is charged another amount than the call's", { found: `${amount}`, code: "MDM-0657" });
      const used = votes.totals.get(`${record.seq}\n${account}`) ?? amount;
      if (used > limits.get(account)) throw votes.broken(record, "its allowance is used up", { expected: `${limits.get(account)}`, found: `${used}`, code: "MDM-0655" });
    }
  }
}

// Why an allowance is not for this call; "" when it is.
function whyNotCovered(standing, call, args) {
  if (call.effect === "irreversible" || call.safety === "privileged") return "its allowance is for what has to be asked each time";
  const { tool, args: wanted = {} } = standing.pattern;
  if (!isObject(args) || tool !== call.tool) return "its allowance is for another tool or policy";
  if (!isObject(wanted) || Object.keys(wanted).some((name) => !sameValue(Object.hasOwn(args, name) ? args[name] : null, wanted[name]))) return "its allowance is for other arguments";
  if (standing.amount === undefined && call.safety === "financial" && moneysOf(args).length) return "its allowance names no amount, and the call moves money";
  return "";
}

// account -> what may be reserved and spent on it in all.
function limitsOf(name, standing, run, date) {
  const window = { day: date, run, until: "all" }[standing.window], out = new Map([[`${PREFIX}${name}/count/${window}`, standing.count]]);
  if (standing.amount) out.set(`${PREFIX}${name}/amount/${window}`, minorOf(standing.amount));
  return out;
}

function isCharged(account, amount, standing, args) {
  if (account.includes("/count/")) return amount === 1;
  return standing.amount !== undefined && moneysOf(args).some((money) => money.currency === standing.amount.currency && minorOf(money) === amount);
}

// Every amount of money among the arguments.
function moneysOf(args) {
  return Object.values(args)
    .filter((v) => isObject(v) && Object.hasOwn(v, "amount") && Object.hasOwn(v, "currency") && Object.keys(v).every((k) => ["amount", "currency", "decimals"].includes(k)))
    .map(moneyOf)
    .filter((money) => money);
}

// The civil date where the run's clock stands.
function localDate(clock) {
  return new Date((Math.floor(clock.now / 60_000_000) + clock.offset) * 60_000).toISOString().slice(0, 10);
}

// -- requests -------------------------------------------------------------------------------------------------------------------
class Requests {
  known = new Map(); // request -> the record of its newest tier
  needs = new Map(); // request -> how many people were demanded of it

  constructor(votes) {
    this.votes = votes;
  }

  async made(record) {
    const { votes } = this, { fact } = record, proposal = votes.proposed.get(fact.action);
    if (!proposal) throw votes.broken(record, "it asks about an action that was never proposed");
    const digests = this.digests(proposal, fact);
    if (!digests.includes(fact.digest)) throw votes.broken(record, "its digest is not the action's", { expected: digests[0], found: fact.digest });
    const earlier = this.known.get(fact.request)?.fact;
    this.tierInTurn(record, fact, earlier);
    await this.enough(record, fact, earlier ? earlier.until : votes.clock.now);
    this.card(record, fact.action, fact.card);
    this.known.set(fact.request, record);
  }

  // The first tier opens a request; each later one follows the tier before it, when that one's time was over.
  tierInTurn(record, fact, earlier) {
    const { votes } = this;
    if (!earlier) {
      if (fact.tier) throw votes.broken(record, "no earlier tier led to this one", { expected: "tier 0", found: `tier ${fact.tier}` });
      return;
    }
    const same = ["about", "action", "card", "chain", "digest", "expires", "policy"].every((name) => earlier[name] === fact[name]) && fact.tier === earlier.tier + 1;
    if (!same) throw votes.broken(record, "a later tier changes what was asked");
    if (votes.clock.now < earlier.until) throw votes.broken(record, "the tier before it was not over", { expected: `${earlier.until}`, found: `${votes.clock.now}` });
  }

  // As many people, and as much time for them, as the rules say.
  async enough(record, fact, begins) {
    const { votes } = this, opening = fact.tier === 0 && fact.about === "start", chain = votes.chains.of(fact.policy, fact.chain);
    let asked = opening ? Math.max(1, votes.asked.get(fact.action)?.get(fact.chain)?.quorum ?? 1) : 1;
    if (!chain) votes.hide(`rules of chain ${fact.chain}`);
    else if (fact.tier >= chain.tiers.length || fact.tier < 0) throw votes.broken(record, "its chain has no such tier", { expected: `${chain.tiers.length} tiers`, found: `tier ${fact.tier}` });
    else {
      const tier = chain.tiers[fact.tier], ends = begins + tier.deadline_ms * 1000;
      asked = Math.max(asked, tier.quorum);
      if (fact.until < ends) throw votes.broken(record, "its tier ends before its time", { expected: `${ends}`, found: `${fact.until}` });
    }
    this.needs.set(fact.request, Math.max(asked, fact.quorum));
    if (fact.quorum < asked && opening && fact.quorum >= 1) asked -= (await votes.lending.inChain(fact.chain, votes.judgedOf(record, fact.action).fact.authority)).size;
    if (fact.quorum < asked) throw votes.broken(record, "it asks fewer people than policy demanded", { expected: `${asked}`, found: `${fact.quorum}` });
  }

  // With the expiry and without: whichever the writer bound, the ballot names the expiry again.
  digests(proposal, fact) {
    const { call, pin } = proposal.fact, { origin, run } = this.votes, args = proposal.body?.length ? proposal.body[0].commit : "";
    const bound = { args, call, origin, policy: fact.policy, run, target: args };
    if (pin !== undefined) bound.pin = pin;
    return [digest("action", canon({ ...bound, expires: fact.expires })), digest("action", canon(bound))];
  }

  // The card in this record, if it has one, is the one that was shown and signed. A later tier repeats its request without it.
  card(record, action, signed) {
    const { votes } = this, card = votes.line(record, "card"), args = votes.line(votes.proposed.get(action), "args");
    if (card && args) {
      const found = isObject(card.value) ? cardDigest(args.secret, card.value) : "";
      if (found !== signed) throw votes.broken(record, "its card is not the one that was shown and signed", { expected: signed, found });
    } else if (record.body?.some((part) => part.part === "card")) votes.hide(`card of event ${record.seq}`);
  }

  // Null: the rules of its chain are not shown.
  tier(request) {
    return this.votes.chains.of(request.policy, request.chain)?.tiers[request.tier] ?? null;
  }

  // The request that `at` answers, as its newest tier says it.
  of(at, request) {
    const record = this.known.get(request);
    if (!record) throw this.votes.broken(at, "it answers a request that was never made", { code: "MDM-0653" });
    return record.fact;
  }
}
