// The page as a widget: what is set in it goes to the kernel, and the other way. The module that a notebook renders.

import { addressOf } from "./export.js";
import { mount, mountEmpty } from "./page.js";
import { viewKey } from "./state.js";

const SET = [
  "input", "layer", "head", "tokens", "direction", "scale", "sort", "tab", "depth", "ablation", "against", "theme",
];
const PATIENCE_MS = 15000;
const QUIET_MS = 1500; // while somebody types, what takes no longer is not announced
const TALK = 1.35; // how much larger everything is in a lecture hall

/** The address of what is seen, of a page that is one of its own: `workbench explore --app` opens it. */
function link(state) {
  const { token, against, ...parts } = addressOf(state, state.against ? "attention" : undefined);
  const { token: query, input, ...seen } = Object.fromEntries(new URLSearchParams(state.toFragment().slice(1)));
  return `${location.pathname}?${new URLSearchParams({ ...parts, query, ...seen })}`;
}

/** Set in the page what only it knows of its own address; model, layer and head are the kernel's. */
function follow(state) {
  const { model, token, input, ...seen } = Object.fromEntries(new URLSearchParams(location.search));
  const { layer, head } = state;
  if (seen.query) state.fromFragment(`?${new URLSearchParams({ ...seen, layer, head })}`);
}

function same(a, b) {
  return JSON.stringify(a) === JSON.stringify(b);
}

/** One view of the widget. */
function render({ model, el }) {
  const view = document.createElement("div");
  view.dataset.lmSuppressShortcuts = "true"; // JupyterLab's own keys
  el.replaceChildren(view);
  const own = document.body.dataset.voila !== undefined; // without a notebook: the page's address encodes the view
  let page = null;
  let waiting = null;

  const size = () => {
    const zoom = model.get("talk") ? TALK : 1;
    const height = model.get("height") ? `${model.get("height")}px` : "100dvh";
    view.style.zoom = zoom;
    view.style.setProperty("--aw-height", `calc(${height} / ${zoom})`);
    page?.state?.resize();
  };
  let agreed = {}; // on what page and kernel were last one: what differs from it is news, of one or of the other
  const tell = (state) => {
    const moved = SET.filter((name) => !same(model.get(name), state[name]));
    for (const name of moved) model.set(name, state[name]);
    for (const name of SET) agreed[name] = state[name];
    if (moved.length) model.save_changes();
  };
  const given = () => {
    if (!page.state) return;
    const news = SET.filter((name) => model.get(name) !== null && !same(model.get(name), agreed[name]));
    const asked = news.filter((name) => !same(model.get(name), page.state[name]));
    const before = Object.fromEntries(SET.map((name) => [name, page.state[name]]));
    if (asked.length) page.state.set(Object.fromEntries(asked.map((name) => [name, model.get(name)])));
    // a correction by the page is not a person's choice
    for (const name of SET) if (news.includes(name) || !same(before[name], page.state[name])) agreed[name] = page.state[name];
  };
  /** What was set in the page and not sent yet: that waits for the next frame. */
  const untold = ({ state }) => {
    const names = Object.keys(agreed).filter((name) => state && !same(state[name], agreed[name]) && same(model.get(name), agreed[name]));
    return Object.fromEntries(names.map((name) => [name, state[name]]));
  };
  /** The kernel is asked for something: what is shown stays until it has it. */
  const wait = (doing, follows) => {
    page.say(`${doing} …`, true);
    clearTimeout(waiting);
    const late = `The kernel does not answer: it is busy, or gone. The page stays as it is; ${follows} follows if it does.`;
    waiting = setTimeout(() => page.say(late, true), PATIENCE_MS);
  };
  const host = {
    changed: tell,
    chosen: () => model.get("index"),
    /** Another input of the explorer. */
    choose(index) {
      const name = model.get("choices")[index];
      for (const part of Object.keys(host.draft)) delete host.draft[part];
      wait(`Capturing ${name}`, name);
      model.set("index", index);
      model.save_changes();
    },
    /** Another model, or other inputs. */
    open(what, bytes) {
      for (const name of Object.keys(host.draft)) delete host.draft[name];
      const name = what.model ?? what.image ?? what.inputs ?? (what.window === undefined ? "your text" : `window ${what.window} of the text`);
      wait(`Opening ${name}`, name);
      model.send({ open: what }, undefined, bytes ? [bytes] : []);
    },
    /** An input that is typed or painted here: no notice, for it is followed by the next. */
    edit: (what, bytes) => model.send({ open: what }, undefined, bytes ? [bytes] : []),
    draft: {}, // outlives the page of each input
    /** The same view at another checkpoint of the model. */
    checkpoint(name, state) {
      wait(`Opening ${name}`, name);
      const address = addressOf(state, state.against ? "attention" : undefined);
      model.send({ open: { address: JSON.stringify({ ...address, model: `${address.model.replace(/@[^@]*$/, "")}@${name}` }) } }, undefined, []);
    },
    /** Cards of all heads over so many inputs. */
    cards(count) {
      wait("Making head cards", "their numbers");
      model.send({ cards: count }, undefined, []);
    },
    cancel: () => model.send({ cancel: true }, undefined, []),
    measure(analysis) {
      wait(`Measuring ${analysis}`, analysis);
      model.send({ measure: analysis }, undefined, []);
    },
    save(name, figure, against) {
      wait(`Saving ${name}`, name);
      model.send({ save: { name, view: figure, ...(against ? { against } : {}) } }, undefined, []);
    },
    lines: (figure, against) => model.send({ lines: figure, ...(against ? { against } : {}) }, undefined, []),
    /** What the model predicts without the head that is looked at. */
    switchOff(how) {
      wait("Switching a head off", "its effect");
      model.send({ switch_off: how || "zero" }, undefined, []);
    },
    /** What the model predicts without a link of the layer that is looked at. */
    linkOff(head, query, key) {
      wait("Switching a link off", "its effect");
      model.send({ link: [head, query, key] }, undefined, []);
    },
    /** A part of a matrix that is shown too coarse: queries from `top`, keys from `left`, `count` of both. */
    part: (top, left, count) => model.send({ part: [top, left, count] }, undefined, []),
    /** Queries and keys of the head that is looked at, by UMAP. */
    embed() {
      wait("Laying out queries and keys", "the plane");
      model.send({ embed: true }, undefined, []);
    },
    /** The text goes on by so many tokens. */
    generate(count) {
      wait(`Writing ${count} tokens`, "the text");
      model.send({ generate: count }, undefined, []);
    },
    /** A layer that was left out for its size. */
    layer(index) {
      wait(`Capturing layer ${index}`, `layer ${index}`);
      model.send({ layer: index }, undefined, []);
    },
  };
  const show = () => {
    const bytes = model.get("content");
    const before = page?.state;
    const held = page?.held?.();
    page?.destroy();
    clearTimeout(waiting);
    const options = {
      ...host, link: own ? link : null, choices: model.get("choices"), models: model.get("models"), measures: model.get("measures"), checkpoints: model.get("checkpoints"), umap: model.get("umap"), kernel: model.get("models").length > 0,
    };
    page = bytes.byteLength
      ? mount(view, bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength), options)
      : mountEmpty(view, options);
    if (before && page.state) page.state.keep(before);
    page.hold?.(held);
    busy();
    troubled();
  };
  let notes = null;
  const busy = () => {
    clearTimeout(waiting);
    clearTimeout(notes);
    const show = () => page.busy(model.get("busy"), model.get("share"));
    if (model.get("busy") && host.draft.text !== undefined) notes = setTimeout(show, QUIET_MS);
    else show();
  };
  const replaced = () => {
    if (page.later?.(replaced)) return; // a box is open: what is typed there stays
    const late = untold(page);
    const first = !page.state;
    agreed = {};
    show();
    given();
    if (first && page.state) opened(page.state);
    if (page.state && Object.keys(late).length) page.state.set(late);
  };
  const troubled = () => {
    if (!model.get("trouble")) return;
    clearTimeout(waiting);
    page.wrong(model.get("trouble"), model.get("missing"));
    page.state?.tell(); // the choice returns to the current view
  };
  const noticed = () => {
    clearTimeout(waiting);
    if (model.get("notice")) page.say(model.get("notice"), true);
  };
  const embedded = () => page.state?.set({ embedding: model.get("embedding"), plane: "umap" });
  const received = (message, buffers) => {
    if (message.link && page.state) page.state.set({ off: message.link });
    if (!message.part || !page.state) return;
    const { buffer, byteOffset, byteLength } = buffers[0];
    page.state.set({ part: { ...message.part, bits: new Uint16Array(buffer.slice(byteOffset, byteOffset + byteLength)) } });
  };
  const opened = (state) => {
    if (own) follow(state);
    state.opened = viewKey(state);
  };
  show();
  size();
  given();
  if (page.state) opened(page.state);
  const heard = SET.map((name) => [`change:${name}`, () => given()]);
  heard.push(
    ["change:content", replaced], ["change:trouble", troubled], ["change:notice", noticed], ["change:busy", busy], ["change:share", busy],
    ["change:lines", () => page.lines?.(model.get("lines"))], ["change:embedding", embedded], ["msg:custom", received], ["change:talk", size], ["change:height", size],
  );
  for (const [event, act] of heard) model.on(event, act);
  // A host drops what it is sent between its first question and this script: the kernel hears what is known here.
  model.send({ shown: [model.get("content").byteLength, model.get("busy"), model.get("trouble")] }, undefined, []);
  return () => {
    for (const [event, act] of heard) model.off(event, act);
    clearTimeout(waiting);
    page.destroy();
  };
}

export default { render };
