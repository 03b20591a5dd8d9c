/** One client's conversation with one thread, over all its sockets: no I/O, and no clock but the one it is given. */

import type { Keys } from "./align.js";
import type { Backlog } from "./backlog.js";
import { takeChange } from "./changes.js";
import { MESSAGE_TOO_BIG, finalError } from "./codes.js";
import type { PlaitError } from "./errors.js";
import type { SessionEvent, Unsent } from "./events.js";
import type { Pending } from "./fold.js";
import { Heartbeat } from "./heartbeat.js";
import type { Json, JsonObject } from "./json.js";
import type { Bytes, Outgoing } from "./messages.js";
import { PatchError } from "./patch.js";
import type { Document } from "./patch.js";
import { Presences } from "./presence.js";
import type { PresenceRecord } from "./presence.js";
import type { Ack, Error as Failure, Joined, Message, Nack, Op, ServerMessage, Version } from "./protocol.js";
import { Pushes } from "./pushes.js";
import { Sending } from "./sending.js";

export interface SessionOptions {
  client: string;
  /** Seconds, from any point in time. */
  now: () => number;
  /** The hash of the state's schema that the app was built for. */
  schema?: string | undefined;
}

export type Phase = "idle" | "joining" | "joined" | "stopped";

export class Session {
  readonly #options: SessionOptions;
  readonly #pushes: Pushes;
  readonly #sending: Sending;
  readonly #presences = new Presences();
  readonly #heartbeat = new Heartbeat();
  #phase: Phase = "idle";
  #out: Outgoing[] = [];
  #events: SessionEvent[] = [];
  // What the server said of a frame of ours, before it closed the socket.
  #complaint: string | undefined = undefined;
  #joined: Joined | undefined = undefined;

  constructor(options: SessionOptions) {
    this.#options = options;
    this.#pushes = new Pushes(options.client, options.now);
    this.#sending = new Sending(this.#pushes, options.now);
  }

  // What is known

  get phase(): Phase {
    return this.#phase;
  }

  /** What the user sees; keeps its identity, part by part, as long as it is the same. */
  get shown(): Document {
    return this.#pushes.fold.shown;
  }

  get confirmed(): Document {
    return this.#pushes.fold.confirmed;
  }

  /** Epoch and version of `confirmed`; undefined before the first join. */
  get at(): Version | undefined {
    return this.#pushes.fold.at;
  }

  /** By which states of the thread are to be compared. */
  get keys(): Keys | undefined {
    return this.#pushes.fold.keys;
  }

  /** Those without an answer. */
  get pushes(): readonly Pending[] {
    return this.#pushes.all;
  }

  /**
   * Whether an answer to a push may still come, whose fate may be known, something waits to be sent, or it is not known
   * whether the server has taken a message.
   */
  get isBusy(): boolean {
    return this.pushes.length > 0 || this.isSending;
  }

  /** Whether something other than pushes waits to be sent, or it is not known whether a message is taken. */
  get isSending(): boolean {
    return this.#sending.isBusy;
  }

  get presence(): PresenceRecord {
    return this.#presences.all;
  }

  /** What the thread said of this socket, or of the last one. */
  get joined(): Joined | undefined {
    return this.#joined;
  }

  // Out of the session

  /** Returns the frames that are to be sent, and the bytes among them. */
  takeFrames(): Outgoing[] {
    return this.#out.splice(0);
  }

  /** Returns what has happened since the last time. */
  takeEvents(): SessionEvent[] {
    return this.#events.splice(0);
  }

  /** Returns what is to be kept, when it has changed; to be kept before the frames are sent. */
  takeBacklog(): Backlog | undefined {
    return this.#pushes.takeBacklog();
  }

  // The socket

  /** Goes on as another client whose backlog was kept; before the first socket only. */
  restore(backlog: Backlog): void {
    this.#pushes.restore(backlog);
    if (this.at) this.#tell({ type: "restored" });
  }

  /** A socket has opened. */
  open(token?: string): void {
    if (this.#phase === "stopped") return;
    this.#phase = "joining";
    this.#complaint = undefined;
    this.#sending.reset();
    this.#heartbeat.heard(this.#options.now());
    const { schema } = this.#options;
    const { have } = this.#pushes.fold;
    const more = {
      ...(have && { have }),
      ...(schema !== undefined && { schema }),
      ...(token !== undefined && { token }),
    };
    this.#out = [{ type: "join", client: this.#pushes.client, ...more }];
  }

  /** The socket is closed, with a code and perhaps a word. */
  lost(code: number, reason = ""): void {
    if (this.#phase === "stopped") return;
    if (code === MESSAGE_TOO_BIG && this.#phase === "joined") this.#pushes.suspect();
    const error = finalError(code, reason || this.#complaint);
    this.#leave(error ? "stopped" : "idle", error);
    if (error) this.#tell({ type: "stopped", code, error });
  }

  /** The user is done: nothing is sent or heard any more. Calls under way fail with `error`. */
  stop(error: PlaitError): void {
    this.#leave("stopped", error);
  }

  /** When `tick` is to be called, if ever. */
  due(): number | undefined {
    if (this.#phase === "idle" || this.#phase === "stopped") return undefined;
    return Math.min(this.#heartbeat.due, this.#phase === "joined" ? this.#sending.due : Infinity);
  }

  /** Does what is due. */
  tick(): void {
    if (this.due() === undefined) return;
    this.#pushes.release();
    this.#flush();
    const silence = this.#heartbeat.check(this.#options.now());
    if (silence === "ask") this.#send({ type: "ping" });
    else if (silence === "give up") this.#rejoin();
  }

  /** The server sent a frame; undefined for a message that is none, which is a sign of life all the same. */
  receive(frame: ServerMessage | undefined): void {
    if (this.#phase !== "joining" && this.#phase !== "joined") return;
    this.#heartbeat.heard(this.#options.now());
    if (frame === undefined) return;
    try {
      this.#dispatch(frame);
    } catch (error) {
      if (!(error instanceof PatchError)) throw error;
      this.#pushes.fold.forget();
      this.#presences.forget();
      this.#rejoin();
    }
  }

  // What the user does

  /**
   * Pushes operations on what is shown; undefined when there are none. Throws a PatchError where they do not fit.
   * Only once the thread was joined: before, there is nothing that they could be made on.
   */
  push(ops: readonly Op[]): Pending | undefined {
    if (this.at === undefined) throw new Error("nothing is known of the state before the first join");
    if (ops.length === 0) return undefined;
    const push = this.#pushes.add(ops);
    this.#flush();
    return push;
  }

  /** Calls a method, as soon as the thread is joined and knows of the pushes made so far. Returns the call's ref. */
  call(method: string, args: readonly Json[] = [], kwargs: JsonObject = {}): number {
    const ref = this.#sending.calls.add(method, args, kwargs, this.pushes.at(-1));
    this.#flush();
    return ref;
  }

  /** Nobody waits for a call any more. */
  cancel(ref: number): void {
    if (this.#sending.calls.end(ref)) this.#send({ type: "cancel", ref });
  }

  /** Sends a message, as soon as a call would go out. Throws a PlaitError when it is too large. */
  message(message: Message | Bytes): void {
    if (this.#phase === "stopped") return;
    // While joining it would not be sent, and `send` says it.
    if (this.#phase === "joined") for (const frame of this.#sending.outbox.count()) this.#put(frame);
    this.#sending.calls.addMessage(message, this.pushes.at(-1), this.#sending.maxFrame);
    this.#flush();
  }

  /** Lets others see something of this connection and those after it, null for nothing. Throws as `message` does. */
  setPresence(data: Json): void {
    this.#sending.presence.put(this.#presences.set(data, this.#sending.maxFrame));
    this.#flush();
  }

  /** A fresh token; a socket that opens later brings its own. */
  auth(token: string): void {
    this.#sending.auth.put({ type: "auth", token });
    this.#flush();
  }

  /** Nothing more will be asked for: what was sent is to be known of. */
  finish(): void {
    const frame = this.#sending.finish();
    if (frame) this.#send(frame);
  }

  // Frames

  #send(frame: Outgoing): void {
    if (this.#phase === "joined") this.#put(frame);
  }

  #put(next: Outgoing | Unsent): void {
    if ("error" in next) this.#tell(next);
    else this.#out.push(next);
  }

  #tell(event: SessionEvent | undefined): void {
    if (event) this.#events.push(event);
  }

  /** Sends what may go out. */
  #flush(): void {
    if (this.#phase !== "joined") return;
    for (const each of this.#sending.take()) this.#put(each);
  }

  #leave(phase: Phase, error?: PlaitError): void {
    this.#phase = phase;
    this.#events.push(...this.#sending.calls.failAll(error));
  }

  #rejoin(): void {
    this.#leave("idle");
    this.#events.push({ type: "rejoin" });
  }

  #dispatch(frame: ServerMessage): void {
    if (frame.type === "error") return this.#fail(frame);
    if (frame.type === "joined") return this.#join(frame);
    if (this.#phase !== "joined") return;
    switch (frame.type) {
      case "change":
      case "changes":
      case "snapshot":
        return this.#tell(takeChange(this.#pushes.fold, frame));
      case "ack":
      case "nack":
        return this.#answered(frame);
      case "result":
        return this.#tell(this.#sending.calls.take(frame));
      case "presence":
        return this.#presences.receive(frame);
      case "pong":
        if (typeof frame.messages === "number") this.#sending.outbox.answered(frame.messages);
        return this.#flush();
      case "message":
      case "event":
      case "auth_expiring":
        return this.#tell(frame);
    }
  }

  #join(frame: Joined): void {
    this.#pushes.join(frame);
    this.#joined = frame;
    this.#sending.maxFrame = frame.max_frame ?? Infinity;
    this.#phase = "joined";
    this.#events.push({ type: "joined" });
    const presence = this.#presences.again(this.#sending.maxFrame);
    if (presence?.type === "presence") this.#sending.presence.put(presence);
    else if (presence) this.#put(presence);
    this.#flush();
  }

  #answered(frame: Ack | Nack): void {
    this.#tell(frame.type === "ack" ? this.#pushes.ack(frame) : this.#pushes.nack(frame));
    this.#flush();
  }

  #fail(frame: Failure): void {
    const asked = this.#sending.takeRefusal(frame);
    if (asked) return asked.forEach((each) => this.#send(each));
    if (typeof frame.ref !== "number") this.#complaint = frame.message;
    this.#tell(this.#sending.calls.fail(frame));
  }
}
