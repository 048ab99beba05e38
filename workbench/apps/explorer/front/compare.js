// Pins, and a pinned view beside the one that is looked at: both on one scale, their difference, and what is usual.

import { fresh, lightLetters, mosaic, palette, percent, quantile, scaled } from "./colour.js";
import { arranged, tint } from "./grid.js";
import { inputImage } from "./image.js";
import { button, make, readable, viewKey, viewOf } from "./state.js";

const PAIRS = 240; // of heads, for what is usual

/** ½ Σ |a − b| over real tokens, as a share of what is there. */
function apart(a, b, real) {
  let [moved, whole] = [0, 0];
  for (let i = 0; i < a.length; i++) {
    if (!real[i]) continue;
    moved += Math.abs(a[i] - b[i]);
    whole += a[i] + b[i];
  }
  return whole > 0 ? moved / whole : 0;
}

export class Compare {
  constructor(state, tip, listens) {
    this.state = state;
    this.tip = tip;
    this.listens = listens;
    this.images = new Map();
    this.element = make("div", "aw-compare");
    this.panes = ["pinned", "here", "difference"].map((name) => {
      const pane = { name, title: make("h3"), room: make("div", "aw-pane-room") };
      pane.box = make("div", "aw-pane", null, pane.title, pane.room);
      this.element.append(pane.box);
      return pane;
    });
  }

  /** Both views: of one input and one head they keep their own tokens, of two heads both have those in question. */
  views() {
    const { state } = this;
    const pinned = viewOf(state.against, state.bundle);
    if (!pinned) return null;
    const here = { input: state.input, layer: state.layer, head: state.head, one: state.one, card: state.card, tokens: state.asked };
    const linked = pinned.input === here.input && (pinned.layer !== here.layer || pinned.head !== here.head);
    if (linked) pinned.tokens = here.tokens;
    const [a, b] = [pinned, here].map((view) => state.values(view.layer, view.head, view.tokens, view.one));
    const alike = a && b && a.length === b.length && String(pinned.one.grid) === String(here.one.grid) && (pinned.one.grid || pinned.input === here.input);
    return { pinned, here, linked, a, b, alike };
  }

  /** One sentence: how much attention is elsewhere, and how much that is in other heads. */
  words(found, whom) {
    const { state } = this;
    const { pinned, here, linked, a, b, alike } = found;
    const [mine, other] = [here, pinned].map((view) => `layer ${view.layer}, head ${view.head}`);
    const names = mine === other ? `L${mine.slice(1)}, twice` : `L${mine.slice(1)} beside ${other}`;
    if (!a || !b) return `${names}: no attention matrix in one of them.`;
    if (!alike) return `${names}: their inputs have other tokens, so there is no difference to take.`;
    const usual = percent(this.usual(found));
    return linked
      ? `${names}, from ${whom}: ${percent(apart(a, b, state.one.real))} of attention elsewhere; two random heads: ${usual} (median).`
      : `${names}, each from its own tokens: ${percent(apart(a, b, state.one.real))} of attention elsewhere; in other heads ${usual} (median).`;
  }

  usual({ pinned, here, linked }) {
    const { state } = this;
    const key = [state.against, viewKey(here), state.direction].join();
    if (this.known?.key === key) return this.known.value;
    const heads = state.bundle.layers.flatMap((layer) => (layer.without ? [] : Array.from({ length: layer.heads }, (_, head) => [layer.index, head])));
    const values = (view, [layer, head]) => state.values(layer, head, view.tokens, view.one);
    const found = [];
    if (linked) {
      const rows = heads.map((head) => values(here, head)).filter((row) => row && row.length === state.one.count);
      for (let i = 0; i < PAIRS && rows.length > 1; i++) {
        const [x, y] = [(i * 7919) % rows.length, (i * 104729 + 1 + Math.floor(i / rows.length)) % rows.length]; // the same pairs every time
        if (x !== y) found.push(apart(rows[x], rows[y], state.one.real));
      }
    } else {
      for (const head of heads) {
        const [x, y] = [values(pinned, head), values(here, head)];
        if (x && y && x.length === y.length) found.push(apart(x, y, state.one.real));
      }
    }
    this.known = { key, value: quantile(found, 0.5) };
    return this.known.value;
  }

  /** Draw all panes; returns the value at which both views have full colour. */
  draw(found, width, height) {
    const { state } = this;
    const { pinned, here, a, b, alike } = found;
    const real = state.one.real;
    const limit = Math.max(...[a, b].filter(Boolean).flatMap((row) => [...row]), 1e-9);
    const change = alike ? b.map((value, i) => (real[i] ? value - a[i] : 0)) : null;
    const most = change ? Math.max(...change.map(Math.abs), 1e-9) : 1;
    const side = state.scale === "log" ? "sqrt" : state.scale; // a difference goes through 0
    const sets = [
      { view: pinned, values: a, limit, title: `Pinned: layer ${pinned.layer}, head ${pinned.head}${pinned.input === here.input ? "" : `, ${pinned.one.id}`}` },
      { view: here, values: b, limit, title: `Here: layer ${here.layer}, head ${here.head}` },
      { view: here, values: change, limit: most, title: change ? `Difference (full at ${percent(most)})` : "No difference: other tokens" },
    ];
    const stacked = width < 520;
    this.element.classList.toggle("aw-stacked", stacked);
    sets.forEach(({ view, values, limit: full, title }, place) => {
      const pane = this.panes[place];
      pane.title.textContent = title;
      pane.title.title = title;
      const colour = (value) => {
        const share = scaled(Math.abs(value), full, place === 2 ? side : state.scale);
        return { share, direction: place === 2 ? (value >= 0 ? "from" : "to") : state.look.direction };
      };
      if (view.one.grid) this.drawImage(pane, view, values, colour, stacked ? width : (width - 24) / 3, stacked ? width : height - 44);
      else this.drawWords(pane, view, values, colour);
    });
    return limit;
  }

  drawImage(pane, view, values, colour, wide, tall) {
    const { state } = this;
    const { one } = view;
    const [rows, columns] = one.grid;
    const [high, across] = one.image ?? one.grid;
    const unit = Math.min(wide / across, tall / high);
    const [width, height] = [Math.floor(across * unit), Math.floor(high * unit)];
    if (pane.kind !== `image ${view.input}`) {
      pane.kind = `image ${view.input}`;
      pane.canvas = make("canvas", "aw-image");
      pane.canvas.setAttribute("role", "img");
      pane.room.replaceChildren(pane.canvas);
      const patches = [...one.kinds.keys()].filter((i) => one.kinds[i] === "patch");
      pane.patches = patches;
      if (view.input === state.input) {
        this.listens(pane.canvas, (event) => {
          const box = pane.canvas.getBoundingClientRect();
          const [x, y] = [Math.floor(((event.clientX - box.left) / box.width) * columns), Math.floor(((event.clientY - box.top) / box.height) * rows)];
          return x >= 0 && x < columns && y >= 0 && y < rows ? patches[y * columns + x] : null;
        });
      }
    }
    pane.canvas.setAttribute("aria-label", pane.title.textContent);
    const pen = fresh(pane.canvas, width, height);
    if (!pen) return;
    if (!this.images.has(view.input)) this.images.set(view.input, inputImage(one, true));
    const image = this.images.get(view.input);
    pen.imageSmoothingEnabled = across > 64;
    if (image) pen.drawImage(image, 0, 0, width, height);
    pane.patches.forEach((token, i) => {
      if (!values || token >= values.length) return;
      const { share, direction } = colour(values[token]);
      pen.fillStyle = tint(state, share * state.opacity, direction);
      const [x, y] = [Math.round(((i % columns) * width) / columns), Math.round((Math.floor(i / columns) * height) / rows)];
      pen.fillRect(x, y, Math.round((((i % columns) + 1) * width) / columns) - x, Math.round(((Math.floor(i / columns) + 1) * height) / rows) - y);
    });
    for (const token of view.tokens) {
      const i = pane.patches.indexOf(token);
      if (i < 0) continue;
      for (const [ink, thick] of [["#ffffff", 4], ["#111418", 2]]) {
        pen.strokeStyle = ink;
        pen.lineWidth = thick;
        pen.strokeRect(((i % columns) * width) / columns + 1, (Math.floor(i / columns) * height) / rows + 1, width / columns - 2, height / rows - 2);
      }
    }
  }

  drawWords(pane, view, values, colour) {
    const { state } = this;
    const { one } = view;
    if (pane.kind !== `words ${view.input}`) {
      pane.kind = `words ${view.input}`;
      pane.chips = [...one.kinds.keys()].filter((i) => one.real[i]).map((token) => {
        const chip = make("button", `aw-token aw-${one.kinds[token] === "word" ? "word" : "other"}`, readable(one.labels[token]));
        chip.type = "button";
        chip.tabIndex = -1;
        if (view.input === state.input) this.listens(chip, () => token);
        return [token, chip];
      });
      pane.room.replaceChildren(make("div", "aw-text", null, ...pane.chips.map(([, chip]) => chip)));
    }
    for (const [token, chip] of pane.chips) {
      const { share, direction } = values && token < values.length ? colour(values[token]) : { share: 0, direction: "from" };
      const alpha = share * 0.9;
      chip.style.backgroundColor = alpha > 0.01 ? tint(state, alpha, direction) : "";
      chip.style.color = alpha < 0.25 ? "" : lightLetters(state.theme, direction, alpha) ? "#ffffff" : "#16191d";
      chip.classList.toggle("aw-asked", view.tokens.includes(token));
    }
  }
}

/** The pinned views as small maps in a row: a click, or a drop on the head view, sets one beside what is looked at. */
export class Pins {
  constructor(state, tip) {
    this.state = state;
    this.tip = tip;
    this.box = make("div", "aw-pins");
    this.box.setAttribute("role", "group");
    this.box.setAttribute("aria-label", "pinned views");
  }

  draw() {
    const { state } = this;
    const key = [state.pins.join(), state.against, state.theme, state.scale].join("|");
    if (this.drawn === key) return;
    this.drawn = key;
    this.box.replaceChildren();
    for (const pin of state.pins) {
      const view = viewOf(pin, state.bundle);
      const name = `Layer ${view.layer}, head ${view.head}, ${view.tokens.length ? view.tokens.map((token) => readable(view.one.labels[token])).join(" ") : "all queries"}, ${view.one.id}`;
      const compared = state.against === pin;
      const show = button("", compared ? `${name}: stop comparing` : `${name}: compare with it`, () => state.set({ against: compared ? "" : pin }), "aw-pin");
      show.setAttribute("aria-label", `${view.layer}.${view.head}: ${show.title}`);
      show.setAttribute("aria-pressed", String(compared));
      show.draggable = true;
      show.addEventListener("dragstart", (event) => event.dataTransfer.setData("text/plain", pin));
      const canvas = make("canvas");
      show.append(canvas, make("span", "", `${view.layer}.${view.head}`));
      const away = button("×", `Unpin ${name}`, () => state.set({ pins: state.pins.filter((other) => other !== pin), against: compared ? "" : state.against }), "aw-unpin");
      away.setAttribute("aria-label", away.title);
      this.box.append(make("div", "aw-pinned", null, show, away));
      const values = state.values(view.layer, view.head, view.tokens, view.one);
      const map = values && arranged(values, view.one);
      const pen = fresh(canvas, 24, 24);
      if (pen && map) mosaic(pen, map.values, map.columns, map.rows, map.most, { theme: state.theme, scale: state.scale, direction: "from" }, { x: 0, y: 0, width: 24, height: 24 });
    }
  }
}
