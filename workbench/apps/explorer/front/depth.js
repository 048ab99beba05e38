// Depth: the query in question through all layers, in one head, in the mean over heads, or rolled out.

import { Pins } from "./compare.js";
import { density, fresh, mosaic, number, palette, percent, quantile } from "./colour.js";
import { arranged, full, rampScale, tint } from "./grid.js";
import { Route } from "./route.js";
import { capital, choice, make, placeOn, readable, routed } from "./state.js";

const MOST_CHARTS = 6;

export class Depth {
  constructor(state, tip, host = {}) {
    this.state = state;
    this.tip = tip;
    this.route = new Route(state, tip, host);
    this.kind = choice("quantity of each layer", [
      ["head", "head", "This head's number in every layer"], ["mean", "mean", "Mean over the heads of each layer"],
      ["rollout", "rollout", "Rollout: what the query draws from each token through all layers before (Abnar & Zuidema 2020)"],
      ...(state.bundle.by_layer.length ? [["tokens", "tokens", "The tokens after every block: one number per layer"]] : []),
      ...(routed(state.bundle) ? [["route", "route", "What every link of attention adds to the prediction, layer by layer"]] : []),
    ], state.depth, (depth) => state.set({ depth }));
    this.strip = make("div", "aw-strip");
    this.chart = make("canvas");
    this.room = make("div", "aw-chart", null, this.chart);
    this.title = make("h2", "", "Depth");
    const [first, second, ...others] = state.bundle.by_layer; // the tokens first, then the last measurement
    this.trajectories = [first, second, ...others.slice(2 - MOST_CHARTS)].filter(Boolean).map((metric) => this.trajectory(metric));
    this.tokens = make("div", "aw-trajectories", null, ...this.trajectories.map(({ box }) => box));
    this.pins = new Pins(state, tip);
    this.chart.addEventListener("pointermove", (event) => this.pointed(event));
    this.chart.addEventListener("click", () => this.near && state.set({ layer: this.near.layer, head: this.near.head, more: [] }));
    this.through = make("div", "aw-through", null, this.strip, this.tokens, this.room, this.route.element);
    this.box = make("section", "aw-panel aw-depth", null, make("header", "aw-head aw-row", null, this.title, this.pins.box, this.kind), this.through);
    this.box.setAttribute("aria-label", "depth");
    for (const layer of state.bundle.layers) {
      const one = make("button", "aw-layer", null, make("canvas"), make("span"));
      one.type = "button";
      one.addEventListener("click", () => state.set({ layer: layer.index, more: [] }));
      one.addEventListener("pointermove", (event) => tip.show(event, `Layer ${layer.index}`, layer.without ? `It ${layer.without}.` : one.said ?? ""));
      this.strip.append(one);
    }
  }

  /** Attention by token of every layer, null where there is none. */
  rows() {
    const { state } = this;
    const { layers } = state.bundle;
    if (state.depth === "head") return layers.map((layer) => (layer.without ? null : state.values(layer.index, state.head)));
    const means = layers.map((layer) => {
      if (layer.without) return null;
      const each = Array.from({ length: layer.heads }, (_, head) => state.values(layer.index, head));
      return each[0] ? each[0].map((_, i) => each.reduce((sum, row) => sum + row[i], 0) / each.length) : null;
    });
    return state.depth === "mean" ? means : layers.map((_, place) => rollout(state, place));
  }

  draw() {
    const { state } = this;
    this.kind.show(state.depth);
    this.pins.draw();
    this.strip.hidden = this.room.hidden = ["tokens", "route"].includes(state.depth);
    this.tokens.hidden = state.depth !== "tokens";
    this.route.element.hidden = state.depth !== "route";
    if (state.depth === "tokens") return this.drawTokens();
    if (state.depth === "route") {
      this.title.textContent = this.route.draw(state.measured(this, "box", () => this.box.clientWidth) - 30);
      return;
    }
    const rows = this.rows();
    const count = Math.max(1, state.bundle.layers.length);
    const whole = state.measured(this, "box", () => this.box.clientWidth) - 30;
    const maps = rows.map((values, place) => values && arranged(state.depth === "rollout" ? values : state.relative(values, state.bundle.layers[place].index), state.one.at(state.bundle.layers[place])));
    // One scale for all layers: the grid's if both show the same numbers.
    const alike = state.depth !== "rollout" && (state.one.grid || state.asked.length);
    const limit = alike || (state.scale === "ratio" && state.depth !== "rollout") ? state.full : Math.max(...maps.map((map) => map?.most ?? 0));
    this.limit = limit;
    const aspect = Math.max(1, ...maps.map((map) => (map ? map.columns / map.rows : 1)));
    const tall = Math.max(34, Math.min(92, ((whole - (whole > 700 ? 320 : 0)) / count - 8) / aspect));
    rows.forEach((values, place) => {
      const layer = state.bundle.layers[place];
      const one = this.strip.children[place];
      const [canvas, words] = one.children;
      one.setAttribute("aria-pressed", String(layer.index === state.layer));
      const map = maps[place];
      const wide = map ? Math.round((tall * map.columns) / map.rows) : tall;
      const pen = fresh(canvas, wide, tall);
      words.textContent = String(layer.index);
      one.said = "";
      if (!pen) return;
      if (!map) {
        pen.fillStyle = tint(state, 0.08);
        pen.fillRect(0, 0, wide, tall);
        one.said = "Nothing to show here.";
        return;
      }
      const look = state.depth === "rollout" ? { ...state.look, direction: "from", scale: state.scale === "ratio" ? "sqrt" : state.scale } : state.look;
      mosaic(pen, map.values, map.columns, map.rows, limit, look, { x: 0, y: 0, width: wide, height: tall });
      const top = values.indexOf(Math.max(...values));
      one.said = `most ${percent(values[top])}, at “${readable(state.one.at(layer).labels[top])}”`;
    });
    const who = { head: `head ${state.head} of every layer`, mean: "mean over heads", rollout: "rollout from the first layer" }[state.depth];
    this.title.textContent = `Depth: ${who}, ${state.depth === "rollout" ? `full colour at ${number(limit)}` : full(state, limit)}`;
    this.plot();
  }

  /** The colour scale of the maps as an export draws it; null where there are none. */
  get scale() {
    const { state } = this;
    if (["tokens", "route"].includes(state.depth)) return null;
    const shown = state.depth === "rollout" ? { ...state, weights: "attention", look: { ...state.look, direction: "from" }, scale: state.scale === "ratio" ? "sqrt" : state.scale } : state;
    const found = rampScale(shown, this.limit, palette(state.theme, this.box), shown.look.direction);
    return state.depth === "rollout" ? { ...found, title: found.title.replace("attention", "rollout") } : found;
  }

  /** The metric of the grid in every head, by layer: grey all heads, blue the chosen one, the dash their null level. */
  plot() {
    const { state } = this;
    const { metrics, layers } = state.bundle;
    const metric = metrics.find((one) => one.name === (state.sort || state.metric));
    const [width, height] = state.measured(this, "room", () => [this.room.clientWidth, this.room.clientHeight]);
    const key = [metric?.name, width, height, state.theme, state.input, state.layer, state.head, density()].join();
    if (this.plotted === key) return;
    this.plotted = key;
    this.dots = [];
    this.chart.hidden = !metric || width < 180;
    if (this.chart.hidden) return;
    const pen = fresh(this.chart, width, height);
    if (!pen) return;
    const style = palette(state.theme, this.box);
    const colour = (name) => style.getPropertyValue(name);
    const score = (layer, head, which = "value") => state.one.metric(metric.name, which, layer, head);
    const [left, top, right, bottom] = [44, 18, 10, 16];
    for (const layer of layers) {
      for (let head = 0; head < layer.heads; head++) this.dots.push({ layer: layer.index, head, value: score(layer, head), place: layer.place });
    }
    this.dots = this.dots.filter((dot) => Number.isFinite(dot.value));
    const medians = layers.map((layer) => quantile(Array.from({ length: metric.null ? layer.heads : 0 }, (_, head) => score(layer, head, "null_mean")).filter(Number.isFinite), 0.5));
    const values = [...this.dots.map((dot) => dot.value), ...medians.filter(Number.isFinite)];
    const low = metric.low === 0 ? 0 : Math.min(...values);
    const high = Math.max(...values, low + 1e-9);
    const x = (place) => left + ((place + 0.5) / layers.length) * (width - left - right);
    const y = (value) => top + (1 - (value - low) / (high - low)) * (height - top - bottom);
    pen.font = `10.5px ${style.fontFamily}`;
    pen.textBaseline = "middle";
    pen.fillStyle = colour("--line");
    for (const value of [low, high]) pen.fillRect(left, Math.round(y(value)), width - left - right, 1);
    pen.fillStyle = colour("--muted");
    pen.textAlign = "right";
    for (const value of [low, high]) pen.fillText(signed(value), left - 7, y(value));
    pen.textAlign = "center";
    const every = Math.ceil((layers.length * 18) / (width - left - right));
    layers.forEach((layer, place) => place % every || pen.fillText(layer.index, x(place), height - 7));
    pen.textAlign = "left";
    pen.fillStyle = colour("--ink");
    const named = metric.short ? capital(metric.short) : metric.label;
    const titles = [`${named}, every head by layer`, `${named} by layer`, named].flatMap((title) => (metric.null ? [`${title} (dash: null level)`, title] : [title]));
    pen.fillText(titles.find((title) => pen.measureText(title).width < width - left) ?? named, left, 6);
    const half = Math.min(14, (width - left - right) / layers.length / 2.6);
    pen.fillStyle = colour("--ink");
    for (const layer of layers) if (Number.isFinite(medians[layer.place])) pen.fillRect(x(layer.place) - half, y(medians[layer.place]) - 0.6, half * 2, 1.2);
    for (const dot of this.dots) {
      Object.assign(dot, { x: x(dot.place), y: y(dot.value) });
      const chosen = dot.layer === state.layer && dot.head === state.head;
      pen.fillStyle = chosen ? tint(state, 1, "from") : colour("--muted");
      pen.globalAlpha = chosen ? 1 : 0.4;
      pen.beginPath();
      pen.arc(dot.x, dot.y, chosen ? 5 : 3, 0, 2 * Math.PI);
      pen.fill();
    }
    pen.globalAlpha = 1;
  }

  /** The chart of a metric of whole layers, below its name: a click goes to the layer, hovering shows the number. */
  trajectory(metric) {
    const { state, tip } = this;
    const canvas = make("canvas");
    canvas.setAttribute("role", "img");
    const title = make("h3");
    const found = { metric, canvas, title, box: make("div", "aw-trajectory", null, title, canvas), left: 44, right: 10 };
    const layerAt = (event) => {
      const { layers } = state.bundle;
      const across = canvas.offsetWidth - found.left - found.right;
      return layers[Math.floor(((placeOn(canvas, event)[0] - found.left) / across) * layers.length)];
    };
    canvas.addEventListener("pointermove", (event) => {
      const layer = layerAt(event);
      if (!layer) return tip.hide();
      const [value, level] = ["value", "null_mean"].map((which) => state.one.ofLayer(metric.name, which, layer));
      tip.show(event, `Layer ${layer.index}`, `${metric.label}: ${number(value)}${metric.unit ? ` ${metric.unit}` : ""}${metric.null ? ` (null ${number(level)})` : ""}. ${metric.definition}`);
    });
    canvas.addEventListener("click", (event) => layerAt(event) && state.set({ layer: layerAt(event).index, more: [] }));
    return found;
  }

  /** Numbers of whole layers through the depth, beside their null distribution; a line marks the layer looked at. */
  drawTokens() {
    const { state } = this;
    this.title.textContent = "Depth: the tokens after each block";
    const { layers } = state.bundle;
    const [whole, height] = state.measured(this, "tokens", () => [this.tokens.clientWidth, this.tokens.clientHeight]);
    const count = whole < 520 ? 1 : Math.max(1, this.trajectories.length); // side by side, on a phone one below another
    const width = Math.max(230, Math.floor((whole - 18 * (count - 1)) / count));
    const tall = count === 1 ? 112 : Math.max(height, 90);
    const style = palette(state.theme, this.box);
    const colour = (name) => style.getPropertyValue(name);
    for (const each of this.trajectories) {
      const { metric, canvas, title, box, left, right } = each;
      const of = (which) => layers.map((layer) => state.one.ofLayer(metric.name, which, layer));
      const values = of("value");
      const [mean, low, high] = metric.null ? ["null_mean", "null_low", "null_high"].map(of) : [[], [], []];
      const measured = [...values.keys()].filter((place) => Number.isFinite(values[place]));
      const at = measured.length === 1 ? measured[0] : state.card.place;
      const named = `${metric.label}${metric.unit ? ` (${metric.unit})` : ""}`;
      const said = `${signed(values[at])}${metric.null ? ` (null ${signed(mean[at])})` : ""}`;
      const where = `layer ${layers[at].index}`;
      const words = measured.length ? `${named}, ${where}: ${said}` : `${named}: in no layer of this file`;
      if (each.titled !== words + width) {
        each.titled = words + width;
        title.textContent = words;
        title.title = metric.definition;
        box.style.width = `${width}px`;
        each.deep = Math.max(60, tall - title.offsetHeight - 4);
      }
      const { deep } = each;
      canvas.hidden = measured.length < 2; // of one layer the sentence says all
      const pen = canvas.hidden ? null : fresh(canvas, width, deep);
      if (!pen) continue;
      const known = [...values, ...mean, ...low, ...high].filter(Number.isFinite);
      const [bottom, top] = [Math.min(0, ...known), Math.max(...known, Math.min(0, ...known) + 1e-9)];
      const x = (place) => left + ((place + 0.5) / layers.length) * (width - left - right);
      const y = (value) => 7 + (1 - (value - bottom) / (top - bottom)) * (deep - 25);
      pen.font = `10.5px ${style.fontFamily}`;
      pen.textBaseline = "middle";
      pen.fillStyle = colour("--line");
      for (const value of [bottom, top]) pen.fillRect(left, Math.round(y(value)), width - left - right, 1);
      pen.fillStyle = colour("--muted");
      pen.textAlign = "right";
      for (const value of [bottom, top]) pen.fillText(signed(value), left - 7, y(value));
      pen.textAlign = "center";
      const every = Math.ceil((layers.length * 18) / (width - left - right));
      layers.forEach((layer, place) => place % every || pen.fillText(layer.index, x(place), deep - 7));
      canvas.setAttribute("aria-label", `${named} by layer: ${layers.map((layer, place) => `${layer.index}: ${signed(values[place])}`).join(", ")}`);
      pen.fillStyle = colour("--band");
      layers.forEach((_, place) => {
        if (!Number.isFinite(low[place])) return;
        const half = Math.min(14, (width - left - right) / layers.length / 2.6);
        pen.fillRect(x(place) - half, y(high[place]), half * 2, Math.max(1.5, y(low[place]) - y(high[place])));
      });
      pen.setLineDash([3, 3]);
      pen.strokeStyle = colour("--muted");
      pen.beginPath();
      pen.moveTo(x(at), 3);
      pen.lineTo(x(at), y(bottom));
      pen.stroke();
      pen.setLineDash([]);
      pen.strokeStyle = pen.fillStyle = tint(state, 1, "from");
      pen.lineWidth = 1.75;
      pen.beginPath();
      if (measured.length > 2) for (const place of measured) pen.lineTo(x(place), y(values[place]));
      pen.stroke();
      values.forEach((value, place) => {
        if (!Number.isFinite(value)) return;
        pen.beginPath();
        pen.arc(x(place), y(value), place === at ? 5 : 2.5, 0, 2 * Math.PI);
        pen.fill();
      });
    }
  }

  pointed(event) {
    const [x, y] = placeOn(this.chart, event);
    const far = (dot) => Math.hypot(dot.x - x, dot.y - y);
    this.near = this.dots.reduce((best, dot) => (!best || far(dot) < far(best) ? dot : best), null);
    if (!this.near || far(this.near) > 12) this.near = null;
    this.chart.style.cursor = this.near ? "pointer" : "default";
    if (this.near) this.tip.show(event, `Layer ${this.near.layer}, head ${this.near.head}`, number(this.near.value));
    else this.tip.hide();
  }
}

/** A number as an axis or a sentence has it. */
function signed(value) {
  return value === 0 ? "0" : number(value).replace("-", "−");
}

/** What the queries in question draw from each token through all layers up to a place: residual and attention alike. */
export function rollout(state, place) {
  const { layers } = state.bundle;
  const { one } = state;
  if (layers[0].index !== 0 || layers.some((layer, i) => i <= place && (layer.without || layer.pooled || layer.index !== i))) return null;
  const asked = state.asked.length ? state.asked : [...one.real.keys()].filter((token) => one.real[token]);
  let row = new Float64Array(one.count);
  for (const token of asked) row[token] += 1 / asked.length;
  for (let at = place; at >= 0; at--) {
    const maps = one.maps(layers[at]);
    if (maps.rows !== maps.columns || one.at(layers[at]) !== one) return null;
    const next = Float64Array.from(row);
    for (let query = 0; query < one.count; query++) {
      if (row[query] < 1e-9) continue;
      for (let head = 0; head < maps.heads; head++) {
        const weight = row[query] / maps.heads;
        for (let key = 0; key < one.count; key++) next[key] += weight * maps.at(head, query, key);
      }
    }
    row = next.map((value) => value / 2);
  }
  return Float32Array.from(row);
}
