import { expect, test } from "vitest";
import { WebSocket } from "ws";

import { SharedClients } from "../src/shared.js";
import { server, serving } from "./serving.js";

serving();

test("without a window, what is rendered is shared once a component holds it, and not before", async () => {
  expect(typeof window).toBe("undefined");
  const clients = new SharedClients();
  const options = { host: server.host, kind: "note", name: "a", WebSocket };
  const first = clients.get(options);
  const second = clients.get(options);
  expect(second).not.toBe(first);
  const releases = [clients.hold(first), clients.hold(second)];
  expect([typeof releases[0], releases[1]]).toEqual(["function", undefined]);
  // What the next render gets can be held: rendering comes to an end.
  expect(clients.get(options)).toBe(first);
  releases.push(clients.hold(first));
  await (await server.peer()).join({ state: { n: 1 } });
  await first.ready;
  expect([first.state, second.status]).toEqual([{ n: 1 }, "connecting"]);
  for (const release of releases) release?.();
  await first.close();
});
