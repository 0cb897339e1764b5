// States on two principal components, with the selected sequence and fixed points: stable, saddle, unstable or slow.
const pointKinds = {
  stable: { name: "stable points", symbol: "circle", color: "#009E73", size: 12 },
  saddle: { name: "saddles", symbol: "x", color: "#D55E00", size: 11 },
  unstable: { name: "unstable points", symbol: "triangle-up", color: "#882255", size: 12 },
  slow: { name: "slow points", symbol: "diamond-open", color: "#E69F00", size: 10 },
  fixed: { name: "fixed points", symbol: "star", color: "#E69F00", size: 11 },
};

function drawEmbedding() {
  const { at, sequence, step, points } = page.embedding;
  const kind = (i) => page.sequences[sequence[i]].label ?? page.sequences[sequence[i]].prediction ?? "states";
  const first = [...new Set(at.map((_, i) => kind(i)))].slice(0, 12);
  const group = (i) => first.includes(kind(i)) ? kind(i) : "others";
  const groups = page.outputs_kind === "values" ? ["states"] : [...new Set(at.map((_, i) => group(i)))].sort();
  const traces = groups.map((name, g) => {
    const own = at.map((_, i) => i).filter((i) => groups.length === 1 || group(i) === name);
    return { name: escapeMarkup(name), x: own.map((i) => at[i][0]), y: own.map((i) => at[i][1]), mode: "markers",
      text: own.map((i) => `sequence ${sequence[i]}, ${page.step} ${step[i]}`), hovertemplate: "%{text}<extra></extra>",
      marker: { size: 4, opacity: 0.55, color: colours[g % colours.length] } };
  });
  const here = at.map((_, i) => i).filter((i) => sequence[i] === state.sequence);
  traces.push({ name: "this sequence", x: here.map((i) => at[i][0]), y: here.map((i) => at[i][1]), mode: "lines+markers",
    text: here.map((i) => `${page.step} ${step[i]}`), hovertemplate: "%{text}<extra></extra>", line: { color: style("--ink"), width: 1 }, marker: { size: 5, color: style("--ink") } });
  drawSoon("embedding", () => [[...traces, ...pointTraces(points)], { showlegend: true, legend: { ...legendAbove, itemsizing: "constant" }, xaxis: axis("first component"), yaxis: axis("second component") }]);
}

function pointTraces(points) {
  return [...new Set(points?.kinds ?? [])].map((kind) => {
    const own = points.kinds.map((k, i) => k === kind ? i : -1).filter((i) => i >= 0);
    const look = Object.hasOwn(pointKinds, kind) ? pointKinds[kind] : { name: `${kind} points`, symbol: "diamond-open", color: "#E69F00", size: 10 };
    return { name: escapeMarkup(look.name), x: own.map((i) => points.at[i][0]), y: own.map((i) => points.at[i][1]), mode: "markers", hovertemplate: `${escapeMarkup(look.name)}<extra></extra>`,
      marker: { symbol: look.symbol, size: look.size, color: look.color, line: { width: 1, color: style("--paper") } } };
  });
}

sections.push({ onSequence: drawEmbedding });
