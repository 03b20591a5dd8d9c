// @ts-check
/** The shared code of conversations: the box for the next message, and the end of the page. */

import { find } from "./room.js";

const NEAR = 120;

/** The box in which the next message is written. */
export const box = /** @type {HTMLTextAreaElement} */ (find("#message"));

/**
 * Send the text in the box, or a pressed idea, once the thread is known.
 * @param {import("/plait/client.js").ThreadClient} client
 * @param {(text: string) => void} say
 * @param {() => boolean} hasMore whether there is something to send beside a text
 */
export function openBox(client, say, hasMore = () => false) {
  const send = (/** @type {Event} */ event) => {
    event.preventDefault();
    const text = box.value.trim();
    if (!(text || hasMore()) || !client.state) return;
    box.value = "";
    say(text);
  };
  find("#composer").addEventListener("submit", send);
  box.addEventListener("keydown", (event) => isSending(event) && send(event));
  for (const idea of document.querySelectorAll("#ideas button")) {
    idea.addEventListener("click", () => say(idea.textContent ?? ""));
  }
  find("#latest").addEventListener("click", () => scrollTo({ top: document.body.scrollHeight, behavior: "smooth" }));
  addEventListener("scroll", showLatest, { passive: true });
  addEventListener("resize", showLatest);
  box.focus({ preventScroll: true });
}

/** Return whether a key sends the text in which it is pressed. @param {KeyboardEvent} event */
export function isSending({ key, shiftKey, isComposing }) {
  // Touch screens have a button for sending, and Enter in an input method only ends a word.
  return key === "Enter" && !shiftKey && !isComposing && !matchMedia("(pointer: coarse)").matches;
}

/** Return whether the end of the page is shown, or nearly. */
export function isNearEnd() {
  return innerHeight + scrollY > document.body.scrollHeight - NEAR;
}

export function goToEnd() {
  scrollTo({ top: document.body.scrollHeight });
}

/** Offer a way to the end of the page, if it is not shown. */
export function showLatest() {
  find("#latest").hidden = isNearEnd();
}
