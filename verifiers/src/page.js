// The page: files in, the report out. Everything that came from a file is written as text nodes, never as markup.
//
// The rule a newcomer would break: colour says nothing alone. Each outcome is a word and a sign, and what cannot be checked is never green.

const SIGNS = { [PROVEN]: ["✓", "proven"], [BROKEN]: ["✕", "broken"], [CANNOT]: ["?", "partly"], [ABSENT]: ["–", "absent"] };
const VERDICTS = { PROVEN: ["✓", "proven"], "NOT PROVEN": ["✕", "broken"], "NOT FULLY CHECKED": ["!", "partly"] };
const SENTENCES = {
  0: "What this bundle claims holds, and the run is complete.",
  1: "Something does not hold: do not rely on this bundle.",
  2: "There is nothing to verify, or no key to verify it with. Nothing was checked.",
  3: "What is shown holds, but a part is not shown, or fewer people witnessed it than you ask for.",
  4: "What is recorded so far holds, but the run is not finished: more may follow.",
  5: "Something cannot be decided here: look at the lines with a question mark.",
};
const VIEWS = ["agent_run.json", "decision.json", "tool_trace.json"];
const SLICE_MS = 80;

function byId(id) {
  return document.getElementById(id);
}

// An element with attributes and children; a text among the children is marked and becomes text nodes.
function made(name, attributes, ...children) {
  const out = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) out.setAttribute(key, value);
  for (const child of children) out.append(...(child instanceof Node ? [child] : marked(`${child}`)));
  return out;
}

// Signs that cannot be seen, or that turn the order of others, are shown by their number; letters beyond ASCII are underlined.
function marked(text) {
  const out = [], plain = /^[\x20-\x7e\n]+$/;
  for (const [piece] of text.matchAll(/[\x20-\x7e\n]+|[^]/gu)) {
    const code = piece.codePointAt(0), name = `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
    if (plain.test(piece) || OWN_SIGNS.has(piece)) out.push(document.createTextNode(piece));
    else if (/[\p{C}\p{Z}\p{M}\p{Default_Ignorable_Code_Point}]/u.test(piece)) out.push(spanOf("mark", name, `the character ${name}, which cannot be seen`));
    else out.push(spanOf("odd", piece, `${name}: not an ASCII letter, though it may look like one`));
  }
  return out;
}

const OWN_SIGNS = new Set(["✓", "✕", "–", "…"]);

function spanOf(kind, text, title) {
  const span = document.createElement("span");
  span.className = kind;
  span.title = title;
  span.append(document.createTextNode(text));
  return span;
}

function told(text) {
  return made("bdi", { class: "mono" }, text);
}

// -- the report ---------------------------------------------------------------------------------------------------------------------
function drawReport(report, culprit, seconds) {
  const [sign, kind] = VERDICTS[report.verdict], code = report.exit_code, found = report.broken ?? report.error;
  const parts = [
    made("h2", { id: "verdict", class: `verdict ${kind}` }, made("span", { "aria-hidden": "true" }, sign), report.verdict),
    made("p", { class: "meaning" }, SENTENCES[code], " ", made("span", { class: "small" }, `Exit code ${code}: ${MEANS[code]}.`)),
  ];
  if (found) parts.push(drawFinding(found, report.attested, culprit));
  if (report.run) parts.push(drawFacts(report, seconds));
  if (report.claims?.length) parts.push(drawClaims(report.claims));
  if (found && report.claims?.length && report.claims.length <= 5) parts.push(made("p", { class: "small" }, "What rests on the last of these lines was not looked at."));
  parts.push(...drawJson(report));
  return parts;
}

function pairs(list) {
  return made("dl", {}, ...list.filter(([, value]) => value !== undefined && value !== "").flatMap(([name, value]) => [made("dt", {}, name), made("dd", {}, value instanceof Node ? value : told(`${value}`))]));
}

function drawFinding(found, attested, culprit) {
  const box = made("div", { class: "finding" }, made("h3", { class: "broken" }, `${found.where ? `${found.where}: ` : ""}${found.what}`));
  box.append(pairs([["expected", found.expected], ["found", found.found], ["why", found.why], ["to do", found.fix], ["code", found.code]]));
  if (attested) box.append(made("p", {}, `What can still be said: ${attested}.`));
  if (culprit) box.append(made("details", {}, made("summary", {}, `Line ${culprit.number} of the bundle, as it stands there`), made("pre", {}, made("bdi", {}, culprit.text))));
  return box;
}

function drawFacts(report, seconds) {
  const point = report.checkpoint, time = point?.time ? ` seen ${new Date(point.time * 1000).toISOString()}` : "";
  return pairs([
    ["run", report.run], ["state", `${report.state}, ${report.events} events`], ["head", report.head],
    ["log", point && `${point.origin}, ${point.size} leaves, root ${point.root}${time}`], ["checked in", seconds && `${seconds.toFixed(1)} s, on this computer`],
  ]);
}

function drawClaims(claims) {
  const rows = claims.map(({ name, outcome, says }) => {
    const [sign, kind] = SIGNS[outcome];
    const tag = made("span", { class: `tag ${kind}` }, made("span", { "aria-hidden": "true" }, sign), outcome);
    return made("tr", {}, made("th", { scope: "row" }, name), made("td", {}, tag), made("td", {}, made("bdi", {}, says)));
  });
  const count = (outcome) => claims.filter((one) => one.outcome === outcome).length;
  const sum = Object.keys(SIGNS).filter(count).map((outcome) => `${count(outcome)} ${outcome}`).join(", ");
  const head = made("thead", {}, made("tr", {}, ...["Claim", "Outcome", "What was checked"].map((name) => made("th", { scope: "col" }, name))));
  return made("table", {}, made("caption", {}, `Each claim by itself: ${sum}.`), head, made("tbody", {}, ...rows));
}

function drawJson(report) {
  const text = reportText(report), area = made("pre", { id: "json", tabindex: "0", role: "region", "aria-label": "The report as JSON" }, text);
  const button = made("button", { type: "button", id: "copy" }, "Copy report as JSON"), said = made("span", { role: "status" });
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      said.replaceChildren(" Copied.");
    } catch {
      area.closest("details").open = true;
      getSelection().selectAllChildren(area);
      said.replaceChildren(" Select and copy it from below.");
    }
  });
  return [made("p", { class: "actions" }, button, said), made("details", {}, made("summary", {}, "The report, as mandamus verify --json prints it"), area)];
}

function reportText(report) {
  const sorted = (_, value) => (isObject(value) ? Object.fromEntries(Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1))) : value);
  return JSON.stringify(report, sorted, 1);
}

// The line that the finding is about, where one can be named.
function culpritOf(report, bundle) {
  const { line, chain, event } = report.broken ?? {};
  try {
    const box = readContainer(bundle), section = { run: "record", log: "log" }[chain];
    const number = line ?? (section && event !== undefined ? box.first[section] + event : 0);
    if (!number) return null;
    let at = 0;
    for (let n = 1; n < number; n++) at = bundle.indexOf(10, at) + 1;
    const raw = bundle.subarray(at, bundle.indexOf(10, at)), text = textOf(raw) ?? latin1Long(raw);
    return { number, text: text.length > 4000 ? `${text.slice(0, 4000)} … (${text.length} characters)` : text };
  } catch {
    return null; // the container itself is what is broken
  }
}

// -- files --------------------------------------------------------------------------------------------------------------------------
const chosen = { bundle: null, trust: null, beside: [] };
const LAST = '{"mandamus":"last-seen/1"';

// Files that are dropped are told apart by what they are.
async function sortDropped(files) {
  for (const file of files) {
    if (VIEWS.includes(file.name) || /^[0-9a-f]{64}$/.test(file.name) || (await beginsWith(file, LAST))) chosen.beside.push(file);
    else if (await beginsWith(file, '{"bundle":')) chosen.bundle = file;
    else chosen.trust = file;
  }
  say([chosen.bundle && `Bundle: ${chosen.bundle.name}.`, chosen.trust && `Trust file: ${chosen.trust.name}.`, chosen.beside.length && `${some(chosen.beside.length, "further file")}.`].filter((x) => x).join(" "));
}

async function beginsWith(file, text) {
  return textOf(new Uint8Array(await file.slice(0, text.length).arrayBuffer())) === text;
}

async function bytesOf(file) {
  return new Uint8Array(await file.arrayBuffer());
}

// What lies beside the bundle: views and blobs by name, and what was seen last of the log.
async function besideFiles() {
  const out = { views: new Map(), blobs: new Map(), last: null };
  for (const file of chosen.beside) {
    if (await beginsWith(file, LAST)) out.last = await bytesOf(file);
    else (VIEWS.includes(file.name) ? out.views : out.blobs).set(file.name, await bytesOf(file));
  }
  return out;
}

function say(text) {
  byId("status").replaceChildren(...marked(text));
}

// -- checking: in slices, so that the page stays alive; no worker, which would need an address of its own ------------------------------------
let sliceEnd = 0;

async function drawProgress(done, all, what) {
  const now = performance.now();
  if (now < sliceEnd) return;
  const bar = byId("progress");
  if (all) bar.value = done / all;
  else bar.removeAttribute("value");
  say(all ? `Checking ${what}: ${done} of ${all}` : `Checking ${what}`);
  await new Promise((next) => setTimeout(next));
  sliceEnd = performance.now() + SLICE_MS;
}

async function check(event) {
  event?.preventDefault();
  if (!chosen.bundle) return say("Choose the bundle first.");
  const button = byId("check"), bar = byId("progress"), result = byId("result");
  delete globalThis.mandamusReport;
  button.disabled = true;
  bar.hidden = false;
  result.hidden = true;
  try {
    const begun = performance.now(), bundle = await bytesOf(chosen.bundle), trust = chosen.trust && (await bytesOf(chosen.trust));
    const report = await verify({ bundle, trust, ...(await besideFiles()), progress: drawProgress });
    result.replaceChildren(...drawReport(report, culpritOf(report, bundle), (performance.now() - begun) / 1000));
    document.title = `${report.verdict}: the proof of a run`;
    globalThis.mandamusReport = report;
    say(`Done: ${report.verdict}.`);
  } catch (error) {
    const why = `A file could not be read, perhaps because it has changed since: choose it again. (${error.message})`;
    result.replaceChildren(made("h2", { id: "verdict" }, "Nothing was checked"), made("p", {}, why));
    say("Nothing was checked.");
  } finally {
    button.disabled = false;
    bar.hidden = true;
    result.hidden = false;
    result.focus();
  }
}

function begin() {
  for (const name of ["bundle", "trust"]) byId(name).addEventListener("change", ({ target }) => (chosen[name] = target.files[0] ?? null));
  byId("beside").addEventListener("change", ({ target }) => (chosen.beside = [...target.files]));
  byId("form").addEventListener("submit", check);
  addEventListener("dragover", (event) => {
    event.preventDefault();
    document.body.classList.add("dropping");
  });
  addEventListener("dragleave", ({ relatedTarget }) => relatedTarget ?? document.body.classList.remove("dropping"));
  addEventListener("drop", async (event) => {
    event.preventDefault();
    document.body.classList.remove("dropping");
    await sortDropped([...event.dataTransfer.files]);
    if (chosen.bundle && chosen.trust) check();
  });
}

// For programs that drive this page: the same check, without the files being chosen.
globalThis.mandamusVerify = verify;
if (sha256hex("abc") === "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad") begin();
else say("This browser does not count as it should: SHA-256 of a known text came out wrong. Nothing can be checked here.");
