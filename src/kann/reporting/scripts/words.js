// Which sequence is looked at, and its words, shaded by the selected mode.
const views = () => [["magnitude", "magnitude"],
  ...(page.outputs ? [["contribution", "contribution to the output"], ["change", `change by this ${page.step}`]] : [])];
const viewText = () => ({ magnitude: "magnitude", contribution: "contribution", change: "change of the contribution" })[state.view];

function shade(value, largest) {
  const strength = Math.round(100 * Math.min(1, Math.abs(value) / (largest || 1)) ** 0.7);
  const colour = state.view === "magnitude" ? "#009E73" : value >= 0 ? "#E69F00" : "#0072B2";
  return `color-mix(in srgb, ${colour} ${Math.round(strength * 0.75)}%, transparent)`;
}

/** Which output the shown contributions are to, in words. */
function outputText() {
  if (!page.outputs || state.view === "magnitude") return "";
  const name = page.outputs.names[outputOf(state.sequence)], own = name === "output" ? "the output" : `“${name}”`;
  return state.output < 0 && page.outputs.decided ? `the class decided for, ${own}` : own;
}

function drawText() {
  const sequence = page.sequences[state.sequence], shown = modeValues(state.mode, state.sequence, state.view);
  const facts = [sequence.label === null ? "" : `label: ${sequence.label}`, sequence.prediction === null ? "" : `prediction: ${sequence.prediction}`,
    lengthText(sequence), page.reverse ? "read from the end" : ""];
  const note = shown ? "" : ` Mode ${state.mode} is not shown here: it is not among the ${page.shown.length} modes that matter, are slowest or are most important.`;
  const key = state.view === "magnitude" ? ` Mode ${state.mode} is strong at green words.` : ` By mode ${state.mode}, orange words raise ${outputText()}, blue words lower it.`;
  byId("sequence-note").textContent = facts.filter(Boolean).join(" · ") + "." + (shown && sequence.tokens ? key : note);
  byId("text").hidden = !sequence.tokens;
  byId("from").parentElement.hidden = !sequence.tokens || sequence.length <= wordsShown;
  if (!sequence.tokens) return;
  const largest = shown ? largestOf(shown.map(Math.abs), 1e-300) : 1;
  const from = Math.max(0, Math.min(Number(byId("from").value) || 0, sequence.length - 1));
  const words = new DocumentFragment();
  sequence.tokens.slice(from, from + wordsShown).forEach((token, i) => {
    const word = document.createElement("span"), value = shown && shown[from + i];
    word.textContent = token;
    if (shown) { word.style.background = shade(value, largest); word.title = `${token}: ${significant(value, 3)}`; }
    words.append(word, " ");
  });
  byId("text").replaceChildren(words);
}

function fillPicker() {
  const wanted = byId("search").value.trim().toLowerCase();
  const fits = (s, i) => !wanted || String(i) === wanted || [s.label, s.prediction].some((t) => t !== null && t.toLowerCase().includes(wanted)) ||
    (s.tokens ?? []).some((token) => token.toLowerCase().includes(wanted));
  const found = page.sequences.map((s, i) => [s, i]).filter(([s, i]) => fits(s, i));
  byId("picker").replaceChildren(...found.slice(0, sequencesListed).map(([s, i]) => {
    const parts = [`${i}`, s.label, s.prediction === null ? null : `→ ${s.prediction}`, lengthText(s), s.tokens ? s.tokens.slice(0, 6).join(" ") : null];
    return new Option(parts.filter((part) => part !== null).join(" · "), i, false, i === state.sequence);
  }));
  if (found.length > sequencesListed) {
    const more = new Option(`… and ${found.length - sequencesListed} more: search for one by its number`);
    more.disabled = true;
    byId("picker").append(more);
  }
  if (!found.length) { byId("sequence-note").textContent = "No sequence matches the search."; byId("text").replaceChildren(); return; }
  if (!found.some(([, i]) => i === state.sequence)) selectSequence(found[0][1]); else drawText();
}

function startWords() {
  state.view = views().at(-1)[0];
  byId("search").oninput = fillPicker;
  byId("from").onchange = drawText;
  byId("picker").onchange = (event) => selectSequence(Number(event.target.value));
  byId("mode-picker").onchange = (event) => selectMode(Number(event.target.value));
  byId("mode-picker").append(...[...new Set([...page.matter, ...page.shown])].map((number) =>
    new Option(`${number}${page.matter.includes(number) ? " · matters" : ""}${page.trust && !page.modes[number].trusted ? " · not trusted" : ""}`, number)));
  const names = page.outputs?.names ?? [];
  byId("output-picker").parentElement.hidden = names.length < 2;
  if (page.outputs && !page.outputs.decided) state.output = 0;
  byId("output-picker").append(...(page.outputs?.decided ? [new Option("the class decided for", -1)] : []), ...names.map((each, i) => new Option(each, i)));
  byId("output-picker").onchange = (event) => { state.output = Number(event.target.value); drawText(); drawOverTime(); };
  byId("views").hidden = views().length < 2;
  byId("views").append(...views().map(([key, text]) => {
    const label = document.createElement("label"), button = document.createElement("input");
    Object.assign(button, { type: "radio", name: "view", value: key, checked: key === state.view, onchange: () => { state.view = key; drawText(); drawOverTime(); } });
    label.append(button, ` ${text}`);
    return label;
  }));
}

sections.push({ start: startWords, onMode: drawText, onSequence: drawText });
