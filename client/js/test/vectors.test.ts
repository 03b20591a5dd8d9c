import { readFileSync, readdirSync } from "node:fs";
import { expect, test } from "vitest";

import { Replay } from "./replay.js";
import type { Script } from "./replay.js";

const FOLDER = new URL("../../../schemas/vectors/", import.meta.url);
const STEPS = new Set(
  [
    "open",
    "emit",
    "events",
    "lost",
    "edit",
    "set",
    "receive",
    "wait",
    "view",
    "watch",
    "older",
    "leave",
    "post",
    "follow",
    "unfollow",
    "foresee",
    "foreseen",
  ].concat(
    ["sent", "shown", "presence", "confirmed", "pending", "outcomes", "sources"],
    ["rejoin", "stopped", "messages", "calls", "approvals", "runs", "more", "results"],
  ),
);

/** A part of a script, with the long texts that it stands for. */
function expanded(_: string, value: unknown): unknown {
  if (typeof value !== "object" || value === null || !("$repeat" in value)) return value;
  const [text, times] = value.$repeat as [string, number];
  return text.repeat(times);
}

for (const file of readdirSync(FOLDER).filter((name) => name.endsWith(".json"))) {
  const script = JSON.parse(readFileSync(new URL(file, FOLDER), "utf8"), expanded) as Script;
  test(`${file}: ${script.description}`, () => {
    const replay = new Replay(script.client, { state: script.state });
    for (const step of script.steps) {
      for (const [name, value] of Object.entries(step)) {
        expect(STEPS).toContain(name);
        replay.step(name, value);
        replay.expectFolded();
      }
    }
  });
}
