// @ts-check
/** What every page has around its thread: a room, a status, notices, and the person in front of it. */

import { randomId } from "./thread.js";

/** @typedef {import("./thread.js").Status} Status */
/** @typedef {{id: string, name: string}} Person */

const ADJECTIVES = ["Amber", "Brave", "Calm", "Dapper", "Eager", "Gentle", "Lucky", "Merry", "Quick", "Sunny"];
const ANIMALS = ["Badger", "Crane", "Dolphin", "Fox", "Heron", "Lynx", "Magpie", "Otter", "Robin", "Wren"];
const STATUS_TEXT = { connecting: "Connecting", online: "Live", offline: "Offline", closed: "Closed" };
const MOST_NOTICES = 3;

/** The room that the address names: `#` or `?room=`, or the lobby. */
export const room = roomFromAddress();

/** @returns {string} */
function roomFromAddress() {
  const address = new URL(location.href);
  const hash = new URLSearchParams(`room=${address.hash.slice(1)}`);
  const name = hash.get("room") || address.searchParams.get("room") || "lobby";
  address.searchParams.set("room", name);
  address.hash = "";
  history.replaceState(null, "", address);
  return name;
}

/** Find an element that the page is sure to have. @param {string} selector @param {ParentNode} root */
export function find(selector, root = document) {
  const element = root.querySelector(selector);
  if (!(element instanceof HTMLElement)) throw new Error(`this page has no ${selector}`);
  return element;
}

/** Find a text field that the page is sure to have. @param {string} selector @param {ParentNode} root */
export function findInput(selector, root = document) {
  return /** @type {HTMLInputElement} */ (find(selector, root));
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
    notify(`This browser does not let a page copy. The link is ${location.href}`);
  }
}

/** Show whether the page is connected. @param {Status} status @param {string} detail */
export function showStatus(status, detail = "") {
  const element = find("#status");
  element.dataset.status = status;
  element.textContent = detail ? `${STATUS_TEXT[status]}: ${detail}` : STATUS_TEXT[status];
}

// Notices

/**
 * Say something at the bottom of the page for a while.
 * @param {string} text
 * @param {{refused?: boolean, action?: {label: string, run: () => void}}} options
 */
export function notify(text, { refused = false, action } = {}) {
  const notice = document.createElement("div");
  notice.className = refused ? "notice refused" : "notice";
  const message = document.createElement("span");
  message.textContent = text;
  notice.append(message);
  if (action) {
    const button = document.createElement("button");
    button.textContent = action.label;
    button.addEventListener("click", () => (notice.remove(), action.run()));
    notice.append(button);
  }
  const notices = find("#notices");
  notices.append(notice);
  if (notices.childElementCount > MOST_NOTICES) notices.firstElementChild?.remove();
  setTimeout(() => notice.remove(), 6000);
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

/** Return who uses this browser, with a name to begin with. @returns {Person} */
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

/** @param {string} id */
function hue(id) {
  let hash = 0;
  for (const letter of id) hash = (hash * 31 + letter.charCodeAt(0)) % 3600;
  return hash / 10;
}
