// Queries times keys, feature by feature (the neuron view of Vig 2019), and both as points of one plane.

import { fresh, number, palette, percent } from "./colour.js";
import { tint } from "./grid.js";
import { button, choice, make, placeOn, readable } from "./state.js";

const ROWS = 24;
const MOVED = "Keys are moved onto the mean of the queries and both are brought to one size, which leaves attention unchanged (after Yeh et al. 2023).";
const READS = {
  pca: `Axes: the first two principal components of queries and keys together. ${MOVED}`,
  umap: `Laid out by UMAP (McInnes et al. 2018): near points are similar; axes and distances between groups have no meaning. ${MOVED}`,
};

/** The tokens in question as one vector, the mean of their queries (or keys), and every token on the other side. */
function sides(state) {
  const { one, card } = state;
  const q = one.operand(card, "q", state.head);
  const k = one.operand(card, "k", state.head);
  const to = state.direction === "to" && state.asked.length > 0 && q.length > 1;
  const [own, other] = to ? [k, q] : [q, k];
  const real = [...one.real.keys()].filter((token) => one.real[token]);
  const asked = own.length === 1 ? [0] : state.asked.length ? state.asked : real;
  const mean = own[0].map((_, i) => asked.reduce((sum, token) => sum + own[token][i], 0) / asked.length);
  return { to, mean, other, asked, real, scale: one.scale(card, state.head), attention: state.attention(state.layer, state.head) };
}

export class Products {
  constructor(state, tip) {
    this.state = state;
    this.tip = tip;
    this.reads = make("p", "aw-note aw-reads");
    this.rows = make("div", "aw-products");
    this.note = make("p", "aw-note", "A row is a key. Its cells are scale × query × key, one for each feature of the head: blue raises the logit, orange lowers it. The sum of a row is the logit that softmax takes, before mask and bias.");
    this.header = make("div", "aw-columns", null, make("span"), make("span"), make("span", "aw-value", "logit"), make("span", "aw-value", "attention"));
    this.element = make("div", "aw-norms", null, this.reads, make("div", "aw-products", null, this.header, this.rows), this.note);
    this.rows.addEventListener("pointermove", (event) => this.pointed(event));
  }

  draw(width, height) {
    const { state } = this;
    const { one } = state;
    const { to, mean, other, asked, real, scale, attention } = sides(state);
    const count = Math.max(4, Math.min(ROWS, Math.floor((height - 130) / 21), real.length));
    const order = [...real].sort((a, b) => attention[b] - attention[a]);
    const shown = order.slice(0, count);
    const product = (token) => other[token].map((part, i) => scale * part * mean[i]);
    // the mean key is that of keys the query sees: of causal attention those up to it
    const visible = one.maps(state.card).causal && asked.length === 1 ? real.filter((token) => (to ? token >= asked[0] : token <= asked[0])) : real;
    const level = mean.map((part, i) => (scale * part * visible.reduce((sum, token) => sum + other[token][i], 0)) / visible.length);
    const table = shown.map((token) => ({ token, parts: product(token) }));
    const most = Math.max(...table.flatMap(({ parts }) => parts.map(Math.abs)), 1e-12);
    this.table = table;
    this.fixed = { mean, other, scale, to };
    while (this.rows.children.length > table.length) this.rows.lastChild.remove();
    while (this.rows.children.length < table.length) {
      const row = button("", "Take this token", () => state.set({ tokens: [Number(row.dataset.token)], hover: null }), "aw-product");
      row.append(make("span", "aw-name"), make("canvas"), make("span", "aw-value"), make("span", "aw-value"));
      this.rows.append(row);
    }
    const names = one.labels.every((label) => label.length <= 5) ? 42 : 92;
    this.header.parentNode.style.setProperty("--aw-names", `${names}px`);
    this.header.children[0].textContent = to ? "query" : "key";
    this.header.children[1].textContent = `features 0 to ${mean.length - 1}`;
    const wide = Math.max(60, width - names - 124);
    table.forEach(({ token, parts }, place) => {
      const row = this.rows.children[place];
      const [name, canvas, logit, share] = row.children;
      row.dataset.token = token;
      name.textContent = readable(one.labels[token]);
      logit.textContent = number(parts.reduce((sum, part) => sum + part, 0)).replace("-", "−");
      share.textContent = percent(attention[token]);
      const pen = fresh(canvas, wide, 15);
      if (!pen) return;
      const unit = wide / parts.length;
      parts.forEach((part, i) => {
        pen.fillStyle = tint(state, Math.sqrt(Math.abs(part) / most), part >= 0 ? "from" : "to");
        pen.fillRect(i * unit, 0, Math.max(0.8, unit - (unit > 5 ? 1 : 0)), 15);
      });
    });
    const first = table[0];
    const ahead = first.parts.map((part, i) => part - level[i]);
    const best = ahead.indexOf(Math.max(...ahead));
    const sum = ahead.reduce((all, part) => all + part, 0);
    const who = asked.length === 1 && state.asked.length ? `“${readable(one.labels[asked[0]])}”` : `of ${asked.length === real.length ? "all" : asked.length} tokens (mean)`;
    this.reads.textContent = state.sentence("products", {
      side: to ? "key" : "query", asked: who, feature: best, token: `“${readable(one.labels[first.token])}”`, lead: number(ahead[best]), other: to ? "query" : "key", sum: number(sum).replace("-", "−"),
    });
  }

  pointed(event) {
    const row = event.target.closest(".aw-product");
    if (!row || event.target.tagName !== "CANVAS") return this.tip.hide();
    const box = event.target.getBoundingClientRect();
    const { mean, other, scale, to } = this.fixed;
    const token = Number(row.dataset.token);
    const i = Math.min(mean.length - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * mean.length)));
    const [q, k] = to ? [other[token][i], mean[i]] : [mean[i], other[token][i]];
    const words = (value) => number(value).replace("-", "−");
    this.tip.show(event, `Feature ${i}: ${words(scale * q * k)} nats`, `scale ${number(scale)} × query ${words(q)} × key ${words(k)}`);
  }
}

export class Plane {
  constructor(state, tip, host = {}) {
    this.state = state;
    this.tip = tip;
    this.reads = make("p", "aw-note aw-reads");
    this.kind = choice("how queries and keys become a plane", [["pca", "PCA", "Principal components"], ["umap", "UMAP", "UMAP of this head: the kernel computes it, at first in half a minute"]], "pca", (plane) => {
      if (plane === "umap" && !this.embedding) host.embed();
      else state.set({ plane });
    });
    this.kind.hidden = !host.umap;
    this.key = make("p", "aw-reads");
    this.canvas = make("canvas", "aw-plane");
    this.canvas.setAttribute("role", "img");
    this.note = make("p", "aw-note");
    this.element = make("div", "aw-norms", null, this.kind, this.reads, this.key, this.canvas, this.note);
    this.canvas.addEventListener("pointermove", (event) => this.pointed(event));
    this.canvas.addEventListener("click", () => this.near && state.set({ tokens: [this.near.token], direction: this.near.side === "q" ? "from" : "to", hover: null }));
  }

  /** Queries and keys of the head that is looked at by UMAP, or null. */
  get embedding() {
    const { one, layer, head, embedding } = this.state;
    const fits = embedding?.id === one.id && embedding.layer === layer && embedding.head === head && embedding.k.length === one.count;
    const points = (rows) => rows.map((row) => row ?? [NaN, NaN]);
    return fits ? { q: points(embedding.q), k: points(embedding.k) } : null;
  }

  draw(width, height) {
    const { state } = this;
    const { one, card, head } = state;
    const embedding = state.plane === "umap" ? this.embedding : null;
    const plane = embedding ?? one.plane(card, head);
    const kind = embedding ? "umap" : "pca";
    this.kind.show(kind);
    this.note.textContent = READS[kind];
    this.points = [];
    const dot = (side) => Object.assign(make("b", "", "● "), { style: `color: ${tint(state, 1, side)}` });
    const strength = !state.asked.length ? "Choose a token to see its attention" : state.direction === "to" ? "a stronger query gives more attention to the chosen key" : "a stronger key gets more attention from the chosen query";
    this.key.replaceChildren(dot("from"), "query of a token  ", dot("to"), `key of a token. ${strength[0].toUpperCase()}${strength.slice(1)}.`);
    this.reads.textContent = embedding
      ? state.sentence("umap", { keys: one.real.filter(Boolean).length, queries: plane.q.length === 1 ? "one query" : "their queries" })
      : state.sentence("plane", { share: percent(plane.share[0] + plane.share[1]), across: percent(plane.share[0]), up: percent(plane.share[1]) });
    this.canvas.setAttribute("aria-label", `Queries and keys of layer ${state.layer}, head ${head}. ${this.reads.textContent}`);
    const all = [...plane.q, ...plane.k].filter(([x]) => Number.isFinite(x));
    const bounds = [0, 1].map((axis) => [Math.min(...all.map((point) => point[axis])), Math.max(...all.map((point) => point[axis]))]);
    const [across, up] = bounds.map(([low, high]) => high - low || 1);
    const side = Math.max(120, Math.min((up / across) * (width - 24) + 24, width, height - 130, 520));
    const pen = fresh(this.canvas, width, side);
    if (!pen) return;
    const unit = Math.min((width - 24) / across, (side - 24) / up); // one unit on both axes
    const middle = bounds.map(([low, high]) => (low + high) / 2);
    const at = ([x, y]) => [width / 2 + (x - middle[0]) * unit, side / 2 - (y - middle[1]) * unit];
    const single = plane.q.length === 1;
    const asked = single ? [0] : state.asked;
    const attention = state.attention(state.layer, head);
    const most = attention ? Math.max(...attention) : 1;
    const style = palette(state.theme, this.element);
    const mark = (token, side, radius, alpha) => {
      const [x, y] = at(plane[side][token]);
      pen.globalAlpha = alpha;
      pen.fillStyle = tint(state, 1, side === "q" ? "from" : "to");
      pen.beginPath();
      pen.arc(x, y, radius, 0, 2 * Math.PI);
      pen.fill();
      this.points.push({ x, y, token: single && side === "q" ? one.kinds.indexOf("class") : token, side });
    };
    const real = [...one.real.keys()].filter((token) => one.real[token]);
    const to = state.direction === "to" && asked.length && !single;
    for (const token of real) {
      const strength = asked.length && attention ? Math.sqrt(attention[token] / most) : 0.5;
      mark(token, "k", 2.6 + (to ? 0 : 2.4 * strength), to ? 0.18 : 0.15 + 0.8 * strength);
      if (!single) mark(token, "q", 2.6 + (to ? 2.4 * strength : 0), to ? 0.15 + 0.8 * strength : asked.length ? 0.22 : 0.5);
    }
    pen.globalAlpha = 1;
    for (const token of asked) {
      const own = to ? "k" : "q";
      mark(token, own, 5.5, 1);
      pen.strokeStyle = style.getPropertyValue("--ink");
      pen.lineWidth = 2;
      pen.stroke();
    }
    if (!asked.length || !attention) return;
    pen.font = `11px ${style.fontFamily}`;
    pen.textBaseline = "middle";
    const taken = [];
    for (const token of [...real].sort((a, b) => attention[b] - attention[a]).slice(0, 6)) {
      const [x, y] = at(plane[to ? "q" : "k"][token]);
      const name = readable(one.labels[token]).slice(0, 18);
      const wide = pen.measureText(name).width;
      const places = [[x + 8, y], [x - 8 - wide, y], [x - wide / 2, y - 13], [x - wide / 2, y + 14]].filter(([from, at]) => from >= 0 && from + wide <= width && at > 6 && at < side - 6
        && !taken.some((box) => Math.abs(box.y - at) < 13 && from < box.right && from + wide > box.left));
      const covers = ([from, at]) => this.points.filter((point) => point.x > from - 4 && point.x < from + wide + 4 && Math.abs(point.y - at) < 9).length;
      if (!places.length) continue;
      const [left, level] = places.reduce((best, place) => (covers(place) < covers(best) ? place : best));
      taken.push({ y: level, left, right: left + wide });
      pen.strokeStyle = style.getPropertyValue("--panel");
      pen.lineWidth = 3;
      pen.strokeText(name, left, level);
      pen.fillStyle = style.getPropertyValue("--ink");
      pen.fillText(name, left, level);
    }
  }

  pointed(event) {
    const [x, y] = placeOn(this.canvas, event);
    const far = (point) => Math.hypot(point.x - x, point.y - y);
    const near = this.points.reduce((best, point) => (!best || far(point) < far(best) ? point : best), null);
    this.near = near && far(near) < 12 ? near : null;
    this.canvas.style.cursor = this.near ? "pointer" : "default";
    if (!this.near) return this.tip.hide();
    const { labels } = this.state.one;
    this.tip.show(event, `${this.near.side === "q" ? "Query" : "Key"} “${readable(labels[this.near.token] ?? "class token")}”`, `token ${this.near.token}`);
  }
}
