// Random choices that a seed brings back.

export class Dice {
  #state;

  constructor(seed) {
    this.#state = seed >>> 0;
  }

  /** A number from 0 up to 1 (mulberry32). */
  next() {
    this.#state = (this.#state + 0x6d2b79f5) >>> 0;
    let t = this.#state;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  }

  below(limit) {
    return Math.floor(this.next() * limit);
  }

  between(least, most) {
    return least + this.below(most - least + 1);
  }

  chance(share) {
    return this.next() < share;
  }

  pick(choices) {
    return choices[this.below(choices.length)];
  }
}
