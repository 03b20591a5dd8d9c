/** The internal names that are shortened in what pages load. */

import { readFileSync } from "node:fs";
import { expect, test } from "vitest";

import * as exported from "../src/index.js";

const { names } = (await import(new URL("../scripts/mangled.js", import.meta.url).href)) as { names: string[] };
const read = (path: string) => readFileSync(new URL(path, import.meta.url), "utf8");

test("each has a letter of its own", () => {
  expect(new Set(names).size).toBe(names.length);
  expect(names.length).toBeLessThanOrEqual(52);
});

test("none is a member that users see, or a field of a frame", () => {
  const classes = Object.values(exported).filter((each) => typeof each === "function");
  const members = classes.flatMap((each) => [
    ...Object.getOwnPropertyNames(each),
    ...Object.getOwnPropertyNames(each.prototype ?? {}),
  ]);
  const fields = [...read("../src/protocol.ts").matchAll(/readonly (\w+)\??:/g)].map(([, name]) => name);
  // The names in code of the reference, such as `onEvent(name, fn)` and `version`.
  const code = [...read("../../../docs/javascript-reference.md").matchAll(/^\| `(\w+)[^|]*\|/gm)].map(
    ([, name]) => name,
  );
  expect(code.length).toBeGreaterThan(50);
  expect(names.filter((name) => [...members, ...fields, ...code].includes(name))).toEqual([]);
});

test("none is stored for the next page", () => {
  const stored = "client next fold at confirmed pushes ref made ops lostOn isOrphan isSettled isSent list_keys texts";
  expect(names.filter((name) => [...stored.split(" "), "savedAt", "text", "mark"].includes(name))).toEqual([]);
});
