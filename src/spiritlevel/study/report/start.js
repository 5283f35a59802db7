// Controls; then everything is drawn.

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
forest(); orbit(); checkpoints();
document.querySelectorAll("table.sortable").forEach(sortable);
redraw();
root.dataset.ready = "1";
