// The page: a bundle in, everything on the screen. `mount` is all that a host needs.

import { BundleError, readBundle } from "./bundle.js";
import { modelName } from "./compare.js";
import { RATIO } from "./colour.js";
import { Depth } from "./depth.js";
import { Evidence } from "./evidence.js";
import { Export, addressOf } from "./export.js";
import { ModelView, moveHead } from "./grid.js";
import { HeadView } from "./head.js";
import { inputImage } from "./image.js";
import { Open } from "./open.js";
import { Notice } from "./notice.js";
import { SCALES, State, TABS, button, make, placeOn, preferred } from "./state.js";
import { paintedBundle } from "./vit.js";

const MOST_THUMBS = 8;
const LOW = 800; // px: a page that leaves the list of patterns little room
const NARROW = 760; // px: in a frame narrower than that, grid and head are shown alone
const KEYS = [
  ["← → ↑ ↓", "head, layer; with Shift together"], [", .", "token before, after; with Shift together"], ["A or Esc", "all queries"], ["D", "attention from, or to"],
  ["S", "scale: linear, √, log, times uniform"], ["O (hold)", "the image as it is"], ["1 … 9", "matrix, q·k, plane, norms, spectra, metrics, effect, membership, card"],
  ["P", "next order of heads"], ["/", "find heads: 3.5, sink, entropy > 0.1"], ["T", "light or dark"], ["M", "pin this view, to compare another with it"], ["C", "copy the address of this view"], ["E", "export"], ["?", "these keys"],
];

/** A small box of words beside the pointer. */
class Tip {
  constructor(root) {
    this.root = root;
    this.box = make("div", "aw-tip", null, make("b"), make("span"));
    this.box.hidden = true;
    root.append(this.box);
    // An element under the pointer shows its tip again; a removed element cannot.
    for (const event of ["pointermove", "pointerleave", "pointerdown", "wheel"]) root.addEventListener(event, () => this.hide(), { capture: true, passive: true });
  }

  show(event, title, words = "") {
    this.box.firstChild.textContent = title;
    this.box.lastChild.textContent = words;
    this.box.hidden = false;
    const { offsetWidth: wide, offsetHeight: tall } = this.box;
    const [across, down] = placeOn(this.root, event);
    const x = Math.min(across + 14, this.root.offsetWidth - wide - 6);
    const y = down + 18;
    this.box.style.left = `${Math.max(4, x)}px`;
    this.box.style.top = `${y + tall > this.root.offsetHeight ? y - tall - 30 : y}px`;
  }

  hide() {
    this.box.hidden = true;
  }
}

/**
 * Show a bundle (an ArrayBuffer) in an element. `options.address`: the window's fragment is kept and followed, and keys are
 * heard everywhere on the page. `options.link`: gives the address of what is seen where a kernel's page has one. `options.kernel`: what only a kernel does is offered, and asked of `options` (`open`,
 * `measure`, `save`, `lines`, `cancel`). Returns the state and what takes it away again.
 */
export function mount(element, buffer, options = {}) {
  const root = make("div", "aw-root");
  element.classList.add("aw-host"); // sizes follow the element, not the window
  element.replaceChildren(root);
  let bundle;
  try {
    bundle = readBundle(buffer);
  } catch (error) {
    root.append(make("div", "aw-broken", null, make("h1", "", "This page cannot be shown"), make("p", "", words(error))));
    return { state: null, say() {}, wrong() {}, busy() {}, destroy() {} };
  }
  const parts = [];
  let written = options.address ? location.hash : "";
  let waits = null;
  const state = new State(bundle, () => draw());
  if (options.theme) state.theme = options.theme;
  const tip = new Tip(root);
  const model = new ModelView(state, tip, options);
  const head = new HeadView(state, tip, options);
  const evidence = new Evidence(state, tip, options);
  const depth = new Depth(state, tip, options);
  const help = makeHelp();
  const taken = new Export(state, head, { model, evidence, depth }, (words) => top.say(words), options);
  const other = options.kernel ? new Open(options.models, options.open, () => ({ model: bundle.model.spec, inputs: state.one.address?.inputs ?? "" })) : null;
  const top = topBar(state, help, taken, other, options);
  parts.push(model, head, evidence, depth);
  root.append(top.box, model.box, head.box, evidence.box, depth.box, help.box, taken.box, ...(other ? [other.box] : []));
  root.tabIndex = -1;

  function draw() {
    root.dataset.theme = state.theme;
    root.classList.toggle("aw-embed", embeds());
    if (options.address) document.documentElement.dataset.theme = state.theme;
    top.draw();
    for (const part of embeds() ? [model, head] : parts) {
      try {
        part.draw();
      } catch (error) {
        top.say(error instanceof BundleError ? error.message : `${error.name} while drawing: ${error.message}`);
        if (!(error instanceof BundleError)) console.error(error);
      }
    }
    if (options.address && state.hover === null) {
      const fragment = state.toFragment();
      // An address that was given, and is not read yet, is not written over: its event is on the way.
      if (location.hash === written && fragment !== written) {
        history.replaceState(null, "", fragment);
        written = location.hash;
      }
    }
    if (options.link && state.hover === null && options.link(state) !== linked) history.replaceState(null, "", (linked = options.link(state)));
    options.changed?.(state);
  }

  /** Whether the page is part of another: grid and head, without bars. */
  function embeds() {
    if (!options.address) return false;
    return new URLSearchParams(location.search).has("embed") || (window.self !== window.top && root.offsetWidth < NARROW);
  }

  let linked = "";
  const pressed = (event) => {
    tip.hide();
    press(event, state, model, [help, taken, ...(other ? [other] : [])], top);
  };
  const released = (event) => event.key.toLowerCase() === "o" && state.original && state.set({ original: false });
  const moved = () => {
    written = location.hash;
    const other = state.fromFragment(location.hash || location.search);
    if (other) top.say(other, true);
  };
  const heard = options.address || options.link ? document : root; // a page without a notebook hears keys everywhere
  heard.addEventListener("keydown", pressed);
  heard.addEventListener("keyup", released);
  if (options.address) addEventListener("hashchange", moved);
  const watch = new ResizeObserver(() => {
    root.classList.toggle("aw-low", root.offsetHeight <= LOW);
    state.resized += 1;
    state.tell();
  });
  for (const box of [root, model.scroll, head.stage, evidence.body, depth.room]) watch.observe(box);
  if (options.start) state.fromFragment(options.start);
  if (options.address) moved();
  root.dataset.theme = state.theme;
  state.tell();
  return {
    state,
    say: top.say,
    wrong: top.wrong,
    busy: top.busy,
    lines: (words) => taken.written(words),
    /** Leave only the picture of a part of the page, drawn as large as the page was: "#…&size=1440x900&picture=heads". */
    picture(asked) {
      const [width, height] = asked.get("size").split("x");
      Object.assign(element.style, { width: `${width}px`, height: `${height}px` });
      setTimeout(async () => {
        const canvas = await taken.drawn(asked.get("picture"));
        element.replaceChildren(Object.assign(make("img"), { id: "picture", src: canvas?.toDataURL() ?? "" }));
      }, 500); // once the page has its size and is drawn
    },
    /** Whether something has to wait until an open box is closed; it is done then. */
    later(act) {
      const open = [help, taken, ...(other ? [other] : [])].find((one) => one.open);
      if (open && waits !== act) open.box.addEventListener("close", () => act(), { once: true });
      if (open) waits = act;
      return Boolean(open);
    },
    /** What has the keys, and how far the text is scrolled: another bundle of the same input has them, too. */
    held() {
      const active = root.getRootNode().activeElement;
      const kind = root.contains(active) ? [active.tagName, ...active.classList].join(".") : "";
      return { kind, place: kind ? [...root.querySelectorAll(kind)].indexOf(active) : -1, id: state.one.id, top: head.stage.scrollTop };
    },
    hold(before) {
      if (before?.kind) (root.querySelectorAll(before.kind)[before.place] ?? root).focus({ preventScroll: true });
      if (before?.id === state.one.id) requestAnimationFrame(() => requestAnimationFrame(() => (head.stage.scrollTop = before.top)));
    },
    destroy() {
      state.closed = true;
      heard.removeEventListener("keydown", pressed);
      heard.removeEventListener("keyup", released);
      removeEventListener("hashchange", moved);
      watch.disconnect();
      head.destroy();
      root.remove();
    },
  };
}

/** The page of a file: as `mount` shows it, and with a network in the file also an image that is painted on. */
export function mountSaved(element, buffer, options) {
  let page;
  const draft = {}; // outlives the page of each painting
  const show = (content) => {
    const [before, held] = [page?.state, page?.held()];
    page?.destroy();
    page = mount(element, content, { ...options, ...(network ? { draft, paint, unpaint } : {}) });
    if (before) page.state.keep(before);
    page.hold?.(held);
  };
  const paint = (one, canvas) => {
    const image = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const card = file.header.inputs[one.place] ?? file.header.inputs[0];
    draft.painted = true;
    show(paintedBundle(file, card, image));
  };
  const unpaint = () => {
    draft.painted = draft.painting = false;
    show(buffer);
  };
  let file = null;
  try {
    file = readBundle(buffer);
  } catch {
    // `mount` says what is wrong
  }
  const network = file?.network ?? null;
  show(buffer);
  return page;
}

/** The place of a page before its first bundle: what is under way, what went wrong, and another model to open. */
export function mountEmpty(element, options) {
  const root = make("div", "aw-root");
  element.classList.add("aw-host");
  element.replaceChildren(root);
  root.dataset.theme = preferred();
  const notice = new Notice(options);
  const other = new Open(options.models, options.open, () => ({ model: "", inputs: "" }));
  const box = make("main", "aw-empty-page", null, make("h1", "", "Attention Workbench"), notice.box, make("div", "aw-row", null, button("Open", "Another model, other inputs, your own text or image", () => other.show())));
  root.append(box, other.box);
  return { state: null, say: (text) => notice.say(text), wrong: (text, missing) => notice.say(text, { wrong: true, missing }), busy: (text, share) => notice.busy(text, share), destroy: () => root.remove() };
}

function words(error) {
  return error instanceof BundleError ? error.message : `Its content does not hold (${error.name}: ${error.message}). Write it again.`;
}

function topBar(state, help, taken, other, options) {
  const { model, inputs, layers } = state.bundle;
  const status = make("span", "aw-said");
  status.setAttribute("role", "status");
  const notice = new Notice(options);
  const say = (text, stays = false) => {
    if (stays) return notice.say(text);
    status.textContent = status.title = text;
    clearTimeout(say.later);
    say.later = setTimeout(() => (status.textContent = ""), 4000);
  };
  const name = make("h1", "", modelName({ bundle: { model } }));
  name.title = `${model.spec}${model.checkpoint ? ` · ${model.checkpoint}` : ""}`;
  const heads = Math.max(...layers.map((layer) => layer.heads));
  const facts = make("span", "aw-facts");
  const turn = (by) => options.open({ window: (state.one.address?.window ?? 0) + by });
  const before = button("‹", "The tokens before these", () => turn(-1));
  const after = button("›", "The tokens after these", () => turn(1));
  before.setAttribute("aria-label", "earlier tokens");
  after.setAttribute("aria-label", "later tokens");
  const windows = make("span", "aw-row", null, before, after);
  const badge = make("span", "aw-badge", "random weights");
  badge.hidden = !model.random_weights;
  badge.title = "This model was not trained: what its heads do is random weights and architecture";
  const shown = inputs.filter((one) => one.checkpoint === inputs[0].checkpoint); // the others are the same inputs, seen by other checkpoints
  const chosen = options.chosen ?? (() => state.input % shown.length);
  const choose = options.choose ?? ((place) => state.set({ input: state.input - (state.input % shown.length) + place, hover: null }));
  const input = inputChoice(state, shown, options.choices?.length > 1 ? options.choices : shown.map((one) => one.id), choose);
  const linked = Boolean(options.address || options.link);
  const copied = () => copy(say, linked ? location.href : JSON.stringify(addressOf(state)));
  const share = button(linked ? "Copy link" : "Copy address", `Copy the address of this view${linked ? "" : ": Explorer.at(…) opens it, and so does “Open”"} (C)`, copied);
  const theme = button("", "Light or dark (T)", () => state.set({ theme: state.theme === "dark" ? "light" : "dark" }));
  const bar = make(
    "header", "aw-top", null, make("span", "aw-mark", "Attention Workbench"), name, badge, ...(other ? [button("Open", "Another model, other inputs, your own text or image", () => other.show())] : []), facts, windows, make("span", "aw-space"), status,
    input.box, share, button("Export", "Image, numbers, and the command for print (E)", () => taken.show()), theme, button("?", "Keys and how to read this page (?)", () => help.show()),
  );
  return {
    box: make("div", "aw-over", null, bar, notice.box),
    say,
    copied,
    wrong: (text, missing) => notice.say(text, { wrong: true, missing }),
    busy: (text, share) => notice.busy(text, share),
    draw() {
      input.show(chosen());
      theme.textContent = state.theme === "dark" ? "Light" : "Dark";
      const many = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
      const count = state.one.real.filter(Boolean).length;
      const { whole, first = 0 } = state.one;
      facts.textContent = `${many(layers.length, "layer")} × ${many(heads, "head")} · ${whole ? `tokens ${first + 1}–${first + count} of ${whole}` : many(count, "token")}`;
      facts.title = whole ? "The model was given this part of the text" : "";
      windows.hidden = !options.kernel || !whole;
      before.disabled = !first;
      after.disabled = first + count >= whole;
    },
  };
}

/** Inputs to choose from: a few images as small images, else a list of names beside the one that is shown; of one only its name. */
function inputChoice(state, inputs, names, choose) {
  const small = make("span", "aw-small");
  let seen = -1;
  const see = () => {
    if (seen === state.input) return;
    seen = state.input;
    small.replaceChildren(...[inputImage(state.one, false)].filter(Boolean));
  };
  if (names.length === 1) return { box: make("span", "aw-row", null, small, make("span", "aw-facts", names[0])), show: see };
  if (names.length === inputs.length && names.length <= MOST_THUMBS && inputs.every((one) => one.image)) {
    const box = make("div", "aw-inputs");
    box.setAttribute("role", "group");
    box.setAttribute("aria-label", "input");
    inputs.forEach((one, place) => {
      const found = button("", one.id, () => choose(place), "aw-input");
      found.setAttribute("aria-label", one.id);
      const image = inputImage(one, false);
      image.style.width = `${Math.round((28 * one.image[1]) / one.image[0])}px`;
      found.append(image);
      box.append(found);
    });
    const name = make("span", "aw-facts");
    return {
      box: make("div", "aw-row", null, name, box),
      show(chosen) {
        name.textContent = names[chosen];
        [...box.children].forEach((one, place) => one.setAttribute("aria-pressed", String(place === chosen)));
      },
    };
  }
  const list = make("select", "aw-select");
  list.setAttribute("aria-label", "input");
  names.forEach((name, place) => {
    const found = make("option", "", name);
    found.value = place;
    list.append(found);
  });
  list.addEventListener("change", () => choose(Number(list.value)));
  return {
    box: make("span", "aw-row", null, small, list),
    show(chosen) {
      see();
      list.value = String(chosen);
    },
  };
}

async function copy(say, address) {
  try {
    await navigator.clipboard.writeText(address);
    say("Address copied");
  } catch {
    say(`The browser keeps the clipboard to itself: copy the address ${address.startsWith("{") ? "in “Export”" : "from its bar"}`);
  }
}

function makeHelp() {
  const list = make("dl");
  for (const [key, what] of KEYS) list.append(make("dt", "", key), make("dd", "", what));
  const box = make(
    "dialog", "aw-help aw-keys", null, make("h2", "", "Keys"), list, make("h2", "", "How to read it"),
    make("p", "", "Blue is attention from the tokens in question, orange attention to them; they have a dark rim. With several tokens, from is their mean, to their sum. The tick on a scale is uniform attention, or a score's null level: what it would be by chance. In the list of heads that link two tokens, 97.5 % of a head's other pairs lie below its tick."),
    make("p", "", "Click a token, then a second: the list of heads ranks all by their attention from the first to the second, beside the other pairs of the same head."),
    make("p", "", `The scale “× uniform” has no colour at 1 × uniform attention and below, and full colour at ${RATIO} × and above.`),
    make("p", "", "“What it writes” multiplies attention by the norm of the key's value after the output projection (Kobayashi et al. 2020) and draws each key's share of the sum."),
    make("p", "", "Shift-click heads to look at several together. A corner mark says that a cell goes beyond the common scale."),
  );
  box.tabIndex = -1; // has the focus, so that it opens at its start
  box.append(button("Close", "Close (Esc)", () => box.close()));
  box.addEventListener("click", (event) => event.target === box && box.close());
  return { box, show: () => (box.showModal(), box.focus(), box.scrollTo(0, 0)), close: () => box.close(), get open() { return box.open; } };
}

function press(event, state, model, [help, taken, other], top) {
  const typing = event.target.closest?.("input:not([type=range]), select, textarea");
  if (event.altKey || event.ctrlKey || event.metaKey || help.open || taken.open || other?.open) return;
  if (typing) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (event.target.matches?.("input[type=range]") && event.key.startsWith("Arrow")) return;
  const { one } = state;
  const step = (by, keep = false) => {
    const places = [...one.real.keys()].filter((token) => one.real[token]);
    const now = state.tokens.length ? places.indexOf(state.tokens.at(-1)) : by > 0 ? -1 : places.length;
    const next = places[Math.max(0, Math.min(places.length - 1, now + by))];
    state.set({ tokens: keep ? [...state.tokens.filter((token) => token !== next), next] : [next], hover: null });
  };
  const cycle = (options, now) => options[(options.indexOf(now) + 1) % options.length];
  const orders = ["", ...state.bundle.metrics.filter((metric) => metric.short).map((metric) => metric.name)];
  const acts = {
    ArrowLeft: () => moveHead(state, 0, -1, event.shiftKey), ArrowRight: () => moveHead(state, 0, 1, event.shiftKey),
    ArrowUp: () => moveHead(state, -1, 0, event.shiftKey), ArrowDown: () => moveHead(state, 1, 0, event.shiftKey),
    ",": () => step(-1), ".": () => step(1), "<": () => step(-1, true), ">": () => step(1, true), ";": () => step(-1, true), ":": () => step(1, true), a: () => state.set({ tokens: [], hover: null }),
    Escape: () => state.set(state.against ? { against: "" } : { tokens: [], hover: null, more: [] }), m: () => state.pin(),
    d: () => state.set({ direction: cycle(["from", "to"], state.direction) }),
    s: () => state.set({ scale: cycle(SCALES, state.scale) }),
    o: () => state.original || state.set({ original: true }),
    ...Object.fromEntries(TABS.map((tab, place) => [place + 1, () => state.set({ tab })])),
    p: () => state.set({ sort: cycle(orders, state.sort) }), "/": () => model.find.focus(),
    t: () => state.set({ theme: state.theme === "dark" ? "light" : "dark" }), c: () => top.copied(), e: () => taken.show(), "?": () => help.show(),
  };
  const act = acts[event.key] ?? acts[event.key.toLowerCase()];
  if (!act) return;
  event.preventDefault();
  act();
}

/** The bundle that a saved page holds, as base64 in an element. */
export function embedded(id) {
  const text = document.getElementById(id)?.textContent.trim() ?? "";
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return bytes.buffer;
}
