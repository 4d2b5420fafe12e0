// The page's data, and its figures: one for each regime shown, drawn when it comes near, with a readout.
"use strict";

const $ = (what, where = document) => where.querySelector(what);
const all = (what, where = document) => [...where.querySelectorAll(what)];
const facts = JSON.parse($("#facts").textContent);
const FILLS = { softmax: "full", "its own operator": "none" };
const looks = facts.variants.map(([name, family, computes, hue, marker], v) => ({
  v, name, family, computes, hue, marker, fill: FILLS[computes] ?? "left", exact: computes === "softmax" }));
const cells = facts.timed.map((row) => Object.fromEntries(facts.fields.map((field, k) => [field, row[k]])));
const known = {}; // by regime, variant and length
for (const cell of cells) ((known[cell.scene] ??= {})[cell.variant] ??= {})[cell.length] = cell;
const regimes = Object.keys(facts.scenes).map(Number);
const timed = looks.filter(({ v }) => regimes.some((r) => known[r]?.[v]));
const HUED = 8, FIVE = 5, MOST = 12;


/* The figures: one for each regime that is shown, drawn when it comes near. */

const UNITS = {
  ms: { label: "median time", say: seconds, value: ({ s }) => s },
  tflops: { label: "TFLOP/s", say: three, value: ({ s, flops }) => flops && flops / s / 1e12, up: true },
  share: { label: "share of the ceiling", say: percent, value: ({ share }) => share, up: true },
};

// The variants of a figure: whose colour is shown, and who is pale; where none is compared, the first that there are.
// Names under which one kernel ran are drawn once, unless they were picked.
function cast(r, some, kind = () => true) {
  const there = (only ?? timed.filter(({ v }) => !facts.scenes[r].left_out.includes(v))).filter((look) => kind(look) && some(look));
  let bold = compared.filter((look) => there.includes(look));
  if (!bold.length) bold = ranked(there).slice(0, HUED);
  return there.map((look) => ({ look: only ? look : { ...look, name: nameOf(look.v, r) }, rest: !bold.includes(look) }));
}

function seriesOf(r, value) {
  const there = cast(r, ({ v }) => Object.values(known[r][v] ?? {}).some((cell) => value(cell)));
  return there.map((each) => {
    const some = Object.values(known[r][each.look.v]).filter((cell) => value(cell) > 0);
    return { ...each, points: some.map((cell) => {
      const y = value(cell), ends = value === UNITS.share.value || value === UNITS.tflops.value
        ? [(y * cell.s) / cell.high, (y * cell.s) / cell.low] : [PEAK, JOULES].includes(value) ? [y, y] : [(y * cell.low) / cell.s, (y * cell.high) / cell.s];
      return { n: cell.length, y, low: ends[0], high: ends[1], cell };
    }) };
  });
}

const PEAK = ({ peak }) => peak, JOULES = (cell) => cell.joules;
const across = (r) => `length, ${facts.scenes[r].unit}`;
const nameOf = (v, r) => facts.scenes[r]?.names[v] ?? looks[v].name;

// A figure of what has no interval and is best where it is least.
const grown = (value, say, base, ylabel) => (r, width) => {
  const lines = seriesOf(r, value), n = lengthOf(r), exact = looks.filter((look) => look.exact && at(r, look.v) && value(at(r, look.v)));
  if (!lines.length) return null;
  const [least] = exact.sort((a, b) => value(at(r, a.v)) - value(at(r, b.v)));
  const told = least ? `Least of what is exact at ${tokens(n)}: ${nameOf(least.v, r)}, ${say(value(at(r, least.v)))}` : "";
  return { ...lineChart({ lines, width, say, base, ylabel, xlabel: across(r), focus: n }), told };
};

const DRAWS = {
  scaling: (r, width) => {
    const { label, say, value, up } = UNITS[state.unit], lines = seriesOf(r, value);
    if (!lines.length) return null;
    const { answers, crossings } = facts.scenes[r], n = lengthOf(r), answer = answers[n];
    const pair = only?.length === 2 && only.every(({ v }) => at(r, v));
    const said = pair ? verdict(r, only[0].v, only[1].v, n) : "";
    const told = pair ? `At ${tokens(n)} ${only[0].name} is ${said} ${said.startsWith("tied") ? "with" : "than"} ${only[1].name}. `
      : answer?.use === undefined ? "" : `At ${tokens(n)}: ${nameOf(answer.use, r)}, ${seconds(at(r, answer.use).s)}` +
      (answer.ties.length ? `, tied with ${answer.ties.length === 1 ? nameOf(answer.ties[0]) : `${answer.ties.length} others`}` : "") + ". ";
    return { ...lineChart({ lines, width, say, ylabel: label, xlabel: across(r), focus: n, up }), told: told + crossings.slice(0, 2).join("; ") };
  },
  memory: grown(PEAK, nbytes, 2, "peak above the inputs"),
  energy: grown(JOULES, joules, 10, "energy a call"),
  tradeoffs: (r, width) => {
    const error = state.y === "error", value = error ? ({ distance }) => distance : PEAK;
    const there = cast(r, ({ v }) => at(r, v) && value(at(r, v)), ({ exact }) => !error || !exact);
    const points = there.map((each) => ({ ...each, x: at(r, each.look.v).s, y: value(at(r, each.look.v)), cell: at(r, each.look.v) }));
    if (!points.length) return null;
    if (error && !only) { // nothing exact is here: those that nothing beats are in colour, then the fastest
      const best = frontier(points).map(({ look }) => look), first = ranked(points.map(({ look }) => look));
      const hued = [...new Set([...best, ...first])].slice(0, HUED);
      for (const p of points) p.rest = !hued.includes(p.look);
    }
    const fronts = [true, false].map((kind) => frontier(points.filter(({ look }) => look.exact === kind)));
    const ylabel = error ? "distance from softmax" : "peak above the inputs", say = error ? three : nbytes;
    const made = scatter({ points, fronts, width, xsay: seconds, ysay: say, ybase: error ? 10 : 2, xlabel: "median time (less is better)", ylabel });
    return { ...made, told: error ? nearest(r) : "" };
  },
};

// How one variant's time stands to another's: a lead within the margin is none.
function verdict(r, v, other, n) {
  const mine = at(r, v, n), its = at(r, other, n), { margin } = facts.scenes[r];
  if (!mine || !its) return "–";
  if (mine.high * (1 + margin) < its.low) return `${times(its.s / mine.s)} faster`;
  return its.high * (1 + margin) < mine.low ? `${times(mine.s / its.s)} slower` : `tied (${times(mine.s / its.s)} the time)`;
}

// Between which ends a lead lies, and whether either time is noisy.
function reach(r, v, other) {
  const both = [at(r, v), at(r, other)], [one, of] = verdict(r, v, other).endsWith("faster") ? both.reverse() : both;
  const ends = [one.low / of.high, one.high / of.low].map((ratio) => times(ratio).slice(0, -1));
  return ` [${ends.join(", ")}]${one.noisy || of.noisy ? ", noisy" : ""}`;
}

function nearest(r) {
  const use = facts.scenes[r].answers[lengthOf(r)]?.use, best = use === undefined ? undefined : at(r, use);
  const some = looks.map(({ v }) => at(r, v)).filter((cell) => cell?.distance && best && cell.high < best.low);
  if (!some.length) return "Nothing that is not exact is clearly faster";
  const { variant, distance, s } = some.reduce((a, b) => (a.distance < b.distance ? a : b));
  return `Of what is faster than ${nameOf(use)}, ${nameOf(variant)} is nearest to softmax: ${three(distance)} at ${times(s / best.s)} the time`;
}

function mapOf(run, width) {
  const rows = shown.filter((r) => facts.scenes[r].run === run).map((r) => {
    const { answers, title } = facts.scenes[r], [first, ...rest] = title.split(" · "), some = {};
    for (const [n, { use, ties, lead, noisy, why }] of Object.entries(answers)) {
      const cell = use === undefined ? null : at(r, use, n);
      some[n] = cell ? { look: looks[use], lead, ties: ties.length, noisy, seconds: cell.s, cell } : { why };
    }
    return { scene: r, title: first, under: rest.join(", "), cells: some };
  });
  const lengths = [...new Set(rows.flatMap(({ cells: some }) => Object.keys(some).map(Number)))].sort((a, b) => a - b);
  return rows.length ? { ...winnerMap({ rows, lengths, width, focus: Number(state.n) }), told: "" } : null;
}

const near = new Set();
const watch = new IntersectionObserver((seen) => {
  for (const { target, isIntersecting } of seen) {
    near[isIntersecting ? "add" : "delete"](target);
    if (isIntersecting) draw(target);
  }
}, { rootMargin: "400px" });

function figureFor(place, key, title) {
  let figure = all("figure", place).find((each) => each.dataset.key === key);
  if (!figure) {
    figure = document.createElement("figure");
    figure.dataset.key = key;
    figure.innerHTML = '<figcaption><b></b> <span></span></figcaption><div class="plot" tabindex="0" role="group"></div>' +
      '<output class="readout" hidden></output><div class="save" role="group" aria-label="Save this figure">' +
      ["svg", "png"].map((kind) => `<button type="button" data-save="${kind}">${kind.toUpperCase()}</button>`).join("") + "</div>";
    place.append(figure);
    watch.observe(figure);
  }
  $("b", figure).textContent = title;
  figure.stale = true;
  return figure;
}

function redraw() {
  for (const place of all("[data-draw]")) {
    const what = place.dataset.draw, map = what === "map", dated = what === "tradeoffs";
    const keys = map ? [...new Set(shown.map((r) => facts.scenes[r].run))] : shown.slice(0, MOST);
    const kept = keys.map((key) => {
      const { title, run } = facts.scenes[map ? shown[0] : key], several = new Set(shown.map((r) => facts.scenes[r].run)).size > 1;
      const length = dated ? ` at ${tokens(lengthOf(key))} tokens` : "";
      return figureFor(place, String(key), map ? (several ? key : "") : `${title}${length}${several ? ` · ${run}` : ""}`);
    });
    for (const figure of all("figure", place)) figure.hidden = !kept.includes(figure);
    place.dataset.many = map ? 1 : kept.length === 4 ? 2 : Math.min(3, kept.length);
    let more = $(".more", place);
    if (!map && shown.length > MOST && !more) place.append((more = Object.assign(document.createElement("p"), { className: "more aside" })));
    if (more) more.textContent = shown.length > MOST ? `${shown.length - MOST} more regimes: narrow them by phase, mask or type.` : "";
  }
  $(".against")?.removeAttribute("hidden");
  for (const figure of near) draw(figure);
}

function draw(figure, width = 0) {
  if ((!figure.stale && !width) || figure.hidden) return;
  const plot = $(".plot", figure), what = figure.parentElement.dataset.draw, { key } = figure.dataset;
  const room = width || plot.clientWidth;
  if (!room) return;
  const made = what === "map" ? mapOf(key, room) : DRAWS[what](Number(key), room);
  figure.stale = Boolean(width);
  figure.points = made?.points ?? [];
  plot.innerHTML = made?.svg ?? '<p class="aside">Nothing to draw here: what is chosen was not measured, or not by this.</p>';
  plot.firstChild.style.minWidth = made?.whole > room ? `${made.whole}px` : "";
  if (made?.whole > room) plot.scrollLeft = (made.points.find((p) => p.c === Number(state.n))?.x ?? 0) - room / 2;
  plot.setAttribute("aria-label", `${$("h2", figure.closest("section")).textContent}, ${$("b", figure).textContent}: ${figure.points.length} points, arrow keys read them`);
  $("figcaption span", figure).textContent = [made?.told.trim(), made?.note].filter(Boolean).join(" ");
  $(".save", figure).hidden = !made;
  $(".readout", figure).hidden = true;
}

/* The readout: the point nearest to the pointer, the finger, or the arrow keys. */

function wordsOf({ scene, variant, length, s, low, high: top, peak, saved, cache, share, error, distance, fidelity, joules: energy, noisy }) {
  const best = Math.min(...looks.filter(({ exact }) => exact).map(({ v }) => at(scene, v, length)?.s ?? Infinity));
  const say = (value) => figures(value * 1e3);
  return [
    `${tokens(length)} tokens: ${say(s)} ms [${say(low)}, ${say(top)}]`,
    [Number.isFinite(best) && `${times(s / best)} the best`, share && `${percent(share)} of ceiling`].filter(Boolean).join(" · "),
    peak && `${figures(peak / 2 ** 20)} MiB${saved ? `, ${figures(saved / 2 ** 20)} kept for backward` : ""}`,
    cache && `${figures(cache)} bytes a token in the cache`,
    looks[variant].exact ? error && `error ${three(error)}`
      : `not exact: ${fidelity === null ? "fidelity not measured" : `${Math.round(Math.max(0, fidelity) * 100)} % fidelity`}${distance ? `, distance ${three(distance)}` : ""}`,
    energy && joules(energy),
    noisy && "noisy",
  ].filter(Boolean);
}

function point(figure, p) {
  const box = $(".readout", figure), plot = $(".plot", figure), drawing = $("svg", plot);
  figure.at = p;
  box.hidden = !p;
  if (!drawing) return;
  $(".cross", drawing).innerHTML = p ? crosshair(p, drawing.viewBox.baseVal) : "";
  if (!p) return;
  const [name, ...lines] = [looks[p.v].name, ...wordsOf(p.cell)];
  box.innerHTML = `<b class="h-${looks[p.v].hue}">${escaped(name)}</b>${lines.map((each) => `<span>${escaped(each)}</span>`).join("")}`;
  const size = drawing.getBoundingClientRect(), frame = figure.getBoundingClientRect(), scale = size.width / drawing.viewBox.baseVal.width;
  const x = size.left - frame.left + p.x * scale, y = size.top - frame.top + p.y * scale;
  const { offsetWidth: broad, offsetHeight: tall } = box, right = x + 16 + broad < frame.width, beside = right || x > broad + 18;
  const left = right ? x + 14 : beside ? x - 14 - broad : Math.max(4, Math.min(x - broad / 2, frame.width - broad - 4));
  const above = beside ? Math.min(y - tall / 2, frame.height - tall - 4) : y > tall + 20 ? y - tall - 16 : y + 16; // never on the point
  box.style.translate = `${left}px ${Math.max(4, above)}px`;
}

function crosshair({ x, y, wide: half = 0 }, { width, height }) {
  if (half) return tag("rect", { x: x - half + 1, y: y - 28, width: 2 * half - 2, height: 56, rx: 5, fill: "none", style: "stroke:var(--ink)", "stroke-width": 2 });
  const cross = line([[x, ABOVE], [x, height - BELOW]], "var(--faint)", 1) + line([[LEFT, y], [width, y]], "var(--faint)", 1);
  return cross + tag("circle", { cx: x, cy: y, r: 8, fill: "none", style: "stroke:var(--ink)", "stroke-width": 1.5 });
}

function nearestTo({ clientX, clientY }, figure) {
  const drawing = $("svg", figure), size = drawing?.getBoundingClientRect();
  if (!size || !figure.points.length) return null;
  const scale = drawing.viewBox.baseVal.width / size.width, x = (clientX - size.left) * scale, y = (clientY - size.top) * scale;
  const far = (p) => (p.wide ? Math.max(Math.abs(p.x - x) / p.wide, Math.abs(p.y - y) / 28) : Math.hypot(p.x - x, p.y - y) + (p.rest ? 6 : 0));
  return figure.points.reduce((a, b) => (far(b) < far(a) ? b : a));
}

function step(figure, key) {
  const { points, at: now } = figure;
  if (!now || !points.includes(now)) return points.find((p) => !p.rest) ?? points[0];
  const [axis_, track, sign] = { ArrowRight: ["x", "r", 1], ArrowLeft: ["x", "r", -1], ArrowDown: ["y", "c", 1], ArrowUp: ["y", "c", -1] }[key];
  const along = points.filter((p) => p !== now && p[track] === now[track] && sign * (p[axis_] - now[axis_]) >= 0);
  const beyond = along.filter((p) => p[axis_] !== now[axis_] || points.indexOf(p) > points.indexOf(now));
  return beyond.length ? beyond.reduce((a, b) => (sign * (b[axis_] - a[axis_]) < 0 ? b : a)) : now;
}

/* Saving what is drawn: as it is on paper, under its title, in light colours, whatever the theme. */

function standalone(figure) {
  const drawing = $("svg", figure).cloneNode(true), above = 26;
  const { width, height: drawn } = $("svg", figure).viewBox.baseVal, height = drawn + above;
  const title = [$("h2", figure.closest("section")).textContent, $("figcaption b", figure).textContent].filter(Boolean).join(": ");
  $(".cross", drawing).remove();
  drawing.removeAttribute("aria-hidden");
  for (const [name, value] of Object.entries({ viewBox: `0 ${-above} ${width} ${height}`, width, height, style: "background:#fff" })) drawing.setAttribute(name, value);
  drawing.insertAdjacentHTML("afterbegin", text(4, 8 - above / 2, fit(title, width - 8, 13, true), { bold: true, size: 13 }));
  const colours = getComputedStyle(root); // each is light-dark(#…, #…)
  const said = new XMLSerializer().serializeToString(drawing)
    .replace(/var\((--[\w-]+)\)/g, (_, name) => colours.getPropertyValue(name).match(/#\w+/)[0]);
  return { said, width, height };
}

async function save(kind, figure) {
  const name = `${figure.parentElement.dataset.draw}-${figure.dataset.key.replace(/[^\w.-]+/g, "-")}`;
  const { said, width, height } = standalone(figure);
  if (kind === "svg") return give(said, "image/svg+xml", `${name}.svg`);
  const image = new Image(width, height);
  image.src = `data:image/svg+xml,${encodeURIComponent(said)}`;
  await image.decode();
  const canvas = Object.assign(document.createElement("canvas"), { width: width * 3, height: height * 3 });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  canvas.toBlob((png) => give(png, "image/png", `${name}.png`));
}

function give(what, type, name) {
  const href = URL.createObjectURL(new Blob([what], { type }));
  Object.assign(document.createElement("a"), { href, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(href), 60_000);
  tell(`${name} is saved`);
}
