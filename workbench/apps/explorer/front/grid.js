// The model view: layers × heads, where every cell is the head's attention map for the query in question.

import { HEADS, RATIO, colourBar, fresh, hue, lightLetters, mosaics, number, palette, percent, quantile, rampColour } from "./colour.js";
import { patchesOf } from "./image.js";
import { CLEARLY, asked, clearly, headsNamed, leading, ranked } from "./links.js";
import { button, make, nameOf, onEnter, placeOn, refill } from "./state.js";
import { Training } from "./training.js";

const GAP = 3;
const BAR = 4;
const GUTTER = 24;
const LABEL = 13; // height of a name under a cell where cells are in order of a score
const LARGEST = 176;
const SMALLEST = 13;
const NARROW = 360; // px: in a panel narrower than that, the list writes 3.5 for layer 3, head 5
const NAMED = 24; // of a cell with a name under it

export class ModelView {
  constructor(state, tip, host = {}) {
    this.state = state;
    this.tip = tip;
    this.thumbs = new Map();
    this.cells = [];
    this.order = make("select", "aw-select");
    this.order.setAttribute("aria-label", "order of heads");
    this.order.append(option("", "by layer"));
    const { metrics } = state.bundle;
    const patterns = metrics.filter((metric) => metric.short);
    if (patterns.length) this.order.append(group("by pattern", patterns.map((m) => option(m.name, m.short))));
    const sources = new Map(); // further measurements, grouped by the name of their analysis
    for (const metric of metrics.filter((one) => !one.short)) {
      const source = metric.name.includes("/") ? metric.name.split("/")[0] : "by metric";
      sources.set(source, [...(sources.get(source) ?? []), option(metric.name, metric.label)]);
    }
    for (const [source, options] of sources) this.order.append(group(source, options));
    const known = [...metrics, ...state.bundle.by_layer].map((metric) => metric.name.split("/")[0]);
    const others = (host.kernel ? host.measures : []).filter((name) => !known.includes(name));
    if (others.length) this.order.append(group("measure now", others.map((name) => option(`measure ${name}`, name))));
    this.order.addEventListener("change", () => {
      const { value } = this.order;
      if (!value.startsWith("measure ")) return state.set({ sort: value, metric: value || state.metric });
      this.order.value = state.sort;
      host.measure(value.slice(8));
    });
    this.find = make("input", "aw-find");
    Object.assign(this.find, { type: "search", placeholder: "Find a head", title: "A head (layer 3, head 5, or 3.5), heads that follow a pattern (sink), or scores above or below a number (entropy > 0.1)" });
    this.find.setAttribute("aria-label", "find heads: layer.head, a pattern, or scores above or below a number");
    this.find.addEventListener("input", () => state.set({ find: this.find.value }));
    onEnter(this.find, () => this.next());
    this.filter = this.form(metrics);
    const filter = button("Filter", "Only heads with a score above or below a number", () => {
      this.filter.hidden = !this.filter.hidden;
      state.resize();
    });
    const { left_out: left } = state.bundle;
    this.others = make("select", "aw-select", null, option("", `${left.length} more layer${left.length === 1 ? "" : "s"}`), ...left.map((layer) => option(String(layer), `capture layer ${layer}`)));
    this.others.setAttribute("aria-label", "layers that were left out for their size");
    this.others.hidden = !host.kernel || !left.length;
    this.others.addEventListener("change", () => this.others.value && host.layer(Number(this.others.value)));
    this.canvas = make("canvas", "aw-grid");
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "img");
    this.scroll = make("div", "aw-grid-scroll", null, this.canvas);
    this.training = new Training(state, host);
    this.note = make("p", "aw-note");
    this.leaders = make("div", "aw-leaders");
    this.box = make(
      "section", "aw-panel aw-model", null,
      make("header", "aw-head", null, make("h2", "", "Heads"), make("div", "aw-row", null, this.others, this.order, this.find, ...(metrics.length ? [filter] : []))), this.filter,
      this.scroll, this.training.box, this.note, this.leaders,
    );
    this.box.setAttribute("aria-label", "model view");
    this.canvas.addEventListener("pointermove", (event) => this.pointed(event));
    this.canvas.addEventListener("click", (event) => this.clicked(event));
    this.canvas.addEventListener("keydown", (event) => this.keyed(event));
  }

  /** The filter as a form: a metric, above or below, a number; it is written into the search field. */
  form(metrics) {
    const parts = [
      make("select", "aw-select", null, ...metrics.map(({ name, short, label }) => option(name, short || label))),
      make("select", "aw-select", null, option(">", "above"), option("<", "below")),
      Object.assign(make("input", "aw-select"), { type: "number", step: "any", placeholder: "0.4" }),
    ];
    ["metric", "above or below", "number"].forEach((words, place) => parts[place].setAttribute("aria-label", `filter: ${words}`));
    const asks = () => {
      const [metric, side, { value }] = parts;
      this.state.set({ find: value === "" ? "" : `${metric.selectedOptions[0].textContent} ${side.value} ${value}`, metric: metric.value });
    };
    for (const part of parts) part.addEventListener("input", asks);
    const form = make("div", "aw-row aw-filter", null, ...parts);
    form.hidden = true;
    return form;
  }

  /** The metric that the bars show: that of the order, or the chosen one. */
  get metric() {
    return this.state.bundle.metrics.find((one) => one.name === (this.state.sort || this.state.metric));
  }

  score(layer, head, which = "value", metric = this.metric) {
    if (!metric || (which !== "value" && !metric.null)) return NaN;
    return this.state.one.metric(metric.name, which, layer, head);
  }

  /** The heads that are searched for, as "layer.head"; null for all. */
  get named() {
    const { state } = this;
    const key = [state.find, state.input, state.bundle.metrics.length, this.metric?.name].join("|");
    if (this.searched?.key !== key) this.searched = { key, heads: headsNamed(state, state.find, this.metric) };
    return this.searched.heads;
  }

  /** Go to the first head that matches the search, then to the next; after the last comes the first. */
  next() {
    const { state } = this;
    const heads = [...(this.named ?? [])];
    if (!heads.length) return;
    const place = this.visited === state.find ? heads.indexOf(`${state.layer}.${state.head}`) + 1 : 0;
    this.visited = state.find;
    const [layer, head] = heads[place % heads.length].split(".").map(Number);
    state.set({ layer, head, more: [] });
  }

  wanted(layer, head) {
    return !this.named || this.named.has(`${layer.index}.${head}`);
  }

  /** Height that is left for the grid where the panel has one of its own. */
  room() {
    const others = [...this.box.children].filter((part) => part !== this.scroll && !part.hidden);
    const taken = others.reduce((sum, part) => sum + part.offsetHeight + 10, 0);
    const oneScreen = getComputedStyle(this.box.parentNode).overflow === "hidden"; // else the panel grows with its grid
    return Math.max(oneScreen ? 120 : 220, this.box.clientHeight - taken - 34);
  }

  layout(width, room) {
    const { bundle, sort } = this.state;
    this.cells = [];
    const most = Math.max(1, ...bundle.layers.map((layer) => layer.heads));
    if (sort) {
      const all = bundle.layers.flatMap((layer) =>
        layer.without ? [] : Array.from({ length: layer.heads }, (_, head) => ({ layer, head, score: this.score(layer, head) })),
      );
      const known = all.filter((cell) => Number.isFinite(cell.score) && this.wanted(cell.layer, cell.head));
      known.sort((a, b) => b.score - a.score);
      const side = (columns) => Math.min(LARGEST, Math.floor((width - GAP) / columns) - GAP);
      const down = (size) => size + BAR + LABEL + GAP * 2;
      let across = 4; // the fewest columns with which all rows are in view, or else the most
      while (side(across + 1) >= NAMED && GAP + Math.ceil(known.length / across) * down(side(across)) > room) across += 1;
      const size = side(across);
      const tall = size;
      known.forEach((cell, i) => {
        const x = GAP + (i % across) * (size + GAP); // the outline of the first is not cut
        const y = GAP + Math.floor(i / across) * down(size);
        this.cells.push({ ...cell, x, y, size, tall, named: true });
      });
      const rows = Math.ceil(known.length / across);
      const whole = Math.max(1, Math.floor((room - GAP) / down(size)));
      this.scroll.style.maxHeight = whole < rows ? `${2 * GAP + whole * down(size)}px` : ""; // no row is cut
      return { height: GAP + rows * down(size), size };
    }
    this.scroll.style.maxHeight = "";
    const across = Math.floor((width - GUTTER) / most) - GAP;
    const runs = together(bundle.layers);
    const rows = bundle.layers.filter((layer) => !layer.without && layer.heads).length;
    const down = Math.floor((room - 16 - 23 * (runs.length - rows)) / Math.max(1, rows)) - BAR - GAP * 2;
    const size = Math.max(SMALLEST, Math.min(LARGEST, across, down));
    const tall = Math.max(size, Math.min(down, Math.round(size * (bundle.inputs[0].grid ? 1 : 1.5))));
    let y = 16;
    this.bands = [];
    for (const [layer, last] of runs) {
      if (layer.without || !layer.heads) {
        this.bands.push({ layer, last, y, height: 17 });
        y += 17 + GAP * 2;
        continue;
      }
      this.bands.push({ layer, y, height: tall });
      for (let head = 0; head < layer.heads; head++) {
        this.cells.push({ layer, head, x: GUTTER + head * (size + GAP), y, size, tall, score: this.score(layer, head) });
      }
      y += tall + BAR + GAP * 2;
    }
    return { height: y, size };
  }

  draw() {
    const { state } = this;
    this.order.value = state.sort;
    this.training.draw();
    if (this.find.value !== state.find) this.find.value = state.find;
    this.paint(this.canvas, ...state.measured(this, "room", () => [this.scroll.clientWidth, this.room()]));
  }

  /** Draw all heads on a canvas that is so wide, in rows that fit a height where they can. */
  paint(canvas, width, room) {
    const { state } = this;
    const { height, size } = this.layout(width, room);
    const pen = fresh(canvas, width, Math.max(height, 20));
    if (!pen) return;
    const style = palette(state.theme, this.box);
    const [ink, muted, line] = ["--ink", "--muted", "--line"].map((name) => style.getPropertyValue(name));
    const font = style.fontFamily;
    const drawn = this.cells.map((cell) => this.map(cell)).map((map, i) => ({ map, cell: this.cells[i] }));
    const tops = drawn.map(({ map }) => (map ? map.most : NaN));
    const limit = (state.full = state.scale === "ratio" ? RATIO : quantile(tops, 0.9) || 1); // robust: a few heads that look at one token do not darken all others
    pen.textBaseline = "middle";
    if (!state.sort) this.axes(pen, width, size, muted, line, font);
    const scores = this.cells.map((cell) => cell.score);
    const metric = this.metric;
    const low = metric?.low ?? Math.min(0, quantile(scores, 0.02));
    const high = Math.max(quantile(scores, 0.98), low + 1e-9); // robust, like the colours
    const along = (value) => Math.max(0, Math.min(1, (value - low) / (high - low)));
    const maps = drawn.filter(({ map }) => map).map(({ map, cell }) => ({
      ...map,
      box: { x: cell.x, y: cell.y, width: cell.size, height: cell.tall },
      faint: this.wanted(cell.layer, cell.head) ? 1 : 0.18,
    }));
    const sizes = new Map(); // layers of other streams have maps of other sizes
    for (const map of maps) sizes.set(`${map.columns}.${map.rows}`, [...(sizes.get(`${map.columns}.${map.rows}`) ?? []), map]);
    for (const alike of sizes.values()) mosaics(pen, alike, alike[0].columns, alike[0].rows, limit, state.look);
    for (const { map, cell } of drawn) {
      const foot = cell.y + cell.tall;
      pen.globalAlpha = this.wanted(cell.layer, cell.head) ? 1 : 0.18;
      if (map && map.most > limit * 1.0001) this.mark(pen, cell, ink); // beyond the scale
      if (Number.isFinite(cell.score)) {
        pen.fillStyle = line;
        pen.fillRect(cell.x, foot + 1, cell.size, BAR - 1);
        pen.fillStyle = muted;
        pen.fillRect(cell.x, foot + 1, cell.size * along(cell.score), BAR - 1);
        const level = this.score(cell.layer, cell.head, "null_mean");
        if (Number.isFinite(level)) {
          pen.fillStyle = ink;
          pen.fillRect(cell.x + Math.min(cell.size - 1, cell.size * along(level)), foot, 1, BAR + 1);
        }
      }
      if (cell.named) {
        pen.fillStyle = muted;
        pen.font = `10.5px ${font}`;
        pen.textAlign = "center";
        pen.fillText(`${cell.layer.index}.${cell.head}`, cell.x + cell.size / 2, foot + BAR + 8);
      }
      const place = state.heads.findIndex(([layer, head]) => layer === cell.layer.index && head === cell.head);
      if (place >= 0) {
        pen.lineWidth = 2;
        pen.strokeStyle = state.heads.length > 1 ? HEADS[place % HEADS.length] : ink;
        pen.strokeRect(cell.x - 1.5, cell.y - 1.5, cell.size + 3, cell.tall + 3);
      }
      pen.globalAlpha = 1;
    }
    this.tell(limit, high);
    this.lead();
  }

  axes(pen, width, size, muted, line, font) {
    const { bundle } = this.state;
    pen.fillStyle = muted;
    const most = Math.max(1, ...bundle.layers.map((layer) => layer.heads));
    pen.font = `10.5px ${font}`;
    pen.textAlign = "center";
    const every = size < 16 ? 4 : 1;
    for (let head = 0; head < most; head += every) pen.fillText(head, GUTTER + head * (size + GAP) + size / 2, 7);
    for (const { layer, last, y, height } of this.bands) {
      pen.textAlign = "right";
      pen.fillStyle = muted;
      const run = last && last !== layer ? `${layer.index}–${last.index}` : layer.index;
      pen.fillText(run, Math.max(GUTTER - 7, pen.measureText(run).width), y + height / 2);
      if (!layer.without && layer.heads) continue;
      pen.save();
      pen.beginPath();
      const start = Math.max(GUTTER, pen.measureText(run).width + 6);
      pen.rect(start, y, width - start, height);
      pen.fillStyle = line;
      pen.globalAlpha = 0.5;
      pen.fill();
      pen.restore();
      pen.textAlign = "left";
      pen.fillText("no attention matrix here", start + 7, y + height / 2 + 0.5);
    }
  }

  mark(pen, cell, ink) {
    const side = Math.max(4, Math.min(7, cell.size / 5));
    pen.fillStyle = ink;
    pen.beginPath();
    pen.moveTo(cell.x + cell.size - side, cell.y);
    pen.lineTo(cell.x + cell.size, cell.y);
    pen.lineTo(cell.x + cell.size, cell.y + side);
    pen.fill();
  }

  /** What a cell shows: patches on their grid, words wrapped in order; of all queries of a text the matrix. */
  map({ layer, head }) {
    const { state } = this;
    const one = state.one.at(layer);
    if (!one.grid && (!state.asked.length || one !== state.one)) return this.thumb(layer, head);
    const asked = [state.input, state.asked.join("+"), state.direction, state.sinks, state.weights, state.scale === "ratio", state.card.queries, state.card.keys].join();
    if (this.held?.asked !== asked) this.held = { asked, maps: new Map() }; // another head is outlined, and nothing else changes
    const key = `${layer.index}.${head}`;
    if (!this.held.maps.has(key)) {
      const values = state.values(layer.index, head);
      this.held.maps.set(key, values && arranged(state.relative(values, layer.index), one));
    }
    return this.held.maps.get(key);
  }

  /** The head's matrix, its largest value in each of at most 48 × 48 bins. */
  thumb(layer, head) {
    const ratio = this.state.scale === "ratio";
    const key = `${this.state.input}.${layer.index}.${head}.${ratio}.${this.state.weights}`;
    if (!this.thumbs.has(key)) {
      const maps = this.state.maps(layer);
      if (!maps) return null;
      const rows = Math.min(48, maps.columns);
      const columns = rows;
      const values = new Float32Array(rows * columns);
      const queries = maps.rows === 1 ? rows : maps.rows; // a single query fills the height
      for (let query = 0; query < queries; query++) {
        const row = Math.floor((query * rows) / queries) * columns;
        const uniform = ratio ? maps.even([Math.floor((query * maps.tokens) / queries)], this.state.one.at(layer).real) : 1;
        for (let at = 0; at < maps.columns; at++) {
          const place = row + Math.floor((at * columns) / maps.columns);
          values[place] = Math.max(values[place], maps.at(head, maps.rows === 1 ? 0 : query, at) / uniform);
        }
      }
      this.thumbs.set(key, { values, rows, columns, most: quantile(values, 0.999) });
    }
    return this.thumbs.get(key);
  }

  tell(limit, high) {
    const { state } = this;
    const { one, bundle } = state;
    const metric = this.metric;
    const shown = state.weights === "written" ? "share of summed norms" : "attention";
    const what = one.grid ? `${shown} on the patches` : state.asked.length ? `${shown} on the tokens, in reading order` : `${shown} by query and key`;
    const level = metric?.null ? ", tick: null level" : "";
    const without = bundle.layers.filter((layer) => layer.without);
    const count = bundle.layers.reduce((sum, layer) => sum + layer.heads, 0);
    this.note.textContent = this.named?.size === 0 ? `No head matches “${state.find}”: write a head (layer 3, head 5), a pattern (sink), or a bound (entropy > 0.1).` :
      (this.named ? `${this.named.size} of ${count} heads match “${state.find.trim()}”. Enter: ${this.named.size > 1 ? "the next of them" : "go there"}. ` : "") +
      `Cell: ${what}, ${full(state, limit)} (corner mark: above).` + (state.sort ? " 3.5 is layer 3, head 5; highest score first." : "") +
      (metric ? ` Bar: ${metric.short ? `${metric.short} score` : metric.label.toLowerCase()}, full at ${number(high)}${level}.` : "") +
      (bundle.left_out.length ? ` Layers ${bundle.left_out.join(", ")} were left out for their size.` : "");
    this.note.title = without.map((layer) => `Layer ${layer.index} ${layer.without}`).join("\n");
    const cell = this.score(state.card, state.head);
    this.canvas.setAttribute(
      "aria-label",
      `Layer ${state.layer}, head ${state.head} of ${bundle.layers.length} layers` +
        (metric ? `; ${metric.label} ${number(cell)}` : "") + ". Arrow keys move.",
    );
  }

  /** Which head follows each pattern most: the way in for those who look for one. */
  lead() {
    const { state } = this;
    const patterns = state.bundle.metrics.filter((metric) => metric.short);
    const narrow = state.measured(this, "leaders", () => this.box.clientWidth) < NARROW;
    const key = [narrow, state.input, state.bundle.metrics.length, `${state.layer}.${state.head}`, state.theme, state.tokens, state.link, state.direction].join("|");
    if (this.led === key) return;
    this.led = key;
    this.leaders.classList.toggle("aw-linking", state.link !== null);
    if (state.link !== null) return this.leadLinks();
    const rows = [];
    for (const metric of patterns) {
      const best = leading(metric, state.bundle, state.one);
      if (!best) continue;
      const { level } = best;
      rows.push({
        faint: Boolean(metric.null) && !best.above,
        name: metric.short, where: narrow ? `${best.layer.index}.${best.head}` : `layer ${best.layer.index}, head ${best.head}`, value: best.score.toFixed(2), share: best.score, tick: level,
        title: `${metric.label}: ${number(best.score)}, null ${number(level)}${metric.null && !best.above ? ", not clearly above it" : ""}. ${metric.null ? `${CLEARLY}. ` : ""}${metric.definition}`,
        pressed: best.layer.index === state.layer && best.head === state.head, act: () => state.set({ layer: best.layer.index, head: best.head, more: [], metric: metric.name, sort: state.sort && metric.name }),
      });
    }
    refill(this.leaders, `Strongest by pattern${narrow ? ", layer.head" : ""}${rows.some(({ faint }) => faint) ? " (grey: not clearly above null)" : ""}`, rows);
    this.leaders.firstElementChild.title = CLEARLY;
    this.leaders.hidden = !patterns.length;
  }

  /** Every head by its attention on the link that is asked about; the tick is the 97.5 % level of the head's other pairs. */
  leadLinks() {
    const { state } = this;
    const { query, key } = asked(state);
    const heads = ranked(state);
    const most = heads[0]?.attention || 1;
    const maps = state.one.maps(state.card);
    const cells = maps?.pooled ? ` (means of ${(maps.tokens / maps.columns).toFixed(1)} × ${(maps.tokens / maps.columns).toFixed(1)} tokens)` : "";
    const faint = ({ p }) => p >= clearly(heads);
    const grey = heads.some(faint) ? `grey: p not below 0.05/${heads.length}; ` : "";
    refill(this.leaders, heads.length ? `Heads that link ${nameOf(state.one, query)} to ${nameOf(state.one, key)}, by attention${cells} (${grey}tick: 97.5 % of the head's other pairs lie below; at the right end: beyond)` : "No head: the mask hides this key from this query", heads.map(({ layer, head, attention, ratio, nullMean, nullHigh, p, sameDistance, written }) => ({
      faint: faint({ p }),
      name: `layer ${layer.index}, head ${head}`, where: `p ${number(p)}`, value: percent(attention), share: attention / most, tick: ratio > 0 ? Math.min(1, (nullHigh / ratio) * (attention / most)) : NaN,
      title: `${number(ratio)} × uniform attention; other pairs of this head: mean ${number(nullMean)} ×, 97.5 % below ${number(nullHigh)} ×, p = ${number(p)}; pairs at the same distance: ${percent(sameDistance)}; attention × ${state.one.norms(layer, "written") ? "norm of what the value writes" : "length of the value"}: ${percent(written)} of the row's sum`,
      pressed: layer.index === state.layer && head === state.head, act: () => state.set({ layer: layer.index, head, more: [] }),
    })));
    this.leaders.hidden = false;
  }

  cellAt(event) {
    const [x, y] = placeOn(this.canvas, event);
    return this.cells.find((c) => x >= c.x - 1 && x < c.x + c.size + GAP && y >= c.y - 1 && y < c.y + c.tall + BAR + GAP);
  }

  pointed(event) {
    const cell = this.cellAt(event);
    this.canvas.style.cursor = cell ? "pointer" : "default";
    if (!cell) {
      const [, y] = placeOn(this.canvas, event);
      const band = this.state.sort ? null : this.bands?.find((b) => b.layer.without && y >= b.y && y < b.y + b.height);
      return band ? this.tip.show(event, `${naming(band)} ${band.layer.without}.`) : this.tip.hide();
    }
    const metric = this.metric;
    const level = this.score(cell.layer, cell.head, "null_mean");
    this.tip.show(
      event,
      `Layer ${cell.layer.index}, head ${cell.head}`,
      metric ? `${metric.short || metric.label}: ${number(cell.score)}${metric.unit ? ` ${metric.unit}` : ""}` +
        (Number.isFinite(level) ? ` (null ${number(level)})` : "") : "",
    );
  }

  clicked(event) {
    const cell = this.cellAt(event);
    if (!cell) return;
    const [layer, head] = [cell.layer.index, cell.head];
    const { state } = this;
    if (!event.shiftKey) return state.set({ layer, head, more: [] });
    if (layer === state.layer && head === state.head) return;
    const held = state.more.some((pair) => pair[0] === layer && pair[1] === head);
    state.set({ more: held ? state.more.filter((pair) => pair[0] !== layer || pair[1] !== head) : [...state.more, [layer, head]] });
  }

  keyed(event) {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!step || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    event.stopPropagation();
    moveHead(this.state, ...step, event.shiftKey);
  }
}

/** Layers one by one, but those without a matrix that follow one another, for the same reason, as first and last. */
function together(layers) {
  const runs = [];
  for (const layer of layers) {
    const run = runs.at(-1);
    if (run && layer.without && run[0].without === layer.without) run[1] = layer;
    else runs.push([layer, layer]);
  }
  return runs;
}

function naming({ layer, last }) {
  return layer === last ? `Layer ${layer.index}` : `Each of the layers ${layer.index} to ${last.index}`;
}

/** Name and drawing of a colour scale of attention through a ramp, for an export. */
export function rampScale(state, limit, style, direction = state.look.direction) {
  const look = { ...state.look, direction };
  const draw = (pen, width) => colourBar(pen, width, { limit, scale: state.scale, colour: (share) => rampColour(look, share), style });
  return { title: scaleName(state), draw };
}

/** What is drawn of a head's writing, in words. */
export const WRITES = "Share of the summed norms that the head writes to this token, by key.";

/** The quantity of a colour scale, in words. */
export function scaleName({ scale, weights }) {
  const shown = weights === "written" ? "share of summed norms" : "attention";
  const equal = weights === "written" ? "an equal share" : "uniform attention";
  return { linear: shown, sqrt: `${shown} (square-root scale)`, log: `${shown} (logarithmic scale)`, ratio: `${shown} ÷ ${equal}` }[scale];
}

/** Where colour is full, in words. */
export function full({ scale }, limit) {
  return scale === "ratio" ? `no colour at 1 × uniform, full at ${limit} ×` : `full colour at ${number(limit)}`;
}

/** The next head or layer, as the arrow keys go. */
export function moveHead(state, down, across, keep = false) {
  const { layers } = state.bundle;
  const place = layers.findIndex((layer) => layer.index === state.layer);
  const layer = layers[Math.max(0, Math.min(layers.length - 1, place + down))];
  state.set({ layer: layer.index, head: Math.max(0, Math.min(layer.heads - 1, state.head + across)), more: keep ? kept(state) : [] });
}

/** The heads that are looked at together, when the next one joins them. */
function kept(state) {
  return state.more.concat([[state.layer, state.head]]).filter((pair, place, all) => all.findIndex((other) => String(other) === String(pair)) === place);
}

/** Values by token as a small map: patches on their grid, else in reading order. */
export function arranged(values, one) {
  const onGrid = one.grid && values.length === one.count;
  const patches = onGrid ? patchesOf(one) : null;
  const known = new Float32Array((patches ?? values).length);
  let [count, most] = [0, -Infinity];
  for (let i = 0; i < (patches ?? values).length; i++) { // loops, for this is asked of every head while the pointer moves
    if (!patches && !one.real[i] && values.length > 1) continue;
    known[count] = values[patches ? patches[i] : i]; // NaN where a cell is empty
    if (known[count] > most) most = known[count];
    count += 1;
  }
  const columns = onGrid ? one.grid[1] : Math.ceil(Math.sqrt(count));
  return { values: known.subarray(0, count), rows: onGrid ? one.grid[0] : Math.ceil(count / columns), columns, most };
}

function option(value, words) {
  const found = make("option", "", words);
  found.value = value;
  return found;
}

function group(label, options) {
  const found = make("optgroup", "", null, ...options);
  found.label = label;
  return found;
}

/** A colour as CSS, for what is drawn over an image. */
export function tint(state, alpha, direction = state.look.direction) {
  return `rgba(${hue(state.theme, direction).join(",")},${alpha.toFixed(3)})`;
}

/** Ground and letters of a word with a share of the scale, as CSS; empty where they are the page's own. */
export function wordColours(state, share, direction = state.look.direction) {
  const alpha = share * 0.9;
  const letters = lightLetters(state.theme, direction, alpha) ? "#ffffff" : "#16191d";
  return [alpha > 0.01 ? tint(state, alpha, direction) : "", alpha < 0.25 ? "" : letters];
}
