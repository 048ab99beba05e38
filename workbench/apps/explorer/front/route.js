// The route to a prediction: what links of attention add to the logit of the likeliest outcome, layers from left to right.

import { fresh, number, palette, percent, quantile } from "./colour.js";
import { tint } from "./grid.js";
import { button, largest, make, placeOn, readable, refill } from "./state.js";

const MOST_LINKS = 16;
const MOST_KEYS = 9; // rows beside that of the query
const LISTED = 5;
const HEIGHT = 186;
const REACH = 7; // px around a line where the pointer is on it
const POINTS = 24; // of a line

export class Route {
  constructor(state, tip, host) {
    Object.assign(this, { state, tip, host, near: null });
    this.canvas = make("canvas");
    this.canvas.setAttribute("role", "img");
    this.list = make("div", "aw-most");
    this.off = button("Switch this link off", "The kernel runs the model without it, and without random links of the same layer", () => this.ask());
    this.note = make("p", "aw-note");
    this.element = make("div", "aw-route", null, this.canvas, make("div", "", null, this.list, this.off, this.note));
    this.canvas.addEventListener("pointermove", (event) => this.pointed(event));
    this.canvas.addEventListener("click", () => this.near && this.take(this.near, true));
  }

  /** Draw the route of the position in question; return its title. */
  draw(width) {
    const { state } = this;
    const one = state.bundle.inputs[state.input];
    const { prediction } = one;
    const position = prediction?.of === "class" ? 0 : state.asked.at(-1) ?? one.real.lastIndexOf(true);
    const query = prediction?.of === "class" ? one.kinds.indexOf("class") : position;
    const routes = state.bundle.layers.map((layer) => prediction && one.route(layer, position));
    this.element.classList.toggle("aw-nothing", !routes.some(Boolean));
    if (!routes.some(Boolean)) {
      this.note.textContent = "No route here: the links of this token are not in the file. Choose the last token.";
      this.drawn = [];
      for (const part of [this.canvas, this.list, this.off]) part.hidden = true;
      return "Depth: route";
    }
    for (const part of [this.canvas, this.list]) part.hidden = false;
    const links = routes.flatMap((route, place) => (route?.links ?? []).map(([head, key, value]) => ({ layer: state.bundle.layers[place], place, head, query, key, value })));
    const keys = new Set([query]);
    this.drawn = [];
    for (const i of largest(links.map(({ value }) => Math.abs(value)), links.length)) {
      const link = links[i];
      if (this.drawn.length === MOST_LINKS || (!keys.has(link.key) && keys.size > MOST_KEYS)) continue;
      keys.add(link.key);
      this.drawn.push(link);
    }
    const rest = routes.map((route, place) => (route?.total ?? NaN) - this.drawn.filter((link) => link.place === place).reduce((sum, { value }) => sum + value, 0));
    this.one = one;
    this.outcome = `“${readable(prediction.outcomes[position][0])}”`;
    const chosen = this.drawn.find((link) => this.isChosen(link));
    this.paint(width, [...keys].sort((a, b) => a - b), rest, query);
    refill(this.list, `Change the logit of ${this.outcome} most`, this.drawn.slice(0, LISTED).map((link) => ({
      name: `${this.named(link.key)}${one.kinds[link.key] === "word" ? `, token ${link.key}` : ""}`, where: `layer ${link.layer.index}, head ${link.head}`, value: signed(link.value), title: "Look at this link",
      share: Math.abs(link.value / this.drawn[0].value), colour: this.colour(link.value), pressed: link === chosen, act: () => this.take(link),
    })));
    this.off.hidden = !this.host.linkOff || !chosen;
    const effect = this.effect(chosen);
    this.note.textContent = effect ?? "Blue raises the logit, orange lowers it; effects through later layers are not counted. Grey, and the numbers below: all other links of the layer together. ";
    if (!effect) this.note.append(make("span", "aw-hint", this.host.linkOff ? "Click a line to switch it off." : "A saved page cannot switch a line off: run workbench explore for that."));
    this.canvas.setAttribute("aria-label", this.drawn.slice(0, LISTED).map((link) => this.words(link)).join("; "));
    return `Depth: contributions of attention links to the logit of ${this.outcome} (predicted with ${percent(one.predicted(position)[0])})`;
  }

  named(token) {
    return this.one.kinds[token] === "patch" ? `patch ${this.one.labels[token]}` : readable(this.one.labels[token]);
  }

  words({ layer, head, query, key, value }) {
    return `layer ${layer.index}, head ${head}, ${this.named(key)} → ${this.named(query)}: ${signed(value)}`;
  }

  colour(value) {
    return tint(this.state, 1, value < 0 ? "to" : "from");
  }

  isChosen({ layer, head, query, key }) {
    const { state } = this;
    return layer.index === state.layer && head === state.head && key === (state.link ?? state.tokens[0]) && query === state.tokens[0];
  }

  /** Look at a link; a click on its line also has the kernel switch it off. */
  take(link, off = false) {
    const { layer, head, query, key } = link;
    this.state.set({ layer: layer.index, head, more: [], tokens: [query], link: key === query ? null : key, direction: "from", hover: null });
    this.link = link;
    if (off && this.host.linkOff) requestAnimationFrame(() => requestAnimationFrame(() => this.ask())); // the kernel knows the layer by then
  }

  ask() {
    const { head, query, key } = this.drawn.find((link) => this.isChosen(link)) ?? this.link;
    this.host.linkOff(head, query, key);
  }

  /** The prediction without the chosen link, beside random links; undefined where it was not switched off. */
  effect(link) {
    const { off } = this.state;
    const same = link && off && off.id === this.one.id && off.layer === link.layer.index && ["head", "query", "key"].every((name) => off[name] === link[name]);
    if (!same) return undefined;
    const points = (value) => `${signed((value - off.before) * 100)}`;
    const changes = off.random.map((value) => Math.abs(value - off.before));
    const more = changes.filter((change) => change >= Math.abs(off.after - off.before)).length;
    return `Without it: ${this.outcome} ${percent(off.before)} → ${percent(off.after)} (${points(off.after)} points). ${changes.length} random links of layer ${off.layer} move it by ${number(quantile(changes, 0.5) * 100)} points (median); ${more} of them as far.`;
  }

  paint(width, keys, rest, query) {
    const { state } = this;
    const { layers } = state.bundle;
    const style = palette(state.theme, this.element);
    const across = Math.max(240, width > 620 ? width - 330 : width);
    const pen = fresh(this.canvas, across, HEIGHT);
    if (!pen) return;
    pen.font = `11px ${style.fontFamily}`;
    pen.textBaseline = "middle";
    const left = Math.max(...["all others", ...keys.map((key) => this.named(key))].map((words) => pen.measureText(words).width)) + 14;
    const right = pen.measureText(this.outcome).width + 12;
    const row = (HEIGHT - 42) / keys.length;
    const x = (place) => left + (place / layers.length) * (across - left - right);
    const y = (key) => 8 + (keys.indexOf(key) + 0.5) * row;
    const bottom = HEIGHT - 26;
    const most = Math.max(...this.drawn.map(({ value }) => Math.abs(value)), 1e-12);
    const wide = (value) => 1 + 8 * Math.min(1, Math.abs(value) / most);
    pen.fillStyle = style.getPropertyValue("--muted");
    pen.textAlign = "center";
    layers.forEach((layer, place) => pen.fillText(layer.index, (x(place) + x(place + 1)) / 2, HEIGHT - 6));
    pen.textAlign = "right";
    for (const key of keys) pen.fillText(this.named(key), left - 8, y(key));
    pen.fillText("all others", left - 8, bottom + 9);
    pen.fillText("layer", left - 8, HEIGHT - 6);
    pen.fillStyle = style.getPropertyValue("--line");
    for (const key of keys) pen.fillRect(left, y(key), x(layers.length) - left, key === query ? 2 : 0.5);
    pen.strokeStyle = style.getPropertyValue("--bar");
    pen.globalAlpha = 0.5;
    rest.forEach((value, place) => {
      if (!Number.isFinite(value)) return;
      pen.lineWidth = wide(value);
      stroke(pen, curve([x(place), bottom], [x(place + 1), y(query)]));
    });
    pen.globalAlpha = 1;
    this.drawn.toReversed().forEach((link) => {
      link.points = curve([x(link.place), y(link.key)], [x(link.place + 1), y(query)], link.key === query ? -7 - 3 * link.head : 0);
      pen.strokeStyle = this.colour(link.value);
      pen.lineWidth = wide(link.value);
      pen.globalAlpha = this.isChosen(link) || link === this.near ? 1 : 0.6;
      stroke(pen, link.points);
      if (!this.isChosen(link)) return;
      pen.strokeStyle = style.getPropertyValue("--ink");
      pen.lineWidth = 1.5;
      stroke(pen, link.points);
    });
    pen.globalAlpha = 1;
    pen.fillStyle = style.getPropertyValue("--ink");
    pen.textAlign = "left";
    pen.fillText(this.outcome, x(layers.length) + 8, y(query));
    pen.fillStyle = style.getPropertyValue("--muted");
    pen.textAlign = "center";
    rest.forEach((value, place) => Number.isFinite(value) && pen.fillText(signed(value), x(place) + (x(place + 1) - x(place)) * 0.22, bottom + 9));
  }

  pointed(event) {
    const [x, y] = placeOn(this.canvas, event);
    const far = ({ points = [] }) => Math.min(...points.map(([across, down]) => Math.hypot(across - x, down - y)));
    const near = this.drawn.reduce((best, link) => (!best || far(link) < far(best) ? link : best), null);
    this.near = near && far(near) <= REACH ? near : null;
    this.canvas.style.cursor = this.near ? "pointer" : "default";
    if (!this.near) return this.tip.hide();
    const { layer, head, query, key, value } = this.near;
    const maps = this.one.maps(layer);
    this.tip.show(event, `${this.named(key)} → ${this.named(query)}: ${signed(value)}`, `Layer ${layer.index}, head ${head}; attention ${percent(maps.at(head, maps.rowOf(query), maps.columnOf(key)))}`);
  }
}

function signed(value) {
  return `${value < 0 ? "−" : "+"}${number(Math.abs(value))}`;
}

/** Points of a line between two places, level at both ends; lifted in its middle. */
function curve([x1, y1], [x2, y2], lift = 0) {
  return Array.from({ length: POINTS + 1 }, (_, i) => {
    const share = i / POINTS;
    const smooth = share * share * (3 - 2 * share);
    return [x1 + (x2 - x1) * share, y1 + (y2 - y1) * smooth + lift * Math.sin(Math.PI * share)];
  });
}

function stroke(pen, points) {
  pen.beginPath();
  for (const [x, y] of points) pen.lineTo(x, y);
  pen.stroke();
}
