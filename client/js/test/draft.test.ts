import { expect, test } from "vitest";

import { edited } from "../src/draft.js";
import { plain } from "../src/json.js";
import type { Json } from "../src/json.js";
import { Random } from "./random.js";
import { diff } from "./whole.js";

function produce<State>(base: State, recipe: (draft: State) => unknown): State {
  return plain(edited(base, recipe), base) as State;
}

const board = () => ({
  title: "a",
  cards: [
    { id: 1, tags: ["x"] },
    { id: 2, tags: [] as string[] },
  ],
  owner: { name: "Ada" },
});

test("an edit changes the draft and nothing of what it was made of", () => {
  const before = board();
  const after = produce(before, (draft) => {
    draft.title = "b";
    draft.cards[0]?.tags.push("y");
    delete (draft as Partial<typeof draft>).owner;
  });
  expect(after).toEqual({
    title: "b",
    cards: [
      { id: 1, tags: ["x", "y"] },
      { id: 2, tags: [] },
    ],
  });
  expect(before).toEqual(board());
});

test("what an edit does not change keeps its identity", () => {
  const before = board();
  const after = produce(before, (draft) => {
    expect(draft.owner.name).toBe("Ada");
    draft.cards[1]?.tags.push("z");
  });
  expect(after.owner).toBe(before.owner);
  expect(after.cards[0]).toBe(before.cards[0]);
  expect(produce(before, (draft) => void draft.cards.map((card) => card.tags.length))).toBe(before);
});

test("an edit that sets what is there changes nothing", () => {
  const before = board();
  expect(
    diff(
      before,
      produce(before, (draft) => (draft.title = "a")),
    ),
  ).toEqual([]);
});

test("elements keep their identity when an array's methods move them", () => {
  const before = board();
  const after = produce(before, (draft) => {
    draft.cards.reverse();
    draft.cards.splice(1, 0, { id: 3, tags: [] });
  });
  expect(after.cards.map((card) => card.id)).toEqual([2, 3, 1]);
  expect(after.cards[2]).toBe(before.cards[0]);
  expect(
    diff(
      before,
      produce(before, (draft) => void draft.cards.shift()),
    ),
  ).toEqual([{ op: "remove", path: "/cards/0" }]);
});

test("a draft may be put elsewhere, also into something new", () => {
  const before = board();
  const after = produce(before, (draft) => {
    const card = draft.cards.pop();
    Object.assign(draft.owner, { held: { card } });
    card?.tags.push("held");
  });
  expect(after.owner).toEqual({ name: "Ada", held: { card: { id: 2, tags: ["held"] } } });
  expect(after.cards).toEqual([{ id: 1, tags: ["x"] }]);
  expect(JSON.parse(JSON.stringify(after))).toEqual(after);
});

test("a value that was put in is not changed by later edits of the draft", () => {
  const card = { id: 9, tags: [] as string[] };
  const after = produce(board(), (draft) => {
    draft.cards.push(card);
    draft.cards[2]?.tags.push("late");
  });
  expect(after.cards[2]).toEqual({ id: 9, tags: ["late"] });
  expect(card.tags).toEqual([]);
});

test("drafts read like what they were made of", () => {
  produce(board(), (draft) => {
    expect(Array.isArray(draft.cards)).toBe(true);
    expect(Object.keys(draft)).toEqual(["title", "cards", "owner"]);
    expect(JSON.stringify(draft)).toBe(JSON.stringify(board()));
    expect("title" in draft && draft.cards.length).toBe(2);
    expect(draft.cards[0]).toBe(draft.cards[0]);
  });
});

test("random edits of a draft do what they do to a copy", () => {
  for (let seed = 0; seed < 200; seed++) {
    const random = new Random(seed);
    const before = random.object(4);
    const copy = structuredClone(before);
    const [forDraft, forCopy] = [new Random(seed), new Random(seed)];
    const after = produce(before, (draft) => scribble(draft, forDraft));
    scribble(copy, forCopy);
    expect(after).toEqual(copy);
  }
});

function scribble(node: unknown, random: Random): void {
  if (Array.isArray(node)) {
    if (random.chance(0.3)) node.unshift(random.json(1));
    if (random.chance(0.3)) node.splice(random.below(node.length + 1), 1);
    if (random.chance(0.2)) node.length = Math.min(node.length, 2);
  } else if (typeof node === "object" && node !== null) {
    const record = node as Record<string, Json>;
    if (random.chance(0.3)) record["new"] = random.json(1);
    const [first] = Object.keys(record);
    if (first !== undefined && random.chance(0.3)) delete record[first];
  }
  if (typeof node === "object" && node !== null) for (const item of Object.values(node)) scribble(item, random);
}

test("an object that an edit returns is the next state", () => {
  const before = board();
  const after = produce(before, (draft) => ({ ...draft, title: "b", cards: draft.cards.slice(1) }));
  expect(after).toEqual({ ...board(), title: "b", cards: board().cards.slice(1) });
  expect(after.owner).toBe(before.owner);
  expect(produce([1, 2, 3], (draft) => draft.filter((n) => n !== 2))).toEqual([1, 3]);
});

test("what an edit returns beside that means nothing, and nothing is lost of it", () => {
  expect(produce(board(), (draft) => draft.cards.splice(0, 1)).cards).toHaveLength(1);
  expect(produce(board(), (draft) => Object.assign(draft.owner, { name: "Grace" })).owner.name).toBe("Grace");
  expect(produce({ n: 1 }, (draft) => draft.n++)).toEqual({ n: 2 });
  expect(produce({ n: 1, text: "" }, (draft) => (draft.text = "a"))).toEqual({ n: 1, text: "a" });
  expect(produce({ n: 1 }, (draft) => draft)).toEqual({ n: 1 });
});

test("an edit that both changes its draft and returns a state, or returns what cannot be one, is refused", () => {
  const both = (draft: { n: number; m?: number }) => {
    draft.n++;
    return { ...draft, m: 1 };
  };
  expect(() => produce({ n: 1 }, both)).toThrow("changes its draft or returns");
  expect(() => produce(board(), (draft) => draft.cards.filter((card) => card.id > 1))).toThrow(TypeError);
  class Counter {
    n = 2;
  }
  expect(() => produce({ n: 1 }, () => new Counter())).toThrow(TypeError);
  expect(() => produce({ n: 1 }, () => new Map([["n", 2]]))).toThrow(TypeError);
});

test("a draft leads to nothing but what is in it", () => {
  const paths = [
    ["__proto__", "polluted"],
    ["constructor", "prototype", "polluted"],
    ["toString", "__proto__", "__proto__", "polluted"],
    ["cards", "__proto__", "polluted"],
    ["cards", "push", "call", "__proto__", "__proto__", "polluted"],
    ["cards", "push", "constructor", "prototype", "polluted"],
    ["cards", "push", "polluted"],
  ];
  for (const path of paths) {
    const walk = (draft: unknown) => {
      let node = draft as Record<string, any>;
      for (const key of path.slice(0, -1)) node = node[key];
      node["polluted"] = true;
    };
    expect(() => produce(board(), walk)).toThrow(TypeError);
    for (const object of [{}, [], () => 1]) expect("polluted" in object).toBe(false);
  }
});

test("what is put under a key that means something else in JavaScript is data", () => {
  const after = produce<Record<string, unknown>>({ list: [1] }, (draft) => {
    draft["__proto__"] = { a: 1 };
    draft["constructor"] = 1;
    expect(Object.keys(draft)).toEqual(["list", "__proto__", "constructor"]);
    (draft["__proto__"] as Record<string, unknown>)["b"] = 2;
  });
  expect(JSON.stringify(after)).toBe('{"list":[1],"__proto__":{"a":1,"b":2},"constructor":1}');
  expect(Object.getPrototypeOf(after)).toBe(Object.prototype);
});

test("the methods of objects and arrays are there in a draft", () => {
  produce(board(), (draft) => {
    expect(draft.hasOwnProperty("title") && !draft.hasOwnProperty("toString")).toBe(true);
    expect(`${draft.cards.map((card) => card.id)}`).toBe("1,2");
    draft.cards.push.apply(draft.cards, [{ id: 3, tags: [] }]);
    expect([...draft.cards].length).toBe(3);
    expect(draft.cards.concat(draft.cards)).toHaveLength(6);
  });
});

test("neither an async edit nor one of a state without members is taken", () => {
  expect(() => produce({ n: 1 }, () => Promise.resolve())).toThrow(TypeError);
  expect(() => produce(1, () => undefined)).toThrow(TypeError);
});

test("a draft that holds itself is refused", () => {
  expect(() => produce<Record<string, unknown>>({ a: {} }, (draft) => void (draft["a"] = draft))).toThrow(TypeError);
});

test("an element without an id that is edited is the same, wherever it is put", () => {
  const before = { points: [{ x: 1 }, { x: 2 }, { x: 3 }], rows: [[1], [2]] };
  const after = produce(before, (draft) => {
    (draft.points[0] as { x: number }).x = 5;
    draft.points.push(draft.points.shift() as { x: number });
    (draft.points[0] as { x: number }).x = 6;
    (draft.rows[1] as number[])[0] = 7;
  });
  expect(diff(before, after)).toEqual([
    { op: "remove", path: "/points/0" },
    { op: "add", path: "/points/2", value: { x: 1 }, moved: true },
    { op: "replace", path: "/points/0/x", value: 6 },
    { op: "replace", path: "/points/2/x", value: 5 },
    { op: "replace", path: "/rows/1/0", value: 7 },
  ]);
});
