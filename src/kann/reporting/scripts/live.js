// The live test: what is left of the network's answers, by the number of coordinates kept. And what is left of one input.
const methodStyles = {
  balanced: { color: "#0072B2", width: 4, dash: "solid" }, directions: { color: "#0072B2", width: 4, dash: "solid" },
  modes: { color: "#56B4E9", width: 3, dash: "solid" }, readout: { color: "#D55E00", width: 2, dash: "dash" },
  pca: { color: "#009E73", width: 2, dash: "dot" }, random: { color: "#888888", width: 2, dash: "dashdot" },
  learned: { color: "#CC79A7", width: 2, dash: "solid" }, // of explanations that release 0.2 saved
};
const methodNames = { balanced: "balanced", modes: "modes", readout: "readout", pca: "components", random: "random", directions: "directions" };
const level = (value, title) => ({ type: "line", xref: "paper", x0: 0, x1: 1, y0: value, y1: value, line: { color: style("--soft"), width: 1, dash: "dot" },
  label: { text: title, textposition: "start", yanchor: "bottom", font: { color: style("--soft"), size: 12 } } });
const scoreText = (value) => page.effects.percent ? percentText(value) : significant(value, 3);

/** The range of scores that the chart shows. Some directions may do much worse than nothing at all: they are marked at the edge. */
function scoreRange(values, full, none) {
  const reach = 1.2 * Math.abs(full - none) || 1;
  const within = values.filter((value) => Math.abs(value - none) <= reach || Math.abs(value - full) <= reach);
  const low = smallestOf(within, Infinity), high = largestOf(within, -Infinity), room = 0.13 * (high - low || 1);
  return [low - room, high + room];
}

function drawEffects() {
  const { counts, methods, percent, full, none, score } = page.effects;
  const drawn = methods.filter(({ name }) => methodStyles[name]);
  const [low, high] = scoreRange([full, none, ...drawn.flatMap((method) => method.kept.flat())].filter((value) => value !== null), full, none);
  const isInFrame = (value) => value === null || (value >= low && value <= high), edge = (high - low) / 30;
  const traces = drawn.map(({ name, label, kept }, i) => ({
    name: methodNames[name] ?? escapeMarkup(label), mode: "lines+markers", line: methodStyles[name],
    marker: { size: kept.map(([mean]) => methodStyles[name].width > 2 || !isInFrame(mean) ? 9 : 6), symbol: kept.map(([mean]) => isInFrame(mean) ? "circle" : mean < none ? "triangle-down" : "triangle-up") },
    // Each a little to the right of the one before, so that intervals do not cover each other.
    x: counts.map((count) => count * 1.035 ** (i - (drawn.length - 1) / 2)), y: kept.map(([mean]) => isInFrame(mean) ? mean : mean < low ? low + edge : high - edge),
    error_y: { type: "data", symmetric: false, thickness: 1.2, width: 3, array: kept.map(([mean, , top]) => top === null || !isInFrame(mean) ? 0 : top - mean),
      arrayminus: kept.map(([mean, bottom]) => bottom === null || !isInFrame(mean) ? 0 : mean - bottom) },
    customdata: kept.map(([mean, bottom, top], place) => mean === null ? "" : `${counts[place]} ${counts[place] === 1 ? "coordinate" : "coordinates"} kept: ${scoreText(mean)} (${scoreText(bottom)} to ${scoreText(top)})`),
    hovertemplate: `%{customdata}<extra>${escapeMarkup(label)}</extra>`,
  }));
  const isOutside = drawn.some((method) => method.kept.some(([mean]) => !isInFrame(mean)));
  byId("outside").textContent = isOutside ? " Triangles at the edge lie outside the chart; the table under Details has them." : "";
  drawSoon("curve", () => [traces, { showlegend: true, legend: legendAbove,
    shapes: full === none ? [level(full, "the untouched network, and nothing kept")] : [level(full, "the untouched network"), level(none, "nothing kept")],
    xaxis: axis(`coordinates kept (of ${page.units})`, { type: "log", tickvals: counts, ticktext: counts.map(String) }),
    yaxis: axis(percent ? "" : score.startsWith("R²") ? "R²" : score, { tickformat: percent ? ".0%" : undefined, range: [low, high] }) }]);
}

function startEffects() {
  if (!page.effects) return;
  byId("effects-csv").onclick = () => save("kann-effects.csv", [["coordinates", "method", "count", "mean", "low", "high"],
    ...["kept", "removed"].flatMap((what) => page.effects.methods.flatMap((method) =>
      method[what].map((row, i) => [what, method.label, page.effects.counts[i], ...row.map((value) => value ?? "")])))]);
}

const mostCurves = 8;  // with states, outputs and those of an untrained copy; the table under Details has all
function drawMemory() {
  const { lags, curves } = page.memory, at = (lag) => lag || 0.5;  // 0 has no place on a logarithmic axis
  const looks = { outputs: { color: "#0072B2", width: 3 }, states: { color: "#D55E00", width: 2 } };
  const traces = curves.filter(({ is_channel }) => !is_channel || curves.length <= mostCurves).map(({ name, of, left, low, high, is_untrained, is_channel }, i) => ({
    name: escapeMarkup(name), mode: "lines+markers", x: lags.map(at), y: left, visible: is_channel ? "legendonly" : true,
    line: is_channel ? { width: 1.5, color: colours[(i + 2) % colours.length] } : { ...looks[of], ...(is_untrained ? { width: 1.5, dash: "dot" } : {}) }, marker: { size: is_untrained ? 4 : 6 },
    error_y: { type: "data", symmetric: false, thickness: 1.2, width: 3, visible: !is_untrained, array: left.map((value, k) => high[k] - value), arrayminus: left.map((value, k) => value - low[k]) },
    customdata: lags.map((lag) => page.step_seconds ? ` = ${significant(lag * page.step_seconds, 3)} s` : ""),
    hovertemplate: lags.map((lag) => `%{y:.1%} left after ${lag} ${lag === 1 ? "step" : "steps"}%{customdata}<extra>${escapeMarkup(name)}</extra>`),
  }));
  const apart = Math.ceil(lags.length / 8), ticks = lags.filter((_, i) => (lags.length - 1 - i) % apart === 0);  // so that none cover each other
  drawSoon("memory-curve", () => [traces, { showlegend: true, legend: legendAbove,
    xaxis: axis("steps after the change", { type: "log", tickangle: 0, tickvals: ticks.map(at), ticktext: ticks.map(String) }), yaxis: axis("", { tickformat: ".0%", rangemode: "tozero" }) }]);
}

sections.push({ start: startEffects, draw: () => { if (page.effects) drawEffects(); if (page.memory) drawMemory(); } });
