// Another model, other inputs, or a text or an image of one's own: what only a kernel can show.

import { button, make, onEnter } from "./state.js";

const GROUPS = { here: "On this machine", checkpoint: "Checkpoints in runs/", random: "Random weights", hub: "From the hub" };

/** The box in which a person chooses; `ask` hands it to the kernel. */
export class Open {
  constructor(models, ask, now) {
    this.models = models;
    this.ask = ask;
    this.now = now;
    this.find = make("input", "aw-field");
    Object.assign(this.find, { type: "search", placeholder: "a name, timm:NAME, hf:FOLDER, file:CHECKPOINT; or a copied address" });
    this.find.setAttribute("aria-label", "model");
    this.list = make("div", "aw-models");
    this.random = make("input");
    this.random.type = "checkbox";
    this.inputs = make("input", "aw-field");
    Object.assign(this.inputs, { placeholder: "bundled:digits, images:FOLDER, text:FILE; empty: what is bundled" });
    this.inputs.setAttribute("aria-label", "inputs");
    this.text = make("textarea", "aw-field");
    Object.assign(this.text, { rows: 3, placeholder: "Type or paste a text, one a line, for a model of texts" });
    this.text.setAttribute("aria-label", "your text");
    this.file = make("input");
    Object.assign(this.file, { type: "file", accept: "image/*" });
    this.file.setAttribute("aria-label", "your image");
    this.find.addEventListener("input", () => this.lists());
    const found = () => this.find.value.trim() && this.take(this.typed());
    onEnter(this.find, found);
    onEnter(this.inputs, () => this.take({ inputs: this.inputs.value.trim() || null }));
    this.file.addEventListener("change", async () => {
      const [file] = this.file.files;
      if (!file) return;
      const bytes = await file.arrayBuffer();
      this.file.value = ""; // the same file again is a choice, too
      this.take({ image: file.name }, bytes);
    });
    const label = make("label", "aw-row", null, this.random, make("span", "", "its architecture with random weights"));
    this.box = make(
      "dialog", "aw-help aw-open", null,
      make("h2", "", "Model"), this.find, this.list, make("div", "aw-row", null, button("Use this model", "Open the model that is named above", found), label),
      make("h2", "", "Inputs"), this.inputs,
      make("h2", "", "Your own"), this.text,
      make("div", "aw-row", null, button("Use this text", "Look at this text", () => this.take({ text: this.text.value })), this.file),
      make("p", "aw-note", "Your file stays on the machine of the kernel, in the workbench's cache. Transparent parts of an image become white."),
      button("Close", "Close (Esc)", () => this.box.close()),
    );
    this.box.setAttribute("aria-label", "open another model or input");
    this.box.addEventListener("click", (event) => event.target === this.box && this.box.close());
  }

  get open() {
    return this.box.open;
  }

  show() {
    this.find.value = "";
    const { inputs } = this.now();
    this.inputs.value = inputs.startsWith("upload:") ? "" : inputs; // a hash says nothing
    this.lists();
    this.box.showModal();
    this.find.focus();
  }

  /** What is typed: the address of a view in braces, or a model. */
  typed() {
    const text = this.find.value.trim();
    return text.startsWith("{") ? { address: text } : { model: text };
  }

  take(what, bytes) {
    this.box.close();
    this.ask({ ...what, ...(what.model && this.random.checked ? { pretrained: false } : {}) }, bytes);
  }

  /** The models whose names hold what is typed, in groups. */
  lists() {
    const typed = this.find.value.trim().toLowerCase();
    this.list.replaceChildren();
    for (const [group, title] of Object.entries(GROUPS)) {
      const found = this.models.filter((one) => one.group === group && `${one.name} ${one.note}`.toLowerCase().includes(typed));
      if (!found.length) continue;
      this.list.append(make("h3", "", title));
      for (const one of found) {
        const row = button("", one.note, () => this.take({ model: one.name }), "aw-leader");
        row.append(make("span", "aw-name", one.name), make("span", "aw-where", one.modality));
        if (group === "random") row.append(make("span", "aw-badge", "random weights"));
        row.setAttribute("aria-pressed", String(one.name === this.now().model));
        this.list.append(row);
      }
    }
    if (!this.list.children.length) this.list.append(make("p", "aw-note", "No name of the catalog holds that; Enter, or the button below, asks the kernel for it."));
  }
}
