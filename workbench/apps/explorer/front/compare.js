// Pins, and a pinned view beside the one that is looked at: both on one scale, with their difference and its usual size.

import { RATIO, fresh, mosaic, percent, quantile, scaled } from "./colour.js";
import { arranged, tint, wordColours } from "./grid.js";
import { drawChips, drawPatches, inputImage, patchAt } from "./image.js";
import { button, capital, make, readable, viewKey } from "./state.js";

const PAIRS = 240; // pairs of heads, for the usual difference

/** ½ Σ |a − b| over tokens that are one another's, as a share of what is there. */
function apart(a, b, pairs) {
  let [moved, whole] = [0, 0];
  for (const [i, j] of pairs) {
    moved += Math.abs(a[i] - b[j]);
    whole += a[i] + b[j];
  }
  return whole > 0 ? moved / whole : 0;
}

/** Whether two inputs have the same tokens. */
function sameWords(one, other) {
  return one === other || (one.count === other.count && one.labels.every((label, i) => label === other.labels[i]));
}

/** Which tokens of one input are which of another: of texts as long as one another in their order, or patches of one grid; null where none are. */
function matched(one, other) {
  const grid = one.grid && String(one.grid) === String(other.grid);
  if (sameWords(one, other) || (grid && one.kinds.join() === other.kinds.join())) return [...one.real.keys()].filter((i) => one.real[i] && other.real[i]).map((i) => [i, i]);
  if (!grid && (one.grid || other.grid)) return null;
  const [a, b] = [one, other].map(({ kinds, real }) => [...kinds.keys()].filter((i) => (grid ? kinds[i] === "patch" : real[i])));
  return a.length === b.length ? a.map((token, i) => [token, b[i]]) : null;
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
    const pinned = state.viewOf(state.against);
    if (!pinned) return null;
    const here = { input: state.input, layer: state.layer, head: state.head, one: state.one, card: state.card, tokens: state.asked, bundle: state.bundle };
    const pairs = matched(pinned.one, here.one);
    const twoModels = pinned.bundle !== here.bundle;
    const words = pinned.one === here.one || (twoModels && pinned.one.id === here.one.id && pairs && pinned.one.count === here.one.count);
    const linked = words && (twoModels || pinned.layer !== here.layer || pinned.head !== here.head);
    if (linked) pinned.tokens = here.tokens;
    const [a, b] = [pinned, here].map((view) => state.values(view.layer, view.head, view.tokens, view.one));
    const comparable = a && b && pairs && pairs.every(([i, j]) => i < a.length && j < b.length);
    return { pinned, here, linked, twoModels, pairs, a, b, comparable };
  }

  /** One sentence: how much attention is elsewhere, and how much that is in other heads. */
  words(found, whom) {
    const { state } = this;
    const { pinned, here, linked, twoModels, pairs, a, b, comparable } = found;
    const named = (view) => `layer ${view.layer}, head ${view.head}${twoModels ? ` of ${modelName(view)}` : ""}`;
    const [first, other] = [here, pinned].map(named);
    const second = first === other ? "the same head of the pinned view" : other;
    if (!a || !b || !comparable) return `${capital(first)} beside ${second}: ${a && b ? "their inputs differ in the number of tokens, so no difference is drawn" : "no attention matrix in one of them"}.`;
    const inOrder = pinned.one.grid || sameWords(pinned.one, here.one) ? "" : ", token by token in their order";
    const tokens = `${linked ? `${state.look.direction} ${whom}` : `each ${state.look.direction} its own tokens`}${inOrder}`;
    const heads = twoModels ? "a random head of each" : linked ? "two heads drawn at random" : "in other heads";
    const [weights, moves] = [state.weights === "written" ? "the written norm" : "the attention", state.look.direction === "to" ? "comes from" : "goes to"];
    const said = state.filled("compare", { first, second, tokens, weights, moves, share: percent(apart(a, b, pairs)) });
    return `${capital(said)}; ${state.filled("usual", { heads, share: percent(this.usual(found)) })}.`;
  }

  usual({ pinned, here, linked, twoModels, pairs }) {
    const { state } = this;
    const key = [state.against, viewKey(here), state.direction, state.weights].join();
    if (this.known?.key === key) return this.known.value;
    const headsOf = ({ bundle }) => bundle.layers.flatMap((layer) => (layer.without ? [] : Array.from({ length: layer.heads }, (_, head) => [layer.index, head])));
    const values = (view, [layer, head]) => state.values(layer, head, view.tokens, view.one);
    const whole = (view) => headsOf(view).map((head) => values(view, head)).filter((row) => row && row.length === view.one.count);
    const found = [];
    if (linked || twoModels) {
      const rows = whole(here);
      const others = twoModels ? whole(pinned) : rows;
      for (let i = 0; i < PAIRS && rows.length && others.length; i++) {
        const [x, y] = [(i * 7919) % others.length, (i * 104729 + 1 + Math.floor(i / rows.length)) % rows.length]; // the same pairs every time
        if (twoModels || x !== y) found.push(apart(others[x], rows[y], pairs));
      }
    } else {
      for (const head of headsOf(here)) {
        const [x, y] = [values(pinned, head), values(here, head)];
        if (x && y && x.length === y.length) found.push(apart(x, y, pairs));
      }
    }
    this.known = { key, value: quantile(found, 0.5) };
    return this.known.value;
  }

  /** The panes as an export draws them. */
  get parts() {
    return this.panes.map(({ title, part }) => ({ title: title.textContent, ...part }));
  }

  /** Draw all panes; returns the value at which both views have full colour. */
  draw(found, width, height) {
    const { state } = this;
    const { pinned, here, twoModels, pairs, a, b, comparable } = found;
    const limit = state.scale === "ratio" ? RATIO : Math.max(...[a, b].filter(Boolean).flatMap((row) => [...row]), 1e-9);
    const [first, second] = [[a, pinned], [b, here]].map(([row, view]) => state.relative(row, view.layer, view.tokens, view.one));
    const change = comparable ? new Float32Array(b.length) : null;
    if (change) for (const [i, j] of pairs) change[j] = b[j] - a[i];
    const most = change ? change.reduce((top, value) => Math.max(top, Math.abs(value)), 1e-9) : 1;
    const side = ["log", "ratio"].includes(state.scale) ? "sqrt" : state.scale; // a difference goes through 0
    const sets = [
      { view: pinned, values: first, limit, title: `Pinned: ${twoModels ? `${modelName(pinned)}, ` : ""}layer ${pinned.layer}, head ${pinned.head}${pinned.one.id === here.one.id ? "" : `, ${pinned.one.id}`}` },
      { view: here, values: second, limit, title: `Here: layer ${here.layer}, head ${here.head}` },
      { view: here, values: change, limit: most, title: change ? `Difference (full at ${percent(most)})` : "No difference: the numbers of tokens differ" },
    ];
    const stacked = width < 400;
    this.element.classList.toggle("aw-stacked", stacked);
    this.element.classList.toggle("aw-images", Boolean(here.one.grid && pinned.one.grid));
    sets.forEach(({ view, values, limit: full, title }, place) => {
      const pane = this.panes[place];
      pane.title.textContent = title;
      pane.title.title = title;
      const colour = (value) => {
        const share = scaled(Math.abs(value), full, place === 2 ? side : state.scale);
        return { share, direction: place === 2 ? (value >= 0 ? "here" : "pinned") : state.look.direction };
      };
      if (view.one.grid) this.drawImage(pane, view, values, colour, stacked ? width : (width - 24) / 3, stacked ? width : height - 44);
      else this.drawWords(pane, view, values, colour);
    });
    return limit;
  }

  drawImage(pane, view, values, colour, wide, tall) {
    const { state } = this;
    const { one } = view;
    const [high, across] = one.image ?? one.grid;
    const unit = Math.min(wide / across, tall / high);
    const [width, height] = [Math.floor(across * unit), Math.floor(high * unit)];
    if (pane.kind !== one) {
      pane.kind = one;
      pane.canvas = make("canvas", "aw-image");
      pane.canvas.setAttribute("role", "img");
      pane.room.replaceChildren(pane.canvas);
      if (one === state.one) this.listens(pane.canvas, (event) => patchAt(event, pane.canvas, one));
    }
    pane.canvas.setAttribute("aria-label", pane.title.textContent);
    if (!this.images.has(one)) this.images.set(one, inputImage(one, true));
    pane.part = { width, height, draw: (pen) => drawPatches(pen, one, this.images.get(one), width, height, view.tokens, (token) => {
      if (!values || token >= values.length) return null;
      const { share, direction } = colour(values[token]);
      return tint(state, share * state.opacity, direction);
    }) };
    const pen = fresh(pane.canvas, width, height);
    if (pen) pane.part.draw(pen);
  }

  drawWords(pane, view, values, colour) {
    const { state } = this;
    const { one } = view;
    if (pane.kind !== one) {
      pane.kind = one;
      pane.chips = [...one.kinds.keys()].filter((i) => one.real[i]).map((token) => {
        const chip = make("button", `aw-token aw-${one.kinds[token] === "word" ? "word" : "other"}`, readable(one.labels[token]));
        chip.type = "button";
        chip.tabIndex = -1;
        if (one === state.one) this.listens(chip, () => token);
        return [token, chip];
      });
      pane.text = make("div", "aw-text", null, ...pane.chips.map(([, chip]) => chip));
      pane.room.replaceChildren(pane.text);
    }
    pane.part = { width: pane.text.clientWidth, height: pane.text.scrollHeight, draw: (pen, ink) => drawChips(pen, pane.chips, ink) };
    for (const [token, chip] of pane.chips) {
      const { share, direction } = values && token < values.length ? colour(values[token]) : { share: 0, direction: "from" };
      [chip.style.backgroundColor, chip.style.color] = wordColours(state, share, direction);
      chip.classList.toggle("aw-asked", view.tokens.includes(token));
    }
  }
}

/** The model of a view, without where it is from; of a local one the name of its folder. */
export function modelName({ bundle }) {
  const name = bundle.model.spec.replace(/^(bundled|timm|hf|file):(?=.)/, "");
  return /^[/~.]/.test(name) ? name.split("/").filter(Boolean).at(-1) ?? name : name;
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
      const view = state.viewOf(pin);
      const model = view.bundle === state.bundle ? "" : modelName(view);
      const name = `${model ? `${model}: l` : "L"}ayer ${view.layer}, head ${view.head}, ${view.tokens.length ? view.tokens.map((token) => readable(view.one.labels[token])).join(" ") : "all queries"}, ${view.one.id}`;
      const compared = state.against === pin;
      const show = button("", compared ? `${name}: stop comparing` : `${name}: compare with it`, () => state.set({ against: compared ? "" : pin }), "aw-pin");
      show.setAttribute("aria-label", `${view.layer}.${view.head}: ${show.title}`);
      show.setAttribute("aria-pressed", String(compared));
      show.draggable = true;
      show.addEventListener("dragstart", (event) => event.dataTransfer.setData("text/plain", pin));
      const canvas = make("canvas");
      show.append(canvas, make("span", "", `${model && `${model} `}layer ${view.layer}, head ${view.head}`));
      const away = button("×", `Unpin ${name}`, () => state.set({ pins: state.pins.filter((other) => other !== pin), against: compared ? "" : state.against }), "aw-unpin");
      away.setAttribute("aria-label", away.title);
      this.box.append(make("div", "aw-pinned", null, show, away));
      const values = state.values(view.layer, view.head, view.tokens, view.one);
      const map = values && arranged(state.relative(values, view.layer, view.tokens, view.one), view.one);
      const pen = fresh(canvas, 24, 24);
      if (pen && map) mosaic(pen, map.values, map.columns, map.rows, state.scale === "ratio" ? RATIO : map.most, { theme: state.theme, scale: state.scale, direction: "from" }, { x: 0, y: 0, width: 24, height: 24 });
    }
  }
}
