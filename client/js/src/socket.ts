/** A WebSocket that reconnects: it carries frames, and decides only when to try again. */

import { Backoff } from "./backoff.js";
import { ABNORMAL, GOING_AWAY, UNAUTHENTICATED } from "./errors.js";
import { clock } from "./platform.js";
import type { page } from "./platform.js";
import { SUBPROTOCOL } from "./protocol.js";

/** In milliseconds. */
const CONNECT_TIMEOUT = 10_000;

/** The events after which a connection may be dead. */
const DOUBTS = ["online", "offline", "visibilitychange", "pageshow", "focus"];

/** The used part of a WebSocket, as browsers, Node and the package `ws` have it. */
export interface WebSocketLike {
  binaryType: string;
  addEventListener(type: any, listener: (event: any) => void): void;
  send(data: any): void;
  close(code?: number, reason?: string): void;
}

export type WebSocketClass = new (url: any, protocols?: any) => WebSocketLike;

export interface SocketOptions {
  url: string;
  WebSocket: WebSocketClass;
  /** Called before each attempt; `onOpen` gets its result, and when it fails the attempt fails. */
  prepare: () => string | undefined | Promise<string | undefined>;
  onOpen: (prepared: string | undefined) => void;
  onMessage: (data: string | ArrayBuffer) => void;
  /**
   * Called when the socket was closed or did not open, perhaps because of `thrown`. Another socket opens, unless this
   * calls `stop`.
   */
  onClose: (code: number, reason: string, thrown?: unknown) => void;
  /** Called when the connection may be dead. */
  onDoubt: () => void;
  /** Emits `online`, `offline`, and events of a page that is shown again. */
  network: Pick<typeof page, "addEventListener" | "removeEventListener">;
}

export class Socket {
  readonly #options: SocketOptions;
  #socket: WebSocketLike | undefined;
  #timer: ReturnType<typeof setTimeout> | undefined;
  // The number of the current attempt; events of earlier ones are ignored.
  #attempt = 0;
  readonly #backoff = new Backoff();
  #isJoined = false;
  #isStopped = false;
  readonly #onDoubt = ({ type }: { type: string }) => {
    // A healthy connection may outlast the loss of a network.
    if (this.#socket) this.#options.onDoubt();
    else if (type === "online") this.reconnect();
  };

  constructor(options: SocketOptions) {
    this.#options = options;
  }

  start(): void {
    this.#watch("addEventListener");
    void this.#connect();
  }

  /** Closes for good, without calling `onClose`. */
  stop(): void {
    this.#isStopped = true;
    this.#watch("removeEventListener");
    this.#abandon();
  }

  send(data: string | ArrayBuffer | ArrayBufferView): void {
    this.#socket?.send(data);
  }

  /** Notes that the thread is joined. */
  joined(): void {
    this.#backoff.joined(clock.now());
    this.#isJoined = true;
  }

  /** Notes that the server has answered a request. */
  answered(): void {
    this.#backoff.reset();
  }

  /** Replaces this socket by another, without calling `onClose`. */
  renew(): void {
    this.#abandon();
    this.#retry();
  }

  /** Replaces this socket by another at once, without calling `onClose`. */
  reconnect(): void {
    this.#abandon();
    void this.#connect();
  }

  #watch(how: "addEventListener" | "removeEventListener"): void {
    for (const name of DOUBTS) this.#options.network[how]?.(name, this.#onDoubt);
  }

  async #connect(): Promise<void> {
    const attempt = ++this.#attempt;
    this.#isJoined = false;
    // A socket may neither open nor close.
    this.#timer = setTimeout(() => this.#handleClose(attempt, ABNORMAL, ""), CONNECT_TIMEOUT);
    try {
      this.#open(attempt, await this.#options.prepare());
    } catch (error) {
      this.#handleClose(attempt, ABNORMAL, "", error);
    }
  }

  #open(attempt: number, prepared: string | undefined): void {
    if (attempt !== this.#attempt) return;
    const { url, WebSocket, onOpen, onMessage } = this.#options;
    const socket = new WebSocket(url, SUBPROTOCOL);
    socket.binaryType = "arraybuffer";
    this.#socket = socket;
    socket.addEventListener("open", () => {
      if (attempt !== this.#attempt) return;
      clearTimeout(this.#timer);
      onOpen(prepared);
    });
    socket.addEventListener("message", ({ data }: { data: string | ArrayBuffer }) => {
      if (attempt === this.#attempt) onMessage(data);
    });
    socket.addEventListener("close", ({ code, reason }: { code: number; reason: string }) => {
      this.#handleClose(attempt, code, reason);
    });
    // Each error is followed by a close; without a listener the package `ws` would throw it.
    socket.addEventListener("error", () => undefined);
  }

  #handleClose(attempt: number, code: number, reason: string, thrown?: unknown): void {
    if (attempt !== this.#attempt) return;
    const mayRetryAtOnce = (code === GOING_AWAY || code === UNAUTHENTICATED) && this.#isJoined;
    this.#abandon();
    this.#options.onClose(code, reason, thrown);
    if (!this.#isStopped) this.#retry(mayRetryAtOnce);
  }

  #retry(mayRetryAtOnce = false): void {
    clearTimeout(this.#timer);
    const wait = this.#backoff.delay(clock.now(), Math.random(), mayRetryAtOnce);
    this.#timer = setTimeout(() => void this.#connect(), wait);
  }

  #abandon(): void {
    clearTimeout(this.#timer);
    this.#attempt++;
    this.#socket?.close();
    this.#socket = undefined;
  }
}
