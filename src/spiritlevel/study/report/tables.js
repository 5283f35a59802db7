// Tables that sort, the table of checkpoints, and its filter.

function sortable(table) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, column) => {
    const button = html("button", { type: "button" }, ...head.childNodes);
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach((h) => h.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const keyed = [...body.rows].map((row) => [key(row.cells[column]), row]);
      keyed.sort(([a], [b]) => a === b ? 0 : a === null ? 1 : b === null ? -1 : (up ? 1 : -1) *
        (typeof a === "number" && typeof b === "number" ? a - b : typeof a === "number" ? -1 : typeof b === "number"
          ? 1 : a.localeCompare(b, undefined, { numeric: true })));
      body.append(...keyed.map(([, row]) => row));
    });
  });
  const key = (cell) => {
    const raw = cell.dataset.v ?? cell.textContent.trim();
    if (raw === "" || raw === "–") return null;
    return Number.isNaN(Number(raw)) ? raw : Number(raw);
  };
}
let rows = [];
function checkpoints() {
  const table = byId("checkpoints"), names = [...columns.keys()];
  const paper = new Set([...names.filter((n) => n.startsWith("hp.")).slice(0, 5), `gen.${D.training}`,
    ...D.targets.slice(0, 3).map((t) => `gen.${t}`), `complexity.${D.start.measure}`]);
      // what a sheet of paper has room for
  const where = names.map((n) => (paper.has(n) ? null : "screen"));
  table.tHead.append(html("tr", {}, html("th", { scope: "col" }, "checkpoint"),
    ...names.map((n, k) => html("th", { scope: "col", class: where[k] }, n))));
  const body = document.createDocumentFragment();
  rows = D.names.map((name, i) => {
    const row = html("tr", { "data-i": i }, html("th", { scope: "row", title: name }, name));
    for (const [k, n] of names.entries()) {
      const v = columns.get(n)[i], cell = html("td", { class: where[k] }, show(v));
      if (typeof v === "number") cell.dataset.v = v;
      row.append(cell);
    }
    row.find = [name, ...Object.entries(D.hp).map(([n, v]) => `${n}=${show(v[i])}`)].join("\n").toLowerCase();
    row.addEventListener("click", () => select(i));
    body.append(row);
    return row;
  });
  table.tBodies[0].append(body);
  sortable(table);
  byId("filter").addEventListener("input", filter);
  count();
}
function column(name) {
  for (const k of ["", "hp.", "gen.", "complexity."]) if (columns.has(k + name)) return columns.get(k + name);
  return null;
}
function test(term) {
  const parts = /^(.+?)(<=|>=|<|>|=)(.+)$/.exec(term), values = parts && column(parts[1]);
  if (!values) return (i) => rows[i].find.includes(term.toLowerCase());
  const [, , sign, text] = parts, number = Number(text);
  if (sign === "=") return (i) => show(values[i]).toLowerCase() === text.toLowerCase() || values[i] === number;
  const holds = { "<": (v) => v < number, ">": (v) => v > number, "<=": (v) => v <= number,
    ">=": (v) => v >= number }[sign];
  return (i) => typeof values[i] === "number" && holds(values[i]);
}
function filter() {
  const tests = byId("filter").value.trim().split(/\s+/).filter(Boolean).map(test);
  state.shown = tests.length ? new Set(rows.map((_, i) => i).filter((i) => tests.every((t) => t(i)))) : null;
  rows.forEach((row, i) => { row.hidden = state.shown !== null && !state.shown.has(i); });
  count();
  clearTimeout(filter.later);
  filter.later = setTimeout(redraw, 120);
}
const count = () => {
  const shown = state.shown ? state.shown.size : D.names.length;
  byId("count").textContent = `${shown} of ${D.names.length} checkpoints`;
};
function select(i, scroll) {
  const old = state.on;
  state.on = i === old ? -1 : i;
  if (rows[old]) rows[old].classList.remove("on");
  if (state.on >= 0) { rows[i].classList.add("on"); if (scroll) rows[i].scrollIntoView({ block: "nearest" }); }
  scatter();
}
