// Tables as CSV files.
function save(name, rows) {
  const cell = (value) => {
    // A spreadsheet would take text that begins with one of these for a formula.
    const text = typeof value === "string" && /^[=+\-@]/.test(value) ? `'${value}` : String(value);
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([rows.map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n"], { type: "text/csv" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
const orInfinite = (value) => Number.isFinite(value) ? value : "inf";

function saveModes() {
  save("kann-modes.csv", [["mode", "re", "im", "modulus", "period", "horizon", "residual", "importance",
    ...(page.trust ? ["trusted", "learned", "held_out_residual", "copying_residual", "shuffled_residual", "modulus_low", "modulus_high", "angle_low", "angle_high", "why"] : [])],
    ...page.modes.map((m) => [m.number, m.re, m.im, m.modulus, m.period ?? "inf", m.horizon ?? "inf", orInfinite(m.residual), m.importance,
      ...(page.trust ? [m.trusted, m.learned ?? "", orInfinite(m.held_out), orInfinite(m.copying), orInfinite(m.shuffled), ...m.interval, ...m.angle, m.why] : [])])]);
}

/** The selected sequence: its words, the selected mode, every channel of the signal, and the outputs. */
function saveSequence() {
  const sequence = page.sequences[state.sequence], { start, length } = sequence, shown = modeValues(state.mode, state.sequence, state.view) ?? [];
  const columns = (table, title) => table ? Array.from({ length: table.width }, (_, i) => [title(i), table.column(i, start, length)]) : [];
  const more = [...columns(tables.signal, (i) => page.channel_names[i]), ...columns(tables.output, (i) => `output ${page.output_names[i]}`)];
  save(`kann-sequence-${state.sequence}.csv`, [[page.step, "token", `mode ${state.mode} ${state.view}`, ...more.map(([title]) => title)],
    ...Array.from({ length }, (_, i) => [i, sequence.tokens ? sequence.tokens[i] : "", shown[i] ?? "", ...more.map(([, values]) => values[i])])]);
}

function startSaving() {
  byId("modes-csv").onclick = saveModes;
  byId("fits-csv").onclick = () => save("kann-operators.csv", fitRows());
  byId("sequence-csv").onclick = saveSequence;
}

sections.push({ start: startSaving });
