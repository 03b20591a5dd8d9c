import { readFileSync, readdirSync } from "node:fs";
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";

import { channels } from "../src/channels.js";
import { parse, stringify } from "../src/exact.js";
import { Socket } from "../src/socket.js";
import type { WebSocketLike } from "../src/socket.js";
import { ChannelsReplay, Page } from "./carrier.js";
import { Replay } from "./replay.js";
import type { Line, Script } from "./replay.js";

const FOLDER = new URL("../../../schemas/vectors/", import.meta.url);
const PROTOCOL = "plait.channels.v1";

function read<T>(folder: string): [string, T][] {
  const files = readdirSync(new URL(folder, FOLDER)).filter((name) => name.endsWith(".json"));
  return files.map((name) => [name, JSON.parse(readFileSync(new URL(folder + name, FOLDER), "utf8"), expanded) as T]);
}

/** A part of a script, with the long texts that it stands for. */
function expanded(_: string, value: unknown): unknown {
  if (typeof value !== "object" || value === null || !("$repeat" in value)) return value;
  const [text, times] = value.$repeat as [string, number];
  return text.repeat(times);
}

beforeEach(() => {
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout", "performance"], now: 1_000_000 });
});

afterEach(() => {
  vi.useRealTimers();
});

describe("the scripts of channels", () => {
  test.each(read<{ description: string; steps: object[] }>("channels/"))("%s", async (_, { steps }) => {
    const replay = new ChannelsReplay();
    for (const step of steps) await replay.step(step);
  });
});

/** A channel between two others, on which the frames of a script are messages of the carrier. */
class Channel implements Line {
  readonly #page = new Page();
  #socket: WebSocketLike | undefined;
  #number = 0;
  #received: string[] = [];
  #closed: number | undefined;

  open(): void {
    this.#socket?.close();
    this.#open("before");
    this.#socket = this.#open("a");
    this.#open("after");
    this.#socket.addEventListener("message", ({ data }) => this.#received.push(data as string));
    this.#socket.addEventListener("close", ({ code }) => (this.#closed = code as number));
    if (!this.#carrier.protocol) this.#carrier.accept(PROTOCOL);
    const request = this.#carrier.sent.splice(0).findLast((text) => (text as string).endsWith(" /threads/note/a"));
    this.#number = parseInt(request as string);
  }

  lost(code: number): number {
    this.#carrier.receive(`${this.#number} !${code} because`);
    return this.#closed!;
  }

  up<Frame extends object>(frame: Frame): Frame {
    // The carrier is silent for as long as the session, so a ping is sent.
    if ("type" in frame && frame.type === "ping") vi.advanceTimersByTime(15_000);
    this.#socket!.send(stringify(frame));
    const [text, ...more] = this.#carrier.sent.splice(0) as string[];
    expect(more).toEqual([]);
    const head = `${this.#number} `;
    expect(text!.slice(0, head.length)).toBe(head);
    return parse(text!.slice(head.length)) as Frame;
  }

  down<Frame extends object>(frame: Frame): Frame {
    this.#carrier.receive(`${this.#number} ${stringify(frame)}`);
    return parse(this.#received.pop()!) as Frame;
  }

  get #carrier() {
    return this.#page.real.at(-1)!;
  }

  #open(name: string): WebSocketLike {
    return new this.#page.WebSocket(`ws://host/threads/note/${name}`, "plait.v1");
  }
}

describe("the scripts of conversations, over a carrier", () => {
  test.each(read<Script>(""))("%s", (_, { client, state, steps }) => {
    const replay = new Replay(client, { state, line: new Channel() });
    for (const step of steps) for (const [name, value] of Object.entries(step)) replay.step(name, value);
  });
});

test("a client's time for connecting does not pass while its socket may not begin", async () => {
  const page = new Page();
  const closes: number[] = [];
  const opens: string[] = [];
  const sockets = ["a", "b", "c"].map((name) => {
    const socket: Socket = new Socket({
      url: `ws://host/threads/note/${name}`,
      WebSocket: page.WebSocket,
      prepare: () => undefined,
      onOpen: () => socket.send(`join ${name}`),
      onMessage: (data) => opens.push(data as string),
      onClose: (code) => closes.push(code),
      onDoubt: () => undefined,
      network: new EventTarget(),
    });
    socket.start();
    return socket;
  });
  for (const [index, name] of ["a", "b", "c"].entries()) {
    // The server is an older one, and the network is slow.
    await vi.advanceTimersByTimeAsync(8_000);
    expect(page.real).toHaveLength(index + 1);
    page.real[index]!.accept("plait.v1");
    expect(page.real[index]!.sent).toEqual([`join ${name}`]);
    page.real[index]!.receive(`joined ${name}`);
  }
  expect([opens, closes]).toEqual([["joined a", "joined b", "joined c"], []]);
  for (const socket of sockets) socket.stop();
  expect(page.real.map(({ isClosed }) => isClosed)).toEqual([true, true, true]);
});

test("without a class of sockets a channel says what is missing", () => {
  vi.stubGlobal("WebSocket", undefined);
  const WebSocket = channels();
  expect(() => new WebSocket("ws://host/threads/note/a", "plait.v1")).toThrow(/pass the option WebSocket to channels/);
  vi.unstubAllGlobals();
});
