// @vitest-environment jsdom
/** A connection that may be dead, in a page. */

import { afterEach, expect, test, vi } from "vitest";
import { WebSocket } from "ws";

import { Heartbeat } from "../src/heartbeat.js";
import { ThreadClient } from "../src/index.js";
import type { Peer } from "./server.js";
import { clients, server, serving } from "./serving.js";

serving();

afterEach(() => {
  vi.restoreAllMocks();
});

async function joined(): Promise<[ThreadClient, Peer]> {
  const client = new ThreadClient({ host: server.host, kind: "note", name: "a", WebSocket });
  clients.push(client);
  const peer = await server.peer();
  await peer.join({ state: { n: 1 } });
  await client.ready;
  return [client, peer];
}

test.each(["online", "offline", "pageshow", "focus", "visibilitychange"])(
  "after %s a dead connection is replaced",
  async (name) => {
    const [client, peer] = await joined();
    window.dispatchEvent(new Event(name));
    await peer.take("ping");
    // No answer comes.
    const next = await server.peer();
    expect((await next.join({ version: 1 })).have).toEqual(["e", 1]);
    await vi.waitFor(() => expect(client.status).toBe("online"));
  },
);

test("a healthy connection survives", async () => {
  const [client, peer] = await joined();
  for (const name of ["offline", "online", "focus"]) {
    window.dispatchEvent(new Event(name));
    await peer.take("ping");
    peer.send({ type: "pong" });
    peer.send({ type: "event", name: "next", data: null });
    await new Promise<void>((resolve) => {
      const remove = client.onEvent("next", () => (remove(), resolve()));
    });
  }
  expect(client.status).toBe("online");
  expect(server.peers.waiting).toEqual([]);
});

test("a page that is hidden asks only when it is shown again", async () => {
  const [client, peer] = await joined();
  const hidden = vi.spyOn(document, "hidden", "get").mockReturnValue(true);
  window.dispatchEvent(new Event("visibilitychange"));
  client.emit("hidden", null);
  hidden.mockReturnValue(false);
  window.dispatchEvent(new Event("visibilitychange"));
  await peer.take("emit");
  await peer.take("ping");
});

test("a doubt ends two seconds after the first of several events, and a silence after twenty", () => {
  const heartbeat = new Heartbeat();
  heartbeat.heard(100);
  expect([heartbeat.doubt(110), heartbeat.due]).toEqual(["ping", 112]);
  expect([heartbeat.doubt(111), heartbeat.due]).toEqual([undefined, 112]);
  expect([heartbeat.check(111.9), heartbeat.check(112)]).toEqual([undefined, "give up"]);
  heartbeat.heard(112);
  expect([heartbeat.check(132), heartbeat.due]).toEqual(["ping", 152]);
  expect([heartbeat.doubt(133), heartbeat.due]).toEqual(["ping", 135]);
  // The page was frozen before it could take the answer.
  expect([heartbeat.doubt(500), heartbeat.due]).toEqual(["ping", 502]);
});
