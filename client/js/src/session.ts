/** One client's conversation with one thread, over all its sockets: no I/O, and no clock but the one it is given. */

import type { Backlog } from "./backlog.js";
import { Calls } from "./calls.js";
import { MESSAGE_TOO_BIG, finalError, isFinal } from "./codes.js";
import { PlaitError } from "./errors.js";
import type { SessionEvent } from "./events.js";
import type { Pending } from "./fold.js";
import { Heartbeat } from "./heartbeat.js";
import { plain } from "./json.js";
import type { Json, JsonObject } from "./json.js";
import { PatchError, diff } from "./patch.js";
import type { Document } from "./patch.js";
import { Presences } from "./presence.js";
import type { PresenceRecord } from "./presence.js";
import type { Ack, ClientMessage, Error as Failure, Joined, Nack, Op, ServerMessage, Version } from "./protocol.js";
import { Pushes } from "./pushes.js";

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
  readonly #pushes = new Pushes();
  readonly #calls = new Calls();
  readonly #presences = new Presences();
  readonly #heartbeat = new Heartbeat();
  #client: string;
  #phase: Phase = "idle";
  #out: ClientMessage[] = [];
  #events: SessionEvent[] = [];
  // What is to be sent when the thread is joined.
  #waiting: ClientMessage[] = [];
  // What the server said of a frame of ours, before it closed the socket.
  #complaint: string | undefined = undefined;
  #joined: Joined | undefined = undefined;

  constructor(options: SessionOptions) {
    this.#options = options;
    this.#client = options.client;
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

  /** Those without an answer. */
  get pushes(): readonly Pending[] {
    return this.#pushes.all;
  }

  get presence(): PresenceRecord {
    return this.#presences.all;
  }

  /** What the thread said of this socket, or of the last one. */
  get joined(): Joined | undefined {
    return this.#joined;
  }

  // Out of the session

  /** Returns the frames that are to be sent. */
  takeFrames(): ClientMessage[] {
    return this.#out.splice(0);
  }

  /** Returns what has happened since the last time. */
  takeEvents(): SessionEvent[] {
    return this.#events.splice(0);
  }

  /** Returns what is to be kept, when it has changed; to be kept before the frames are sent. */
  takeBacklog(): Backlog | undefined {
    return this.#pushes.takeBacklog(this.#client);
  }

  // The socket

  /** Goes on as another client whose backlog was kept; before the first socket only. */
  restore(backlog: Backlog): void {
    this.#client = backlog.client;
    this.#pushes.restore(backlog);
  }

  /** A socket has opened. */
  open(token?: string): void {
    if (this.#phase === "stopped") return;
    this.#phase = "joining";
    this.#out = [];
    this.#complaint = undefined;
    this.#pushes.reset();
    this.#heartbeat.heard(this.#options.now());
    const { schema } = this.#options;
    const { have } = this.#pushes.fold;
    this.#out.push({
      type: "join",
      client: this.#client,
      ...(have && { have }),
      ...(schema !== undefined && { schema }),
      ...(token !== undefined && { token }),
    });
  }

  /** The socket is closed, with a code and perhaps a word. */
  lost(code: number, reason = ""): void {
    if (this.#phase === "stopped") return;
    if (code === MESSAGE_TOO_BIG && this.#phase === "joined") this.#pushes.suspect();
    this.#leave("idle");
    if (!isFinal(code)) return;
    const [name, message] = finalError(code);
    const error = new PlaitError(name, reason || this.#complaint || message, { closeCode: code });
    this.#phase = "stopped";
    this.#events.push({ type: "stopped", code, error });
  }

  /** The user is done: nothing is sent or heard any more. */
  stop(): void {
    this.#leave("stopped");
  }

  /** When `tick` is to be called, if ever. */
  due(): number | undefined {
    if (this.#phase === "idle" || this.#phase === "stopped") return undefined;
    return Math.min(this.#heartbeat.due, this.#pushes.heldUntil ?? Infinity);
  }

  /** Does what is due. */
  tick(): void {
    if (this.due() === undefined) return;
    const now = this.#options.now();
    if (now >= (this.#pushes.heldUntil ?? Infinity)) {
      this.#pushes.release();
      this.#flush();
    }
    const silence = this.#heartbeat.check(now);
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

  /** Pushes what makes `next` of what is shown; undefined when it is the same. */
  set(next: unknown): Pending | undefined {
    return this.push(diff(this.shown, plain(next, this.shown)));
  }

  /** Calls a method, as soon as the thread is joined. Returns the call's ref. */
  call(method: string, args: readonly Json[] = [], kwargs: JsonObject = {}): number {
    const call = this.#calls.new(method, args, kwargs);
    this.#send(call, true);
    return call.ref;
  }

  /** Nobody waits for a call any more. */
  cancel(ref: number): void {
    this.#waiting = this.#waiting.filter((frame) => !(frame.type === "call" && frame.ref === ref));
    if (this.#calls.end(ref)) this.#send({ type: "cancel", ref });
  }

  /** Sends a message, as soon as the thread is joined. */
  message(data: Json): void {
    this.#send({ type: "message", data }, true);
  }

  /** What others are to see of this connection, and of those that follow it; null for nothing. */
  setPresence(data: Json): void {
    this.#send(this.#presences.set(data));
  }

  /** A fresh token; a socket that opens later brings its own. */
  auth(token: string): void {
    this.#send({ type: "auth", token });
  }

  // Frames

  /** Sends a frame on this socket; one that `waits` on the next one that joins, where this has not. */
  #send(frame: ClientMessage, waits = false): void {
    if (this.#phase === "joined") {
      if (frame.type === "call") this.#calls.sent(frame.ref);
      this.#out.push(frame);
    } else if (waits && this.#phase !== "stopped") this.#waiting.push(frame);
  }

  #flush(): void {
    if (this.#phase !== "joined") return;
    for (let refused = this.#pushes.refuseUnseen(); refused; refused = this.#pushes.refuseUnseen()) {
      this.#events.push({ type: "refused", push: refused[0], error: refused[1] });
    }
    this.#out.push(...this.#pushes.take());
  }

  #leave(phase: Phase): void {
    this.#phase = phase;
    const error = new PlaitError("disconnected", "The connection was lost before the call was answered");
    for (const ref of this.#calls.endAll()) this.#events.push({ type: "failed", ref, error });
  }

  #rejoin(): void {
    this.#leave("idle");
    this.#events.push({ type: "rejoin" });
  }

  #dispatch(frame: ServerMessage): void {
    if (frame.type === "error") return this.#fail(frame);
    if (frame.type === "joined") return this.#join(frame);
    if (this.#phase !== "joined") return;
    const { fold } = this.#pushes;
    switch (frame.type) {
      case "change":
        fold.follow(frame.version - 1, frame.version, frame.ops);
        this.#events.push(frame);
        return;
      case "changes":
        return fold.follow(frame.from, frame.to, frame.ops);
      case "snapshot":
        return fold.replace([frame.epoch, frame.version], frame.state);
      case "ack":
      case "nack":
        return this.#answered(frame);
      case "result":
        if (frame.done ? this.#calls.end(frame.ref) : this.#calls.isUnderWay(frame.ref)) this.#events.push(frame);
        return;
      case "presence":
        return this.#presences.receive(frame);
      case "message":
      case "event":
      case "auth_expiring":
        this.#events.push(frame);
    }
  }

  #join(frame: Joined): void {
    this.#pushes.join(frame);
    this.#joined = frame;
    this.#phase = "joined";
    this.#events.push({ type: "joined" });
    this.#flush();
    for (const waiting of [...this.#presences.again(), ...this.#waiting.splice(0)]) this.#send(waiting);
  }

  #answered(frame: Ack | Nack): void {
    if (frame.type === "ack") {
      const push = this.#pushes.ack(frame);
      if (push) this.#events.push({ type: "applied", push, version: frame.version });
    } else {
      const [push, error] = this.#pushes.nack(frame, this.#options.now()) ?? [];
      if (push && error) this.#events.push({ type: "refused", push, error });
    }
    this.#flush();
  }

  #fail({ ref, code, message, path }: Failure): void {
    if (typeof ref !== "number") this.#complaint = message;
    else if (this.#calls.end(ref)) {
      this.#events.push({ type: "failed", ref, error: new PlaitError(code, message, { path: path ?? undefined }) });
    }
  }
}
