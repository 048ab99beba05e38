// Evidence, in tabs: the head's matrix, its queries and keys, their lengths, spectra, metrics beside all heads, effect.

import { Maps } from "./bundle.js";
import { Card } from "./card.js";
import { RATIO, bitmap, density, fresh, number, palette, percent, quantile } from "./colour.js";
import { Effect } from "./effect.js";
import { rampScale, tint } from "./grid.js";
import { Membership } from "./membership.js";
import { Plane, Products } from "./products.js";
import { Spectra } from "./spectra.js";
import { TABS, button, capital, coarse, largest, make, nameOf, placeOn, readable, refill } from "./state.js";

export const TITLES = { matrix: "Matrix", products: "q·k", plane: "Plane", norms: "Norms", spectra: "Spectra", metrics: "Metrics", effect: "Effect", membership: "Membership", card: "Card" };
const HINTS = {
  matrix: "The attention matrix", products: "Query times key, feature by feature", plane: "Queries and keys in one plane", norms: "Lengths of queries, keys and values",
  spectra: "Spectra with their null distribution", metrics: "Metrics beside all heads", effect: "The prediction, with and without this head, or a token", membership: "Membership of the tokens in the heads",
  card: "What the head does over many inputs",
};

const REST_MS = 150; // without another turn of the wheel, before a part of the matrix is asked for

export class Evidence {
  constructor(state, tip, host = {}) {
    this.host = host;
    this.state = state;
    this.tip = tip;
    this.tabs = make("div", "aw-tabs");
    this.tabs.setAttribute("role", "tablist");
    TABS.forEach((name) => {
      const tab = button(TITLES[name], "", () => state.set({ tab: name }));
      tab.setAttribute("role", "tab");
      tab.dataset.tab = name;
      this.tabs.append(tab);
    });
    this.tabs.addEventListener("keydown", (event) => this.keyed(event));
    this.views = { products: new Products(state, tip), plane: new Plane(state, tip, host), spectra: new Spectra(state, tip), effect: new Effect(state, tip, host), membership: new Membership(state, tip), card: new Card(state, tip, host) };
    this.body = make("div", "aw-body");
    this.body.setAttribute("role", "tabpanel");
    this.body.tabIndex = 0; // it scrolls where it must
    this.box = make("section", "aw-panel aw-evidence", null, this.tabs, this.body);
    this.box.setAttribute("aria-label", "evidence");
    this.matrix = make("canvas", "aw-matrix");
    this.note = make("p", "aw-note");
    this.most = make("div", "aw-most");
    this.zoom = { x: 0, y: 0, scale: 1 };
    this.watch();
  }

  draw() {
    const { state } = this;
    for (const tab of this.tabs.children) {
      tab.setAttribute("aria-selected", String(tab.dataset.tab === state.tab));
      tab.tabIndex = tab.dataset.tab === state.tab ? 0 : -1;
      const reason = this.reason(tab.dataset.tab);
      tab.classList.toggle("aw-nothing", Boolean(reason));
      tab.title = `${HINTS[tab.dataset.tab]} (${TABS.indexOf(tab.dataset.tab) + 1})${reason && `. ${reason}`}`;
    }
    this.body.setAttribute("aria-label", HINTS[state.tab]);
    const reason = this.reason(state.tab);
    if (reason) {
      this.shown = null;
      this.body.replaceChildren(make("p", "aw-empty", reason));
      return;
    }
    if (state.tab === "matrix") this.drawMatrix(this.together());
    else if (state.tab === "norms") this.drawNorms();
    else if (state.tab === "metrics") this.drawMetrics();
    else {
      const view = this.views[state.tab];
      this.show(state.tab, view.element);
      view.draw(...state.measured(this, "body", () => [this.body.clientWidth, this.body.clientHeight]));
    }
  }

  /** Why a tab has nothing to show here; empty where it has something. */
  reason(tab) {
    const { bundle, card, one, layer } = this.state;
    if (bundle.unmeasured && ["spectra", "metrics", "membership"].includes(tab)) return this.host.paint ? "Not measured on a painting: the page computes attention, queries, keys and the prediction." : "Not measured yet.";
    if (tab === "card") return bundle.cards || this.host.kernel ? "" : "This file has no head cards: save it with --cards 20, or cards=20 in Python.";
    if (card.without && !["metrics", "effect", "membership"].includes(tab)) return `No attention matrix here: layer ${layer} ${card.without}.`;
    if (tab === "matrix" && !this.state.maps()) return this.state.unwritten;
    if (tab === "products" && !one.has(card, "q")) return "This file has no queries and keys of this layer: --max-size takes more.";
    if (tab === "plane" && !one.has(card, "plane.q")) return "This file has no plane of queries and keys of this layer: --max-size takes more.";
    if (tab === "spectra" && !bundle.spectra.some(({ name }) => one.has(card, `spectra.${name}.value`))) return "No spectra of this layer here: of many heads and tokens they are measured on request, in the order of heads (“measure now”) or with --analysis gram-spectrum.";
    if (tab === "metrics" && !bundle.metrics.length) return "This file has no metrics.";
    if (tab === "membership" && !one.has(card, "membership")) return `Layer ${layer} has no membership: its value projections are not known, it has one head, or the model is large (--analysis membership measures it).`;
    return tab === "effect" && !one.prediction ? `No prediction here: ${bundle.without_ablations || "this file was written without it"}.` : "";
  }

  /** The maps of the head, or of several heads their mean. */
  together() {
    const { state } = this;
    if (!state.more.length) return state.maps();
    const key = [state.input, state.heads.join("+"), state.weights].join();
    if (this.meant?.key !== key) this.meant = { key, maps: Maps.mean(state.heads.map(([layer, head]) => [state.maps(state.layerAt(layer)), head])) };
    return this.meant.maps;
  }

  /** Arrows go from tab to tab, as in any list of tabs. */
  keyed(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    const { state } = this;
    const next = (TABS.indexOf(state.tab) + by + TABS.length) % TABS.length;
    state.set({ tab: TABS[next] });
    this.tabs.children[next].focus();
  }

  show(name, ...parts) {
    if (this.shown === name) return;
    this.shown = name;
    this.measuredAt = null;
    this.body.replaceChildren(...parts);
  }

  // ------------------------------------------------------------------------------------------------- matrix

  /** The matrix as pixels, once for every head and colour. */
  pixels(maps) {
    const { state } = this;
    const key = [state.input, state.heads.join("+"), state.theme, state.scale, state.weights].join(".");
    if (this.held?.key === key) return this.held;
    const head = state.more.length ? 0 : state.head;
    const { most, limit } = maps.extent(head, 0.999);
    const { real } = state.one;
    const rows = Array.from({ length: maps.rows }, (_, row) => RATIO * maps.even([Math.floor((row * maps.queries) / maps.rows)], real));
    const canvas = bitmap(maps.matrix(head), maps.columns, maps.rows, limit || most, { ...state.look, direction: "from" }, state.scale === "ratio" ? rows : null);
    for (let row = 0; maps.causal && row < maps.rows; row++) canvas.getContext("2d").clearRect(row + 1, row, maps.columns, 1); // masked keys are blank
    this.held = { key, canvas, limit: limit || most, most };
    return this.held;
  }

  drawMatrix(maps) {
    const { state } = this;
    this.show("matrix", this.matrix, this.note, this.most);
    const [across, down, wide, whole] = state.measured(this, "body", () => [this.body.clientWidth, this.body.clientHeight, getComputedStyle(this.body).display === "grid", getComputedStyle(this.box.parentNode).overflow === "hidden"]); // a grid has the list to the right, a page of one screen has both in view
    const side = Math.max(120, wide ? Math.min(460, across * 0.55) : Math.min(across, across > 620 ? Math.min(760, down - 320) : Math.min(560, whole ? Math.max(260, down - 190) : across)));
    this.listMost(wide ? 14 : Math.max(3, Math.min(12, Math.floor((down - side - 116) / 24))));
    const high = maps.rows === 1 ? 56 : side;
    const pen = fresh(this.matrix, side, high);
    if (!pen) return;
    const { canvas, limit, most } = this.pixels(maps);
    const style = palette(state.theme, this.box);
    const ink = style.getPropertyValue("--ink");
    const { x, y, scale } = this.zoom;
    const [unit, tall] = [(side * scale) / maps.columns, (high * scale) / maps.rows];
    pen.imageSmoothingEnabled = false;
    pen.drawImage(canvas, -x, -y, side * scale, high * scale);
    const closer = (this.closer = this.drawPart(pen, maps, side));
    const rowHeight = Math.max(1, tall);
    pen.strokeStyle = ink;
    pen.lineWidth = 1;
    for (const token of state.asked.slice(0, 8)) {
      if (state.direction === "from") pen.strokeRect(-0.5, maps.rowOf(token) * tall - y - 0.5, side + 1, rowHeight + 1);
      else pen.strokeRect(maps.columnOf(token) * unit - x - 0.5, -0.5, Math.max(1, unit) + 1, side + 1);
    }
    const token = (side * scale) / maps.tokens;
    if (token >= 13 && (!maps.pooled || (closer && !closer.pooled))) this.names(pen, maps, token, side, style);
    const bin = ((closer ?? maps).tokens / (closer ?? maps).columns).toFixed(1);
    const pooled = !maps.pooled ? "" : closer && !closer.pooled ? " Token by token." : ` Means of ${bin} × ${bin} tokens.`;
    this.note.textContent =
      `${state.more.length ? `Mean of ${state.heads.length} heads. ` : ""}${state.weights === "written" ? "Share of the summed norms that the head writes to this token (row), by key (column)." : "Row: query, column: key."} ${state.scale === "ratio" ? `No colour at 1 × uniform, full at ${RATIO} ×` : `Full colour at ${number(closer?.limit ?? limit)}`}; largest ${number(closer?.most ?? most)}.${pooled}${maps.causal ? " Blank: masked." : ""}${state.sinks === "off" ? " Sinks are kept here." : ""} `;
    this.note.append(make("span", "aw-hint", coarse() ? "Pinch to enlarge." : "Wheel zooms, drag moves, double-click goes back."));
  }

  /** The colour scale of the tab as an export draws it; null where its words state it. */
  get scale() {
    const { state } = this;
    if (state.tab !== "matrix" || this.shown !== "matrix") return null;
    return rampScale(state, state.scale === "ratio" ? RATIO : this.closer?.limit ?? this.held.limit, palette(state.theme, this.box), "from");
  }

  /** The part of a pooled matrix that is in view, where a kernel has sent it finer; it is asked for once the view rests. */
  drawPart(pen, maps, side) {
    const { state, host } = this;
    if (!maps.pooled || !host.part || this.zoom.scale <= 2 || state.more.length) return null;
    const { tokens } = maps;
    const seen = tokens / this.zoom.scale; // tokens on a side
    const [left, top] = [this.zoom.x, this.zoom.y].map((offset) => (offset / side) * seen);
    const { part } = state;
    const covers = part && part.id === state.one.id && part.layer === state.layer && part.head === state.head
      && part.left <= left && part.top <= top && Math.min(tokens, left + seen) <= part.left + part.count + 1 && Math.min(tokens, top + seen) <= part.top + part.count + 1
      && (part.side === part.count || part.count < 3 * seen);
    if (!covers) {
      clearTimeout(this.resting);
      const count = Math.min(tokens, Math.ceil(1.5 * seen) + 1); // somewhat more than is seen, to be dragged
      const from = (first) => Math.max(0, Math.min(tokens - count, Math.floor(first - 0.25 * seen)));
      const asked = [from(top), from(left), count];
      const view = [state.input, state.layer, state.head, ...asked].join();
      if (this.askedFor === view) return null; // it is on its way, or cannot be had
      this.resting = setTimeout(() => {
        this.askedFor = view;
        host.part(...asked);
      }, REST_MS);
      return null;
    }
    const key = [state.theme, state.scale].join();
    if (this.finer?.part !== part || this.finer.key !== key) {
      const closer = new Maps(part.bits, [1, part.side, part.side], part.count);
      const { most, limit } = closer.extent(0, 0.999);
      Object.assign(closer, { most, limit: limit || most });
      this.finer = { part, key, closer, canvas: bitmap(part.bits, part.side, part.side, state.scale === "ratio" ? RATIO * maps.even([Math.floor(part.top)], state.one.real) : closer.limit, { ...state.look, direction: "from" }) };
    }
    const unit = side / seen;
    pen.clearRect(0, 0, side, side);
    pen.drawImage(this.finer.canvas, (part.left - left) * unit, (part.top - top) * unit, part.count * unit, part.count * unit);
    return this.finer.closer;
  }

  /** Attention at a cell: that of the part that is shown, where there is one. */
  at(maps, { query, key }) {
    const { part } = this.state;
    const [row, column] = part ? [query - part.top, key - part.left] : [];
    const inside = this.closer && row >= 0 && column >= 0 && row < part.count && column < part.count;
    if (inside) return { value: this.closer.at(0, this.closer.rowOf(row), this.closer.columnOf(column)), single: !this.closer.pooled };
    const head = this.state.more.length ? 0 : this.state.head;
    return { value: maps.at(head, maps.rowOf(query), maps.columnOf(key)), single: !maps.pooled };
  }

  /** The tokens with most of the attention in question, by name. */
  listMost(count) {
    const { state } = this;
    const { one } = state;
    const values = state.shown();
    this.most.hidden = !values || values.length === 1;
    if (this.most.hidden) return;
    const to = state.direction === "to" && state.asked.length;
    const places = largest(values, count, (token) => one.real[token]);
    const heading = state.weights === "written" ? `Largest shares ${to ? "written to" : "by key"}` : `Most attention ${to ? "is from" : "goes to"}`;
    refill(this.most, `${heading} (token, its number, share)`, places.map((token) => ({
      name: one.kinds[token] === "patch" ? nameOf(one, token) : readable(one.labels[token]), where: String(token), value: percent(values[token]), title: "Take this token",
      share: values[token] / values[places[0]], colour: tint(state, 1), act: () => state.set({ tokens: [token], hover: null }),
    })));
  }

  /** Names of the tokens along both sides, where there is room. */
  names(pen, maps, unit, side, style) {
    const { labels } = this.state.one;
    pen.font = `10px ${style.fontFamily}`;
    pen.textBaseline = "middle";
    const put = (words, across, down, turned) => {
      pen.save();
      pen.translate(across, down);
      if (turned) pen.rotate(-Math.PI / 2);
      const wide = pen.measureText(words).width;
      pen.fillStyle = style.getPropertyValue("--panel");
      pen.globalAlpha = 0.82;
      pen.fillRect(-2, -6, wide + 4, 12);
      pen.globalAlpha = 1;
      pen.fillStyle = style.getPropertyValue("--ink");
      pen.fillText(words, 0, 0);
      pen.restore();
    };
    const down = (side * this.zoom.scale) / maps.queries;
    const asks = (this.state.one.asks ?? this.state.one).labels;
    for (let i = Math.floor(this.zoom.y / down); i < Math.min(maps.queries, (this.zoom.y + side) / down); i++) {
      if (maps.rows > 1) put(readable(asks[i]), 3, (i + 0.5) * down - this.zoom.y, false);
    }
    const rows = maps.rows === 1 ? [] : [1, 14].map((above) => readable(asks[Math.min(maps.queries - 1, Math.floor((this.zoom.y + side - above) / down))]));
    const corner = Math.max(0, ...rows.map((words) => pen.measureText(words).width + 13)); // names of rows, where those of columns begin
    for (let i = Math.floor(this.zoom.x / unit); i < Math.min(maps.tokens, (this.zoom.x + side) / unit); i++) {
      const across = (i + 0.5) * unit - this.zoom.x;
      if (across >= corner) put(readable(labels[i]), across, side - 3, true);
    }
  }

  watch() {
    const { matrix, state } = this;
    const pin = () => {
      const { clientWidth, clientHeight } = this.matrix;
      for (const [axis, whole] of [["x", clientWidth], ["y", clientHeight]]) {
        this.zoom[axis] = Math.max(0, Math.min(whole * (this.zoom.scale - 1), this.zoom[axis]));
      }
      state.tell();
    };
    matrix.addEventListener("wheel", (event) => {
      event.preventDefault();
      const [px, py] = placeOn(matrix, event);
      const before = this.zoom.scale;
      this.zoom.scale = Math.max(1, Math.min(Math.max(64, state.one.count / 16), before * Math.exp(-event.deltaY * 0.0015)));
      const grown = this.zoom.scale / before;
      Object.assign(this.zoom, { x: (this.zoom.x + px) * grown - px, y: (this.zoom.y + py) * grown - py });
      pin();
    }, { passive: false });
    let held = null;
    matrix.addEventListener("pointerdown", (event) => {
      held = { at: placeOn(matrix, event), moved: false };
      matrix.setPointerCapture(event.pointerId);
    });
    matrix.addEventListener("pointermove", (event) => {
      const cell = this.cellAt(event);
      if (held && this.zoom.scale > 1) {
        const [x, y] = placeOn(matrix, event);
        this.zoom.x -= x - held.at[0];
        this.zoom.y -= y - held.at[1];
        held = { at: [x, y], moved: true };
        return pin();
      }
      if (!cell) return this.tip.hide();
      const maps = this.together();
      const { one } = state;
      const { value, single } = this.at(maps, cell);
      const hidden = maps.hides(cell.query, cell.key);
      const named = (token, of) => (single ? nameOf(of, token) : `token ${token} and those beside it`);
      const from = maps.rows === 1 && !one.asks ? "the class token" : named(cell.query, one.asks ?? one);
      this.tip.show(event, hidden ? "masked" : percent(value), hidden ? "This query cannot see this key, which comes later." : `from ${from} to ${named(cell.key, one)}`);
    });
    matrix.addEventListener("pointerup", (event) => {
      const cell = this.cellAt(event);
      if (held && !held.moved && cell) state.set({ tokens: [state.direction === "from" ? cell.query : cell.key], hover: null });
      held = null;
    });
    matrix.addEventListener("pointercancel", () => (held = null)); // the browser moves the page instead
    matrix.addEventListener("dblclick", () => {
      this.zoom = { x: 0, y: 0, scale: 1 };
      state.tell();
    });
  }

  cellAt(event) {
    const maps = this.state.one.maps(this.state.card);
    if (!maps) return null;
    const [x, y] = placeOn(this.matrix, event);
    const at = (pixel, offset, whole, size) => Math.floor(((pixel + offset) / (whole * this.zoom.scale)) * size);
    const query = at(y, this.zoom.y, this.matrix.offsetHeight, maps.queries);
    const key = at(x, this.zoom.x, this.matrix.offsetWidth, maps.tokens);
    return query >= 0 && key >= 0 && key < maps.tokens && query < maps.queries ? { query, key } : null;
  }

  // -------------------------------------------------------------------------------------------------- norms

  drawNorms() {
    const { state } = this;
    const { one } = state;
    if (this.shown !== "norms") this.show("norms", (this.rows = make("div", "aw-norms")));
    const operands = [["q", "queries"], ["k", "keys"], ["v", "values"]];
    while (this.rows.children.length < operands.length) {
      const canvas = make("canvas");
      const row = make("div", "aw-norm", null, make("h3"), canvas);
      canvas.addEventListener("pointermove", (event) => {
        const { values, places } = canvas.held ?? {};
        if (!values) return;
        const box = canvas.getBoundingClientRect();
        const token = places[Math.floor(((event.clientX - box.left) / box.width) * places.length)];
        if (token !== undefined) this.tip.show(event, nameOf(one, token), number(values[token]));
      });
      this.rows.append(row);
    }
    const style = palette(state.theme, this.box);
    operands.forEach(([site, name], i) => {
      const row = this.rows.children[i];
      const canvas = row.lastChild;
      const array = one.norms(state.card, site);
      canvas.held = null;
      const length = array ? array.shape[1] : 0;
      if (length !== one.count) {
        row.firstChild.textContent = length ? `‖${site}‖ of the ${name}: of ${length}, not of the ${one.count} tokens` : `no ${name} here`;
        fresh(canvas, 1, 1);
        return;
      }
      const shared = Math.floor((state.head * array.shape[0]) / state.card.heads); // grouped heads share keys and values
      const values = array.values.subarray(shared * length, (shared + 1) * length);
      const places = [...values.keys()].filter((token) => one.real[token]);
      const most = Math.max(...places.map((token) => values[token]));
      const top = places.find((token) => values[token] === most);
      const middle = quantile(places.map((token) => values[token]), 0.5);
      row.firstChild.textContent = state.sentence("norms", { operand: site, operands: name, median: number(middle), largest: number(most), token: nameOf(one, top) });
      const [width, height] = [this.body.clientWidth, Math.max(60, Math.min(150, (this.body.clientHeight - 140) / 3))];
      const pen = fresh(canvas, width, height);
      if (!pen) return;
      canvas.held = { values, places };
      const wide = width / places.length;
      places.forEach((token, place) => {
        const asked = state.asked.includes(token);
        pen.fillStyle = asked ? tint(state, 1) : style.getPropertyValue("--bar");
        const tall = (values[token] / most) * (height - 4);
        pen.fillRect(place * wide, height - tall, Math.max(0.8, wide - (wide > 4 ? 1 : 0)), tall);
      });
      pen.fillStyle = style.getPropertyValue("--ink");
      pen.globalAlpha = 0.7;
      pen.fillRect(0, height - (middle / most) * (height - 4), width, 1);
      pen.globalAlpha = 1;
    });
  }

  // ------------------------------------------------------------------------------------------------ metrics

  drawMetrics() {
    const { state } = this;
    const { metrics, layers } = state.bundle;
    if (this.shown !== "metrics") {
      this.rows = make("div", "aw-metrics");
      for (const metric of metrics) {
        const row = make("div", "aw-metric", null, make("span", "aw-label", metric.short ? capital(metric.short) : metric.label), make("small"), make("span", "aw-value"), make("canvas"));
        row.title = `${metric.label}: ${metric.definition} (${metric.source})`;
        this.rows.append(row);
      }
      this.show("metrics", make("p", "aw-note", "Grey: every head of the model; blue: this head; band: its null range, tick: null mean."), this.rows);
    }
    const width = state.measured(this, "metrics", () => this.rows.clientWidth);
    const key = [state.input, state.layer, state.head, state.theme, width, density()].join();
    if (this.measuredAt === key) return; // no hover changes it
    this.measuredAt = key;
    const style = palette(state.theme, this.box);
    const colour = (name) => style.getPropertyValue(name);
    metrics.forEach((metric, i) => {
      const row = this.rows.children[i];
      const [, beside, words, canvas] = row.children;
      const value = state.one.metric(metric.name, "value", state.card, state.head);
      const level = metric.null ? state.one.metric(metric.name, "null_mean", state.card, state.head) : NaN;
      const z = metric.null ? state.one.metric(metric.name, "z", state.card, state.head) : NaN;
      words.textContent = `${number(value)}${metric.unit && Number.isFinite(value) ? ` ${metric.unit}` : ""}`;
      beside.textContent = Number.isFinite(level) ? `null ${number(level)}${Number.isFinite(z) ? `, z ${number(z).replace("-", "−")}` : ""}` : "";
      const all = [];
      for (const layer of layers) for (let head = 0; head < layer.heads; head++) all.push(state.one.metric(metric.name, "value", layer, head));
      const known = all.filter(Number.isFinite);
      const height = 18;
      const pen = fresh(canvas, width, height);
      if (!pen) return;
      const [from, to] = ["null_low", "null_high"].map((which) => (metric.null ? state.one.metric(metric.name, which, state.card, state.head) : NaN));
      const ends = [...known, level, from, to].filter(Number.isFinite);
      const low = metric.low ?? Math.min(...ends);
      const high = metric.high ?? Math.max(...ends, low + 1e-9);
      const along = (number) => 5 + ((number - low) / (high - low || 1)) * (width - 10);
      pen.fillStyle = colour("--line");
      pen.fillRect(5, height / 2 - 0.5, width - 10, 1);
      if (metric.null) {
        pen.fillStyle = colour("--band");
        if (Number.isFinite(from) && Number.isFinite(to)) pen.fillRect(along(from), 2, Math.max(2, along(to) - along(from)), height - 4);
        pen.fillStyle = colour("--ink");
        if (Number.isFinite(level)) pen.fillRect(along(level) - 0.5, 1, 1.25, height - 2);
      }
      pen.fillStyle = colour("--muted");
      pen.globalAlpha = Math.max(0.16, Math.min(0.6, 14 / known.length));
      for (const one of known) dot(pen, along(one), height / 2, 3);
      pen.globalAlpha = 1;
      pen.fillStyle = tint(state, 1, "from");
      pen.strokeStyle = colour("--panel");
      pen.lineWidth = 1.5;
      if (Number.isFinite(value)) {
        dot(pen, along(value), height / 2, 4.75);
        pen.stroke();
      }
    });
  }
}

function dot(pen, x, y, radius) {
  pen.beginPath();
  pen.arc(x, y, radius, 0, 2 * Math.PI);
  pen.fill();
}
