/** Runs a session: gives it sockets, a clock, tokens and a storage. */

import { ABNORMAL, PlaitError } from "./errors.js";
import type { SessionEvent } from "./events.js";
import { parse, stringify } from "./exact.js";
import type { ShownChange } from "./pending.js";
import { checkNamed, hasHost, socketUrl } from "./options.js";
import type { Keeper, ThreadOptions } from "./options.js";
import type { ServerMessage } from "./protocol.js";
import { clock, page, randomId } from "./platform.js";
import { Session } from "./session.js";
import { Socket } from "./socket.js";
import type { WebSocketClass } from "./socket.js";
import type { KeptSlot } from "./storage.js";

/**
 * "connecting" until the thread is joined or the first attempt fails, "online" while it is joined, "offline" after the
 * connection is lost and until the thread is joined again, "closed" for good.
 */
export type Status = "connecting" | "online" | "offline" | "closed";

/** The milliseconds that a closing link waits until its frames are sent and answered. */
const CLOSE_TIMEOUT = 5_000;

export interface LinkListener {
  onEvent: (event: SessionEvent) => void;
  onBytes: (data: ArrayBuffer) => void;
  /**
   * Called when a value of the session or the link may have changed. It comes after the events that give the reasons.
   */
  onUpdate: () => void;
  /** Called at once when the shown state has changed, in the middle of a call of the session. */
  onShown?: (change: ShownChange) => void;
  /** Called once, and last, when the link is closed. */
  onClosed: () => void;
}

export class Link {
  readonly session: Session;
  /** Why the link was closed, unless by `close`. */
  error: PlaitError | undefined;
  /** Why the last connection was lost or failed; undefined while the thread is joined. */
  trouble: PlaitError | undefined;
  /** Keeps data for the next page. */
  storage: Pick<Keeper, "claim"> | undefined;
  readonly #options: ThreadOptions<unknown>;
  readonly #listener: LinkListener;
  #socket: Socket | undefined;
  #slot: KeptSlot | undefined;
  #status: Status = "connecting";
  // The token that the server has.
  #token: string | undefined;
  #isStarted = false;
  #isClosing = false;
  #isClosed = false;
  // Ends a closing link that waits for too long.
  #closeTimer: ReturnType<typeof setTimeout> | undefined;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #timerAt = Infinity;

  /** Throws a PlaitError for an invalid address, and a TypeError if the thread is missing. */
  constructor(options: ThreadOptions<unknown>, listener: LinkListener) {
    checkNamed(options);
    if (hasHost(options)) socketUrl(options);
    this.#options = options;
    this.storage = options.storage;
    this.#listener = listener;
    this.session = new Session({
      client: options.client ?? randomId(),
      now,
      schema: options.schema,
      parts: options,
      onShown: listener.onShown,
    });
  }

  get status(): Status {
    return this.#isClosing ? "closed" : this.#status;
  }

  /** Whether unanswered pushes are kept in a storage. */
  get isKept(): boolean {
    return this.#slot?.isKept ?? false;
  }

  /** The error for all requests after the link was closed. */
  get closedError(): PlaitError {
    return this.error ?? new PlaitError("closed", "the client is closed");
  }

  /** Connects, with a slot of the storage that belongs to the link from now on; a second call does nothing. */
  connect(slot?: KeptSlot): void {
    if (this.#isStarted || this.#isClosing) return;
    const socket = this.#newSocket();
    this.#isStarted = true;
    if (slot || !this.storage) return this.#start(socket, slot);
    // Without a slot, a client works, and keeps nothing.
    void this.storage
      .claim(this.#options, () => this.#isClosing)
      .catch(() => undefined)
      .then((claimed) => this.#start(socket, claimed));
  }

  /**
   * Closes the link for good: at once if there is no connection, otherwise as soon as all is sent and answered, except
   * pushes that a storage keeps.
   */
  close(): void {
    if (this.#isClosing) return;
    this.#isClosing = true;
    this.#closeTimer = setTimeout(() => this.#closeNow(), CLOSE_TIMEOUT);
    this.session.finish();
    this.pump();
  }

  /** Replaces the connection at once. */
  reconnect(): void {
    if (this.#isClosing || !this.#socket) return;
    this.#status = "offline";
    this.session.lost(ABNORMAL);
    this.#socket.reconnect();
    this.pump();
  }

  get #isFinishing(): boolean {
    if (this.#status !== "online") return false;
    return this.isKept ? this.session.isSending : this.session.isBusy;
  }

  #closeNow(error?: PlaitError): void {
    if (this.#isClosed) return;
    if (!this.#isClosing) this.error = error;
    this.#isClosing = this.#isClosed = true;
    this.session.stop(this.closedError);
    this.#socket?.stop();
    this.#slot?.release(this.error);
    clearTimeout(this.#timer);
    clearTimeout(this.#closeTimer);
    this.pump();
    this.#listener.onClosed();
  }

  /** Carries out the decisions of the session; must be called after each call that may change the session. */
  pump(): void {
    this.#slot?.keep(this.session);
    for (const frame of this.session.takeFrames()) {
      this.#socket?.send(frame.type === "bytes" ? frame.data : stringify(frame));
    }
    for (const event of this.session.takeEvents()) {
      this.#handle(event);
      this.#listener.onEvent(event);
    }
    this.#schedule();
    this.#listener.onUpdate();
    if (this.#isClosing && !this.#isFinishing) this.#closeNow();
  }

  #newSocket(): Socket {
    const WebSocket = this.#options.WebSocket ?? (globalThis as { WebSocket?: WebSocketClass }).WebSocket;
    if (!WebSocket) throw new PlaitError("no_websocket", "there is no WebSocket: pass the option WebSocket");
    return new Socket({
      url: socketUrl(this.#options),
      WebSocket,
      prepare: () => this.#getToken(),
      onOpen: (token) => {
        this.#token = token;
        this.session.open(token);
        this.pump();
      },
      onMessage: (data) => this.#receive(data),
      onClose: (code, reason, thrown) => {
        this.#status = "offline";
        this.trouble = troubleOf(code, reason, thrown);
        this.session.lost(code, reason);
        this.pump();
      },
      onDoubt: () => {
        // A page that is about to be frozen could not take the answer.
        if (!page.document?.hidden) this.session.doubt();
        this.pump();
      },
      network: page,
    });
  }

  #start(socket: Socket, slot: KeptSlot | undefined): void {
    if (this.#isClosing) return slot?.release();
    this.#slot = slot;
    slot?.restore(this.session);
    this.#socket = socket;
    socket.start();
    this.pump();
  }

  #receive(data: string | ArrayBuffer): void {
    if (typeof data === "string") this.session.receive(parse(data) as ServerMessage);
    else {
      this.session.heard();
      this.#listener.onBytes(data);
    }
    this.pump();
  }

  #handle(event: SessionEvent): void {
    if (event.type === "joined") {
      this.#status = "online";
      this.trouble = undefined;
      this.#socket?.joined();
    } else if (event.type === "applied" || event.type === "result") this.#socket?.answered();
    else if (event.type === "rejoin") {
      this.#status = "offline";
      this.#socket?.renew();
    } else if (event.type === "stopped") this.#closeNow(event.error);
    else if (event.type === "auth_expiring") void this.#refresh();
  }

  /** Rejects with a PlaitError if the app's function for a token fails. */
  async #getToken(): Promise<string | undefined> {
    const { token } = this.#options;
    try {
      return await (typeof token === "function" ? token() : token);
    } catch (cause) {
      throw new PlaitError("no_token", `the option token failed: ${String(cause)}`, { cause });
    }
  }

  async #refresh(): Promise<void> {
    try {
      const token = await this.#getToken();
      // Sending the same text again would renew nothing.
      if (token === undefined || (typeof this.#options.token === "string" && token === this.#token)) return;
      this.#token = token;
      this.session.auth(token);
      this.pump();
    } catch (error) {
      // The server will close the socket, and give the reason.
      console.error(error);
    }
  }

  #schedule(): void {
    const due = this.session.due ?? Infinity;
    // A timer that fires too early finds nothing due, and is set again.
    if (due >= this.#timerAt) return;
    clearTimeout(this.#timer);
    this.#timerAt = due;
    this.#timer = setTimeout(
      () => {
        this.#timerAt = Infinity;
        this.session.tick();
        this.pump();
      },
      Math.max(0, Math.ceil((due - now()) * 1000)),
    );
  }
}

function now(): number {
  return clock.now() / 1000;
}

/**
 * Returns why a socket was closed or failed. A thrown error is logged, because it is most likely a mistake in the app.
 */
function troubleOf(code: number, reason: string, thrown: unknown): PlaitError {
  if (thrown !== undefined) console.error(thrown);
  if (thrown instanceof PlaitError) return thrown;
  const message = thrown === undefined ? `the connection was closed (${code})` : String(thrown);
  return new PlaitError("disconnected", reason || message, { closeCode: code, cause: thrown });
}
