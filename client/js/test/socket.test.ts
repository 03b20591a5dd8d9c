import { afterEach, expect, test, vi } from "vitest";
import { WebSocket } from "ws";

import { isFinal } from "../src/errors.js";
import { Socket } from "../src/socket.js";
import type { SocketOptions } from "../src/socket.js";
import { Arrivals } from "./server.js";
import { server, serving } from "./serving.js";

serving();

const opened: Socket[] = [];

afterEach(() => {
  vi.restoreAllMocks();
  for (const socket of opened.splice(0)) socket.stop();
});

function connect(options: Partial<SocketOptions> = {}) {
  const opens = new Arrivals<string | undefined>();
  const messages = new Arrivals<string | ArrayBuffer>();
  const closes = new Arrivals<readonly [number, string]>();
  const socket: Socket = new Socket({
    url: `ws://${server.host}/threads/note/a`,
    WebSocket,
    prepare: () => "prepared",
    onOpen: (prepared) => opens.put(prepared),
    onMessage: (data) => messages.put(data),
    onClose: (code, reason) => {
      closes.put([code, reason]);
      if (isFinal(code)) socket.stop();
    },
    onDoubt: () => undefined,
    network: {},
    ...options,
  });
  opened.push(socket);
  socket.start();
  return { socket, opens, messages, closes };
}

test("1008 and 44xx are final, and no other code is", () => {
  const codes = [1000, 1001, 1006, 1008, 1011, 1013, 4000, 4399, 4400, 4401, 4408, 4499, 4500];
  expect(codes.filter(isFinal)).toEqual([1008, 4400, 4401, 4408, 4499]);
});

test("what is sent arrives, on a socket of the native protocol", async () => {
  const { socket, opens, messages } = connect();
  expect(await opens.take()).toBe("prepared");
  const peer = await server.peer();
  expect(peer.protocol).toBe("plait.v1");
  socket.send('{"type":"ping"}');
  await peer.take("ping");
  peer.send({ type: "pong" });
  expect(await messages.take()).toBe('{"type":"pong"}');
  peer.sendBytes(new Uint8Array([1, 2]));
  expect(new Uint8Array((await messages.take()) as ArrayBuffer)).toEqual(new Uint8Array([1, 2]));
});

test("a socket that is lost is followed by another", async () => {
  const { closes } = connect();
  (await server.peer()).drop();
  expect(await closes.take()).toEqual([1006, ""]);
  await server.peer();
});

test.each([1008, 4401, 4409, 4410])("after %i and `stop` there is no other socket", async (code) => {
  const { closes, opens } = connect();
  await opens.take();
  (await server.peer()).close(code, "because");
  expect(await closes.take()).toEqual([code, "because"]);
  // By the third socket of another client, this one would have opened its second.
  const other = connect();
  for (let time = 0; time < 3; time++) {
    await other.opens.take();
    (await server.peer()).drop();
  }
  other.socket.stop();
  expect(server.peers.waiting).toEqual([]);
});

/** Returns how many milliseconds the sockets have waited before each attempt from here on, as they asked for it. */
function recordDelays(): () => number[] {
  const timers = vi.spyOn(globalThis, "setTimeout");
  return () => timers.mock.calls.map(([, delay]) => delay ?? 0).filter((delay) => delay < 10_000);
}

test("a server that goes away is returned to at once, if it was joined, but not again unless it was of use", async () => {
  const { socket, opens, closes } = connect();
  const delays = recordDelays();
  for (let time = 0; time < 6; time++) {
    const peer = await server.peer();
    await opens.take();
    socket.joined();
    if (time < 4) socket.answered();
    peer.close(1001);
    await closes.take();
    server.peers.put(await server.peer());
  }
  expect(delays().slice(0, 4)).toEqual([0, 0, 0, 0]);
  expect(delays()).toHaveLength(6);
  expect(Math.min(...delays().slice(4))).toBeGreaterThanOrEqual(50);
});

test("attempts that come to nothing wait longer each time, though the thread is joined", async () => {
  const { socket, opens } = connect();
  const delays = recordDelays();
  let waited = 0;
  for (let time = 0; time < 4; time++) {
    const peer = await server.peer();
    await opens.take();
    socket.joined();
    const droppedAt = performance.now();
    peer.drop();
    const next = await server.peer();
    waited = next.openedAt - droppedAt;
    server.peers.put(next);
  }
  expect(delays()[3]).toBeGreaterThanOrEqual(400);
  expect(waited).toBeGreaterThan(390);
  socket.answered();
  const peer = await server.peer();
  await opens.take();
  peer.drop();
  await server.peer();
  expect(delays()[4]).toBeLessThanOrEqual(100);
});

test("a token that cannot be had counts as a failed attempt", async () => {
  let asked = 0;
  const { opens } = connect({
    prepare: () => (++asked < 3 ? Promise.reject(new Error("no")) : Promise.resolve("late")),
  });
  expect(await opens.take()).toBe("late");
  expect(asked).toBe(3);
});

test("a network that comes is tried at once", async () => {
  const network = new EventTarget();
  const { opens, closes } = connect({ network });
  let wait = Infinity;
  for (let time = 0; time < 8; time++) {
    await opens.take();
    (await server.peer()).drop();
    expect(await closes.take()).toEqual([1006, ""]);
    const onlineAt = performance.now();
    network.dispatchEvent(new Event("online"));
    const next = await server.peer();
    wait = next.openedAt - onlineAt;
    server.peers.put(next);
  }
  // The eighth delay is 5 s at least.
  expect(wait).toBeLessThan(5_000);
});

test("what happens to a page or its network gives reason to doubt an open socket, until it is stopped", async () => {
  const [page, heard] = [new EventTarget(), new Arrivals<string>()];
  const { socket, opens, closes } = connect({ network: page, onDoubt: () => heard.put("doubt") });
  await opens.take();
  const events = ["online", "offline", "visibilitychange", "pageshow", "focus"];
  for (const name of events) {
    page.dispatchEvent(new Event(name));
    expect(heard.waiting).toEqual(["doubt"]);
    await heard.take();
  }
  expect(closes.waiting).toEqual([]);
  socket.stop();
  for (const name of events) page.dispatchEvent(new Event(name));
  expect(heard.waiting).toEqual([]);
});

test("a socket that is connected again is closed, and another opens at once, each time", async () => {
  const { socket, opens, closes } = connect();
  let wait = Infinity;
  for (let time = 0; time < 8; time++) {
    await opens.take();
    const peer = await server.peer();
    const at = performance.now();
    socket.reconnect();
    await peer.closed.take();
    const next = await server.peer();
    wait = next.openedAt - at;
    server.peers.put(next);
  }
  expect(wait).toBeLessThan(5_000);
  expect(closes.waiting).toEqual([]);
});

test("a socket that is renewed is closed, and another opens", async () => {
  const { socket, opens, closes } = connect();
  await opens.take();
  const first = await server.peer();
  socket.renew();
  await first.closed.take();
  await server.peer();
  await opens.take();
  expect(closes.waiting).toEqual([]);
});

test("a socket that was stopped says nothing and does not come back", async () => {
  const { socket, closes, opens } = connect();
  await opens.take();
  const peer = await server.peer();
  socket.stop();
  await peer.closed.take();
  expect(closes.waiting).toEqual([]);
});
