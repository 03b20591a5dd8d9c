/** A WebSocket that reconnects: it carries frames, and decides only when to try again. */

import { Backoff } from "./backoff.js";
import { ABNORMAL, GOING_AWAY, UNAUTHENTICATED } from "./errors.js";

/** In milliseconds. */
const CONNECT_TIMEOUT = 10_000;

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
  protocol: string;
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
  /** Emits `online` and `offline`. */
  network?: Pick<EventTarget, "addEventListener"> | undefined;
}

export class Socket {
  readonly #options: SocketOptions;
  #socket: WebSocketLike | undefined;
  #timer: ReturnType<typeof setTimeout> | undefined;
  // The number of the current attempt; events of earlier ones are ignored.
  #attempt = 0;
  readonly #backoff = new Backoff();
  #isJoined = false;
  readonly #stopped = new AbortController();

  constructor(options: SocketOptions) {
    this.#options = options;
  }

  start(): void {
    const { network } = this.#options;
    // A controller has the option `signal`.
    network?.addEventListener("online", () => this.#handleOnline(), this.#stopped);
    network?.addEventListener("offline", () => this.#handleOffline(), this.#stopped);
    void this.#connect();
  }

  /** Closes for good, without calling `onClose`. */
  stop(): void {
    this.#stopped.abort();
    this.#abandon();
  }

  send(data: string | ArrayBuffer | ArrayBufferView): void {
    this.#socket?.send(data);
  }

  /** Notes that the thread is joined. */
  joined(): void {
    this.#backoff.joined(performance.now());
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
    const { url, protocol, WebSocket, onOpen, onMessage } = this.#options;
    const socket = new WebSocket(url, protocol);
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
    if (!this.#stopped.signal.aborted) this.#retry(mayRetryAtOnce);
  }

  #retry(mayRetryAtOnce = false): void {
    clearTimeout(this.#timer);
    const wait = this.#backoff.delay(performance.now(), Math.random(), mayRetryAtOnce);
    this.#timer = setTimeout(() => void this.#connect(), wait);
  }

  #abandon(): void {
    clearTimeout(this.#timer);
    this.#attempt++;
    this.#socket?.close();
    this.#socket = undefined;
  }

  #handleOnline(): void {
    if (this.#socket) return;
    this.#abandon();
    void this.#connect();
  }

  #handleOffline(): void {
    if (this.#socket) this.#handleClose(this.#attempt, ABNORMAL, "");
  }
}
