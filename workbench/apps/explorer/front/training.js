// Training: a slider through a model's checkpoints, of the file or of the kernel.

import { make } from "./state.js";

export class Training {
  constructor(state, host = {}) {
    this.state = state;
    this.host = host;
    this.slide = make("input", "aw-course");
    Object.assign(this.slide, { type: "range", min: 0, step: 1 });
    this.slide.setAttribute("aria-label", "checkpoint of the training");
    this.words = make("span", "aw-facts");
    this.box = make("div", "aw-row aw-training", null, make("span", "", "Training"), this.slide, this.words);
    this.slide.addEventListener("input", () => this.inFile && this.go(Number(this.slide.value)));
    this.slide.addEventListener("change", () => this.inFile || host.checkpoint(this.names[Number(this.slide.value)], state));
  }

  /** Whether the file holds all checkpoints; else a kernel loads them. */
  get inFile() {
    return this.state.one.checkpoint !== "";
  }

  get names() {
    const { inputs } = this.state.bundle;
    return this.inFile ? [...new Set(inputs.map((one) => one.checkpoint))].sort() : this.host.kernel ? this.host.checkpoints : [];
  }

  go(place) {
    const { state, names } = this;
    const input = state.bundle.inputs.findIndex((one) => one.id === state.one.id && one.checkpoint === names[place]);
    state.set({ input, tokens: state.tokens, hover: null });
  }

  draw() {
    const { names, state } = this;
    this.box.hidden = names.length < 2;
    if (this.box.hidden) return;
    const name = this.inFile ? state.one.checkpoint : state.bundle.model.checkpoint;
    const place = names.indexOf(name);
    this.slide.max = names.length - 1;
    this.slide.value = place < 0 ? names.length - 1 : place;
    this.words.textContent = `${name} (${place + 1} of ${names.length})`;
    this.slide.setAttribute("aria-valuetext", this.words.textContent);
  }
}
