/** Measures what pages load of the package, minified and gzipped; prints it as JSON when it is run. */

import { gzipSync } from "node:zlib";
import { pathToFileURL } from "node:url";
import { build } from "esbuild";
import { MANGLED } from "./mangled.js";

/** What pages import, by what the row says. */
const PAGES = {
  "ThreadClient alone": `export { ThreadClient } from "./index.js";`,
  "with channels": `export { ThreadClient, channels } from "./index.js";`,
  "with text and undo": `export { ThreadClient, text, undo } from "./index.js";`,
  "with text, undo and bindText": `export { ThreadClient, bindText, text, undo } from "./index.js";`,
  "React hooks": `export { usePresence, useRpc, useThread, useThreadEvent, useThreadState } from "./react.js";`,
  "React hooks with text and undo": `
    export { useText, useThread, useThreadState } from "./react.js";
    export { text, undo } from "./index.js";`,
  "React whole": `export * from "./react.js";`,
  "the file that servers hand out": `export * from "./full.js";`,
};

/** Returns how many bytes each page loads. */
export async function measure() {
  const sizes = await Promise.all(Object.entries(PAGES).map(async ([name, page]) => [name, await sizeOf(page)]));
  return Object.fromEntries(sizes);
}

async function sizeOf(page) {
  const built = await build({
    ...MANGLED,
    stdin: { contents: page, resolveDir: new URL("../src", import.meta.url).pathname, loader: "ts" },
    bundle: true,
    minify: true,
    format: "esm",
    target: "es2022",
    charset: "utf8",
    legalComments: "none",
    external: ["react"],
    write: false,
  });
  return gzipSync(built.outputFiles[0].contents, { level: 9 }).length;
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? "").href) console.log(JSON.stringify(await measure()));
