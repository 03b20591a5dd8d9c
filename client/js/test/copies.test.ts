import { afterEach, expect, test } from "vitest";

import { Copies } from "../src/copies.js";

const opened: Copies[] = [];

afterEach(() => opened.splice(0).forEach((each) => each.close()));

/** A page that may be a copy of another, as this client. */
function copy(client: string | undefined): Copies {
  const copies = new Copies("key", () => client);
  opened.push(copies);
  return copies;
}

test("of two pages that ask at a time for one client, one goes on; who asks later does not", async () => {
  const both = [copy("one"), copy("one")];
  const found = await Promise.all(both.map((each) => each.ask()));
  expect(found.sort()).toEqual([false, true]);
  expect(await copy("one").ask()).toBe(true);
});

test("pages with other clients, or with none, are not in the way", async () => {
  const pages = [copy("one"), copy("two"), copy(undefined)];
  expect(await Promise.all(pages.map((each) => each.ask()))).toEqual([false, false, false]);
});
