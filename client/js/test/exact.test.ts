import { expect, test } from "vitest";

import { parse, stringify } from "../src/exact.js";
import { plain } from "../src/json.js";
import { Random } from "./random.js";

test("integers beyond 2^53 are read as BigInts and written as they were", () => {
  for (const text of ["9007199254740993", "-9007199254740993", "9223372036854775807", "18446744073709551615"]) {
    expect(parse(text)).toBe(BigInt(text));
    const nested = `{"a":[${text},{"b":${text}}],"${text}":"${text}"}`;
    expect(parse(nested)).toEqual({ a: [BigInt(text), { b: BigInt(text) }], [text]: text });
    expect(stringify(parse(nested))).toBe(nested);
  }
});

test("all other numbers, and texts that look like them, are as JSON has them", () => {
  const texts = ["9007199254740991", "0.1234567890123456789", "1e17", "1.5e300", "-0.5", '"12345678901234567890"'];
  for (const text of [...texts, '"\\"12345678901234567890"', '["\\\\", 1234567890123456.5]', '{"__proto__":[1]}']) {
    expect(parse(text)).toEqual(JSON.parse(text));
  }
  expect(stringify({ a: "1234567890123456", b: 1 })).toBe('{"a":"1234567890123456","b":1}');
  expect(stringify("\\ud80012345678901234567890")).toBe(JSON.stringify("\\ud80012345678901234567890"));
});

test("a number that is no integer of JSON's stays one, however large it is", () => {
  for (const value of [1e17, -1e20, 2 ** 60, 1e300, 5e-324]) {
    expect(parse(stringify([value]))).toEqual([value]);
    expect(typeof (parse(stringify([value])) as unknown[])[0]).toBe("number");
  }
});

test("a text may begin with the half of a pair that marks BigInts", () => {
  for (const text of ["\u{10000}", "\u{103ff}1"]) {
    const value = { text, [text]: [text], big: 2n ** 60n };
    expect(parse(stringify(value))).toEqual(value);
  }
});

test("random values, with long texts and BigInts among them, come back", () => {
  for (let seed = 0; seed < 300; seed++) {
    const random = new Random(seed);
    const value = { value: random.json(4), big: [2n ** 63n + BigInt(seed)], text: "9".repeat(17), large: 1e18 + seed };
    expect(parse(stringify(value))).toEqual(value);
  }
  const long = { text: '12345678901234567890\\"'.repeat(100_000), big: 2n ** 60n };
  expect(parse(stringify(long))).toEqual(long);
});

test("a BigInt is taken as what arrives, and an integer that is inexact is refused", () => {
  expect(plain([5n, 9007199254740993n])).toEqual([5, 9007199254740993n]);
  for (const value of [2 ** 53, -(2 ** 60), 2n ** 64n, -(2n ** 63n) - 1n]) {
    expect(() => plain({ value })).toThrow(TypeError);
  }
  expect(plain([1e21, 1.5e300])).toEqual([1e21, 1.5e300]);
  const known = { large: 1e17, n: 1 };
  expect(plain({ ...known, n: 2 }, known)).toEqual({ large: 1e17, n: 2 });
});
