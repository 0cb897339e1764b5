// Charts of tables: words in the plane of what they keep and add, and bars with intervals.
const drawTableChart = {
  /** Points with names; those named are the ones that `labels` lists. */
  plane: ({ x, y, size, names, labels, x_title, y_title }) => { const ends = [smallestOf(x, Infinity), largestOf(x, -Infinity)], room = 0.12 * (ends[1] - ends[0] || 1); return [[
    { x, y, mode: "markers+text", marker: { size, color: colours[0], opacity: 0.6 }, text: names.map((name, i) => labels.includes(i) ? escapeMarkup(name.length > 18 ? `${name.slice(0, 17)}…` : name) : ""),
      textposition: names.map((_, i) => y[i] >= 0 ? "top center" : "bottom center"), textfont: { size: 11, color: style("--ink") }, cliponaxis: false,
      customdata: names.map(escapeMarkup), hovertemplate: `%{customdata}<br>${x_title} %{x:.3f}<br>${y_title} %{y:+.3f}<extra></extra>` }],
    { xaxis: axis(x_title, { range: [ends[0] - room, ends[1] + room] }), yaxis: axis(y_title) }]; },
  bars: ({ names, series, y_title, levels }) => [series.map(({ name, values }, i) => ({
    type: "bar", name: escapeMarkup(name), x: names.map(escapeMarkup), y: values.map(([value]) => value), marker: { color: colours[i], opacity: 0.85 },
    error_y: { type: "data", symmetric: false, thickness: 1.2, width: 3, array: values.map(([value, , high]) => high === null ? 0 : high - value), arrayminus: values.map(([value, low]) => low === null ? 0 : value - low) },
    hovertemplate: `%{x}: %{y:.1%}<extra>${escapeMarkup(name)}</extra>` })),
    { barmode: "group", showlegend: true, legend: legendAbove, xaxis: axis("", { type: "category" }), yaxis: axis(y_title, { tickformat: ".0%", rangemode: "tozero" }),
      shapes: (levels ?? []).map(([value, title]) => level(value, title)) }],
};

sections.push({ draw: () => {
  for (const { id, chart } of page.tables) if (chart) drawSoon(`${id}-chart`, () => drawTableChart[chart.kind](chart));
} });
