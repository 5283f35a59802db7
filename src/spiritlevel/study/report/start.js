// Controls, colours, printing; then everything is drawn.

function redraw() {
  document.querySelectorAll("svg .row").forEach((row) => row.classList.toggle("on",
    row.dataset.measure === state.measure));
  scatter(); curves(); batches();
}
function choices(id, names, key, note) {
  const box = byId(id);
  for (const n of names) box.append(html("option", { value: n }, n || note));
  box.value = state[key];
  box.addEventListener("change", () => { state[key] = box.value; if (key === "measure") state.log = null; redraw();
    });
}
choices("measure", Object.keys(D.complexity), "measure");
choices("target", D.targets, "target");
choices("colour", ["", ...Object.keys(D.hp)], "colour", "measure");
byId("log").addEventListener("change", () => { state.log = byId("log").checked; scatter(); });
const theme = byId("theme"), root = document.documentElement;
const dark = () => (root.dataset.theme ? root.dataset.theme === "dark"
  : matchMedia("(prefers-color-scheme: dark)").matches);
const name = () => { theme.textContent = dark() ? "Light" : "Dark"; theme.setAttribute("aria-label", dark()
  ? "Switch to light colours" : "Switch to dark colours"); };
theme.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; name(); });
name();
let screen = null; // what to go back to after printing; some browsers announce printing twice
addEventListener("beforeprint", () => {
  if (screen) return;
  const closed = [...document.querySelectorAll("details:not([open])")];
  screen = { theme: root.dataset.theme, closed };
  root.dataset.theme = "light";
  closed.forEach((d) => { d.open = true; });
});
addEventListener("afterprint", () => {
  if (!screen) return;
  if (screen.theme) root.dataset.theme = screen.theme; else delete root.dataset.theme;
  screen.closed.forEach((d) => { d.open = false; });
  screen = null;
});
forest(); orbit(); checkpoints();
document.querySelectorAll("table.sortable").forEach(sortable);
redraw();
root.dataset.ready = "1";
