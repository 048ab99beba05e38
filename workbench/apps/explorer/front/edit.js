// Type a text or paint on an image, and see: a kernel, or the page itself, runs the model again once the hand rests.

import { button, make, placeOn } from "./state.js";

const REST_MS = 120;
const BRUSH = 1 / 16; // radius, of the image's width

export class Edit {
  constructor(state, host) {
    Object.assign(this, { state, host, draft: host.draft ?? {} });
    this.field = make("textarea", "aw-field aw-typed");
    Object.assign(this.field, { rows: 2, placeholder: "Type a text: the model reads it as you write" });
    this.field.setAttribute("aria-label", "text that the model reads as you write");
    this.field.addEventListener("input", () => this.typed());
    this.field.addEventListener("keydown", (event) => event.stopPropagation()); // letters are no keys of the page
    this.paint = button("Paint", "Paint on the image, with Shift in black: the model runs again when you let go", () => this.toggle(), "aw-toggle");
    const { modality } = state.bundle.model;
    this.field.hidden = !host.kernel || modality !== "text" || state.one.generated > 0;
    this.paint.hidden = !(host.kernel || host.paint) || modality !== "image" || !state.one.image;
    this.undo = button("Undo", "Show the inputs of the file again", () => host.unpaint());
    this.undo.hidden = !host.unpaint || !this.draft.painted;
    this.field.value = this.draft.text ?? text(state.one);
    const resume = () => this.draft.caret !== undefined && this.field.setSelectionRange(this.draft.caret, this.draft.caret);
    this.field.addEventListener("focus", resume); // in the page of the next input, too
    this.paint.setAttribute("aria-pressed", String(Boolean(this.draft.painting)));
  }

  typed() {
    Object.assign(this.draft, { text: this.field.value, caret: this.field.selectionStart });
    clearTimeout(this.draft.waits);
    if (this.field.value.trim()) this.draft.waits = setTimeout(() => this.host.edit({ typed: this.draft.text }), REST_MS);
  }

  toggle() {
    this.draft.painting = !this.draft.painting;
    this.paint.setAttribute("aria-pressed", String(this.draft.painting));
    this.canvas.style.touchAction = this.draft.painting ? "none" : "";
  }

  /** Hear strokes on a canvas that shows the image, drawn into `layers`: the image in its colours, then in grey. */
  hears(canvas, layers) {
    this.canvas = canvas;
    canvas.style.touchAction = this.draft.painting ? "none" : ""; // a finger paints, and does not scroll
    let last = null;
    const stroke = (event) => {
      const [across, down] = placeOn(canvas, event);
      const [own] = layers;
      const at = [(across / canvas.offsetWidth) * own.width, (down / canvas.offsetHeight) * own.height];
      for (const pen of layers.map((layer) => layer.getContext("2d"))) {
        Object.assign(pen, { lineCap: "round", lineWidth: Math.max(1, 2 * BRUSH * own.width), strokeStyle: event.shiftKey ? "#000" : "#fff" });
        pen.beginPath();
        pen.moveTo(...(last ?? at));
        pen.lineTo(...at);
        pen.stroke();
      }
      last = at;
      this.state.tell();
    };
    const acts = {
      pointerdown: (event) => (canvas.setPointerCapture(event.pointerId), stroke(event)),
      pointermove: (event) => last && stroke(event),
      pointerup: () => {
        if (last && this.host.paint) this.host.paint(this.state.one, layers[0]);
        else if (last) layers[0].toBlob(async (blob) => this.host.edit({ image: "painting.png" }, await blob.arrayBuffer()));
        last = null;
      },
      click: () => {},
    };
    for (const [name, act] of Object.entries(acts)) {
      canvas.addEventListener(name, (event) => {
        if (!this.draft.painting) return;
        event.stopImmediatePropagation(); // a stroke chooses no patches
        act(event);
      });
    }
  }
}

/** An input's words as a text to go on from. */
function text({ labels, kinds, real }) {
  const words = labels.filter((_, token) => real[token] && kinds[token] === "word");
  const spaced = words.every((word) => word.length <= 1) || words.some((word) => word.startsWith(" "));
  return words.join(spaced ? "" : " ");
}
