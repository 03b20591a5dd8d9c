/** Reads and writes JSON without rounding integers: those beyond 2^53 are BigInts. */

/** Matches any number beyond 2^53, and little else. */
const LONG = /\d{16}/;
/** Matches strings and numbers. */
const TOKEN = /"[^"\\]*(?:\\.[^"\\]*)*"|-?\d[\d.eE+-]*/gs;
/** The first character of a string that stands for a number; well-formed text never has it alone. */
const MARK = "\ud800";
const MARKED = /^\ud800-?\d/;

/** Tells whether JSON would write a number as an integer that may have been rounded. */
export function isInexact(value: number): boolean {
  return Number.isInteger(value) && !Number.isSafeInteger(value) && Math.abs(value) < 1e21;
}

/** Returns the JSON of a value: a BigInt as an integer, a number beyond 2^53 with an exponent. */
export function stringify(value: unknown): string {
  try {
    const text = JSON.stringify(value);
    if (!LONG.test(text)) return text;
  } catch {
    // The value has a BigInt.
  }
  const marked = JSON.stringify(value, function (this: Record<string, unknown>, key: string, item: unknown) {
    const own = this[key];
    if (typeof own === "bigint") return `${MARK}${own}`;
    return typeof own === "number" && isInexact(own) ? `${MARK}${own.toExponential()}` : item;
  });
  return marked.replace(/"\\ud800([-+.\de]+)"/g, "$1");
}

/** Returns the value of a JSON text. */
export function parse(text: string): unknown {
  if (!LONG.test(text)) return JSON.parse(text);
  const marked = text.replace(TOKEN, (token) => {
    return /^-?\d+$/.test(token) && !Number.isSafeInteger(Number(token)) ? `"\\ud800${token}"` : token;
  });
  if (marked === text) return JSON.parse(text);
  return JSON.parse(marked, (_, value: unknown) =>
    typeof value === "string" && MARKED.test(value) ? BigInt(value.slice(1)) : value,
  );
}
