// Membership: how strongly every token belongs to the head among all heads of its layer (Wu et al. 2025).

import { density, fresh, mosaic, palette, percent } from "./colour.js";
import { arranged, tint } from "./grid.js";
import { patchesOf } from "./image.js";
import { make, readable, refill } from "./state.js";

export class Membership {
  constructor(state, tip) {
    this.state = state;
    this.tip = tip;
    this.reads = make("p", "aw-reads");
    this.map = make("canvas", "aw-effects");
    this.map.setAttribute("role", "img");
    this.title = make("h3");
    this.heads = make("div", "aw-most");
    this.tokens = make("div", "aw-most");
    this.note = make("p", "aw-note", "The more of a token lies in the directions that a head reads, the larger its share there, against the other heads of the layer. A token's shares add up to 100 % (Wu et al. 2025, eq. 10). Token statistics attention computes them; in other layers the directions are those of the value projections. Bars: 0 to 100 %. Null (tick): each head has the same share.");
    this.element = make("div", "aw-norms", null, this.reads, this.title, this.map, this.heads, this.tokens, this.note);
    this.map.addEventListener("pointermove", (event) => {
      const token = this.tokenAt(event);
      if (token === null) return tip.hide();
      tip.show(event, readable(state.one.labels[token]), percent(this.shares[token]));
    });
    this.map.addEventListener("click", (event) => {
      const token = this.tokenAt(event);
      if (token !== null) state.set({ tokens: [token], hover: null });
    });
  }

  tokenAt(event) {
    if (!this.shown) return null;
    const box = this.map.getBoundingClientRect();
    const { columns, rows, tokens } = this.shown;
    const [x, y] = [Math.floor(((event.clientX - box.left) / box.width) * columns), Math.floor(((event.clientY - box.top) / box.height) * rows)];
    return x >= 0 && x < columns && y >= 0 && y < rows ? tokens[y * columns + x] ?? null : null;
  }

  draw(width, height) {
    const { state } = this;
    const { one, card } = state;
    const all = one.membership(card);
    const key = [state.input, state.layer, state.head, state.theme, state.tokens.join(), width, height, density()].join();
    if (this.drawn === key) return; // no hover changes it
    this.drawn = key;
    this.shown = null;
    const known = [...one.real.keys()].filter((token) => Number.isFinite(all[0][token]) && (!one.grid || one.kinds[token] === "patch"));
    const means = all.map((row) => known.reduce((sum, token) => sum + row[token], 0) / known.length);
    const own = Math.min(state.head, all.length - 1);
    this.shares = all[own];
    const order = [...known].sort((a, b) => this.shares[b] - this.shares[a]);
    const what = one.grid ? "patches" : "tokens";
    const most = known.filter((token) => all.every((row) => row[token] <= this.shares[token])).length;
    this.reads.textContent = state.sentence("membership", { head: own, share: percent(means[own]), tokens: what, uniform: percent(1 / all.length), most, count: known.length });
    this.title.textContent = `Membership of each patch in head ${own}, full colour at ${percent(this.shares[order[0]])}`;
    this.title.hidden = this.map.hidden = !one.grid; // words have their list
    const map = arranged(this.shares, one);
    const tokens = one.grid ? patchesOf(one) : [...one.real.keys()].filter((token) => one.real[token]);
    const side = Math.min(width, 220);
    const tall = one.grid ? (side * one.image[0]) / one.image[1] : (side * map.rows) / map.columns;
    const pen = fresh(this.map, side, tall);
    const top = this.shares[order[0]];
    if (pen) {
      mosaic(pen, map.values, map.columns, map.rows, top, { theme: state.theme, scale: "linear", direction: "from" }, { x: 0, y: 0, width: side, height: tall });
      this.shown = { columns: map.columns, rows: map.rows, tokens };
      pen.strokeStyle = palette(state.theme, this.element).getPropertyValue("--ink");
      pen.lineWidth = 2;
      for (const token of state.tokens) {
        const i = tokens.indexOf(token);
        const [wide, high] = [side / map.columns, tall / map.rows];
        if (i >= 0) pen.strokeRect((i % map.columns) * wide + 1, Math.floor(i / map.columns) * high + 1, wide - 2, high - 2);
      }
    }
    this.map.setAttribute("aria-label", this.reads.textContent);
    const row = (name, where, value, pressed, act) => ({
      name, where, pressed, act, value: percent(value), title: `${name}: ${percent(value)}`, share: value, tick: 1 / all.length, colour: tint(state, 1, "from"),
    });
    refill(this.heads, `Mean membership of the ${what}, by head`, means.map((mean, head) => row(`head ${head}`, "", mean, head === own, () => state.set({ head, more: [] }))));
    refill(this.tokens, `Largest membership in head ${own}`, order.slice(0, one.grid ? 6 : 14).map((token) => row(readable(one.labels[token]), String(token), this.shares[token], state.tokens.includes(token), () => state.set({ tokens: [token], hover: null }))));
  }
}
