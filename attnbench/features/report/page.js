// What a reader can do with the page. Without this script it still has its answers and its tables.
"use strict";

const root = document.documentElement, form = $("#controls");

/* State: what the address says, what the controls say. One object, one way out. */

const NOTHING = { run: "", phase: "", mask: "", dtype: "", n: String(facts.length ?? ""), unit: "ms", y: "memory",
  one: "", v: "", about: "", cell: "" }; // v: the variants ticked, "*exact" or "*all"; empty: the fastest five
let state = { ...NOTHING };
let shown = regimes, compared = [], only = null;

function read() {
  // An address without "=" is a place on the page, which changes nothing.
  const said = location.hash.slice(1);
  if (said && !said.includes("=")) return false;
  state = { ...NOTHING };
  for (const [key, value] of said.split("&").map((pair) => pair.split(/=(.*)/s)))
    if (Object.hasOwn(state, key)) state[key] = key === "v" ? value : plain(value);
  if (!facts.lengths.includes(Number(state.n))) state.n = NOTHING.n;
  if (!named().length && !state.v.startsWith("*")) state.v = "";
  fill();
  state.cell ? openRecord(Number(state.cell)) : $("#record").close();
  state.about ? openAbout(looks.find(({ name }) => name === state.about)) : $("#about").close();
  return true;
}

// The controls say what the state says; what they can't say, it does not.
function fill() {
  for (const field of form.elements) {
    if (field.name === "one") field.checked = state.one !== "";
    else if (field.name in NOTHING) {
      field.value = state[field.name];
      if (field.value !== state[field.name]) field.value = state[field.name] = NOTHING[field.name];
    }
  }
  show();
}

function plain(text) {
  try { return decodeURIComponent(text ?? ""); } catch { return ""; }
}

// What opens a panel is a step that the browser's Back takes back.
function write(opens) {
  const said = Object.keys(state).filter((key) => state[key] !== NOTHING[key]);
  const hash = said.map((key) => `${key}=${key === "v" ? state.v : encodeURIComponent(state[key])}`).join("&");
  if (hash || location.hash.includes("=")) history[opens ? "pushState" : "replaceState"](null, "", hash ? `#${hash}` : location.href.split("#")[0]);
}

function change(changes) {
  const opens = ["about", "cell"].some((key) => changes[key] && !state[key]);
  Object.assign(state, changes);
  show();
  write(opens);
}

/* What is shown: which regimes, which variants, at which length. */

const lengthOf = (r) => {
  const { lengths } = facts.scenes[r];
  return lengths.filter((n) => n <= Number(state.n)).at(-1) ?? lengths[0];
};
const at = (r, v, n = lengthOf(r)) => known[r]?.[v]?.[n];
const named = () => {
  const names = new Set(state.v.split(",").map(plain));
  return looks.filter(({ name }) => state.v && names.has(name));
};

// Variants by how near they come to the best over the regimes shown; what the answers say to use comes first.
function ranked(some) {
  const far = new Map(some.map(({ v }) => [v, 0]));
  const used = new Set();
  for (const r of shown) {
    const found = some.map(({ v }) => at(r, v)).filter(Boolean), best = Math.min(...found.map(({ s }) => s));
    for (const { v } of some) far.set(v, far.get(v) + (at(r, v) ? Math.log(at(r, v).s / best) : 5));
    used.add(facts.scenes[r].answers[lengthOf(r)]?.use);
  }
  return [...some].sort((a, b) => used.has(b.v) - used.has(a.v) || far.get(a.v) - far.get(b.v));
}

const fastest = () => ranked(timed.filter(({ v, exact }) => exact && shown.some((r) => known[r]?.[v] && !facts.scenes[r].left_out.includes(v)))).slice(0, FIVE);

function choose() {
  const { v } = state;
  only = v ? (v === "*all" ? timed : v === "*exact" ? timed.filter(({ exact }) => exact) : named()) : null;
  compared = only ? ranked(only).slice(0, HUED) : fastest();
}

const passes = (scene) => ["run", "phase", "mask", "dtype"].every((axis) => !state[axis] || scene[axis] === state[axis]);

function show() {
  shown = regimes.filter((r) => passes(facts.scenes[r]) && known[r]);
  choose();
  root.dataset.unit = state.unit;
  const open = new Set(regimes.filter((r) => passes(facts.scenes[r])));
  for (const part of all("main [data-r]:not(tr, figure)")) part.hidden = !open.has(Number(part.dataset.r));
  for (const row of all(".verdicts tr[data-n]"))
    row.hidden = Number(row.dataset.n) !== lengthOf(row.closest("[data-r]").dataset.r);
  for (const part of all(".headlines")) part.hidden = part.dataset.n !== (state.n || "0");
  const variants = only && new Set(only.map(({ v }) => String(v)));
  let rows = 0;
  for (const row of all("#cells tbody tr")) {
    const { r, v, n } = row.dataset;
    row.hidden = (r !== undefined && !open.has(Number(r))) || (variants && !variants.has(v)) || (state.one !== "" && n !== state.n);
    rows += !row.hidden;
  }
  $("#count").textContent = `${tokens(rows)} rows`;
  root.classList.toggle("empty", !open.size);
  $("#nothing").hidden = open.size > 0;
  $("#nothing span").textContent = `No regime has ${chosen().join(" and ")}.`;
  if ($("#tokens")) {
    $("#tokens").textContent = `${tokens(Number(state.n))} tokens`;
    form.elements.at.value = facts.lengths.indexOf(Number(state.n));
    form.elements.at.setAttribute("aria-valuetext", $("#tokens").textContent);
  }
  const keys = Object.keys(state).filter((key) => !["about", "cell"].includes(key));
  $("#clear").hidden = keys.every((key) => state[key] === NOTHING[key]);
  showBoxes();
  redraw();
}

const chosen = () => ["run", "phase", "mask", "dtype"].filter((axis) => state[axis]).map((axis) => `${axis} ${state[axis]}`);

function clear() {
  state = { ...NOTHING };
  fill();
  write();
}

/* The tick boxes: any set of variants, with a search that offers what is near. */

function makeBoxes() {
  const kinds = [...new Set(timed.map(({ computes }) => computes))].sort((a, b) => (b === "softmax") - (a === "softmax"));
  const groups = kinds.map((kind) => [kind || "not said what", timed.filter(({ computes }) => computes === kind)]);
  const rest = looks.filter((look) => !timed.includes(look));
  const box = ({ v, name, hue, fill }) => `<span class="pick" data-of="${v}">` +
    (rest.every((look) => look.v !== v) ? `<input type="checkbox" name="pick" value="${v}" aria-label="${escaped(name)}">` : "") +
    `<button type="button" class="name h-${hue} ${fill}" data-v="${v}">${escaped(name)}</button></span>`;
  $("#boxes").innerHTML = [...groups, ["no time in this run", rest]].filter(([, some]) => some.length).map(([words, some]) =>
    `<fieldset><legend>${escaped(words)}</legend>${some.map(box).join("")}</fieldset>`).join("");
}

function showBoxes() {
  const ticked = new Set((only ?? compared).map(({ v }) => v));
  for (const box of all("[name=pick]")) box.checked = ticked.has(Number(box.value));
  const some = only?.length <= 2 ? only.map(({ name }) => name).join(", ") : `${only?.length} of ${timed.length}`;
  $("#few").textContent = { "": "the fastest five", "*exact": "all exact", "*all": "all" }[state.v] ?? some;
}

const found = () => all(".pick").filter((pick) => !pick.hidden).map((each) => looks[each.dataset.of]);
const drawable = () => found().filter((look) => timed.includes(look));
// A star in a name is written out: it begins the words for all, and all exact.
const pick = (some) => change({ v: some.map(({ name }) => encodeURIComponent(name).replaceAll("*", "%2A")).join(",") });

function find() {
  const like = $("#find").value.trim().toLowerCase(), words = like.split(/[\s,]+|\bvs\b/).filter(Boolean);
  const whole = words.length > 1 ? looks.map(({ name }) => name.toLowerCase()).filter((name) => words.includes(name)) : [];
  for (const each of all(".pick")) {
    const [name, family] = [looks[each.dataset.of].name, looks[each.dataset.of].family].map((text_) => text_.toLowerCase());
    each.hidden = like && !name.includes(like) && family !== like && !words.some((word) => (whole.includes(word) ? name === word : name.includes(word)));
  }
  for (const group of all("#boxes fieldset")) group.hidden = all(".pick", group).every((each) => each.hidden);
  $("[data-pick=found]").hidden = !like || !drawable().length;
}

/* What is said of a variant, and one record: packed until somebody asks. */

let unpacked;
const held = () => (unpacked ??= unpack());

async function unpack() {
  const packed = Uint8Array.from(atob($("#blob").textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`);
const command = (words) => `<div class="command"><code tabindex="0">${escaped(words)}</code><button type="button" data-copy>Copy</button></div>`;

async function openAbout(look) {
  if (!look) return;
  const said = (await held()).panels[look.v];
  if (state.about !== look.name) return; // another was asked for meanwhile
  $("#about-title").innerHTML = `<span class="name h-${look.hue} ${look.fill}">${escaped(look.name)}</span>`;
  const others = timed.filter(({ v }) => v !== look.v);
  const facts_ = [["Computes", look.computes || "not said"], ["Family", look.family], ...said.facts].filter(([, value]) => value);
  const paper = (value) => escaped(value).replace(/arXiv:(\d{4}\.\d{4,5})/g, '<a href="https://arxiv.org/abs/$1" rel="noreferrer">arXiv:$1</a>');
  const list = facts_.map(([what, value]) => `<div><dt>${escaped(what)}</dt><dd>${what === "Paper" ? paper(value) : escaped(value)}</dd></div>`);
  const r = shown.find((each) => known[each]?.[look.v]) ?? regimes.find((each) => known[each]?.[look.v]);
  const rival = rivalOf(look, r, others);
  const offered = others.map(({ v, name }) => `<option value="${v}"${v === rival ? " selected" : ""}>${escaped(name)}</option>`);
  const against = rival === undefined ? "" : `<p class="against"><label>At ${tokens(lengthOf(r))} tokens, compared with <select id="rival">${offered.join("")}</select></label></p>`;
  $("#about-body").innerHTML = `${said.title ? `<p class="said">${escaped(said.title)}</p>` : ""}${inexact(look)}${against}<ul id="about-here"></ul>` +
    '<h3>How to use it</h3><div id="about-use"></div><h3>How it does here</h3><div id="about-times"></div>' +
    `<h3>What it computes</h3><div class="mathematics">${said.mathematics ? prose(said.mathematics) : "<p>It is not built into attnbench, so its mathematics is not in this page.</p>"}</div>` +
    `<h3>What it takes</h3><dl class="facts">${list.join("")}</dl>`;
  if (r === undefined) $("#about-times").innerHTML = '<p class="note">It has no time in this run: “Not measured” says why.</p>';
  else compare(look, rival);
  use(look, said, r, rival);
  if (!$("#about").open) $("#about").showModal();
  $("#about").scrollTop = 0;
}

// What a variant computes in place of softmax, and how near it came to it here.
function inexact(look) {
  if (look.exact) return "";
  const near_ = regimes.flatMap((r) => Object.values(known[r]?.[look.v] ?? {})).map(({ fidelity }) => fidelity).filter((each) => typeof each === "number");
  const [low, high] = [Math.min(...near_), Math.max(...near_)].map((each) => Math.round(Math.max(0, each) * 100));
  const kept = near_.length ? `: ${low === high ? low : `${low} to ${high}`}\u00a0% fidelity to softmax here` : "";
  return `<p class="note">Not exact softmax, but ${escaped(look.computes || "something else")}${kept}.</p>`;
}

// A text in paragraphs, its indented lines as they are.
const prose = (words) => words.split(/\n\n+/).map((block) => (/^ {2}/m.test(block) ? `<pre>${escaped(block.replace(/^ {4}/gm, ""))}</pre>`
  : `<p>${escaped(block).replace(/``(.+?)``/gs, "<code>$1</code>")}</p>`)).join("");

// Which one a variant is compared with first: the answer at the length chosen, or what comes next after it.
function rivalOf({ v }, r, others) {
  if (r === undefined) return undefined;
  const { use, ties = [], next } = facts.scenes[r].answers[lengthOf(r)] ?? {};
  return [use, ...ties, next].find((each) => each !== v && each >= 0) ?? others[0]?.v;
}

function compare(look, rival) {
  const some = [...shown, ...regimes.filter((r) => !shown.includes(r))].filter((r) => known[r]?.[look.v] || facts.untimed.some(([s, v]) => s === r && v === look.v));
  $("#about-here").innerHTML = rival === undefined ? "" : shown.filter((r) => at(r, look.v)).slice(0, MOST).map((r) => {
    const mine = at(r, look.v), its = at(r, rival), more_ = mine.peak && its?.peak ? `, ${figures(mine.peak / its.peak)}× the memory` : "";
    return `<li>${escaped(facts.scenes[r].title)}: <b>${its ? verdict(r, look.v, rival) : `no time of ${escaped(nameOf(rival))}`}</b>${its ? reach(r, look.v, rival) : ""}${more_}</li>`;
  }).join("");
  $("#about-times").innerHTML = some.slice(0, MOST).map((r) => {
    const rows = facts.untimed.filter(([s, v]) => s === r && v === look.v).map(([, , n, , status]) => [n, `<td colspan="3" class="why">${escaped(status)}</td>`]);
    for (const [n, { s, low, high, peak, noisy }] of Object.entries(known[r]?.[look.v] ?? {}))
      rows.push([Number(n), `<td class="n"><b>${figures(s * 1e3)}</b> <i>[${figures(low * 1e3)}, ${figures(high * 1e3)}]${noisy ? " ?" : ""}</i></td>` +
        `<td>${rival === undefined ? "" : verdict(r, look.v, rival, n).replace(/.*faster/, "<b>$&</b>")}</td><td class="n">${peak ? figures(peak / 2 ** 20) : "–"}</td>`]);
    rows.sort((a, b) => a[0] - b[0]);
    const grows = power(Object.values(known[r]?.[look.v] ?? {}));
    return `<table class="times"><caption>${escaped(facts.scenes[r].title)}${grows ? ` · time grows as n<sup>${grows.toFixed(2)}</sup>` : ""}</caption>` +
      `<thead><tr><th scope="col">tokens</th><th scope="col">ms</th><th scope="col">${rival === undefined ? "" : `than ${escaped(nameOf(rival))}`}</th><th scope="col">MiB</th></tr></thead>` +
      `<tbody>${rows.map(([n, rest]) => `<tr${n === lengthOf(r) ? ' class="here"' : ""}><th scope="row">${tokens(n)}</th>${rest}</tr>`).join("")}</tbody></table>`;
  }).join("") + '<p class="aside">Marked by ?: noisy.</p>';
}

// The power of the length that times grow by, over the longest four.
function power(some) {
  const last = some.slice(-4).map(({ length, s }) => [Math.log(length), Math.log(s)]);
  if (last.length < 3) return 0;
  const [x, y] = [0, 1].map((k) => last.reduce((sum, each) => sum + each[k], 0) / last.length);
  return last.reduce((sum, [a, b]) => sum + (a - x) * (b - y), 0) / last.reduce((sum, [a]) => sum + (a - x) ** 2, 0);
}

function use(look, said, r, rival) {
  const code = said.code[r] ?? Object.values(said.code)[0], words = facts.scenes[r]?.ask[lengthOf(r)];
  const next = words !== undefined && rival !== undefined ? ["attnbench compare", quoted(look.name), quoted(nameOf(rival)), words].join(" ") : "";
  $("#about-use").innerHTML = (code ? `${command(code)}${said.transformers ? `<p>In a model of transformers:</p>${command(said.transformers)}` : ""}`
    : "<p>A layer has weights of its own: there is no line to paste.</p>") + (next ? `<p>Next, to measure the two in pairs:</p>${command(next)}` : "");
}

async function openRecord(number) {
  const cell = (await held()).cells[number];
  if (!cell) return;
  $("#record-title").textContent = cell.title;
  $("#repeat").textContent = cell.repeat;
  $("#line").textContent = cell.line;
  $("#file").textContent = $("#file").href = cell.file;
  $("#json").textContent = JSON.stringify(cell.record, null, 2);
  if (!$("#record").open) $("#record").showModal();
}

async function copy(button) {
  const code = $("code", button.parentElement);
  try {
    await navigator.clipboard.writeText(code.textContent);
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 1500);
    tell("copied");
  } catch { // not allowed here: what is marked can be copied by hand
    getSelection().selectAllChildren(code);
    tell("marked: copy it with your keyboard");
  }
}

const tell = (words) => ($("#told").textContent = words);

/* Sorting. */

function sortBy(head) {
  const column = head.cellIndex, body = $("#cells tbody");
  const down = head.getAttribute("aria-sort") === "ascending";
  for (const other of all("#cells th[aria-sort]")) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const numbers_ = head.classList.contains("n");
  const key = (row) => {
    const text_ = cellAt(row, column)?.innerText.trim() ?? ""; // as shown, in this unit
    if (!numbers_) return text_;
    const number = parseFloat(text_.replace(/[,<\s]/g, ""));
    return Number.isNaN(number) ? null : number;
  };
  const order = (a, b) => {
    if (a === null || b === null) return (a === null) - (b === null); // what has none comes last
    const less = numbers_ ? a - b : a.localeCompare(b, "en", { numeric: true });
    return down ? -less : less;
  };
  const keyed = all("tr", body).map((row) => [key(row), row]);
  body.append(...keyed.sort(([a], [b]) => order(a, b)).map(([, row]) => row));
}

function cellAt(row, column) {
  let place_ = 0;
  for (const cell of row.cells) {
    if (place_ === column) return cell.colSpan > 1 ? null : cell;
    place_ += cell.colSpan;
    if (place_ > column) return null;
  }
  return null;
}

/* Who listens. */

form.addEventListener("submit", (event) => event.preventDefault());
document.addEventListener("input", ({ target }) => {
  if (target.id === "find") find();
  else if (target.id === "rival") {
    const look = looks.find(({ name }) => name === state.about);
    compare(look, Number(target.value));
    held().then(({ panels }) => use(look, panels[look.v], regimes.find((r) => shown.includes(r) && known[r]?.[look.v]), Number(target.value)));
  } else if (target.name === "pick") pick(all("[name=pick]:checked").map((box) => looks[box.value]));
  else if (target.name === "at") change({ n: String(facts.lengths[target.value]) });
  else if (target.name === "one") change({ one: target.checked ? "1" : "" });
  else if (target.form === form && target.name in NOTHING) change({ [target.name]: target.value });
});

const PICKS = { five: () => change({ v: "" }), exact: () => change({ v: "*exact" }), all: () => change({ v: "*all" }), found: () => pick(drawable()) };

document.addEventListener("click", (event) => {
  const on = (what) => event.target.closest(what);
  if ($("#variants").open && !on("header, dialog")) { // this click closes the list, and no more
    $("#variants").open = false;
    event.preventDefault();
    return;
  }
  const variant = on("button.name, svg text[data-v]")?.closest("[data-v]");
  if (variant) {
    $("#variants").open = false;
    change({ about: nameOf(variant.dataset.v) });
    openAbout(looks[variant.dataset.v]);
  } else if (on("[data-pick]")) PICKS[on("[data-pick]").dataset.pick]();
  else if (on("[data-clear]")) clear();
  else if (on("#theme")) theme();
  else if (on("#more")) more(!form.classList.contains("open"));
  else if (on("#cells thead button")) sortBy(on("th"));
  else if (on("[data-save]")) save(on("[data-save]").dataset.save, on("figure"));
  else if (on("[data-copy]")) copy(on("[data-copy]"));
  else if (on("[data-close]") || event.target.matches("dialog")) on("dialog").close();
  else if (on("[data-draw=map] svg")) {
    const chosen_ = nearestTo(event, on("figure"));
    if (chosen_) change({ n: String(chosen_.cell.length) });
  } else if (on("[href^='#cell=']") || on("#cells td")) {
    event.preventDefault(); // the rest of the address stays
    change({ cell: (on("a") ?? $("a", on("tr"))).hash.split("=")[1] });
    openRecord(Number(state.cell));
  }
  if (!on("#variants") && !on("dialog") && !document.querySelector("dialog[open]")) $("#variants").open = false;
});

document.addEventListener("keydown", (event) => {
  const { key, target } = event, figure = target.closest?.("figure[data-key]");
  if (figure && key.startsWith("Arrow") && target.matches(".plot")) {
    event.preventDefault();
    draw(figure); // if what it shows has changed since
    point(figure, step(figure, key));
  } else if (figure && key === "Enter" && figure.at && target.matches(".plot")) {
    change({ about: nameOf(figure.at.v) });
    openAbout(looks[figure.at.v]);
  } else if (target.id === "find" && key === "Enter" && drawable().length) pick(drawable());
  else if (key === "Escape" && !$("dialog[open]")) {
    if (figure) point(figure, null);
    else if ($("#variants").open) $("#variants").open = false;
    else if (form.classList.contains("open")) {
      more(false);
      $("#more").focus();
    }
  }
});

for (const kind of ["pointermove", "pointerdown"])
  document.addEventListener(kind, (event) => {
    const figure = event.target.closest?.(".plot")?.closest("figure[data-key]");
    if (figure) point(figure, nearestTo(event, figure));
    for (const other of near) if (other !== figure && other.at && !other.contains(document.activeElement)) point(other, null);
  }, { passive: true });
document.addEventListener("focusout", ({ target }) => target.matches?.(".plot") && point(target.closest("figure"), null));

function theme() {
  const dark = root.dataset.theme ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("attnbench-theme", root.dataset.theme); } catch { /* not kept */ }
}

function more(open) {
  form.classList.toggle("open", open);
  $("#more").setAttribute("aria-expanded", open);
}

for (const [id, key] of [["record", "cell"], ["about", "about"]]) $(`#${id}`).addEventListener("close", () => state[key] && change({ [key]: "" }));
$("#variants")?.addEventListener("toggle", () => $("#variants").open && matchMedia("(hover: hover)").matches && $("#find").focus());
addEventListener("hashchange", read);
addEventListener("beforeprint", () => {
  for (const figure of all("figure[data-key]")) draw(figure, figure.parentElement.dataset.draw === "map" ? 860 : 470);
});
addEventListener("afterprint", () => near.forEach((figure) => draw(figure)));
let wideness = $("main").clientWidth; // figures are drawn for a width; heights change as they are drawn
new ResizeObserver(() => {
  if (wideness === $("main").clientWidth) return;
  wideness = $("main").clientWidth;
  for (const figure of all("figure[data-key]")) figure.stale = true;
  for (const figure of near) draw(figure);
}).observe($("main"));

// A variant's name in a sentence or a table of its own opens its panel too.
for (const part of all("main .said tbody th, .headline b, .how-sure b")) {
  const look = looks.find(({ name }) => name === part.textContent);
  if (look) part.innerHTML = `<button type="button" class="name plain h-${look.hue} ${look.fill}" data-v="${look.v}">${escaped(look.name)}</button>`;
}
form.hidden = !timed.length;
for (const part of all(".only")) part.hidden = false;
makeBoxes();
if (!read()) fill();
