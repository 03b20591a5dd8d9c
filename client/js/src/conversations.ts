/** The parts of a thread that a client sees, and the messages that it sends to them, over all its sockets: no I/O. */

import { Conversation } from "./conversation.js";
import { PlaitError } from "./errors.js";
import type { ErrorCode } from "./errors.js";
import type { JsonObject } from "./json.js";
import { tooLarge } from "./messages.js";
import type { OpenedPart } from "./opened-part.js";
import type { Close, Open, Page, Part, Send, Sent, Unopened, Unsent } from "./protocol.js";
import { SentMessages } from "./sent-messages.js";
import type { SentMessage } from "./sent-messages.js";

/** The frames about parts from a server. */
export type PartFrame = Page | Part | Unopened | Sent | Unsent;

export type PartEvent =
  // The shown items of a part may have changed, or whether the part can be opened.
  | { type: "part_changed"; part: string }
  // A message that was sent here is durable, or was refused.
  | { type: "delivered"; message: SentMessage; id: string }
  | { type: "undelivered"; message: SentMessage; error: PlaitError };

/** The conversation or the runs of each part that is in use, and the messages that are being sent. */
export class Conversations {
  readonly #now: () => number;
  readonly #parts = new Map<string, OpenedPart>();
  readonly #sent = new SentMessages();
  // Messages that the server has, but that are not in a page yet.
  #answered: SentMessage[] = [];
  #epoch: string | undefined;
  // The shown items of parts, until they may have changed.
  readonly #shown = new Map<string, readonly unknown[]>();
  #events: PartEvent[] = [];

  constructor(now: () => number) {
    this.#now = now;
  }

  /** Returns the conversation of a part. */
  of(part: string): Conversation {
    return this.find(part, Conversation);
  }

  /** Returns the known data of a part of one kind. Throws a TypeError if the part is in use as another kind. */
  find<P extends OpenedPart>(part: string, Kind: new (part: string) => P): P {
    let found = this.#parts.get(part);
    if (!found) {
      this.#parts.set(part, (found = new Kind(part)));
      if (this.#epoch !== undefined) found.join(this.#epoch);
    }
    if (!(found instanceof Kind)) throw new TypeError(`the part ${part} is in use for something else`);
    return found;
  }

  /** Returns the messages or runs of a part to show: the same list while they are the same. */
  show(part: string): readonly unknown[] {
    const shown = this.#shown.get(part) ?? this.#parts.get(part)?.show([...this.#answered, ...this.#sent.all]) ?? [];
    this.#shown.set(part, shown);
    return shown;
  }

  /** Stops following a part. */
  close(part: string): void {
    this.#parts.get(part)?.close();
    this.tellChanged(part);
  }

  /** Sends a message to a part as soon as possible. Throws a PlaitError if it is too large. */
  send(part: string, content: string, key: string, attachments: readonly JsonObject[], maxFrame: number): SentMessage {
    const message = { part, content, key, attachments, ref: 0 };
    this.#sent.add(message, maxFrame);
    this.tellChanged(part);
    return message;
  }

  /** The messages that are not known to have reached the server. */
  get unanswered(): readonly SentMessage[] {
    return this.#sent.all;
  }

  /** Whether a message is not known to be durable. */
  get isBusy(): boolean {
    return this.#sent.all.length > 0;
  }

  /** Returns the events since the last call. */
  takeEvents(): PartEvent[] {
    return this.#events.splice(0);
  }

  // The socket

  /** Starts with a new socket: nothing was sent on it. */
  reset(): void {
    this.#sent.reset();
    for (const each of this.#parts.values()) each.reset();
  }

  /** The thread is joined. */
  join(epoch: string): void {
    this.#epoch = epoch;
    for (const each of this.#parts.values()) each.join(epoch);
  }

  /** When there may be a frame to send. */
  get due(): number {
    return Math.min(this.#sent.due, ...[...this.#parts.values()].map(({ due }) => due));
  }

  /** Returns the frames that may be sent now. */
  take(maxFrame: number): (Open | Close | Send)[] {
    const now = this.#now();
    const opens = [...this.#parts.values()].flatMap((each) => each.take(now));
    const [sends, dropped] = this.#sent.take(now, maxFrame);
    for (const message of dropped) this.#refuse(message, tooLarge("message"));
    return [...opens, ...sends];
  }

  /** Takes in a frame. */
  receive(frame: PartFrame): void {
    if (frame.type === "sent") {
      const message = this.#sent.end(frame.ref);
      if (message) this.#deliver(message, frame.id);
    } else if (frame.type === "unsent") {
      const { code, message: text, path } = frame;
      if (this.#sent.delay(frame, this.#now())) return;
      const message = this.#sent.end(frame.ref);
      if (message) this.#refuse(message, new PlaitError(code as ErrorCode, text, { path: path ?? undefined }));
    } else if (this.#parts.get(frame.part)?.receive(frame, this.#now())) {
      this.#answered = this.#answered.filter(({ part }) => this.of(part).keepsAnswered);
      this.tellChanged(frame.part);
    }
  }

  #deliver(message: SentMessage, id: string): void {
    if (this.of(message.part).keepsAnswered) this.#answered.push(message);
    this.#events.push({ type: "delivered", message, id });
    this.tellChanged(message.part);
  }

  #refuse(message: SentMessage, error: PlaitError): void {
    this.#events.push({ type: "undelivered", message, error });
    this.tellChanged(message.part);
  }

  /** Reports that the shown items of a part may have changed. */
  tellChanged(part: string): void {
    this.#shown.delete(part);
    this.#events.push({ type: "part_changed", part });
  }
}
