// What a client must be showing, by what it keeps in its storage. JSON Patch as docs/protocol.md has it, once more.

/** Returns the confirmed state with the pending pushes carried out in order, but for what does not fit. */
export function fold(confirmed, pushes, lastRef) {
  let state = confirmed;
  for (const { ref, ops, lostOn } of pushes) {
    // What was answered for before the last join is in `confirmed`, or never will be.
    if (ref <= lastRef || lostOn !== undefined) continue;
    try {
      state = apply(state, ops);
    } catch (error) {
      if (!(error instanceof Misfit)) throw error;
    }
  }
  return state;
}

class Misfit extends Error {}

function apply(state, ops) {
  return ops.reduce(carryOut, structuredClone(state));
}

function carryOut(state, operation) {
  const { op, path, value } = operation;
  const parts = path
    .split("/")
    .slice(1)
    .map((part) => part.replaceAll("~1", "/").replaceAll("~0", "~"));
  if (parts.length === 0) return value;
  const last = parts.pop();
  const parent = parts.reduce((node, part) => child(node, part), state);
  if (op === "splice") parent[last] = inText(child(parent, last), operation);
  else if (Array.isArray(parent)) inArray(parent, op, last, value);
  else inObject(parent, op, last, value);
  return state;
}

function child(node, part) {
  if (typeof node !== "object" || node === null || !Object.hasOwn(node, part)) throw new Misfit(part);
  return node[part];
}

function inText(text, { path, at, remove = 0, insert = "" }) {
  const points = typeof text === "string" ? [...text] : [];
  if (typeof text !== "string" || at + remove > points.length) throw new Misfit(path);
  return points.slice(0, at).join("") + insert + points.slice(at + remove).join("");
}

function inArray(array, op, last, value) {
  const index = op === "add" && last === "-" ? array.length : Number(last);
  if (index > array.length - (op === "add" ? 0 : 1)) throw new Misfit(last);
  if (op === "add") array.splice(index, 0, value);
  else if (op === "remove") array.splice(index, 1);
  else array[index] = value;
}

function inObject(object, op, last, value) {
  if (typeof object !== "object" || object === null) throw new Misfit(last);
  if (op !== "add" && !Object.hasOwn(object, last)) throw new Misfit(last);
  if (op === "remove") delete object[last];
  else object[last] = value;
}

/** Returns the same text for the same state. */
export function canonical(value) {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (typeof value !== "object" || value === null) return JSON.stringify(value);
  const members = Object.keys(value).sort();
  return `{${members.map((key) => `${JSON.stringify(key)}:${canonical(value[key])}`).join(",")}}`;
}
