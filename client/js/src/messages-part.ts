/** The messages that a thread keeps, as an option of a client: shown, sent, and older ones. */

import { Conversations } from "./conversations.js";
import type { PartEvent, PartFrame } from "./conversations.js";
import type { PlaitError } from "./errors.js";
import type { JsonObject } from "./json.js";
import type { Outgoing } from "./messages.js";
import type { ServerMessage } from "./protocol.js";
import type { SentMessage } from "./sent-messages.js";
import type { Session, SessionOptions } from "./session.js";
import { ThreadMessages } from "./thread-messages.js";
import type { Carrier } from "./thread-messages.js";

/** What gives a client messages. */
export interface MessagesPart {
  /** Returns a class of sessions that have conversations, too. */
  extend(Base: typeof Session): typeof Session;
  /** Returns the messages of a client with such a session. */
  newMessages(carrier: Carrier): ThreadMessages;
}

/** A session with conversations. */
export interface ConversationSession extends Session {
  readonly conversations: Conversations;
  /** Sends a message to a part, once, also after an outage. `key` names it. Throws a PlaitError when it is too large. */
  post(part: string, content: string, key: string, attachments?: readonly JsonObject[]): SentMessage;
  /** Called with what has happened to parts, whenever events are taken, and at the end with the error of it. */
  onPart: (events: readonly PartEvent[], end?: PlaitError) => void;
}

export const messages: MessagesPart = {
  extend: (Base) => extend(Base),
  newMessages(carrier) {
    const session = carrier.session as ConversationSession;
    return new ThreadMessages(carrier, session, "messages");
  },
};

const PART_FRAMES = new Set<string>(["page", "part", "unopened", "sent", "unsent"] satisfies PartFrame["type"][]);

function isPartFrame(frame: ServerMessage): frame is PartFrame {
  return PART_FRAMES.has(frame.type);
}

function extend(Base: typeof Session): new (options: SessionOptions) => ConversationSession {
  return class extends Base implements ConversationSession {
    readonly conversations: Conversations;
    onPart: ConversationSession["onPart"] = () => undefined;
    #maxFrame = Infinity;
    #frames: Outgoing[] = [];

    constructor(options: SessionOptions) {
      super(options);
      this.conversations = new Conversations(options.now);
    }

    post(part: string, content: string, key: string, attachments: readonly JsonObject[] = []): SentMessage {
      return this.conversations.send(part, content, key, attachments, this.#maxFrame);
    }

    override get isSending(): boolean {
      return super.isSending || this.conversations.isBusy;
    }

    override takeFrames(): Outgoing[] {
      this.flush();
      return [...super.takeFrames(), ...this.#frames.splice(0)];
    }

    override tick(): void {
      super.tick();
      this.flush();
    }

    /** Sends what may be sent by now. */
    flush(): void {
      if (this.phase === "joined") this.#frames.push(...this.conversations.take(this.#maxFrame));
    }

    override takeEvents(): ReturnType<Session["takeEvents"]> {
      const events = super.takeEvents();
      this.onPart(this.conversations.takeEvents());
      return events;
    }

    override open(token?: string): void {
      this.conversations.reset();
      this.#frames = [];
      super.open(token);
    }

    override stop(error: PlaitError): void {
      super.stop(error);
      this.onPart(this.conversations.takeEvents(), error);
    }

    override get due(): number | undefined {
      const due = super.due;
      return this.phase === "joined" ? Math.min(due ?? Infinity, this.conversations.due) : due;
    }

    override receive(frame: ServerMessage): void {
      if (!isPartFrame(frame)) {
        super.receive(frame);
        if (frame.type !== "joined" || this.phase !== "joined") return;
        this.#maxFrame = frame.max_frame ?? Infinity;
        this.conversations.join(frame.epoch);
      } else if (this.phase === "joined") {
        this.heard();
        this.conversations.receive(frame);
      }
    }
  };
}
