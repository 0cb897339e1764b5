"use strict";
// The film of a training: a slider over checkpoints, and charts that follow it. All numbers come from the page itself.
(async () => {
  const byId = (id) => document.getElementById(id);

  /** The unpacked content of an element of the page, as a response to read. */
  function unpackElement(id) {
    const bytes = Uint8Array.from(atob(byId(id).textContent), (character) => character.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip")));
  }
  const [page, plotlyScript] = await Promise.all([unpackElement("content").json(), unpackElement("plotly").text()]);
  // The page's security policy names the checksum of this script; no other script would run.
  document.head.append(Object.assign(document.createElement("script"), { textContent: plotlyScript }));

  const { runs, steps } = page, several = runs.length > 1;
  const trail = 12;  // checkpoints that the line behind a dot goes back
  const colours = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#882255", "#332288", "#F0E442"];
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  // Plotly reads names as HTML; ours are text.
  const escapeMarkup = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;");
  /** With several runs a colour is a run, with one it is a mode. */
  const colourOf = (run, number) => colours[(several ? run : number) % colours.length];
  const axis = (title, extra) => ({ title: { text: title }, gridcolor: style("--line"), zerolinecolor: style("--line"), linecolor: style("--line"), ...extra });
  const layout = (extra) => ({ paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: style("--ink"), size: 13 },
    margin: { l: 60, r: 15, t: 15, b: 45 }, showlegend: several, legend: { orientation: "h", yanchor: "bottom", y: 1.02 }, hovermode: "closest", ...extra });
  const settings = { responsive: true, displaylogo: false, modeBarButtons: [["zoom2d", "pan2d", "resetScale2d", "toImage"]] };

  /** The place of the last checkpoint of a run that is no later than a step; −1 before its first one. */
  const placeAt = (run, step) => run.steps.findLastIndex((own) => own <= step);
  const modesAt = (run, place) => place < 0 ? [] : run.modes[place];
  const largest = Math.max(1, ...runs.map((run) => run.modes.reduce((most, modes) => modes.reduce((m, [, re, im]) => Math.max(m, Math.hypot(re, im)), most), 0)));
  const bound = 1.08 * Math.min(largest, 1.6);  // a mode far outside would make the circle a dot

  function planeTraces(step) {
    const angles = Array.from({ length: 181 }, (_, i) => i * Math.PI / 90);
    const traces = [{ x: angles.map(Math.cos), y: angles.map(Math.sin), mode: "lines", hoverinfo: "skip", showlegend: false, line: { color: style("--soft"), width: 1 } }];
    runs.forEach((run, r) => {
      const place = placeAt(run, step), modes = modesAt(run, place), now = new Set(modes.map(([number]) => number));
      const paths = new Map();
      for (let back = Math.max(0, place - trail); back <= place; back++) for (const [number, re, im] of modesAt(run, back)) {
        if (!now.has(number)) continue;
        if (!paths.has(number)) paths.set(number, [[], []]);
        paths.get(number)[0].push(re); paths.get(number)[1].push(im);
      }
      for (const [number, [x, y]] of paths) for (const side of y.some(Boolean) ? [1, -1] : [1])
        traces.push({ x, y: y.map((im) => side * im), mode: "lines", hoverinfo: "skip", showlegend: false, line: { color: colourOf(r, number), width: 1.5 }, opacity: 0.45 });
      const dots = modes.flatMap((mode) => mode[2] ? [[mode, 1], [mode, -1]] : [[mode, 1]]);
      traces.push({ name: escapeMarkup(run.name), mode: "markers", x: dots.map(([[, re]]) => re), y: dots.map(([[, , im], side]) => side * im),
        customdata: dots.map(([[number]]) => number), hovertemplate: "%{text}<extra></extra>",
        text: dots.map(([[number, re, im, carried, trusted]]) => `${escapeMarkup(run.name)} mode ${number}<br>λ = ${re.toFixed(4).replace("-", "−")}${im ? ` ± ${im.toFixed(4)}i` : ""}` +
          `<br>|λ| ${Math.hypot(re, im).toFixed(4)}<br>carries ${(100 * carried).toPrecision(3)} %<br>${trusted ? "trusted" : "not trusted"}`),
        marker: { size: dots.map(([[, , , carried]]) => 7 + 16 * Math.sqrt(Math.min(1, carried))), color: dots.map(([[number]]) => colourOf(r, number)),
          line: { color: style("--ink"), width: dots.map(([[, , , , trusted]]) => trusted ? 2 : 0) } } });
    });
    return traces;
  }

  /** A line at the chosen step. */
  const cursor = (step) => [{ type: "line", xref: "x", yref: "paper", x0: step, x1: step, y0: 0, y1: 1, line: { color: style("--ink"), width: 1, dash: "dot" } }];

  function moduliTraces() {
    return runs.flatMap((run, r) => {
      const lines = new Map();
      run.modes.forEach((modes, place) => modes.forEach(([number, re, im]) => {
        if (!lines.has(number)) lines.set(number, []);
        lines.get(number).push([place, Math.hypot(re, im)]);
      }));
      return [...lines].map(([number, seen], i) => {
        const x = [], y = [];
        seen.forEach(([place, modulus], j) => {
          if (j && seen[j - 1][0] < place - 1) { x.push(null); y.push(null); }  // it was away: no line across
          x.push(run.steps[place]); y.push(modulus);
        });
        return { name: several ? escapeMarkup(run.name) : `mode ${number}`, legendgroup: String(r), showlegend: several && i === 0, x, y,
          mode: x.length > 1 ? "lines" : "markers", marker: { size: 4 }, line: { color: colourOf(r, number), width: 1.5 }, opacity: 0.8, hovertemplate: `mode ${number}: %{y:.4f} at step %{x}<extra></extra>` };
      });
    });
  }
  const curveTraces = (values) => runs.map((run, r) => ({ name: escapeMarkup(run.name), x: run.steps, y: values(run), mode: "lines+markers", marker: { size: 4 },
    line: { color: colours[r % colours.length] } }));
  const isWide = (traces) => { const sizes = traces.flatMap((trace) => trace.y).filter((value) => value > 0); return sizes.length > 1 && Math.max(...sizes) > 30 * Math.min(...sizes); };
  const curveAxis = (traces, title) => axis(title, isWide(traces) ? { type: "log", dtick: 1 } : {});

  const slider = byId("place"), select = byId("figure");
  const step = () => steps[Number(slider.value)];
  const draw = (id, traces, extra) => Plotly.react(id, traces, layout({ uirevision: "kept", ...extra }), settings);
  const drawPlane = () => draw("plane", planeTraces(step()), { xaxis: axis("Re λ", { range: [-bound, bound], constrain: "domain" }), yaxis: axis("Im λ", { range: [-bound, bound], scaleanchor: "x" }) });
  async function drawCurves() {
    const loss = curveTraces((run) => run.loss), figure = curveTraces((run) => run.figures[select.value]);
    const under = { xaxis: axis("step"), shapes: cursor(step()) };
    await draw("moduli", moduliTraces(), { ...under, yaxis: axis("|λ|", { range: [0, bound] }) });
    await draw("loss", loss, { ...under, yaxis: curveAxis(loss, "loss") });
    await draw("figures", figure, { ...under, yaxis: curveAxis(figure, select.value) });
  }

  let drawing = Promise.resolve();
  /** Show the chosen checkpoint; drawings follow each other, since two of the same chart at a time can block each other. */
  function show() {
    byId("step").textContent = `step ${step()} (${Number(slider.value) + 1} of ${steps.length})`;
    drawing = drawing.then(async () => {
      await drawPlane();
      for (const id of ["moduli", "loss", "figures"]) await Plotly.relayout(id, { shapes: cursor(step()) });
      document.documentElement.dataset.shown = slider.value;
    });
  }

  let timer = null;
  function stop() { clearInterval(timer); timer = null; byId("play").textContent = "Play"; byId("play").setAttribute("aria-pressed", "false"); }
  byId("play").addEventListener("click", () => {
    if (timer) { stop(); return; }
    if (Number(slider.value) === steps.length - 1) slider.value = 0;
    byId("play").textContent = "Stop";
    byId("play").setAttribute("aria-pressed", "true");
    timer = setInterval(() => {
      slider.value = Number(slider.value) + 1;
      show();
      if (Number(slider.value) === steps.length - 1) stop();
    }, 250);
  });
  slider.max = steps.length - 1;
  slider.value = slider.max;
  slider.addEventListener("input", show);
  for (const name of Object.keys(runs[0].figures)) select.append(new Option(name, name));
  select.addEventListener("change", () => { drawing = drawing.then(drawCurves); });
  await drawPlane();
  await drawCurves();
  show();
  await drawing;
  byId("loading").remove();
  document.documentElement.dataset.ready = "true";
})();
