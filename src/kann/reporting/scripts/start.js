// Links the views of the page, one selected mode, one sequence, one theme, and draws everything once.
function selectMode(number) {
  state.mode = number;
  byId("mode-picker").value = number;
  for (const each of sections) each.onMode?.();
}
function selectSequence(sequence) {
  state.sequence = sequence;
  byId("from").value = 0;
  byId("picker").value = sequence;
  for (const each of sections) each.onSequence?.();
}
function drawAll() {
  for (const each of sections) each.draw?.();
  selectMode(state.mode); selectSequence(state.sequence);
}

function setTheme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  byId("theme").setAttribute("aria-pressed", dark);
  byId("theme").textContent = dark ? "Light" : "Dark";
}

const printedWidth = 680;  // pixels, of the 720 that fit on A4 between its margins

function startControls() {
  for (const button of document.querySelectorAll(".goto")) button.onclick = () => {
    if (button.dataset.sequence !== undefined) { byId("search").value = ""; fillPicker(); selectSequence(Number(button.dataset.sequence)); }
    selectMode(Number(button.dataset.mode));
    byId("sequences").scrollIntoView();
  };
  byId("theme").onclick = () => { setTheme(document.documentElement.dataset.theme !== "dark"); drawAll(); };
  // A link to the details, or to something inside them, opens them.
  addEventListener("hashchange", () => { const folded = location.hash.length > 1 && byId(location.hash.slice(1))?.closest("details"); if (folded) folded.open = true; });
  // On paper charts as wide as a screen would be cut off.
  addEventListener("beforeprint", () => { for (const chart of document.querySelectorAll(".js-plotly-plot")) Plotly.relayout(chart, { autosize: false, width: printedWidth }); });
  addEventListener("afterprint", () => { for (const chart of document.querySelectorAll(".js-plotly-plot")) Plotly.relayout(chart, { autosize: true, width: null }); });
}

/** Tell tests and benchmarks, and the style sheet, how far the page is. */
function reached(stage) {
  document.documentElement.dataset[stage] = "true";
  performance.mark(stage);
}

(async () => {
  setTheme(matchMedia("(prefers-color-scheme: dark)").matches);
  await loadContent();
  for (const each of sections) each.start?.();
  startControls();
  drawAll();
  fillPicker();
  // The page can be read and used; charts further down are drawn one after the other.
  await firstChart;
  reached("ready");
  await drawing;
  reached("drawn");
})();
