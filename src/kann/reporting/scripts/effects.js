// The live test: what is left of the network's answers, by the number of coordinates kept or removed.
const methodStyles = {
  balanced: { color: "#0072B2", width: 4, dash: "solid" }, directions: { color: "#0072B2", width: 4, dash: "solid" },
  modes: { color: "#56B4E9", width: 3, dash: "solid" }, readout: { color: "#D55E00", width: 2, dash: "dash" },
  pca: { color: "#009E73", width: 2, dash: "dot" }, random: { color: "#888888", width: 2, dash: "dashdot" },
  learned: { color: "#CC79A7", width: 2, dash: "solid" }, // of explanations that release 0.2 saved
};

function drawEffects() {
  if (!page.effects) return;
  const { counts, methods, percent, full, none, score } = page.effects;
  const drawn = methods.filter(({ name }) => methodStyles[name]);
  const values = [full, none, ...drawn.flatMap((method) => method[state.effect].flat())].filter((value) => value !== null);
  // Some directions may do much worse than nothing at all: the axis does not follow them, and their marks lie at the frame.
  const reach = 1.2 * Math.abs(full - none) || 1, within = values.filter((value) => Math.abs(value - none) <= reach || Math.abs(value - full) <= reach);
  const low = smallestOf(within, Infinity), high = largestOf(within, -Infinity), room = 0.08 * (high - low || 1);
  const isInFrame = (value) => value === null || (value >= low - room && value <= high + room);
  const inFrame = (value) => isInFrame(value) ? value : value < low ? low - room / 2 : high + room / 2;
  const traces = drawn.map(({ name, label, [state.effect]: rows }, i) => ({
    name: escapeMarkup(label), mode: "lines+markers", line: methodStyles[name],
    marker: { size: rows.map(([mean]) => methodStyles[name].width > 2 || !isInFrame(mean) ? 9 : 6), symbol: rows.map(([mean]) => isInFrame(mean) ? "circle" : mean < none ? "triangle-down" : "triangle-up") },
    // Each a little to the right of the one before, so that intervals do not cover each other.
    x: counts.map((count) => count * 1.035 ** (i - (drawn.length - 1) / 2)), y: rows.map(([mean]) => inFrame(mean)),
    error_y: { type: "data", symmetric: false, thickness: 1.2, width: 3, array: rows.map(([mean, , high]) => high === null || !isInFrame(mean) ? 0 : high - mean),
      arrayminus: rows.map(([mean, low]) => low === null || !isInFrame(mean) ? 0 : mean - low) },
    customdata: rows.map(([mean, low, high], place) => mean === null ? "" : `${counts[place]} ${counts[place] === 1 ? "coordinate" : "coordinates"} ${state.effect}: ${scoreText(mean)} (${scoreText(low)} to ${scoreText(high)})`),
    hovertemplate: "%{customdata}<extra>%{fullData.name}</extra>",
  }));
  const level = (value, title, position) => ({ type: "line", xref: "paper", x0: 0, x1: 1, y0: value, y1: value, line: { color: style("--soft"), width: 1, dash: "dot" },
    label: { text: title, textposition: "start", yanchor: position, font: { color: style("--soft"), size: 12 } } });
  const levels = full === none ? [level(full, "the untouched network, and nothing kept", "bottom")] : [level(full, "the untouched network", "bottom"), level(none, "nothing kept", "bottom")];
  const isOutside = drawn.some((method) => method[state.effect].some(([mean]) => !isInFrame(mean)));
  const outside = isOutside ? " (triangles at the edge lie outside the chart; the table has them)" : "";
  byId("curve-caption").textContent = `${score[0].toUpperCase()}${score.slice(1)}, with only so many coordinates ${state.effect}${outside}`;
  drawSoon("curve", traces, { showlegend: true, legend: legendAbove, shapes: levels,
    xaxis: axis(`coordinates ${state.effect} (of ${page.units})`, { type: "log", tickvals: counts, ticktext: counts.map(String) }),
    yaxis: axis(score, { tickformat: percent ? ".0%" : undefined, range: [low - room, high + room] }) });
}
const scoreText = (value) => page.effects.percent ? percentText(value) : significant(value, 3);

function startEffects() {
  if (!page.effects) return;
  for (const button of document.querySelectorAll("[name=kept-or-removed]"))
    button.onchange = () => { state.effect = button.value; drawEffects(); };
  byId("effects-csv").onclick = () => save("kann-effects.csv", [["coordinates", "method", "count", "mean", "low", "high"],
    ...["kept", "removed"].flatMap((what) => page.effects.methods.flatMap((method) =>
      method[what].map((row, i) => [what, method.label, page.effects.counts[i], ...row.map((value) => value ?? "")])))]);
}

sections.push({ start: startEffects, draw: drawEffects });
