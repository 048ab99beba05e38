// The steps of a text that the model went on writing: each new token with its probabilities.

import { percent } from "./colour.js";
import { button, make, readable } from "./state.js";

const PAUSE_MS = 800;
const CANDIDATES = 4;

export class Steps {
  constructor(state) {
    this.state = state;
    this.before = button("◀", "Step before", () => this.go(this.step - 1));
    this.after = button("▶", "Next step", () => this.go(this.step + 1));
    this.before.setAttribute("aria-label", "step before");
    this.after.setAttribute("aria-label", "next step");
    this.play = button("Play", "Step by step", () => (this.playing ? this.stop() : this.start()));
    this.slide = make("input", "aw-slider");
    Object.assign(this.slide, { type: "range", min: 1, step: 1 });
    this.slide.setAttribute("aria-label", "step of the generation");
    this.slide.addEventListener("input", () => this.go(Number(this.slide.value)));
    this.words = make("span", "aw-facts");
    this.box = make("div", "aw-row aw-steps", null, this.before, this.slide, this.after, this.play, this.words);
    this.box.setAttribute("role", "group");
    this.box.setAttribute("aria-label", "steps of the generation");
    this.playing = null;
  }

  /** The first token that the model wrote. */
  get first() {
    return this.state.one.count - this.state.one.generated;
  }

  /** Which step is looked at, from 1; 0 where it is another query, or several. */
  get step() {
    const { tokens, one } = this.state;
    const step = tokens.length === 1 ? tokens[0] - this.first + 2 : 0;
    return one.generated && step >= 1 && step <= one.generated ? step : 0;
  }

  /** The token that this step chose, or null. */
  get fresh() {
    return this.step ? this.first + this.step - 1 : null;
  }

  go(step) {
    const { generated } = this.state.one;
    this.state.set({ tokens: [this.first - 2 + Math.max(1, Math.min(generated, step))], direction: "from", hover: null });
  }

  start() {
    if (this.step === this.state.one.generated) this.go(1);
    this.playing = setInterval(() => {
      if (this.step >= this.state.one.generated) return this.stop();
      this.go(this.step + 1);
    }, PAUSE_MS);
    this.draw();
  }

  stop() {
    clearInterval(this.playing);
    this.playing = null;
    this.play.textContent = "Play";
  }

  draw() {
    const { one } = this.state;
    const { generated } = one;
    this.box.hidden = !generated;
    if (!generated) return;
    const { step } = this;
    this.slide.max = generated;
    this.slide.value = step || 1;
    this.play.textContent = this.playing ? "Stop" : "Play";
    if (!step) {
      this.words.textContent = `the last ${generated} tokens were written by the model`;
      return;
    }
    const query = this.first + step - 2;
    const { outcomes, actual } = one.prediction ?? {};
    const said = [`Step ${step} of ${generated}: “${readable(one.labels[this.fresh])}”`];
    if (outcomes) {
      said[0] += `, ${percent(one.predictedActual(query))}`;
      const shares = one.predicted(query);
      const others = outcomes[query].map((outcome, i) => [outcome, shares[i]]).filter(([outcome]) => outcome !== actual[query]).slice(0, CANDIDATES - 1);
      if (others.length) said.push(others.map(([outcome, share]) => `“${readable(outcome)}” ${percent(share)}`).join(", "));
    }
    this.words.textContent = said.join("; then ");
    this.words.title = this.words.textContent;
  }
}
