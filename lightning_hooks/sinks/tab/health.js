// The Health page: the runs of a log directory, live. TensorBoard's tab, `lightning-hooks serve` and notebooks show the same.
//
// Everything that comes from a run is set as text, never as markup. Nothing is requested but the addresses next to this module.

const POLL_SECONDS = 2.5;
const SIGNS = { failed: "✖", critical: "✖", warning: "▲", info: "●", healthy: "✔", unknown: "?" };
const RANK = { failed: 0, critical: 1, warning: 2, unknown: 3, healthy: 4 };
const COLORS = ["var(--blue)", "var(--amber)", "var(--green)", "var(--red)", "var(--sky)"];
const SVG = "http://www.w3.org/2000/svg";
const STYLE = `
main{max-width:100rem}
button,select,input{font:inherit;color:inherit;background:var(--card);border:1px solid var(--line);border-radius:.4rem;padding:.25rem .5rem;max-width:100%}
button{cursor:pointer}button:disabled{cursor:default;opacity:.55}
input[type=checkbox]{width:1.15rem;height:1.15rem;accent-color:var(--blue)}
:focus-visible{outline:3px solid var(--blue);outline-offset:2px}
.bar{display:flex;flex-wrap:wrap;gap:.5rem 1rem;align-items:center;margin:.8rem 0}
.bar label{display:flex;gap:.4rem;align-items:center;font-size:.9rem;min-width:0}
.bar select{min-width:0}
.title{display:flex;flex-wrap:wrap;gap:.2rem 1rem;justify-content:space-between;align-items:baseline}
.title h1{font-size:1.15rem;color:var(--ink)}
.runs td{vertical-align:middle}.runs td:nth-child(2){min-width:10rem}.runs a .mark{margin-right:.35rem}.runs .headline{max-width:34rem}.runs svg{width:9rem;height:2rem;display:block}
.runs polyline,.runs line{fill:none;stroke:var(--blue);stroke-width:2;vector-effect:non-scaling-stroke}
.live{color:var(--green);font-weight:600}
.problem.chosen{outline:2px solid var(--blue)}
.wideset{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,34rem),1fr));gap:0 1.6rem;align-items:start}
.effect{padding-left:1.4rem}
.cells canvas{width:100%;display:block;image-rendering:pixelated;background:repeating-linear-gradient(45deg,var(--track) 0 4px,var(--hatch) 4px 5px)}
.cells svg{position:absolute;inset:0;width:100%;height:100%;pointer-events:none;overflow:visible}
.cells .cursor{fill:none;stroke:var(--ink);stroke-width:2;vector-effect:non-scaling-stroke}
.at{stroke-width:3;vector-effect:non-scaling-stroke;stroke-linecap:round}
.at.critical{stroke:var(--red)}.at.warning{stroke:var(--amber)}.at.info{stroke:var(--sky)}
.chart svg .span{opacity:.16;stroke:none}.span.critical{fill:var(--red)}.span.warning{fill:var(--amber)}.span.info{fill:var(--sky)}
.readout{min-height:1.4em;font-size:.85rem;color:var(--soft)}
.hidden{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
@media(max-width:50rem){.runs thead{position:absolute;clip-path:inset(50%)}.runs tr{display:grid;grid-template-columns:auto 1fr auto;gap:.1rem .6rem;
padding:.5rem 0;border-bottom:1px solid var(--line)}.runs td{border:0;padding:0;min-width:0}.runs td.headline,.runs td.open{grid-column:2/-1}
.runs td.loss{grid-column:2}.runs td:empty{display:none}}
`;

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
  if (value === null || value === undefined) return "–";
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
  if (kind === "log" && high - low > 2) {
    const step = Math.max(1, Math.ceil((high - low) / 6));
    const powers = Array.from({ length: Math.floor(high) - Math.ceil(low) + 1 }, (_, i) => Math.ceil(low) + i);
    return { place, ticks: powers.filter((power) => power % step === 0).map((power) => 10 ** power), show: (tick) => `1e${Math.round(Math.log10(tick))}` };
  }
  const [from, to] = kind === "log" ? [10 ** low, 10 ** high] : [low, high];
  const raw = (to - from) / 5;
  const base = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((digit) => digit * base).find((each) => each >= raw);
  const first = Math.ceil(from / step);
  const ticks = Array.from({ length: Math.floor(to / step) - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(6)));
  return { place, ticks, show: number };
}

/** Which of so many columns get a number: the first, the last, and some between. */
const labelled = (count) => [...new Set([0, 0.25, 0.5, 0.75, 1].map((share) => Math.round(share * (count - 1))))];

// ---- Charts -------------------------------------------------------------------------------------------------------------------

function epochsBelow(epochs, unit, place) {
  const shown = labelled(epochs.length);
  const spans = shown.map((at, i) => h("span", { style: `left:${100 * place(at)}%` }, i ? epochs[at] : `${unit} ${epochs[at]}`));
  return h("div", { class: `epochs${shown.length === 1 ? " alone" : ""}` }, spans);
}

/**
 * Curves over the windows. A line is {label, values, color, dashed}; a mark is [since, until, severity, text], drawn where it began
 * and as long as it lasted.
 */
function chart(lines, epochs, unit, { kind = "linear", height = 170, marks = [] } = {}) {
  const all = lines.flatMap((line) => line.values);
  const scale = axis(all, kind);
  const shows = (value) => value !== null && (kind !== "log" || value > 0);
  const first = epochs[0];
  const range = epochs[epochs.length - 1] - first || 1;
  const x = (epoch) => (epochs.length === 1 ? 50 : Math.min(100, Math.max(0, (100 * (epoch - first)) / range)));
  const y = (value) => 100 - 100 * scale.place(value);
  const drawn = lines.map((line) => {
    const runs = [[]];
    line.values.forEach((value, i) => (shows(value) ? runs[runs.length - 1].push(`${x(epochs[i])},${y(value)}`) : runs.push([])));
    const marked = epochs.length <= 40 && !line.dashed;
    return s("g", { style: `color:${line.color}`, class: line.dashed ? "dashed" : undefined },
      runs.filter((run) => run.length).map((run) => [
        run.length > 1 && s("polyline", { class: "curve", points: run.join(" ") }),
        (marked || run.length === 1) && run.map((point) => s("polyline", { class: "dot", points: `${point} ${point}` })),
      ]));
  });
  const label = `${lines.map((line) => line.label).join(", ")} over ${unit}s ${first} to ${epochs[epochs.length - 1]}`
    + marks.map((each) => `; ${each[2]} ${each[3]} since ${unit} ${each[0]}`).join("");
  const zones = epochs.map((epoch, i) => {
    const left = i ? (x(epochs[i - 1]) + x(epoch)) / 2 : 0;
    const right = i < epochs.length - 1 ? (x(epochs[i + 1]) + x(epoch)) / 2 : 100;
    const text = lines.map((line) => `; ${line.label}: ${(kind === "share" ? percent : number)(line.values[i])}`).join("");
    return s("rect", { x: left, y: 0, width: right - left, height: 100 }, s("title", {}, `${unit} ${epoch}${text}`));
  });
  return [
    h("div", { class: "chart" },
      h("div", { class: "ticks" }, scale.ticks.map((tick) => h("span", { style: `top:${y(tick)}%` }, scale.show(tick)))),
      s("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none", style: `height:${height}px`, role: "img", "aria-label": label },
        scale.ticks.map((tick) => s("line", { class: "grid", x1: 0, x2: 100, y1: y(tick), y2: y(tick) })),
        marks.map(([since, until, severity]) => s("rect", { class: `span ${severity}`, x: x(since), y: 0, width: Math.max(0.4, x(until) - x(since)), height: 100 })),
        drawn,
        marks.map(([since, , severity, text]) => s("line", { class: `at ${severity}`, x1: x(since), x2: x(since), y1: 0, y2: 100 }, s("title", {}, text))),
        s("g", { class: "zones" }, zones)),
      epochsBelow(epochs, unit, (at) => x(epochs[at]) / 100)),
    h("ul", { class: "key" },
      lines.map((line) => h("li", {}, h("i", { style: `background:${line.color}` }), line.label)),
      marks.map(([since, , severity, text]) => h("li", {}, mark(severity), ` ${text}, since ${unit} ${since}`))),
    h("details", { "data-key": `numbers ${label.slice(0, 60)}` }, h("summary", {}, "Numbers"),
      table([unit, ...lines.map((line) => line.label)],
        labelledRows(epochs.length).map((i) => [epochs[i], ...lines.map((line) => (kind === "share" ? percent : number)(line.values[i]))]))),
  ];
}
const labelledRows = (count) => Array.from({ length: Math.min(count, 100) }, (_, i) => Math.round((i * (count - 1)) / Math.max(1, Math.min(count, 100) - 1)));

const table = (heads, rows) => h("div", { class: "wide" },
  h("table", {}, h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col" }, head)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell) => h("td", {}, cell)))))));

/** Which kind of axis suits numbers. */
function kindOf(values, share) {
  if (share) return "share";
  const known = values.filter((value) => value !== null);
  const positive = known.length > 0 && Math.min(...known) > 0;
  return positive && Math.max(...known) > 20 * Math.min(...known) ? "log" : "linear";
}

/** A heat map on a canvas, a pixel for each layer and window; arrow keys and the pointer read its numbers, Enter and a click choose a layer. */
function heatMap(data, caption, choose) {
  const { names, epochs, unit, values, share, colors } = data;
  const relative = !share && epochs.length > 1;
  const firsts = values.map((row) => Math.abs(row.find((value) => value !== null && value !== 0) ?? NaN));
  const shown = relative ? values.map((row, y) => row.map((value) => (value === null || !firsts[y] ? null : Math.abs(value) / firsts[y]))) : values;
  const logs = shown.flat().filter((value) => value !== null && value !== 0).map((value) => Math.log10(Math.abs(value)));
  let [low, high] = share ? [0, 1] : logs.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, -Infinity]);
  if (relative) {
    high = Math.max(Math.abs(low), Math.abs(high), 0.5);
    low = -high;
  } else if (!share && !(high - low > 1)) [low, high] = [low - 0.5, high + 0.5];
  const palette = (relative ? colors.diverging : colors.sequential).map((color) => [0, 2, 4].map((i) => parseInt(color.slice(i, i + 2), 16)));
  const height = `height:${names.length <= 60 ? Math.max(14 * names.length, 28) : 840}px`;
  const canvas = h("canvas", { width: epochs.length, height: names.length, tabindex: 0, role: "img", style: height,
    "aria-label": `${caption}: ${names.length} of ${data.of[0]} layers by ${epochs.length} of ${data.of[1]} ${unit}s; arrow keys read the numbers, Enter draws the curve of a layer` });
  const context = canvas.getContext("2d");
  const image = context.createImageData(epochs.length, names.length);
  shown.forEach((row, y) => row.forEach((value, x) => {
    if (value === null) return;
    const at = share ? value : value === 0 ? 0 : (Math.log10(Math.abs(value)) - low) / (high - low);
    const exact = Math.min(1, Math.max(0, at)) * (palette.length - 1);
    const [from, to] = [palette[Math.floor(exact)], palette[Math.ceil(exact)]];
    image.data.set([...from.map((channel, i) => channel + (to[i] - channel) * (exact % 1)), 255], 4 * (y * epochs.length + x));
  }));
  context.putImageData(image, 0, 0);
  const readout = h("p", { class: "readout", "aria-live": "polite" }, "Point at the map, or use the arrow keys, to read its numbers.");
  const cursor = s("rect", { class: "cursor", width: 1, height: 1, visibility: "hidden" });
  let [column, row] = [epochs.length - 1, 0];
  const read = () => {
    const value = values[row][column];
    const times = relative && shown[row][column] !== null ? `, ${number(shown[row][column])} times the first` : "";
    const alerts = data.marks.filter(([y]) => y === row).map(([, x, severity, text]) => `; ${severity}: ${text} since ${unit} ${epochs[x]}`).join("");
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
          data.marks.map(([y, x, severity]) => s("line", { class: `at ${severity}`, x1: x, x2: x, y1: y + 0.15, y2: y + 0.85 })), cursor)),
        epochsBelow(epochs, unit, (place) => (place + 0.5) / epochs.length),
        h("div", { class: "scale", style: `background:linear-gradient(to right,${(relative ? colors.diverging : colors.sequential).map((color) => `#${color}`).join(",")})` }),
        h("div", { class: "ends" }, scale.map((text) => h("span", {}, text))), readout)));
}

// ---- Addresses ----------------------------------------------------------------------------------------------------------------

let embedded = null; // answers that came with the page, in a notebook
const base = /^https?:/.test(import.meta.url) ? new URL(".", import.meta.url) : null;

async function ask(path, query) {
  const address = `${path}?${new URLSearchParams(query)}`;
  if (embedded) {
    if (address in embedded) return embedded[address];
    throw new Error("It is in the log directory, not in this notebook.");
  }
  const answer = await fetch(new URL(address, base), { cache: "no-store" });
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error ?? `${answer.status}`);
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
let place = {}; // what the page shows: run and alert, or a and b
const wellFormed = (text) => text.replace(/\p{Cs}/gu, "\ufffd");
const written = (to) => Object.entries(to).map(([key, value]) => `${key}=${encodeURIComponent(wellFormed(value))}`).join("&");

function parsed(text) {
  const found = {};
  for (const each of text.split("&")) {
    const [key, value] = each.split("=", 2);
    try {
      if (["run", "alert", "a", "b"].includes(key) && value !== undefined) found[key] = decodeURIComponent(value);
    } catch {
      continue; // no address of ours
    }
  }
  return found;
}

/** A link within the page that can be shared, copied and opened elsewhere. */
function link(to, ...children) {
  const page = outer ? outer.location : location;
  const href = embedded ? "#" : `${page.href.replace(/#.*/, "")}#${outer ? "health&" : ""}${written(to)}`;
  const go = (event) => {
    if (event.metaKey || event.ctrlKey || event.shiftKey) return;
    event.preventDefault(); // in TensorBoard the frame's base is another address
    show(to);
  };
  return h("a", { href, onclick: go }, ...children);
}

function show(to) {
  if (embedded) {
    place = to;
    update();
  } else if (own(location.hash) !== written(to) || !location.hash) location.hash = written(to);
}

function follow() {
  place = embedded ? place : parsed(location.hash.replace(/^#/, ""));
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
  const scale = axis(known, kindOf(known, false));
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

// ---- A run --------------------------------------------------------------------------------------------------------------------

/** A section that fills itself when its answer comes. */
function later(promise, build) {
  const node = h("div", { "aria-busy": "true" }, soft("…"));
  promise.then((found) => node.replaceChildren(...[build(found)].flat(9).filter(Boolean)), (error) => node.replaceChildren(soft(error.message)))
    .finally(() => node.removeAttribute("aria-busy"));
  return node;
}

const curveOf = (run, key) => later(ask("curve", { run: run.id, ...key }), (found) => [
  h("h3", {}, `${found.stat} of `, name(found.name)),
  chart([{ label: found.stat, values: found.values, color: COLORS[0] }], found.epochs, found.unit, { kind: kindOf(found.values, found.share), marks: found.marks }),
]);

function problemCard(run, problem) {
  const isChosen = place.alert === wellFormed(problem.id) || place.alert === problem.id;
  return h("article", { class: `card problem ${problem.severity}${problem.lasts ? "" : " past"}${isChosen ? " chosen" : ""}`, "data-alert": problem.id, tabindex: -1 },
    h("h3", {}, mark(problem.severity), ` ${problem.title}`, h("span", { class: `pill ${problem.lasts ? problem.severity : "past"}` }, problem.lasts ? problem.severity : "passed")),
    h("p", {}, name(problem.sites[0]), ` · ${problem.when}`, problem.value ? ` · ${problem.value} against a limit of ${problem.limit}` : ""),
    h("p", {}, problem.seen),
    problem.advice.length > 0 && h("div", { class: "try" }, h("b", {}, "What to try"), h("ul", {}, problem.advice.map((step) => h("li", {}, step)))),
    problem.evidence.length > 0 && h("details", { class: "soft" }, h("summary", {}, "What speaks for it"), h("ul", {}, problem.evidence.map((text) => h("li", {}, text)))),
    problem.sites.length > 1 && soft("Also at ", listed(problem.sites.slice(1)), problem.others ? ` and ${problem.others} more` : "", "."),
    problem.consequences.length > 0 && soft("Consequences: ", listed(problem.consequences), "."),
    isChosen ? problem.curve && curveOf(run, problem.curve)
      : h("p", {}, link({ run: run.id, alert: problem.id }, problem.curve ? "Link to this alert, with its curve" : "Link to this alert")));
}

function alertLine(run, alert) {
  const when = `${run.unit}${alert.since === alert.until ? ` ${alert.since}` : `s ${alert.since} to ${alert.until}`}${alert.lasts ? ", lasts" : ""}`;
  return h("div", { class: `alert${alert.cause ? " effect" : ""}` },
    h("span", {}, mark(alert.severity), ` ${alert.kind}`),
    h("span", { class: "where" }, name(alert.site), h("br"), h("small", {}, alert.value ? `${alert.value} against a limit of ${alert.limit}` : "",
      alert.value && alert.cause ? "; " : "", alert.cause ? `follows from ${alert.cause}` : "")),
    h("span", {}, h("span", { class: "when" }, when), s("svg", { viewBox: `0 0 ${Math.max(1, run.windows)} 1`, preserveAspectRatio: "none", class: `strip ${alert.severity}`, "aria-hidden": "true" },
      alert.active.map(([start, width]) => s("rect", { x: start, y: 0, width, height: 1 })))));
}

const section = (title, ...content) => h("section", {}, h("h2", {}, title), ...content);
const pick = (label, options, value, change) => {
  const select = h("select", { "aria-label": label, id: `pick ${label}`, onchange: (event) => change(Number(event.target.value)) },
    options.map((text, i) => h("option", { value: i, selected: i === value }, text)));
  return h("label", {}, label, select);
};

/** Any statistic of any layer: a heat map of all layers, and the curve of one. */
const picked = { map: 0, table: 0, stat: 0, row: 0, of: "" };
function explorer(run) {
  if (picked.of !== run.id) Object.assign(picked, { map: 0, table: 0, stat: 0, row: 0, of: run.id });
  const maps = run.maps.map((map) => map.caption);
  const heat = h("div");
  const curve = h("div");
  const bar = h("div", { class: "bar" });
  const drawCurve = (key) => sync(curve, [curveOf(run, key)]);
  const drawHeat = (key, caption) =>
    sync(heat, [later(ask("heat", { run: run.id, ...key }), (data) => heatMap(data, caption, (row) => drawCurve({ ...key, row })))]);
  const drawMap = () => {
    const map = run.maps[picked.map];
    if (map) drawHeat({ monitor: map.monitor, table: map.table, stat: map.stat }, map.caption);
  };
  const drawBar = () => {
    const from = run.tables[picked.table];
    if (!from) return;
    const key = () => ({ monitor: from.monitor, table: from.table, stat: from.stats[picked.stat] });
    const layer = later(ask("names", { run: run.id, ...key() }), (found) => pick("Layer", found.names, picked.row, (row) => { picked.row = row; drawCurve({ ...key(), row }); }));
    sync(bar, [
      pick("Table", run.tables.map((each) => `${each.prefix} ${each.table}`), picked.table, (value) => { Object.assign(picked, { table: value, stat: 0, row: 0 }); drawBar(); }),
      pick("Statistic", from.stats, picked.stat, (value) => { picked.stat = value; picked.row = 0; drawBar(); }),
      layer,
      h("button", { onclick: () => drawCurve({ ...key(), row: picked.row }) }, "Curve"),
      h("button", { onclick: () => drawHeat(key(), `${key().stat} of ${from.table}`) }, "Heat map"),
    ]);
  };
  drawMap();
  if (!embedded) drawBar();
  return section(`Over the ${run.unit === "epoch" ? "epochs" : "windows"}`, h("div", { class: "card" },
    maps.length > 0 && h("div", { class: "bar" }, pick("Heat map", maps, picked.map, (value) => { picked.map = value; drawMap(); })), heat, bar, curve));
}

function trainingSection(run) {
  const { epochs, charts, rates } = run.training;
  const drawn = Object.entries({ ...charts, "Learning rate": rates }).filter(([, curves]) => Object.keys(curves).length);
  return drawn.length > 0 && section("Loss and learning rate", h("div", { class: "card wideset" }, drawn.map(([title, curves]) => curvesChart(title, curves, epochs, run.unit))));
}

function curvesChart(title, curves, epochs, unit) {
  const lines = Object.entries(curves).slice(0, COLORS.length).map(([label, values], i) => ({ label, values, color: COLORS[i] }));
  return h("div", {}, h("h3", {}, title), chart(lines, epochs, unit, { kind: kindOf(lines.flatMap((line) => line.values), false) }));
}

const clippingSection = (run) => section("Clip events", run.clipping.map((clip) => h("div", { class: "card" },
  h("h3", {}, clip.name),
  h("div", { class: "facts" }, Object.entries(clip.counts).map(([what, count]) => h("div", {}, h("b", {}, count), h("span", {}, what.replace("_", " "))))),
  h("div", { class: "wideset" },
    h("div", {}, chart([{ label: "norm before clipping (mean)", values: clip.norm_before, color: COLORS[0] }, { label: "largest", values: clip.norm_before_max, color: COLORS[4], dashed: true },
      { label: "norm after", values: clip.norm_after, color: COLORS[1] }], clip.epochs, clip.unit, { kind: kindOf([...clip.norm_before, ...clip.norm_after], false) })),
    h("div", {}, chart([{ label: "share of steps clipped", values: clip.rate, color: COLORS[2] }], clip.epochs, clip.unit, { kind: "share" }))))));

/** Shares of a whole, such as each parameter's share of what was learnt, in the last window: the largest first. */
const sharesSection = (run) => section("Shares of learning", run.shares.map((share) => h("div", { class: "card" },
  h("h3", {}, share.title),
  h("div", { class: "rows", style: "--decades:10" }, share.rows.map(([text, value]) => h("div", { class: "row" },
    name(text), h("div", { class: "track" }, h("b", { class: "bar", style: `width:${Math.min(100, Math.max(0, 100 * value))}%` })), h("span", { class: "n" }, percent(value))))))));

const setupSection = (run) => section("Set-up", h("div", { class: "card" },
  h("div", { class: "facts" }, run.settings.map(([what, value]) => h("div", {}, h("b", {}, value), h("span", {}, what)))),
  run.silent.length > 0 && h("details", { "data-key": "silent" }, h("summary", {}, `Never seen in a sampled batch (${run.silent.length})`), h("p", {}, listed(run.silent))),
  run.layers.length > 0 && h("details", { "data-key": "layers" }, h("summary", {}, `Layers (${run.layers.length})`), table(["layer", "type", "shape", "elements"], run.layers.map(([text, ...rest]) => [name(text), ...rest])))));

function runPage(run, now) {
  const back = part("back", run.id, () => h("nav", { "aria-label": "Runs" }, embedded ? null : link({}, "← all runs")));
  const title = `Health: ${run.model || "training"}`;
  const head = part("verdict", [run.id, run.status, run.headline, run.details, run.state, until(run), Math.floor(now / 30)], () => h("div", {},
    h("div", { class: "title" }, h("h1", {}, title, " · ", run.id === "." ? "this directory" : run.id), h("small", {}, stateOf(run, now), " · ", until(run), ` · ${ago(now - run.updated)}`)),
    h("div", { class: `card verdict ${run.status}`, role: "status" },
      h("div", { class: "headline" }, mark(run.status), ` ${run.headline}`), run.details.map((text) => h("p", {}, text)),
      run.damaged > 0 && h("p", {}, `${plural(run.damaged, "line")} of its file could not be read, and what they hold is left out.`))));
  const serious = run.problems.filter((problem) => problem.severity !== "info");
  const infos = run.problems.filter((problem) => problem.severity === "info");
  const key = [run.id, place.alert, run.last];
  return [
    back, head,
    part("problems", [key, serious], () => h("div", {}, serious.map((problem) => problemCard(run, problem)))),
    infos.length > 0 && part("infos", [key, infos], () => h("details", { "data-key": "infos", open: infos.some((problem) => problem.id === place.alert) }, h("summary", {}, `Worth knowing (${infos.length})`), infos.map((problem) => problemCard(run, problem)))),
    run.alerts.length > 0 && part("alerts", [run.id, run.alerts, run.windows], () => section("Alerts, in order of cause", h("div", { class: "card" },
      run.alerts.slice(0, 20).map((alert) => alertLine(run, alert)),
      run.alerts.length > 20 && h("details", { "data-key": "alerts" }, h("summary", {}, `${run.alerts.length - 20} more`), run.alerts.slice(20).map((alert) => alertLine(run, alert)))))),
    (run.maps.length > 0 || run.tables.length > 0) && part("explorer", [run.id, run.last, run.maps, run.tables], () => explorer(run)),
    run.shares?.length > 0 && part("shares", [run.id, run.shares], () => sharesSection(run)),
    part("training", [run.id, run.training], () => trainingSection(run) || h("div")),
    run.clipping.length > 0 && part("clipping", [run.id, run.clipping], () => clippingSection(run)),
    run.settings.length + run.layers.length > 0 && part("setup", [run.id, run.settings, run.layers, run.silent], () => setupSection(run)),
  ].filter(Boolean);
}

// ---- Two runs -----------------------------------------------------------------------------------------------------------------

function comparePage(a, b, found) {
  const of = (letter, run) => h("div", { class: `card verdict ${run.status}` }, h("b", { class: letter.toLowerCase() }, `${letter}  `), link({ run: run.id }, name(run.id)),
    h("p", {}, mark(run.status), ` ${run.headline}`));
  const epochs = [...new Set([...a.training.epochs, ...b.training.epochs])].sort((x, y) => x - y);
  const [ofA, ofB] = [a, b].map((run) => Object.assign({}, ...Object.values(run.training.charts)));
  const over = (run, values) => epochs.map((epoch) => values[run.training.epochs.indexOf(epoch)] ?? null);
  const drawn = Object.keys(ofA).filter((what) => what in ofB).map((what) => curvesChart(what, { [`A: ${what}`]: over(a, ofA[what]), [`B: ${what}`]: over(b, ofB[what]) }, epochs, a.unit));
  return [part("compare", [a, b, found], () => h("div", {},
    h("nav", { "aria-label": "Runs" }, link({}, "← all runs")),
    h("h1", {}, "Two runs compared"), h("div", { class: "wideset" }, of("A", a), of("B", b)),
    drawn.length > 0 && section("Loss and metrics", h("div", { class: "card wideset" }, drawn)),
    found.error ? soft(found.error) : [
      found.alerts.length > 0 && section("Alerts at the end", h("div", { class: "card wideset" }, found.alerts.map(([title, alerts]) => h("div", {}, h("h3", {}, title),
        alerts.map((alert) => h("div", {}, mark(alert.severity), " ", name(alert.id), ` since ${found.unit} ${alert.since}`)))))),
      section(`Largest differences, ${found.unit} ${found.at}`, found.groups.length === 0 ? soft("All numbers that both runs have are the same.") : found.groups.map((group) => h("div", { class: "card" },
        group.title && h("h3", {}, group.title), table(["layer", "of it", "A", "B", "A to B"], group.cells.map(([text, ...rest]) => [name(text), ...rest])), group.more > 0 && soft(`and ${group.more} more`)))),
      found.settings.length > 0 && section("Set-up", h("div", { class: "card" }, table(["what", "A", "B"], found.settings))),
      found.only.some((names) => names.length) && section("Layers of only one", h("div", { class: "card" }, ["A", "B"].map((letter, i) => found.only[i].length > 0 && h("p", {}, `Only in ${letter}: `, listed(found.only[i]))))),
    ]))];
}

// ---- The page -----------------------------------------------------------------------------------------------------------------

const main = h("main");
const problem = h("p", { class: "soft", role: "alert" });
let listing = null; // the last answer with runs
let shownRun = null; // {id, updated, run} that was fetched last
let updating = false;
let again = false;

async function nodes() {
  const answer = await ask("runs", { known: listing?.revision ?? -1 });
  listing = { ...listing, ...answer };
  if (place.a !== undefined && place.b !== undefined) {
    const [a, b, found] = await Promise.all([ask("run", { run: place.a }), ask("run", { run: place.b }), ask("compare", { a: place.a, b: place.b }).catch((error) => ({ error: error.message }))]);
    return comparePage({ ...a, id: place.a }, { ...b, id: place.b }, found);
  }
  if (place.run === undefined) return listPage(listing);
  const known = listing.runs.find((run) => wellFormed(run.id) === place.run);
  const id = known?.id ?? place.run;
  if (shownRun?.id !== id || shownRun.revision !== listing.revision) shownRun = { id, revision: listing.revision, run: { ...(await ask("run", { run: id })), id } };
  return runPage(shownRun.run, listing.now);
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
    if (listing.runs.some((run) => run.state === "reading")) setTimeout(() => isSeen() && update(), 300);
  } catch (error) {
    problem.textContent = visible(`${error.message} (asked again every ${POLL_SECONDS} s)`);
    if (place.run !== undefined || place.a !== undefined) sync(main, [h("nav", {}, link({}, "← all runs")), h("h1", {}, "Health")]);
  } finally {
    updating = false;
  }
}

/** After a change of place: the chosen alert, or the top. */
function reveal() {
  const at = JSON.stringify(place);
  if (main.dataset.at === at) return;
  main.dataset.at = at;
  const card = [...main.querySelectorAll("[data-alert]")].find((each) => each.classList.contains("chosen"));
  if (card) {
    card.focus({ preventScroll: true });
    card.scrollIntoView({ block: "start" });
  } else if (!embedded) window.scrollTo(0, 0);
}

const isSeen = () => !document.hidden && window.innerWidth > 0;

/** Show the page. `answers`, by address, are those that come with it, in a notebook; otherwise they are asked for, again and again. */
export function render(answers) {
  embedded = answers ?? null;
  document.documentElement.lang = "en";
  document.title = "Health";
  if (!embedded) document.head.append(h("link", { rel: "stylesheet", href: new URL("style.css", base) }));
  document.head.append(h("meta", { name: "viewport", content: "width=device-width,initial-scale=1" }), h("style", {}));
  document.head.lastChild.textContent = STYLE;
  document.body.append(main, problem);
  if (embedded) {
    place = { run: embedded["runs?known=-1"].runs[0].id };
    follow();
    return;
  }
  if (outer) {
    const shared = parsed(own(outer.location.hash));
    if (Object.keys(shared).length) history.replaceState(null, "", `${location.pathname}${location.search}#${written(shared)}`);
    outer.addEventListener("hashchange", () => {
      const wanted = parsed(own(outer.location.hash));
      if (/^#health&/.test(outer.location.hash) && written(wanted) !== written(place)) show(wanted);
    });
  }
  window.addEventListener("hashchange", follow);
  document.addEventListener("visibilitychange", () => isSeen() && update());
  follow();
  setInterval(() => isSeen() && update(), 1000 * POLL_SECONDS);
}
