// What all charts have in common: layout, axes, buttons, and drawing one after the other.
const chartLayout = (extra) => ({
  paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: style("--ink"), size: 13, family: "system-ui, sans-serif" },
  margin: { l: 64, r: 15, t: 15, b: 48 }, showlegend: false, hovermode: "closest",
  modebar: { bgcolor: "rgba(0,0,0,0)", color: style("--soft"), activecolor: style("--ink") },
  hoverlabel: { bgcolor: style("--panel"), bordercolor: style("--line"), font: { color: style("--ink") } }, ...extra,
});
const axis = (title, extra) => ({ title: { text: title, standoff: 10 }, gridcolor: style("--line"), zerolinecolor: style("--line"),
  linecolor: style("--line"), automargin: true, ...extra });
const legendAbove = { orientation: "h", yref: "container", yanchor: "top", x: 0, font: { size: 12 } };  // the chart makes room for it
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
const isFolded = (id) => byId(id).closest("details:not([open])") !== null;
/** Draw soon what `make` returns, traces and layout; a chart inside folded details when they are opened. */
function drawSoon(id, make, onClick) {
  waiting.set(id, [make, onClick]);
  drawing ??= drawWaiting().finally(() => { drawing = null; });
}
/** Draw each chart once and one after the other: two drawings of the same chart at a time can block each other. */
async function drawWaiting() {
  for (;;) {
    await new Promise((resume) => setTimeout(resume));  // so that the reader can scroll in between
    const id = [...waiting.keys()].find((each) => !isFolded(each));
    if (id === undefined) return;
    const [make, onClick] = waiting.get(id), chart = byId(id);
    waiting.delete(id);
    const [traces, layout] = make(), legend = { ...layout.legend, y: 1 - toolbarHeight / chart.clientHeight };
    // The buttons are listed one by one: Plotly's own list has one that would upload the chart.
    const buttons = [["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"], [saveButton(id, "svg"), saveButton(id, "png")]];
    await Plotly.react(chart, traces, chartLayout({ ...layout, legend }), { responsive: true, displaylogo: false, modeBarButtons: buttons });
    chart.removeAllListeners("plotly_click");
    if (onClick) chart.on("plotly_click", (event) => onClick(event.points[0].customdata));
    firstIsDrawn();
  }
}
addEventListener("toggle", () => { drawing ??= drawWaiting().finally(() => { drawing = null; }); }, true);
