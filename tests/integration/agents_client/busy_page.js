// The socket of a page that is busy with something else.

import WebSocket from "ws";

import { changed } from "./waiting.js";

/** Answers pings at once, as browsers do, while messages wait until the code in the page is free for them. */
export class BusyPage extends WebSocket {
  static waiting = null;
  static pings = 0;

  constructor(url) {
    super(url, { origin: `http://${new URL(url).host}` });
    this.on("ping", () => {
      BusyPage.pings += 1;
      changed();
    });
  }

  static begin() {
    BusyPage.waiting = [];
    BusyPage.pings = 0;
  }

  static end() {
    const waiting = BusyPage.waiting;
    BusyPage.waiting = null;
    for (const give of waiting) give();
  }

  addEventListener(type, listener, options) {
    if (type !== "message") return super.addEventListener(type, listener, options);
    return super.addEventListener(type, (event) => {
      if (BusyPage.waiting) {
        BusyPage.waiting.push(() => listener(event));
        changed();
      } else listener(event);
    });
  }
}
