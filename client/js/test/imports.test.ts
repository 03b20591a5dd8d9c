import { readFileSync, readdirSync } from "node:fs";
import { expect, test } from "vitest";
import ts from "typescript";

const SOURCE = new URL("../src/", import.meta.url);

/** Returns the files of `src` that a file imports, with those of types and of `import()`. */
function importsOf(file: string): string[] {
  const { importedFiles } = ts.preProcessFile(readFileSync(new URL(file, SOURCE), "utf8"));
  const own = importedFiles.filter(({ fileName }) => fileName.startsWith("./"));
  return own.map(({ fileName }) => fileName.slice(2).replace(/\.js$/, ".ts"));
}

/** Returns a circle of imports that can be reached from a file, undefined where there is none. */
function circleFrom(file: string, path: readonly string[], done: Set<string>): string[] | undefined {
  if (path.includes(file)) return [...path.slice(path.indexOf(file)), file];
  if (done.has(file)) return undefined;
  for (const imported of importsOf(file)) {
    const circle = circleFrom(imported, [...path, file], done);
    if (circle) return circle;
  }
  done.add(file);
  return undefined;
}

test("imports have no circle, nor do imports of types", () => {
  const files = readdirSync(SOURCE).filter((file) => /\.tsx?$/.test(file));
  expect(files.flatMap(importsOf).length).toBeGreaterThan(files.length);
  const done = new Set<string>();
  for (const file of files) expect(circleFrom(file, [], done)?.join(" -> ")).toBeUndefined();
});
