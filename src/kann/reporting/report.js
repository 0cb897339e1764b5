"use strict";
// Links the views of a report: one selected mode, one sequence, one theme. All numbers come from the page itself.
(async () => {
  const byId = (id) => document.getElementById(id);

  /** The unpacked content of an element of the page, as a response to read. */
  function unpackElement(id) {
    const text = byId(id).textContent;
    // fromBase64 is fast, but older browsers do not have it.
    const bytes = Uint8Array.fromBase64 ? Uint8Array.fromBase64(text) : Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip")));
  }
  const [page, plotlyScript] = await Promise.all([unpackElement("content").json(), unpackElement("plotly").text()]);
  // The page's security policy names the checksum of this script; no other script would run.
  document.head.append(Object.assign(document.createElement("script"), { textContent: plotlyScript }));

  const state = { mode: page.shown[0] ?? 0, kept: new Set(), sequence: 0, view: null, sort: "number", descending: false };
  const tables = {};

  /** Reads one packed table: column after column, whole numbers that the column's scale turns into values. */
  async function unpackTable(name) {
    const { scale, bits } = page.tables[name];
    const buffer = await unpackElement(`table-${name}`).arrayBuffer();
    const numbers = bits === 8 ? new Int8Array(buffer) : new Int16Array(buffer);
    const length = numbers.length / scale.length;
    return { scale, column: (place, start, count) =>
      Array.from(numbers.subarray(place * length + start, place * length + start + count), (n) => n * scale[place]) };
  }
  await Promise.all(Object.keys(page.tables).map(async (name) => { tables[name] = await unpackTable(name); }));

  // JSON has no infinity. A mode with an infinite residual is as doubtful as a mode can be.
  for (const m of page.modes) { m.residual ??= Infinity; if (page.trust) { m.held_out ??= Infinity; m.copying ??= Infinity; m.shuffled ??= Infinity; } }
  /** The residual that colours a dot: on held-out sequences, or on the fitted data if nothing was held out. */
  const shownResidual = (m) => page.trust ? m.held_out : m.residual;
  const significant = (value, count = 4) => Number.isFinite(value) ? Number(value.toPrecision(count)).toString() : "∞";
  // Math.max(...values) fails from some 100,000 values on: a call takes no more arguments.
  const largestOf = (values, atLeast) => values.reduce((largest, value) => Math.max(largest, value), atLeast);
  const smallestOf = (values, atMost) => values.reduce((smallest, value) => Math.min(smallest, value), atMost);
  const wordsShown = 5000, sequencesListed = 2000, pointsDrawn = 20000;  // more would make the page slow
  const mode = () => page.modes[state.mode];
  // Plotly reads names as HTML; ours are text.
  const escapeMarkup = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;");
  const fourDecimals = (value) => value.toFixed(4);
  const eigenvalue = (m) => m.pair ? `${fourDecimals(m.re)} ± ${fourDecimals(m.im)}i` : fourDecimals(m.re);
  const interval = (m) => `${fourDecimals(m.interval[0])} – ${fourDecimals(m.interval[1])}`;
  const colours = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#882255", "#F0E442", "#332288"];
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const selectedModes = () => [...new Set([state.mode, ...state.kept])];

  // --- charts

  const chartLayout = (extra) => ({
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: style("--ink"), size: 13 },
    margin: { l: 60, r: 15, t: 15, b: 45 }, showlegend: false, hovermode: "closest",
    modebar: { bgcolor: "rgba(0,0,0,0)", color: style("--soft"), activecolor: style("--ink") },
    hoverlabel: { bgcolor: style("--panel"), bordercolor: style("--line"), font: { color: style("--ink") } }, ...extra,
  });
  const axis = (title, extra) => ({ title: { text: title }, gridcolor: style("--line"), zerolinecolor: style("--line"),
    linecolor: style("--line"), ...extra });
  const legendAbove = { orientation: "h", yanchor: "bottom", y: 1.02 };  // it grows upwards, and the chart makes room
  /** A logarithmic axis with few enough ticks to be read. */
  function logAxis(title, values, extra) {
    const sizes = values.filter((value) => value > 0), decades = Math.log10(largestOf(sizes, 0) / smallestOf(sizes, Infinity));
    return axis(title, { type: "log", tickformat: ".2~r", dtick: decades > 3 ? Math.ceil(decades / 6) : "D2", ...extra });
  }
  const saveButton = (id, format) => ({ name: `Save as ${format.toUpperCase()}`, icon: Plotly.Icons.camera,
    click: (chart) => Plotly.downloadImage(chart, { format, filename: `kann-${id}`, width: 900, height: 600, scale: format === "png" ? 2 : 1 }) });
  const waiting = new Map();
  let drawing = null;
  /** Draw soon, each chart once and one after the other: two drawings of the same chart at a time can block each other. */
  function drawSoon(id, traces, layout) {
    waiting.set(id, [traces, layout]);
    drawing ??= drawWaiting().finally(() => { drawing = null; });
  }
  async function drawWaiting() {
    await new Promise((resume) => setTimeout(resume));
    while (waiting.size) {
      const [id, [traces, layout]] = waiting.entries().next().value;
      waiting.delete(id);
      // The buttons are listed one by one: Plotly's own list has one that would upload the chart.
      const buttons = [["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"], [saveButton(id, "svg"), saveButton(id, "png")]];
      await Plotly.react(id, traces, chartLayout(layout), { responsive: true, displaylogo: false, modeBarButtons: buttons });
    }
  }

  function drawErrors() {
    const traces = [["this operator", page.fit], ["copying the previous state", page.copying], ["reading the inputs", page.driven], ...Object.entries(page.others)]
      .filter(([, fit]) => fit).map(([name, fit], i) => ({ name: escapeMarkup(name), x: fit.times.step, y: fit.times.error, mode: "lines",
        line: { color: colours[i % colours.length], dash: ["solid", "dash", "dot", "dashdot"][i % 4] } }));
    drawSoon("errors", traces, { showlegend: true, legend: legendAbove, xaxis: axis("step"),
      yaxis: logAxis("fraction of the variance", traces.flatMap((trace) => trace.y)) });
  }

  function drawPlane() {
    const angles = Array.from({ length: 181 }, (_, i) => i * Math.PI / 90);
    const mostImportant = largestOf(page.modes.map((m) => m.importance), 1e-300);
    const dots = page.modes.flatMap((m) => m.pair ? [[m, 1], [m, -1]] : [[m, 1]]);
    const size = ([m]) => 7 + 17 * Math.sqrt(m.importance / mostImportant);
    const others = Object.entries(page.others).map(([name, fit], i) => ({ name: escapeMarkup(name), x: fit.eigenvalues.map((v) => v[0]),
      y: fit.eigenvalues.map((v) => v[1]), mode: "markers", marker: { symbol: "x", size: 6, color: colours[(i + 1) % colours.length] } }));
    const circle = { x: angles.map(Math.cos), y: angles.map(Math.sin), mode: "lines", hoverinfo: "skip", showlegend: false, line: { color: style("--soft"), width: 1 } };
    drawSoon("plane", [
      circle, ...intervalTraces(dots, size), ...others,
      { name: "eigenvalues", showlegend: false, x: dots.map(([m]) => m.re), y: dots.map(([m, side]) => side * m.im), mode: "markers",
        customdata: dots.map(([m]) => m.number), hovertemplate: "%{text}<extra></extra>",
        text: dots.map(([m, side]) => `mode ${m.number}<br>λ = ${fourDecimals(m.re)} ${m.pair ? `${side > 0 ? "+" : "−"} ${fourDecimals(m.im)}i` : ""}` +
          `<br>|λ| ${fourDecimals(m.modulus)}${page.trust ? ` (${interval(m)})` : ""}<br>period ${significant(m.period, 3)}<br>horizon ${significant(m.horizon, 3)}` +
          `<br>residual ${significant(shownResidual(m), 2)}${page.trust ? ` held out<br>${m.trusted ? (m.verdict === "yes" ? "trusted" : m.verdict) : "not trusted"}` : " on the fitted data"}`),
        marker: { size: dots.map(size), color: dots.map(([m]) => Math.log10(Math.min(1, Math.max(0.01, shownResidual(m))))), cmin: -2, cmax: 0,
          colorscale: "Viridis", showscale: true, opacity: 0.9,
          colorbar: { title: { text: page.trust ? "residual,<br>held out" : "residual,<br>fitted data" }, tickvals: [-2, -1, 0], ticktext: ["0.01", "0.1", "1"], thickness: 12 },
          line: { color: dots.map(([m]) => m.number === state.mode ? style("--ink") : style("--paper")),
            width: dots.map(([m]) => m.number === state.mode ? 3 : 0.5) } } },
    ], { xaxis: axis("Re λ"), yaxis: axis("Im λ", { scaleanchor: "x" }), margin: { l: 60, r: 0, t: 15, b: 45 },
      showlegend: Boolean(page.trust || others.length), legend: legendAbove });
  }

  /** The interval of each eigenvalue, a piece of a ring, and rings around the dots of trusted modes. */
  function intervalTraces(dots, size) {
    if (!page.trust) return [];
    const x = [], y = [];
    for (const [m, side] of dots) {
      const middle = side * Math.atan2(m.im, m.re), half = Math.min(Math.PI, (m.angle[1] - m.angle[0]) / 2);
      const turns = Array.from({ length: 13 }, (_, i) => middle + half * (i / 6 - 1));
      const edge = [...turns.map((turn) => [m.interval[1], turn]), ...turns.reverse().map((turn) => [m.interval[0], turn])];
      for (const [modulus, turn] of [...edge, edge[0]]) { x.push(modulus * Math.cos(turn)); y.push(modulus * Math.sin(turn)); }
      x.push(null); y.push(null);
    }
    const trusted = dots.filter(([m]) => m.trusted);
    return [
      { name: `${significant(100 * page.trust.level, 3)} % interval`, x, y, mode: "lines", fill: "toself", fillcolor: "rgba(128,128,128,0.3)", hoverinfo: "skip",
        line: { color: style("--soft"), width: 1 } },
      { name: "trusted", x: trusted.map(([m]) => m.re), y: trusted.map(([m, side]) => side * m.im), mode: "markers", hoverinfo: "skip",
        marker: { symbol: "circle-open", color: "#D55E00", size: trusted.map((dot) => size(dot) + 7), line: { width: 2.5 } } },
    ];
  }

  function drawHorizons() {
    if (!page.trust) return;
    const { horizons, error, copying } = page.trust;
    const curves = [["this operator", error, "solid"], ["copying the state", copying, "dash"], ["predicting the mean", horizons.map(() => 1), "dot"]];
    drawSoon("horizons", curves.map(([name, y, dash], i) => ({ name, x: horizons, y: y.map((value) => value > 0 ? value : null), mode: i < 2 ? "lines+markers" : "lines", line: { color: colours[i], dash } })),
      { showlegend: true, legend: legendAbove, xaxis: axis("steps ahead", { type: "log", tickvals: horizons, ticktext: horizons.map(String) }),
        yaxis: logAxis("fraction of the variance", [...error, ...copying, 1]) });
  }

  function drawPseudospectrum() {
    if (!page.plane) return;
    const { axis: places, log_residual: z } = page.plane, dots = page.modes.flatMap((m) => m.pair ? [[m.re, m.im], [m.re, -m.im]] : [[m.re, 0]]);
    const angles = Array.from({ length: 181 }, (_, i) => i * Math.PI / 90);
    drawSoon("pseudospectrum", [
      { type: "contour", x: places, y: places, z, zmin: -2, zmax: 0, colorscale: "Viridis", contours: { start: -2, end: 0, size: 0.25 }, line: { width: 0.5 },
        customdata: z.map((row) => row.map((value) => significant(10 ** value, 2))), hovertemplate: "ζ = %{x:.3f} + %{y:.3f}i<br>smallest residual %{customdata}<extra></extra>",
        colorbar: { title: { text: "smallest<br>residual" }, tickvals: [-2, -1, 0], ticktext: ["0.01", "0.1", "1"], thickness: 12 } },
      { x: angles.map(Math.cos), y: angles.map(Math.sin), mode: "lines", hoverinfo: "skip", line: { color: "#ffffff", width: 1.5 } },
      { x: dots.map(([re]) => re), y: dots.map(([, im]) => im), mode: "markers", hoverinfo: "skip", marker: { size: 6, color: "#ffffff", line: { color: "#000000", width: 1 } } },
    ], { xaxis: axis("Re ζ", { range: [places[0], places.at(-1)] }), yaxis: axis("Im ζ", { scaleanchor: "x", constrain: "domain" }), margin: { l: 60, r: 0, t: 15, b: 45 } });
  }

  function drawDecay() {
    const chosen = selectedModes().map((number) => page.modes[number]);
    const longest = largestOf(page.sequences.map((sequence) => sequence.length), 1);
    const last = Math.min(500, largestOf(chosen.map((m) => Math.ceil(m.horizon === null ? longest : 1.3 * m.horizon)), 10));
    const steps = Array.from({ length: 101 }, (_, i) => i * last / 100);
    drawSoon("decay", chosen.map((m, i) => ({ name: `mode ${m.number}`, x: steps, y: steps.map((t) => m.modulus ** t), mode: "lines",
      line: { color: colours[i % colours.length] } })), { showlegend: true, legend: legendAbove,
      xaxis: axis("steps"), yaxis: axis("|λ|ⁿ", { rangemode: "tozero" }) });
  }

  /** The steps at which a curve is drawn: all, or of a long one the largest of each stretch, so that no peak is lost. */
  function drawnSteps(values) {
    const stretch = Math.ceil(values.length / pointsDrawn);
    return Array.from({ length: Math.ceil(values.length / stretch) }, (_, number) => {
      let largest = number * stretch;
      for (let i = largest; i < Math.min(values.length, (number + 1) * stretch); i++)
        if (Math.abs(values[i]) > Math.abs(values[largest])) largest = i;
      return largest;
    });
  }

  function drawOverTime() {
    const { start, length } = page.sequences[state.sequence];
    const traces = [];
    const add = (name, values, extra) => {
      const steps = drawnSteps(values);
      traces.push({ name, x: steps, y: steps.map((i) => values[i]), mode: "lines", ...extra });
    };
    if (tables.signal) add("signal", tables.signal.column(0, start, length), { line: { color: style("--soft") } });
    if (tables.decoded) add("decoded from the states", tables.decoded.column(0, start, length), { line: { color: style("--ink"), dash: "dot" } });
    const table = tables.decoded_modes ?? tables[tableOfView()];
    selectedModes().forEach((number, i) => {
      const place = page.shown.indexOf(number);
      if (table && place >= 0) add(`mode ${number}`, table.column(place, start, length), { line: { color: colours[i % colours.length] } });
    });
    byId("over-time-caption").textContent = tables.decoded_modes ? "The signal, the signal decoded from the states, and the signal decoded from each selected mode alone"
      : tables.signal ? "The signal, and the selected modes over the sequence"
      : `${state.view === "magnitude" ? "Magnitude" : "Contribution to the output"} of the selected modes over the sequence`;
    drawSoon("over-time", traces, { showlegend: true, legend: legendAbove, xaxis: axis("step"),
      yaxis: axis(tables.decoded_modes ? "signal" : tableOfView()) });
  }

  function drawEmbedding() {
    const { at, sequence, step, points } = page.embedding;
    const kind = (i) => page.sequences[sequence[i]].label ?? page.sequences[sequence[i]].prediction ?? "states";
    const first = [...new Set(at.map((_, i) => kind(i)))].slice(0, 12);
    const group = (i) => first.includes(kind(i)) ? kind(i) : "others";
    const groups = [...new Set(at.map((_, i) => group(i)))].sort();
    const traces = groups.map((name, g) => {
      const own = at.map((_, i) => i).filter((i) => group(i) === name);
      return { name: escapeMarkup(name), x: own.map((i) => at[i][0]), y: own.map((i) => at[i][1]), mode: "markers",
        text: own.map((i) => `sequence ${sequence[i]}, step ${step[i]}`), hovertemplate: "%{text}<extra></extra>",
        marker: { size: 4, opacity: 0.55, color: colours[g % colours.length] } };
    });
    const here = at.map((_, i) => i).filter((i) => sequence[i] === state.sequence);
    traces.push({ name: "this sequence", x: here.map((i) => at[i][0]), y: here.map((i) => at[i][1]), mode: "lines+markers",
      line: { color: style("--ink"), width: 1 }, marker: { size: 5, color: style("--ink") } });
    for (const kind of new Set(points ? points.kinds : [])) {
      const own = points.kinds.map((k, i) => k === kind ? i : -1).filter((i) => i >= 0);
      traces.push({ name: escapeMarkup(`${kind} points`), x: own.map((i) => points.at[i][0]), y: own.map((i) => points.at[i][1]), mode: "markers",
        marker: { symbol: kind === "fixed" ? "star" : "diamond-open", size: 10, color: "#E69F00" } });
    }
    drawSoon("embedding", traces, { showlegend: true, legend: { ...legendAbove, itemsizing: "constant" }, xaxis: axis("first component"), yaxis: axis("second component") });
  }

  // --- tables

  const hints = { period: "Steps until the mode has turned once", horizon: "Steps until a tenth of the mode is left",
    residual: "|Y v − λ X v| / |X v| on the data that were fitted. It is small for noise too, if there are few data",
    interval: "Confidence interval of |λ|, from fits without some of the sequences", held_out: "The residual on sequences that were not fitted",
    copying: "The residual of copying the previous state", shuffled: "The residual that states in shuffled order reach", verdict: "Whether the mode can be read as the network's own dynamics; and learned, if the untrained network was compared",
    importance: "How strongly the mode is present in the states: its magnitude, summed over a sequence" };
  const columns = [
    ["kept", "Keep", null], ["number", "Mode", (m) => m.number], ["re", "λ", eigenvalue],
    ...(page.trust ? [["verdict", "Trusted", (m) => m.verdict], ["why", "Why", (m) => m.why],
      ["interval", `${significant(100 * page.trust.level, 3)} % of |λ|`, (m) => interval(m)],
      ["held_out", "Residual, held out", (m) => significant(m.held_out, 2)], ["copying", "Copying", (m) => significant(m.copying, 2)],
      ["shuffled", "Shuffled", (m) => significant(m.shuffled, 2)]] : []),
    ["modulus", "|λ|", (m) => fourDecimals(m.modulus)], ["period", "Period", (m) => significant(m.period, 3)],
    ["horizon", "Horizon", (m) => significant(m.horizon, 3)], ["importance", "Importance", (m) => significant(m.importance, 3)],
    ["residual", "Residual, fitted data", (m) => significant(m.residual, 2)],
  ];

  function drawTable() {
    const head = byId("table").tHead.rows[0], body = byId("table").tBodies[0];
    head.replaceChildren(...columns.map(([key, name, text]) => {
      const cell = document.createElement("th");
      cell.scope = "col";
      if (key === "why") cell.className = key;
      if (!text) { cell.textContent = name; return cell; }
      const button = document.createElement("button");
      button.type = "button";
      button.title = hints[key] ?? "";
      button.textContent = name + (state.sort === key ? (state.descending ? " ↓" : " ↑") : "");
      cell.setAttribute("aria-sort", state.sort === key ? (state.descending ? "descending" : "ascending") : "none");
      button.onclick = () => { state.descending = state.sort === key ? !state.descending : key === "importance"; state.sort = key; drawTable(); };
      cell.append(button);
      return cell;
    }));
    const value = (m) => state.sort === "interval" ? m.interval[1] - m.interval[0] : m[state.sort] ?? Infinity;
    const compare = (a, b) => typeof a === "string" ? a.localeCompare(b) : a - b;
    const sorted = [...page.modes].sort((a, b) => (compare(value(a), value(b)) || a.number - b.number) * (state.descending ? -1 : 1));
    body.replaceChildren(...sorted.map((m) => {
      const row = document.createElement("tr");
      row.dataset.mode = m.number;
      row.tabIndex = m.number === state.mode ? 0 : -1;
      row.setAttribute("aria-selected", m.number === state.mode);
      row.classList.toggle("doubtful", page.trust ? !m.trusted : !Number.isFinite(m.residual));
      row.append(...columns.map(([key, , text]) => {
        const cell = document.createElement("td");
        if (key === "why") cell.className = key;
        if (text) { cell.textContent = text(m); return cell; }
        const box = document.createElement("input");
        box.type = "checkbox";
        box.checked = state.kept.has(m.number);
        box.setAttribute("aria-label", `Keep mode ${m.number} in the charts`);
        box.onclick = (event) => { event.stopPropagation(); box.checked ? state.kept.add(m.number) : state.kept.delete(m.number); drawDecay(); drawOverTime(); };
        cell.append(box);
        return cell;
      }));
      row.onclick = () => selectMode(m.number);
      row.onkeydown = (event) => {
        const next = { ArrowDown: row.nextElementSibling, ArrowUp: row.previousElementSibling }[event.key];
        if (event.key === "Enter") selectMode(m.number);
        if (next) { event.preventDefault(); selectMode(Number(next.dataset.mode)); document.querySelector("tr[aria-selected=true]").focus(); }
      };
      return row;
    }));
  }

  function fitRows() {
    const fits = [["this operator", page.fit], ...(page.driven ? [["reading the inputs", page.driven]] : []), ...Object.entries(page.others)];
    const percent = (value, count) => value === null ? "–" : `${significant(100 * value, count)} %`;
    return [["", "Rank", "Error of one step (of the variance)", "Decisions kept", `|λ| > ${page.limits.slow}`, "Trusted"], ...fits.map(([name, fit]) => [name, fit.rank,
      percent(fit.error, 3), percent(fit.agreement, 4), fit.slow, fit.trusted === null ? "not tested" : `${fit.trusted} of ${fit.modes}`]),
      ["copying the previous state", "–", percent(page.copying.error, 3), percent(page.copying.agreement, 4), "–", "–"]];
  }

  function drawFits() {
    const rows = fitRows().map((cells, i) => {
      const row = document.createElement("tr");
      row.append(...cells.map((text) => Object.assign(document.createElement(i ? "td" : "th"), { textContent: text })));
      return row;
    });
    byId("fits").tHead.replaceChildren(rows[0]);
    byId("fits").tBodies[0].replaceChildren(...rows.slice(1));
  }

  // --- sequences

  const views = [["magnitude", "magnitude"], ...(tables.contribution ? [["contribution", "contribution to the output"], ["change", "change by this step"]] : [])];
  /** The table that a view reads; the change of a contribution is computed from the contributions. */
  const tableOfView = () => state.view === "magnitude" ? "magnitude" : "contribution";

  function shade(value, largest) {
    const strength = Math.round(100 * Math.min(1, Math.abs(value) / (largest || 1)) ** 0.7);
    const colour = state.view === "magnitude" ? "#009E73" : value >= 0 ? "#E69F00" : "#0072B2";
    return `color-mix(in srgb, ${colour} ${Math.round(strength * 0.75)}%, transparent)`;
  }

  /** What is shown of the selected mode at each step of a sequence. */
  function values(sequence) {
    const place = page.shown.indexOf(state.mode), { start, length } = sequence;
    if (place < 0) return null;
    const level = tables[tableOfView()].column(place, start, length);
    return state.view === "change" ? level.map((v, i) => i ? v - level[i - 1] : 0) : level;
  }

  function drawText() {
    const sequence = page.sequences[state.sequence], shown = values(sequence);
    const facts = [sequence.label === null ? "" : `label: ${sequence.label}`, sequence.prediction === null ? "" : `prediction: ${sequence.prediction}`, `${sequence.length} steps`, page.reverse ? "read from the end" : ""];
    const note = shown ? "" : ` Mode ${state.mode} is not shown here: it is not among the ${page.shown.length} slowest and most important modes.`;
    const key = state.view === "magnitude" ? " Green words have a large magnitude." : " Orange words raise the output, blue words lower it.";
    byId("sequence-note").textContent = facts.filter(Boolean).join(" · ") + "." + (shown && sequence.tokens ? key : note);
    byId("text").hidden = !sequence.tokens;
    byId("from").parentElement.hidden = !sequence.tokens || sequence.length <= wordsShown;
    if (!sequence.tokens) return;
    const largest = shown ? largestOf(shown.map(Math.abs), 1e-300) : 1;
    const from = Math.max(0, Math.min(Number(byId("from").value) || 0, sequence.length - 1));
    const words = new DocumentFragment();
    sequence.tokens.slice(from, from + wordsShown).forEach((token, i) => {
      const word = document.createElement("span"), value = shown && shown[from + i];
      word.textContent = token;
      if (shown) { word.style.background = shade(value, largest); word.title = `${token}: ${significant(value, 3)}`; }
      words.append(word, " ");
    });
    byId("text").replaceChildren(words);
  }

  function fillPicker() {
    const wanted = byId("search").value.trim().toLowerCase();
    const fits = (s, i) => !wanted || String(i) === wanted || [s.label, s.prediction].some((t) => t !== null && t.toLowerCase().includes(wanted)) ||
      (s.tokens ?? []).some((token) => token.toLowerCase().includes(wanted));
    const found = page.sequences.map((s, i) => [s, i]).filter(([s, i]) => fits(s, i));
    byId("picker").replaceChildren(...found.slice(0, sequencesListed).map(([s, i]) => {
      const parts = [`${i}`, s.label, s.prediction === null ? null : `→ ${s.prediction}`, `${s.length} steps`, s.tokens ? s.tokens.slice(0, 6).join(" ") : null];
      return new Option(parts.filter((part) => part !== null).join(" · "), i, false, i === state.sequence);
    }));
    if (found.length > sequencesListed) {
      const more = new Option(`… and ${found.length - sequencesListed} more: search for one by its number`);
      more.disabled = true;
      byId("picker").append(more);
    }
    if (!found.length) { byId("sequence-note").textContent = "No sequence matches the search."; byId("text").replaceChildren(); return; }
    if (!found.some(([, i]) => i === state.sequence)) selectSequence(found[0][1]); else drawText();
  }

  // --- selecting, saving, and the controls of the page

  function selectMode(number) {
    state.mode = number;
    byId("chosen").textContent = `Mode ${number}: |λ| ${fourDecimals(mode().modulus)}`;
    drawTable(); drawPlane(); drawDecay(); drawText(); drawOverTime();
  }
  function selectSequence(sequence) {
    state.sequence = sequence;
    byId("from").value = 0;
    byId("picker").value = sequence;
    drawText(); drawOverTime(); drawEmbedding();
  }
  function drawAll() { drawErrors(); drawFits(); drawHorizons(); drawPseudospectrum(); selectMode(state.mode); selectSequence(state.sequence); }

  function save(name, rows) {
    const cell = (value) => {
      // A spreadsheet would take text that begins with one of these for a formula.
      const text = typeof value === "string" && /^[=+\-@]/.test(value) ? `'${value}` : String(value);
      return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    };
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([rows.map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n"], { type: "text/csv" }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  const orInfinite = (value) => Number.isFinite(value) ? value : "inf";
  const moveSelection = (by) => selectMode((state.mode + by + page.modes.length) % page.modes.length);
  byId("previous").onclick = () => moveSelection(-1);
  byId("next").onclick = () => moveSelection(1);
  byId("search").oninput = fillPicker;
  byId("from").onchange = drawText;
  byId("picker").onchange = (event) => selectSequence(Number(event.target.value));
  byId("modes-csv").onclick = () => save("kann-modes.csv", [["mode", "re", "im", "modulus", "period", "horizon", "residual", "importance",
    ...(page.trust ? ["trusted", "learned", "held_out_residual", "copying_residual", "shuffled_residual", "modulus_low", "modulus_high", "angle_low", "angle_high", "why"] : [])],
    ...page.modes.map((m) => [m.number, m.re, m.im, m.modulus, m.period ?? "inf", m.horizon ?? "inf", orInfinite(m.residual), m.importance,
      ...(page.trust ? [m.trusted, m.learned ?? "", orInfinite(m.held_out), orInfinite(m.copying), orInfinite(m.shuffled), ...m.interval, ...m.angle, m.why] : [])])]);
  byId("fits-csv").onclick = () => save("kann-operators.csv", fitRows());
  byId("sequence-csv").onclick = () => {
    const sequence = page.sequences[state.sequence], shown = values(sequence) ?? [];
    save(`kann-sequence-${state.sequence}.csv`, [["step", "token", `mode ${state.mode} ${state.view}`],
      ...Array.from({ length: sequence.length }, (_, i) => [i, sequence.tokens ? sequence.tokens[i] : "", shown[i] ?? ""])]);
  };
  byId("theme").onclick = () => {
    const dark = document.documentElement.dataset.theme !== "dark";
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    byId("theme").setAttribute("aria-pressed", dark);
    byId("theme").textContent = dark ? "Light" : "Dark";
    drawAll();
  };
  state.view = views.at(-1)[0];
  byId("views").hidden = Boolean(tables.decoded_modes);
  byId("views").append(...views.map(([key, name]) => {
    const label = document.createElement("label"), button = document.createElement("input");
    Object.assign(button, { type: "radio", name: "view", value: key, checked: key === state.view, onchange: () => { state.view = key; drawText(); drawOverTime(); } });
    label.append(button, ` ${name}`);
    return label;
  }));
  if (matchMedia("(prefers-color-scheme: dark)").matches) byId("theme").click(); else drawAll();
  fillPicker();
  await drawing;
  byId("plane").on("plotly_click", (event) => { const number = event.points[0].customdata; if (number !== undefined) selectMode(number); });
  document.documentElement.dataset.ready = "true";
})();
