// A WebSocket that delays what it carries and can be cut, as dice say.

import { createRequire } from "node:module";

export const { WebSocket } = createRequire(new URL("../../../client/js/package.json", import.meta.url))("ws");

const LONGEST = 4;

/** Carries functions out in order, each after a random delay. */
class Delayed {
  #dice;
  #isCalm;
  #waiting = [];
  #timer = undefined;

  constructor(dice, isCalm) {
    this.#dice = dice;
    this.#isCalm = isCalm;
  }

  add(fn) {
    this.#waiting.push(fn);
    if (this.#timer === undefined) this.#next();
  }

  drop() {
    clearTimeout(this.#timer);
    this.#waiting = [];
    this.#timer = undefined;
  }

  #next() {
    this.#timer = undefined;
    while (this.#waiting.length > 0) {
      if (!this.#isCalm() && this.#dice.chance(0.4)) {
        const run = () => {
          this.#waiting.shift()?.();
          this.#next();
        };
        this.#timer = setTimeout(run, this.#dice.next() * LONGEST);
        return;
      }
      this.#waiting.shift()();
    }
  }
}

/**
 * Returns a class of sockets for one client. `told` is given each parsed frame just before the client is; `isCalm` says
 * that there is to be no more trouble.
 */
export function troubled(dice, { isCalm, told }) {
  const Class = class extends WebSocket {
    static last = undefined;
    #up = new Delayed(dice, isCalm);
    #down = new Delayed(dice, isCalm);

    constructor(url, protocols) {
      super(url, protocols);
      Class.last = this;
    }

    addEventListener(type, listener) {
      if (type !== "message") return super.addEventListener(type, listener);
      super.addEventListener(type, ({ data }) =>
        this.#down.add(() => {
          if (typeof data === "string") told(JSON.parse(data));
          listener({ data });
        }),
      );
    }

    send(data) {
      this.#up.add(() => {
        if (this.readyState === WebSocket.OPEN) super.send(data);
      });
    }

    /** Breaks the connection: what is on its way is lost, each way. */
    cut() {
      this.#up.drop();
      this.#down.drop();
      this.terminate();
    }
  };
  return Class;
}
