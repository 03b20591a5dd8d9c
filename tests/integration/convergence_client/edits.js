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
