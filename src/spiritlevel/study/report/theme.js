// Colours and printing.

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
