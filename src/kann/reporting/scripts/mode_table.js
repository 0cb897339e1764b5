// The table of all modes: sorted by any column, selected by click or arrow keys; doubtful ones are grey.
const hints = { period: "Time until the mode has turned once", horizon: "Time until a tenth of the mode is left",
  residual: "|Y v − λ X v| / |X v| on the data that were fitted. It is small for noise too, if there are few data",
  interval: "Confidence interval of |λ|, from fits without some of the sequences", held_out: "The residual on sequences that were not fitted",
  copying: "The residual of copying the previous state", shuffled: "The residual that states in shuffled order reach", verdict: "Whether the mode can be read as the network's own dynamics; and learned, if the untrained network was compared",
  importance: "How strongly the mode is present in the states: its magnitude, summed over a sequence" };

const modeColumns = () => [
  ["kept", "Keep", null], ["number", "Mode", (m) => m.number], ["re", "λ", eigenvalueText],
  ...(page.trust ? [["verdict", "Trusted", (m) => m.verdict], ["why", "Why", (m) => m.why],
    ["interval", `${significant(100 * page.trust.level, 3)} % of |λ|`, intervalText],
    ["held_out", "Residual, held out", (m) => significant(m.held_out, 2)], ["copying", "Copying", (m) => significant(m.copying, 2)],
    ["shuffled", "Shuffled", (m) => significant(m.shuffled, 2)]] : []),
  ["modulus", "|λ|", (m) => fourDecimals(m.modulus)], ["period", `Period (${steps()})`, (m) => significant(m.period, 3)],
  ["horizon", `Horizon (${steps()})`, (m) => significant(m.horizon, 3)], ["importance", "Importance", (m) => significant(m.importance, 3)],
  ...(page.trust ? [] : [["residual", "Residual, fitted data", (m) => significant(m.residual, 2)]]),
];

function drawTable() {
  const columns = modeColumns(), body = byId("table").tBodies[0];
  byId("table").tHead.rows[0].replaceChildren(...columns.map(headCell));
  const value = (m) => state.sort === "interval" ? (isJudged(m) ? m.interval[1] - m.interval[0] : Infinity) : m[state.sort] ?? Infinity;
  const compare = (a, b) => typeof a === "string" ? a.localeCompare(b) : a - b;
  const sorted = [...page.modes].sort((a, b) => (compare(value(a), value(b)) || a.number - b.number) * (state.descending ? -1 : 1));
  body.replaceChildren(...sorted.map((m) => modeRow(m, columns)));
}

function headCell([key, title, text]) {
  const cell = document.createElement("th");
  cell.scope = "col";
  if (key === "why") cell.className = key;
  if (!text) { cell.textContent = title; return cell; }
  const button = document.createElement("button");
  button.type = "button";
  button.title = hints[key] ?? "";
  button.textContent = title + (state.sort === key ? (state.descending ? " ↓" : " ↑") : "");
  cell.setAttribute("aria-sort", state.sort === key ? (state.descending ? "descending" : "ascending") : "none");
  button.onclick = () => { state.descending = state.sort === key ? !state.descending : key === "importance"; state.sort = key; drawTable(); };
  cell.append(button);
  return cell;
}

function modeRow(m, columns) {
  const row = document.createElement("tr");
  row.dataset.mode = m.number;
  row.tabIndex = m.number === state.mode ? 0 : -1;
  row.setAttribute("aria-selected", m.number === state.mode);
  row.classList.toggle("doubtful", page.trust ? !m.trusted : !Number.isFinite(m.residual));
  row.append(...columns.map(([key, , text]) => {
    const cell = document.createElement("td");
    if (key === "why") cell.className = key;
    if (text) cell.textContent = text(m); else cell.append(keepBox(m));
    return cell;
  }));
  row.onclick = () => selectMode(m.number);
  row.onkeydown = (event) => {
    const next = { ArrowDown: row.nextElementSibling, ArrowUp: row.previousElementSibling }[event.key];
    if (event.key === "Enter") selectMode(m.number);
    if (next) { event.preventDefault(); selectMode(Number(next.dataset.mode)); document.querySelector("tr[aria-selected=true]").focus(); }
  };
  return row;
}

function keepBox(m) {
  const box = document.createElement("input");
  box.type = "checkbox";
  box.checked = state.kept.has(m.number);
  box.setAttribute("aria-label", `Keep mode ${m.number} in the charts`);
  box.onclick = (event) => { event.stopPropagation(); box.checked ? state.kept.add(m.number) : state.kept.delete(m.number); drawDecay(); drawOverTime(); };
  return box;
}

sections.push({ onMode: drawTable });
