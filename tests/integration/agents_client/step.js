// Waiting for what the test in Python does.

import { createInterface } from "node:readline";

let lines;

/** Tells the test that the scenario has reached `name`, and waits until the test continues it. */
export async function step(name) {
  lines ??= createInterface({ input: process.stdin })[Symbol.asyncIterator]();
  process.stdout.write(`${JSON.stringify({ step: name })}\n`);
  const { done } = await lines.next();
  if (done) throw new Error(`the test went away at ${name}`);
}
