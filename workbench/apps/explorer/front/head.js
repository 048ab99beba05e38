// The head view: the input once, large, and where the query in question attends.

import { SINK } from "./bundle.js";
import { HEADS, RATIO, colourBar, fresh, number, palette, percent, scaled } from "./colour.js";
import { Compare } from "./compare.js";
import { WRITES, tint, wordColours } from "./grid.js";
import { Edit } from "./edit.js";
import { drawChips, drawPatches, inputImage, patchAt, patchesOf, pictured } from "./image.js";
import { CLEARLY, asked, clearly, exactLink, linkOf, patternsAbove, ranked, striking, strongest } from "./links.js";
import { Steps } from "./steps.js";
import { button, choice, coarse, largest, make, nameOf, readable, viewKey } from "./state.js";

const LINES = 14; // of one query and head at most
const LONG = 800; // tokens: of longer texts only what is in view is coloured, at one size of letters
const WRITTEN = 12; // tokens that a model is asked to go on with
const PRINTED = 680; // width of an exported image, in its own units
const FAINT = 0.015; // attention below which no line is drawn

export class HeadView {
  constructor(state, tip, host = {}) {
    Object.assign(this, { state, tip, host });
    this.headline = make("p", "aw-headline");
    this.headline.setAttribute("aria-live", "polite");
    this.follows = make("p", "aw-follows");
    this.suggestions = make("p", "aw-follows aw-suggestions");
    this.direction = choice("direction", [
      ["from", "from", "Keys of the chosen tokens (D)"], ["to", "to", "Queries that attend to the chosen tokens (D)"],
    ], state.direction, (direction) => state.set({ direction }));
    this.scale = choice("scale of colour", [
      ["linear", "linear", "Colour in proportion (S)"], ["sqrt", "√", "Colour by square root (S)"], ["log", "log", "Colour by logarithm, three decades (S)"], ["ratio", "× uniform", `Colour by the ratio to uniform attention: none at 1 ×, full at ${RATIO} × (S)`],
    ], state.scale, (scale) => state.set({ scale }));
    this.weights = choice("weights", [
      ["attention", "attention", "Attention weights"], ["written", "what it writes", WRITES],
    ], state.weights, (weights) => state.set({ weights }));
    this.opacity = make("input", "aw-slider");
    Object.assign(this.opacity, { type: "range", min: 0, max: 1, step: 0.05, value: state.opacity, title: "Opacity of attention over the image" });
    this.opacity.setAttribute("aria-label", "opacity of attention over the image");
    this.opacity.addEventListener("input", () => state.set({ opacity: Number(this.opacity.value) }));
    this.bar = make("canvas", "aw-scale");
    this.legend = make("div", "aw-legend", null, this.bar);
    this.special = make("div", "aw-special");
    this.stage = make("div", "aw-stage");
    this.hint = make("p", "aw-note");
    this.pin = button("Pin to compare", "Keep this view, choose another head, token or input, and set both side by side (M)", () => state.pin());
    this.beside = button("", "Both views side by side, and their difference", () => state.set({ against: state.pins.at(-1) }));
    this.sinks = button("Hide sinks", `Draw attention to sinks, or take them out: keys with more than ${SINK} of the head's attention, mean over queries`, () => state.set({ sinks: state.sinks === "on" ? "off" : "on" }), "aw-toggle");
    this.more = button("Continue", `Have the model write ${WRITTEN} more tokens, and step through them`, () => host.generate(WRITTEN));
    this.more.hidden = !host.kernel;
    this.edit = new Edit(state, host);
    const controls = make("div", "aw-row aw-controls", null, this.direction, this.weights, this.scale, this.opacity, this.sinks, this.pin, this.beside, this.edit.paint, this.edit.undo, this.more, this.legend);
    this.steps = new Steps(state);
    this.box = make("section", "aw-panel aw-centre", null, this.headline, this.follows, this.suggestions, controls, this.edit.field, this.steps.box, this.special, this.stage, this.hint);
    this.box.setAttribute("aria-label", "head view");
    this.compare = new Compare(state, tip, (element, where) => this.listens(element, where));
    this.box.addEventListener("dragover", (event) => event.preventDefault());
    this.box.addEventListener("drop", (event) => {
      event.preventDefault();
      const pin = event.dataTransfer.getData("text/plain");
      if (state.pins.includes(pin)) state.set({ against: pin });
    });
    this.stage.addEventListener("scroll", () => this.long && state.tell());
    this.dragged = null;
    globalThis.addEventListener("pointerup", (this.released = () => {
      this.dragged = null;
      setTimeout(() => (this.brushed = false)); // after the click that ends a drag
    }));
  }

  destroy() {
    this.steps.stop();
    globalThis.removeEventListener("pointerup", this.released);
  }

  /** The input laid out: once for every input. */
  build() {
    const { one } = this.state;
    this.built = one;
    this.first = null; // the token that was clicked last
    this.tokens = new Map();
    this.special.replaceChildren();
    this.stage.replaceChildren();
    this.opacity.hidden = !one.grid;
    const looks = pictured(one) ? `${coarse() ? "Tap" : "Hover over"} a word: its attention lies over the image. ${!one.cells ? "" : one.images > 1 ? `Patch 1:0,2 is row 0, column 2 of image 1; the ${one.images} images are counted from 0. ` : "Patch 2:0,1 is row 0, column 1 of tile 2; the small image at the right is the overview that the model reads beside its tiles. "}` : "";
    const named = one.grid && !one.cells ? "Patch 3,5 is row 3, column 5. " : "";
    this.hint.textContent = looks + named + (coarse() ? "Tap a token to lock it, tap a second to ask which heads link the two." : "Hover to preview, click to lock, click a second token to ask which heads link the two, shift-click or drag for several, Esc for all.");
    this.sinks.hidden = !one.kinds.includes("word");
    this.special.classList.toggle("aw-prompt", pictured(one));
    this.stage.classList.toggle("aw-words", !one.grid);
    const chip = (token) => {
      const found = make("button", `aw-token aw-${one.kinds[token] === "word" ? "word" : "other"}`, readable(one.labels[token]));
      found.type = "button";
      found.tabIndex = -1;
      found.dataset.token = token;
      this.tokens.set(token, found);
      this.listens(found, () => token);
      return found;
    };
    const places = one.kinds.map((_, i) => i).filter((i) => one.real[i]);
    if (one.grid) {
      this.patches = patchesOf(one);
      this.special.append(...places.filter((i) => one.kinds[i] !== "patch").map(chip));
      this.canvas = make("canvas", "aw-image");
      this.canvas.tabIndex = 0;
      this.canvas.setAttribute("role", "img");
      this.stage.append(this.canvas);
      this.grey = inputImage(one, true);
      this.own = inputImage(one, false);
      if (!this.edit.paint.hidden) this.edit.hears(this.canvas, [this.own, this.grey]);
      this.listens(this.canvas, (event) => patchAt(event, this.canvas, one));
    } else {
      this.lines = make("canvas", "aw-lines");
      const letters = one.labels.every((label) => label.length <= 1); // a model of characters is read as text
      this.text = make("div", `aw-text${letters ? " aw-letters" : ""}`, null, ...words(one, places).map((word) => make("span", "aw-word", null, ...word.map(chip))), this.lines);
      this.stage.append(this.text);
      this.long = places.length > LONG;
    }
    this.special.hidden = !this.special.children.length;
  }

  listens(element, where) {
    const { state } = this;
    const at = (event) => {
      const token = where(event);
      return token === null || token === undefined ? null : token;
    };
    element.addEventListener("pointermove", (event) => {
      const token = at(event);
      if (this.dragged !== null && token !== null && token !== this.dragged) {
        this.brushed = true;
        return state.set({ tokens: this.between(this.dragged, token), hover: null });
      }
      if (event.pointerType === "touch") return;
      if (token !== state.hover && !this.brushed) state.set({ hover: token });
      if (token !== null) this.say(event, token);
    });
    element.addEventListener("pointerleave", () => {
      if (state.hover !== null) state.set({ hover: null });
    });
    element.addEventListener("pointerdown", (event) => {
      if (event.pointerType === "touch") return;
      this.dragged = at(event);
      this.brushed = false;
    });
    element.addEventListener("click", (event) => {
      const token = at(event);
      if (this.brushed) {
        this.brushed = false;
        return;
      }
      if (token === null) return;
      const held = state.tokens.includes(token);
      const asks = this.first !== null && state.tokens.join() === String(this.first) && state.link === null && !held && !state.against;
      if (asks && !event.shiftKey) return state.set({ link: token, hover: null }); // the second of two clicks
      this.first = token;
      if (event.shiftKey) state.set({ tokens: held ? state.tokens.filter((t) => t !== token) : [...state.tokens, token], hover: null });
      else state.set({ tokens: held && state.tokens.length === 1 && state.link === null ? [] : [token], hover: null });
    });
  }

  /** Tokens from one to another: a rectangle of patches, a stretch of words. */
  between(first, last) {
    const { one } = this.state;
    const whole = this.patches;
    if (whole && whole.includes(first) && whole.includes(last)) {
      const columns = one.grid[1];
      const [a, b] = [whole.indexOf(first), whole.indexOf(last)];
      const [top, bottom] = [Math.floor(a / columns), Math.floor(b / columns)].sort((x, y) => x - y);
      const [left, right] = [a % columns, b % columns].sort((x, y) => x - y);
      return whole.filter((token, i) => {
        const [row, column] = [Math.floor(i / columns), i % columns];
        return token !== null && row >= top && row <= bottom && column >= left && column <= right;
      });
    }
    const [low, high] = [Math.min(first, last), Math.max(first, last)];
    return one.kinds.map((_, i) => i).filter((i) => one.real[i] && i >= low && i <= high);
  }

  name(token) {
    return nameOf(this.state.one, token);
  }

  whom(tokens = this.state.asked) {
    if (this.state.one.asks) return "all queries of the other stream (mean)";
    if (!tokens.length) return "all queries (mean)";
    if (tokens.length === 1) return this.name(tokens[0]);
    return `${tokens.length} tokens (${this.state.direction === "to" ? "sum" : "mean"})`;
  }

  say(event, token) {
    const { state } = this;
    if (!state.tokens.length || (state.tokens.length === 1 && state.tokens[0] === token)) return this.tip.show(event, this.name(token));
    const values = state.values(state.layer, state.head, state.tokens);
    const maps = state.one.maps(state.card);
    const pair = state.direction === "to" ? [token, state.tokens[0]] : [state.tokens[0], token];
    if (state.tokens.length === 1 && maps?.hides(...pair)) return this.tip.show(event, this.name(token), `masked: ${this.name(pair[0])} cannot see ${this.name(pair[1])}, which comes later`);
    const words = values && token < values.length ? `locked: ${percent(values[token])} ${state.direction === "to" ? "to" : "from"} ${this.whom(state.tokens)}` : "";
    this.tip.show(event, this.name(token), words);
  }

  draw() {
    const { state } = this;
    const pinned = state.pins.includes(viewKey(state)); // the locked view, not the one under the pointer
    this.pin.textContent = pinned ? "Pinned" : "Pin to compare"; // never disabled: a button that is hears no more keys
    const last = state.pins.length ? state.viewOf(state.pins.at(-1)) : null;
    this.beside.hidden = !last || pinned || Boolean(state.against);
    this.beside.textContent = last ? `Compare with layer ${last.layer}, head ${last.head}` : "";
    if (this.built !== state.one) this.build();
    if (state.one.prediction?.of !== "next token") this.more.hidden = true;
    this.steps.draw();
    this.direction.show(state.direction);
    this.scale.show(state.scale);
    this.weights.show(state.weights);
    const none = state.unwritten;
    Object.assign(this.weights.lastChild, { disabled: Boolean(none), title: none || WRITES });
    this.opacity.value = state.opacity;
    this.sinks.textContent = state.sinks === "on" ? "Hide sinks" : "Show sinks";
    const values = state.shown();
    this.values = values;
    this.top = null;
    if (!values) {
      const why = state.card.without ? `Layer ${state.layer} ${state.card.without}.` : `Layer ${state.layer} has one query, the class token: nothing looks at it from others.`;
      this.headline.textContent = state.weights === "written" && none ? none : `No attention matrix here. ${why}`;
      this.follows.textContent = "";
    } else {
      this.sentence(values);
    }
    this.suggest();
    this.limit = 1e-9;
    const over = pictured(state.one); // words beyond the largest patch have full colour
    for (let i = 0; values && i < values.length; i++) {
      if (values[i] > this.limit && (values.length === 1 || state.one.real[i]) && (!over || state.one.kinds[i] === "patch")) this.limit = values[i];
    }
    this.drawn = state.relative(values, state.layer);
    if (state.scale === "ratio") this.limit = RATIO;
    this.legend.hidden = !values;
    this.scaleBar();
    const both = state.against && this.compare.views();
    if (both) this.drawBoth(both);
    else if (this.comparing) this.build();
    this.comparing = Boolean(both);
    if (both) this.special.hidden = !this.special.children.length;
    else if (state.one.grid) this.drawImage();
    else this.drawWords();
    for (const [token, chip] of this.tokens) if (state.one.grid) this.paint(chip, token);
  }

  /** The pinned view beside this one. */
  drawBoth(both) {
    const { state } = this;
    if (this.compare.element.parentNode !== this.stage) this.stage.replaceChildren(this.compare.element);
    this.headline.textContent = this.compare.words(both, this.whom());
    this.follows.replaceChildren(
      "Difference in green: more here, in purple: more in the pinned view. ",
      button("Close the comparison", "Show this view alone (Esc)", () => state.set({ against: "" }), "aw-link"),
    );
    const { width, height } = state.measured(this, "stage", () => ({ width: this.stage.clientWidth, height: this.stage.clientHeight }));
    this.limit = this.compare.draw(both, width, height);
    this.scaleBar();
  }

  /** What the tokens in question, or all, would give each key that they may see. */
  even() {
    const { one, card, asked } = this.state;
    const real = [...one.real.keys()].filter((token) => one.real[token]);
    return one.maps(card)?.even(asked.length ? asked : real, one.real) ?? 1 / real.length;
  }

  sentence(values) {
    const { state } = this;
    const { one } = state;
    const top = largest(values, 1, (i) => one.real[i])[0];
    const heads = state.more.length ? `Mean of ${state.heads.length} heads` : `Layer ${state.layer}, head ${state.head}`;
    const times = values[top] / this.even();
    const most = state.asked.length === 1 && state.asked[0] === top ? "itself" : this.name(top);
    const writes = state.weights === "written";
    let words;
    if (state.direction === "to" && state.asked.length) {
      const places = [...values.keys()].filter((i) => one.real[i]);
      const mean = places.reduce((sum, i) => sum + values[i], 0) / places.length;
      words = writes ? `the share of ${this.whom()} in the summed norms is largest for query ${this.name(top)}: ${percent(values[top])}; mean over all queries ${percent(mean)}` : state.filled("to", { key: this.whom(), query: most, share: percent(values[top]), mean: percent(mean) });
    } else {
      const single = state.one.maps(state.card)?.rows === 1;
      const who = single ? "the class token, its only query" : this.whom();
      const gaps = { query: who, key: single ? this.name(top) : most, share: percent(values[top]), times: multiple(times) };
      words = writes ? `of the summed norms that the head writes to ${gaps.query}, ${gaps.key} has the largest share: ${gaps.share}, ${gaps.times}\u00a0× an equal share` : state.filled("from", gaps);
    }
    const maps = one.maps(state.card);
    const bin = maps?.pooled ? (maps.tokens / maps.columns).toFixed(1) : "";
    const pair = state.hover === null && !state.more.length && asked(state);
    const link = pair && linkOf(one, state.card, state.head, pair.query, pair.key);
    if (link) words = this.linkWords(pair, link);
    else if (pair && maps?.hides(pair.query, pair.key)) words = `masked: ${this.name(pair.query)} cannot see ${this.name(pair.key)}, which comes later`;
    const means = link ? `these are means of ${bin} × ${bin} tokens, the link itself is not in the file` : `means of ${bin} × ${bin} tokens`;
    const exact = link && bin ? exactLink(state, pair) : null;
    const said = exact === null ? means : `in means of ${bin} × ${bin} tokens; the link itself has ${percent(exact)}`;
    this.headline.textContent = `${heads}: ${words}${bin && ` (${said})`}.`;
    if (link && bin && exact === null) this.wants(pair);
    const taken = state.sinks === "off" ? state.sinksOf(state.layer, state.head) : [];
    const scores = patternsAbove(state.bundle, one, state.card, state.head).slice(0, 3);
    this.follows.title = CLEARLY;
    this.follows.replaceChildren();
    if (state.more.length) this.follows.append("Attention is the mean over the heads outlined in the grid; lines have their colours.");
    else if (state.bundle.unmeasured) this.follows.append(this.host.paint ? "The page ran the model on this painting; patterns are not measured." : "Patterns are not measured yet.");
    else if (!scores.length) this.follows.append("No pattern clearly above its null level.");
    else {
      this.follows.append("Clearly above its null level: ");
      scores.forEach(({ metric, score, level }, i) => {
        this.follows.append(i ? ", " : "", make("b", "", metric.short), ` ${score.toFixed(2)} (null ${level.toFixed(2)})`);
      });
      this.follows.append(".");
    }
    if (state.pins.includes(viewKey(state))) this.follows.append(" Pinned: choose another head, token or input to compare with this view.");
    if (state.sinks === "off" && !state.more.length) this.follows.append(taken.length ? ` Taken out: ${taken.map((key) => this.name(key)).join(", ")}.` : ` No key gets more than ${SINK} of the attention: nothing to hide.`);
  }

  /** Have the kernel send a link that is pooled in the file, once. */
  wants({ query, key }) {
    const { input, layer, head } = this.state;
    const wanted = [input, layer, head, query, key].join();
    if (!this.host.part || this.wanted === wanted) return;
    this.wanted = wanted;
    setTimeout(() => this.host.part(query, key, 1)); // once the kernel stands at this head
  }

  linkWords({ query, key }, { attention, written, ratio, p }) {
    const [from, to] = [query, key].map((token) => this.name(token));
    if (this.state.weights === "written") return `${to} has ${percent(written)} of the summed norms that the head writes to ${from}, and ${percent(attention)} of its attention`;
    return this.state.filled("link", { query: from, key: to, share: percent(attention), times: multiple(ratio), p: number(p) });
  }

  /** Where the page opens: why there, and where else to look. */
  suggest() {
    const { state } = this;
    const { layer, head, one, bundle, card } = state;
    if (state.link !== null) return this.answer();
    this.suggestions.hidden = state.opened !== viewKey(state) || one.generated > 0 || card.without; // steps are played, and nothing jumps
    if (this.suggestions.hidden || this.suggested === state.opened + bundle.metrics.length) return;
    this.suggested = state.opened + bundle.metrics.length;
    const found = striking(bundle, one);
    const [most] = found;
    const here = (each) => each.layer.index === layer && each.head === head;
    const others = found.filter((each) => !here(each)).slice(0, 2);
    const link = strongest(one, card, head);
    this.suggestions.replaceChildren(
      ...(most && here(most) ? [`${state.sentence("striking", { pattern: most.metric.short, times: number(most.ratio) })} `] : []), ...(others.length || link ? ["Look also at: "] : []),
      ...others.map((each) => button(`${each.metric.short}: layer ${each.layer.index}, head ${each.head}`, each.metric.definition, () => state.set({ layer: each.layer.index, head: each.head, more: [], metric: each.metric.name }), "aw-link")),
      ...(link ? [button(`which heads link ${this.name(link.query)} and ${this.name(link.key)}?`, "Every head by its attention on this link", () => state.set({ tokens: [link.query], link: link.key, direction: "from", hover: null }), "aw-link")] : []),
    );
  }

  /** The heads that give most attention to the link that is asked about, or the question that the mask allows. */
  answer() {
    const { state } = this;
    const { query, key } = asked(state);
    const question = [state.input, query, key, state.layer, state.head].join();
    this.suggestions.hidden = false;
    if (this.suggested === question) return;
    this.suggested = question;
    const heads = ranked(state);
    const turned = { tokens: [key], link: query, direction: "from", hover: null };
    const least = Math.min(...heads.map(({ p }) => p));
    const none = least < clearly(heads) ? "" : `No head links them clearly: the smallest p of ${heads.length} heads is ${number(least)}, not below 0.05/${heads.length}. `;
    this.suggestions.replaceChildren(
      ...(heads.length ? [`${none}Strongest of ${heads.length} heads: `] : [button(`which heads link ${this.name(key)} to ${this.name(query)}?`, "The same question the other way", () => state.set(turned), "aw-link")]),
      ...heads.slice(0, 3).map(({ layer, head, attention }) => button(`layer ${layer.index}, head ${head} (${percent(attention)})`, "Look at this head", () => state.set({ layer: layer.index, head, more: [] }), "aw-link")),
    );
  }

  /** The colour bar: from nothing to the largest value, and where uniform attention is. */
  scaleBar() {
    const pen = fresh(this.bar, 190, 28);
    if (pen) this.drawScale(pen, 190);
    const writes = this.state.weights === "written";
    this.bar.title = this.state.scale === "ratio" ? `Multiples of ${writes ? "an equal share" : "uniform attention"}` : writes ? `${WRITES} The tick is an equal share.` : "Attention; the tick is uniform attention";
  }

  drawScale(pen, width) {
    const { state } = this;
    const level = state.scale === "ratio" ? NaN : this.even();
    const colour = (share) => tint(state, share * (state.one.grid ? state.opacity : 0.9));
    colourBar(pen, width, { limit: this.limit, scale: state.scale, level, colour, style: palette(state.theme, this.box) });
  }

  drawImage() {
    const { state } = this;
    const { one } = state;
    const [tall, wide] = one.image ?? one.grid;
    const room = state.measured(this, "stage", () => ({ width: this.stage.clientWidth, height: this.stage.clientHeight }));
    const unit = Math.min(room.width / wide, Math.max(room.height, 160) / tall);
    const [width, height] = [Math.floor(wide * unit), Math.floor(tall * unit)];
    const pen = fresh(this.canvas, width, height);
    if (pen) this.drawOver(pen, width, height);
    this.canvas.setAttribute("aria-label", `${one.id}: ${this.headline.textContent}`);
  }

  drawOver(pen, width, height) {
    const { state } = this;
    const shown = state.original ? null : this.values;
    const colour = (token) => shown && token < shown.length && tint(state, this.share(token) * state.opacity);
    drawPatches(pen, state.one, state.original ? this.own : this.grey, width, height, state.outlined, colour);
  }

  /** How far along the scale a token's attention is. */
  share(token) {
    return this.drawn && token < this.drawn.length ? scaled(this.drawn[token], this.limit, this.state.scale) : 0;
  }

  paint(chip, token) {
    const { state } = this;
    const share = this.share(token);
    const { fresh: chosen } = this.steps;
    const key = `${share.toFixed(3)}${state.theme}${state.look.direction}${state.outlined.includes(token)}${state.tokens.includes(token)}${chosen}`;
    if (chip.painted === key) return;
    chip.painted = key;
    [chip.style.backgroundColor, chip.style.color] = wordColours(state, share);
    chip.classList.toggle("aw-asked", state.outlined.includes(token));
    chip.classList.toggle("aw-fresh", token === chosen);
    chip.classList.toggle("aw-later", chosen !== null && token > chosen);
    chip.setAttribute("aria-pressed", String(state.tokens.includes(token)));
  }

  /** Letters as large as leave room for all words, within bounds. */
  fit() {
    return this.state.measured(this, "words", () => {
      const { clientWidth, clientHeight } = this.stage;
      const largest = this.long ? 14 : Math.max(15, Math.min(25, Math.floor(clientWidth / 26)));
      for (let size = largest; size >= 14; size--) {
        this.text.style.fontSize = `${size}px`;
        if (this.text.scrollHeight <= clientHeight) break;
      }
      const places = new Map();
      for (const [token, { offsetLeft, offsetTop, offsetWidth, offsetHeight }] of this.tokens) {
        places.set(token, { x: offsetLeft + offsetWidth / 2, top: offsetTop, bottom: offsetTop + offsetHeight });
      }
      return { width: this.text.clientWidth, height: this.text.scrollHeight, places };
    });
  }

  /** Bring a word into view that was chosen elsewhere: by a key, in the matrix, by the address. */
  follow(places) {
    const { tokens, hover } = this.state;
    const key = tokens.join();
    if (this.followed === key || hover !== null) return;
    this.followed = key;
    const place = places.get(tokens[0]);
    const { scrollTop, clientHeight } = this.stage;
    if (place && (place.top < scrollTop || place.bottom > scrollTop + clientHeight)) this.stage.scrollTop = place.top - clientHeight / 3;
  }

  drawWords() {
    const { width, height, places } = this.fit();
    this.follow(places);
    const { scrollTop, clientHeight } = this.stage;
    for (const [token, chip] of this.tokens) {
      const { top, bottom } = places.get(token);
      if (!this.long || (bottom > scrollTop - clientHeight / 2 && top < scrollTop + clientHeight * 1.5)) this.paint(chip, token);
    }
    const seen = this.long ? Math.min(height, clientHeight) : height; // a canvas as tall as a long text takes a frame to clear
    const from = this.long ? Math.max(0, Math.min(scrollTop, height - seen)) : 0;
    const pen = fresh(this.lines, width, seen);
    if (!pen) return;
    this.lines.style.top = `${from}px`;
    pen.translate(0, -from);
    this.drawLines(pen, places);
  }

  /** What an export draws: its size, and how. */
  get parts() {
    const { one } = this.state;
    if (this.comparing) return this.compare.parts;
    if (!one.grid) {
      const { clientWidth: width, scrollHeight: height } = this.text;
      const draw = (pen, ink) => {
        drawChips(pen, this.tokens, ink);
        this.drawLines(pen, this.fit().places);
      };
      return [{ title: "", width, height, draw }];
    }
    const [tall, wide] = one.image ?? one.grid;
    const height = (PRINTED * tall) / wide;
    return [{ title: "", width: PRINTED, height, draw: (pen) => this.drawOver(pen, PRINTED, height) }];
  }

  /** Lines from the words in question to those with most of their attention. */
  drawLines(pen, places) {
    const { state } = this;
    if (!this.values) return;
    const asked = state.asked.slice(0, 6);
    state.heads.forEach(([layer, head], place) => {
      for (const token of asked) {
        const row = state.values(layer, head, [token]);
        const start = places.get(token);
        if (!row || !start) continue;
        const seen = state.relative(row, layer, [token]);
        const most = largest(row, LINES, (i) => i !== token && row[i] > FAINT);
        for (const other of most.reverse()) {
          const end = places.get(other);
          if (!end) continue;
          pen.globalAlpha = 0.18 + 0.72 * scaled(seen[other], Math.max(this.limit, seen[other]), state.scale);
          pen.strokeStyle = state.more.length ? HEADS[place % HEADS.length] : tint(state, 1);
          pen.lineWidth = 0.75 + 3.25 * Math.min(1, row[other]);
          arc(pen, start, end, place);
        }
      }
    });
    pen.globalAlpha = 1;
  }
}

/** How many times something is, in words. */
function multiple(times) {
  return times >= 10 ? String(Math.round(times)) : times >= 0.095 || times === 0 ? times.toFixed(1) : String(Number(times.toPrecision(1)));
}

/** Tokens by word, which no line breaks: a word begins after or with a space, or where no "##" goes on with it. */
function words({ labels, kinds }, places) {
  const spaced = labels.some((label) => /^\s/.test(label) || /\s$/.test(label));
  const pieces = labels.some((label) => label.startsWith("##"));
  const found = [];
  places.forEach((token, i) => {
    const before = labels[places[i - 1]] ?? " ";
    const goesOn = spaced ? !/^\s\S/.test(labels[token]) && !/\s$/.test(before) : pieces && labels[token].startsWith("##");
    if (goesOn && kinds[token] === "word" && kinds[places[i - 1]] === "word") found.at(-1).push(token);
    else found.push([token]);
  });
  return found;
}

/** A line between two words, through the space between the lines of text. */
function arc(pen, start, end, place) {
  const below = end.top >= start.bottom - 2;
  const above = end.bottom <= start.top + 2;
  const y1 = below ? start.bottom : start.top;
  const y2 = below ? end.top : above ? end.bottom : end.top;
  const lift = below || above ? 0 : Math.min(16, 6 + Math.abs(end.x - start.x) / 24) + place;
  pen.beginPath();
  pen.moveTo(start.x, y1);
  if (lift) pen.bezierCurveTo(start.x, y1 - lift, end.x, y2 - lift, end.x, y2);
  else pen.bezierCurveTo(start.x, (y1 + y2) / 2, end.x, (y1 + y2) / 2, end.x, y2);
  pen.stroke();
}
