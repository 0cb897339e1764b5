// Eigenvalues in the plane with their intervals and the null's region, their decay, and the pseudospectrum.
const dotsOf = (modes) => modes.flatMap((m) => m.pair ? [[m, 1], [m, -1]] : [[m, 1]]);

function drawPlane() {
  const mostImportant = largestOf(page.modes.map((m) => m.importance), 1e-300);
  const dots = dotsOf(page.modes);
  const size = ([m]) => 7 + 17 * Math.sqrt(m.importance / mostImportant);
  const others = Object.entries(page.others).map(([name, fit], i) => ({ name: escapeMarkup(name), x: fit.eigenvalues.map((v) => v[0]),
    y: fit.eigenvalues.map((v) => v[1]), mode: "markers", marker: { symbol: "x", size: 6, color: colours[(i + 1) % colours.length] } }));
  drawSoon("plane", () => [[
    unitCircle(style("--soft"), 1), ...nullTraces(), ...intervalTraces(dots, size), ...others,
    { name: "eigenvalues", showlegend: false, x: dots.map(([m]) => m.re), y: dots.map(([m, side]) => side * m.im), mode: "markers",
      customdata: dots.map(([m]) => m.number), hovertemplate: "%{text}<extra></extra>", text: dots.map(dotText),
      marker: { size: dots.map(size), color: dots.map(([m]) => Math.log10(Math.min(1, Math.max(0.01, shownResidual(m))))), cmin: -2, cmax: 0,
        colorscale: "Viridis", showscale: true, opacity: 0.9,
        colorbar: { title: { text: page.trust ? "residual,<br>held out" : "residual,<br>fitted data" }, tickvals: [-2, -1, 0], ticktext: ["0.01", "0.1", "1"], thickness: 12 },
        line: { color: dots.map(([m]) => m.number === state.mode ? style("--ink") : style("--paper")),
          width: dots.map(([m]) => m.number === state.mode ? 3 : 0.5) } } },
  ], { xaxis: axis("Re λ"), yaxis: axis("Im λ", { scaleanchor: "x" }), margin: { l: 64, r: 0, t: 15, b: 48 },
    showlegend: Boolean(page.trust || others.length), legend: legendAbove }], (number) => { if (number !== undefined) selectMode(number); });
}

const dotText = ([m, side]) => [`mode ${m.number}`, `λ = ${fourDecimals(m.re)} ${m.pair ? `${side > 0 ? "+" : "−"} ${fourDecimals(m.im)}i` : ""}`,
  `|λ| ${fourDecimals(m.modulus)}${page.trust ? ` (${intervalText(m)})` : ""}`, `period ${significant(m.period, 3)} ${steps()}`, `a tenth is left after ${significant(m.horizon, 3)} ${steps()}`,
  `residual ${significant(shownResidual(m), 2)}${page.trust ? " held out" : " on the fitted data"}`, ...(page.trust ? [verdictText(m)] : [])].join("<br>");

/** The disc in which the eigenvalues of an operator lie that is fitted to states in shuffled order. */
function nullTraces() {
  if (!page.null_radius) return [];
  const circle = unitCircle(style("--soft"), 1);
  return [{ ...circle, x: circle.x.map((x) => x * page.null_radius), y: circle.y.map((y) => y * page.null_radius), name: "shuffled states",
    showlegend: true, fill: "toself", fillcolor: "rgba(128,128,128,0.15)", line: { color: style("--soft"), width: 1.5, dash: "dash" } }];
}

/** The interval of each eigenvalue, a piece of a ring, and rings around the dots of trusted modes. */
function intervalTraces(dots, size) {
  if (!page.trust) return [];
  const x = [], y = [];
  for (const [m, side] of dots.filter(([m]) => isJudged(m))) {
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

function drawPseudospectrum() {
  if (!page.plane) return;
  const { axis: places, log_residual: z } = page.plane, dots = dotsOf(page.modes), x = z.flatMap(() => places), y = z.flatMap((row, i) => row.map(() => places[i]));
  drawSoon("pseudospectrum", () => [[
    // Squares that touch: the bundle of plotly.js in this page has no heatmaps.
    { x, y, mode: "markers", marker: { symbol: "square", size: 2 + 340 / places.length, color: z.flat(), cmin: -2, cmax: 0, colorscale: "Viridis", showscale: true,
      colorbar: { title: { text: "smallest<br>residual" }, tickvals: [-2, -1, 0], ticktext: ["0.01", "0.1", "1"], thickness: 12 } },
      text: z.flat().map((value) => significant(10 ** value, 2)), hovertemplate: "ζ = %{x:.3f} + %{y:.3f}i<br>smallest residual %{text}<extra></extra>" },
    unitCircle("#ffffff", 1.5),
    { x: dots.map(([m]) => m.re), y: dots.map(([m, side]) => side * m.im), mode: "markers", hoverinfo: "skip", marker: { size: 6, color: "#ffffff", line: { color: "#000000", width: 1 } } },
  ], { xaxis: axis("Re ζ", { range: [places[0], places.at(-1)], constrain: "domain" }), yaxis: axis("Im ζ", { scaleanchor: "x", constrain: "domain" }), margin: { l: 64, r: 0, t: 15, b: 48 } }]);
}

function drawDecay() {
  const chosen = selectedModes().map((number) => page.modes[number]);
  const longest = largestOf(page.sequences.map((sequence) => sequence.length), 1);
  const wanted = largestOf(chosen.map((m) => Math.ceil(m.horizon === null ? longest : 1.3 * m.horizon)), 10);
  const last = page.step === "step" ? Math.min(500, wanted) : Math.max(1, longest - 1);  // a network has no more layers than it has
  const ends = chosen.map((m) => m.modulus ** last), title = "what is left, |λ|ⁿ";
  const places = Array.from({ length: 101 }, (_, i) => i * last / 100);
  drawSoon("decay", () => [chosen.map((m, i) => ({ name: `mode ${m.number}`, x: places, y: places.map((t) => m.modulus ** t), mode: "lines",
    hovertemplate: `%{y:.0%} is left after %{x:.0f} ${steps()}<extra>mode ${m.number}</extra>`, line: { color: colours[i % colours.length] } })),
    { showlegend: true, legend: legendAbove, xaxis: stepAxis(steps(), last),
      yaxis: largestOf(ends, 1) > 10 ? logAxis(title, [1, ...ends], { tickformat: ",.2~%" }) : axis(title, { rangemode: "tozero", tickformat: ".0%" }) }]);
}

sections.push({ draw: drawPseudospectrum, onMode: () => { drawPlane(); drawDecay(); } });
