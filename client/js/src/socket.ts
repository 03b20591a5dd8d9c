/** A WebSocket that comes back: it carries, and decides nothing but when to try again. */

import { Backoff } from "./backoff.js";
import { ABNORMAL, GOING_AWAY, isFinal } from "./codes.js";

const CONNECT_TIMEOUT = 10_000;

/** What of a WebSocket is used; wide enough for that of a browser, of Node and of the package `ws`. */
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
  /** Is asked before each attempt; what it gives is handed to `onOpen`, and a failure counts as one of the attempt. */
  prepare: () => string | undefined | Promise<string | undefined>;
  onOpen: (prepared: string | undefined) => void;
  onMessage: (data: string | ArrayBuffer) => void;
  /** The socket is gone, or did not open, perhaps for what was thrown; unless the code is final, another will open. */
  onClose: (code: number, reason: string, thrown?: unknown) => void;
  /** Says `online` and `offline`. */
  network?: Pick<EventTarget, "addEventListener" | "removeEventListener"> | undefined;
}

export class Socket {
  readonly #options: SocketOptions;
  #socket: WebSocketLike | undefined = undefined;
  #timer: ReturnType<typeof setTimeout> | undefined = undefined;
  // Which attempt is under way; what belongs to an earlier one is not listened to.
  #attempt = 0;
  readonly #backoff = new Backoff();
  #isJoined = false;
  #isStopped = true;

  constructor(options: SocketOptions) {
    this.#options = options;
  }

  start(): void {
    this.#isStopped = false;
    this.#options.network?.addEventListener("online", this.#onOnline);
    this.#options.network?.addEventListener("offline", this.#onOffline);
    void this.#connect();
  }

  /** Closes for good, and says nothing of it. */
  stop(): void {
    this.#isStopped = true;
    this.#options.network?.removeEventListener("online", this.#onOnline);
    this.#options.network?.removeEventListener("offline", this.#onOffline);
    this.#abandon();
  }

  send(data: string | ArrayBuffer | ArrayBufferView): void {
    this.#socket?.send(data);
  }

  /** The conversation has begun. */
  joined(): void {
    this.#backoff.joined(performance.now());
    this.#isJoined = true;
  }

  /** It has come to something. */
  answered(): void {
    this.#backoff.reset();
  }

  /** Gives up this socket for a new one, and says nothing of it. */
  renew(): void {
    this.#abandon();
    this.#retry();
  }

  async #connect(): Promise<void> {
    const attempt = ++this.#attempt;
    this.#isJoined = false;
    // A socket that neither opens nor closes would otherwise be waited for without end.
    this.#timer = setTimeout(() => this.#gone(attempt, ABNORMAL, ""), CONNECT_TIMEOUT);
    try {
      const prepared = this.#options.prepare();
      this.#open(attempt, prepared instanceof Promise ? await prepared : prepared);
    } catch (error) {
      this.#gone(attempt, ABNORMAL, "", error);
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
      this.#gone(attempt, code, reason);
    });
    // A close follows each error; without a listener the package `ws` would raise it.
    socket.addEventListener("error", () => undefined);
  }

  #gone(attempt: number, code: number, reason: string, thrown?: unknown): void {
    if (attempt !== this.#attempt) return;
    const isAtOnce = code === GOING_AWAY && this.#isJoined;
    this.#abandon();
    this.#options.onClose(code, reason, thrown);
    if (isFinal(code)) this.stop();
    else if (!this.#isStopped) this.#retry(isAtOnce);
  }

  #retry(isAtOnce = false): void {
    clearTimeout(this.#timer);
    const wait = this.#backoff.delay(performance.now(), Math.random(), isAtOnce);
    this.#timer = setTimeout(() => void this.#connect(), wait);
  }

  #abandon(): void {
    clearTimeout(this.#timer);
    this.#attempt++;
    this.#socket?.close();
    this.#socket = undefined;
  }

  readonly #onOnline = (): void => {
    if (this.#socket) return;
    this.#abandon();
    void this.#connect();
  };

  readonly #onOffline = (): void => {
    if (this.#socket) this.#gone(this.#attempt, ABNORMAL, "");
  };
}
