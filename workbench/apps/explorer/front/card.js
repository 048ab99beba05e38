// The head card: what a head does over many inputs, its strongest links, patterns, plane and circuits.

import { HEADS, density, fresh, number, palette, percent, ramp } from "./colour.js";
import { button, choice, make, placeOn, readable, refill } from "./state.js";
import { patternsAbove } from "./links.js";
import { spectrumChart } from "./spectra.js";

const INPUTS = 20; // that a kernel is asked for
const CIRCUITS = { QK: "Singular values of its query–key circuit", OV: "Singular values of its value–output circuit" };

export class Card {
  constructor(state, tip, host = {}) {
    this.state = state;
    this.tip = tip;
    this.by = "position";
    this.reads = make("p", "aw-reads");
    this.patterns = make("div", "aw-most");
    this.links = make("div", "aw-most aw-links");
    this.circuits = Object.entries(CIRCUITS).map(([name, words]) => ({ name, canvas: make("canvas"), title: make("h3", "", words) }));
    this.kind = choice("colour of the points", [["position", "position", "From the first token to the last"], ["kind", "kind", "Kind of token"]], this.by, (by) => {
      this.by = by;
      this.drawn = null;
      state.tell();
    });
    this.plane = make("canvas", "aw-plane");
    this.plane.setAttribute("role", "img");
    this.key = make("p", "aw-note");
    const note = make("p", "aw-note", "A patch is called by its row and column. Pattern: share of inputs with a score clearly above its null level. Link: on how many inputs it is among the head's ten largest, and its mean ratio to uniform attention there. Grey band of a circuit: weights drawn from a Gaussian.");
    const measure = button(`Make cards over ${INPUTS} inputs`, "The kernel runs the model on them once", () => host.cards(INPUTS));
    this.missing = make("div", "aw-norms", null, make("p", "aw-note", "A card of each head over many inputs: its strongest links, how stable its patterns are, its plane and its circuits."), measure);
    this.filled = make("div", "aw-norms", null, this.reads, this.patterns, this.links, ...this.circuits.map(({ title, canvas }) => make("div", "aw-norm", null, title, canvas)), make("div", "aw-row", null, make("h3", "", "Queries (●) and keys (■)"), this.kind), this.plane, this.key, note);
    this.element = make("div", "", null, this.missing, this.filled);
    this.plane.addEventListener("pointermove", (event) => this.pointed(event));
  }

  draw(width) {
    const { state } = this;
    const { bundle, layer, head, theme } = state;
    const { cards } = bundle;
    this.missing.hidden = Boolean(cards);
    this.filled.hidden = !cards;
    const key = [state.input, layer, head, theme, width, Boolean(cards), density()].join();
    if (this.drawn === key || !cards) return; // no hover changes it
    this.drawn = key;
    const card = cards.heads.find((one) => one.layer === layer && one.head === head);
    const short = (name) => bundle.metrics.find((metric) => metric.name === name)?.short || name.replace("pattern_", "");
    const stable = Object.entries(card?.stability ?? {}).sort((a, b) => b[1] - a[1]);
    const here = patternsAbove(bundle, state.one, state.card, head).map(({ metric }) => metric.name); // those of the headline come first
    const named = stable.filter(([name, share]) => share > 0 || here.includes(name)).sort(([a], [b]) => here.includes(b) - here.includes(a));
    const inputs = `${cards.inputs} input${cards.inputs === 1 ? "" : "s"}${cards.spec && ` of ${cards.spec}`}`;
    this.reads.textContent = named.length
      ? state.sentence("stability", { patterns: named.map(([name, share]) => `${short(name)} ${percent(share)}`).join(", "), inputs })
      : `No pattern clearly above its null level on ${inputs}.`;
    const row = (name, value, share, where = "", title = name) => ({ name, where, value, title, share });
    refill(this.patterns, `Patterns, by share of ${cards.inputs} inputs`, stable.map(([name, share]) => row(short(name), percent(share), share)));
    const links = card?.links ?? [];
    const most = Math.max(...links.map((link) => link.ratio), 1);
    refill(this.links, `Strongest links, query → key: number of inputs (of ${cards.inputs}), × uniform attention`, links.map((link) => row(`${readable(link.query)} → ${readable(link.key)}`, `${number(link.ratio)} ×`, link.ratio / most, `${link.inputs}`, `On ${link.inputs} of ${cards.inputs} inputs`)));
    const style = palette(theme, this.element);
    for (const { name, canvas, title } of this.circuits) {
      const spectrum = bundle.circuit(state.card, head, name);
      title.parentNode.hidden = !spectrum;
      const pen = spectrum && fresh(canvas, width, 120);
      if (pen) spectrumChart(state, pen, spectrum, width, 120, style);
    }
    this.drawPlane(width);
  }

  /** Queries and keys of tokens of all inputs, in their joint principal components. */
  drawPlane(width) {
    const { state } = this;
    const { bundle: { cards, cardPlane }, layer, head, theme } = state;
    const plane = cardPlane(state.card, head);
    this.points = [];
    this.plane.hidden = this.kind.parentNode.hidden = this.key.hidden = !plane;
    if (!plane) return;
    const kinds = [...new Set(cards.points.map((point) => point.kind))];
    this.kind.hidden = kinds.length < 2;
    if (kinds.length < 2) this.by = "position";
    this.kind.show(this.by);
    const all = [...plane.q, ...plane.k];
    const bounds = [0, 1].map((axis) => [Math.min(...all.map((point) => point[axis])), Math.max(...all.map((point) => point[axis]))]);
    const [across, up] = bounds.map(([low, high]) => high - low || 1);
    const height = Math.max(120, Math.min((up / across) * (width - 16) + 16, 320));
    const pen = fresh(this.plane, width, height);
    if (!pen) return;
    const unit = Math.min((width - 16) / across, (height - 16) / up);
    const at = ([x, y]) => [width / 2 + (x - (bounds[0][0] + bounds[0][1]) / 2) * unit, height / 2 - (y - (bounds[1][0] + bounds[1][1]) / 2) * unit];
    const table = ramp(theme, "from");
    const colour = ({ position, kind }) => {
      if (this.by === "kind") return HEADS[kinds.indexOf(kind) % HEADS.length];
      const place = Math.round(60 + 195 * position) * 3; // the palest colours are the ground's
      return `rgb(${table.subarray(place, place + 3).join(",")})`;
    };
    for (const side of ["k", "q"]) {
      cards.points.forEach((point, place) => {
        const [x, y] = at(plane[side][place]);
        pen.fillStyle = colour(point);
        pen.beginPath();
        if (side === "q") pen.arc(x, y, 2.6, 0, 2 * Math.PI);
        else pen.rect(x - 2.2, y - 2.2, 4.4, 4.4);
        pen.fill();
        this.points.push({ x, y, words: `${side === "q" ? "query" : "key"} of “${readable(point.label)}”` });
      });
    }
    const shares = state.sentence("plane", { share: percent(plane.share[0] + plane.share[1]), across: percent(plane.share[0]), up: percent(plane.share[1]) });
    const shown = this.by === "kind" ? kinds.map((kind) => Object.assign(make("span", "", ` ■ ${kind}`), { style: `color: ${HEADS[kinds.indexOf(kind) % HEADS.length]}` })) : [theme === "dark" ? " Dark: first token, light: last." : " Light: first token, dark: last."];
    this.key.replaceChildren(shares, ...shown);
    this.plane.setAttribute("aria-label", `Queries and keys of layer ${layer}, head ${head} over ${cards.inputs} inputs. ${shares}`);
  }

  pointed(event) {
    const [x, y] = placeOn(this.plane, event);
    const near = this.points.find((point) => Math.hypot(point.x - x, point.y - y) < 5);
    if (near) this.tip.show(event, near.words);
    else this.tip.hide();
  }
}
