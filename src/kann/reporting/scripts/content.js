"use strict";
// The content of the page: one object of numbers, and tables with a row for each state. Nothing comes from elsewhere.
const byId = (id) => document.getElementById(id);
let page = null;
const tables = {};
/** The sections of the page. Each has what it needs of: start() once, draw() for each theme, onMode() and onSequence() for each selection. */
const sections = [];
/** What the reader selected: one mode, modes kept in the charts, one sequence, one view, one output. */
const state = { mode: 0, kept: new Set(), sequence: 0, view: "magnitude", output: -1, sort: "number", descending: false };
const mode = () => page.modes[state.mode];
const selectedModes = () => [...new Set([state.mode, ...state.kept])];

/** The unpacked content of an element of the page, as a response to read. */
function unpackElement(id) {
  const text = byId(id).textContent;
  // fromBase64 is fast, but older browsers do not have it.
  const bytes = Uint8Array.fromBase64 ? Uint8Array.fromBase64(text) : Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip")));
}

/** Reads one packed table: column after column, whole numbers that the column's scale turns into values. */
async function unpackTable(name) {
  const { scale, bits } = page.packed[name];
  const buffer = await unpackElement(`table-${name}`).arrayBuffer();
  const numbers = bits === 8 ? new Int8Array(buffer) : new Int16Array(buffer);
  const length = numbers.length / scale.length;
  return { width: scale.length, column: (place, start, count) =>
    Array.from(numbers.subarray(place * length + start, place * length + start + count), (n) => n * scale[place]) };
}

async function loadContent() {
  const [content, plotlyScript] = await Promise.all([unpackElement("content").json(), unpackElement("plotly").text()]);
  page = content;
  // The page's security policy names the checksum of this script; no other script would run.
  document.head.append(Object.assign(document.createElement("script"), { textContent: plotlyScript }));
  await Promise.all(Object.keys(page.packed).map(async (name) => { tables[name] = await unpackTable(name); }));
  // JSON has no infinity. A mode with an infinite residual is as doubtful as a mode can be.
  for (const m of page.modes) {
    m.residual ??= Infinity;
    if (page.trust) { m.held_out ??= Infinity; m.copying ??= Infinity; m.shuffled ??= Infinity; }
  }
  state.mode = page.opens_on;
}

/** The output whose contributions are shown for a sequence: the chosen one, or the one that it was decided for. */
const outputOf = (sequence) => state.output >= 0 ? state.output : page.outputs.decided?.[sequence] ?? 0;

/** What is known of a mode at each step of a sequence in some view; null if the page does not have it. */
function modeValues(number, sequenceNumber, view) {
  const place = page.shown.indexOf(number), { start, length } = page.sequences[sequenceNumber];
  if (place < 0) return null;
  const re = tables.coordinate.column(place, start, length), im = tables.coordinate.column(page.shown.length + place, start, length);
  if (view === "magnitude") return re.map((x, i) => Math.hypot(x, im[i]));
  const [a, b] = page.outputs.gains[place][outputOf(sequenceNumber)];
  const level = re.map((x, i) => a * x + b * im[i]);
  return view === "change" ? level.map((v, i) => i ? v - level[i - 1] : 0) : level;
}
