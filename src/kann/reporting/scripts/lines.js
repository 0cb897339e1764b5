// A sequence over time: every channel of the signal, the selected modes and the network's outputs, each with its own axis.
const panelHeights = { channel: 70, modes: 120, outputs: 110 };

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
const curveOf = (values, group, extra) => {
  const places = drawnSteps(values);
  return { name: escapeMarkup(group), legendgroup: group, x: places, y: places.map((i) => values[i]), mode: "lines",
    hovertemplate: `${page.step} %{x}: %{y:.4~g}<extra>${escapeMarkup(group)}</extra>`, ...extra };
};

/** One panel for each channel of the signal. */
function channelPanels() {
  if (!tables.signal) return [];
  const { start, length } = page.sequences[state.sequence], channels = tables.signal.width;
  return Array.from({ length: channels }, (_, c) => {
    const traces = [curveOf(tables.signal.column(c, start, length), "signal", { line: { color: style("--soft") } })];
    return { title: escapeMarkup(page.channel_names[c]), height: channels === 1 ? 120 : panelHeights.channel, traces };
  });
}

function modePanel() {
  const traces = [];
  selectedModes().forEach((number, i) => {
    const own = modeValues(number, state.sequence, state.view);
    if (own) traces.push(curveOf(own, `mode ${number}`, { line: { color: colours[i % colours.length] } }));
  });
  return { title: { magnitude: "magnitude", contribution: "contribution", change: "change" }[state.view], height: panelHeights.modes, traces };
}

/** What the network gives out after every step, and the true labels where they are known at every step. */
function outputPanels() {
  if (!tables.output) return [];
  const sequence = page.sequences[state.sequence], { start, length } = sequence;
  const traces = page.output_names.map((name, i) => curveOf(tables.output.column(i, start, length), name === "output" ? "the network's output" : `output: ${name}`,
    { line: { color: colours[(i + 2) % colours.length], dash: "dash" } }));
  const panels = [{ title: "output", height: panelHeights.outputs, traces }];
  if (!sequence.at_steps) return panels;
  if (page.outputs_kind === "values") { traces.push(curveOf(sequence.at_steps, "true value", { line: { color: style("--ink"), dash: "dot" } })); return panels; }
  const said = sequence.at_steps.map((_, i) => decidedAt(start + i));
  const line = (values, name, extra) => curveOf(values, name, { line: { shape: "hv", ...extra } });
  const names = page.classes ?? [];
  return [...panels, { title: "class", height: Math.max(panelHeights.outputs, 17 * Math.min(names.length, 12)), ticks: names.length && names.length <= 12 ? names : null,
    traces: [line(sequence.at_steps, "true class", { color: style("--soft"), width: 5 }), line(said, "class decided for", { color: style("--ink"), width: 1.5 })] }];
}

/** The class that wins at a row of the table of outputs. */
function decidedAt(row) {
  const values = page.output_names.map((_, i) => tables.output.column(i, row, 1)[0]);
  return values.length === 1 ? Number(values[0] > page.threshold) : values.indexOf(largestOf(values, -Infinity));
}

function drawOverTime() {
  const panels = [...channelPanels(), modePanel(), ...outputPanels()];
  const gap = 22, total = panels.reduce((sum, panel) => sum + panel.height + gap, 0), seen = new Set(), layout = {};
  let top = 1;
  const traces = panels.flatMap((panel, row) => {
    const id = row ? row + 1 : "";
    const bottom = top - panel.height / total;
    layout[`yaxis${id}`] = axis(panel.title, { domain: [Math.max(0, bottom), top], anchor: "x", automargin: true, nticks: panel.height < 100 ? 3 : 5,
      ...(panel.ticks ? { tickvals: panel.ticks.map((_, i) => i), ticktext: panel.ticks.map(escapeMarkup), title: { text: "" } } : {}) });
    top = bottom - gap / total;
    return panel.traces.map((trace) => {
      const first = !seen.has(trace.legendgroup);
      seen.add(trace.legendgroup);
      return { ...trace, yaxis: `y${id}`, showlegend: first };
    });
  });
  byId("over-time").style.height = `${total + 100}px`;
  byId("over-time-caption").textContent = overTimeCaption();
  drawSoon("over-time", () => [traces, { ...layout, height: total + 100, showlegend: true, legend: legendAbove, hovermode: "closest",
    xaxis: stepAxis(page.step, page.sequences[state.sequence].length - 1, { anchor: panels.length > 1 ? `y${panels.length}` : "y" }) }]);
}

function overTimeCaption() {
  const parts = [];
  if (tables.signal) parts.push("the signal");
  const to = outputText();
  parts.push(`the ${viewText()} of the selected modes${to ? ` to ${to}` : ""}`);
  if (tables.output) parts.push(page.readout_is_all ? "what the network gives out" : `what its readout makes of the state at each ${page.step} alone, which is not all that the network reads`);
  const more = page.channels > (tables.signal?.width ?? 0) && tables.signal ? ` The first ${tables.signal.width} of ${page.channels} inputs are drawn.` : "";
  const text = parts.length > 1 ? `${parts.slice(0, -1).join(", ")}, and ${parts.at(-1)}` : parts[0];
  return `${text[0].toUpperCase()}${text.slice(1)}, over the ${steps()} of the sequence.${more}`;
}

sections.push({ onMode: drawOverTime, onSequence: drawOverTime });
