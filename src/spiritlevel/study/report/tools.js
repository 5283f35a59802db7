// The data of the page, what is chosen, and what all plots need: elements, scales, axes, tips, the nearest point.

const D = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const COLOURS = ["--c0", "--c1", "--c2", "--c3", "--c4", "--c5", "--c6"].map((c) => `var(${c})`);
const state = { measure: D.start.measure, target: D.start.target, colour: "", log: null, on: -1, shown: null };
const columns = new Map();
for (const kind of ["hp", "gen", "complexity"])
  for (const [name, values] of Object.entries(D[kind])) columns.set(`${kind}.${name}`, values);

const html = (name, attributes = {}, ...children) => build(document.createElement(name), attributes, children);
const svg = (name, attributes = {}, ...children) =>
  build(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
function build(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) if (value !== null) node.setAttribute(key, value);
  node.append(...children.map((c) => (c instanceof Node ? c : String(c))));
  return node;
}
const show = (v, digits = 4) =>
  v === null || v === undefined ? "–" : typeof v === "number" ? String(Number(v.toPrecision(digits))) : String(v);
const chance = (p) => (p !== null && p < 1e-4 ? "below 0.0001" : show(p, 2));
const fixed = (v) => (v === null ? "–" : v.toFixed(2).replace("-", "−"));
const spread = (t) => (t[0] === null ? "unknown" : `${fixed(t[0])} [${fixed(t[1])}, ${fixed(t[2])}]`);
const family = (m) => (m.includes("@") ? m.slice(0, m.lastIndexOf("@")) : m);
const tone = new Map();
for (const m of Object.keys(D.complexity)) {
  const f = family(m);
  if (!tone.has(f)) tone.set(f, f === "parameter-norm" ? "var(--base)" : COLOURS[tone.size % COLOURS.length]);
}
const colourOf = (m) => tone.get(family(m)) || "var(--base)";
const relation = (m, t) => D.relations.find((r) => r.measure === m && r.target === t);
const extent = (values) => values.reduce(([a, b], v) => (v === null ? [a, b] : [Math.min(a, v), Math.max(b, v)]),
  [Infinity, -Infinity]);

function scale(low, high, from, to, log) {
  if (!(high > low)) { const pad = Math.abs(low) * 0.05 || 0.5; [low, high] = log ? [low / 1.2, high * 1.2]
    : [low - pad, high + pad]; }
  const f = log ? Math.log10 : (v) => v;
  let [a, b] = [f(low), f(high)];
  const pad = (b - a) * 0.04; a -= pad; b += pad;
  const at = (v) => from + ((f(v) - a) / (b - a)) * (to - from);
  at.ticks = log ? logTicks(10 ** a, 10 ** b) : linearTicks(a, b);
  return at;
}
function linearTicks(a, b) {
  const raw = (b - a) / 7, base = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((k) => k * base).find((s) => s >= raw), out = [];
  for (let k = Math.ceil(a / step); k * step <= b; k++) out.push(Number((k * step).toPrecision(12)));
  return out;
}
function logTicks(a, b) {
  const wide = Math.log10(b / a), out = [];
  for (let e = Math.floor(Math.log10(a)); e <= Math.ceil(Math.log10(b)); e++)
    for (const k of wide > 3 ? [1] : wide > 1.2 ? [1, 3] : [1, 2, 3, 5, 7]) {
      const v = Number((k * 10 ** e).toPrecision(6));
      if (v >= a && v <= b) out.push(v);
    }
  return out.length > 1 ? out : linearTicks(a, b);
}
function axes(chart, x, y, box, xName, yName) {
  for (const v of x.ticks) chart.append(
    svg("line", { class: "grid", x1: x(v), x2: x(v), y1: box.top, y2: box.bottom }),
    svg("text", { class: "tick", x: x(v), y: box.bottom + 17, "text-anchor": "middle" },
      show(v).replace("-", "−")));
  for (const v of y.ticks) chart.append(
    svg("line", { class: "grid", x1: box.left, x2: box.right, y1: y(v), y2: y(v) }),
    svg("text", { class: "tick", x: box.left - 8, y: y(v) + 4, "text-anchor": "end" }, show(v).replace("-", "−")));
  chart.append(
    svg("text", { class: "label", x: (box.left + box.right) / 2, y: box.bottom + 38, "text-anchor": "middle" },
      xName),
    svg("text", { class: "label", x: box.left - 48, y: box.top - 10 }, yName),
    svg("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }));
}
const tip = byId("tip");
function tell(lines, event) {
  if (!lines) { tip.hidden = true; return; }
  tip.replaceChildren(html("b", {}, lines[0]), ...lines.slice(1).flatMap((l) => [l, html("br")]));
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 8))}px`;
  const below = event.clientY + 18;
  tip.style.top = `${below + height > innerHeight ? Math.max(4, event.clientY - height - 12) : below}px`;
}
const words = (i) => [D.names[i],
  `${state.measure}: ${show(D.complexity[state.measure][i])}`, `${state.target}: ${show(D.gen[state.target][i])}`,
  ...Object.entries(D.hp).map(([n, v]) => `${n}: ${show(v[i])}`).slice(0, 8)];

// Nearest of many points under the pointer, or under the arrow keys; `say` tells screen readers.
function pointed(chart, points, report) {
  let at = -1;
  const order = points.map((_, k) => k).sort((a, b) => points[a].x - points[b].x);
  const place = (event) => {
    const m = chart.getScreenCTM();
    return m ? [(event.clientX - m.e) / m.a, (event.clientY - m.f) / m.d] : [0, 0];
  };
  chart.addEventListener("pointermove", (event) => {
    const [px, py] = place(event);
    let best = -1, least = 30 * 30;
    points.forEach((p, k) => {
      const d = (p.x - px) ** 2 + (p.y - py) ** 2;
      if (d < least && !p.off) { least = d; best = k; }
    });
    report(best < 0 ? null : points[best], event);
  });
  chart.addEventListener("pointerleave", (event) => report(null, event));
  chart.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
    if (event.key === "Escape") report(null, event);
    if (!step || !points.length) return;
    event.preventDefault();
    const open = order.filter((k) => !points[k].off);
    if (!open.length) return;
    at = Math.min(open.length - 1, Math.max(0, at + step));
    const p = points[open[at]], m = chart.getScreenCTM();
    report(p, { clientX: p.x * m.a + m.e, clientY: p.y * m.d + m.f, key: event.key });
    byId("say").textContent = words(p.i).join(", ");
  });
  chart.addEventListener("blur", (event) => report(null, event));
}
