// Figures as SVG, from the page's own data: plain functions from values to markup and points.
"use strict";

const FACE = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif";
const LEFT = 58, ABOVE = 28, BELOW = 40;
const DASHES = { full: "", left: "6 3", none: "2 2.5" };

/* Numbers in words, as the rest of the page has them. */

const figures = (value) => {
  if (!value) return "0";
  const digits = Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value)) + 1e-12));
  if (digits > 6) return value.toExponential(1).replace(/-(\d)$/, "-0$1");
  return Number(value.toFixed(digits)).toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
};
const three = (value) =>
  value >= 1e6 || value < 1e-4 ? value.toExponential(2).replace(/\.?0*e\+?/, "e")
    : Number(value.toPrecision(3)).toLocaleString("en", { maximumFractionDigits: 9 });
const inUnits = (...units) => (value) => {
  const [unit, size] = units.find(([, size]) => value >= size * 0.9995) ?? units.at(-1);
  return `${three(value / size)} ${unit}`;
};
const shorter = inUnits(["s", 1], ["ms", 1e-3], ["µs", 1e-6]);
const seconds = (value) => {
  if (value < 119.5) return shorter(value);
  const [unit, size] = value < 5400 ? ["min", 60] : ["h", 3600];
  return `${three(Number((value / size).toPrecision(2)))} ${unit}`;
};
const nbytes = inUnits(["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 1024], ["B", 1]);
const joules = inUnits(["kJ", 1e3], ["J", 1], ["mJ", 1e-3], ["µJ", 1e-6]);
const percent = (value) =>
  `${three(Math.abs(100 * value) >= 9.95 ? Math.round(100 * value) : Number((100 * value).toPrecision(2)))}\u00a0%`;
const times = (value) => (value >= 0.1 && value < 10 ? `${value.toFixed(2)}×` : `${figures(value)}×`);
const tokens = (n) => n.toLocaleString("en");

/* Markup. */

const escaped = (text) =>
  String(text).replace(/[&<>"]/g, (sign) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[sign]);

function tag(name, given, inside = "") {
  const said = Object.entries(given).filter(([, value]) => value !== undefined && value !== "");
  return `<${name}${said.map(([key, value]) => ` ${key}="${escaped(value)}"`).join("")}>${inside}</${name}>`;
}

const place = (number) => Math.round(number * 10) / 10;
const path = (points) => points.map(([x, y], n) => `${n ? "L" : "M"}${place(x)} ${place(y)}`).join("");
const line = (points, colour, width = 1, more = {}) => tag("path", {
  d: path(points), fill: "none", "stroke-width": width, style: `stroke:${colour}`, ...more });

function text(x, y, words, { anchor, bold, faint, v, size, clear } = {}) {
  return tag("text", {
    x: place(x), y: place(y), "text-anchor": anchor, "font-weight": bold ? 650 : undefined, "font-size": size,
    style: `fill:var(--${faint ? "faint" : "ink"})${clear ? ";paint-order:stroke;stroke:var(--paper);stroke-width:4px" : ""}`, "data-v": v,
  }, escaped(words));
}

const pen = document.createElement("canvas").getContext("2d");

function wide(words, size = 12, bold = false) {
  pen.font = `${bold ? 650 : 400} ${size}px ${FACE}`;
  return pen.measureText(words).width;
}

function fit(words, room, size = 12, bold = false) {
  if (wide(words, size, bold) <= room) return words;
  let end = Math.min(words.length, Math.ceil(room / 3));
  while (end > 0 && wide(`${words.slice(0, end)}…`, size, bold) > room) end -= 1;
  return end ? `${words.slice(0, end)}…` : "";
}

const OUTLINES = [ // round a point, of half a width of 1
  null, [[-1, -1], [1, -1], [1, 1], [-1, 1]], [[0, -1.2], [1.1, 0.9], [-1.1, 0.9]],
  [[0, -1.35], [1.35, 0], [0, 1.35], [-1.35, 0]], [[0, 1.2], [1.1, -0.9], [-1.1, -0.9]],
  [[-1, -0.4], [-0.4, -1], [0, -0.6], [0.4, -1], [1, -0.4], [0.6, 0], [1, 0.4], [0.4, 1], [0, 0.6], [-0.4, 1], [-1, 0.4], [-0.6, 0]],
  [[-0.35, -1.4], [0.35, -1.4], [0.35, -0.35], [1.4, -0.35], [1.4, 0.35], [0.35, 0.35], [0.35, 1.4], [-0.35, 1.4], [-0.35, 0.35], [-1.4, 0.35], [-1.4, -0.35], [-0.35, -0.35]],
  [[0, -1.4], [0.4, -0.5], [1.35, -0.4], [0.6, 0.25], [0.85, 1.2], [0, 0.65], [-0.85, 1.2], [-0.6, 0.25], [-1.35, -0.4], [-0.4, -0.5]],
  [[-1.2, 0], [0.9, -1.1], [0.9, 1.1]], [[1.2, 0], [-0.9, -1.1], [-0.9, 1.1]],
];

// A look's mark: full of its colour if exact, light if near softmax, hollow if another operator.
function mark(look, x, y, size = 4, rest = false) {
  const colour = rest ? "var(--faint)" : `var(--${look.hue})`;
  const style = `fill:${look.fill === "none" ? "var(--paper)" : colour};stroke:${colour}`;
  const how = { style, "stroke-width": 1.4, "fill-opacity": look.fill === "left" ? 0.35 : undefined };
  const outline = OUTLINES[look.marker];
  if (!outline) return tag("circle", { cx: place(x), cy: place(y), r: size, ...how });
  return tag("path", { d: `${path(outline.map(([a, b]) => [x + a * size, y + b * size]))}Z`, ...how });
}

const svg = (width, height, inside) => tag("svg", {
  xmlns: "http://www.w3.org/2000/svg", viewBox: `0 0 ${width} ${height}`, "font-family": FACE, "font-size": 12,
  "aria-hidden": "true" }, `${inside}<g class="cross" pointer-events="none"></g>`);

/* Logarithmic axes. */

function axis(values, from, to, { room = 0.05, least = 1.5 } = {}) {
  let low = values.reduce((a, b) => Math.min(a, b)), high = values.reduce((a, b) => Math.max(a, b));
  const wider = Math.max(1, Math.sqrt((least * low) / high)), edge = ((high / low) * wider ** 2) ** room;
  low /= wider * edge;
  high *= wider * edge;
  return { low, high, at: (value) => from + ((to - from) * Math.log(value / low)) / Math.log(high / low) };
}

function ticks({ low, high }, base = 10, most = 6) {
  const inside = (some) => some.filter((value) => value >= low && value <= high);
  const first = Math.floor(Math.log(low) / Math.log(base)), last = Math.ceil(Math.log(high) / Math.log(base));
  const powers = Array.from({ length: last - first + 1 }, (_, n) => base ** (first + n));
  for (const multiples of base === 2 ? [[1, 1.25, 1.5, 1.75], [1, 1.5], [1]] : [[1, 2, 3, 5], [1, 2, 5], [1, 3], [1]]) {
    const some = inside(powers.flatMap((power) => multiples.map((multiple) => power * multiple)));
    if (some.length >= 3 && some.length <= most) return some;
  }
  const some = inside(powers), every = Math.ceil(some.length / most);
  if (some.length >= 3) return some.filter((_, n) => n % every === 0);
  const rough = (high - low) / 4, unit = base ** Math.floor(Math.log(rough) / Math.log(base)); // within a power: even steps
  const step = unit * [1, 2, 5, 10].find((multiple) => multiple * unit >= rough);
  return inside(Array.from({ length: 12 }, (_, n) => (Math.ceil(low / step) + n) * step));
}

// What stands at both axes, in a box [left, top, right, bottom].
function frame([left, top, right, bottom], { x, y, xticks, yticks, xsay, ysay, xlabel, ylabel }) {
  const parts = [];
  for (const value of yticks) {
    parts.push(line([[left, y.at(value)], [right, y.at(value)]], "var(--grid)"));
    parts.push(text(left - 7, y.at(value) + 4, ysay(value), { anchor: "end" }));
  }
  let edge = Infinity;
  for (const value of [...xticks].reverse()) {
    const at = x.at(value), half = wide(xsay(value)) / 2;
    parts.push(line([[at, bottom], [at, bottom + 4]], "var(--faint)"));
    if (at + half > edge - 6) continue;
    edge = at - half;
    parts.push(text(Math.min(at, right + 12 - half), bottom + 17, xsay(value), { anchor: "middle" }));
  }
  parts.push(line([[left, bottom], [right, bottom]], "var(--faint)"));
  parts.push(text((left + right) / 2, bottom + 34, fit(xlabel, right - left), { anchor: "middle", faint: true }));
  parts.push(text(4, top - 15, ylabel, { faint: true }));
  return parts.join("");
}

// Places as near the wanted ones as can be, a gap apart and within the limits.
function spread(wanted, gap, low, high) {
  gap = Math.min(gap, (high - low) / Math.max(1, wanted.length - 1));
  const order = wanted.map((_, n) => n).sort((a, b) => wanted[a] - wanted[b]);
  const found = [];
  order.forEach((n, rank) => (found[n] = Math.max(wanted[n], rank ? found[order[rank - 1]] + gap : low)));
  let ceiling = high;
  for (const n of order.reverse()) ceiling = (found[n] = Math.min(found[n], ceiling)) - gap;
  return found;
}

const high = (width) => Math.round(Math.min(360, Math.max(250, width * 0.6)));
let clips = 0;

function clipped([left, top, right, bottom], inside) {
  const id = `clip${(clips += 1)}`, size = { x: left, y: top, width: right - left, height: bottom - top };
  return `${tag("clipPath", { id }, tag("rect", size))}${tag("g", { "clip-path": `url(#${id})` }, inside)}`;
}

/* Lines over the length. ``lines``: {look, rest, points: [{n, y, low, high, cell}]}. */

function lineChart({ lines, width, say, base, ylabel, xlabel, focus, up }) {
  if (new Set(lines.flatMap((each) => each.points.map(({ n }) => n))).size === 1) return barChart({ lines, width, say, ylabel, up });
  const bold = lines.filter((each) => !each.rest), framed = bold.length ? bold : lines;
  const names = Math.min(width * 0.34, Math.max(20, ...bold.map(({ look }) => wide(look.name))) + 34);
  const box = [LEFT, ABOVE, width - names, high(width) - BELOW], [left, top, right, bottom] = box;
  const points = framed.flatMap((each) => each.points), ns = [...new Set(points.map(({ n }) => n))].sort((a, b) => a - b);
  const x = axis(ns, left, right, { room: 0.02 });
  const y = axis(points.flatMap((p) => [p.low, p.high]), bottom, top);
  const parts = [frame(box, { x, y, xticks: ns, yticks: ticks(y, base), xsay: tokens, ysay: say, xlabel, ylabel })];
  if (ns.includes(focus)) parts.push(line([[x.at(focus), top], [x.at(focus), bottom]], "var(--faint)", 1, { "stroke-dasharray": "2 3" }));
  const found = [], pale = [], drawn = [];
  for (const { look, rest, points: some } of [...lines].reverse()) {
    const at = some.map((p) => ({ ...p, x: x.at(p.n), y: y.at(p.y), v: look.v, r: look.v, c: p.n, rest }));
    const both = at.map((p) => [p.x, p.y]), colour = `var(--${look.hue})`;
    found.push(...at.filter((p) => p.x >= left - 1 && p.x <= right + 1 && p.y >= top - 1 && p.y <= bottom + 1));
    if (rest) {
      pale.push(line(both, "var(--faint)", 1, { opacity: 0.25 }));
      if (both.length === 1) pale.push(mark(look, ...both[0], 2, true));
      continue;
    }
    if (some.some((p) => p.high > 1.02 * p.low)) {
      const [over, under] = ["high", "low"].map((end) => some.map((p) => [x.at(p.n), y.at(p[end])]));
      drawn.push(tag("path", { d: `${path([...over, ...under.reverse()])}Z`, style: `fill:${colour}`, opacity: 0.14 }));
    }
    drawn.push(line(both, colour, 1.8, { "stroke-dasharray": DASHES[look.fill], "stroke-linejoin": "round" }));
    drawn.push(...both.map((p) => mark(look, ...p, 3.6)));
  }
  parts.push(clipped(box, pale.join("")), ...drawn);
  const ends = bold.map(({ look, points: some }) => ({ look, x: x.at(some.at(-1).n), y: y.at(some.at(-1).y) }));
  const places = spread(ends.map((end) => end.y), 15, top + 2, bottom - 2);
  ends.forEach(({ look, x: at, y: up }, n) => {
    parts.push(line([[at + 5, up], [right + 6, places[n]], [right + 12, places[n]]], `var(--${look.hue})`, 0.8, { opacity: 0.7 }));
    parts.push(mark(look, right + 18, places[n], 3.6));
    parts.push(text(right + 27, places[n] + 4, fit(look.name, width - right - 29), { v: look.v }));
  });
  return { svg: svg(width, high(width), parts.join("")), points: found };
}

// Where there is one length: bars from zero, the best first, with their intervals.
const BARS = 10;

function barChart({ lines, width, say, ylabel, up }) {
  const order = lines.map(({ look, rest, points: [p] }) => ({ ...p, look, rest })).sort((a, b) => (up ? b.y - a.y : a.y - b.y));
  const room = Math.max(0, BARS - order.filter((p) => !p.rest).length), pale = order.filter((p) => p.rest);
  const rest = [...pale.filter(({ look }) => look.exact), ...pale.filter(({ look }) => !look.exact)].slice(0, room);
  const bars = order.filter((p) => !p.rest || rest.includes(p)), row = 22;
  const left = Math.min(width * 0.38, Math.max(30, ...bars.map((p) => wide(p.look.name))) + 26);
  const right = width - Math.max(...bars.map((p) => wide(say(p.y)))) - 14, most = Math.max(...bars.map((p) => p.high));
  const x = (value) => left + ((right - left) * value) / most, parts = [text(4, ABOVE - 15, ylabel, { faint: true })], bottom = ABOVE + row * bars.length;
  const points = bars.map((p, k) => {
    const y = ABOVE + row * (k + 0.5), colour = p.rest ? "var(--faint)" : `var(--${p.look.hue})`;
    parts.push(tag("rect", { x: place(left), y: place(y - 7), width: place(x(p.y) - left), height: 14, style: `fill:${colour}`, "fill-opacity": p.rest ? 0.25 : 0.55 }));
    if (p.high > 1.02 * p.low) parts.push(line([[x(p.low), y], [x(p.high), y]], "var(--ink)", 1.4));
    parts.push(mark(p.look, left - 10, y, 3.6, p.rest), text(left - 18, y + 4, fit(p.look.name, left - 22), { anchor: "end", v: p.look.v }));
    parts.push(text(x(Math.max(p.y, p.high)) + 6, y + 4, say(p.y)));
    return { ...p, x: x(p.y), y, v: p.look.v, r: p.look.v, c: p.n };
  });
  parts.push(line([[left, ABOVE], [left, bottom]], "var(--faint)"));
  const more = order.length - bars.length;
  return { svg: svg(width, bottom + BELOW / 2, parts.join("")), points, note: `One length was measured${more ? `; ${more} more are in the table` : ""}.` };
}

/* Points, one for each variant. ``points``: {look, rest, x, y, cell}; ``fronts``: lists of points. */

function scatter({ points, fronts = [], width, xsay, ysay, ybase, xlabel, ylabel }) {
  const bold = points.filter((p) => !p.rest), framed = bold.length ? bold : points;
  const box = [LEFT, ABOVE, width - 14, high(width) - BELOW], [left, top, right, bottom] = box;
  const x = axis(framed.map((p) => p.x), left, right, { room: 0.1 });
  const y = axis(framed.map((p) => p.y), bottom, top, { room: 0.14 });
  const most = width < 480 ? 4 : 6;
  const parts = [frame(box, { x, y, xticks: ticks(x, 10, most), yticks: ticks(y, ybase), xsay, ysay, xlabel, ylabel })];
  const steps = fronts.filter((front) => front.length).map((front, n) => {
    const corners = front.flatMap((p, k) => (k ? [[x.at(p.x), y.at(front[k - 1].y)], [x.at(p.x), y.at(p.y)]] : [[x.at(p.x), y.at(p.y)]]));
    const ends = [[corners[0][0], top], ...corners, [right, corners.at(-1)[1]]];
    return line(ends, "var(--faint)", 1.2, { "stroke-dasharray": n ? "5 3" : undefined, opacity: 0.8 });
  });
  parts.push(clipped(box, steps.join("")));
  const found = points.map((p) => ({ ...p, x: x.at(p.x), y: y.at(p.y), v: p.look.v, r: 0, c: 0 }))
    .filter((p) => p.x >= left && p.x <= right && p.y >= top && p.y <= bottom);
  const order = [...found].sort((a, b) => Number(b.rest ?? 0) - Number(a.rest ?? 0));
  for (const p of order) parts.push(tag("g", { opacity: p.rest ? 0.45 : undefined }, mark(p.look, p.x, p.y, p.rest ? 3 : 5, p.rest)));
  const taken = found.map((p) => [p.x - 6, p.y - 6, p.x + 6, p.y + 6]);
  for (const p of found.filter((each) => !each.rest)) {
    const name = fit(p.look.name, 150), room = wide(name);
    const places = [[p.x + 9, p.y + 4], [p.x - 9 - room, p.y + 4], [p.x - room / 2, p.y - 10], [p.x - room / 2, p.y + 19],
      [p.x + 7, p.y - 8], [p.x + 7, p.y + 16], [p.x - 7 - room, p.y - 8], [p.x - 7 - room, p.y + 16]];
    const free = places.find(([a, b]) => a >= left && a + room <= width - 2 && b - 10 >= top - 4 && b + 3 <= bottom &&
      !taken.some(([l, t, r, d]) => a < r && a + room > l && b - 10 < d && b + 3 > t));
    if (!free) continue; // the readout has it
    taken.push([free[0], free[1] - 10, free[0] + room, free[1] + 3]);
    parts.push(text(...free, name, { v: p.look.v, clear: true }));
  }
  return { svg: svg(width, high(width), parts.join("")), points: found };
}

// What nothing else beats in one coordinate without losing in the other.
function frontier(points) {
  const kept = [];
  for (const p of [...points].sort((a, b) => a.x - b.x || a.y - b.y))
    if (!kept.length || p.y < kept.at(-1).y) kept.push(p);
  return kept;
}

/* Who wins. ``rows``: {title, under, cells: {n: {look, lead, ties, seconds, noisy, why, cell}}}. */

const depth = (lead) => 0.14 + 0.24 * Math.min(1, Math.log(Math.max(1, lead ?? 1)) / Math.log(3));

function winnerMap({ rows, lengths, width, focus }) {
  const beside = Math.min(190, Math.max(70, ...rows.flatMap(({ title, under }) => [wide(title, 12, true) + 12, wide(under, 11) + 12])));
  const narrow = width < beside + 84 * lengths.length, head = narrow ? 0 : beside; // then a row's words stand above it
  const across = Math.max(84, (width - head - 2) / lengths.length), above = narrow ? 24 : 0, row = 58 + above, top = 30;
  const whole = head + across * lengths.length + 2, parts = [], points = [], tied = `tied${(clips += 1)}`;
  parts.push(tag("defs", {}, tag("pattern", { id: tied, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    line([[0, 0], [0, 6]], "var(--ink)", 1.2, { opacity: 0.22 }))));
  if (!narrow) parts.push(text(2, 19, "tokens", { faint: true }));
  lengths.forEach((n, k) => parts.push(text(head + across * (k + 0.5), 19, tokens(n), { anchor: "middle", bold: n === focus })));
  rows.forEach(({ title, under, cells, scene }, r) => {
    const y = top + row * r + above;
    if (narrow) parts.push(text(2, y - 6, fit([title, under].filter(Boolean).join(" · "), width - 4, 12, true), { bold: true }));
    else {
      parts.push(text(2, y + (under ? 25 : 32), fit(title, head - 8, 12, true), { bold: true }));
      parts.push(text(2, y + 41, fit(under, head - 8, 11), { faint: true, size: 11 }));
    }
    lengths.forEach((n, k) => {
      const x = head + across * k, box = { x: place(x + 1.5), y: y + 1.5, width: place(across - 3), height: 55, rx: 5 };
      const found = cells[n] ?? { why: "not measured" }, middle = { anchor: "middle" }, room = across - 10;
      if (!found.look) {
        parts.push(tag("rect", { ...box, fill: "none", style: "stroke:var(--grid)" }));
        parts.push(text(x + across / 2, y + 33, fit(found.why, room, 11), { ...middle, faint: true, size: 11 }));
        return;
      }
      const { look, lead, ties, noisy } = found, doubt = noisy ? " ?" : "";
      parts.push(tag("rect", { ...box, style: `fill:var(--${look.hue})`, "fill-opacity": place(depth(lead) * 100) / 100 }));
      if (ties) parts.push(tag("rect", { ...box, fill: `url(#${tied})` }));
      parts.push(text(x + across / 2, y + 21, fit(look.name, room, 12, true), { ...middle, bold: true, v: look.v }));
      const how = ties ? `tie of ${ties + 1}` : lead ? `${times(lead)} ahead` : "the only one";
      parts.push(text(x + across / 2, y + 36, how + doubt, { ...middle, size: 11 }));
      parts.push(text(x + across / 2, y + 50, seconds(found.seconds), { ...middle, size: 11 }));
      points.push({ x: x + across / 2, y: y + 29, v: look.v, cell: found.cell, r: scene, c: n, wide: across / 2 });
    });
  });
  if (lengths.includes(focus)) {
    const x = head + across * lengths.indexOf(focus);
    parts.push(tag("rect", { x: place(x), y: top - 1, width: place(across), height: row * rows.length + 2, rx: 6, fill: "none", style: "stroke:var(--ink)", "stroke-width": 1.2 }));
  }
  return { svg: svg(Math.ceil(whole), top + row * rows.length + 4, parts.join("")), points, whole: Math.ceil(whole) };
}
