// The state of the page: one object, changed in one place, kept in the fragment of the page's address.

import { pictured } from "./image.js";
import { striking, strongest } from "./links.js";

const MOST_PINS = 12;
const MOST_OTHERS = 3; // bundles that are kept for the views pinned in them
export const SCALES = ["linear", "sqrt", "log", "ratio"];
export const TABS = ["matrix", "products", "plane", "norms", "spectra", "metrics", "effect", "membership", "card"];

/** The state of a page over a bundle; `changed` is called with it once per frame in which something changed. */
export class State {
  constructor(bundle, changed) {
    this.bundle = bundle;
    this.changed = changed;
    const drawn = bundle.layers.filter((layer) => !layer.without);
    const first = drawn.filter((layer) => layer.queries === layer.keys).at(-1) ?? drawn.at(-1) ?? bundle.layers[0];
    Object.assign(this, {
      input: 0, layer: first.index, head: 0, more: [], tokens: [], pins: [], against: "", hover: null, link: null, direction: "from", scale: "sqrt", sinks: "on", weights: "attention",
      sort: "", find: "", shelf: [], metric: bundle.metrics.find((one) => one.name === "attention_sink")?.name ?? "",
      tab: "matrix", ablation: outings(bundle)[0] ?? "", depth: "head", opacity: 0.85, original: false, theme: preferred(), plane: "pca", embedding: null, part: null, off: null,
    });
    this.tokens = this.opening();
    const [most] = striking(bundle, this.one);
    if (most) {
      const start = strongest(this.one, most.layer, most.head);
      Object.assign(this, { layer: most.layer.index, head: most.head, tokens: start ? [start.query] : this.tokens, metric: most.metric.name });
    }
    this.opened = viewKey(this);
    this.waiting = false;
    this.resized = 0;
  }

  /** A measure of the page, taken again only when something has another size: asking makes the browser lay out. */
  measured(owner, name, take) {
    const key = `${this.resized}.${this.input}.${this.card.queries}.${this.card.keys}`;
    const held = (owner.measures ??= {});
    if (held[name]?.key !== key) held[name] = { key, value: take() };
    return held[name].value;
  }

  /** The input, as the layer sees it. */
  get one() {
    return this.bundle.inputs[this.input].at(this.card);
  }

  get card() {
    return this.layerAt(this.layer);
  }

  layerAt(index) {
    return this.bundle.layers.find((layer) => layer.index === index);
  }

  /** The queries in question: what the pointer is on, else those that are locked; none means all. */
  get asked() {
    if (this.one.asks) return [];
    return this.hover === null ? this.tokens : [this.hover];
  }

  /** The tokens with a rim: those in question, and the other end of a link. */
  get outlined() {
    return this.link === null || this.hover !== null ? this.asked : [...this.asked, this.link];
  }

  /** The heads that are looked at together, the chosen one first. */
  get heads() {
    return [[this.layer, this.head], ...this.more];
  }

  get look() {
    return { theme: this.theme, direction: this.asked.length ? this.direction : "from", scale: this.scale };
  }

  /** Where a person looks first: the class token of an image, a word with others on both sides of it. */
  opening() {
    const { kinds, real } = this.one;
    const token = kinds.indexOf("class");
    const words = [...kinds.keys()].filter((i) => real[i] && !["class", "special", "padding", "patch"].includes(kinds[i]));
    if (pictured(this.one)) return [words.at(-1)];
    if (this.one.grid) return token >= 0 ? [token] : [];
    return words.length ? [words[Math.floor(words.length / 3)]] : [];
  }

  /** Change something; what does not exist is put right. */
  set(changes) {
    const before = this.one;
    Object.assign(this, changes);
    const whole = (value, low, high) => Math.min(Math.max(Math.trunc(Number(value)) || 0, low), high);
    this.input = whole(this.input, 0, this.bundle.inputs.length - 1);
    if (!this.card) this.layer = this.bundle.layers[0].index;
    this.head = whole(this.head, 0, Math.max(0, this.card.heads - 1));
    if (this.one !== before && !("tokens" in changes)) this.tokens = this.opening(); // another input, or another stream of it
    if (this.one.asks) this.tokens = [];
    this.tokens = [...new Set(this.tokens)].filter((token) => Number.isInteger(token) && token >= 0 && token < this.one.count);
    if (("tokens" in changes && !("link" in changes)) || this.one !== before || this.tokens.length !== 1 || this.tokens[0] === this.link || !(this.link < this.one.count)) this.link = null;
    if (this.against && !this.viewOf(this.against)) this.against = "";
    if (this.against && !this.pins.includes(this.against)) this.pins = [...this.pins, this.against];
    if (!SCALES.includes(this.scale)) this.scale = "sqrt";
    if (this.sinks !== "off") this.sinks = "on";
    if (this.weights !== "written") this.weights = "attention";
    const modes = outings(this.bundle);
    const later = this.bundle.unmeasured; // measurements that can still be requested
    if (!modes.includes(this.ablation) && !later) this.ablation = modes[0] ?? "";
    if (!TABS.includes(this.tab)) this.tab = "matrix";
    const measured = { tokens: this.bundle.by_layer.length > 0, route: routed(this.bundle) };
    if (!["mean", "rollout"].includes(this.depth) && !(this.depth in measured && (later || measured[this.depth]))) this.depth = "head";
    if (!["from", "to"].includes(this.direction)) this.direction = "from";
    this.tell();
  }

  /** Keep this view, so that another can be set beside it; or let it go. */
  pin() {
    const key = viewKey(this);
    if (this.card.without) return;
    this.set({ pins: this.pins.includes(key) ? this.pins.filter((pin) => pin !== key) : [...this.pins, key].slice(-MOST_PINS) });
  }

  tell() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      if (!this.closed) this.changed(this);
    });
  }

  /** The page has another size. */
  resize() {
    this.resized += 1;
    this.tell();
  }

  /** The view of a pin: of this bundle, or of another that was shown before. Null where there is none. */
  viewOf(key) {
    const [, id, own] = /^(?:(\d+)@)?(.*)$/.exec(key);
    const bundle = id === undefined ? this.bundle : this.shelf.find((one) => one.id === Number(id))?.bundle;
    return bundle ? viewOf(own, bundle) : null;
  }

  /** What a person set in the page of another bundle stays where it can; views of another model or input as pins. */
  keep({ opacity, weights, metric, theme, pins, shelf, find, bundle, plane, embedding, opened }) {
    const alike = (one, other) => one.model.spec === other.model.spec && one.inputs.map((input) => input.id).join("\n") === other.inputs.map((input) => input.id).join("\n");
    const same = alike(bundle, this.bundle);
    const known = this.bundle.metrics.some((one) => one.name === metric);
    if (same) this.opened = opened;
    const home = shelf.find((one) => alike(one.bundle, this.bundle))?.id; // the same bundle shown again
    const id = 1 + Math.max(0, ...shelf.map((one) => one.id));
    const named = pins.map((pin) => {
      if (pin.startsWith(`${home}@`)) return pin.slice(pin.indexOf("@") + 1);
      return same || pin.includes("@") ? pin : `${id}@${pin}`;
    });
    const others = same ? shelf : [...shelf, { id, bundle }];
    this.shelf = others.filter((one) => named.some((pin) => pin.startsWith(`${one.id}@`))).slice(-MOST_OTHERS);
    this.set({ opacity, weights, theme, plane, embedding, find: same ? find : "", metric: known ? metric : this.metric, pins: named.filter((pin) => this.viewOf(pin)) });
  }

  /** The weights that are shown of a layer: attention, or what its heads write. */
  maps(card = this.card, one = this.one) {
    return this.weights === "written" ? one.written(card) : one.maps(card);
  }

  /** Why this layer does not show what its heads write; empty where it does. */
  get unwritten() {
    const { card, one, layer } = this;
    if (card.without || one.written(card)) return "";
    return card.pooled ? `Layer ${layer} has means over bins of tokens: what a head writes is known of single tokens.` : `This file has no norms of values after the output projection of layer ${layer}.`;
  }

  /** The weights of the queries in question in one head, by token: mean over queries, or sum over keys where it is to them; to sinks 0 where they are taken out. */
  values(layer, head, tokens = this.asked, one = this.one) {
    const values = this.attention(layer, head, tokens, one, this.maps(one.layerAt(layer), one));
    if (this.sinks === "on" || !values || (this.direction === "to" && tokens.length)) return values;
    const kept = values.slice();
    for (const key of this.sinksOf(layer, head, one)) kept[key] = 0;
    return kept;
  }

  /** Values as colour has them: by the ratio scale, over what every token would have with uniform attention. */
  relative(values, layer, tokens = this.asked, one = this.one) {
    const card = one.layerAt(layer);
    const maps = one.maps(card);
    if (this.scale !== "ratio" || !values || !maps) return values;
    const seen = one.at(card);
    const { real } = seen;
    const asking = seen === one && !seen.asks ? tokens : [];
    if (this.direction === "to" && asking.length) return values.map((value, query) => value / (asking.length * maps.even([query], real)));
    const uniform = maps.even(asking.length ? asking : [...real.keys()].filter((token) => real[token]), real);
    return values.map((value) => value / uniform);
  }

  /** The keys of a head that most of its attention goes to, from whatever query. */
  sinksOf(layer, head, one = this.one) {
    const card = one.layerAt(layer);
    const seen = one.at(card);
    return one.maps(card)?.sinks(head, (seen.asks ?? seen).real) ?? [];
  }

  attention(layer, head, tokens = this.asked, one = this.one, maps = one.maps(one.layerAt(layer))) {
    const card = one.layerAt(layer);
    if (!maps || head >= maps.heads) return null;
    const seen = one.at(card);
    if (!tokens.length || seen !== one || seen.asks) return maps.mean(head, (seen.asks ?? seen).real); // tokens of another stream ask nothing here
    if (this.direction === "to" && maps.rows === 1) return null;
    const each = tokens.map((token) => (this.direction === "to" ? maps.to(head, token) : maps.from(head, token)));
    if (each.length === 1) return each[0];
    const share = this.direction === "to" ? 1 : 1 / each.length;
    return each[0].map((_, i) => each.reduce((sum, row) => sum + row[i], 0) * share);
  }

  /** The same, mean over the heads that are looked at together. */
  shown() {
    const each = this.heads.map(([layer, head]) => this.values(layer, head)).filter(Boolean);
    if (!each.length) return null;
    return each.length === 1 ? each[0] : each[0].map((_, i) => each.reduce((sum, row) => sum + row[i], 0) / each.length);
  }

  /** A sentence of the bundle with its gaps filled, to stand within another; what is filled in is never read again. */
  filled(name, gaps) {
    return this.bundle.sentences[name].replace(/\{(\w+)\}/g, (whole, gap) => (Object.hasOwn(gaps, gap) ? gaps[gap] : whole));
  }

  sentence(name, gaps) {
    return `${capital(this.filled(name, gaps))}.`;
  }

  /** What an address leaves out. */
  get usual() {
    const ablation = outings(this.bundle)[0] ?? "";
    return Object.entries({ against: "", direction: "from", scale: "sqrt", sinks: "on", weights: "attention", tab: "matrix", sort: "", depth: "head", ablation });
  }

  toFragment() {
    const parts = { layer: this.layer, head: this.head };
    if (this.input) parts.input = this.input;
    if (this.tokens.length) parts.token = this.tokens.join(",");
    else parts.token = "all";
    if (this.link !== null) parts.link = this.link;
    if (this.more.length) parts.with = this.more.map((pair) => pair.join(".")).join(",");
    for (const [name, usual] of this.usual) if (this[name] !== usual) parts[name] = this[name];
    return `#${new URLSearchParams(parts)}`;
  }

  /** Go where an address leads (`#layer=5&head=9`, or after a `?`); words where it is that of another model. */
  fromFragment(fragment) {
    const parts = new URLSearchParams(fragment.replace(/^[#?]/, ""));
    if (![...parts.keys()].length) return "";
    const { spec } = this.bundle.model;
    if (parts.has("model") && ![spec, spec.replace(/^[a-z]+:/, "")].includes(parts.get("model"))) return `That address is of ${parts.get("model")}; this page holds ${spec}`;
    if (parts.has("query") && !parts.has("token")) parts.set("token", parts.get("query"));
    const changes = { input: 0, more: [], ...Object.fromEntries(this.usual) };
    for (const name of ["input", "layer", "head"]) if (parts.has(name)) changes[name] = Number(parts.get(name));
    for (const [name] of this.usual) if (parts.has(name)) changes[name] = parts.get(name);
    if (parts.has("token")) changes.tokens = parts.get("token") === "all" ? [] : parts.get("token").split(",").map(Number);
    if (["light", "dark"].includes(parts.get("theme"))) changes.theme = parts.get("theme");
    if (parts.get("opacity") >= 0 && parts.get("opacity") <= 1 && parts.has("opacity")) changes.opacity = Number(parts.get("opacity"));
    if (parts.has("link")) changes.link = Math.trunc(Number(parts.get("link")));
    if (parts.has("with")) {
      changes.more = parts
        .get("with")
        .split(",")
        .map((pair) => pair.split(".").map(Number))
        .filter(([layer, head]) => this.layerAt(layer) && head >= 0 && head < this.layerAt(layer).heads);
    }
    if (changes.sort && !this.bundle.metrics.some((metric) => metric.name === changes.sort)) changes.sort = "";
    this.set(changes);
    return "";
  }
}

/** What can be taken out of the model, or of its input: the ways to switch a head off, and "token". */
export function outings(bundle) {
  return [...Object.keys(bundle.ablations), ...(bundle.removal ? ["token"] : [])];
}

/** Whether it holds what links add to the prediction of an input. */
export function routed(bundle) {
  return bundle.inputs.some((one) => bundle.layers.some((layer) => one.has(layer, "route.total")));
}

/** A view as a short text that addresses and pins hold: input.layer.head.tokens. */
export function viewKey({ input, layer, head, tokens }) {
  return [input, layer, head, tokens.length ? tokens.join("+") : "all"].join(".");
}

/** The view of such a text, or null where the bundle has none. */
export function viewOf(key, bundle) {
  const found = /^(\d+)\.(\d+)\.(\d+)\.(all|\d+(?:\+\d+)*)$/.exec(key);
  if (!found) return null;
  const [input, layer, head] = found.slice(1, 4).map(Number);
  const card = bundle.layers.find((each) => each.index === layer);
  const one = card && bundle.inputs[input]?.at(card);
  const tokens = found[4] === "all" ? [] : found[4].split("+").map(Number);
  if (!one || !card || card.without || head >= card.heads || tokens.some((token) => token >= one.count)) return null;
  return { input, layer, head, tokens, one, card, bundle };
}

/** Where on an element an event is, in the element's own pixels, however much larger it is shown. */
export function placeOn(element, event) {
  const box = element.getBoundingClientRect();
  const zoom = box.width / element.offsetWidth || 1;
  return [(event.clientX - box.left) / zoom, (event.clientY - box.top) / zoom];
}

/** Light or dark: as JupyterLab is where the page is in one, else as the system is; voila has no theme that anybody chose. */
export function preferred() {
  const { jpThemeLight, voila } = globalThis.document?.body?.dataset ?? {};
  if (jpThemeLight && !voila) return jpThemeLight === "false" ? "dark" : "light";
  return globalThis.matchMedia?.("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

/** Whether a finger points here, which neither hovers nor has keys. */
export function coarse() {
  return Boolean(globalThis.matchMedia?.("(pointer: coarse)").matches);
}

/** A token as people read it: a space is seen, a line break too. */
export function readable(label) {
  if (label.trim() === "") return label.replace(/ /g, "␣").replace(/\n/g, "⏎").replace(/\t/g, "⇥") || "∅";
  const shown = label.replace(/\n/g, "⏎");
  // A label written from right to left is isolated, so that the words around it keep their order.
  return /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/.test(label) ? shown.replace(/\S(.*\S)?/s, "\u2068$&\u2069") : shown;
}

/** A token in a sentence: a patch by its place, a word in quotes, a special token as it is. */
export function nameOf({ labels, kinds }, token) {
  if (kinds[token] === "patch") return `patch ${labels[token]}`;
  return kinds[token] === "word" ? `“${readable(labels[token]).trim()}”` : readable(labels[token]);
}

export function capital(words) {
  return words[0].toUpperCase() + words.slice(1);
}

/** An element with a class, words and children; words only ever as text. */
export function make(tag, name = "", words = null, ...children) {
  const found = document.createElement(tag);
  if (name) found.className = name;
  if (words !== null) found.textContent = words;
  found.append(...children);
  return found;
}

/** A button with a name and what it does. */
export function button(words, title, act, name = "") {
  const found = make("button", name, words);
  found.type = "button";
  found.title = title;
  found.addEventListener("click", act);
  return found;
}

/**
 * A list of buttons under a heading: `name`, `where` and `value` as words, a bar of `share` with a tick at `tick`, and what a
 * click does; without it a row is no button. They stay the same elements when they tell something else, so that a click that began on one ends on it.
 */
export function refill(box, heading, items) {
  const head = box.firstElementChild ?? box.appendChild(make("h3"));
  if (head.textContent !== heading) head.textContent = heading;
  while (box.children.length > items.length + 1) box.lastElementChild.remove();
  items.forEach(({ name, where, value, title, share, colour = "", tick = NaN, pressed = false, faint = false, act = null }, place) => {
    let row = box.children[place + 1];
    if (!row) {
      row = button("", "", () => row.act(), "aw-leader");
      row.append(make("span", "aw-name", ""), make("span", "aw-where", ""), make("span", "aw-bar", null, make("i"), make("b")), make("span", "aw-value", ""));
      box.append(row);
    }
    row.act = act;
    row.disabled = !act;
    const drawn = [name, where, value, title, share.toFixed(4), colour, tick, pressed, faint].join("\n");
    if (row.drawn === drawn) return;
    row.drawn = drawn;
    const [first, second, bar, last] = row.children;
    [first.textContent, second.textContent, last.textContent, row.title] = [name, where, value, title];
    bar.firstChild.style.width = `${share * 100}%`;
    bar.firstChild.style.backgroundColor = colour;
    bar.lastChild.hidden = !Number.isFinite(tick);
    bar.lastChild.style.left = `${tick * 100}%`;
    row.classList.toggle("aw-faint", faint);
    if (act) row.setAttribute("aria-pressed", String(pressed));
    else row.removeAttribute("aria-pressed");
  });
}

/** The places of the largest values that count, largest first; of thousands only a few are put in order. */
export function largest(values, count, counts = () => true) {
  const found = [];
  for (let i = 0; i < values.length; i++) {
    if (!counts(i) || Number.isNaN(values[i]) || (found.length === count && values[i] <= values[found.at(-1)])) continue;
    let place = found.length;
    while (place > 0 && values[found[place - 1]] < values[i]) place -= 1;
    found.splice(place, 0, i);
    if (found.length > count) found.pop();
  }
  return found;
}

/** What Enter does in a field; the key is no click of the button that has the focus once its box is closed. */
export function onEnter(field, act) {
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    act();
  });
}

/** A choice among a few: buttons of which one is pressed. */
export function choice(title, options, chosen, act) {
  const found = make("div", "aw-choice");
  found.setAttribute("role", "group");
  found.setAttribute("aria-label", title);
  for (const [value, words, hint] of options) {
    const one = button(words, hint ?? title, () => act(value));
    one.dataset.value = value;
    found.append(one);
  }
  found.show = (value) => {
    for (const one of found.children) one.setAttribute("aria-pressed", String(one.dataset.value === value));
  };
  found.show(chosen);
  return found;
}
