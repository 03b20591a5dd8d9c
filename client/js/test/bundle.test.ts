import { readFileSync } from "node:fs";
import { beforeAll, expect, test } from "vitest";

const BUNDLE = new URL("../../../server/plait/web/client.js", import.meta.url);
const SIZES = new URL("../scripts/sizes.js", import.meta.url);

test("the bundle is one file that needs no other, with the client, its error and bindText", async () => {
  const exported = (await import(BUNDLE.href)) as object;
  expect(Object.keys(exported).sort()).toEqual(["PlaitError", "ThreadClient", "bindText"]);
  expect(readFileSync(BUNDLE, "utf8")).not.toMatch(/\b(import|require)\s*[({"']/);
});

test.each([
  ["messages", "put", /extends Error/],
  ["tasks", "put", /extends Error/],
  // It has the error of a difference that does not fit.
  ["queries", "newMethods", /closeCode/],
  ["optimistic", "put", /closeCode/],
  ["cache", "put", /extends Error/],
])("the part for %s is a file beside it, which takes the error from there", async (part, method, ownError) => {
  const file = new URL(`${part}.js`, BUNDLE);
  const exported = (await import(file.href)) as Record<string, object>;
  expect(exported[part]).toHaveProperty(method);
  expect(readFileSync(file, "utf8")).not.toMatch(ownError);
});

// The limits may only fall: a page with ThreadClient alone is to load 16 kB, one with text and undo 22.
const LIMITS = {
  "ThreadClient alone": 18_260,
  "with text and undo": 23_180,
  "React whole": 27_040,
  "the file that servers hand out": 30_780,
};

const REACT = {
  "React hooks": "ThreadClient alone",
  "React hooks with text and undo": "with text, undo and bindText",
};

let sizes: Record<string, number>;

beforeAll(async () => {
  const { measure } = (await import(SIZES.href)) as { measure: () => Promise<typeof sizes> };
  sizes = await measure();
});

test.each(Object.entries(LIMITS))("%s is no more than %i bytes, minified and gzipped", (page, limit) => {
  expect(sizes[page]).toBeLessThanOrEqual(limit);
});

test("channels add no more than 1.3 kB", () => {
  expect((sizes["with channels"] as number) - (sizes["ThreadClient alone"] as number)).toBeLessThanOrEqual(1_300);
});

test.each(Object.entries(REACT))("%s add no more than 2 kB to %s", (page, base) => {
  expect((sizes[page] as number) - (sizes[base] as number)).toBeLessThanOrEqual(2_000);
});
