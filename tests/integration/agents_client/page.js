// A page in jsdom, with what React needs of a browser.

import { JSDOM } from "jsdom";

import { changed, until } from "./waiting.js";

const { window } = new JSDOM('<!doctype html><div id="root"></div>', { url: "http://localhost/" });
globalThis.window = window;
globalThis.document = window.document;
globalThis.navigator ??= window.navigator;

const root = window.document.getElementById("root");
new window.MutationObserver(changed).observe(root, { childList: true, subtree: true, characterData: true });

const { createRoot } = await import("react-dom/client");

/** Renders `element`; the returned function takes it away. */
export function render(element) {
  const view = createRoot(root);
  view.render(element);
  return () => view.unmount();
}

/** The text of the page. */
export function text() {
  return root.textContent;
}

/** Waits until the page reads `wanted`. */
export async function shows(wanted) {
  await until(`the page reads ${wanted}`, () => text() === wanted).catch((error) => {
    throw new Error(`${error.message}; it reads ${text()}`);
  });
}
