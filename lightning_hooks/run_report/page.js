// The Health page: a run, two compared, or the runs of a log directory. TensorBoard's tab and `lightning-hooks serve` answer its requests;
// report.html and notebooks have the data in the page.
//
// Everything that comes from a run is set as text, never as markup. Nothing is requested but the addresses next to this module.

const POLL_SECONDS = 2.5;
const SIGNS = { failed: "✖", critical: "✖", warning: "▲", info: "●", healthy: "✔", unknown: "?" };
const RANK = { failed: 0, critical: 1, warning: 2, unknown: 3, healthy: 4 };
// Viridis (Smith and van der Walt, 2015), and from blue (less) over grey to vermillion (more): for any colour vision.
const VIRIDIS = "440154 481a6c 472f7d 414487 39568c 31688e 2a788e 23888e 1f988b 22a884 35b779 54c568 7ad151 a5db36 d2e21b fde725".split(" ");
const DIVERGING = "0a3d6b 0072b2 56a5d0 a9cfe4 e6e6e6 f3c6a5 e8935b d55e00 7f2d00".split(" ");
const COLORS = ["var(--blue)", "var(--amber)", "var(--green)", "var(--red)", "var(--sky)"];
const SVG = "http://www.w3.org/2000/svg";

// ---- Elements -----------------------------------------------------------------------------------------------------------------

/** A text whose control, formatting and surrogate characters are written out: they could hide or reverse the text next to them. */
const visible = (text) =>
  String(text).replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/gu, (char) => `\\u${char.codePointAt(0).toString(16).padStart(4, "0")}`);

function fill(element, properties, children) {
  for (const [key, value] of Object.entries(properties ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : visible(value));
  }
  const nodes = children.flat(9).filter((child) => child !== null && child !== undefined && child !== false && child !== "");
  element.append(...nodes.map((child) => (child instanceof Node ? child : document.createTextNode(visible(child)))));
  return element;
}
/** An element of HTML; `onclick` and the like are listeners, and what is no element among the children is text. */
const h = (tag, properties, ...children) => fill(document.createElement(tag), properties, children);
/** The same of SVG. */
const s = (tag, properties, ...children) => fill(document.createElementNS(SVG, tag), properties, children);

const mark = (severity) => h("span", { class: `mark ${severity}`, role: "img", "aria-label": severity }, SIGNS[severity] ?? "●");
const name = (text) => h("span", { class: "name" }, text);
/** Names one after the other. */
const listed = (names) => names.map((text, at) => [at ? ", " : "", name(text)]);
const soft = (...text) => h("p", { class: "soft" }, ...text);
const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

/** Make a parent's children these nodes, and leave alone those that are there already: they keep focus and scroll. */
function sync(parent, nodes) {
  nodes.forEach((node, place) => {
    if (parent.childNodes[place] !== node) parent.insertBefore(node, parent.childNodes[place] ?? null);
  });
  while (parent.childNodes.length > nodes.length) parent.lastChild.remove();
}

const parts = new Map();
/** A part of a page that is built again only when its data has changed; what was unfolded in it, and focused, stays so. */
function part(key, data, build) {
  const text = JSON.stringify(data);
  const old = parts.get(key);
  if (old?.text === text) return old.node;
  const node = build(data);
  if (old) {
    const open = new Set([...old.node.querySelectorAll("details[open][data-key]")].map((each) => each.dataset.key));
    node.querySelectorAll("details[data-key]").forEach((each) => { each.open ||= open.has(each.dataset.key); });
    const focused = old.node.contains(document.activeElement) && document.activeElement.id;
    if (focused) queueMicrotask(() => document.getElementById(focused)?.focus());
  }
  parts.set(key, { text, node });
  return node;
}

// ---- Numbers ------------------------------------------------------------------------------------------------------------------

function number(value) {
  if (typeof value !== "number") return value ?? "–";
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return String(value);
  const text = Math.abs(value) >= 1e5 || Math.abs(value) < 1e-4 ? value.toExponential(2) : value.toPrecision(3);
  return text.replace(/(\.\d*?)0+(e|$)/, "$1$2").replace(/\.(e|$)/, "$1");
}
const percent = (value) => (value === null ? "–" : `${number(Number((100 * value).toPrecision(3)))} %`);

function ago(seconds) {
  if (seconds < 90) return `${Math.max(0, Math.round(seconds))} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h ago` : `${Math.round(seconds / 86400)} days ago`;
}

/** An axis for numbers: its place for each (0 at the low end, 1 at the high one), and the numbers written along it. */
function axis(values, kind) {
  const known = values.filter((value) => value !== null && (kind !== "log" || value > 0));
  if (kind === "share") return { place: (value) => value, ticks: [0, 0.25, 0.5, 0.75, 1], show: percent };
  const map = kind === "log" ? Math.log10 : (value) => value;
  let low = known.length ? map(Math.min(...known)) : 0;
  let high = known.length ? map(Math.max(...known)) : 1;
  const room = Math.max(0.06 * (high - low), kind === "log" ? 0.1 : 0.1 * Math.abs(high) || 0.5) * (high > low && kind !== "log" ? 0.6 : 1);
  low -= room;
  high += room;
  const place = (value) => Math.min(1, Math.max(0, (map(value) - low) / (high - low)));
  if (kind === "log" && high - low > 0.9) {
    const step = Math.max(1, Math.ceil((high - low) / 6));
    const powers = Array.from({ length: Math.floor(high) - Math.floor(low) + 1 }, (_, i) => Math.floor(low) + i);
    const isWide = high - low > 2; // else numbers between the powers of ten
    const ticks = powers.filter((power) => power % step === 0).flatMap((power) => (isWide ? [1] : [1, 2, 5]).map((digit) => digit * 10 ** power));
    return { place, ticks: ticks.filter((tick) => map(tick) >= low && map(tick) <= high), show: isWide ? (tick) => `1e${Math.round(map(tick))}` : number };
  }
  const [from, to] = kind === "log" ? [10 ** low, 10 ** high] : [low, high];
  const raw = (to - from) / 5;
  const base = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((digit) => digit * base).find((each) => each >= raw);
  const first = Math.ceil(from / step);
  const ticks = Array.from({ length: Math.floor(to / step) - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(6)));
  return { place, ticks, show: number };
}

/** So many of `count` places, evenly, with the first and the last. */
const some = (count, most) => Array.from({ length: Math.min(count, most) }, (_, i) => Math.round((i * (count - 1)) / Math.max(1, Math.min(count, most) - 1)));

// ---- Charts -------------------------------------------------------------------------------------------------------------------

function epochsBelow(epochs, unit, place) {
  const shown = some(epochs.length, 5);
  const spans = shown.map((at, i) => h("span", { style: `left:${100 * place(at)}%` }, i ? epochs[at] : `${unit} ${epochs[at]}`));
  return h("div", { class: `epochs${shown.length === 1 ? " alone" : ""}` }, spans);
}

/** Which kind of axis suits numbers. */
function kindOf(values) {
  const known = values.filter((value) => value !== null);
  const positive = known.length > 0 && Math.min(...known) > 0;
  return positive && Math.max(...known) > 20 * Math.min(...known) ? "log" : "linear";
}

/**
 * Curves over the windows. A line is {label, values, top, color, dashed}: `top` is the upper edge of a band, and a dashed line is a limit.
 * A mark is [since, until, severity, text], drawn where it began and as long as it lasted.
 */
function chart({ title, epochs, unit, lines, kind, height = 170, marks = [] }) {
  const all = lines.flatMap((line) => [...line.values, ...(line.top ?? [])]);
  const scale = axis(all, kind ?? kindOf(all));
  const isLog = (kind ?? kindOf(all)) === "log";
  const shows = (value) => value !== null && (!isLog || value > 0);
  const text = (value) => (kind === "share" ? percent : number)(value);
  const first = epochs[0];
  const range = epochs[epochs.length - 1] - first || 1;
  const x = (epoch) => (epochs.length === 1 ? 50 : Math.min(100, Math.max(0, (100 * (epoch - first)) / range)));
  const y = (value) => 100 - 100 * scale.place(value);
  const color = (line, place) => (line.color ? `var(--${line.color})` : COLORS[place]);
  const drawn = lines.map((line, place) => {
    const point = (values) => (i) => `${x(epochs[i])},${y(values[i])}`;
    const dot = (at) => s("polyline", { class: "dot", points: `${at} ${at}` }); // round ends: a circle would be stretched to an ellipse
    const stretches = [[]];
    line.values.forEach((value, i) => (shows(value) ? stretches[stretches.length - 1].push(i) : stretches.push([])));
    return s("g", { style: `color:${color(line, place)}`, class: line.dashed ? "dashed" : undefined }, line.dashed
      ? shows(line.values[0]) && s("line", { class: "level", x1: 0, x2: 100, y1: y(line.values[0]), y2: y(line.values[0]) })
      : stretches.filter((stretch) => stretch.length).map((stretch) => {
        const points = stretch.map(point(line.values));
        const band = stretch.filter((i) => line.top && shows(line.top[i])).reverse().map(point(line.top));
        return [
          band.length > 0 && s(points.length > 1 ? "polygon" : "polyline", { class: points.length > 1 ? "" : "bar", points: [...points, ...band].join(" ") }),
          points.length > 1 && s("polyline", { class: "curve", points: points.join(" ") }),
          (epochs.length <= 40 || points.length === 1) && points.map(dot),
        ];
      }));
  });
  const label = `${lines.map((line) => line.label).join(", ")} over ${unit}s ${first} to ${epochs[epochs.length - 1]}`
    + marks.map((each) => `; ${each[2]} ${each[3]} since ${unit} ${each[0]}`).join("");
  const zones = epochs.map((epoch, i) => {
    const left = i ? (x(epochs[i - 1]) + x(epoch)) / 2 : 0;
    const right = i < epochs.length - 1 ? (x(epochs[i + 1]) + x(epoch)) / 2 : 100;
    return s("rect", { x: left, y: 0, width: right - left, height: 100 },
      s("title", {}, `${unit} ${epoch}${lines.map((line) => `; ${line.label}: ${text(line.values[i])}`).join("")}`));
  });
  return h("div", {},
    title && h("h3", {}, title),
    h("div", { class: "chart" },
      h("div", { class: "ticks" }, scale.ticks.map((tick) => h("span", { style: `top:${y(tick)}%` }, scale.show(tick)))),
      s("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none", style: `height:${height}px`, role: "img", "aria-label": label },
        scale.ticks.map((tick) => s("line", { class: "grid", x1: 0, x2: 100, y1: y(tick), y2: y(tick) })),
        marks.map(([since, until, severity]) => s("rect", { class: `span ${severity}`, x: x(since), y: 0, width: Math.max(0.4, x(until) - x(since)), height: 100 })),
        drawn,
        marks.map(([since, , severity, what]) => s("line", { class: `at ${severity}`, x1: x(since), x2: x(since), y1: 0, y2: 100 }, s("title", {}, what))),
        s("g", { class: "zones" }, zones)),
      epochsBelow(epochs, unit, (at) => x(epochs[at]) / 100)),
    h("ul", { class: "key" },
      lines.map((line, place) => h("li", {}, h("i", { style: `background:${color(line, place)}` }), line.label)),
      isLog && h("li", {}, "log scale"),
      marks.map(([since, , severity, what]) => h("li", {}, mark(severity), ` ${what}, since ${unit} ${since}`))),
    fold("Numbers", () => table({ heads: [unit, ...lines.map((line) => line.label)], rows: some(epochs.length, 100).map((i) => [String(epochs[i]), ...lines.map((line) => text(line.values[i]))]) }), { key: `numbers ${label.slice(0, 60)}` }));
}

const isNumber = (cell) => typeof cell === "number" || cell === null || /^[-+–×÷]?\s?[\d.,e+-]+( %|x)?$|^–$/.test(cell);
/** A table whose first column names what a row is of. */
function table({ heads, rows }) {
  const right = heads.map((_, place) => place > 0 && rows.every((row) => isNumber(row[place])));
  const cell = (tag, text, place) => h(tag, { class: right[place] && "n", scope: tag === "th" && "col" }, text);
  return h("div", { class: "wide" }, h("table", {},
    h("thead", {}, h("tr", {}, heads.map((head, place) => cell("th", head, place)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map((value, place) => cell("td", place || isNumber(value) ? number(value) : name(value), place)))))));
}

/** Layers on a common scale: logarithmic, in whole decades, or from 0 to 1 with bars. Those beyond the first are folded. */
function rowsChart({ lines, what, share, shades, limits }) {
  const shows = (value) => typeof value === "number" && (share || value > 0);
  const logs = [...lines.flatMap((line) => [line.value, line.high]), ...shades].filter(shows).map(Math.log10);
  const low = share ? 0 : Math.floor(logs.length ? Math.min(...logs) : -1);
  const high = share ? 1 : Math.max(low + 1, Math.ceil(logs.length ? Math.max(...logs) : 1));
  const place = (value) => 100 * Math.min(1, Math.max(0, ((share ? value : Math.log10(value)) - low) / (high - low)));
  const step = Math.max(1, Math.ceil((high - low) / 5));
  const ticks = share ? [0, 0.5, 1] : Array.from({ length: Math.floor((high - low) / step) + 1 }, (_, i) => 10 ** (low + i * step));
  const text = (value) => (share ? percent(value ?? null) : number(value));
  const draw = (line) => h("div", { class: `row ${line.severity ?? ""}`, title: line.title },
    h("span", { class: "name" }, line.severity && [mark(line.severity), " "], line.name),
    h("div", { class: "track" },
      shows(line.high) && h("i", { style: `left:${shows(line.low) ? place(line.low) : 0}%;width:${Math.max(0, place(line.high) - (shows(line.low) ? place(line.low) : 0))}%` }),
      shows(line.value) ? h("b", share ? { class: "bar", style: `width:${place(line.value)}%` } : { style: `left:${place(line.value)}%` })
        : h("s", {}, line.note ?? (line.value === 0 ? "zero" : "no finite value")),
      limits.filter((limit) => place(limit) > 0 && place(limit) < 100).map((limit) => h("em", { style: `left:${place(limit)}%`, title: `limit of the rule: ${text(limit)}` }))),
    h("span", { class: "n" }, text(line.value)));
  return h("div", { class: "rows", style: `--decades:${share ? 10 : high - low}` },
    h("div", { class: "row axis" }, h("span", { class: "name" }),
      h("div", { class: "track" }, ticks.map((tick) => h("span", { style: `left:${place(tick)}%` }, share ? percent(tick) : `1e${Math.round(Math.log10(tick))}`))),
      h("span", { class: "n" }, what)),
    folded(lines, 40, draw, what));
}

/** Something for each, those beyond the first so many folded. */
const folded = (all, open, draw, key = "") => [all.slice(0, open).map(draw), all.length > open && fold(`${all.length - open} more`, () => all.slice(open).map(draw), { key: `more ${key}` })];

/** What is folded is drawn when it is opened first, or at once where it asks for nothing. */
function fold(summary, build, { key = summary, open = false } = {}) {
  const node = h("details", { "data-key": key, open }, h("summary", {}, summary));
  const draw = () => {
    if (node.childNodes.length === 1) fill(node, {}, [build()]);
  };
  if (open || embedded) draw();
  node.addEventListener("toggle", draw);
  return node;
}

/** The numbers of a heat map, row by row: the upper bytes of float32, null for NaN. */
function unpacked({ values, names, epochs }) {
  const bytes = Uint8Array.from(atob(values), (char) => char.charCodeAt(0));
  const view = new DataView(new ArrayBuffer(4));
  const at = (place) => {
    for (let i = 0; i < 3; i++) view.setUint8(i + 1, bytes[3 * place + i]);
    const value = view.getFloat32(0, true);
    return Number.isNaN(value) ? null : value;
  };
  return names.map((_, row) => epochs.map((_, column) => at(row * epochs.length + column)));
}

/** A heat map on a canvas, a pixel for each layer and window; arrow keys and the pointer read its numbers, Enter and a click choose a layer. */
function heatMap(data, caption, choose) {
  const { names, epochs, unit, share } = data;
  const values = unpacked(data);
  const relative = !share && epochs.length > 1;
  const firsts = values.map((row) => Math.abs(row.find((value) => value !== null && value !== 0) ?? NaN));
  const shown = relative ? values.map((row, y) => row.map((value) => (value === null || !firsts[y] ? null : Math.abs(value) / firsts[y]))) : values;
  const logs = shown.flat().filter((value) => value !== null && value !== 0).map((value) => Math.log10(Math.abs(value)));
  let [low, high] = share ? [0, 1] : logs.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, -Infinity]);
  if (relative) {
    high = Math.max(Math.abs(low), Math.abs(high), 0.5);
    low = -high;
  } else if (!share && !(high - low > 1)) [low, high] = [low - 0.5, high + 0.5];
  const palette = relative ? DIVERGING : VIRIDIS;
  const channels = palette.map((color) => [0, 2, 4].map((i) => parseInt(color.slice(i, i + 2), 16)));
  const height = `height:${names.length <= 60 ? Math.max(14 * names.length, 28) : 840}px`;
  const canvas = h("canvas", { width: epochs.length, height: names.length, tabindex: 0, role: "img", style: height,
    "aria-label": `${caption}: ${names.length} of ${data.of[0]} layers by ${epochs.length} of ${data.of[1]} ${unit}s; arrow keys read the numbers, Enter draws the curve of a layer` });
  const context = canvas.getContext("2d");
  const image = context.createImageData(epochs.length, names.length);
  shown.forEach((row, y) => row.forEach((value, x) => {
    if (value === null) return;
    const at = share ? value : value === 0 ? 0 : (Math.log10(Math.abs(value)) - low) / (high - low);
    const exact = Math.min(1, Math.max(0, at)) * (palette.length - 1);
    const [from, to] = [channels[Math.floor(exact)], channels[Math.ceil(exact)]];
    image.data.set([...from.map((channel, i) => channel + (to[i] - channel) * (exact % 1)), 255], 4 * (y * epochs.length + x));
  }));
  context.putImageData(image, 0, 0);
  const readout = h("p", { class: "readout", "aria-live": "polite" }, "Point at the map, or use the arrow keys, to read its numbers.");
  const cursor = s("rect", { class: "cursor", width: 1, height: 1, visibility: "hidden" });
  const nearest = (since) => epochs.reduce((best, epoch, x) => (Math.abs(epoch - since) < Math.abs(epochs[best] - since) ? x : best), 0);
  let [column, row] = [epochs.length - 1, 0];
  const read = () => {
    const value = values[row][column];
    const times = relative && shown[row][column] !== null ? `, ${number(shown[row][column])} times the first` : "";
    const alerts = data.marks.filter(([y]) => y === row).map(([, since, , severity, text]) => `; ${severity}: ${text} since ${unit} ${since}`).join("");
    readout.replaceChildren(visible(`${names[row]}, ${unit} ${epochs[column]}: ${value === null ? "not measured" : share ? percent(value) : number(value)}${times}${alerts}`));
    for (const [key, at] of [["x", column], ["y", row]]) cursor.setAttribute(key, at);
    cursor.setAttribute("visibility", "visible");
  };
  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    column = Math.min(epochs.length - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * epochs.length)));
    row = Math.min(names.length - 1, Math.max(0, Math.floor(((event.clientY - box.top) / box.height) * names.length)));
    read();
  };
  canvas.addEventListener("pointermove", at);
  canvas.addEventListener("click", (event) => { at(event); choose(data.rows[row]); });
  canvas.addEventListener("keydown", (event) => {
    const move = { ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0], Home: [-epochs.length, 0], End: [epochs.length, 0] }[event.key];
    if (event.key === "Enter") choose(data.rows[row]);
    if (!move) return;
    event.preventDefault();
    column = Math.min(epochs.length - 1, Math.max(0, column + move[0]));
    row = Math.min(names.length - 1, Math.max(0, row + move[1]));
    read();
  });
  const every = Math.ceil(names.length / 60);
  const labels = names.map((text, y) => [text, y]).filter(([, y]) => y % every === 0);
  const scale = [0, 0.25, 0.5, 0.75, 1].map((part) => (share ? percent(part) : `${number(10 ** (low + part * (high - low)))}${relative ? "x" : ""}`));
  const thinned = data.of[0] > names.length || data.of[1] > epochs.length ? ` (${names.length} of ${data.of[0]} layers, ${epochs.length} of ${data.of[1]} ${unit}s)` : "";
  return h("figure", { class: "heat" },
    h("figcaption", {}, caption, relative ? `, relative to its first ${unit === "epoch" ? "epoch" : "window"}` : "", h("small", {}, thinned)),
    h("div", { class: "map" },
      h("div", { class: "names", "aria-hidden": "true", style: height },
        labels.map(([text, y]) => h("span", { style: `top:${(100 * (y + 0.5)) / names.length}%`, title: text }, h("bdi", {}, text)))),
      h("div", {},
        h("div", { class: "cells" }, canvas, s("svg", { viewBox: `0 0 ${epochs.length} ${names.length}`, preserveAspectRatio: "none", "aria-hidden": "true" },
          data.marks.map(([y, since, , severity]) => [y, nearest(since), severity]).map(([y, x, severity]) => s("line", { class: `at ${severity}`, x1: x, x2: x, y1: y + 0.15, y2: y + 0.85 })), cursor)),
        epochsBelow(epochs, unit, (place) => (place + 0.5) / epochs.length),
        h("div", { class: "scale", style: `background:linear-gradient(to right,${palette.map((color) => `#${color}`).join(",")})` }),
        h("div", { class: "ends" }, scale.map((text) => h("span", {}, text))), readout)));
}

// ---- Addresses ----------------------------------------------------------------------------------------------------------------

let embedded = null; // {page, answers} that came with the page
const base = /^https?:/.test(import.meta.url) ? new URL(".", import.meta.url) : null;

async function ask(path, query) {
  if (embedded) return answerWithin(path, query);
  const answer = await fetch(new URL(`${path}?${new URLSearchParams(query)}`, base), { cache: "no-store" });
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error ?? `${answer.status}`);
  return found;
}

/** What came with the page; for the curve of a layer, its heat map will do. */
function answerWithin(path, { run, ...key }) {
  const known = (about) => embedded.answers[`${path}?${new URLSearchParams(about)}`];
  const { row, ...map } = key;
  const found = known(key) ?? known(map);
  if (!found) throw new Error("It is in the log directory, and not on this page.");
  return found;
}

/** TensorBoard's own window, whose address people share; null where the page stands alone. */
const outer = (() => {
  try {
    return window.parent !== window && location.pathname.endsWith("plugin_entry.html") && window.parent.location.hash !== undefined ? window.parent : null;
  } catch {
    return null;
  }
})();
const own = (hash) => (outer ? hash.replace(/^#health&?/, "") : hash.replace(/^#/, ""));
let place = {}; // what the page shows: run, and alert or section; or a and b
const wellFormed = (text) => text.replace(/\p{Cs}/gu, "\ufffd");
const written = (to) => new URLSearchParams(to).toString().replaceAll("+", "%20");
const parsed = (text) => Object.fromEntries([...new URLSearchParams(text)].filter(([key]) => ["run", "alert", "section", "a", "b"].includes(key)));

/** Whether the page is in a frame that has no address of its own, as in a notebook. */
const hasAddress = location.protocol !== "about:";

/** A link within the page that can be shared, copied and opened elsewhere. */
function link(to, ...children) {
  const page = outer ? outer.location : location;
  const href = !hasAddress ? "#" : `${page.href.replace(/#.*/, "")}#${outer ? "health&" : ""}${written(to)}`;
  const go = (event) => {
    if (event.metaKey || event.ctrlKey || event.shiftKey) return;
    event.preventDefault(); // in TensorBoard the frame's base is another address
    show(to);
  };
  return h("a", { href, onclick: go }, ...children);
}

function show(to) {
  if (!hasAddress) {
    place = to;
    update();
  } else if (own(location.hash) !== written(to) || !location.hash) location.hash = written(to);
  else {
    main.dataset.at = "";
    reveal();
  }
}

function follow() {
  place = hasAddress ? parsed(location.hash.replace(/^#/, "")) : place;
  if (outer && /^#health(&|$)/.test(outer.location.hash)) {
    const text = written(place);
    outer.history.replaceState(outer.history.state, "", `#health${text ? `&${text}` : ""}`);
  }
  main.dataset.at = "";
  update();
}

// ---- The list of runs ---------------------------------------------------------------------------------------------------------

const chosen = new Set(); // runs to compare
let filter = "";

const isLive = (run, now) => run.state === "running" && now - run.updated < Math.max(120, 5 * run.window);

function stateOf(run, now) {
  if (run.state === "running") {
    return !isLive(run, now) ? `no news for ${ago(now - run.updated).replace(" ago", "")}: killed, or a long window` : h("span", { class: "live" }, "running");
  }
  return { finished: "finished", exception: "ended with an error", interrupted: "interrupted", stopped: "stopped" }[run.state] ?? run.state;
}

function sparkline(losses) {
  const known = (losses ?? []).filter((loss) => loss !== null);
  if (known.length < 2) return null;
  const scale = axis(known, kindOf(known));
  const points = losses.map((loss, i) => loss !== null && `${(100 * i) / (losses.length - 1)},${100 - 100 * scale.place(loss)}`).filter(Boolean);
  return s("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none", role: "img", "aria-label": `loss from ${number(known[0])} to ${number(known[known.length - 1])}` },
    s("polyline", { points: points.join(" ") }));
}

const until = (run) => {
  if (run.last === null || run.last === undefined) return "";
  return run.unit === "epoch" && run.planned > 0 ? `${run.last + 1} of ${plural(run.planned, "epoch")}` : `${run.unit} ${run.last}`;
};

function runRow(run, now) {
  const compare = h("input", { type: "checkbox", id: `compare ${run.id}`, "aria-label": `compare ${run.id}`, onchange: (event) => {
    if (event.target.checked) chosen.add(run.id); else chosen.delete(run.id);
    update();
  } });
  compare.checked = chosen.has(run.id);
  return h("tr", {},
    h("td", {}, compare),
    h("td", {}, link({ run: run.id }, mark(run.status), name(run.id === "." ? "this directory" : run.id)), h("br"), h("small", {}, run.model ?? "")),
    h("td", {}, stateOf(run, now), h("br"), h("small", {}, until(run))),
    h("td", { class: "headline" }, run.headline, run.damaged ? h("small", {}, ` ${plural(run.damaged, "damaged line")} left out.`) : null),
    h("td", { class: "open" }, (run.open ?? []).slice(0, 4).map((alert) => h("div", {}, mark(alert.severity), " ", link({ run: run.id, alert: alert.id }, `${alert.title} at ${alert.where}`))),
      (run.open?.length ?? 0) > 4 ? h("small", {}, `${run.open.length - 4} more`) : null),
    h("td", { class: "loss" }, sparkline(run.loss)));
}

function listPage(found) {
  const runs = found.runs.filter((run) => `${run.id} ${run.headline} ${run.model ?? ""}`.toLowerCase().includes(filter.toLowerCase()));
  runs.sort((a, b) => isLive(b, found.now) - isLive(a, found.now) || RANK[a.status] - RANK[b.status] || (b.updated ?? 0) - (a.updated ?? 0) || a.id.localeCompare(b.id));
  const counts = Object.keys(RANK).map((status) => [status, found.runs.filter((run) => run.status === status).length]).filter(([, count]) => count);
  const head = part("list head", [counts, found.notes, found.runs.length], () => h("header", {},
    h("div", { class: "title" }, h("h1", {}, "Health"), h("small", { role: "status" }, `${plural(found.runs.length, "run")}: ${counts.map(([status, count]) => `${count} ${status}`).join(", ")}`)),
    found.notes.map((note) => soft(note)),
    h("div", { class: "bar" },
      h("label", {}, "Filter", h("input", { type: "search", id: "filter", value: filter, oninput: (event) => { filter = event.target.value; update(); } })),
      h("button", { id: "compare", onclick: () => { const [a, b] = chosen; show({ a, b }); } }, "Compare two"))));
  const button = head.querySelector("#compare");
  button.disabled = chosen.size !== 2;
  button.textContent = chosen.size === 2 ? "Compare the two" : `Compare: choose two (${chosen.size})`;
  const body = part("list", [runs, Math.floor(found.now / 30)], () => h("div", { class: "card wide" }, runs.length === 0
    ? soft(found.searched ? "No run with a file lightning_hooks/reports.jsonl is here yet." : "Searching the log directory …")
    : h("table", { class: "runs" },
      h("thead", {}, h("tr", {}, ["Compare", "Run", "State", "Verdict", "Open alerts", "Loss"].map((text) => h("th", { scope: "col" }, text)))),
      h("tbody", {}, runs.map((run) => runRow(run, found.now))))));
  return [head, body];
}

// ---- A page -------------------------------------------------------------------------------------------------------------------

/** A section that fills itself when its answer comes. */
function later(promise, build) {
  const node = h("div", { "aria-busy": "true" }, soft("…"));
  promise.then((found) => node.replaceChildren(...[build(found)].flat(9).filter(Boolean)), (error) => node.replaceChildren(soft(error.message)))
    .finally(() => node.removeAttribute("aria-busy"));
  return node;
}

/** A link within the page of a run, or of two. */
const within = (page, to, ...children) => link({ ...(embedded ? {} : page.id === undefined ? { a: place.a, b: place.b } : { run: page.id }), ...to }, ...children);

const curveOf = (page, key) => later(ask("heat", { run: page.id, ...key }), (found) => {
  const at = found.rows.indexOf(key.row);
  const marks = found.marks.filter(([row]) => row === at).map(([, ...mark]) => mark);
  return [
    h("h3", {}, `${found.stat} of `, name(found.names[at])),
    chart({ ...found, marks, lines: [{ label: found.stat, values: unpacked(found)[at].map((value) => value && Number(value.toPrecision(4))) }], kind: found.share ? "share" : undefined }),
  ];
});

function problemCard(page, problem) {
  const isChosen = place.alert === wellFormed(problem.id) || place.alert === problem.id;
  return h("article", { class: `card problem ${problem.severity}${problem.lasts ? "" : " past"}${isChosen ? " chosen" : ""}`, "data-alert": problem.id, tabindex: -1 },
    h("h3", {}, mark(problem.severity), ` ${problem.headline}`, h("span", { class: `pill ${problem.lasts ? problem.severity : "past"}` }, problem.lasts ? problem.severity : "passed"),
      typeof problem.probability === "number" && h("span", { class: "pill" }, `${Math.round(100 * problem.probability)} % likely`)),
    h("p", {}, `${problem.title} at `, name(problem.sites[0]), ` · ${problem.when}`, problem.value ? ` · ${problem.value} against a limit of ${problem.limit}` : ""),
    problem.seen_as && h("p", {}, "Seen as: ", problem.seen_as),
    problem.advice.length > 0 && h("div", { class: "try" }, h("b", {}, "What to try"), h("p", {}, problem.advice[0]),
      problem.advice.length > 1 && fold("More to try", () => h("ul", {}, problem.advice.slice(1).map((step) => h("li", {}, step))), { key: `try ${problem.id}` }),
      problem.rules && soft("Its rules and their limits: ", h("code", {}, problem.rules), `. ${problem.record}`)),
    problem.evidence.length > 0 && h("details", { class: "soft" }, h("summary", {}, "What speaks for it, and against"),
      h("ul", {}, problem.evidence.map((text) => h("li", {}, "+ ", text)), problem.against.map((text) => h("li", {}, "− ", text)))),
    problem.sites.length > 1 && soft("Also at ", listed(problem.sites.slice(1)), problem.others ? ` and ${problem.others} more` : "", "."),
    problem.consequences.length > 0 && soft("Consequences: ", listed(problem.consequences), "."),
    isChosen ? problem.curve && curveOf(page, problem.curve)
      : h("p", {}, within(page, { alert: problem.id }, problem.curve ? "Link to this alert, with its curve" : "Link to this alert")));
}

function alertLine(alert, windows, unit) {
  const when = `${unit}${alert.since === alert.until ? ` ${alert.since}` : `s ${alert.since} to ${alert.until}`}${alert.lasts ? ", lasts" : ""}`;
  return h("div", { class: `alert${alert.cause ? " effect" : ""}` },
    h("span", {}, mark(alert.severity), ` ${alert.kind}`),
    h("span", { class: "where" }, name(alert.site), h("br"), h("small", {}, alert.value ? `${alert.value} against a limit of ${alert.limit}` : "",
      alert.value && alert.cause ? "; " : "", alert.cause ? `follows from ${alert.cause}` : "")),
    h("span", {}, h("span", { class: "when" }, when), s("svg", { viewBox: `0 0 ${Math.max(1, windows)} 1`, preserveAspectRatio: "none", class: `strip ${alert.severity}`, "aria-hidden": "true" },
      alert.active.map(([start, width]) => s("rect", { x: start, y: 0, width, height: 1 })))));
}

function alertLines({ alerts, windows, unit }) {
  const draw = (alert) => alertLine(alert, windows, unit);
  const [serious, infos] = [alerts.filter((alert) => alert.severity !== "info"), alerts.filter((alert) => alert.severity === "info")];
  const follow = infos.filter((alert) => alert.cause).length;
  const which = follow && serious.length ? `, ${follow} of which follow from the above` : "";
  return [folded(serious, 20, draw, "alerts"), infos.length > 0 && fold(plural(infos.length, "info") + which, () => infos.map(draw), { key: "infos", open: !serious.length })];
}

function heatOf(page, { caption, ...key }) {
  const curve = h("div");
  return [later(ask("heat", { run: page.id, ...key }), (data) => heatMap(data, caption, (row) => sync(curve, [curveOf(page, { ...key, row })]))), curve];
}

/** How each kind of block is drawn; of those of a block, the first. */
const BLOCKS = {
  text: ({ text }) => soft(text),
  title: (block) => h("h3", {}, block.name ? name(block.title) : block.title),
  facts: ({ facts }) => h("div", { class: "facts" }, facts.map(([what, value]) => h("div", {}, h("b", {}, value), h("span", {}, what)))),
  table: (block) => table(block.table),
  chart: (block) => chart(block.chart),
  rows: (block) => rowsChart(block.rows),
  map: ({ map }, page) => heatOf(page, map),
  alerts: alertLines,
  fold: ({ fold: summary, blocks, open }, page) => fold(summary, () => drawn(blocks, page), { open }),
};
/** The blocks of a card, charts next to each other where there is room. */
function drawn(blocks, page) {
  const nodes = [];
  for (const block of blocks) {
    const node = BLOCKS[Object.keys(BLOCKS).find((kind) => kind in block)](block, page);
    if (!block.chart) nodes.push(node);
    else if (nodes.at(-1)?.className === "wideset") nodes.at(-1).append(node);
    else nodes.push(h("div", { class: "wideset" }, node));
  }
  return nodes;
}

function verdictCard(verdict) {
  const letter = verdict.letter && h("p", {}, h("b", { class: verdict.letter.toLowerCase() }, `${verdict.letter}  `),
    embedded ? verdict.name : link({ run: place[verdict.letter.toLowerCase()] }, name(verdict.name)));
  return h("div", { class: `card verdict ${verdict.status}`, role: "status" }, letter,
    h("div", { class: "headline" }, mark(verdict.status), ` ${verdict.headline}`), verdict.details.map((text) => h("p", {}, text)));
}

/** A page: verdicts, problems, and sections of cards of blocks. */
function pageNodes(page, now) {
  const state = page.state && [stateOf(page, now), " · ", until(page), embedded ? "" : ` · ${ago(now - page.updated)}`];
  const problems = page.problems ?? [];
  const card = (problem) => problemCard(page, problem);
  const infos = problems.filter((problem) => problem.severity === "info");
  const key = [page.id, place.alert, page.last];
  return [
    part("head", [page.id, page.title, page.verdicts, page.state, until(page), Math.floor(now / 30)], () => h("header", {},
      embedded ? null : h("nav", { "aria-label": "Runs" }, link({}, "← all runs")),
      h("div", { class: "title" }, h("h1", {}, page.title), state && h("small", {}, state)),
      h("div", { class: page.verdicts.length > 1 ? "wideset" : "" }, page.verdicts.map(verdictCard)),
      page.damaged > 0 && soft(`${plural(page.damaged, "line")} of its file could not be read, and what they hold is left out.`))),
    part("contents", [page.id, page.sections.map((each) => each.id)], () => h("nav", { "aria-label": "Contents" },
      page.sections.map((each) => each.title && within(page, { section: each.id }, each.title)))),
    part("problems", [key, problems], () => h("div", {}, problems.filter((problem) => problem.severity !== "info").map(card),
      infos.length > 0 && fold(`Worth knowing (${infos.length})`, () => infos.map(card), { key: "worth", open: infos.some((problem) => problem.id === place.alert) }))),
    ...page.sections.map((each) => part(`section ${each.id}`, [page.id, each.id === "maps" && page.last, each], () => h("section", {},
      each.title && h("h2", { id: `section ${each.id}`, tabindex: -1 }, each.title),
      each.cards.map((blocks) => h("div", { class: "card" }, drawn(blocks, page)))))),
    ...(page.footer ? [part("footer", page.footer, () => h("footer", {}, page.footer.map((text) => h("p", {}, text))))] : []),
  ];
}

// ---- The document -------------------------------------------------------------------------------------------------------------

const main = h("main");
const problem = h("p", { class: "soft", role: "alert" });
let listing = null; // the last answer with runs
let shownPage = null; // {key, page} that was fetched last
let updating = false;
let again = false;

async function nodes() {
  if (embedded) return pageNodes(embedded.page, embedded.page.updated ?? 0);
  const answer = await ask("runs", { known: listing?.revision ?? -1 });
  listing = { ...listing, ...answer };
  const isTwo = place.a !== undefined && place.b !== undefined;
  if (place.run === undefined && !isTwo) return listPage(listing);
  const [a, b, id] = [place.a, place.b, place.run].map((key) => listing.runs.find((run) => wellFormed(run.id) === key)?.id ?? key);
  const key = JSON.stringify([isTwo ? [a, b] : id, listing.revision]);
  if (shownPage?.key !== key) shownPage = { key, page: isTwo ? await ask("compare", { a, b }) : { ...(await ask("run", { run: id })), id } };
  return pageNodes(shownPage.page, listing.now);
}

async function update() {
  if (updating) {
    again = true;
    return;
  }
  updating = true;
  if (!main.childNodes.length) problem.textContent = "Reading …";
  try {
    do {
      again = false;
      const found = await nodes();
      if (!again) sync(main, found);
    } while (again);
    problem.textContent = "";
    reveal();
    if (listing?.runs.some((run) => run.state === "reading")) setTimeout(() => isSeen() && update(), 300);
  } catch (error) {
    problem.textContent = visible(`${error.message}${embedded ? "" : ` (asked again every ${POLL_SECONDS} s)`}`);
    if (place.run !== undefined || place.a !== undefined) sync(main, [h("nav", {}, link({}, "← all runs")), h("h1", {}, "Health")]);
  } finally {
    updating = false;
  }
}

/** After a change of place: the chosen alert or section, or the top. */
function reveal() {
  const at = JSON.stringify(place);
  if (main.dataset.at === at) return;
  main.dataset.at = at;
  const target = document.getElementById(`section ${place.section}`) ?? main.querySelector(".chosen");
  if (target) {
    target.focus({ preventScroll: true });
    target.scrollIntoView({ block: "start" });
  } else if (!embedded) window.scrollTo(0, 0);
}

const isSeen = () => !document.hidden && window.innerWidth > 0;

/** Show the page. What comes with it is `page` and, by address, `answers`; without, it is asked for, again and again. */
export function render(within) {
  embedded = within ?? null;
  document.body.append(main, problem);
  window.addEventListener("hashchange", follow);
  if (!embedded) {
    document.documentElement.lang = "en";
    document.title = "Health";
    document.head.append(h("link", { rel: "stylesheet", href: new URL("style.css", base) }), h("meta", { name: "viewport", content: "width=device-width,initial-scale=1" }));
    if (outer) {
      const shared = parsed(own(outer.location.hash));
      if (Object.keys(shared).length) history.replaceState(null, "", `${location.pathname}${location.search}#${written(shared)}`);
      outer.addEventListener("hashchange", () => {
        const wanted = parsed(own(outer.location.hash));
        if (/^#health&/.test(outer.location.hash) && written(wanted) !== written(place)) show(wanted);
      });
    }
    document.addEventListener("visibilitychange", () => isSeen() && update());
    setInterval(() => isSeen() && update(), 1000 * POLL_SECONDS);
  }
  follow();
}
