/** A server whose side of each conversation is spoken by the test. */

import { WebSocketServer } from "ws";
import type { WebSocket } from "ws";

import { parse } from "../src/exact.js";
import type { ClientMessage, Joined, ServerMessage } from "../src/protocol.js";

const TIMEOUT = 30_000;

/** What comes one after the other and is waited for. */
export class Arrivals<T> {
  #items: T[] = [];
  #waiting: ((item: T) => void)[] = [];

  put(item: T): void {
    const waiting = this.#waiting.shift();
    if (waiting) waiting(item);
    else this.#items.push(item);
  }

  /** What has come and was not taken. */
  get waiting(): readonly T[] {
    return this.#items;
  }

  take(what = "something"): Promise<T> {
    const item = this.#items.shift();
    if (item !== undefined) return Promise.resolve(item);
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error(`${what} did not come`)), TIMEOUT);
      this.#waiting.push((late) => {
        clearTimeout(timer);
        resolve(late);
      });
    });
  }
}

/** One socket, as the server sees it. */
export class Peer {
  readonly frames = new Arrivals<ClientMessage>();
  readonly bytes = new Arrivals<Buffer>();
  readonly closed = new Arrivals<number>();
  /** What has come, in its order. */
  readonly types: string[] = [];
  /** How many messages it has taken, where those are not all. */
  taken: number | undefined = undefined;
  readonly openedAt = performance.now();
  readonly url: string;
  readonly #socket: WebSocket;

  constructor(socket: WebSocket, url: string) {
    this.#socket = socket;
    this.url = url;
    socket.on("message", (data: Buffer, isBinary) => {
      const frame = isBinary ? undefined : (parse(data.toString()) as ClientMessage);
      if (frame?.type === "ping" && typeof frame.messages === "number") {
        this.send({ type: "pong", messages: this.taken ?? frame.messages });
        return;
      }
      this.types.push(frame?.type ?? "bytes");
      if (frame) this.frames.put(frame);
      else this.bytes.put(data);
    });
    socket.on("close", (code) => this.closed.put(code));
  }

  get protocol(): string {
    return this.#socket.protocol;
  }

  send(frame: ServerMessage): void {
    this.#socket.send(JSON.stringify(frame));
  }

  sendText(text: string): void {
    this.#socket.send(text);
  }

  sendBytes(data: Uint8Array): void {
    this.#socket.send(data);
  }

  close(code: number, reason?: string): void {
    this.#socket.close(code, reason);
  }

  /** Ends the connection without a word. */
  drop(): void {
    this.#socket.terminate();
  }

  /** Takes the next frame, which must be of this type. */
  async take<Type extends ClientMessage["type"]>(type: Type): Promise<Extract<ClientMessage, { type: Type }>> {
    const frame = await this.frames.take(`a frame ${type}`);
    if (frame.type !== type) throw new Error(`expected ${type}, got ${JSON.stringify(frame)}`);
    return frame as Extract<ClientMessage, { type: Type }>;
  }

  /** Takes the client's join and answers it. */
  async join(joined: Partial<Joined> = {}): Promise<Extract<ClientMessage, { type: "join" }>> {
    const join = await this.take("join");
    this.send({ type: "joined", connection: "s1", thread: "note/a", epoch: "e", version: 1, ...joined });
    return join;
  }
}

export class Server {
  readonly peers = new Arrivals<Peer>();
  readonly #server = new WebSocketServer({
    host: "127.0.0.1",
    port: 0,
    handleProtocols: (offered) => [...offered][0] ?? false,
  });

  constructor() {
    this.#server.on("connection", (socket, request) => this.peers.put(new Peer(socket, request.url ?? "")));
  }

  async start(): Promise<void> {
    await new Promise((resolve) => this.#server.once("listening", resolve));
  }

  get host(): string {
    const address = this.#server.address();
    if (address === null || typeof address === "string") throw new Error("the server does not listen");
    return `127.0.0.1:${address.port}`;
  }

  /** The next socket that opens. */
  peer(): Promise<Peer> {
    return this.peers.take("a socket");
  }

  /** Ends all sockets for good. */
  async stop(): Promise<void> {
    const closed = new Promise((resolve) => this.#server.close(resolve));
    for (const socket of this.#server.clients) socket.close(1008);
    await closed;
  }
}
