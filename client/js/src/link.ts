/** A session with what it needs from outside: sockets, a clock, tokens, a storage. */

import { PlaitError } from "./errors.js";
import type { SessionEvent } from "./events.js";
import { randomId, socketUrl } from "./options.js";
import type { ThreadOptions } from "./options.js";
import { SUBPROTOCOL } from "./protocol.js";
import type { ServerMessage } from "./protocol.js";
import { Session } from "./session.js";
import { tooLarge } from "./size.js";
import { Socket } from "./socket.js";
import type { WebSocketClass } from "./socket.js";
import { claim } from "./storage.js";
import type { LocksLike, Place } from "./storage.js";

/**
 * "connecting" until the thread is joined or the first attempt has failed, "online" while it is joined, "offline" from
 * a loss of the connection until it is joined again, and "closed" for good.
 */
export type Status = "connecting" | "online" | "offline" | "closed";

export interface LinkListener {
  onEvent: (event: SessionEvent) => void;
  onBytes: (data: ArrayBuffer) => void;
  /** Something may read differently; behind the events that say why. */
  onMoved: () => void;
}

export class Link {
  readonly session: Session;
  readonly #options: ThreadOptions<unknown>;
  readonly #listener: LinkListener;
  #socket: Socket | undefined = undefined;
  #place: Place | undefined = undefined;
  #status: Status = "connecting";
  #error: PlaitError | undefined = undefined;
  #isStarted = false;
  #timer: ReturnType<typeof setTimeout> | undefined = undefined;
  #timerAt = Infinity;

  constructor(options: ThreadOptions<unknown>, listener: LinkListener) {
    this.#options = options;
    this.#listener = listener;
    this.session = new Session({ client: options.client ?? randomId(), now, schema: options.schema });
  }

  get status(): Status {
    return this.#status;
  }

  /** Why the link was closed, unless it was by `close`. */
  get error(): PlaitError | undefined {
    return this.#error;
  }

  /** What is asked for in vain once the link is closed is refused with. */
  get closedError(): PlaitError {
    return this.#error ?? new PlaitError("closed", "The client is closed");
  }

  /** Begins; does nothing a second time. */
  connect(): void {
    if (this.#isStarted || this.#status === "closed") return;
    const socket = this.#newSocket();
    this.#isStarted = true;
    const { storage, kind, name } = this.#options;
    if (!storage) return this.#start(socket);
    const locks = (globalThis.navigator as { locks?: LocksLike } | undefined)?.locks;
    const claimed = claim(storage, `plait:${kind}/${name}`, locks);
    // Without a place that is its own, a client works all the same, and keeps nothing.
    void claimed
      .catch(() => undefined)
      .then((place) => {
        if (this.#status === "closed") return place?.release();
        this.#place = place;
        const backlog = place?.read();
        if (backlog && (this.#options.client ?? backlog.client) === backlog.client) this.session.restore(backlog);
        this.#start(socket);
      });
  }

  /** Ends it for good; what is in the storage stays there. */
  close(error?: PlaitError): void {
    if (this.#status === "closed") return;
    this.#status = "closed";
    this.#error = error;
    this.session.stop();
    this.#socket?.stop();
    this.#place?.release();
    clearTimeout(this.#timer);
    this.pump();
  }

  /** Carries out what the session has decided; to be called whenever it was told something. */
  pump(): void {
    const backlog = this.session.takeBacklog();
    if (backlog) this.#place?.write(backlog);
    for (const frame of this.session.takeFrames()) this.#socket?.send(JSON.stringify(frame));
    for (const event of this.session.takeEvents()) {
      this.#handle(event);
      this.#listener.onEvent(event);
    }
    this.#schedule();
    this.#listener.onMoved();
  }

  /** Sends bytes as they are; they are lost unless the thread is joined. Throws a PlaitError when they are too many. */
  sendBytes(data: ArrayBuffer | ArrayBufferView<ArrayBuffer>): void {
    if (data.byteLength > (this.session.joined?.max_frame ?? Infinity)) throw tooLarge("message");
    if (this.#status === "online") this.#socket?.send(data);
  }

  #newSocket(): Socket {
    const WebSocket = this.#options.WebSocket ?? (globalThis as { WebSocket?: WebSocketClass }).WebSocket;
    if (!WebSocket) throw new PlaitError("no_websocket", "There is no WebSocket here: pass that of the package ws");
    return new Socket({
      url: socketUrl(this.#options),
      protocol: SUBPROTOCOL,
      WebSocket,
      prepare: () => (typeof this.#options.token === "function" ? this.#options.token() : this.#options.token),
      onOpen: (token) => {
        this.session.open(token);
        this.pump();
      },
      onMessage: (data) => this.#receive(data),
      onClose: (code, reason) => {
        this.#status = "offline";
        this.session.lost(code, reason);
        this.pump();
      },
      network: "addEventListener" in globalThis ? globalThis : undefined,
    });
  }

  #start(socket: Socket): void {
    this.#socket = socket;
    socket.start();
    this.pump();
  }

  #receive(data: string | ArrayBuffer): void {
    if (typeof data === "string") this.session.receive(JSON.parse(data) as ServerMessage);
    else {
      this.session.receive(undefined);
      this.#listener.onBytes(data);
    }
    this.pump();
  }

  #handle(event: SessionEvent): void {
    if (event.type === "joined") {
      this.#status = "online";
      this.#socket?.joined();
    } else if (event.type === "applied" || event.type === "result") this.#socket?.answered();
    else if (event.type === "rejoin") {
      this.#status = "offline";
      this.#socket?.renew();
    } else if (event.type === "stopped") this.close(event.error);
    else if (event.type === "auth_expiring") void this.#refresh();
  }

  async #refresh(): Promise<void> {
    const { token } = this.#options;
    if (typeof token !== "function") return;
    try {
      const fresh = await token();
      if (fresh !== undefined) this.session.auth(fresh);
      this.pump();
    } catch {
      // Without a fresh token the server closes the socket, and says why.
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
