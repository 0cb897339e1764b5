// How well operators predict: over horizons on held-out sequences, over time on those shown, and side by side in a table.
function drawErrors() {
  const traces = [["this operator", page.fit], ["copying the previous state", page.copying], ...Object.entries(page.others)]
    .map(([name, fit], i) => ({ name: escapeMarkup(name), x: fit.times.step, y: fit.times.error, mode: "lines",
      hovertemplate: `%{y:.2%} at ${page.step} %{x}<extra>${escapeMarkup(name)}</extra>`, line: { color: colours[i % colours.length], dash: ["solid", "dash", "dot", "dashdot"][i % 4] } }));
  drawSoon("errors", () => [traces, { showlegend: true, legend: legendAbove, xaxis: stepAxis(page.step, largestOf(page.fit.times.step, 1)),
    yaxis: logAxis("fraction of the variance", traces.flatMap((trace) => trace.y), { tickformat: ".2~%" }) }]);
}

function drawHorizons() {
  if (!page.trust) return;
  const { horizons, error, copying } = page.trust;
  const curves = [["this operator", error, "solid"], ["copying the state", copying, "dash"], ["predicting the mean", horizons.map(() => 1), "dot"]];
  drawSoon("horizons", () => [curves.map(([name, y, dash], i) => ({ name, x: horizons, y: y.map((value) => value > 0 ? value : null), mode: i < 2 ? "lines+markers" : "lines",
    hovertemplate: `%{y:.2%}, %{x} ${steps()} ahead<extra>${name}</extra>`, line: { color: colours[i], dash } })),
    { showlegend: true, legend: legendAbove, xaxis: axis(`${steps()} ahead`, { type: "log", tickvals: horizons, ticktext: horizons.map(String) }),
      yaxis: logAxis("fraction of the variance", [...error, ...copying, 1], { tickformat: ".2~%" }) }]);
}

function fitRows() {
  const fits = [["this operator", page.fit], ...Object.entries(page.others)];
  const isValue = page.outputs_kind === "values", kept = (fit) => isValue ? (fit.agreement === null ? "–" : significant(fit.agreement, 3)) : percentText(fit.agreement);
  return [["", "Rank", `Error of one ${page.step} (of the variance)`, isValue ? "R² of the outputs" : "Decisions kept", `|λ| > ${page.limits.slow}`, "Trusted"], ...fits.map(([name, fit]) => [name, fit.rank,
    percentText(fit.error), kept(fit), fit.slow, fit.trusted === null ? "not tested" : `${fit.trusted} of ${fit.modes}`]),
    ["copying the previous state", "–", percentText(page.copying.error), kept(page.copying), "–", "–"]];
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

sections.push({ draw: () => { drawErrors(); drawFits(); drawHorizons(); } });
