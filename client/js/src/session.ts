/**
 * A client's side of the protocol `plait.v1`, over all its sockets: no I/O, and no clock but the given times.
 *
 * The same as `session.py` of the Python client, with the same names. The differences come from the languages. Here,
 * events tell the owner that the session stops or wants another socket, and Python waits on `status`, `needs_socket`
 * and `stopped`; here, `send` gets a frame, and Python's encodes one; only this one has the methods for a page's
 * storage and for editors. `tests/client/test_names.py` lists these names.
 */

import type { Keys } from "./elements.js";
import { MESSAGE_TOO_BIG, UNAUTHENTICATED, errorOf, finalError } from "./errors.js";
import type { PlaitError } from "./errors.js";
import { applyChange } from "./events.js";
import type { SessionEvent, Unsent } from "./events.js";
import type { Pending, ShownChange } from "./pending.js";
import { Heartbeat } from "./heartbeat.js";
import type { Document, Json, JsonObject } from "./json.js";
import { checkSize } from "./messages.js";
import type { Bytes, Outgoing } from "./messages.js";
import type { Parts } from "./parts.js";
import { PatchError } from "./patch.js";
import { Presences } from "./presence.js";
import type { PresenceRecord } from "./presence.js";
import type { Call, Error as Failure, Join, Joined, Message, Op, ServerMessage } from "./protocol.js";
import { Pushes } from "./pushes.js";
import { Sending } from "./sending.js";

export interface SessionOptions {
  client: string;
  /** Seconds, from any point in time. */
  now: () => number;
  /** The hash of the state's schema for which the app was built. */
  schema?: string | undefined;
  parts?: Parts | undefined;
  /** Called with each change of the shown state, at once. It must not call the session. */
  onShown?: ((change: ShownChange) => void) | undefined;
}

export type Phase = "idle" | "joining" | "joined" | "stopped";

export class Session {
  phase: Phase;
  /** The id by which others know this client, from the last join. */
  connection: string | undefined;
  /** Whether every push will be refused, from the last join. */
  isReadonly: boolean;
  /** The pushes, and the states on which they are made. */
  readonly queue: Pushes;
  readonly #options: SessionOptions;
  readonly #sending: Sending;
  readonly #presences = new Presences();
  readonly #heartbeat = new Heartbeat();
  #out: Outgoing[] = [];
  #events: SessionEvent[] = [];
  // The server's message about a bad frame, before it closed the socket.
  #complaint: string | undefined;
  // Whether the socket's join has a token; without one, the server knows the client from the request alone.
  #hasToken = false;
  // The source of a change that does not name it.
  #source = "server";

  constructor(options: SessionOptions) {
    this.#options = options;
    this.phase = "idle";
    this.isReadonly = false;
    this.queue = new Pushes(options.client, options.now, options.onShown, options.parts);
    this.#sending = new Sending(this.queue, options.now);
  }

  // State and status

  /** The state to show: the confirmed one with unanswered pushes. Its unchanged parts stay the same objects. */
  get shown(): Document {
    return this.queue.fold.shown;
  }

  get confirmed(): Document {
    return this.queue.fold.confirmed;
  }

  /** The epoch of `confirmed`; undefined before the first join. */
  get epoch(): string | undefined {
    return this.queue.fold.at?.[0];
  }

  /** The version of `confirmed`; undefined before the first join. */
  get version(): number | undefined {
    return this.queue.fold.at?.[1];
  }

  /** The members that identify elements when states of the thread are compared, and its texts. */
  get keys(): Keys {
    return this.queue.fold.keys;
  }

  /** The open pushes, which the server has neither applied nor refused. */
  get pending(): readonly Pending[] {
    return this.pushes.filter((push) => !push.isSettled);
  }

  /** The pushes without an answer. */
  get pushes(): readonly Pending[] {
    return this.queue.all;
  }

  /** Whether a push has no answer, or `isSending`. */
  get isBusy(): boolean {
    return this.pushes.length > 0 || this.isSending;
  }

  /** Whether a call or message waits to be sent, or, while finishing, a message may not have been taken. */
  get isSending(): boolean {
    return this.#sending.isBusy;
  }

  get presence(): PresenceRecord {
    return this.#presences.all;
  }

  /** The presence of this client, null for nothing. */
  get ownPresence(): Json {
    return this.#presences.own;
  }

  /** The maximum bytes of a frame, as the last join told. */
  get maxFrame(): number {
    return this.#sending.maxFrame;
  }

  // Output

  /** Returns the frames and bytes to send, in order. */
  takeFrames(): Outgoing[] {
    return this.#out.splice(0);
  }

  /** Returns the events since the last call. */
  takeEvents(): SessionEvent[] {
    return this.#events.splice(0);
  }

  // The socket

  /** Notes that a socket has opened. */
  open(token?: string): void {
    if (this.phase === "stopped") return;
    this.phase = "joining";
    this.#complaint = undefined;
    this.#hasToken = token !== undefined;
    this.#sending.reset();
    this.#heartbeat.heard(this.#options.now());
    // JSON has no members that are undefined.
    const { client, fold } = this.queue;
    const { schema, parts } = this.#options;
    this.#out = [{ type: "join", client, have: fold.have, schema, token, state: parts?.state } as Join];
  }

  /**
   * Notes that the socket is closed. A client without a token joins once more when it may no longer stay: its cookie
   * may have been renewed.
   */
  lost(code: number, reason = ""): void {
    if (this.phase === "stopped") return;
    if (code === MESSAGE_TOO_BIG && this.phase === "joined") this.queue.suspect();
    const mayRejoin = code === UNAUTHENTICATED && this.phase === "joined" && !this.#hasToken;
    const error = mayRejoin ? undefined : finalError(code, reason || this.#complaint);
    this.#leave(error ? "stopped" : "idle", error);
    if (error) this.tell({ type: "stopped", code, error });
  }

  /** Closes the client: nothing more is sent or received. Calls under way fail with `error`. */
  stop(error: PlaitError): void {
    this.#leave("stopped", error);
  }

  /** When to call `tick`; undefined if nothing is due. */
  get due(): number | undefined {
    if (this.phase === "idle" || this.phase === "stopped") return undefined;
    return Math.min(this.#heartbeat.due, this.phase === "joined" ? this.#sending.due : Infinity);
  }

  /** Does the work that is due. */
  tick(): void {
    if (this.due === undefined) return;
    this.queue.release();
    this.#flush();
    const silence = this.#heartbeat.check(this.#options.now());
    if (silence === "ping") this.#send({ type: "ping" });
    else if (silence === "give up") this.#rejoin();
  }

  /** Notes that something has come from the server. */
  heard(): void {
    this.#heartbeat.heard(this.#options.now());
  }

  /** Asks whether the server is still there, and soon gives the socket up if no answer comes. */
  doubt(): void {
    if (this.phase === "joined" && this.#heartbeat.doubt(this.#options.now())) this.#send({ type: "ping" });
  }

  /** Takes in a frame. Frames on a socket that is given up, or before `joined`, are ignored. */
  receive(frame: ServerMessage): void {
    if (this.phase !== "joining" && this.phase !== "joined") return;
    this.heard();
    try {
      this.#dispatch(frame);
    } catch (error) {
      if (!(error instanceof PatchError)) throw error;
      this.queue.fold.forget();
      this.#presences.forget();
      this.#rejoin();
    }
  }

  // Requests

  /**
   * Pushes operations on the shown state; returns undefined if there are none. Throws a PatchError if they do not fit.
   * This is possible only after the first join, because before it there is no state to change.
   */
  push(ops: readonly Op[]): Pending | undefined {
    if (ops.length === 0) return undefined;
    const push = this.queue.add(ops);
    this.#flush();
    return push;
  }

  /**
   * Calls a method as soon as the pushes made before it were sent; `more` is the rest of the frame: the tag of a query's
   * known result, and whether the call is optimistic. Returns the call's ref.
   */
  call(method: string, args: readonly Json[] = [], kwargs: JsonObject = {}, more?: Partial<Call>): number {
    const ref = this.#sending.calls.add(method, args, kwargs, this.pushes.at(-1), more);
    this.#flush();
    return ref;
  }

  /** Cancels a call. */
  cancel(ref: number): void {
    if (this.#sending.calls.end(ref)) this.#send({ type: "cancel", ref });
    // Pushes that follow an unsent call need not wait for it.
    this.#flush();
  }

  /** Sends a message as soon as the pushes made before it were sent. Throws a PlaitError if it is too large. */
  send(message: Message | Bytes): void {
    if (this.phase === "stopped") return;
    this.#sending.calls.addMessage(message, this.pushes.at(-1), this.#sending.maxFrame);
    // The count of messages can start only once joined; until then `Outbox.send` starts it.
    if (this.phase === "joined") for (const frame of this.#sending.outbox.count()) this.#put(frame);
    this.#flush();
  }

  /**
   * Sets the presence that others see of this client, null for nothing. Throws as `send` does. It is sent with the next
   * frame or `tick`, so that several that are set in a row are one frame.
   */
  setPresence(data: Json): void {
    this.#sending.presence.put(this.#presences.set(data, this.#sending.maxFrame));
  }

  /** Sends an event to the others, at once or never. Throws as `send` does. */
  emit(name: string, data: Json): void {
    this.#send(checkSize({ type: "emit", name, data }, this.#sending.maxFrame, "event"));
  }

  /** Sends a fresh token; a socket that opens later sends its own. */
  auth(token: string): void {
    this.#sending.auth.put({ type: "auth", token });
    this.#flush();
  }

  /** Asks whether the server has taken all messages, because the client is closing. */
  finish(): void {
    const frame = this.#sending.finish();
    if (frame) this.#send(frame);
  }

  // Frames

  #send(frame: Outgoing): void {
    if (this.phase === "joined") this.#put(frame);
  }

  #put(next: Outgoing | Unsent): void {
    if ("error" in next) this.tell(next);
    else this.#out.push(next);
  }

  /** Adds an event for `takeEvents`. */
  tell(event: SessionEvent | undefined): void {
    if (event) this.#events.push(event);
  }

  /** Sends the frames that may be sent now. */
  #flush(): void {
    if (this.phase !== "joined") return;
    for (const each of this.#sending.take()) this.#put(each);
  }

  /** Sends the frames that have waited for a call to end. */
  #sendNextCall(): void {
    if (this.#sending.calls.first) this.#flush();
  }

  #leave(phase: Phase, error?: PlaitError): void {
    this.phase = phase;
    this.#events.push(...this.#sending.calls.failAll(error));
  }

  #rejoin(): void {
    this.#leave("idle");
    this.tell({ type: "rejoin" });
  }

  #dispatch(frame: ServerMessage): void {
    if (frame.type === "error") return this.#handleError(frame);
    if (frame.type === "joined") return this.#join(frame);
    if (this.phase !== "joined") return;
    switch (frame.type) {
      case "change":
        this.#source = frame.source ?? this.#source;
        return this.tell(applyChange(this.queue.fold, frame, this.#source));
      case "changes":
      case "snapshot":
        return this.tell(applyChange(this.queue.fold, frame));
      case "ack":
        this.tell(this.queue.ack(frame));
        return this.#flush();
      case "nack":
        this.tell(this.queue.nack(frame));
        return this.#flush();
      case "result":
        this.tell(this.#sending.calls.take(frame));
        return this.#sendNextCall();
      case "presence":
        return this.#presences.receive(frame);
      case "pong":
        if (typeof frame.messages === "number") this.#sending.outbox.answered(frame.messages);
        return this.#flush();
      case "message":
      case "event":
      case "auth_expiring":
        return this.tell(frame);
    }
  }

  #join(frame: Joined): void {
    this.queue.join(frame);
    this.connection = frame.connection;
    this.isReadonly = frame.readonly ?? false;
    this.#sending.maxFrame = frame.max_frame ?? Infinity;
    this.phase = "joined";
    this.#source = "server";
    this.tell({ type: "joined" });
    const presence = this.#presences.resend(this.#sending.maxFrame);
    if (presence?.type === "presence") this.#sending.presence.put(presence);
    else if (presence) this.#put(presence);
    this.#flush();
  }

  #handleError(frame: Failure): void {
    const pings = this.#sending.refused(frame);
    if (pings) return pings.forEach((ping) => this.#send(ping));
    if (frame.refused) this.tell({ type: "dropped", error: errorOf(frame) });
    else if (typeof frame.ref !== "number") this.#complaint = frame.message;
    this.tell(this.#sending.calls.fail(frame));
    this.#sendNextCall();
  }
}
