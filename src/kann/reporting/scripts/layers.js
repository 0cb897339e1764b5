// Which layers are linear: the error of each layer by copying, by the one operator, and by a map of its own.
const layerGuesses = [["identity", "copying the state", "dash", "square"], ["one", "one operator for all", "dot", "diamond"], ["each", "a map of its own", "solid", "circle"]];
const layerTitle = (layer) => `${page.step} ${layer.number}${layer.name ? ` (${escapeMarkup(layer.name)})` : ""}`;

function drawLayers() {
  if (!page.layers) return;
  const { layers } = page.layers;
  const traces = layerGuesses.map(([key, name, dash, symbol], i) => ({
    name, mode: "lines+markers", line: { color: colours[(i + 1) % 3], width: key === "each" ? 4 : 2, dash }, marker: { symbol, size: key === "each" ? 9 : 7 },
    // Each a little to the right of the one before, so that intervals do not cover each other.
    x: layers.map((layer) => layer.number + 0.04 * (i - 1)), y: layers.map((layer) => layer[key][0]),
    error_y: { type: "data", symmetric: false, thickness: 1.2, width: 3, array: layers.map((layer) => layer[key][2] - layer[key][0]),
      arrayminus: layers.map((layer) => layer[key][0] - layer[key][1]) },
    customdata: layers.map((layer) => `${layerTitle(layer)}: ${layer[key].map((value) => percentText(value)).join(", ").replace(", ", " (").replace(", ", " to ")})`),
    hovertemplate: "%{customdata}<extra>%{fullData.name}</extra>",
  }));
  const shown = traces.flatMap((trace) => trace.y).filter((value) => value !== null);
  drawSoon("layer-errors", () => [traces, { showlegend: true, legend: legendAbove, xaxis: stepAxis(page.step, layers.length),
    yaxis: logAxis("fraction of the variance", shown, { tickformat: ".2~%" }) }]);
}

function startLayers() {
  if (!page.layers) return;
  byId("layers-csv").onclick = () => save("kann-layers.csv", [[page.step, "name", ...layerGuesses.flatMap(([key]) => [key, `${key}_low`, `${key}_high`]), "better_than_copying", "linear_part"],
    ...page.layers.layers.map((layer) => [layer.number, layer.name ?? "", ...layerGuesses.flatMap(([key]) => layer[key].map((value) => value ?? "")), layer.better, layer.linear_part ?? ""])]);
}

sections.push({ start: startLayers, draw: drawLayers });
