// The page of raycomp explore: filters, cards and ticks over the scripts in data/, without a server.
//
// Every text of the user's is set as text, never as markup. A row is known by its number, 0 to rows - 1. What is
// shown is the state, which is written after the # of the address, so that a view has a link.
"use strict";

const PER_PAGE = 40;
const LINKS = /^https?:\/\//i;
const NAMES = { score: "score of the last gate", alignment: "alignment", mean_pas: "mean drop of showable nouns" };
const KINDS = ["object", "relation", "predicate"];
const START = {
  outcome: [], status: [], kind: [], word: "", phrase: "", sort: "", page: "1", near: "", group: "", ticked: "",
};
for (const name of Object.keys(NAMES)) START[`${name}_from`] = START[`${name}_to`] = "";

const resolvers = new Map();
const loaded = new Map();
globalThis.raycomp = { put: (name, content) => resolvers.get(name)?.(content) };

let about, columns, state, ticks, latest = 0;
let found = []; // the numbers of the rows that fit the state, in its order

const at = (id) => document.getElementById(id);

// Loading: data/NAME.js calls raycomp.put(NAME, content).
function load(name) {
  if (!loaded.has(name)) {
    loaded.set(name, new Promise((resolve, reject) => {
      resolvers.set(name, resolve);
      const script = document.createElement("script");
      script.src = `data/${name}.js`;
      script.onload = () => script.remove();
      script.onerror = () => {
        loaded.delete(name);
        reject(new Error(`data/${name}.js cannot be loaded; copy the whole folder, with data/`));
      };
      document.head.append(script);
    }));
  }
  return loaded.get(name);
}

function decode(text, Kind) {
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
  return new Kind(bytes.buffer);
}

const pad = (number, digits) => String(number).padStart(digits, "0");

function fileOf(row) {
  let low = 0, high = about.cards.length; // the last file that starts at the row or before it
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (about.cards[middle] <= row) low = middle; else high = middle;
  }
  return low;
}

async function loadCard(row) {
  const number = fileOf(row);
  const cards = await load(`cards/${pad(number, 5)}`);
  return cards[row - about.cards[number]];
}

// Finding rows.
const splitWords = (text) => text.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? [];

async function findWord(word) {
  const sum = new TextEncoder().encode(word).reduce((total, byte) => total + byte, 0);
  const words = await load(`index/words_${pad(sum % about.buckets, 3)}`);
  const codes = words.find(([one]) => one === word);
  return codes ? decode(codes[1], Uint32Array) : [];
}

async function markWords(keep) {
  const words = splitWords(state.word);
  if (!words.length) return;
  const hits = new Uint8Array(about.rows);
  for (const word of words) {
    for (const code of await findWord(word)) if (!state.phrase || code & 1) hits[code >>> 1]++;
  }
  for (let row = 0; row < about.rows; row++) if (hits[row] < words.length) keep[row] = 0;
}

function markNames(keep, codes, names, wanted) {
  if (!wanted.length) return;
  const fits = names.map(([name]) => wanted.includes(name));
  for (let row = 0; row < about.rows; row++) if (!fits[codes[row]]) keep[row] = 0;
}

function markRange(keep, values, from, to) {
  if (from === "" && to === "") return;
  const low = from === "" ? -Infinity : Number(from), high = to === "" ? Infinity : Number(to);
  for (let row = 0; row < about.rows; row++) if (!(values[row] >= low && values[row] <= high)) keep[row] = 0;
}

async function orderRows() {
  const [, down, name] = state.sort.match(/^(-?)(\w+)$/) ?? [];
  if (!(name in NAMES)) return null;
  const order = decode(await load(`index/by_${name}`), Uint32Array); // rows without a value come last
  if (!down) return order;
  const values = columns[name];
  let known = order.length;
  while (known && Number.isNaN(values[order[known - 1]])) known--;
  return [...order.subarray(0, known).reverse(), ...order.subarray(known)];
}

async function findRows() {
  if (state.near !== "") {
    const card = await loadCard(Number(state.near));
    return card ? [Number(state.near), ...card.near.map(([row]) => row)] : [];
  }
  const keep = new Uint8Array(about.rows).fill(1);
  if (state.group !== "") {
    for (let row = 0; row < about.rows; row++) if (columns.group?.[row] !== Number(state.group)) keep[row] = 0;
  }
  if (state.ticked) for (let row = 0; row < about.rows; row++) if (!ticks.has(row)) keep[row] = 0;
  markNames(keep, columns.outcome, about.outcomes, state.outcome);
  markNames(keep, columns.status, about.statuses, state.status);
  const kinds = KINDS.reduce((bits, kind, i) => bits | (state.kind.includes(kind) ? 1 << i : 0), 0);
  if (kinds) for (let row = 0; row < about.rows; row++) if (!(columns.kinds[row] & kinds)) keep[row] = 0;
  for (const name of Object.keys(NAMES)) markRange(keep, columns[name], state[`${name}_from`], state[`${name}_to`]);
  await markWords(keep);
  const order = await orderRows();
  const rows = [];
  for (let i = 0; i < about.rows; i++) {
    const row = order ? order[i] : i;
    if (keep[row]) rows.push(row);
  }
  return rows;
}

// Elements.
function make(tag, properties, ...children) {
  const one = Object.assign(document.createElement(tag), properties);
  one.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return one;
}

const count = (number) => number.toLocaleString("en-US");
const show = (value) => (typeof value === "number" && !Number.isInteger(value) ? String(+value.toPrecision(4)) : String(value));
const words = (name) => about.words[name] ?? name.replaceAll("_", " ");

function shade(drop) {
  if (drop === null) return "shade-none";
  const step = Math.round(Math.min(Math.abs(drop) / about.scale, 1) * 4);
  return step ? `shade-${drop < 0 ? "n" : "p"}${step}` : "shade-0";
}

function sayPhrase([, , , , kind, , targetClass, drop, nonces, counts]) {
  const unseen = targetClass === "unseen" ? "; not visible in a picture" : "";
  return `${nonces.length ? `drop ${show(drop)}, nonce ${nonces.join(", ")}` : "no valid nonce"} (${kind}${unseen})${counts ? "" : ", not counted"}`;
}

// Offsets count characters as Python does, not the halves of pairs that JavaScript counts.
function makeCaption(card) {
  const letters = Array.from(card.caption ?? ""), parts = [];
  const cut = (start, end) => letters.slice(start, end).join("");
  let done = 0;
  for (const phrase of listTargets(card)) {
    const [, first, last] = phrase;
    if (!(done <= first && first <= last)) continue;
    const mark = make("mark", { className: shade(phrase[9] ? phrase[7] : null), title: sayPhrase(phrase) }, cut(first, last));
    parts.push(cut(done, first), mark);
    done = last;
  }
  parts.push(cut(done), card.cut ? `\u2026 (${count(card.cut)} more characters)` : "");
  return make("p", { className: "caption", dir: "auto" }, ...parts);
}

function line(name, value) {
  const isNumber = typeof value === "string" && value.length < 12 && value !== "" && !Number.isNaN(Number(value));
  return make("p", { className: "score" }, make("span", {}, name), make("b", { className: isNumber ? "number" : "" }, value));
}

function makePhoto(card) {
  const photo = make("div", { className: "photo" });
  if (!card.photo) photo.append(make("span", {}, about.has_photos ? "no photo" : "photos not stored"));
  else photo.append(make("img", { src: `data:image/jpeg;base64,${card.photo}`, alt: card.caption || "photo without a caption" }));
  return photo;
}

function makeTick(row) {
  const box = make("input", { type: "checkbox", checked: ticks.has(row) });
  box.onchange = () => { if (box.checked) ticks.add(row); else ticks.delete(row); keepTicks(); };
  return make("label", { className: "tick" }, box, "leave out");
}

function makeButton(text, change) {
  const button = make("button", { type: "button" }, text);
  button.onclick = () => go({ ...START, ...change });
  return button;
}

// Phrases and, where they were measured, adjectives, verbs and relation words, in the order of the caption.
const listTargets = (card) => [...card.phrases, ...(card.words ?? [])].sort((a, b) => a[1] - b[1]);

function makeDetails(row, card, values) {
  const phrases = listTargets(card);
  const parts = phrases.map((one) => line(`${one[5]} \u2192 ${one[8].join(", ") || "no nonce"} (${one[4]}${one[9] ? "" : ", not counted"})`, one[7] === null ? "" : show(one[7])));
  for (const [name, value] of Object.entries(values)) {
    if (value === null || name === "uid") continue;
    const link = name === "url" && LINKS.test(value);
    const text = link ? make("a", { href: value, target: "_blank", rel: "noopener noreferrer" }, value) : show(value);
    parts.push(line(name, text));
  }
  parts.push(make("p", { className: "uid" }, `${about.explain} ${values.uid}`));
  const number = card.phrases.length;
  return make("details", {}, make("summary", {}, `${number} phrase${number === 1 ? "" : "s"}, all values`), ...parts);
}

function makeCard(row, card, cosine) {
  const values = Object.fromEntries(about.values.map((name, i) => [name, card.values[i]]));
  const kept = values.outcome === "kept";
  const badge = make("p", {}, make("b", { className: "badge" }, kept ? "kept" : "dropped"));
  const group = columns.group?.[row];
  const text = make("div", { className: "text" }, badge, make("p", { className: "why" }, card.why), makeCaption(card),
    cosine === undefined ? "" : line(cosine === null ? "this row" : "cosine", cosine === null ? "" : show(cosine)),
    ...Object.keys(NAMES).map((name) => (typeof values[name] === "number" ? line(name === "score" ? "score" : NAMES[name], show(values[name])) : "")),
    make("p", { className: "acts" }, makeTick(row), card.near.length ? makeButton("nearest", { near: String(row) }) : "", group ? makeButton("duplicates", { group: String(group) }) : ""),
    makeDetails(row, card, values));
  const article = make("article", { className: `card ${kept ? "kept-card" : "dropped-card"}` }, makePhoto(card), text);
  article.dataset.row = String(row);
  return article;
}

// Showing a state.
function readState() {
  const given = new URLSearchParams(location.hash.slice(1)), read = {};
  for (const [name, start] of Object.entries(START)) {
    read[name] = Array.isArray(start) ? given.getAll(name) : (given.get(name) ?? start);
  }
  return read;
}

function go(next) {
  const given = new URLSearchParams();
  for (const [name, value] of Object.entries(next)) {
    if (Array.isArray(value)) for (const one of value) given.append(name, one);
    else if (value !== START[name]) given.set(name, value);
  }
  const hash = `#${given}`;
  if (hash === (location.hash || "#")) update(); else location.hash = hash;
}

function fillForm() {
  const form = at("filters");
  for (const field of form.elements) {
    if (!(field.name in START)) continue;
    if (field.type === "checkbox") {
      const value = state[field.name];
      field.checked = Array.isArray(value) ? value.includes(field.value) : value !== "";
    } else field.value = state[field.name];
  }
}

function readForm() {
  const data = new FormData(at("filters")), read = {};
  for (const [name, start] of Object.entries(START)) read[name] = Array.isArray(start) ? data.getAll(name) : (data.get(name) ?? start);
  return { ...read, page: "1", near: "", group: "" };
}

function say(text, isError = false) {
  at("said").textContent = text;
  at("said").className = isError ? "alert" : "";
}

function sayView(page, pages) {
  const first = (page - 1) * PER_PAGE + 1, last = Math.min(page * PER_PAGE, found.length);
  const rows = `${count(found.length)} of ${count(about.rows)} rows`;
  if (state.near !== "") return `A row and its ${found.length - 1} nearest rows by image embedding.`;
  if (!found.length) return `No row fits; ${count(about.rows)} rows are shown without a filter.`;
  const what = state.group === "" ? rows : `A group of near-duplicates: ${rows}`;
  return `${what}${pages > 1 ? `; ${count(first)} to ${count(last)} below` : ""}.`;
}

async function update() {
  const token = ++latest;
  try {
    state = readState();
    fillForm();
    const rows = await findRows();
    if (token !== latest) return;
    found = rows;
    await drawPage(token);
  } catch (error) {
    say(error.message, true);
  }
}

async function drawPage(token) {
  const pages = Math.max(1, Math.ceil(found.length / PER_PAGE));
  const page = Math.min(Math.max(1, Math.floor(Number(state.page)) || 1), pages);
  const rows = found.slice((page - 1) * PER_PAGE, page * PER_PAGE);
  const cards = await Promise.all(rows.map(loadCard));
  if (token !== latest) return;
  const near = state.near === "" ? null : new Map(cards[0].near);
  at("cards").replaceChildren(...rows.map((row, i) => makeCard(row, cards[i], near ? (near.get(row) ?? null) : undefined)));
  const used = new Set(rows.map((row) => `cards/${pad(fileOf(row), 5)}`));
  for (const name of loaded.keys()) if (name.startsWith("cards/") && !used.has(name)) loaded.delete(name);
  say(sayView(page, pages));
  for (const pager of document.querySelectorAll(".pager")) drawPager(pager, page, pages);
  at("back").hidden = state.near === "" && state.group === "";
  at("cards").dataset.ready = String(token);
}

function drawPager(pager, page, pages) {
  const turn = (text, to) => {
    const button = make("button", { type: "button", disabled: to < 1 || to > pages }, text);
    button.onclick = () => { go({ ...state, page: String(to) }); at("said").scrollIntoView(); };
    return button;
  };
  const input = make("input", { type: "number", min: 1, max: pages, value: page, ariaLabel: "page" });
  input.onchange = () => go({ ...state, page: input.value });
  pager.hidden = pages === 1;
  pager.replaceChildren(turn("Previous", page - 1), make("span", {}, "page ", input, ` of ${count(pages)}`), turn("Next", page + 1));
}

// Ticks: kept in this browser, saved as a list that raycomp select takes.
const storage = () => `raycomp-explore-${about.id}`;

function readTicks() {
  try {
    return new Set(JSON.parse(localStorage.getItem(storage()) ?? "[]").filter((row) => row < about.rows));
  } catch {
    return new Set(); // no storage in this browser: ticks last as long as the page
  }
}

function keepTicks() {
  try {
    localStorage.setItem(storage(), JSON.stringify([...ticks]));
  } catch { /* as above */ }
  at("ticked").textContent = count(ticks.size);
  at("save").disabled = at("clear").disabled = !ticks.size;
}

async function saveTicks() {
  const uids = await load("index/uids");
  const lines = [...new Set([...ticks].sort((a, b) => a - b).map((row) => uids[row]))];
  const head = `# ${count(lines.length)} samples to leave out, ticked in raycomp explore`;
  const link = make("a", { download: "exclude.txt", href: URL.createObjectURL(new Blob([[head, ...lines, ""].join("\n")], { type: "text/plain" })) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

function tickAll(rows, isTicked) {
  for (const row of rows) if (isTicked) ticks.add(row); else ticks.delete(row);
  keepTicks();
  update();
}

// Start.
function makeChoices(id, name, choices) {
  at(id).append(...choices.map(([value, number]) => {
    const box = make("input", { type: "checkbox", name, value });
    return make("label", {}, box, make("span", {}, words(value)), number === undefined ? "" : make("span", { className: "quiet" }, count(number)));
  }));
}

function makeForm() {
  makeChoices("outcomes", "outcome", about.outcomes);
  makeChoices("statuses", "status", about.statuses);
  makeChoices("kinds", "kind", KINDS.map((kind) => [kind]));
  const options = [["", "order of the input"]];
  for (const [name, text] of Object.entries(NAMES)) {
    options.push([name, `${text}, lowest first`], [`-${name}`, `${text}, highest first`]);
    const field = (end, hint) => make("input", { name: `${name}_${end}`, type: "number", step: "any", placeholder: hint, ariaLabel: `${text}, ${hint}` });
    at("ranges").append(make("div", { className: "range" }, make("span", {}, text), field("from", "least"), field("to", "most")));
  }
  at("sort").append(...options.map(([value, text]) => make("option", { value }, text)));
  const form = at("filters");
  form.onsubmit = (event) => event.preventDefault();
  form.onchange = () => go(readForm());
  at("reset").onclick = () => go(START);
  at("back").onclick = () => history.back();
  at("save").onclick = () => saveTicks().catch((error) => say(error.message, true));
  at("clear").onclick = () => tickAll([...ticks], false);
  at("tick-page").onclick = () => tickAll([...document.querySelectorAll(".card")].map((card) => Number(card.dataset.row)), true);
  at("tick-found").onclick = () => tickAll(found, true);
}

async function start() {
  about = await load("index/about");
  if (!about.rows) return say("No row fits the condition of this page.");
  const encoded = await load("index/columns");
  const kinds = { outcome: Uint8Array, status: Uint8Array, kinds: Uint8Array, group: Uint32Array };
  columns = Object.fromEntries(Object.entries(encoded).map(([name, text]) => [name, decode(text, kinds[name] ?? Float32Array)]));
  ticks = readTicks();
  makeForm();
  at("panel").open = matchMedia("(min-width: 1081px)").matches;
  keepTicks();
  addEventListener("hashchange", update);
  at("work").hidden = false;
  await update();
}

start().catch((error) => say(error.message, true));
