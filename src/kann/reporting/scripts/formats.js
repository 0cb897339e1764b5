// How numbers and names are written, and the colours of the page.
const withMinus = (text) => text.replace(/^-/, "−");
const significant = (value, count = 4) => Number.isFinite(value) ? withMinus(Number(value.toPrecision(count)).toString()) : "∞";
// Math.max(...values) fails from some 100,000 values on: a call takes no more arguments.
const largestOf = (values, atLeast) => values.reduce((largest, value) => Math.max(largest, value), atLeast);
const smallestOf = (values, atMost) => values.reduce((smallest, value) => Math.min(smallest, value), atMost);
const wordsShown = 5000, sequencesListed = 2000, pointsDrawn = 20000;  // more would make the page slow
// Plotly reads names as HTML; ours are text.
const escapeMarkup = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;");
const fourDecimals = (value) => withMinus(value.toFixed(4));
const eigenvalueText = (m) => m.pair ? `${fourDecimals(m.re)} ± ${fourDecimals(m.im)}i` : fourDecimals(m.re);
const isJudged = (m) => m.interval[0] !== null;  // of wide operators some modes only
const intervalText = (m) => !isJudged(m) ? "–" : `${fourDecimals(m.interval[0])} – ${fourDecimals(m.interval[1])}`;
// As kann._format.percent writes it: one decimal, and two significant digits below 1 %.
const percentText = (value) => !Number.isFinite(value) ? "–" : value > 0 && value < 1e-5 ? "below 0.001 %"
  : `${value > 0 && value < 0.00995 ? significant(100 * value, 2) : (100 * value).toFixed(1)} %`;
const colours = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#882255", "#F0E442", "#332288"];
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
/** "step 3", "layer 3": depth is called depth. */
const steps = () => `${page.step}s`;
/** How long a sequence is: "30 steps"; through 4 layers there are 5 states. */
const lengthText = ({ length }) => { const count = page.step === "step" ? length : length - 1; return `${count} ${count === 1 ? page.step : steps()}`; };
/** The residual that colours a dot: on held-out sequences, or on the fitted data if nothing was held out. */
const shownResidual = (m) => page.trust ? m.held_out : m.residual;
const verdictText = (m) => m.trusted ? (m.verdict === "yes" ? "trusted" : m.verdict) : "not trusted";
