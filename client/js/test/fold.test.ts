import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { expect, test } from "vitest";

import { Fold } from "../src/fold.js";
import { splices } from "../src/patch.js";
import type { Joined } from "../src/protocol.js";

test("a long text in which much is typed offline is not kept once for each letter", () => {
  setFlagsFromString("--expose-gc");
  const collect = runInNewContext("gc") as () => void;
  const heapUsed = () => (collect(), process.memoryUsage().heapUsed);
  const fold = new Fold(() => undefined);
  const note = "All work and no play. ".repeat(50_000);
  fold.join({ type: "joined", epoch: "e", version: 0, state: { note } } as unknown as Joined);
  const before = heapUsed();
  for (let at = 0; at < 200; at++) fold.add(at + 1, splices("/note", [{ at, remove: 0, insert: "x" }]));
  expect((fold.shown as { note: string }).note).toBe("x".repeat(200) + note);
  expect((heapUsed() - before) / note.length).toBeLessThan(20);
  fold.pushes.slice().forEach((push, index) => fold.acknowledge(["e", index + 1], push, push.ops));
  expect(fold.confirmed).toBe(fold.shown);
});
