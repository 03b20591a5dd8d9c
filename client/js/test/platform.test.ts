/** Platforms that lack what pages have: the client as it is bundled, in a realm with few globals. */

import { createContext, runInContext } from "node:vm";
import { build } from "esbuild";
import { beforeAll, expect, test } from "vitest";
import { WebSocket } from "ws";

import type * as Package from "../src/index.js";
import { byteLength } from "../src/platform.js";
import { server, serving } from "./serving.js";

serving();

let code: string;

beforeAll(async () => {
  const { MANGLED } = (await import(new URL("../scripts/mangled.js", import.meta.url).href)) as { MANGLED: object };
  const entryPoints = [new URL("../src/index.ts", import.meta.url).pathname];
  const how = { bundle: true, format: "iife", globalName: "plait", target: "es2022", write: false } as const;
  code = (await build({ ...MANGLED, ...how, entryPoints })).outputFiles[0]?.text as string;
});

/** Runs the package in a realm with only these globals, besides those of the language. */
function load(globals: object): typeof Package {
  const context = createContext({ WebSocket, setTimeout, clearTimeout, console, ...globals });
  runInContext(code, context);
  return (context as { plait: typeof Package }).plait;
}

/** As React Native has it. */
class SlashingURL {
  readonly href: string;

  constructor(address: string) {
    this.href = `${address}/`;
  }
}

test.each([
  ["sockets and timers alone", {}],
  ["React Native's addresses", { URL: SlashingURL, window: {}, performance: { now: () => performance.now() } }],
])("with %s a client joins, changes the state and emits", async (_, globals) => {
  const { ThreadClient, cache, messages, queries, text, undo } = load(globals);
  const client = new ThreadClient({
    ...{ host: server.host, kind: "note", name: "a b" },
    ...{ cache, cacheKey: "ada", messages, queries, text, undo },
  });
  const peer = await server.peer();
  expect(peer.url).toBe("/threads/note/a%20b");
  const { client: id } = await peer.join({ state: { text: "é" }, texts: ["/text"], max_frame: 10_000 });
  expect(id).toMatch(/^[0-9a-f]{32}$/);
  await client.ready;
  const spliced = client.splice("/text", 1, 0, "x".repeat(4_000));
  const { ref } = await peer.take("push");
  peer.send({ type: "ack", ref, version: 2 });
  expect(await spliced).toBe(2);
  expect(client.canUndo()).toBe(true);
  client.emit("wave", null);
  await peer.take("emit");
  expect(client.savedAt).toBeUndefined();
  await client.close();
  await peer.closed.take();
});

test.each([{ host: "local host" }, { url: "ftp://h/x" }, { url: "/threads/note/a" }])(
  "without a parser of addresses, %j is refused as well",
  (place) => {
    const { ThreadClient } = load({});
    const open = () => new ThreadClient({ kind: "note", name: "a", connect: false, ...place });
    expect(open).toThrow(expect.objectContaining({ code: "bad_url" }) as Error);
  },
);

test("bytes are counted as UTF-8 has them", () => {
  for (const text of ["", "a", "é", "€", "😀", "aé€😀".repeat(3), "\u07ff\u0800\uffff\x7f\x80"])
    expect(byteLength(text)).toBe(new TextEncoder().encode(text).length);
});
