// Whom a policy asks: the thin rules of a bundle's policies, read as far as they name chains of people (docs/reference/rules-yaml.md).
//
// The rule a newcomer would break: rules that do not read any more declare nothing. What rests on them is not checked then, and said to be so.

const RULES_FILE = "policy/rules.json";
const DEFAULT_TIER = { quorum: 1, of: [], veto: [], deadline_ms: 3_600_000, sod: ["requester", "author"] };
const DEFAULT_CHAIN = { id: "default", tiers: [DEFAULT_TIER] };
const SAFETY = ["read", "write", "network", "financial", "privileged"];
const WEEKDAYS = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];
const LEVELS = ["sealed", "witnessed"]; // of evidence; the second is the higher one
const BESIDE = { name: isText, on_deny: among("", "feedback", "halt"), reason: isText, tenant: isText };

class BadRules extends Error {}

function bad(what) {
  throw new BadRules(what);
}

// -- money: digits, a currency, its decimals ------------------------------------------------------------------------------------
const THREE = ["BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND"], NONE = ["CLP", "ISK", "JPY", "KRW", "PYG", "UGX", "VND", "XAF", "XOF"];
const TWO = (
  "AED AUD BRL CAD CHF CNY CZK DKK EGP EUR GBP HKD HUF ILS INR MXN NOK NZD PLN RON SAR SEK SGD THB TRY USD ZAR"
).split(" ");

function exponent(currency) {
  return THREE.includes(currency) ? 3 : NONE.includes(currency) ? 0 : TWO.includes(currency) ? 2 : 6;
}

// {amount, currency, decimals}, or null for what is no money.
function moneyOf(value) {
  const { amount, currency, decimals = 2 } = value;
  if (typeof amount !== "string" || !/^(0|[1-9][0-9]{0,38})$/.test(amount)) return null;
  if (typeof currency !== "string" || !/^[A-Z][A-Z0-9]{2,9}$/.test(currency)) return null;
  return Number.isInteger(decimals) && decimals >= 0 && decimals <= 18 ? { amount, currency, decimals } : null;
}

// The amount as policy sees it, finer amounts rounded up; null beyond 2^53-1.
function minorOf(money) {
  const places = exponent(money.currency), finer = BigInt(money.decimals - places), amount = BigInt(money.amount);
  const value = finer <= 0n ? amount * 10n ** -finer : (amount + 10n ** finer - 1n) / 10n ** finer;
  return value <= BigInt(INT_MAX) ? Number(value) : null;
}

function writtenMoney(text, currency = "") {
  const [, amount, named] = /^([^ ]*) ?([^]*)$/.exec(text.trim());
  const unit = currency && !named ? currency : named.trim();
  const match = /^([0-9]{1,30})(?:\.([0-9]{1,18}))?$/.exec(amount.replaceAll(",", "").trim());
  if (!match || !unit || (currency && unit !== currency)) bad("not money");
  const places = exponent(unit), fraction = match[2] ?? "";
  if (fraction.length > places) bad("more decimals than the currency has");
  const money = moneyOf({ amount: (match[1] + fraction.padEnd(places, "0")).replace(/^0+/, "") || "0", currency: unit, decimals: places });
  if (!money || minorOf(money) === null) bad("not money");
  return money;
}

// -- what may be written --------------------------------------------------------------------------------------------------------
function isText(v) { return typeof v === "string"; }
function isWhole(v) { return Number.isInteger(v); }
function isSome(v) { return isText(v) || (Array.isArray(v) && v.every(isText)); }
function among(...words) { return (v) => words.includes(v); }
function many(some) { return some === undefined ? [] : isText(some) ? [some] : some; }

const SCOPED = { safety: isSome, tools: isSome };
const ASKS = { chain: isText, quorum: isWhole, standing: among("vote", "enough"), ...SCOPED };
const SETTINGS = {
  __proto__: null,
  dualApproval: [{ over: isText, ...ASKS }],
  maxAmount: [{ limit: isText, currency: isText, ...SCOPED }, "limit"],
  maxDailyLimit: [{ limit: isText, currency: isText, per: among("agent", "tenant", "counterparty"), ...SCOPED }, "limit"],
  needsApproval: [{ roles: isSome, ...ASKS }],
  needsEvidence: [{ level: among("sealed", "witnessed"), over: isText, within: isText, ...SCOPED }],
  noWritesOn: [{ weekdays: isSome, dates: isSome, tz: isText, ...SCOPED }],
  permit: [{ role: isSome, tool: isSome, maxAmount: isText, ...SCOPED }],
  recipientAllowlist: [{ recipients: isSome, argument: isText, ...SCOPED }, "recipients"],
  stepBudget: [{ turns: isWhole, calls: isWhole }],
  toolAllowlist: [{ tools: isSome }, "tools"],
  toolDenylist: [{ tools: isSome }, "tools"],
  workingHours: [{ from: isText, to: isText, weekdays: isSome, tz: isText, ...SCOPED }, "from", "to"],
};
const MONEY_SETTING = { __proto__: null, maxAmount: "limit", maxDailyLimit: "limit", dualApproval: "over", needsEvidence: "over" };

function shaped(value, fields, ...required) {
  if (!isObject(value)) bad("not a mapping");
  for (const key of Object.keys(value)) if (!Object.hasOwn(fields, key) || !fields[key](value[key])) bad(`setting ${key}`);
  for (const key of required) if (!Object.hasOwn(value, key)) bad(`no ${key}`);
  return value;
}

function isId(name) {
  return isText(name) && /^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$/.test(name);
}

function readRule(entry, taken) {
  if (!isObject(entry)) bad("not a rule");
  const rest = Object.keys(entry).filter((key) => !Object.hasOwn(BESIDE, key) && !["id", "rule", "params"].includes(key));
  let kind = Object.hasOwn(entry, "rule") ? `${entry.rule}` : "", params;
  if (kind) {
    if (rest.length) bad("a key beside rule and params");
    params = Object.hasOwn(entry, "params") ? entry.params : {};
  } else {
    if (rest.length !== 1) bad("not one kind of rule");
    kind = rest[0];
    params = entry[kind];
  }
  if (!(kind in SETTINGS)) bad("no kind of rule");
  params ??= {};
  if (isObject(params) && Object.values(params).some((v) => v === "" || (Array.isArray(v) && !v.length))) bad("an empty setting");
  const [fields, ...required] = SETTINGS[kind], beside = Object.fromEntries(Object.keys(BESIDE).filter((k) => Object.hasOwn(entry, k)).map((k) => [k, entry[k]]));
  shaped(beside, BESIDE);
  const rule = { kind, settings: shaped(params, fields, ...required), tenant: beside.tenant ?? "", id: entry.id };
  if (Object.hasOwn(entry, "id")) {
    if (!isId(rule.id) || /^(ask\.|default\.|no_match)/.test(rule.id) || taken.has(rule.id)) bad("not an id of a rule");
  } else {
    rule.id = kind;
    for (let n = 2; taken.has(rule.id); n++) rule.id = `${kind}.${n}`;
  }
  taken.add(rule.id);
  return rule;
}

function readTier(text) {
  const names = { quorum: isWhole, of: isSome, roles: isSome, veto: isSome, deadline: isText, sod: (v) => Array.isArray(v) && v.every(among("requester", "author")) };
  const { quorum, deadline = "1h", sod = DEFAULT_TIER.sod, ...who } = shaped(text, names, "quorum");
  const of = [...many(who.of), ...many(who.roles).map((role) => `role:${role}`)], people = of.filter((name) => !name.startsWith("role:"));
  if (quorum < 1 || quorum > 100) bad("quorum");
  if (of.length && people.length === of.length && new Set(people).size < quorum) bad("fewer people than the quorum");
  const span = /^([1-9][0-9]{0,8})([smhd])$/.exec(deadline);
  if (!span) bad("deadline");
  return { quorum, of, veto: many(who.veto), deadline_ms: Number(span[1]) * { s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 }[span[2]], sod };
}

function readChain(id, text) {
  if (LEVELS.includes(id)) bad("a level of evidence is no name for people");
  const { tiers } = shaped(text, { tiers: Array.isArray, on_reject: among("", "feedback", "terminate") }, "tiers");
  if (!tiers.length) bad("no tier");
  return { id, tiers: tiers.map(readTier) };
}

// -- compiled -------------------------------------------------------------------------------------------------------------------
// {chains: Map, asks}: what several documents declare. Throws BadRules.
function compileRules(documents) {
  if (!Array.isArray(documents)) bad("not documents");
  const rules = [], taken = new Set(), chains = new Map();
  for (const document of documents) {
    shaped(document, { rules: Array.isArray, chains: isObject, on_deny: (v) => v === null || ["feedback", "halt"].includes(v) });
    for (const entry of document.rules ?? []) rules.push(readRule(entry, taken));
    for (const [name, text] of Object.entries(document.chains ?? {})) declareChain(chains, readChain(name, text));
  }
  const known = new Map();
  for (const rule of rules) {
    const setting = MONEY_SETTING[rule.kind], text = setting && rule.settings[setting];
    if (!text) continue;
    rule.money = writtenMoney(text, rule.settings.currency);
    known.set(scopeOf(rule), (known.get(scopeOf(rule)) ?? new Set()).add(rule.money.currency));
  }
  const asks = [];
  for (const rule of rules) {
    checkSettings(rule);
    const asking = askingOf(rule, [...(known.get(scopeOf(rule)) ?? [])].sort(), chains);
    if (asking) asks.push(asking);
  }
  for (const { chain, made } of asks) {
    if (made) continue;
    if (!chains.has(chain) && chain !== "default") bad("no such chain");
    if (!chains.has(chain)) chains.set(chain, DEFAULT_CHAIN);
  }
  return { chains, asks };
}

function declareChain(chains, chain) {
  if (chains.has(chain.id) || !isId(chain.id)) bad("a chain twice, or no id");
  chains.set(chain.id, chain);
}

function scopeOf({ kind, tenant, settings }) {
  return canon([kind, tenant, [...many(settings.safety)].sort(), [...many(settings.tools)].sort()]);
}

function checkSettings({ kind, settings: s }) {
  if (many(s.safety).some((word) => !SAFETY.includes(word))) bad("safety class");
  const day = (word) => WEEKDAYS.some((name) => [name, name.slice(0, 3)].includes(word.toLowerCase()));
  if (!many(s.weekdays).every(day)) bad("weekday");
  if (kind === "permit" && s.maxAmount) writtenMoney(s.maxAmount);
  if (["dualApproval", "needsApproval"].includes(kind) && (s.quorum < 1 || s.quorum > 100)) bad("quorum");
  if (kind === "needsEvidence" && !/^[1-9][0-9]{0,4}[smhd]$/.test(s.within ?? "1h")) bad("within");
  if (kind === "noWritesOn") {
    if (!many(s.dates).every((date) => /^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])$/.test(date))) bad("date");
    if (!many(s.weekdays).length && !many(s.dates).length) bad("no day");
    if ((s.tz ?? "") !== (s.tz ?? "").trim()) bad("zone");
  }
  if (kind === "workingHours") {
    const minutes = [s.from, s.to].map((text) => (/^(([01][0-9]|2[0-3]):[0-5][0-9]|24:00)$/.test(text) ? Number(text.slice(0, 2)) * 60 + Number(text.slice(3)) : bad("time")));
    if (minutes[0] === minutes[1]) bad("from is to");
  }
  if (kind === "stepBudget") {
    const { turns = 0, calls = 0 } = s;
    if (turns < 0 || calls < 0 || turns > INT_MAX || calls > INT_MAX || !(turns || calls)) bad("steps");
  }
}

// Whom a rule asks, about which calls; null for a rule that asks nobody.
function askingOf(rule, currencies, chains) {
  const { kind, settings: s } = rule, tools = [...new Set([...many(s.tools), ...many(s.tool)])], roles = many(s.roles);
  if (kind !== "dualApproval" && kind !== "needsApproval") return null;
  if (s.chain && roles.length) bad("either chain or roles");
  const quorum = s.quorum ?? (kind === "dualApproval" ? 2 : 1), made = roles.length > 0;
  if (made) declareChain(chains, { id: rule.id, tiers: [{ ...DEFAULT_TIER, quorum, of: roles.map((role) => `role:${role}`) }] });
  const safety = many(s.safety).length ? many(s.safety) : kind === "dualApproval" && !tools.length ? ["financial"] : [];
  const over = rule.money ? [rule.money.currency, minorOf(rule.money)] : null;
  return { chain: made ? rule.id : s.chain || "default", made, quorum, enough: s.standing === "enough", safety, tools, tenant: rule.tenant, over, currencies };
}

// As its Cedar says it. `amount`: [currency, minor units] of the call, or null when it moves no money.
function asksAbout(asking, tool, safety, tenant, amount) {
  if (asking.tools.length && !asking.tools.includes(tool)) return false;
  if (asking.safety.length && !asking.safety.includes(safety)) return false;
  if (asking.tenant !== "" && asking.tenant !== tenant) return false;
  if (!asking.over || !amount || !asking.currencies.includes(amount[0])) return true;
  return amount[0] === asking.over[0] && amount[1] > asking.over[1];
}

// The chains and asking rules of each policy that the bundle shows.
class Chains {
  made = new Map();

  constructor(sources) {
    this.sources = sources; // digest -> source
  }

  declared(policy) {
    if (!this.sources.has(policy)) return null;
    if (!this.made.has(policy)) this.made.set(policy, declaredBy(this.sources.get(policy)));
    return this.made.get(policy);
  }

  of(policy, chain) {
    const declared = this.declared(policy);
    return declared && (declared.chains.get(chain) ?? (chain === "default" ? DEFAULT_CHAIN : null));
  }

  rules(policy) {
    return this.declared(policy)?.asks ?? [];
  }
}

function declaredBy(source) {
  const out = { chains: new Map(), asks: [] };
  for (const [name, text] of Object.entries(source)) {
    if (!name.endsWith(RULES_FILE) || !isText(text)) continue;
    try {
      const { chains, asks } = compileRules(parseStrict(text));
      for (const [id, chain] of chains) out.chains.set(id, chain);
      out.asks.push(...asks);
    } catch (error) {
      if (!(error instanceof BadRules || error instanceof NotCanonical)) throw error;
    }
  }
  return out;
}
