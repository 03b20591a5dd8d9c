// A TCP proxy that can be cut.

import { createServer, connect } from "node:net";
import { once } from "node:events";

import { changed } from "./waiting.js";

/** Carries bytes to and from `address` while it is whole. */
export class Cable {
  #isCut = false;
  #pairs = new Set();
  /** Bytes that clients have sent through it. */
  carried = 0;

  static async lay(address) {
    const cable = new Cable();
    const [host, port] = address.split(":");
    const server = createServer((near) => cable.#carry(near, () => connect({ host, port: Number(port) })));
    server.listen(0, "127.0.0.1");
    await once(server, "listening");
    cable.address = `127.0.0.1:${server.address().port}`;
    return cable;
  }

  /** Ends every connection on both sides, and refuses new ones. */
  cut() {
    this.#isCut = true;
    for (const { near, far } of this.#take()) {
      near.destroy();
      far.end();
    }
  }

  /** Ends every connection on the client's side; the server does not learn of it. New ones are refused. */
  lose() {
    this.#isCut = true;
    for (const { near } of this.#take()) near.destroy();
  }

  /** Accepts connections again. */
  mend() {
    this.#isCut = false;
  }

  #take() {
    const pairs = [...this.#pairs];
    this.#pairs.clear();
    return pairs;
  }

  #carry(near, dial) {
    near.on("error", () => {});
    if (this.#isCut) {
      near.destroy();
      return;
    }
    const far = dial();
    const pair = { near, far };
    this.#pairs.add(pair);
    far.on("error", () => near.destroy());
    near.on("data", (data) => {
      far.write(data);
      this.carried += data.length;
      changed();
    });
    far.on("data", (data) => near.writable && near.write(data));
    near.on("end", () => this.#pairs.delete(pair) && far.end());
    far.on("end", () => near.end());
  }
}
