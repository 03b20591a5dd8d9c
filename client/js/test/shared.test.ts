// @vitest-environment jsdom
import { afterEach, beforeEach, expect, test, vi } from "vitest";

import { SharedClients } from "../src/shared.js";

const OPTIONS = { host: "127.0.0.1:1", kind: "note", name: "a" };

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

test("a client that was rendered and that nobody came for is closed, and gives way to another", () => {
  const clients = new SharedClients();
  const abandoned = clients.get(OPTIONS);
  vi.advanceTimersByTime(59_000);
  expect([clients.get(OPTIONS), abandoned.status]).toEqual([abandoned, "connecting"]);
  vi.advanceTimersByTime(1_000);
  expect(abandoned.status).toBe("closed");
  expect(clients.hold(abandoned)).toBeUndefined();
  expect(clients.get(OPTIONS)).not.toBe(abandoned);
  vi.advanceTimersByTime(60_000);
  expect(vi.getTimerCount()).toBe(0);
});

test("a client that is held stays, until a moment after it is let go", () => {
  const clients = new SharedClients();
  const client = clients.get(OPTIONS);
  const release = clients.hold(client);
  vi.advanceTimersByTime(600_000);
  expect([clients.get(OPTIONS), client.status === "closed"]).toEqual([client, false]);
  release?.();
  clients.hold(clients.get(OPTIONS))?.();
  vi.advanceTimersByTime(1_000);
  expect(client.status).toBe("closed");
});
