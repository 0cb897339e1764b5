// What all charts have in common: layout, axes, buttons, and drawing one after the other.
const chartLayout = (extra) => ({
  paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: style("--ink"), size: 13, family: "system-ui, sans-serif" },
  margin: { l: 64, r: 15, t: 15, b: 48 }, showlegend: false, hovermode: "closest",
  modebar: { bgcolor: "rgba(0,0,0,0)", color: style("--soft"), activecolor: style("--ink") },
  hoverlabel: { bgcolor: style("--panel"), bordercolor: style("--line"), font: { color: style("--ink") } }, ...extra,
});
const axis = (title, extra) => ({ title: { text: title, standoff: 10 }, gridcolor: style("--line"), zerolinecolor: style("--line"),
  linecolor: style("--line"), automargin: true, ...extra });
const legendAbove = { orientation: "h", yref: "container", yanchor: "top", x: 0 };  // the chart makes room for it
const toolbarHeight = 30;  // pixels at the top of a chart, which no legend may use
/** An axis of steps or layers, which are counted: no tick lies between two of them. */
const stepAxis = (title, last, extra) => axis(title, { tickformat: ",d", ...(last <= 20 ? { dtick: 1 } : {}), ...extra });
const unitCircle = (color, width) => {
  const angles = Array.from({ length: 181 }, (_, i) => i * Math.PI / 90);
  return { x: angles.map(Math.cos), y: angles.map(Math.sin), mode: "lines", hoverinfo: "skip", showlegend: false, line: { color, width } };
};

/** A logarithmic axis with few enough ticks to be read. */
function logAxis(title, values, extra) {
  const sizes = values.filter((value) => value > 0), decades = Math.log10(largestOf(sizes, 0) / smallestOf(sizes, Infinity));
  if (decades < 1) return axis(title, { rangemode: "tozero", ...extra });  // a logarithmic axis would have a tick or two
  return axis(title, { type: "log", tickformat: ".2~r", dtick: decades > 3 ? Math.ceil(decades / 6) : "D2", ...extra });
}
const saveButton = (id, format) => ({ name: `Save as ${format.toUpperCase()}`, icon: Plotly.Icons.camera,
  click: (chart) => Plotly.downloadImage(chart, { format, filename: `kann-${id}`, width: 900, height: 600, scale: format === "png" ? 2 : 1 }) });

const waiting = new Map();
let drawing = null, firstIsDrawn = null;
const firstChart = new Promise((resolve) => { firstIsDrawn = resolve; });
/** Draw soon, each chart once and one after the other: two drawings of the same chart at a time can block each other. */
function drawSoon(id, traces, layout) {
  const legend = { ...layout.legend, y: 1 - toolbarHeight / byId(id).clientHeight };
  waiting.set(id, [traces, { ...layout, legend }]);
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
    firstIsDrawn();
    await new Promise((resume) => setTimeout(resume));  // so that the reader can scroll in between
  }
}
