// Every curve of a training run over its steps.

function curve(name) {
  const values = D.complexity[name], W = 520, H = 270, box = { left: 64, right: W - 12, top: 30, bottom: H - 48 };
  const there = D.steps.map((_, i) => i).filter((i) => values[i] !== null);
  const [low, high] = extent(values), log = low > 0 && high / low > 100;
  const chart = svg("svg", { class: "chart", viewBox: `0 0 ${W} ${H}`, tabindex: 0, role: "group",
    "aria-label": `${name} over steps of training; arrow keys go through the readings` });
  const points = [];
  if (there.length) {
    const x = scale(D.steps[0], D.steps[D.steps.length - 1], box.left, box.right, false),
      y = scale(low, high, box.bottom, box.top, log), c = colourOf(name);
    x.ticks = x.ticks.filter((v) => v === Math.round(v));
    axes(chart, x, y, box, "training step", log ? `${name} (log scale)` : name);
    for (const i of there) points.push({ x: x(D.steps[i]), y: y(values[i]), i });
    // a reading without this value breaks the line
    const path = points.map((p, k) => `${k && there[k - 1] === p.i - 1 ? "L" : "M"}${p.x.toFixed(1)} ${p.y.toFixed(1)}`);
    chart.append(svg("path", { d: path.join(""), fill: "none", stroke: c, "stroke-width": 1.8,
      "stroke-linejoin": "round" }));
    const size = points.length > 120 ? 1.5 : 3;
    for (const p of points) chart.append(svg("circle", { cx: p.x.toFixed(1), cy: p.y.toFixed(1), r: size, fill: c }));
    for (const i of D.failed[name] || []) chart.append(svg("path", { class: "failed", stroke: "var(--warn)",
      "stroke-width": 2, d: `M${(x(D.steps[i]) - 4).toFixed(1)} ${box.bottom - 8}l8 8m0 -8l-8 8` },
    svg("title", {}, `failed at step ${D.steps[i]}`)));
  }
  const ring = svg("circle", { class: "ring", r: 6, visibility: "hidden" });
  chart.append(ring);
  pointed(chart, points, (p, event) => {
    ring.setAttribute("visibility", p ? "visible" : "hidden");
    if (p) { ring.setAttribute("cx", p.x); ring.setAttribute("cy", p.y); }
    state.measure = name;
    tell(p ? words(p.i) : null, event);
  });
  chart.addEventListener("focus", () => { state.measure = name; });
  return html("figure", { class: "curve" }, chart);
}
byId("curve-charts").append(...Object.keys(D.complexity).map(curve));
document.querySelectorAll("table.sortable").forEach(sortable);
document.documentElement.dataset.ready = "1";
