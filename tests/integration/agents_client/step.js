// Waiting for what the test in Python does.

import { createInterface } from "node:readline";

let lines;

/** Tells the test that the scenario has come to `name`, and waits until the test lets it go on. */
export async function step(name) {
  lines ??= createInterface({ input: process.stdin })[Symbol.asyncIterator]();
  process.stdout.write(`${JSON.stringify({ step: name })}\n`);
  const { done } = await lines.next();
  if (done) throw new Error(`the test went away at ${name}`);
}
