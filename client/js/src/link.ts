/** A session with what it needs from outside: sockets, a clock, tokens, a storage. */

import { checkNamed, isPlaced, socketUrl } from "./address.js";
import { PlaitError } from "./errors.js";
import type { SessionEvent } from "./events.js";
import { parse, stringify } from "./exact.js";
import { randomId } from "./options.js";
import type { ThreadOptions } from "./options.js";
import { SUBPROTOCOL } from "./protocol.js";
import type { ServerMessage } from "./protocol.js";
import { Session } from "./session.js";
import { Socket } from "./socket.js";
import type { WebSocketClass } from "./socket.js";
import { claim, pageLocks, storageKey } from "./storage.js";
import type { Place } from "./storage.js";

/**
 * "connecting" until the thread is joined or the first attempt has failed, "online" while it is joined, "offline" from
 * a loss of the connection until it is joined again, and "closed" for good.
 */
export type Status = "connecting" | "online" | "offline" | "closed";

/** So many milliseconds what waits may take to be sent and answered when a link is closed. */
const CLOSING = 5_000;

export interface LinkListener {
  onEvent: (event: SessionEvent) => void;
  onBytes: (data: ArrayBuffer) => void;
  /** Something may read differently; behind the events that say why. */
  onMoved: () => void;
  /** Nothing more will be heard. */
  onEnd: () => void;
}

export class Link {
  readonly session: Session;
  readonly #options: ThreadOptions<unknown>;
  readonly #listener: LinkListener;
  #socket: Socket | undefined = undefined;
  #place: Place | undefined = undefined;
  #status: Status = "connecting";
  #error: PlaitError | undefined = undefined;
  #trouble: PlaitError | undefined = undefined;
  // As the server has it.
  #token: string | undefined = undefined;
  #isStarted = false;
  #isClosed = false;
  #isEnded = false;
  // Ends a link that is closed while what waits is on its way.
  #closing: ReturnType<typeof setTimeout> | undefined = undefined;
  #timer: ReturnType<typeof setTimeout> | undefined = undefined;
  #timerAt = Infinity;

  /** Throws a PlaitError where the address of the thread is none, and a TypeError where there is no thread. */
  constructor(options: ThreadOptions<unknown>, listener: LinkListener) {
    checkNamed(options);
    if (isPlaced(options)) socketUrl(options);
    this.#options = options;
    this.#listener = listener;
    this.session = new Session({ client: options.client ?? randomId(), now, schema: options.schema });
  }

  get status(): Status {
    return this.#isClosed ? "closed" : this.#status;
  }

  /** Whether what has no answer is kept for another life. */
  get keeps(): boolean {
    return this.#place?.keeps ?? false;
  }

  /** Why the link was closed, unless it was by `close`. */
  get error(): PlaitError | undefined {
    return this.#error;
  }

  /** Why there is no connection, as it was the last time; undefined while the thread is joined. */
  get trouble(): PlaitError | undefined {
    return this.#trouble;
  }

  /** What is asked for in vain once the link is closed is refused with. */
  get closedError(): PlaitError {
    return this.#error ?? new PlaitError("closed", "The client is closed");
  }

  /** Begins, in a place of the storage that is the link's from now on; does nothing a second time. */
  connect(place?: Place): void {
    if (this.#isStarted || this.#isClosed) return;
    const socket = this.#newSocket();
    this.#isStarted = true;
    const { storage } = this.#options;
    if (place || !storage) return this.#start(socket, place);
    // Without a place that is its own, a client works all the same, and keeps nothing.
    void claim(storage, storageKey(this.#options), pageLocks())
      .catch(() => undefined)
      .then((claimed) => this.#start(socket, claimed));
  }

  /**
   * Closes it for good: at once where there is no connection, else as soon as what waits is sent and answered, but for
   * the changes that a storage keeps.
   */
  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#closing = setTimeout(() => this.#end(), CLOSING);
    this.session.finish();
    this.pump();
  }

  get #isFinishing(): boolean {
    if (this.#status !== "online") return false;
    return this.keeps ? this.session.isSending : this.session.isBusy;
  }

  #end(error?: PlaitError): void {
    if (this.#isEnded) return;
    if (!this.#isClosed) this.#error = error;
    this.#isClosed = this.#isEnded = true;
    this.session.stop(this.closedError);
    this.#socket?.stop();
    this.#place?.release();
    clearTimeout(this.#timer);
    clearTimeout(this.#closing);
    this.pump();
    this.#listener.onEnd();
  }

  /** Carries out what the session has decided; to be called whenever it was told something. */
  pump(): void {
    const backlog = this.session.takeBacklog();
    if (backlog) this.#place?.write(backlog);
    for (const frame of this.session.takeFrames()) {
      this.#socket?.send(frame.type === "bytes" ? frame.data : stringify(frame));
    }
    for (const event of this.session.takeEvents()) {
      this.#handle(event);
      this.#listener.onEvent(event);
    }
    this.#schedule();
    this.#listener.onMoved();
    if (this.#isClosed && !this.#isFinishing) this.#end();
  }

  #newSocket(): Socket {
    const WebSocket = this.#options.WebSocket ?? (globalThis as { WebSocket?: WebSocketClass }).WebSocket;
    if (!WebSocket) throw new PlaitError("no_websocket", "There is no WebSocket here: pass that of the package ws");
    return new Socket({
      url: socketUrl(this.#options),
      protocol: SUBPROTOCOL,
      WebSocket,
      prepare: () => this.#askForToken(),
      onOpen: (token) => {
        this.#token = token;
        this.session.open(token);
        this.pump();
      },
      onMessage: (data) => this.#receive(data),
      onClose: (code, reason, thrown) => {
        this.#status = "offline";
        this.#trouble = trouble(code, reason, thrown);
        this.session.lost(code, reason);
        this.pump();
      },
      network: "addEventListener" in globalThis ? globalThis : undefined,
    });
  }

  #start(socket: Socket, place: Place | undefined): void {
    if (this.#isClosed) return place?.release();
    this.#place = place;
    const backlog = place?.read();
    if (backlog) this.session.restore(backlog);
    this.#socket = socket;
    socket.start();
    this.pump();
  }

  #receive(data: string | ArrayBuffer): void {
    if (typeof data === "string") this.session.receive(parse(data) as ServerMessage);
    else {
      this.session.receive(undefined);
      this.#listener.onBytes(data);
    }
    this.pump();
  }

  #handle(event: SessionEvent): void {
    if (event.type === "joined") {
      this.#status = "online";
      this.#trouble = undefined;
      this.#socket?.joined();
    } else if (event.type === "applied" || event.type === "result") this.#socket?.answered();
    else if (event.type === "rejoin") {
      this.#status = "offline";
      this.#socket?.renew();
    } else if (event.type === "stopped") this.#end(event.error);
    else if (event.type === "auth_expiring") void this.#refresh();
  }

  #askForToken(): string | undefined | Promise<string | undefined> {
    const { token } = this.#options;
    return typeof token === "function" ? asked(token) : token;
  }

  async #refresh(): Promise<void> {
    try {
      const token = await this.#askForToken();
      // A token that is no function's, and still the same, would renew nothing.
      if (token === undefined || (typeof this.#options.token === "string" && token === this.#token)) return;
      this.#token = token;
      this.session.auth(token);
      this.pump();
    } catch (error) {
      // Without a fresh token the server closes the socket, and says why.
      console.error(error);
    }
  }

  #schedule(): void {
    const due = this.session.due() ?? Infinity;
    // A timer that is early finds nothing due, and is set again.
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
  return performance.now() / 1000;
}

/** Asks an app's function for a token. Rejects with a PlaitError. */
async function asked(token: () => string | undefined | Promise<string | undefined>): Promise<string | undefined> {
  try {
    return await token();
  } catch (cause) {
    throw new PlaitError("no_token", `The function token failed: ${String(cause)}`, { cause });
  }
}

/** Returns why a socket is gone. What was thrown is shown to whoever looks into the console: it is most likely a mistake. */
function trouble(code: number, reason: string, thrown: unknown): PlaitError {
  if (thrown !== undefined) console.error(thrown);
  if (thrown instanceof PlaitError) return thrown;
  const message = thrown === undefined ? `The connection was closed (${code})` : String(thrown);
  return new PlaitError("disconnected", reason || message, { closeCode: code, cause: thrown });
}
