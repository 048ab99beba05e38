// The effect of a head: the model's prediction with and without it, beside all other heads.

import { density, fresh, hue, mosaic, number, palette, percent } from "./colour.js";
import { arranged, tint } from "./grid.js";
import { patchesOf } from "./image.js";
import { button, choice, make, outings, placeOn, readable, refill } from "./state.js";

const WORDS = { zero: "head off", mean: "head mean", batch: "batch mean", uniform: "head uniform" };
const ASKED = { zero: "its output is zero", mean: "its output is the mean over this input's tokens", batch: "its output is the mean over the tokens of all inputs", uniform: "it attends equally to all visible tokens" };

export class Effect {
  constructor(state, tip, host = {}) {
    this.state = state;
    this.tip = tip;
    this.host = host;
    this.live = Boolean(host.kernel) && !state.bundle.unmeasured;
    const ablations = { ...(this.live ? ASKED : {}), ...state.bundle.ablations };
    if (!(host.choices?.length > 1) && !state.bundle.ablations.batch) delete ablations.batch; // of one input it is its own mean
    this.modes = [...Object.keys(ablations), ...outings(state.bundle).filter((mode) => mode === "token")];
    const ways = this.modes.map((mode) => (mode === "token" ? [mode, state.one.grid ? "patch off" : "word off", `Without one ${state.one.grid ? "patch" : "word"}: ${state.bundle.removal}`] : [mode, WORDS[mode] ?? mode, `Without the head: ${ablations[mode]}`]));
    this.kind = choice("part to remove, and how", ways, state.ablation, (ablation) => this.choose(ablation));
    this.kind.hidden = !this.modes.length;
    this.without = make("h3", "", "Without");
    this.mapped = make("h3");
    this.list = make("div", "aw-most");
    this.title = make("h3");
    this.bars = make("div", "aw-outcomes");
    this.reads = make("p", "aw-reads");
    this.ask = button("Switch this head off", "The kernel runs the model without it, and without random heads beside it", () => host.switchOff(state.ablation));
    this.ask.hidden = true;
    this.map = make("canvas", "aw-effects");
    this.map.setAttribute("role", "img");
    this.note = make("p", "aw-note");
    this.element = make("div", "aw-norms", null, this.title, this.bars, make("div", "aw-row aw-hint", null, this.without, this.kind), this.reads, this.ask, this.mapped, this.map, this.list, this.note);
    this.map.addEventListener("pointermove", (event) => this.pointed(event));
    this.map.addEventListener("click", () => {
      if (!this.near) return;
      if (this.near.token !== undefined) this.take(this.near.token);
      else state.set({ layer: this.near.layer.index, head: this.near.head, more: [] });
    });
  }

  /** The position whose prediction is shown: the token in question, or the last one. */
  get position() {
    const { one, asked } = this.state;
    if (one.prediction.of === "class") return 0;
    return asked.length ? asked.at(-1) : one.real.lastIndexOf(true);
  }

  /** A way to take something out: a head that was not switched off so is what a kernel is asked for. */
  choose(ablation) {
    const { state } = this;
    const there = ablation === "token" || Number.isFinite(state.one.ablated(ablation, "divergence", state.card, state.head, this.position, 1)[0]);
    if (there || !this.live) state.set({ ablation });
    else this.host.switchOff(ablation);
  }

  draw(width) {
    const { state } = this;
    const { one, bundle } = state;
    const { prediction } = one;
    const ready = outings(bundle).length > 0;
    const known = prediction && ready;
    const tokens = state.ablation === "token";
    this.list.hidden = !known || !tokens;
    for (const part of [this.bars, this.reads, this.map]) part.hidden = part === this.bars ? !prediction : !known;
    if (tokens && !one.grid) this.map.hidden = true; // words have their list
    this.mapped.hidden = this.map.hidden;
    this.without.textContent = tokens ? `Without one ${one.grid ? "patch" : "word"}` : "Without one head";
    this.element.children[2].hidden = !prediction || !(ready || this.live);
    const at = this.position;
    const key = [state.input, state.layer, state.head, state.ablation, state.theme, at, width, density(), tokens ? `${state.asked.join()} ${this.taken}` : ""].join();
    if (this.drawn === key) return;
    this.drawn = key;
    this.ask.hidden = true;
    if (known && tokens) return this.drawTokens(at, width);
    const outcomes = prediction.outcomes[at];
    const before = one.predicted(at);
    const after = known ? one.ablated(state.ablation, "probability", state.card, state.head, at, outcomes.length) : null;
    this.name(after);
    this.draws(outcomes, before, after, prediction.actual[at]);
    if (!known) {
      this.kind.show("");
      this.note.textContent = bundle.unmeasured
        ? `The predictions without single heads are not measured${this.host.paint ? " on a painting" : " yet"}.`
        : this.live ? "Choose how this head is switched off: the kernel runs the model without it, and without random heads as a null."
        : `The effect of single heads is not in this file: ${bundle.without_ablations}.`;
      return;
    }
    this.kind.show(state.ablation);
    const all = bundle.layers.flatMap((layer) => Array.from({ length: layer.heads }, (_, head) => ({ layer, head, effect: one.ablated(state.ablation, "divergence", layer, head, at, 1)[0] })));
    const finite = all.filter((cell) => Number.isFinite(cell.effect));
    const own = all.find((cell) => cell.layer.index === state.layer && cell.head === state.head)?.effect ?? NaN;
    const sorted = finite.map((cell) => cell.effect).sort((a, b) => a - b);
    const median = sorted.length ? sorted[Math.floor(sorted.length / 2)] : NaN;
    const larger = sorted.filter((effect) => effect > own).length;
    this.ask.hidden = !this.live || Number.isFinite(own);
    this.reads.textContent = !Number.isFinite(own)
      ? this.live ? `Layer ${state.layer}, head ${state.head} has not been switched off so.` : "This head could not be switched off so: where its output goes, or its values, are not known."
      : this.told(`layer ${state.layer}, head ${state.head}`, "head", outcomes[0], before[0], after[0], own, larger + 1, sorted.length, median);
    this.heat(this.live ? all : finite, width);
    this.mapped.textContent = `Divergence without each head: layers × heads, full colour at ${number(sorted.at(-1) ?? NaN)} nats`;
    const where = prediction.of === "class" ? "" : " at this position";
    this.note.textContent = `${bundle.ablations[state.ablation].replace(/^its|^it/, (word) => (word === "its" ? "The head's" : "The head"))}. Divergence: Kullback–Leibler divergence of the prediction${where} from that of the whole model, ${finite.length < all.length ? `of ${finite.length} heads, most of them at random` : "of each head by itself"}. `;
    this.note.append(make("span", "aw-hint", "Click a head to look at it."));
  }

  /** The title of the bars; `after` is what is predicted without a part, where that is known. */
  name(after) {
    const { one } = this.state;
    const next = one.prediction.of === "class" ? "" : ` after “${readable(one.labels[this.position])}”`;
    this.title.textContent = `Prediction${next}${after ? ": whole model (bar), without (tick)" : ""}`;
  }

  /** Look at what a token does: of a class it is the token in question, of a next token one beside it. */
  take(token) {
    this.taken = token;
    if (this.state.one.prediction.of === "class") this.state.set({ tokens: [token], hover: null });
    else this.state.tell();
  }

  /** The prediction without one patch or word, beside what every other one does. */
  drawTokens(at, width) {
    const { state } = this;
    const { one, bundle } = state;
    const { of, outcomes, actual } = one.prediction;
    const effects = Float32Array.from({ length: one.count }, (_, token) => one.without(token, "divergence", at, 1)[0]);
    const reach = of === "class" ? one.count - 1 : at; // what comes later is not seen
    const known = [...effects.keys()].filter((token) => token <= reach && Number.isFinite(effects[token]));
    const order = [...known].sort((a, b) => effects[b] - effects[a]);
    const wanted = of === "class" ? state.asked.at(-1) : this.taken;
    const out = known.includes(wanted) ? wanted : order[0];
    const kind = one.grid ? "patch" : "word";
    const before = one.predicted(at);
    const after = out === undefined ? null : one.without(out, "probability", at, outcomes[at].length);
    this.name(after);
    this.draws(outcomes[at], before, after, actual[at]);
    this.kind.show(state.ablation);
    const median = order.length ? effects[order[Math.floor(order.length / 2)]] : NaN;
    const named = (token) => (one.kinds[token] === "patch" ? `patch ${one.labels[token]}` : `“${readable(one.labels[token])}”`);
    this.reads.textContent = out === undefined ? `No ${kind} before this one could be removed.`
      : this.told(named(out), kind, outcomes[at][0], before[0], after[0], effects[out], order.indexOf(out) + 1, order.length, median);
    this.cells = [];
    this.map.hidden = this.mapped.hidden = !one.grid;
    if (one.grid) {
      this.mapped.textContent = `Divergence without each patch, full colour at ${number(effects[order[0]])} nats`;
      const { values, rows, columns, most } = arranged(effects, one);
      const side = Math.min(190, width);
      const [wide, tall] = [side / columns, (side * (one.image[0] / one.image[1])) / rows];
      const pen = fresh(this.map, side, tall * rows);
      if (pen) mosaic(pen, values, columns, rows, most, { theme: state.theme, scale: "linear", direction: "from" }, { x: 0, y: 0, width: side, height: tall * rows });
      this.cells = patchesOf(one).map((token, i) => ({ token, effect: effects[token], x: (i % columns) * wide, y: Math.floor(i / columns) * tall, wide, tall })).filter(({ token }) => token !== null);
      const own = this.cells.find((cell) => cell.token === out);
      if (pen && own) {
        pen.strokeStyle = palette(state.theme, this.element).getPropertyValue("--ink");
        pen.lineWidth = 2;
        pen.strokeRect(own.x + 1, own.y + 1, own.wide - 2, own.tall - 2);
      }
      this.map.setAttribute("aria-label", this.reads.textContent);
    }
    refill(this.list, "Largest divergence (nats)", order.slice(0, one.grid ? 4 : 10).map((token) => ({
      name: readable(one.labels[token]), where: String(token), value: number(effects[token]), title: `Show the prediction without this ${kind}`, colour: tint(state, 1, "from"),
      share: effects[token] / Math.max(effects[order[0]], 1e-12), pressed: token === out, act: () => this.take(token),
    })));
    this.note.textContent = `Each ${kind} is removed by itself: ${bundle.removal}. Divergence: Kullback–Leibler divergence of the prediction from that of the whole input. The model may not know such an input.`;
  }

  /** What is predicted without a head, patch or word, beside what others of its kind do. */
  told(what, kind, outcome, before, after, divergence, rank, count, median) {
    const change = `${after < before ? "−" : "+"}${number(Math.abs(after - before) * 100)}`;
    const numbers = { before: percent(before), after: percent(after), change, divergence: number(divergence), rank, count, median: number(median) };
    return this.state.sentence("effect", { what, kind, outcome: `“${readable(outcome)}”`, ...numbers });
  }

  draws(outcomes, before, after, actual) {
    const { state } = this;
    this.bars.replaceChildren();
    const most = Math.max(...before, ...(after ?? []), 1e-9);
    this.bars.append(make("div", "aw-columns", null, make("span"), make("span"), make("span", "aw-value", "whole"), make("span", "aw-where", after ? "without" : "")));
    outcomes.slice(0, 6).forEach((outcome, place) => {
      const bar = make("span", "aw-bar", null, make("i"), make("b"));
      bar.firstChild.style.width = `${(before[place] / most) * 100}%`;
      bar.lastChild.hidden = !after || !Number.isFinite(after[place]);
      if (!bar.lastChild.hidden) bar.lastChild.style.left = `${(after[place] / most) * 100}%`;
      const right = outcome === actual ? " ✓" : "";
      const row = make("div", "aw-leader", null, make("span", "aw-name", `${readable(outcome)}${right}`), bar, make("span", "aw-value", percent(before[place])), make("span", "aw-where", after ? percent(after[place]) : ""));
      row.title = `${readable(outcome)}: ${percent(before[place])}${after ? `; without it ${percent(after[place])}` : ""}${right ? "; it is the right one" : ""}`;
      if (right) row.children[0].style.fontWeight = "650";
      this.bars.append(row);
    });
    if (actual && !outcomes.slice(0, 6).includes(actual)) {
      this.bars.append(make("p", "aw-note", `Right would be “${readable(actual)}”, ${percent(state.one.predictedActual(this.position))}.`));
    }
  }

  /** Layers × heads, as dark as the effect. */
  heat(cells, width) {
    const { state } = this;
    const { layers } = state.bundle;
    const heads = Math.max(...layers.map((layer) => layer.heads));
    const left = 22;
    const wide = Math.min(54, (width - left) / heads);
    const tall = Math.max(9, Math.min(22, 190 / layers.length, wide));
    const pen = fresh(this.map, width, layers.length * tall + 18);
    if (!pen) return;
    const style = palette(state.theme, this.element);
    const most = Math.max(...cells.map((cell) => cell.effect || 0), 1e-12);
    pen.font = `10.5px ${style.fontFamily}`;
    pen.textBaseline = "middle";
    pen.textAlign = "center";
    pen.fillStyle = style.getPropertyValue("--muted");
    for (let head = 0; head < heads; head += Math.ceil(18 / wide)) pen.fillText(head, left + (head + 0.5) * wide, 7);
    pen.textAlign = "right";
    for (const layer of layers) if (tall >= 11 || layer.place % 2 === 0) pen.fillText(layer.index, left - 7, 16 + (layer.place + 0.5) * tall);
    this.cells = cells.map((cell) => ({ ...cell, x: left + cell.head * wide, y: 16 + cell.layer.place * tall, wide, tall }));
    for (const { x, y, effect, layer, head } of this.cells) {
      pen.fillStyle = style.getPropertyValue("--soft");
      pen.fillRect(x, y, wide - 1.5, tall - 1.5);
      pen.fillStyle = `rgba(${hue(state.theme, "from").join(",")},${(effect || 0) / most})`;
      pen.fillRect(x, y, wide - 1.5, tall - 1.5);
      if (layer.index !== state.layer || head !== state.head) continue;
      pen.strokeStyle = style.getPropertyValue("--ink");
      pen.lineWidth = 2;
      pen.strokeRect(x, y, wide - 1.5, tall - 1.5);
    }
    this.map.setAttribute("aria-label", this.reads.textContent);
  }

  pointed(event) {
    const [x, y] = placeOn(this.map, event);
    this.near = this.cells?.find((cell) => x >= cell.x && x < cell.x + cell.wide && y >= cell.y && y < cell.y + cell.tall) ?? null;
    this.map.style.cursor = this.near ? "pointer" : "default";
    if (this.near?.token !== undefined) this.tip.show(event, `Without ${readable(this.state.one.labels[this.near.token])}`, `${number(this.near.effect)} nats`);
    else if (this.near) this.tip.show(event, `Layer ${this.near.layer.index}, head ${this.near.head}`, `${number(this.near.effect)} nats`);
    else this.tip.hide();
  }
}
