/** JSON text in which no integer is changed: those beyond 2^53 are BigInts. */

/** What a number has that may be beyond 2^53, and little else. */
const LONG = /\d{16}/;
/** Texts and numbers. */
const TOKEN = /"[^"\\]*(?:\\.[^"\\]*)*"|-?\d[\d.eE+-]*/gs;
/** Begins a text that stands for a number; in any other it is the first half of a character. */
const MARK = "\ud800";
const MARKED = /^\ud800-?\d/;

/** Tells whether JSON would write a number as an integer that may stand for another one. */
export function isInexact(value: number): boolean {
  return Number.isInteger(value) && !Number.isSafeInteger(value) && Math.abs(value) < 1e21;
}

/** Returns the JSON of a value, in which a BigInt is an integer, and a large number is none. */
export function stringify(value: unknown): string {
  const text = attempt(value);
  if (text !== undefined && !LONG.test(text)) return text;
  const marked = JSON.stringify(value, function (this: Record<string, unknown>, key: string, item: unknown) {
    const own = this[key];
    if (typeof own === "bigint") return `${MARK}${own}`;
    return typeof own === "number" && isInexact(own) ? `${MARK}${own.toExponential()}` : item;
  });
  return marked.replace(/"\\ud800([-+.\de]+)"/g, "$1");
}

/** Returns undefined for what has BigInts. */
function attempt(value: unknown): string | undefined {
  try {
    return JSON.stringify(value);
  } catch {
    return undefined;
  }
}

/** Returns the value that a JSON text has. */
export function parse(text: string): unknown {
  if (!LONG.test(text)) return JSON.parse(text);
  let isMarked = false;
  const marked = text.replace(TOKEN, (token) => {
    if (!/^-?\d+$/.test(token) || Number.isSafeInteger(Number(token))) return token;
    isMarked = true;
    return `"\\ud800${token}"`;
  });
  if (!isMarked) return JSON.parse(text);
  return JSON.parse(marked, (_, value: unknown) =>
    typeof value === "string" && MARKED.test(value) ? BigInt(value.slice(1)) : value,
  );
}
