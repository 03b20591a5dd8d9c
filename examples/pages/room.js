// @ts-check
/** The shared code of all pages: a room, a status, notices, and the person who uses the page. */

import { ThreadClient } from "/plait/client.js";

/** @typedef {{id: string, name: string}} Person */

const ADJECTIVES = ["Amber", "Brave", "Calm", "Dapper", "Eager", "Gentle", "Lucky", "Merry", "Quick", "Sunny"];
const ANIMALS = ["Badger", "Crane", "Dolphin", "Fox", "Heron", "Lynx", "Magpie", "Otter", "Robin", "Wren"];
const STATUS_TEXT = { connecting: "Connecting", online: "Live", offline: "Offline", closed: "Closed" };
const MOST_NOTICES = 3;

/** The room that the address names: `#` or `?room=`, or the lobby; on a page with `data-room="new"`, a room of its own. */
export const room = roomFromAddress();

/** @returns {string} */
function roomFromAddress() {
  const address = new URL(location.href);
  const hash = new URLSearchParams(`room=${address.hash.slice(1)}`);
  const name = hash.get("room") || address.searchParams.get("room") || initialRoom();
  address.searchParams.set("room", name);
  address.hash = "";
  history.replaceState(null, "", address);
  return name;
}

function initialRoom() {
  return document.documentElement.dataset.room === "new" ? randomId().slice(0, 8) : "lobby";
}

/** The secret by which this browser proves who it is, as the demo has no login. */
export const key = localStorage.getItem("plait-key") ?? randomId();
localStorage.setItem("plait-key", key);

/** Return 24 random hex digits; `crypto.randomUUID` is missing on plain http. */
export function randomId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Return an element of the page, which must exist. @param {string} selector @param {ParentNode} root */
export function find(selector, root = document) {
  const element = root.querySelector(selector);
  if (!(element instanceof HTMLElement)) throw new Error(`this page has no ${selector}`);
  return element;
}

/** Return a text field of the page, which must exist. @param {string} selector @param {ParentNode} root */
export function findInput(selector, root = document) {
  return /** @type {HTMLInputElement} */ (find(selector, root));
}

/** Set an element's text if it differs; a screen reader would read out the same text again. @param {Element} element @param {string} text */
export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Copy the element that a `<template>` holds. @param {string} selector */
export function clone(selector) {
  const { content } = /** @type {HTMLTemplateElement} */ (find(selector));
  return /** @type {HTMLElement} */ (content.firstElementChild?.cloneNode(true));
}

/** Show the room, and make "Copy link" and "New room" work. @param {string} title */
export function openRoom(title) {
  document.title = `${room} · ${title} · plait`;
  find("#room").textContent = room;
  find("#copy-link").addEventListener("click", copyLink);
  find("#new-room").addEventListener("click", () => location.assign(`?room=${randomId().slice(0, 8)}`));
  addEventListener("hashchange", () => location.reload());
}

async function copyLink() {
  try {
    await navigator.clipboard.writeText(location.href);
    notify("Link copied. Open it in another window, or send it to someone.");
  } catch {
    notify(`This browser does not allow a page to copy. The link is ${location.href}`);
  }
}

/**
 * Join the thread of this room and show whether it is live. The tab keeps who it is and what it has not sent yet, so
 * that a reload loses nothing.
 * @template State
 * @param {string} kind
 * @param {() => void} render is called when the client has changed
 * @param {(error: Error, ops: readonly {path: string}[]) => void} refused is called for each change that was refused
 * @param {object} parts further options of the client
 * @returns {ThreadClient<State>}
 */
export function join(kind, render, refused, parts = {}) {
  /** @type {ThreadClient<State>} */
  const client = new ThreadClient({ kind, name: room, storage: sessionStorage, token: key, ...parts });
  client.subscribe(() => {
    showStatus(client);
    render();
  });
  client.onRefused(({ error, ops }) => refused(error, ops));
  addEventListener("beforeunload", (event) => client.status !== "online" && client.pending && event.preventDefault());
  return client;
}

/** @param {ThreadClient} client */
function showStatus({ status, pending, error }) {
  const element = find("#status");
  const waiting = pending === 1 ? "1 edit waiting" : `${pending} edits waiting`;
  const detail = error?.message ?? (status !== "online" && pending ? waiting : "");
  const text = detail ? `${STATUS_TEXT[status]}: ${detail}` : STATUS_TEXT[status];
  element.dataset.status = status;
  write(element, text);
}

// Notices

/**
 * Show a notice at the bottom of the page for a while.
 * @param {string} text
 * @param {{refused?: boolean, action?: {label: string, run: () => void}}} options
 */
export function notify(text, { refused = false, action } = {}) {
  const notices = find("#notices");
  // A notice that repeats another replaces it.
  for (const other of notices.querySelectorAll(".notice")) if (other.firstChild?.textContent === text) other.remove();
  const notice = document.createElement("div");
  notice.className = refused ? "notice refused" : "notice";
  const message = document.createElement("span");
  message.textContent = text;
  notice.append(message);
  if (action) notice.append(noticeButton(notice, action.label, action.run));
  const dismiss = noticeButton(notice, "", () => {});
  dismiss.className = "dismiss";
  dismiss.ariaLabel = "Dismiss";
  notice.append(dismiss);
  notices.append(notice);
  if (notices.childElementCount > MOST_NOTICES) notices.firstElementChild?.remove();
  expire(notice);
}

/** @param {HTMLElement} notice @param {string} label @param {() => void} run */
function noticeButton(notice, label, run) {
  const button = document.createElement("button");
  button.textContent = label;
  button.addEventListener("click", () => (notice.remove(), run()));
  return button;
}

/** Take a notice away after a while, but not from under the pointer or the focus. @param {HTMLElement} notice */
function expire(notice) {
  setTimeout(() => (notice.matches(":hover, :focus-within") ? expire(notice) : notice.remove()), 6000);
}

// Motion

/**
 * Animate an element, unless the person has asked for less motion.
 * @param {Element} element
 * @param {PropertyIndexedKeyframes} frames
 * @param {number} duration
 */
export function animate(element, frames, duration) {
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  if (!still) element.animate(frames, { duration, easing: "ease-out" });
}

/** Shake an element whose change has been taken back. @param {Element} element */
export function shake(element) {
  animate(element, { translate: ["0", "-7px", "6px", "-4px", "2px", "0"] }, 380);
}

// Person

/** Return the person who uses this browser, with an initial name. @returns {Person} */
export function loadPerson() {
  const pick = (/** @type {string[]} */ words) => words[Math.floor(Math.random() * words.length)];
  const id = localStorage.getItem("plait-person") ?? randomId();
  const name = localStorage.getItem("plait-name") ?? `${pick(ADJECTIVES)} ${pick(ANIMALS)}`;
  savePerson({ id, name });
  return { id, name };
}

/** @param {Person} person */
export function savePerson({ id, name }) {
  localStorage.setItem("plait-person", id);
  localStorage.setItem("plait-name", name);
}

/** Return a round picture of someone: their initials on a colour of their own. @param {Person} person */
export function avatar({ id, name }) {
  const element = document.createElement("span");
  element.className = "avatar";
  element.textContent = initials(name);
  element.title = name;
  element.style.setProperty("--hue", String(hue(id)));
  return element;
}

/** @param {string} name */
function initials(name) {
  const words = name.trim().split(/\s+/);
  const letters = words.length > 1 ? [words[0], words[words.length - 1]] : words;
  return letters.map((word) => [...word][0] ?? "").join("").toUpperCase();
}

/** Return the colour of someone, in degrees. @param {string} id */
export function hue(id) {
  let hash = 0;
  for (const letter of id) hash = (hash * 31 + letter.charCodeAt(0)) % 3600;
  return hash / 10;
}
