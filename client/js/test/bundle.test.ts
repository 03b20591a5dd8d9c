import { readFileSync } from "node:fs";
import { expect, test } from "vitest";

const BUNDLE = new URL("../../../server/plait/web/client.js", import.meta.url);

test("the bundle is one file that needs no other, with the client, its error and bindText", async () => {
  const exported = (await import(BUNDLE.href)) as object;
  expect(Object.keys(exported).sort()).toEqual(["PlaitError", "ThreadClient", "bindText"]);
  expect(readFileSync(BUNDLE, "utf8")).not.toMatch(/\b(import|require)\s*[({"']/);
});
