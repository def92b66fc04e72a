// The trust file: whose signatures count, for what. It comes from the reader and never from a bundle.
//
// The rule a newcomer would break: one public key has one role and one line, else one signature could be counted for two things.

const FORMS = {
  log: "log VKEY",
  bundle: "bundle NAME VKEY",
  approver: "approver PRINCIPAL VKEY",
  author: "author NAME VKEY",
  role: "role ROLE PRINCIPAL...",
  admin: "admin VKEY",
  frontend: "frontend NAME VKEY",
  anchor: "anchor NAME VKEY",
  witness: "witness NAME VKEY",
  group: "group NAME k|any|all MEMBER...",
  quorum: "quorum NAME|none",
};
const TRUST_BYTES_MAX = 1 << 20;
// Controls, line ends, turned writing: what hides from whoever reads the file, comments too.
const UNSEEN = /[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/;

// Throws Misuse that names the line. A file without a `log` and a `bundle` line is read, but proves nothing.
function parseTrust(raw) {
  const bytes = typeof raw === "string" ? utf8(raw) : raw;
  if (bytes.length > TRUST_BYTES_MAX) throw new Misuse("the trust file is too large", { code: "MDM-0182" });
  const text = textOf(bytes);
  if (text === null) throw new Misuse("the trust file is not text", { code: "MDM-0182" });
  const reader = new TrustReader();
  text.replaceAll("\r\n", "\n").split("\n").forEach((line, index) => reader.read(line, index + 1));
  reader.bundlesNameLogs();
  reader.witnessesHaveQuorum();
  return reader.trust;
}

class Trust {
  logs = [];
  bundles = []; // [name, key]
  approvers = new Map(); // public key -> [principal, key]
  roles = new Map();
  admins = [];
  authors = [];
  frontends = [];
  anchors = [];
  witnesses = new Map();
  groups = new Map(); // name -> {k, members}
  quorum = null;

  logKeys(origin) {
    return this.logs.filter((key) => key.name === origin);
  }

  // With one log in the file every bundle key is its own; with several the key's NAME says whose it is.
  bundleKeys(origin) {
    const one = new Set(this.logs.map((key) => key.name)).size < 2;
    return this.bundles.filter(([name]) => one || name === origin).map(([, key]) => key);
  }

  holds(names, principal) {
    return names.some((name) => name === principal || (name.startsWith("role:") && (this.roles.get(name.slice(5)) ?? []).includes(principal)));
  }
}

class TrustReader {
  trust = new Trust();
  line = 0;
  seen = new Map();
  members = new Set(); // of all groups
  quorumLine = 0;

  read(text, number) {
    this.line = number;
    if (UNSEEN.test(text)) throw this.error("a control character, or one that turns the writing, stands in it", "use tabs, spaces and line ends alone");
    const words = text.split("#", 1)[0].split(/[ \t]/).filter((word) => word);
    if (!words.length) return;
    const [kind, ...rest] = words;
    if (!Object.hasOwn(FORMS, kind)) throw this.error(`'${kind.slice(0, 40)}' starts no line of a trust file`, `one of ${Object.keys(FORMS).join(", ")}`);
    if (words.some((word) => !/^[!-~]{1,2000}$/.test(word))) throw this.error("a word is not printable ASCII, or too long", "use ids such as p-alice, not names");
    const exactly = FORMS[kind].split(" ").length;
    const [least, most] = kind === "role" ? [3, 10000] : kind === "group" ? [4, 10000] : [exactly, exactly];
    if (words.length < least || words.length > most) throw this.error(`a ${kind} line has ${rest.length} words after its first`, `write it as: ${FORMS[kind]}`);
    this[kind](...rest);
  }

  key(text) {
    let key;
    try {
      key = parseVKey(text);
    } catch (error) {
      if (!(error instanceof Misuse)) throw error;
      throw new Misuse(error.message, { ...error.finding, line: this.line });
    }
    if (this.seen.has(key.hexed)) throw this.error(`this public key stands on line ${this.seen.get(key.hexed)} already`, "one key, one role, one line: make a second key", "MDM-0183");
    this.seen.set(key.hexed, this.line);
    return key;
  }

  log(text) {
    const key = this.key(text);
    if (![ED25519, P256].includes(key.kind)) throw this.error("the key is one of a witness, not of a log", "copy the log's own key");
    this.trust.logs.push(key);
  }

  admin(text) { this.trust.admins.push(this.key(text)); }
  bundle(name, text) { this.trust.bundles.push([name, this.key(text)]); }
  author(name, text) { this.trust.authors.push([name, this.key(text)]); }
  frontend(name, text) { this.trust.frontends.push([name, this.key(text)]); }

  approver(principal, text) {
    const key = this.key(text);
    this.trust.approvers.set(key.hexed, [principal, key]);
  }

  role(role, ...principals) {
    this.trust.roles.set(role, [...new Set([...(this.trust.roles.get(role) ?? []), ...principals])]);
  }

  anchor(name, text) {
    const key = this.key(text);
    if (key.name !== name) throw this.error(`anchor '${name.slice(0, 40)}' has a key of another name`, "NAME is the origin of the public log, and its key's name");
    this.trust.anchors.push(key);
  }

  witness(name, text) {
    this.newName(name);
    const key = this.key(text);
    if ([ED25519, P256].includes(key.kind)) throw this.error("the key is not one of a witness", "copy the key that the witness publishes: its type is a cosigner's"); // else its line could be taken for the log's own
    this.trust.witnesses.set(name, key);
  }

  group(name, k, ...members) {
    this.newName(name);
    const { witnesses, groups } = this.trust;
    for (const member of members) {
      if (!witnesses.has(member) && !groups.has(member)) throw this.error(`group member '${member.slice(0, 40)}' is not defined above`, "define witnesses and groups before they are used");
    }
    if (new Set(members).size !== members.length) throw this.error("a group names a member twice", "name each member once");
    const twice = members.find((member) => this.members.has(member)); // C2SP tlog-policy: else one cosignature counts in two ways
    if (twice) throw this.error(`'${twice.slice(0, 40)}' is a member of another group`, "put each witness and each group into one group");
    members.forEach((member) => this.members.add(member));
    const number = k === "any" ? 1 : k === "all" ? members.length : /^[1-9][0-9]{0,3}$/.test(k) ? Number(k) : 0;
    if (number < 1 || number > members.length) throw this.error(`'${k.slice(0, 12)}' of ${members.length} members can never be`, "write any, all or a number from 1 to the number of members");
    groups.set(name, { k: number, members });
  }

  quorum(name) {
    const { witnesses, groups } = this.trust;
    if (this.trust.quorum !== null) throw this.error(`a second quorum line; the first is line ${this.quorumLine}`, "keep one");
    if (name !== "none" && !witnesses.has(name) && !groups.has(name)) throw this.error(`quorum '${name.slice(0, 40)}' is not defined above`, "name a witness or a group, or none");
    this.trust.quorum = name;
    this.quorumLine = this.line;
  }

  newName(name) {
    if (this.trust.witnesses.has(name) || this.trust.groups.has(name) || name === "none") throw this.error(`the name '${name.slice(0, 40)}' is taken`, "choose another");
  }

  witnessesHaveQuorum() {
    if (this.trust.witnesses.size && this.trust.quorum === null) {
      throw this.error("witnesses are named, and nothing says how many of them must have signed", "end it with quorum NAME, or quorum none");
    }
  }

  bundlesNameLogs() {
    const origins = new Set(this.trust.logs.map((key) => key.name));
    for (const [name, key] of origins.size > 1 ? this.trust.bundles : []) {
      if (origins.has(name)) continue;
      this.line = this.seen.get(key.hexed);
      throw this.error(`bundle '${name.slice(0, 40)}' does not say for which log it signs`, "with several logs NAME is one of their origins");
    }
  }

  error(what, fix, code = "MDM-0181") {
    return new Misuse(what, { code, line: this.line, fix });
  }
}
