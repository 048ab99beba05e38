// Exports: the head view as SVG or PNG, the numbers that are seen as CSV, the command that draws it for print.

import { modelName } from "./compare.js";
import { dense, palette } from "./colour.js";
import { TITLES } from "./evidence.js";
import { rampScale, scaleName } from "./grid.js";
import { button, make, onEnter } from "./state.js";

const SPACE = ["http", "//www.w3.org/2000/svg"].join(":"); // the name of the format: nobody is asked there
const SIDE = 720; // least width of an exported image
const GRID = 680; // width of an exported grid of heads
const LEAST = 1400; // pixels of an exported PNG, from left to right
const LETTERS = "Arial, Helvetica, sans-serif";
const VIEWS = { norms: "norms", spectra: "spectrum", membership: "membership" };
const FIGURES = [
  ["attention", "From / to"], ["matrix", "Matrix"], ["norms", "Norms"], ["spectrum", "Spectrum of the keys"], ["singular", "Singular values"], ["membership", "Membership"],
  ["trajectory", "Tokens through depth"], ["compare", "Compare with the pinned view"],
]; // views that the library draws
const PARTS = [["head", "Head view"], ["heads", "All heads"], ["tab", ""], ["depth", "Depth"]]; // of the page, as it draws them

/** An element of an SVG; attributes and words only ever as text. */
function shape(tag, attributes, words = null, ...children) {
  const found = document.createElementNS(SPACE, tag);
  for (const [name, value] of Object.entries(attributes)) found.setAttribute(name, typeof value === "number" ? Number(value.toFixed(2)) : value);
  if (words !== null) found.textContent = words;
  found.append(...children);
  return found;
}

/** Words in lines of at most so many letters. */
function wrapped(words, most) {
  const lines = [""];
  for (const word of words.split(" ")) {
    if (lines.at(-1) && lines.at(-1).length + word.length >= most) lines.push("");
    lines.push(`${lines.pop()} ${word}`.trim());
  }
  return lines;
}

/** A pen that writes shapes of an SVG: what draws on a canvas draws with it as well. */
class SvgPen {
  constructor(x, y) {
    this.shapes = shape("g", { transform: `translate(${x},${y})` });
    Object.assign(this, { lineWidth: 1, globalAlpha: 1, textAlign: "left", textBaseline: "alphabetic" });
  }

  put(tag, attributes, words = null) {
    this.shapes.append(shape(tag, attributes, words));
  }

  /** A colour without its opacity, which many programs read apart from it. */
  ink(name, colour) {
    const [red, green, blue, alpha = 1] = /^rgb/.test(colour) ? colour.match(/[\d.]+/g).map(Number) : [];
    return { [name]: red === undefined ? colour : `rgb(${red},${green},${blue})`, [`${name}-opacity`]: alpha * this.globalAlpha };
  }

  drawImage(image, x, y, width, height) {
    this.put("image", { href: image.toDataURL(), x, y, width, height, preserveAspectRatio: "none", style: "image-rendering: pixelated" });
  }

  fillRect(x, y, width, height) {
    this.put("rect", { x, y, width, height, ...this.ink("fill", this.fillStyle) });
  }

  strokeRect(x, y, width, height) {
    this.put("rect", { x, y, width, height, fill: "none", ...this.ink("stroke", this.strokeStyle), "stroke-width": this.lineWidth });
  }

  fillText(words, x, y) {
    const size = parseFloat(this.font);
    const down = { top: 0.8, middle: 0.35 }[this.textBaseline] ?? 0; // letters; not every program knows baselines
    this.put("text", { x, y: y + down * size, "font-size": size, "text-anchor": this.textAlign === "center" ? "middle" : "start", style: "white-space: pre", ...this.ink("fill", this.fillStyle) }, words);
  }

  beginPath() {
    this.path = "";
  }

  moveTo(...to) {
    this.path += `M${to.map((part) => part.toFixed(1))}`;
  }

  bezierCurveTo(...to) {
    this.path += `C${to.map((part) => part.toFixed(1))}`;
  }

  stroke() {
    this.put("path", { d: this.path, fill: "none", ...this.ink("stroke", this.strokeStyle), "stroke-width": this.lineWidth });
  }
}

/** Model, heads and input, in a line. */
function titleOf(state, heads = state.more.length ? `mean of ${state.heads.length} heads` : `layer ${state.layer}, head ${state.head}`) {
  return [modelName(state), heads, state.one.id].join(" · ");
}

/** Model, input and version, in a line. */
function sourceOf({ bundle: { model, version }, one }) {
  return `${model.spec}${one.checkpoint && ` ${one.checkpoint}`}${model.random_weights ? " (random weights)" : ""} · ${one.id} · Attention Workbench ${version}`;
}

/** A copy of an element that looks the same outside the page: styles written out, canvases as images. */
function copied(element) {
  if (!(element instanceof Element)) return element.cloneNode();
  const style = getComputedStyle(element);
  if (style.display === "none" || element.matches(".aw-hint, .aw-choice")) return ""; // what only a screen has
  const canvas = element instanceof HTMLCanvasElement;
  const found = canvas ? make("img") : element.cloneNode(false);
  if (canvas) found.src = element.toDataURL();
  else found.append(...[...element.childNodes].map(copied));
  found.style.cssText = [...style].map((name) => `${name}:${style.getPropertyValue(name)}`).join(";");
  return found;
}

/** A part of the page as an SVG: its title, itself, its colour scale and its source. */
function panelSvg(state, view, element, { title, scale }) {
  const style = palette(state.theme, view.box);
  const [ink, fill] = ["--ink", "--muted"].map((name) => style.getPropertyValue(name));
  const { offsetWidth, scrollHeight: height } = element;
  const width = offsetWidth + 24;
  let top = 10;
  const names = wrapped(title, width / 8).map((line) => shape("text", { x: 12, y: (top += 18), "font-size": 14, "font-weight": "bold", fill: ink }, line));
  const found = shape("foreignObject", { x: 12, y: (top += 10), width: offsetWidth, height }, null, copied(element));
  Object.assign(found.firstChild.style, { overflow: "visible", height: "auto" }); // all of it, without a bar to scroll
  top += height + 8;
  const scales = scale ? [scaleShapes(scale, 4, top, fill)] : [];
  top += scale ? 50 : 0;
  const source = wrapped(sourceOf(state), width / 6.5).map((line) => shape("text", { x: 12, y: (top += 16), "font-size": 12, fill }, line));
  return shape("svg", { xmlns: SPACE, width, height: top + 14, "font-family": LETTERS }, null, ...names, found, ...scales, ...source);
}

/** Pixels of a PNG to one of the page. */
function timesOf(width) {
  return Math.max(2, Math.ceil(LEAST / width));
}

/** A colour scale below its title. */
function scaleShapes({ title, draw }, x, y, fill) {
  const pen = new SvgPen(x, y + 18);
  draw(pen, 270);
  return shape("g", {}, null, shape("text", { x: x + 8, y: y + 14, "font-size": 12, fill }, title), pen.shapes);
}

/** The head view as an SVG. */
export function viewSvg(state, view) {
  const style = palette(state.theme, view.box);
  const [ground, ink, muted] = ["--panel", "--ink", "--muted"].map((name) => style.getPropertyValue(name));
  const text = (words, x, y, size, fill, more = {}) => shape("text", { x, y, "font-size": size, fill, ...more }, words);
  const title = wrapped(titleOf(state), 78);
  const said = wrapped(view.headline.textContent, 108);
  const { parts } = view;
  const start = 12 + title.length * 22;
  const top = start + 14 + said.length * 17 + (parts[1] ? 24 : 0);
  let left = 20;
  const drawn = parts.flatMap(({ title: name, width, draw }) => {
    const pen = new SvgPen(left, top);
    draw(pen, ink);
    const named = wrapped(name, Math.max(12, width / 6.5)).map((line, i, all) => text(line, left, top - 8 - 15 * (all.length - 1 - i), 12, muted));
    left += width + 20;
    return [pen.shapes, ...named];
  });
  const width = Math.max(SIDE, left);
  const foot = top + Math.max(...parts.map((part) => part.height)) + 24;
  const scale = scaleShapes({ title: scaleName(state), draw: (pen, wide) => view.drawScale(pen, wide) }, 12, foot - 12, muted);
  const names = title.map((line, i) => text(line, 20, 30 + i * 22, 17, ink, { "font-weight": "bold" }));
  const words = said.map((line, i) => text(line, 20, start + 14 + i * 17, 13, ink));
  const source = text(sourceOf(state), 20, foot + 52, 12, muted);
  return shape(
    "svg", { xmlns: SPACE, viewBox: `0 0 ${Math.ceil(width)} ${Math.ceil(foot + 66)}`, width: Math.ceil(width), height: Math.ceil(foot + 66), "font-family": LETTERS },
    null, shape("title", {}, `${titleOf(state)}: ${view.headline.textContent}`), shape("rect", { width: "100%", height: "100%", fill: ground }), ...drawn, ...names, ...words, scale, source,
  );
}

/** All heads as an SVG, drawn as wide as an image of its own. */
function headsSvg(state, model, whom) {
  const style = palette(state.theme, model.box);
  const [ink, fill] = ["--ink", "--muted"].map((name) => style.getPropertyValue(name));
  const canvas = make("canvas");
  dense(2, () => model.paint(canvas, GRID, state.sort ? GRID : Infinity));
  const [width, tall] = [canvas, canvas].map(({ style }, i) => parseFloat(i ? style.height : style.width));
  state.tell(); // the page's own grid is laid out again
  const put = (words, x, y, size, more = {}) => shape("text", { x, y, "font-size": size, fill, ...more }, words);
  const axes = state.sort ? [] : [put("head", 30, 74, 12), put("layer", 14, 100, 12, { transform: "rotate(-90 14 100)", "text-anchor": "end" })];
  const image = shape("image", { href: canvas.toDataURL(), x: 20, y: 78, width, height: tall });
  let foot = 78 + tall;
  const scale = scaleShapes(rampScale(state, state.full, style), 12, foot, fill);
  foot += 62;
  const note = wrapped(model.note.textContent, 108).map((line) => put(line, 20, (foot += 16), 12));
  const shown = state.weights === "written" ? "share of summed norms" : "attention";
  const queries = state.tokens.length ? `${shown}, ${state.look.direction} ${whom}` : `${shown}, mean over all queries`;
  const titles = [put(titleOf(state, "all heads"), 20, 30, 17, { fill: ink, "font-weight": "bold" }), put(queries, 20, 52, 13, { fill: ink })];
  const [wide, high] = [width + 40, foot + 38];
  return shape(
    "svg", { xmlns: SPACE, viewBox: `0 0 ${wide} ${high}`, width: wide, height: high, "font-family": LETTERS },
    null, shape("rect", { width: "100%", height: "100%", fill: style.getPropertyValue("--panel") }), ...titles, ...axes, image, scale, ...note, put(sourceOf(state), 20, foot + 22, 12),
  );
}

/** Lines of a CSV. An apostrophe stands before texts that a spreadsheet would run, as in the library's own files. */
export function csv(rows) {
  const cell = (value) => {
    if (typeof value === "number") return Number.isFinite(value) ? String(value) : "";
    const text = /^'*[=+\-@\t\r]/.test(value) ? `'${value}` : value;
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return rows.map((row) => row.map(cell).join(",")).join("\n") + "\n";
}

/** What the head view shows, a row for each token; beside a pinned view its numbers and the difference. */
export function seenRows(state, view) {
  const { one } = state;
  const { values } = view;
  const both = view.comparing ? view.compare.views() : null;
  const others = both?.comparable ? new Map(both.pairs.map(([pinned, here]) => [here, both.a[pinned]])) : null;
  const head = ["input", "layer", "head", "queries", "direction", "token", "label", "kind", state.weights === "written" ? "written" : "attention"];
  const asked = state.tokens.length ? state.tokens.join("+") : "all";
  const rows = [...(values ?? []).keys()].filter((token) => one.real[token]).map((token) => {
    const start = [one.id, state.layer, state.heads.map(([layer, head_]) => `${layer}.${head_}`).join("+"), asked, state.look.direction, token, one.labels[token], one.kinds[token], values[token]];
    return others ? [...start, others.get(token) ?? NaN, values[token] - (others.get(token) ?? NaN)] : start;
  });
  return [others ? [...head, "pinned", "difference"] : head, ...rows];
}

/** Every metric of every head, with its null distribution where it has one. */
export function metricRows({ bundle, one }) {
  const numbers = ["value", "null_mean", "null_low", "null_high", "z"];
  const rows = bundle.metrics.flatMap((metric) => bundle.layers.flatMap((layer) => Array.from({ length: layer.heads }, (_, head) => [
    one.id, metric.name, metric.unit, layer.index, head, ...numbers.map((number) => (metric.null || number === "value" ? one.metric(metric.name, number, layer, head) : NaN)),
  ])));
  return [["input", "metric", "unit", "layer", "head", ...numbers], ...rows];
}

/** A word of a command as a shell reads it back. */
function quoted(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`;
}

/** A part of the page as `Explorer.save_picture` draws it: address and view; null where only this page has the view. */
function pictureOf(state, picture, { offsetWidth, offsetHeight }) {
  const { against, bundle, one, theme, opacity } = state;
  if (one.generated || against.includes("@")) return null;
  const index = (input) => bundle.inputs[input].address?.index ?? input;
  const view = new URLSearchParams(state.toFragment().slice(1));
  if (against) view.set("against", against.replace(/^\d+/, index));
  const more = { input: index(state.input), theme, opacity, size: `${offsetWidth}x${offsetHeight}`, picture };
  for (const [name, value] of Object.entries(more)) view.set(name, value);
  return { address: JSON.stringify(addressOf(state, "attention")), view: `#${view}` };
}

/** The library's view closest to the page's. */
function figureOf(state) {
  if (state.against) return "compare";
  return state.depth === "tokens" ? "trajectory" : VIEWS[state.tab] ?? "attention";
}

/** The address of a view, as `Explorer.at` takes it. */
export function addressOf(state, figure = figureOf(state), seen = state) {
  const { layer, head, tokens, bundle, one } = seen;
  const address = { model: bundle.model.spec, ...one.address, layer, head, token: tokens.length ? tokens[0] : null, view: figure };
  if (bundle.model.random_weights) address.pretrained = false;
  if (figure === "compare") address.against = addressOf(state, "attention", state.viewOf(state.against));
  return address;
}

/** The command that draws this view for print; of inputs that came from a path the file does not tell it. */
function printCommand(state, figure) {
  const { inputs = "INPUTS", ...address } = state.one.address ?? {};
  const parts = { model: state.bundle.model.spec, inputs, ...address, layer: state.layer, head: state.head, token: state.tokens.length ? state.tokens[0] : "all", view: figure };
  if (figure === "compare") parts.against = JSON.stringify(addressOf(state, "attention", state.viewOf(state.against)));
  if (state.bundle.model.random_weights) parts.pretrained = "false";
  return ["workbench render explorer", ...Object.entries(parts).map(([name, value]) => `-p ${name} ${quoted(String(value))}`)].join(" ");
}

function download(name, content, type) {
  const link = make("a");
  link.href = URL.createObjectURL(new Blob([content], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

/** The box of what can be taken away. */
export class Export {
  constructor(state, view, { model, evidence, depth }, say, host = {}) {
    this.host = host;
    this.model = model;
    this.evidence = evidence;
    this.depth = depth;
    this.state = state;
    this.view = view;
    this.say = say;
    const name = (ending) => `attention-${state.bundle.model.spec.replace(/[^\w.-]+/g, "-")}-layer${state.layer}-head${state.head}.${ending}`;
    const svg = () => new XMLSerializer().serializeToString(viewSvg(state, view));
    this.command = make("textarea", "aw-command");
    Object.assign(this.command, { readOnly: true, rows: 4 });
    this.command.setAttribute("aria-label", "command that draws this view for print");
    this.svg = button("Image, SVG", "The head view, to be edited or printed", () => this.view.values && download(name("svg"), svg(), "image/svg+xml"));
    const image = (part, words, title) => button(words, title, async () => {
      const canvas = await this.drawn(part);
      canvas?.toBlob((blob) => blob && download(name(part === "head" ? "png" : `${part}.png`), blob, "image/png"));
    });
    this.png = image("head", "Image, PNG", "The head view at twice its size");
    this.tab = image("tab", "", "The chosen tab with its title, at least 1400 pixels wide");
    const others = [image("heads", "All heads, PNG", "The grid of heads with its title, colour scale and axes, at twice its size"), this.tab, image("depth", "Depth, PNG", "The depth panel with its title, at twice its size")];
    const drawn = make("div", "aw-row", null, this.svg, this.png, ...others);
    const numbers = make(
      "div", "aw-row", null,
      button("Attention, CSV", "A row for each token: what the head view shows", () => download(name("csv"), csv(seenRows(state, view)), "text/csv")),
      button("Metrics, CSV", "Every metric of every head, with its null distribution", () => download(name("metrics.csv"), csv(metricRows(state)), "text/csv")),
    );
    this.figure = make("select", "aw-select");
    this.figure.setAttribute("aria-label", "figure");
    this.figure.addEventListener("change", () => this.write());
    const print = make(
      "div", "aw-row", null, this.figure,
      button("Copy the command", "To be run where the workbench is installed", () => this.copies(this.command, "Command")),
      button("Copy the address", "Explorer.at(…) opens it, and so does the field of “Open”", () => this.copies(this.command, "Address", JSON.stringify(addressOf(state, PARTS.some(([part]) => part === this.figure.value) ? "attention" : this.figure.value)))),
    );
    const live = host.kernel ? this.kernel() : [];
    this.box = make(
      "dialog", "aw-help aw-export", null, make("h2", "", "Export what is seen"), drawn, numbers,
      make("h2", "", "As a figure for print"), make("p", "aw-note", "PDF, SVG, PNG with checked letters, data and provenance, drawn where the workbench is installed; the first four are the page's own pictures, the others show attention of one token in both directions, colours in proportion:"), print, this.command, ...live,
      button("Close", "Close (Esc)", () => this.box.close()),
    );
    this.box.setAttribute("aria-label", "export");
    this.box.addEventListener("click", (event) => event.target === this.box && this.box.close());
  }

  /** Tab and depth as images, by their names: drawn again with more pixels, and then as the screen has them. */
  get panels() {
    const { state, view, evidence, depth } = this;
    const drawn = (part, element, titled) => dense(timesOf(element.offsetWidth), () => {
      part.draw();
      state.tell();
      return panelSvg(state, view, element, { title: titled(), scale: part.scale });
    });
    return {
      tab: () => drawn(evidence, evidence.body, () => `${TITLES[state.tab]}: ${titleOf(state)}`),
      depth: () => drawn(depth, depth.through, () => `${depth.title.textContent} (${titleOf(state)})`),
    };
  }

  /** What a kernel adds: the figure saved, and the lines of Python that make it. */
  kernel() {
    this.name = make("input", "aw-field");
    this.name.value = "explorer";
    this.name.setAttribute("aria-label", "name of the figure");
    this.code = make("textarea", "aw-command");
    Object.assign(this.code, { readOnly: true, rows: 6 });
    this.code.setAttribute("aria-label", "lines of Python that make this figure");
    const save = () => {
      if (this.saves.disabled) return;
      this.box.close();
      this.host.save(this.name.value, this.figure.value, this.pinned());
    };
    onEnter(this.name, save);
    this.saves = button("Save into figures/", "PDF, SVG, PNG, HTML, the data and provenance", save);
    return [
      make("div", "aw-row", null, this.name, this.saves, button("Copy the code", "Lines of Python that make this figure", () => this.copies(this.code, "Code"))),
      this.code,
    ];
  }

  written(words) {
    if (this.code) this.code.value = words;
  }

  /** The command and the lines of the chosen figure. */
  write() {
    const { value } = this.figure;
    const picture = PARTS.some(([part]) => part === value);
    if (this.code) this.saves.disabled = picture;
    if (picture) return this.writePicture(pictureOf(this.state, value, this.box.parentNode));
    this.command.value = printCommand(this.state, value);
    if (!this.code) return;
    this.code.value = "";
    this.host.lines(this.figure.value, this.pinned());
  }

  writePicture(picture) {
    const { address, view } = picture ?? {};
    const none = "This page alone has the view (a pinned view of another input's page, or a text that the model wrote): take its image.";
    this.command.value = picture ? `workbench explore ${quoted(address)} --save view.png --view ${quoted(view)}` : none;
    if (!this.code) return;
    const path = ["view.png", view].map((word) => JSON.stringify(word)).join(", ");
    this.code.value = picture ? `from workbench.apps.explorer import Explorer\n\nExplorer.at(${JSON.stringify(address)}).save_picture(${path})\n` : none;
  }

  /** What a kernel finds the pinned view by, where the figure compares. */
  pinned() {
    const view = this.figure.value === "compare" ? this.state.viewOf(this.state.against) : null;
    return view && { model: view.bundle.model.spec, id: view.one.id, layer: view.layer, head: view.head, token: view.tokens[0] ?? null };
  }

  get open() {
    return this.box.open;
  }

  show() {
    const { state } = this;
    state.set({ hover: null });
    this.tab.textContent = `${TITLES[state.tab]}, PNG`;
    const library = FIGURES.filter(([name]) => name !== "compare" || state.against);
    const options = (all) => all.map(([name, words]) => Object.assign(make("option", "", words || TITLES[state.tab]), { value: name }));
    const groups = [["as the page draws it", PARTS], ["for print", library]];
    this.figure.replaceChildren(...groups.map(([label, all]) => Object.assign(make("optgroup", "", null, ...options(all)), { label })));
    this.figure.value = state.weights === "written" ? "head" : figureOf(state);
    this.write();
    for (const one of [this.svg, this.png]) one.disabled = !this.view.values;
    this.box.showModal();
  }

  /** Put a text on the clipboard; where the browser forbids it, it is selected to be copied by hand. */
  async copies(box, what, text = box.value) {
    try {
      await navigator.clipboard.writeText(text);
      this.say(`${what} copied`);
    } catch {
      box.value = text;
      box.select();
      this.say(`The browser keeps the clipboard to itself: the ${what.toLowerCase()} is selected, copy it by a key`);
    }
  }

  /** A part of the page as a canvas on the page's ground; null where there is none. */
  async drawn(part) {
    const { state, view, model } = this;
    if (part === "head" && !view.values) return null;
    const svg = { head: () => viewSvg(state, view), heads: () => headsSvg(state, model, view.whom()), ...this.panels }[part]();
    const image = new Image();
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(new XMLSerializer().serializeToString(svg))}`;
    try {
      await image.decode();
      return this.onGround(image, timesOf(image.width));
    } catch {
      this.say("The browser cannot draw this image; take the SVG");
      return null;
    }
  }

  onGround(image, times) {
    const canvas = make("canvas");
    const [width, height] = [image.width * times, image.height * times];
    Object.assign(canvas, { width, height });
    const pen = canvas.getContext("2d");
    pen.fillStyle = palette(this.state.theme, this.view.box).getPropertyValue("--panel");
    pen.fillRect(0, 0, width, height);
    pen.drawImage(image, 0, 0, width, height);
    return canvas;
  }
}
