// Lasting notices: running work with its cancel button, errors, completed steps.

import { button, make } from "./state.js";

export class Notice {
  constructor(host) {
    this.host = host;
    this.words = make("p");
    this.bar = make("progress");
    this.bar.setAttribute("aria-label", "share that is done");
    this.random = button("Take random weights", "The architecture of this model, its weights drawn at random", () => host.open({ model: this.missing, pretrained: false }));
    this.cancel = button("Cancel", "Stop the running work; the page stays as it is", () => host.cancel());
    this.close = button("×", "Close this notice", () => this.say(""));
    this.close.setAttribute("aria-label", "close this notice");
    this.box = make("div", "aw-notice", null, this.words, this.bar, this.random, this.cancel, this.close);
    this.box.setAttribute("role", "status");
    this.say("");
  }

  /** Say something that stays until it is closed or another thing is said. */
  say(text, { wrong = false, missing = "", working = false } = {}) {
    Object.assign(this, { missing, working });
    this.words.textContent = text;
    this.box.hidden = !text;
    this.box.classList.toggle("aw-wrong", wrong);
    this.random.hidden = !missing;
    this.bar.hidden = this.cancel.hidden = !working;
    this.close.hidden = working;
  }

  /** What the kernel does now; nothing where it rests. */
  busy(text, share) {
    if (!text) {
      if (this.working || /…$/.test(this.words.textContent)) this.say("");
      return;
    }
    this.say(`${text[0].toUpperCase()}${text.slice(1)} …`, { working: true });
    if (share === null || share === undefined) this.bar.removeAttribute("value");
    else this.bar.value = share;
  }
}
