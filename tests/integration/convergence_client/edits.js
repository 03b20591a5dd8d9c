// The changes of test_convergence.py, as they are made in JavaScript.

const KINDS = ["insert", "insert", "insert", "remove", "replace", "key", "unkey", "refused", "n"];

/** Chooses a change. It `uses` the token, a text that is nowhere else, if it puts that into the list; it `takes` another. */
export function choose(dice, shown, number, token) {
  const length = shown.list.length;
  const kind = dice.pick(KINDS);
  const keys = Object.keys(shown.by).filter((key) => key.length === 1);
  if (kind === "remove" && length > 0) {
    const index = dice.below(length);
    return { uses: false, takes: shown.list[index], make: (draft) => void draft.list.splice(index, 1) };
  }
  if (kind === "replace" && length > 0) {
    const index = dice.below(length);
    return { uses: true, takes: shown.list[index], make: (draft) => void (draft.list[index] = token) };
  }
  if (kind === "key") {
    const key = dice.pick(["a", "b", "c"]);
    return { uses: false, make: (draft) => void (draft.by[key] = number) };
  }
  if (kind === "unkey" && keys.length > 0) {
    const key = dice.pick(keys);
    return { uses: false, make: (draft) => void delete draft.by[key] };
  }
  if (kind === "refused") return { uses: true, make: (draft) => refused(draft, token) };
  if (kind === "n") return { uses: false, make: (draft) => void (draft.n = number) };
  const index = dice.below(length + 1);
  return { uses: true, make: (draft) => void draft.list.splice(index, 0, token) };
}

function refused(draft, token) {
  draft.by.refused = 1;
  draft.list.push(token);
}

/** How a character is typed that is nowhere else: alone, with an accent, in a sequence, after another. */
const LETTERS = [
  (unique) => unique,
  (unique) => `${unique}\u0301`,
  (unique) => `${unique}\u200d\u{1f511}`,
  (unique) => `e\u0301${unique}`,
];

/** The first of those characters: each of them is two halves in JavaScript. */
const FIRST = 0xf0000;
const MOST_LETTERS = 3;

/**
 * Chooses a new value for a text: letters are put in at one place, and others taken out there. Returns its pointer, what
 * is `typed` and `deleted` of the letters that are there once, and how it is made in a draft.
 */
export function rewrite(dice, shown, number) {
  const place = dice.below(shown.cards.length + 1);
  const card = shown.cards[place];
  const points = [...(card ? card.body : shown.note)];
  const at = dice.below(points.length + 1);
  const end = Math.min(points.length, at + (dice.chance(0.4) ? dice.below(6) : 0));
  const typed = Array.from({ length: dice.between(at < end ? 0 : 1, MOST_LETTERS) }, (_, index) =>
    String.fromCodePoint(FIRST + number * MOST_LETTERS + index),
  );
  const insert = typed.map((unique) => dice.pick(LETTERS)(unique)).join("");
  const value = points.slice(0, at).join("") + insert + points.slice(end).join("");
  const deleted = points.slice(at, end).filter((point) => point.codePointAt(0) >= FIRST);
  const make = (draft) => {
    if (card) draft.cards[place].body = value;
    else draft.note = value;
  };
  return { pointer: card ? `/cards/${place}/body` : "/note", value, typed, deleted, make };
}

/** Puts the first card after the others. */
export function swap(draft) {
  draft.cards.push(...draft.cards.splice(0, 1));
}
