// Spectra: the eigenvalues of the keys' Gram matrix and the singular values of attention, each with its null band.

import { density, fresh, number, palette } from "./colour.js";
import { tint } from "./grid.js";
import { make, placeOn } from "./state.js";

const TITLE = { eigenvalue: "Centred Gram matrix of the keys, kernel exp(s x·y) / (g(x) g(y)): eigenvalues", singular_value: "Attention matrix: singular values" };
const DRAWS = {
  eigenvalue: "s: scale of the layer's attention; g(x): sum of exp(s x·k) over all keys k (teo2024, eq. 8). Null: Gram matrices of Gaussian keys, drawn with the mean square of this head's key entries. No eigenvalue is rescaled.",
  singular_value: "Null: softmax of Gaussian queries and keys, each drawn with the mean square of this head's entries. Scale and mask stay; no singular value is rescaled.",
};
const FLOOR = { eigenvalue: 1e-14, singular_value: 1e-7 }; // of the largest value: below it a spectrum is rounding

export class Spectra {
  constructor(state, tip) {
    this.state = state;
    this.tip = tip;
    this.element = make("div", "aw-spectra");
    this.note = make("p", "aw-note", "Blue: this head, by rank; the axis is logarithmic. Grey: null mean, and the band of 95 % of the null samples.");
    this.charts = state.bundle.spectra.map((metric) => {
      const canvas = make("canvas");
      canvas.setAttribute("role", "img");
      const row = make("div", "aw-norm", null, make("h3", "", TITLE[metric.name] ?? metric.label), make("p", "aw-note aw-reads"), canvas, make("p", "aw-note", DRAWS[metric.name] ?? ""));
      row.title = `${metric.definition} (${metric.source})`;
      canvas.addEventListener("pointermove", (event) => this.pointed(event, canvas));
      this.element.append(row);
      return { metric, canvas, row };
    });
    this.element.prepend(this.note);
  }

  draw(width, height) {
    const { state } = this;
    const key = [state.input, state.layer, state.head, state.theme, width, height, density()].join();
    if (this.drawn === key) return; // no hover changes it
    this.drawn = key;
    const style = palette(state.theme, this.element);
    const tall = Math.max(96, Math.min(230, (height - 60) / Math.max(1, this.charts.length) - 122));
    for (const { metric, canvas, row } of this.charts) {
      const spectrum = state.one.spectrum(state.card, state.head, metric.name);
      canvas.held = spectrum;
      canvas.hidden = !spectrum;
      row.children[1].textContent = spectrum ? reads(state, spectrum) : "None in this layer.";
      if (!spectrum) continue;
      canvas.setAttribute("aria-label", `${metric.label}: ${row.children[1].textContent}`);
      const pen = fresh(canvas, width, tall);
      if (pen) spectrumChart(state, pen, spectrum, width, tall, style);
    }
  }

  pointed(event, canvas) {
    const spectrum = canvas.held;
    if (!spectrum) return;
    const rank = Math.floor(((placeOn(canvas, event)[0] - 46) / (canvas.offsetWidth - 58)) * spectrum.value.length);
    if (rank < 0 || rank >= spectrum.value.length) return this.tip.hide();
    const [value, mean, low, high] = ["value", "null_mean", "null_low", "null_high"].map((name) => spectrum[name][rank]);
    this.tip.show(event, `Rank ${rank + 1}: ${number(value)}`, Number.isFinite(mean) ? `null mean ${number(mean)}, 95 % from ${number(low)} to ${number(high)}` : "no null distribution");
  }
}

/** The least and the largest value of the axis. */
function ends({ name, value, null_mean: mean, null_high: highest }) {
  const most = Math.max(...[...value, ...highest, ...mean].filter(Number.isFinite));
  return [Math.min(...[...value, ...mean].filter((one) => one > most * (FLOOR[name] ?? 1e-7))), most];
}

/** A spectrum by rank over the band of its null, logarithmic. */
export function spectrumChart(state, pen, spectrum, width, height, style) {
  const { value, null_mean: mean, null_low: lowest, null_high: highest } = spectrum;
  const [left, top, right, bottom] = [46, 6, 12, 18];
  const [least, most] = ends(spectrum);
  const [low, high] = [Math.log10(least) - 0.1, Math.log10(most) + 0.1];
  const x = (rank) => left + ((rank + 0.5) / value.length) * (width - left - right);
  const y = (one) => top + (1 - (Math.log10(Math.max(one, 10 ** low)) - low) / (high - low || 1)) * (height - top - bottom);
  pen.font = `10.5px ${style.fontFamily}`;
  pen.textBaseline = "middle";
  pen.textAlign = "right";
  const decades = Math.max(1, Math.ceil((high - low) / 4));
  for (let power = Math.ceil(low); power <= high; power += decades) {
    pen.fillStyle = style.getPropertyValue("--line");
    pen.fillRect(left, Math.round(y(10 ** power)), width - left - right, 1);
    pen.fillStyle = style.getPropertyValue("--muted");
    pen.fillText(power > -3 && power < 4 ? String(10 ** power) : `10${raised(power)}`, left - 6, y(10 ** power));
  }
  pen.textAlign = "center";
  pen.fillText("1", x(0), height - 7);
  pen.fillText(String(value.length), x(value.length - 1), height - 7);
  pen.fillText("rank", (left + width - right) / 2, height - 7);
  pen.save();
  pen.beginPath();
  pen.rect(left, 0, width - left, height - bottom + 2);
  pen.clip();
  const known = [...mean.keys()].filter((rank) => Number.isFinite(mean[rank]));
  if (known.length) {
    pen.fillStyle = style.getPropertyValue("--band");
    pen.beginPath();
    for (const rank of known) pen.lineTo(x(rank), y(highest[rank]));
    for (const rank of known.reverse()) pen.lineTo(x(rank), y(lowest[rank]));
    pen.fill();
    line(pen, mean, x, y, style.getPropertyValue("--muted"), 1.2);
  }
  line(pen, value, x, y, tint(state, 1, "from"), 1.8);
  if (value.length <= 40) {
    pen.fillStyle = tint(state, 1, "from");
    for (let rank = 0; rank < value.length; rank++) if (Number.isFinite(value[rank])) pen.fillRect(x(rank) - 2, y(value[rank]) - 2, 4, 4);
  }
  pen.restore();
}

/** A whole number as an exponent. */
function raised(power) {
  return [...String(power)].map((one) => (one === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[one])).join("");
}

function line(pen, values, x, y, colour, thick) {
  pen.strokeStyle = colour;
  pen.lineWidth = thick;
  pen.beginPath();
  values.forEach((value, rank) => Number.isFinite(value) && pen.lineTo(x(rank), y(value)));
  pen.stroke();
}

/** How many values hold 90 % of the sum (of squares), and how many lie above the null range. */
function reads(state, spectrum) {
  const { name, value, null_high: high } = spectrum;
  const squared = name === "singular_value";
  const parts = [...value].filter(Number.isFinite).map((one) => (squared ? one * one : one));
  const whole = parts.reduce((sum, one) => sum + one, 0);
  let held = 0;
  const rank = parts.findIndex((one) => (held += one) >= 0.9 * whole * (1 - 1e-6)) + 1;
  const count = value.length < state.one.real.filter(Boolean).length ? `the ${value.length} largest` : value.length;
  const above = [...value.keys()].filter((place) => value[place] > high[place]).length;
  const words = state.filled(squared ? "singular" : "spectrum", { rank, count });
  const below = value.filter((one) => one < ends(spectrum)[0]).length;
  return `${words}${Number.isFinite(high[0]) ? `; ${state.filled("above", { count: above })}` : ""}${below ? `; ${below} below the axis (rounding)` : ""}.`;
}
