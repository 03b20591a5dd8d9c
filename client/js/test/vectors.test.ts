import { readFileSync, readdirSync } from "node:fs";
import { expect, test } from "vitest";

import { Replay } from "./replay.js";
import type { Script } from "./replay.js";

const FOLDER = new URL("../../../schemas/vectors/", import.meta.url);
const STEPS = new Set(
  ["open", "lost", "edit", "set", "receive", "wait", "sent", "shown", "confirmed"].concat([
    "pending",
    "outcomes",
    "rejoin",
    "stopped",
  ]),
);

for (const file of readdirSync(FOLDER).filter((name) => name.endsWith(".json"))) {
  const script = JSON.parse(readFileSync(new URL(file, FOLDER), "utf8")) as Script;
  test(`${file}: ${script.description}`, () => {
    const replay = new Replay(script.client);
    for (const step of script.steps) {
      for (const [name, value] of Object.entries(step)) {
        expect(STEPS).toContain(name);
        replay.step(name, value);
        replay.expectFolded();
      }
    }
  });
}
