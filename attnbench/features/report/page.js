// What a reader can do with the page. Without this script it still says everything but raw records.
"use strict";

const $ = (what, where = document) => where.querySelector(what);
const all = (what, where = document) => [...where.querySelectorAll(what)];
const root = document.documentElement;
const facts = JSON.parse($("#facts").textContent);
const form = $("#controls");
const fields = all("[name]", form).filter((field) => field.name !== "family");
const families = all("[name=family]", form);
const NOTHING = { q: "", run: "", phase: "", mask: "", dtype: "", n: "", computes: "", family: "",
  unit: "ms", v: "", cell: "" }; // what has one value alone has no control

/* State: what the address says, what the controls say, what is lit. One object, one way out. */

let state = { ...NOTHING };

function read() {
  // An address without "=" is a place on the page, which changes nothing.
  const said = location.hash.slice(1);
  if (said && !said.includes("=")) return false;
  state = { ...NOTHING };
  for (const [key, value] of new URLSearchParams(said.replaceAll("+", "%2B")))
    if (key in state) state[key] = value;
  for (const field of fields) {
    field.value = state[field.name];
    if (field.value !== state[field.name]) field.value = state[field.name] = NOTHING[field.name];
  }
  const kept = state.family ? state.family.split(",") : null;
  for (const box of families) box.checked = !kept || kept.includes(box.value);
  show();
  if (state.cell) openRecord(Number(state.cell));
  else if ($("#record").open) $("#record").close();
  return true;
}

function write() {
  const plain = (value) => encodeURIComponent(value).replaceAll("%2C", ",");
  const said = Object.keys(state).filter((key) => state[key] !== NOTHING[key]);
  const hash = said.map((key) => `${key}=${plain(state[key])}`).join("&");
  if (hash || location.hash.includes("="))
    history.replaceState(null, "", hash ? `#${hash}` : location.href.split("#")[0]);
}

function change(changes) {
  Object.assign(state, changes);
  show();
  write();
}

/* Showing: which regimes, which variants, which unit. The answers themselves never change. */

const sceneShown = (scene) =>
  ["run", "phase", "mask", "dtype"].every((axis) => !state[axis] || scene[axis] === state[axis]) &&
  (!state.n || scene.lengths.includes(Number(state.n)));

function variantShown([name, family, computes]) {
  const kept = !state.family || state.family.split(",").includes(family);
  const like = state.q.toLowerCase();
  const found = name.toLowerCase().includes(like) || family.toLowerCase().includes(like);
  return kept && found && (!state.computes || computes === state.computes);
}

function show() {
  const scenes = Object.fromEntries(
    Object.entries(facts.scenes).map(([number, scene]) => [number, sceneShown(scene)]));
  const variants = facts.variants.map(variantShown);
  root.dataset.unit = state.unit;
  drawUnit(state.unit);
  for (const part of all("main [data-r]:not(tr)")) part.hidden = !scenes[part.dataset.r];
  for (const row of all(".card li"))
    row.hidden = state.n !== "" && !row.dataset.lengths.split(" ").includes(state.n);
  let rows = 0;
  for (const row of all("#cells tbody tr")) {
    const { r, v, n } = row.dataset;
    row.hidden = !(scenes[r] ?? true) || !variants[v] || (state.n !== "" && n !== state.n);
    rows += !row.hidden;
  }
  const many = variants.filter(Boolean).length;
  const none = !many || !Object.values(scenes).some(Boolean);
  root.classList.toggle("empty", none);
  $("#nothing").hidden = !none;
  $("#nothing span").textContent = none ? `No variant matches ${chosen().join(", ")}.` : "";
  $("#count").textContent = `${many.toLocaleString("en")} of ${variants.length} variants, ` +
    `${rows.toLocaleString("en")} cells`;
  $("#few").textContent = many < variants.length ? `${many}/${variants.length}` : "";
  for (const button of all("#legend .name")) button.hidden = !variants[button.dataset.v];
  const gone = variants.flatMap((shown, v) => (shown ? [] : [`svg .v${v}`]));
  const lit = facts.variants.findIndex(([name]) => name === state.v);
  style(gone, lit);
  $("#lit").hidden = lit < 0;
  $("#lit").textContent = `${state.v} ✕`;
  $("#lit").setAttribute("aria-label", `${state.v} is highlighted: stop that`);
  for (const button of all("[data-v]:is(button)"))
    button.setAttribute("aria-pressed", Number(button.dataset.v) === lit);
  $("#clear").hidden = !chosen().length;
}

// What leaves something out, in the reader's words.
const chosen = () => Object.keys(state)
  .filter((key) => !["unit", "v", "cell"].includes(key) && state[key] !== NOTHING[key])
  .map((key) => ({ q: `“${state.q}”`, n: `${state.n} tokens` })[key] ?? `${key} ${state[key]}`);

function clear() {
  state = { ...NOTHING, v: state.v, unit: state.unit };
  write();
  form.reset();
  form.elements.unit.value = state.unit;
  show();
}

function style(gone, lit) {
  const rules = gone.length ? [`${gone.join(",")}{display:none}`] : [];
  if (lit >= 0) {
    rules.push(`svg .v:not(.v${lit}){opacity:.12}`, `svg .v${lit} text,svg text.v${lit}{font-weight:700}`);
    rules.push(`[data-v="${lit}"]{--lit:1}`, `tr[data-v="${lit}"]{background:var(--wash)}`);
    rules.push(`.name[data-v="${lit}"]{background:var(--wash);box-shadow:0 0 0 2px var(--c)}`);
  }
  $("#shown").textContent = rules.join("");
}

const light = (number) => {
  const name = facts.variants[number][0];
  change({ v: state.v === name ? "" : name });
};

/* Sorting. */

function sortBy(head) {
  const column = head.cellIndex, body = $("#cells tbody");
  const down = head.getAttribute("aria-sort") === "ascending";
  for (const other of all("#cells th[aria-sort]")) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const numbers = head.classList.contains("n");
  const key = (row) => {
    const text = cellAt(row, column)?.innerText.trim() ?? ""; // as shown, in this unit
    if (!numbers) return text;
    const number = parseFloat(text.replace(/[,<\s]/g, ""));
    return Number.isNaN(number) ? null : number;
  };
  const order = (a, b) => {
    if (a === null || b === null) return (a === null) - (b === null); // what has none comes last
    const less = numbers ? a - b : a.localeCompare(b, "en", { numeric: true });
    return down ? -less : less;
  };
  const keyed = all("tr", body).map((row) => [key(row), row]);
  body.append(...keyed.sort(([a], [b]) => order(a, b)).map(([, row]) => row));
}

function cellAt(row, column) {
  let at = 0;
  for (const cell of row.cells) {
    if (at === column) return cell.colSpan > 1 ? null : cell;
    at += cell.colSpan;
    if (at > column) return null;
  }
  return null;
}

/* Raw records and figures' numbers: packed until somebody asks. */

let unpacked;
const held = () => (unpacked ??= unpack());

async function unpack() {
  const packed = Uint8Array.from(atob($("#blob").textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

async function drawUnit(unit) {
  const waiting = all(`figure[data-unit=${unit}] .later:empty`);
  if (!waiting.length) return;
  const { svg } = await held();
  for (const place of waiting) place.innerHTML = svg[place.parentElement.id];
}

async function openRecord(number) {
  const cell = (await held()).cells[number];
  if (!cell) return;
  $("#record-title").textContent = cell.title;
  $("#said").textContent = cell.summary;
  $("#repeat").textContent = cell.repeat;
  $("#line").textContent = cell.line;
  $("#file").textContent = $("#file").href = cell.file;
  $("#json").textContent = JSON.stringify(cell.record, null, 2);
  if (!$("#record").open) $("#record").showModal();
}

/* Saving a figure: as it is on paper, in light colours, whatever the theme. */

function standalone(svg) {
  const names = (text) => text.replace(/var\(--([\w-]+)\)/g, (_, name) => facts.light[name]);
  return names(new XMLSerializer().serializeToString(svg));
}

async function save(kind, figure) {
  if (kind === "csv") return give((await held()).csv[figure.id], "text/csv", `${figure.id}.csv`);
  await drawUnit(figure.dataset.unit); // it may not have been looked at yet
  const svg = $("svg", figure), text = standalone(svg);
  if (kind === "svg") return give(text, "image/svg+xml", `${figure.id}.svg`);
  const { width, height } = svg.viewBox.baseVal, image = new Image(width * 3, height * 3);
  image.src = `data:image/svg+xml,${encodeURIComponent(text)}`;
  await image.decode();
  const canvas = Object.assign(document.createElement("canvas"), { width: width * 3, height: height * 3 });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  canvas.toBlob((png) => give(png, "image/png", `${figure.id}.png`));
}

function give(what, type, name) {
  const href = URL.createObjectURL(new Blob([what], { type }));
  Object.assign(document.createElement("a"), { href, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(href), 60_000);
  tell(`${name} is saved`);
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

/* Who listens. */

form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("input", ({ target }) => {
  if (target.name === "family") {
    const kept = families.filter((box) => box.checked).map((box) => box.value);
    change({ family: kept.length === families.length ? "" : kept.join(",") || "none" });
  } else if (target.name) change({ [target.name]: target.value });
});

document.addEventListener("click", (event) => {
  const on = (what) => event.target.closest(what);
  const variant = on("button.name")?.closest("[data-v]"), mark = on("svg .v");
  if (variant) light(variant.dataset.v);
  else if (mark) light([...mark.classList].find((name) => /^v\d/.test(name)).slice(1));
  else if (on("#lit")) change({ v: "" });
  else if (on("[data-clear]")) clear();
  else if (on("#theme")) theme();
  else if (on("#more")) more(!form.classList.contains("open"));
  else if (on("#cells thead button")) sortBy(on("th"));
  else if (on("[data-save]")) save(on("[data-save]").dataset.save, on("figure"));
  else if (on("[data-copy]")) copy(on("[data-copy]"));
  else if (on("[data-close]") || event.target === $("#record")) $("#record").close();
  else if (on("[href^='#cell=']") || on("#cells td")) {
    event.preventDefault(); // the rest of the address stays
    change({ cell: (on("a") ?? $("a", on("tr"))).hash.split("=")[1] });
    openRecord(Number(state.cell));
  }
  if (!on("#legend")) $("#legend").open = false;
});

document.addEventListener("keydown", ({ key }) => {
  if (key !== "Escape" || $("#record").open) return;
  if ($("#legend").open) $("#legend").open = false;
  else if (form.classList.contains("open")) {
    more(false);
    $("#more").focus();
  } else if (state.v) change({ v: "" });
});

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

$("#record").addEventListener("close", () => change({ cell: "" }));
addEventListener("hashchange", read);
addEventListener("beforeprint", () => all("main details").forEach((part) => (part.open = true)));
if (!read()) show();
