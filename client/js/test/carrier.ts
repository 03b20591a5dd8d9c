/** Real sockets whose other end is played by the test, at once, and the replay of schemas/vectors/channels. */

import { expect, vi } from "vitest";

import { channels } from "../src/channels.js";
import type { WebSocketClass, WebSocketLike } from "../src/socket.js";

export type Data = string | { $bytes: number[] };

function plain(data: string | ArrayBuffer | ArrayBufferView): Data {
  if (typeof data === "string") return data;
  return { $bytes: [...new Uint8Array("buffer" in data ? data.buffer : data)] };
}

function bytes(data: Data): string | ArrayBuffer {
  return typeof data === "string" ? data : new Uint8Array(data.$bytes).buffer;
}

/** A socket of the network. */
export class PlayedSocket implements WebSocketLike {
  binaryType = "blob";
  protocol = "";
  isClosed = false;
  sent: Data[] = [];
  readonly path: string;
  readonly protocols: string[];
  readonly #listeners: Record<string, ((event: any) => void)[]> = {};

  constructor(url: string, protocols: string | string[]) {
    const { pathname, search } = new URL(url);
    this.path = pathname + search;
    this.protocols = [protocols].flat();
  }

  addEventListener(type: string, listener: (event: any) => void): void {
    (this.#listeners[type] ??= []).push(listener);
  }

  send(data: string | ArrayBuffer | ArrayBufferView): void {
    if (!this.protocol) throw new Error("the socket is not open");
    if (!this.isClosed) this.sent.push(plain(data));
  }

  close(): void {
    if (!this.isClosed) queueMicrotask(() => this.#emit("close", { code: 1005, reason: "" }));
    this.isClosed = true;
  }

  accept(protocol: string): void {
    this.protocol = protocol;
    this.#emit("open", {});
  }

  receive(data: Data): void {
    if (typeof data !== "string") expect(this.binaryType).toBe("arraybuffer");
    if (!this.isClosed) this.#emit("message", { data: bytes(data) });
  }

  lose(code: number, reason: string): void {
    this.isClosed = true;
    this.#emit("close", { code, reason });
  }

  #emit(type: string, event: object): void {
    for (const listener of [...(this.#listeners[type] ?? [])]) listener(event);
  }
}

/** The sockets of a page, those of the network in the order in which they were begun. */
export class Page {
  readonly real: PlayedSocket[] = [];
  readonly WebSocket: WebSocketClass;

  constructor() {
    const { real } = this;
    const Real = class extends PlayedSocket {
      constructor(url: string, protocols: string | string[]) {
        super(url, protocols);
        real.push(this);
      }
    };
    this.WebSocket = channels({ WebSocket: Real });
  }
}

type Step = { [name: string]: any };

export class ChannelsReplay {
  readonly #page = new Page();
  readonly #sockets = new Map<string, WebSocketLike>();
  #begun = 0;
  #got: Record<string, Data[]> = {};
  #closed: Record<string, [number, string]> = {};

  async step(step: Step): Promise<void> {
    const [[name, value]] = Object.entries(step) as [[string, any]];
    const { real } = this.#page;
    const socket = Array.isArray(value) ? real[value[0] - 1] : undefined;
    if (name === "open") this.#open(value[0], value[1]);
    else if (name === "send") this.#sockets.get(value[0])!.send(bytes(value[1]));
    else if (name === "close") this.#sockets.get(value[0])!.close(value[1]);
    else if (name === "accept") socket!.accept(value[1]);
    else if (name === "receive") socket!.receive(value[1]);
    else if (name === "lost") socket!.lose(value[1], value[2]);
    else if (name === "wait") await vi.advanceTimersByTimeAsync(value * 1000);
    else if (name === "sent") expect(socket!.sent.splice(0)).toEqual(value[1]);
    else if (name === "begun") {
      expect(real.slice(this.#begun).map(({ path, protocols }) => [path, protocols])).toEqual(value);
      this.#begun = real.length;
    } else if (name === "got") {
      expect(this.#got).toEqual(value);
      this.#got = {};
    } else if (name === "closed") {
      expect(this.#closed).toEqual(value);
      this.#closed = {};
    } else if (name === "ended") {
      expect(real.flatMap(({ isClosed }, index) => (isClosed ? [index + 1] : []))).toEqual(value);
    } else throw new Error(`there is no step ${name}`);
    await vi.advanceTimersByTimeAsync(0);
  }

  #open(name: string, path: string): void {
    const socket = new this.#page.WebSocket(`ws://host${path}`, "plait.v1");
    socket.binaryType = "arraybuffer";
    socket.addEventListener("message", ({ data }) => (this.#got[name] ??= []).push(plain(data)));
    socket.addEventListener("close", ({ code, reason }) => {
      expect(this.#closed).not.toHaveProperty(name);
      this.#closed[name] = [code, reason];
    });
    this.#sockets.set(name, socket);
  }
}
