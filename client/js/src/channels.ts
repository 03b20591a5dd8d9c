/** One socket for many threads of a server: a class in place of `WebSocket`, whose sockets share a carrier. */

import { ABNORMAL, PlaitError, UNAUTHENTICATED } from "./errors.js";
import type { WebSocketClass, WebSocketLike } from "./socket.js";

const PROTOCOL = "plait.channels.v1";
const PING = '{"type":"ping"}';
const PONG = '{"type":"pong"}';

/** In milliseconds: how long a socket may take to open, and a carrier may stay without channels. */
const CONNECT_TIMEOUT = 10_000;
const GRACE = 1_000;
/** After this silence a carrier is pinged, and after as much again it is given up: before its clients do, in 20 s. */
const SILENCE = 15_000;

export interface ChannelsOptions {
  /** The class of the real sockets. The default is the global one. */
  WebSocket?: WebSocketClass | undefined;
}

type RealSocket = WebSocketLike & { protocol?: string };
type Data = string | ArrayBuffer | ArrayBufferView;
type Closed = { code: number; reason: string };
const LOST: Closed = { code: ABNORMAL, reason: "" };

/**
 * Returns a class for the option `WebSocket` of clients. Its sockets to one server share one real socket; each has its
 * own where the server cannot share them.
 */
export function channels(options: ChannelsOptions = {}): WebSocketClass {
  const carriers = new Map<string, Carrier>();
  return class extends Channel {
    constructor(address: string, protocol: string) {
      const Real = options.WebSocket ?? (globalThis as { WebSocket?: WebSocketClass }).WebSocket;
      if (!Real) throw new PlaitError("no_websocket", "there is no WebSocket: pass the option WebSocket to channels");
      const { origin, pathname, search } = new URL(address);
      // The path of a thread has three parts, below that of the app.
      const base = pathname.replace(/(\/[^/]*){3}\/?$/, "");
      super(pathname.slice(base.length) + search, () => new Real(address, protocol));
      const server = origin + base;
      let carrier = carriers.get(server);
      // The real socket may become that of this thread alone, if the server knows no channels.
      if (!carrier || carrier.isRetired) carrier = new Carrier(new Real(address, [PROTOCOL, protocol]));
      carriers.set(server, carrier);
      carrier.add(this);
    }
  };
}

class Carrier {
  /** Whether no more channels may be added. */
  isRetired = false;
  readonly #socket: RealSocket;
  readonly #channels = new Map<number, Channel>();
  #last = 0;
  #isOpen = false;
  // Gives up a socket that does not open, or does not answer.
  #timer: ReturnType<typeof setTimeout> | undefined;
  // Closes a carrier without channels.
  #grace: ReturnType<typeof setTimeout> | undefined;
  #heardAt = 0;
  // The channels whose clients wait for an answer to a ping. The first one has sent it.
  readonly #pinged = new Set<Channel>();

  constructor(socket: RealSocket) {
    this.#socket = socket;
    socket.binaryType = "arraybuffer";
    socket.addEventListener("open", () => {
      clearTimeout(this.#timer);
      if (socket.protocol !== PROTOCOL) return void this.#separate();
      this.#isOpen = true;
      for (const [number, channel] of this.#channels) this.#begin(number, channel);
    });
    socket.addEventListener("message", ({ data }: { data: string | ArrayBuffer }) => this.#receive(data));
    socket.addEventListener("close", (event: Closed) => this.#end(event));
    // Each error is followed by a close; without a listener the package `ws` would throw it.
    socket.addEventListener("error", () => undefined);
    this.#watch(CONNECT_TIMEOUT);
  }

  add(channel: Channel): void {
    clearTimeout(this.#grace);
    const number = ++this.#last;
    this.#channels.set(number, channel);
    channel.onClose = () => this.#remove(number, channel);
    if (this.#isOpen) this.#begin(number, channel);
  }

  #begin(number: number, channel: Channel): void {
    this.#send(number, channel.path);
    channel.begin({
      send: (data) => (data === PING ? this.#ping(number, channel) : this.#send(number, data)),
      close: (code) => this.#send(number, `!${code}`),
    });
  }

  #remove(number: number, channel: Channel): void {
    this.#channels.delete(number);
    this.#pinged.delete(channel);
    if (this.#channels.size === 0) this.#grace = setTimeout(() => this.#end(), GRACE);
  }

  #send(number: number, data: Data): void {
    if (typeof data === "string") return this.#socket.send(`${number} ${data}`);
    const head = new TextEncoder().encode(`${number} `);
    const body =
      "buffer" in data ? new Uint8Array(data.buffer, data.byteOffset, data.byteLength) : new Uint8Array(data);
    const message = new Uint8Array(head.length + body.length);
    message.set(head);
    message.set(body, head.length);
    this.#socket.send(message);
  }

  #receive(data: string | ArrayBuffer): void {
    if (!this.#isOpen) return;
    this.#heardAt = performance.now();
    clearTimeout(this.#timer);
    for (const channel of this.#pinged) channel.emit("message", { data: PONG });
    this.#pinged.clear();
    const text = typeof data === "string" ? data : String.fromCharCode(...new Uint8Array(data.slice(0, 16)));
    const at = text.indexOf(" ") + 1;
    const number = parseInt(text);
    const channel = this.#channels.get(number);
    const kind = data === text ? text[at] : "";
    // The server waits for the answer to a mark, whether the channel is open or not.
    if (kind === "?") this.#socket.send(text);
    else if (kind === "!" && channel) {
      const [, code, reason] = /!(\d+) ?(.*)/s.exec(text) as unknown as [string, string, string];
      // The carrier's cookies are those of a user who has lost the rights.
      if (+code === UNAUTHENTICATED) this.isRetired = true;
      channel.finish({ code: +code, reason });
    } else channel?.emit("message", { data: data.slice(at) });
  }

  /** Answers a ping for the whole carrier, if something has come lately, and else sends one for all its channels. */
  #ping(number: number, channel: Channel): void {
    if (performance.now() - this.#heardAt < SILENCE)
      return queueMicrotask(() => channel.emit("message", { data: PONG }));
    if (this.#pinged.size === 0) {
      this.#send(number, PING);
      this.#watch(SILENCE);
    }
    this.#pinged.add(channel);
  }

  #watch(timeout: number): void {
    this.#timer = setTimeout(() => this.#end(), timeout);
  }

  #end(event = LOST): void {
    this.isRetired = true;
    clearTimeout(this.#timer);
    for (const channel of [...this.#channels.values()]) channel.finish(event);
    clearTimeout(this.#grace);
    this.#socket.close();
  }

  /** Gives each channel a socket of its own: that of the first one is this, with the protocol that it asked for. */
  async #separate(): Promise<void> {
    this.isRetired = true;
    const channels = [...this.#channels];
    this.#channels.clear();
    clearTimeout(this.#grace);
    for (const [, channel] of channels) channel.onClose = undefined;
    if (channels[0]?.[0] !== 1) this.#socket.close();
    // Browsers open the sockets to a server one by one, so the time for each begins when the one before it is open.
    for (const [number, channel] of channels) await channel.separate(number === 1 ? this.#socket : undefined);
  }
}

interface Link {
  send(data: Data): void;
  close(code: number): void;
}

class Channel implements WebSocketLike {
  binaryType = "arraybuffer";
  readonly path: string;
  onClose: (() => void) | undefined;
  readonly #open: () => RealSocket;
  #link: Link | undefined;
  // Sent before there is a link.
  readonly #early: Data[] = [];
  readonly #listeners: Record<string, ((event: any) => void)[]> = {};
  #isClosed = false;

  constructor(path: string, open: () => RealSocket) {
    this.path = path;
    this.#open = open;
    // It takes messages at once, so that a client's time for connecting does not pass while a browser queues the socket.
    queueMicrotask(() => this.emit("open", {}));
  }

  addEventListener(type: string, listener: (event: any) => void): void {
    (this.#listeners[type] ??= []).push(listener);
  }

  send(data: Data): void {
    if (this.#link) this.#link.send(data);
    else if (!this.#isClosed) this.#early.push(data);
  }

  close(code = 1000): void {
    this.#link?.close(code);
    this.finish({ code, reason: "" });
  }

  emit(type: string, event: object): void {
    if (!this.#isClosed) this.#tell(type, event);
  }

  begin(link: Link): void {
    this.#link = link;
    for (const data of this.#early.splice(0)) link.send(data);
  }

  finish(event: Closed): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#link = undefined;
    this.onClose?.();
    this.#tell("close", event);
  }

  #tell(type: string, event: object): void {
    for (const listener of this.#listeners[type] ?? []) listener(event);
  }

  /** Uses a real socket alone, by default another one; returns when that is open or has failed. */
  separate(opened?: RealSocket): Promise<void> | undefined {
    if (this.#isClosed) return;
    const socket = opened ?? this.#open();
    return new Promise((resolve) => {
      const timer = setTimeout(() => this.finish(LOST), CONNECT_TIMEOUT);
      const begin = (): void => {
        clearTimeout(timer);
        this.begin(socket);
        resolve();
      };
      this.onClose = () => {
        clearTimeout(timer);
        socket.close();
        resolve();
      };
      socket.binaryType = "arraybuffer";
      socket.addEventListener("open", begin);
      socket.addEventListener("message", (event) => this.emit("message", event));
      socket.addEventListener("close", (event) => this.finish(event));
      socket.addEventListener("error", () => undefined);
      if (opened) begin();
    });
  }
}
