import { expect, test } from "vitest";

import { Copies } from "../src/copies.js";

test("of two pages that ask at a time for one client, one goes on; who asks later does not", async () => {
  const [first, second, later] = Array.from({ length: 3 }, () => new Copies("key", () => "one")) as [
    Copies,
    Copies,
    Copies,
  ];
  const found = await Promise.all([first.ask(), second.ask()]);
  expect(found.sort()).toEqual([false, true]);
  expect(await later.ask()).toBe(true);
  for (const each of [first, second, later]) each.close();
});

test("pages with other clients, or with none, are not in the way", async () => {
  const clients = ["one", "two", undefined];
  const copies = clients.map((client) => new Copies("key", () => client));
  expect(await Promise.all(copies.map((each) => each.ask()))).toEqual([false, false, false]);
  for (const each of copies) each.close();
});
