// One function for each plot.

// forest
function forest() {
  const home = byId("forest");
  const many = D.targets.length, label = 190, panel = many > 2 ? 230 : many === 2 ? 390 : 700, gap = 60, step = 30,
    top = 34;
  const names = D.order, width = label + many * (panel + gap), height = top + names.length * step + 34;
  const chart = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "group",
    "aria-labelledby": "forest-title" });
  names.forEach((m, k) => {
    const y = top + k * step + step / 2, base = !(m in D.complexity) || m === "parameter-norm";
    const row = svg("g", { class: "row", tabindex: base ? null : 0, role: base ? null : "button",
      "data-measure": m });
    if (base) row.setAttribute("style", "cursor:default");
    row.append(svg("rect", { class: "halo", x: 2, y: y - step / 2 + 1, width: width - 4, height: step - 2,
      rx: 5 }));
    row.append(svg("text", { class: base ? "tick" : "label", x: label - 14, y: y + 4, "text-anchor": "end" },
      m.length > 26 ? `${m.slice(0, 25)}…` : m, svg("title", {}, m)));
    D.targets.forEach((t, j) => {
      const x = (v) => label + j * (panel + gap) + ((v + 1) / 2) * panel, r = relation(m, t);
      if (!r || r.tau[0] === null) return;
      const c = colourOf(m);
      if (r.partial[0] !== null) row.append(
        r.partial[1] === null ? "" : svg("line", { x1: x(r.partial[1]), x2: x(r.partial[2]), y1: y + 6, y2: y + 6,
          stroke: c, "stroke-width": 1.2, "stroke-opacity": 0.65 }),
        svg("circle", { cx: x(r.partial[0]), cy: y + 6, r: 3.4, fill: "var(--card)", stroke: c,
          "stroke-width": 1.5 }));
      if (r.tau[1] !== null) row.append(svg("line", { x1: x(r.tau[1]), x2: x(r.tau[2]), y1: y - 4, y2: y - 4,
        stroke: c, "stroke-width": 2.6 }));
      row.append(svg("circle", { cx: x(r.tau[0]), cy: y - 4, r: 5, fill: c }));
      if (r.training !== null && m !== D.training) row.append(
        svg("path", { d: `M${x(r.training)} ${y - 9}v10`, stroke: "var(--soft)", "stroke-width": 2 }));
    });
    const summary = D.targets.map((t) => [t, relation(m, t)]).filter(([, r]) => r)
      .map(([t, r]) => `${t}: tau ${spread(r.tau)}, given ${D.given || "nothing"} ${spread(r.partial)}, `
        + `with training loss ${fixed(r.training)}`);
    row.setAttribute("aria-label", `${m}. ${summary.join(". ")}`);
    row.addEventListener("pointermove", (event) => tell([m, ...summary], event));
    row.addEventListener("pointerleave", (event) => tell(null, event));
    if (!base) {
      const choose = () => { state.measure = m; byId("measure").value = m; redraw(); };
      row.addEventListener("click", choose);
      row.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(); }
      });
    }
    chart.append(row);
  });
  D.targets.forEach((t, j) => {
    const x = (v) => label + j * (panel + gap) + ((v + 1) / 2) * panel, bottom = top + names.length * step;
    const back = svg("g", {});
    for (const v of [-1, -0.5, 0, 0.5, 1]) back.append(
      svg("line", { class: v ? "grid" : "zero", x1: x(v), x2: x(v), y1: top - 4, y2: bottom }),
      svg("text", { class: "tick", x: x(v), y: bottom + 18, "text-anchor": "middle" }, show(v).replace("-", "−")));
    back.append(svg("text", { class: "label", x: x(0), y: top - 14, "text-anchor": "middle", "font-weight": 600 },
      t));
    chart.prepend(back);
  });
  home.append(chart);
}

// scatter
function palette() {
  const values = D.hp[state.colour];
  if (!values) return { of: () => colourOf(state.measure), legend: [] };
  const kinds = [...new Set(values)].sort((a, b) => (typeof a === "number" && typeof b === "number" ? a - b
    : String(a).localeCompare(String(b))));
  if (kinds.length <= COLOURS.length) return {
    of: (i) => COLOURS[kinds.indexOf(values[i])],
    legend: kinds.map((k, n) => [COLOURS[n], show(k)]) };
  const numbers = kinds.every((k) => typeof k === "number" || k === null);
  const rank = (v) => kinds.indexOf(v) / (kinds.length - 1);
  const mix = (share) => `color-mix(in oklab, var(--c1) ${Math.round(share * 100)}%, var(--c0))`;
  return { of: (i) => mix(rank(values[i])),
    legend: [0, 0.5, 1].map((s) => [mix(s), show(kinds[Math.round(s * (kinds.length - 1))])]).concat(numbers ? []
      : [["transparent", `${kinds.length} values`]]) };
}
const W = 1040, H = 440, BOX = { left: 64, right: W - 12, top: 30, bottom: H - 48 };
function scatter() {
  const xs = D.complexity[state.measure], ys = D.gen[state.target], [low, high] = extent(xs);
  const can = low > 0, log = can && (state.log === null ? high / low > 20 : state.log);
  byId("log").disabled = !can; byId("log").checked = log;
  const chart = svg("svg", { class: "chart", viewBox: `0 0 ${W} ${H}`, tabindex: 0, role: "group",
    id: "scatter-chart",
    "aria-label": `${state.target} against ${state.measure}, one point for each checkpoint; `
      + "arrow keys go through them" });
  const points = [], r = relation(state.measure, state.target);
  if (high >= low && extent(ys)[0] <= extent(ys)[1]) {
    const x = scale(low, high, BOX.left, BOX.right, log), y = scale(...extent(ys), BOX.bottom, BOX.top, false),
      ink = palette();
    axes(chart, x, y, BOX, log ? `${state.measure} (log scale)` : state.measure, state.target);
    const size = D.names.length > 300 ? 3 : 4.5;
    D.names.forEach((_, i) => {
      if (xs[i] === null || ys[i] === null) return;
      const p = { x: x(xs[i]), y: y(ys[i]), i, off: state.shown && !state.shown.has(i) };
      points.push(p);
      chart.append(svg("circle", { cx: p.x.toFixed(1), cy: p.y.toFixed(1), r: size, fill: ink.of(i),
        "fill-opacity": 0.72, class: p.off ? "dim" : null }));
    });
    byId("legend").replaceChildren(...ink.legend.map(([c, t]) => html("span", {},
      html("i", { style: `background:${c}` }), t)));
  }
  const ring = svg("circle", { class: "ring", r: 8, cx: -99, cy: -99 });
  chart.append(ring);
  const mark = (p) => { ring.setAttribute("cx", p ? p.x : -99); ring.setAttribute("cy", p ? p.y : -99); };
  mark(points.find((p) => p.i === state.on));
  pointed(chart, points, (p, event) => { mark(p || points.find((q) => q.i === state.on));
    tell(p ? words(p.i) : null, event); chart.style.cursor = p ? "pointer" : ""; chart.at = p ? p.i : -1;
    if (event.key === "Escape") select(-1); });
  const pick = () => { if (chart.at >= 0) select(chart.at, true); };
  chart.addEventListener("click", pick);
  chart.addEventListener("keydown", (event) => { if (event.key === "Enter") pick(); });
  byId("scatter").replaceChildren(chart);
  byId("scatter-words").textContent = !r ? "" :
    `Kendall's tau-b ${spread(r.tau)} (tau-a ${fixed(r.a)}, ${r.count.toLocaleString("en")} checkpoints, `
    + `p ${chance(r.p)}, ${chance(r.pf)} after correction). ` +
    `With training loss ${fixed(r.training)}; `
    + `${D.given ? `given ${D.given} ${spread(r.partial)}` : "no confounder known"}.`;
}

// radius curves
function curves() {
  const home = byId("taus-by-radius");
  if (!home) return;
  const found = Object.entries(D.families), box = { left: 56, right: 508, top: 30, bottom: 282 };
  const radii = found.flatMap(([, rows]) => rows.map(([r]) => r)).filter((r) => r > 0);
  const x = scale(...extent(radii), box.left, box.right, true), y = scale(-1, 1, box.bottom, box.top, false);
  x.ticks = atRadii(radii) || x.ticks;
  const chart = svg("svg", { class: "chart", viewBox: "0 0 520 330", role: "img",
    "aria-label": `tau with ${state.target} by radius; the numbers are in the table of taus` });
  axes(chart, x, y, box, "radius (log scale; not comparable between geometries)", `tau with ${state.target}`);
  chart.append(svg("line", { class: "zero", x1: box.left, x2: box.right, y1: y(0), y2: y(0) }));
  for (const [name, rows] of found) {
    const c = colourOf(`${name}@1`), at = rows.map(([r, m]) => [r, relation(m, state.target)]).filter(([r,
      t]) => r > 0 && t && t.tau[0] !== null);
    if (!at.length) continue;
    const band = [...at.map(([r, t]) => `${x(r)},${y(t.tau[2] ?? t.tau[0])}`),
      ...at.slice().reverse().map(([r, t]) => `${x(r)},${y(t.tau[1] ?? t.tau[0])}`)];
    chart.append(svg("polygon", { points: band.join(" "), fill: c, "fill-opacity": 0.14 }),
      svg("polyline", { points: at.map(([r, t]) => `${x(r)},${y(t.tau[0])}`).join(" "), fill: "none", stroke: c,
        "stroke-width": 2.2 }));
    for (const [r, t] of at) chart.append(svg("circle", { cx: x(r), cy: y(t.tau[0]), r: 4, fill: c },
      svg("title", {}, `${name}, radius ${r}: ${spread(t.tau)}`)));
  }
  home.replaceChildren(chart);
  byId("curve-legend").replaceChildren(...found.map(([name]) => html("span", {},
    html("i", { style: `background:${colourOf(`${name}@1`)}` }), name)));
  values(box);
}
const atRadii = (radii) => { const all = [...new Set(radii)].sort((a, b) => a - b); return all.length < 8 ? all
  : null; };
function values(box) {
  const name = family(state.measure), rows = D.families[name] || Object.values(D.families)[0];
  const all = rows.flatMap(([, m]) => D.complexity[m]), [low, high] = extent(all), log = low > 0 && high / low > 20;
  const chart = svg("svg", { class: "chart", viewBox: "0 0 520 330", tabindex: 0, role: "group",
    "aria-label": `${family(rows[0][1])} by radius, one line for each checkpoint` });
  if (!(high >= low)) return;
  const x = scale(...extent(rows.map(([r]) => r)), box.left, box.right, rows[0][0] > 0),
    y = scale(low, high, box.bottom, box.top, log);
  x.ticks = atRadii(rows.map(([r]) => r)) || x.ticks;
  axes(chart, x, y, box, "radius", log ? `${family(rows[0][1])} (log scale)` : family(rows[0][1]));
  const points = [], line = (i) => rows.filter(([, m]) => D.complexity[m][i] !== null).map(([r,
    m]) => `${x(r).toFixed(1)},${y(D.complexity[m][i]).toFixed(1)}`).join(" ");
  const faint = Math.max(0.08, Math.min(0.5, 30 / D.names.length));
  D.names.forEach((_, i) => {
    if (state.shown && !state.shown.has(i)) return;
    chart.append(svg("polyline", { points: line(i), fill: "none", stroke: colourOf(rows[0][1]),
      "stroke-opacity": faint }));
    for (const [r, m] of rows) if (D.complexity[m][i] !== null) points.push({ x: x(r), y: y(D.complexity[m][i]),
      i });
  });
  const high1 = svg("polyline", { fill: "none", stroke: "var(--ink)", "stroke-width": 2 });
  chart.append(high1);
  pointed(chart, points, (p, event) => { high1.setAttribute("points", p ? line(p.i) : "");
    tell(p ? words(p.i) : null, event); });
  byId("values-by-radius").replaceChildren(chart);
}

// batches
function batches() {
  const home = byId("batches");
  if (!home) return;
  const rows = D.batches[state.measure];
  if (!rows) { home.replaceChildren(html("p", { class: "hint" },
    `No values on single batches for ${state.measure}.`)); return; }
  const values = D.complexity[state.measure];
  const order = D.names.map((_, i) => i).filter((i) => rows[i] && values[i] !== null
    && !(state.shown && !state.shown.has(i))).sort((a, b) => values[a] - values[b]);
  if (!order.length) { home.replaceChildren(); return; }
  const box = { left: 64, right: 1028, top: 30, bottom: 252 };
  const [low, high] = extent(order.flatMap((i) => [rows[i][0], rows[i][3]])), log = low > 0 && high / low > 20;
  const chart = svg("svg", { class: "chart", viewBox: "0 0 1040 300", tabindex: 0, role: "group",
    "aria-label": `${state.measure} on single batches, checkpoints in order of their mean` });
  const x = scale(1, order.length, box.left, box.right, false), y = scale(low, high, box.bottom, box.top, log);
  x.ticks = x.ticks.filter((v) => v >= 1 && v === Math.round(v));
  axes(chart, x, y, box, "checkpoints, from small to large", log ? `${state.measure} (log scale)` : state.measure);
  const c = colourOf(state.measure), wide = Math.max(1, Math.min(8, (box.right - box.left) / order.length * 0.6));
  const at = (v) => v.toFixed(1);
  const path = (a, b) => order.map((i, k) => `M${at(x(k + 1))} ${at(y(rows[i][a]))}V${at(y(rows[i][b]))}`).join("");
  chart.append(svg("path", { d: path(0, 3), stroke: c, "stroke-width": Math.min(1.2, wide),
    "stroke-opacity": 0.55 }),
    svg("path", { d: path(1, 2), stroke: c, "stroke-width": wide, "stroke-opacity": 0.5 }));
  const points = order.map((i, k) => ({ x: x(k + 1), y: y(values[i]), i }));
  for (const p of points) chart.append(svg("circle", { cx: p.x.toFixed(1), cy: p.y.toFixed(1), r: Math.max(1.2,
    wide / 3), fill: "var(--ink)" }));
  const ring = svg("circle", { class: "ring", r: 7, cx: -99, cy: -99 });
  chart.append(ring);
  pointed(chart, points, (p, event) => { ring.setAttribute("cx", p ? p.x : -99);
    ring.setAttribute("cy", p ? p.y : -99); tell(p ? words(p.i) : null, event); });
  home.replaceChildren(chart);
}

// orbit check
function orbit() {
  const home = byId("orbit");
  if (!home) return;
  const names = [...new Set(D.orbit.map((o) => o.measure))], step = 34, height = 60 + names.length * step;
  const ratios = D.orbit.map((o) => o.after / o.before).filter((v) => v > 0 && isFinite(v));
  const [low, high] = extent([...ratios, 0.5, 2]);
  const x = scale(low, high, 200, 1010, true);
  const chart = svg("svg", { class: "chart", viewBox: `0 0 1040 ${height}`, role: "img",
    "aria-label": "after the orbit move over before, for each measure; the numbers are in the table below" });
  for (const v of x.ticks) chart.append(
    svg("line", { class: "grid", x1: x(v), x2: x(v), y1: 14, y2: height - 42 }),
    svg("text", { class: "tick", x: x(v), y: height - 24, "text-anchor": "middle" }, `×${show(v)}`));
  chart.append(svg("line", { class: "zero", x1: x(1), x2: x(1), y1: 8, y2: height - 42 }),
    svg("text", { class: "label", x: 605, y: height - 4, "text-anchor": "middle" },
      "after the move / before (×1 is invariant)"));
  names.forEach((m, k) => {
    const y = 14 + k * step + step / 2;
    chart.append(svg("text", { class: "label", x: 188, y: y + 4, "text-anchor": "end" }, m));
    for (const o of D.orbit) if (o.measure === m && o.after / o.before > 0) chart.append(
      svg("line", { x1: x(1), x2: x(o.after / o.before), y1: y, y2: y, stroke: colourOf(m), "stroke-width": 2,
        "stroke-opacity": 0.4 }),
      svg("circle", { cx: x(o.after / o.before), cy: y, r: 5, fill: colourOf(m), "fill-opacity": 0.75 },
        svg("title", {}, `${o.checkpoint}: ${show(o.before)} before, ${show(o.after)} after`)));
  });
  home.append(chart);
}
